"""``Cyclical``: a time step that falls from full to nothing and starts again, so that one run visits many places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from temperance.core.checks import check_count, check_function, check_part, check_whole
from temperance.core.errors import ArgumentError
from temperance.data.data import Batch
from temperance.engine.engine import Engine
from temperance.inference.base import Exactness, Facts, Inference, Info, Starts, WrapperState, refuse
from temperance.inference.card import Card, MethodFamily
from temperance.inference.langevin.sampler import LangevinSampler, Sampler, SamplerWrapper
from temperance.inference.schedules import cosine


@dataclass
class CyclicalState(WrapperState):
    """The base's state, and how many moves the chain has made."""

    clock: int = 0
    ended: bool = False
    begins: bool = False


@dataclass(frozen=True, eq=False)
class Cyclical(SamplerWrapper):
    """Cyclical time stepping (Zhang et al., 2020; Wenzel et al., 2020): within a cycle of P = ``cycle`` steps,

        c = floor + (1 − floor) · ½ (cos(π (t mod P)/P) + 1),

    scales the time step h of ``base``, *not* its learning rate: h' = c h. (For SGHMC ℓ' = c² ℓ and β' = 1 − c(1 − β);
    to scale ℓ alone would raise the friction by 1/√c.) :class:`Collect` takes one draw at each cycle's end, where the
    step, and with it the error of the discretisation, is smallest. A :class:`Layerwise` preconditioner is estimated
    anew at the start of each cycle, while the chain stands still (this takes its ``batches`` steps more).

    Args:
        base: a sampler.
        cycle: steps of a cycle.
        start: steps at full pace before the first cycle.
        ramp: over so many steps before the end of ``start`` the temperature rises linearly from 0 to T; it is 0 before
            (0: no ramp, T from the first step).
        explore: the first part of each cycle, between 0 and 1, that is run without noise.
        floor: the smallest pace.
        shape: :func:`cosine`, :func:`glide`, :func:`flat`, or a function of your own from [0, 1) to [0, 1].

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> method = tp.Collect(Cyclical(tp.SGHMC(lr=1e-3), cycle=100, start=200))
    >>> len(tp.fit(target, method, (x, 2 * x + 1), steps=1200).posterior.theta)
    10
    """

    card: ClassVar[Card] = Card(
        "a sampler whose time step falls and rises in cycles, with a draw at each end",
        MethodFamily.WRAPPERS,
        papers=("Zhang et al., Cyclical stochastic gradient MCMC for Bayesian deep learning, ICLR 2020",),
        cost="as its base",
        shown=("Cyclical(SGHMC())",),
    )

    base: Sampler
    cycle: int = 1000
    start: int = 0
    ramp: int = 0
    explore: float = 0.0
    floor: float = 0.0
    shape: Callable[[float], float] = cosine

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.cycle, "cycle")
        for name in ("start", "ramp"):
            check_whole(getattr(self, name), name, "a number of steps")
        for name in ("explore", "floor"):
            check_part(getattr(self, name), name)
        check_function(self.shape, "shape", "a function from [0, 1) to [0, 1], such as tp.cosine")
        if self.ramp > self.start:
            raise ArgumentError(f"`ramp` must not be longer than `start` ({self.start} steps); got {self.ramp}.")
        if not self.base.takes_heat and (self.ramp or self.explore):
            raise ArgumentError(
                f"`ramp` and `explore` must be 0 for {type(self.base).__name__}, which samples one temperature."
            )

    def check_base(self, base: Inference[Any]) -> None:
        """It must have a pace to change."""
        name = type(base).__name__
        if not isinstance(base, Sampler) or isinstance(base, Cyclical):
            refuse(
                self,
                base,
                f"it takes a sampler such as SGHMC, whose time step has a pace to change, and {name} is none",
                "Collect(Cyclical(SGHMC(lr=1e-3), cycle=500))",
            )
        if not base.takes_pace:
            refuse(
                self,
                base,
                f"it changes a pace, and {name} has its own step, tuned to what is accepted",
                f"Collect({name}(...)), or Tempered({name}(...), ladder(8.0, 4)) to cross between modes",
            )

    def facts(self) -> Facts:
        """The base's; the pace changes what is exact at one pace only."""
        return replace(super().facts(), exact=Exactness.APPROXIMATE)

    def _stands_still(self) -> int:
        preconditioner = getattr(self.base, "preconditioner", None)
        return 0 if preconditioner is None else int(preconditioner.batches)

    def check_run(self, steps: int) -> None:
        """At least one whole cycle."""
        if not self.ends(steps):
            still = f", {self._stands_still()} for the preconditioner" if self._stands_still() else ""
            raise ArgumentError(
                f"`cycle` must fit into the run: {self.cycle} steps (after `start` {self.start}{still}) are more than "
                f"the {steps} of the run."
            )
        self.base.check_run(steps)

    def ends(self, steps: int) -> list[int]:
        """After how many steps of a run each cycle ends, steps for which the chain stands still included."""
        still = self._stands_still()
        first = self.start + self.cycle + (2 * still if self.start else still)
        return list(range(first, steps + 1, self.cycle + still))

    def at_end(self, state: CyclicalState) -> bool:
        """Whether the last move closed a cycle."""
        return state.ended

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> CyclicalState:
        """See :class:`Inference`."""
        return CyclicalState(self.base.init(engine, starts, rngs))

    def step(self, engine: Engine, state: CyclicalState, batch: Batch) -> tuple[CyclicalState, Info]:
        """See :class:`Inference`."""
        self._set_tempo(state)
        state.base, info = self.base.step(engine, state.base, batch)
        return self._tick(state), info

    def _set_tempo(self, state: CyclicalState) -> None:
        chain, t = self.chain(state), state.clock
        chain.heat, place = 1.0, 0.0
        if chain.settling is not None:  # steps are looked for at full pace and heat; cycles begin after that
            chain.pace = 1.0
            return
        if t < self.start:
            if self.ramp:
                chain.heat = min(1.0, max(0.0, (t - (self.start - self.ramp)) / self.ramp))
            chain.pace = 1.0
        else:
            place = ((t - self.start) % self.cycle) / self.cycle
            chain.pace = self.floor + (1.0 - self.floor) * self.shape(place)
            if place < self.explore:
                chain.heat = 0.0
        if state.begins and isinstance(self.base, LangevinSampler):
            chain.to_estimate = self._stands_still()  # between stretches, never within
        state.ended = state.begins = False

    def _tick(self, state: CyclicalState) -> CyclicalState:
        chain = self.chain(state)
        if chain.moved and chain.settling is None:
            state.clock += 1
            past = state.clock - self.start
            state.begins = past >= 0 and past % self.cycle == 0
            state.ended = state.begins and past > 0
        return state
