"""Families of independent normals: mean field, and standard deviations that are tied to few numbers."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.inference.card import Card, MethodFamily
from temperance.inference.variational.families.base import BoundFamily, Buffers, Family, Pull
from temperance.linalg.covariance import DiagonalCovariance
from temperance.model.theta import Entry, Layout
from temperance.posteriors import Gaussian, Posterior

_ENTROPY = 0.5 * math.log(2 * math.pi * math.e)


class BoundFactorised(BoundFamily):
    """θ = μ + σ ⊙ ε; a family says what σ is."""

    factorised = True

    @abstractmethod
    def log_scale(self, phi: Tensor) -> Tensor:
        """log σ, P numbers, differentiable."""

    def scale(self, phi: Tensor) -> Tensor:
        """σ."""
        return self.log_scale(phi).exp()

    def draw(self, phi: Tensor, noise: Tensor) -> Tensor:
        """μ + σ ⊙ ε."""
        return self.mean(phi) + self.scale(phi) * noise

    def variances(self, phi: Tensor) -> Tensor:
        """σ²."""
        return self.scale(phi).square()

    def entropy(self, phi: Tensor) -> Tensor:
        """Σ log σ + ½ P log 2πe."""
        return self.log_scale(phi).sum() + self.size * _ENTROPY

    def score(self, phi: Tensor, noise: Tensor) -> Tensor:
        """−ε / σ."""
        return -noise / self.scale(phi)

    def posterior(self, phi: Tensor, buffers: Buffers) -> Posterior:
        """A :class:`Gaussian` with a diagonal covariance."""
        return Gaussian(self.mean(phi).clone(), DiagonalCovariance(self.variances(phi).detach().clone()), buffers)

    def pull_back(self, phi: Tensor, noise: Tensor | None, pull: Pull, grad: Tensor) -> None:
        """∂/∂μ = Σ g + …, ∂/∂σ = Σ g ε + …: no graph through the draws is needed."""
        by_mean = torch.zeros_like(phi[: self.size]) if pull.mean is None else pull.mean.clone()
        by_scale = torch.zeros_like(by_mean) if pull.scale is None else pull.scale.clone()
        if pull.draws is not None:
            assert noise is not None
            by_mean += pull.draws.sum(0)
            by_scale += (pull.draws * noise).sum(0)
        with torch.enable_grad():
            leaf = phi.detach().requires_grad_()
            log_scale = self.log_scale(leaf)
            scale = log_scale.exp()
            total = (scale * by_scale + scale.square() * pull.variance).sum() - pull.entropy * log_scale.sum()
            (found,) = torch.autograd.grad(total, leaf)
        grad.copy_(found)
        grad[: self.size] += by_mean


@dataclass(frozen=True, eq=False)
class MeanField(Family):
    """Every weight an independent normal: θᵢ ~ N(μᵢ, σᵢ²), φ = (μ, log σ). Twice the numbers of the network.

    On a linear-Gaussian model its optimum has the posterior's mean and variances 1/Λᵢᵢ: those of each weight when all
    others are known, so correlated posteriors come out too narrow.

    >>> from temperance.model.theta import Layout
    >>> MeanField().bind(Layout.of(torch.nn.Linear(3, 2))).num_parameters
    16
    """

    card: ClassVar[Card] = Card(
        "independent normals",
        MethodFamily.VARIATIONAL,
        papers=(
            "Hinton & van Camp, Keeping the neural networks simple by minimizing the description length of the "
            "weights, COLT 1993",
        ),
        shown=("Variational(MeanField())",),
    )

    def bind(self, layout: Layout) -> BoundFamily:
        """See :class:`Family`."""
        return BoundMeanField(layout, {"log_scale": (layout.size,)}, layout.size)


class BoundMeanField(BoundFactorised):
    """φ = (μ, log σ)."""

    def start(self, theta: Tensor, scale: float, rng: torch.Generator) -> Tensor:
        """See :class:`BoundFamily`."""
        return torch.cat([theta, torch.full_like(theta, math.log(scale))])

    def log_scale(self, phi: Tensor) -> Tensor:
        """See :class:`BoundFactorised`."""
        return phi[self.size :]

    def draw_(self, phi: Tensor, noise: Tensor, theta: Tensor) -> None:
        """See :class:`BoundFamily`; for one draw without memory of its own."""
        if len(noise) > 1:
            return super().draw_(phi, noise, theta)
        row = theta[0]
        torch.exp(phi[self.size :], out=row)
        row.mul_(noise[0]).add_(phi[: self.size])
        return None

    def pull_back(self, phi: Tensor, noise: Tensor | None, pull: Pull, grad: Tensor) -> None:
        """By hand, in a few passes: ∂/∂log σ = σ (Σ g ε + 2 σ ∂/∂σ² + ∂/∂σ) − (weight of the entropy)."""
        by_mean, by_scale = grad[: self.size], grad[self.size :]
        scale = torch.exp(phi[self.size :])
        if pull.draws is None:
            by_mean.zero_()
            by_scale.zero_()
        elif len(pull.draws) == 1:
            assert noise is not None
            torch.mul(pull.draws[0], noise[0], out=by_scale)
            by_mean.copy_(pull.draws[0])
        else:
            assert noise is not None
            torch.sum(pull.draws, 0, out=by_mean)
            torch.sum(pull.draws * noise, 0, out=by_scale)
        if pull.mean is not None:
            by_mean.add_(pull.mean)
        if pull.scale is not None:
            by_scale.add_(pull.scale)
        if isinstance(pull.variance, Tensor):
            by_scale.addcmul_(scale, pull.variance, value=2.0)
        elif pull.variance:
            by_scale.add_(scale, alpha=2.0 * pull.variance)
        by_scale.mul_(scale).sub_(pull.entropy)


@dataclass(frozen=True, eq=False)
class TiedScale(Family):
    """The k-tied normal (Świątkowski et al., 2020): independent normals whose standard deviations are, for a weight
    matrix m × n (a convolution counts as outputs × all else), σ_ij = Σ_k u_ik v_jk with u, v > 0.

    ``rank`` k numbers for each row and column in place of one for each weight; a tensor for which that would be no
    saving (biases, scales of norms) has one for each number.

    >>> from temperance.model.theta import Layout
    >>> TiedScale(2).bind(Layout.of(torch.nn.Linear(30, 20, bias=False))).num_parameters
    700
    """

    card: ClassVar[Card] = Card(
        "independent normals, scales tied to `rank` numbers a row and column",
        MethodFamily.VARIATIONAL,
        papers=("Świątkowski et al., The k-tied normal distribution, ICML 2020",),
        cost="at most so many copies",
        shown=("Variational(TiedScale())",),
    )

    rank: int = 2

    def __post_init__(self) -> None:
        check_count(self.rank, "rank")

    def bind(self, layout: Layout) -> BoundFamily:
        """See :class:`Family`."""
        shapes: dict[str, tuple[int, ...]] = {}
        for entry in layout.entries:
            if self._saves(entry):
                rows, columns = matrix_shape(entry)
                shapes[f"{entry.name}/rows"] = (rows, self.rank)
                shapes[f"{entry.name}/columns"] = (columns, self.rank)
            else:
                shapes[f"{entry.name}/each"] = (entry.size,)
        return BoundTied(layout, shapes, layout.size)

    def _saves(self, entry: Entry) -> bool:
        return len(entry.shape) >= 2 and self.rank * sum(matrix_shape(entry)) < entry.size


class BoundTied(BoundFactorised):
    """φ = (μ, logs of u, v and of what is not tied)."""

    def start(self, theta: Tensor, scale: float, rng: torch.Generator) -> Tensor:
        """All σ about ``scale``; the k terms begin a little apart."""
        phi = torch.zeros(self.num_parameters, dtype=theta.dtype, device=theta.device)
        phi[: self.size] = theta
        for name, part in self.parts(phi).items():
            if name.endswith("/each"):
                part.fill_(math.log(scale))
                continue
            level = 0.5 * math.log(scale / part.shape[1])
            noise = torch.randn(part.shape, generator=rng, dtype=theta.dtype, device=rng.device)
            part.copy_(level + 0.01 * noise.to(theta.device))
        return phi

    def log_scale(self, phi: Tensor) -> Tensor:
        """See :class:`BoundFactorised`."""
        parts = self.parts(phi)
        found = []
        for entry in self.layout.entries:
            each = parts.get(f"{entry.name}/each")
            if each is None:
                rows, columns = parts[f"{entry.name}/rows"], parts[f"{entry.name}/columns"]
                each = (rows.exp() @ columns.exp().T).log().reshape(-1)
            found.append(each)
        return torch.cat(found)


def matrix_shape(entry: Entry) -> tuple[int, int]:
    """A tensor as a matrix: its first dimension, and all others."""
    return entry.shape[0], entry.size // entry.shape[0]
