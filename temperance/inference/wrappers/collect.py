"""``Collect``: keeps the draws of a sampler, and looks at its thermometer along the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count, is_whole, real, shown
from temperance.core.errors import ArgumentError, MismatchError, NumericalError
from temperance.core.growing import Rows
from temperance.core.status import NON_FINITE_THETA
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.base import Exactness, Facts, Inference, Info, Starts, Wrapper, WrapperState, refuse
from temperance.inference.card import Card, MethodFamily
from temperance.inference.langevin.sampler import ChainState, Sampler
from temperance.inference.wrappers.cyclical import Cyclical
from temperance.posteriors import Draws, Posterior, Trace

_DEFAULT_DRAWS = 30


@dataclass
class CollectState(WrapperState):
    """The base's state, the draws of each member, running statistics with them, and the readings so far: rows of step,
    pace, temperature, bias, acceptance, then loss, kinetic and configurational temperatures of all members."""

    draws: list[Rows]
    buffers: dict[str, Rows]
    buffer_shapes: dict[str, list[int]]
    draw_step: list[int] = field(default_factory=list)
    readings: Rows = field(default_factory=Rows)
    total_steps: int | None = None


@dataclass(frozen=True, eq=False)
class Collect(Wrapper):
    """Draws of ``base``: the first ``burn`` steps are thrown away, then one is kept every ``every`` steps.

    Over a :class:`Cyclical` sampler the draws are those at the cycles' ends, unless ``every`` is given. With a
    ``checkpoint`` the draws go straight to a file of its folder, and memory does not grow with their number; a run that
    is killed or stopped by a NaN keeps all draws up to its last checkpoint.

    Args:
        base: a sampler, such as ``SGHMC(lr=1e-3)`` or ``Cyclical(SGHMC(lr=1e-3), cycle=500)``.
        burn: steps before the first draw; a fraction below 1 is one of the run. Unless told it is half the run; the
            warm-up of a sampler that has one; nothing for cyclical samplers, which have ``start``.
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

    card: ClassVar[Card] = Card(
        "keeps draws of a sampler, and reads its thermometer",
        MethodFamily.WRAPPERS,
        cost="as its base; draws go to disk",
        shown=("Collect(SGHMC())",),
    )

    base: Sampler
    burn: int | float | None = None
    every: int | None = None
    last: int | None = None
    read_every: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.burn is not None and not (is_whole(self.burn) or 0.0 <= real(self.burn) < 1.0):
            raise ArgumentError(f"`burn` must be a number of steps, or a fraction in [0, 1); got {shown(self.burn)}.")
        for name in ("every", "last"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name)
        check_count(self.read_every, "read_every")

    def check_base(self, base: Inference[Any]) -> None:
        """It must have a chain."""
        if not isinstance(base, Sampler):
            name = type(base).__name__
            refuse(
                self,
                base,
                f"it takes a sampler such as SGHMC, whose places are draws, and {name} has no chain",
                "Collect(SGHMC(lr=1e-3)), or Ensemble(Collect(SGHMC(lr=1e-3)), 4) for several chains",
            )

    def facts(self) -> Facts:
        """The base's, in the limit of small steps; draws come on top, in memory or on disk."""
        base = super().facts()
        exact = Exactness.APPROXIMATE if base.exact is Exactness.OWN_LAW else base.exact
        return replace(base, exact=exact, default_steps=self._default_steps(base.settling))

    def _default_steps(self, settling: int | None) -> int | None:
        """Warm-up and the draws, where both are told."""
        if settling is None or self.last is None or self.burn is not None:
            return None
        return settling + self.last * (self.every or 1)

    @property
    def _settling(self) -> int | None:
        return self.base.facts().settling

    @property
    def _by_cycle(self) -> bool:
        return isinstance(self.base, Cyclical) and self.every is None

    def _burn(self, steps: int | None) -> int:
        if self.burn is None and self._settling is not None:
            return self._settling
        burn = self.burn if self.burn is not None else (0 if self._by_cycle else 0.5)
        if isinstance(burn, int):
            return burn
        if steps is None:
            raise ArgumentError("`burn` as a fraction needs a run of known length; give a number of steps.")
        return int(burn * steps)

    def check_run(self, steps: int) -> None:
        """There must be something left after the burn-in."""
        if self._burn(steps) >= steps:
            raise ArgumentError(
                f"`burn` must be shorter than the run of {steps} steps; got {shown(self.burn or self._burn(steps))}."
            )
        if self._burn(steps) < (self._settling or 0):
            raise ArgumentError(f"`burn` must cover the {self._settling} steps of warm-up; got {shown(self.burn)}.")
        if self.every is not None and self._burn(steps) + self.every > steps:
            raise ArgumentError(
                f"`every` must leave at least one draw in the {steps - self._burn(steps)} steps after the burn-in; got "
                f"{self.every}."
            )
        if self._by_cycle:
            assert isinstance(self.base, Cyclical)
            ends = self.base.ends(steps)
            if ends and ends[-1] <= self._burn(steps):
                raise ArgumentError(f"`burn` must leave the end of a cycle ({ends[-1]}); got {shown(self.burn)}.")
        self.base.check_run(steps)

    @property
    def _needs_length(self) -> bool:
        """Whether the length of the run decides which draws are kept."""
        burn = isinstance(self.burn, float) or (self.burn is None and not self._by_cycle and self._settling is None)
        return burn or (not self._by_cycle and (self.every is None or self.last is not None))

    def keep_in(self, state: CollectState, folder: Path) -> None:
        """Draws go to a file there."""
        self.base.keep_in(state.base, folder)
        for rows in [*state.draws, *state.buffers.values(), state.readings]:
            rows.keep_in(folder)

    # ------------------------------------------------------------------ the contract

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> CollectState:
        """See :class:`Inference`."""
        base = self.base.init(engine, starts, rngs)
        buffers = self.base.chain(base).buffers
        shapes = {name: list(value.shape) for name, value in buffers.items()}
        return CollectState(base, [Rows() for _ in rngs], {name: Rows() for name in buffers}, shapes)

    def step(self, engine: Engine, state: CollectState, batch: Batch) -> tuple[CollectState, Info]:
        """See :class:`Inference`."""
        chain = self._before(state, batch)
        state.base, info = self.base.step(engine, state.base, batch)
        return self._after(engine, state, chain, batch, info)

    def _before(self, state: CollectState, batch: Batch) -> ChainState:
        if self._needs_length and state.total_steps not in (None, batch.total_steps):
            raise MismatchError(
                f"the run was begun with {state.total_steps} steps, which decides the draws that are kept, and cannot "
                f"go on to {batch.total_steps}: give `burn` and `every` as numbers of steps, and no `last`."
            )
        state.total_steps = batch.total_steps
        chain = self.base.chain(state.base)
        if batch.step % self.read_every == 0:
            chain.read_next = True  # it waits while a preconditioner is estimated
        chain.reading = None
        return chain

    def _after(
        self, engine: Engine, state: CollectState, chain: ChainState, batch: Batch, info: Info
    ) -> tuple[CollectState, Info]:
        if not info.status.ok:
            return state, info
        settled = chain.settling is None
        if chain.reading is not None and settled and batch.step >= self._burn(batch.total_steps):
            state.readings.append(_as_row(chain, engine.temperature, batch.step))
        if self._is_due(state, batch.step + 1, batch.total_steps):
            if not bool(torch.isfinite(chain.theta).all()):
                return state, Info(info.loss, NON_FINITE_THETA)
            for bank, row in zip(state.draws, chain.theta, strict=True):
                bank.append(row)
            for name, value in chain.buffers.items():
                state.buffers[name].append(value)
            state.draw_step.append(batch.step + 1)
        return state, info

    def _is_due(self, state: CollectState, done: int, total: int | None) -> bool:
        """Whether the place after ``done`` steps is a draw."""
        burn = self._burn(total)
        chain = self.base.chain(state.base)
        if (
            done <= burn or not chain.moved or chain.settling is not None
        ):  # a sampler that looks for steps has no law yet
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

    def posteriors(self, engine: Engine, state: CollectState, data: Data | None) -> tuple[Posterior, ...]:
        """:class:`Draws` for each member, with the trace of its chain."""
        if not state.draw_step:
            raise NumericalError("there are no draws yet: the run ended before the first one.")
        only = self.last if self._by_cycle and self.last is not None else 0
        made = []
        for k, bank in enumerate(state.draws):
            theta = bank.tensor()
            if len(theta) > len(state.draw_step):  # interrupted between two members: a draw is one that all have
                theta = theta[: len(state.draw_step)].clone()
            buffers = {n: r.tensor().view(-1, *state.buffer_shapes[n])[: len(theta)] for n, r in state.buffers.items()}
            if only and len(theta) > only:
                theta, buffers = theta[-only:].clone(), {n: v[-only:].clone() for n, v in buffers.items()}
            made.append(Draws(theta, buffers, self._trace(state, k, len(theta))))
        return tuple(made)

    def _trace(self, state: CollectState, k: int, draws: int) -> Trace:
        entries, members = len(self.base.chain(state.base).layout.entries), len(state.draws)
        each = 1 + 2 * entries
        rows = torch.empty(0, 5 + members * each, dtype=torch.float64)
        if len(state.readings):
            rows = state.readings.tensor().clone()
        fixed, rest = rows[:, :5], rows[:, 5:].reshape(len(rows), members, each)[:, k]
        return Trace(
            step=fixed[:, 0].long(),
            pace=fixed[:, 1],
            temperature=fixed[:, 2],
            kinetic_bias=fixed[:, 3],
            acceptance=fixed[:, 4],
            loss=rest[:, 0],
            kinetic=rest[:, 1 : 1 + entries],
            configurational=rest[:, 1 + entries :],
            draw_step=torch.tensor(state.draw_step[-draws:]),
            transitions=self.base.transitions_of(state.base, k),
        )


def _as_row(chain: ChainState, temperature: float, step: int) -> Tensor:
    """A reading as one row of numbers: what all members share, then loss and temperatures of each."""
    reading = chain.reading
    assert reading is not None
    shared = [step, chain.pace, temperature * chain.heat, reading.kinetic_bias, reading.acceptance]
    loss = reading.loss.reshape(-1, 1).double()
    several = [loss, *(r.reshape(len(loss), -1) for r in (reading.kinetic, reading.configurational))]
    return torch.cat([torch.tensor(shared, dtype=torch.float64), torch.cat(several, dim=1).flatten()])
