"""Likelihoods that describe the members of a predictive: noise of any form, about locations and of sizes that something
else says. None of them is for training."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.model.likelihoods import RealLikelihood
from temperance.model.likelihoods.base import LearnedValues


class OfForm(RealLikelihood):
    """Noise whose standard form is that of another likelihood."""

    @property
    @abstractmethod
    def form(self) -> RealLikelihood:
        """Whose."""

    @property
    def normals(self) -> tuple[tuple[float, float], ...]:
        """Those of the form."""
        return self.form.normals

    def standard_log_density(self, z: Tensor) -> Tensor:
        """That of the form."""
        return self.form.standard_log_density(z)

    def standard_cdf(self, z: Tensor) -> Tensor:
        """That of the form."""
        return self.form.standard_cdf(z)

    def standard_quantile(self, level: Tensor) -> Tensor:
        """That of the form."""
        return self.form.standard_quantile(level)

    def standard_variance(self) -> float:
        """That of the form."""
        return self.form.standard_variance()

    def standard_entropy(self) -> float:
        """That of the form."""
        return self.form.standard_entropy()

    def exponential_moments(self) -> bool:
        """As the form."""
        return self.form.exponential_moments()

    def standard_log_moment(self, t: Tensor) -> Tensor | None:
        """That of the form."""
        return self.form.standard_log_moment(t)

    def standard_sample(self, like: Tensor, rng: torch.Generator) -> Tensor:
        """That of the form."""
        return self.form.standard_sample(like, rng)

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """Not for training."""
        raise NotImplementedError("the members of a predictive are not trained: use the target's likelihood")

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Not for training."""
        raise NotImplementedError("the members of a predictive are not trained: use the target's likelihood")


@dataclass(frozen=True, eq=False)
class Reshaped(OfForm):
    """Noise of the form of ``law`` in the place of that of ``family``: about its locations, and of its variance."""

    family: RealLikelihood
    law: RealLikelihood

    @property
    def form(self) -> RealLikelihood:
        """``law``."""
        return self.law

    @property
    def additive(self) -> bool:
        """As the family."""
        return self.family.additive

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`~temperance.model.likelihoods.Likelihood`."""
        return self.family.prepare(y, num_outputs, dtype)

    def location(self, outputs: Tensor) -> Tensor:
        """That of the family."""
        return self.family.location(outputs)

    def noise_scale(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """What gives the family's variance."""
        ratio = self.family.standard_variance() / self.law.standard_variance()
        return self.family.noise_scale(outputs, learned) * ratio**0.5
