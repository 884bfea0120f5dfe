"""A posterior over a part of θ, the rest known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.checks import check_finite
from temperance.core.errors import ArgumentError
from temperance.posteriors.base import Buffers, Nodes, Posterior


@dataclass(frozen=True, eq=False, repr=False)
class Pushforward(Posterior):
    """θ with its coordinates ``index`` distributed as ``inner`` says, and all others as in ``rest``.

    >>> from temperance.posteriors import Draws
    >>> part = Pushforward(Draws(torch.tensor([[1.0], [2.0]])), torch.tensor([2]), torch.zeros(3))
    >>> part.nodes().fetch(0, 2)[0]
    tensor([[0., 0., 1.],
            [0., 0., 2.]])
    """

    inner: Posterior
    index: Tensor
    rest: Tensor

    def __post_init__(self) -> None:
        check_finite(self.rest, "the known part of θ")
        if len(self.index) != self.inner.size:
            raise ArgumentError(
                f"`index` must have a place for each of the {self.inner.size} random numbers; got {len(self.index)}."
            )

    @property
    def size(self) -> int:
        """P."""
        return len(self.rest)

    @property
    def finite(self) -> bool:  # type: ignore[override]
        """As the inner posterior is."""
        return self.inner.finite

    @property
    def mean(self) -> Tensor:
        """The mean of the random part, in its place."""
        return self._place(self.inner.mean.unsqueeze(0))[0]  # type: ignore[attr-defined]

    @property
    def buffers(self) -> Buffers:
        """Those of the inner posterior."""
        return getattr(self.inner, "buffers", {})

    def _place(self, rows: Tensor) -> Tensor:
        made = self.rest.to(rows).expand(len(rows), -1).clone()
        made[:, self.index.to(rows.device)] = rows
        return made

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """Those of the inner posterior, put into place."""
        inner = self.inner.nodes(n, seed)

        def fetch(start: int, stop: int) -> tuple[Tensor, Buffers]:
            rows, buffers = inner.fetch(start, stop)
            return self._place(rows), buffers

        return Nodes(inner.weights, fetch)

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        return self._place(self.inner._sample(n, rng))
