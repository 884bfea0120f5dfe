"""Recipes: a method, a network and a length of training for people who bring a table and no opinions.

A method is asked for by a short name (``"ensemble"``), or by an expression over the library's own names
(``"Ensemble(SWAG(), 5)"``), which is read, never run: only calls of Temperance's classes with plain values are allowed.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch

from temperance import inference
from temperance.core.checks import check_count, check_counts, check_instance, shown
from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Classes, Counts, Labels, Outcome, Reals
from temperance.core.registry import ByOutcome
from temperance.core.seeds import check_seed
from temperance.inference import Inference, curvature
from temperance.inference.card import Recipe
from temperance.inference.listing import listing
from temperance.inference.variational import families as variational
from temperance.model import priors
from temperance.model.likelihoods import Bernoulli, Categorical, Likelihood, Normal, Poisson
from temperance.model.priors import FanIn, GaussianPrior, Prior
from temperance.model.target import Target
from temperance.model.theta import biases, last_layer
from temperance.nn import MLP

RECIPES: dict[str, Recipe] = {recipe.name: recipe for entry in listing() for recipe in entry.card.recipes}
"""The methods that have a short name: those of their cards."""

DEFAULT_METHOD = "ensemble"
"""What is used where nobody asks for a method; see docs/lab/table-defaults/README.md for the measurements behind it."""

SAMPLED = "mile"
"""What a table gets that is small enough to draw from its posterior, where that is worth it (:func:`table_method`)."""


def method_named(text: str | Inference[Any]) -> Inference[Any]:
    """A method by its short name, or by an expression over the library's methods; a method is returned as it is.

    >>> method_named("map")
    MAP(lr=0.005...
    >>> method_named("Ensemble(MAP(lr=1e-2, optimizer=SGD), 3)").size
    3
    """
    if isinstance(text, Inference):
        return text
    if not isinstance(text, str):
        raise ArgumentError(f"`method` must be a name, an expression or a method of Temperance; got {shown(text)}.")
    if text.strip().lower() in RECIPES:
        text = RECIPES[text.strip().lower()].expression
    if "(" not in text:
        near = get_close_matches(text.strip().lower(), RECIPES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ArgumentError(
            f"`method` must be one of {', '.join(RECIPES)}, or an expression such as 'Ensemble(MAP(lr=1e-3), 5)'; "
            f"got {shown(text)}.{hint}"
        )
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise ArgumentError(f"`method` must be a Python expression; {text!r} cannot be read: {error.msg}.") from None
    made = _build(tree.body, text)
    if not isinstance(made, Inference):
        raise ArgumentError(f"`method` must be an expression that gives a method; {text!r} gives {made!r}.")
    return made


def _names() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for room in (priors, variational, curvature, inference):
        for name in room.__all__:
            value = getattr(room, name)
            if isinstance(value, type):
                found[name] = value
    found |= {"last_layer": last_layer, "biases": biases}
    optimisers = ("SGD", "Adam", "AdamW", "RMSprop", "NAdam", "LBFGS")
    return found | {name: getattr(torch.optim, name) for name in optimisers}


def _build(node: ast.expr, text: str) -> Any:
    """The value of an expression of calls, names and plain values; nothing else is looked up or run."""
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float | str | bool | None):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _build(operand, text)
            if isinstance(value, int | float):
                return -value
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(_build(part, text) for part in parts)
        case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
            return {_build(k, text): _build(v, text) for k, v in zip(keys, values, strict=True) if k is not None}
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="tp"), attr=name):
            known = _names()
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]}?" if near else ""
                raise ArgumentError(f"`method` names {name!r}, which is not a method of Temperance.{hint}")
            return known[name]
        case ast.Call(func=function, args=positional, keywords=named) if all(k.arg for k in named):
            kind = _build(function, text)
            if isinstance(kind, type) and not issubclass(kind, torch.optim.Optimizer):
                arguments = [_build(argument, text) for argument in positional]
                try:
                    return kind(*arguments, **{str(k.arg): _build(k.value, text) for k in named})
                except TypeError as error:
                    raise ArgumentError(f"`method`: {kind.__name__} cannot be made so: {error}.") from None
    raise ArgumentError(
        f"`method` may hold only calls of Temperance's classes with plain values; {ast.unparse(node)!r} in {text!r} "
        "is something else."
    )


@dataclass(frozen=True)
class TableModel:
    """The usual model of a column of a table: a likelihood, g of the prior N(0, g² / fan-in) for weights, the least
    batch, and whether :data:`SAMPLED` is the default of tables that are small enough. Of classes few large steps are as
    good as many small ones (batches of 64 and 16: log-loss 0.116 and 0.115 on iris, 0.099 and 0.100 on breast cancer),
    in a quarter of the time; of numbers with little noise they are not (2.2 and 1.8 on energy)."""

    likelihood: Callable[[], Likelihood]
    gain: float
    batch: int = 16
    quick: tuple[int, int] | None = None  # (epochs, batch size) of :func:`default_training` on small tables
    sampled: bool = False


TABLE_MODELS: ByOutcome[TableModel] = ByOutcome("models of tables", "temperance.recipes.TABLE_MODELS")
TABLE_MODELS.register(Classes, TableModel(Categorical, 3.0, batch=64, quick=(100, 64)))
TABLE_MODELS.register(Labels, TableModel(Bernoulli, 3.0, batch=64))
TABLE_MODELS.register(Reals, TableModel(Normal, 2**0.5, sampled=True))
TABLE_MODELS.register(Counts, TableModel(Poisson, 2**0.5))


def table_likelihood(task: str | Outcome) -> Likelihood:
    """Classes: ``Categorical``; yes/no labels: ``Bernoulli``; real numbers (standardised): ``Normal`` with learned
    noise; counts: ``Poisson``.

    >>> table_likelihood("counts")
    Poisson()
    """
    return TABLE_MODELS.of(Outcome.named(task, among=TABLE_MODELS.outcomes)).likelihood()


def table_target(
    task: str | Outcome,
    inputs: int,
    outputs: int,
    *,
    hidden: Sequence[int] = (50, 50),
    prior: Prior | None = None,
    likelihood: Likelihood | None = None,
    temperature: float = 1.0,
    seed: int = 0,
) -> Target:
    """A network for a table of ``inputs`` standardised columns, with a prior that keeps signals of one size.

    The prior is N(0, g² / fan-in) for weights and N(0, 1) for biases: functions of one size at any width. g is √2 for
    numbers and counts, which keeps functions of the size of standardised targets (wider, and MAP fits the noise of
    small tables); it is 3 for classes and labels, whose logits must be larger than one for a network to be sure.
    ``outputs`` counts classes, or numbers predicted; ``seed`` decides the first weights.

    >>> table_target("classification", 4, 3).network[-1]
    Linear(in_features=50, out_features=3, bias=True)
    """
    usual = TABLE_MODELS.of(Outcome.named(task, among=TABLE_MODELS.outcomes))
    check_counts(inputs=inputs, outputs=outputs)
    check_instance(likelihood, "likelihood", Likelihood, "a temperance Likelihood", optional=True)
    check_instance(prior, "prior", Prior, "a temperance Prior", optional=True)
    chosen = likelihood if likelihood is not None else usual.likelihood()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(check_seed(seed))
        network = MLP(inputs, hidden, chosen.outputs_for(outputs))
    return Target(network, chosen, prior or GaussianPrior(scale=FanIn(gain=usual.gain)), temperature=temperature)


_SMALL = 2**16  # members × rows × widest layer of a step, below which threads cost more than they give


@contextmanager
def threads_for(work: int) -> Iterator[None]:
    """One thread of torch's while steps are as small as this: more wait for each other longer than they compute, and
    where other processes want the cores too, twenty times as long. As many as before for larger ones, and afterwards.
    """
    before = torch.get_num_threads()
    if work >= _SMALL or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def training(rows: int, outcome: Outcome | None = None) -> tuple[int, int]:
    """How long to train on so many rows, and with what batches: (epochs, batch size).

    Batches are some twentieth of the rows, between 16 (64 for classes) and 256; there are about 4,000 steps, at least
    10 epochs and at most 200.

    >>> training(150), training(10_000), training(1_000_000)
    ((200, 16), (103, 256), (10, 256))
    >>> training(150, Classes())
    (200, 64)
    """
    check_count(rows, "rows")
    least = 16 if outcome is None else TABLE_MODELS.of(outcome).batch
    batch = min(256, max(least, 2 ** round(math.log2(max(1, rows / 20)))))
    epochs = math.ceil(4000 * batch / rows)
    return min(200, max(10, epochs)), batch


_NARROW_ROWS, _NARROW, _WIDE = 2000, (32, 32), (50, 50)
_WALKED = (16, 16)


def table_hidden(rows: int, method: Inference[Any] | None = None) -> tuple[int, ...]:
    """The widths of a network that learns so many rows of a table, for ``table_target(hidden=...)``.

    Small tables get narrow networks, which have less to learn by heart; and so does a method that reads all rows at
    each step, which takes as long as there are weights.

    >>> table_hidden(500), table_hidden(5000), table_hidden(5000, method_named("mile"))
    ((32, 32), (50, 50), (16, 16))
    """
    few = check_count(rows, "rows") <= _NARROW_ROWS
    if method is not None and method.facts().reads == "full":
        return _WALKED
    return _NARROW if few else _WIDE


_AFFORDABLE = 1_500_000


def table_method(rows: int, outcome: Outcome, inputs: int, fits: int = 1) -> str:
    """The recipe for so many rows (validation rows among them) and encoded columns of a table where nobody asks for
    another; ``fits`` are those of its folds too.

    Of numbers it draws from the posterior of a small network (:data:`SAMPLED`), where rows × weights × fits are
    1,500,000 at most, which take a minute: of ten columns, tables of up to some 3,600 rows. ``python -m
    benchmarks.table_default`` sets it beside the ensemble, as ``temperance fit`` comes. Of classes (iris,
    breast-cancer) it is no better.

    >>> table_method(1000, Reals(), 8), table_method(10_000, Reals(), 8), table_method(1000, Classes(), 8)
    ('mile', 'ensemble', 'ensemble')
    >>> table_method(1000, Reals(), 300), table_method(400, Reals(), 8, fits=6)
    ('ensemble', 'mile')
    """
    check_counts(rows=rows, inputs=inputs, fits=fits)
    first, second = _WALKED
    work = rows * fits * (inputs + second) * first
    return SAMPLED if TABLE_MODELS.of(outcome).sampled and work <= _AFFORDABLE else DEFAULT_METHOD


_QUICK, _QUICK_METHOD = 300, "Ensemble(MAP(lr=1e-2), 5)"


def default_training(rows: int, outcome: Outcome) -> tuple[Inference[Any], int, int]:
    """What runs on so many rows where nobody asks for a method: (method, epochs, batch size).

    It is :data:`DEFAULT_METHOD`, as long as :func:`training` says. Up to 300 rows of classes its steps are twice as
    long and half as many: the log-loss of ten tables, three seeds each, changed by 0.004 at most. Not so of numbers
    and counts: this was better on some tables of 150 rows, and 0.1 nats worse on others.

    >>> default_training(150, Classes())[1:], default_training(150, Reals())[1:]
    ((100, 64), (200, 16))
    """
    quick = TABLE_MODELS.of(outcome).quick
    if quick is None or check_count(rows, "rows") > _QUICK:
        return method_named(DEFAULT_METHOD), *training(rows, outcome)
    return method_named(_QUICK_METHOD), *quick
