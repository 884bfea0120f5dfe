"""A posterior over a part of θ, the rest known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.checks import check_finite
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.model.target import Target
from temperance.posteriors.base import Nodes, Posterior, WrappedPosterior, centre_of


@dataclass(frozen=True, eq=False, repr=False)
class Pushforward(WrappedPosterior):
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
        check_fields(self, "rest")
        check_finite(self.rest, "the known part of θ")
        if len(self.index) != self.inner.size:
            raise ArgumentError(
                f"`index` must have a place for each of the {self.inner.size} random numbers; got {len(self.index)}."
            )

    @property
    def size(self) -> int:
        """P."""
        return len(self.rest)

    def rewrap(self, part: Posterior) -> Posterior:
        """The same places for another part."""
        return Pushforward(part, self.index, self.rest)

    def inside(self, target: Target) -> tuple[Target, Posterior]:
        """The target of the part."""
        places = set(self.index.tolist())
        names = [e.name for e in target.layout.network_entries if e.start in places]
        smaller = target.restrict(names, self.rest.to(target.device))
        return self.inner.inside(self.inner.retarget(smaller))

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """The mean of the random part, in its place."""
        return self._place(centre_of(self.inner).mean.unsqueeze(0))[0]

    def _place(self, rows: Tensor) -> Tensor:
        made = self.rest.to(rows).expand(len(rows), -1).clone()
        made[:, self.index.to(rows.device)] = rows
        return made

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """Those of the inner posterior, put into place."""
        return self.inner.nodes(n, seed).map(self._place)

    def growing(self, n: int, seed: int = 0) -> Nodes:
        """Those of the inner posterior, put into place."""
        return self.inner.growing(n, seed).map(self._place)

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        return self._place(self.inner._sample(n, rng))
