"""Do stated probabilities come true?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from temperance.core.checks import check_level
from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Categories, Quantities
from temperance.core.registry import ByOutcome
from temperance.predict import CategoryPredictive, ValuePredictive, scores
from temperance.predict.scores.classification import Array, as_float64
from temperance.show.plot.style import BAND, BLUE, INK, MUTED, Numbers, axes, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def consistency_band(expected: Array, count: Array, level: float = 0.95) -> tuple[Numbers, Numbers]:
    """Where a frequency out of ``count`` falls with probability at least ``level`` if each event has the probability
    ``expected``: quantiles of Binomial(count, expected) over count (Bröcker & Smith, 2007).

    >>> [ends.round(2).tolist() for ends in consistency_band([0.5], [100])]
    [[0.4], [0.6]]
    """
    p, n = as_float64("expected", expected).numpy(), as_float64("count", count).numpy()
    tail = (1 - check_level(level)) / 2
    return stats.binom.ppf(tail, n, p).clip(0) / n, stats.binom.ppf(1 - tail, n, p) / n


def reliability(
    probs: Array | CategoryPredictive, y: Array, ax: Axes | None = None, bins: int = 15, level: float = 0.95
) -> Axes:
    """A reliability diagram: how often the most probable class was right, against the probability it was given.

    The bars behind the points are consistency bands: where a point falls with probability ``level`` if the forecast is
    calibrated. A point outside them is more than chance. The number above a bar counts the rows in the bin.

    Args:
        probs: N × C probabilities; or N (N × 1) probabilities of yes; or a predictive of classes, of which
            each of several yes/no labels counts as an answer of its own.
        y: N labels.
        ax: where to draw.
        bins: of equal width; empty ones are left out.
        level: of the bands.

    Reference: Bröcker & Smith, "Increasing the reliability of reliability diagrams", 2007.

    >>> ax = reliability([[0.7, 0.3]] * 10, [0] * 7 + [1] * 3)
    >>> [round(float(v), 4) for v in ax.lines[-1].get_xydata()[0]]
    [0.7, 0.7]
    """
    if isinstance(probs, CategoryPredictive):
        y, labelled = labels_of(probs, y), probs.predict().dim() == 2
        probs = probs.probs.detach().cpu().reshape(-1) if labelled else probs.probs.detach().cpu()
    curve = scores.reliability_curve(both_classes(probs), torch.as_tensor(y).reshape(-1), bins)
    low, high = consistency_band(curve.confidence, curve.count, level)
    confidence, accuracy = np.array(curve.confidence), np.array(curve.accuracy)
    ax = axes(ax, "Reliability", "how sure it said it was", "how often it was right")
    ax.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1, label="perfectly honest")
    width = 0.55 / bins
    ax.bar(
        confidence,
        np.maximum(high - low, 0.004),
        width,
        low,
        color=BAND,
        alpha=0.45,
        linewidth=0,
        label=f"{level:.0%} of honest forecasts".replace("%", " %"),
    )
    ax.plot(confidence, accuracy, "o-", color=BLUE, markersize=5, linewidth=1.4, label="measured")
    for place, top, count in zip(confidence, np.maximum(high, accuracy), curve.count, strict=True):
        ax.annotate(
            f"{count:,}",
            (place, min(top, 1.0)),
            (0, 4),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=7.5,
            color=INK,
            rotation=90 if len(curve.count) > 8 else 0,
        )
    left = min(0.5, max(0.0, float(confidence.min()) - 0.08))
    ax.set_xlim(left, 1.03)
    ax.set_ylim(0, 1.18)
    ax.set_yticks(np.linspace(0, 1, 6))
    legend(ax, loc="lower right")
    return ax


def coverage(
    predictive: ValuePredictive,
    y: Any,
    ax: Axes | None = None,
    levels: Sequence[float] = LEVELS,
    level: float = 0.95,
) -> Axes:
    """How often central predictive intervals held the truth, against how often they promised to.

    The band is where the observed share falls with probability ``level`` if the promise is kept and rows are
    independent: quantiles of a binomial. Of several outputs all are counted together. Intervals of counts end at whole
    numbers and so hold a little more than they promise.
    """
    observed, total = observed_coverage(predictive, y, levels)
    promised = np.array(levels, dtype=np.float64)
    low, high = consistency_band(promised, np.full(len(promised), total), level)
    ax = axes(ax, "Interval coverage", "promised share of values inside", "observed share")
    ax.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1, label="promise kept")
    ax.fill_between(
        promised, low, high, color=BAND, alpha=0.45, linewidth=0, label=f"{level * 100:.0f} % of honest forecasts"
    )
    ax.plot(promised, observed, "o-", color=BLUE, markersize=5, linewidth=1.4, label="measured")
    ax.set_xlim(0, 1.02)
    ax.set_ylim(0, 1.02)
    legend(ax, loc="upper left")
    return ax


def observed_coverage(predictive: ValuePredictive, y: Any, levels: Sequence[float] = LEVELS) -> tuple[Numbers, int]:
    """The share of values inside the central interval of each level, and of how many.

    With F the predictive distribution function, y lies in the interval of level ℓ where F(y) ≥ (1 − ℓ)/2 and
    F(y⁻) < (1 + ℓ)/2, F(y⁻) being F(y) itself for real values and F(y − 1) for counts. So one pass serves all levels.
    """
    if not isinstance(predictive, ValuePredictive):
        raise ArgumentError(
            f"`predictive` must be of real values or counts; got {type(predictive).__name__}. For classes see "
            "`reliability`."
        )
    wanted = [check_level(level, "levels") for level in levels]
    if not wanted:
        raise ArgumentError("`levels` must name at least one level; got none.")
    truth = values_of(predictive, y)
    upto = predictive.cdf(truth).detach().double().cpu()
    below = upto
    if predictive.outcome.whole:
        before = predictive.cdf((truth - 1).clamp(min=0)).detach().double().cpu()
        below = torch.where(truth.cpu() > 0, before, 0.0)
    inside = [((upto >= (1 - a) / 2) & (below < (1 + a) / 2)).double().mean() for a in wanted]
    return np.array([float(share) for share in inside]), upto.numel()


def values_of(predictive: ValuePredictive, y: Any) -> Tensor:
    """``y`` as finite numbers, rows × outputs."""
    truth = as_float64("y", y if isinstance(y, Tensor) else np.asarray(y))
    truth = truth.unsqueeze(-1) if truth.dim() == 1 else truth
    if truth.dim() != 2 or len(truth) != len(predictive):
        raise ArgumentError(
            f"`y` must have one entry for each of the {len(predictive)} rows; got shape {tuple(truth.shape)}."
        )
    return truth


def labels_of(predictive: CategoryPredictive, y: Any) -> Tensor:
    """``y`` as labels, rows × 1, or rows × labels for several yes/no labels."""
    labels = as_float64("y", y if isinstance(y, Tensor) else np.asarray(y)).long()
    wanted = predictive.predict().reshape(len(predictive), -1).shape
    if not len(labels) or len(labels) != wanted[0] or labels.numel() != wanted.numel():
        raise ArgumentError(
            f"`y` must have {wanted[1]} label{'s' * (wanted[1] > 1)} for each of the {wanted[0]} rows; got shape "
            f"{tuple(labels.shape)}."
        )
    return labels.reshape(wanted).cpu()


def both_classes(probs: Array) -> Array:
    """Probabilities of yes as those of no and yes; anything else as it is.

    >>> both_classes([0.25])
    tensor([[0.7500, 0.2500]], dtype=torch.float64)
    """
    tensor = as_float64("probs", probs)
    if tensor.dim() == 2 and tensor.shape[1] > 1:
        return tensor
    yes = tensor.reshape(-1)
    if tensor.dim() > 2 or bool(((yes < 0) | (yes > 1)).any()):
        raise ArgumentError(
            f"`probs` must be N x C, or N probabilities of yes from 0 to 1; got shape {tuple(tensor.shape)} and values "
            f"from {yes.min().item():.4g} to {yes.max().item():.4g}."
        )
    return torch.stack([1 - yes, yes], dim=1)


CALIBRATION: ByOutcome[Callable[[Any, Any, Any], Any]] = ByOutcome(
    "plots of calibration", "temperance.show.plot.calibration.CALIBRATION"
)
"""Whether the uncertainty of each outcome can be believed: a plot of predictive, known answers and axes."""
CALIBRATION.register(Categories, reliability)
CALIBRATION.register(Quantities, coverage)
