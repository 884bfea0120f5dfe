"""Curvature of the data term over some coordinates of θ, kept in the form in which it was found.

With H the curvature that a block holds, every question is about a precision

    Λ = ρ H + diag(τ),

τ the prior's precision and ρ a factor on the data (1, unless a noise level is being chosen). ``block.factorise(τ, ρ)``
answers them; its results are differentiable in τ and ρ, which is how hyperparameters are chosen by evidence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, NumericalError

Places = tuple[tuple[int, int], ...] | Tensor
"""Where in θ the coordinates of a block are: half-open ranges, or single indices."""


def take(vector: Tensor, places: Places) -> Tensor:
    """The coordinates of a block out of ``vector`` (... × P): ... × p."""
    if isinstance(places, Tensor):
        return vector[..., places.to(vector.device)]
    if len(places) == 1:
        return vector[..., places[0][0] : places[0][1]]
    return torch.cat([vector[..., start:stop] for start, stop in places], dim=-1)


def put(vector: Tensor, places: Places, values: Tensor) -> None:
    """Write the coordinates of a block into ``vector`` (... × P), in place."""
    if isinstance(places, Tensor):
        vector[..., places.to(vector.device)] = values
        return
    at = 0
    for start, stop in places:
        vector[..., start:stop] = values[..., at : at + stop - start]
        at += stop - start


def places_size(places: Places) -> int:
    """p, the number of coordinates."""
    return len(places) if isinstance(places, Tensor) else sum(stop - start for start, stop in places)


class Factor(ABC):
    """Λ, ready to be solved with."""

    @abstractmethod
    def log_det(self) -> Tensor:
        """log |Λ|."""

    @abstractmethod
    def solve(self, v: Tensor) -> Tensor:
        """Λ⁻¹ v for v of shape ... × p."""

    @abstractmethod
    def half(self, v: Tensor) -> Tensor:
        """Vectors (... × p) whose inner products are those of v in the covariance: ⟨half(v), half(w)⟩ = vᵀ Λ⁻¹ w."""

    @abstractmethod
    def colour(self, z: Tensor) -> Tensor:
        """A draw from N(0, Λ⁻¹) made of p standard normal numbers (... × p)."""

    @abstractmethod
    def variance(self) -> Tensor:
        """The diagonal of Λ⁻¹."""


class Block(Value, ABC):
    """H over some coordinates of θ."""

    places: Places

    @property
    def size(self) -> int:
        """p."""
        return places_size(self.places)

    @abstractmethod
    def factorise(self, tau: Tensor, rho: float | Tensor = 1.0) -> Factor:
        """Λ = ρ H + diag(τ); raises :class:`NumericalError` where it is not positive definite."""

    @abstractmethod
    def product(self, v: Tensor) -> Tensor:
        """H v for v of shape ... × p."""

    @abstractmethod
    def merge(self, other: Block) -> Block:
        """The curvature of two data sets together."""

    @abstractmethod
    def times(self, factor: float) -> Block:
        """``factor`` · H."""

    def dense(self) -> Tensor:
        """H as a matrix; for small p."""
        like = self._like()
        return self.product(torch.eye(self.size, dtype=like.dtype, device=like.device)).mT

    @abstractmethod
    def _like(self) -> Tensor:
        """A tensor of the block, for dtype and device."""

    def _check_merge(self, other: Block) -> None:
        places = [p.tolist() if isinstance(p, Tensor) else p for p in (self.places, other.places)]
        if type(self) is not type(other) or places[0] != places[1]:
            raise ArgumentError(
                "`prior`: a posterior becomes the prior of a further Laplace approximation only if both have the same "
                f"structure over the same parameters; got {type(other).__name__} after {type(self).__name__}."
            )


# ---------------------------------------------------------------------- diagonal


@dataclass(frozen=True, eq=False, repr=False)
class DiagonalBlock(Block):
    """H = diag(h)."""

    places: Places
    values: Tensor

    def _like(self) -> Tensor:
        return self.values

    def factorise(self, tau: Tensor, rho: float | Tensor = 1.0) -> Factor:
        """See :class:`Block`."""
        precision = rho * self.values + tau
        if not bool((precision.detach() > 0).all()):
            bad = int((precision.detach() <= 0).sum())
            raise NumericalError(
                f"the posterior precision must be positive; {bad} of {len(precision)} diagonal entries are not. {HELP}"
            )
        return _DiagonalFactor(precision)

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Block`."""
        return self.values * v

    def merge(self, other: Block) -> Block:
        """h₁ + h₂."""
        self._check_merge(other)
        assert isinstance(other, DiagonalBlock)
        return DiagonalBlock(self.places, self.values + other.values)

    def times(self, factor: float) -> Block:
        """See :class:`Block`."""
        return replace(self, values=factor * self.values)


class _DiagonalFactor(Factor):
    def __init__(self, precision: Tensor) -> None:
        self.precision = precision

    def log_det(self) -> Tensor:
        return self.precision.log().sum()

    def solve(self, v: Tensor) -> Tensor:
        return v / self.precision

    def half(self, v: Tensor) -> Tensor:
        return v * self.precision.rsqrt()

    def colour(self, z: Tensor) -> Tensor:
        return z * self.precision.rsqrt()

    def variance(self) -> Tensor:
        return self.precision.reciprocal()


# ---------------------------------------------------------------------- dense


@dataclass(frozen=True, eq=False, repr=False)
class DenseBlock(Block):
    """H as a matrix p × p."""

    places: Places
    matrix: Tensor

    def _like(self) -> Tensor:
        return self.matrix

    def factorise(self, tau: Tensor, rho: float | Tensor = 1.0) -> Factor:
        """See :class:`Block`."""
        precision = rho * self.matrix + torch.diag(tau.to(self.matrix.dtype))
        lower, info = torch.linalg.cholesky_ex(precision)
        if int(info) != 0:
            raise NumericalError(
                f"the posterior precision must be positive definite; the leading minor of order {int(info)} of "
                f"{self.size} is not. {HELP}"
            )
        return _DenseFactor(lower)

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Block`."""
        return v @ self.matrix

    def merge(self, other: Block) -> Block:
        """H₁ + H₂."""
        self._check_merge(other)
        assert isinstance(other, DenseBlock)
        return DenseBlock(self.places, self.matrix + other.matrix)

    def times(self, factor: float) -> Block:
        """See :class:`Block`."""
        return replace(self, matrix=factor * self.matrix)


HELP = (
    "Train to a mode first, use the generalised Gauss–Newton matrix (which is never negative) in place of the full "
    "Hessian, or a network and data in float64."
)


class _DenseFactor(Factor):
    """Λ = L Lᵀ."""

    def __init__(self, lower: Tensor) -> None:
        self.lower = lower

    def log_det(self) -> Tensor:
        return 2 * self.lower.diagonal().log().sum()

    def solve(self, v: Tensor) -> Tensor:
        rows = v.reshape(-1, v.shape[-1])
        return torch.cholesky_solve(rows.mT, self.lower).mT.view(v.shape)

    def half(self, v: Tensor) -> Tensor:
        """L⁻¹ v."""
        rows = v.reshape(-1, v.shape[-1])
        return torch.linalg.solve_triangular(self.lower, rows.mT, upper=False).mT.view(v.shape)

    def colour(self, z: Tensor) -> Tensor:
        rows = z.reshape(-1, z.shape[-1])
        return torch.linalg.solve_triangular(self.lower.mT, rows.mT, upper=True).mT.view(z.shape)

    def variance(self) -> Tensor:
        return torch.cholesky_inverse(self.lower).diagonal()


# ---------------------------------------------------------------------- low rank


@dataclass(frozen=True, eq=False, repr=False)
class LowRankBlock(Block):
    """H = V diag(s) Vᵀ, V of shape p × k: everything costs O(p k²)."""

    places: Places
    vectors: Tensor
    values: Tensor

    def _like(self) -> Tensor:
        return self.vectors

    def factorise(self, tau: Tensor, rho: float | Tensor = 1.0) -> Factor:
        """See :class:`Block`."""
        if not bool((tau.detach() > 0).all()):
            raise NumericalError("a low-rank curvature needs a positive prior precision for every parameter.")
        return _LowRankFactor(tau, self.vectors * (rho * self.values).sqrt() * tau.rsqrt().unsqueeze(-1))

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Block`."""
        return ((v @ self.vectors) * self.values) @ self.vectors.mT

    def merge(self, other: Block) -> Block:
        """All directions of both."""
        self._check_merge(other)
        assert isinstance(other, LowRankBlock)
        vectors = torch.cat([self.vectors, other.vectors], dim=1)
        return LowRankBlock(self.places, vectors, torch.cat([self.values, other.values]))

    def times(self, factor: float) -> Block:
        """See :class:`Block`."""
        return replace(self, values=factor * self.values)


class _LowRankFactor(Factor):
    """Λ = D^½ (I + W Wᵀ) D^½."""

    def __init__(self, tau: Tensor, w: Tensor) -> None:
        self.tau, self.w = tau, w
        self.gram = w.mT @ w
        self.inner = torch.eye(w.shape[1], dtype=w.dtype, device=w.device) + self.gram

    def log_det(self) -> Tensor:
        return self.tau.log().sum() + torch.linalg.slogdet(self.inner)[1]

    def solve(self, v: Tensor) -> Tensor:
        white = v * self.tau.rsqrt()
        flat = (white @ self.w).reshape(-1, self.w.shape[1])
        inner = torch.linalg.solve(self.inner, flat.mT).mT.view(*v.shape[:-1], -1)
        return (white - inner @ self.w.mT) * self.tau.rsqrt()

    def half(self, v: Tensor) -> Tensor:
        return self._root(v * self.tau.rsqrt())

    def colour(self, z: Tensor) -> Tensor:
        return self._root(z) * self.tau.rsqrt()

    def _root(self, z: Tensor) -> Tensor:
        """(I + W Wᵀ)^-½ z, by the eigenvectors R of WᵀW: (I + W Wᵀ)^-½ = I − W R f(e) Rᵀ Wᵀ."""
        values, basis = torch.linalg.eigh(self.gram)
        root = (1 + values.clamp(min=0)).sqrt()
        inner = (z @ self.w @ basis) / (root * (1 + root))
        return z - inner @ basis.mT @ self.w.mT

    def variance(self) -> Tensor:
        solved = torch.linalg.solve(self.inner, self.w.mT).mT
        return (1 - (self.w * solved).sum(-1)) / self.tau
