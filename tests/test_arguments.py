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
from tests.arguments import BAD, EXAMPLES, MADE_BY_US, NEEDS_FILES, X, Y, arguments, constructors, legal, target, walk
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


# ---------------------------------------------------------------------- what is found out later than in a constructor


def test_inputs_and_targets_of_half_precision_are_taken():
    for dtype in (torch.bfloat16, torch.float16):
        fitted = tp.fit(target(), tp.MAP(), (X.to(dtype), Y), steps=2)
        assert fitted.predict(X.to(dtype)).probs.dtype == torch.float32
        wanted = tp.Target(tp.nn.MLP(3, [4], 1), tp.Normal(scale=1.0), tp.GaussianPrior())
        assert tp.fit(wanted, tp.MAP(), (X, X[:, :1].to(dtype)), steps=2).predict(X).mean().dtype == torch.float32
    assert tp.data.Data(X.bfloat16(), Y).fingerprint() != tp.data.Data(X.bfloat16() + 1, Y).fingerprint()


@pytest.mark.parametrize("curvature", ["sampled", "ggn", "gradients"])
@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_vogn_stops_where_outputs_are_not_finite(curvature, factor):
    class Broken(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) * factor

    wanted = tp.Target(Broken(3, 2), tp.Categorical(), tp.GaussianPrior())
    with pytest.raises(tp.errors.NumericalError, match="VOGN stopped after 0 of 2 steps: the loss became NaN"):
        tp.fit(wanted, tp.VOGN(curvature=curvature), (X, Y), steps=2)


def test_priors_of_strided_tensors_of_one_number_can_be_compared():
    line = torch.arange(1.0, 9.0)
    strided, plain = line[::8], line[:1].clone()
    assert strided.stride() != plain.stride()
    assert tp.GaussianPrior(strided) == tp.GaussianPrior(plain) != tp.GaussianPrior(line[1::8])
    assert hash(tp.GaussianPrior(strided)) == hash(tp.GaussianPrior(plain))


def test_a_method_that_a_run_cannot_keep_is_said_to_be_lost(tmp_path):
    args = {"lr_lambda": lambda step: 0.5}
    method = tp.MAP(scheduler=torch.optim.lr_scheduler.LambdaLR, scheduler_args=args)
    fitted = tp.fit(target(), method, (X, Y), steps=2)
    fitted.save(tmp_path)
    with pytest.warns(tp.errors.TemperanceWarning, match="cannot be rebuilt, so `fitted.method` is None"):
        again = tp.load(tmp_path, tp.nn.MLP(3, [4], 2))
    assert again.method is None
    assert again.predict(X).probs.equal(fitted.predict(X).probs)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ({"lr_lambda": functools.partial(pow, 2)}, "`method` must be made of .*scheduler_args/lr_lambda"),
        ({"lr_lambda": 7}, "`scheduler_args` must suit LambdaLR"),
        ({"pace": 7}, "`scheduler_args` must suit LambdaLR"),
    ],
)
def test_scheduler_arguments_that_cannot_be_written_down_or_do_not_suit(args, error):
    method = tp.MAP(scheduler=torch.optim.lr_scheduler.LambdaLR, scheduler_args=args)
    with pytest.raises(tp.errors.ArgumentError, match=error):
        tp.fit(target(), method, (X, Y), steps=2)


def test_scheduler_arguments_that_show_at_a_step():
    method = tp.MAP(scheduler=torch.optim.lr_scheduler.StepLR, scheduler_args={"step_size": "a"})
    with pytest.raises(tp.errors.ArgumentError, match="`scheduler_args` must suit StepLR"):
        tp.fit(target(), method, (X, Y), epochs=2)
