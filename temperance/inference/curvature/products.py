"""Products with the Jacobian, the Gauss–Newton matrix and the Hessian, none of which is built.

J v is the derivative of Jᵀ u in direction u, so that one graph, made by a single forward pass, serves both directions
and any operation that autograd can differentiate twice.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from temperance.inference.curvature.sweep import BatchGradients, Sums, Sweep
from temperance.linalg.blocks import Block, DenseBlock
from temperance.model.theta import Entry


def split(vector: Tensor, entries: list[Entry]) -> list[Tensor]:
    """A vector over some parameters, cut into their shapes."""
    made, at = [], 0
    for entry in entries:
        made.append(vector[at : at + entry.size].view(entry.shape))
        at += entry.size
    return made


def join(parts: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    """The inverse of :func:`split`."""
    return torch.cat([part.flatten() for part in parts])


@contextlib.contextmanager
def differentiable_twice(network: nn.Module) -> Iterator[None]:
    """Without fused kernels (attention, recurrent layers) whose gradients have no gradients."""
    recurrent = any(isinstance(module, nn.RNNBase) for module in network.modules())
    with contextlib.ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if recurrent:
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message="TF32 acceleration")  # these flags touch TF32, and it says so
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        yield


class JacobianProducts:
    """J v and Jᵀ u at one batch, for the outputs of a network whose graph is kept."""

    def __init__(self, outputs: Tensor, parameters: list[nn.Parameter], entries: list[Entry]) -> None:
        self.outputs, self.parameters, self.entries = outputs, parameters, entries
        self._dummy = torch.zeros_like(outputs, requires_grad=True)
        self._pulled = torch.autograd.grad(outputs, parameters, self._dummy, create_graph=True, materialize_grads=True)

    def forward(self, v: Tensor) -> Tensor:
        """J v, B × C."""
        (made,) = torch.autograd.grad(
            self._pulled, self._dummy, split(v, self.entries), retain_graph=True, materialize_grads=True
        )
        return made

    def backward(self, u: Tensor) -> Tensor:
        """Jᵀ u."""
        found = torch.autograd.grad(self.outputs, self.parameters, u, retain_graph=True, materialize_grads=True)
        return join(found)


def gauss_newton_product(sweep: Sweep, v: Tensor) -> Tensor:
    """Σ_n J_nᵀ H_n J_n v over the data, for v over the random parameters of the network: one pass."""
    total = torch.zeros_like(v)
    with differentiable_twice(sweep.engine.network):
        for batch in sweep.batches("directions"):
            products = JacobianProducts(batch.flow.outputs, sweep.capture.parameters(), sweep.capture.entries)
            total += products.backward(_weigh(sweep, batch, products.forward(v)))
    return total


def _weigh(sweep: Sweep, batch: BatchGradients, moved: Tensor) -> Tensor:
    """H_n (J_n v): by the likelihood's own product, or column by column."""
    engine = sweep.engine
    if sweep.kind == "ggn":
        seen = engine.likelihood.seen(batch.y)
        moved = moved if seen is None else moved * seen
        found = engine.likelihood.fisher_product(batch.flow.outputs.detach(), sweep.learned, moved)
        found = found if seen is None else found * seen
        found = found if batch.weights is None else found * batch.weights.unsqueeze(-1).to(found)
        return found / engine.likelihood_temperature
    made = torch.zeros_like(moved)
    for column in batch.cotangents:
        made += column * (column * moved).sum(-1, keepdim=True)
    return made


def full_hessian(sweep: Sweep, index: Tensor | None) -> tuple[list[Block], Sums]:
    """−∇² log p(D | θ) over the random parameters, what the likelihood learns included: P backward passes a batch."""
    engine, layout = sweep.engine, sweep.engine.layout
    entries = [*sweep.capture.entries, *(e for e in layout.entries if e.role == "likelihood" and sweep.has_learned)]
    places = tuple((e.start, e.stop) for e in entries)
    order = torch.cat([torch.arange(start, stop) for start, stop in places])
    wanted = torch.arange(len(order)) if index is None else torch.searchsorted(order, index.cpu())
    matrix = torch.zeros(len(wanted), len(wanted), dtype=layout.dtype, device=engine.device)

    def visit(batch: BatchGradients) -> None:
        learned = {name: value.clone().requires_grad_() for name, value in sweep.learned.items()}
        nll = engine.likelihood.weighed(batch.flow.outputs, batch.y, learned, batch.weights)
        leaves = [*sweep.capture.parameters(), *(learned.values() if sweep.has_learned else ())]
        energy = nll / engine.likelihood_temperature
        gradient = join(torch.autograd.grad(energy, leaves, create_graph=True, materialize_grads=True))
        for row, at in enumerate(wanted.tolist()):
            found = join(torch.autograd.grad(gradient[at], leaves, retain_graph=True, materialize_grads=True))
            matrix[row] += found[wanted.to(found.device)]

    with differentiable_twice(sweep.engine.network):
        sums = sweep.add_up(visit)
    return [DenseBlock(places if index is None else index, 0.5 * (matrix + matrix.mT))], sums
