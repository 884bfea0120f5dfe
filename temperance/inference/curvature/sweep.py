"""One pass over the data: log-likelihood and its gradient, and for every batch the gradients that curvature is made of.

The generalised Gauss–Newton matrix is Σ_n J_nᵀ H_n J_n, with H_n the (expected) Hessian of −log p in the network's
outputs. With *columns* c such that Σ_k c_k c_kᵀ = H_n, it is a sum of squares of ordinary gradients, of c_kᵀ f. The
kinds differ in their columns:

* ``"ggn"``: C columns of a root of H_n, exact;
* ``"monte-carlo"``: ∇ log p(ỹ | f)/√m for m draws ỹ of the model itself: the same in expectation, with m passes;
* ``"empirical"``: ∇ log p(y | f) of the data: one pass, another matrix (the empirical Fisher).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from temperance.core.checks import check_finite
from temperance.core.errors import DataError, NumericalError
from temperance.core.progress import ProgressBar
from temperance.core.seeds import generator
from temperance.data.data import Batch, Data
from temperance.data.sources import Inputs, named_tensors
from temperance.engine.engine import Engine
from temperance.inference.curvature.capture import Capture, CapturedPass
from temperance.inference.curvature.general import GeneralGradients
from temperance.inference.curvature.layers import Layer

Kind = Literal["ggn", "monte-carlo", "empirical"]
_PROBE_ROWS = 4


@dataclass
class BatchGradients:
    """A batch, and its columns one after the other."""

    x: Inputs
    y: Tensor
    flow: CapturedPass
    cotangents: Iterator[Tensor]
    partial: bool = False
    """Whether there are outputs that no target speaks of: a layer's rows that lead to none but these count for nothing,
    and averages over rows are over the others."""
    weights: Tensor | None = None
    """How often each example counts; the columns have its root already."""

    @property
    def rows(self) -> int:
        """B."""
        return self.flow.rows


@dataclass
class Sums:
    """What a pass adds up besides curvature: log p(D | θ) and its gradient in θ, P numbers."""

    log_likelihood: float
    gradient: Tensor
    learned_fisher: Tensor | None
    num_targets: float


class Sweep:
    """Passes over ``data`` at one θ; see the module. ``names``: which parameters are random (all of θ for ``None``)."""

    def __init__(
        self,
        engine: Engine,
        theta: Tensor,
        buffers: dict[str, Tensor],
        data: Data,
        *,
        names: list[str] | None = None,
        kind: Kind = "ggn",
        samples: int = 1,
        batch_size: int = 256,
        seed: int = 0,
    ) -> None:
        self.engine, self.data, self.kind, self.samples = engine, data, kind, samples
        self.batch_size, self.seed = min(batch_size, len(data)), seed
        self.buffers = {name: value.detach().clone() for name, value in buffers.items()}
        self.capture = Capture(engine, theta, self.buffers, names)
        self.learned = engine.layout.unflatten(theta.detach(), "likelihood")
        self.has_learned = names is None and bool(self.learned)
        probe = self._probe()
        self.capture.verify(probe.x)
        self.general = self._general()
        self.num_outputs = 0

    def _general(self) -> dict[str, GeneralGradients]:
        return {name: GeneralGradients(self.capture, entries) for name, entries in self.capture.rest.items()}

    def leave(self, layer: Layer) -> None:
        """Take the gradients of ``layer`` by automatic differentiation from now on."""
        self.capture.leave(layer)
        self.general = self._general()

    def _probe(self) -> Batch:
        """A few rows; and whether they are the same when they are asked for again."""
        rows = min(_PROBE_ROWS, len(self.data))
        twice = [next(iter(self.data.full_pass(rows))) for _ in range(2)]
        pairs = zip(named_tensors(twice[0].x), named_tensors(twice[1].x), strict=True)
        same = all(torch.equal(a, b) for (_, a), (_, b) in pairs) and torch.equal(twice[0].y, twice[1].y)
        if not same:
            raise DataError(
                "`data` must give the same rows every time for a pass over all of it, but its first rows changed from "
                "one pass to the next: turn off shuffling and random augmentation, or give it a fixed seed per row."
            )
        return twice[0].to(self.engine.device)

    def batches(self, title: str = "curvature") -> Iterator[BatchGradients]:
        """One pass. The columns of a batch are the same in every pass."""
        steps = -(-len(self.data) // self.batch_size)
        with ProgressBar(title, steps) as bar, self.capture.attached():
            for k, batch in enumerate(self.data.full_pass(self.batch_size)):
                moved = batch.to(self.engine.device)
                flow = self.capture.run(moved.x)
                self.num_outputs = flow.outputs.shape[-1]
                rng = generator(self.seed, "curvature", k, device=self.engine.device)
                columns = self.cotangents(flow.outputs.detach(), moved.y, rng, moved.weights)
                yield BatchGradients(moved.x, moved.y, flow, columns, self.partial(moved.y), moved.weights)
                bar.advance_to(k + 1, float("nan"), last=k + 1 == steps)

    def partial(self, y: Tensor) -> bool:
        """Whether there are outputs that no target speaks of."""
        seen = self.engine.likelihood.seen(y)
        return seen is not None and not bool(seen.all())

    def cotangents(
        self, outputs: Tensor, y: Tensor, rng: torch.Generator, weights: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Columns, B × C each, of a root of the output Hessian; zero at outputs that no target speaks of, and times
        √w of examples that count w times."""
        seen = self.engine.likelihood.seen(y)
        for column in self._columns(outputs, y, rng):
            made = column if seen is None else column * seen
            yield made if weights is None else made * weights.sqrt().unsqueeze(-1).to(made)

    def _columns(self, outputs: Tensor, y: Tensor, rng: torch.Generator) -> Iterator[Tensor]:
        likelihood = self.engine.likelihood
        factor = self.engine.likelihood_temperature**-0.5
        if self.kind == "ggn":
            for column in likelihood.fisher_columns(outputs, self.learned):
                yield factor * column
        elif self.kind == "empirical":
            yield factor * likelihood.score(outputs, y, self.learned)
        else:
            check_finite(outputs, "the network's outputs")  # from others no target can be drawn
            for _ in range(self.samples):
                yield factor * likelihood.fisher_draw(outputs, self.learned, rng) / math.sqrt(self.samples)

    def _targets(self, batch: BatchGradients) -> float:
        """How many numbers y there are, as often as they count."""
        seen = self.engine.likelihood.seen(batch.y)
        if batch.weights is None:
            return batch.y.numel() if seen is None else int(seen.sum())
        each = torch.full_like(batch.weights, batch.y[0].numel()) if seen is None else seen.sum(-1)
        return float((batch.weights * each).sum())

    def add_up(self, visit: Callable[[BatchGradients], None] | None = None) -> Sums:
        """The first pass: log-likelihood, its gradient, and whatever ``visit`` makes of each batch."""
        engine, layout = self.engine, self.engine.layout
        temperature = engine.likelihood_temperature
        gradient = torch.zeros(layout.size, dtype=layout.dtype, device=engine.device)
        total, targets = 0.0, 0.0
        fisher: Tensor | None = None
        for batch in self.batches():
            learned = {name: value.clone().requires_grad_() for name, value in self.learned.items()}
            nll = engine.likelihood.weighed(batch.flow.outputs, batch.y, learned, batch.weights) / temperature
            leaves = [*self.capture.parameters(), *(learned.values() if self.has_learned else ())]
            found = torch.autograd.grad(nll, leaves, retain_graph=True, materialize_grads=True)
            entries = [*self.capture.entries, *(layout[name] for name in learned if self.has_learned)]
            for entry, part in zip(entries, found, strict=True):
                gradient[entry.start : entry.stop] -= part.flatten()
            total -= float(nll.detach().double())
            targets += self._targets(batch)
            if self.has_learned:
                outputs = batch.flow.outputs.detach()
                part = engine.likelihood.weighed_fisher(outputs, self.learned, batch.weights) / temperature
                fisher = part if fisher is None else fisher + part
            if visit is not None:
                visit(batch)
        if not math.isfinite(total) or not bool(torch.isfinite(gradient).all()):
            raise NumericalError(
                "the log-likelihood or its gradient is not finite at θ: a NaN never becomes a posterior. Look at the "
                "data and at how training ended."
            )
        return Sums(total, gradient, fisher, targets)
