"""E log p(θ) of a prior under normals, and its derivatives, against quadrature and automatic differentiation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import temperance as tp
from temperance.model.priors.location_scale import GaussianDensity, LaplaceDensity, StudentTDensity

F64 = torch.float64
MEANS = torch.tensor([-1.3, 0.2, 0.25, 0.7, 4.0], dtype=F64)
VARIANCES = torch.tensor([0.3, 1e-4, 2.0, 0.01, 0.5], dtype=F64)
CENTRE = torch.tensor([0.4, 0.2, -0.3, 0.69, 0.0], dtype=F64)
SCALE = torch.tensor([0.5, 1.5, 0.8, 0.05, 2.0], dtype=F64)

DENSITIES = {
    "Gaussian": GaussianDensity(CENTRE, SCALE),
    "Gaussian, numbers": GaussianDensity(0.25, 0.6),
    "Laplace": LaplaceDensity(CENTRE, SCALE),
    "Laplace, numbers": LaplaceDensity(0.25, 0.6),
}
each_density = pytest.mark.parametrize("name", DENSITIES)


def expectation(function, mean, variance, kink):
    """E f(θ), θ ~ N(mean, variance): Gauss–Legendre on both sides of ``kink``, out to twelve deviations."""
    nodes, weights = np.polynomial.legendre.leggauss(300)
    root = variance**0.5
    low, high = mean - 12 * root, mean + 12 * root
    middle = min(max(kink, low), high)
    total = 0.0
    for a, b in ((low, middle), (middle, high)):
        theta = torch.from_numpy(a + (b - a) * (nodes + 1) / 2)
        density = torch.exp(-0.5 * (theta - mean) ** 2 / variance) / (2 * np.pi * variance) ** 0.5
        total += float((torch.from_numpy(weights) * density * function(theta)).sum()) * (b - a) / 2
    return total


def alone(density, k):
    """The density of one number."""
    return density.part(torch.tensor([k]), len(MEANS))


@each_density
def test_average_is_the_integral(name):
    density = DENSITIES[name]
    found = density.average(MEANS, VARIANCES)
    for k, (mean, variance) in enumerate(zip(MEANS.tolist(), VARIANCES.tolist(), strict=True)):
        one = alone(density, k)
        wanted = expectation(one.log_density, mean, variance, float(torch.as_tensor(one.mean)))
        assert float(found[k]) == pytest.approx(wanted, rel=1e-10, abs=1e-10)


def test_gaussian_average_by_gauss_hermite():
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    theta = MEANS + VARIANCES.sqrt() * torch.from_numpy(nodes).unsqueeze(1)
    density = DENSITIES["Gaussian"]
    wanted = (torch.from_numpy(weights / weights.sum()).unsqueeze(1) * density.log_density(theta)).sum(0)
    torch.testing.assert_close(density.average(MEANS, VARIANCES), wanted, rtol=1e-12, atol=1e-12)


@each_density
def test_average_scores_are_derivatives_of_the_average(name):
    density = DENSITIES[name]
    mean, variance = MEANS.clone().requires_grad_(), VARIANCES.clone().requires_grad_()
    wanted = torch.autograd.grad(density.average(mean, variance).sum(), (mean, variance))
    found = density.average_scores(MEANS, VARIANCES)
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-9, atol=1e-9)
    by_variance = torch.as_tensor(found[1], dtype=F64).expand(len(MEANS))
    torch.testing.assert_close(by_variance, wanted[1], rtol=1e-9, atol=1e-9)


@each_density
def test_average_scores_are_averages_of_scores(name):
    """d/dm E log p = E s(θ), and d/dv E log p = E s(θ)(θ − m) / 2v, with s the score (Stein)."""
    density = DENSITIES[name]
    by_mean, by_variance = density.average_scores(MEANS, VARIANCES)
    by_variance = torch.as_tensor(by_variance, dtype=F64).expand(len(MEANS))
    for k, (mean, variance) in enumerate(zip(MEANS.tolist(), VARIANCES.tolist(), strict=True)):
        one = alone(density, k)
        kink = float(torch.as_tensor(one.mean))
        assert float(by_mean[k]) == pytest.approx(expectation(one.score, mean, variance, kink), rel=1e-9, abs=1e-9)
        product = expectation(lambda t, one=one, m=mean: one.score(t) * (t - m), mean, variance, kink)
        assert float(by_variance[k]) == pytest.approx(product / (2 * variance), rel=1e-8, abs=1e-8)


def test_gaussian_average_holds_for_any_law():
    """θ = ±1 with equal chance: mean 0, variance 1, and E log p(θ) by hand."""
    density = GaussianDensity(0.3, 0.7)
    wanted = 0.5 * (density.log_density(torch.tensor(1.0)) + density.log_density(torch.tensor(-1.0)))
    assert float(density.average(torch.tensor(0.0), torch.tensor(1.0))) == pytest.approx(float(wanted), rel=1e-6)


def test_laplace_average_far_away_and_nearly_certain():
    """Where q is a point, E log p(θ) is log p(mean), in single precision too."""
    for dtype in (torch.float32, F64):
        density = LaplaceDensity(0.0, 0.5).to(torch.device("cpu"), dtype)
        mean, variance = torch.tensor([50.0, -3.0, 0.7], dtype=dtype), torch.full((3,), 1e-10, dtype=dtype)
        torch.testing.assert_close(density.average(mean, variance), density.log_density(mean))
        by_mean, by_variance = density.average_scores(mean, variance)
        torch.testing.assert_close(by_mean, density.score(mean))
        assert bool((torch.as_tensor(by_variance) == 0).all())


def test_only_what_has_a_closed_form_says_so():
    student = StudentTDensity(0.0, 1.0, 3.0)
    assert DENSITIES["Gaussian"].averages_over == "anything"
    assert DENSITIES["Laplace"].averages_over == "normals"
    assert student.averages_over == "nothing"
    with pytest.raises(NotImplementedError):
        student.average(MEANS, VARIANCES)


def test_prior_of_several_pieces_and_a_learned_noise():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    prior = tp.PerLayer({"0": tp.LaplacePrior(0.3, mean=0.1), "*": tp.GaussianPrior(tp.FanIn(bias=0.4), mean=-0.2)})
    target = tp.Target(net, tp.Normal(), prior)
    bound = target.bound_prior
    assert len(bound.pieces) == 3
    rng = torch.Generator().manual_seed(0)
    mean = torch.randn(target.layout.size, generator=rng, dtype=F64)
    variance = torch.rand(target.layout.size, generator=rng, dtype=F64) + 0.1
    total = sum(float(density.average(mean[piece], variance[piece]).sum()) for piece, density in bound.pieces)
    values = bound.log_prob(mean + variance.sqrt() * torch.randn(40_000, len(mean), generator=rng, dtype=F64))
    assert abs(float(values.mean()) - total) < 5 * float(values.std()) / len(values) ** 0.5
