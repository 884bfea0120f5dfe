"""Covariances of θ kept as Σ or a root of it, which never build more than they must."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_shape, check_square, check_vector
from temperance.core.errors import ArgumentError, NumericalError
from temperance.core.fields import check_fields
from temperance.linalg.operator import Covariance, by_columns


@dataclass(frozen=True, eq=False, repr=False)
class DiagonalCovariance(Covariance):
    """Σ = diag(variance).

    >>> DiagonalCovariance(torch.tensor([1.0, 4.0])).log_det()
    tensor(1.3863)
    """

    is_diagonal: ClassVar[bool] = True
    variance: Tensor

    def __post_init__(self) -> None:
        check_fields(self, "variance")
        if not bool((self.variance > 0).all()) or not bool(torch.isfinite(self.variance).all()):
            raise NumericalError("a variance must be positive and finite everywhere; the posterior is not proper.")
        check_vector(self.variance, "variance")

    def _like(self) -> Tensor:
        return self.variance

    @property
    def size(self) -> int:
        """P."""
        return len(self.variance)

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Operator`."""
        return self.variance * v

    def solve(self, v: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        return v / self.variance

    def root(self, z: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        return self.variance.sqrt() * z

    def half(self, v: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        return self.root(v)

    def dense(self) -> Tensor:
        """See :class:`Operator`."""
        return torch.diag(self.variance)

    def diagonal(self) -> Tensor:
        """See :class:`Operator`."""
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
        check_fields(self, "variance", "factor")
        DiagonalCovariance(self.variance)
        if self.factor.dim() != 2:
            raise ArgumentError(f"`factor` must be a matrix, P × K; got shape {tuple(self.factor.shape)}.")
        check_shape(self.factor, "factor", len(self.variance), self.factor.shape[1], dtype=self.variance.dtype)

    def _like(self) -> Tensor:
        return self.variance

    @property
    def size(self) -> int:
        """P."""
        return len(self.variance)

    @property
    def noise_sizes(self) -> tuple[int, ...]:
        """P, and K for all of θ together."""
        return self.factor.shape[0], self.factor.shape[1]

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Operator`."""
        return self.variance * v + (v @ self.factor) @ self.factor.mT

    def capacitance(self) -> Tensor:
        """I + Fᵀ D⁻¹ F."""
        scaled = self.factor / self.variance.unsqueeze(-1)
        return torch.eye(self.factor.shape[1], dtype=scaled.dtype, device=scaled.device) + self.factor.T @ scaled

    def solve(self, v: Tensor) -> Tensor:
        """D⁻¹ v − D⁻¹ F (I + Fᵀ D⁻¹ F)⁻¹ Fᵀ D⁻¹ v."""
        scaled = v / self.variance
        inner = by_columns(lambda w: torch.linalg.solve(self.capacitance(), w), scaled @ self.factor)
        return scaled - (inner @ self.factor.mT) / self.variance

    def root(self, z: Tensor) -> Tensor:
        """√variance · z₁ + F z₂, one z₂ for all of θ."""
        return self.variance.sqrt() * z[..., : self.size] + z[..., self.size :] @ self.factor.mT

    def half(self, v: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        return torch.cat([self.variance.sqrt() * v, v @ self.factor], dim=-1)

    def dense(self) -> Tensor:
        """See :class:`Operator`."""
        return torch.diag(self.variance) + self.factor @ self.factor.T

    def diagonal(self) -> Tensor:
        """See :class:`Operator`."""
        return self.variance + self.factor.square().sum(1)

    def log_det(self) -> Tensor:
        """log |D| + log |I + Fᵀ D⁻¹ F|."""
        return self.variance.log().sum() + torch.linalg.slogdet(self.capacitance())[1]

    def inverse_quadratic(self, delta: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        inner = (delta / self.variance) @ self.factor
        solved = torch.linalg.solve(self.capacitance(), inner.unsqueeze(-1)).squeeze(-1)
        return (delta.square() / self.variance).sum(-1) - (inner * solved).sum(-1)


class TriangularRoot(Covariance):
    """Σ = L Lᵀ with L lower triangular."""

    @property
    @abstractmethod
    def cholesky(self) -> Tensor:
        """L."""

    @property
    def size(self) -> int:
        """P."""
        return len(self._like())

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Operator`."""
        return self.root(self.half(v))

    def solve(self, v: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        return by_columns(lambda w: torch.cholesky_solve(w, self.cholesky), v)

    def root(self, z: Tensor) -> Tensor:
        """L z."""
        return z @ self.cholesky.mT

    def half(self, v: Tensor) -> Tensor:
        """Lᵀ v."""
        return v @ self.cholesky

    def log_det(self) -> Tensor:
        """See :class:`Covariance`."""
        return 2 * self.cholesky.diagonal().log().sum()

    def inverse_quadratic(self, delta: Tensor) -> Tensor:
        """‖L⁻¹ δ‖²."""
        solved = torch.linalg.solve_triangular(self.cholesky, delta.reshape(-1, self.size).T, upper=False)
        return solved.square().sum(0).view(delta.shape[:-1])


@dataclass(frozen=True, eq=False, repr=False)
class DenseCovariance(TriangularRoot):
    """Σ as a matrix, with its Cholesky factor."""

    matrix: Tensor

    def __post_init__(self) -> None:
        check_fields(self)
        check_square(self.matrix, "matrix")

    def _like(self) -> Tensor:
        return self.matrix

    @cached_property
    def cholesky(self) -> Tensor:
        """The lower factor L with L Lᵀ = Σ."""
        factor, info = torch.linalg.cholesky_ex(self.matrix)
        if int(info) != 0:
            raise NumericalError(
                f"a covariance must be positive definite; the leading minor of order {int(info)} is not. "
                "Check the curvature, or use float64."
            )
        return factor

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Operator`."""
        return v @ self.matrix

    def dense(self) -> Tensor:
        """See :class:`Operator`."""
        return self.matrix

    def diagonal(self) -> Tensor:
        """See :class:`Operator`."""
        return self.matrix.diagonal()


@dataclass(frozen=True, eq=False, repr=False)
class CholeskyCovariance(TriangularRoot):
    """Σ = L Lᵀ, kept as L: what is nearly singular stays exact, for Σ itself is never formed.

    >>> CholeskyCovariance(torch.tensor([[1.0, 0.0], [1.0, 2.0]])).diagonal()
    tensor([1., 5.])
    """

    factor: Tensor

    def __post_init__(self) -> None:
        check_fields(self)
        check_triangular(self.factor)

    def _like(self) -> Tensor:
        return self.factor

    @property
    def cholesky(self) -> Tensor:
        """L."""
        return self.factor

    def dense(self) -> Tensor:
        """See :class:`Operator`."""
        return self.factor @ self.factor.T

    def diagonal(self) -> Tensor:
        """See :class:`Operator`."""
        return self.factor.square().sum(1)


def check_triangular(factor: Tensor, argument: str = "factor") -> None:
    """Raise unless a triangular factor is that of a proper covariance."""
    check_square(factor, argument)
    # A sum is finite only where all its terms are; to look at each is slow, and needed only where a sum overflows.
    finite = bool(torch.isfinite(factor.sum())) or bool(torch.isfinite(factor).all())
    if not finite or not bool((factor.diagonal() > 0).all()):
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
        check_fields(self)
        check_triangular(self.left, "left")
        check_triangular(self.right, "right")

    def _like(self) -> Tensor:
        return self.left

    @property
    def size(self) -> int:
        """m n."""
        return len(self.left) * len(self.right)

    def _matrix(self, v: Tensor) -> Tensor:
        """... × P to ... × m × n."""
        return v.reshape(*v.shape[:-1], len(self.left), len(self.right))

    def product(self, v: Tensor) -> Tensor:
        """U X V."""
        return self.root(self.half(v))

    def solve(self, v: Tensor) -> Tensor:
        """U⁻¹ X V⁻¹."""
        solved = torch.cholesky_solve(self._matrix(v), self.left)
        return torch.cholesky_solve(solved.mT, self.right).mT.reshape(v.shape)

    def root(self, z: Tensor) -> Tensor:
        """A Z Bᵀ, read row by row."""
        return (self.left @ self._matrix(z) @ self.right.T).reshape(z.shape)

    def half(self, v: Tensor) -> Tensor:
        """Aᵀ X B."""
        return (self.left.T @ self._matrix(v) @ self.right).reshape(v.shape)

    def dense(self) -> Tensor:
        """See :class:`Operator`."""
        return torch.kron(self.left @ self.left.T, self.right @ self.right.T)

    def diagonal(self) -> Tensor:
        """See :class:`Operator`."""
        return torch.outer(self.left.square().sum(1), self.right.square().sum(1)).reshape(-1)

    def log_det(self) -> Tensor:
        """2 n log |A| + 2 m log |B|."""
        one, two = self.left.diagonal().log().sum(), self.right.diagonal().log().sum()
        return 2 * len(self.right) * one + 2 * len(self.left) * two

    def inverse_quadratic(self, delta: Tensor) -> Tensor:
        """‖A⁻¹ X B⁻ᵀ‖²."""
        solved = torch.linalg.solve_triangular(self.left, self._matrix(delta), upper=False)
        solved = torch.linalg.solve_triangular(self.right, solved.mT, upper=False)
        return solved.square().sum((-1, -2))
