"""Rules of the house that no type checker sees."""

from __future__ import annotations

import ast
import importlib
import inspect
from abc import ABC
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any

import temperance as tp
from temperance.core.outcomes import Outcome

HOUSE = Path(tp.__file__).parent
NAMES = {"classification", "regression", "counts"}
LIKELIHOODS = {
    *("Bernoulli", "Categorical", "ContaminatedNormal", "CuratedLabels", "HeteroscedasticNormal", "NoisyDirichlet"),
    *("NegativeBinomial", "NoisyLabels", "Normal", "Poisson", "StudentT", "ZeroInflated", "CountPredictive"),
}
# These may know likelihoods by name: they themselves; kernels in C of three of them; and the laboratory, which is
# written about models that it has chosen itself.
ACQUAINTED = ("model/likelihoods/", "engine/native/", "lab/")

# Rooms that may ask for any class: core has the words that all rooms use; these two are about concrete things.
EVERYBODYS = "core"
CONCRETE = ("lab", "testing")
# Doors: public values that users hand over. A room asks for them to refuse what is none, or where a public signature
# takes one thing or another; nothing else depends on which class it is.
DOORS = {
    "data.Batch": "an energy is over all data, or estimated from a batch",
    "data.Data": "inputs may come as they are or inside a data set",
    "data.DataInfo": "export refuses other words about units",
    "judge.PathLoss": "a plot refuses what loss_along has not made",
    "model.Layout": "the shapes of a network, or the widths of one",
    "model.Target": "fit refuses what is no problem; a target stands for its network, or for a function that makes one",
    "posteriors.Trace": "thermometers take a run or the trace of one chain",
    "run.Fitted": "what judges, shows and exports takes a whole run, or a posterior with its target",
    "run.Samples": "export takes what `sample` gives as it takes what `fit` gives",
}
# What is written for one class alone.
MADE_FOR = {
    ("engine/native/mlp.py", "model.Bernoulli"): "a kernel in C of exactly this likelihood, not of a subclass",
    ("engine/native/mlp.py", "model.Categorical"): "a kernel in C of exactly this likelihood, not of a subclass",
    (
        "engine/native/mlp.py",
        "model.HeteroscedasticNormal",
    ): "a kernel in C of exactly this likelihood, not of a subclass",
    ("engine/native/mlp.py", "model.Normal"): "a kernel in C of exactly this likelihood, not of a subclass",
    ("predict/gaussian_sources.py", "posteriors.Process"): "the law of its kernel, the only posterior over functions",
}


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(HOUSE.rglob("*.py")):
        yield file.relative_to(HOUSE).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def _asked(node: ast.AST) -> set[str]:
    """The classes that ``isinstance``, ``issubclass`` or ``type(...) is`` asks for."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
        parts: list[ast.AST] = list(node.args[1:])
    elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Call) and ast.unparse(node.left.func) == "type":
        parts = list(node.comparators)
    else:
        return set()
    inner = [part for whole in parts for part in ast.walk(whole)]
    return {n.id for n in inner if isinstance(n, ast.Name)} | {n.attr for n in inner if isinstance(n, ast.Attribute)}


def test_no_task_is_named_by_a_string() -> None:
    """A room asks the outcome, or its registry; strings become outcomes in `Outcome.named` and nowhere else. (Words
    inside sentences, as in docstrings and the help of a command, are not names.)"""
    assert set(Outcome._named) >= NAMES
    found = []
    for place, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in NAMES and place != "core/outcomes.py":
                found.append(f"{place}:{node.lineno}: the string {node.value!r}")
            if isinstance(node, ast.Attribute) and node.attr == "task":
                found.append(f"{place}:{node.lineno}: .task")
    assert not found, "ask for the outcome by type (temperance/core/outcomes.py):\n" + "\n".join(found)


def test_no_room_asks_for_a_concrete_likelihood() -> None:
    """What a likelihood can do is declared by type in its own room: QuantityLikelihood, RealLikelihood, GaussianNoise,
    AdditiveGaussianNoise, and the outcome."""
    found = [
        f"{place}:{node.lineno}: {', '.join(sorted(_asked(node) & LIKELIHOODS))}"  # type: ignore[attr-defined]
        for place, tree in _trees()
        if not place.startswith(ACQUAINTED)
        for node in ast.walk(tree)
        if _asked(node) & LIKELIHOODS
    ]
    assert not found, "ask for what it can do, not for who it is:\n" + "\n".join(found)


# ---------------------------------------------------------------------- classes of other rooms


def _questions(node: ast.AST) -> list[ast.expr]:
    """The expressions in which a node asks what class something is of: ``isinstance``, ``issubclass``, comparisons with
    a class (``type(x) is C``, ``x.kind in (C, D)``), ``case C():``, and what ``singledispatch`` registers."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        if name in ("isinstance", "issubclass"):
            return node.args[1:]
        return node.args[:1] if name.endswith(".register") and len(node.args) == 1 else []  # not those of ByOutcome
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.MatchClass):
        return [node.cls]
    if isinstance(node, ast.FunctionDef) and any(ast.unparse(d).endswith(".register") for d in node.decorator_list):
        first = [*node.args.posonlyargs, *node.args.args][:1]
        return [argument.annotation for argument in first if argument.annotation is not None]
    return []


def _named(expression: ast.expr) -> Iterator[ast.expr]:
    """The names that an expression is made of: of a tuple or a union each, of a call none."""
    if isinstance(expression, ast.Name | ast.Attribute):
        yield expression
    elif isinstance(expression, ast.Tuple | ast.List | ast.Set):
        for element in expression.elts:
            yield from _named(element)
    elif isinstance(expression, ast.BinOp):
        yield from _named(expression.left)
        yield from _named(expression.right)


def _classes(value: Any) -> Iterator[type]:
    if isinstance(value, type):
        yield value
    elif isinstance(value, UnionType):
        yield from value.__args__
    elif isinstance(value, tuple | list | set | frozenset):
        for part in value:
            yield from _classes(part)


def _namespace(place: str, tree: ast.Module) -> dict[str, Any]:
    """What names mean in a module; those that its functions import are taken to mean the same everywhere in it."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update({a.asname or a.name: tp for a in node.names if a.name == "temperance"})
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "temperance":
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                if hasattr(module, alias.name):
                    found[alias.asname or alias.name] = getattr(module, alias.name)
    name = "temperance." + place.removesuffix(".py").replace("/", ".")
    return {**found, **vars(importlib.import_module(name.removesuffix(".__init__")))}


def _meaning(name: ast.expr, names: dict[str, Any]) -> Any:
    if isinstance(name, ast.Name):
        return names.get(name.id)
    assert isinstance(name, ast.Attribute)
    owner = _meaning(name.value, names) if isinstance(name.value, ast.Name | ast.Attribute) else None
    return getattr(owner, name.attr, None) if inspect.ismodule(owner) else None


def _declares(kind: type) -> bool:
    """Whether a class says what others can do, rather than being one of them: it is abstract, or a protocol."""
    own = any(getattr(value, "__isabstractmethod__", False) for value in vars(kind).values())  # of modules: no ABC
    return own or inspect.isabstract(kind) or ABC in kind.__bases__ or bool(getattr(kind, "_is_protocol", False))


def _concrete_elsewhere(kind: type, room: str) -> str | None:
    """``room.Class`` of a concrete class of another room."""
    house, _, rest = kind.__module__.partition(".")
    own = rest.partition(".")[0]
    return None if house != "temperance" or own in (room, EVERYBODYS) or _declares(kind) else f"{own}.{kind.__name__}"


def _asked_for(place: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Concrete classes of other rooms that a module asks for, with the line."""
    names = _namespace(place, tree)
    for node in ast.walk(tree):
        for question in _questions(node):
            for name in _named(question):
                for kind in _classes(_meaning(name, names)):
                    found = _concrete_elsewhere(kind, place.partition("/")[0])
                    if found is not None:
                        yield node.lineno, found  # type: ignore[attr-defined]


def test_no_room_asks_for_a_concrete_class_of_another() -> None:
    """A class says by abstract types, methods and properties what it can do; rooms above ask for that. So whoever adds
    a density, a posterior or a predictive has one file to write, and no list of classes elsewhere to find."""
    unknown, used = [], set()
    for place, tree in _trees():
        if place.partition("/")[0] in CONCRETE:
            continue
        for line, kind in _asked_for(place, tree):
            key = (place, kind) if (place, kind) in MADE_FOR else kind
            used.add(key)
            if key not in DOORS and key not in MADE_FOR:
                unknown.append(f"{place}:{line}: {kind}")
    assert not unknown, "let the class say what it can do, and ask for that:\n" + "\n".join(unknown)
    idle = [key for key in (*DOORS, *MADE_FOR) if key not in used]
    assert not idle, f"nobody asks for these any more, take them off the list: {idle}"


def test_the_check_sees_every_way_to_ask() -> None:
    ways = """
from functools import singledispatch
import temperance as tp
from temperance.posteriors import Draws, Point, WeightPosterior
from temperance.posteriors.curve import CurvePosterior as Path

def ask(x, kind):
    from temperance.posteriors import Mixture
    isinstance(x, WeightPosterior) or isinstance(x, int | Point)
    issubclass(kind, (str, Draws))
    type(x) is Mixture
    kind in (Path, int)
    match x:
        case tp.posteriors.Gaussian():
            pass

@singledispatch
def law(x): ...

@law.register
def _(x: tp.posteriors.Process): ...

@law.register(tp.posteriors.Affine)
def _(x): ...
"""
    found = list(_asked_for("predict/__init__.py", ast.parse(ways)))
    kinds = ["Point", "Draws", "Mixture", "CurvePosterior", "Gaussian", "Process", "Affine"]
    assert sorted(kind for _, kind in found) == sorted(f"posteriors.{kind}" for kind in kinds)
