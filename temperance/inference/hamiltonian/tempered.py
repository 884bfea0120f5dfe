"""``Tempered``: parallel tempering, for posteriors of several modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_positive, shown
from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError
from temperance.core.seeds import generator, spawn
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.base import Facts, Inference, Info, Starts, WrapperState, refuse
from temperance.inference.card import Card, MethodFamily
from temperance.inference.hamiltonian.kernel import HamiltonianSampler, HamiltonianState
from temperance.inference.langevin.sampler import ChainState, Reading, SamplerWrapper, present_places
from temperance.posteriors import Posterior
from temperance.posteriors.trace import Transitions


def ladder(highest: float, count: int) -> tuple[float, ...]:
    """``count`` temperatures from 1 to ``highest``, each the same factor above the one before.

    >>> ladder(8.0, 4)
    (1.0, 2.0, 4.0, 8.0)
    """
    check_count(count, "count")
    if count < 2 or not check_positive(highest, "highest") > 1.0:
        raise ArgumentError(f"`highest` must exceed 1 and `count` be at least 2; got {shown(highest)} and {count!r}.")
    return tuple(round(highest ** (k / (count - 1)), 12) for k in range(count))


@dataclass
class TemperedState(WrapperState):
    """The base's chains, member by member and from cold to hot; a generator for the swaps of each member, and how
    often each pair of neighbours was offered a swap and took it."""

    rngs: list[torch.Generator]
    offered: Tensor
    swapped: Tensor
    done: int = 0
    cold: ChainState = field(default=None, metadata=SCRATCH)  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Tempered(SamplerWrapper, HamiltonianSampler):
    """Parallel tempering (Swendsen & Wang, 1986): one chain at each of ``temperatures``, factors on T, the first of
    them 1. Hot chains cross the barriers that cold ones cannot. After every ``every`` steps neighbours i, j offer to
    change places and do so with probability

        min(1, exp((1/Tᵢ − 1/Tⱼ) (Uᵢ − Uⱼ))),

    even pairs and odd pairs in turn, which leaves the product of all tempered posteriors, and so the cold one's,
    exactly stationary. Draws are the cold chain's. ``swap_rates`` tells whether the temperatures are close enough:
    each should be well above 0.1.

    Args:
        base: ``NUTS``, ``HMC``, ``MCLMC``, ``EllipticalSlice``, or a ``Warmup`` of one (tuned at each temperature).
        temperatures: from 1 upwards; :func:`ladder` makes them.
        every: steps between swaps.

    >>> import temperance as tp
    >>> Tempered(tp.HMC(step_size=0.1, length=5), temperatures=tp.ladder(8.0, 4)).facts().cost.gradients_per_step
    20
    """

    card: ClassVar[Card] = Card(
        "parallel tempering: hot chains cross between modes, and swap with cold ones",
        MethodFamily.HAMILTONIAN,
        papers=("Swendsen & Wang, Replica Monte Carlo simulation of spin glasses, Physical Review Letters 1986",),
        exact="as its base",
        cost="base × temperatures; `ladder(8.0, 4)` makes four",
        shown=("Tempered(Warmup(NUTS()))",),
    )

    base: HamiltonianSampler
    temperatures: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.temperatures
        if not isinstance(given, tuple | list) or len(given) < 2:
            raise ArgumentError(f"`temperatures` must be at least two numbers; got {shown(given)}.")
        for value in given:
            check_positive(value, "temperatures")
        if given[0] != 1.0 or any(b <= a for a, b in pairwise(given)):
            raise ArgumentError(f"`temperatures` must begin with 1.0 and rise; got {shown(given)}.")
        check_count(self.every, "every")

    def check_base(self, base: Inference[Any]) -> None:
        """It must know the energy of every chain, at a temperature of its own."""
        if not isinstance(base, HamiltonianSampler) or isinstance(base, Tempered):
            refuse(
                self,
                base,
                "it takes NUTS, HMC, MCLMC, EllipticalSlice or a Warmup of one: chains change places by their "
                f"exact energies at temperatures of their own, which {type(base).__name__} does not keep",
                "Collect(Tempered(Warmup(NUTS(), 500), ladder(8.0, 4)))",
            )

    def facts(self) -> Facts:
        """The base's, at each temperature."""
        base = super().facts()
        return replace(base, cost=base.cost.times(len(self.temperatures)))

    def hamiltonian(self, state: TemperedState) -> HamiltonianState:
        """All chains, hot ones too."""
        return self.base.hamiltonian(state.base)

    def chain(self, state: TemperedState) -> ChainState:
        """The cold chains."""
        return state.cold

    def transitions_of(self, state: TemperedState, member: int) -> Transitions | None:
        """Of the cold chain's place in the ladder."""
        return self.base.transitions_of(state.base, member * len(self.temperatures))

    def posteriors(self, engine: Engine, state: TemperedState, data: Data | None) -> tuple[Posterior, ...]:
        """The cold chains' present places."""
        return present_places(state.cold)

    def remarks(self, state: TemperedState) -> list[str]:
        """Divergences, and neighbours that never change places."""
        told = self.base.remarks(state.base)
        rates = self.swap_rates(state)
        if state.done > 20 and float(rates.min()) < 0.02:
            k = int(rates.argmin())
            told.append(
                f"chains at temperatures {self.temperatures[k]:g} and {self.temperatures[k + 1]:g} hardly ever change "
                f"places ({float(rates[k]):.1%} of offers): put more temperatures between them (see ladder)."
            )
        return told

    def swap_rates(self, state: TemperedState) -> Tensor:
        """The share of offers taken, for each pair of neighbours."""
        return state.swapped.double() / state.offered.clamp(min=1)

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> TemperedState:
        """See :class:`Inference`. All temperatures of a member begin at its start."""
        count = len(self.temperatures)
        own = [generator(spawn(rng), "swaps") for rng in rngs]
        several = [generator(spawn(rng), "temperature", k) for rng in rngs for k in range(count)]
        base = self.base.init(engine, Starts.at(starts.rows(engine, count)), several)
        inside = self.base.hamiltonian(base)
        inside.heat.copy_(torch.tensor(self.temperatures, dtype=torch.float64).repeat(len(rngs)))
        shape = (len(rngs), count, engine.layout.size)
        cold = ChainState(
            theta=inside.chain.theta.view(shape)[:, 0],
            grad=inside.gradient.view(shape)[:, 0],
            noise=torch.zeros(0),
            slots={},
            streams=[],
            buffers={},
            layout=engine.layout,
        )
        zeros = torch.zeros(count - 1, dtype=torch.int64)
        return TemperedState(base, own, zeros, zeros.clone(), cold=cold)

    def step(self, engine: Engine, state: TemperedState, batch: Batch) -> tuple[TemperedState, Info]:
        """A step at every temperature; now and then, swaps."""
        inside = self.base.hamiltonian(state.base)
        inside.chain.read_next = state.cold.read_next  # only the kernel knows when its slopes are those of the place
        state.base, info = self.base.step(engine, state.base, batch)
        if not info.status.ok:
            return state, info
        inside = self.base.hamiltonian(state.base)
        if inside.chain.reading is not None:
            self._read_cold(state, inside.chain.reading, inside)
            inside.chain.reading = None
        state.done += 1
        if state.done % self.every == 0:
            self._swap(engine, state, inside)
        return state, info

    def _read_cold(self, state: TemperedState, all_chains: Reading, inside: HamiltonianState) -> None:
        """Of a reading of all chains, that of the cold ones."""
        count = len(self.temperatures)
        state.cold.reading = Reading(
            all_chains.kinetic[::count],
            all_chains.configurational[::count],
            all_chains.kinetic_bias,
            all_chains.loss[::count],
            float(inside.acceptance[::count].mean()),
        )
        state.cold.read_next = False

    def _swap(self, engine: Engine, state: TemperedState, inside: HamiltonianState) -> None:
        count, members = len(self.temperatures), len(state.rngs)
        first = (state.done // self.every) % 2
        pairs = torch.arange(first, count - 1, 2)
        if not len(pairs):
            return
        luck = torch.stack([torch.rand(len(pairs), generator=rng, dtype=torch.float64) for rng in state.rngs])
        cool = (torch.arange(members).unsqueeze(1) * count + pairs).flatten()
        warm = cool + 1
        beta = 1.0 / (engine.temperature * inside.heat)
        gain = (beta[cool] - beta[warm]) * (inside.energy[cool] - inside.energy[warm])
        taken = luck.flatten().log() < gain
        state.offered[pairs] += members
        state.swapped[pairs] += taken.view(members, -1).sum(0)
        one, two = cool[taken], warm[taken]
        for rows in (inside.chain.theta, inside.gradient, inside.energy):
            at, to = one.to(rows.device), two.to(rows.device)
            rows[at], rows[to] = rows[to].clone(), rows[at].clone()
