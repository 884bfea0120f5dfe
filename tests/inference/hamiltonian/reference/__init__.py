"""What the statistical tests share: chains moved by hand from exact draws, and expectations with their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.stats
import torch
from torch import Tensor

from temperance.core.seeds import generator
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.base import Starts
from temperance.judge import diagnose
from temperance.model.target import Target
from temperance.run import density
from temperance.testing import critical_value

LogDensity = Callable[[Tensor], Tensor]
Claim = tuple[str, Tensor, float]


def density_target(log_density: LogDensity, size: int, temperature: float = 1.0) -> tuple[Target, Batch]:
    """A log density as a target, and the empty batch that goes with it."""
    nothing = torch.zeros(1, 1, dtype=torch.float64)
    target = density.density_target(log_density, torch.zeros(size, dtype=torch.float64))
    return target.with_temperature(temperature), Batch(nothing, nothing, 1)


def whole(target: Target, data: Data) -> Batch:
    """All rows, as ``fit`` gives them to a sampler."""
    ready = target.prepare(data)
    return next(iter(ready.full_pass(len(ready))))


def advance(kernel: Any, target: Target, batch: Batch, starts: Tensor, transitions: int, seed: int = 0) -> Tensor:
    """Where chains are some transitions after ``starts`` (C × P): nothing is tuned, nothing is thrown away."""
    rngs = [generator(seed, "chain", k) for k in range(len(starts))]
    engine = Engine(target)
    state = kernel.init(engine, Starts.at(starts), rngs)
    for _ in range(transitions):
        state, info = kernel.step(engine, state, batch)
        assert info.status.ok
    found: Tensor = kernel.chain(state).theta.clone()
    return found


def least_probability(columns: Tensor, law: Callable[[np.ndarray], np.ndarray]) -> float:
    """The smallest Kolmogorov–Smirnov probability of independent draws (n × m), corrected for their number m."""
    found = [scipy.stats.kstest(column.numpy(), law).pvalue for column in columns.double().T]
    return min(1.0, len(found) * min(found))


def check_expectations(claims: Sequence[Claim], false_alarm: float = 1e-4, least_ess: float = 100.0) -> None:
    """Claims (name, chains × draws of a quantity, its expectation): all within Monte-Carlo error, together."""
    limit = critical_value(len(claims), false_alarm)
    problems = []
    for name, values, expected in claims:
        error, count = float(diagnose.mcse(values)), float(diagnose.ess(values))
        off = (float(values.double().mean()) - expected) / error
        if not (abs(off) <= limit and count >= least_ess):
            problems.append(
                f"{name} = {float(values.double().mean()):.5g} ± {error:.2g}, not {expected:.5g}: {off:.1f} "
                f"standard errors off (at most {limit:.1f}), {count:.0f} effective draws"
            )
    assert not problems, "; ".join(problems)


def gaussian_claims(theta: Tensor, mean: Tensor, covariance: Tensor) -> list[Claim]:
    """Means, and covariances around the known means, of θ (chains × draws × P)."""
    away = theta.double() - mean
    size = len(mean)
    claims: list[Claim] = [(f"mean {i}", theta[..., i], float(mean[i])) for i in range(size)]
    pairs = [(i, j) for i in range(size) for j in range(i + 1)]
    return claims + [(f"covariance {i, j}", away[..., i] * away[..., j], float(covariance[i, j])) for i, j in pairs]
