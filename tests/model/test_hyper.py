"""Hyper-priors of learned scales, each against SciPy: density, score, draws, and the map from a normal number."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.core.seeds import generator

# a hyper-prior, and SciPy's law of a function of u: of the scale e^u, or of the variance e^{2u}
LAWS = [
    (tp.LogNormal(0.7), stats.lognorm(s=0.7), 1),
    (tp.LogNormal(3.0), stats.lognorm(s=3.0), 1),
    (tp.HalfCauchy(1.0), stats.halfcauchy(), 1),
    (tp.HalfCauchy(0.2), stats.halfcauchy(scale=0.2), 1),
    (tp.InverseGamma(0.5, 0.5), stats.invgamma(0.5, scale=0.5), 2),
    (tp.InverseGamma(3.0, 0.1), stats.invgamma(3.0, scale=0.1), 2),
    (tp.InverseGamma(40.0, 70.0), stats.invgamma(40.0, scale=70.0), 2),
]
each_law = pytest.mark.parametrize(("hyper", "law", "power"), LAWS, ids=lambda v: repr(v)[:24])
V = torch.linspace(-8, 8, 81, dtype=torch.float64)


@each_law
def test_the_density_is_that_of_the_scale_with_its_jacobian(hyper, law, power):
    u = hyper.of_normal(torch.linspace(-5, 5, 41, dtype=torch.float64))
    value = np.exp(power * u.numpy())
    wanted = law.logpdf(value) + np.log(power * value)  # of u = log(value) / power
    assert np.allclose(hyper.log_density(u).numpy(), wanted, rtol=1e-9, atol=1e-9)
    grid = np.linspace(float(hyper.of_normal(torch.tensor(-9.0))), float(hyper.of_normal(torch.tensor(9.0))), 200_001)
    total = integrate.simpson(np.exp(hyper.log_density(torch.from_numpy(grid)).numpy()), x=grid)
    assert total == pytest.approx(1.0, abs=1e-8)


@each_law
def test_the_score_is_the_slope_of_the_log_density(hyper, law, power):
    u = hyper.of_normal(V / 2).detach().requires_grad_()
    (slope,) = torch.autograd.grad(hyper.log_density(u).sum(), u)
    assert torch.allclose(hyper.score(u), slope, rtol=1e-10, atol=1e-10)


@each_law
def test_the_map_from_a_normal_number_keeps_probabilities_in_both_tails(hyper, law, power):
    """F(u(v)) = Φ(v): below the middle in the lower tail, above it in the upper one, where 1 − F would be rounding."""
    value = np.exp(power * hyper.of_normal(V).numpy())
    below = V.numpy() <= 0
    assert np.allclose(law.cdf(value)[below], stats.norm.cdf(V.numpy())[below], rtol=2e-8, atol=0)
    assert np.allclose(law.sf(value)[~below], stats.norm.sf(V.numpy())[~below], rtol=2e-8, atol=0)


@each_law
def test_the_slope_of_the_map_is_the_ratio_of_the_densities_also_batched(hyper, law, power):
    v = V.clone().requires_grad_()
    u = hyper.of_normal(v)
    (slope,) = torch.autograd.grad(u.sum(), v)
    wanted = torch.exp(-0.5 * V.square() - 0.5 * math.log(2 * math.pi) - hyper.log_density(u.detach()))
    assert torch.allclose(slope, wanted, rtol=1e-9)
    batched = torch.func.vmap(torch.func.grad(hyper.of_normal))(V)
    assert torch.allclose(batched, slope, rtol=1e-12)
    assert torch.autograd.gradgradcheck(hyper.of_normal, torch.linspace(-2, 2, 5, dtype=torch.float64).requires_grad_())
    far = hyper.of_normal(torch.tensor([-60.0, 60.0], requires_grad=True))
    far.sum().backward()  # nothing is there, and nothing breaks there
    assert bool(far.isfinite().all())


@each_law
def test_draws_have_the_density(hyper, law, power):
    u = hyper.sample((4000,), generator(0, "hyper"))
    assert u.dtype == torch.float64
    assert stats.kstest(np.exp(power * u.numpy()), law.cdf).pvalue > 1e-3
    assert stats.kstest(np.exp(power * (u.numpy() + 0.2)), law.cdf).pvalue < 1e-3 or law.std() > 3  # it would tell


@each_law
def test_a_learned_scale_starts_in_the_middle_and_is_a_density_with_its_weights(hyper, law, power):
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    prior = tp.GaussianPrior(tp.Learned(tp.FanIn(), hyper))
    target = tp.Target(network, tp.Normal(scale=1.0), prior)
    start = target.initial_theta()[-2:]
    assert torch.allclose(start, torch.full_like(start, math.log(law.median()) / power), atol=1e-9)
    if not isinstance(hyper, tp.HalfCauchy) and getattr(hyper, "shape", 3.0) > 1 and getattr(hyper, "spread", 0) < 1:
        assert tp.testing.check_prior(prior, network).passed  # its moments must exist


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tp.LogNormal(0.0), "`spread` must"),
        (lambda: tp.HalfCauchy(-1.0), "`scale` must"),
        (lambda: tp.InverseGamma(0.0, 1.0), "`shape` must"),
        (lambda: tp.InverseGamma(1.0, float("nan")), "`rate` must"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize("law", [law for law, *_ in LAWS], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slopes_of_a_normal_forwards_and_backwards(law, dtype):
    v = torch.linspace(-8.0, 8.0, 33, dtype=dtype)
    _, forwards = torch.func.jvp(law.of_normal, (v,), (torch.full_like(v, 2.0),))
    backwards = torch.func.grad(lambda v: law.of_normal(v).sum())(v)
    torch.testing.assert_close(forwards, 2.0 * backwards)
    step = 1e-4
    exact = (law.of_normal(v.double() + step) - law.of_normal(v.double() - step)) / (2 * step)
    torch.testing.assert_close(backwards.double(), exact, rtol=2e-4, atol=1e-6)
    rows = torch.func.vmap(lambda row: torch.func.jvp(law.of_normal, (row,), (torch.ones_like(row),))[1])(v.view(3, 11))
    torch.testing.assert_close(rows.flatten(), backwards)
