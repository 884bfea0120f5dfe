"""``WarmStart``: optimise, then sample; rows that neither has seen weigh the two."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_flag, check_level, shown
from temperance.core.encoding import SCRATCH, encode, restore
from temperance.core.errors import ArgumentError, MethodWarning, NumericalError
from temperance.core.seeds import generator, spawn
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.base import (
    Cost,
    Exactness,
    Facts,
    Inference,
    Info,
    NeedsData,
    Starts,
    Wrapper,
    WrapperState,
    refuse,
)
from temperance.inference.batch_statistics import batch_statistics
from temperance.inference.card import Card, MethodFamily, Recipe
from temperance.inference.points.map import MAP
from temperance.inference.weighing import log_densities, weight_of_first
from temperance.inference.wrappers.parts import (
    check_same_length,
    first_part,
    second_part,
    some_rows,
    split_run,
    streams_of,
)
from temperance.posteriors import Mixture, Point, Posterior, centre_of

_STEPS = 2000  # of the optimiser, where the method has a length of its own
_MOST = 0.75  # of the run, where it has none
_HARDLY = 0.1  # the weight below which what came after the start was hardly worth it


@dataclass
class WarmStartState(WrapperState):
    """The method's own state (before it begins, one of the right shapes), that of the optimiser while it runs, the seed
    of each member, a generator of rows, where each member begins (E × P), once it is ``ready``, and after how many
    steps that was."""

    first: Any
    seeds: list[int]
    rows: torch.Generator
    points: Tensor
    total_steps: int | None = None
    first_steps: int | None = None
    stopped: bool = False
    ready: bool = False
    begun: bool = field(default=False, metadata=SCRATCH)
    folder: Path | None = field(default=None, metadata=SCRATCH)


@dataclass(frozen=True, eq=False)
class WarmStart(Wrapper):
    """``base`` from where an optimiser ends: chains do not have to find their way down before they sample.

        θ₀ = the end of ``by`` after ``steps`` steps;     then ``base`` from θ₀, for the rest of the run.

    An ensemble of it is an ensemble of trained networks, each of them the warm start of a chain in its own basin
    (Sommer et al., 2025, with microcanonical dynamics): the average over basins of ensembles and the average within a
    basin of samplers.

    Where ``by`` stops by held-out rows that ``base`` does not learn from, these also say how much ``base`` is worth
    beside the network that it began with, so that what comes out is no worse than that network by more than they can
    tell, whatever became of the method (see :func:`~temperance.inference.weighing.weight_of_first`):

        p(θ) = w δ(θ − θ₀) + (1 − w) p_base(θ),     w = E[w | held-out rows],  w ~ Beta(2, ½) before.

    Args:
        base: ``Variational()``, ``Collect(SGHMC())``, ``Collect(Warmup(NUTS(), 200), last=100)``, or any other method
            that starts somewhere.
        by: what finds the start: ``MAP(lr=2e-3, patience=0.1)``, or any other method that gives a point. Where it stops
            by held-out rows and none are given, a tenth of the data is kept apart for it.
        steps: how many steps of the run are its, at most, or which fraction of them. ``None``: 2,000 where the method
            has a length of its own, as ``Warmup`` has, and else three quarters of the run. Of a fraction, what is left
            when it stops early goes to the method.
        batch_size: rows a step of it, where ``base`` reads all data at every step.
        all_rows: whether ``base``, where it reads all data, learns from the rows that were held out as well: nothing is
            left to be chosen by them then, and it is not weighed.
        weigh: whether held-out rows weigh start and method as above. Without, only the method's posterior is kept.

    The start is forgotten: what is exact of ``base`` is exact of this, where nothing is weighed.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 40).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> method = WarmStart(tp.Collect(tp.Warmup(tp.NUTS(), 150), last=100), tp.MAP(lr=0.1), steps=100)
    >>> fitted = tp.fit(target, method, (x, 2 * x + 1))
    >>> fitted.info.steps, fitted.predict(torch.tensor([[0.5]])).mean().round(decimals=1)
    (350, tensor([[2.]]))
    """

    card: ClassVar[Card] = Card(
        "starts a sampler, or any method, where an optimiser ends",
        MethodFamily.WRAPPERS,
        papers=(
            "Sommer et al., Microcanonical Langevin ensembles: advancing the sampling of Bayesian neural networks, "
            "ICLR 2025",
        ),
        exact="as its method, where nothing is weighed",
        cost="the optimiser's, then the method's",
        shown=("WarmStart(Collect(Warmup(NUTS())))",),
        recipes=(
            Recipe(
                "mile",
                "Ensemble(WarmStart(Collect(Warmup(MCLMC(length=384, adjusted=False), 160, accept=0.5), last=40), "
                "steps=4000), 8)",
                "eight trained networks, and a microcanonical chain from each: slow",
            ),
        ),
    )

    base: Inference[Any]
    by: Inference[Any] = field(default_factory=lambda: MAP(lr=5e-3, patience=0.1))
    steps: int | float | None = None
    batch_size: int = 32
    all_rows: bool = True
    weigh: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.by, Inference):
            raise ArgumentError(f"`by` must be a method such as MAP(lr=5e-3, patience=0.1); got {shown(self.by)}.")
        super().__post_init__()
        if isinstance(self.steps, float):
            check_level(self.steps, "steps")
        elif self.steps is not None:
            check_count(self.steps, "steps")
        check_count(self.batch_size, "batch_size")
        check_flag(self.all_rows, "all_rows")
        check_flag(self.weigh, "weigh")

    def check_base(self, base: Inference[Any]) -> None:
        """There must be one point to start at, and something to start."""
        if not self.by.facts().gives.single:
            refuse(
                self,
                self.by,
                f"the start is a point, and {type(self.by).__name__} gives a {self.by.facts().gives.__name__}",
                "WarmStart(Collect(Warmup(NUTS(), 200), last=100), MAP(lr=5e-3, patience=0.1))",
            )
        if base.facts().streams > 1 or base.facts().default_steps == 0:
            name = type(base).__name__
            several = base.facts().streams > 1
            refuse(
                self,
                base,
                "each member needs a start of its own" if several else f"{name} takes no steps of its own",
                f"Ensemble(WarmStart(...), {5}), with the WarmStart inside" if several else f"{name}(MAP(lr=5e-3))",
            )

    def facts(self) -> Facts:
        """The base's; the optimiser's steps come first, and its rows are held out where it stops by them."""
        base, first = self.base.facts(), self.by.facts()
        cost = Cost(
            max(base.cost.gradients_per_step, first.cost.gradients_per_step),
            base.cost.copies_of_theta + first.cost.copies_of_theta + 1,
        )
        own, share = base.default_steps, self._share()
        length = None if own is None else round(own / (1 - share)) if share is not None else own + self._count()
        first_steps = self._count() if length is None or own is None else length - own
        made = replace(
            base,
            cost=cost,
            default_steps=length,
            held_out=base.held_out or first.held_out,
            sets_aside=first.sets_aside if first.held_out else base.sets_aside,
            settling=None if base.settling is None else first_steps + base.settling,
            longer=1.0 if share is None else 1.0 / share,
            learns_held_out=base.learns_held_out or self._sees_all(),
        )
        return replace(made, gives=Mixture, exact=Exactness.APPROXIMATE) if self._weighs() else made

    def _share(self) -> float | None:
        """The fraction of the run that is the optimiser's; ``None``: so many steps, however long it is."""
        if self.steps is None and self.base.facts().default_steps is None:
            return _MOST
        return self.steps if isinstance(self.steps, float) else None

    def _count(self) -> int:
        return self.steps if isinstance(self.steps, int) else _STEPS

    def _first_steps(self, total: int | None) -> int:
        """The optimiser's, in a run of so many."""
        share = self._share()
        return self._count() if share is None else split_run(total, share)

    def _sees_all(self) -> bool:
        """Whether the method reads the rows, too, by which the optimiser stopped."""
        return self.all_rows and self.base.facts().reads == "full" and self.by.facts().held_out

    def _weighs(self) -> bool:
        """Whether held-out rows are there that the method does not learn from, and its posterior has draws of θ through
        the network, as its start has."""
        base = self.base.facts()
        learned = base.learns_held_out or self._sees_all()
        draws = base.gives.predicts != "linearised" and not base.own_likelihood
        return self.weigh and self.by.facts().held_out and not learned and draws

    def check_run(self, steps: int) -> None:
        """As both parts do."""
        first = self._first_steps(steps)
        if steps <= first:
            raise ArgumentError(
                f"`steps` of the run must exceed the {first} that are {type(self.by).__name__}'s (`steps` of "
                f"WarmStart); got {steps}."
            )
        self.by.check_run(first)
        self.base.check_run(steps - first)

    def at_once(self, engine: Engine, starts: Starts) -> bool:
        """Where both can."""
        return self.by.at_once(engine, starts) and self.base.at_once(engine, starts)

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> WarmStartState:
        """See :class:`Inference`. The start that was given is the optimiser's."""
        pair = f"WarmStart({type(self.base).__name__})"
        engine.target.refuse_learned_scales(pair, "the optimiser that comes first looks for a mode, where they vanish")
        seeds = [spawn(rng) for rng in rngs]
        rows = torch.Generator()
        rows.manual_seed(spawn(rngs[0]))
        first, points = self.by.init(engine, starts, rngs), starts.rows(engine)
        self.base.init(engine, starts, [generator(seed, "method") for seed in seeds])  # what it refuses by itself
        try:  # at the same place as the optimiser: the shapes of its state are known now
            base = self._begin(engine, points, seeds)
        except ArgumentError:
            name = type(self.base).__name__
            refuse(self, self.base, f"{name} is of several places, and cannot begin at one", f"{name}(...) by itself")
        return WarmStartState(base, first, seeds, rows, points)

    def _begin(self, engine: Engine, points: Tensor, seeds: Sequence[int]) -> Any:
        return self.base.init(engine, Starts.at(points), [generator(seed, "method") for seed in seeds])

    def keep_in(self, state: WarmStartState, folder: Path) -> None:
        """As both parts do."""
        state.folder = folder
        if not state.ready:
            self.by.keep_in(state.first, folder)
        self.base.keep_in(state.base, folder)

    def remarks(self, state: WarmStartState) -> list[str]:
        """As the method does."""
        return self.base.remarks(state.base) if state.ready else []

    def step(self, engine: Engine, state: WarmStartState, batch: Batch) -> tuple[WarmStartState, Info]:
        """A step of the optimiser, or of the method."""
        if self._share() is not None:
            check_same_length(state.total_steps, batch.total_steps)
        state.total_steps = batch.total_steps
        if state.first_steps is not None:
            self._go_on(engine, state)
            state.base, info = self.base.step(engine, state.base, second_part(self._all_rows(batch), state.first_steps))
            return state, info
        first, info = self._first_steps(batch.total_steps), Info(0.0)
        if not state.stopped:
            here, streams = first_part(batch, first), len(state.seeds) * self.by.facts().streams
            if self.base.facts().reads == "full":
                here = some_rows(here, self.batch_size, streams, state.rows)
            else:
                here = streams_of(here, streams)
            state.first, info = self.by.step(engine, state.first, here)
            state.stopped = info.done
        at_end = batch.step + 1 == first or (state.stopped and self._share() is not None)
        if info.status.ok and at_end:
            self._switch(engine, state, batch.step + 1, batch.whole)
        return state, replace(info, status=info.status if not info.done else replace(info.status, ok=True), done=False)

    def _switch(self, engine: Engine, state: WarmStartState, steps: int, data: Data | None) -> None:
        """The optimiser has ended, after so many steps: the method begins there."""
        try:
            ends = self.by.posteriors(engine, state.first, None)
        except NeedsData:
            ends = self.by.posteriors(engine, state.first, data)
        found = [centre_of(point).mean for point in ends]
        state.points.copy_(torch.stack(found))
        state.base = self._begin(engine, state.points.clone(), state.seeds)
        state.first, state.first_steps, state.ready, state.begun = None, steps, True, True
        if state.folder is not None:
            self.base.keep_in(state.base, state.folder)

    def _go_on(self, engine: Engine, state: WarmStartState) -> None:
        """In a run that was resumed the method's state was put into one that began elsewhere; here it moves into one
        that begins where it should: a method may keep what it does not move (``On``, the rest of the network)."""
        if state.begun:
            return
        tensors: dict[str, Tensor] = {}
        form = encode(state.base, tensors)
        state.base = restore(self._begin(engine, state.points.clone(), state.seeds), form, tensors, engine.device)
        state.begun = True
        if state.folder is not None:
            self.base.keep_in(state.base, state.folder)

    def _all_rows(self, batch: Batch) -> Batch:
        """With the rows that were held out, where all data are read."""
        if not self.all_rows or batch.held_out is None or batch.whole is None or self.base.facts().reads != "full":
            return batch
        whole = batch.whole.with_held_out()
        if whole is batch.whole:
            return batch
        rows = next(whole.full_pass(len(whole)))
        return replace(
            batch, x=rows.x, y=rows.y, index=rows.index, weights=rows.weights, num_data=len(whole), whole=whole
        )

    def posteriors(self, engine: Engine, state: WarmStartState, data: Data | None) -> tuple[Posterior, ...]:
        """The method's."""
        if not state.ready:
            raise NumericalError(
                "there is no posterior yet: the run ended while its start was looked for. After an interruption, call "
                "fit again with the same checkpoint."
            )
        self._go_on(engine, state)
        found = self.base.posteriors(engine, state.base, data)
        if not self._weighs():
            return found
        if data is None:
            raise NeedsData("the rows that were held out weigh the method's posterior.")
        if data.held_out is None:
            return found
        poor: list[tuple[float, float, float]] = []
        made = tuple(self._weighed(engine, *pair, data, poor) for pair in zip(state.points, found, strict=True))
        if poor:
            self._tell(poor, len(found), len(data.held_out))
        return made

    def _weighed(
        self, engine: Engine, theta: Tensor, found: Posterior, data: Data, poor: list[tuple[float, float, float]]
    ) -> Posterior:
        """The start and what came of it, as held-out rows want them; ``poor`` gets the figures of what was hardly
        worth it."""
        others = data.held_out
        if others is None or found.predicts != "network":
            return found
        start = Point(theta.clone(), batch_statistics(engine, theta, data) if engine.target.moving else {})
        before, after = (log_densities(engine, each, others) for each in (start, found))
        w = weight_of_first(before, after, others.weights)
        if 1 - w < _HARDLY:
            poor.append((_mean(before, others), _mean(after, others), 1 - w))
        return Mixture((start, found), (w, 1 - w))

    def _tell(self, poor: list[tuple[float, float, float]], members: int, rows: int) -> None:
        """Once for all members."""
        before, after, share = (sum(each) / len(poor) for each in zip(*poor, strict=True))
        which = f" (in {len(poor)} of {members} members)" if members > 1 else ""
        warnings.warn(
            f"{rows} rows that were held out are predicted better by the network that {type(self.base).__name__} began "
            f"with than by what came of it{which}: mean log-likelihood {before:.3f} and {after:.3f}; its weight in the "
            f"posterior is {share:.2f}. Another learning rate, a longer run, or a narrower prior may help.",
            MethodWarning,
            stacklevel=3,
        )


def _mean(rows: Tensor, data: Data) -> float:
    weights = torch.ones_like(rows) if data.weights is None else data.weights.to(rows)
    return float((weights * rows).sum() / weights.sum())
