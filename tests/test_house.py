"""Rules of the house that no type checker sees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import temperance as tp
from temperance.core.outcomes import Outcome

HOUSE = Path(tp.__file__).parent
NAMES = {"classification", "regression", "counts"}
LIKELIHOODS = {"Bernoulli", "Categorical", "HeteroscedasticNormal", "Normal", "Poisson", "StudentT", "CountPredictive"}
# These may know likelihoods by name: they themselves; kernels in C of three of them; what tunes the scale of a Normal;
# and the laboratory, which is written about models that it has chosen itself.
ACQUAINTED = ("model/likelihoods/", "engine/native/", "inference/", "lab/")


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
