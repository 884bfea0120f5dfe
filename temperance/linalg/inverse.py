"""Covariances of θ kept as a precision Λ = Σ⁻¹: what curvature gives when it is factorised.

They are kept so because Λ is what is known: to invert it first would cost more and round twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.errors import NumericalError
from temperance.core.fields import check_fields
from temperance.linalg.covariance import check_triangular
from temperance.linalg.operator import Covariance, by_columns

HELP = (
    "Train to a mode first, use the generalised Gauss–Newton matrix (which is never negative) in place of the full "
    "Hessian, or a network and data in float64."
)


@dataclass(frozen=True, eq=False, repr=False)
class DiagonalInverse(Covariance):
    """Σ = diag(precision)⁻¹.

    >>> DiagonalInverse(torch.tensor([1.0, 4.0])).diagonal()
    tensor([1.0000, 0.2500])
    """

    is_diagonal: ClassVar[bool] = True
    precision: Tensor

    def __post_init__(self) -> None:
        check_fields(self, "precision")
        precision = self.precision.detach()
        if not bool((precision > 0).all()):
            bad = int((precision <= 0).sum())
            raise NumericalError(
                f"the posterior precision must be positive; {bad} of {len(precision)} diagonal entries are not. {HELP}"
            )

    def _like(self) -> Tensor:
        return self.precision

    @property
    def size(self) -> int:
        """P."""
        return len(self.precision)

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Operator`."""
        return v / self.precision

    def solve(self, v: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        return v * self.precision

    def root(self, z: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        return z * self.precision.rsqrt()

    def half(self, v: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        return self.root(v)

    def diagonal(self) -> Tensor:
        """See :class:`Operator`."""
        return self.precision.reciprocal()

    def log_det(self) -> Tensor:
        """See :class:`Covariance`."""
        return -self.precision.log().sum()


@dataclass(frozen=True, eq=False, repr=False)
class CholeskyInverse(Covariance):
    """Σ = (L Lᵀ)⁻¹ with L lower triangular.

    >>> CholeskyInverse(torch.tensor([[1.0, 0.0], [0.0, 2.0]])).diagonal()
    tensor([1.0000, 0.2500])
    """

    factor: Tensor

    def __post_init__(self) -> None:
        check_fields(self)
        check_triangular(self.factor.detach())
        # By columns, as LAPACK makes it: read from a file it lies by rows, and solvers would round otherwise.
        object.__setattr__(self, "factor", self.factor.mT.contiguous().mT)

    def _like(self) -> Tensor:
        return self.factor

    @property
    def size(self) -> int:
        """P."""
        return len(self.factor)

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Operator`."""
        return by_columns(lambda w: torch.cholesky_solve(w, self.factor), v)

    def solve(self, v: Tensor) -> Tensor:
        """L Lᵀ v."""
        return (v @ self.factor) @ self.factor.mT

    def root(self, z: Tensor) -> Tensor:
        """L⁻ᵀ z."""
        return by_columns(lambda w: torch.linalg.solve_triangular(self.factor.mT, w, upper=True), z)

    def half(self, v: Tensor) -> Tensor:
        """L⁻¹ v."""
        return by_columns(lambda w: torch.linalg.solve_triangular(self.factor, w, upper=False), v)

    def diagonal(self) -> Tensor:
        """See :class:`Operator`."""
        return torch.cholesky_inverse(self.factor).diagonal()

    def log_det(self) -> Tensor:
        """See :class:`Covariance`."""
        return -2 * self.factor.diagonal().log().sum()


@dataclass(frozen=True, eq=False, repr=False)
class LowRankInverse(Covariance):
    """Σ = (D^½ (I + W Wᵀ) D^½)⁻¹ with D = diag(precision) and W of shape P × K: everything costs O(P K²)."""

    precision: Tensor
    factor: Tensor

    def __post_init__(self) -> None:
        check_fields(self, "precision", "factor")
        if not bool((self.precision.detach() > 0).all()):
            raise NumericalError("a low-rank curvature needs a positive prior precision for every parameter.")

    def _like(self) -> Tensor:
        return self.factor

    @property
    def size(self) -> int:
        """P."""
        return len(self.precision)

    @cached_property
    def _gram(self) -> Tensor:
        """Wᵀ W."""
        return self.factor.mT @ self.factor

    @cached_property
    def _inner(self) -> Tensor:
        """I + Wᵀ W."""
        like = self.factor
        return torch.eye(like.shape[1], dtype=like.dtype, device=like.device) + self._gram

    def product(self, v: Tensor) -> Tensor:
        """By Woodbury's identity."""
        white = v * self.precision.rsqrt()
        inner = by_columns(lambda w: torch.linalg.solve(self._inner, w), white @ self.factor)
        return (white - inner @ self.factor.mT) * self.precision.rsqrt()

    def solve(self, v: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        scale = self.precision.sqrt()
        return v * self.precision + (((v * scale) @ self.factor) @ self.factor.mT) * scale

    def root(self, z: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        return self._shrunk(z) * self.precision.rsqrt()

    def half(self, v: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        return self._shrunk(v * self.precision.rsqrt())

    def _shrunk(self, z: Tensor) -> Tensor:
        """(I + W Wᵀ)^-½ z, by the eigenvectors R of WᵀW: (I + W Wᵀ)^-½ = I − W R f(e) Rᵀ Wᵀ."""
        values, basis = torch.linalg.eigh(self._gram)
        root = (1 + values.clamp(min=0)).sqrt()
        inner = (z @ self.factor @ basis) / (root * (1 + root))
        return z - inner @ basis.mT @ self.factor.mT

    def diagonal(self) -> Tensor:
        """See :class:`Operator`."""
        solved = torch.linalg.solve(self._inner, self.factor.mT).mT
        return (1 - (self.factor * solved).sum(-1)) / self.precision

    def log_det(self) -> Tensor:
        """See :class:`Covariance`."""
        return -(self.precision.log().sum() + torch.linalg.slogdet(self._inner)[1])
