"""Network outputs at every node of a posterior, in blocks of rows, with memory bounded by the block."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from temperance.data.sources import Inputs, first_tensor, map_tensors
from temperance.engine.engine import Engine
from temperance.posteriors.nodes import Nodes, Stratum

_BLOCK_BYTES = 2**25  # outputs of all nodes for one block of rows
_THETA_BYTES = 2**26  # settings of θ held at once
_KEEP_BYTES = 2**26  # outputs are kept up to this size, and made anew each time beyond it
_PASSES = 2**16  # draws × rows through the network at once, for the activations in between take memory too
_ROWS = 1024  # rows through the network at once: enough to be efficient, few enough that activations stay small

OutputBlock = tuple[slice, Tensor, dict[str, Tensor]]


class Outputs(Protocol):
    """Outputs S × N × C, however they are made, with the weight of each of the S."""

    engine: Engine
    rows: int
    num_outputs: int
    weights: Tensor

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[OutputBlock]:
        """(rows, outputs S × b × C, learned parameters S × ...) for consecutive blocks of rows."""

    @property
    def origin(self) -> Outputs:
        """Whose members these are: its own, unless it maps those of another source."""
        return self

    @property
    def strata(self) -> tuple[Stratum, ...]:
        """How the members were drawn: independently from one law, unless a source knows more."""
        return (Stratum(len(self)),)

    @property
    def scrambled(self) -> bool:
        """Whether the members are quasi-random points, whose error shows in that of others alone: :meth:`again`."""
        return False

    def again(self, scramble: int) -> Outputs:
        """The same by other quasi-random points, those of a scramble; 0 gives these again."""
        return self

    def row_inputs(self) -> Inputs:
        """What tells one row from another, rows first: the network's inputs."""

    def same_draws(self, other: Outputs) -> bool:
        """Whether member s of both is the same θ; no, where nobody can tell. To be asked of their origins."""
        return False


class MappedOutputs(Outputs):
    """The members of ``base``, mapped one by one."""

    base: Outputs

    def __len__(self) -> int:
        return len(self.base)

    @property
    def origin(self) -> Outputs:
        """That of the base."""
        return self.base.origin

    @property
    def strata(self) -> tuple[Stratum, ...]:
        """Those of the base."""
        return self.base.strata

    @property
    def scrambled(self) -> bool:
        """As the base is."""
        return self.base.scrambled

    def again(self, scramble: int) -> Outputs:
        """The base's, mapped in the same way."""
        made = copy.copy(self)
        made.base = self.base.again(scramble)
        return made

    def row_inputs(self) -> Inputs:
        """Those of the base."""
        return self.base.row_inputs()


class OutputSource(Outputs):
    """Outputs S × N × C of a target's network: S nodes, N rows.

    They are computed once and kept when small; when large, they are computed block by block each time they are needed,
    from the same nodes, so that every statistic can be had for any number of draws.

    ``known`` is a source of fewer of the same nodes at the same rows: what it has kept is not computed again.
    """

    def __init__(
        self,
        engine: Engine,
        nodes: Nodes,
        x: Inputs,
        *,
        batch_size: int = _ROWS,
        keep_bytes: int = _KEEP_BYTES,
        known: OutputSource | None = None,
    ) -> None:
        self.engine, self._nodes, self.x, self.batch_size = engine, nodes, x, batch_size
        weights = nodes.weights.double()
        self.weights = (weights / weights.sum()).to(device=engine.device, dtype=engine.layout.dtype)
        self.rows = first_tensor(x).shape[0]
        self.num_outputs = engine.target.probe_outputs(map_tensors(lambda t: t[:1], x)).shape[-1]
        size = engine.layout.dtype.itemsize * len(nodes) * self.num_outputs
        self._block = max(1, min(self.rows, _BLOCK_BYTES // size))
        self._kept: list[OutputBlock] | None = [] if size * self.rows <= keep_bytes else None
        self._complete = False
        self._memory: Tensor | None = None
        self._known, self._places, self._missing = None, torch.empty(0, dtype=torch.int64), [(0, len(nodes))]
        if known is not None and known._complete and _begins_with(nodes, known._nodes):
            self._known, (self._places, self._missing) = known, _places(nodes, known._nodes)
        if self._kept is not None:
            for _ in self.blocks():  # now, so that a later change of x changes nothing
                pass

    def __len__(self) -> int:
        return len(self._nodes)

    def blocks(self) -> Iterator[OutputBlock]:
        """(rows, outputs S × b × C, learned parameters S × ...) for consecutive blocks of rows.

        The outputs of a block may be overwritten by the next one: use them, or copy them, before going on.
        """
        if self._complete and self._kept is not None:
            yield from self._kept
            return
        made: list[OutputBlock] = []
        for start in range(0, self.rows, self._block):
            block = self._compute(slice(start, min(start + self._block, self.rows)))
            if self._kept is not None:
                made.append(block)
            yield block
        if self._kept is not None:
            self._kept, self._complete, self._known = made, True, None

    @property
    def strata(self) -> tuple[Stratum, ...]:
        """Those of the nodes."""
        return self._nodes.strata

    def row_inputs(self) -> Inputs:
        """x."""
        return self.x

    def same_draws(self, other: Outputs) -> bool:
        """By the first and the last setting of θ."""
        if not isinstance(other, OutputSource) or len(self) != len(other):
            return False
        ends = [(k, k + 1) for k in (0, len(self) - 1)]
        return all(torch.equal(self._nodes.fetch(*end)[0], other._nodes.fetch(*end)[0]) for end in ends)

    def _compute(self, rows: slice) -> OutputBlock:
        engine, total = self.engine, len(self._nodes)
        count = rows.stop - rows.start
        by_theta = _THETA_BYTES // max(1, engine.layout.size * engine.layout.dtype.itemsize)
        at_once = max(1, min(total, by_theta, _PASSES // min(count, self.batch_size)))
        shape = (total, count, self.num_outputs)
        if self._kept is None:  # one piece of memory for all blocks: what was made of a block is used before the next
            if self._memory is None:
                size = total * self._block * self.num_outputs
                self._memory = torch.empty(size, dtype=engine.layout.dtype, device=engine.device)
            outputs = self._memory[: total * count * self.num_outputs].view(shape)
        else:
            outputs = torch.empty(shape, dtype=engine.layout.dtype, device=engine.device)
        learned: list[tuple[Tensor, dict[str, Tensor]]] = []  # for some of the nodes, by their numbers
        if self._known is not None:
            before, own = self._known._kept_rows(rows)
            outputs[self._places] = before
            learned.append((self._places, own))
        pieces = [(low, min(low + at_once, end)) for begin, end in self._missing for low in range(begin, end, at_once)]
        with torch.no_grad():
            for low, high in pieces:
                theta, buffers = self._nodes.fetch(low, high)
                theta, buffers = theta.to(engine.device), {n: v.to(engine.device) for n, v in buffers.items()}
                learned.append((torch.arange(low, high), engine.layout.unflatten(theta, "likelihood")))
                for start in range(0, count, self.batch_size):
                    stop = min(start + self.batch_size, count)
                    at = slice(rows.start + start, rows.start + stop)
                    x = map_tensors(lambda t, at=at: t[at].to(engine.device), self.x)  # type: ignore[misc]
                    outputs[low:high, start:stop] = engine.outputs(theta, x, buffers)
        order = torch.cat([numbers for numbers, _ in learned]).argsort().to(engine.device)
        gathered = {name: torch.cat([part[name] for _, part in learned])[order] for name in learned[0][1]}
        return rows, outputs, gathered

    def _kept_rows(self, rows: slice) -> tuple[Tensor, dict[str, Tensor]]:
        """The kept outputs of a range of rows."""
        assert self._kept is not None
        found = []
        for at, outputs, _ in self._kept:
            low, high = max(rows.start, at.start), min(rows.stop, at.stop)
            if low < high:
                found.append(outputs[:, low - at.start : high - at.start])
        return (found[0] if len(found) == 1 else torch.cat(found, dim=1)), self._kept[0][2]


def _places(nodes: Nodes, fewer: Nodes) -> tuple[Tensor, list[tuple[int, int]]]:
    """Where ``fewer`` are among ``nodes``, which begin with them in every stratum; and the ranges of the others."""
    places, others, begin = [], [], 0
    for stratum, part in zip(nodes.strata, fewer.strata, strict=True):
        places.append(torch.arange(begin, begin + part.count))
        if part.count < stratum.count:
            others.append((begin + part.count, begin + stratum.count))
        begin += stratum.count
    return torch.cat(places), others


def _begins_with(nodes: Nodes, fewer: Nodes) -> bool:
    """Whether every stratum of ``nodes`` begins with that of ``fewer``, by the first and the last setting of each."""
    if len(nodes.strata) != len(fewer.strata):
        return False
    if any(part.count > stratum.count for stratum, part in zip(nodes.strata, fewer.strata, strict=True)):
        return False
    places, _ = _places(nodes, fewer)
    ends = torch.tensor([part.count for part in fewer.strata]).cumsum(0).tolist()
    for k in {k for part, end in zip(fewer.strata, ends, strict=True) for k in (end - part.count, end - 1)}:
        at = int(places[k])
        (theta, buffers), (old, before) = nodes.fetch(at, at + 1), fewer.fetch(k, k + 1)
        if not torch.equal(theta, old) or any(not torch.equal(buffers[name], before[name]) for name in buffers):
            return False
    return True
