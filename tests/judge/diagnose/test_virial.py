"""Temperatures computed anew from draws, on problems where the draws are exact."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.engine.engine import Engine
from temperance.judge import diagnose
from temperance.judge.diagnose.virial import evaluate_draws
from temperance.posteriors import Draws, Mixture
from temperance.testing import ClosedForm, linear_gaussian
from temperance.testing.problems import solve_linear_gaussian

from .simulate import exact_draws


def as_if(problem: ClosedForm, claim: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of the posterior that a sampler draws from which believes in ``claim`` times as many data."""
    prior = torch.zeros_like(problem.mean)
    centre = torch.zeros_like(problem.mean)
    for piece, density in problem.target.bound_prior.pieces:
        prior[piece], centre[piece] = torch.as_tensor(density.scale).double() ** -2, density.mean
    information = problem.precision - torch.diag(prior)
    pull = problem.precision @ problem.mean - prior * centre
    covariance = torch.linalg.inv(claim * information + torch.diag(prior))
    return covariance @ (claim * pull + prior * centre), covariance


def well_specified(seed: int = 0) -> ClosedForm:
    """Weights drawn from the prior, N(0, 1), and 400 data that determine all of them."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(400, 30, generator=rng, dtype=torch.float64)
    truth = torch.randn(30, 1, generator=rng, dtype=torch.float64)
    truth *= (30 / truth.square().sum()) ** 0.5
    y = x @ truth + 0.5 * torch.randn(400, 1, generator=rng, dtype=torch.float64)
    network = nn.Linear(30, 1, bias=False, dtype=torch.float64)
    return solve_linear_gaussian(network, x, y, 0.5, tp.GaussianPrior(1.0))


def run_of(mean: torch.Tensor, covariance: torch.Tensor, draws: int = 200) -> Mixture:
    return Mixture(tuple(Draws(chain) for chain in exact_draws(mean, covariance, (4, draws))))


def all_three(problem: ClosedForm, run: Mixture) -> list[diagnose.Temperatures]:
    target, data = problem.target, problem.data
    return [
        diagnose.configurational_of(target, run, data, max_draws=400),
        diagnose.configurational_of(target, run, data, max_draws=400, centred=True),
        diagnose.curvature_temperature(target, run, data, max_draws=400),
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_exact_draws_have_temperature_one_in_every_form(temperature):
    problem = linear_gaussian()
    run = run_of(problem.mean, temperature * problem.covariance)
    target = problem.target.with_temperature(temperature)
    cooled = ClosedForm(target, problem.data, problem.mean, problem.covariance, 0.0)
    for found in all_three(cooled, run):
        assert abs(found.network_mean - 1) < 4 * found.network_error < 1.0
        assert ((found.mean - 1).abs() < 4 * found.error).all()
    wrong = all_three(problem, run) if temperature != 1 else []
    for found in wrong[1:]:  # the same draws, told to be of temperature one
        assert found.network_mean == pytest.approx(temperature, abs=4 * found.network_error)


def test_a_sampler_that_believes_in_ten_times_the_data_is_seen_by_two_forms_and_not_by_the_textbook_one():
    problem = well_specified()
    mean, covariance = as_if(problem, 10.0)
    run = run_of(mean, covariance)
    raw, centred, curvature = all_three(problem, run)
    size = problem.mean.square().mean()  # as large as the prior expects
    assert float(size) == pytest.approx(1.0, abs=0.1)
    assert raw.network_mean == pytest.approx(0.1 + 0.9 * float(run.components[0].theta.square().mean()), abs=0.15)
    assert abs(raw.network_mean - 1) < 0.15  # blind
    assert centred.network_mean == pytest.approx(0.1, abs=0.02)
    assert curvature.network_mean == pytest.approx(0.1, abs=0.02)


def test_curvature_sees_a_wrong_n_where_most_directions_know_only_the_prior():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(5, 100, generator=rng, dtype=torch.float64)
    y = torch.randn(5, 1, generator=rng, dtype=torch.float64)
    network = nn.Linear(100, 1, bias=False, dtype=torch.float64)
    problem = solve_linear_gaussian(network, x, y, 0.1, tp.GaussianPrior(1.0))
    raw, centred, curvature = all_three(problem, run_of(*as_if(problem, 10.0)))
    assert raw.network_mean > 0.85
    assert centred.network_mean > 0.85
    assert curvature.network_mean < 0.2


def test_the_gradient_is_that_of_the_energy_and_the_curvature_its_trace():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1)).double()
    prior = tp.GaussianPrior(tp.FanIn())
    target = tp.Target(network, tp.Normal(), prior, likelihood_temperature=2.0)
    data = tp.data.Data(torch.randn(50, 3).double(), torch.randn(50, 1).double())
    draws = Draws(0.5 * torch.randn(6, target.num_parameters).double())
    (found,) = evaluate_draws(target, draws, data, max_draws=3, batch_size=20, curvature=True)
    assert found.index.tolist() == [0, 2, 5]
    for row, place in enumerate(found.index):
        theta = draws.theta[place].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(Engine(target).energy(theta, data), theta)
        assert torch.allclose(found.gradient[row], gradient)
        batch = next(iter(target.prepare(data).full_pass(50)))
        assert float(found.loss[row]) == pytest.approx(
            float(-Engine(target).log_likelihood(theta[None].detach(), batch).mean())
        )
    theta = draws.theta[0]
    hessian = torch.autograd.functional.hessian(lambda t: Engine(target).energy(t, data), theta)
    same = Draws(theta.expand(800, -1).clone())
    (found,) = evaluate_draws(target, same, data, max_draws=800, curvature=True)
    estimates = found.curvature
    error = float(estimates.std()) / 800**0.5
    assert abs(float(estimates.mean()) - float(hessian.trace())) < 4 * error < 0.2 * float(hessian.trace())


def test_the_centre_is_the_mean_of_the_other_half():
    problem = linear_gaussian()
    theta = exact_draws(problem.mean, problem.covariance, (5,))
    (found,) = evaluate_draws(problem.target, Draws(theta), problem.data)
    early, late = theta[:3].mean(0), theta[3:].mean(0)
    assert torch.allclose(found.offset, torch.cat([theta[:3] - late, theta[3:] - early]))


def test_too_few_draws_is_an_error():
    problem = linear_gaussian()
    with pytest.raises(ArgumentError, match="two or more in each chain"):
        diagnose.configurational_of(problem.target, Draws(problem.mean[None]), problem.data, centred=True)
    with pytest.raises(ArgumentError, match="target's 16 parameters; got 3"):
        diagnose.configurational_of(problem.target, Draws(torch.zeros(5, 3)), problem.data)
