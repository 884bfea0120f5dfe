"""``auto``: the best that was measured, for the budget and the problem; what it says, what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.apps import auto as room
from temperance.apps.auto import CLASSES, NUMBERS, TRAINED, Auto, records
from temperance.apps.recipes import method_named
from temperance.core.errors import ArgumentError
from temperance.lab import measured

START = "MAP(lr=2e-3, patience=0.1)"
KNOWN = {
    CLASSES: [
        ("unsafe", "Ensemble(MAP(lr=1e-3), 3)", 10, 2, -0.9, 0.5, 0.5),
        ("many", f"Refit(Ensemble(MAP(lr=2e-3), 4), {START})", 10, 1, -0.2, 1.5, 4.0),
        ("chain", f"WarmStart(Collect(SGHMC(lr=Thermal())), {START})", 10, 0, -0.3, 1.8, 1.8),
        ("one", f"Laplace({START})", 10, 0, -0.1, 0.6, 0.6),
    ],
    NUMBERS: [("swag", "SWAG(MAP(lr=1e-2), start=0.5)", 5, 0, -0.4, 1.0, 1.0)],
    TRAINED: [("laplace", "Laplace()", 1, 0, 0.002, 0.0, 0.0)],
}


@pytest.fixture
def known(tmp_path, monkeypatch):
    """A table of measurements that is small enough to know the answers."""
    names = ("name", "method", "tasks", "worse", "nats", "cost", "gradients")
    kinds = {kind: [dict(zip(names, each, strict=True)) for each in entries] for kind, entries in KNOWN.items()}
    path = tmp_path / "measured.json"
    path.write_text(json.dumps({"splits": 5, "kinds": kinds}), encoding="utf-8")
    monkeypatch.setattr(room, "MEASURED", path)
    records.cache_clear()
    yield
    records.cache_clear()


def target(*, norm=False, outcome=None, width=16, prior=None):
    layers = [nn.Linear(4, width), *([nn.BatchNorm1d(width)] if norm else []), nn.ReLU(), nn.Linear(width, 3)]
    return tp.Target(nn.Sequential(*layers), outcome or tp.Categorical(), prior or tp.GaussianPrior(1.0))


def data(numbers=False):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    return tp.data.Data(x, x[:, :3] if numbers else x[:, :3].argmax(1))


@pytest.mark.parametrize(
    ("budget", "norm", "at_once", "name"),
    [
        (2.0, False, True, "chain"),  # the best that is safe
        (1.5, False, True, "many"),
        (2.0, True, True, "many"),  # samplers refuse batch norm
        (2.0, True, False, "one"),  # members one after the other cost four trainings
        (5.0, True, False, "many"),
        (1.0, False, True, "one"),
        (0.1, False, True, "unsafe"),  # nothing is as cheap: the cheapest, and it is said
    ],
)
def test_the_best_that_is_safe_and_paid_for(known, monkeypatch, budget, norm, at_once, name):
    monkeypatch.setattr(tp.inference.base.Engine, "prefers_batched_training", lambda self: at_once)
    chosen = Auto(budget).choose(target(norm=norm), data(), trains=True)
    (entry,) = [each for each in KNOWN[CLASSES] if each[0] == name]
    assert repr(chosen.method) == repr(method_named(entry[1]))
    assert f"on {entry[2]} tasks with classes" in chosen.why
    assert f"worse on {entry[3]}" in chosen.why
    assert ("more than the 0.1 allowed" in chosen.why) == (name == "unsafe")


def test_numbers_and_networks_that_are_trained(known):
    chosen = Auto().choose(target(outcome=tp.Normal()), data(numbers=True), trains=True)
    assert isinstance(chosen.method, tp.SWAG)
    chosen = Auto().choose(target(), data(), trains=False)
    assert isinstance(chosen.method, tp.Laplace)
    assert "higher than that of the network itself" in chosen.why


class Bare(nn.Module):
    """Parameters that no module can make afresh."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3))

    def forward(self, x):
        return x @ self.weight


def test_what_network_or_prior_refuse_is_passed_over(known, monkeypatch):
    monkeypatch.setattr(tp.inference.base.Engine, "prefers_batched_training", lambda self: True)
    for prior in (tp.LaplacePrior(1.0), tp.StudentTPrior(3.0)):
        chosen = Auto(1.0).choose(target(prior=prior), data(), trains=True)
        assert chosen.why.startswith("Ensemble")  # not Laplace, though it would be the best for the price
        with pytest.raises(ArgumentError, match="none takes this network and this prior"):
            Auto(1.0).choose(target(prior=prior), data(), trains=False)
    bare = tp.Target(Bare(), tp.Categorical(), tp.GaussianPrior(1.0))
    assert Auto(0.5).choose(bare, data(), trains=True).why.startswith("Laplace")
    assert "without `epochs`" in Auto().choose(target(), data(), trains=False).why


def test_how_long_must_be_said_unless_a_trained_network_is_given(known):
    with pytest.raises(ArgumentError, match="`epochs` must say how long"):
        tp.fit(target(), tp.auto("2X"), data())


@pytest.mark.filterwarnings("ignore:held-out rows were predicted best", "ignore:Laplace knows no rows")
def test_fit_takes_it_and_runs_as_long_as_it_needs(known, tmp_path, capsys):
    given = data()
    fitted = tp.fit(target(), tp.auto("1.5x"), given, epochs=10, batch_size=20, seed=0, progress=True)
    assert isinstance(fitted.method, tp.Refit)
    assert fitted.info.total_steps == 3 * math.ceil(10 * fitted.method.facts().longer)  # 54 rows, 20 a step
    assert fitted.info.chosen == Auto(1.5).choose(target(), given, trains=True).why
    assert fitted.info.chosen in capsys.readouterr().err
    fitted.save(tmp_path / "run")
    assert tp.load(tmp_path / "run", fitted.target.network).info.chosen == fitted.info.chosen
    plain = tp.fit(target(), fitted.method, given, epochs=22, batch_size=20, progress=False)
    assert plain.info.chosen == ""
    post_hoc = tp.fit(target(), tp.auto(), given, start=target().network, progress=False)
    assert isinstance(post_hoc.method, tp.Laplace)


def test_a_run_goes_on(known, tmp_path):
    options = {"epochs": 6, "batch_size": 20, "checkpoint": tmp_path / "run", "progress": False}
    torch.manual_seed(0)
    problem = target()
    first = tp.fit(problem, tp.auto(1.0), data(), **options)
    again = tp.fit(problem, tp.auto(1.0), data(), **options)
    x = data().x
    assert torch.equal(first.predict(x).probs, again.predict(x).probs)


@pytest.mark.parametrize("budget", ["cheap", 0, -1.0, None, float("nan")])
def test_bad_budgets(budget):
    with pytest.raises(ArgumentError, match="`budget`"):
        tp.auto(budget)


def test_learned_scales_are_refused(known):
    with pytest.raises(ArgumentError, match="auto"):
        tp.fit(target(prior=tp.GaussianPrior(tp.Learned())), tp.auto(), data(), epochs=3)


def test_it_is_no_method_to_be_wrapped():
    with pytest.raises(ArgumentError, match="`base` must be a method"):
        tp.Ensemble(tp.auto(), 5)


def test_every_line_that_was_measured_can_be_made():
    for kind in (CLASSES, NUMBERS, TRAINED):
        assert records(kind)
        for each in records(kind):
            assert isinstance(method_named(each.method), tp.Inference)
            assert 0 <= each.worse <= each.tasks


def test_the_page_is_that_of_the_measurements():
    page = Path(__file__).parents[2] / measured.PAGE
    assert page.read_text(encoding="utf-8") == measured.page()
    readme = (Path(__file__).parents[2] / measured.README).read_text(encoding="utf-8")
    found = measured.BLOCK.search(readme)
    assert found is not None
    assert measured.families() in found[0]
