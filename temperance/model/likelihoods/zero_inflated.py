"""Counts with more zeros than their law has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from temperance.core.checks import shown
from temperance.core.errors import ArgumentError, NetworkError
from temperance.model.likelihoods.base import LearnedParameter, LearnedValues
from temperance.model.likelihoods.counts import CountLikelihood, LogMeanCounts


@dataclass(frozen=True, eq=False)
class ZeroInflated(CountLikelihood):
    """Counts of which some are zero for a reason of their own (nobody was there to be counted). With P(y | f) the law
    ``each``, ``Poisson()`` or ``NegativeBinomial()``, of mean exp f,

        p(0) = π + (1 − π) P(0 | f),        p(y) = (1 − π) P(y | f) for y > 0,        π = 1 / (1 + exp(−g)).

    The network gives 2D outputs for D counts: D values of f, then D logits g. The mean is (1 − π) μ, the variance
    (1 − π)(v + π μ²) with v that of ``each``. The Fisher information has f and g together, for a zero speaks of both;
    what a learned dispersion has in common with them is left aside by Laplace methods.

    >>> from temperance.model.likelihoods import Poisson
    >>> law = ZeroInflated(Poisson())
    >>> law.log_prob(torch.zeros(2, 2), torch.tensor([[0.0], [1.0]]), {}).exp()  # (1 + 1/e) / 2, and 1 / 2e
    tensor([0.6839, 0.1839])
    """

    in_torch: ClassVar[bool] = False  # what is exported knows quantiles of one output for each count

    each: LogMeanCounts

    def __post_init__(self) -> None:
        if not isinstance(self.each, LogMeanCounts):
            raise ArgumentError(
                f"`each` must be a likelihood of counts, Poisson() or NegativeBinomial(); got {shown(self.each)}."
            )

    def learned_parameters(self) -> tuple[LearnedParameter, ...]:
        """Those of ``each``."""
        return self.each.learned_parameters()

    def outputs_for(self, targets: int) -> int:
        """A log mean and a logit for each."""
        return 2 * targets

    def check_outputs(self, outputs: Tensor) -> None:
        """See :class:`Likelihood`."""
        super().check_outputs(outputs)
        if outputs.shape[-1] % 2:
            raise NetworkError(
                "the network must have an even number of outputs for ZeroInflated, log means then logits of a zero; "
                f"got {outputs.shape[-1]}."
            )

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`Likelihood`."""
        return self.each.prepare(super().prepare(y, num_outputs, dtype), num_outputs // 2, dtype)

    def begin(self, y: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """As ``each``."""
        return self.each.begin(y, weights)

    def log_mass(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """log(π + (1 − π) P(0)) at zero, log(1 − π) + log P(y) elsewhere."""
        f, g = outputs.chunk(2, -1)
        counted = F.logsigmoid(-g) + self.each.log_mass(f, y, learned)
        return torch.where(y == 0, torch.logaddexp(F.logsigmoid(g).expand_as(counted), counted), counted)

    def _zero(self, outputs: Tensor, learned: LearnedValues) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """f, π, P(0 | f), the slope of its logarithm in f, and p(0)."""
        f, g = outputs.chunk(2, -1)
        none = torch.zeros_like(f)
        share, empty = g.sigmoid(), self.each.log_mass(f, none, learned).exp()
        return f, share, empty, self.each.slope(f, none, learned), share + (1 - share) * empty

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """That of ``each`` and π (1 − π) where y > 0; at zero, with A = p(0), A' A'ᵀ / A² − A'' / A. The four blocks
        are diagonal."""
        f, share, empty, slope, zero = self._zero(outputs, learned)
        bend = slope.square() - self.each.curvature(f, torch.zeros_like(f), learned)
        spread, gone = share * (1 - share), (1 - share) * empty / zero
        by_f, by_g = gone * slope, spread * (1 - empty) / zero
        blocks = (
            by_f.square() - gone * bend,
            by_f * by_g + spread * empty * slope / zero,
            by_g.square() - (1 - 2 * share) * by_g,
        )
        counted = (self.each.curvature(f, y, learned), torch.zeros_like(f), spread)
        return _assembled(*(torch.where(y == 0, a, b) for a, b in zip(blocks, counted, strict=True)))

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """E of the squared slopes, where y > 0 and at zero."""
        f, share, empty, slope, zero = self._zero(outputs, learned)
        by_f, by_g = (1 - share) * empty * slope, share * (1 - share) * (1 - empty)
        counts = (1 - share) * (self.each.information(f, learned) - empty * slope.square())
        return _assembled(
            counts.clamp(min=0.0) + by_f.square() / zero,
            share * by_f + by_f * by_g / zero,
            share * by_g + by_g.square() / zero,
        )

    def learned_fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """That of a learned dispersion: with probability 1 − π a count, and at zero what is left of it."""
        wide, own = outputs.double(), {name: value.double() for name, value in learned.items()}
        f, share, empty, _, zero = self._zero(wide, own)
        slope = self.each.learned_slope(f, torch.zeros_like(f), own)
        counts = (1 - share) * (self.each.learned_information(f, own) - empty * slope.square())
        made = counts + ((1 - share) * empty * slope).square() / zero
        return self.each.by_learned(made).to(outputs.dtype)

    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """(1 − π) μ."""
        f, g = outputs.chunk(2, -1)
        return (-g).sigmoid() * self.each.mean(f, learned)

    def variance(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """(1 − π)(v + π μ²)."""
        f, g = outputs.chunk(2, -1)
        square = self.each.mean(f, learned).square()
        return (-g).sigmoid() * (self.each.variance(f, learned) + g.sigmoid() * square)

    def cdf(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """π + (1 − π) P(Y ≤ y), 0 below zero."""
        f, g = outputs.chunk(2, -1)
        found = g.sigmoid() + (-g).sigmoid() * self.each.cdf(f, y, learned)
        return torch.where(y < 0, torch.zeros_like(found), found)

    def reach(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """That of ``each``."""
        return self.each.reach(outputs.chunk(2, -1)[0], learned)

    def nearly_normal(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Nowhere: there are zeros."""
        return torch.zeros_like(outputs.chunk(2, -1)[0], dtype=torch.bool)

    def exponential_moments(self) -> bool:
        """As ``each``."""
        return self.each.exponential_moments()

    def log_exponential_moment(self, outputs: Tensor, learned: LearnedValues, t: float) -> Tensor | None:
        """log(π + (1 − π) E exp(t y))."""
        f, g = outputs.double().chunk(2, -1)
        counted = self.each.log_exponential_moment(f, learned, t)
        return None if counted is None else torch.logaddexp(F.logsigmoid(g), F.logsigmoid(-g) + counted)

    def each_entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """−p(0) log p(0), and of all others (1 − π)(H + P(0) log P(0)) − (1 − p(0)) log(1 − π), H that of ``each``."""
        f, share, empty, _, zero = self._zero(outputs, learned)
        log_counted = F.logsigmoid(-outputs.chunk(2, -1)[1])
        rest = self.each.each_entropy(f, learned) + torch.special.xlogy(empty, empty)
        return (1 - share) * (rest - (1 - empty) * log_counted) - torch.special.xlogy(zero, zero)

    def sample(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        """A count, or zero with probability π."""
        f, g = outputs.chunk(2, -1)
        counts = self.each.sample(f, learned, rng)
        return torch.where(torch.bernoulli(g.sigmoid(), generator=rng) > 0, torch.zeros_like(counts), counts)


def _assembled(ff: Tensor, fg: Tensor, gg: Tensor) -> Tensor:
    """The matrix of diagonal blocks, ... × B × 2D × 2D."""
    top = torch.cat([torch.diag_embed(ff), torch.diag_embed(fg)], -1)
    return torch.cat([top, torch.cat([torch.diag_embed(fg), torch.diag_embed(gg)], -1)], -2)
