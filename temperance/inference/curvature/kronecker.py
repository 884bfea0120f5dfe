"""Adding up Kronecker factors: second moments of a layer's inputs and of the gradients at its outputs."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.inference.curvature.accumulate import CHUNK, Accumulator, GradientSquares, LayerSource, check_finite
from temperance.inference.curvature.layers import EmbeddingLayer, Matrix, chunk
from temperance.inference.curvature.sweep import BatchGradients
from temperance.linalg.blocks import Block
from temperance.linalg.kronecker import KroneckerBlock, kronecker_block
from temperance.linalg.places import take


class KroneckerAccumulator(Accumulator):
    """A = mean of a aᵀ and G = Σ g gᵀ, for each group of a layer."""

    source: LayerSource

    def __init__(self, source: LayerSource, prior_precision: Tensor, reduce: bool, factor_limit: int) -> None:
        assert isinstance(source.layer, Matrix)
        self.source, self.layer, self.reduce = source, source.layer, reduce
        self.prior_precision, self.limit = prior_precision, factor_limit
        self._a: Tensor | None = None
        self._g: Tensor | None = None
        self._unreduced: Tensor | float = 0.0
        self._rows = 0.0
        self._each = 0  # numbers of one example's input rows
        self._live: Tensor | None = None  # of a batch with outputs that do not count: the rows that lead to others
        self._made: list[KroneckerBlock] = []

    def begin(self, batch: BatchGradients) -> None:
        """A; at the end of the batch, where only its columns tell which rows count."""
        self._live = None
        if not batch.partial:
            self._inputs(batch)

    def end(self, batch: BatchGradients) -> None:
        """See :class:`Accumulator`."""
        if self._live is not None:
            self._inputs(batch)

    def _inputs(self, batch: BatchGradients) -> None:
        """Some examples at a time where a convolution has many places."""
        inputs = batch.flow.calls[self.source.number].inputs
        if not self._each:
            first = self.layer.input_rows([chunk(value, 0, 1, batch.rows) for value in inputs], 1)
            self._each = max(1, first.numel())
        step = max(1, CHUNK // self._each)
        for start in range(0, batch.rows, step):
            count = min(step, batch.rows - start)
            live = None if self._live is None else self._live[start : start + count]
            weights = None if batch.weights is None else batch.weights[start : start + count]
            self._add_inputs([chunk(value, start, count, batch.rows) for value in inputs], count, live, weights)

    def _add_inputs(self, inputs: list[Tensor], rows: int, live: Tensor | None, weights: Tensor | None) -> None:
        a = self.layer.input_rows(inputs, rows)
        if live is None:
            flat = (a.mean(2, keepdim=True) if self.reduce else a).flatten(1, 2)
        elif self.reduce:
            some = live.any(1)  # examples
            shares = live[some].to(a) / live[some].sum(1, keepdim=True)
            flat = (a[:, some] * shares.unsqueeze(-1)).sum(2)
        else:
            flat = a[:, live]
        if weights is None:
            self._rows += flat.shape[1]
        else:
            each = weights.unsqueeze(1).expand(rows, 1 if self.reduce else a.shape[2])
            each = each.flatten() if live is None else weights[some] if self.reduce else each[live]
            self._rows += float(each.sum())
            flat = flat * each.sqrt().unsqueeze(-1).to(flat)
        self._a = _add_moment(self._a, flat, self.limit, self.source.name, "inputs")

    def column(self, batch: BatchGradients, gradients: list[list[Tensor]], column: Tensor) -> None:
        """G."""
        g = self.layer.output_rows(gradients[self.source.number], batch.rows)
        if batch.partial:
            found = (g != 0).any(-1).any(0)
            self._live = found if self._live is None else self._live | found
        if self.reduce:
            self._unreduced = self._unreduced + g.square().sum()
            g = g.sum(2, keepdim=True)
        self._g = _add_moment(self._g, g.flatten(1, 2), self.limit, self.source.name, "outputs")

    def blocks(self) -> list[Block]:
        """See :class:`Accumulator`."""
        if not self._made:
            assert self._a is not None
            assert self._g is not None
            self._warn_if_cancelled(self._g)
            for group in range(self.layer.groups):
                places = self.layer.group_places(group)
                a = check_finite(self._a[group] / self._rows, self.source.name)
                g = check_finite(self._g[group], self.source.name)
                has_bias = self.layer.has_bias
                scales = separable(take(self.prior_precision, places), len(g), len(a), has_bias, self.source.name)
                self._made.append(kronecker_block(places, a, g, *scales, has_bias, self._rows))
        return list(self._made)

    def _warn_if_cancelled(self, g: Tensor) -> None:
        """Before a softmax over places, or a norm over them, the gradients at all places sum to zero."""
        kept = float((g.diagonal(dim1=-2, dim2=-1) if g.dim() == 3 else g).sum())
        if self.reduce and kept < 1e-6 * float(self._unreduced):
            warnings.warn(
                f"layer {self.source.name!r}: its gradients at the places of an example cancel (a softmax or a norm "
                'over places follows), so sharing="reduce" sees no curvature there and leaves these weights as the '
                'prior has them. Use sharing="expand".',
                TemperanceWarning,
                stacklevel=2,
            )

    def correction(self) -> Accumulator:
        """See :class:`Accumulator`."""
        self.blocks()
        return _CorrectionAccumulator(self.source, self._made)


def _add_moment(total: Tensor | None, rows: Tensor, limit: int, name: str, what: str) -> Tensor:
    """Add Σ v vᵀ for the rows v of each group (groups × n × d); only its diagonal where d exceeds the limit."""
    width = rows.shape[-1]
    if total is None:
        if width > limit:
            warnings.warn(
                f"layer {name!r} has {width:,} {what}: the factor of that side would need {width:,}² numbers, so only "
                "its diagonal is kept. `factor_limit` decides.",
                TemperanceWarning,
                stacklevel=2,
            )
            return rows.square().sum(1)
        return rows.mT @ rows
    if width > limit:
        return total.add_(rows.square().sum(1))
    return total.baddbmm_(rows.mT, rows)


def separable(precision: Tensor, rows: int, columns: int, has_bias: bool, name: str) -> tuple[Tensor, Tensor]:
    """Roots t_in, t_out of a layer's prior precision T = t_out t_inᵀ; an error where it is no such product."""
    if not bool((precision > 0).all()):
        raise ArgumentError(
            "`prior`: a Kronecker-factored curvature needs a prior whose curvature is positive everywhere, a Gaussian; "
            f"that of layer {name!r} is not. Use Diagonal() or Dense(), or a GaussianPrior."
        )
    weight = precision[: rows * (columns - has_bias)].view(rows, columns - has_bias)
    matrix = torch.cat([weight, precision[-rows:].unsqueeze(1)], dim=1) if has_bias else weight
    product = torch.outer(matrix[:, 0], matrix[0]) / matrix[0, 0]
    if float(((product - matrix) / matrix).abs().max()) > 1e-3:
        raise ArgumentError(
            "`prior`: a Kronecker-factored curvature needs a prior precision that is a number for each input times one "
            f"for each output; that of layer {name!r} is not. Use Diagonal(), BlockDiagonal() or Dense()."
        )
    return matrix[0].sqrt(), (matrix[:, 0] / matrix[0, 0]).sqrt()


class _CorrectionAccumulator(Accumulator):
    """Second moments of single examples' gradients in the basis of the factors."""

    source: LayerSource

    def __init__(self, source: LayerSource, made: list[KroneckerBlock]) -> None:
        assert isinstance(source.layer, Matrix)
        self.source, self.layer, self.made = source, source.layer, made
        self._groups = [GradientSquares() for _ in made]

    def begin(self, batch: BatchGradients) -> None:
        """Inputs in the basis."""
        a = self.layer.input_rows(batch.flow.calls[self.source.number].inputs, batch.rows)
        for squares, part, block in zip(self._groups, a, self.made, strict=True):
            squares.begin(_project(part, block.in_scale, block.basis_in))

    def column(self, batch: BatchGradients, gradients: list[list[Tensor]], column: Tensor) -> None:
        """Gradients in the basis."""
        g = self.layer.output_rows(gradients[self.source.number], batch.rows)
        for squares, part, block in zip(self._groups, g, self.made, strict=True):
            squares.add(_project(part, block.out_scale, block.basis_out))

    def end(self, batch: BatchGradients) -> None:
        """See :class:`Accumulator`."""
        for squares in self._groups:
            squares.end()

    def blocks(self) -> list[Block]:
        """See :class:`Accumulator`."""
        made: list[Block] = []
        for block, squares in zip(self.made, self._groups, strict=True):
            assert squares.total is not None
            made.append(replace(block, corrected=check_finite(squares.total, self.source.name)))
        return made


def _project(rows: Tensor, scale: Tensor, basis: Tensor | None) -> Tensor:
    scaled = rows / scale
    return scaled if basis is None else scaled @ basis


class WordAccumulator(Accumulator):
    """An embedding, words × dimensions: the moment of one-hot inputs is diagonal, how often each word occurs; that of
    the gradients is a matrix over dimensions. H ≈ diag(counts) ⊗ (mean of g gᵀ), places treated like examples."""

    source: LayerSource

    def __init__(self, source: LayerSource, prior_precision: Tensor) -> None:
        assert isinstance(source.layer, EmbeddingLayer)
        self.source, self.layer, self.prior_precision = source, source.layer, prior_precision
        words, width = self.layer.entries["weight"].shape
        self._counts = torch.zeros(words, dtype=prior_precision.dtype, device=prior_precision.device)
        self._g = torch.zeros(width, width, dtype=prior_precision.dtype, device=prior_precision.device)
        self._made: KroneckerBlock | None = None
        self._live: Tensor | None = None

    def begin(self, batch: BatchGradients) -> None:
        """Frequencies; at the end of the batch, where only its columns tell which words count."""
        self._live = None
        if not batch.partial:
            self._count(batch)

    def end(self, batch: BatchGradients) -> None:
        """See :class:`Accumulator`."""
        if self._live is not None:
            self._count(batch)

    def _count(self, batch: BatchGradients) -> None:
        words = self.layer.words(batch.flow.calls[self.source.number].inputs, batch.rows)
        live = torch.ones_like(words, dtype=torch.bool) if self._live is None else self._live
        shares = None if batch.weights is None else batch.weights.unsqueeze(1).expand(words.shape)[live]
        counts = torch.bincount(words[live], shares, minlength=len(self._counts)).to(self._counts)
        if self.layer.module.padding_idx is not None:
            counts[self.layer.module.padding_idx] = 0
        self._counts += counts

    def column(self, batch: BatchGradients, gradients: list[list[Tensor]], column: Tensor) -> None:
        """Gradients."""
        words = self.layer.words(batch.flow.calls[self.source.number].inputs, batch.rows)
        g = self.layer.output_rows(gradients[self.source.number], batch.rows)[0]
        if batch.partial:
            found = (g != 0).any(-1)
            self._live = found if self._live is None else self._live | found
        flat = self.layer.without_padding(words, g).flatten(0, 1)
        self._g.addmm_(flat.mT, flat)

    def blocks(self) -> list[Block]:
        """The weight is stored word by word, so words are the rows of the block's matrix, dimensions its columns."""
        if self._made is None:
            total = self._counts.sum().clamp(min=1)
            places = self.layer.places
            tau = take(self.prior_precision, places)
            words, width = len(self._counts), len(self._g)
            in_scale, out_scale = separable(tau, words, width, False, self.source.name)
            g = check_finite(self._g / total, self.source.name)
            self._made = kronecker_block(places, g, self._counts, in_scale, out_scale, False, float(total))
        return [self._made]

    def correction(self) -> Accumulator:
        """See :class:`Accumulator`."""
        self.blocks()
        assert self._made is not None
        return _WordCorrectionAccumulator(self.source, self._made)


class _WordCorrectionAccumulator(Accumulator):
    """Second moments of single examples' gradients of each word, in the basis over dimensions."""

    source: LayerSource

    def __init__(self, source: LayerSource, made: KroneckerBlock) -> None:
        self.source, self.made = source, made
        self._sum = torch.zeros(made.shape, dtype=made.values_in.dtype, device=made.values_in.device)

    def column(self, batch: BatchGradients, gradients: list[list[Tensor]], column: Tensor) -> None:
        """See :class:`Accumulator`."""
        rotated = [_project(g, self.made.in_scale, self.made.basis_in) for g in gradients[self.source.number]]
        inputs = batch.flow.calls[self.source.number].inputs
        self._sum += self.source.layer.squares(inputs, rotated, batch.rows).view(self.made.shape)

    def blocks(self) -> list[Block]:
        """See :class:`Accumulator`."""
        corrected = self._sum / self.made.out_scale.square().unsqueeze(-1)
        return [replace(self.made, corrected=check_finite(corrected, self.source.name))]
