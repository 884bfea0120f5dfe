"""The problem on which NUTS is compared, and the yardstick: NumPy and SciPy only, so that every environment reads it.

Two moons (500 points, noise 0.2, the very points of ``sklearn.datasets.make_moons(500, noise=0.2, random_state=0)``),
standardised; a 2-20-20-20-2 tanh network with softmax and N(0, 1) on each of its 942 weights. The weights are one
vector: for each layer its matrix (outputs × inputs, row by row), then its biases.

The yardstick is the bulk effective sample size of the predicted probability of class 1 at 20 fixed points: the ranks of
the draws of all half-chains are made normal and the autocorrelations summed by Geyer's initial monotone sequence
(Vehtari et al. 2021).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

SIZES = (2, 20, 20, 20, 2)
PARAMETERS = sum(after * (before + 1) for before, after in itertools.pairwise(SIZES))
CHAINS = 4
START_SCALE = 0.1
TARGET_ACCEPTANCE = 0.8
MAX_DEPTH = 10


def data() -> tuple[np.ndarray, np.ndarray]:
    """Standardised inputs (500 × 2) and labels."""
    half = np.linspace(0, np.pi, 250)
    outer = np.stack([np.cos(half), np.sin(half)], 1)
    inner = np.stack([1 - np.cos(half), 1 - np.sin(half) - 0.5], 1)
    x, y = np.concatenate([outer, inner]), np.repeat([0, 1], 250)
    random = np.random.RandomState(0)  # the generator behind scikit-learn's points
    order = np.arange(500)
    random.shuffle(order)
    x = x[order] + random.normal(scale=0.2, size=x.shape)
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32), y[order]


def test_points() -> np.ndarray:
    """A grid of 5 × 4 points in the range of the data."""
    x, _ = data()
    lower, upper = x.min(0), x.max(0)
    grid = np.meshgrid(np.linspace(lower[0], upper[0], 5), np.linspace(lower[1], upper[1], 4), indexing="ij")
    return np.stack([axis.ravel() for axis in grid], 1).astype(np.float32)


def starts(seed: int, chains: int = CHAINS) -> np.ndarray:
    """Small random weights, chains × 942."""
    return np.random.default_rng(seed).normal(scale=START_SCALE, size=(chains, PARAMETERS)).astype(np.float32)


def layers(theta: Any) -> list[tuple[Any, Any]]:
    """Matrix (outputs × inputs) and biases of each layer, as views of a vector of any library."""
    parts, at = [], 0
    for before, after in itertools.pairwise(SIZES):
        weight = theta[..., at : at + after * before].reshape(*theta.shape[:-1], after, before)
        at += after * before
        parts.append((weight, theta[..., at : at + after]))
        at += after
    return parts


def probabilities(theta: np.ndarray) -> np.ndarray:
    """Of class 1 at the test points for draws (... × 942): ... × 20."""
    hidden: np.ndarray = test_points().astype(float)
    *inner, (last, last_bias) = layers(theta.astype(float))
    for weight, bias in inner:
        hidden = np.tanh(hidden @ weight.swapaxes(-1, -2) + bias[..., None, :])
    logits = hidden @ last.swapaxes(-1, -2) + last_bias[..., None, :]
    return 1 / (1 + np.exp(logits[..., 0] - logits[..., 1]))


def bulk_ess(draws: np.ndarray) -> float:
    """Bulk effective sample size of chains × draws.

    With half-chains of length n, ρ_t = 1 − (W − mean autocovariance at t) / V and V = (n − 1) / n · W + B / n; the sums
    of pairs ρ_{2t} + ρ_{2t+1} are taken while positive and made non-increasing; ESS = m n / τ.
    """
    n = draws.shape[1] // 2
    halves = np.concatenate([draws[:, :n], draws[:, draws.shape[1] - n :]])
    if n < 2 or np.ptp(halves) == 0:
        return float("nan")
    values = ndtri((rankdata(halves).reshape(halves.shape) - 0.375) / (halves.size + 0.25))
    centred = values - values.mean(1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * n, axis=1)
    autocovariance = np.fft.irfft(spectrum * spectrum.conj(), 2 * n, axis=1)[:, :n] / n
    within = autocovariance[:, 0].mean() * n / (n - 1)
    whole = within * (n - 1) / n + values.mean(1).var(ddof=1)
    correlation = 1 - (within - autocovariance.mean(0) * n / (n - 1)) / whole
    correlation[0] = 1.0
    pairs = correlation[: n - n % 2].reshape(-1, 2).sum(1)
    negative = np.flatnonzero(pairs < 0)
    stop = int(negative[0]) if len(negative) else len(pairs)
    length = -1 + 2 * float(np.minimum.accumulate(pairs[: max(stop, 1)]).sum())
    return float(values.size / max(length, 1 / np.log10(values.size)))


def summary(
    theta: np.ndarray, leapfrogs: np.ndarray, acceptance: np.ndarray, divergent: np.ndarray, wall: float, cpu: float
) -> dict[str, Any]:
    """What a run of chains × draws is reported by; ``wall`` and ``cpu`` are the seconds of the sampling phase.

    On a machine that others use, those of the processor are the ones to compare.
    """
    p = probabilities(theta)
    sizes = np.array([bulk_ess(p[:, :, k]) for k in range(p.shape[-1])])
    steps = int(leapfrogs.sum())
    return {
        "chains": int(theta.shape[0]),
        "draws": int(theta.shape[1]),
        "leapfrogs": steps,
        "leapfrogs_per_draw": float(leapfrogs.mean()),
        "seconds": wall,
        "cpu_seconds": cpu,
        "microseconds_per_leapfrog": 1e6 * wall / steps,
        "cpu_microseconds_per_leapfrog": 1e6 * cpu / steps,
        "acceptance": float(acceptance.mean()),
        "divergences": int(divergent.sum()),
        "ess_worst": float(sizes.min()),
        "ess_median": float(np.median(sizes)),
        "ess_per_second_worst": float(sizes.min()) / wall,
        "ess_per_second_median": float(np.median(sizes)) / wall,
        "ess_per_cpu_second_worst": float(sizes.min()) / cpu,
        "ess_per_cpu_second_median": float(np.median(sizes)) / cpu,
        "ess_per_thousand_leapfrogs_median": 1e3 * float(np.median(sizes)) / steps,
        "mean_probability": [round(float(value), 4) for value in p.mean((0, 1))],
    }


def options(description: str | None, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line that all scripts share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--chains", type=int, default=CHAINS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, choices=(1, 2))
    parser.add_argument("--core", type=int, help="with one thread: stay on this core (default: the system chooses)")
    parser.add_argument("--ways", nargs="+", help="only these ways of running the chains")
    return parser.parse_args(arguments)


def stay_on(core: int | None) -> None:
    """Keep this process on a core. Call it before the library is imported: its pools are sized by this."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [core])


def report(result: dict[str, Any]) -> None:
    """Print a result as JSON."""
    json.dump({**result, "load_average": os.getloadavg()[0]}, sys.stdout, indent=1)
    print()
