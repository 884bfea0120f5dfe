from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import scipy.integrate
import scipy.stats
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.model.priors.location_scale import GaussianDensity
from temperance.model.theta import Layout
from temperance.run.density import density_target
from temperance.testing import CheckFailure, check_prior

PRIORS = [
    tp.GaussianPrior(0.5),
    tp.GaussianPrior(2.0, mean=0.7),
    tp.GaussianPrior(tp.FanIn(gain=2**0.5)),
    tp.GaussianPrior({"0": 0.1, "*": 2.0}),
    tp.GaussianPrior(torch.linspace(0.1, 2.0, 11)),
    tp.LaplacePrior(0.3),
    tp.StudentTPrior(1.0, df=3.0),
    tp.StudentTPrior(0.5, mean=0.2, df=1.0),
    tp.MixturePrior((tp.GaussianPrior(1.0), tp.GaussianPrior(0.05)), (0.3, 0.7)),
    tp.MixturePrior((tp.LaplacePrior(0.2), tp.StudentTPrior(1.0))),
    tp.PerLayer({"0.weight": tp.LaplacePrior(0.1), "1": tp.StudentTPrior(), "*": tp.GaussianPrior(tp.FanIn())}),
]


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_priors_are_proper_with_true_gradients_and_draws(prior):
    check_prior(prior)


def test_log_prob_against_scipy():
    layout = Layout.of(nn.Linear(2, 1).double())
    theta = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)
    cases = {
        tp.GaussianPrior(0.5): scipy.stats.norm(0, 0.5),
        tp.LaplacePrior(0.5): scipy.stats.laplace(0, 0.5),
        tp.StudentTPrior(0.5, df=3.0): scipy.stats.t(3.0, 0, 0.5),
    }
    for prior, reference in cases.items():
        expected = reference.logpdf(theta.numpy()).sum()
        assert float(prior.bind(layout).log_prob(theta)) == pytest.approx(expected, rel=1e-10)


def test_fan_in_scales():
    network = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2), nn.Flatten(), nn.Linear(50, 3), nn.Embedding(7, 5), nn.ConvTranspose1d(6, 2, 3)
    )
    bound = tp.GaussianPrior(tp.FanIn(gain=2.0, bias=0.5)).bind(Layout.of(network))
    scale = Layout.of(network).unflatten(bound.pieces[0][1].scale)
    assert float(scale["0.weight"].flatten()[0]) == pytest.approx(2 / math.sqrt(2 * 9))
    assert float(scale["0.bias"][0]) == 0.5
    assert float(scale["2.weight"].flatten()[0]) == pytest.approx(2 / math.sqrt(50))
    assert float(scale["3.weight"].flatten()[0]) == pytest.approx(2.0)
    assert float(scale["4.weight"].flatten()[0]) == pytest.approx(2 / math.sqrt(18))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), None, "1", True])
def test_non_positive_scales_are_refused(scale):
    for family in (tp.GaussianPrior, tp.LaplacePrior, tp.StudentTPrior):
        with pytest.raises(ArgumentError, match="`scale` must be a positive finite number"):
            family(scale)


def test_other_bad_arguments():
    with pytest.raises(ArgumentError, match=r"`scale\['0'\]`"):
        tp.GaussianPrior({"0": -1.0})
    with pytest.raises(ArgumentError, match="positive and finite everywhere"):
        tp.GaussianPrior(torch.tensor([1.0, 0.0]))
    with pytest.raises(ArgumentError, match="each of the 3 parameters"):
        tp.GaussianPrior(torch.ones(2)).bind(Layout.of(nn.Linear(2, 1)))
    with pytest.raises(ArgumentError, match="`df`"):
        tp.StudentTPrior(df=0.0)
    with pytest.raises(ArgumentError, match="none matches 'bias'"):
        tp.GaussianPrior({"weight": 1.0}).bind(Layout.of(nn.Linear(2, 1)))
    with pytest.raises(ArgumentError, match="nothing matches"):
        tp.PerLayer({"head": tp.GaussianPrior(), "*": tp.GaussianPrior()}).bind(Layout.of(nn.Linear(2, 1)))
    with pytest.raises(ArgumentError, match="cover every parameter"):
        tp.PerLayer({"weight": tp.GaussianPrior()}).bind(Layout.of(nn.Linear(2, 1)))
    with pytest.raises(ArgumentError, match="sum to one"):
        tp.MixturePrior((tp.GaussianPrior(), tp.GaussianPrior(2.0)), (0.5, 0.6))


def test_values_compare_by_their_settings():
    assert tp.GaussianPrior(1.0) == tp.GaussianPrior(1.0)
    assert tp.GaussianPrior(1.0) != tp.GaussianPrior(1.1)
    assert tp.GaussianPrior(torch.ones(3)) == tp.GaussianPrior(torch.ones(3))
    assert tp.GaussianPrior(torch.ones(3)) != tp.GaussianPrior(torch.tensor([1.0, 1.0, 2.0]))
    assert hash(tp.LaplacePrior(0.5)) == hash(tp.LaplacePrior(0.5))


@dataclass(frozen=True, eq=False)
class _WrongSpread(tp.GaussianPrior):
    """Draws with the variance taken for the standard deviation: the classic slip."""

    def density(self, mean, scale):
        class Wrong(GaussianDensity):
            def standard_sample(self, shape, rng):
                return super().standard_sample(shape, rng) * self.scale

            def with_parameters(self, mean, scale):
                return Wrong(mean, scale)

        return Wrong(mean, scale)


@dataclass(frozen=True, eq=False)
class _Unnormalised(tp.GaussianPrior):
    def density(self, mean, scale):
        class Wrong(GaussianDensity):
            def standard_log_density(self, z):
                return super().standard_log_density(z) + 0.01

            def with_parameters(self, mean, scale):
                return Wrong(mean, scale)

        return Wrong(mean, scale)


def test_the_check_itself_can_fail():
    with pytest.raises(CheckFailure, match=r"FAIL.*draws follow"):
        check_prior(_WrongSpread(0.8))
    with pytest.raises(CheckFailure, match=r"FAIL.*integrates to one"):
        check_prior(_Unnormalised(1.0))


def _pieces(prior):
    return prior.bind(Layout.of(nn.Linear(2, 1).double())).pieces


@pytest.mark.parametrize("prior", [*PRIORS[:3], *PRIORS[5:-1]], ids=repr)
def test_curvature_is_the_second_derivative_of_the_log_density(prior):
    ((_, density),) = _pieces(prior)
    theta = torch.tensor([0.31, -1.2, 2.05], dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(lambda t: density.log_density(t).sum(), theta)
    assert torch.allclose(density.curvature(theta), -hessian.diagonal(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "prior",
    [
        tp.GaussianPrior(0.5, mean=0.7),
        tp.LaplacePrior(0.3, mean=-0.4),
        tp.StudentTPrior(0.5, mean=0.2, df=7.0),
        tp.MixturePrior((tp.GaussianPrior(1.0, mean=0.5), tp.LaplacePrior(0.2, mean=-1.0)), (0.3, 0.7)),
    ],
    ids=repr,
)
def test_moments_against_quadrature(prior):
    ((_, density),) = _pieces(prior)

    def average(function):
        def integrand(x):
            return function(x) * math.exp(float(density.log_density(torch.tensor(x, dtype=torch.float64))))

        return scipy.integrate.quad(integrand, -60, 60, points=[-1.0, -0.4, 0.5], limit=500)[0]

    mean, variance = density.moments()
    assert float(mean) == pytest.approx(average(lambda x: x), abs=1e-7)
    assert float(variance) == pytest.approx(average(lambda x: (x - float(mean)) ** 2), rel=1e-4)


def test_densities_say_what_they_are():
    """Mean and scale of a Gaussian alone; no moments where nobody knows them; no curvature along straight lines."""
    ((_, gaussian),) = _pieces(tp.GaussianPrior(0.5, mean=0.7))
    assert gaussian.gaussian == (0.7, 0.5)
    others = [tp.LaplacePrior(), tp.StudentTPrior(), tp.MixturePrior((tp.GaussianPrior(),))]
    assert [_pieces(prior)[0][1].gaussian for prior in others] == [None, None, None]
    assert [_pieces(prior)[0][1].bends for prior in others] == [False, True, True]
    assert _pieces(tp.StudentTPrior(df=2.0))[0][1].moments()[1] == math.inf
    learned = tp.GaussianPrior(tp.Learned(1.0, each="network"))
    ((_, joint),) = tp.Target(nn.Linear(2, 1), tp.Categorical(), learned).bound_prior.pieces
    assert (joint.gaussian, joint.moments()) == (None, None)
    with pytest.raises(ArgumentError, match="have a curvature together, not one by one"):
        joint.curvature(torch.zeros(4))
    ((_, flat),) = density_target(lambda theta: -theta.square().sum(), torch.zeros(2)).bound_prior.pieces
    assert (flat.gaussian, flat.moments()) == (None, None)
