"""A Gaussian over the weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from temperance.core.checks import check_finite, check_vector
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.linalg.operator import Covariance
from temperance.posteriors.base import Buffers, Density, Nodes, Spread, WeightPosterior
from temperance.posteriors.nodes import antithetic

DEFAULT_DRAWS = 30


@dataclass(frozen=True, eq=False, repr=False)
class Gaussian(WeightPosterior, Spread, Density):
    """θ ~ N(mean, Σ), Σ a covariance operator.

    >>> from temperance.linalg import DiagonalCovariance
    >>> posterior = Gaussian(torch.zeros(2), DiagonalCovariance(torch.tensor([1.0, 4.0])))
    >>> posterior.covariance()
    tensor([[1., 0.],
            [0., 4.]])
    """

    mean: Tensor
    operator: Covariance
    buffers: Buffers = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        check_vector(self.mean, "mean")
        check_finite(self.mean, "the mean of a Gaussian")
        if self.operator.size != len(self.mean):
            raise ArgumentError(
                f"`operator` must have the mean's size {len(self.mean)}; got a covariance of size {self.operator.size}."
            )

    @property
    def size(self) -> int:
        """P."""
        return len(self.mean)

    def covariance(self) -> Tensor:
        """Σ as a matrix P × P; for small P."""
        return self.operator.dense()

    def log_prob(self, theta: Tensor) -> Tensor:
        """log N(θ; mean, Σ)."""
        return self.operator.log_density(theta - self.mean)

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """``n`` draws (30 unless told) in antithetic pairs, mean ± R z; what that gains is told by
        :func:`temperance.posteriors.nodes.antithetic`. :meth:`sample` gives independent ones."""
        return antithetic(DEFAULT_DRAWS if n is None else n, seed, self.mean, self.operator.draw, self.buffers)

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        return torch.stack([self.mean + self.operator.draw(rng) for _ in range(n)])
