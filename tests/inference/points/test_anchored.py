"""Anchored members."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.engine.engine import Engine
from temperance.testing import assert_moments, check_inference, linear_gaussian
from tests.small import X


def test_anchored_classes_allocate_no_noise():
    target = tp.Target(nn.Linear(3, 2), tp.Categorical(), tp.GaussianPrior(1.0))
    data = target.prepare(tp.data.Data(X, torch.arange(20) % 2))
    engine = Engine(target, data)
    state = tp.Anchored().init(engine, tp.Starts(), [torch.Generator()])
    tp.Anchored().step(engine, state, next(iter(data.full_pass())))
    assert state.noise.numel() == 0


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_anchored_members_to_a_few_per_cent(temperature):
    problem = linear_gaussian()
    base = tp.MAP(lr=0.1, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
    target = problem.target.with_temperature(temperature)
    method = tp.Ensemble(tp.Anchored(base), 4000)
    fitted = tp.fit(target, method, problem.data, steps=200, batch_size=40)
    theta = torch.stack([c.theta for c in fitted.posterior.components])
    assert_moments(theta, problem.mean, temperature * problem.covariance)
    with pytest.raises(AssertionError):
        assert_moments(theta, problem.mean, 1.2 * temperature * problem.covariance)


@pytest.mark.slow
def test_anchored_battery_with_many_draws():
    """The battery again, with many more draws."""
    base = tp.MAP(lr=0.1, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
    check_inference(tp.Anchored(base), steps=200, draws=3000, temperatures=(0.5,))


@pytest.mark.parametrize(("temperature", "likelihood_temperature"), [(1.0, 4.0), (0.5, 0.5)])
def test_anchored_members_under_a_tempered_likelihood(temperature, likelihood_temperature):
    """The noise on the targets is that of the tempered likelihood, N(0, T λ σ²): the draws have covariance T Λ⁻¹."""
    problem = linear_gaussian(noise=5.0)
    scale = problem.target.bound_prior.pieces[0][1].scale.double()
    prior = torch.diag(scale.expand(len(problem.mean)) ** -2)
    precision = (problem.precision - prior) / likelihood_temperature + prior
    pull = problem.precision @ problem.mean - prior @ torch.full_like(problem.mean, 0.3)
    mean = torch.linalg.solve(precision, pull / likelihood_temperature + prior @ torch.full_like(problem.mean, 0.3))
    target = tp.Target(
        problem.target.network,
        problem.target.likelihood,
        problem.target.prior,
        temperature,
        likelihood_temperature=likelihood_temperature,
    )
    base = tp.MAP(lr=1.0, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.8})
    fitted = tp.fit(target, tp.Ensemble(tp.Anchored(base), 250), problem.data, steps=120, batch_size=40)
    theta = torch.stack([c.theta for c in fitted.posterior.components])
    assert_moments(theta, mean, temperature * torch.linalg.inv(precision))
