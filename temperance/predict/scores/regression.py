"""Scores of forecasts of real numbers. Shapes must be equal: nothing is broadcast but a ``std`` that is one number."""

from __future__ import annotations

import math
from dataclasses import dataclass

import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from temperance.core.checks import check_flag, check_level
from temperance.core.errors import ArgumentError
from temperance.predict.scores.classification import Array, as_float64


def _check_shape(name: str, tensor: Tensor, other: str, shape: torch.Size) -> None:
    if tensor.shape != shape:
        raise ArgumentError(f"`{name}` must have the shape of `{other}`, {tuple(shape)}; got {tuple(tensor.shape)}.")


def _gaussian(mean: Array, std: Array, y: Array) -> tuple[Tensor, Tensor, Tensor]:
    mu, sigma, engine = as_float64("mean", mean), as_float64("std", std), as_float64("y", y)
    _check_shape("mean", mu, "y", engine.shape)
    if sigma.dim() == 0:
        sigma = sigma.expand(engine.shape)
    _check_shape("std", sigma, "y", engine.shape)
    return mu, sigma, engine


def rmse(mean: Array, y: Array) -> float:
    """Square root of the mean of (mean - y)².

    >>> rmse([0.0, 0.0], [1.0, 7.0])
    5.0
    """
    mu, engine = as_float64("mean", mean), as_float64("y", y)
    _check_shape("mean", mu, "y", engine.shape)
    return math.sqrt(float((mu - engine).square().mean()))


def gaussian_log_score(mean: Array, std: Array, y: Array) -> float:
    """Mean of log N(y; mean, std²): the test log likelihood of the regression tables, where more is better.

    ``std`` is that of the forecast of y, noise included, and must be positive.

    >>> round(gaussian_log_score([0.0], [1.0], [0.0]), 4)        # -½ log 2π
    -0.9189
    """
    mu, sigma, engine = _gaussian(mean, std, y)
    if (sigma <= 0).any():
        raise ArgumentError(f"`std` must be positive; got {sigma.min().item():g}.")
    z = (engine - mu) / sigma
    return float((-0.5 * z.square() - sigma.log() - 0.5 * math.log(2 * math.pi)).mean())


def gaussian_crps(mean: Array, std: Array, y: Array) -> float:
    """Mean continuous ranked probability score of N(mean, std²), in the unit of y; less is better.

    CRPS = ∫ (F(t) - 1[t ≥ y])² dt; with z = (y - mean) / std it is std · (z (2Φ(z) - 1) + 2φ(z) - 1/√π). A ``std`` of
    zero is a forecast of one number, whose score is |y - mean|.

    >>> round(gaussian_crps([0.0], [1.0], [0.0]), 4)             # (√2 - 1) / √π
    0.2337
    """
    mu, sigma, engine = _gaussian(mean, std, y)
    if (sigma < 0).any():
        raise ArgumentError(f"`std` must not be negative; got {sigma.min().item():g}.")
    error = engine - mu
    z = error / torch.where(sigma > 0, sigma, 1.0)
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    spread = error * torch.erf(z / math.sqrt(2)) + sigma * (2 * density - 1 / math.sqrt(math.pi))
    return float(torch.where(sigma > 0, spread, error.abs()).mean())


def sample_crps(samples: Array, y: Array, fair: bool = True) -> float:
    """Mean continuous ranked probability score of a forecast that is known by S samples.

    In the energy form, CRPS = E|X - y| - ½ E|X - X'|. The second mean is taken over the S(S-1) pairs of different
    samples if ``fair``: this is unbiased for the score of the distribution that the samples come from. Otherwise it is
    taken over all S² pairs: the score of the samples as they stand, never negative. With x₍ᵢ₎ in rising order,
    Σᵢⱼ |xᵢ - xⱼ| = 2 Σᵢ (2i - S - 1) x₍ᵢ₎, so that sorting is all the work.

    Args:
        samples: S × the shape of ``y``.
        y: what came true.
        fair: whether to correct for the number of samples; needs two of them.

    >>> sample_crps([[0.0], [2.0]], [1.0], fair=False), sample_crps([[0.0], [2.0]], [1.0])
    (0.5, 0.0)
    """
    engine, draws = as_float64("y", y), as_float64("samples", samples)
    if draws.dim() < 1 or draws.shape[1:] != engine.shape:
        raise ArgumentError(
            f"`samples` must be S x the shape of `y`, {tuple(engine.shape)}; got shape {tuple(draws.shape)}."
        )
    size = draws.shape[0]
    check_flag(fair, "fair")
    if fair and size < 2:
        raise ArgumentError(f"`samples` must be at least 2 for the fair score; got {size}.")
    errors = (draws - engine).sort(0).values
    weight = 2 * torch.arange(1, size + 1, dtype=torch.float64) - size - 1
    half_spread = torch.tensordot(weight, errors, dims=1) / (size * (size - 1 if fair else size))
    return float((errors.abs().mean(0) - half_spread).mean())


@dataclass(frozen=True)
class IntervalCoverage:
    """How often intervals held the truth, with an exact interval for that frequency, and how wide they were.

    >>> IntervalCoverage(coverage=0.9, low=0.85, high=0.94, level=0.95, mean_width=1.2).coverage
    0.9
    """

    coverage: float
    low: float
    high: float
    level: float
    mean_width: float


def interval_coverage(low: Array, high: Array, y: Array, level: float = 0.95) -> IntervalCoverage:
    """Fraction of y in [low, high], ends included, and the mean of high - low.

    ``low`` and ``high`` of the result are the Clopper-Pearson interval of the given ``level`` for the probability that
    an interval holds its y, from the number of successes among independent examples. The ends may be infinite.

    >>> result = interval_coverage([0.0, 0.0], [1.0, 3.0], [0.5, 4.0])
    >>> result.coverage, result.mean_width, round(result.low, 3), round(result.high, 3)
    (0.5, 2.0, 0.013, 0.987)
    """
    engine = as_float64("y", y)
    bottom, top = as_float64("low", low, finite=False), as_float64("high", high, finite=False)
    _check_shape("low", bottom, "y", engine.shape)
    _check_shape("high", top, "y", engine.shape)
    if (bottom > top).any():
        raise ArgumentError(f"`low` must not be above `high`; got {int((bottom > top).sum())} that are.")
    check_level(level)
    count = engine.numel()
    hits = int(((bottom <= engine) & (engine <= top)).sum())
    tail = (1 - level) / 2
    return IntervalCoverage(
        coverage=hits / count,
        low=float(scipy.stats.beta.ppf(tail, hits, count - hits + 1)) if hits > 0 else 0.0,
        high=float(scipy.stats.beta.ppf(1 - tail, hits + 1, count - hits)) if hits < count else 1.0,
        level=level,
        mean_width=float((top - bottom).mean()),
    )
