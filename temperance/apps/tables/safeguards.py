"""What is promised about predictions, and the rows the promises rest on: intervals, sets, and when to ask a human."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from temperance.apps.tables.kinds import TableKind, flat
from temperance.core.checks import check_level
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.decide.defer import Deferral, defer_at
from temperance.predict import CategoryPredictive, Predictive, ValuePredictive

_CANDIDATES = ((16, 3.0), (8, 2.0), (4, 1.5), (2, 1.0), (1, 0.0))
"""How many thresholds are tried where there are so many times the rows that the promise needs."""


@dataclass(frozen=True, eq=False)
class Guard(Value):
    """Conformal intervals or sets at ``level``, and a rule that asks a human so that at most ``error_rate`` of the
    answers are wrong; of a number, wrong is what is off by more than ``tolerance``."""

    level: float
    error_rate: float
    tolerance: float
    conformal: Any
    deferral: Deferral

    def interval(self, predictive: ValuePredictive) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper ends; of counts the whole numbers inside, which lose nothing."""
        low, high = (flat(end) for end in self.conformal.interval(predictive))
        if predictive.outcome.whole:
            low, high = np.maximum(np.ceil(low), predictive.outcome.least), np.floor(high)
            high = np.maximum(high, low)
        return low, high

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
        return self.deferral(predictive).cpu().numpy()


def check_promises(level: float, error_rate: float, tolerance: float | None) -> None:
    """Raise unless these can be promised."""
    check_level(level, "level")
    check_level(error_rate, "error_rate")
    if tolerance is not None and not tolerance > 0:
        raise ArgumentError(f"`tolerance` must be positive; got {tolerance!r}.")


def make_guard(
    everyone: Predictive,
    y: NDArray[np.float64],
    usual: NDArray[np.bool_],
    usual_predictive: Predictive,
    kind: TableKind,
    level: float,
    error_rate: float,
    tolerance: float,
) -> tuple[Guard, list[str]]:
    """The promises, from rows that took no part in training or calibration; and what there is to say about them.

    ``usual`` marks the rows on which a human is not asked anyway, ``usual_predictive`` is of these alone: the error
    rate is promised for such rows.
    """
    check_promises(level, error_rate, tolerance)
    target = kind.known_targets(y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TemperanceWarning)
        conformal = kind.conformal().calibrate(everyone, target, level=level)
        error = torch.from_numpy(kind.wrong(usual_predictive, y[usual], tolerance))
        count = int(usual.sum())
        candidates = next(most for most, times in _CANDIDATES if count >= times * _fewest(error_rate, most))
        deferral = defer_at(
            usual_predictive, target[torch.from_numpy(usual)], error_rate, error=error, thresholds=candidates
        )
    words = [str(w.message) for w in caught if not str(w.message).startswith("no threshold keeps")]
    if not deferral.answers:
        words.append(
            f"{count:,} validation rows cannot promise that at most {error_rate:.0%} of answers are wrong: a human is "
            "asked on every row. A larger --error-rate, more rows or better columns would help."
        )
    return Guard(level, error_rate, tolerance, conformal, deferral), words


def _fewest(error_rate: float, candidates: int) -> float:
    """The rows without an error that one of so many thresholds needs to keep the promise."""
    return math.log(0.05 / candidates) / math.log1p(-error_rate)
