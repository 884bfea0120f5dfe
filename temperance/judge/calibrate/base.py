"""What calibration rules share: the two kinds of value, checks at the door, and search along one line."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, DataError, NumericalError
from temperance.predict import CategoryPredictive, PositionPredictive, Predictive, ValuePredictive

LIMIT = math.log(100.0)  # of the logarithm of any factor


class Calibrator(Value, ABC):
    """What a rule has learned: call it on a predictive of the same model to have the calibrated one. It is a value: it
    prints, compares, and is written down by ``values.encode``."""

    rows: int
    before: float
    after: float

    @abstractmethod
    def __call__(self, predictive: Predictive) -> Predictive:
        """The calibrated predictive."""


class CalibrationRule(Value, ABC):
    """A way to calibrate: ``rule.fit(predictive, y)`` looks at held-out rows and gives a :class:`Calibrator`."""

    @abstractmethod
    def fit(self, predictive: Predictive, y: Any) -> Calibrator:
        """Learn from a predictive of held-out rows and their targets."""


def mean_log_loss(predictive: Predictive, y: Any) -> float:
    """−(1/N) Σ log p(y | x, D), summed in float64."""
    return -float(predictive.log_prob(y).detach().double().mean())


def check_class_predictive(predictive: Any) -> CategoryPredictive:
    """A predictive of classes or yes/no labels."""
    if isinstance(predictive, PositionPredictive):
        raise ArgumentError(
            "`predictive` has positions: calibrate those that count as rows, `flat, targets, _ = predictive.known(y)`, "
            "and apply the calibrator to `predictive.flat`."
        )
    if not isinstance(predictive, CategoryPredictive):
        raise ArgumentError(
            f"`predictive` must be that of classes or yes/no labels; got {type(predictive).__name__}. For real targets "
            "use VarianceScale."
        )
    return predictive


def check_labels(predictive: CategoryPredictive, y: Any, least: int, each: bool) -> Tensor:
    """Labels of at least ``least`` rows, of more than one class (with ``each``, of every one), under probabilities that
    are numbers and say something."""
    target = predictive.known_classes(y)
    if len(target) < least:
        raise DataError(f"`y` must have at least {least} rows to calibrate on; got {len(target)}.")
    probs = predictive.probs
    if not bool(torch.isfinite(probs).all()):
        raise NumericalError("the predicted probabilities are not finite: there is nothing to calibrate.")
    if bool((probs.amax(0) - probs.amin(0) <= 0).all()):
        raise DataError("`predictive` gives every row the same probabilities: there is nothing to calibrate.")
    if not predictive.exclusive:
        ones = target.mean(0)
        one_sided = (ones == 0) | (ones == 1)
        if bool(one_sided.any() if each else one_sided.all()):
            raise DataError("`y` must hold zeros and ones of each label; got only one answer.")
        return target
    counts = torch.bincount(target, minlength=probs.shape[-1])
    if int((counts > 0).sum()) < 2:
        raise DataError(f"`y` must hold more than one class; got only class {int(target[0])}.")
    if each and int(counts.min()) == 0:
        missing = (counts == 0).nonzero().flatten().tolist()[:5]
        raise DataError(f"`y` must hold every class for this rule; got no row of {missing}. Temperature() needs less.")
    return target


def check_value_predictive(predictive: Any, y: Any, least: int) -> tuple[ValuePredictive, Tensor]:
    """A predictive of real targets, and targets of enough rows."""
    if not isinstance(predictive, ValuePredictive) or not predictive.outcome.has_units:
        raise ArgumentError(
            f"`predictive` must be that of real targets; got {type(predictive).__name__}. For classes use "
            "Temperature; counts have no scale to change."
        )
    target = predictive._targets(y)
    if len(target) < least:
        raise DataError(f"`y` must have at least {least} rows to calibrate on; got {len(target)}.")
    return predictive, target


def search(loss: Callable[[float], float], points: int = 33) -> tuple[float, float]:
    """Where on [−LIMIT, LIMIT] a loss is least, and the loss there: the best of a grid, then Brent's method between its
    neighbours. Zero (no change) is kept unless something is better."""
    grid = np.linspace(-LIMIT, LIMIT, points)
    values = [loss(float(at)) for at in grid]
    if not np.isfinite(values).any():
        raise NumericalError("the log-loss of the held-out rows is not finite at any scale.")
    best = int(np.nanargmin(values))
    ends = grid[max(0, best - 1)], grid[min(points - 1, best + 1)]
    found = scipy.optimize.minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-6})
    candidates = [(loss(0.0), 0.0), (values[best], float(grid[best])), (float(found.fun), float(found.x))]
    value, at = min((c for c in candidates if math.isfinite(c[0])), key=lambda c: c[0])
    return at, value
