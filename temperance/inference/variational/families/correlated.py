"""Families with correlations: all of them, a few directions, or those of rows and columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError
from temperance.inference.card import Card, MethodFamily
from temperance.inference.variational.families.base import BoundFamily, Buffers, Family, too_large
from temperance.inference.variational.families.factorised import matrix_shape
from temperance.linalg.assembled import BlockCovariance
from temperance.linalg.covariance import (
    CholeskyCovariance,
    DiagonalCovariance,
    KroneckerCovariance,
    LowRankCovariance,
)
from temperance.linalg.operator import Covariance
from temperance.model.theta import Entry, Layout
from temperance.posteriors import Gaussian, Posterior

_HALF_LOG_2PIE = 0.5 * math.log(2 * math.pi * math.e)


@dataclass(frozen=True, eq=False)
class FullRank(Family):
    """θ = μ + L ε with L lower triangular, its diagonal kept positive by a logarithm: every correlation. Below the
    diagonal, φ has each row in units of its diagonal element.

    P² numbers, so it is refused above ``limit`` of them. On a linear-Gaussian model its optimum is the posterior, and
    the ELBO the log evidence.

    >>> FullRank().bind(Layout.of(torch.nn.Linear(3, 2))).num_parameters
    72
    """

    card: ClassVar[Card] = Card(
        "every correlation; refused above 5,000 weights",
        MethodFamily.VARIATIONAL,
        papers=("Kucukelbir et al., Automatic differentiation variational inference, JMLR 2017",),
        exact="ELBO = evidence",
        cost="4 P copies",
        shown=("Variational(FullRank())",),
    )

    limit: int = 25_000_000

    def __post_init__(self) -> None:
        check_count(self.limit, "limit")

    def bind(self, layout: Layout) -> BoundFamily:
        """See :class:`Family`."""
        if layout.size**2 > self.limit:
            advice = "Use LowRank(k), MatrixNormal(), or On(last_layer, ...)."
            raise too_large("FullRank", layout, layout.size**2, self.limit, advice)
        return BoundFullRank(layout, {"factor": (layout.size, layout.size)}, layout.size)


def triangular(raw: Tensor) -> Tensor:
    """A lower triangular matrix L from any square one: exp of its diagonal on the diagonal, and each row below it in
    units of that row's, L_ij = L_ii R_ij. In its own units a row of many small steps does not outgrow its diagonal,
    which would make L singular to rounding; and a learning rate means the same for weights of any scale."""
    return raw.diagonal().exp().unsqueeze(1) * (raw.tril(-1) + torch.eye(len(raw), dtype=raw.dtype, device=raw.device))


class BoundFullRank(BoundFamily):
    """φ = (μ, L with the logarithm of its diagonal)."""

    def start(self, theta: Tensor, scale: float, rng: torch.Generator) -> Tensor:
        """See :class:`BoundFamily`."""
        raw = math.log(scale) * torch.eye(self.size, dtype=theta.dtype, device=theta.device)
        return torch.cat([theta, raw.reshape(-1)])

    def _factor(self, phi: Tensor) -> Tensor:
        return triangular(self.parts(phi)["factor"])

    def draw(self, phi: Tensor, noise: Tensor) -> Tensor:
        """μ + L ε."""
        return self.mean(phi) + noise @ self._factor(phi).T

    def variances(self, phi: Tensor) -> Tensor:
        """Row sums of L²."""
        return self._factor(phi).square().sum(1)

    def entropy(self, phi: Tensor) -> Tensor:
        """log |L| + ½ P log 2πe."""
        return self.parts(phi)["factor"].diagonal().sum() + self.size * _HALF_LOG_2PIE

    def score(self, phi: Tensor, noise: Tensor) -> Tensor:
        """−L⁻ᵀ ε."""
        return -torch.linalg.solve_triangular(self._factor(phi).T, noise.T, upper=True).T

    def posterior(self, phi: Tensor, buffers: Buffers) -> Posterior:
        """A :class:`Gaussian` whose covariance is kept as L."""
        return Gaussian(self.mean(phi).clone(), CholeskyCovariance(self._factor(phi.detach())), buffers)


@dataclass(frozen=True, eq=False)
class LowRank(Family):
    """θ = μ + F z + d ⊙ ε with F of shape P × k: a few directions of correlation, and a diagonal. Written
    ``Variational(LowRank(k))``.

    >>> LowRank(2).bind(Layout.of(torch.nn.Linear(3, 2))).num_parameters
    32
    """

    card: ClassVar[Card] = Card(
        "`rank` directions and a diagonal",
        MethodFamily.VARIATIONAL,
        papers=("Ong et al., Gaussian variational approximation with a factor covariance structure, JCGS 2018",),
        exact="all of it with `rank` = P",
        cost="4 (2 + `rank`) + 2 copies",
        shown=("Variational(LowRank())",),
    )

    rank: int = 5

    def __post_init__(self) -> None:
        check_count(self.rank, "rank")

    def bind(self, layout: Layout) -> BoundFamily:
        """See :class:`Family`."""
        if self.rank > layout.size:
            raise ArgumentError(
                f"`family`: LowRank({self.rank}) must have at most as many directions as there are parameters, "
                f"{layout.size}."
            )
        shapes = {"log_scale": (layout.size,), "factor": (layout.size, self.rank)}
        return BoundLowRank(layout, shapes, layout.size + self.rank)


class BoundLowRank(BoundFamily):
    """φ = (μ, log d, F)."""

    def start(self, theta: Tensor, scale: float, rng: torch.Generator) -> Tensor:
        """Small random directions: a tenth of the variance is theirs."""
        rank = self.num_noise - self.size
        noise = torch.randn(self.size * rank, generator=rng, dtype=theta.dtype, device=rng.device).to(theta.device)
        diagonal = torch.full_like(theta, math.log(scale) + 0.5 * math.log(0.9))
        return torch.cat([theta, diagonal, noise * scale * math.sqrt(0.1 / rank)])

    def draw(self, phi: Tensor, noise: Tensor) -> Tensor:
        """μ + d ⊙ ε + F z."""
        parts = self.parts(phi)
        local, common = noise[..., : self.size], noise[..., self.size :]
        return self.mean(phi) + parts["log_scale"].exp() * local + common @ parts["factor"].T

    def variances(self, phi: Tensor) -> Tensor:
        """d² + row sums of F²."""
        parts = self.parts(phi)
        return (2 * parts["log_scale"]).exp() + parts["factor"].square().sum(1)

    def _covariance(self, phi: Tensor) -> LowRankCovariance:
        parts = self.parts(phi)
        return LowRankCovariance((2 * parts["log_scale"]).exp(), parts["factor"])

    def entropy(self, phi: Tensor) -> Tensor:
        """½ log |Σ| + ½ P log 2πe."""
        return 0.5 * self._covariance(phi).log_det() + self.size * _HALF_LOG_2PIE

    def score(self, phi: Tensor, noise: Tensor) -> Tensor:
        """−Σ⁻¹ (θ − μ)."""
        return -self._covariance(phi).solve(self.draw(phi, noise) - self.mean(phi))

    def posterior(self, phi: Tensor, buffers: Buffers) -> Posterior:
        """A :class:`Gaussian` with a low-rank covariance."""
        found = self._covariance(phi.detach().clone())
        return Gaussian(self.mean(phi).clone(), found, buffers)


@dataclass(frozen=True, eq=False)
class MatrixNormal(Family):
    """Each weight matrix W (m × n; a convolution counts as outputs × all else) a matrix normal: W = M + A Z Bᵀ,
    Cov(W_ab, W_cd) = (A Aᵀ)_ac (B Bᵀ)_bd, with A, B lower triangular. What is no matrix has independent normals.

    m² + n² numbers a layer beside the mean: refused where a factor has more than ``limit`` rows.

    >>> MatrixNormal().bind(Layout.of(torch.nn.Linear(3, 2))).num_parameters
    23
    """

    card: ClassVar[Card] = Card(
        "rows ⊗ columns of each layer",
        MethodFamily.VARIATIONAL,
        papers=(
            "Louizos & Welling, Structured and efficient variational deep learning with matrix Gaussian posteriors, "
            "ICML 2016",
        ),
        exact="all of it for one layer with one output",
        shown=("Variational(MatrixNormal())",),
    )

    limit: int = 4096

    def __post_init__(self) -> None:
        check_count(self.limit, "limit")

    def bind(self, layout: Layout) -> BoundFamily:
        """See :class:`Family`."""
        shapes: dict[str, tuple[int, ...]] = {}
        for entry in layout.entries:
            if not is_matrix(entry):
                shapes[f"{entry.name}/each"] = (entry.size,)
                continue
            rows, columns = matrix_shape(entry)
            if max(rows, columns) > self.limit:
                size = rows**2 + columns**2
                raise ArgumentError(
                    f"`family`: MatrixNormal needs {size:,} numbers for the factors of {entry.name!r} "
                    f"({rows} × {columns}); the limit is {self.limit:,} rows (`limit=`). Use TiedScale(k) or "
                    "LowRank(k)."
                )
            shapes[f"{entry.name}/left"] = (rows, rows)
            shapes[f"{entry.name}/right"] = (columns, columns)
        return BoundMatrixNormal(layout, shapes, layout.size)


def is_matrix(entry: Entry) -> bool:
    """Whether a tensor has rows and columns to speak of."""
    return len(entry.shape) >= 2 and entry.role == "network"


class BoundMatrixNormal(BoundFamily):
    """φ = (M, A and B with logarithms of their diagonals, logs of what is no matrix)."""

    def start(self, theta: Tensor, scale: float, rng: torch.Generator) -> Tensor:
        """See :class:`BoundFamily`."""
        phi = torch.zeros(self.num_parameters, dtype=theta.dtype, device=theta.device)
        phi[: self.size] = theta
        for name, part in self.parts(phi).items():
            if name.endswith("/each"):
                part.fill_(math.log(scale))
            else:
                part.diagonal().fill_(0.5 * math.log(scale))
        return phi

    def _factors(self, phi: Tensor) -> list[tuple[Entry, tuple[Tensor, Tensor] | Tensor]]:
        parts = self.parts(phi)
        found: list[tuple[Entry, tuple[Tensor, Tensor] | Tensor]] = []
        for entry in self.layout.entries:
            each = parts.get(f"{entry.name}/each")
            if each is not None:
                found.append((entry, each.exp()))
            else:
                pair = triangular(parts[f"{entry.name}/left"]), triangular(parts[f"{entry.name}/right"])
                found.append((entry, pair))
        return found

    def draw(self, phi: Tensor, noise: Tensor) -> Tensor:
        """M + A Z Bᵀ."""
        pieces = []
        for entry, factor in self._factors(phi):
            z = noise[..., entry.start : entry.stop]
            if isinstance(factor, Tensor):
                pieces.append(factor * z)
            else:
                matrix = factor[0] @ z.reshape(*z.shape[:-1], *matrix_shape(entry)) @ factor[1].T
                pieces.append(matrix.reshape(z.shape))
        return self.mean(phi) + torch.cat(pieces, dim=-1)

    def variances(self, phi: Tensor) -> Tensor:
        """Outer products of the factors' row sums of squares."""
        found = []
        for _, factor in self._factors(phi):
            if isinstance(factor, Tensor):
                found.append(factor.square())
            else:
                found.append(torch.outer(factor[0].square().sum(1), factor[1].square().sum(1)).reshape(-1))
        return torch.cat(found)

    def entropy(self, phi: Tensor) -> Tensor:
        """Σ over layers of n log |A| + m log |B|, + ½ P log 2πe."""
        parts = self.parts(phi)
        total = phi.new_zeros(())
        for entry in self.layout.entries:
            each = parts.get(f"{entry.name}/each")
            if each is not None:
                total = total + each.sum()
                continue
            rows, columns = matrix_shape(entry)
            total = total + columns * parts[f"{entry.name}/left"].diagonal().sum()
            total = total + rows * parts[f"{entry.name}/right"].diagonal().sum()
        return total + self.size * _HALF_LOG_2PIE

    def score(self, phi: Tensor, noise: Tensor) -> Tensor:
        """−A⁻ᵀ Z B⁻¹."""
        pieces = []
        for entry, factor in self._factors(phi):
            z = noise[..., entry.start : entry.stop]
            if isinstance(factor, Tensor):
                pieces.append(-z / factor)
                continue
            matrix = z.reshape(*z.shape[:-1], *matrix_shape(entry))
            solved = torch.linalg.solve_triangular(factor[0].T, matrix, upper=True)
            solved = torch.linalg.solve_triangular(factor[1], solved, upper=False, left=False)
            pieces.append(-solved.reshape(z.shape))
        return torch.cat(pieces, dim=-1)

    def posterior(self, phi: Tensor, buffers: Buffers) -> Posterior:
        """A :class:`Gaussian` with a covariance of Kronecker blocks."""
        blocks: list[Covariance] = []
        for _, factor in self._factors(phi.detach()):
            if isinstance(factor, Tensor):
                blocks.append(DiagonalCovariance(factor.square()))
            else:
                blocks.append(KroneckerCovariance(*factor))
        return Gaussian(self.mean(phi).clone(), BlockCovariance(tuple(blocks)), buffers)
