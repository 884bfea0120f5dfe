"""Kernels k(x, y) by which particles feel one another.

A kernel sees n particles only through the Gram matrix of their deviations from the mean, G_ij = (x_i − x̄)ᵀ(x_j − x̄), so
its cost does not depend on how long a particle is. It answers with two matrices n × n, an :class:`Interaction`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_positive, real, shown
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.inference.card import Card, MethodFamily


@dataclass(frozen=True)
class Interaction:
    """A kernel at n particles: ``values`` K_ij = k(x_i, x_j), and ``push`` A with

    Σ_j ∇_{x_j} k(x_j, x_i) = Σ_j A_ij (x_j − x̄).
    """

    values: Tensor
    push: Tensor


class ParticleKernel(Value, ABC):
    """A positive definite function of two particles. k(x, x) = 1 for a particle alone, so that it moves as ``MAP``."""

    repels: ClassVar[bool] = True
    """Whether ∇_x Σ_j k(x, x_j) drives particles apart, which a :class:`~temperance.RepulsiveEnsemble` needs."""

    @abstractmethod
    def interact(self, gram: Tensor) -> Interaction:
        """The interaction of particles whose deviations from their mean have this Gram matrix."""


class RadialKernel(ParticleKernel):
    """Base of kernels k = κ(‖x − y‖² / h). ``bandwidth`` is h, in squared units of the particles; ``None`` takes
    h = med² / log n in every step, with med the median distance between two particles, so that Σ_j k(x_i, x_j) ≈ 2 for
    a particle at the median distance from the others. In ∇k this h counts as a constant."""

    bandwidth: float | None

    def __post_init__(self) -> None:
        if self.bandwidth is not None:
            check_positive(self.bandwidth, "bandwidth")

    @abstractmethod
    def profile(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """κ(u) and κ'(u)."""

    def interact(self, gram: Tensor) -> Interaction:
        """See :class:`ParticleKernel`: ∇_{x_j} k(x_j, x_i) = (2/h) κ'_ij (x_j − x_i)."""
        squares = squared_distances(gram)
        h = median_bandwidth(squares) if self.bandwidth is None else self.bandwidth
        values, slopes = self.profile(squares / h)
        slopes = slopes * (2.0 / h)
        return Interaction(values, slopes - torch.diag(slopes.sum(1)))


@dataclass(frozen=True, eq=False)
class RBF(RadialKernel):
    """k(x, y) = exp(−‖x − y‖² / h), with h as in :class:`RadialKernel`.

    >>> RBF(bandwidth=2.0).interact(torch.tensor([[1.0, -1.0], [-1.0, 1.0]])).values[0, 1]  # ‖x − y‖² = 4
    tensor(0.1353)
    """

    card: ClassVar[Card] = Card(
        "a Gaussian kernel, as wide as the particles are apart",
        MethodFamily.PARTICLES,
        papers=("Liu & Wang, Stein variational gradient descent, NeurIPS 2016",),
        shown=("SVGD(16, RBF())",),
    )

    bandwidth: float | None = None

    def profile(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`RadialKernel`."""
        values = torch.exp(-u)
        return values, -values


@dataclass(frozen=True, eq=False)
class IMQ(RadialKernel):
    """The inverse multiquadric, whose tails fall slower than those of :class:`RBF`:

        k(x, y) = (c² + ‖x − y‖² / h)^β / c^{2β},      β < 0,

    with h as in :class:`RadialKernel`.

    >>> IMQ(bandwidth=4.0).interact(torch.tensor([[1.0, -1.0], [-1.0, 1.0]])).values[0, 1]  # (1 + 4/4)^(−1/2)
    tensor(0.7071)
    """

    card: ClassVar[Card] = Card(
        "the inverse multiquadric, whose tails fall slower",
        MethodFamily.PARTICLES,
        papers=("Gorham & Mackey, Measuring sample quality with kernels, ICML 2017",),
        shown=("SVGD(16, IMQ())",),
    )

    c: float = 1.0
    beta: float = -0.5
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.c, "c")
        good = -math.inf < real(self.beta) < 0
        if not good:
            raise ArgumentError(f"`beta` must be a negative number; got {shown(self.beta)}.")

    def profile(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`RadialKernel`."""
        base = 1.0 + u / self.c**2
        values = base.pow(self.beta)
        return values, self.beta / self.c**2 * values / base


@dataclass(frozen=True, eq=False)
class LinearKernel(ParticleKernel):
    """k(x, y) = 1 + (x − x̄)ᵀ(y − x̄), with x̄ the mean of the particles, which counts as a constant in ∇k.

    With it SVGD has the mean and the covariance of a Gaussian N(μ, Λ⁻¹) exactly, for more than d particles: the
    direction is affine,

        φ(y) = s̄ + (I + (1/n) Σ_j s_j (x_j − x̄)ᵀ)(y − x̄),      s_j = −Λ(x_j − μ),

    and Σ_i φ(x_i) = n s̄ = 0 gives x̄ = μ; what is left, (I − ΛC)(x_i − x̄) = 0 with
    C = (1/n) Σ_j (x_j − x̄)(x_j − x̄)ᵀ, gives C = Λ⁻¹ as soon as the deviations span all directions. C has the divisor n:
    it is the covariance of the equally weighted particles. Any centre that counts as a constant has this fixed point;
    x̄ is the one for which a shift of the problem shifts the particles, mean and covariance converge apart from each
    other, and one particle is ``MAP``. Were x̄ differentiated as well, C would be (1 − 1/n) Λ⁻¹.

    It does not repel where the posterior is not Gaussian: two moments are all that it fits. Σ_j ∇_x k(x, x_j) is zero,
    so it is no kernel for :class:`~temperance.RepulsiveEnsemble`.

    >>> LinearKernel().interact(torch.tensor([[1.0, -1.0], [-1.0, 1.0]])).values
    tensor([[2., 0.],
            [0., 2.]])
    """

    card: ClassVar[Card] = Card(
        "fits two moments and no more",
        MethodFamily.PARTICLES,
        papers=("Liu & Wang, Stein variational gradient descent as moment matching, NeurIPS 2018",),
        exact="mean and covariance of a Gaussian",
        shown=("SVGD(16, LinearKernel())",),
    )

    repels: ClassVar[bool] = False

    def interact(self, gram: Tensor) -> Interaction:
        """See :class:`ParticleKernel`: ∇_{x_j} k(x_j, x_i) = x_i − x̄."""
        n = len(gram)
        return Interaction(1.0 + gram, n * torch.eye(n, dtype=gram.dtype, device=gram.device))


def squared_distances(gram: Tensor) -> Tensor:
    """‖x_i − x_j‖² from the Gram matrix."""
    sizes = gram.diagonal()
    squares = (sizes.unsqueeze(0) + sizes.unsqueeze(1) - 2 * gram).clamp(min=0.0)
    return squares.fill_diagonal_(0.0)


def median_bandwidth(squares: Tensor) -> Tensor | float:
    """med² / log n over pairs of particles; the mean square in place of med² where half of the pairs coincide, and 1
    where all do."""
    n = len(squares)
    if n == 1:
        return 1.0
    pairs = squares[torch.ones_like(squares, dtype=torch.bool).triu(1)]
    middle = pairs.median()
    middle = torch.where(middle > 0, middle, pairs.mean())
    return torch.where(middle > 0, middle / math.log(n), torch.ones_like(middle))
