"""Symmetric matrices that are known by what one can do with them.

One hierarchy serves curvature and covariance:

    Operator            M: product, quadratic, diagonal, dense
    ├── Block           H, the data's curvature over some coordinates of θ: factorise, merge, times
    └── Covariance      Σ, positive definite: solve, log_det, root, half, draw, log_density

``block.factorise(τ, ρ)`` is the covariance (ρ H + diag τ)⁻¹, so whatever asks for a covariance takes it as it is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.encoding import Value


class Operator(Value, ABC):
    """A symmetric P × P matrix M."""

    is_diagonal: ClassVar[bool] = False
    """Whether M is diagonal by its form."""

    @property
    @abstractmethod
    def size(self) -> int:
        """P."""

    @abstractmethod
    def product(self, v: Tensor) -> Tensor:
        """M v for v of shape ... × P."""

    @abstractmethod
    def _like(self) -> Tensor:
        """A tensor of the operator, for dtype and device."""

    def quadratic(self, v: Tensor) -> Tensor:
        """vᵀ M v for v of shape ... × P."""
        return (v * self.product(v)).sum(-1)

    def dense(self) -> Tensor:
        """M as a matrix; for small P."""
        like = self._like()
        return self.product(torch.eye(self.size, dtype=like.dtype, device=like.device))

    def diagonal(self) -> Tensor:
        """The diagonal of M."""
        return self.dense().diagonal()


class Covariance(Operator):
    """A symmetric matrix Σ = R Rᵀ, positive definite on the coordinates that are random; others are known."""

    @property
    def rank(self) -> int:
        """How many dimensions are random; P, unless some are known."""
        return self.size

    @abstractmethod
    def solve(self, v: Tensor) -> Tensor:
        """Σ⁻¹ v for v of shape ... × P."""

    @abstractmethod
    def log_det(self) -> Tensor:
        """log |Σ|."""

    @abstractmethod
    def root(self, z: Tensor) -> Tensor:
        """R z, for z of shape ... × Σ ``noise_sizes``: a draw from N(0, Σ) where z is standard normal."""

    @abstractmethod
    def half(self, v: Tensor) -> Tensor:
        """Vectors whose inner products are those of v (... × P) in Σ: ⟨half(v), half(w)⟩ = vᵀ Σ w."""

    @property
    def noise_sizes(self) -> tuple[int, ...]:
        """How many standard normal numbers ``root`` takes, in the groups in which ``draw`` makes them."""
        return (self.size,)

    def draw(self, rng: torch.Generator) -> Tensor:
        """One draw from N(0, Σ)."""
        like = self._like()
        groups = [standard_normal(size, like, rng) for size in self.noise_sizes]
        return self.root(groups[0] if len(groups) == 1 else torch.cat(groups))

    def quadratic(self, v: Tensor) -> Tensor:
        """‖half(v)‖², which is never negative."""
        return self.half(v).square().sum(-1)

    def inverse_quadratic(self, delta: Tensor) -> Tensor:
        """δᵀ Σ⁻¹ δ for δ of shape ... × P."""
        return (delta * self.solve(delta)).sum(-1)

    def log_density(self, delta: Tensor) -> Tensor:
        """log N(δ; 0, Σ) for δ of shape ... × P."""
        constant = self.rank * math.log(2 * math.pi)
        return -0.5 * (self.inverse_quadratic(delta) + self.log_det() + constant)


class MatrixCovariance(Covariance):
    """Σ of the entries of a weight matrix, out × in with a bias as its last column, that is contracted with a Jacobian
    without building it: for J_c = Σ_r g_cr a_rᵀ, of inputs a and gradients g, J Σ Jᵀ."""

    @abstractmethod
    def output_covariance(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """B × C × C, of ``inputs`` B × R × in and ``gradients`` C × B × R × out."""

    def output_covariances(self, several: Sequence[Covariance], inputs: Tensor, gradients: Tensor) -> list[Tensor]:
        """The same under each of several of this kind; what they share is computed once."""
        return [one.output_covariance(inputs, gradients) for one in several if isinstance(one, MatrixCovariance)]

    @abstractmethod
    def lookup_covariance(self, words: Tensor, gradients: Tensor) -> Tensor:
        """The same where θ holds vectors (in) of words (out) and each row picks a word: ``words`` B × R, ``gradients``
        C × B × R × in."""


def standard_normal(size: int, like: Tensor, rng: torch.Generator) -> Tensor:
    """Standard normal numbers with the dtype and device of ``like``."""
    return torch.randn(size, generator=rng, dtype=like.dtype, device=rng.device).to(like.device)


def by_columns(solver: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
    """A map of columns (P × n), as the solvers of torch are, applied to v of shape ... × P."""
    return solver(v.unsqueeze(0).flatten(0, -2).mT).mT.reshape(v.shape)
