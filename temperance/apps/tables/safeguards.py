"""What is promised about predictions, and the rows the promises rest on: intervals, sets, and when to ask a human."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from temperance.apps.tables.kinds import TableKind, flat
from temperance.core.checks import check_level, shown
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.core.fields import check_fields
from temperance.decide.conformal import Cross, CrossConformal, Mondrian
from temperance.decide.conformal.base import least_of
from temperance.decide.defer import Deferral, choose_threshold, defer_by
from temperance.decide.doubt import doubt
from temperance.predict import CategoryPredictive, Predictive, ValuePredictive

_CANDIDATES = ((16, 3.0), (8, 2.0), (4, 1.5), (2, 1.0), (1, 0.0))
"""How many thresholds are tried where there are so many times the rows that the promise needs."""


@dataclass(frozen=True, eq=False)
class Guard(Value):
    """Conformal intervals or sets at ``level``, and a rule that asks a human so that at most ``error_rate`` of the
    answers are wrong; of a number, wrong is what is off by more than ``tolerance``. Nothing lies below ``least``."""

    level: float
    error_rate: float
    tolerance: float
    conformal: Any
    deferral: Deferral
    per_class: bool = False
    plain: Any = None
    least: float = -math.inf

    def __post_init__(self) -> None:
        check_fields(self)
        rules = [callable(getattr(self.conformal, name, None)) for name in ("interval", "sets")]
        if self.conformal is not None and not all(rules):
            raise ArgumentError(f"`conformal` must make intervals and sets; got {shown(self.conformal)}.")

    def beside(self, plain: Predictive, folds: Sequence[Predictive]) -> Guard:
        """The same for rows of which the models of the folds say this, and the model of all rows ``plain``, before it
        was calibrated: the rows that promise have calibrated it, so promises know nothing of that."""
        return replace(self, conformal=AtFolds(self.conformal, folds), plain=plain)

    def interval(self, predictive: ValuePredictive) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper ends; of counts the whole numbers inside, which lose nothing."""
        low, high = (flat(end) for end in self.conformal.interval(predictive))
        if predictive.outcome.whole:
            low, high = np.maximum(np.ceil(low), predictive.outcome.least), np.floor(high)
            high = np.maximum(high, low)
        return np.maximum(low, self.least), np.maximum(high, self.least)

    def mean(self, predictive: ValuePredictive) -> NDArray[np.float64]:
        """The mean that is answered: no smaller than targets are, which brings it nearer to every one of them."""
        return np.maximum(flat(predictive.mean()), self.least)

    def sets(self, predictive: CategoryPredictive, unknown: bool = False) -> NDArray[np.bool_]:
        """Classes that are plausible, rows × classes; the most probable one always is. Of rows with an ``unknown``
        value, which are not like those that the threshold was found on, so are all that it takes to reach ``level``."""
        made = self.conformal.sets(predictive).cpu().numpy().copy()
        probs = predictive.probs.double().cpu().numpy()
        made[np.arange(len(made)), probs.argmax(-1)] = True
        if unknown:
            order = np.argsort(-probs, axis=1)
            before = np.cumsum(np.take_along_axis(probs, order, 1), 1) - np.take_along_axis(probs, order, 1)
            np.put_along_axis(made, order, np.take_along_axis(made, order, 1) | (before < self.level), 1)
        return made

    def asks(self, predictive: Predictive) -> NDArray[np.bool_]:
        """Rows on which to ask a human."""
        return self.deferral(predictive if self.plain is None else self.plain).cpu().numpy()


NO_GUARD = Guard(0.9, 0.05, 1.0, None, Deferral(-math.inf, "confidence", 0.05, 0.95, 0.0, 0, 0, 0))
"""Of a run whose promises are still to be made."""


def check_promises(level: float, error_rate: float, tolerance: float | None) -> None:
    """Raise unless these can be promised."""
    check_level(level, "level")
    check_level(error_rate, "error_rate")
    if tolerance is not None and not tolerance > 0:
        raise ArgumentError(f"`tolerance` must be positive; got {tolerance!r}.")


@dataclass
class GuardRows:
    """Rows that took no part in training the model that predicts them here. ``usual`` marks those on which a human is
    not asked anyway, and ``usual_predictive`` is of these alone (``None``, where there are none)."""

    predictive: Predictive
    y: NDArray[np.float64]
    usual: NDArray[np.bool_]
    usual_predictive: Predictive | None


def make_guard(
    parts: Sequence[GuardRows],
    kind: TableKind,
    level: float,
    error_rate: float,
    tolerance: float,
    *,
    per_class: bool = False,
    table_rows: int | None = None,
    classes: Sequence[str] = (),
) -> tuple[Guard, list[str]]:
    """The promises, from rows that took no part in training or calibration (those of several folds, each predicted by
    the model that has not seen it); and what there is to say about them.

    The error rate is promised for usual rows. ``table_rows`` are all rows of the table, to say how many would do where
    these cannot promise anything.
    """
    check_promises(level, error_rate, tolerance)
    rule = kind.conformal()
    targets = [kind.known_targets(part.y) for part in parts]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TemperanceWarning)
        conformal: Any
        if len(parts) > 1:
            conformal = Cross(rule, per_class).calibrate([part.predictive for part in parts], targets, level)
        elif per_class:
            conformal = Mondrian(rule, per_class=True).calibrate(parts[0].predictive, targets[0], level)
        else:
            conformal = rule.calibrate(parts[0].predictive, targets[0], level=level)
        doubts, errors = [], []
        for part in parts:
            if part.usual_predictive is not None:
                doubts.append(doubt(part.usual_predictive).double().cpu())
                errors.append(torch.from_numpy(kind.wrong(part.usual_predictive, part.y[part.usual], tolerance)))
        value, wrong = torch.cat(doubts), torch.cat(errors)
        candidates = _candidates(len(value), error_rate)
        deferral = defer_by(value, wrong, error_rate, thresholds=candidates)
    words = [str(w.message) for w in caught if not str(w.message).startswith("no threshold keeps")]
    words += [_named(remark, classes) for remark in conformal.remarks]
    if not deferral.answers:
        whose = "rows" if len(parts) > 1 else "validation rows (those that did not calibrate)"
        words.append(_what_would_do(value, wrong, error_rate, table_rows, whose))
    return Guard(level, error_rate, tolerance, conformal, deferral, per_class), words


def _named(remark: str, classes: Sequence[str]) -> str:
    """A remark on class 3 with the name of class 3."""
    return re.sub(r"of (?:class|group) (\d+)", lambda found: f"of class {classes[int(found[1])]!r}", remark)


def _candidates(rows: int, error_rate: float) -> int:
    return next(most for most, times in _CANDIDATES if rows >= times * _fewest(error_rate, most))


def _what_would_do(value: Tensor, wrong: Tensor, error_rate: float, table_rows: int | None, whose: str) -> str:
    """Why nothing can be promised, how many rows would do, and what these rows can promise."""
    rows, order = len(value), value.argsort(stable=True)
    half = max(1, rows // 2)
    among, surest = float(wrong.double().mean()), float(wrong[order[:half]].double().mean())
    made = (
        f"{rows:,} {whose} cannot promise that at most {error_rate:.0%} of answers are wrong: a human is asked "
        f"on every row. {among:.1%} of their answers are wrong, of the surer half {surest:.1%}."
    )
    needs = [
        (needed * rows / part, needed)
        for share, part in ((among, rows), (surest, half))
        if (needed := rows_that_promise(share, error_rate)) is not None
    ]
    if needs:
        more = min(needs)[0] / rows
        if table_rows is None:
            made += f" About {more:.2g} times as many rows would do, if errors stay as rare."
        else:
            wanted = float(f"{more * table_rows:.2g}")
            made += (
                f" A table of about {wanted:,.0f} rows would do (this one has {table_rows:,}), if errors stay as rare."
            )
    else:
        made += " More rows alone will not do: better columns would."
    for rate in (k / 100 for k in range(1, 51)):
        if rate <= error_rate:
            continue
        count = _candidates(rows, rate)
        if choose_threshold(value, wrong, rate, 0.05 / count, count) is not None:
            return made + f" --error-rate {rate:g} can be promised with these."
    return made


def rows_that_promise(share: float, error_rate: float) -> int | None:
    """How many rows, of which a ``share`` is wrong, show that at most ``error_rate`` is, with 95 % confidence;
    ``None`` where no number does.

    >>> rows_that_promise(0.0, 0.05), rows_that_promise(0.02, 0.05), rows_that_promise(0.06, 0.05)
    (59, 183, None)
    """
    if share >= 0.95 * error_rate:
        return None
    rows = math.ceil(_fewest(error_rate, 1))
    while scipy.special.bdtr(math.ceil(share * rows - 1e-9), rows, error_rate) > 0.05:
        rows = math.ceil(rows * 1.02 + 1)
    return rows


def _fewest(error_rate: float, candidates: int) -> float:
    """The rows without an error that one of so many thresholds needs to keep the promise."""
    return math.log(0.05 / candidates) / math.log1p(-error_rate)


class AtFolds:
    """A cross-conformal rule at new rows, of which the models of all folds have said what they think."""

    def __init__(self, conformal: CrossConformal, folds: Sequence[Predictive]) -> None:
        self.conformal, self.folds = conformal, folds

    def interval(self, predictive: ValuePredictive) -> tuple[Tensor, Tensor]:
        """The interval of the folds' models, and the mean that is predicted, should it lie outside. Of a target whose
        logarithm is learned it is positive, though a fold has found it easier as it is."""
        low, high = self.conformal.interval(self.folds)
        mean, least = predictive.mean(), least_of(predictive)
        if least > -math.inf:
            low, high = low.clamp(min=least), high.clamp(min=least)
        return torch.minimum(low, mean), torch.maximum(high, mean)

    def sets(self, predictive: CategoryPredictive) -> Tensor:
        """The sets of the folds' models."""
        return self.conformal.sets(self.folds)
