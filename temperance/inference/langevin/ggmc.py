"""``GGMC``: Langevin dynamics with a Metropolis correction, exact at any step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_positive
from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError
from temperance.core.seeds import spawn
from temperance.core.status import NON_FINITE_GRADIENT, NON_FINITE_LOSS
from temperance.data.data import Batch, Data
from temperance.data.sources import map_tensors
from temperance.engine.engine import Engine
from temperance.engine.native import NormalStream
from temperance.inference.base import Cost, Exactness, Facts, Info, Starts
from temperance.inference.card import Card, MethodFamily
from temperance.inference.langevin.sampler import (
    ChainState,
    Sampler,
    check_momentum,
    present_places,
    refuse_random_energies,
    take_reading,
)
from temperance.posteriors import Draws, Posterior

_ENOUGH, _LEAST_ACCEPTED = 20, 0.02  # proposals before a verdict, and the share of them that a sound chain accepts


@dataclass
class GGMCState:
    """The chain; θ, velocity and energy where the trajectory began; a generator for acceptance and batches."""

    chain: ChainState
    rng: torch.Generator
    energy: float | None = None
    loss: float = math.nan
    accepted: int = 0
    proposed: int = 0
    has_gradient: bool = field(default=False, metadata=SCRATCH)
    start: Tensor = field(default_factory=lambda: torch.empty(0), metadata=SCRATCH)
    start_velocity: Tensor = field(default_factory=lambda: torch.empty(0), metadata=SCRATCH)


@dataclass(frozen=True, eq=False)
class GGMC(Sampler):
    """Gradient-guided Monte Carlo (Garriga-Alonso & Fortuin, 2021): OBABO steps, accepted or rejected together.

    With h = √(ℓ/N) and β = ``momentum``, each of ``length`` steps is

        m ← √β m + √(T (1 − β)) ξ                 O
        m ← m − ½ h N ∇G̃_b(θ);  θ ← θ + h m;  m ← m − ½ h N ∇G̃_b(θ)          BAB, both kicks on one batch b
        m ← √β m + √(T (1 − β)) ξ                 O

    and the end is accepted with probability min(1, exp(−ΔE/T)),

        ΔE = U(θ_end) − U(θ_start) + Σ_steps (½‖m_after‖² − ½‖m_before‖²),

    m before and after BAB; if not, θ goes back and m turns round. O keeps N(0, T) and BAB keeps volumes and is its own
    reverse, so exp(−U/T) is exactly stationary for any step and any batches drawn at random: an error of the
    discretisation or of the batches costs acceptance, never correctness. It reads all data at each step, for U.

    Far from the posterior, where the energy is steep, it may reject everything: start it where another method ended
    (``fit(..., start=...)``).

    Args:
        lr: ℓ, as the learning rate of ``torch.optim.SGD`` on the mean loss.
        momentum: β, what is left of a momentum after a step; 0, with ``length=1``, is the Metropolis-adjusted Langevin
            algorithm.
        length: steps between decisions.
        batch_size: rows for each kick; ``None`` uses all, at one gradient a step instead of two.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, tp.Collect(GGMC(lr=1e-2, momentum=0.9)), (x, 2 * x + 1), steps=500)
    >>> fitted.predict(torch.tensor([[0.5]])).mean().round(decimals=1)
    tensor([[2.]])
    """

    card: ClassVar[Card] = Card(
        "Langevin steps that are accepted or rejected together (Metropolis-corrected)",
        MethodFamily.LANGEVIN,
        papers=("Garriga-Alonso & Fortuin, Exact Langevin dynamics with stochastic gradients, AABI 2021",),
        exact="any energy, any step",
        cost="`length` + 1 gradients",
    )

    takes_heat: ClassVar[bool] = False

    lr: float = 0.01
    momentum: float = 0.9
    length: int = 5
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(self.lr, "lr")
        check_momentum(self.momentum)
        check_count(self.length, "length")
        if self.batch_size is not None:
            check_count(self.batch_size, "batch_size")

    def facts(self) -> Facts:
        """One gradient for each kick and one for U; θ, gradient, noise, velocity, and the start of the trajectory."""
        kicks = self.length if self.batch_size is None else 2 * self.length
        return Facts(gives=Draws, reads="full", exact=Exactness.POSTERIOR, cost=Cost(kicks + 1, 6))

    def chain(self, state: GGMCState) -> ChainState:
        """See :class:`Sampler`."""
        return state.chain

    def moved_by_others(self, state: GGMCState) -> None:
        """See :class:`Sampler`."""
        state.energy, state.has_gradient = None, False

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> GGMCState:
        """See :class:`Inference`."""
        (rng,) = rngs
        engine.target.refuse_batch_norm("GGMC")
        refuse_random_energies(engine, "GGMC")
        start = starts.rows(engine)
        chain = ChainState(
            theta=start,
            grad=torch.zeros_like(start),
            noise=torch.zeros_like(start),
            slots={"velocity": torch.zeros_like(start)},
            streams=[NormalStream(spawn(rng))],
            buffers=engine.target.running_buffers(),
            layout=engine.layout,
        )
        own = torch.Generator()
        own.manual_seed(spawn(rng))
        state = GGMCState(chain, own, start=torch.empty_like(start), start_velocity=torch.empty_like(start))
        chain.streams[0].fill_(chain.slots["velocity"]).mul_(math.sqrt(engine.temperature))
        return state

    def step(self, engine: Engine, state: GGMCState, batch: Batch) -> tuple[GGMCState, Info]:
        """One trajectory and its decision."""
        chain, n = state.chain, batch.num_data
        if n != batch.size:
            raise ArgumentError(
                f"`num_data` must be the number of rows, all of which GGMC reads; got {n}, not {batch.size}."
            )
        if state.energy is None or (self.batch_size is None and not state.has_gradient) or chain.read_next:
            state.energy, state.loss = self._energy(engine, state, batch)
            if not math.isfinite(state.energy):
                return state, Info(state.loss, NON_FINITE_LOSS)
            if not bool(torch.isfinite(chain.grad).all()):  # no trajectory from here can be accepted
                return state, Info(state.loss, NON_FINITE_GRADIENT)
        if chain.read_next:
            take_reading(chain, n, torch.tensor(state.loss), 1.0)
            assert chain.reading is not None
            chain.reading.acceptance = state.accepted / max(1, state.proposed)
        state.start.copy_(chain.theta)
        state.start_velocity.copy_(chain.slots["velocity"])
        end, loss, change = self._trajectory(engine, state, batch)
        delta = end - state.energy + change
        luck = float(torch.rand((), generator=state.rng, dtype=torch.float64))
        state.proposed += 1
        if math.isfinite(delta) and luck < math.exp(min(0.0, -delta / engine.temperature)):
            state.accepted += 1
            state.energy, state.loss = end, loss
        else:
            chain.theta.copy_(state.start)
            torch.neg(state.start_velocity, out=chain.slots["velocity"])
            state.has_gradient = False  # it belongs to the place that was rejected
        return state, Info(state.loss, metrics={"acceptance": state.accepted / state.proposed})

    def _trajectory(self, engine: Engine, state: GGMCState, batch: Batch) -> tuple[float, float, float]:
        """Go ``length`` steps; U and the mean loss at the end, and the sum of the changes of ½‖m‖² in BAB."""
        chain, n = state.chain, batch.num_data
        velocity = chain.slots["velocity"]
        h = chain.pace * math.sqrt(self.lr / n)
        keep = math.sqrt(self.momentum**chain.pace)
        spread = math.sqrt(engine.temperature * (1 - keep * keep))
        end, loss, change = math.nan, math.nan, 0.0
        for _ in range(self.length):
            self._refresh(chain, keep, spread)
            share = batch
            if self.batch_size is not None:
                share = self._share(state, batch)
                engine.gradients(chain.theta, share, chain.grad, chain.buffers)
            before = _half_square(velocity)
            velocity.add_(chain.grad, alpha=-0.5 * h * n)
            chain.theta.add_(velocity, alpha=h)
            if self.batch_size is None:
                end, loss = self._energy(engine, state, batch)
            else:
                engine.gradients(chain.theta, share, chain.grad, chain.buffers)
            velocity.add_(chain.grad, alpha=-0.5 * h * n)
            change += _half_square(velocity) - before
            self._refresh(chain, keep, spread)
        if self.batch_size is not None:
            end, loss = self._energy(engine, state, batch)
        return end, loss, change

    def _share(self, state: GGMCState, batch: Batch) -> Batch:
        """Some rows of the data, at random."""
        assert self.batch_size is not None
        rows = torch.randperm(batch.size, generator=state.rng)[: self.batch_size].to(batch.y.device)
        weights = None if batch.weights is None else batch.weights[rows]
        return replace(batch, x=map_tensors(lambda t: t[rows], batch.x), y=batch.y[rows], index=None, weights=weights)

    def _refresh(self, chain: ChainState, keep: float, spread: float) -> None:
        chain.streams[0].fill_(chain.noise)
        chain.slots["velocity"].mul_(keep).add_(chain.noise, alpha=spread)

    def _energy(self, engine: Engine, state: GGMCState, batch: Batch) -> tuple[float, float]:
        """U(θ) and the mean loss; ∇G̃ on all data goes into the chain's gradient."""
        chain, n = state.chain, batch.num_data
        energy = engine.energies(chain.theta, batch, chain.grad)  # in float64: differences of large sums decide
        chain.grad.div_(n)
        state.has_gradient = True
        prior = engine.bound_prior.log_prob(chain.theta, torch.float64)
        loss = (energy.cpu() + prior.cpu()) * engine.likelihood_temperature / n
        return float(energy), float(loss)

    def remarks(self, state: GGMCState) -> list[str]:
        """A chain that stands still says so."""
        rate = state.accepted / max(1, state.proposed)
        if state.proposed < _ENOUGH or rate >= _LEAST_ACCEPTED:
            return []
        return [
            f"GGMC accepted {state.accepted} of {state.proposed} proposals, so that its draws are hardly more than the "
            "place where it began: lower `lr` or `length`, or start where another method ended (fit(..., start=...))."
        ]

    def posteriors(self, engine: Engine, state: GGMCState, data: Data | None) -> tuple[Posterior, ...]:
        """The chain's present place, a single draw; :class:`Collect` keeps many."""
        return present_places(state.chain)


def _half_square(velocity: Tensor) -> float:
    return 0.5 * float(velocity.double().square().sum())
