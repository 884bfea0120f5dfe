"""What methods of interacting particles share: n settings of θ that move together, each pulled by the posterior and
pushed by the others.

With G_i = ∇G̃(θ_i) on one minibatch that all particles share, a method names two matrices n × n, W and R, and the
optimiser descends along

    Σ_j W_ij G_j − (T/N) Σ_j R_ij (x_j − x̄),

which is −(T/N) times the direction φ_i of the method. x is θ itself (``space="weights"``) or the network's outputs at
the batch's inputs (``space="functions"``); there, W and R act on the outputs' gradients and on the outputs, and J_iᵀ
carries the result to the weights in the one backward pass that there is anyway.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from temperance.core.checks import check_choice, check_count, check_flag, shown
from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError
from temperance.core.seeds import spawn
from temperance.data.data import Batch, Data
from temperance.engine import outputs as forward
from temperance.engine.engine import Engine
from temperance.inference import optimisers
from temperance.inference.base import Cost, Facts, Inference, Info, Starts
from temperance.inference.particles.kernels import Interaction, ParticleKernel
from temperance.inference.points.map import MAP
from temperance.inference.variational.expectations import judge
from temperance.posteriors import Draws, Posterior

Space = Literal["weights", "functions"]
_BLOCK = 2**14  # columns at a time on a CPU, so that what is in the works stays in the cache: 3x faster for P = 2e5
_BLOCK_ELSEWHERE = 2**22


@dataclass
class ParticleState:
    """θ, n × P; the optimiser's memory (one optimiser for all, or one each); buffers that move, for each particle."""

    theta: Tensor
    grad: Tensor = field(metadata=SCRATCH)
    rows: list[tuple[Tensor, Tensor]] = field(metadata=SCRATCH)
    optimizers: list[torch.optim.Optimizer]
    schedulers: list[Any]
    buffers: list[dict[str, Tensor]]
    at_once: bool = field(metadata=SCRATCH)
    first_loss: float | None = None


class Particles(Inference[ParticleState]):
    """Base of :class:`SVGD` and :class:`RepulsiveEnsemble`, whose fields these are; see there."""

    count_name: ClassVar[str] = "particles"

    kernel: ParticleKernel
    space: Space
    lr: float
    optimizer: type[torch.optim.Optimizer]
    optimizer_args: Mapping[str, Any]
    scheduler: type[torch.optim.lr_scheduler.LRScheduler] | None
    scheduler_args: Mapping[str, Any]
    schedule_steps: bool
    clip: float | None
    batched: bool | None

    def __post_init__(self) -> None:
        check_count(self.count, self.count_name)
        if not isinstance(self.kernel, ParticleKernel):
            raise ArgumentError(f"`kernel` must be a ParticleKernel, such as RBF(); got {shown(self.kernel)}.")
        check_choice(self.space, "space", ("weights", "functions"))
        check_flag(self.batched, "batched", optional=True)
        alone = (self.lr, self.optimizer, self.optimizer_args, self.scheduler, self.scheduler_args, self.schedule_steps)
        MAP(*alone, self.clip)  # what one particle by itself does; it checks these settings
        if optimisers.needs_closure(self.optimizer):
            raise ArgumentError(
                f"`optimizer` must take one gradient a step; {self.optimizer.__name__} searches along lines, but the "
                "particles' direction is the gradient of no function."
            )

    @property
    @abstractmethod
    def count(self) -> int:
        """n."""

    @abstractmethod
    def mixing(self, found: Interaction) -> tuple[Tensor | None, Tensor]:
        """W (``None`` for the identity) and R."""

    def facts(self) -> Facts:
        """A gradient for each particle; in function space up to a third more, for where particles move one after the
        other the outputs of all are needed before the first backward pass and are computed twice."""
        args = {name: value for name, value in self.optimizer_args.items() if name != "weight_decay"}
        each = MAP(optimizer=self.optimizer, optimizer_args=args).facts().cost
        again = 4 / 3 if self.space == "functions" else 1
        return Facts(gives=Draws, cost=Cost(self.count * again, self.count * each.copies_of_theta))

    # ------------------------------------------------------------------ the start

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> ParticleState:
        """See :class:`Inference`. Particles start at rows that were given, or each at fresh weights."""
        (rng,) = rngs
        engine.target.refuse_batch_norm(type(self).__name__)
        if self.space == "functions":
            engine.needs_whole_batches(f"{type(self).__name__} in function space")
        engine.target.refuse_learned_scales(
            type(self).__name__, "a few particles follow the gradient to where the learned scales vanish"
        )
        start = self._start(engine, starts.given, [spawn(rng) for _ in range(self.count)]).contiguous()
        grad = torch.zeros_like(start)
        rows = list(zip(start.unbind(0), grad.unbind(0), strict=True))
        together = optimisers.is_elementwise(self.optimizer)
        optimizers = [
            optimisers.build_optimizer(self.optimizer, self.lr, self.optimizer_args, engine.layout, *pair)
            for pair in ([(start, grad)] if together else rows)
        ]
        return ParticleState(
            theta=start,
            grad=grad,
            rows=rows,
            optimizers=optimizers,
            schedulers=[optimisers.build_scheduler(self.scheduler, self.scheduler_args, o) for o in optimizers],
            buffers=[engine.target.running_buffers() for _ in rows],
            at_once=self._goes_at_once(engine),
        )

    def _start(self, engine: Engine, theta: Tensor | None, seeds: list[int]) -> Tensor:
        if theta is None:
            return torch.stack([engine.target.fresh_theta(seed) for seed in seeds])
        rows = theta
        if len(rows) == 1 and self.count > 1:
            raise ArgumentError(
                f"`start` must have a row for each of the {self.count} particles; got one for all. Particles that "
                "start alike never part."
            )
        if len(rows) != self.count:
            raise ArgumentError(f"`start` must have a row for each of the {self.count} particles; got {len(rows)}.")
        twins = [(i, j) for j in range(len(rows)) for i in range(j) if torch.equal(rows[i], rows[j])]
        if twins:
            raise ArgumentError(
                f"`start` must have rows that differ; got rows {twins[0][0]} and {twins[0][1]} equal. Particles that "
                "start alike never part."
            )
        return rows

    def _goes_at_once(self, engine: Engine) -> bool:
        if self.batched is False or self.count == 1:
            return False
        able = not engine.target.moving and engine.can_batch_training()
        if self.batched and not able:
            raise ArgumentError(
                "`batched=True` needs a network that can be batched over particles (no running statistics, no "
                "operation that torch.func.vmap refuses); use batched=None."
            )
        return able and (bool(self.batched) or engine.prefers_batched_training())

    # ------------------------------------------------------------------ a step

    def step(self, engine: Engine, state: ParticleState, batch: Batch) -> tuple[ParticleState, Info]:
        """See :class:`Inference`."""
        losses = (self._in_weights if self.space == "weights" else self._in_functions)(engine, state, batch)
        loss = float(losses.mean())
        status = judge(loss, state.grad, state.first_loss)
        if status.ok:
            state.first_loss = loss if state.first_loss is None else state.first_loss
            optimisers.clip_(state.grad, self.clip)
            for optimizer, scheduler in zip(state.optimizers, state.schedulers, strict=True):
                optimizer.step()
                if scheduler is not None and (self.schedule_steps or batch.last):
                    optimisers.advance(scheduler)
        return state, Info(loss, status)

    @torch.no_grad()
    def _combine_(self, x: Tensor, grad: Tensor, factor: float) -> Tensor | None:
        """grad ← W grad − factor · R (x − x̄), for x and ``grad`` of shape n × anything; returns W."""
        width = _BLOCK if x.device.type == "cpu" else _BLOCK_ELSEWHERE
        blocks = list(zip(x.split(width, dim=1), grad.split(width, dim=1), strict=True))
        gram = torch.zeros(len(x), len(x), dtype=x.dtype, device=x.device)
        for part, _ in blocks:
            centred = part - part.mean(0)
            gram.addmm_(centred, centred.T)
        weights, push = self.mixing(self.kernel.interact(gram))
        for part, g in blocks:
            mixed = g if weights is None else weights @ g
            g.copy_(torch.addmm(mixed, push, part - part.mean(0), alpha=-factor))
        return weights

    def _in_weights(self, engine: Engine, state: ParticleState, batch: Batch) -> Tensor:
        if state.at_once:
            losses = engine.gradients(state.theta, batch, state.grad)
        else:
            each = zip(state.rows, state.buffers, strict=True)
            losses = torch.stack([engine.gradient(row, batch, grad, buffers) for (row, grad), buffers in each])
        self._combine_(state.theta, state.grad, engine.temperature / batch.num_data)
        return losses

    def _in_functions(self, engine: Engine, state: ParticleState, batch: Batch) -> Tensor:
        """One backward pass, from cotangents in which the outputs' gradients are mixed already. What the likelihood
        learns is no function's, and keeps its own gradient; so does the prior, with the weight of the particle."""
        engine.workspace.set_training(True)
        passes = _AtOnce(engine, state, batch) if state.at_once else _OneByOne(engine, state, batch)
        f, scores, losses, learned = passes.forward()
        weights = self._combine_(f.flatten(1), scores.flatten(1), engine.temperature / batch.num_data)
        passes.backward(scores)
        for entry in engine.layout.entries[len(engine.layout.network_entries) :]:
            state.grad[:, entry.start : entry.stop] = learned[entry.name].reshape(self.count, -1)
        pull = state.grad if weights is None or self.count == 1 else torch.zeros_like(state.grad)
        engine.bound_prior.add_gradient(state.theta, pull, -1.0 / batch.num_data)
        if weights is not None and pull is not state.grad:
            pull[:, : engine.layout.network_size] *= weights.sum(1, keepdim=True)
            state.grad += pull
        return losses

    def posteriors(self, engine: Engine, state: ParticleState, data: Data | None) -> tuple[Posterior, ...]:
        """The particles as :class:`Draws` of equal weight."""
        names = state.buffers[0].keys()
        buffers = {name: torch.stack([own[name] for own in state.buffers]) for name in names}
        return (Draws(state.theta.detach().clone(), buffers),)


# ---------------------------------------------------------------------- outputs, and backward from cotangents at them


Scored = tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]


def _score(
    engine: Engine, f: Tensor, y: Tensor, rows: int, learned: Mapping[str, Tensor], weights: Tensor | None
) -> Scored:
    """f, and of the batch's mean negative log-likelihood over λ: its gradient at f, itself (times λ), and its gradients
    in what the likelihood learns."""
    f = f.detach().requires_grad_()
    leaves = {name: value.detach().requires_grad_() for name, value in learned.items()}
    losses = engine.likelihood.weighed(f, y, leaves, weights) / rows
    found = torch.autograd.grad(losses.sum() / engine.likelihood_temperature, [f, *leaves.values()])
    return f.detach(), found[0].contiguous(), losses.detach(), dict(zip(leaves, found[1:], strict=True))


class _AtOnce:
    """All particles as one batched network."""

    def __init__(self, engine: Engine, state: ParticleState, batch: Batch) -> None:
        self.engine, self.state, self.batch = engine, state, batch

    def forward(self) -> Scored:
        layout = self.engine.layout
        leaves = self.engine.workspace.stacked_leaves(self.state.theta)
        self.leaves = {e.name: leaves[e.name] for e in layout.network_entries}
        made = forward.at_once(self.engine.network, self.leaves, self.batch.x, stacked_inputs=False)
        self.outputs = self.engine.likelihood.arrange(made, 2)
        y = self.batch.y.expand(len(made), *self.batch.y.shape)
        learned = layout.unflatten(self.state.theta, "likelihood")
        return _score(self.engine, self.outputs, y, self.batch.size, learned, self.batch.weights)

    def backward(self, cotangents: Tensor) -> None:
        found = torch.autograd.grad(
            self.outputs, list(self.leaves.values()), cotangents, allow_unused=True, materialize_grads=True
        )
        for entry, value in zip(self.engine.layout.network_entries, found, strict=True):
            self.state.grad[:, entry.start : entry.stop] = value.reshape(len(value), -1)


class _OneByOne:
    """Particles one after the other. Outputs are computed twice, with the same random numbers and moving buffers, so
    that no more than one particle's activations are held."""

    def __init__(self, engine: Engine, state: ParticleState, batch: Batch) -> None:
        self.engine, self.state, self.batch = engine, state, batch
        self.random: list[Tensor] = []
        self.moving = [{name: value.clone() for name, value in own.items()} for own in state.buffers]
        self.cuda = engine.device.type == "cuda"

    def _outputs(self, k: int) -> Tensor:
        row, grad = self.state.rows[k]
        self.engine.workspace.attach(row, grad, self.state.buffers[k])
        return self.engine.likelihood.arrange(forward.call(self.engine.network, self.batch.x))

    def forward(self) -> Scored:
        scored = []
        for k, (row, _) in enumerate(self.state.rows):
            self.random.append(torch.cuda.get_rng_state() if self.cuda else torch.get_rng_state())
            with torch.no_grad():
                f = self._outputs(k)
            learned = self.engine.layout.unflatten(row, "likelihood")
            scored.append(_score(self.engine, f, self.batch.y, self.batch.size, learned, self.batch.weights))
        f, scores, losses = (torch.stack([own[part] for own in scored]) for part in range(3))  # type: ignore[misc]
        return f, scores, losses, {name: torch.stack([own[3][name] for own in scored]) for name in scored[0][3]}

    def backward(self, cotangents: Tensor) -> None:
        self.state.grad.zero_()
        for k, cotangent in enumerate(cotangents):
            (torch.cuda.set_rng_state if self.cuda else torch.set_rng_state)(self.random[k])
            for name, value in self.state.buffers[k].items():
                value.copy_(self.moving[k][name])
            self._outputs(k).backward(cotangent)
