"""Which parameters are random: named layers, or single weights picked out of all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.engine.engine import Engine
from temperance.inference.card import Card, MethodFamily
from temperance.model.theta import Subset


@dataclass(frozen=True, eq=False)
class Subnetwork(Value, ABC):
    """A rule that picks ``size`` single weights of the network; the others stay at the mode."""

    size: int

    def __post_init__(self) -> None:
        check_count(self.size, "size")

    needs_variance = False

    @abstractmethod
    def score(self, theta: Tensor, variance: Tensor | None) -> Tensor:
        """A number for each weight; the largest are picked."""

    def index(self, engine: Engine, theta: Tensor, variance: Tensor | None) -> Tensor:
        """The places in θ, in order."""
        total = engine.layout.network_size
        if self.size > total:
            raise ArgumentError(f"`size` must be at most the network's {total} parameters; got {self.size}.")
        network = theta[:total]
        scores = self.score(network, None if variance is None else variance[:total])
        return scores.topk(self.size).indices.sort().values


@dataclass(frozen=True, eq=False)
class LargestVariance(Subnetwork):
    """The weights that the data leave most open: largest marginal variance under a diagonal Laplace approximation
    (Daxberger et al. 2021). It takes one more pass over the data.

    >>> LargestVariance(1000).size
    1000
    """

    card: ClassVar[Card] = Card(
        "a subnetwork: the weights that the data leave most open",
        MethodFamily.CURVATURE,
        papers=("Daxberger et al., Bayesian deep learning via subnetwork inference, ICML 2021",),
    )

    needs_variance = True

    def score(self, theta: Tensor, variance: Tensor | None) -> Tensor:
        """The variance."""
        assert variance is not None
        return variance


@dataclass(frozen=True, eq=False)
class LargestMagnitude(Subnetwork):
    """The weights of largest absolute value.

    >>> LargestMagnitude(1000).size
    1000
    """

    card: ClassVar[Card] = Card("a subnetwork: the weights of largest absolute value", MethodFamily.CURVATURE)

    def score(self, theta: Tensor, variance: Tensor | None) -> Tensor:
        """|θ|."""
        return theta.abs()


def chosen_names(engine: Engine, on: Subset | Subnetwork) -> list[str] | None:
    """The parameters that ``on`` names, among those that are random in ``target``; ``None`` for all."""
    if on is None or isinstance(on, Subnetwork):
        return None
    return engine.target.names(on, "on")


def prior_mean_of(value: float | Tensor, size: int, like: Tensor) -> Tensor:
    """A prior's mean as a vector."""
    return torch.as_tensor(value, dtype=like.dtype, device=like.device).expand(size)
