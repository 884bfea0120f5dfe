"""Adding up curvature, batch by batch and column by column."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from temperance.core.errors import NumericalError, TemperanceWarning
from temperance.inference.curvature.general import GeneralGradients
from temperance.inference.curvature.layers import EmbeddingLayer, Layer, Matrix, chunk
from temperance.inference.curvature.sweep import BatchGradients, Sweep
from temperance.linalg.blocks import Block, DenseBlock, DiagonalBlock
from temperance.linalg.places import Places

_MANY_COLUMNS = 256  # more outputs than these make an exact pass slow enough to say so
CHUNK = 2**26  # numbers of per-example gradients held at once


@dataclass
class LayerSource:
    """Gradients of single examples from a layer's rule."""

    number: int
    layer: Layer

    @property
    def name(self) -> str:
        """The module's name; its kind where it is the whole network."""
        return self.layer.name or type(self.layer.module).__name__

    @property
    def size(self) -> int:
        """p."""
        return self.layer.size

    @property
    def places(self) -> Places:
        """Where in θ."""
        return self.layer.places

    def needs_layers(self) -> Literal[True]:
        """Whether gradients at layers' outputs are needed."""
        return True

    def rows(self, batch: BatchGradients, gradients: list[list[Tensor]], column: Tensor) -> Tensor:
        """B × p."""
        return self.layer.jacobian(batch.flow.calls[self.number].inputs, gradients[self.number], batch.rows)

    def squares(self, batch: BatchGradients, gradients: list[list[Tensor]], column: Tensor) -> Tensor:
        """p."""
        return self.layer.squares(batch.flow.calls[self.number].inputs, gradients[self.number], batch.rows)


@dataclass
class RestSource:
    """Gradients of single examples by automatic differentiation."""

    name: str
    general: GeneralGradients

    @property
    def size(self) -> int:
        """p."""
        return self.general.size

    @property
    def places(self) -> Places:
        """Where in θ."""
        return self.general.places

    def needs_layers(self) -> Literal[False]:
        """See :class:`LayerSource`."""
        return False

    def rows(self, batch: BatchGradients, gradients: list[list[Tensor]], column: Tensor) -> Tensor:
        """B × p."""
        return self.general.rows(batch.x, column.unsqueeze(0))[0].detach()

    def squares(self, batch: BatchGradients, gradients: list[list[Tensor]], column: Tensor) -> Tensor:
        """p."""
        return self.rows(batch, gradients, column).square().sum(0)


class Accumulator(ABC):
    """Takes batches and columns, gives blocks."""

    source: LayerSource | RestSource

    def begin(self, batch: BatchGradients) -> None:
        """Once for each batch, before its columns."""
        return

    @abstractmethod
    def column(self, batch: BatchGradients, gradients: list[list[Tensor]], column: Tensor) -> None:
        """Once for each column of a batch."""

    def end(self, batch: BatchGradients) -> None:
        """Once for each batch, after its columns."""
        return

    @abstractmethod
    def blocks(self) -> list[Block]:
        """What was added up."""

    def correction(self) -> Accumulator | None:
        """Who adds up corrected eigenvalues, if that makes sense here."""
        return None


def check_finite(value: Tensor, name: str) -> Tensor:
    """``value`` itself; an error where it is not finite."""
    if not bool(torch.isfinite(value).all()):
        raise NumericalError(f"the curvature of {name!r} is not finite: look at the data and at how training ended.")
    return value


class GradientSquares:
    """Σ over examples and columns of (Σ_r g_r a_rᵀ)², out × in, for one weight matrix.

    With one row an example it is Σ_n (Σ_k g_nk²) a_n²: the columns are summed first, and one product does.
    """

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self._a: Tensor | None = None
        self._g: Tensor | None = None

    def begin(self, a: Tensor) -> None:
        """The inputs of a batch, B × R × in."""
        self._a = a.square() if a.shape[1] == 1 else a
        self._g = None

    def add(self, g: Tensor) -> None:
        """A column's gradients, B × R × out."""
        assert self._a is not None
        if self._a.shape[1] == 1:
            squares = g[:, 0].square()
            self._g = squares if self._g is None else self._g.add_(squares)
            return
        step = max(1, CHUNK // (g.shape[-1] * self._a.shape[-1]))
        for start in range(0, len(g), step):
            part = slice(start, start + step)
            self._collect((g[part].mT @ self._a[part]).square_().sum(0))

    def end(self) -> None:
        """After a batch's last column."""
        if self._g is not None and self._a is not None:
            self._collect(self._g.mT @ self._a[:, 0])
        self._a = self._g = None

    def _collect(self, found: Tensor) -> None:
        self.total = found if self.total is None else self.total.add_(found)


class DiagonalAccumulator(Accumulator):
    """Σ of squared gradients."""

    def __init__(self, source: LayerSource | RestSource) -> None:
        self.source = source
        self._sum: Tensor | None = None
        self._matrix: Matrix | None = None
        if isinstance(source, LayerSource) and isinstance(source.layer, Matrix):
            self._matrix = None if isinstance(source.layer, EmbeddingLayer) else source.layer
        self._groups: list[GradientSquares] = []
        self._kept = False  # whether the batch under way has its inputs unfolded and kept

    def begin(self, batch: BatchGradients) -> None:
        """Unfold the inputs once for all columns, where that is not too much to hold."""
        self._kept = False
        if self._matrix is None:
            return
        assert isinstance(self.source, LayerSource)
        inputs = batch.flow.calls[self.source.number].inputs
        one = self._matrix.input_rows([chunk(value, 0, 1, batch.rows) for value in inputs], 1).numel()
        if one * batch.rows > CHUNK:
            return
        self._kept = True
        a = self._matrix.input_rows(inputs, batch.rows)
        self._groups = self._groups or [GradientSquares() for _ in a]
        for squares, part in zip(self._groups, a, strict=True):
            squares.begin(part)

    def column(self, batch: BatchGradients, gradients: list[list[Tensor]], column: Tensor) -> None:
        """See :class:`Accumulator`."""
        if self._kept and self._matrix is not None:
            assert isinstance(self.source, LayerSource)
            g = self._matrix.output_rows(gradients[self.source.number], batch.rows)
            for squares, part in zip(self._groups, g, strict=True):
                squares.add(part)
            return
        found = self.source.squares(batch, gradients, column)
        self._sum = found if self._sum is None else self._sum.add_(found)

    def end(self, batch: BatchGradients) -> None:
        """See :class:`Accumulator`."""
        for squares in self._groups if self._kept else ():
            squares.end()

    def blocks(self) -> list[Block]:
        """See :class:`Accumulator`."""
        return [self.block()]

    def block(self) -> DiagonalBlock:
        """The one that there is."""
        total = self._sum
        if self._groups and self._matrix is not None:
            found = torch.stack([squares.total for squares in self._groups if squares.total is not None])
            flat = self._matrix.flat(found.unsqueeze(1))[0]
            total = flat if total is None else total + flat
        assert total is not None
        return DiagonalBlock(self.source.places, check_finite(total, self.source.name))


class DenseAccumulator(Accumulator):
    """Σ of outer products of the gradients of one or several sources, or of single weights (``index``) in them."""

    def __init__(
        self,
        sources: list[LayerSource] | list[RestSource] | list[LayerSource | RestSource],
        index: Tensor | None,
        like: Tensor,
    ) -> None:
        self.sources = list(sources)
        self.source = next((s for s in self.sources if not s.needs_layers()), self.sources[0])
        places = [span for s in self.sources for span in s.places]
        order = torch.cat([torch.arange(start, stop) for start, stop in places])
        self._columns: Tensor | None = None
        if index is None:
            self.places: Places = tuple(places)
            size = len(order)
        else:
            self.places = index
            position = torch.full((len(like),), -1, dtype=torch.long)
            position[order] = torch.arange(len(order))
            self._columns = position[index.cpu()].to(like.device)
            size = len(index)
        self.matrix = torch.zeros(size, size, dtype=like.dtype, device=like.device)

    def column(self, batch: BatchGradients, gradients: list[list[Tensor]], column: Tensor) -> None:
        """See :class:`Accumulator`."""
        with torch.enable_grad():
            parts = [s.rows(batch, gradients, column).detach() for s in self.sources]
        rows = torch.cat(parts, dim=1)
        if self._columns is not None:
            rows = rows[:, self._columns]
        self.matrix.addmm_(rows.mT, rows)

    def blocks(self) -> list[Block]:
        """See :class:`Accumulator`."""
        return [DenseBlock(self.places, check_finite(self.matrix, self.source.name))]


def visitor(sweep: Sweep, accumulators: list[Accumulator]) -> Callable[[BatchGradients], None]:
    """A visitor that hands every batch and column to the accumulators."""
    by_layer = [a for a in accumulators if a.source.needs_layers()]
    by_rest = [a for a in accumulators if not a.source.needs_layers()]

    def visit(batch: BatchGradients) -> None:
        if sweep.kind == "ggn" and batch.flow.outputs.shape[-1] > _MANY_COLUMNS:
            warnings.warn(
                f"an exact pass takes one backward pass for each of the {batch.flow.outputs.shape[-1]} outputs; "
                'kind="monte-carlo" takes one in all.',
                TemperanceWarning,
                stacklevel=2,
            )
        with torch.no_grad():
            for accumulator in accumulators:
                accumulator.begin(batch)
        for column in batch.cotangents:
            if batch.partial and not bool(column.any()):
                continue  # no target of this batch speaks of it
            gradients = batch.flow.gradients(column) if sweep.capture.layers else []
            with torch.no_grad():
                for accumulator in by_layer:
                    accumulator.column(batch, gradients, column)
            for accumulator in by_rest:
                accumulator.column(batch, gradients, column)
        with torch.no_grad():
            for accumulator in accumulators:
                accumulator.end(batch)

    return visit


def by_matrix(sources: list[LayerSource | RestSource]) -> list[LayerSource | RestSource]:
    """The same with a source for each of a layer's matrices, where it consists of several (attention)."""
    made: list[LayerSource | RestSource] = []
    for source in sources:
        # Of biases alone, one dense block says more.
        if isinstance(source, LayerSource) and any(matrix.has_weight for matrix in source.layer.matrices):
            made += [LayerSource(source.number, matrix) for matrix in source.layer.matrices]
        else:
            made.append(source)
    return made


def sources_of(sweep: Sweep) -> list[LayerSource | RestSource]:
    """Every layer with a rule, then every module without, as sources of per-example gradients."""
    layers: list[LayerSource | RestSource] = [LayerSource(k, layer) for k, layer in enumerate(sweep.capture.layers)]
    rest = [
        RestSource(name or ", ".join(e.name for e in general.entries), general)
        for name, general in sweep.general.items()
    ]
    return [*layers, *rest]
