"""The network linearised at the mean of a Laplace posterior: f(x) + J(x) (θ − θ*), Gaussian in the outputs.

The covariance of the outputs, J Λ⁻¹ Jᵀ, is contracted layer by layer from the layers' inputs and the gradients at their
outputs; the Jacobian B × C × P is never built. Where a block has no such shortcut (dense blocks), rows are taken in
chunks that bound the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.core.seeds import generator
from temperance.data.sources import Inputs, first_tensor, map_tensors
from temperance.engine.engine import Engine
from temperance.inference.curvature.capture import Capture, CapturedPass, RuleBroken
from temperance.inference.curvature.general import GeneralGradients
from temperance.inference.curvature.layers import Layer, Lookup, Matrix
from temperance.inference.curvature.products import JacobianProducts, differentiable_twice
from temperance.linalg.assembled import PosteriorCovariance
from temperance.linalg.blocks import Block
from temperance.linalg.kronecker import matrix_output_covariance
from temperance.linalg.operator import Covariance, MatrixCovariance
from temperance.linalg.places import take
from temperance.posteriors import CurvatureGaussian

_NUMBERS = 2**25  # of Jacobians held at once
_JOINT_NUMBERS = 2**29  # of a block's Jacobian for a joint covariance
_PROBE = 2
_KEEP_BYTES = 2**28  # of displacements

Span = tuple[int, int]


class Pass:
    """One chunk of inputs: what was caught, and gradients of every output."""

    def __init__(self, law: LinearisedOutputs, x: Inputs) -> None:
        self.law, self.x = law, x
        self.flow: CapturedPass = law.capture.run(x)
        self.outputs = self.flow.outputs.detach()
        self.rows, self.classes = self.outputs.shape
        self._gradients: list[list[list[Tensor]]] | None = None
        self._jacobians: dict[int, Tensor] = {}

    @cached_property
    def cotangents(self) -> Tensor:
        """One for each output, C × B × C; only asked for where outputs are few."""
        eye = torch.eye(self.classes, dtype=self.outputs.dtype, device=self.outputs.device)
        return eye.unsqueeze(1).expand(self.classes, self.rows, self.classes)

    @property
    def gradients(self) -> list[list[list[Tensor]]]:
        """For each output, for each layer, for each call."""
        if self._gradients is None:
            self._gradients = [self.flow.gradients(c) for c in self.cotangents] if self.flow.calls else []
        return self._gradients

    def layer_rows(self, number: int, layer: Matrix) -> tuple[Tensor, Tensor]:
        """Inputs groups × B × R × in and gradients C × groups × B × R × out of a matrix of layer ``number``."""
        a = layer.input_rows(self.flow.calls[number].inputs, self.rows)
        g = torch.stack([layer.output_rows(found[number], self.rows) for found in self.gradients])
        return a, g

    def jacobian_of(self, source: int) -> Tensor:
        """The Jacobian of one source (layers first, then the rest), B × C × p."""
        if source not in self._jacobians:
            layers = self.law.capture.layers
            if source < len(layers):
                calls = self.flow.calls[source].inputs
                made = [layers[source].jacobian(calls, found[source], self.rows) for found in self.gradients]
                self._jacobians[source] = torch.stack(made, dim=1)
            else:
                general = self.law.rest[source - len(layers)]
                self._jacobians[source] = general.rows(self.x, self.cotangents).detach().transpose(0, 1)
        return self._jacobians[source]

    def jacobian(self, block: Block) -> Tensor:
        """The Jacobian over the coordinates of a block, B × C × p."""
        if isinstance(block.places, Tensor):
            whole = self.outputs.new_zeros(self.rows, self.classes, self.law.engine.layout.size)
            for number, spans in enumerate(self.law.sources):
                at = 0
                for start, stop in spans:
                    whole[..., start:stop] = self.jacobian_of(number)[..., at : at + stop - start]
                    at += stop - start
            return take(whole, block.places)
        return torch.cat([self._span(span) for span in block.places], dim=-1)

    def _span(self, span: Span) -> Tensor:
        pieces, low = [], span[0]
        size = self.law.engine.layout.network_size
        if span[0] >= size:  # what the likelihood learns moves no output
            return self.outputs.new_zeros(self.rows, self.classes, span[1] - span[0])
        while low < span[1]:  # a span may run over several sources (a diagonal block over the whole network)
            number, at, stop = self.law.locate(low)
            high = min(stop, span[1])
            pieces.append(self.jacobian_of(number)[..., at : at + high - low])
            low = high
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-1)


class LinearisedOutputs:
    """Outputs under a Laplace posterior: Gaussian, with mean f(x; θ*) and covariance J Σ Jᵀ."""

    def __init__(self, engine: Engine, posterior: CurvatureGaussian, x: Inputs) -> None:
        self.engine, self.posterior = engine, posterior
        self.operator = posterior.operator
        layout = engine.layout
        random = torch.zeros(layout.size, dtype=torch.bool)
        for block in self.operator.blocks:
            if isinstance(block.places, Tensor):
                random[block.places.cpu()] = True
            else:
                for start, stop in block.places:
                    random[start:stop] = True
        names = [e.name for e in layout.network_entries if bool(random[e.start : e.stop].any())]
        self.capture = Capture(engine, posterior.mean, dict(posterior.buffers), names)
        probe = map_tensors(lambda t: t[:_PROBE].to(engine.device), x)
        if not self.capture.recall():
            self.capture.verify(probe)
        self._arrange()
        self.blocks = [
            (block, factor)
            for block, factor in zip(self.operator.blocks, self.operator.parts, strict=True)
            if not self._is_learned(block)
        ]
        with self.capture.attached():
            flow = self._pass(probe).flow
        self.num_outputs = flow.outputs.shape[-1]
        self._numbers = self._numbers_a_row(flow)

    def _arrange(self) -> None:
        """Who gives the Jacobian of which part of θ."""
        self.rest = [GeneralGradients(self.capture, entries) for entries in self.capture.rest.values()]
        self.sources: list[tuple[Span, ...]] = [layer.places for layer in self.capture.layers]
        self.sources += [general.places for general in self.rest]
        self._layers = self._matched()
        self._spread: dict[int, tuple[ReferenceType[Covariance], tuple[Tensor, list[int]]]] = {}

    def _pass(self, x: Inputs) -> Pass:
        """A chunk on its way; a rule that its rows break is given up, and the chunk begun again."""
        while True:
            try:
                return Pass(self, x)
            except RuleBroken as broken:
                self.capture.leave(broken.layer)
                self._arrange()

    def _is_learned(self, block: Block) -> bool:
        return not isinstance(block.places, Tensor) and block.places[0][0] >= self.engine.layout.network_size

    def _matched(self) -> dict[tuple[Span, ...], tuple[int, Matrix, int]]:
        """Layers' numbers, their matrices and groups by their places in θ."""
        found = {}
        for number, layer in enumerate(self.capture.layers):
            for matrix in layer.matrices:
                for group in range(matrix.groups):
                    found[matrix.group_places(group)] = (number, matrix, group)
        return found

    def locate(self, place: int) -> tuple[int, int, int]:
        """Which source holds a place of θ, where in it, and where that stretch of θ ends."""
        for number, spans in enumerate(self.sources):
            at = 0
            for start, stop in spans:
                if start <= place < stop:
                    return number, at + place - start, stop
                at += stop - start
        raise LookupError(place)

    def _numbers_a_row(self, flow: CapturedPass) -> int:
        """How many numbers of Jacobians a row takes at once."""
        rows = flow.rows
        largest = 0
        for layer, calls in zip(self.capture.layers, flow.calls, strict=True):
            for matrix in layer.matrices if calls.inputs and not isinstance(layer, Lookup) else ():
                places = matrix.input_rows(calls.inputs, rows).shape[2]
                largest = max(largest, matrix.size if places > 1 else 0, 8 * int(matrix.size**0.5))
        generic = sum(block.size for block, factor in self.blocks if not self._has_shortcut(block, factor))
        return self.num_outputs * max(1, largest + generic)

    def _has_shortcut(self, block: Block, factor: Covariance) -> bool:
        if isinstance(block.places, Tensor):
            return False
        return factor.is_diagonal or (isinstance(factor, MatrixCovariance) and block.places in self._layers)

    def chunks(self, x: Inputs, batch_size: int) -> Iterator[tuple[slice, Inputs]]:
        """Rows small enough to work on at once."""
        rows = first_tensor(x).shape[0]
        step = max(1, min(batch_size, _NUMBERS // self._numbers))
        for start in range(0, rows, step):
            at = slice(start, min(start + step, rows))
            yield at, map_tensors(lambda t, at=at: t[at].to(self.engine.device), x)  # type: ignore[misc]

    # ------------------------------------------------------------------ marginals

    def moments(self, x: Inputs, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Mean B × C and covariance B × C × C of the outputs, chunk by chunk."""
        for _, part in self.chunks(x, batch_size):
            with self.capture.attached():  # never across a yield: other members of a mixture use the same network
                made = self.moments_at(part)
            yield made

    def moments_at(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """The same of one chunk, while the capture is attached: tensors in, tensors out, as one who traces it needs."""
        run = self._pass(x)
        return run.outputs, self.operator.temperature * self._total(run, self.blocks)

    def under(self, operators: Sequence[PosteriorCovariance], x: Inputs) -> Iterator[tuple[Tensor, Tensor]]:
        """Mean and covariance of the outputs of a chunk under each of several operators with the blocks of this one:
        the network is asked once."""
        with self.capture.attached():
            run = self._pass(x)
            totals = [run.outputs.new_zeros(run.rows, run.classes, run.classes) for _ in operators]
            for parts in zip(*(zip(o.blocks, o.parts, strict=True) for o in operators), strict=True):
                block = parts[0][0]
                if self._is_learned(block):
                    continue
                for total, found in zip(totals, self._covariances(run, block, [f for _, f in parts]), strict=True):
                    total += found
        for operator, total in zip(operators, totals, strict=True):
            yield run.outputs, operator.temperature * total

    def _covariances(self, run: Pass, block: Block, factors: Sequence[Covariance]) -> Iterator[Tensor]:
        """Of one block under each of several factors."""
        first = factors[0]
        if isinstance(first, MatrixCovariance) and not isinstance(block.places, Tensor):
            number, layer, group = self._layers.get(block.places, (0, None, 0))
            if layer is not None and not isinstance(layer, Lookup):
                a, g = run.layer_rows(number, layer)
                yield from first.output_covariances(factors, a[group], g[:, group])
                return
        for factor in factors:
            yield self._covariance(run, block, factor)

    def _total(self, run: Pass, blocks: Sequence[tuple[Block, Covariance]]) -> Tensor:
        total = run.outputs.new_zeros(run.rows, run.classes, run.classes)
        for block, factor in blocks:
            total += self._covariance(run, block, factor)
        return total

    def _covariance(self, run: Pass, block: Block, factor: Covariance) -> Tensor:
        if isinstance(block.places, Tensor):
            half = factor.half(run.jacobian(block))
            return half @ half.mT
        if isinstance(factor, MatrixCovariance) and block.places in self._layers:
            number, layer, group = self._layers[block.places]
            if isinstance(layer, Lookup):
                words = layer.words(run.flow.calls[number].inputs, run.rows)
                found = [layer.output_rows(gradients[number], run.rows)[0] for gradients in run.gradients]
                return factor.lookup_covariance(words, torch.stack([layer.without_padding(words, g) for g in found]))
            a, g = run.layer_rows(number, layer)
            return factor.output_covariance(a[group], g[:, group])
        if factor.is_diagonal:
            return self._diagonal_covariance(run, self._variances(block.places, factor))
        half = factor.half(run.jacobian(block))
        return half @ half.mT

    def _variances(self, places: Sequence[Span], factor: Covariance) -> tuple[Tensor, list[int]]:
        """Variances of a diagonal block in the places of θ, and the sources in which any is above zero; found once."""
        known = self._spread.get(id(factor))
        if known is None or known[0]() is not factor:  # another may have had its address
            variance = factor.diagonal()
            whole = torch.zeros(self.engine.layout.size, dtype=variance.dtype, device=variance.device)
            at = 0
            for start, stop in places:
                whole[start:stop] = variance[at : at + stop - start]
                at += stop - start
            some = [k for k, spans in enumerate(self.sources) if bool((take(whole, spans) > 0).any())]
            self._spread = {place: each for place, each in self._spread.items() if each[0]() is not None}
            known = self._spread[id(factor)] = (ref(factor), (whole, some))
        return known[1]

    def _diagonal_covariance(self, run: Pass, spread: tuple[Tensor, list[int]]) -> Tensor:
        """Layer by layer: a matrix layer without its Jacobian, others with."""
        whole, some = spread
        total: Tensor | float = 0.0
        for number in some:
            layer: Layer | None = self.capture.layers[number] if number < len(self.capture.layers) else None
            if layer is not None and layer.matrices and not isinstance(layer, Lookup):
                for matrix in layer.matrices:
                    total = total + self._matrix_diagonal(run, number, matrix, whole)
                continue
            scaled = run.jacobian_of(number) * take(whole, self.sources[number]).sqrt()
            total = total + scaled @ scaled.mT
        assert isinstance(total, Tensor)
        return total

    @staticmethod
    def _matrix_diagonal(run: Pass, number: int, layer: Matrix, whole: Tensor) -> Tensor:
        a, g = run.layer_rows(number, layer)
        total = torch.zeros((), dtype=whole.dtype, device=whole.device)
        for group in range(layer.groups):
            spans = layer.group_places(group)
            matrix = whole[spans[0][0] : spans[0][1]].view(g.shape[-1], -1)
            if layer.has_weight and layer.has_bias:
                matrix = torch.cat([matrix, whole[spans[1][0] : spans[1][1]].unsqueeze(1)], dim=1)
            total = total + matrix_output_covariance(a[group], g[:, group], matrix)
        return total

    # ------------------------------------------------------------------ jointly over inputs

    def halves(self, x: Inputs, batch_size: int) -> tuple[Tensor, Tensor]:
        """Outputs (N × C), and rows whose inner products are the joint covariance of all outputs: (N·C) × P."""
        outputs, rows = [], []
        for _, part in self.chunks(x, batch_size):
            with self.capture.attached():
                run = self._pass(part)
                parts = [factor.half(run.jacobian(block)) for block, factor in self.blocks]
            outputs.append(run.outputs)
            rows.append(torch.cat(parts, dim=-1).flatten(0, 1) * math.sqrt(self.operator.temperature))
        return torch.cat(outputs), torch.cat(rows)

    def joint(self, x: Inputs, batch_size: int) -> tuple[Tensor, Tensor]:
        """Outputs (N × C) and their joint covariance, (N·C) × (N·C), in float64: one block's Jacobian at a time."""
        size = first_tensor(x).shape[0] * self.num_outputs
        largest = max(block.size for block, _ in self.blocks)
        if size * largest > _JOINT_NUMBERS:
            raise ArgumentError(
                f"the joint covariance of {size} outputs needs their Jacobian in a block of {largest:,} parameters, "
                f"{size * largest * 4 / 2**30:.1f} GiB; ask for fewer rows at once, or use output_functions()."
            )
        total = torch.zeros(size, size, dtype=torch.float64, device=self.engine.device)
        outputs: list[Tensor] = []
        for block, factor in self.blocks:
            rows, outputs = [], []
            step = max(1, _NUMBERS // (self.num_outputs * block.size))
            for _, part in self.chunks(x, min(step, batch_size)):
                with self.capture.attached():
                    run = self._pass(part)
                    rows.append(factor.half(run.jacobian(block)).flatten(0, 1))
                outputs.append(run.outputs)
            half = torch.cat(rows)
            total += (half @ half.mT).double()
        return torch.cat(outputs), self.operator.temperature * total

    def functions(self, x: Inputs, deltas: Sequence[Tensor], batch_size: int) -> Iterator[tuple[slice, Tensor]]:
        """f(x) + J(x) δ_s for displacements δ_s of θ (S × P), chunk by chunk: S × B × C."""
        places = tuple((e.start, e.stop) for e in self.capture.entries)
        rows = first_tensor(x).shape[0]
        for start in range(0, rows, batch_size):
            at = slice(start, min(start + batch_size, rows))
            part = map_tensors(lambda t, at=at: t[at].to(self.engine.device), x)  # type: ignore[misc]
            with self.capture.attached(), differentiable_twice(self.engine.network):
                flow = self.capture.run(part, layers=())
                products = JacobianProducts(flow.outputs, self.capture.parameters(), self.capture.entries)
                made = torch.stack([flow.outputs.detach() + products.forward(take(d, places)) for d in deltas])
            yield at, made

    def displacements(self, draws: int, seed: int) -> Sequence[Tensor]:
        """θ_s − θ* for draws θ_s of the posterior."""
        return Displacements(self.posterior, draws, seed)

    # ------------------------------------------------------------------ what the likelihood learns

    def learned_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and covariance of what the likelihood learns; of size zero where nothing is."""
        size = self.engine.layout.network_size
        mean = self.posterior.mean[size:]
        covariance = torch.zeros(len(mean), len(mean), dtype=mean.dtype, device=mean.device)
        for block, factor in zip(self.operator.blocks, self.operator.parts, strict=True):
            if self._is_learned(block):
                covariance = self.operator.temperature * factor.dense()
            elif not isinstance(block.places, Tensor) and block.places[-1][1] > size:  # a full Hessian has all in one
                eye = torch.eye(self.operator.size, dtype=mean.dtype, device=mean.device)[size:]
                covariance = self.operator.product(eye)[:, size:]
        return mean, covariance


class Displacements(Sequence[Tensor]):
    """θ_s − θ* for independent draws θ_s (the mean of a linear function is known, and pairs would tell less of its
    covariance): kept together where they are small, and made one by one, anew each time, where not."""

    def __init__(self, posterior: CurvatureGaussian, draws: int, seed: int) -> None:
        self.posterior, self.draws, self.seed = posterior, draws, seed
        self._kept: dict[int, Tensor] | None = None
        if draws * posterior.size * posterior.mean.element_size() <= _KEEP_BYTES:
            self._kept = {}

    def __len__(self) -> int:
        return self.draws

    def __getitem__(self, k: Any) -> Any:
        if not 0 <= k < len(self):
            raise IndexError(k)
        if self._kept is not None and k in self._kept:
            return self._kept[k]
        made = self.posterior.operator.draw(generator(self.seed, "draw", k))
        if self._kept is not None:
            self._kept[k] = made
        return made
