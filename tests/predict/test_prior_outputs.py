"""Priors that are absurd, told before the run: what must be warned of, and what must not."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.engine import Engine
from temperance.lab.tasks import DEVELOPMENT, TASKS, TRAINED, load_rows, make_target
from temperance.predict.prior_outputs import absurdity

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def problem(prior=None, network=None) -> tp.Target:
    torch.manual_seed(0)
    return tp.Target(network or tp.nn.MLP(6, [30, 30], 2), tp.Categorical(), prior or tp.GaussianPrior(1.0))


def heard(target, x, y=Y, method=None) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tp.fit(target, method or tp.MAP(lr=1e-6), (x, y), steps=2, progress=False)
    return [str(w.message) for w in caught if issubclass(w.category, TemperanceWarning)]


@pytest.mark.parametrize(
    "task", [t for t in TASKS if t.half == DEVELOPMENT and t.network != TRAINED], ids=lambda t: t.name
)
def test_the_usual_prior_is_never_warned_of_on_a_task_of_ours(task):
    try:
        rows = load_rows(task, 0)
    except tp.errors.MissingDataSetError:
        pytest.skip("these data are not here")
    target = make_target(task, rows, 0)
    x = target.cast(rows.train.x[:64])
    assert absurdity(Engine(target), x, 0) is None
    assert absurdity(Engine(make_target(task, rows, 0, scale=3.0)), x, 0) is None  # little weight decay, no more
    assert absurdity(Engine(make_target(task, rows, 0, scale=10.0)), x, 0) is None
    assert absurdity(Engine(make_target(task, rows, 0, scale=100.0)), x, 0) is not None


def test_what_goes_wrong_is_told_with_what_to_do():
    (pixels,) = heard(problem(), 255 * torch.rand(40, 6, generator=torch.Generator().manual_seed(1)))
    assert "Standardise the inputs" in pixels
    assert "at inputs of size 1" in pixels  # 255 / √3
    column = X.clone()
    column[:, 2] *= 1e6
    (one,) = heard(problem(), column)
    assert "Standardise the inputs" in one
    (wide,) = heard(problem(tp.GaussianPrior(100.0)), X)
    assert "too wide" in wide
    assert "Standardise" not in wide
    factor = float(wide.partition("a scale ")[2].split()[0])
    assert tp.diagnose.prior_outputs(problem(tp.GaussianPrior(100.0 * factor)), X).size == pytest.approx(3.0, rel=0.5)


def test_what_is_a_choice_is_not_told():
    assert heard(problem(), X) == []
    assert heard(problem(tp.GaussianPrior(tp.FanIn())), X) == []
    assert heard(problem(tp.GaussianPrior(tp.Learned(tp.FanIn())), nn.Linear(6, 2)), X, method=tp.SGLD(lr=1e-6)) == []
    assert heard(problem(tp.GaussianPrior(100.0), nn.Linear(6, 2)), X) == []  # a wide prior on a linear model
    tokens = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(24, 2))
    assert (
        heard(problem(network=tokens), torch.randint(0, 50, (40, 3), generator=torch.Generator().manual_seed(0))) == []
    )


def test_looking_changes_nothing_of_the_run():
    """The same weights as of a loop that never looks: no random number of the run is used up."""
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    target = problem(network=network)
    state = torch.get_rng_state()
    one = tp.fit(target, tp.MAP(lr=0.01), (X, Y), steps=5, progress=False).posterior
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("temperance.run.fit.absurdity", lambda *_: None)
        two = tp.fit(target, tp.MAP(lr=0.01), (X, Y), steps=5, progress=False).posterior
    assert torch.equal(one.theta, two.theta)


def test_the_spread_is_that_of_a_linear_model_in_closed_form():
    """Outputs w·x + b with N(0, s²) are N(0, s² (‖x‖² + 1))."""
    target = problem(tp.GaussianPrior(2.0), nn.Linear(6, 2).double())
    found = tp.diagnose.prior_outputs(target, X.double(), draws=4000)
    wanted = 2.0 * math.sqrt(float(X.double().square().sum(1).mean()) + 1)
    assert torch.allclose(found.spread, torch.full((2,), wanted).double(), rtol=0.03)
    assert found.factor == pytest.approx(3.0 / wanted, rel=0.03)
    assert found.inputs == pytest.approx(float(X.double().square().mean().sqrt()))
    assert "outputs of size" in str(found)
    assert tp.diagnose.prior_outputs(problem(tp.GaussianPrior(1e-4)), X).saturated == 0.0
    with pytest.raises(ArgumentError, match="`draws` must"):
        tp.diagnose.prior_outputs(target, X, draws=0)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (None, "`x` must be rows of inputs"),
        ("a", "`x` must be rows of inputs"),
        (torch.randn(4, 9), "cannot take inputs of shape"),
        (torch.randn(6), "cannot take inputs of shape"),
        ((torch.randn(4, 6), torch.zeros(4)), "cannot take inputs of shape"),
        (torch.full((2, 6), float("nan")), "`x` must be finite"),
        (torch.empty(0, 6), "`x` must have at least one row"),
    ],
)
def test_inputs_that_are_none(x, words):
    with pytest.raises(tp.errors.TemperanceError, match=words):
        tp.diagnose.prior_outputs(problem(), x)


def test_arrays_are_inputs():
    assert tp.diagnose.prior_outputs(problem(), X.numpy()).size == tp.diagnose.prior_outputs(problem(), X).size


def test_heavy_tails_of_a_scale_are_what_it_is_for():
    vague = tp.GaussianPrior(tp.Learned(hyper=tp.InverseGamma(0.1, 0.1)))
    found = [absurdity(Engine(problem(vague)), X, seed) for seed in range(10)]
    assert not all(found)
    assert not any("nan" in each for each in found if each)
    wide = tp.GaussianPrior(tp.Learned(100.0))
    assert all(absurdity(Engine(problem(wide)), X, seed) is not None for seed in range(5))
