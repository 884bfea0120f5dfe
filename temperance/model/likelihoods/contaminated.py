"""Gaussian noise with outliers."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import check_flag, check_level, check_positive, real, shown
from temperance.core.errors import ArgumentError
from temperance.model.likelihoods.base import LearnedValues, diagonal
from temperance.model.likelihoods.real import HomoscedasticLikelihood

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_HALVINGS = 64  # for a quantile: no more can be told apart
_REACH = 12.0  # standard deviations of the wider part within which all expectations are taken


@dataclass(frozen=True, eq=False)
class ContaminatedNormal(HomoscedasticLikelihood):
    """Gaussian noise of which a share has a larger scale (Tukey 1960): regression that outliers do not pull,

        y ~ (1 − ρ) N(f(x), scale²) + ρ N(f(x), (k · scale)²),        ρ = ``share``, k = ``factor``.

    ``scale=None`` (the default) learns the scale of what is no outlier; with ``of_all`` the number that is given or
    learned is the standard deviation of all the noise, √(1 + ρ (k² − 1)) times as large. Unlike ``StudentT`` the tails
    are Gaussian in the end: every moment is finite, E exp(t y) too. With z = (y − f) / scale and the probability w that
    z is of the narrow part, the effective precision is u = w + (1 − w) / k²; the slope of log p in f is u z / scale and
    its Hessian (u − w (1 − w) (1 − 1/k²)² z²) / scale², negative where it is open which part z comes from.

    >>> law = ContaminatedNormal(share=0.1, factor=5.0, scale=1.0)
    >>> law.log_prob(torch.zeros(2, 1), torch.tensor([[0.0], [8.0]]), {})
    tensor([-1.0023, -6.1110])
    >>> law.variance(torch.zeros(1, 1), {})
    tensor([[3.4000]])
    """

    share: float = 0.05
    factor: float = 10.0
    of_all: bool = False

    def __init__(
        self,
        share: float = 0.05,
        factor: float = 10.0,
        scale: float | None = None,
        num_outputs: int = 1,
        of_all: bool = False,
    ) -> None:
        object.__setattr__(self, "share", check_level(share, "share"))
        if not 1.0 < real(factor) < math.inf:
            raise ArgumentError(
                f"`factor` must be a finite number above 1, how much wider outliers spread; got {shown(factor)}."
            )
        object.__setattr__(self, "factor", check_positive(factor, "factor"))
        check_flag(of_all, "of_all")
        object.__setattr__(self, "of_all", of_all)
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "num_outputs", num_outputs)
        self.__post_init__()

    @property
    def outlier_factor(self) -> float:
        """k."""
        return self.factor

    @property
    def normals(self) -> tuple[tuple[float, float], ...]:
        """What is no outlier, and what is."""
        return ((1 - self.share, 1.0), (self.share, self.factor))

    def noise_scale(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """That of what is no outlier."""
        given = super().noise_scale(outputs, learned)
        return given / self.standard_variance() ** 0.5 if self.of_all else given

    def _logs(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Log densities of z, times their shares, in the narrow and in the wide part."""
        narrow = math.log1p(-self.share) - _HALF_LOG_2PI - 0.5 * z.square()
        wide = math.log(self.share / self.factor) - _HALF_LOG_2PI - 0.5 * (z / self.factor).square()
        return narrow, wide

    def _narrow(self, z: Tensor) -> Tensor:
        """w, the probability of the narrow part."""
        narrow, wide = self._logs(z)
        return torch.sigmoid(narrow - wide)

    def standard_log_density(self, z: Tensor) -> Tensor:
        """log((1 − ρ) φ(z) + (ρ / k) φ(z / k))."""
        return torch.logaddexp(*self._logs(z))

    def standard_cdf(self, z: Tensor) -> Tensor:
        """(1 − ρ) Φ(z) + ρ Φ(z / k), Φ by the complementary error function, whose left tail is exact."""
        narrow, wide = torch.special.erfc(-(0.5**0.5) * z), torch.special.erfc(-(0.5**0.5) / self.factor * z)
        return 0.5 * ((1 - self.share) * narrow + self.share * wide)

    def standard_quantile(self, level: Tensor) -> Tensor:
        """Between the quantiles of both parts, by halving, in float64; the upper half by symmetry, for levels near one
        are coarse."""
        asked = level.double()
        wanted = torch.minimum(asked, 1 - asked)
        high = torch.special.ndtri(wanted)
        low = self.factor * high
        for _ in range(_HALVINGS):
            middle = low + (high - low) / 2
            below = self.standard_cdf(middle) < wanted
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return torch.where(asked > 0.5, -high, high).to(level.dtype)

    def standard_variance(self) -> float:
        """(1 − ρ) + ρ k²."""
        return 1 + self.share * (self.factor**2 - 1)

    def standard_log_moment(self, t: Tensor) -> Tensor | None:
        """log((1 − ρ) e^{t²/2} + ρ e^{k² t²/2})."""
        half = 0.5 * t.square()
        return torch.logaddexp(math.log1p(-self.share) + half, math.log(self.share) + self.factor**2 * half)

    def standard_sample(self, like: Tensor, rng: torch.Generator) -> Tensor:
        """A normal, times k for a share of them."""
        wide = torch.rand(like.shape, generator=rng, device=like.device, dtype=like.dtype) < self.share
        return super().standard_sample(like, rng) * torch.where(wide, self.factor, 1.0).to(like.dtype)

    def standard_entropy(self) -> float:
        """By quadrature."""
        return _expectations(self.share, self.factor)[0]

    def scale_information(self) -> float:
        """E (u z² − 1)², by quadrature."""
        return _expectations(self.share, self.factor)[1]

    def effective_precision(self, z: Tensor) -> Tensor:
        """u = w + (1 − w) / k²."""
        w = self._narrow(z)
        return w + (1 - w) / self.factor**2

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """(u − w (1 − w) (1 − 1/k²)² z²) / scale²."""
        scale = self.noise_scale(outputs, learned)
        z = (y - outputs) / scale
        w = self._narrow(z)
        bend = w * (1 - w) * (1 - self.factor**-2) ** 2 * z.square()
        return diagonal((self.effective_precision(z) - bend) / scale.square())

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """E (u z)² / scale², by quadrature."""
        value = _expectations(self.share, self.factor)[2]
        return diagonal((value * self.noise_scale(outputs, learned).pow(-2)).expand_as(outputs))


@functools.cache
def _expectations(share: float, factor: float) -> tuple[float, float, float]:
    """Entropy, information of log scale, and of location, of a noise of scale 1: Gauss–Legendre in pieces that grow
    from 0 to 12 k standard deviations, and by symmetry twice."""
    law = ContaminatedNormal(share, factor, scale=1.0)
    edges = np.concatenate([[0.0], np.geomspace(0.25, _REACH * factor, 60)])
    node, weight = np.polynomial.legendre.leggauss(12)
    half = np.diff(edges)[:, None] / 2
    z = torch.from_numpy((edges[:-1, None] + half * (1 + node)).ravel())
    log_p = law.standard_log_density(z)
    mass = torch.from_numpy((2 * half * weight).ravel()) * log_p.exp()
    pull = law.effective_precision(z) * z
    return float(-(mass * log_p).sum()), float((mass * (pull * z - 1) ** 2).sum()), float((mass * pull**2).sum())
