"""Network outputs at every node of a posterior, in blocks of rows, with memory bounded by the block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from temperance.data.sources import Inputs, first_tensor, map_tensors
from temperance.engine.engine import Engine
from temperance.posteriors.base import Nodes

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

    def row_inputs(self) -> Inputs:
        """Those of the base."""
        return self.base.row_inputs()


class OutputSource(Outputs):
    """Outputs S × N × C of a target's network: S nodes, N rows.

    They are computed once and kept when small; when large, they are computed block by block each time they are needed,
    from the same nodes, so that every statistic can be had for any number of draws.
    """

    def __init__(
        self, engine: Engine, nodes: Nodes, x: Inputs, *, batch_size: int = _ROWS, keep_bytes: int = _KEEP_BYTES
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
            self._kept, self._complete = made, True

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
        learned: list[dict[str, Tensor]] = []
        with torch.no_grad():
            for low in range(0, total, at_once):
                high = min(low + at_once, total)
                theta, buffers = self._nodes.fetch(low, high)
                theta, buffers = theta.to(engine.device), {n: v.to(engine.device) for n, v in buffers.items()}
                theta = theta.to(engine.device)
                buffers = {name: value.to(engine.device) for name, value in buffers.items()}
                learned.append(engine.layout.unflatten(theta, "likelihood"))
                for start in range(0, count, self.batch_size):
                    stop = min(start + self.batch_size, count)
                    at = slice(rows.start + start, rows.start + stop)
                    x = map_tensors(lambda t, at=at: t[at].to(engine.device), self.x)  # type: ignore[misc]
                    outputs[low:high, start:stop] = engine.outputs(theta, x, buffers)
        gathered = {name: torch.cat([part[name] for part in learned]) for name in learned[0]}
        return rows, outputs, gathered
