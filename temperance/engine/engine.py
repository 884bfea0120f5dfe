"""``Engine``: what evaluates a target, and the only place where N, B and T meet.

    G̃(θ) = −(1/B) Σ_{i∈batch} w_i log p(y_i | x_i, θ) / λ − (1/N) log p(θ)        (w_i = 1 unless the data have weights)

N·∇G̃ is an unbiased estimate of ∇U for a batch of any size B: the loss that is trained is *per datum*, and everything
else follows. An engine owns a working copy of the network, what is compiled, and what was found out about the network;
it can be thrown away and made again from its target.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from temperance.core.errors import ArgumentError
from temperance.data.data import Batch, Data
from temperance.data.sources import Inputs, map_tensors
from temperance.engine import outputs as forward
from temperance.engine.compiling import Compiled
from temperance.engine.energy import Energies, OwnEnergies
from temperance.engine.stacked import StackedChain
from temperance.engine.workspace import Workspace
from temperance.model.likelihoods.base import Likelihood
from temperance.model.priors import BoundPrior
from temperance.model.target import Target, first_rows
from temperance.model.theta import Layout


class Engine:
    """Losses, gradients, energies and outputs of one target.

    Args:
        target: the problem.
        data: prepared training rows, from which it is found out which buffers of the network move; ``engine.target``
            then knows of them.
        example: a few inputs, to try things on.
        compile: compile gradients with ``torch.compile``: worth its minute for long runs of small networks. Without a
            compiler on the machine, a warning says so and everything works as before.
        accumulate: in so many pieces a batch goes through the network for its gradient.

    >>> from temperance.model.likelihoods import Categorical
    >>> from temperance.model.priors import GaussianPrior
    >>> engine = Engine(Target(nn.Linear(4, 3), Categorical(), GaussianPrior(scale=1.0)))
    >>> engine.outputs(torch.zeros(2, 15), torch.ones(5, 4)).shape
    torch.Size([2, 5, 3])
    """

    def __init__(
        self,
        target: Target,
        data: Data | None = None,
        *,
        example: Inputs | None = None,
        compile: bool = False,
        accumulate: int = 1,
    ) -> None:
        self.accumulate = accumulate
        if data is not None:
            example = first_rows(data).x
        if example is not None:
            example = map_tensors(lambda t: t.to(target.device), target.cast(example))
        self.workspace = Workspace(target.network, target.layout, target.freeze_batch_norm, example)
        moving = self.workspace.notice_moving_buffers()
        self.target = target if data is None else target.expecting(moving)
        if example is not None:
            rows = example
            self.target = self.target.shaped(lambda: rows)
        self._compile(compile)

    def _compile(self, wanted: bool) -> None:
        self._compiled_stack = Compiled(self._stacked_gradient_of) if wanted else None
        self._compiled_network = Compiled(lambda x: forward.call(self.network, x)) if wanted else None
        self._energies: Energies | None = None

    def on(self, target: Target) -> Engine:
        """What evaluates another target; where it has the same network, the working copy is shared."""
        if target is self.target:
            return self
        if target.network is not self.target.network or target.layout != self.layout:
            return Engine(target, example=self.example, compile=self.is_compiled, accumulate=self.accumulate)
        made = copy.copy(self)
        made.target = target
        made._compile(self.is_compiled)  # what was compiled has the old likelihood inside
        return made

    @property
    def is_compiled(self) -> bool:
        """Whether gradients are compiled."""
        return self._compiled_stack is not None

    def needs_whole_batches(self, method: str) -> None:
        """Raise for a method whose step looks at all rows of a batch together, where it shall come in pieces."""
        if self.accumulate > 1:
            raise ArgumentError(
                f"`accumulate` must be 1 for {method}, which looks at all rows of a batch together; got "
                f"{self.accumulate}. Give a smaller `batch_size`."
            )

    # ------------------------------------------------------------------ of the target

    @property
    def network(self) -> nn.Module:
        """The working copy of the network."""
        return self.workspace.network

    @property
    def example(self) -> Inputs | None:
        """A few inputs, to try things on."""
        return self.workspace.example

    @property
    def layout(self) -> Layout:
        """The names and places of the numbers in θ."""
        return self.target.layout

    @property
    def device(self) -> torch.device:
        """Where θ lives."""
        return self.target.device

    @property
    def likelihood(self) -> Likelihood:
        """The target's."""
        return self.target.likelihood

    @property
    def bound_prior(self) -> BoundPrior:
        """The target's density over θ."""
        return self.target.bound_prior

    @property
    def temperature(self) -> float:
        """T."""
        return self.target.temperature

    @property
    def likelihood_temperature(self) -> float:
        """λ."""
        return self.target.likelihood_temperature

    # ------------------------------------------------------------------ the network

    def outputs(
        self, theta: Tensor, x: Inputs, buffers: dict[str, Tensor] | None = None, batched: bool | None = None
    ) -> Tensor:
        """Outputs in evaluation mode at each row of θ (S × P): S × B × C."""
        return self.likelihood.arrange(self.workspace.outputs(theta, x, buffers, batched), 2)

    def can_batch_training(self) -> bool:
        """Whether several members can be trained as one batched network."""
        return self.workspace.can_batch()

    def prefers_batched_training(self) -> bool:
        """Whether that is likely to be faster, by the network's size and kind."""
        return forward.small_enough(self.network, self.layout, 128, self.device)

    # ------------------------------------------------------------------ the density

    def gradient(
        self,
        theta: Tensor,
        batch: Batch,
        grad: Tensor,
        buffers: dict[str, Tensor] | None = None,
        *,
        prior: bool = True,
    ) -> Tensor:
        """Write ∇G̃(θ) into ``grad``, or that of its data term alone; return the batch's mean negative log-likelihood.
        The hot path: no copies."""
        self.workspace.attach(theta, grad, buffers)
        self.workspace.set_training(True)
        grad.zero_()
        compiled = self._compiled_network
        losses = []
        for piece in batch.pieces(self.accumulate):
            outputs = forward.call(self.network, piece.x) if compiled is None else compiled(piece.x)
            outputs = self.likelihood.arrange(outputs)
            nll = self.likelihood.weighed(outputs, piece.y, self.workspace.learned, piece.weights) / batch.size
            if nll.requires_grad:  # else no output depends on a random parameter
                (nll if self.likelihood_temperature == 1.0 else nll / self.likelihood_temperature).backward()
            losses.append(nll.detach())
        if prior:
            self.bound_prior.add_gradient(theta, grad, -1.0 / batch.num_data)
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def gradients(
        self,
        theta: Tensor,
        batch: Batch,
        grad: Tensor,
        buffers: dict[str, Tensor] | None = None,
        *,
        prior: bool = True,
    ) -> Tensor:
        """:meth:`gradient` of E members, the rows of θ and ``grad`` (E × P): E losses. Each has its own stream of the
        batch, or all read the same rows where it has none. ``buffers`` are those of a single member."""
        if len(theta) == 1:
            row, slope = self.workspace.only_rows(theta, grad)
            own = batch if batch.streams is None else batch.stream(0)
            return self.gradient(row, own, slope, buffers, prior=prior).unsqueeze(0)
        self.workspace.set_training(True)
        pieces = batch.pieces(self.accumulate)
        if len(pieces) == 1:
            losses = self._stacked_gradients(theta, batch, grad)
        else:
            losses, total = grad.new_zeros(len(grad)), torch.zeros_like(grad)
            for piece in pieces:
                share = piece.size / batch.size
                losses += share * self._stacked_gradients(theta, piece, grad)
                total.add_(grad, alpha=share)
            grad.copy_(total)
        if prior:
            self.bound_prior.add_gradient(theta, grad, -1.0 / batch.num_data)
        return losses

    def _stacked_gradients(self, theta: Tensor, batch: Batch, grad: Tensor) -> Tensor:
        """Of the data term, for all members as one batched network."""
        if self._compiled_stack is not None and batch.streams is not None:
            gradient, losses = self._compiled_stack(theta, batch.x, batch.y, batch.weights)
            grad.copy_(gradient)
            return losses
        chain = self.workspace.chain(theta, grad)
        rows = None if chain is None else chain.rows(batch.x, batch.streams is not None)
        if chain is not None and rows is not None:
            losses = self._chain_gradients(chain, rows, batch, grad)
            if losses is not None:
                return losses
        leaves = self.workspace.stacked_leaves(theta)
        losses = self._stacked_losses(leaves, batch.x, batch.y, batch.weights, batch.streams is not None)
        scaled = losses.sum() if self.likelihood_temperature == 1.0 else losses.sum() / self.likelihood_temperature
        gradients = torch.autograd.grad(scaled, list(leaves.values()), allow_unused=True)
        for entry, value in zip(self.layout.entries, gradients, strict=True):
            # Data say nothing of the prior's scales, nor of a parameter that no output depends on.
            grad[:, entry.start : entry.stop] = 0.0 if value is None else value.reshape(len(theta), -1)
        return losses.detach()

    def _chain_gradients(self, chain: StackedChain, rows: Tensor, batch: Batch, grad: Tensor) -> Tensor | None:
        """The same by hand, where outputs are what the chain gives."""
        outputs, kept = chain.forward(rows)
        if self.likelihood.arrange(outputs, 2) is not outputs:
            return None
        y = batch.y if batch.streams is not None else batch.y.expand(len(outputs), *batch.y.shape)
        losses, slope, learned = self.likelihood.slopes(
            outputs, y, self.layout.unflatten(chain.theta, "likelihood"), batch.weights
        )
        factor = 1.0 / (batch.size * self.likelihood_temperature)
        chain.backward(slope.mul_(factor), kept)
        for entry in self.layout.entries:
            if entry.role != "network":  # data say nothing of the prior's scales
                found = learned.get(entry.name)
                place = grad[:, entry.start : entry.stop]
                place.copy_(found.reshape(len(grad), -1)).mul_(factor) if found is not None else place.zero_()
        return losses.div_(batch.size)

    def _stacked_gradient_of(
        self, theta: Tensor, x: Inputs, y: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Gradient of the data term and losses as one function of θ: what is compiled."""

        def total(rows: Tensor) -> tuple[Tensor, Tensor]:
            losses = self._stacked_losses(self.layout.unflatten(rows), x, y, weights, True)
            return losses.sum() / self.likelihood_temperature, losses

        return torch.func.grad(total, has_aux=True)(theta)

    def _stacked_losses(
        self, leaves: dict[str, Tensor], x: Inputs, y: Tensor, weights: Tensor | None, streams: bool
    ) -> Tensor:
        values = {e.name: leaves[e.name] for e in self.layout.network_entries}
        learned = {e.name: leaves[e.name] for e in self.layout.entries_of("likelihood")}
        outputs = self.likelihood.arrange(forward.at_once(self.network, values, x, stacked_inputs=streams), 2)
        targets = y if streams else y.expand(len(outputs), *y.shape)
        return self.likelihood.weighed(outputs, targets, learned, weights) / targets.shape[1]

    def loss(self, theta: Tensor, batch: Batch) -> Tensor:
        """G̃(θ), differentiable in θ (P, or S × P for one loss per row), network in evaluation mode."""
        single = theta.dim() == 1
        rows = theta.unsqueeze(0) if single else theta
        log_lik = _summed(self.log_likelihood(rows, batch), batch)
        value = -log_lik / (batch.size * self.likelihood_temperature)
        value = value - self.bound_prior.log_prob(rows) / batch.num_data
        return value[0] if single else value

    def log_likelihood(self, theta: Tensor, batch: Batch) -> Tensor:
        """log p(y_i | x_i, θ) per example at each row of θ, weights left aside: S × B."""
        outputs = self.outputs(theta, batch.x)
        return self.likelihood.log_prob(outputs, batch.y, self.layout.unflatten(theta, "likelihood"))

    def energy(self, theta: Tensor, data: Data | Batch, batch_size: int = 1000) -> Tensor:
        """U(θ) for each row of θ: exact over ``data``, the unbiased estimate N·G̃ for a ``Batch``."""
        if isinstance(data, Batch):
            return data.num_data * self.loss(theta, data)
        single = theta.dim() == 1
        rows = theta.unsqueeze(0) if single else theta
        total = -self.bound_prior.log_prob(rows)
        for batch in self.target.prepare(data).full_pass(batch_size):
            here = batch.to(self.device)
            log_lik = _summed(self.log_likelihood(rows, here), here)
            total = total - log_lik / self.likelihood_temperature
        return total[0] if single else total

    def energies(self, theta: Tensor, batch: Batch, grad: Tensor | None = None) -> Tensor:
        """U of each row of θ (C × P) over ``batch``, which must hold all rows: in float64, network in evaluation mode;
        ∇U goes into ``grad`` (C × P). The hot path of samplers that accept or reject."""
        return self.energies_on(batch)(theta, grad)

    def energies_on(self, batch: Batch) -> Energies:
        """What evaluates :meth:`energies` on these rows, made once and kept."""
        if isinstance(self.network, OwnEnergies):
            return self.network.own_energies()
        found = self._energies
        if found is None or not found.serves(self.workspace, self.likelihood, self.bound_prior, batch):
            if batch.num_data != batch.size or batch.streams is not None:
                raise ArgumentError(
                    f"`batch` must hold all {batch.num_data} rows, for the energy is that of all; got {batch.size}."
                )
            if self.workspace.example is None:
                self.workspace.example = map_tensors(lambda t: t[:2], batch.x)
            found = self._energies = Energies(
                self.workspace,
                self.likelihood,
                self.bound_prior,
                self.likelihood_temperature,
                batch,
                compiled=self.is_compiled,
            )
        return found

    def log_density(self, theta: Tensor, data: Data | Batch, batch_size: int = 1000) -> Tensor:
        """log p_T(θ | D) up to a constant: −U(θ)/T."""
        return -self.energy(theta, data, batch_size) / self.temperature

    def held_out_score(self, theta: Tensor, data: Data, buffers: dict[str, Tensor] | None = None) -> float:
        """Mean log-likelihood of held-out data at one θ; that of new rows, where a factor for θ is no density in y."""
        law = self.likelihood if self.likelihood.normalised else self.likelihood.for_new_rows
        stacked = None if not buffers else {name: value.unsqueeze(0) for name, value in buffers.items()}
        total, count = 0.0, 0.0
        learned = self.layout.unflatten(theta.unsqueeze(0), "likelihood")
        with torch.no_grad():
            for batch in data.full_pass():
                moved = batch.to(self.device)
                outputs = self.outputs(theta.unsqueeze(0), moved.x, stacked)
                total += float(_summed(law.log_prob(outputs, moved.y, learned), moved))
                count += moved.size if moved.weights is None else float(moved.weights.sum())
        score = total / count
        return score if not math.isnan(score) else -math.inf


def _summed(log_prob: Tensor, batch: Batch) -> Tensor:
    """Σ_i w_i log p_i, over the last dimension."""
    return log_prob.sum(-1) if batch.weights is None else (log_prob * batch.weights.to(log_prob)).sum(-1)
