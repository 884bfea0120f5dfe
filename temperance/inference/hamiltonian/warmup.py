"""``Warmup``: finds a Hamiltonian sampler's step and masses before the first draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from temperance.core.checks import check_choice, check_count, check_level
from temperance.core.errors import ArgumentError
from temperance.data.data import Batch
from temperance.engine.engine import Engine
from temperance.engine.native import fill_rows_
from temperance.inference.base import Facts, Inference, Info, Starts, WrapperState, refuse
from temperance.inference.card import Card, MethodFamily
from temperance.inference.hamiltonian.kernel import (
    HamiltonianSampler,
    HamiltonianState,
    SteppingKernel,
)
from temperance.inference.langevin.sampler import SamplerWrapper

_GAMMA, _DELAY, _DECAY = 0.05, 10.0, 0.75
_SHRINK, _TOWARDS = 5.0, 1e-3


@dataclass
class Averaging:
    """Nesterov's dual averaging of log ε for C chains: the target acceptance is a root to be found."""

    centre: Tensor
    errors: Tensor
    mean: Tensor
    count: int = 0

    @classmethod
    def around(cls, step: Tensor) -> Averaging:
        """Begin at ``step``, drawn towards ten times it."""
        return cls((10.0 * step).log(), torch.zeros_like(step), torch.zeros_like(step))

    def update(self, acceptance: Tensor, wanted: float) -> Tensor:
        """Take one more acceptance into account: the ε to try next."""
        self.count += 1
        share = 1.0 / (self.count + _DELAY)
        self.errors = (1.0 - share) * self.errors + share * (wanted - acceptance)
        log_step = self.centre - self.errors * self.count**0.5 / _GAMMA
        keep = self.count**-_DECAY
        self.mean = keep * log_step + (1.0 - keep) * self.mean
        return log_step.exp()


@dataclass
class Moments:
    """Running means and sums of squared deviations (Welford) of C chains: C × P, or C × P × P for the latter."""

    mean: Tensor
    squares: Tensor
    count: int = 0

    @classmethod
    def of(cls, theta: Tensor, dense: bool) -> Moments:
        """None seen yet."""
        wide = theta.double()
        squares = wide.unsqueeze(-1) * wide.unsqueeze(-2) if dense else wide
        return cls(torch.zeros_like(wide), torch.zeros_like(squares))

    def add(self, theta: Tensor) -> None:
        """One more place of every chain."""
        self.count += 1
        wide = theta.double()
        before = wide - self.mean
        self.mean += before / self.count
        after = wide - self.mean
        if self.squares.dim() == 3:
            self.squares.baddbmm_(before.unsqueeze(-1), after.unsqueeze(-2))
        else:
            self.squares.addcmul_(before, after)

    def covariance(self) -> Tensor:
        """Variances or covariances; the latter drawn a little towards their diagonal, whatever the units of θ."""
        found = self.squares / max(1, self.count - 1)
        variances = found.diagonal(dim1=-2, dim2=-1) if found.dim() == 3 else found
        towards = _TOWARDS * torch.where(variances > 0.0, variances, 1.0)  # a coordinate that never moved gets some
        share = self.count / (self.count + _SHRINK)
        if found.dim() == 3:
            found = 0.5 * share * (found + found.mT)
            found.diagonal(dim1=-2, dim2=-1).add_((1.0 - share) * towards)
            return found
        return share * found + (1.0 - share) * towards


@dataclass
class WarmupState(WrapperState):
    """The kernel's state, the transitions made, and what was learned in the window under way."""

    averaging: Averaging
    moments: Moments
    done: int = 0


@dataclass(frozen=True, eq=False)
class Warmup(SamplerWrapper, HamiltonianSampler):
    """``base`` after ``steps`` transitions that tune it; they are no draws, and nothing is tuned after them.

    The step ε of each chain is set by dual averaging of log ε (Hoffman & Gelman, 2014) so that the mean acceptance is
    ``accept``. Masses are the inverse of the variances (or covariances) of the chain's own places, in windows: after
    ``first`` transitions, windows of ``window``, 2 · ``window``, 4 · ``window`` … each end with new masses and a new
    search for ε; the ``last`` transitions tune ε alone. With few draws n the estimate is shrunk,
    n/(n+5) Σ̂ + 5/(n+5) · 10⁻³ diag Σ̂: in units of its own, so that a weight known to 10⁻⁴ gets its mass, too.

    Args:
        base: ``NUTS()``, ``HMC(...)`` or ``MCLMC(...)``.
        steps: transitions.
        mass: ``"diagonal"``, ``"dense"`` (P² numbers for each chain), or ``"none"``: that of ``base``.
        accept: the mean acceptance that is wanted.
        first, window, last: see above.

    >>> import temperance as tp
    >>> Warmup(tp.NUTS(), 500).facts().settling
    500
    """

    card: ClassVar[Card] = Card(
        "finds each chain's step and masses, then leaves them alone",
        MethodFamily.HAMILTONIAN,
        papers=("Hoffman & Gelman, The no-U-turn sampler, JMLR 2014",),
        exact="as its base",
        shown=("Warmup(NUTS())", "Warmup(HMC())", "Warmup(MCLMC())"),
    )

    base: SteppingKernel
    steps: int = 1000
    mass: Literal["diagonal", "dense", "none"] = "diagonal"
    accept: float = 0.8
    first: int = 75
    window: int = 25
    last: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "first", "window", "last"):
            check_count(getattr(self, name), name)
        check_choice(self.mass, "mass", ("diagonal", "dense", "none"))
        check_level(self.accept, "accept")
        least = self.first + self.window + self.last
        if self.mass != "none" and self.steps < least:
            raise ArgumentError(
                f"`steps` must be at least {least}, the sum of the warm-up's windows (`first` {self.first}, "
                f"`window` {self.window}, `last` {self.last}); got {self.steps}. Warm up longer, make the windows "
                "shorter, or give mass='none' to tune the step alone."
            )

    def check_base(self, base: Inference[Any]) -> None:
        """It must have a step to be found."""
        if not isinstance(base, SteppingKernel):
            refuse(
                self,
                base,
                f"it tunes NUTS, HMC or MCLMC, whose step and masses are tuned by what is accepted, and "
                f"{type(base).__name__} has none of its own to be found",
                f"Warmup(NUTS(), 500), or {type(base).__name__} without it",
            )

    def facts(self) -> Facts:
        """The base's, and means and squares in float64; its transitions are no draws."""
        base = super().facts()
        return replace(base, cost=base.cost.plus(4), settling=self.steps)

    def window_ends(self) -> list[int]:
        """After how many transitions new masses come into force.

        >>> import temperance as tp
        >>> Warmup(tp.NUTS(), 1000).window_ends()
        [100, 150, 250, 450, 950]
        """
        if self.mass == "none":
            return []
        ends, at, size, stop = [], self.first, self.window, self.steps - self.last
        while at < stop:
            at = at + size if at + 3 * size <= stop else stop  # a next window, twice as long, must fit
            ends.append(at)
            size *= 2
        return ends

    def check_run(self, steps: int) -> None:
        """There must be something left after the warm-up."""
        if steps <= self.steps:
            raise ArgumentError(f"`steps` of the run must exceed the {self.steps} of the warm-up; got {steps}.")

    def hamiltonian(self, state: WarmupState) -> HamiltonianState:
        """Those of the base."""
        return self.base.hamiltonian(state.base)

    def remarks(self, state: WarmupState) -> list[str]:
        """As the base."""
        return self.base.remarks(state.base)

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> WarmupState:
        """See :class:`Inference`."""
        base = self.base.init(engine, starts, rngs)
        if self.mass == "dense" and base.inverse_mass.dim() == 2:
            base.inverse_mass = torch.diag_embed(base.inverse_mass)
        return WarmupState(base, Averaging.around(base.step_size), self._no_moments(base))

    def _no_moments(self, base: HamiltonianState) -> Moments:
        return Moments.of(base.chain.theta, self.mass == "dense")

    def step(self, engine: Engine, state: WarmupState, batch: Batch) -> tuple[WarmupState, Info]:
        """A transition; during the warm-up, what it teaches."""
        base = state.base
        if state.done == 0:
            status = self.base.ready(engine, base, batch)
            if not status.ok:
                return state, Info(float("nan"), status)
            self._begin_search(engine, state, batch)
        state.base, info = self.base.step(engine, base, batch)
        state.done += 1
        if info.status.ok and state.done <= self.steps:
            self._learn(engine, state, batch)
        return state, info

    def _learn(self, engine: Engine, state: WarmupState, batch: Batch) -> None:
        base = state.base
        base.step_size.copy_(state.averaging.update(base.acceptance, self.accept))
        ends = self.window_ends()
        if self.mass != "none" and self.first < state.done <= ends[-1]:
            state.moments.add(base.chain.theta)
            if state.done in ends:
                base.inverse_mass = state.moments.covariance().to(base.chain.theta).contiguous()
                state.moments = self._no_moments(base)
                self._begin_search(engine, state, batch)
        if state.done == self.steps:
            base.step_size.copy_(state.averaging.mean.exp())
            base.forget()

    def _begin_search(self, engine: Engine, state: WarmupState, batch: Batch) -> None:
        """Double or halve ε until the acceptance of one step crosses ``accept``, and average from there."""
        base = state.base
        fill_rows_(base.chain.noise, base.chain.streams)
        step = self.base.reasonable_steps(self.base.flow(engine, base, batch), base, self.accept)
        base.step_size.copy_(step)
        state.averaging = Averaging.around(base.step_size.clone())
