"""``TunedDecay``: the weight decay that held-out rows want."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from temperance.core.checks import real, shown
from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError
from temperance.core.seeds import generator, spawn
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.base import Cost, Exactness, Facts, Inference, Info, Starts, Wrapper, WrapperState, refuse
from temperance.inference.card import Card, MethodFamily
from temperance.model.priors.powered import PoweredPrior
from temperance.posteriors import Posterior
from temperance.posteriors.dropout import at_rates, dropout_names, dropout_rates

_WORTH = 0.01  # nats a held-out row that another prior must gain: fewer are chance, on the tables that most people have
_ODDS = 1.0  # nats of all held-out rows together that it must gain beside: a dozen rows are no reason to choose


@dataclass
class TunedDecayState(WrapperState):
    """The states of the trainings, in ``base``; the best score of held-out rows of each, and after how many steps that
    was; which have ended, and which in trouble; how many rows are held out."""

    best: list[float]
    best_steps: list[int]
    ended: list[bool]
    broken: list[bool]
    held_out: float = 0.0
    engines: tuple[Engine, list[Engine]] | None = field(default=None, metadata=SCRATCH)


@dataclass(frozen=True, eq=False)
class TunedDecay(Wrapper):
    """``base`` under several strengths of the prior, side by side; the one that predicts held-out rows best is kept.

        θ_c = ``base`` under p(D | θ) p(θ)^c,  c in ``factors``;     c* = argmax Σ_held-out log p(y | x, θ_c).

    With a Gaussian prior N(0, s²) that is weight decay times c, a scale of s / √c: what who trains a network tunes
    first. The prior as it was given stays unless another gains a hundredth of a nat for each held-out row, and a nat
    in all. What comes after, ``Laplace`` or the method of ``WarmStart``, has the prior as it was given; ``Refit``,
    whose pilot it may be, goes on with what was chosen.

    Args:
        base: one network that stops by held-out rows, ``MAP(lr=2e-3, patience=0.1)``.
        factors: the c, with 1 among them.
        dropout: factors on the probabilities of the network's own dropout, tried beside 1 under each c: ``(0.0,)`` asks
            whether dropout does any good. Held-out rows are predicted with nothing dropped.

    All start at the same weights and see the same batches, and cost as many trainings.

    >>> import temperance as tp
    >>> rng = torch.manual_seed(0)
    >>> x = torch.randn(150, 30, generator=rng)
    >>> y = 0.1 * x.sum(1, keepdim=True) + torch.randn(150, 1, generator=rng)
    >>> target = tp.Target(torch.nn.Linear(30, 1), tp.Normal(scale=1.0), tp.GaussianPrior(scale=1.0))
    >>> point, weights = tp.MAP(lr=0.03, patience=40), []
    >>> for method in (point, TunedDecay(point)):
    ...     fitted = tp.fit(target, method, (x[:50], y[:50]), held_out=(x[50:], y[50:]), epochs=40, batch_size=10)
    ...     weights.append(fitted.network().weight.norm().item())
    >>> weights[1] < 0.9 * weights[0]
    True
    """

    card: ClassVar[Card] = Card(
        "trains under several strengths of the prior, and keeps what held-out rows like best",
        MethodFamily.WRAPPERS,
        exact="as its method, where the prior stays",
        cost="its method's, times the strengths",
        shown=("TunedDecay(MAP(patience=0.1))",),
    )

    base: Inference[Any]
    factors: tuple[float, ...] = (0.1, 1.0, 10.0)
    dropout: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.factors
        plain = isinstance(given, tuple | list) and all(0.0 < real(c) < math.inf for c in given)
        if not plain or 1.0 not in given or len(set(given)) != len(given):
            raise ArgumentError(
                f"`factors` must be different positive numbers with 1 among them, such as (0.1, 1.0, 10.0); got "
                f"{shown(given)}."
            )
        object.__setattr__(self, "factors", tuple(float(c) for c in given))
        rates = self.dropout
        plain = isinstance(rates, tuple | list) and all(0.0 <= real(r) < math.inf for r in rates)
        if not plain or 1.0 in rates or len(set(rates)) != len(rates):
            raise ArgumentError(
                "`dropout` must be different factors from 0 on, without 1, which is tried anyway, such as (0.0,); got "
                f"{shown(rates)}."
            )
        object.__setattr__(self, "dropout", tuple(float(r) for r in rates))

    @property
    def variants(self) -> tuple[tuple[float, float], ...]:
        """What is tried: factors on the prior's strength and on the probabilities of dropout."""
        return tuple((c, r) for r in (1.0, *self.dropout) for c in self.factors)

    def check_base(self, base: Inference[Any]) -> None:
        """One network, that stops by held-out rows."""
        facts, name = base.facts(), type(base).__name__
        if not (facts.gives.single and facts.held_out and facts.reads == "minibatch" and facts.streams == 1):
            refuse(
                self,
                base,
                f"held-out rows choose among trained networks, and {name} does not ask them",
                f"{name}(TunedDecay(MAP(lr=2e-3, patience=0.1))), or MAP with `patience` inside",
            )

    def facts(self) -> Facts:
        """The base's, as often as there are strengths."""
        base, count = self.base.facts(), len(self.variants)
        cost = Cost(count * base.cost.gradients_per_step, count * base.cost.copies_of_theta)
        own = base.own_dropout or bool(self.dropout)
        return replace(base, exact=Exactness.APPROXIMATE, cost=cost, own_dropout=own)

    def at_once(self, engine: Engine, starts: Starts) -> bool:
        """No: each member has a choice of its own."""
        return False

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> TunedDecayState:
        """See :class:`Inference`."""
        (rng,) = rngs
        if self.dropout and not dropout_names(engine.network):
            raise ArgumentError(
                "`dropout` of TunedDecay needs a network with dropout, modules such as nn.Dropout(0.1); this one has "
                "none. Leave it out."
            )
        seed, count = spawn(rng), len(self.variants)
        state = TunedDecayState([], [-math.inf] * count, [0] * count, [False] * count, [False] * count)
        state.base = [self.base.init(one, starts, [generator(seed, "decay")]) for one in self._engines(engine, state)]
        return state

    def under_prior(self, engine: Engine, number: int) -> Engine:
        """What evaluates the target under the prior of one of :attr:`variants`."""
        decay, _ = self.variants[number]
        target = engine.target
        return engine if decay == 1.0 else engine.on(target.with_prior(PoweredPrior(target.prior, decay)))

    def under(self, engine: Engine, number: int) -> Engine:
        """What evaluates the target under one of :attr:`variants`."""
        _, factor = self.variants[number]
        here = self.under_prior(engine, number)
        if factor == 1.0:
            return here
        network = here.target.network
        rates = {name: min(factor * rate, 1.0) for name, rate in dropout_rates(network).items()}
        return here.on(here.target.with_network(at_rates(network, rates)))

    def _engines(self, engine: Engine, state: TunedDecayState) -> list[Engine]:
        if state.engines is None or state.engines[0] is not engine:
            state.engines = (engine, [self.under(engine, k) for k in range(len(self.variants))])
        return state.engines[1]

    def keep_in(self, state: TunedDecayState, folder: Path) -> None:
        """As the trainings do."""
        for k, each in enumerate(state.base):
            self.base.keep_in(each, folder / f"decay-{k}")

    def step(self, engine: Engine, state: TunedDecayState, batch: Batch) -> tuple[TunedDecayState, Info]:
        """A step of each training that has not ended."""
        told: dict[int, Info] = {}
        state.held_out = _count(batch.held_out)
        for k, here in enumerate(self._engines(engine, state)):
            if state.ended[k]:
                continue
            state.base[k], info = self.base.step(here, state.base[k], batch)
            told[k] = info
            state.broken[k] = not info.status.ok and not info.done
            state.ended[k] = info.done or state.broken[k]
            score = info.metrics.get("held_out_score", -math.inf)
            if math.isfinite(score) and score > state.best[k]:
                state.best[k], state.best_steps[k] = score, batch.step + 1
        shown_one = told.get(self.factors.index(1.0)) or next(iter(told.values()))
        if all(state.broken):
            return state, shown_one
        well = [info for k, info in told.items() if not state.broken[k]]
        if not well:  # what still ran is broken; others have ended well
            return state, replace(shown_one, status=replace(shown_one.status, ok=True), done=True)
        first = shown_one if shown_one in well else well[0]
        scores = [info.metrics["held_out_score"] for info in well if "held_out_score" in info.metrics]
        metrics = {**first.metrics, "held_out_score": max(scores)} if scores else first.metrics
        return state, replace(first, done=all(state.ended), metrics=metrics)

    def chosen(self, state: TunedDecayState) -> int:
        """The number of the strength that is kept."""
        every = range(len(self.variants))
        usable = [k for k in every if not state.broken[k]] or every
        top = max(usable, key=lambda k: state.best[k])
        plain = self.factors.index(1.0)
        needed = _WORTH + _ODDS / max(state.held_out, 1e-9)
        clear = plain not in usable or state.best[top] - state.best[plain] > needed
        return top if clear else plain

    def posteriors(self, engine: Engine, state: TunedDecayState, data: Data | None) -> tuple[Posterior, ...]:
        """The network that is kept."""
        k = self.chosen(state)
        return self.base.posteriors(self._engines(engine, state)[k], state.base[k], data)

    def remarks(self, state: TunedDecayState) -> list[str]:
        """As the training that is kept; and where dropout did not do what it is there for."""
        k = self.chosen(state)
        return [*self.base.remarks(state.base[k]), *self.remarks_of(k)]

    def remarks_of(self, number: int) -> list[str]:
        """What is to be said of one of :attr:`variants`, if it is kept."""
        factor = self.variants[number][1]
        if factor == 1.0:
            return []
        found = "none of its dropout" if factor == 0.0 else f"{factor:g} times its dropout"
        return [f"the network was trained with {found}: held-out rows were predicted better so."]


def _count(rows: Data | None) -> float:
    """How many rows, as often as they count."""
    if rows is None:
        return 0.0
    return float(len(rows) if rows.weights is None else rows.weights.sum())


__all__ = ["TunedDecay", "TunedDecayState"]
