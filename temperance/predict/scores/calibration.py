"""Calibration of the most probable class: does what is said with confidence c come true a fraction c of the time?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import check_level, shown
from temperance.core.errors import ArgumentError
from temperance.core.seeds import check_seed
from temperance.predict.scores.classification import Array, as_labels, as_probs, check_count, equal_width_bin, shares_of

RESAMPLED_AT_ONCE = 4_000_000
"""Random indices held in memory at a time by the bootstrap: 32 MB of them, and twice that in what they select."""
ONE_BY_ONE = 20_000
"""Examples up to which each is drawn by itself; of more, cells of examples that are nearly alike."""
CELLS, MOST_CELLS = 64, 20_000
"""Of each bin's right answers, and of its wrong ones; of all together."""


class Binning(Enum):
    """How confidences are put together.

    >>> [kind.name for kind in Binning]
    ['EQUAL_WIDTH', 'EQUAL_MASS']
    """

    EQUAL_WIDTH = "intervals (b / bins, (b + 1) / bins]"
    EQUAL_MASS = "as many examples in each as can be without parting equal confidences"


@dataclass(frozen=True)
class ReliabilityCurve:
    """Mean confidence, accuracy and number of examples of each bin that is not empty, by rising confidence.

    >>> curve = ReliabilityCurve(confidence=(0.6, 0.9), accuracy=(0.5, 1.0), count=(2, 2))
    >>> round(curve.expected_error, 4), round(curve.maximal_error, 4)
    (0.1, 0.1)
    """

    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    count: tuple[int, ...]

    @property
    def expected_error(self) -> float:
        """Mean of |accuracy - confidence| over bins, each weighted by its count (the ECE)."""
        gaps = zip(self.confidence, self.accuracy, self.count, strict=True)
        return sum(n * abs(a - c) for c, a, n in gaps) / sum(self.count)

    @property
    def maximal_error(self) -> float:
        """Largest |accuracy - confidence| of any bin (the MCE)."""
        return max(abs(a - c) for c, a in zip(self.confidence, self.accuracy, strict=True))


@dataclass(frozen=True)
class CalibrationError:
    """A calibration error with a bootstrap interval from ``low`` to ``high`` at the stated level, and its bins.

    >>> bins = ReliabilityCurve((0.8,), (0.7,), (100,))
    >>> CalibrationError(value=0.1, low=0.01, high=0.19, level=0.95, bins=bins).low > 0    # not calibrated
    True
    """

    value: float
    low: float
    high: float
    level: float
    bins: ReliabilityCurve


def _binned(probs: Array, y: Array, bins: int, binning: Binning) -> tuple[Tensor, Tensor, Tensor]:
    """Confidence, correctness (0 or 1; of class probabilities its expectation) and bin of each example; the bins are
    numbered without holes."""
    p = as_probs("probs", probs)
    confidence, guess = p.max(1)
    q = shares_of(p, y)
    correct = q.gather(1, guess[:, None])[:, 0] if q is not None else (guess == as_labels("y", y, *p.shape)).double()
    check_count(bins, "bins")
    if binning is Binning.EQUAL_WIDTH:
        number = equal_width_bin(confidence, bins)
    elif binning is Binning.EQUAL_MASS:
        # Equal confidences share the rank of the first of them, so that the order of the examples does not matter.
        rank = torch.searchsorted(confidence.sort().values, confidence)
        number = rank * bins // len(confidence)
    else:
        raise ArgumentError(f"`binning` must be a member of Binning; got {shown(binning)}.")
    return confidence, correct, torch.unique(number, return_inverse=True)[1]


def _curve(confidence: Tensor, correct: Tensor, number: Tensor) -> ReliabilityCurve:
    count = torch.bincount(number)
    return ReliabilityCurve(
        confidence=tuple((torch.bincount(number, confidence) / count).tolist()),
        accuracy=tuple((torch.bincount(number, correct) / count).tolist()),
        count=tuple(count.tolist()),
    )


def reliability_curve(
    probs: Array, y: Array, bins: int = 15, binning: Binning = Binning.EQUAL_WIDTH
) -> ReliabilityCurve:
    """Confidence against accuracy, bin by bin, for the most probable class; empty bins are left out.

    >>> reliability_curve([[0.75, 0.25], [0.75, 0.25], [0.0, 1.0]], [0, 1, 1])
    ReliabilityCurve(confidence=(0.75, 1.0), accuracy=(0.5, 1.0), count=(2, 1))
    """
    return _curve(*_binned(probs, y, bins, binning))


def _resampled_gaps(gap: Tensor, number: Tensor, resamples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sum of accuracy - confidence and number of examples, resamples × bins, over examples drawn with replacement."""
    size, bins = len(gap), int(number.max()) + 1
    if size > ONE_BY_ONE:
        return _resampled_cells(gap, number, bins, resamples, seed)
    generator = torch.Generator().manual_seed(seed)
    at_once = max(1, RESAMPLED_AT_ONCE // size)
    sums, counts = [], []
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        chosen = torch.randint(size, (rows, size), generator=generator)
        cell = (number[chosen] + bins * torch.arange(rows)[:, None]).flatten()
        sums.append(torch.bincount(cell, gap[chosen].flatten(), minlength=rows * bins).view(rows, bins))
        counts.append(torch.bincount(cell, minlength=rows * bins).view(rows, bins))
    return torch.cat(sums), torch.cat(counts)


def _resampled_cells(gap: Tensor, number: Tensor, bins: int, resamples: int, seed: int) -> tuple[Tensor, Tensor]:
    """The same of many examples, at a cost that does not grow with them: within each bin those of nearly the same gap
    are one cell, whose counts in a resample are multinomial, and each example has the mean gap of its cell."""
    side = 2 * number + (gap > 0)  # an answer that is right never shares a cell with a wrong one
    order = gap.argsort()
    order = order[side[order].argsort(stable=True)]
    gap, side = gap[order], side[order]
    size = torch.bincount(side, minlength=2 * bins)
    rank = torch.arange(len(gap)) - (size.cumsum(0) - size)[side]
    cells = max(1, min(CELLS, MOST_CELLS // (2 * bins)))
    names, count = torch.unique_consecutive(side * cells + rank * cells // size[side], return_counts=True)
    mean = (torch.segment_reduce(gap, "sum", lengths=count) / count).numpy()
    starts = np.flatnonzero(np.diff((names // (2 * cells)).numpy(), prepend=-1))  # of the bins, none of which is empty
    shares, rng = (count.double() / len(gap)).numpy(), np.random.default_rng(seed)
    sums, counts = np.empty((resamples, bins)), np.empty((resamples, bins), dtype=np.int64)
    at_once = max(1, RESAMPLED_AT_ONCE // len(names))
    for start in range(0, resamples, at_once):
        rows = slice(start, min(start + at_once, resamples))
        drawn = rng.multinomial(len(gap), shares, size=rows.stop - start)
        counts[rows] = np.add.reduceat(drawn, starts, axis=1)
        sums[rows] = np.add.reduceat(drawn * mean, starts, axis=1)
    return torch.from_numpy(sums), torch.from_numpy(counts)


def _error(
    probs: Array, y: Array, bins: int, binning: Binning, level: float, resamples: int, seed: int, maximal: bool
) -> CalibrationError:
    confidence, correct, number = _binned(probs, y, bins, binning)
    check_count(resamples, "resamples")
    check_level(level)
    check_seed(seed)
    gap = correct - confidence
    sums, counts = _resampled_gaps(gap, number, resamples, seed)
    observed_sum, observed_count = torch.bincount(number, gap), torch.bincount(number)
    if maximal:  # the error is the largest entry of the vector of gaps; a bin that was not drawn has none
        observed, drawn = observed_sum / observed_count, sums / counts.clamp(min=1)
        value, values = observed.abs().max(), drawn.abs().amax(1)
        noise = torch.where(counts > 0, drawn - observed, 0.0).abs().amax(1)
    else:  # the error is the sum of the entries of the vector of weighted gaps
        observed, drawn = observed_sum / len(gap), sums / len(gap)
        value, values = observed.abs().sum(), drawn.abs().sum(1)
        noise = (drawn - observed).abs().sum(1)
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    lower, upper = torch.quantile(values, tails)
    low = (2 * value - upper).clamp(min=0) if value > torch.quantile(noise, level) else torch.zeros(())
    return CalibrationError(
        value=float(value),
        low=min(float(low), float(value)),
        high=max(float(2 * value - lower), float(value)),
        level=level,
        bins=_curve(confidence, correct, number),
    )


def ece(
    probs: Array,
    y: Array,
    bins: int = 15,
    binning: Binning = Binning.EQUAL_WIDTH,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> CalibrationError:
    """Expected calibration error of the most probable class, with a bootstrap interval.

    With n_b of the N examples in bin b: ECE = Σ_b (n_b / N) |accuracy_b - confidence_b|.

    Noise makes every gap look larger, so the ECE of a calibrated forecast is not 0, and resampling adds the same bias
    once more. The interval therefore reflects the percentiles about the value, [2·ECE - q_high, 2·ECE - q_low], and
    starts at 0 whenever the ECE is no more than resampling noise alone makes of it: the ``level`` quantile of
    Σ_b |gap*_b - gap_b|, with gap_b = (n_b / N)(accuracy_b - confidence_b) and * for a resample. The bins stay fixed.

    Args:
        probs: N × C probabilities.
        y: N labels.
        bins: number of bins.
        binning: how the bins are made.
        level: of the interval.
        resamples: of the bootstrap.
        seed: of the bootstrap.

    >>> result = ece([[0.75, 0.25]] * 100, [0] * 75 + [1] * 25)
    >>> result.value, result.low, result.bins
    (0.0, 0.0, ReliabilityCurve(confidence=(0.75,), accuracy=(0.75,), count=(100,)))
    """
    return _error(probs, y, bins, binning, level, resamples, seed, maximal=False)


def mce(
    probs: Array,
    y: Array,
    bins: int = 15,
    binning: Binning = Binning.EQUAL_WIDTH,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> CalibrationError:
    """Maximal calibration error, max_b |accuracy_b - confidence_b|, with an interval made as for :func:`ece`.

    It is ruled by the smallest bins, where resampling too knows little: prefer ``Binning.EQUAL_MASS``.

    >>> mce([[0.75, 0.25], [0.75, 0.25], [0.0, 1.0]], [0, 1, 1]).value
    0.25
    """
    return _error(probs, y, bins, binning, level, resamples, seed, maximal=True)
