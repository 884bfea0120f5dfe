"""Stationary moments on quadratics, against closed forms. 20,000 independent coordinates give the Monte-Carlo error."""

from __future__ import annotations

import math

import pytest
import torch

from temperance.run import optim

from .helpers import CENTRE, parameters, run_quadratics, symplectic_euler

TEMPERATURES = (0.1, 0.5, 1.0)

# Protocol A.2: lr, momentum, N, k, T | Var θ, Cov(θ, m), Var m of symplectic Euler | Var θ of SGLD | steps to forget
TABLE = [
    (0.05, 0.8, 1, 1.0, 1.0, 1.01408451, 0.12597566, 1.12676056, 1.02564103, 100),
    (0.1, 0.98, 1, 1.0, 1.0, 1.02590674, 0.16384858, 1.03626943, 1.05263158, 700),
    (0.01, 0.9, 1, 1.0, 1.0, 1.00263852, 0.05277045, 1.05540897, 1.00502513, 250),
    (0.25, 0.5, 1, 1.0, 0.5, 0.54545455, 0.18181818, 0.72727273, 0.57142857, 60),
]


@pytest.mark.parametrize("row", TABLE)
def test_sghmc_and_the_table(row):
    lr, beta, n, k, temperature, var_theta, covariance, var_m, _, burn = row
    optimizer = optim.SGHMC(parameters(), lr, n, beta, temperature)
    (found,) = run_quadratics(optimizer, [k], burn=burn, steps=600)
    assert found["mean"].is_(0.0)
    assert found["theta"].is_(var_theta)
    assert found["both"].is_(covariance)
    assert found["velocity"].is_(var_m)
    assert not found["velocity"].is_(temperature)  # the test can tell: 2T/(1 + β), not T
    assert not found["both"].is_(0.0)


@pytest.mark.parametrize("row", [TABLE[0], TABLE[3]])
def test_sgld_and_the_table(row):
    lr, _, n, k, temperature, *_, var_theta, _ = row
    optimizer = optim.SGLD(parameters(), lr, n, temperature)
    (found,) = run_quadratics(optimizer, [k], burn=150, steps=1000)
    assert found["mean"].is_(0.0)
    assert found["theta"].is_(var_theta)
    assert not found["theta"].is_(temperature / k)


def groups(**own):
    ps = parameters(len(TEMPERATURES))
    return [{"params": [p], "temperature": t, **own} for p, t in zip(ps, TEMPERATURES, strict=True)]


def test_sghmc_at_three_temperatures_with_mass_and_pace():
    lr, beta, n, k, mass, pace = 4.0, 0.6, 50, 20.0, 4.0, 0.5
    optimizer = optim.SGHMC(groups(mass=mass), lr, n, beta, pace=pace)
    for found, temperature in zip(run_quadratics(optimizer, [k] * 3, burn=100, steps=300), TEMPERATURES, strict=True):
        var_theta, var_velocity = symplectic_euler(lr, beta, n, k, temperature, mass, pace)
        assert found["mean"].is_(0.0)
        assert found["theta"].is_(var_theta)
        assert found["velocity"].is_(var_velocity)
        assert not found["velocity"].is_(symplectic_euler(lr, beta, n, k, temperature, mass, 1.0)[1])
        assert not found["velocity"].is_(symplectic_euler(lr, beta, n, k, temperature, 1.0, pace)[1])


def test_baoab_is_exact_at_three_temperatures():
    lr, beta, n, k, mass = 30.0, 0.5, 50, 3.0, 2.0  # h²k/M = 1.2: a coarse step
    optimizer = optim.BAOAB(groups(mass=mass), lr, n, beta)
    found = run_quadratics(optimizer, [k] * 3, burn=60, steps=300)
    for each, temperature in zip(found, TEMPERATURES, strict=True):
        assert each["mean"].is_(0.0)
        assert each["theta"].is_(temperature / k)
        assert each["velocity"].is_(temperature / mass)


def test_leimkuhler_matthews_is_exact_at_three_temperatures():
    lr, n, k, mass = 30.0, 50, 2.0, 2.0  # ℓk/(NM) = 0.6, at which SGLD is 43 % too wide
    optimizer = optim.LeimkuhlerMatthews(groups(mass=mass), lr, n)
    found = run_quadratics(optimizer, [k] * 3, burn=60, steps=300)
    for each, temperature in zip(found, TEMPERATURES, strict=True):
        assert each["mean"].is_(0.0)
        assert each["theta"].is_(temperature / k)
        assert not each["theta"].is_(temperature / k / (1 - 0.3))


def test_sgld_at_three_temperatures_with_mass():
    lr, n, k, mass = 30.0, 50, 2.0, 2.0
    found = run_quadratics(optim.SGLD(groups(mass=mass), lr, n), [k] * 3, burn=60, steps=300)
    for each, temperature in zip(found, TEMPERATURES, strict=True):
        assert each["theta"].is_(temperature / k / (1 - 0.3))


def test_the_thermostat_holds_its_temperature():
    lr, beta, n, k, mass = 0.5, 0.8, 50, 2.0, 4.0
    found = run_quadratics(optim.SGNHT(groups(mass=mass), lr, n, beta), [k] * 3, burn=300, steps=500)
    for each, temperature in zip(found, TEMPERATURES, strict=True):
        assert each["mean"].is_(0.0)
        # The means of M v² and T differ by the drift of z over (h · steps) and nothing else.
        assert each["velocity"].mean == pytest.approx(temperature / mass, rel=0.01)
        # Symplectic Euler has Var θ / Var v = (M/k)(1 + β)/2, so holding v at T leaves θ colder by this factor.
        assert each["theta"].mean == pytest.approx(temperature / k * (1 + beta) / 2, rel=0.03)


def test_psgld_with_frozen_preconditioner():
    lr, n, k, epsilon = 0.02, 10, 3.0, 1e-3
    optimizer = optim.PSGLD(groups(), lr, n, epsilon=epsilon, adapt=1)
    found = run_quadratics(optimizer, [k] * 3, burn=200, steps=400)
    step = lr / (epsilon + k * CENTRE / n)  # the first gradient, at θ = 0, is all that V has seen
    for each, temperature in zip(found, TEMPERATURES, strict=True):
        assert each["mean"].is_(0.0)
        assert each["theta"].is_(temperature / k / (1 - step * k / (2 * n)))


def test_weight_decay_is_a_gaussian_prior():
    """Likelihood N(0.7, 1/k) and prior N(0, σ²): precision k + 1/σ², mean 0.7 k / precision."""
    n, k, scale = 50, 2.0, 0.5
    optimizer = optim.BAOAB(parameters(), 5.0, n, 0.6, weight_decay=optim.weight_decay_of(scale, n))
    (found,) = run_quadratics(optimizer, [k], burn=60, steps=300)
    precision = k + scale**-2
    shift = CENTRE * k / precision - CENTRE  # the helper measures θ − 0.7
    assert found["mean"].is_(shift)
    assert found["theta"].is_(1 / precision + shift**2)


def test_ggmc_is_exact_at_a_coarse_step():
    """Two groups accepted together, of unequal lr, momentum, mass; a prior by weight decay. Batch means give errors."""
    n, scale, temperature = 20, 0.8, 0.5
    one = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    two = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = optim.GGMC(
        [{"params": [one], "lr": 3.0}, {"params": [two], "mass": 2.0, "momentum": 0.3}],
        lr=6.0,
        num_data=n,
        momentum=0.7,
        temperature=temperature,
        weight_decay=optim.weight_decay_of(scale, n),
        seed=3,
    )
    k = torch.tensor([3.0, 5.0, 8.0, 4.0], dtype=torch.float64)

    def closure():
        optimizer.zero_grad()
        theta = torch.cat([one, two.view(1)])
        loss = 0.5 * (k * (theta - CENTRE).square()).sum() / n
        loss.backward()
        return loss

    draws = torch.empty(3400, 4, dtype=torch.float64)
    for row in draws:
        optimizer.step(closure)
        row[:3], row[3] = one.detach(), two.detach()
    assert 0.3 < optimizer.acceptance < 0.95  # coarse enough for the decisions to matter
    precision = k + scale**-2
    mean = CENTRE * k / precision
    for power, expected in ((1, torch.zeros(4)), (2, temperature / precision)):
        blocks = (draws - mean).pow(power)[200:].reshape(32, -1, 4).mean(1)
        off = (blocks.mean(0) - expected) / (blocks.std(0) / math.sqrt(32))
        assert off.abs().max() < 5.5
