"""Scales drawn given weights: their law by quadrature, posteriors of weights and scales against the exact ones."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.core.seeds import generator
from temperance.engine import Engine
from temperance.inference.wrappers.gibbs import _log_scales
from temperance.testing import assert_moments
from tests.model.hierarchy import X, Y, centred, exact

HYPER = tp.InverseGamma(2.0, 1.0)


@pytest.mark.parametrize("temperature", [1.0, 0.3, 4.0])
def test_the_law_of_a_scale_given_the_weights_is_that_of_the_energy(temperature):
    """exp(−U(w, u)/T) along u, summed up numerically, against the inverse gamma law of e^{2u}; and draws of it."""
    target = centred(HYPER, temperature)
    theta = target.sample_prior(1, generator(3, "w"))[0]
    ((_, density),) = target.bound_prior.pieces
    shape, rate = density.scales_given_weights(theta, temperature)
    for group, place in ((0, 6), (1, 7)):
        rows = theta.repeat(40_001, 1)
        rows[:, place] = torch.linspace(-12, 25, 40_001, dtype=torch.float64)
        log_density = target.log_prior(rows) / temperature
        grid, mass = rows[:, place].numpy(), torch.exp(log_density - log_density.max()).numpy()
        total = integrate.simpson(mass, x=grid)
        law = stats.invgamma(float(shape[group]), scale=float(rate[group]))
        for power in (1, 2):  # moments of u
            wanted = integrate.simpson(mass * grid**power, x=grid) / total
            of_u = law.pdf(np.exp(2 * grid)) * 2 * np.exp(2 * grid)
            assert integrate.simpson(of_u * grid**power, x=grid) == pytest.approx(wanted, rel=1e-6, abs=1e-8)
    rng = generator(0, "gibbs")
    drawn = torch.stack([_log_scales(shape, rate, rng) for _ in range(3000)])
    for group in (0, 1):
        law = stats.invgamma(float(shape[group]), scale=float(rate[group]))
        assert stats.kstest(np.exp(2 * drawn[:, group].numpy()), law.cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("base", "temperature", "steps", "every"),
    [
        (tp.HMC(step_size=0.25, length=5), 1.0, 260, 3),
        (tp.HMC(step_size=0.18, length=5), 0.5, 260, 3),
        pytest.param(tp.GGMC(lr=0.1, momentum=0.8, length=3), 1.0, 260, 3, marks=pytest.mark.slow),
        (tp.Warmup(tp.NUTS(), 200), 1.0, 400, 3),
        (tp.SGHMC(lr=0.03, momentum=0.9), 1.0, 1500, 10),
    ],
    ids=["HMC", "HMC, cold", "GGMC", "NUTS", "SGHMC"],
)
def test_the_posterior_of_weights_and_scales_is_the_exact_one(base, temperature, steps, every):
    """Mean and covariance of (w, u), against quadrature over both u. (It finds out a law of the scales without its
    Jacobian. A base that kept energies of where it was before is off by too little for it: the next test finds it.)"""
    target = centred(HYPER, temperature)
    chains = 8 if isinstance(base, tp.GGMC) else 60
    method = tp.Ensemble(tp.Collect(tp.Gibbs(base), burn=200 if steps == 400 else 80, every=every), chains)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = tp.fit(target, method, (X, Y), steps=steps * (6 if chains == 8 else 1), batch_size=10, progress=False)
    rows = torch.cat([c.theta for c in fitted.posterior.components])
    assert_moments(rows[::2], *exact(HYPER, temperature, in_u=True))


def test_what_the_base_knows_of_its_place_is_found_out_anew():
    """Energies after a step are those of where the chain is then, its new scales included."""
    target = centred(HYPER)
    data = target.prepare(tp.data.Data(X, Y))
    engine, batch = Engine(target, data), next(iter(data.full_pass()))
    method = tp.Gibbs(tp.HMC(step_size=0.1, length=3))
    state = method.init(engine, tp.Starts.of(None), [generator(0, "x")])
    for _ in range(3):
        state, _ = method.step(engine, state, batch)
    method.base.ready(engine, state.base, batch)
    assert torch.allclose(state.base.energy, engine.energy(state.base.chain.theta, batch))


def test_every_says_how_often(tmp_path):
    """Between draws of the scales a Metropolis chain that rejects everything does not move."""
    target = centred(HYPER)
    stuck = tp.HMC(step_size=1e4, length=1)
    method = tp.Collect(tp.Gibbs(stuck, every=3), burn=0, every=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theta = tp.fit(target, method, (X, Y), steps=9, progress=False).posterior.theta
    moved = (theta[1:, 6:] != theta[:-1, 6:]).any(1).tolist()
    assert moved == [False, True, False, False, True, False, False, True]
    assert torch.equal(theta[0, :6], theta[-1, :6])


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (tp.GaussianPrior(1.0), "inverse gamma"),
        (tp.GaussianPrior(tp.Learned()), "inverse gamma"),
        (tp.StudentTPrior(tp.Learned(hyper=HYPER)), "over Gaussian weights"),
    ],
)
def test_other_priors_are_refused_before_the_first_step(prior, message):
    target = tp.Target(nn.Linear(2, 2).double(), tp.Normal(scale=0.5), prior)
    with pytest.raises(ArgumentError, match=message):
        tp.fit(target, tp.Gibbs(tp.SGHMC(lr=0.01)), (X, Y), steps=3, progress=False)


@pytest.mark.parametrize("base", [tp.MAP(), tp.Tempered(tp.HMC(step_size=0.1)), tp.Gibbs(tp.SGLD()), tp.SVGD(3)])
def test_other_bases_are_refused(base):
    with pytest.raises(ArgumentError, match=f"Gibbs cannot wrap {type(base).__name__}: .*Write "):
        tp.Gibbs(base)


def test_bad_settings():
    with pytest.raises(ArgumentError, match="`every` must"):
        tp.Gibbs(tp.SGLD(), every=0)
