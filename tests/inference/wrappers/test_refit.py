"""How long is found on rows held out; then all rows are trained on: which rows, how long, resuming, what is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import temperance as tp
from temperance.apps.tables import fit_table, learner
from temperance.core.errors import ArgumentError, MismatchError, NumericalError
from tests.small import killed_at

F64 = torch.float64
STOPS = tp.MAP(lr=0.02, patience=5)


def line(count=60, seed=0):
    """Two outputs of three inputs: weights are a matrix."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=rng, dtype=F64)
    slopes = torch.tensor([[1.0, -0.5], [0.3, 0.8], [-1.2, 0.1]], dtype=F64)
    return tp.data.Data(x, x @ slopes + 0.7 * torch.randn(count, 2, generator=rng, dtype=F64))


def linear(temperature=1.0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Linear(3, 2, bias=False, dtype=F64)
    return tp.Target(net, tp.Normal(scale=0.7), tp.GaussianPrior(0.8), temperature=temperature)


def exact(data):
    """The posterior mean, and the covariance of one output's weights."""
    precision = data.x.T @ data.x / 0.7**2 + torch.eye(3, dtype=F64) / 0.8**2
    mean = torch.linalg.solve(precision, data.x.T @ data.y / 0.7**2).T.flatten()
    return mean, torch.linalg.inv(precision).contiguous()


def overfitter(seed=0):
    """Few rows, much noise, many weights: training too long is worse by far."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(120, 5, generator=rng)
    y = (torch.sigmoid(2 * x[:, 0]) > torch.rand(120, generator=rng)).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = tp.nn.MLP(5, [50, 50], 2)
    return tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0)), tp.data.Data(x, y)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_what_comes_out_is_of_all_rows(temperature):
    """60 rows, not the 54 of the pilot: mean and covariance."""
    data = line()
    method = tp.Refit(tp.Laplace(tp.MAP(lr=0.02), tp.Dense(), tune=None), tp.MAP(lr=0.02, patience=10), stretch=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = tp.fit(linear(temperature), method, data, epochs=4000, batch_size=60, seed=0)
    assert (len(fitted.data), fitted.held_out) == (60, None)  # nobody is to judge by rows that were learned from
    mean, covariance = exact(data)
    whole = temperature * torch.kron(torch.eye(2, dtype=F64), covariance)
    found = fitted.posterior
    torch.testing.assert_close(found.mean, mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.covariance(), whole, rtol=1e-6, atol=1e-9)
    fewer_mean, fewer = exact(data.hold_out(0.1, seed=0)[0])
    assert (fewer_mean - mean).abs().max() > 0.01  # the test tells 54 rows from 60
    assert (fewer - covariance).abs().max() > 1e-4


def test_weights_of_rows_are_kept():
    data = line(40)
    weights = torch.linspace(0.2, 3.0, 40, dtype=F64)
    root = weights.sqrt().unsqueeze(1)
    method = tp.Refit(tp.MAP(lr=0.02), tp.MAP(lr=0.02, patience=10), stretch=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = tp.fit(linear(), method, data.weighing(weights), epochs=4000, batch_size=40, seed=0)
    mean, _ = exact(tp.data.Data(root * data.x, root * data.y))
    torch.testing.assert_close(fitted.posterior.theta, mean, rtol=2e-3, atol=2e-3)


class Spy(tp.MAP):
    """Notes what each step is given."""

    seen: ClassVar[list] = []

    def step(self, engine, state, batch):
        Spy.seen.append(batch)
        return super().step(engine, state, batch)


@pytest.mark.parametrize("stretch", [1.0, 2.0])
def test_the_method_runs_as_long_as_the_pilot_was_good_and_sees_every_row_once_an_epoch(stretch):
    target, data = overfitter()
    Spy.seen = []
    fitted = tp.fit(
        target, tp.Refit(Spy(lr=2e-3), tp.MAP(lr=2e-3, patience=5), stretch), data, epochs=90, batch_size=20
    )
    scores = fitted.info.held_out_scores
    best = max(range(len(scores)), key=lambda k: scores[k]) + 1
    assert len(scores) == best + 5  # patience
    assert len(Spy.seen) == stretch * best * 6  # 120 rows in batches of 20
    assert fitted.info.steps == 6 * (best + 5) + len(Spy.seen)  # 108 rows are six batches too
    assert fitted.info.steps < fitted.info.total_steps
    first = Spy.seen[0]
    assert (first.step, first.total_steps, first.num_data, first.steps_per_epoch) == (0, len(Spy.seen), 120, 6)
    assert first.held_out is None
    for epoch in range(2):
        rows = torch.cat([batch.x for batch in Spy.seen[6 * epoch : 6 * epoch + 6]])
        assert torch.equal(rows.sort(0).values, torch.as_tensor(data.x).sort(0).values)
    assert [batch.last for batch in Spy.seen[:6]] == [False] * 5 + [True]
    assert not torch.equal(Spy.seen[0].x, Spy.seen[6].x)  # another order


def test_the_method_begins_at_the_start_and_not_at_the_pilots_end():
    target, data = overfitter()
    Spy.seen = []
    method = tp.Refit(Spy(lr=1e-2), tp.MAP(lr=1e-2, patience=5))
    refit = tp.fit(target, method, data, epochs=60, batch_size=20, seed=3).posterior.theta
    alone = tp.MAP(lr=1e-2)
    engine = tp.fit(target, alone, data, steps=1, batch_size=20).engine
    state = alone.init(engine, tp.inference.Starts.of(None), [torch.Generator()])
    for batch in Spy.seen:
        state, _ = alone.step(engine, state, batch)
    torch.testing.assert_close(refit, state.theta[0], rtol=0, atol=0)


def test_it_predicts_better_than_training_to_the_end():
    gains = []
    for seed in range(3):
        target, data = overfitter(seed)
        _, test = overfitter(seed + 100)
        options = {"batch_size": 20, "seed": seed, "progress": False}
        long = tp.fit(target, tp.MAP(lr=1e-2), data, epochs=60, **options).evaluate(test)["log_loss"]
        refit = tp.fit(target, tp.Refit(tp.MAP(lr=1e-2), tp.MAP(lr=1e-2, patience=5)), data, epochs=60, **options)
        gains.append(long - refit.evaluate(test)["log_loss"])
    assert min(gains) > 0.2


@pytest.mark.parametrize("kill", [4, 29, 70])
@pytest.mark.parametrize("base", [tp.Ensemble(tp.MAP(lr=1e-2), 3), tp.Ensemble(tp.SWAG(tp.MAP(lr=1e-2), start=0.5), 2)])
def test_killed_in_either_part_it_goes_on_to_the_bit(kill, base, tmp_path):
    target, data = overfitter()
    method = tp.Refit(base, tp.MAP(lr=1e-2, patience=3), 1.5)
    options = {"epochs": 40, "batch_size": 20, "seed": 1, "progress": False}
    whole = tp.fit(target, method, data, **options)
    assert whole.info.steps > kill + 1
    with killed_at(kill):
        tp.fit(target, method, data, checkpoint=tmp_path / "run", **options)
    again = tp.fit(target, method, data, checkpoint=tmp_path / "run", **options)
    assert again.info.steps == whole.info.steps
    x = torch.randn(7, 5)
    assert torch.equal(again.predict(x).probs, whole.predict(x).probs)
    with pytest.raises(MismatchError):
        tp.fit(target, method, data, checkpoint=tmp_path / "run", **{**options, "batch_size": 10})


def test_an_interrupted_pilot_has_no_posterior():
    target, data = overfitter()
    method = tp.Refit(tp.MAP(), STOPS)
    engine = tp.fit(target, tp.MAP(), data, steps=1).engine
    state = method.init(engine, tp.inference.Starts.of(None), [torch.Generator()])
    with pytest.raises(NumericalError, match="no posterior yet"):
        method.posteriors(engine, state, data)


def test_too_few_rows_to_keep_any_apart_are_no_rows_that_cannot_be_joined():
    fitted = tp.fit(linear(), tp.Refit(tp.MAP(lr=0.02), STOPS), line(12), epochs=20, batch_size=6)
    assert not any("cannot be joined" in remark for remark in fitted.info.remarks)


def test_a_pilot_that_is_best_at_its_end_is_told():
    target, data = overfitter()
    with pytest.warns(tp.errors.TemperanceWarning, match="a longer run would predict better"):
        tp.fit(target, tp.Refit(tp.MAP(lr=1e-4), tp.MAP(lr=1e-4, patience=5)), data, epochs=10, batch_size=20)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tp.Refit(tp.MAP(), tp.MAP()), "`pilot` must be one network that stops by held-out rows"),
        (lambda: tp.Refit(tp.MAP(), tp.Ensemble(tp.MAP(patience=3), 2)), "`pilot` must be one network"),
        (lambda: tp.Refit(tp.MAP(), 3), "`pilot` must be a method"),
        (lambda: tp.Refit(tp.MAP(patience=3), STOPS), "chooses by held-out rows, and none are left"),
        (lambda: tp.Refit(tp.Laplace(tp.MAP()), STOPS), "chooses by held-out rows"),
        (lambda: tp.Refit(tp.Collect(tp.SGHMC()), STOPS), "Refit cannot wrap Collect"),
        (lambda: tp.Refit(tp.NUTS(), STOPS), "Refit cannot wrap NUTS"),
        (lambda: tp.Refit(tp.MAP(), STOPS, 0.0), "`stretch`"),
    ],
)
def test_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


def test_rows_that_were_learned_from_choose_no_width():
    """Laplace around it has no rows left to choose its width by, and says so; its curvature is of all rows."""
    data = line()
    method = tp.Laplace(tp.Refit(tp.MAP(lr=0.02), STOPS), tp.Dense())
    assert method.facts().learns_held_out
    with pytest.warns(tp.errors.TemperanceWarning, match="held_out"):
        fitted = tp.fit(linear(), method, data, epochs=60, batch_size=20)
    assert (len(fitted.data), fitted.held_out) == (60, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fixed = tp.fit(linear(), replace(method, tune=None), data, epochs=60, batch_size=20)
    torch.testing.assert_close(fixed.posterior.covariance()[:3, :3], exact(data)[1], rtol=1e-6, atol=1e-9)


def test_a_table_is_not_calibrated_on_rows_that_were_learned_from(monkeypatch):
    """The rows held out from the pilot are training rows; calibration rows are seen by nobody."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(1000, 3)), columns=["a", "b", "y"])
    seen = []
    made = learner.fit

    def spy(target, method, data, **options):
        seen.append((len(data), len(options["held_out"])))
        return made(target, method, data, **options)

    monkeypatch.setattr(learner, "fit", spy)
    run = fit_table(frame, "y", method=tp.Refit(tp.MAP(lr=1e-2), tp.MAP(lr=1e-2, patience=3)), epochs=4, progress=False)
    assert sum(seen[0]) == 600  # all training rows, and none of the 200 that calibrate and promise
    assert run.state.calibrator is not None
    seen.clear()
    fit_table(frame, "y", method=tp.MAP(lr=1e-2, patience=3), epochs=4, progress=False)
    assert sum(seen[0]) == 700  # half of the validation rows, which calibrate afterwards
