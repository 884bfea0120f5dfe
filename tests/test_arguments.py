"""Every argument of every public constructor and function, with values that are bad for nearly all of them.

Each is taken because it is legal (the tables of ``arguments.py`` say which are), or refused by an error of ours that
names it."""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any

import pytest
import torch

import temperance as tp
from tests.arguments import BAD, EXAMPLES, MADE_BY_US, NEEDS_FILES, arguments, constructors, legal, walk
from tests.function_arguments import CALLS, NEED_FILES, NO_SETTINGS, SLOW, legal_of_function, settings

POLICIES = ("decide.EpsilonGreedy", "decide.NeuralLinear")  # these hand on *args


def _names(name: str, made: type) -> list[str]:
    more = arguments(tp.decide.ThompsonSampling) if name in POLICIES else []
    return [*arguments(made), *more]


def _outcome(call, name: str, argument: str, label: str, may: bool) -> str | None:
    """What is wrong with how a bad value was met; nothing, as a rule."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except tp.errors.TemperanceError as error:
        if may:
            return f"{name}({argument}={label}) is legal, and was refused: {error}"
        if f"`{argument}`" not in str(error) and f"`{argument}[" not in str(error):
            return f"{name}({argument}={label}): the error does not name the argument: {error}"
    except Exception as error:
        return f"{name}({argument}={label}) raised {type(error).__name__}: {error}"
    else:
        return None if may else f"{name}({argument}={label}) was taken without a word"
    return None


@pytest.mark.parametrize("name", constructors())
def test_a_constructor_takes_what_is_legal_and_names_what_is_not(name):
    made, example = constructors()[name], EXAMPLES.get(name, dict)
    made(**example())
    wrong = [
        _outcome(
            lambda a=argument, v=value: made(**{**example(), a: v}),
            name,
            argument,
            label,
            label in legal(name, argument),
        )
        for argument in _names(name, made)
        for label, value in BAD.items()
    ]
    assert not any(wrong), "\n".join(filter(None, wrong))


def _functions() -> dict[str, Any]:
    return {name: made for name, made in walk() if not inspect.isclass(made)}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_takes_what_is_legal_and_names_what_is_not(name, tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    made, example, wrong = _functions()[name], CALLS[name], []
    for argument in settings(made):
        for label, value in BAD.items():
            may = label in legal_of_function(name, argument)
            if may and argument in ("compile", "progress"):
                continue  # a minute of compiling, a bar on the terminal
            call = functools.partial(lambda a, v: made(**{**example(), a: v}), argument, value)
            wrong.append(_outcome(call, name, argument, label, may))
            pyplot.close("all")
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_every_public_function_is_walked_or_said_to_be_walked_elsewhere():
    assert set(_functions()) == set(CALLS) | NO_SETTINGS | NEED_FILES | SLOW
    assert sum(len(settings(_functions()[name])) for name in CALLS) * len(BAD) > 3_000


def test_every_public_class_is_walked_or_said_to_be_an_answer_of_the_library():
    """A new class is walked by itself; one that needs arguments, and has no example, fails above."""
    classes = {name for name, made in walk() if inspect.isclass(made)}
    assert classes >= MADE_BY_US | NEEDS_FILES, "names that are no longer there"
    assert len(constructors()) > 120
    assert sum(len(_names(name, made)) for name, made in constructors().items()) * len(BAD) > 12_000


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: tp.MCLMC(adjusted="banana"), "adjusted"),
        (lambda: tp.Anchored(target_noise="banana"), "target_noise"),
        (lambda: tp.Variational(scheduler="banana"), "scheduler"),
        (lambda: tp.Cyclical(tp.SGLD(), shape="banana"), "shape"),
        (lambda: tp.MAP(scheduler_args=7), "scheduler_args"),
        (lambda: tp.SGHMC(allow_batch_norm="x"), "allow_batch_norm"),
        (lambda: tp.MAP(optimizer_args=None), "optimizer_args"),
        (lambda: tp.PSGLD(decay="x"), "decay"),
        (lambda: tp.Cyclical(tp.SGLD(), explore=None), "explore"),
        (lambda: tp.load(None, torch.nn.Linear(1, 1)), "path"),
    ],
)
def test_what_users_reported(make, named):
    with pytest.raises(tp.errors.ArgumentError, match=f"`{named}` must "):
        make()
