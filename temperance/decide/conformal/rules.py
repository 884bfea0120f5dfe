"""The scores: split, adaptive and regularised adaptive sets of classes; residuals and quantiles of values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from temperance.core.checks import check_flag, check_positive, check_whole, real
from temperance.core.errors import ArgumentError, DataError
from temperance.core.seeds import derive_seed, generator
from temperance.decide.conformal.base import ConformalRule, uniforms
from temperance.decide.conformal.quantile import conformal_quantile, conformal_rank
from temperance.predict import ValuePredictive

_PENALTIES = (0.0, 0.001, 0.01, 0.1, 0.2, 0.5)  # those that Angelopoulos et al. (2021) search over, and none


@dataclass(frozen=True, eq=False)
class Split(ConformalRule):
    """The plainest scores: 1 − p(y) for classes ("LAC", Sadinle et al. 2019), whose sets are smallest on average, and
    |y − mean| for values, whose intervals are equally wide everywhere.

    Guarantee: P(y in the set) ≥ level for exchangeable rows, over calibration and new rows together.

    >>> import temperance as tp
    >>> from temperance.predict.calibrated import from_outputs
    >>> y = torch.randn(99, 1, generator=torch.Generator().manual_seed(0))
    >>> conformal = Split().calibrate(from_outputs(torch.zeros(99, 1), tp.Normal(scale=1.0)), y, level=0.9)
    >>> low, high = conformal.interval(from_outputs([[5.0]], tp.Normal(scale=1.0)))
    >>> float(high) - 5, float(y.abs().flatten().sort().values[89])  # the 90th of 99 scores
    (1.62932..., 1.62932...)
    """

    def class_scores(self, probs: Tensor, uniform: Tensor) -> Tensor:
        """1 − p."""
        return 1 - probs

    def value_scores(self, predictive: ValuePredictive, y: Tensor, level: float) -> Tensor:
        """|y − mean|."""
        return (y - predictive.mean().double()).abs()

    def value_bounds(self, predictive: ValuePredictive, threshold: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """mean ± threshold."""
        mean = predictive.mean().double()
        return mean - threshold, mean + threshold


@dataclass(frozen=True, eq=False)
class NormalisedResidual(ConformalRule):
    """|y − mean| / std: intervals as wide as the predictive thinks they should be, up to one factor (Papadopoulos et
    al. 2008). Same guarantee as :class:`Split`. Where the logarithm of y was learned it is that of log y, and the ends
    of intervals are their exponentials: they stay where y can be."""

    def value_scores(self, predictive: ValuePredictive, y: Tensor, level: float) -> Tensor:
        """|y − mean| / std."""
        base, bent = predictive.symmetric()
        known = y if bent is None else bent.forward(y)
        return (known - base.mean().double()).abs() / base.std().double()

    def value_bounds(self, predictive: ValuePredictive, threshold: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """mean ± threshold · std; everything where the predictive itself is not finite."""
        base, bent = predictive.symmetric()
        mean, std = base.mean().double(), base.std().double()
        known = mean.isfinite() & std.isfinite()
        reach = torch.where(known, threshold * std.nan_to_num(posinf=0.0), math.inf)
        centre = mean.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        low, high = centre - reach, centre + reach
        return (low, high) if bent is None else (bent.inverse(low), bent.inverse(high))


@dataclass(frozen=True, eq=False)
class CQR(ConformalRule):
    """Conformalised quantiles (Romano et al. 2019): with the predictive's own quantiles l and u at (1 − level)/2 and
    (1 + level)/2, the score is max(l − y, y − u), and the interval [l − t, u + t]. Skewed and widening predictives keep
    their shape; a predictive that was too wide is narrowed (t < 0). Same guarantee as :class:`Split`.
    """

    def value_scores(self, predictive: ValuePredictive, y: Tensor, level: float) -> Tensor:
        """max(l − y, y − u)."""
        low, high = predictive.interval(level)
        return torch.maximum(low.double() - y, y - high.double())

    def value_bounds(self, predictive: ValuePredictive, threshold: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """[l − t, u + t]."""
        low, high = predictive.interval(level)
        return low.double() - threshold, high.double() + threshold


@dataclass(frozen=True, eq=False)
class APS(ConformalRule):
    """Adaptive prediction sets (Romano et al. 2020): the probability of all likelier classes, plus a part of its own,

        s(y) = Σ_{c before y} p_c + U p_y,      U uniform, one number a row

    with classes in falling order of probability (equal ones by number). Larger sets where the model is less sure, and
    with true probabilities the sets cover at the level for every x. ``randomised=False`` takes U = 1: reproducible
    without a seed, and somewhat larger sets. Same guarantee as :class:`Split`, with the randomness included.
    """

    randomised: bool = True

    def __post_init__(self) -> None:
        check_flag(self.randomised, "randomised")

    def class_scores(self, probs: Tensor, uniform: Tensor) -> Tensor:
        """See the class."""
        ordered, order = probs.sort(dim=1, descending=True, stable=True)
        part = uniform.unsqueeze(1) if self.randomised else 1.0
        made = ordered.cumsum(1) - ordered + part * ordered
        return torch.empty_like(probs).scatter_(1, order, made)


@dataclass(frozen=True, eq=False)
class RAPS(ConformalRule):
    """:class:`APS` with a price on rank, s(y) + penalty · max(0, rank(y) − rank) (Angelopoulos et al. 2021): unlikely
    classes in the long tail are kept out, and sets become smaller where there are many classes.

    Where ``penalty`` or ``rank`` is not given it is chosen on a fifth of the calibration rows (at least 20), which are
    then not used for the threshold, so that the guarantee of :class:`Split` holds: ``rank`` as the least that reaches
    the true class with probability ``level``, and the penalty, of 0, 0.001, 0.01, 0.1, 0.2, 0.5, that with the smallest
    sets.
    """

    penalty: float | None = None
    rank: int | None = None
    randomised: bool = True

    def __post_init__(self) -> None:
        if self.penalty is not None and real(self.penalty) != 0:
            check_positive(self.penalty, "penalty")
        if self.rank is not None:
            check_whole(self.rank, "rank", "a whole number")
        check_flag(self.randomised, "randomised")

    def class_scores(self, probs: Tensor, uniform: Tensor) -> Tensor:
        """See the class."""
        if self.penalty is None or self.rank is None:
            raise ArgumentError("RAPS needs `penalty` and `rank` here; `calibrate` chooses them.")
        excess = (ranks(probs) - self.rank).clamp(min=0).double()
        return APS(self.randomised).class_scores(probs, uniform) + self.penalty * excess

    def tuned(self, probs: Tensor, y: Tensor, level: float, seed: int) -> tuple[ConformalRule, Tensor]:
        """See the class."""
        used = torch.ones(len(y), dtype=torch.bool, device=y.device)
        if self.penalty is not None and self.rank is not None:
            return self, used
        count = max(20, len(y) // 5)
        if count >= len(y):
            raise DataError(
                f"`y` must have more than {count} rows for RAPS to choose `penalty` and `rank`; got {len(y)}."
            )
        order = torch.randperm(len(y), generator=generator(seed, "conformal", "tuning")).to(y.device)
        some = order[:count]
        used[some] = False
        p, labels = probs[some], y[some]
        reached = ranks(p).gather(1, labels.unsqueeze(1)).squeeze(1).sort().values
        at = min(conformal_rank(count, level), count)
        rule = replace(self, rank=int(reached[at - 1]) if self.rank is None else self.rank)
        if self.penalty is not None:
            return rule, used
        uniform = uniforms(count, derive_seed(seed, "tuning") % 2**62, "tuning", p)
        sizes = []
        for penalty in _PENALTIES:
            scores = replace(rule, penalty=penalty).class_scores(p, uniform)
            threshold = conformal_quantile(scores.gather(1, labels.unsqueeze(1)).squeeze(1), level)
            sizes.append(float((scores <= threshold).double().sum(1).mean()))
        return replace(rule, penalty=_PENALTIES[sizes.index(min(sizes))]), used


def ranks(probs: Tensor) -> Tensor:
    """1 for the likeliest class of a row, 2 for the next; equal ones by number."""
    order = probs.argsort(dim=1, descending=True, stable=True)
    return torch.empty_like(order).scatter_(
        1, order, torch.arange(1, probs.shape[1] + 1, device=probs.device).expand_as(order)
    )
