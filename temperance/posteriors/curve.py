"""A curve through weight space, every place on it as good as any other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.checks import check_finite, shown
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.posteriors.base import Buffers, Centred, Nodes, WeightCurve
from temperance.posteriors.gaussian import DEFAULT_DRAWS
from temperance.posteriors.nodes import Stratum


def bernstein(t: Tensor, degree: int) -> Tensor:
    """The weights C(n, k) tᵏ (1 − t)ⁿ⁻ᵏ, k = 0 … n, of a Bézier curve's control points: ... × (n + 1), in float64.

    >>> bernstein(torch.tensor([0.0, 0.5]), 2)
    tensor([[1.0000, 0.0000, 0.0000],
            [0.2500, 0.5000, 0.2500]], dtype=torch.float64)
    """
    k = torch.arange(degree + 1, device=t.device)
    counts = torch.tensor([math.comb(degree, j) for j in range(degree + 1)], dtype=torch.float64, device=t.device)
    place = t.double().unsqueeze(-1)
    return counts * place.pow(k) * (1 - place).pow(degree - k)


@dataclass(frozen=True, eq=False, repr=False)
class CurvePosterior(WeightCurve, Centred):
    """θ(t) = Σₖ C(n, k) tᵏ (1 − t)ⁿ⁻ᵏ pₖ with t uniform on [0, 1]: a Bézier curve from the first control point to the
    last. ``points`` is a matrix, control points × P; two of them make a straight line.

    >>> path = CurvePosterior(torch.tensor([[0.0, 0.0], [1.0, 2.0], [2.0, 0.0]]))
    >>> path.at(torch.tensor([0.0, 0.5, 1.0]))
    tensor([[0., 0.],
            [1., 1.],
            [2., 0.]])
    """

    points: Tensor

    def __post_init__(self) -> None:
        check_fields(self)
        if self.points.dim() != 2 or len(self.points) < 2:
            raise ArgumentError(
                f"`points` must be a matrix of at least two control points × P; got shape {tuple(self.points.shape)}."
            )
        check_finite(self.points, "the control points of a path")

    @property
    def size(self) -> int:
        """P."""
        return self.points.shape[1]

    @property
    def buffers(self) -> Buffers:  # type: ignore[override]
        """None: between two settings of the weights nobody knows their statistics."""
        return {}

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """That of the control points, for each weight averages to 1 / (n + 1) over t."""
        return self.points.mean(0)

    @property
    def straight(self) -> CurvePosterior:
        """The straight line between the same ends; itself where it is one."""
        return self if len(self.points) == 2 else CurvePosterior(self.points[[0, -1]])

    def at(self, t: Tensor | float) -> Tensor:
        """θ(t), a row for each t."""
        places = torch.as_tensor(t, dtype=torch.float64).reshape(-1)
        if not bool(((places >= 0) & (places <= 1)).all()):
            raise ArgumentError(f"`t` must lie in [0, 1]; got {shown(t)}.")
        return bernstein(places, len(self.points) - 1).to(self.points) @ self.points

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """``n`` places (30 unless told), evenly spaced: the middles of n equal stretches of t."""
        count = DEFAULT_DRAWS if n is None else n
        places = (torch.arange(count, dtype=torch.float64) + 0.5) / count

        def fetch(start: int, stop: int) -> tuple[Tensor, Buffers]:
            return self.at(places[start:stop]), {}

        strata = (Stratum(count, drawn=False),)
        return Nodes(torch.full((count,), 1.0 / count, dtype=torch.float64), fetch, strata)

    def growing(self, n: int, seed: int = 0) -> Nodes:
        """Thirty places: they are those of a rule of integration, and nothing is left to chance."""
        return self.nodes(None, seed)

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        return self.at(torch.rand(n, generator=rng, dtype=torch.float64))
