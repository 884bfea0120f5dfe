"""Scales of a prior that are learned with the weights: a hyper-prior over them, and both in θ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from temperance.core.checks import check_choice, check_instance
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.model.learned import LearnedParameter
from temperance.model.priors.base import Density, FixedScale, check_scale
from temperance.model.priors.hyper import HyperPrior, LogNormal
from temperance.model.theta import Entry

LOG_SCALES = "prior.log_scale"
"""The name of the learned numbers in θ."""
Each = Literal["network", "layer", "tensor"]


@dataclass(frozen=True, eq=False)
class Learned(Value):
    """A scale that the data choose: with one number u_g for each group g of weights,

        u_g ~ ``hyper``,     θᵢ | u ~ p(θᵢ; mean, e^{u_g} · ``scale``ᵢ).

    The u are in θ beside the weights and are drawn, or averaged over, with them; ``hyper`` is the law of the factor e^u
    on ``scale`` (a number, one for each layer, or ``FanIn``). Where data say little about a group, weights and scale
    make a funnel, which samplers walk badly: :class:`~temperance.NonCentred` is the same model in coordinates without.

    Draws need no more than a gradient. The *mode* of weights and scales together is another matter: it lies where the
    scales vanish and the weights with them, so methods that look for a point refuse such a prior.

    Args:
        scale: what the factors multiply; under ``LogNormal()`` the median of the scales.
        hyper: ``LogNormal(spread)``, ``HalfCauchy(scale)`` or ``InverseGamma(shape, rate)``.
        each: what has a scale of its own: the whole network, each layer (module), or each tensor.

    >>> import temperance as tp
    >>> prior = tp.GaussianPrior(scale=tp.Learned(tp.FanIn(), each="layer"))
    >>> tp.Target(tp.nn.MLP(4, [8], 3), tp.Categorical(), prior).layout.entries[-1].shape
    (2,)
    """

    scale: FixedScale = 1.0
    hyper: HyperPrior = field(default_factory=LogNormal)
    each: Each = "layer"

    def __post_init__(self) -> None:
        if isinstance(self.scale, Learned):
            raise ArgumentError("`scale` must be a scale that is given; got another Learned. Write Learned(1.0).")
        check_scale(self.scale)
        check_instance(self.hyper, "hyper", HyperPrior, "a hyper-prior such as LogNormal(1.0)")
        check_choice(self.each, "each", get_args(Each))

    def groups(self, entries: Sequence[Entry]) -> list[int]:
        """The number of the group that each tensor belongs to."""
        return groups_of([e.name for e in entries], self.each)

    def parameters(self, entries: Sequence[Entry]) -> tuple[LearnedParameter, ...]:
        """The u, as a part of θ."""
        middle, above = self.hyper.of_normal(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
        size = max(self.groups(entries)) + 1
        return (LearnedParameter(LOG_SCALES, (size,), middle, middle, above - middle),)


def groups_of(names: Sequence[str], each: Each) -> list[int]:
    """The number of the group that each tensor belongs to.

    >>> groups_of(["0.weight", "0.bias", "2.weight"], "layer")
    [0, 0, 1]
    """
    keys = ["" if each == "network" else name if each == "tensor" else _module_of(name) for name in names]
    known = {key: k for k, key in enumerate(dict.fromkeys(keys))}
    return [known[key] for key in keys]


def _module_of(name: str) -> str:
    """The module that a parameter belongs to, also where its weight is parametrised."""
    plain, found, _ = name.partition(".parametrizations.")
    return plain if found else name.rpartition(".")[0]


class ScaledDensity(Density):
    """Weights and the logarithms of their scales together: n weights, then G numbers u.

        log p(w, u) = Σᵢ [log f(wᵢ′) − u_g(i)] + Σ_g log h(u_g),     wᵢ′ = mᵢ + (wᵢ − mᵢ) e^{−u_g(i)},

    f the density of the weights where all u are zero, h that of the hyper-prior.
    """

    def __init__(self, weights: Density, mean: float | Tensor, group: Tensor, size: int, hyper: HyperPrior) -> None:
        self.weights, self.mean, self.group, self.size, self.hyper = weights, mean, group, size, hyper

    def _standard(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """w′, e^{−u} of each weight, and u."""
        n = len(self.group)
        u = theta[..., n:]
        shrink = torch.exp(-u[..., self.group])
        return self.mean + (theta[..., :n] - self.mean) * shrink, shrink, u

    def log_density(self, theta: Tensor) -> Tensor:
        """Of each weight given its scale, then of each u."""
        w, _, u = self._standard(theta)
        return torch.cat([self.weights.log_density(w) - u[..., self.group], self.hyper.log_density(u)], dim=-1)

    def score(self, theta: Tensor) -> Tensor:
        """The gradient of the sum: each u is pulled by all of its weights."""
        w, shrink, u = self._standard(theta)
        slope = self.weights.score(w)
        pull = -(slope * (w - self.mean)) - 1.0
        by_group = torch.zeros_like(u).index_add_(-1, self.group, pull)
        return torch.cat([slope * shrink, by_group + self.hyper.score(u)], dim=-1)

    def curvature(self, theta: Tensor) -> Tensor:
        """Not elementwise: weights and scales bend together."""
        raise ArgumentError("weights and their learned scales have a curvature together, not one by one.")

    def sample(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """u, then weights of these scales."""
        n = len(self.group)
        standard = self.weights.sample((*shape[:-1], n), rng)
        u = self.hyper.sample((*shape[:-1], self.size), rng).to(standard)
        return torch.cat([self.mean + (standard - self.mean) * torch.exp(u[..., self.group]), u], dim=-1)

    def scales_given_weights(self, theta: Tensor, temperature: float) -> tuple[Tensor, Tensor] | None:
        """Of n Gaussian weights with S = Σ ((w − m) / scale)², p(w | u) h(u) ∝ s^{−n/2 − a} e^{−(S/2 + b)/s} in u, with
        s = e^{2u}. To the power 1/T, and with du = ds / 2s, s is inverse gamma: shape (n/2 + a)/T, rate (S/2 + b)/T."""
        own, gaussian = self.hyper.inverse_gamma, self.weights.gaussian
        if own is None or gaussian is None:
            return None
        mean, scale = gaussian
        squares = ((theta[..., : len(self.group)] - mean) / scale).double().square()
        zeros = torch.zeros((*theta.shape[:-1], self.size), dtype=torch.float64, device=theta.device)
        count = torch.bincount(self.group, minlength=self.size).double()
        half = 0.5 * zeros.index_add(-1, self.group, squares)
        shape = (0.5 * count + own[0]).expand(half.shape)
        return shape / temperature, (half + own[1]) / temperature

    def to(self, device: torch.device, dtype: torch.dtype) -> ScaledDensity:
        """See :class:`Density`."""
        mean = self.mean.to(device=device, dtype=dtype) if isinstance(self.mean, Tensor) else self.mean
        return ScaledDensity(self.weights.to(device, dtype), mean, self.group.to(device), self.size, self.hyper)

    def part(self, places: Tensor, size: int) -> ScaledDensity:
        """Some of the weights, with all u, which must be among ``places``."""
        n = len(self.group)
        kept = places[places < n].to(self.group.device)
        if len(places) - len(kept) != self.size:
            raise ArgumentError("`places` must keep the learned scales of the prior with its weights.")
        mean = self.mean[kept] if isinstance(self.mean, Tensor) and self.mean.numel() == n > 1 else self.mean
        return ScaledDensity(self.weights.part(kept, n), mean, self.group[kept], self.size, self.hyper)
