"""Draws of a sampler, or particles."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_finite
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.core.growing import rows_file
from temperance.posteriors.base import Buffers, Centred, Chain, Nodes
from temperance.posteriors.nodes import Stratum
from temperance.posteriors.trace import Trace


@dataclass(frozen=True, eq=False, repr=False)
class Draws(Chain, Centred):
    """S equally weighted settings of θ, a matrix S × P, in the order in which they were drawn; ``trace`` holds what the
    chain that drew them told of itself.

    >>> draws = Draws(torch.arange(6.0).view(3, 2))
    >>> len(draws.nodes()), draws.mean
    (3, tensor([2., 3.]))
    """

    finite: ClassVar[bool] = True
    theta: Tensor
    buffers: Buffers = field(default_factory=dict)
    trace: Trace | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.theta.dim() != 2 or len(self.theta) < 1:
            raise ArgumentError(f"`theta` must be a matrix, draws × P; got shape {tuple(self.theta.shape)}.")
        if rows_file(self.theta) is None:  # those of a file were checked one by one as they came
            check_finite(self.theta, "draws")

    @property
    def size(self) -> int:
        """P."""
        return self.theta.shape[1]

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """The average draw."""
        return self.theta.mean(0)

    def with_theta(self, theta: Tensor) -> Draws:
        """See :class:`Settings`."""
        return replace(self, theta=theta)

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """All draws, or ``n`` of them evenly spaced where there are more."""
        total = len(self.theta)
        count = total if n is None else min(n, total)
        pick = torch.linspace(0, total - 1, count).round().long() if count < total else torch.arange(total)

        def fetch(start: int, stop: int) -> tuple[Tensor, Buffers]:
            rows = pick[start:stop]
            return self.theta[rows.to(self.theta.device)], {n: v[rows.to(v.device)] for n, v in self.buffers.items()}

        strata = (Stratum(count, chain=True, drawn=total > 1),)  # a single one is a point
        return Nodes(torch.full((count,), 1.0 / count, dtype=torch.float64), fetch, strata)

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        return self.theta[torch.randint(0, len(self.theta), (n,), generator=rng).to(self.theta.device)]
