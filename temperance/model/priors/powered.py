"""A prior to a power: the weight decay that comes of it, times a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.checks import check_positive
from temperance.model.learned import LearnedParameter
from temperance.model.priors.base import Density, Prior
from temperance.model.priors.location_scale import GaussianDensity
from temperance.model.theta import Entry, Layout


@dataclass(frozen=True, eq=False)
class PoweredPrior(Prior):
    """p(θ)^power, not normalised: what pulls on weights is ``power`` times as strong. Of N(m, s²) it is
    N(m, s² / power).

    >>> import temperance as tp
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(), PoweredPrior(tp.GaussianPrior(1.0), 4.0))
    >>> target.bound_prior.pieces[0][1].scale
    0.5
    """

    prior: Prior
    power: float

    def __post_init__(self) -> None:
        check_positive(self.power, "power")

    @property
    def learns(self) -> bool:
        """As the prior."""
        return self.prior.learns

    def learned_parameters(self, entries: Sequence[Entry]) -> tuple[LearnedParameter, ...]:
        """The prior's."""
        return self.prior.learned_parameters(entries)

    def densities(self, layout: Layout, entries: Sequence[Entry]) -> list[tuple[slice, Density]]:
        """See :class:`Prior`."""
        return [(piece, _powered(found, self.power)) for piece, found in self.prior.densities(layout, entries)]


def _powered(density: Density, power: float) -> Density:
    known = density.gaussian
    if known is not None:
        mean, scale = known
        return GaussianDensity(mean, scale / math.sqrt(power))
    return _Powered(density, power)


@dataclass(frozen=True, eq=False)
class _Powered(Density):
    density: Density
    power: float

    def log_density(self, theta: Tensor) -> Tensor:
        """power · log p(θᵢ)."""
        return self.power * self.density.log_density(theta)

    def score(self, theta: Tensor) -> Tensor:
        """power · d log p(θᵢ) / dθᵢ."""
        return self.power * self.density.score(theta)

    def sample(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """There is no way to."""
        raise NotImplementedError("a power of this density is known up to a factor, and cannot be drawn from.")

    def to(self, device: torch.device, dtype: torch.dtype) -> Density:
        """See :class:`Density`."""
        return _Powered(self.density.to(device, dtype), self.power)

    def part(self, places: Tensor, size: int) -> Density:
        """See :class:`Density`."""
        return _Powered(self.density.part(places, size), self.power)


__all__ = ["PoweredPrior"]
