"""Temperature and vector scaling of the members' logits (Guo et al. 2017), for averaged probabilities.

With members s of weight w_s, the calibrated probabilities are averaged *after* the map,

    q(y | x) = Σ_s w_s softmax(a · f_s(x) + b)_y,        a = 1/T, b = 0 for a temperature,

and the parameters minimise −Σ log q(y_i | x_i) over held-out rows. What comes out is a full predictive again: its
entropy still splits into what noise and what θ leave open.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from temperance.core.checks import check_positive
from temperance.core.errors import ArgumentError, NumericalError, TemperanceWarning
from temperance.core.fields import check_fields
from temperance.judge.calibrate.base import (
    LIMIT,
    CalibrationRule,
    Calibrator,
    check_class_predictive,
    check_labels,
    mean_log_loss,
    search,
)
from temperance.predict import CategoryPredictive, Predictive
from temperance.predict.calibrated import map_logits


@dataclass(frozen=True, eq=False)
class TemperatureCalibrator(Calibrator):
    """Logits divided by ``temperature``; ``before`` and ``after`` are the mean log-losses of the held-out ``rows``."""

    temperature: float
    rows: int = 0
    before: float = math.nan
    after: float = math.nan

    def __post_init__(self) -> None:
        check_fields(self)
        check_positive(self.temperature, "temperature")

    def __call__(self, predictive: Predictive) -> CategoryPredictive:
        """The calibrated predictive; at a temperature of 1 it is the same to the bit."""
        known = check_class_predictive(predictive)
        return map_logits(known, known.weights.new_tensor([1 / self.temperature]), known.weights.new_zeros(1))


@dataclass(frozen=True, eq=False)
class Temperature(CalibrationRule):
    """One number T > 0 that divides the logits of all members.

    With a single member it never changes which class is most probable. T is searched for between 1/100 and 100 on a
    logarithmic scale; where the log-loss falls for ever as T → 0 (every held-out row is classified rightly), no
    temperature is best, and T = 1 is kept with a warning.

    >>> import temperance as tp
    >>> from temperance.predict.calibrated import from_outputs
    >>> rng = torch.Generator().manual_seed(0)
    >>> f = torch.randn(2000, 3, generator=rng)
    >>> y = torch.multinomial(f.softmax(-1), 1, generator=rng).squeeze(1)
    >>> overconfident = from_outputs(2 * f, tp.Categorical())
    >>> calibrator = Temperature().fit(overconfident, y)
    >>> print(f"{calibrator.temperature:.2f}")
    1.93
    >>> calibrator(overconfident).log_prob(y).mean() > overconfident.log_prob(y).mean()
    tensor(True)
    """

    def fit(self, predictive: Predictive, y: Any) -> TemperatureCalibrator:
        """See :class:`CalibrationRule`."""
        known = check_class_predictive(predictive)
        target = check_labels(known, y, least=10, each=False)
        double = torch.zeros(1, dtype=torch.float64, device=known.weights.device)

        def loss(log_temperature: float) -> float:
            return mean_log_loss(map_logits(known, (double - log_temperature).exp(), double), target)

        before, (at, after) = loss(0.0), search(loss)
        if at < 0 and loss(-LIMIT) <= after + 1e-9:
            warnings.warn(
                f"no temperature is best on these {len(target)} rows: they are all classified rightly, so the log-loss "
                "falls for ever as T → 0. T = 1 is kept; calibrate on more rows.",
                TemperanceWarning,
                stacklevel=2,
            )
            at, after = 0.0, before
        elif at > LIMIT - 1e-3:
            warnings.warn(
                "the temperature ended at its upper limit of 100: the predictions are no better than chance on these "
                "rows.",
                TemperanceWarning,
                stacklevel=2,
            )
        return TemperatureCalibrator(math.exp(at), len(target), before, after)


@dataclass(frozen=True, eq=False, repr=False)
class VectorCalibrator(Calibrator):
    """Logits times ``scale`` plus ``shift``, one of each a class (or label)."""

    scale: Tensor
    shift: Tensor
    rows: int = 0
    before: float = math.nan
    after: float = math.nan

    def __post_init__(self) -> None:
        check_fields(self, "scale", "shift")

    def __call__(self, predictive: Predictive) -> CategoryPredictive:
        """The calibrated predictive."""
        known = check_class_predictive(predictive)
        if known.source.num_outputs != len(self.scale):
            raise ArgumentError(
                f"`predictive` must have the {len(self.scale)} classes that were calibrated; got "
                f"{known.source.num_outputs}."
            )
        return map_logits(known, self.scale.to(known.weights), self.shift.to(known.weights))


@dataclass(frozen=True, eq=False)
class Vector(CalibrationRule):
    """A scale a_c > 0 and a shift b_c for each class: logits a · f + b, by L-BFGS in float64.

    log a and b have a weak Gaussian prior N(0, ``prior_scale``²), so that rows which can be told apart perfectly do not
    send them to infinity; with n rows its weight is 1/n of the log-loss. Of classes the shifts sum to zero, for a
    softmax does not see their sum. It needs every class among the rows, and at least five rows for each parameter.
    """

    prior_scale: float = 3.0

    def __post_init__(self) -> None:
        check_positive(self.prior_scale, "prior_scale")

    def fit(self, predictive: Predictive, y: Any) -> VectorCalibrator:
        """See :class:`CalibrationRule`."""
        known = check_class_predictive(predictive)
        width = known.source.num_outputs
        target = check_labels(known, y, least=10 * width, each=True)
        device, rows = known.weights.device, len(target)

        def unpack(parameters: Tensor) -> tuple[Tensor, Tensor]:
            shift = parameters[width:]
            return parameters[:width].exp(), shift - shift.mean() if known.exclusive else shift

        def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
            with torch.enable_grad():
                parameters = torch.tensor(values, dtype=torch.float64, device=device, requires_grad=True)
                penalty = 0.5 * parameters.square().sum() / (self.prior_scale**2 * rows)
                total = penalty - map_logits(known, *unpack(parameters)).log_prob(target).mean()
                (slope,) = torch.autograd.grad(total, parameters)
            return float(total.detach()), slope.cpu().numpy()

        start = np.zeros(2 * width)
        limits = [(-LIMIT, LIMIT)] * width + [(None, None)] * width
        found = scipy.optimize.minimize(
            loss, start, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": 500, "gtol": 1e-9}
        )
        if not np.isfinite(found.fun) or not np.isfinite(found.x).all():
            raise NumericalError("vector scaling: the log-loss of the held-out rows is not finite. Try Temperature().")
        scale, shift = unpack(torch.tensor(found.x, dtype=torch.float64, device=device))
        before = mean_log_loss(known, target)
        after = mean_log_loss(map_logits(known, scale, shift), target)
        if after > before:  # only by rounding: the search starts at no change
            scale, shift, after = torch.ones_like(scale), torch.zeros_like(shift), before
        return VectorCalibrator(scale, shift, rows, before, after)
