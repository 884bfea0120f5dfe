"""SWAG driven through known iterates: its mean and covariance by hand, its draws, batch statistics, runs that stop."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.base import Info
from temperance.testing import assert_moments

F64 = torch.float64


def two_layers(dtype=F64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3, bias=False), nn.Tanh(), nn.Linear(3, 1, bias=False)).to(dtype)


def made_target(net=None, temperature=1.0):
    return tp.Target(net or two_layers(), tp.Normal(scale=0.5), tp.GaussianPrior(1.0), temperature)


def regression(rows=12, columns=2, dtype=F64):
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(3), dtype=dtype)
    return Data(x, x[:, :1].sin())


def walk(method, iterates, monkeypatch, temperature=1.0, first=0):
    """Let the base's step visit ``iterates`` one after the other, each the end of an epoch; the posterior then."""
    target = made_target(temperature=temperature)
    data = target.prepare(regression())
    places = iter(iterates)

    def visit(self, target, state, batch):
        with torch.no_grad():
            state.theta.copy_(next(places))
        return state, Info(0.0)

    monkeypatch.setattr(tp.MAP, "step", visit)
    engine = Engine(target, data)
    state = method.init(engine, tp.Starts(), [torch.Generator()])
    total = len(iterates)
    for step in range(total):
        batch = Batch(data.x, data.y, 12, step=step, last=True, progress=step / total, total_steps=total)
        state, info = method.step(engine, state, batch)
        assert info.status.ok
    return method.posteriors(engine, state, None)[0]


def naive(iterates, rank, temperature=1.0):
    """Mean, and T·(½ diag(s²) + D Dᵀ/(2(K − 1))) from the list, D the last K deviations from the mean so far."""
    rows = iterates.double().numpy()
    mean, variance = rows.mean(0), rows.var(0)
    if rank == 0:
        return mean, temperature * np.diag(variance)
    so_far = np.cumsum(rows, 0) / np.arange(1, len(rows) + 1)[:, None]
    last = (rows - so_far)[-rank:]
    return mean, temperature * (0.5 * np.diag(variance) + 0.5 * last.T @ last / (len(last) - 1))


def iterates(count, seed=0):
    """A correlated walk far from zero, where naive sums of squares would cancel."""
    noise = torch.randn(count, 9, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return 5.0 + 0.1 * noise.cumsum(0) + 0.05 * noise[:, :1]


@pytest.mark.parametrize(("rank", "temperature"), [(4, 1.0), (4, 0.3), (11, 1.0), (0, 1.0), (0, 2.5)])
def test_moments_of_known_iterates(rank, temperature, monkeypatch):
    rows = iterates(11)
    posterior = walk(tp.SWAG(rank=rank, start=0.0), rows, monkeypatch, temperature)
    mean, covariance = naive(rows, rank, temperature)
    np.testing.assert_allclose(posterior.mean.numpy(), mean, rtol=1e-12)
    np.testing.assert_allclose(posterior.covariance().numpy(), covariance, rtol=1e-9, atol=1e-14)


def test_iterates_before_the_start_and_between_are_left_out(monkeypatch):
    rows = iterates(20)
    posterior = walk(tp.SWAG(rank=3, start=0.5, every=2), rows, monkeypatch)
    mean, covariance = naive(rows[[11, 13, 15, 17, 19]], 3)
    np.testing.assert_allclose(posterior.mean.numpy(), mean, rtol=1e-12)
    np.testing.assert_allclose(posterior.covariance().numpy(), covariance, rtol=1e-9, atol=1e-14)


def test_draws_have_this_covariance_across_layers_too(monkeypatch):
    rows = iterates(30)
    posterior = walk(tp.SWAG(rank=5, start=0.0), rows, monkeypatch)
    mean, covariance = (torch.from_numpy(value) for value in naive(rows, 5))
    draws = posterior.sample(20_000, seed=0)
    assert_moments(draws, mean, covariance)
    # Weights of the first layer are 0 … 5, of the second 6 … 8: one z₂ for both, so the blocks between are not zero.
    between = covariance[:6, 6:]
    sizes = torch.outer(covariance.diagonal()[:6], covariance.diagonal()[6:]).sqrt()
    assert float((between / sizes).abs().max()) > 0.2
    found = torch.cov(draws.T)[:6, 6:]
    assert float((found - between).abs().max()) < 6 * float(sizes.max()) * (2 / 20_000) ** 0.5
    nodes = posterior.nodes(3_000, seed=1)
    assert_moments(nodes.fetch(0, 3_000)[0], mean, covariance)


def test_weights_that_never_move_still_make_a_posterior(monkeypatch):
    rows = iterates(6)
    rows[:, 2] = 1.25
    posterior = walk(tp.SWAG(rank=2, start=0.0), rows, monkeypatch)
    assert float((posterior.sample(50, seed=0)[:, 2] - 1.25).abs().max()) < 1e-6
    assert bool(torch.isfinite(posterior.log_prob(posterior.mean)))


def test_collects_what_sgd_visits_with_the_learning_rate_asked_for(monkeypatch):
    """A whole run: the iterates at the ends of epochs from the middle on, and the rate they were reached with."""
    seen, rates, original = [], [], tp.MAP.step

    def step(self, engine, state, batch):
        state, info = original(self, engine, state, batch)
        rates.append(state.optimizer.param_groups[0]["lr"])
        if batch.last:
            seen.append(state.theta[0].detach().clone())
        return state, info

    monkeypatch.setattr(tp.MAP, "step", step)
    base = tp.MAP(lr=0.02, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
    fitted = tp.fit(made_target(), tp.SWAG(base, rank=3, start=0.5, lr=0.005), regression(), epochs=10, batch_size=5)
    mean, covariance = naive(torch.stack(seen[5:]), 3)
    np.testing.assert_allclose(fitted.posterior.mean.numpy(), mean, rtol=1e-10)
    np.testing.assert_allclose(fitted.posterior.covariance().numpy(), covariance, rtol=1e-6, atol=1e-14)
    assert rates[:15] == [0.02] * 15
    assert rates[15:] == [0.005] * 15


# ---------------------------------------------------------------------- what is refused


def test_what_makes_no_sense_is_refused():
    for argument, options in (
        ("rank", {"rank": 1}),
        ("rank", {"rank": -2}),
        ("start", {"start": 1.0}),
        ("every", {"every": 0}),
        ("lr", {"lr": 0.0}),
        ("base", {"base": tp.SGLD(lr=0.1)}),
        ("base", {"base": tp.MAP(patience=2)}),
    ):
        with pytest.raises(ArgumentError, match=f"`{argument}`"):
            tp.SWAG(**options)


def test_a_run_too_short_for_its_rank_is_refused_before_the_first_step(monkeypatch):
    def never(self, target, state, batch):
        raise AssertionError("a step was made")

    monkeypatch.setattr(tp.MAP, "step", never)
    with pytest.raises(ArgumentError, match=r"(?s)`rank`.*7.*\b5\b"):  # epochs 6 to 10
        tp.fit(made_target(), tp.SWAG(rank=7, start=0.5), regression(), epochs=10, batch_size=6)
    with pytest.raises(ArgumentError, match=r"(?s)`rank`.*6.*\b5\b"):
        tp.fit(made_target(), tp.SWAG(rank=6, start=0.0, every=4), regression(), epochs=10, batch_size=6)


# ---------------------------------------------------------------------- ensembles, batch norm, runs that are stopped

BASE = tp.MAP(lr=0.02, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})


@pytest.mark.parametrize("rank", [0, 3])
def test_all_members_at_once_are_those_one_by_one(rank):
    found = []
    for batched in (True, False):
        method = tp.Ensemble(tp.SWAG(BASE, rank=rank, start=0.3), 3, batched=batched)
        found.append(tp.fit(made_target(), method, regression(), epochs=8, batch_size=5).posterior.components)
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one.mean, two.mean, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(one.covariance(), two.covariance(), rtol=1e-6, atol=1e-12)
    assert not torch.allclose(found[0][0].mean, found[0][1].mean)


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double()


def test_each_draw_has_batch_statistics_of_its_own():
    net, data = normed(), regression(rows=300)
    target = made_target(net)
    fitted = tp.fit(target, tp.SWAG(BASE, rank=2, start=0.2, draws=5), data, epochs=6, batch_size=50)
    nodes = fitted.posterior.nodes()
    theta, buffers = nodes.fetch(0, len(nodes))
    assert len(nodes) == 5
    outputs = []
    for k in range(5):
        values = dict(target.layout.unflatten(theta[k]))
        hidden = data.x @ values["0.weight"].T + values["0.bias"]
        halves = hidden.split(150)  # 300 rows: two batches of equal size, averaged
        mean = torch.stack([h.mean(0) for h in halves]).mean(0)
        variance = torch.stack([h.var(0) for h in halves]).mean(0)
        torch.testing.assert_close(buffers["1.running_mean"][k], mean)
        torch.testing.assert_close(buffers["1.running_var"][k], variance)
        scaled = (hidden[:7] - mean) / (variance + net[1].eps).sqrt() * values["1.weight"] + values["1.bias"]
        outputs.append(torch.tanh(scaled) @ values["3.weight"].T + values["3.bias"])
    torch.testing.assert_close(fitted.predict(data.x[:7]).mean(), torch.stack(outputs).mean(0))
    two = fitted.predict(data.x[:7], draws=2).mean()
    torch.testing.assert_close(two, torch.stack(outputs[:2]).mean(0))
    with pytest.raises(ArgumentError, match=r"`draws`.*5"):
        fitted.predict(data.x[:7], draws=6)
    assert float((buffers["1.running_mean"][0] - buffers["1.running_mean"][1]).abs().max()) > 1e-6
    # The network at the mean has the statistics of the mean.
    values = dict(target.layout.unflatten(fitted.posterior.mean))
    hidden = data.x @ values["0.weight"].T + values["0.bias"]
    wanted = torch.stack([h.mean(0) for h in hidden.split(150)]).mean(0)
    torch.testing.assert_close(fitted.network()[1].running_mean, wanted)


# A mixture asks each of two members for 15 of its 30 default draws; those with statistics for 5 give 5.
def test_an_ensemble_with_few_draws_each_predicts_by_default():
    data = regression(rows=30)
    method = tp.Ensemble(tp.SWAG(BASE, rank=2, start=0.2, draws=5), 2)
    fitted = tp.fit(made_target(normed()), method, data, epochs=6, batch_size=10)
    assert fitted.predict(data.x).mean().shape == (30, 1)


class Stopped(Exception):
    """Stands for a process that ends."""


@pytest.mark.parametrize("kind", ["low rank", "diagonal", "batch norm", "ensemble"])
def test_resumed_run_is_the_uninterrupted_one(kind, tmp_path, monkeypatch):
    net = normed() if kind == "batch norm" else two_layers()
    method = tp.SWAG(BASE, rank=0 if kind == "diagonal" else 3, start=0.2, lr=0.01, every=2, draws=4)
    method = tp.Ensemble(method, 2) if kind == "ensemble" else method
    data = regression()

    def run(**more):
        return tp.fit(made_target(net), method, data, steps=16, batch_size=5, seed=2, **more)

    whole, original, count = run(), type(method).step, 0

    def step(self, engine, state, batch):
        nonlocal count
        count += 1
        if count > 11:
            raise Stopped
        return original(self, engine, state, batch)

    with monkeypatch.context() as patched:
        patched.setattr(type(method), "step", step)
        with pytest.raises(Stopped):
            run(checkpoint=tmp_path / "run", every=5)
    resumed = run(checkpoint=tmp_path / "run", every=5)
    whole.save(tmp_path / "saved")
    for other in (resumed, tp.load(tmp_path / "saved", net), tp.load(tmp_path / "run", net)):
        for a, b in zip(whole.posterior.nodes(4).fetch(0, 4), other.posterior.nodes(4).fetch(0, 4), strict=True):
            same = torch.equal(a, b) if isinstance(a, torch.Tensor) else all(torch.equal(a[n], b[n]) for n in a)
            assert same
        assert torch.equal(whole.predict(data.x).mean(), other.predict(data.x).mean())


def test_an_interruption_before_the_first_iterate_keeps_what_was_trained(tmp_path, monkeypatch):
    data = regression(rows=30)
    method = tp.SWAG(BASE, rank=2, start=0.5)
    options = {"epochs": 8, "batch_size": 10}
    whole = tp.fit(made_target(normed()), method, data, **options)
    step, count = tp.SWAG.step, 0

    def stop(self, target, state, batch):
        nonlocal count
        count += 1
        if count == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, target, state, batch)

    monkeypatch.setattr(tp.SWAG, "step", stop)
    with pytest.raises(KeyboardInterrupt, match=r"interrupted after 5 of 24 steps; call fit again.*collected 0"):
        tp.fit(made_target(normed()), method, data, checkpoint=tmp_path / "run", every=1000, **options)
    monkeypatch.setattr(tp.SWAG, "step", step)
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["info"]["steps"] == 5
    resumed = tp.fit(made_target(normed()), method, data, checkpoint=tmp_path / "run", every=1000, **options)
    assert torch.equal(resumed.posterior.mean, whole.posterior.mean)


@pytest.mark.parametrize(
    ("options", "collected"),
    [({"epochs": 60}, 30), ({"epochs": 20}, 20), ({"epochs": 3}, 18), ({"steps": 8}, 4), ({"steps": 3}, 1)],
)
def test_by_itself_it_collects_as_many_as_a_short_run_allows(options, collected):
    """At the end of each epoch where there are enough of them, else evenly over the second half of the run."""
    x, y = torch.randn(48, 3), torch.arange(48) % 2  # twelve steps an epoch of four rows
    target = tp.Target(nn.Linear(3, 2), tp.Categorical(), tp.GaussianPrior(1.0))
    counted = []
    method = tp.SWAG()
    after = tp.SWAG._after

    def count(self, state, batch, info):
        made = after(self, state, batch, info)
        counted.append(state.collected)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tp.SWAG, "_after", count)
        if collected < 2:
            with pytest.raises(ArgumentError, match="Run longer"):
                tp.fit(target, method, (x, y), batch_size=4, **options)
            return
        fitted = tp.fit(target, method, (x, y), batch_size=4, **options)
    assert collected <= counted[-1] <= 1.2 * collected
    assert fitted.posterior.operator.factor.shape[1] == min(20, counted[-1])
    with pytest.raises(ArgumentError, match="`rank` must be at most"):
        tp.fit(target, tp.SWAG(rank=20), (x, y), batch_size=4, epochs=3)
