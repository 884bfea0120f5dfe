"""A posterior some of whose numbers were moved after it was found."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch
from torch import Tensor

from temperance.core.checks import check_finite
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.posteriors.base import Nodes, Posterior, Settings, Spread, WrappedPosterior, centre_of


@dataclass(frozen=True, eq=False, repr=False)
class Shifted(WrappedPosterior):
    """θ as ``inner`` says, with ``shift`` added to its coordinates ``index``: a noise level that other rows corrected.

    >>> from temperance.posteriors import Draws
    >>> moved = Shifted(Draws(torch.tensor([[1.0, 2.0], [3.0, 4.0]])), torch.tensor([1]), torch.tensor([0.5]))
    >>> moved.nodes().fetch(0, 2)[0]
    tensor([[1.0000, 2.5000],
            [3.0000, 4.5000]])
    """

    inner: Posterior
    index: Tensor
    shift: Tensor

    def __post_init__(self) -> None:
        check_fields(self, "shift")
        check_finite(self.shift, "the shift")
        if self.index.shape != self.shift.shape:
            raise ArgumentError(
                f"`shift` must be a number for each of the {len(self.index)} places of `index`; got shape "
                f"{tuple(self.shift.shape)}."
            )
        if len(self.index) and not 0 <= int(self.index.min()) <= int(self.index.max()) < self.inner.size:
            raise ArgumentError(f"`index` must lie between 0 and {self.inner.size - 1}; got {self.index.tolist()}.")

    @property
    def size(self) -> int:
        """P."""
        return self.inner.size

    def rewrap(self, part: Posterior) -> Posterior:
        """The same shift of another part."""
        return Shifted(part, self.index, self.shift)

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """That of the inner posterior, moved."""
        return self._move(centre_of(self.inner).mean.unsqueeze(0))[0]

    def _move(self, rows: Tensor) -> Tensor:
        return _added(rows, self.index, self.shift)

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """Those of the inner posterior, moved."""
        return self.inner.nodes(n, seed).map(self._move)

    def growing(self, n: int, seed: int = 0) -> Nodes:
        """Those of the inner posterior, moved."""
        return self.inner.growing(n, seed).map(self._move)

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        return self._move(self.inner._sample(n, rng))


def _added(rows: Tensor, index: Tensor, shift: Tensor) -> Tensor:
    return rows.index_add(-1, index.to(rows.device), shift.to(rows).expand(*rows.shape[:-1], -1))


def shifted(posterior: Posterior, index: Tensor, shift: Tensor) -> Posterior:
    """``posterior`` with ``shift`` added at ``index`` of θ: settings of θ, and what has a mean of its own, are moved
    themselves and stay what they are; others are wrapped."""

    def moved(part: Posterior) -> Posterior:
        if isinstance(part, Settings):
            return part.with_theta(_added(part.theta, index, shift))
        if isinstance(part, Spread) and "mean" in {f.name for f in fields(cast(Any, part))}:
            return replace(cast(Any, part), mean=_added(part.mean, index, shift))
        return Shifted(part, index, shift)

    return posterior.map_parts(moved)
