"""A distribution whose draws lie at a distance from the mean that does not grow with the number of weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from temperance.core.checks import check_finite, check_vector
from temperance.core.errors import ArgumentError, NumericalError
from temperance.core.fields import check_fields
from temperance.linalg.operator import standard_normal
from temperance.posteriors.base import Buffers, Centred, Density, Nodes, WeightPosterior
from temperance.posteriors.gaussian import DEFAULT_DRAWS
from temperance.posteriors.nodes import antithetic


@dataclass(frozen=True, eq=False, repr=False)
class RadialPosterior(WeightPosterior, Centred, Density):
    """Piece by piece of θ (one for each tensor of the network, of ``sizes`` numbers): θ = mean + scale ⊙ u r, with u
    uniform on the unit sphere and r = |z|, z ~ N(0, 1) (Farquhar et al., 2020).

    A Gaussian in d dimensions has nearly all its mass at distance √d; here it is at distance about one, in units of
    ``scale``. The variance of a weight is scale² / d.

    >>> posterior = RadialPosterior(torch.zeros(2), torch.ones(2), (2,))
    >>> posterior.covariance()
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """

    mean: Tensor
    scale: Tensor
    sizes: tuple[int, ...]
    buffers: Buffers = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        check_vector(self.mean, "mean")
        check_vector(self.scale, "scale")
        check_finite(self.mean, "the mean of a RadialPosterior")
        if not bool((self.scale > 0).all()) or not bool(torch.isfinite(self.scale).all()):
            raise NumericalError("a scale must be positive and finite everywhere; the posterior is not proper.")
        if sum(self.sizes) != len(self.mean):
            raise ArgumentError(f"`sizes` must add up to the mean's size {len(self.mean)}; got {self.sizes}.")

    @property
    def size(self) -> int:
        """P."""
        return len(self.mean)

    def covariance(self) -> Tensor:
        """diag(scale² / d), as a matrix."""
        counts = torch.cat([torch.full((d,), float(d)) for d in self.sizes]).to(self.mean)
        return torch.diag(self.scale.square() / counts)

    def log_prob(self, theta: Tensor) -> Tensor:
        """log q(θ): for each piece −r²/2 − (d − 1) log r − Σ log scale + constant, r = ‖(θ − mean) / scale‖."""
        total = -self.scale.log().sum().expand(theta.shape[:-1])
        for piece, d in zip(((theta - self.mean) / self.scale).split(self.sizes, dim=-1), self.sizes, strict=True):
            radius = torch.linalg.vector_norm(piece, dim=-1)
            total = total - 0.5 * radius.square() - (d - 1) * radius.log() + radial_constant(d)
        return total

    def _displacement(self, rng: torch.Generator) -> Tensor:
        pieces = []
        for d in self.sizes:
            direction, radius = standard_normal(d, self.mean, rng), standard_normal(1, self.mean, rng).abs()
            pieces.append(direction * radius / torch.linalg.vector_norm(direction))
        return self.scale * torch.cat(pieces)

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """``n`` draws (30 unless told) in antithetic pairs, as those of a :class:`Gaussian`."""
        return antithetic(DEFAULT_DRAWS if n is None else n, seed, self.mean, self._displacement, self.buffers)

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        return torch.stack([self.mean + self._displacement(rng) for _ in range(n)])


def radial_constant(d: int) -> float:
    """log of √(2/π) over the area of the unit sphere in d dimensions, 2 π^(d/2) / Γ(d/2)."""
    area = math.log(2.0) + 0.5 * d * math.log(math.pi) - math.lgamma(0.5 * d)
    return 0.5 * math.log(2.0 / math.pi) - area


def radial_entropy(d: int) -> float:
    """The entropy of u r in d dimensions: E[r²]/2 + (d − 1) E log r − constant, with E log r = −(γ + log 2)/2."""
    return 0.5 - 0.5 * (d - 1) * (0.5772156649015329 + math.log(2.0)) - radial_constant(d)
