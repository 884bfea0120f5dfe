from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.engine.engine import Engine
from temperance.judge import diagnose


def test_growth_in_closed_form_is_that_of_networks():
    """Variance of the outputs of a deep ReLU network without biases, by Monte Carlo over the prior."""
    widths = [20, 60, 40, 30, 1]
    network = tp.nn.MLP(widths[0], widths[1:-1], widths[-1], bias=False)
    prior = tp.GaussianPrior(tp.FanIn(gain=1.2))
    target = tp.Target(network, tp.Normal(scale=1.0), prior)
    factors = diagnose.relu_variance_growth(prior, target.layout)
    assert factors == pytest.approx([0.72, 0.72, 0.72])
    assert factors == pytest.approx(diagnose.relu_variance_growth(prior, widths))
    x = torch.randn(1, 20)
    theta = target.sample_prior(8_000, torch.Generator().manual_seed(0))
    squares = Engine(target).outputs(theta, x).detach().double().square().flatten()
    first = 1.44 * float(x.square().mean())
    error = float(squares.std()) / len(squares) ** 0.5
    assert abs(float(squares.mean()) - first * math.prod(factors)) < 4 * error < 0.15 * float(squares.mean())


def test_growth_of_other_priors():
    widths = [5, 8, 2]
    assert diagnose.relu_variance_growth(tp.GaussianPrior(1.0), widths) == (4.0,)
    assert diagnose.relu_variance_growth(tp.LaplacePrior(1.0), widths) == (8.0,)
    assert diagnose.relu_variance_growth(tp.StudentTPrior(1.0, df=4.0), widths) == pytest.approx((8.0,))
    assert diagnose.relu_variance_growth(tp.StudentTPrior(1.0, df=2.0), widths) == (math.inf,)
    mixed = tp.MixturePrior((tp.GaussianPrior(1.0), tp.GaussianPrior(2.0)), weights=(0.75, 0.25))
    assert diagnose.relu_variance_growth(mixed, widths) == pytest.approx((4 * 1.75,))
    layered = tp.PerLayer({"2": tp.GaussianPrior(0.5), "*": tp.GaussianPrior(3.0)})
    assert diagnose.relu_variance_growth(layered, widths) == (1.0,)
    assert diagnose.relu_variance_growth(tp.GaussianPrior(1.0), [5, 2]) == ()
    with pytest.raises(ArgumentError, match="`prior` must have mean 0"):
        diagnose.relu_variance_growth(tp.GaussianPrior(1.0, mean=0.5), widths)
    with pytest.raises(ArgumentError, match="`network` must be a layout or two or more widths"):
        diagnose.relu_variance_growth(tp.GaussianPrior(1.0), [5])


def test_shares_are_the_mean_probabilities_of_each_draw():
    target = tp.Target(tp.nn.MLP(3, [10], 4), tp.Categorical(), tp.GaussianPrior(1.0))
    x = torch.randn(50, 3)
    found = diagnose.prior_predictive(target, x, draws=7, seed=5)
    assert found.shares.shape == (7, 4)
    assert torch.allclose(found.shares.sum(1), torch.ones(7, dtype=torch.float64))
    assert torch.allclose(found.max_share, found.shares.max(1).values)
    by_hand = -(found.shares * found.shares.log()).sum(1)
    assert torch.allclose(found.entropy, by_hand)
    assert torch.equal(found.shares, diagnose.prior_predictive(target, x, draws=7, seed=5).shares)
    assert not torch.equal(found.shares, diagnose.prior_predictive(target, x, draws=7, seed=6).shares)
    # one linear layer with fixed weights, the prior as narrow as can be: the shares are those of that network
    mean = torch.randn(8)
    linear = tp.Target(nn.Linear(3, 2), tp.Categorical(), tp.GaussianPrior(1e-6, mean=mean))
    probs = (x @ mean[:6].view(2, 3).T + mean[6:]).softmax(-1).mean(0).double()
    assert torch.allclose(diagnose.prior_predictive(linear, x, draws=3).shares, probs.expand(3, 2), atol=1e-4)


def test_a_prior_of_unit_scale_puts_all_inputs_of_a_deep_network_into_one_class():
    x = torch.randn(200, 20)
    network = tp.nn.MLP(20, [100, 100, 100], 10)
    unit = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    he = unit.with_prior(tp.GaussianPrior(tp.FanIn(gain=2**0.5, bias=0.1)))
    flat = unit.with_prior(tp.GaussianPrior(1e-3))
    sharp, moderate, even = (diagnose.prior_predictive(t, x) for t in (unit, he, flat))
    assert sharp.mean_max_share > moderate.mean_max_share + 0.2
    assert even.mean_max_share == pytest.approx(0.1, abs=1e-3)
    assert even.mean_entropy == pytest.approx(math.log(10), abs=1e-3)
    assert sharp.mean_entropy < moderate.mean_entropy < even.mean_entropy
    assert "100 draws over 10 classes" in str(sharp)


def test_two_classes_and_what_has_none():
    x = torch.randn(20, 3)
    target = tp.Target(nn.Linear(3, 1), tp.Bernoulli(), tp.GaussianPrior(1.0))
    found = diagnose.prior_predictive(target, x, draws=5)
    assert found.shares.shape == (5, 2)
    assert torch.allclose(found.shares.sum(1), torch.ones(5, dtype=torch.float64))
    with pytest.raises(ArgumentError, match="one label under Bernoulli; got 2"):
        diagnose.prior_predictive(tp.Target(nn.Linear(3, 2), tp.Bernoulli(), tp.GaussianPrior(1.0)), x)
    with pytest.raises(ArgumentError, match="`target` must have classes"):
        diagnose.prior_predictive(tp.Target(nn.Linear(3, 1), tp.Normal(), tp.GaussianPrior(1.0)), x)
