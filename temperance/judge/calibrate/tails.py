"""How heavy the tails of a predictive's noise are, as held-out rows tell."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from temperance.inference.noise import level_under, outliers
from temperance.model.likelihoods import Likelihood, Normal, RealLikelihood
from temperance.model.likelihoods.real import GaussianNoise
from temperance.predict import ValuePredictive
from temperance.predict.affine import Rescaled
from temperance.predict.predictive import PREDICTIVES
from temperance.predict.source import MappedOutputs, OutputBlock, Outputs

_ROWS = 2000  # that are asked, at most
_SEED = 0


class _WithTails(MappedOutputs):
    """The members of ``base`` in the form that :class:`Rescaled` reads, with noise of the same size and of the form of
    ``law``."""

    def __init__(self, base: Outputs, family: RealLikelihood, law: RealLikelihood) -> None:
        self.base, self.family, self.narrow = base, family, law.standard_variance() ** -0.5
        self.engine, self.rows, self.weights = base.engine, base.rows, base.weights
        self.num_outputs = 2 * family.location(base.weights.new_zeros(1, base.num_outputs)).shape[-1]

    def blocks(self) -> Iterator[OutputBlock]:
        """See :class:`~temperance.predict.source.Source`."""
        for rows, outputs, learned in self.base.blocks():
            location = self.family.location(outputs)
            noise = self.family.noise_scale(outputs, learned).expand_as(location)
            yield rows, torch.cat([location, (self.narrow * noise).log()], dim=-1), learned


def with_tails(predictive: ValuePredictive, law: RealLikelihood | None) -> ValuePredictive:
    """``predictive`` with noise of the form of ``law`` about each member's location, where its own is Gaussian; with
    the same variance."""
    family = predictive.likelihood
    if law is None or not isinstance(family, GaussianNoise):
        return predictive
    made = PREDICTIVES.of(predictive.outcome)(_WithTails(predictive.source, family, law), Rescaled(law))
    assert isinstance(made, ValuePredictive)
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
    def of(cls, predictive: ValuePredictive, y: Tensor) -> _Members:
        family = predictive.likelihood
        assert isinstance(family, RealLikelihood)
        found = []
        for _, outputs, learned in predictive.source.blocks():
            location = family.location(outputs).double()
            found.append((location, family.noise_scale(outputs, learned).double().expand_as(location)))
        rows = np.sort(np.random.default_rng(_SEED).permutation(len(y))[:_ROWS])
        at = torch.from_numpy(rows).to(y.device)
        location, scale = (torch.cat(parts, 1)[:, at] for parts in zip(*found, strict=True))
        log_weights = predictive.weights.double().log()[:, None]
        return cls(Normal(scale=1.0), location, scale, log_weights, predictive.mean().double()[at], y.double()[at])

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
    one: (the logarithm of the best factor, the form), as :func:`~temperance.inference.noise.outliers` finds it."""
    if not isinstance(predictive.likelihood, GaussianNoise):
        return log_scale, None
    rows = _Members.of(predictive, y)
    law = outliers(rows, log_scale)
    if law is None:
        return log_scale, None
    assert isinstance(law, RealLikelihood)
    return level_under(rows, law, log_scale), law


__all__ = ["wanted_tails", "with_tails"]
