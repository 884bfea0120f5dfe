"""Gradient and diagonal curvature of one batch after another, at a θ that changes from batch to batch."""

from __future__ import annotations

import torch
from torch import Tensor

from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.curvature.accumulate import DiagonalAccumulator, sources_of, visitor
from temperance.inference.curvature.capture import RuleBroken
from temperance.inference.curvature.sweep import BatchGradients, Kind, Sweep
from temperance.linalg.places import put


class BatchCurvature:
    """The mean loss of a batch, its gradient, and the diagonal of its (generalised Gauss–Newton) Hessian.

    The rules for gradients of single examples are tried once, on the first rows of ``data``.
    """

    def __init__(self, engine: Engine, theta: Tensor, buffers: dict[str, Tensor], data: Data, kind: Kind) -> None:
        self.engine = engine
        self.sweep = Sweep(engine, theta, buffers, data, kind=kind)

    def at(self, theta: Tensor, batch: Batch, rng: torch.Generator) -> tuple[float, Tensor, Tensor]:
        """Mean negative log-likelihood; gradient and curvature of it (over the likelihood's temperature), P each."""
        sweep = self.sweep
        sweep.capture.theta = theta
        sweep.learned = self.engine.layout.unflatten(theta, "likelihood")
        while True:
            try:
                return self._at(batch, rng)
            except RuleBroken as broken:
                sweep.leave(broken.layer)

    def _at(self, batch: Batch, rng: torch.Generator) -> tuple[float, Tensor, Tensor]:
        sweep, engine, layout = self.sweep, self.engine, self.engine.layout
        temperature, count = engine.likelihood_temperature, batch.size
        gradient, squares = torch.zeros_like(sweep.capture.theta), torch.zeros_like(sweep.capture.theta)
        accumulators = [DiagonalAccumulator(source) for source in sources_of(sweep)]
        with sweep.capture.attached():
            flow = sweep.capture.run(batch.x)
            learned = {name: value.clone().requires_grad_() for name, value in sweep.learned.items()}
            nll = engine.likelihood.weighed(flow.outputs, batch.y, learned, batch.weights)
            leaves = [*sweep.capture.parameters(), *learned.values()]
            found = torch.autograd.grad(nll, leaves, retain_graph=True, materialize_grads=True)
            for entry, part in zip(layout.entries, found, strict=True):
                gradient[entry.start : entry.stop] = part.flatten()
            columns = sweep.cotangents(flow.outputs.detach(), batch.y, rng, batch.weights)
            visitor(sweep, list(accumulators))(
                BatchGradients(batch.x, batch.y, flow, columns, sweep.partial(batch.y), batch.weights)
            )
        for accumulator in accumulators:
            block = accumulator.block()
            put(squares, block.places, block.values)
        if sweep.learned:
            fisher = engine.likelihood.weighed_fisher(flow.outputs.detach(), sweep.learned, batch.weights)
            fisher = fisher / temperature
            squares[layout.network_size :] = fisher.diagonal()
        return float(nll.detach()) / count, gradient.div_(count * temperature), squares.div_(count)
