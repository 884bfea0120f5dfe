"""Rows of several predictives, one after the other."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from temperance.data.sources import first_tensor
from temperance.posteriors import Stratum
from temperance.predict.predictive import PREDICTIVES, Predictive
from temperance.predict.source import OutputBlock, Outputs


class JoinedSource(Outputs):
    """Rows of several predictives, one after the other: what several models say, each of its own rows. All must average
    over equally many members, with the same weights."""

    def __init__(self, parts: Sequence[Predictive]) -> None:
        self.parts = [part.source for part in parts]
        first = self.parts[0]
        self.engine, self.num_outputs, self.weights = first.engine, first.num_outputs, first.weights
        self.rows = sum(part.rows for part in self.parts)

    def __len__(self) -> int:
        return len(self.parts[0])

    def blocks(self) -> Iterator[OutputBlock]:
        """See :class:`~temperance.predict.source.Source`."""
        before = 0
        for part in self.parts:
            for rows, outputs, learned in part.blocks():
                yield slice(before + rows.start, before + rows.stop), outputs, learned
            before += part.rows

    @property
    def strata(self) -> tuple[Stratum, ...]:
        """Those of the first part: all are models of one kind."""
        return self.parts[0].strata

    @property
    def scrambled(self) -> bool:
        """As the first part is."""
        return self.parts[0].scrambled

    def again(self, scramble: int) -> JoinedSource:
        """Of all parts."""
        made = copy.copy(self)
        made.parts = [part.again(scramble) for part in self.parts]
        return made

    def row_inputs(self) -> Tensor:
        """Those of the parts."""
        return torch.cat([first_tensor(part.row_inputs()) for part in self.parts])


def joined_predictive(parts: Sequence[Predictive]) -> Predictive | None:
    """One predictive of the rows of all; ``None`` where members do not match."""
    first = parts[0].weights
    if any(part.weights.shape != first.shape or not torch.allclose(part.weights, first) for part in parts):
        return None
    return PREDICTIVES.of(parts[0].outcome)(JoinedSource(parts), parts[0].likelihood)
