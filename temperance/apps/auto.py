"""``auto``: the method that did best, for what a user will pay, on tasks like theirs.

What is known of methods is in ``measured.json``, which ``python -m temperance.lab.measured`` writes from a run of the
experiment ``defaults``: nothing here is anybody's opinion.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from temperance.apps.recipes import method_named
from temperance.core.checks import check_positive, shown
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, NetworkError
from temperance.core.outcomes import Categories, CategoriesByPosition
from temperance.core.seeds import generator
from temperance.data.data import Data
from temperance.engine.engine import Engine
from temperance.inference import Inference, Sampler, Starts
from temperance.inference.choice import Choice, Chosen
from temperance.inference.curvature.approximate import prior_curvature
from temperance.model.target import Target

MEASURED = Path(__file__).with_name("measured.json")
CLASSES, NUMBERS, TRAINED = "classes", "numbers", "trained"
SAFE = 0.1
"""The share of tasks on which a method may be worse than the baseline."""


@dataclass(frozen=True)
class Record:
    """What was measured of a method on the tasks of one kind.

    Attributes:
        name: of the method in the experiment.
        method: its expression.
        tasks, worse: how many there were, and on how many its log-loss was higher than the baseline's by 0.01 nats.
        nats: its log-loss less the baseline's, on average over tasks.
        cost: CPU seconds, in those of training one network; small networks, whose members train at once.
        gradients: the same in gradients of the loss: what it costs where members train one after the other.
    """

    name: str
    method: str
    tasks: int
    worse: int
    nats: float
    cost: float
    gradients: float

    @property
    def safe(self) -> bool:
        """Whether it is hardly ever worse."""
        return self.worse <= SAFE * self.tasks

    def price(self, at_once: bool) -> float:
        """What it costs a network whose members train at once, or one after the other."""
        return self.cost if at_once else self.gradients


@functools.cache
def records(kind: str) -> tuple[Record, ...]:
    """All that was measured on tasks of a kind, the best first: those that are safe, then by their log-loss.

    >>> records(CLASSES)[0].safe
    True
    """
    known = json.loads(MEASURED.read_text(encoding="utf-8"))["kinds"][kind]
    return tuple(sorted((Record(**entry) for entry in known), key=lambda each: (not each.safe, each.nats)))


@dataclass(frozen=True, eq=False)
class Auto(Choice):
    """What :func:`auto` gives; ``budget`` is in trainings of one network."""

    budget: float = 2.0

    def __post_init__(self) -> None:
        check_positive(self.budget, "budget")

    def choose(self, target: Target, data: Data, trains: bool) -> Chosen:
        """The best that was measured on tasks of this kind, among what the budget allows and the network takes."""
        target.refuse_learned_scales("auto", "it chooses among methods that begin at an optimum, which these lack")
        classes = isinstance(target.likelihood.outcome, Categories | CategoriesByPosition)
        kind = TRAINED if not trains else CLASSES if classes else NUMBERS
        engine = Engine(target)
        known = [each for each in records(kind) if _suits(method_named(each.method), engine)]
        if not known:
            raise ArgumentError(
                f"`target`: of the methods that were measured on {_WHAT[kind]} none takes this network and this prior "
                f"({shown(target.prior)}). Name a method, such as Variational() or MAP(lr=1e-3, patience=0.1), and "
                "`epochs`; or use a GaussianPrior."
            )
        at_once = trains and engine.prefers_batched_training()
        paid = [each for each in known if each.price(at_once) <= self.budget * 1.05]
        best = paid[0] if paid else min(known, key=lambda each: each.price(at_once))
        return Chosen(method_named(best.method), _why(best, kind, at_once, bool(paid), self.budget))


def auto(budget: str | float = "2x") -> Auto:
    """A method that ``fit`` chooses when it sees target and data: by the outcome, by whether the network is trained
    already (``start`` is given, and no ``epochs``), by what ``budget`` allows (in trainings of one network, ``"2x"`` or
    2), from what was measured of every family on the tasks of docs/which-method.md. ``epochs`` is how long one network
    would be trained: a method that has two parts runs longer. What was chosen and why is in ``fitted.method`` and
    ``fitted.info.chosen``.

    >>> import temperance as tp
    >>> train, test = tp.data.load("iris")
    >>> target = tp.Target(tp.nn.MLP(4, [16], 3), tp.Categorical(), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, tp.auto(budget="2x"), train, epochs=400, batch_size=32)
    >>> "lower than" in fitted.info.chosen
    True
    """
    if isinstance(budget, str):
        try:
            return Auto(float(budget.strip().lower().removesuffix("x")))
        except ValueError:
            raise ArgumentError(f"`budget` must be a number of trainings, '2x' or 2; got {shown(budget)}.") from None
    return Auto(budget)


_TRIED = 10**6  # weights up to which a method is begun, to see whether it can be


def _suits(method: Inference[Any], engine: Engine) -> bool:
    """Whether network and prior are such as the method takes: samplers refuse batch norm, linearised posteriors a prior
    that is not Gaussian, ensembles networks that cannot be made afresh."""
    target = engine.target
    samples = any(isinstance(part, Sampler) for part in _parts(method))
    if samples and target.batch_norm_names() and not target.freeze_batch_norm:
        return False
    try:
        if method.facts().gives.predicts == "linearised":
            prior = prior_curvature(engine, target.initial_theta())
            if prior.mean is None and prior.earlier is None:
                return False
        if target.layout.size <= _TRIED:
            method.init(engine, Starts(), [generator(0, "auto")])
    except (ArgumentError, NetworkError):
        return False
    return True


def _parts(value: Value) -> Iterator[Value]:
    yield value
    for entry in fields(value):  # type: ignore[arg-type]
        inside = getattr(value, entry.name)
        if isinstance(inside, Value):
            yield from _parts(inside)


_WHAT = {CLASSES: "tasks with classes", NUMBERS: "tasks with numbers", TRAINED: "networks that were trained already"}


def _why(best: Record, kind: str, at_once: bool, paid: bool, budget: float) -> str:
    than = "that of the network itself" if kind == TRAINED else "that of MAP with tuned weight decay and early stopping"
    moved = f"{abs(best.nats):.3f} nats {'lower' if best.nats <= 0 else 'higher'} than {than}"
    words = f"{best.method}: on {best.tasks} {_WHAT[kind]} its log-loss was {moved} on average, worse on {best.worse}."
    price = best.price(at_once)
    if math.isfinite(price) and kind != TRAINED:
        words += f" It costs about {price:.1f} trainings of one network"
        words += "." if paid else f", more than the {budget:g} allowed: nothing that was measured costs less."
    if kind == TRAINED:
        words += " (With `start` and without `epochs` a network is taken to be trained already.)"
    return words


__all__ = ["Auto", "Record", "auto", "records"]
