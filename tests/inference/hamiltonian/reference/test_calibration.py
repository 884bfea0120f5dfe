"""Simulation-based calibration (Talts et al., 2018): θ from the prior, data from θ, posterior draws from the data. The
rank of any quantity of θ among those of L independent posterior draws is uniform on 0 … L."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.seeds import generator
from temperance.data.data import Data

from . import advance, whole

WIDE = torch.float64
DRAWS, BINS = 63, 8
NOISE = 0.5
Quantities = Callable[[Tensor, Tensor, Tensor], Tensor]
"""θ (n × P), x, y → n × quantities."""


def _ranks(
    network: nn.Module,
    x: Tensor,
    quantities: Quantities,
    method: Any,
    transitions: int,
    replications: int,
    **options: Any,
) -> np.ndarray:
    """Replications × quantities. Each of L chains begins at a prior draw of its own and gives its last place."""
    ranks = []
    for replication in range(replications):
        rng = generator(replication, "calibration")
        target = tp.Target(network, tp.Normal(scale=NOISE), tp.GaussianPrior(scale=1.0), **options)
        truth = target.sample_prior(1, rng)
        clean = torch.func.functional_call(network, dict(target.layout.unflatten(truth[0])), (x,))
        y = clean.detach() + NOISE * torch.randn(clean.shape, generator=rng, dtype=WIDE)
        starts = target.sample_prior(DRAWS, rng)
        theta = advance(method, target, whole(target, Data(x, y)), starts, transitions, seed=1000 + replication)
        ranks.append((quantities(theta, x, y) < quantities(truth, x, y)).sum(0).numpy())
    return np.stack(ranks)


def _least_probability(ranks: np.ndarray) -> float:
    """The smallest probability of four tests for each quantity, times their number: a χ² test of eight bins, means and
    variances of the ranks, and Kolmogorov–Smirnov."""
    count, size = ranks.shape
    found = []
    for column in ranks.T:
        bins = np.bincount(column * BINS // (DRAWS + 1), minlength=BINS)
        found.append(scipy.stats.chisquare(bins).pvalue)
        unit = (column + np.random.default_rng(0).random(count)) / (DRAWS + 1)  # uniform on (0, 1) exactly
        found.append(2 * scipy.stats.norm.sf(abs(unit.mean() - 0.5) * math.sqrt(12 * count)))
        square = (unit - 0.5) ** 2
        found.append(2 * scipy.stats.norm.sf(abs(square.mean() - 1 / 12) * math.sqrt(180 * count)))
        found.append(scipy.stats.kstest(unit, "uniform").pvalue)
    return min(1.0, 4 * size * min(found))


def _log_likelihood(outputs: Tensor, y: Tensor) -> Tensor:
    return -0.5 * ((outputs - y.T) / NOISE).square().sum(1, keepdim=True)


# ---------------------------------------------------------------------- a linear model

X_LINEAR = torch.tensor([[-1.0, 0.5], [0.3, -1.2], [1.5, 0.4], [0.9, 1.0]], dtype=WIDE)
AT_LINEAR = torch.tensor([[2.0, 1.0], [-1.0, 1.5]], dtype=WIDE)


def _linear_quantities(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    weight, bias = theta[:, :2], theta[:, 2:]
    likelihood = _log_likelihood(weight @ x.T + bias, y)
    return torch.cat([theta, weight @ AT_LINEAR.T + bias, likelihood, theta.square().sum(1, keepdim=True)], 1)


def _precision() -> Tensor:
    features = torch.cat([X_LINEAR, torch.ones(4, 1, dtype=WIDE)], 1)
    return features.T @ features / NOISE**2 + torch.eye(3, dtype=WIDE)


@pytest.mark.parametrize(
    "method",
    [tp.NUTS(step_size=0.9, mass=_precision()), tp.HMC(step_size=0.5, length=3, mass=_precision())],
    ids=["NUTS", "HMC"],
)
def test_linear_model(method: Any) -> None:
    ranks = _ranks(nn.Linear(2, 1).to(WIDE), X_LINEAR, _linear_quantities, method, 10, 80)
    assert _least_probability(ranks) > 1e-3


def test_the_test_sees_a_posterior_that_is_too_narrow() -> None:
    method = tp.NUTS(step_size=0.5, mass=_precision())
    ranks = _ranks(nn.Linear(2, 1).to(WIDE), X_LINEAR, _linear_quantities, method, 8, 60, temperature=0.3)
    assert _least_probability(ranks) < 1e-5


# ---------------------------------------------------------------------- a network

X = torch.tensor([[-2.0], [-1.2], [-0.5], [0.3], [1.0], [1.8]], dtype=WIDE)
AT = torch.tensor([[-3.0], [0.0], [1.4], [4.0]], dtype=WIDE)


def _f(theta: Tensor, x: Tensor) -> Tensor:
    """A network of one input, three tanh units and one output, by hand: n × rows."""
    w1, b1, w2, b2 = theta.split([3, 3, 3, 1], 1)
    hidden = torch.tanh(x.T.unsqueeze(2) * w1.unsqueeze(1) + b1.unsqueeze(1))
    return (hidden * w2.unsqueeze(1)).sum(2) + b2


def _network_quantities(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([_f(theta, AT), _log_likelihood(_f(theta, x), y), theta.square().sum(1, keepdim=True)], 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "transitions"),
    [
        (tp.NUTS(step_size=0.25, max_depth=5), 60),
        (tp.HMC(step_size=0.25, length=8), 100),
        (tp.MCLMC(step_size=0.25, length=8), 100),
        (tp.EllipticalSlice(), 150),
    ],
    ids=["NUTS", "HMC", "MCLMC", "EllipticalSlice"],
)
def test_network(method: Any, transitions: int) -> None:
    network = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).to(WIDE)
    ranks = _ranks(network, X, _network_quantities, method, transitions, 80)
    assert _least_probability(ranks) > 1e-3
