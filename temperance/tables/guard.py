"""What is promised about predictions, and the rows the promises rest on: intervals, sets, and when to ask a human."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temperance.decide.conformal import NormalisedResidual, Split
from temperance.decide.defer import Deferral, defer_at
from temperance.errors import ArgumentError, TemperanceWarning
from temperance.predict import ClassPredictive, Predictive
from temperance.predict.predictive import check_level
from temperance.tables.schema import Task
from temperance.values import Value

_CANDIDATES = ((2000, 16), (500, 8), (100, 4), (0, 1))  # rows, thresholds tried: each costs some of the promise


@dataclass(frozen=True, eq=False)
class Guard(Value):
    """Conformal intervals or sets at ``level``, and a rule that asks a human so that at most ``error_rate`` of the
    answers are wrong; of a number, wrong is what is off by more than ``tolerance``."""

    level: float
    error_rate: float
    tolerance: float
    conformal: Any
    deferral: Deferral

    def interval(self, predictive: Predictive, task: Task) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper ends; of counts the whole numbers inside, which lose nothing."""
        low, high = (flat(end) for end in self.conformal.interval(predictive))
        if task == "counts":
            low, high = np.maximum(np.ceil(low), 0.0), np.floor(high)
            high = np.maximum(high, low)
        return low, high

    def sets(self, predictive: ClassPredictive) -> NDArray[np.bool_]:
        """Classes that are plausible, rows × classes; the most probable one always is."""
        made = self.conformal.sets(predictive).cpu().numpy().copy()
        made[np.arange(len(made)), predictive.probs.argmax(-1).cpu().numpy()] = True
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
    task: Task,
    level: float,
    error_rate: float,
    tolerance: float,
) -> tuple[Guard, list[str]]:
    """The promises, from rows that took no part in training or calibration; and what there is to say about them.

    ``usual`` marks the rows on which a human is not asked anyway, ``usual_predictive`` is of these alone: the error
    rate is promised for such rows.
    """
    check_promises(level, error_rate, tolerance)
    classes = task == "classification"
    target = torch.from_numpy(y.astype(np.int64)) if classes else torch.from_numpy(y)[:, None]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TemperanceWarning)
        rule = Split() if classes else NormalisedResidual()
        conformal = rule.calibrate(everyone, target, level=level)
        error = torch.from_numpy(wrong_answers(usual_predictive, y[usual], task, tolerance))
        count = int(usual.sum())
        candidates = next(most for rows, most in _CANDIDATES if count >= rows)
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


def wrong_answers(predictive: Predictive, y: NDArray[np.float64], task: Task, tolerance: float) -> NDArray[np.bool_]:
    """Rows whose answer is wrong: another class than the most probable, or further off than ``tolerance``."""
    if task == "classification":
        assert isinstance(predictive, ClassPredictive)
        return predictive.predict().cpu().numpy() != y
    return np.abs(flat(predictive.mean()) - y) > tolerance


def flat(values: Tensor) -> NDArray[np.float64]:
    """One column of a tensor as a float64 array."""
    return values.detach().double().cpu().numpy().reshape(-1)
