"""Counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

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


@dataclass(frozen=True, eq=False)
class Poisson(QuantityLikelihood):
    """y ~ Poisson(exp f), independently per output; y holds whole numbers from 0 on.

    The Hessian in f, diag(exp f), does not depend on y.

    >>> Poisson().log_prob(torch.zeros(1, 1), torch.tensor([[2.0]]), {})
    tensor([-1.6931])
    """

    outcome: ClassVar[Outcome] = Counts()

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`Likelihood`."""
        made = check_real_targets(y, num_outputs, dtype, "Poisson")
        if bool((made < 0).any()) or bool((made != made.round()).any()):
            raise DataError(
                f"`y` must hold whole numbers from 0 on for Poisson; got values from {float(made.min())} to "
                f"{float(made.max())}."
            )
        return made

    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """Σ y f − eᶠ − log y!."""
        return (y * outputs - outputs.exp() - torch.lgamma(y + 1)).sum(-1)

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """diag(eᶠ)."""
        return diagonal(outputs.exp())

    def fisher_columns(self, outputs: Tensor, learned: LearnedValues) -> Iterator[Tensor]:
        """Of a diagonal."""
        return diagonal_columns(outputs.exp())

    def fisher_product(self, outputs: Tensor, learned: LearnedValues, v: Tensor) -> Tensor:
        """Of a diagonal."""
        return outputs.exp() * v

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """The same."""
        return self.fisher(outputs, learned)

    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """The rate."""
        return outputs.exp()

    def variance(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """The rate again."""
        return outputs.exp()

    def cdf(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """P(Y ≤ y) = Q(⌊y⌋ + 1, rate), the regularised upper incomplete gamma function; 0 below zero."""
        whole = y.floor()
        value = torch.special.gammaincc(whole.clamp(min=0) + 1, outputs.exp())
        return torch.where(whole < 0, torch.zeros_like(value), value)

    def log_exponential_moment(self, outputs: Tensor, learned: LearnedValues, t: float) -> Tensor | None:
        """rate · (eᵗ − 1)."""
        return self.mean(outputs, learned).double() * math.expm1(t)

    def entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
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
        stirling = 0.5 * torch.log(2 * torch.pi * torch.e * rate) - 1 / (12 * rate)
        return torch.where(rate > 1000, stirling, summed).sum(-1).to(outputs.dtype)

    def sample(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        """Counts; for rates above 10⁸, where whole numbers and rounding meet, by the Gaussian approximation."""
        rate = outputs.double().clamp(max=40.0).exp()
        counts = torch.poisson(rate.clamp(max=1e8), generator=rng)
        normal = torch.randn(rate.shape, generator=rng, dtype=rate.dtype, device=rate.device)
        return torch.where(rate > 1e8, (rate + rate.sqrt() * normal).round(), counts).to(outputs.dtype)
