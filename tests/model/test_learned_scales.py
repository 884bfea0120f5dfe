"""Priors whose scales are learned: the density, its draws, and posteriors against quadrature over the scale."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.core.seeds import generator
from temperance.engine import Engine
from temperance.testing import assert_moments

ROWS, NOISE = 12, 0.5
X = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = (X @ torch.tensor([[0.3, -0.2], [1.5, 0.4], [0.0, -2.0]], dtype=torch.float64)).round(decimals=2)


def linear(prior, temperature=1.0, **options) -> tp.Target:
    return tp.Target(nn.Linear(3, 2, bias=False).double(), tp.Normal(scale=NOISE), prior, temperature, **options)


def exact_moments(spread: float, median: float, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of (w, u) given the data, by summing over a fine grid of u: w | u is Gaussian."""
    u = torch.linspace(-5 * spread, 5 * spread, 4001, dtype=torch.float64)
    gram = torch.block_diag(X.T @ X, X.T @ X) / NOISE**2  # the weight is 2 × 3, row by row
    pull = torch.cat([X.T @ Y[:, 0], X.T @ Y[:, 1]]) / NOISE**2
    log_weight, means, seconds = [], [], []
    for value in u:
        tau = math.exp(-2 * float(value)) / median**2
        precision = (gram + tau * torch.eye(6, dtype=torch.float64)) / temperature
        covariance = torch.linalg.inv(precision)
        mean = covariance @ pull / temperature
        log_prior = -6 * float(value) - 0.5 * float(value) ** 2 / spread**2  # of u, and the constant of w given u
        log_weight.append(log_prior / temperature + 0.5 * mean @ precision @ mean + 0.5 * covariance.logdet())
        means.append(torch.cat([mean, value[None]]))
        second = torch.zeros(7, 7, dtype=torch.float64)
        second[:6, :6] = covariance
        seconds.append(second)
    weight = torch.stack(log_weight).softmax(0)
    centres = torch.stack(means)
    mean = weight @ centres
    away = centres - mean
    return mean, torch.einsum("g,gij->ij", weight, torch.stack(seconds)) + away.T @ (weight[:, None] * away)


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_the_posterior_of_weights_and_scale_is_the_exact_one(temperature):
    """By NUTS, mean and covariance, weights and scale together, against quadrature."""
    target = linear(tp.GaussianPrior(tp.Learned(0.7, tp.LogNormal(0.8), each="network")), temperature)
    method = tp.Ensemble(tp.Collect(tp.Warmup(tp.NUTS(), 300), every=2, last=1000), 4)
    fitted = tp.fit(target, method, (X, Y), steps=2300, progress=False)
    draws = torch.cat([c.theta for c in fitted.posterior.components])
    mean, covariance = exact_moments(0.8, 0.7, temperature)
    assert_moments(draws[::2], mean, covariance)


def test_the_density_is_a_density_and_its_gradient_is_right():
    """Each conditional integrates to one, draws obey E[θᵢ ∂ᵢ log p] = −1, for every form of prior and group."""
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    median = tp.FanIn(gain=1.3, bias=0.4)
    for prior in (
        tp.GaussianPrior(tp.Learned(median, tp.LogNormal(0.5)), mean=0.3),
        tp.StudentTPrior(df=5.0, scale=tp.Learned(0.7, tp.LogNormal(0.6), "tensor")),
        tp.LaplacePrior(tp.Learned(0.7, tp.LogNormal(0.6), "network")),
    ):
        assert tp.testing.check_prior(prior, network).passed


def test_groups_are_the_network_its_layers_or_its_tensors():
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    sizes = {"network": 1, "layer": 2, "tensor": 4}
    for each, size in sizes.items():
        target = tp.Target(network, tp.Normal(), tp.GaussianPrior(tp.Learned(each=each)))
        assert [(e.name, e.shape, e.role) for e in target.layout.entries[4:]] == [
            ("prior.log_scale", (size,), "prior"),
            ("likelihood.log_scale", (1,), "likelihood"),
        ]
        rows = target.sample_prior(50_000, generator(0, "draws")).double()
        u = rows[:, 11 : 11 + size]
        group = {"network": [0] * 4, "layer": [0, 0, 1, 1], "tensor": [0, 1, 2, 3]}[each]
        for entry, g in zip(target.layout.network_entries, group, strict=True):
            standard = rows[:, entry.start] * torch.exp(-u[:, g])
            assert float(standard.std()) == pytest.approx(1.0, abs=0.02)
            assert abs(float(torch.corrcoef(torch.stack([standard.square(), u[:, g]]))[0, 1])) < 0.02


def test_a_part_of_the_network_has_the_scales_of_its_own_weights():
    """On(s, M) is M on Target(subset=s): the same density over the part, learned scales included."""
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    prior = tp.GaussianPrior(tp.Learned(tp.FanIn(1.5, 0.3), tp.LogNormal(0.7), "network"))
    whole = tp.Target(network, tp.Normal(scale=0.5), prior)
    part = tp.Target(network, tp.Normal(scale=0.5), prior, subset="2")
    smaller = whole.restrict(whole.names("2"), whole.initial_theta())
    theta = torch.randn(4, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert [e.name for e in smaller.layout.entries] == [e.name for e in part.layout.entries]
    assert torch.allclose(smaller.log_prior(theta), part.log_prior(theta))
    data = part.prepare(tp.data.Data(X, Y))
    one, two = (Engine(t).energy(theta, data) for t in (smaller, part))
    assert torch.allclose(one, two)
    method = tp.Collect(tp.HMC(step_size=0.02, length=5), burn=2, every=1)
    alone = tp.fit(part, method, (X, Y), steps=10, progress=False).posterior
    inside = tp.fit(whole, tp.On("2", method), (X, Y), steps=10, progress=False).posterior
    assert torch.allclose(inside.inner.theta, alone.theta)
    assert inside.size == whole.num_parameters


def test_a_part_of_the_network_has_the_means_of_its_own_weights():
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    mean = torch.linspace(-1, 1, 14, dtype=torch.float64)
    scale = tp.Learned(0.7, tp.LogNormal(0.8), "network")
    whole = tp.Target(network, tp.Normal(scale=0.5), tp.GaussianPrior(scale, mean=mean))
    part = tp.Target(network, tp.Normal(scale=0.5), tp.GaussianPrior(scale, mean=mean[8:]), subset="2")
    smaller = whole.restrict(whole.names("2"), whole.initial_theta())
    theta = torch.randn(4, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(smaller.log_prior(theta), part.log_prior(theta))


def test_batched_gradients_are_those_of_each_member_and_data_do_not_pull_the_scales():
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    target = tp.Target(network, tp.Normal(num_outputs=2), tp.StudentTPrior(df=4.0, scale=tp.Learned(0.5)))
    data = target.prepare(tp.data.Data(X, Y))
    engine, batch = Engine(target, data), next(iter(data.full_pass()))
    theta = torch.randn(3, target.num_parameters, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    stacked, alone = torch.ones_like(theta), torch.ones_like(theta)
    engine.gradients(theta, batch, stacked)
    for row, into in zip(theta, alone, strict=True):
        engine.gradient(row.clone(), batch, into)
    assert torch.allclose(stacked, alone)
    leaf = theta.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(engine.loss(leaf, batch).sum(), leaf)
    assert torch.allclose(alone, wanted)
    engine.gradients(theta, batch, stacked, prior=False)
    place = target.layout["prior.log_scale"]
    assert (stacked[:, place.start : place.stop] == 0).all()
    slope = torch.empty_like(theta)
    energies = engine.energies(theta, batch, slope)
    assert torch.allclose(energies, engine.energy(theta, batch))
    assert torch.allclose(slope, ROWS * wanted)


@pytest.mark.parametrize(
    "method",
    [
        tp.MAP(),
        tp.Ensemble(tp.MAP(), 2),
        tp.SWAG(),
        tp.Laplace(tune=None),
        tp.Laplace(tp.MAP(), tune=None),
        tp.FunctionalLaplace(),
        tp.Anchored(),
        tp.SVGD(3),
        tp.RepulsiveEnsemble(3),
        tp.EllipticalSlice(),
        tp.Curve(tp.MAP()),
        tp.Subspace(tp.HMC(step_size=0.1), tp.GivenBasis(torch.eye(6, 2, dtype=torch.float64))),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_looks_for_a_mode_or_needs_a_gaussian_refuses_it_before_the_first_step(method):
    target = linear(tp.GaussianPrior(tp.Learned()))
    with pytest.raises(ArgumentError, match="`prior` must"):
        tp.fit(target, method, (X, Y), steps=4 if method.facts().default_steps is None else None)


@pytest.mark.parametrize(
    "method",
    [
        tp.Collect(tp.SGHMC(lr=0.01)),
        tp.Ensemble(tp.Collect(tp.SGLD(lr=0.01)), 2),
        tp.Collect(tp.GGMC(lr=0.01)),
        tp.Collect(tp.Tempered(tp.HMC(step_size=0.05, length=4), (1.0, 2.0))),
        tp.Variational(tp.MeanField()),
        tp.Variational(tp.FullRank(), lr=0.01),
        tp.IVON(),
    ],
    ids=lambda m: type(m).__name__,
)
def test_samplers_and_variational_methods_take_it_and_save_it(method, tmp_path):
    target = linear(tp.GaussianPrior(tp.Learned()))
    fitted = tp.fit(target, method, (X, Y), steps=12, progress=False)
    fitted.save(tmp_path)
    again = tp.load(tmp_path, target.network)
    assert torch.equal(again.predict(X).mean(), fitted.predict(X).mean())
    assert again.target.layout == target.layout


def test_another_prior_changes_what_is_in_theta():
    target = linear(tp.GaussianPrior(1.0))
    learned = target.with_prior(tp.GaussianPrior(tp.Learned()))
    assert (target.num_parameters, learned.num_parameters) == (6, 7)
    assert learned.with_prior(tp.GaussianPrior(2.0)).num_parameters == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tp.Learned(0.0), "`scale`"),
        (lambda: tp.Learned(tp.Learned()), "another Learned"),
        (lambda: tp.Learned(hyper=1.0), "`hyper`"),
        (lambda: tp.Learned(each="weight"), "`each` must be 'network', "),
        (lambda: linear(tp.PerLayer({"weight": tp.GaussianPrior(tp.Learned())})), "given scales"),
        (lambda: linear(tp.MixturePrior((tp.GaussianPrior(tp.Learned()), tp.GaussianPrior(1.0)))), "given scales"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
