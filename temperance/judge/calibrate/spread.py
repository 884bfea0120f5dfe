"""Predictive spreads of real targets, made wider or narrower about the mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import scipy.stats
import torch
from torch import Tensor

from temperance.core.checks import check_flag, shown
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.judge.calibrate.base import (
    LIMIT,
    CalibrationRule,
    Calibrator,
    check_value_predictive,
    search,
)
from temperance.judge.calibrate.tails import wanted_tails, with_tails
from temperance.model.likelihoods import RealLikelihood
from temperance.predict import Predictive, ValuePredictive
from temperance.predict.affine import AffinePredictive


@dataclass(frozen=True, eq=False, repr=False)
class SpreadCalibrator(Calibrator):
    """The spread about the mean times ``scale``: one number, or one for each output. ``noise`` is the form of the noise
    where it is not Gaussian any more."""

    scale: Tensor
    rows: int = 0
    before: float = math.nan
    after: float = math.nan
    noise: RealLikelihood | None = None

    def __post_init__(self) -> None:
        check_fields(self, "scale")

    def __call__(self, predictive: Predictive) -> AffinePredictive:
        """The calibrated predictive."""
        if not isinstance(predictive, ValuePredictive):
            raise ArgumentError(f"`predictive` must be that of real targets; got {type(predictive).__name__}.")
        return widened(with_tails(predictive, self.noise), self.scale)


def widened(predictive: ValuePredictive, scale: Tensor) -> AffinePredictive:
    """mean + scale · (y − mean)."""
    mean = predictive.mean()
    factor = scale.to(mean)
    if factor.numel() not in (1, mean.shape[-1]):
        raise ArgumentError(
            f"`predictive` must have the {factor.numel()} outputs that were calibrated; got {mean.shape[-1]}."
        )
    return AffinePredictive(predictive, mean * (1 - factor), factor.expand_as(mean))


@dataclass(frozen=True, eq=False)
class VarianceScale(CalibrationRule):
    """One number s (``per_output``: one for each output) by which the predictive spreads about its mean:

        y' = m(x) + s (y − m(x)),      p'(y' | x) = p(m + (y' − m)/s | x) / s^D.

    s minimises the log-loss of held-out rows, so for Gaussian predictives s² is the mean squared standardised
    residual. Noise and what θ leaves open grow alike; the mean stays, and so does the mutual information (with Gaussian
    noise).

    With ``trim`` the share of rows with the largest standardised residuals z = (y − m) / std is left out (one row at
    least): s minimises the log-loss of the others, and s² is divided by what their mean z² would be of Gaussian ones. A
    few rows far off, which one factor cannot describe, do not make all intervals wide. (For Gaussian predictives that
    is the mean z² of the others; a mixture of four networks that know and one that does not has a spread that says
    nothing of how sharp it is, so its residuals alone would give the wrong s.)

    With ``tails`` the rows also say how heavy the tails are of a noise that is Gaussian, whether or not it depends on
    the input: a fifth of rows is k times as far off as others, k = exp E[log k | rows] as in
    :class:`~temperance.inference.Refit`, and s is the best one with it. Where a few rows are far off, densities are
    then those of such rows too, and of many Gaussian rows nothing changes. A fifth is more than there are, as a rule,
    so that central intervals hold more than they say. (Those of tables are conformal, and do not go by this.)

    >>> import temperance as tp
    >>> from temperance.predict.calibrated import from_outputs
    >>> y = 3 * torch.randn(4000, 1, generator=torch.Generator().manual_seed(0))
    >>> too_sure = from_outputs(torch.zeros(4000, 1), tp.Normal(scale=1.0))
    >>> calibrator = VarianceScale().fit(too_sure, y)
    >>> bool(abs(calibrator.scale - y.square().mean().sqrt()) < 1e-3)
    True
    """

    per_output: bool = False
    trim: float = 0.0
    tails: bool = False

    def __post_init__(self) -> None:
        check_flag(self.per_output, "per_output")
        check_flag(self.tails, "tails")
        if self.tails and self.per_output:
            raise ArgumentError("`tails` are those of all outputs together: leave out `per_output`.")
        if isinstance(self.trim, bool) or not isinstance(self.trim, int | float) or not 0 <= self.trim < 0.5:
            raise ArgumentError(f"`trim` must be a share of the rows, from 0 to below 0.5; got {shown(self.trim)}.")

    def fit(self, predictive: Predictive, y: Any) -> SpreadCalibrator:
        """See :class:`CalibrationRule`."""
        known, target = check_value_predictive(predictive, y, least=10)
        before, logs, after = self._spread(known, target)
        law = None
        if self.tails:
            at, law = wanted_tails(known, target, float(logs[0]))
            if law is not None:
                logs = np.clip(np.array([at]), -LIMIT, LIMIT)
                after = float(_losses(with_tails(known, law), target, logs).mean())
        scale = torch.tensor(np.exp(logs), dtype=torch.float64, device=known.weights.device)
        return SpreadCalibrator(scale, len(target), before, after, law)

    def _spread(self, known: ValuePredictive, target: Tensor) -> tuple[float, np.ndarray, float]:
        """The loss as it is, the logarithms of the factors, and the loss with them."""
        width = known.mean().shape[-1]

        def loss(log_scale: Any) -> float:
            return float(_losses(known, target, log_scale).mean())

        if self.trim > 0:
            z = ((target.double() - known.mean().double()) / known.std().double()).abs()
            if self.per_output and width > 1:  # no predictive tells the density of one output by itself
                logs = np.log([_trimmed_scale(column, self.trim) for column in z.T.cpu().numpy()])
            else:
                kept, usual = _kept(z, self.trim)
                at, _ = search(lambda log_scale: float(_losses(known, target, log_scale)[kept].mean()))
                logs = np.array([at - 0.5 * math.log(usual)])
            logs = np.clip(logs, -LIMIT, LIMIT)
            return loss(0.0), logs, loss(logs)
        at, after = search(loss)
        before, found = loss(0.0), np.full(width if self.per_output else 1, at)
        if self.per_output and width > 1:
            result = scipy.optimize.minimize(
                loss, found, method="L-BFGS-B", bounds=[(-LIMIT, LIMIT)] * width, options={"eps": 1e-4}
            )
            if result.fun < after:
                found, after = result.x, float(result.fun)
        return before, found, after


def _losses(known: ValuePredictive, target: Tensor, log_scale: Any) -> Tensor:
    """−log p of each row, the spread being so many times as wide."""
    mean = known.mean()
    factor = torch.as_tensor(log_scale, dtype=torch.float64, device=mean.device).exp().reshape(-1)
    inner = mean.double() + (target.double() - mean.double()) / factor
    return factor.log().expand(mean.shape[-1]).sum() - known.log_prob(inner).detach().double()


def _kept(z: Tensor, share: float) -> tuple[Tensor, float]:
    """The rows (N × D) without those that are furthest off, and what the mean z² of these is of Gaussian ones."""
    size = len(z)
    cut = min(size - 1, max(1, math.ceil(share * size)))
    kept, width = 1 - cut / size, z.shape[-1]
    edge = scipy.stats.chi2.ppf(kept, width)
    return z.square().sum(-1).argsort(stable=True)[: size - cut], float(scipy.stats.chi2.cdf(edge, width + 2) / kept)


def _trimmed_scale(z: np.ndarray, share: float) -> float:
    """The standard deviation of Gaussian z, from all but the largest."""
    cut = min(len(z) - 1, max(1, math.ceil(share * len(z))))
    kept = 1 - cut / len(z)
    edge = scipy.stats.norm.ppf(0.5 + kept / 2)
    usual = 1 - 2 * edge * scipy.stats.norm.pdf(edge) / kept
    return float(np.sqrt(max(np.mean(np.square(np.sort(z)[: len(z) - cut])), 1e-12) / usual))
