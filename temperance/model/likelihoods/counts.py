"""What likelihoods of counts share: whole numbers from 0 on, one or several a row."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from temperance.core.errors import DataError
from temperance.core.outcomes import Counts, Outcome
from temperance.model.likelihoods.base import (
    LearnedValues,
    QuantityLikelihood,
    check_real_targets,
    diagonal,
    diagonal_columns,
)

_EACH = 1024  # counts up to here are summed one by one
_NODES = 6  # of Gauss–Legendre in a piece beyond
_NARROWEST = 1e-3
_AT_ONCE = 32


class CountLikelihood(QuantityLikelihood):
    """y_d = 0, 1, 2, …, independent over d given the outputs."""

    outcome: ClassVar[Outcome] = Counts()

    @abstractmethod
    def log_mass(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """log P(Y_d = y_d | outputs), ... × B × D. It is smooth in y, so that sums over many counts may skip some."""

    @abstractmethod
    def reach(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Counts that are exceeded with a probability below 10⁻¹², ... × B × D in float64."""

    @abstractmethod
    def nearly_normal(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Where a Gaussian of the same mean and variance will do, ... × B × D."""

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`Likelihood`."""
        name = type(self).__name__
        made = check_real_targets(y, num_outputs // self.outputs_for(1), dtype, name)
        if bool((made < 0).any()) or bool((made != made.round()).any()):
            raise DataError(
                f"`y` must hold whole numbers from 0 on for {name}; got values from {float(made.min())} to "
                f"{float(made.max())}."
            )
        return made

    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """Σ_d log P(Y_d = y_d)."""
        return self.log_mass(outputs, y, learned).sum(-1)

    def entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Σ_d of :meth:`each_entropy`."""
        return self.each_entropy(outputs, learned).sum(-1)

    @abstractmethod
    def each_entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Entropy of each count in nats, ... × B × D."""


class LogMeanCounts(CountLikelihood):
    """Counts of mean exp f, one output for each. Subclasses give derivatives of log p in f, count by count."""

    @abstractmethod
    def slope(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """∂ log p / ∂f, ... × B × D."""

    @abstractmethod
    def curvature(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """−∂² log p / ∂f², ... × B × D."""

    @abstractmethod
    def information(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """The expected curvature, ... × B × D."""

    def learned_slope(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """∂ log p / ∂ψ of the one number ψ that is learned for a count, ... × B × D in float64."""
        raise NotImplementedError(f"{type(self).__name__} learns nothing")

    def learned_information(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """The expected square of :meth:`learned_slope`, by summation."""
        wide = {name: value.double() for name, value in learned.items()}

        def square(y: Tensor, log_p: Tensor) -> Tensor:
            return log_p.exp() * self.learned_slope(outputs.double(), y, wide).square()

        return expectation(self, outputs.double(), wide, square)

    def by_learned(self, each: Tensor) -> Tensor:
        """The sum of B × D over the counts that have each learned number, as a diagonal matrix."""
        raise NotImplementedError(f"{type(self).__name__} learns nothing")

    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """exp f."""
        return outputs.exp()

    def score(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """Count by count."""
        return self.slope(outputs, y, learned)

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """A diagonal."""
        return diagonal(self.curvature(outputs, y, learned))

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """A diagonal."""
        return diagonal(self.information(outputs, learned))

    def fisher_columns(self, outputs: Tensor, learned: LearnedValues) -> Iterator[Tensor]:
        """Of a diagonal."""
        return diagonal_columns(self.information(outputs, learned))

    def fisher_product(self, outputs: Tensor, learned: LearnedValues, v: Tensor) -> Tensor:
        """Of a diagonal."""
        return self.information(outputs, learned) * v


def normal_entropy(variance: Tensor) -> Tensor:
    """½ log(2πe · variance)."""
    return 0.5 * torch.log(2 * math.pi * math.e * variance)


def places(top: float, narrow: float) -> tuple[Tensor, Tensor]:
    """Counts k and weights w with Σ w g(k) = Σ_{k ≤ top} g(k): every one up to 1024, and beyond, for a smooth g, nodes
    of Gauss–Legendre in pieces that are ``narrow`` times as long as they are far from 0 (the sum over k = a, …, b is
    the integral from a − ½ to b + ½, up to g'' / 24)."""
    k = np.arange(min(top, _EACH) + 1.0)
    w = np.ones_like(k)
    if top > _EACH:
        ratio = 1 + min(max(narrow, _NARROWEST), 0.5)
        edges = np.geomspace(k[-1] + 0.5, top, 2 + int(math.log(top / k[-1]) / math.log(ratio)))
        node, weight = np.polynomial.legendre.leggauss(_NODES)
        half = np.diff(edges)[:, None] / 2
        k = np.concatenate([k, (edges[:-1, None] + half * (1 + node)).ravel()])
        w = np.concatenate([w, (half * weight).ravel()])
    return torch.from_numpy(k), torch.from_numpy(w)


def sums(
    law: CountLikelihood, outputs: Tensor, learned: LearnedValues, one_by_one: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Some counts at a time: the counts and their weights, n × 1 × … × 1, and log P of them, n × ... × B × D, all in
    float64. ``one_by_one`` says at which counts (... × B × D) this is to hold; everywhere unless told."""
    reach = law.reach(outputs, learned)
    spread = law.variance(outputs, learned).double().sqrt() / law.mean(outputs, learned).double().clamp(min=1e-30)
    if one_by_one is not None:
        reach, spread = reach * one_by_one, torch.where(one_by_one, spread, torch.ones_like(spread))
    spread = torch.where(reach > _EACH, spread, torch.ones_like(spread))
    k, w = places(float(reach.detach().max()), float(spread.detach().min()))
    shape = (-1, *(1 for _ in reach.shape))
    for some, often in zip(k.to(outputs.device).split(_AT_ONCE), w.to(outputs.device).split(_AT_ONCE), strict=True):
        y = some.view(shape)
        yield y, often.view(shape), law.log_mass(outputs, y, learned)


def expectation(
    law: CountLikelihood,
    outputs: Tensor,
    learned: LearnedValues,
    function: Callable[[Tensor, Tensor], Tensor],
    one_by_one: Tensor | None = None,
) -> Tensor:
    """Σ_k function(k, log P(k)), ... × B × D."""
    total = torch.zeros((), dtype=torch.float64, device=outputs.device)
    for y, often, log_p in sums(law, outputs, learned, one_by_one):
        total = total + (often * function(y, log_p)).sum(0)
    return total
