"""``Refit``: rows held out say how long to train; then all rows are trained on, for so long."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from temperance.core.checks import check_flag, check_positive, shown
from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError, NumericalError
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
from temperance.inference.card import Card, MethodFamily
from temperance.inference.noise import Noise, noise_entries, wanted_noise, with_noise
from temperance.inference.wrappers.parts import check_same_length, first_part, streams_of
from temperance.inference.wrappers.tuned_decay import TunedDecay
from temperance.posteriors import Chain, Posterior

_PILOT_ROWS = 0.9  # of all rows, which an epoch of the method goes through
_LEAST = 20  # steps of the method, however soon the pilot was best
_STILL = 0.95  # of the pilot's epochs, beyond which a best one says that more would have been better


@dataclass
class RefitState(WrapperState):
    """The method's own state, which stands still while the pilot runs; the pilot's, until it has ended; the seed of the
    method's batches and their size; the best score of held-out rows, and after how many epochs that was; after how many
    steps the pilot ended, and how many the method has; what held-out rows add to the logarithm of a
    learned noise."""

    pilot: Any
    seed: int
    total_steps: int | None = None
    batch_size: int = 0
    best: float = -math.inf
    best_epochs: float = 0.0
    most_epochs: float = 0.0
    pilot_steps: int | None = None
    own_steps: int = 0
    same_rows: bool = False
    noise: Noise | None = None
    variant: int | None = None
    starts: Starts | None = field(default=None, metadata=SCRATCH)
    engines: tuple[Engine, Engine] | None = field(default=None, metadata=SCRATCH)
    walk: Iterator[Batch] | None = field(default=None, metadata=SCRATCH)


@dataclass(frozen=True, eq=False)
class Refit(Wrapper):
    """``base`` on all rows, for as long as rows that were held out from a pilot want it.

        e* = the epoch at which ``pilot``, trained without the held-out rows, predicts them best;
        then ``base``, from the start and on all rows, for ``stretch`` · e* epochs.

    A noise scale that is learned with the network is that of rows which the network fits, and where training ends early
    it has not come to rest; and what a network misses is seldom Gaussian. So rows that were held out from the pilot say
    how heavy the tails of a learned noise are, and how large it is under these tails. ``Normal()`` becomes
    ``ContaminatedNormal``: a fifth of new rows are k times as far off as others,

        log k = E[log k | held-out rows],   p(k) ∝ k⁻² up to k = e² before,

    so that few rows leave some tail and many Gaussian ones none. σ is the standard deviation of all the noise, under
    either law. With δ what m held-out numbers want beside the pilot's σ_e*, and δ₀ what makes all rows most likely
    under what came out,

        log σ ← log σ + max(δ' + ½ max(0, log σ_e* − log σ), δ₀),
        δ = argmax Σ_held-out log p(y | x, θ_e*, σ_e* e^δ, k),
        δ' = δ + 2 / √(2m) if δ < 0,  δ − 1 / √(2m) else, and 0 where that changes its sign; at most ½, of what is no
        outlier.

    The half: as a training goes on its noise falls, and half of that is because it fits its rows.

    Early stopping pays for its knowledge with a tenth of the rows: on small data that is more than what it gains. Here
    the tenth is given back. One pilot serves all members of an ensemble: ``Refit(Ensemble(MAP(lr=1e-3), 5),
    MAP(lr=1e-3, patience=0.1))`` costs six trainings, each as long as it should be.

    A pilot that chooses the strength of the prior, :class:`TunedDecay`, hands it on: what comes out is of p(θ)^c* and
    all rows. So is every ``Laplace`` or anchor inside. ``fitted.target`` has the prior that was given. A pilot that
    chooses how much dropout there is hands that on as well.

    The run has room for both: of L steps the pilot takes at most L / (1 + ``stretch``), so that a run is asked to be
    1 + ``stretch`` times as long as one of ``pilot`` alone; it ends as soon as it is done, as a rule long before.

    Args:
        base: any method that goes over minibatches and chooses nothing by held-out rows itself.
        pilot: ``MAP`` with ``patience``, and else as in ``base``: lengths are those of its learning rate.
        stretch: how many times as long the method runs. 4/3 for ``SWAG(start=0.75)``, which then begins to collect
            where the pilot was best.
        noise: whether a learned noise is corrected as above. At temperatures other than one nothing is chosen, and of
            other likelihoods than ``Normal()`` only the level is.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 40).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> method = Refit(tp.MAP(lr=0.1), tp.MAP(lr=0.1, patience=0.1))
    >>> fitted = tp.fit(target, method, (x, 2 * x + 1), epochs=200, batch_size=10)
    >>> fitted.info.steps < 800, fitted.predict(torch.tensor([[0.5]])).mean().round(decimals=1)
    (True, tensor([[2.]]))
    """

    card: ClassVar[Card] = Card(
        "trains on all rows, for as long as held-out rows wanted a pilot to be trained",
        MethodFamily.WRAPPERS,
        exact="as its method, once converged",
        cost="the pilot's, then the method's",
        shown=("Refit(MAP(), MAP(patience=0.1))",),
    )

    base: Inference[Any]
    pilot: Inference[Any]
    stretch: float = 1.0
    noise: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.pilot, Inference):
            raise ArgumentError(
                f"`pilot` must be a method such as MAP(lr=1e-3, patience=0.1); got {shown(self.pilot)}."
            )
        facts = self.pilot.facts()
        if not (facts.held_out and facts.gives.single and facts.reads == "minibatch" and facts.streams == 1):
            raise ArgumentError(
                "`pilot` must be one network that stops by held-out rows, such as MAP(lr=1e-3, patience=0.1); got "
                f"{shown(self.pilot)}."
            )
        super().__post_init__()
        check_positive(self.stretch, "stretch")
        check_flag(self.noise, "noise")

    def check_base(self, base: Inference[Any]) -> None:
        """It must go over batches for as long as it is told, and need no rows of its own."""
        facts, name = base.facts(), type(base).__name__
        if facts.reads == "full" or facts.default_steps is not None or issubclass(facts.gives, Chain):
            refuse(
                self,
                base,
                f"how long {name} runs has nothing to do with how long an optimiser should",
                "WarmStart(Collect(SGHMC(lr=Thermal())), MAP(lr=5e-3, patience=0.1))",
            )
        if facts.held_out or facts.sets_aside is not None:
            refuse(self, base, f"{name} chooses by held-out rows, and none are left", f"{name} by itself")

    def facts(self) -> Facts:
        """The base's, beside the pilot; the pilot's rows are held out."""
        base, pilot = self.base.facts(), self.pilot.facts()
        cost = Cost(
            max(base.cost.gradients_per_step, pilot.cost.gradients_per_step),
            base.cost.copies_of_theta + pilot.cost.copies_of_theta,
        )
        longer = 1.0 + self.stretch / _PILOT_ROWS
        return replace(
            base,
            exact=Exactness.APPROXIMATE,  # a training that ends early ends before its optimum
            cost=cost,
            held_out=True,
            sets_aside=pilot.sets_aside,
            learns_held_out=True,
            own_dropout=base.own_dropout or pilot.own_dropout,
            longer=longer,
        )

    def check_run(self, steps: int) -> None:
        """As both parts do."""
        first = self._pilot_steps(steps, 1.0)
        if steps <= first:
            raise ArgumentError(f"`steps` of the run must be at least 2, for the run has two parts; got {steps}.")
        self.pilot.check_run(first)
        self.base.check_run(max(1, round(self.stretch * first)))

    def _pilot_steps(self, total: int, more: float) -> int:
        """The pilot's, at most, where an epoch of the method has ``more`` times the steps of one of the pilot."""
        return max(1, math.floor(total / (1.0 + self.stretch * more)))

    def at_once(self, engine: Engine, starts: Starts) -> bool:
        """No: each member would have a length of its own."""
        return False

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> RefitState:
        """See :class:`Inference`. Both begin at the same place."""
        (rng,) = rngs
        seed = spawn(rng)
        pilot = self.pilot.init(engine, starts, [generator(seed, "pilot")])
        return RefitState(self.base.init(engine, starts, rngs), pilot, seed, starts=starts)

    def _under(self, engine: Engine, state: RefitState) -> Engine:
        """What evaluates the target under the strength of the prior, or of dropout, that the pilot chose."""
        if state.variant is None or not isinstance(self.pilot, TunedDecay):
            return engine
        if state.engines is None or state.engines[0] is not engine:
            state.engines = (engine, self.pilot.under(engine, state.variant))
        return state.engines[1]

    def keep_in(self, state: RefitState, folder: Path) -> None:
        """As both parts do."""
        if state.pilot_steps is None:
            self.pilot.keep_in(state.pilot, folder)
        self.base.keep_in(state.base, folder)

    def step(self, engine: Engine, state: RefitState, batch: Batch) -> tuple[RefitState, Info]:
        """A step of the pilot, or of the method."""
        check_same_length(state.total_steps, batch.total_steps)
        if state.total_steps is None:
            state.total_steps, state.batch_size = batch.total_steps, batch.size
            if batch.size == batch.num_data and batch.whole is not None:  # all rows at once: of more rows, all of them
                state.batch_size = len(batch.whole.with_held_out())
        if state.pilot_steps is not None:
            own = self._own_batch(engine, state, batch)
            state.base, info = self.base.step(self._under(engine, state), state.base, own)
            ended = batch.step + 1 - state.pilot_steps >= state.own_steps
            return state, replace(info, done=info.done or ended)
        whole, per_epoch = _all_rows(batch), batch.steps_per_epoch
        if whole is None or per_epoch is None or batch.total_steps is None:
            raise ArgumentError("`batch` must know the data and the length of the run, as those of fit do.")
        more = whole.steps_per_epoch(state.batch_size) / per_epoch
        first = self._pilot_steps(batch.total_steps, more)
        here = streams_of(first_part(batch, first), 1)
        state.pilot, info = self.pilot.step(engine, state.pilot, here)
        made = batch.step + 1
        score = info.metrics.get("held_out_score")
        if score is not None and score > state.best:
            state.best, state.best_epochs = score, made / per_epoch
        if info.status.ok and (info.done or made >= first):
            state.most_epochs = made / per_epoch
            self._take_variant(engine, state, per_epoch)
            wanted = (state.best_epochs or state.most_epochs) * per_epoch * more
            state.own_steps = min(max(_LEAST, round(self.stretch * wanted)), batch.total_steps - made)
            state.same_rows = batch.held_out is not None and whole is batch.whole
            if batch.held_out is not None and self._corrects_noise(engine):
                (point,) = self.pilot.posteriors(engine, state.pilot, None)
                state.noise = wanted_noise(engine, point, batch.held_out)
            state.pilot, state.pilot_steps = None, made
        return state, replace(info, status=info.status if not info.done else replace(info.status, ok=True), done=False)

    def _take_variant(self, engine: Engine, state: RefitState, per_epoch: int) -> None:
        """Where the pilot chose among strengths of the prior or of dropout, the method has the one that was chosen, and
        the length of its training."""
        if not isinstance(self.pilot, TunedDecay):
            return
        state.variant = self.pilot.chosen(state.pilot)
        state.best_epochs = state.pilot.best_steps[state.variant] / per_epoch
        if self.pilot.variants[state.variant][0] != 1.0:
            # what a method draws from the prior when it begins is drawn from this one
            assert state.starts is not None
            here = self.pilot.under_prior(engine, state.variant)
            state.base = self.base.init(here, state.starts, [generator(state.seed, "method")])

    def _own_batch(self, engine: Engine, state: RefitState, batch: Batch) -> Batch:
        """The method's next rows, of all that there are. They are a function of the seed and of the step's number."""
        whole = _all_rows(batch)
        assert whole is not None
        assert state.pilot_steps is not None
        streams, step = self.base.facts().streams, batch.step - state.pilot_steps
        every = whole.steps_per_epoch(state.batch_size)
        epoch, place = divmod(step, every)
        if state.walk is None or place == 0:
            state.walk = whole.batches(
                state.batch_size, seed=state.seed, epoch=epoch, streams=None if streams == 1 else streams, first=place
            )
        rows = next(state.walk)
        placed = replace(
            rows,
            step=step,
            epoch=epoch,
            progress=step / state.own_steps,
            total_steps=state.own_steps,
            steps_per_epoch=every,
            whole=whole,
        )
        return placed.to(engine.device)

    def _corrects_noise(self, engine: Engine) -> bool:
        """Whether a noise is learned that predictions through the network have."""
        plain = engine.temperature == 1.0 and engine.likelihood_temperature == 1.0
        return self.noise and plain and len(noise_entries(engine)) > 0

    def remarks(self, state: RefitState) -> list[str]:
        """As the method does; and where the pilot was still getting better when its part of the run was over."""
        if state.pilot_steps is None:
            return []
        made = self.base.remarks(state.base)
        if isinstance(self.pilot, TunedDecay) and state.variant is not None:
            made += self.pilot.remarks_of(state.variant)
        if state.best_epochs >= _STILL * state.most_epochs:
            made.append(
                f"held-out rows were predicted best at the end of the pilot, after {state.best_epochs:.4g} of "
                f"{state.most_epochs:.4g} epochs: a longer run would predict better."
            )
        if state.same_rows:
            made.append("rows that are loaded when they are needed cannot be joined: those held out stay so.")
        return made

    def posteriors(self, engine: Engine, state: RefitState, data: Data | None) -> tuple[Posterior, ...]:
        """The method's, of all rows."""
        if state.pilot_steps is None:
            raise NumericalError(
                "there is no posterior yet: the run ended while its length was looked for. After an interruption, call "
                "fit again with the same checkpoint."
            )
        whole = None if data is None else data.with_held_out()
        found = self.base.posteriors(self._under(engine, state), state.base, whole)
        noise = state.noise
        if noise is None:
            return found
        if whole is None:
            raise NeedsData("the noise that was learned is corrected by all rows")
        return tuple(p if p.predicts == "linearised" else with_noise(engine, p, whole, noise) for p in found)


def _all_rows(batch: Batch) -> Data | None:
    return None if batch.whole is None else batch.whole.with_held_out()
