"""What a prior is: a value that, bound to a layout, becomes a density over θ."""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from temperance.core.checks import check_positive, check_real_tensor, shown
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.model.learned import LearnedParameter
from temperance.model.theta import Entry, Layout, matches


@dataclass(frozen=True, eq=False)
class FanIn(Value):
    """Scales that keep signals of one size: ``gain / √fan_in`` for weights, ``bias`` for all other parameters.

    ``gain=2**0.5`` is He's choice for ReLU networks; with a scale of 1 for every weight instead, the variance of
    pre-activations grows by fan_in / 2 a layer and a deep network's prior puts all inputs into one class.
    """

    gain: float = 1.0
    bias: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.gain, "gain")
        check_positive(self.bias, "bias")


FixedScale = float | Tensor | Mapping[str, float] | FanIn
"""A standard-deviation-like scale: one number, one per layer (by name, prefix or pattern), one per parameter
(a tensor of P numbers), or by fan-in."""


class Prior(Value, ABC):
    """A density over the weights of a network, before data."""

    def learned_parameters(self, entries: Sequence[Entry]) -> tuple[LearnedParameter, ...]:
        """What is learned beside the network's ``entries`` (scales with a hyper-prior); none by default. It follows
        them in θ, and :meth:`densities` speaks for it too."""
        return ()

    @property
    def learns(self) -> bool:
        """Whether there is any such thing."""
        return False

    @abstractmethod
    def densities(self, layout: Layout, entries: Sequence[Entry]) -> list[tuple[slice, Density]]:
        """Elementwise densities over contiguous pieces of θ that together cover ``entries``."""

    def bind(self, layout: Layout, device: torch.device | str = "cpu") -> BoundPrior:
        """The density over the θ of one layout."""
        pieces = self.densities(layout, layout.network_entries)
        return BoundPrior([(piece, density.to(torch.device(device), layout.dtype)) for piece, density in pieces])


class Density(ABC):
    """A density of independent numbers: elementwise log density, its derivatives, and draws.

    What else is known of it, it says itself (``gaussian``, ``moments``, ``bends``), so that no one asks who it is.
    """

    @abstractmethod
    def log_density(self, theta: Tensor) -> Tensor:
        """log p(θᵢ), elementwise over the last dimension."""

    @abstractmethod
    def score(self, theta: Tensor) -> Tensor:
        """d log p(θᵢ) / dθᵢ, elementwise."""

    @abstractmethod
    def sample(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """Independent draws of the given shape."""

    @abstractmethod
    def to(self, device: torch.device, dtype: torch.dtype) -> Density:
        """The same density on a device, in a dtype."""

    @property
    def gaussian(self) -> tuple[float | Tensor, float | Tensor] | None:
        """Mean and scale, where it is a Gaussian of independent numbers and nothing else."""
        return None

    def moments(self) -> tuple[float | Tensor, float | Tensor] | None:
        """Mean and variance of each number, where they are known; the variance may be infinite."""
        return None

    bends: ClassVar[bool] = True
    """Whether log p is curved anywhere. Where it is not (Laplace's density: straight lines with a kink), no curvature
    stands for it."""

    def curvature(self, theta: Tensor) -> Tensor:
        """−d² log p(θᵢ) / dθᵢ², elementwise."""
        with torch.enable_grad():
            leaf = theta.detach().clone().requires_grad_()
            (slope,) = torch.autograd.grad(self.score(leaf).sum(), leaf)
        return -slope

    averages_over: ClassVar[Literal["nothing", "normals", "anything"]] = "nothing"
    """For which laws of θᵢ the average of log p(θᵢ) is known from mean and variance: see :meth:`average`."""

    def average(self, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(θᵢ), elementwise, for θᵢ ~ N(mean, variance)."""
        raise NotImplementedError(f"{type(self).__name__} has no closed form for this average.")

    def average_scores(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor | float]:
        """The derivatives of :meth:`average` in the mean and in the variance."""
        raise NotImplementedError(f"{type(self).__name__} has no closed form for this average.")

    def part(self, places: Tensor, size: int) -> Density:
        """The density of some of its ``size`` numbers; itself where all are alike."""
        return self

    def scales_given_weights(self, theta: Tensor, temperature: float) -> tuple[Tensor, Tensor] | None:
        """For each learned scale e^u, shape and rate of the inverse gamma law that e^{2u} has given the weights in
        ``theta`` (... × its numbers), where it has one; ``None`` where there is none or no scale is learned."""
        return None

    def add_score(self, theta: Tensor, grad: Tensor, factor: float) -> None:
        """``grad += factor · score(θ)``, in place."""
        grad.add_(self.score(theta), alpha=factor)


@dataclass(frozen=True, eq=False)
class RestrictedPrior(Prior):
    """The prior of a larger θ, seen from a part of it."""

    pieces: tuple[tuple[slice, Density], ...] = ()
    learned: tuple[LearnedParameter, ...] = ()

    @classmethod
    def of(
        cls, bound: BoundPrior, layout: Layout, names: Sequence[str], learned: tuple[LearnedParameter, ...] = ()
    ) -> RestrictedPrior:
        """The marginal of ``bound``, over the parameters ``names`` of ``layout`` and what the prior has ``learned``."""
        kept = [e for e in layout.entries if e.name in names or e.role == "prior"]
        made: list[tuple[slice, Density]] = []
        at = 0
        for piece, density in bound.pieces:
            shared = [
                torch.arange(max(piece.start, e.start), min(piece.stop, e.stop))
                for e in kept
                if max(piece.start, e.start) < min(piece.stop, e.stop)
            ]
            if shared:
                places = torch.cat(shared) - piece.start
                made.append((slice(at, at + len(places)), density.part(places, piece.stop - piece.start)))
                at += len(places)
        return cls(tuple(made), learned)

    def __repr__(self) -> str:
        return (
            "RestrictedPrior(that of a part or a subspace; in a subspace, numbers are correlated unless its basis is "
            "orthogonal in the prior's units)"
        )

    def learned_parameters(self, entries: Sequence[Entry]) -> tuple[LearnedParameter, ...]:
        """See :class:`Prior`."""
        return self.learned

    @property
    def learns(self) -> bool:
        """See :class:`Prior`."""
        return bool(self.learned)

    def densities(self, layout: Layout, entries: Sequence[Entry]) -> list[tuple[slice, Density]]:
        """See :class:`Prior`."""
        return list(self.pieces)


class BoundPrior:
    """A prior over the θ of one layout: log density, gradient and draws of whole vectors."""

    def __init__(self, pieces: Sequence[tuple[slice, Density]]) -> None:
        self.pieces = list(pieces)
        self.size = self.pieces[-1][0].stop if self.pieces else 0

    def log_prob(self, theta: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """log p(θ) for θ of shape ... × P, summed in ``dtype`` (that of θ unless given)."""
        total = [density.log_density(theta[..., piece]).sum(-1, dtype=dtype) for piece, density in self.pieces]
        return torch.stack(total).sum(0)

    def add_gradient(self, theta: Tensor, grad: Tensor, factor: float = 1.0) -> None:
        """``grad += factor · ∇ log p(θ)``, in place: the hot path of training."""
        for piece, density in self.pieces:
            if len(self.pieces) == 1 and theta.shape[-1] == self.size:
                density.add_score(theta, grad, factor)
            else:
                density.add_score(theta[..., piece], grad[..., piece], factor)

    def sample(self, n: int, rng: torch.Generator) -> Tensor:
        """n draws, n × P."""
        return torch.cat([d.sample((n, piece.stop - piece.start), rng) for piece, d in self.pieces], dim=-1)


def check_scale(scale: object, argument: str = "scale") -> None:
    """Any scale whose every number is positive."""
    if isinstance(scale, FanIn):
        return
    if isinstance(scale, Mapping):
        if not scale or not all(isinstance(name, str) for name in scale):
            raise ArgumentError(f'`{argument}` must map names of parameters, or "*", to numbers; got {shown(scale)}.')
        for name, entry in scale.items():
            check_positive(entry, f"{argument}[{name!r}]")
    elif isinstance(scale, Tensor):
        check_real_tensor(scale, argument)
        if not scale.numel() or not bool((scale > 0).all()):
            got = f"min {float(scale.min())}" if scale.numel() else "none"
            raise ArgumentError(f"`{argument}` must be positive and finite everywhere; got {got}.")
    else:
        check_positive(scale, argument)


def resolve_scale(
    scale: FixedScale, layout: Layout, entries: Sequence[Entry], argument: str = "scale"
) -> float | Tensor:
    """``scale`` as one number or as one number per element of ``entries``."""
    if isinstance(scale, float | numbers.Real):
        return float(scale)
    total = sum(e.size for e in entries)
    if isinstance(scale, Tensor):
        if scale.numel() == 1:
            return float(scale)
        if scale.shape[-1:] != (total,):
            raise ArgumentError(
                f"`{argument}` as a tensor must hold one number for each of the {total} parameters; "
                f"got shape {tuple(scale.shape)}."
            )
        return scale
    if isinstance(scale, Mapping):
        unused = [pattern for pattern in scale if not any(matches(e.name, pattern) for e in layout.network_entries)]
        if unused:
            raise ArgumentError(f"`{argument}` must name parameters of the network; nothing matches {unused}.")
    parts = []
    for entry in entries:
        if isinstance(scale, FanIn):
            value = scale.gain / entry.fan_in**0.5 if entry.fan_in else scale.bias
        else:
            found = [v for pattern, v in scale.items() if matches(entry.name, pattern)]
            if not found:
                raise ArgumentError(
                    f"`{argument}` must have an entry for every parameter; none matches {entry.name!r}. "
                    f'Add one, or "*" for the rest. Given: {list(scale)}.'
                )
            value = float(found[0])
        parts.append(torch.full((entry.size,), value, dtype=torch.float64))
    return torch.cat(parts)


def span(entries: Sequence[Entry]) -> slice:
    """The contiguous piece of θ that ``entries`` occupy."""
    return slice(entries[0].start, entries[-1].stop)


def to_tensor(value: float | Tensor, device: torch.device, dtype: torch.dtype) -> float | Tensor:
    """Move tensors, leave numbers."""
    return value.to(device=device, dtype=dtype) if isinstance(value, Tensor) else value
