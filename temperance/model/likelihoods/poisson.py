"""Counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.model.likelihoods.base import LearnedValues
from temperance.model.likelihoods.counts import LogMeanCounts, normal_entropy

_LARGE_LOG_RATE = 6.2  # rates above about 500 are Gaussian enough


@dataclass(frozen=True, eq=False)
class Poisson(LogMeanCounts):
    """y ~ Poisson(exp f), independently per output; y holds whole numbers from 0 on.

    The Hessian in f, diag(exp f), does not depend on y.

    >>> Poisson().log_prob(torch.zeros(1, 1), torch.tensor([[2.0]]), {})
    tensor([-1.6931])
    """

    def log_mass(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """y f − eᶠ − log y!."""
        return y * outputs - outputs.exp() - torch.lgamma(y + 1)

    def slope(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """y − eᶠ."""
        return y - outputs.exp()

    def curvature(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """eᶠ."""
        return outputs.exp()

    def information(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """eᶠ."""
        return outputs.exp()

    def variance(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """The rate again."""
        return outputs.exp()

    def reach(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Twelve standard deviations and thirty."""
        rate = outputs.double().exp()
        return rate + 12 * rate.sqrt() + 30

    def nearly_normal(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Rates above 500."""
        return outputs > _LARGE_LOG_RATE

    def cdf(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """P(Y ≤ y) = Q(⌊y⌋ + 1, rate), the regularised upper incomplete gamma function; 0 below zero."""
        whole = y.floor()
        value = torch.special.gammaincc(whole.clamp(min=0) + 1, outputs.exp())
        return torch.where(whole < 0, torch.zeros_like(value), value)

    def log_exponential_moment(self, outputs: Tensor, learned: LearnedValues, t: float) -> Tensor | None:
        """rate · (eᵗ − 1)."""
        return self.mean(outputs, learned).double() * math.expm1(t)

    def each_entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """−Σ_k p log p, summed over the support that holds all but 1e-12 of the mass (Stirling's form for rates above
        1000)."""
        rate = outputs.double().exp()
        small = rate.clamp(max=1000.0)
        top = int(small.max() + 10 * small.max().sqrt() + 20)
        support = torch.arange(top + 1, dtype=torch.float64, device=rate.device)
        log_p = (
            support * outputs.double().clamp(max=math.log(1000.0)).unsqueeze(-1)
            - small.unsqueeze(-1)
            - torch.lgamma(support + 1)
        )
        summed = -(log_p.exp() * log_p).sum(-1)
        return torch.where(rate > 1000, normal_entropy(rate) - 1 / (12 * rate), summed).to(outputs.dtype)

    def sample(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        """Counts; for rates above 10⁸, where whole numbers and rounding meet, by the Gaussian approximation."""
        return poisson_draws(outputs.double().clamp(max=40.0).exp(), rng).to(outputs.dtype)


def poisson_draws(rate: Tensor, rng: torch.Generator) -> Tensor:
    """Draws of Poisson laws of these rates, in float64."""
    counts = torch.poisson(rate.clamp(max=1e8), generator=rng)
    normal = torch.randn(rate.shape, generator=rng, dtype=rate.dtype, device=rate.device)
    return torch.where(rate > 1e8, (rate + rate.sqrt() * normal).round(), counts)
