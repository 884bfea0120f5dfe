"""A single setting of the weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_finite, check_vector
from temperance.core.fields import check_fields
from temperance.posteriors.base import Buffers, Centred, Nodes, Settings, WeightPosterior
from temperance.posteriors.nodes import Stratum


@dataclass(frozen=True, eq=False, repr=False)
class Point(WeightPosterior, Centred, Settings):
    """All mass on one θ: what ordinary training gives.

    >>> Point(torch.zeros(3)).sample(2)
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """

    finite: ClassVar[bool] = True
    single: ClassVar[bool] = True
    theta: Tensor
    buffers: Buffers = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        check_vector(self.theta, "theta")
        check_finite(self.theta, "the weights of a Point")

    @property
    def size(self) -> int:
        """P."""
        return len(self.theta)

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """θ itself."""
        return self.theta

    def with_theta(self, theta: Tensor) -> Point:
        """See :class:`Settings`."""
        return replace(self, theta=theta)

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """One node of weight one."""
        stacked = {name: value.unsqueeze(0) for name, value in self.buffers.items()}
        weights, strata = torch.ones(1, dtype=torch.float64), (Stratum(1, drawn=False),)
        return Nodes(weights, lambda start, stop: (self.theta.unsqueeze(0), stacked), strata)

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        return self.theta.expand(n, -1).clone()
