"""Covariances of θ that never build more than they must: diagonal, low rank plus diagonal, dense."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from temperance.core.encoding import SCRATCH, Value
from temperance.core.errors import NumericalError


class Covariance(Value, ABC):
    """A symmetric positive definite P × P matrix Σ, known by what one can do with it."""

    @property
    @abstractmethod
    def size(self) -> int:
        """P."""

    @property
    def rank(self) -> int:
        """How many dimensions are random; P, unless some are known."""
        return self.size

    @abstractmethod
    def draw(self, rng: torch.Generator) -> Tensor:
        """One draw from N(0, Σ)."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Σ as a matrix; for small P."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The variances."""

    @abstractmethod
    def log_det(self) -> Tensor:
        """log |Σ|."""

    @abstractmethod
    def inverse_quadratic(self, delta: Tensor) -> Tensor:
        """δᵀ Σ⁻¹ δ for δ of shape ... × P."""


@dataclass(frozen=True, eq=False, repr=False)
class DiagonalCovariance(Covariance):
    """Σ = diag(variance).

    >>> DiagonalCovariance(torch.tensor([1.0, 4.0])).log_det()
    tensor(1.3863)
    """

    variance: Tensor

    def __post_init__(self) -> None:
        if not bool((self.variance > 0).all()) or not bool(torch.isfinite(self.variance).all()):
            raise NumericalError("a variance must be positive and finite everywhere; the posterior is not proper.")

    @property
    def size(self) -> int:
        """P."""
        return len(self.variance)

    def draw(self, rng: torch.Generator) -> Tensor:
        """See :class:`Covariance`."""
        return self.variance.sqrt() * standard_normal(self.size, self.variance, rng)

    def dense(self) -> Tensor:
        """See :class:`Covariance`."""
        return torch.diag(self.variance)

    def diagonal(self) -> Tensor:
        """See :class:`Covariance`."""
        return self.variance

    def log_det(self) -> Tensor:
        """See :class:`Covariance`."""
        return self.variance.log().sum()

    def inverse_quadratic(self, delta: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        return (delta.square() / self.variance).sum(-1)


@dataclass(frozen=True, eq=False, repr=False)
class LowRankCovariance(Covariance):
    """Σ = diag(variance) + F Fᵀ, with F of shape P × K and K ≪ P. Everything costs O(P K²), by Woodbury's identity."""

    variance: Tensor
    factor: Tensor

    def __post_init__(self) -> None:
        DiagonalCovariance(self.variance)

    @property
    def size(self) -> int:
        """P."""
        return len(self.variance)

    def draw(self, rng: torch.Generator) -> Tensor:
        """√variance · z₁ + F z₂, one z₂ for all of θ."""
        local = self.variance.sqrt() * standard_normal(self.size, self.variance, rng)
        return local + self.factor @ standard_normal(self.factor.shape[1], self.variance, rng)

    def dense(self) -> Tensor:
        """See :class:`Covariance`."""
        return torch.diag(self.variance) + self.factor @ self.factor.T

    def diagonal(self) -> Tensor:
        """See :class:`Covariance`."""
        return self.variance + self.factor.square().sum(1)

    def capacitance(self) -> Tensor:
        """I + Fᵀ D⁻¹ F."""
        scaled = self.factor / self.variance.unsqueeze(-1)
        return torch.eye(self.factor.shape[1], dtype=scaled.dtype, device=scaled.device) + self.factor.T @ scaled

    def log_det(self) -> Tensor:
        """log |D| + log |I + Fᵀ D⁻¹ F|."""
        return self.variance.log().sum() + torch.linalg.slogdet(self.capacitance())[1]

    def inverse_quadratic(self, delta: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        inner = (delta / self.variance) @ self.factor
        solved = torch.linalg.solve(self.capacitance(), inner.unsqueeze(-1)).squeeze(-1)
        return (delta.square() / self.variance).sum(-1) - (inner * solved).sum(-1)


@dataclass(frozen=True, eq=False, repr=False)
class DenseCovariance(Covariance):
    """Σ as a matrix, with its Cholesky factor."""

    matrix: Tensor
    _factor: list[Tensor] = field(default_factory=list, repr=False, metadata=SCRATCH)

    @property
    def cholesky(self) -> Tensor:
        """The lower factor L with L Lᵀ = Σ."""
        if not self._factor:
            factor, info = torch.linalg.cholesky_ex(self.matrix)
            if int(info) != 0:
                raise NumericalError(
                    f"a covariance must be positive definite; the leading minor of order {int(info)} is not. "
                    "Check the curvature, or use float64."
                )
            self._factor.append(factor)
        return self._factor[0]

    @property
    def size(self) -> int:
        """P."""
        return len(self.matrix)

    def draw(self, rng: torch.Generator) -> Tensor:
        """L z."""
        return self.cholesky @ standard_normal(self.size, self.matrix, rng)

    def dense(self) -> Tensor:
        """See :class:`Covariance`."""
        return self.matrix

    def diagonal(self) -> Tensor:
        """See :class:`Covariance`."""
        return self.matrix.diagonal()

    def log_det(self) -> Tensor:
        """See :class:`Covariance`."""
        return 2 * self.cholesky.diagonal().log().sum()

    def inverse_quadratic(self, delta: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        solved = torch.linalg.solve_triangular(self.cholesky, delta.reshape(-1, self.size).T, upper=False)
        return solved.square().sum(0).view(delta.shape[:-1])


@dataclass(frozen=True, eq=False, repr=False)
class CholeskyCovariance(Covariance):
    """Σ = L Lᵀ, kept as L: what is nearly singular stays exact, for Σ itself is never formed.

    >>> CholeskyCovariance(torch.tensor([[1.0, 0.0], [1.0, 2.0]])).diagonal()
    tensor([1., 5.])
    """

    factor: Tensor

    def __post_init__(self) -> None:
        check_triangular(self.factor)

    @property
    def size(self) -> int:
        """P."""
        return len(self.factor)

    def draw(self, rng: torch.Generator) -> Tensor:
        """L z."""
        return self.factor @ standard_normal(self.size, self.factor, rng)

    def dense(self) -> Tensor:
        """See :class:`Covariance`."""
        return self.factor @ self.factor.T

    def diagonal(self) -> Tensor:
        """See :class:`Covariance`."""
        return self.factor.square().sum(1)

    def log_det(self) -> Tensor:
        """See :class:`Covariance`."""
        return 2 * self.factor.diagonal().log().sum()

    def inverse_quadratic(self, delta: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        solved = torch.linalg.solve_triangular(self.factor, delta.reshape(-1, self.size).T, upper=False)
        return solved.square().sum(0).view(delta.shape[:-1])


def check_triangular(factor: Tensor) -> None:
    """Raise unless a triangular factor is that of a proper covariance."""
    if not bool(torch.isfinite(factor).all()) or not bool((factor.diagonal() > 0).all()):
        raise NumericalError("a triangular factor must be finite with a positive diagonal; this one is not.")


@dataclass(frozen=True, eq=False, repr=False)
class KroneckerCovariance(Covariance):
    """Σ = U ⊗ V over a matrix m × n read row by row: Cov(X_ab, X_cd) = U_ac V_bd, with U = A Aᵀ, V = B Bᵀ.

    ``left`` A is m × m, ``right`` B is n × n, both lower triangular with a positive diagonal: X = A Z Bᵀ.

    >>> KroneckerCovariance(torch.eye(2) * 2, torch.eye(3)).diagonal()
    tensor([4., 4., 4., 4., 4., 4.])
    """

    left: Tensor
    right: Tensor

    def __post_init__(self) -> None:
        check_triangular(self.left)
        check_triangular(self.right)

    @property
    def size(self) -> int:
        """m n."""
        return len(self.left) * len(self.right)

    def draw(self, rng: torch.Generator) -> Tensor:
        """A Z Bᵀ, read row by row."""
        noise = standard_normal(self.size, self.left, rng).view(len(self.left), len(self.right))
        return (self.left @ noise @ self.right.T).reshape(-1)

    def dense(self) -> Tensor:
        """See :class:`Covariance`."""
        return torch.kron(self.left @ self.left.T, self.right @ self.right.T)

    def diagonal(self) -> Tensor:
        """See :class:`Covariance`."""
        return torch.outer(self.left.square().sum(1), self.right.square().sum(1)).reshape(-1)

    def log_det(self) -> Tensor:
        """2 n log |A| + 2 m log |B|."""
        one, two = self.left.diagonal().log().sum(), self.right.diagonal().log().sum()
        return 2 * len(self.right) * one + 2 * len(self.left) * two

    def inverse_quadratic(self, delta: Tensor) -> Tensor:
        """‖A⁻¹ X B⁻ᵀ‖²."""
        matrix = delta.reshape(-1, len(self.left), len(self.right))
        solved = torch.linalg.solve_triangular(self.left, matrix, upper=False)
        solved = torch.linalg.solve_triangular(self.right, solved.mT, upper=False)
        return solved.square().sum((-1, -2)).view(delta.shape[:-1])


@dataclass(frozen=True, eq=False, repr=False)
class BlockCovariance(Covariance):
    """Independent pieces of θ one after the other, each with a covariance of its own."""

    blocks: tuple[Covariance, ...]

    @property
    def size(self) -> int:
        """P."""
        return sum(block.size for block in self.blocks)

    def draw(self, rng: torch.Generator) -> Tensor:
        """See :class:`Covariance`."""
        return torch.cat([block.draw(rng) for block in self.blocks])

    def dense(self) -> Tensor:
        """See :class:`Covariance`."""
        return torch.block_diag(*[block.dense() for block in self.blocks])

    def diagonal(self) -> Tensor:
        """See :class:`Covariance`."""
        return torch.cat([block.diagonal() for block in self.blocks])

    def log_det(self) -> Tensor:
        """See :class:`Covariance`."""
        return torch.stack([block.log_det() for block in self.blocks]).sum()

    def inverse_quadratic(self, delta: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        pieces = delta.split([block.size for block in self.blocks], dim=-1)
        return torch.stack([b.inverse_quadratic(p) for b, p in zip(self.blocks, pieces, strict=True)]).sum(0)


def standard_normal(size: int, like: Tensor, rng: torch.Generator) -> Tensor:
    """Standard normal numbers with the dtype and device of ``like``."""
    return torch.randn(size, generator=rng, dtype=like.dtype, device=rng.device).to(like.device)


def gaussian_log_density(covariance: Covariance, delta: Tensor) -> Tensor:
    """log N(δ; 0, Σ)."""
    constant = covariance.rank * math.log(2 * math.pi)
    return -0.5 * (covariance.inverse_quadratic(delta) + covariance.log_det() + constant)
