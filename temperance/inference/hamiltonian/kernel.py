"""What HMC, NUTS and their kin share: chains as rows of a matrix, masses, and moves along the energy's slope.

A kernel leaves exp(−U(θ)/T) invariant whatever its step. C chains are the rows of θ (C × P) and move together, each
with a step, a mass, a temperature and random numbers of its own, so that chains run at once equal chains run alone to
rounding.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import check_part, check_positive
from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError
from temperance.core.growing import Rows
from temperance.core.seeds import spawn
from temperance.core.status import NON_FINITE_GRADIENT, NON_FINITE_LOSS, OK, Status
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.engine.native import NormalStream, fill_rows_
from temperance.inference.base import Cost, Exactness, Facts, Info, Starts
from temperance.inference.hamiltonian.motion import Metric, Motion, Phase, check_mass
from temperance.inference.langevin.sampler import (
    ChainState,
    Sampler,
    present_places,
    refuse_random_energies,
    take_reading,
)
from temperance.posteriors import Draws, Posterior
from temperance.posteriors.trace import Transitions

Numbers = np.ndarray[Any, Any]

DIVERGENCE = 1000.0
"""How much energy a trajectory may gain before it counts as divergent: the true flow gains none."""

_STEEP = (
    "there are places too steep for the step, and the draws may miss them. Ask Warmup for a higher acceptance "
    "(accept=0.95), lower `step_size`, or write the model in other coordinates."
)
_EDGE = (
    "ran over an edge of the support, to places where the log density is -inf or NaN, which are rejected; a smaller "
    "step seldom helps. Let the sampler have the whole line: φ = log θ for θ > 0, φ = logit θ for 0 < θ < 1, and add "
    "the log-Jacobian log |dθ/dφ| to the log density (φ itself, for θ = exp φ)."
)
_MOST_DOUBLINGS = 60
_START_REMEDY = "Start elsewhere (fit(..., start=...)), or look for a logarithm or a root that is out of its domain."


@dataclass
class HamiltonianState:
    """C chains: places, energies and slopes there; steps, inverse masses and factors on the temperature; how the last
    transition went, and what became of all of them since counting began."""

    chain: ChainState
    gradient: Tensor
    energy: Tensor
    step_size: Tensor
    inverse_mass: Tensor
    heat: Tensor
    rngs: list[torch.Generator]
    ready: bool = False
    acceptance: Tensor = field(default_factory=lambda: torch.zeros(0))
    divergent: Tensor = field(default_factory=lambda: torch.zeros(0))
    leapfrogs: Tensor = field(default_factory=lambda: torch.zeros(0))
    divergences: Tensor = field(default_factory=lambda: torch.zeros(0))
    edges: Tensor = field(default_factory=lambda: torch.zeros(0))
    transitions: int = 0
    accepted: float = 0.0
    history: Rows = field(default_factory=Rows)
    metric: Metric | None = field(default=None, metadata=SCRATCH)

    def masses(self) -> Metric:
        """The metric, factorised once."""
        if self.metric is None or self.metric.inverse_mass is not self.inverse_mass:
            self.metric = Metric(self.inverse_mass)
        return self.metric

    def forget(self) -> None:
        """Begin counting anew."""
        self.divergences.zero_()
        self.edges.zero_()
        self.transitions, self.accepted = 0, 0.0
        folder, self.history = self.history.folder, Rows()
        if folder is not None:
            self.history.keep_in(folder)


@dataclass
class Transition:
    """How a transition of each chain went: the mean probability of acceptance along the way, whether it diverged, the
    leapfrog steps, and whether it diverged because it came where θ is impossible (``edge``)."""

    acceptance: np.ndarray[Any, np.dtype[np.float64]]
    divergent: np.ndarray[Any, np.dtype[np.bool_]]
    leapfrogs: np.ndarray[Any, np.dtype[np.int64]]
    edge: np.ndarray[Any, np.dtype[np.bool_]]


class HamiltonianSampler(Sampler):
    """A sampler inside of which there are Hamiltonian chains: a kernel, or a wrapper around one."""

    takes_heat: ClassVar[bool] = False
    takes_pace: ClassVar[bool] = False

    @abstractmethod
    def hamiltonian(self, state: Any) -> HamiltonianState:
        """The chains inside the state."""

    def at_once(self, engine: Engine, starts: Starts) -> bool:
        """Always: a network that cannot be batched is evaluated for one chain after the other."""
        return True

    def posteriors(self, engine: Engine, state: Any, data: Data | None) -> tuple[Posterior, ...]:
        """The chains' present places, a single draw each; :class:`Collect` keeps many."""
        return present_places(self.chain(state))

    def remarks(self, state: Any) -> list[str]:
        """A chain that diverges says so."""
        return divergence_remarks(self.hamiltonian(state))


class TransitionKernel(HamiltonianSampler):
    """A transition of all chains at once: subclasses say which."""

    @abstractmethod
    def transition(self, flow: Motion, state: HamiltonianState) -> Transition:
        """Move all chains, whose θ, gradient and energy belong together before and after."""

    def hamiltonian(self, state: HamiltonianState) -> HamiltonianState:
        """The state itself."""
        return state

    def chain(self, state: HamiltonianState) -> ChainState:
        """See :class:`Sampler`."""
        return state.chain

    def moved_by_others(self, state: HamiltonianState) -> None:
        """See :class:`Sampler`."""
        state.ready = False

    def facts(self) -> Facts:
        """Exact at any step; θ, gradient, noise and variances between transitions."""
        cost = Cost(self.gradients(), 4)
        return Facts(gives=Draws, reads="full", exact=self.exactness(), cost=cost)

    def exactness(self) -> Exactness:
        """What is exact on a linear-Gaussian model."""
        return Exactness.POSTERIOR

    def gradients(self) -> float:
        """How many a transition takes."""
        return 1

    def keep_in(self, state: HamiltonianState, folder: Any) -> None:
        """What was told of each transition goes to a file."""
        state.history.keep_in(folder)

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> HamiltonianState:
        """See :class:`Inference`."""
        name = type(self).__name__
        engine.target.refuse_batch_norm(name)
        refuse_random_energies(engine, name)
        theta = starts.rows(engine)
        count = len(theta)
        gradient = torch.zeros_like(theta)
        chain = ChainState(
            theta=theta,
            grad=gradient,
            noise=torch.zeros_like(theta),
            slots={},
            streams=[NormalStream(spawn(rng)) for rng in rngs],
            buffers={},
            layout=engine.layout,
        )
        own = []
        for rng in rngs:
            made = torch.Generator()
            made.manual_seed(spawn(rng))
            own.append(made)
        whole = torch.float64
        return HamiltonianState(
            chain=chain,
            gradient=gradient,
            energy=torch.full((count,), math.nan, dtype=whole),
            step_size=torch.full((count,), self._first_step(), dtype=whole),
            inverse_mass=self._inverse_mass(theta),
            heat=torch.ones(count, dtype=whole),
            rngs=own,
            acceptance=torch.zeros(count, dtype=whole),
            divergent=torch.zeros(count, dtype=torch.bool),
            leapfrogs=torch.zeros(count, dtype=torch.int64),
            divergences=torch.zeros(count, dtype=torch.int64),
            edges=torch.zeros(count, dtype=torch.int64),
        )

    def _first_step(self) -> float:
        return 1.0

    def _inverse_mass(self, theta: Tensor) -> Tensor:
        return torch.ones_like(theta)

    # ------------------------------------------------------------------ a step

    def flow(self, engine: Engine, state: HamiltonianState, batch: Batch) -> Motion:
        """The motion on these rows, at each chain's temperature."""
        return Motion(engine.energies_on(batch), state.masses(), 1.0 / (engine.temperature * state.heat))

    def ready(self, engine: Engine, state: HamiltonianState, batch: Batch) -> Status:
        """Make energies and slopes those of the present places."""
        if not state.ready:
            state.energy.copy_(engine.energies(state.chain.theta, batch, state.gradient))
            if not bool(torch.isfinite(state.energy).all()):
                bad = [k + 1 for k, ok in enumerate(torch.isfinite(state.energy).tolist()) if not ok]
                return replace(
                    NON_FINITE_LOSS.about(f"at the start of chain {bad[0]} of {len(state.energy)}"),
                    remedy=_START_REMEDY,
                )
            if not bool(torch.isfinite(state.gradient).all()):
                return NON_FINITE_GRADIENT
            state.ready = True
        return OK

    def step(self, engine: Engine, state: HamiltonianState, batch: Batch) -> tuple[HamiltonianState, Info]:
        """One transition of every chain."""
        chain = state.chain
        status = self.ready(engine, state, batch)
        if not status.ok:
            return state, Info(math.nan, status)
        losses = self._losses(engine, state, batch)
        if chain.read_next:
            take_reading(chain, 1, losses, 1.0)
            assert chain.reading is not None
            chain.reading.acceptance = state.accepted / max(1, state.transitions)
        fill_rows_(chain.noise, chain.streams)
        made = self.transition(self.flow(engine, state, batch), state)
        self._tell(state, made)
        return state, Info(float(losses.mean()), metrics={"acceptance": state.accepted / state.transitions})

    def _losses(self, engine: Engine, state: HamiltonianState, batch: Batch) -> Tensor:
        prior = engine.bound_prior.log_prob(state.chain.theta, torch.float64).cpu()
        return (state.energy + prior) * engine.likelihood_temperature / batch.num_data

    def _tell(self, state: HamiltonianState, made: Transition) -> None:
        state.acceptance.copy_(torch.from_numpy(made.acceptance))
        state.divergent.copy_(torch.from_numpy(made.divergent))
        state.leapfrogs.copy_(torch.from_numpy(made.leapfrogs))
        state.divergences += state.divergent
        state.edges += torch.from_numpy(made.divergent & made.edge)
        state.transitions += 1
        state.accepted += float(made.acceptance.mean())
        told = [state.energy, state.acceptance, state.leapfrogs.double(), state.divergent.double(), state.step_size]
        state.history.append(torch.stack(told, dim=1).flatten())

    def transitions_of(self, state: HamiltonianState, member: int) -> Transitions | None:
        """See :class:`Sampler`."""
        if not len(state.history):
            return None
        rows = state.history.tensor().clone().view(len(state.history), len(state.rngs), 5)[:, member]
        return Transitions(
            energy=rows[:, 0],
            acceptance=rows[:, 1],
            leapfrogs=rows[:, 2].long(),
            divergent=rows[:, 3].bool(),
            step_size=rows[:, 4],
        )


class SteppingKernel(TransitionKernel):
    """A kernel with a step and masses, which :class:`Warmup` can find. Subclasses have the fields named here."""

    step_size: float | None
    mass: Tensor | None

    def _check(self) -> None:
        if self.step_size is not None:
            check_positive(self.step_size, "step_size")
        if self.mass is not None:
            check_mass(self.mass)

    def check_run(self, steps: int) -> None:
        """There must be a step size by now."""
        if self.step_size is None:
            raise ArgumentError(
                f"`step_size` must be given, or found by Warmup({type(self).__name__}(...), 500); got None."
            )

    def _first_step(self) -> float:
        return self.step_size or 0.1

    def _inverse_mass(self, theta: Tensor) -> Tensor:
        if self.mass is None:
            return torch.ones_like(theta)
        mass = self.mass.to(theta)
        if mass.shape[-1] != theta.shape[-1]:
            raise ArgumentError(f"`mass` must be for {theta.shape[-1]} parameters; got shape {tuple(mass.shape)}.")
        inverse = 1.0 / mass if mass.dim() == 1 else torch.cholesky_inverse(torch.linalg.cholesky(mass))
        return inverse.expand(len(theta), *inverse.shape).clone()

    def one_step_gain(self, flow: Motion, state: HamiltonianState, step: Tensor) -> Tensor:
        """How much energy one integration step of this size gains, by chain; the chains stay where they are."""
        momentum = flow.metric.momenta(state.chain.noise)
        before = flow.inverse_temperature * state.energy + flow.kinetic(momentum)
        energy, kinetic = flow.leap(Phase(state.chain.theta.clone(), momentum, state.gradient.clone()), step)
        return flow.inverse_temperature * energy + kinetic - before

    def reasonable_steps(self, flow: Motion, state: HamiltonianState, wanted: float) -> Tensor:
        """Double or halve each chain's ε until the acceptance of a single step crosses ``wanted``."""
        step = state.step_size.clone()
        direction = torch.zeros_like(step)
        searching = torch.ones_like(step, dtype=torch.bool)
        for _ in range(_MOST_DOUBLINGS):
            gain = self.one_step_gain(flow, state, step)
            good = gain.nan_to_num(math.inf) < -math.log(wanted)
            wish = torch.where(good, 1.0, -1.0).to(step)
            direction = torch.where(direction == 0, wish, direction)
            searching &= wish == direction
            if not bool(searching.any()):
                break
            step = torch.where(searching, step * 2.0**direction, step)
        return step


def check_jitter(jitter: object) -> None:
    """A share of the step, below one."""
    check_part(jitter, "jitter")


def jittered(step: Tensor, jitter: float, luck: Numbers) -> Tensor:
    """Steps of one trajectory, uniform on ε (1 ± jitter)."""
    return step * (1.0 + jitter * (2.0 * torch.from_numpy(luck.copy()) - 1.0))


def judge_gain(gain: Numbers) -> tuple[Numbers, Numbers]:
    """The probability that a trajectory which gained this energy is accepted, and whether it diverged."""
    with np.errstate(invalid="ignore", over="ignore"):
        chance = np.where(np.isfinite(gain), np.exp(np.minimum(0.0, -gain)), 0.0)
        return chance, ~(gain <= DIVERGENCE)


def over_an_edge(energy: Tensor, work: Tensor) -> Numbers:
    """Whether a trajectory's end is an impossible place: U is infinite or no number there, and all that was gained on
    the way beside U (``work``, over T) is still within reason: where the step is too long both grow."""
    found: Numbers = (~torch.isfinite(energy) & (work <= DIVERGENCE)).numpy()
    return found


def settle_(state: HamiltonianState, accept: Tensor, theta: Tensor, gradient: Tensor, energy: Tensor) -> None:
    """Take the proposal where ``accept`` says so; in place, for others look at the same memory."""
    where = accept.to(theta.device).unsqueeze(1)
    state.chain.theta.copy_(torch.where(where, theta, state.chain.theta))
    state.gradient.copy_(torch.where(where, gradient, state.gradient))
    state.energy.copy_(torch.where(accept, energy, state.energy))
    state.chain.moved = True


def divergence_remarks(state: HamiltonianState, harmless: float = 0.0) -> list[str]:
    """What to say of transitions that diverged, where in some chain they are more than a ``harmless`` share."""
    count = int(state.divergences.sum())
    total = state.transitions * len(state.divergences)
    if int(state.divergences.max()) <= harmless * state.transitions:
        return []
    where = [f"{k + 1} ({n})" for k, n in enumerate(state.divergences.tolist()) if n]
    named = "chain" if len(where) == 1 else "chains"
    head = (
        f"{count} of {total} transitions diverged, in {named} {', '.join(where[:8])}{' …' if len(where) > 8 else ''}: "
    )
    edges = int(state.edges.sum())
    if not edges:
        return [head + _STEEP]
    if edges == count:
        return [f"{head}they {_EDGE}"]
    return [f"{head}{edges} of them {_EDGE} In the others {_STEEP}"]
