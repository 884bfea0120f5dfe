"""Curvature of the data term over some coordinates of θ, kept in the form in which it was found.

With H the curvature that a block holds, every question is about a precision

    Λ = ρ H + diag(τ),

τ the prior's precision and ρ a factor on the data (1, unless a noise level is being chosen). ``block.factorise(τ, ρ)``
is the covariance Λ⁻¹; its answers are differentiable in τ and ρ, which is how hyperparameters are chosen by evidence.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_shape, check_square, shown
from temperance.core.errors import ArgumentError, NumericalError
from temperance.core.fields import check_fields
from temperance.linalg.inverse import HELP, CholeskyInverse, DiagonalInverse, LowRankInverse
from temperance.linalg.operator import Covariance, Operator
from temperance.linalg.places import Places, places_size


class Block(Operator):
    """H over some coordinates of θ; symmetric, and never negative unless it is a full Hessian."""

    places: Places

    @property
    def size(self) -> int:
        """p."""
        return places_size(self.places)

    @abstractmethod
    def factorise(self, tau: Tensor, rho: float | Tensor = 1.0) -> Covariance:
        """Λ⁻¹, Λ = ρ H + diag(τ); raises :class:`NumericalError` where Λ is not positive definite."""

    @abstractmethod
    def merge(self, other: Block) -> Block:
        """The curvature of two data sets together."""

    @abstractmethod
    def times(self, factor: float) -> Block:
        """``factor`` · H."""

    def rounding(self) -> float:
        """How large τ must be not to be drowned by rounding where it is added to H; 0 where they are kept apart."""
        return 0.0

    def _check_places(self, held: int, *arguments: str) -> None:
        """There must be a place for each of the numbers that are ``held``, by ``arguments``."""
        if isinstance(self.places, Tensor) and (self.places.dim() != 1 or self.places.dtype != torch.int64):
            raise ArgumentError(f"`places` must be ranges, or a vector of int64; got {shown(self.places)}.")
        if self.size != held:
            named = " and ".join(f"`{name}`" for name in arguments)
            raise ArgumentError(f"`places` must be those of the {held} coordinates of {named}; got {self.size} places.")

    def _check_merge(self, other: Block) -> None:
        places = [p.tolist() if isinstance(p, Tensor) else p for p in (self.places, other.places)]
        if type(self) is not type(other) or places[0] != places[1]:
            raise ArgumentError(
                "`prior`: a posterior becomes the prior of a further Laplace approximation only if both have the same "
                f"structure over the same parameters; got {type(other).__name__} after {type(self).__name__}."
            )


@dataclass(frozen=True, eq=False, repr=False)
class DiagonalBlock(Block):
    """H = diag(h)."""

    is_diagonal: ClassVar[bool] = True
    places: Places
    values: Tensor

    def __post_init__(self) -> None:
        check_fields(self, "values")
        self._check_places(self.values.shape[-1], "values")

    def _like(self) -> Tensor:
        return self.values

    def factorise(self, tau: Tensor, rho: float | Tensor = 1.0) -> DiagonalInverse:
        """See :class:`Block`."""
        return DiagonalInverse(rho * self.values + tau)

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Operator`."""
        return self.values * v

    def diagonal(self) -> Tensor:
        """See :class:`Operator`."""
        return self.values

    def merge(self, other: Block) -> Block:
        """h₁ + h₂."""
        self._check_merge(other)
        assert isinstance(other, DiagonalBlock)
        return DiagonalBlock(self.places, self.values + other.values)

    def times(self, factor: float) -> Block:
        """See :class:`Block`."""
        return replace(self, values=factor * self.values)


@dataclass(frozen=True, eq=False, repr=False)
class DenseBlock(Block):
    """H as a matrix p × p."""

    places: Places
    matrix: Tensor

    def __post_init__(self) -> None:
        check_fields(self, "matrix")
        check_square(self.matrix, "matrix")
        self._check_places(self.matrix.shape[-1], "matrix")

    def _like(self) -> Tensor:
        return self.matrix

    def factorise(self, tau: Tensor, rho: float | Tensor = 1.0) -> CholeskyInverse:
        """See :class:`Block`."""
        precision = rho * self.matrix + torch.diag(tau.to(self.matrix.dtype))
        lower, info = torch.linalg.cholesky_ex(precision)
        if int(info) != 0:
            raise NumericalError(
                f"the posterior precision must be positive definite; the leading minor of order {int(info)} of "
                f"{self.size} is not. {HELP}"
            )
        return CholeskyInverse(lower)

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Operator`."""
        return v @ self.matrix

    def dense(self) -> Tensor:
        """See :class:`Operator`."""
        return self.matrix

    def merge(self, other: Block) -> Block:
        """H₁ + H₂."""
        self._check_merge(other)
        assert isinstance(other, DenseBlock)
        return DenseBlock(self.places, self.matrix + other.matrix)

    def rounding(self) -> float:
        """Some units in the last place of the largest entry."""
        return 20 * torch.finfo(self.matrix.dtype).eps * float(self.matrix.diagonal().max())

    def times(self, factor: float) -> Block:
        """See :class:`Block`."""
        return replace(self, matrix=factor * self.matrix)


@dataclass(frozen=True, eq=False, repr=False)
class LowRankBlock(Block):
    """H = V diag(s) Vᵀ, V of shape p × k: everything costs O(p k²)."""

    places: Places
    vectors: Tensor
    values: Tensor

    def __post_init__(self) -> None:
        check_fields(self, "vectors", "values")
        if self.vectors.dim() != 2:
            raise ArgumentError(f"`vectors` must be a matrix, p × k; got shape {tuple(self.vectors.shape)}.")
        self._check_places(len(self.vectors), "vectors")
        check_shape(self.values, "values", self.vectors.shape[1])

    def _like(self) -> Tensor:
        return self.vectors

    def factorise(self, tau: Tensor, rho: float | Tensor = 1.0) -> LowRankInverse:
        """See :class:`Block`."""
        # √ρ √s, not √(ρ s): at s = 0 the latter has no slope in ρ.
        return LowRankInverse(tau, self.vectors * (rho**0.5 * self.values.sqrt()) * tau.rsqrt().unsqueeze(-1))

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Operator`."""
        return ((v @ self.vectors) * self.values) @ self.vectors.mT

    def diagonal(self) -> Tensor:
        """See :class:`Operator`."""
        return (self.vectors.square() * self.values).sum(-1)

    def merge(self, other: Block) -> Block:
        """All directions of both."""
        self._check_merge(other)
        assert isinstance(other, LowRankBlock)
        vectors = torch.cat([self.vectors, other.vectors], dim=1)
        return LowRankBlock(self.places, vectors, torch.cat([self.values, other.values]))

    def times(self, factor: float) -> Block:
        """See :class:`Block`."""
        return replace(self, values=factor * self.values)
