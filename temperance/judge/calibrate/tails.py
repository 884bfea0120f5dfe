"""How heavy the tails of a predictive's noise are, as held-out rows tell."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.inference.noise import level_under, outliers
from temperance.model.likelihoods import Likelihood, Normal, RealLikelihood
from temperance.predict import ValuePredictive

_ROWS = 2000  # that are asked, at most
_SEED = 0
_GAUSSIAN = Normal(scale=1.0)


def with_tails(predictive: ValuePredictive, law: RealLikelihood | None) -> ValuePredictive:
    """``predictive`` with noise of the form of ``law`` and of the variance that it had."""
    if law is None:
        return predictive
    made = predictive.reshaped(law)
    if made is None:
        raise ArgumentError(
            f"`predictive` must have Gaussian noise, as that which was calibrated had; got {type(predictive).__name__} "
            f"of {predictive.likelihood!r}."
        )
    return made


@dataclass(frozen=True)
class _Members:
    """Locations and noise scales of the members at some rows, S × n × D, and their targets: densities of what is
    widened about the mean, under any form of noise."""

    law: Likelihood
    location: Tensor
    scale: Tensor
    log_weights: Tensor
    mean: Tensor
    y: Tensor

    @classmethod
    def of(cls, gaussian: ValuePredictive, mean: Tensor, y: Tensor) -> _Members:
        family = gaussian.likelihood
        assert isinstance(family, RealLikelihood)
        at = np.sort(np.random.default_rng(_SEED).permutation(len(y))[:_ROWS])
        found = []
        for rows, outputs, learned in gaussian.source.blocks():
            here = range(len(y))[rows]
            own = torch.from_numpy(at[(at >= here.start) & (at < here.stop)] - here.start).to(outputs.device)
            location = family.location(outputs)
            scale = family.noise_scale(outputs, learned).expand_as(location)
            found.append((location[:, own].double(), scale[:, own].double()))
        location, scale = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
        log_weights = gaussian.weights.double().log()[:, None]
        asked = torch.from_numpy(at).to(y.device)
        return cls(_GAUSSIAN, location, scale, log_weights, mean.double()[asked], y.double()[asked])

    def totals(self, law: Likelihood, shifts: Tensor) -> Tensor:
        """See :class:`~temperance.inference.noise.Asked`."""
        assert isinstance(law, RealLikelihood)
        scale = self.scale * law.standard_variance() ** -0.5
        found = []
        for shift in shifts.tolist():
            inner = self.mean + (self.y - self.mean) / math.exp(shift)
            each = law.standard_log_density((inner - self.location) / scale) - scale.log() - shift
            found.append(torch.logsumexp(each.sum(-1) + self.log_weights, 0).sum())
        totals = torch.stack(found).cpu()
        return torch.where(totals.isfinite(), totals, -torch.inf)


def wanted_tails(predictive: ValuePredictive, y: Tensor, log_scale: float) -> tuple[float, RealLikelihood | None]:
    """What rows say of the form of the noise, where the best factor on the spread is exp ``log_scale`` under a Gaussian
    one: (the logarithm of the best factor, the form), as :func:`~temperance.inference.noise.outliers` finds it. No
    form where the noise is not Gaussian as it is."""
    gaussian = predictive.reshaped(_GAUSSIAN)
    if gaussian is None:
        return log_scale, None
    rows = _Members.of(gaussian, predictive.mean(), y)
    law = outliers(rows, log_scale)
    if law is None:
        return log_scale, None
    assert isinstance(law, RealLikelihood)
    return level_under(rows, law, log_scale), law


__all__ = ["wanted_tails", "with_tails"]
