"""What the stochastic-gradient samplers share: a chain, its noise, its preconditioner and its thermometer.

A sampler's θ moves by a discretised Langevin equation whose stationary law is exp(−U(θ)/T). Each file beside this one
holds one update rule; here is what goes on around it. Parameters are those of ordinary training: ``lr`` is ℓ, the
effect of the *mean* gradient on θ, and N is known from the data.

Velocities are kept rather than momenta, v = M⁻¹ m, so that θ ← θ + h v holds for any mass M. With one mass for each
tensor (:class:`Layerwise`), s = M^{-1/2}, a rule sees the gradient times s² and the noise times s.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from temperance.core.checks import check_count, check_flag, check_part, check_positive, shown
from temperance.core.encoding import SCRATCH, Value
from temperance.core.errors import ArgumentError, NetworkError
from temperance.core.seeds import spawn
from temperance.core.status import DIVERGED, NON_FINITE_GRADIENT, NON_FINITE_LOSS, OK, Status
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.engine.native import NormalStream, fill_rows_
from temperance.engine.precision import computes_narrowly
from temperance.inference.base import Cost, Exactness, Facts, Inference, Info, Starts, Wrapper
from temperance.inference.card import Card, MethodFamily
from temperance.inference.langevin.thermal import Settling, Thermal
from temperance.model.theta import Layout
from temperance.posteriors import Draws, Posterior
from temperance.posteriors.trace import Transitions

_DIVERGENCE = 1e4  # how many times the first loss counts as divergence
_REMEDY = "Lower the learning rate, use a preconditioner (tp.Layerwise()), or standardise inputs and targets."


@dataclass(frozen=True, eq=False)
class Layerwise(Value):
    """One mass for each tensor of θ, from the size of its gradients (Wenzel et al., 2020).

    At the start of a stationary stretch (of a run, or of each cycle of :class:`Cyclical`) the chain stands still for
    ``batches`` steps and averages g² over batches and over the elements of each tensor s:

        M_s = √(mean g² + ε),     then all divided by the smallest.

    Within a stretch M is constant, so the stationary law is untouched; where it changes, velocities are scaled so that
    every tensor keeps its kinetic temperature.
    """

    card: ClassVar[Card] = Card(
        "one mass for each tensor, from the size of its gradients",
        MethodFamily.LANGEVIN,
        papers=("Wenzel et al., How good is the Bayes posterior in deep neural networks really?, ICML 2020",),
    )

    batches: int = 32
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        check_count(self.batches, "batches")
        check_positive(self.epsilon, "epsilon")


@dataclass
class Reading:
    """One look at the thermometer: by member and tensor."""

    kinetic: Tensor
    configurational: Tensor
    kinetic_bias: float
    loss: Tensor
    acceptance: float = math.nan


@dataclass
class ChainState:
    """Chains, the rows of θ (members × P).

    ``slots`` are the vectors that a rule keeps beside θ (a velocity, a thermostat); ``scale`` is s of each tensor.
    ``pace`` and ``heat`` are set by :class:`Cyclical`: factors on the time step h and on the temperature.
    """

    theta: Tensor
    grad: Tensor = field(metadata=SCRATCH)
    noise: Tensor = field(metadata=SCRATCH)
    slots: dict[str, Tensor]
    streams: list[NormalStream]
    buffers: dict[str, Tensor]
    layout: Layout = field(metadata=SCRATCH)
    scale: Tensor | None = None
    second_moment: Tensor | None = None
    to_estimate: int = 0
    settling: Settling | None = None
    pace: float = 1.0
    heat: float = 1.0
    first_loss: float | None = None
    moved: bool = True
    read_next: bool = False
    reading: Reading | None = field(default=None, metadata=SCRATCH)
    views: dict[str, list[Tensor]] = field(default_factory=dict, metadata=SCRATCH)


@dataclass(frozen=True)
class Tempo:
    """The numbers in force in a step: N, the temperature times its ramp, and the factor on the time step."""

    num_data: int
    temperature: float
    pace: float


class Sampler(Inference[Any]):
    """A method whose state holds a chain; :class:`Collect` keeps its draws."""

    takes_heat: ClassVar[bool] = True
    """Whether the temperature may change on the way."""
    takes_pace: ClassVar[bool] = True
    """Whether :class:`Cyclical` may change its time step."""

    @abstractmethod
    def chain(self, state: Any) -> ChainState:
        """The chain inside the state."""

    def moved_by_others(self, state: Any) -> None:
        """Someone else has moved θ: forget energies and slopes of where it was. Nothing to do for samplers that take
        the gradient at the beginning of each step."""

    def at_end(self, state: Any) -> bool | None:
        """Whether a cycle has just ended; ``None`` for a sampler that has no cycles."""
        return None

    def transitions_of(self, state: Any, member: int) -> Transitions | None:
        """What the sampler told of each transition of one chain; ``None`` if it tells nothing."""
        return None


class SamplerWrapper(Wrapper, Sampler):
    """A sampler around a sampler: what it says of the chain is the base's."""

    base: Sampler

    def chain(self, state: Any) -> ChainState:
        """The base's."""
        return self.base.chain(state.base)

    def moved_by_others(self, state: Any) -> None:
        """The base's."""
        self.base.moved_by_others(state.base)

    def at_end(self, state: Any) -> bool | None:
        """The base's."""
        return self.base.at_end(state.base)

    def transitions_of(self, state: Any, member: int) -> Transitions | None:
        """The base's."""
        return self.base.transitions_of(state.base, member)


class LangevinSampler(Sampler):
    """A sampler with one gradient a step. Subclasses have the fields named here and the three functions below."""

    exact: ClassVar[Exactness] = Exactness.APPROXIMATE
    scaled_slots: ClassVar[tuple[str, ...]] = ("velocity",)
    """The slots that are multiplied by the change of s where masses change."""

    lr: float | Thermal
    preconditioner: Layerwise | None
    allow_batch_norm: bool

    # ------------------------------------------------------------------ what a rule says

    @abstractmethod
    def slots(self, theta: Tensor, engine: Engine) -> dict[str, Tensor]:
        """The vectors that the rule keeps beside θ, at the start."""

    @abstractmethod
    def move(self, chain: ChainState, tempo: Tempo) -> None:
        """One move of θ, given ``chain.grad`` (∇G̃ times s²) and ``chain.noise`` (standard normal numbers times s)."""

    def move_at_once(self, chain: ChainState, tempo: Tempo, stream: NormalStream) -> bool:
        """The same move with its noise drawn on the way, in one pass over memory; ``False`` where that cannot be."""
        return False

    def kinetic_bias(self, pace: float) -> float:
        """The factor by which the kinetic temperature exceeds T as the step vanishes."""
        return 1.0

    def heating(self, num_data: int) -> tuple[float, float] | None:
        """a h² N² at ``rate`` one, by which gradients of variance σ² raise the kinetic temperature, and what a step
        leaves of a velocity; ``None`` for rules that have no such step to set."""
        return None

    @property
    def rate(self) -> float:
        """ℓ; one where each tensor finds a step of its own, which its mass then says."""
        return 1.0 if isinstance(self.lr, Thermal) else self.lr

    # ------------------------------------------------------------------ the contract

    def _check(self) -> None:
        if not isinstance(self.lr, Thermal):
            check_positive(self.lr, "lr")
        elif self.heating(1) is None:
            raise ArgumentError(f"`lr` must be a number for {type(self).__name__}; only SGHMC and BAOAB can set it.")
        elif self.preconditioner is not None:
            raise ArgumentError(
                "`preconditioner` must be None where `lr` is Thermal(), which sets masses itself; with Layerwise() "
                "give a learning rate, lr=0.03."
            )
        check_flag(self.allow_batch_norm, "allow_batch_norm")
        if self.preconditioner is not None and not isinstance(self.preconditioner, Layerwise):
            raise ArgumentError(f"`preconditioner` must be Layerwise() or None; got {shown(self.preconditioner)}.")

    def check_run(self, steps: int) -> None:
        """The preconditioner's batches must fit into the run."""
        if self.preconditioner is not None and self.preconditioner.batches >= steps:
            raise ArgumentError(
                f"`steps` must exceed the {self.preconditioner.batches} batches of the preconditioner; got {steps}."
            )

    def facts(self) -> Facts:
        """θ, gradient, one buffer of noise, and what the rule keeps."""
        return Facts(gives=Draws, exact=self.exact, cost=Cost(1, 3 + self._vectors()))

    def _vectors(self) -> int:
        return 1

    def chain(self, state: ChainState) -> ChainState:
        """The state itself."""
        return state

    def at_once(self, engine: Engine, starts: Starts) -> bool:
        """Networks that can be batched and keep no running statistics."""
        return not engine.target.moving and engine.can_batch_training()

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> ChainState:
        """See :class:`Inference`. Velocities start at zero."""
        if not self.allow_batch_norm:
            engine.target.refuse_batch_norm(type(self).__name__)
        theta = starts.rows(engine)
        state = ChainState(
            theta=theta,
            grad=torch.zeros_like(theta),
            noise=torch.zeros_like(theta),
            slots=self.slots(theta, engine),
            streams=[NormalStream(spawn(rng)) for rng in rngs],
            buffers=engine.target.running_buffers() if len(theta) == 1 else {},
            layout=engine.layout,
        )
        state.to_estimate = self.preconditioner.batches if self.preconditioner is not None else 0
        if isinstance(self.lr, Thermal):
            state.settling = Settling.begin(theta, engine.layout, starts.given is None and self.lr.descent > 0)
        return state

    def step(self, engine: Engine, state: ChainState, batch: Batch) -> tuple[ChainState, Info]:
        """See :class:`Inference`."""
        return self._advance(engine, state, batch, engine.gradients(state.theta, batch, state.grad, state.buffers))

    def _advance(self, engine: Engine, state: ChainState, batch: Batch, losses: Tensor) -> tuple[ChainState, Info]:
        check_num_data(batch)
        loss = float(losses.mean())
        if state.settling is not None and not self._settles(engine, state, batch, losses):
            return state, Info(loss)
        status = _judge(state, loss)
        state.moved = False
        if not status.ok:
            return state, Info(loss, status)
        if state.to_estimate > 0:
            self._estimate(state)
            return state, Info(loss)
        if state.read_next:
            take_reading(state, batch.num_data, losses, self.kinetic_bias(state.pace))
        tempo = Tempo(batch.num_data, engine.temperature * state.heat, state.pace)
        alone = len(state.streams) == 1 and state.scale is None
        if not (alone and tempo.temperature > 0 and self.move_at_once(state, tempo, state.streams[0])):
            self._move(state, tempo)
        state.moved = True
        return state, Info(loss)

    def _move(self, state: ChainState, tempo: Tempo) -> None:
        """Draw the noise, apply the masses, move."""
        if tempo.temperature > 0:
            fill_rows_(state.noise, state.streams)
        else:
            state.noise.zero_()
        if state.scale is not None:
            scale_tensors_(state, "grad", state.scale.square())
            if tempo.temperature > 0:
                scale_tensors_(state, "noise", state.scale)
        self.move(state, tempo)

    def posteriors(self, engine: Engine, state: ChainState, data: Data | None) -> tuple[Posterior, ...]:
        """The chains' present places, a single draw each; :class:`Collect` keeps many."""
        return present_places(state)

    # ------------------------------------------------------------------ steps that set themselves

    def _settles(self, engine: Engine, state: ChainState, batch: Batch, losses: Tensor) -> bool:
        """Look at the gradient, now and then choose steps anew; whether the chain moves now."""
        rule, settling = self.lr, state.settling
        assert isinstance(rule, Thermal)
        assert settling is not None
        if batch.total_steps is None:
            raise ArgumentError("`lr` must be a number where the length of the run is not known; got Thermal().")
        state.moved = False
        heating = self.heating(batch.num_data)
        assert heating is not None
        loss = float(losses.amax())
        finite = math.isfinite(loss) and math.isfinite(float(_wide(state.grad).sum()))
        if settling.moment is not None:
            if batch.progress < rule.descent:
                return self._goes_down(state, batch.progress / rule.descent, rule.descent * batch.total_steps, finite)
            settling.arrive(state.theta, state.slots["velocity"], batch.progress)
            state.first_loss = None
        if batch.progress >= settling.began + rule.share and settling.steps:
            self._change_masses(state, settling.settled(rule, state.scale, heating[0], engine.temperature))
            state.settling = None
            return True
        if state.first_loss is None and finite:
            state.first_loss = loss
        if not finite or settling.has_left(loss, state.first_loss or 0.0):
            if settling.given_up:
                return True  # to be judged as any chain is
            self._go_home(state, settling)
            return False
        layout, sizes = state.layout, _sizes(state.layout)
        velocity = state.slots["velocity"]
        kinetic = _squares(layout, velocity) / sizes
        if state.scale is not None:
            kinetic = kinetic / state.scale.cpu().square()
        still = settling.stands_still
        if settling.look(_squares(layout, state.grad) / sizes, kinetic):
            temperature, bias = engine.temperature * state.heat, self.kinetic_bias(state.pace)
            later = batch.progress >= settling.began + 0.5 * rule.share
            if temperature > 0:
                self._change_masses(
                    state, settling.choose(rule, state.scale, heating[0], temperature, bias, sizes, heating[1], later)
                )
        return not still

    def _goes_down(self, state: ChainState, part: float, steps: float, finite: bool) -> bool:
        """A step towards a mode, which is no move of the chain; whether that is hopeless, and so to be judged."""
        settling, velocity = state.settling, state.slots["velocity"]
        assert settling is not None
        if finite:
            settling.descend(state.theta, state.grad, velocity, part, steps)
        elif settling.given_up:
            return True
        else:
            settling.climb_back(state.theta, velocity)
        return False

    def _go_home(self, state: ChainState, settling: Settling) -> None:
        """Where the chains began, standing, with smaller steps."""
        settling.retreat(None if state.scale is None else state.scale.cpu())
        state.theta.copy_(settling.home)
        for name in self.scaled_slots:
            state.slots[name].zero_()
        if state.scale is not None:
            state.scale = torch.minimum(state.scale.cpu(), settling.bound.sqrt()).to(state.scale)

    def _change_masses(self, state: ChainState, scale: Tensor) -> None:
        """Every tensor keeps its kinetic temperature."""
        change = scale if state.scale is None else scale / state.scale.cpu()
        for name in self.scaled_slots:
            scale_tensors_(state, name, change)
        state.scale = scale

    # ------------------------------------------------------------------ preconditioner

    def _estimate(self, state: ChainState) -> None:
        """Take one more batch into account; after the last, change the masses."""
        assert self.preconditioner is not None
        squares = _squares(state.layout, state.grad) / _sizes(state.layout)
        state.second_moment = squares if state.second_moment is None else state.second_moment.cpu() + squares
        state.to_estimate -= 1
        if state.to_estimate == 0:
            mass = (state.second_moment / self.preconditioner.batches + self.preconditioner.epsilon).sqrt()
            self._change_masses(state, (mass / mass.amin(-1, keepdim=True)).rsqrt())
            state.second_moment = None


def present_places(chain: ChainState) -> tuple[Posterior, ...]:
    """A single draw for each member: where it is now."""
    buffers = {name: value.unsqueeze(0).clone() for name, value in chain.buffers.items()}
    return tuple(Draws(row.detach().clone().unsqueeze(0), buffers) for row in chain.theta)


def take_reading(chain: ChainState, num_data: int, loss: Tensor, kinetic_bias: float) -> None:
    """Look at the thermometer: θ, velocity and ``chain.grad`` must belong to one instant."""
    layout, sizes = chain.layout, _sizes(chain.layout)
    configurational = _products(layout, chain.theta, chain.grad) * num_data / sizes
    kinetic = torch.full_like(configurational, math.nan)
    if "velocity" in chain.slots:
        kinetic = _squares(layout, chain.slots["velocity"]) / sizes
        if chain.scale is not None:
            kinetic = kinetic / chain.scale.cpu().square()
    chain.reading = Reading(kinetic, configurational, kinetic_bias, loss.detach().double().cpu())
    chain.read_next = False


def check_num_data(batch: Batch) -> None:
    """N is never smaller than a batch: the commonest mistake of hand-made batches is to give one for the other."""
    if batch.num_data < batch.size:
        raise ArgumentError(
            "`num_data` must be the size of the whole training set, at least that of the batch "
            f"({batch.size} rows); got {batch.num_data}."
        )


def refuse_random_energies(engine: Engine, method: str) -> None:
    """A Metropolis decision needs an energy that is a function of θ: no dropout, no statistics that move, no rounding
    of the size of the differences that it decides by."""
    if computes_narrowly(engine.network):
        raise ArgumentError(
            f"`compute` of the target must be None for {method}, which decides by small differences of energies; got "
            "torch.bfloat16. SGLD, SGHMC, SGNHT, variational methods and optimisers take it."
        )
    for name, module in engine.network.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise NetworkError(f"{method} needs an energy that is a function of θ; {name!r} drops at random. Set p=0.")
    if engine.target.moving:
        moving = sorted(engine.target.moving)[0]
        raise NetworkError(
            f"{method} needs an energy that is a function of θ; the buffer {moving!r} moves in training."
        )


def check_momentum(momentum: object) -> None:
    """β lies in [0, 1)."""
    check_part(momentum, "momentum")


def _judge(state: ChainState, loss: float) -> Status:
    if not math.isfinite(loss):
        return replace(NON_FINITE_LOSS, remedy=_REMEDY)
    if not math.isfinite(float(_wide(state.grad).sum())):
        return NON_FINITE_GRADIENT
    if state.first_loss is None:
        state.first_loss = loss
    return replace(DIVERGED, remedy=_REMEDY) if loss > _DIVERGENCE * (abs(state.first_loss) + 1.0) else OK


def _sizes(layout: Layout) -> Tensor:
    return torch.tensor([float(e.size) for e in layout.entries], dtype=torch.float64)


def _wide(vector: Tensor) -> Tensor:
    """In single precision at least: sums of half-precision numbers overflow."""
    return vector if vector.dtype in (torch.float32, torch.float64) else vector.float()


def _squares(layout: Layout, vector: Tensor) -> Tensor:
    """‖·‖² of each tensor, by member."""
    wide = _wide(vector)
    return torch.stack([wide[..., e.start : e.stop].square().sum(-1) for e in layout.entries], -1).cpu().double()


def _products(layout: Layout, one: Tensor, two: Tensor) -> Tensor:
    """⟨·,·⟩ of each tensor, by member."""
    pieces = [slice(e.start, e.stop) for e in layout.entries]
    one, two = _wide(one), _wide(two)
    return torch.stack([(one[..., p] * two[..., p]).sum(-1) for p in pieces], -1).cpu().double()


def scale_tensors_(state: ChainState, name: str, factors: Tensor) -> None:
    """Multiply each tensor of a vector (or of each member's) by a number, in place."""
    vector = state.slots[name] if name in state.slots else getattr(state, name)
    if name not in state.views or state.views[name][0].data_ptr() != vector.data_ptr():
        rows = [vector] if vector.dim() == 1 else list(vector)
        state.views[name] = [row[e.start : e.stop] for row in rows for e in state.layout.entries]
    torch._foreach_mul_(state.views[name], factors.flatten().tolist())
