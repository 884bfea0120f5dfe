"""Conformal rules, and the calibrated value that they give."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import check_level
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, DataError, NumericalError
from temperance.core.fields import check_fields
from temperance.core.seeds import check_seed, generator
from temperance.data.sources import row_uniforms
from temperance.decide.conformal.quantile import (
    check_weights,
    conformal_quantile,
    conformal_rank,
    weighted_quantile,
)
from temperance.predict import CategoryPredictive, PositionPredictive, Predictive, ValuePredictive


class ConformalRule(Value, ABC):
    """How strange a target is under its predictive: a score, and the set of all targets whose score is small.

    A rule says ``class_scores`` (for classes), ``value_scores`` and ``value_bounds`` (for real targets and counts), or
    all of them; everything else is shared.
    """

    def class_scores(self, probs: Tensor, uniform: Tensor) -> Tensor:
        """The score of every class, rows × classes; ``uniform`` holds one random number a row for rules that use it."""
        raise ArgumentError(
            f"{type(self).__name__} is for real targets and counts; for classes use Split, APS or RAPS."
        )

    def value_scores(self, predictive: ValuePredictive, y: Tensor, level: float) -> Tensor:
        """The score of each target, rows × outputs."""
        raise ArgumentError(f"{type(self).__name__} is for classes; for values use Split, NormalisedResidual or CQR.")

    def value_bounds(self, predictive: ValuePredictive, threshold: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """The ends of {y: score ≤ threshold}, rows × outputs; ``threshold`` is broadcastable to that."""
        raise ArgumentError(f"{type(self).__name__} is for classes; for values use Split, NormalisedResidual or CQR.")

    def tuned(self, probs: Tensor, y: Tensor, level: float, seed: int) -> tuple[ConformalRule, Tensor]:
        """The rule with its own settings chosen, and a mask of the rows that this has not looked at."""
        return self, torch.ones(len(y), dtype=torch.bool, device=y.device)

    def calibrate(
        self,
        predictive: Predictive,
        y: Any,
        level: float = 0.9,
        groups: Any = None,
        *,
        weights: Any = None,
        seed: int = 0,
    ) -> Conformal:
        """Look at rows that the model was not trained on; sets and intervals of new rows, exchangeable with them, then
        cover with probability ``level`` at least.

        Args:
            predictive: of the calibration rows.
            y: their targets.
            level: 1 − α.
            groups: one label a row, for :class:`Mondrian`.
            weights: likelihood ratios of new inputs to calibration inputs, one a row, where they are distributed
                differently (Tibshirani et al. 2019); then ``sets`` and ``interval`` want those of the new rows.
            seed: of randomised scores and of the split on which RAPS tunes.

        Where rows have positions (``PerPosition``), rows are exchangeable but the positions of one row are not
        independent of each other. Each row then has one vote, which its positions share (Lee, Barber & Willett 2023):
        with m_i positions of row i that count, the threshold is the least t with

            Σ_i (1/m_i) #{p: s_ip ≤ t} ≥ level · (n + 1).

        Of a new row, a position chosen at random among those that count is then covered with probability ``level`` at
        least: that share of its positions, on average over rows; not every position at once, nor any one of them.
        """
        if groups is not None:
            raise ArgumentError(f"`groups` are for Mondrian: use Mondrian({type(self).__name__}(...)).calibrate(...).")
        if isinstance(predictive, PositionPredictive):
            if weights is not None:
                raise ArgumentError("`weights` are for rows of one target; they cannot be given with positions.")
            return _by_position(self, predictive, y, check_level(level), check_seed(seed))
        rule, scores, used = scored(self, predictive, y, check_level(level), check_seed(seed))
        mass = None if weights is None else check_weights(weights, len(predictive), predictive.weights)[used]
        if mass is not None and float(mass.sum()) <= 0:
            raise DataError("`weights` must not all be zero.")
        return Conformal(rule, level, (scores,), mass, None, seed)


def _by_position(rule: ConformalRule, predictive: PositionPredictive, y: Any, level: float, seed: int) -> Conformal:
    flat, targets, row = predictive.known(y)
    made, scores, used = scored(rule, flat, targets, level, seed)
    if not bool(used.all()):
        raise ArgumentError(
            f"{type(rule).__name__} chooses its own settings on rows that it then leaves out, and the positions of a "
            "row cannot be told apart so: give them, e.g. RAPS(penalty=0.01, rank=2), or use Split or APS."
        )
    mass = row.bincount(minlength=len(predictive)).double().reciprocal()[row]
    return Conformal(made, level, (scores,), mass, None, seed, by_position=True)


def scored(
    rule: ConformalRule, predictive: Predictive, y: Any, level: float, seed: int
) -> tuple[ConformalRule, Tensor, Tensor]:
    """The rule, tuned; the scores of the rows that it was not tuned on (n, or n × outputs); and a mask of them."""
    check_predictive(predictive)
    if isinstance(predictive, ValuePredictive):
        target = precise_targets(predictive, y)
        found = rule.value_scores(predictive, target, level)
        used = torch.ones(len(found), dtype=torch.bool, device=found.device)
    else:
        assert isinstance(predictive, CategoryPredictive)
        probs, labels = probabilities(predictive), class_labels(predictive, y)
        rule, used = rule.tuned(probs, labels, level, seed)
        every = rule.class_scores(probs, _uniforms_of(predictive, seed))
        found = every.gather(1, labels.unsqueeze(1)).squeeze(1)[used]
    if not bool(torch.isfinite(found).all()):
        raise NumericalError("the conformal scores are not finite: the predictive gives NaN or infinite numbers.")
    return rule, found, used


def check_scores(scores: Sequence[Tensor]) -> None:
    """Raise unless these can be conformal scores: numbers, a row for each row that promises."""
    for part in scores:
        if part.dim() < 1 or not part.is_floating_point():
            raise ArgumentError(
                "`scores` must hold floating-point numbers, one or more a row; got shape "
                f"{tuple(part.shape)} of {part.dtype}."
            )


@dataclass(frozen=True, eq=False)
class Conformal(Value):
    """A calibrated rule: ``sets`` of classes, or an ``interval`` of values, for the predictive of new rows.

    ``scores`` are those of the calibration rows (n, or n × outputs), one tensor for each of ``groups``; ``weights`` go
    with them under a shift of the inputs. It is a value: it prints, compares and is written down by ``values.encode``.
    Where there are too few rows for the level the threshold is infinite, every set is full and every interval the whole
    line, and ``remarks`` says so.
    """

    rule: ConformalRule
    level: float
    scores: tuple[Tensor, ...]
    weights: Tensor | None = None
    groups: tuple[Any, ...] | None = None
    seed: int = 0
    per_class: bool = False
    by_position: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        check_level(self.level)
        check_seed(self.seed)
        check_scores(self.scores)

    def __repr__(self) -> str:
        counts = ", ".join(str(len(s)) for s in self.scores[:5]) + (", …" if len(self.scores) > 5 else "")
        return f"Conformal({self.rule!r}, level={self.level}, rows=({counts}))"

    @property
    def thresholds(self) -> Tensor:
        """The score up to which a target is kept: groups (× outputs); of weighted rows there is one for each new row
        instead."""
        if self.by_position and self.weights is not None:
            return weighted_quantile(self.scores[0], self.weights, torch.ones_like(self.weights[:1]), self.level)
        if self.weights is not None:
            raise ArgumentError("with `weights` the threshold differs from row to row; see `interval` and `sets`.")
        return torch.stack([conformal_quantile(scores, self.level) for scores in self.scores])

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a user should know: groups with too few rows for the level."""
        made = []
        for k, scores in enumerate(self.scores):
            rows = round(float(self.weights.sum())) if self.by_position and self.weights is not None else len(scores)
            if conformal_rank(rows, self.level) > rows:
                where = "" if self.groups is None else f" of group {self.groups[k]!r}"
                least = math.ceil(self.level / (1 - self.level) - 1e-9)
                made.append(
                    f"{rows} calibration rows{where} are too few for level {self.level}, which needs {least}: "
                    "the set is full, the interval infinite."
                )
        return tuple(made)

    def known(self, groups: Any) -> Tensor:
        """Whether each group was among the calibration rows; others get the full set or the infinite interval."""
        names = set(self.groups or ())
        return torch.tensor([group in names for group in group_list(groups, None)])

    def _row_thresholds(self, predictive: Predictive, groups: Any, weights: Any) -> Tensor:
        """Broadcastable to rows × classes, or to rows × outputs."""
        device, rows = predictive.weights.device, len(predictive)
        scores = [s.to(device) for s in self.scores]
        if self.weights is not None:
            if weights is None:
                raise ArgumentError("`weights` must be given for the new rows: the calibration rows have them.")
            new = check_weights(weights, rows, predictive.weights)
            found = weighted_quantile(scores[0], self.weights.to(device), new, self.level)
            return found if found.dim() == 2 else found.unsqueeze(-1)
        if weights is not None:
            raise ArgumentError(
                "`weights` of new rows need those of the calibration rows: rule.calibrate(weights=...)."
            )
        limits = torch.stack([conformal_quantile(s, self.level) for s in scores])
        if self.per_class:
            return limits.unsqueeze(0)
        if self.groups is None:
            if groups is not None:
                raise ArgumentError("`groups` are for a rule that was calibrated with groups: use Mondrian(rule).")
            return limits
        if groups is None:
            raise ArgumentError("`groups` must be given, one a row: the rule was calibrated by groups.")
        padded = torch.cat([limits, limits.new_full((1, *limits.shape[1:]), math.inf)])
        place = {name: k for k, name in enumerate(self.groups)}
        at = [place.get(name, len(place)) for name in group_list(groups, rows)]
        found = padded[torch.tensor(at, device=device)]
        return found if found.dim() == 2 else found.unsqueeze(-1)

    def sets(
        self, predictive: Predictive, groups: Any = None, *, weights: Any = None, allow_empty: bool = True
    ) -> Tensor:
        """The classes that are kept, a mask of rows (× positions) × classes (of a yes/no label: no, yes).

        A set may be empty: no class is likely enough. ``allow_empty=False`` then keeps the most probable class, which
        covers no less. Randomised rules draw one number a row, a function of its inputs and the seed: it is the
        same whether rows come one by one or together.
        """
        if isinstance(predictive, PositionPredictive):
            shares = self._shares(predictive, groups, weights)
            return predictive.place(
                replace(self, by_position=False).sets(predictive.flat, None, weights=shares, allow_empty=allow_empty)
            )
        self._refuse_rows()
        if not isinstance(predictive, CategoryPredictive):
            raise ArgumentError(f"`predictive` must be that of classes; got {type(predictive).__name__}. See interval.")
        probs = probabilities(predictive)
        if self.per_class and probs.shape[1] != len(self.scores):
            raise ArgumentError(
                f"`predictive` must have the {len(self.scores)} calibrated classes; got {probs.shape[1]}."
            )
        every = self.rule.class_scores(probs, _uniforms_of(predictive, self.seed))
        return kept(every, self._row_thresholds(predictive, groups, weights), probs, allow_empty)

    def interval(self, predictive: Predictive, groups: Any = None, *, weights: Any = None) -> tuple[Tensor, Tensor]:
        """The ends of the interval, each rows × outputs; of counts they are whole numbers. Each output is covered at
        the level on its own."""
        if isinstance(predictive, PositionPredictive):
            shares = self._shares(predictive, groups, weights)
            low, high = replace(self, by_position=False).interval(predictive.flat, None, weights=shares)
            return predictive.place(low), predictive.place(high)
        self._refuse_rows()
        known = check_values(predictive)
        threshold = self._row_thresholds(known, groups, weights)
        return finish(known, *self.rule.value_bounds(known, threshold, self.level))

    def _shares(self, predictive: PositionPredictive, groups: Any, weights: Any) -> Tensor:
        """One vote for the new row, for each of its positions: the calibration rows have one each."""
        if not self.by_position:
            raise ArgumentError("`predictive` has positions, but the rule was calibrated on rows without.")
        if groups is not None or weights is not None:
            raise ArgumentError(
                "`groups` and `weights` are for rows of one target; they cannot be given with positions."
            )
        return torch.ones(len(predictive.flat), dtype=torch.float64)

    def _refuse_rows(self) -> None:
        if self.by_position:
            raise ArgumentError("`predictive` must have positions: the rule was calibrated on rows that have.")


def every_class_score(rule: ConformalRule, predictive: Predictive, seed: int) -> Tensor:
    """The score of every class of every row, rows × classes."""
    if not isinstance(predictive, CategoryPredictive):
        raise ArgumentError(f"`predictive` must be that of classes; got {type(predictive).__name__}. See interval.")
    return rule.class_scores(probabilities(predictive), _uniforms_of(predictive, seed))


def precise_targets(predictive: ValuePredictive, y: Any) -> Tensor:
    """Targets in float64: in float32 those far from zero would lose what the intervals are about."""
    predictive._targets(y)  # the checks
    given = torch.as_tensor(y).to(predictive.source.engine.device)
    return predictive.likelihood.prepare(given, predictive.source.num_outputs, torch.float64)


def kept(scores: Tensor, threshold: Tensor, probs: Tensor, allow_empty: bool) -> Tensor:
    """Classes whose score is at most the threshold; float32 gives equal rows scores that differ by a rounding."""
    made = scores <= threshold + 1e-7
    if not allow_empty:
        top = torch.zeros_like(made).scatter_(1, probs.argmax(1, keepdim=True), True)
        made = made | (top & ~made.any(1, keepdim=True))
    return made


def finish(predictive: ValuePredictive, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Ends in order, no smaller than the outcome can be, whole numbers for counts, rounded outwards to the predictive's
    dtype.

    Where no target is kept (low > high) both ends are the middle; for counts an interval without a whole number gets
    the nearest: both only add to what is kept.
    """
    least, whole = least_of(predictive), predictive.outcome.whole
    middle = low + (high - low) / 2
    low, high = torch.where(low > high, middle, low), torch.where(low > high, middle, high)
    # roundings of float64, and no more: 1e-12 of a target near 1e12 would be a whole unit
    slack = 8 * torch.finfo(torch.float64).eps * torch.maximum(low.abs(), high.abs()).nan_to_num(posinf=0.0)
    slack = slack + 1e-12 * (high - low).nan_to_num(nan=0.0, posinf=0.0)
    low, high = low - slack, high + slack
    if whole:
        nearest = ((low + high) / 2).nan_to_num(posinf=0.0, neginf=0.0).round()
        low, high = (low - 1e-6).ceil().clamp(min=least), (high + 1e-6).floor()
        empty = low > high
        low, high = torch.where(empty, nearest, low), torch.where(empty, nearest, high)
    if least > -math.inf:
        low, high = low.clamp(min=least), high.clamp(min=least)
    like = predictive.mean()
    return _outwards(low, like, -math.inf), _outwards(high, like, math.inf)


def least_of(predictive: ValuePredictive) -> float:
    """The number below which no target lies: by its outcome, or by the units in which it was learned."""
    bent = predictive.symmetric()[1]
    return predictive.outcome.least if bent is None else max(predictive.outcome.least, bent.least)


def _outwards(value: Tensor, like: Tensor, towards: float) -> Tensor:
    made = value.to(like.dtype)
    inside = made.double() > value if towards < 0 else made.double() < value
    return torch.where(inside, made.nextafter(made.new_tensor(towards)), made)


def probabilities(predictive: CategoryPredictive) -> Tensor:
    """Averaged probabilities in float64, rows × classes; of one yes/no label, of no and yes."""
    probs = predictive.probs.double()
    if not bool(torch.isfinite(probs).all()):
        raise NumericalError("the predicted probabilities are not finite.")
    if not predictive.exclusive:
        if probs.shape[1] != 1:
            raise ArgumentError(
                f"`predictive` has {probs.shape[1]} yes/no labels; conformal sets are of classes or of a single label."
            )
        return torch.cat([1 - probs, probs], dim=1)
    return probs


def class_labels(predictive: CategoryPredictive, y: Any) -> Tensor:
    """Class numbers, one a row."""
    target = predictive.known_classes(y)
    return target if predictive.exclusive else target[:, 0].long()


def check_predictive(predictive: Any) -> None:
    """Something to calibrate on."""
    if isinstance(predictive, PositionPredictive):
        raise ArgumentError(
            "`predictive` has positions, and those of a row are not exchangeable with those of another one by one: "
            "calibrate Split, APS, NormalisedResidual or CQR, which know of them."
        )
    if not isinstance(predictive, CategoryPredictive | ValuePredictive):
        raise ArgumentError(f"`predictive` must be a temperance Predictive; got {type(predictive).__name__}.")


def check_values(predictive: Any) -> ValuePredictive:
    """A predictive of real targets or counts."""
    if not isinstance(predictive, ValuePredictive):
        raise ArgumentError(
            f"`predictive` must be that of real targets or counts; got {type(predictive).__name__}. See sets."
        )
    return predictive


def _uniforms_of(predictive: Predictive, seed: int) -> Tensor:
    """One number in [0, 1) a row, a function of its inputs and the seed: calibration rows and new ones stay
    exchangeable however they come, and rows of which the network is equally sure have numbers of their own."""
    return row_uniforms(predictive.source.row_inputs(), check_seed(seed)).to(predictive.weights.device)


def uniforms(rows: int, seed: int, purpose: str, like: Tensor) -> Tensor:
    """One number in [0, 1) a row."""
    made = torch.rand(rows, generator=generator(check_seed(seed), "conformal", purpose), dtype=torch.float64)
    return made.to(like.device)


def group_list(groups: Any, rows: int | None) -> list[Hashable]:
    """Group labels as plain whole numbers or strings."""
    if isinstance(groups, Tensor | np.ndarray):
        groups = groups.tolist()
    if isinstance(groups, str) or not isinstance(groups, Sequence):
        groups = list(groups) if hasattr(groups, "__iter__") and not isinstance(groups, str) else None
    if groups is None:
        raise ArgumentError("`groups` must be labels, one a row.")
    made = [g.item() if isinstance(g, np.generic | Tensor) else g for g in groups]
    if not all(isinstance(g, int | str) for g in made):
        raise ArgumentError("`groups` must be whole numbers or strings, one a row.")
    if rows is not None and len(made) != rows:
        raise DataError(f"`groups` must have one label for each of {rows} rows; got {len(made)}.")
    return made
