"""Steps that set themselves: temperatures of all tensors, the law that is sampled, resuming, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.judge import diagnose
from temperance.testing import assert_moments
from tests.small import killed_at

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


@pytest.mark.parametrize(
    ("sampler", "temperature"),
    [
        (tp.SGHMC, 1.0),
        (tp.BAOAB, 0.4),
        pytest.param(tp.SGHMC, 0.4, marks=pytest.mark.slow),
        pytest.param(tp.BAOAB, 1.0, marks=pytest.mark.slow),
    ],
)
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
    for name in ("_FIRST", "_FIRST_RATE", "_MOST_RATE"):
        monkeypatch.setattr(f"temperance.inference.langevin.thermal.{name}", 1e7)
    data = line(noise=0.02)
    method = tp.WarmStart(tp.Collect(tp.SGHMC(lr=tp.Thermal())), tp.MAP(lr=0.02), steps=500)
    fitted = tp.fit(target(tp.Normal(scale=0.02)), method, data, steps=6000, batch_size=50, seed=0)
    error = fitted.predict(data.x).mean() - data.y
    assert float(error.square().mean().sqrt()) < 0.05


@pytest.mark.parametrize(
    ("sampler", "temperature"),
    [(tp.SGHMC, 0.3), pytest.param(tp.SGHMC, 1.0, marks=pytest.mark.slow), (tp.BAOAB, 0.3)],
)
def test_fresh_chains_come_to_the_posterior_in_mean_and_covariance(sampler, temperature):
    """The last places of 300 chains: independent draws, enough to see a covariance that is off by a factor of two."""
    rng = torch.Generator().manual_seed(3)
    mix = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 0.7]], dtype=F64)
    x = torch.randn(200, 3, generator=rng, dtype=F64) @ mix
    slopes = torch.tensor([[1.0, -0.5], [0.3, 0.8], [-1.2, 0.1]], dtype=F64)
    y = x @ slopes + 0.7 * torch.randn(200, 2, generator=rng, dtype=F64)
    net = nn.Linear(3, 2, bias=False, dtype=F64)
    problem = tp.Target(net, tp.Normal(0.7, num_outputs=2), tp.GaussianPrior(0.8), temperature=temperature)
    method = tp.Ensemble(tp.Collect(sampler(lr=tp.Thermal()), last=1), 300)
    fitted = tp.fit(problem, method, (x, y), steps=2000, batch_size=50, seed=0)
    draws = torch.cat([part.theta for _, part in fitted.posterior.parts()])
    precision = x.T @ x / 0.7**2 + torch.eye(3, dtype=F64) / 0.8**2
    mean = torch.linalg.solve(precision, x.T @ y / 0.7**2).T.flatten()
    covariance = temperature * torch.kron(torch.eye(2, dtype=F64), torch.linalg.inv(precision).contiguous())
    assert_moments(draws, mean, covariance)
    for factor in (0.5, 2.0):
        with pytest.raises(AssertionError, match="covariance"):
            assert_moments(mean + (draws - mean) * factor**0.5, mean, covariance)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("sampler", [tp.SGHMC, tp.BAOAB])
def test_the_noise_of_gradients_heats_as_much_as_is_allowed(sampler, temperature):
    """What is allowed is of the mean square of gradients, of which noise is the larger part: a third to two thirds."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 400, 20, generator=rng, dtype=F64)
    net = nn.Linear(20, 20, bias=False, dtype=F64)
    problem = tp.Target(net, tp.Normal(3.0, num_outputs=20), tp.GaussianPrior(1.0), temperature=temperature)
    method = tp.Collect(sampler(lr=tp.Thermal(excess=0.3)))
    trace = tp.fit(problem, method, (x, 3 * y), steps=5000, batch_size=20, seed=1).posterior.trace
    hot = float((trace.kinetic[:, 0] / trace.kinetic_bias / trace.temperature).mean()) - 1
    assert 0.1 < hot < 0.2, hot


@pytest.mark.parametrize("temperature", [1.0, 1e-3])
def test_a_chain_without_a_start_goes_down_first(temperature):
    data, problem = line(100, noise=0.1), target(tp.Normal(scale=0.1), temperature)
    x = torch.cat([data.x, torch.ones(len(data), 1, dtype=F64)], 1)
    precision = x.T @ x / 0.1**2 + torch.eye(4, dtype=F64)
    mean = torch.linalg.solve(precision, x.T @ data.y / 0.1**2)[:, 0]
    spread = (temperature * torch.linalg.inv(precision).diagonal()).sqrt()
    draws = tp.fit(problem, tp.Collect(tp.SGHMC()), data, steps=6000, batch_size=20, seed=0).posterior.theta
    assert (((draws.mean(0) - mean) / spread).abs() < (1.0 if temperature == 1 else 40.0)).all()
    still = tp.Collect(tp.SGHMC(lr=tp.Thermal(descent=0.0)))
    draws = tp.fit(problem, still, data, steps=6000, batch_size=20, seed=0).posterior.theta
    assert (((draws.mean(0) - mean) / spread).abs() > 5.0).any()  # the test tells the two apart


def test_all_rows_at_once_and_few_steps():
    """At an optimum the gradient of all rows says that any step will do."""
    for seed in range(3):
        method = tp.WarmStart(tp.Collect(tp.SGHMC()), tp.MAP(lr=1e-2))
        fitted = tp.fit(target(tp.Normal(scale=0.3)), method, line(60), steps=500, seed=seed)
        assert fitted.info.status.ok


def test_a_tensor_without_a_gradient_stays_finite():
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    for parameter in (net[0].bias, net[2].weight, net[2].bias):
        nn.init.zeros_(parameter)
    problem = tp.Target(net, tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    data = line()
    fitted = tp.fit(
        problem, tp.Collect(tp.SGHMC()), (data.x.float(), data.y.float()), steps=1500, batch_size=50, start=net
    )
    assert torch.isfinite(fitted.posterior.theta).all()
    tp.fit(target(tp.Normal(scale=0.1)), tp.Collect(tp.BAOAB(lr=tp.Thermal(), momentum=0.0)), data, steps=500)


@pytest.mark.parametrize("given", [True, False])
def test_an_infinite_loss_is_no_posterior(given):
    class Far(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)
            nn.init.constant_(self.layer.bias, 1e38)

        def forward(self, x):
            return 1e3 * self.layer(x)

    net = Far()
    problem = tp.Target(net, tp.Poisson(), tp.GaussianPrior(1.0))
    with pytest.raises(tp.errors.NumericalError, match="NaN or infinite"):
        tp.fit(problem, tp.SGHMC(), (torch.randn(60, 3), torch.ones(60, 1)), steps=200, start=net if given else None)


@pytest.mark.parametrize("given", [True, False])
def test_nothing_is_kept_while_steps_are_looked_for(given):
    data, problem = line(), target(tp.Normal())
    start = problem.initial_theta() if given else None
    fitted = tp.fit(problem, tp.Collect(tp.SGHMC(), burn=0, every=1), data, steps=400, batch_size=50, start=start)
    settled = 100 if given else 200
    assert fitted.posterior.trace.draw_step[0] == settled + 1
    assert fitted.posterior.trace.step[0] >= settled
    cycles = tp.Collect(tp.Cyclical(tp.SGHMC(), cycle=50, explore=0.5))
    fitted = tp.fit(problem, cycles, data, steps=400, batch_size=50, start=start)
    assert fitted.posterior.trace.draw_step.tolist() == list(range(settled + 50, 401, 50))


def test_where_masses_are_asked_for_the_step_is_a_number():
    assert isinstance(tp.SGHMC().lr, tp.Thermal)
    assert tp.SGHMC(preconditioner=tp.Layerwise()).lr == 0.03
    assert tp.SGHMC(lr=0.1).lr == 0.1


@pytest.mark.parametrize("stop", [15, 130, 170, 300])
def test_resuming_is_exact(tmp_path, stop):
    data, problem = line(), target(tp.Normal())
    method = tp.Ensemble(tp.Collect(tp.SGHMC(lr=tp.Thermal()), every=10), 2)
    whole = tp.fit(problem, method, data, steps=600, batch_size=50, seed=3)

    with killed_at(stop):
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
        (lambda: tp.Thermal(descent=-0.1), "`descent`"),
        (lambda: tp.Thermal(share=0.5, descent=0.5), "must leave some of the run"),
        (lambda: tp.SGLD(lr=tp.Thermal()), "only SGHMC and BAOAB"),
        (lambda: tp.SGHMC(lr=tp.Thermal(), preconditioner=tp.Layerwise()), "sets masses itself"),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()
