"""Steps that set themselves: temperatures of all tensors, the law that is sampled, resuming, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.judge import diagnose
from temperance.run.loop import Loop

F64 = torch.float64


def line(count=400, seed=0, noise=0.05):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=rng, dtype=F64) * torch.tensor([1.0, 0.8, 0.6], dtype=F64)
    slopes = torch.tensor([[1.0], [-0.5], [2.0]], dtype=F64)
    return tp.data.Data(x, x @ slopes + noise * torch.randn(count, 1, generator=rng, dtype=F64))


def target(likelihood, temperature=1.0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Linear(3, 1, dtype=F64)
    return tp.Target(net, likelihood, tp.GaussianPrior(1.0), temperature=temperature)


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize("sampler", [tp.SGHMC, tp.BAOAB])
def test_the_law_is_right_where_it_is_known(sampler, temperature):
    """Mean and variances of a linear model, though nobody has said how large a step may be."""
    data, scale = line(), 0.05
    problem = target(tp.Normal(scale=scale), temperature)
    method = tp.Collect(sampler(lr=tp.Thermal()), burn=0.3, every=10)
    x = torch.cat([data.x, torch.ones(len(data), 1, dtype=F64)], 1)
    precision = x.T @ x / scale**2 + torch.eye(4, dtype=F64)
    mean, covariance = torch.linalg.solve(precision, x.T @ data.y / scale**2)[:, 0], torch.linalg.inv(precision)
    fitted = tp.fit(problem, method, data, steps=20_000, batch_size=200, seed=1, start=mean)
    draws = fitted.posterior.theta
    worth = min(float(diagnose.ess(column)) for column in draws.T)
    assert worth > 30
    spread = (temperature * covariance.diagonal()).sqrt()
    assert ((draws.mean(0) - mean).abs() < 4 * spread / worth**0.5 + 0.05 * spread).all()
    ratio = draws.var(0) / (temperature * covariance.diagonal())
    assert ((ratio > 1 - 4 * (2 / worth) ** 0.5) & (ratio < 1.15 + 4 * (2 / worth) ** 0.5)).all(), ratio


def test_a_learned_noise_has_a_step_of_its_own():
    """Its gradient is that of all rows at once: at the weights' step it would leap."""
    data = line(noise=0.02)
    problem = target(tp.Normal())
    method = tp.WarmStart(tp.Collect(tp.SGHMC(lr=tp.Thermal())), tp.MAP(lr=0.02), steps=500)
    fitted = tp.fit(problem, method, data, steps=4000, batch_size=50, seed=0)
    kinetic = fitted.posterior.trace.kinetic
    late = kinetic[len(kinetic) // 2 :].reshape(-1, 3).mean(0)
    assert (late < 1.6).all(), late
    noise = fitted.posterior.theta[:, -1].exp()
    assert 0.015 < float(noise.mean()) < 0.03
    number = tp.WarmStart(tp.Collect(tp.SGHMC(lr=0.03)), tp.MAP(lr=0.02), steps=500)
    kinetic = tp.fit(problem, number, data, steps=4000, batch_size=50, seed=0, throw=False).posterior.trace.kinetic
    assert not float(kinetic[len(kinetic) // 2 :].reshape(-1, 3).mean(0).max()) < 3.0  # what suits many networks


def test_a_chain_that_leaves_goes_back_and_takes_smaller_steps(monkeypatch):
    monkeypatch.setattr("temperance.inference.langevin.thermal._FIRST", 1e7)
    data = line(noise=0.02)
    method = tp.WarmStart(tp.Collect(tp.SGHMC(lr=tp.Thermal())), tp.MAP(lr=0.02), steps=500)
    fitted = tp.fit(target(tp.Normal(scale=0.02)), method, data, steps=6000, batch_size=50, seed=0)
    error = fitted.predict(data.x).mean() - data.y
    assert float(error.square().mean().sqrt()) < 0.05


@pytest.mark.parametrize("stop", [15, 130, 300])
def test_resuming_is_exact(tmp_path, stop):
    data, problem = line(), target(tp.Normal())
    method = tp.Ensemble(tp.Collect(tp.SGHMC(lr=tp.Thermal()), every=10), 2)
    whole = tp.fit(problem, method, data, steps=600, batch_size=50, seed=3)

    class Enough(Exception):
        pass

    recorded = Loop._record

    def record(self, batch, info):
        recorded(self, batch, info)
        if self.info.steps == stop:
            self.save()
            raise Enough

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_record", record)
        with pytest.raises(Enough):
            tp.fit(problem, method, data, steps=600, batch_size=50, seed=3, checkpoint=tmp_path)
    again = tp.fit(problem, method, data, steps=600, batch_size=50, seed=3, checkpoint=tmp_path)
    for (_, one), (_, two) in zip(whole.posterior.parts(), again.posterior.parts(), strict=True):
        assert torch.equal(one.theta, two.theta)


@pytest.mark.parametrize("steps", [4, 30, 90])
def test_short_runs_take_small_steps(steps):
    fitted = tp.fit(target(tp.Normal()), tp.Collect(tp.SGHMC(lr=tp.Thermal())), line(), steps=steps, batch_size=50)
    assert torch.isfinite(fitted.posterior.theta).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tp.Thermal(excess=0.0), "`excess`"),
        (lambda: tp.Thermal(share=1.0), "`share`"),
        (lambda: tp.SGLD(lr=tp.Thermal()), "only SGHMC and BAOAB"),
        (lambda: tp.SGHMC(lr=tp.Thermal(), preconditioner=tp.Layerwise()), "sets masses itself"),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()
