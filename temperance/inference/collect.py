"""``Collect``: keeps the draws of a sampler, and looks at its thermometer along the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from temperance.data.data import Batch, Data
from temperance.errors import ArgumentError, NumericalError
from temperance.inference.base import Cost, Exactness, Inference, Info, Stackable
from temperance.inference.cyclical import Cyclical
from temperance.inference.sampler import ChainState, Sampler
from temperance.posteriors import Draws, Posterior, Trace
from temperance.posteriors.base import check_count
from temperance.rows import Rows
from temperance.target import Target

_DEFAULT_DRAWS = 30


@dataclass
class CollectState:
    """The base's state, the draws of each member, running statistics with them, and the readings so far."""

    base: Any
    draws: list[Rows]
    buffers: dict[str, Rows]
    buffer_shapes: dict[str, list[int]]
    draw_step: list[int] = field(default_factory=list)
    reading_step: list[int] = field(default_factory=list)
    tempo: list[list[float]] = field(default_factory=list)
    kinetic: list[Tensor] = field(default_factory=list)
    configurational: list[Tensor] = field(default_factory=list)
    loss: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Collect(Inference[CollectState], Stackable):
    """Draws of ``base``: the first ``burn`` steps are thrown away, then one is kept every ``every`` steps.

    Over a :class:`Cyclical` sampler the draws are those at the cycles' ends, unless ``every`` is given. With a
    ``checkpoint`` the draws go straight to a file of its folder, and memory does not grow with their number; a run that
    is killed or stopped by a NaN keeps all draws up to its last checkpoint.

    Args:
        base: a sampler, such as ``SGHMC(lr=1e-3)`` or ``Cyclical(SGHMC(lr=1e-3), cycle=500)``.
        burn: steps before the first draw; a fraction below 1 is one of the run. Cyclical samplers have ``start``, and
            all their cycles count unless told.
        every: steps between draws; ``None`` spreads ``last`` draws evenly.
        last: keep the last so many draws only (30 where neither it nor ``every`` is given).
        read_every: steps between readings of the thermometer (see :class:`~temperance.posteriors.Trace`).

    >>> import temperance as tp
    >>> method = Collect(tp.SGHMC(lr=1e-3), burn=0.5, every=10)
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> tp.fit(target, method, (x, 2 * x + 1), steps=1000).posterior.theta.shape
    torch.Size([50, 2])
    """

    base: Sampler
    burn: int | float | None = None
    every: int | None = None
    last: int | None = None
    read_every: int = 10

    def __post_init__(self) -> None:
        if not isinstance(self.base, Sampler):
            raise ArgumentError(f"`base` must be a sampler such as SGHMC; got {type(self.base).__name__}.")
        number = isinstance(self.burn, int | float) and not isinstance(self.burn, bool)
        if self.burn is not None and not (number and self.burn >= 0 and (isinstance(self.burn, int) or self.burn < 1)):
            raise ArgumentError(f"`burn` must be a number of steps, or a fraction in [0, 1); got {self.burn!r}.")
        for name in ("every", "last"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name)
        check_count(self.read_every, "read_every")

    @property
    def reads(self) -> Any:  # type: ignore[override]
        """As the base does."""
        return self.base.reads

    @property
    def exact(self) -> Exactness:  # type: ignore[override]
        """As the base is, in the limit of small steps."""
        return Exactness.APPROXIMATE if self.base.exact is Exactness.OWN_LAW else self.base.exact

    @property
    def _by_cycle(self) -> bool:
        return isinstance(self.base, Cyclical) and self.every is None

    def _burn(self, steps: int | None) -> int:
        burn = self.burn if self.burn is not None else (0 if self._by_cycle else 0.5)
        if isinstance(burn, int):
            return burn
        if steps is None:
            raise ArgumentError("`burn` as a fraction needs a run of known length; give a number of steps.")
        return int(burn * steps)

    def check_run(self, steps: int) -> None:
        """There must be something left after the burn-in."""
        if self._burn(steps) >= steps:
            raise ArgumentError(f"`burn` must be shorter than the run of {steps} steps; got {self.burn!r}.")
        if self.every is not None and self._burn(steps) + self.every > steps:
            raise ArgumentError(
                f"`every` must leave at least one draw in the {steps - self._burn(steps)} steps after the burn-in; got "
                f"{self.every}."
            )
        self.base.check_run(steps)

    def cost(self) -> Cost:
        """The base's; draws come on top, in memory or on disk."""
        return self.base.cost()

    def keep_in(self, state: CollectState, folder: Path) -> None:
        """Draws go to a file there."""
        self.base.keep_in(state.base, folder)
        for rows in [*state.draws, *state.buffers.values()]:
            rows.keep_in(folder)

    # ------------------------------------------------------------------ the contract

    def init(self, target: Target, theta: Tensor | None, rng: torch.Generator) -> CollectState:
        """See :class:`Inference`."""
        return self._state(self.base.init(target, theta, rng), members=1)

    def _state(self, base: Any, members: int) -> CollectState:
        buffers = self.base.chain(base).buffers
        shapes = {name: list(value.shape) for name, value in buffers.items()}
        return CollectState(base, [Rows() for _ in range(members)], {name: Rows() for name in buffers}, shapes)

    def step(self, target: Target, state: CollectState, batch: Batch) -> tuple[CollectState, Info]:
        """See :class:`Inference`."""
        chain = self._before(state, batch)
        state.base, info = self.base.step(target, state.base, batch)
        return self._after(target, state, chain, batch, info)

    def _before(self, state: CollectState, batch: Batch) -> ChainState:
        chain = self.base.chain(state.base)
        if batch.step % self.read_every == 0:
            chain.read_next = True  # it waits while a preconditioner is estimated
        chain.reading = None
        return chain

    def _after(
        self, target: Target, state: CollectState, chain: ChainState, batch: Batch, info: Info
    ) -> tuple[CollectState, Info]:
        if not info.status.ok:
            return state, info
        if chain.reading is not None and batch.step >= self._burn(batch.total_steps):
            state.reading_step.append(batch.step)
            state.tempo.append([chain.pace, target.temperature * chain.heat, chain.reading.kinetic_bias])
            state.kinetic.append(chain.reading.kinetic)
            state.configurational.append(chain.reading.configurational)
            state.loss.append(chain.reading.loss)
        if self._is_due(state, batch.step + 1, batch.total_steps):
            rows = chain.theta if chain.theta.dim() == 2 else chain.theta.unsqueeze(0)
            if bool(torch.isfinite(rows.sum())):
                for bank, row in zip(state.draws, rows, strict=True):
                    bank.append(row)
                for name, value in chain.buffers.items():
                    state.buffers[name].append(value)
                state.draw_step.append(batch.step + 1)
        return state, info

    def _is_due(self, state: CollectState, done: int, total: int | None) -> bool:
        """Whether the place after ``done`` steps is a draw."""
        burn = self._burn(total)
        if done <= burn or not self.base.chain(state.base).moved:
            return False
        if self._by_cycle:
            return bool(self.base.at_end(state.base))
        if self.every is None:
            if total is None:
                raise ArgumentError("`every` must be given for a run of unknown length; got None.")
            every = max(1, (total - burn) // (self.last or _DEFAULT_DRAWS))
            return (total - done) % every == 0 and (total - done) // every < (self.last or _DEFAULT_DRAWS)
        due = (done - burn) % self.every == 0
        if due and self.last is not None and total is not None:
            return (total - burn) // self.every - (done - burn) // self.every < self.last
        return due

    def posterior(self, target: Target, state: CollectState, data: Data | None) -> Posterior:
        """:class:`Draws`, with the trace of the chain."""
        return self._posteriors(target, state)[0]

    def _posteriors(self, target: Target, state: CollectState) -> tuple[Posterior, ...]:
        if not state.draw_step:
            raise NumericalError("there are no draws yet: the run ended before the first one.")
        only = self.last if self._by_cycle and self.last is not None else 0
        made = []
        for k, bank in enumerate(state.draws):
            theta = bank.tensor()
            buffers = {n: r.tensor().view(-1, *state.buffer_shapes[n]) for n, r in state.buffers.items()}
            if only and len(theta) > only:
                theta, buffers = theta[-only:].clone(), {n: v[-only:].clone() for n, v in buffers.items()}
            made.append(Draws(theta.to(target.device), buffers, self._trace(state, k, len(theta))))
        return tuple(made)

    def _trace(self, state: CollectState, k: int, draws: int) -> Trace:
        entries = len(self.base.chain(state.base).layout.entries)
        tempo = torch.tensor(state.tempo, dtype=torch.float64).view(-1, 3)

        def of_member(readings: list[Tensor], *shape: int) -> Tensor:
            several = len(state.draws) > 1 or (readings and readings[0].dim() > len(shape))
            rows = [r[k] if several else r for r in readings]
            return torch.stack(rows) if rows else torch.empty(0, *shape, dtype=torch.float64)

        return Trace(
            step=torch.tensor(state.reading_step, dtype=torch.int64),
            pace=tempo[:, 0],
            temperature=tempo[:, 1],
            kinetic_bias=tempo[:, 2],
            kinetic=of_member(state.kinetic, entries),
            configurational=of_member(state.configurational, entries),
            loss=of_member(state.loss),
            draw_step=torch.tensor(state.draw_step[-draws:]),
        )

    # ------------------------------------------------------------------ all members of an ensemble at once

    def can_stack(self, target: Target) -> bool:
        """As the base can."""
        return isinstance(self.base, Stackable) and self.base.can_stack(target)

    def init_stack(self, target: Target, theta: Tensor, rngs: Sequence[torch.Generator]) -> CollectState:
        """See :class:`Stackable`."""
        assert isinstance(self.base, Stackable)
        return self._state(self.base.init_stack(target, theta, rngs), members=len(rngs))

    def step_stack(self, target: Target, state: CollectState, batch: Batch) -> tuple[CollectState, Info]:
        """See :class:`Stackable`."""
        assert isinstance(self.base, Stackable)
        chain = self._before(state, batch)
        state.base, info = self.base.step_stack(target, state.base, batch)
        return self._after(target, state, chain, batch, info)

    def posteriors_stack(self, target: Target, state: CollectState, data: Data | None) -> tuple[Posterior, ...]:
        """See :class:`Stackable`."""
        return self._posteriors(target, state)
