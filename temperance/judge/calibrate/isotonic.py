"""Isotonic calibration of averaged probabilities, one class against the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_vector
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.judge.calibrate.base import (
    CalibrationRule,
    Calibrator,
    check_class_predictive,
    check_labels,
    mean_log_loss,
)
from temperance.predict import Predictive
from temperance.predict.calibrated import MovedPredictive


@dataclass(frozen=True, eq=False, repr=False)
class IsotonicCalibrator(Calibrator):
    """A rising curve for each class: through the points (``knots``, ``values``), straight in between."""

    knots: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    rows: int = 0
    before: float = math.nan
    after: float = math.nan

    def __post_init__(self) -> None:
        check_fields(self)
        if len(self.knots) != len(self.values):
            raise ArgumentError("`knots` and `values` must be as many as there are classes, both.")
        for knots, values in zip(self.knots, self.values, strict=True):
            check_vector(knots, "knots")
            check_vector(values, "values")
            if len(knots) != len(values) or not len(knots):
                raise ArgumentError(
                    f"`knots` and `values` must be pairs, one at least; got {len(knots)} and {len(values)} of a class."
                )

    def probabilities(self, probs: Tensor) -> Tensor:
        """The calibrated probabilities of averaged ones, rows × classes (yes/no labels: rows × labels)."""
        if probs.dim() != 2 or probs.shape[-1] != len(self.knots):
            raise ArgumentError(
                f"`predictive` must have the {len(self.knots)} classes that were calibrated; got {probs.shape[-1]}."
            )
        wide = probs.double()
        made = [interpolate(wide[:, c], self.knots[c], self.values[c]) for c in range(len(self.knots))]
        return torch.stack(made, dim=-1)

    def __call__(self, predictive: Predictive) -> MovedPredictive:
        """The calibrated predictive."""
        known = check_class_predictive(predictive)
        q = self.probabilities(known.probs)
        if not known.exclusive:
            return MovedPredictive(known, (self.rows * q + 0.5) / (self.rows + 1))
        q = (self.rows * q + 1 / q.shape[-1]) / (self.rows + 1)
        return MovedPredictive(known, q / q.sum(-1, keepdim=True))


@dataclass(frozen=True, eq=False)
class Isotonic(CalibrationRule):
    """For each class c the rising curve g_c that best fits (in squares) whether y = c to the averaged probability of c;
    then q_c ∝ (n g_c(p_c) + 1/C) / (n + 1).

    The last step counts one more row, of all classes alike, so that no probability is ever exactly 0 (the least is
    about 1/(C n)) or 1, and the log-loss stays finite; of yes/no labels C is 2 and nothing is renormalised. Each curve
    rises, but after renormalisation the most probable class may change, and the log-loss of the held-out rows need not
    fall, as it does for :class:`~tp.calibrate.Temperature`. It wants hundreds of rows and takes no fewer than
    20.

    The mutual information of the predictive is kept: see :class:`~temperance.predict.calibrated.MovedPredictive`.
    """

    def fit(self, predictive: Predictive, y: Any) -> IsotonicCalibrator:
        """See :class:`CalibrationRule`."""
        from sklearn.isotonic import IsotonicRegression

        known = check_class_predictive(predictive)
        target = check_labels(known, y, least=20, each=True)
        probs = known.probs.double().cpu().numpy()
        device = known.weights.device
        knots, values = [], []
        for c in range(probs.shape[1]):
            hit = ((target == c) if known.exclusive else target[:, c]).double().cpu().numpy()
            curve = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(probs[:, c], hit)
            knots.append(torch.tensor(curve.X_thresholds_, dtype=torch.float64, device=device))
            values.append(torch.tensor(curve.y_thresholds_, dtype=torch.float64, device=device))
        made = IsotonicCalibrator(tuple(knots), tuple(values), len(target))
        before, after = mean_log_loss(known, target), mean_log_loss(made(known), target)
        return IsotonicCalibrator(made.knots, made.values, made.rows, before, after)


def interpolate(x: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """The line through (knots, values) at x, constant beyond its ends.

    >>> interpolate(torch.tensor([-1.0, 0.5, 3.0]), torch.tensor([0.0, 1.0]), torch.tensor([0.2, 0.4]))
    tensor([0.2000, 0.3000, 0.4000])
    """
    knots, values = knots.to(x), values.to(x)
    if len(knots) == 1:
        return values.expand_as(x).clone()
    right = torch.searchsorted(knots, x.contiguous()).clamp(1, len(knots) - 1)
    low, high = knots[right - 1], knots[right]
    share = ((x - low) / (high - low)).clamp(0.0, 1.0)
    return values[right - 1] + share * (values[right] - values[right - 1])
