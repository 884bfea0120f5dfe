"""Laplace: evidence, choosing hyperparameters, subsets, sequences of data, runs that are stopped and moved."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, DataError, NetworkError, NumericalError
from temperance.engine.engine import Engine
from temperance.inference.curvature.evidence import Evidence, groups_of
from temperance.testing import assert_moments

F64 = torch.float64
NEWTON = tp.MAP(
    lr=1.0,
    optimizer=torch.optim.LBFGS,
    optimizer_args={
        "line_search_fn": "strong_wolfe",
        "max_iter": 50,
        "tolerance_grad": 1e-12,
        "tolerance_change": 1e-15,
    },
)


def polynomial():
    """Data of protocols D.1: ten points of sin(3x), a quadratic, noise 0.1, prior N(0, I)."""
    x = torch.linspace(-1, 1, 10, dtype=F64)
    features = torch.stack([torch.ones_like(x), x, x**2], dim=1)
    return tp.data.Data(features, torch.sin(3 * x))


def linear_target(scale=0.1, prior=1.0):
    return tp.Target(nn.Linear(3, 1, bias=False, dtype=F64), tp.Normal(scale=scale), tp.GaussianPrior(prior))


def small_classifier(seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 3, generator=rng, dtype=F64)
    y = (x[:, 0] * x[:, 1] + 0.5 * torch.randn(40, generator=rng, dtype=F64) > 0).long() + (x[:, 2] > 1).long()
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    return net, tp.data.Data(x, y)


# ---------------------------------------------------------------------- evidence


def test_linear_regression_is_exact():
    fitted = tp.fit(linear_target(), tp.Laplace(NEWTON, tp.Dense(), tune=None), polynomial(), steps=5)
    posterior = fitted.posterior
    assert fitted.log_evidence() == pytest.approx(-108.7043827878, abs=1e-9)
    assert posterior.mean.tolist() == pytest.approx([0, 0.770490361, 0], abs=1e-6)
    variances = posterior.covariance().diagonal().tolist()
    assert variances == pytest.approx([0.0022739457, 0.0024485354, 0.0076966489], rel=1e-7)


def test_structures_that_are_exact_on_one_linear_layer():
    for curvature in (tp.KFAC(), tp.EKFAC(), tp.BlockDiagonal(), tp.Dense(kind="hessian")):
        fitted = tp.fit(linear_target(), tp.Laplace(NEWTON, curvature, tune=None), polynomial(), steps=5)
        assert fitted.log_evidence() == pytest.approx(-108.7043827878, abs=1e-8), curvature


def test_diagonal_evidence_is_that_of_the_mean_field_bound():
    fitted = tp.fit(linear_target(), tp.Laplace(NEWTON, tp.Diagonal(), tune=None), polynomial(), steps=5)
    variances = fitted.posterior.covariance().diagonal().tolist()
    assert variances == pytest.approx([0.000999001, 0.0024485354, 0.0033813296], rel=1e-6)
    assert fitted.log_evidence() == pytest.approx(-109.1156408064, abs=1e-8)


@pytest.mark.parametrize("every", [None, 1])
def test_hyperparameters_of_largest_evidence(every):
    """Both after training and during it: (α, σ⁻²) = (7.431470, 3.169823), log Z = −10.01564479 (protocols D.1)."""
    method = tp.Laplace(NEWTON, tp.Dense(), tune=tp.Tune("scalar", noise=True, every=every))
    fitted = tp.fit(linear_target(), method, polynomial(), steps=60)
    assert fitted.target.prior.scale**-2 == pytest.approx(7.431470, rel=1e-5)
    assert fitted.target.likelihood.scale**-2 == pytest.approx(3.169823, rel=1e-5)
    assert fitted.log_evidence() == pytest.approx(-10.01564479, abs=1e-7)
    if every:  # training went on under the chosen prior, so the mean is that of the chosen model
        again = tp.fit(fitted.target, tp.Laplace(NEWTON, tp.Dense(), tune=None), polynomial(), steps=20)
        assert torch.allclose(again.posterior.mean, fitted.posterior.mean, atol=1e-6)
        assert again.log_evidence() == pytest.approx(fitted.log_evidence(), abs=1e-6)


def test_evidence_gradient_is_that_of_finite_differences():
    net, data = small_classifier()
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(tp.FanIn()))
    for curvature in (tp.Dense(), tp.KFAC(), tp.Diagonal(), tp.Lanczos(5), tp.BlockDiagonal()):
        fitted = tp.fit(target, tp.Laplace(NEWTON, curvature, tune=None), data, steps=10)
        group, count = groups_of(Engine(target), tp.Tune("layer"))
        evidence = Evidence(fitted.posterior, group)
        at = torch.tensor([0.3, -0.2], dtype=F64, requires_grad=True)
        assert count == 2
        (slope,) = torch.autograd.grad(evidence(at), at)
        for k in range(count):
            step = torch.zeros(2, dtype=F64)
            step[k] = 1e-5
            numeric = (evidence(at.detach() + step) - evidence(at.detach() - step)) / 2e-5
            assert float(numeric) == pytest.approx(float(slope[k]), rel=1e-5), curvature
        # and at the prior that was trained with, it is the evidence that is reported
        assert float(evidence(torch.zeros(2, dtype=F64))) == pytest.approx(fitted.log_evidence(), abs=1e-6)


def test_evidence_gradient_by_name():
    """On a linear model it is the slope of the evidence of refitted models, and zero at the chosen hyperparameters."""

    def fitted(log_alpha=0.0, log_noise=0.0, tune=None):
        target = linear_target(0.1 * math.exp(log_noise), math.exp(-0.5 * log_alpha))
        return tp.fit(target, tp.Laplace(NEWTON, tp.Dense(), tune=tune), polynomial(), steps=5)

    slopes = fitted().evidence_gradient("scalar", noise=True)
    step = 1e-3
    alpha = (fitted(step).log_evidence() - fitted(-step).log_evidence()) / (2 * step)
    noise = (fitted(0.0, step).log_evidence() - fitted(0.0, -step).log_evidence()) / (2 * step)
    assert slopes == pytest.approx({"all": alpha, "noise": noise}, rel=1e-4)
    chosen = fitted(tune=tp.Tune("scalar", noise=True)).evidence_gradient("scalar", noise=True)
    assert max(abs(value) for value in chosen.values()) < 1e-3
    net, data = small_classifier()
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    by_layer = tp.fit(target, tp.Laplace(NEWTON, tune=None), data, steps=5).evidence_gradient()
    assert list(by_layer) == ["0", "2"]
    with pytest.raises(ArgumentError, match="does not estimate"):
        tp.fit(target, tp.MAP(), data, steps=1).evidence_gradient()


def test_tuned_evidence_is_that_of_the_tuned_target():
    """Retuning needs no pass over the data, yet equals a fresh Laplace at the same θ under the new prior."""
    net, data = small_classifier()
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    for curvature, tune in (
        (tp.Dense(), "parameter"),
        (tp.Diagonal(), "parameter"),
        (tp.KFAC(), "layer"),
        (tp.BlockDiagonal(), "scalar"),
        (tp.Lanczos(4), "layer"),
    ):
        tuned = tp.fit(target, tp.Laplace(NEWTON, curvature, tune=tune), data, steps=10)
        plain = tp.fit(target, tp.Laplace(NEWTON, curvature, tune=None), data, steps=10)
        assert tuned.log_evidence() > plain.log_evidence()
        fresh = tp.fit(tuned.target, tp.Laplace(curvature=curvature, tune=None), data, start=tuned.posterior.mean)
        if not isinstance(curvature, tp.Lanczos):  # whose directions are those of the prior it was made with
            assert torch.allclose(fresh.posterior.covariance(), tuned.posterior.covariance(), rtol=1e-6, atol=1e-10)
            assert fresh.log_evidence(tolerance=math.inf) == pytest.approx(tuned.log_evidence(), abs=1e-5)


def test_evidence_prefers_the_architecture_that_made_the_data():
    rng = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 60, dtype=F64).unsqueeze(1)
    noise = 0.1 * torch.randn(60, 1, generator=rng, dtype=F64)
    torch.manual_seed(1)
    curved = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    straight = nn.Linear(1, 1, dtype=F64)

    def evidence(net, y):
        target = tp.Target(net, tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
        return tp.fit(target, tp.Laplace(NEWTON, tp.Dense(), tune=None), (x, y), steps=60).log_evidence()

    assert evidence(curved, torch.sin(2 * x) + noise) > evidence(straight, torch.sin(2 * x) + noise) + 100
    assert evidence(straight, 0.7 * x + noise) > evidence(curved, 0.7 * x + noise) + 2


def test_evidence_is_refused_away_from_a_mode_and_when_tempered():
    net, data = small_classifier()
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    untrained = tp.fit(target, tp.Laplace(curvature=tp.Dense(), tune=None), data)
    with pytest.raises(NumericalError, match="a Newton step would still gain"):
        untrained.log_evidence()
    assert math.isfinite(untrained.log_evidence(tolerance=math.inf))
    cold = tp.fit(target.with_temperature(0.5), tp.Laplace(NEWTON, tp.Dense(), tune=None), data, steps=10)
    with pytest.raises(ArgumentError, match="temperature 1"):
        cold.log_evidence()
    with pytest.raises(ArgumentError, match="does not estimate the evidence"):
        tp.fit(target, tp.MAP(), data, steps=2).log_evidence()


def test_what_tune_refuses():
    net, data = small_classifier()
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    with pytest.raises(ArgumentError, match="`tune`"):
        tp.Laplace(tune=3)
    with pytest.raises(ArgumentError, match="nothing to choose"):
        tp.Tune(None)
    with pytest.raises(ArgumentError, match="nothing is trained"):
        tp.Laplace(tune=tp.Tune("layer", every=1))
    with pytest.raises(ArgumentError, match="`noise` can be chosen for Normal"):
        tp.fit(target, tp.Laplace(curvature=tp.Dense(), tune=tp.Tune("layer", noise=True)), data)
    with pytest.raises(ArgumentError, match=r'"parameter" needs a curvature'):
        tp.fit(target, tp.Laplace(curvature=tp.KFAC(), tune="parameter"), data)
    heavy = tp.Target(net, tp.Categorical(), tp.StudentTPrior(5.0, 1.0))
    with pytest.raises(ArgumentError, match="Gaussian prior"):
        tp.fit(heavy, tp.Laplace(curvature=tp.Dense(), tune="layer"), data)


def test_online_evidence_learns_a_prior_and_noise_for_a_network():
    rng = torch.Generator().manual_seed(3)
    x = torch.linspace(-2, 2, 80).unsqueeze(1)
    y = torch.sin(2 * x) + 0.2 * torch.randn(80, 1, generator=rng)
    torch.manual_seed(0)
    target = tp.Target(tp.nn.MLP(1, [20], 1, activation=nn.Tanh), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    method = tp.Laplace(tp.MAP(lr=1e-2), tp.Dense(), tune=tp.Tune("layer", noise=True, every=100, burn=300))
    fitted = tp.fit(target, method, (x, y), epochs=1500, batch_size=80)
    assert fitted.target.likelihood.scale == pytest.approx(0.2, rel=0.25)
    plain = tp.fit(target, tp.Laplace(tp.MAP(lr=1e-2), tp.Dense(), tune=None), (x, y), epochs=1500, batch_size=80)
    assert fitted.log_evidence(math.inf) > plain.log_evidence(math.inf) + 20


# ---------------------------------------------------------------------- parts of the network


def test_on_trains_everything_and_spreads_only_the_part():
    net, data = small_classifier()
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    whole = tp.fit(target, tp.Laplace(NEWTON, tp.Dense(), tune=None), data, steps=10)
    part = tp.fit(target, tp.On(tp.last_layer, tp.Laplace(NEWTON, tp.Dense(), tune=None)), data, steps=10)
    assert torch.equal(whole.posterior.mean, part.posterior.mean)
    last = slice(24, 45)
    precision = torch.linalg.inv(whole.posterior.covariance())
    assert torch.allclose(part.posterior.covariance()[last, last], torch.linalg.inv(precision[last, last]), atol=1e-8)
    assert float(part.posterior.operator.diagonal()[:24].abs().max()) == 0
    draws = part.posterior.sample(10, seed=0)
    assert torch.equal(draws[:, :24], whole.posterior.mean[:24].expand(10, -1))
    moved = part.posterior.mean.clone()
    moved[0] += 1
    assert float(part.posterior.log_prob(moved)) == -math.inf
    assert math.isfinite(float(part.posterior.log_prob(part.posterior.mean)))


def test_subnetworks():
    net, data = small_classifier()
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    full = tp.fit(target, tp.Laplace(NEWTON, tp.Dense(), tune=None), data, steps=10).posterior
    everything = tp.fit(
        target, tp.Laplace(NEWTON, tp.Dense(), on=tp.LargestVariance(45), tune=None), data, steps=10
    ).posterior
    assert torch.allclose(everything.covariance(), full.covariance(), atol=1e-9)
    diagonal = tp.fit(
        target, tp.Laplace(NEWTON, tp.Diagonal(), tune=None), data, steps=10
    ).posterior.operator.diagonal()
    picked = tp.fit(
        target, tp.On(tp.LargestVariance(7), tp.Laplace(NEWTON, tp.Dense(), tune=None)), data, steps=10
    ).posterior
    random = picked.operator.diagonal() > 0
    assert int(random.sum()) == 7
    assert float(diagonal[random].min()) >= float(diagonal[~random].max())
    large = tp.fit(
        target, tp.Laplace(NEWTON, tp.Dense(), on=tp.LargestMagnitude(5), tune=None), data, steps=10
    ).posterior
    random = large.operator.diagonal() > 0
    assert float(full.mean.abs()[random].min()) >= float(full.mean.abs()[~random].max())
    precision = torch.linalg.inv(full.covariance())[random][:, random]
    found = large.covariance()[random][:, random]
    assert torch.allclose(found, torch.linalg.inv(precision), rtol=1e-6, atol=1e-9)
    with pytest.raises(ArgumentError, match="single weights"):
        tp.fit(target, tp.Laplace(curvature=tp.KFAC(), on=tp.LargestMagnitude(5), tune=None), data)
    with pytest.raises(ArgumentError, match="at most the network's 45"):
        tp.fit(target, tp.Laplace(curvature=tp.Dense(), on=tp.LargestMagnitude(50), tune=None), data)


def test_on_equals_a_target_with_that_subset():
    """A sampler on a part of the network: the same chain as over a target of the subset."""
    net, data = small_classifier()
    prior = tp.GaussianPrior(tp.FanIn(bias=0.3))
    method = tp.Collect(tp.SGHMC(lr=1e-2), burn=2, every=2)
    part = tp.fit(tp.Target(net, tp.Categorical(), prior), tp.On("2", method), data, steps=20, start=net)
    smaller = tp.fit(tp.Target(net, tp.Categorical(), prior, subset="2"), method, data, steps=20, start=net)
    assert torch.equal(part.posterior.inner.theta, smaller.posterior.theta)
    first = tp.Layout.of(net).flatten(net)[:24]
    theta, _ = part.posterior.nodes().fetch(0, 3)
    assert torch.equal(theta[:, :24], first.expand(3, -1))
    x = data.x[:5]
    assert torch.allclose(part.predict(x).probs, smaller.predict(x).probs)


def test_what_on_refuses():
    with pytest.raises(ArgumentError, match="`subset` must name parameters"):
        tp.On(3, tp.MAP())
    with pytest.raises(ArgumentError, match="`base` must be a method"):
        tp.On("0", "MAP")
    with pytest.raises(ArgumentError, match=r"single weights.*for the Laplace family only"):
        tp.On(tp.LargestMagnitude(3), tp.SGHMC(lr=1e-3))
    with pytest.raises(ArgumentError, match="its own `on`"):
        tp.On("0", tp.Laplace(on="2", tune=None))
    net, data = small_classifier()
    with pytest.raises(ArgumentError, match="nothing matches"):
        tp.fit(tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0)), tp.On("head", tp.MAP()), data, steps=1)


# ---------------------------------------------------------------------- data that come one after the other


@pytest.mark.parametrize("curvature", [tp.Dense(), tp.BlockDiagonal(), tp.KFAC(), tp.Lanczos(5)])
def test_a_posterior_as_prior_equals_all_data_at_once(curvature):
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 3, generator=rng, dtype=F64), torch.randn(30, 2, generator=rng, dtype=F64)
    target = tp.Target(nn.Linear(3, 2, dtype=F64), tp.Normal(scale=0.5), tp.GaussianPrior(tp.FanIn(bias=2.0)))
    method = tp.Laplace(NEWTON, curvature, tune=None)
    whole = tp.fit(target, method, (x, y), steps=10)
    first = tp.fit(target, method, (x[:12], y[:12]), steps=10)
    then = tp.fit(target.with_prior(first.posterior.as_prior()), method, (x[12:], y[12:]), steps=10)
    exact = not isinstance(curvature, tp.Lanczos)
    assert torch.allclose(then.posterior.mean, whole.posterior.mean, atol=1e-5 if exact else 0.2)
    if exact:
        assert torch.allclose(then.posterior.covariance(), whole.posterior.covariance(), atol=1e-9)
        assert first.log_evidence() + then.log_evidence() == pytest.approx(whole.log_evidence(), abs=1e-4)
    draws = target.with_prior(first.posterior.as_prior()).sample_prior(4000, torch.Generator().manual_seed(1))
    assert_moments(draws, first.posterior.mean, first.posterior.covariance())


def test_a_posterior_as_prior_covers_a_learned_noise_and_can_be_saved(tmp_path):
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 3, generator=rng, dtype=F64), torch.randn(60, 1, generator=rng, dtype=F64)
    net = nn.Linear(3, 1, dtype=F64)
    target = tp.Target(net, tp.Normal(), tp.GaussianPrior(1.0))
    method = tp.Laplace(NEWTON, tp.Dense(), tune=None)
    first = tp.fit(target, method, (x[:40], y[:40]), steps=30)
    then = tp.fit(target.with_prior(first.posterior.as_prior()), method, (x[40:], y[40:]), steps=30)
    wider, narrower = first.posterior.covariance().diagonal(), then.posterior.covariance().diagonal()
    assert bool((narrower < wider).all())
    then.save(tmp_path / "run")
    assert torch.equal(tp.load(tmp_path / "run", net).predict(x).std(), then.predict(x).std())


@pytest.mark.parametrize("curvature", [tp.Dense(), tp.BlockDiagonal(), tp.KFAC()])
def test_a_posterior_as_prior_has_the_noise_and_the_prior_that_were_chosen(curvature):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=rng, dtype=F64)
    y = x @ torch.randn(3, 1, generator=rng, dtype=F64) + 0.3 * torch.randn(40, 1, generator=rng, dtype=F64)
    target = tp.Target(nn.Linear(3, 1, bias=False, dtype=F64), tp.Normal(scale=2.0), tp.GaussianPrior(5.0))
    first = tp.fit(target, tp.Laplace(NEWTON, curvature, tune=tp.Tune(noise=True)), (x, y), steps=10)
    noise, scale = (
        first.target.likelihood.scale,
        float(torch.as_tensor(first.target.bound_prior.pieces[0][1].scale).flatten()[0]),
    )
    assert abs(noise - 0.3) < 0.1
    exact = torch.linalg.inv(x.T @ x / noise**2 + torch.eye(3, dtype=F64) / scale**2)
    prior = target.with_prior(first.posterior.as_prior()).bound_prior
    places = first.posterior.mean + torch.randn(5, 3, generator=rng, dtype=F64) * 0.05
    law = torch.distributions.MultivariateNormal(first.posterior.mean, exact)
    assert torch.allclose(prior.log_prob(places), law.log_prob(places), rtol=1e-6)
    assert_moments(prior.sample(4000, torch.Generator().manual_seed(1)), first.posterior.mean, exact)


def test_what_a_posterior_as_prior_refuses():
    net, data = small_classifier()
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    dense = tp.fit(target, tp.Laplace(NEWTON, tp.Dense(), tune=None), data, steps=5)
    with pytest.raises(ArgumentError, match=r"same structure|same curvature"):
        tp.fit(target.with_prior(dense.posterior.as_prior()), tp.Laplace(curvature=tp.KFAC(), tune=None), data)
    last = tp.fit(target, tp.Laplace(NEWTON, tp.Dense(), on=tp.last_layer, tune=None), data, steps=5)
    with pytest.raises(ArgumentError, match="only 21 of 45"):
        last.posterior.as_prior()
    corrected = tp.fit(target, tp.Laplace(NEWTON, tp.EKFAC(), tune=None), data, steps=5)
    with pytest.raises(ArgumentError, match="EKFAC"):
        tp.fit(target.with_prior(corrected.posterior.as_prior()), tp.Laplace(curvature=tp.EKFAC(), tune=None), data)


# ---------------------------------------------------------------------- post hoc, and runs


def test_post_hoc_equals_after_training():
    net, data = small_classifier()
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    trained = tp.fit(target, tp.MAP(lr=1e-2), data, steps=50)
    post_hoc = tp.fit(target, tp.Laplace(curvature=tp.KFAC(), tune=None), data, start=trained.network())
    at_once = tp.fit(target, tp.Laplace(tp.MAP(lr=1e-2), tp.KFAC(), tune=None), data, steps=50)
    assert torch.equal(post_hoc.posterior.mean, at_once.posterior.mean)
    assert torch.equal(post_hoc.posterior.covariance(), at_once.posterior.covariance())
    assert post_hoc.info.steps == 0
    own = tp.fit(tp.Target(trained.network(), tp.Categorical(), tp.GaussianPrior(1.0)), tp.Laplace(tune=None), data)
    assert torch.equal(own.posterior.mean, post_hoc.posterior.mean)
    with pytest.raises(ArgumentError, match="trains nothing"):
        tp.fit(target, tp.Laplace(tune=None), data, epochs=3)


def test_dropout_is_off_for_the_curvature_whatever_mode_the_network_is_in():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3)).double()
    _, data = small_classifier()
    found = []
    for training in (True, False):
        net.train(training)
        target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
        found.append(tp.fit(target, tp.Laplace(tune=None), data, start=net).posterior.covariance())
    assert torch.equal(found[0], found[1])


def test_saved_moved_and_resumed(tmp_path):
    net, data = small_classifier()
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    method = tp.Laplace(tp.MAP(lr=1e-2), tp.KFAC(), tune="layer")
    fitted = tp.fit(target, method, data, epochs=4, batch_size=9, checkpoint=tmp_path / "run")
    x = data.x[:7]
    loaded = tp.load(tmp_path / "run", copy.deepcopy(net))
    assert loaded.log_evidence(math.inf) == fitted.log_evidence(math.inf)
    assert torch.equal(loaded.target.prior.scale, fitted.target.prior.scale)
    for by in ("linearised", "probit", "bridge", "functions", "network"):
        assert torch.equal(loaded.predict(x, by=by).probs, fitted.predict(x, by=by).probs), by
    assert torch.equal(loaded.posterior.sample(3, seed=1), fitted.posterior.sample(3, seed=1))
    again = tp.fit(
        target, method, data, epochs=4, batch_size=9, checkpoint=tmp_path / "run"
    )  # finished: taken as it is
    assert torch.equal(again.posterior.mean, fitted.posterior.mean)
    assert torch.equal(again.target.prior.scale, fitted.target.prior.scale)


def test_killed_in_the_curvature_pass_the_training_is_kept(tmp_path, monkeypatch):
    net, data = small_classifier()
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    method = tp.Laplace(tp.MAP(lr=1e-2), tp.KFAC(), tune=None)
    whole = tp.fit(target, method, data, epochs=4, batch_size=9)

    def die(*_, **__):
        raise RuntimeError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(tp.KFAC, "blocks", die)
        with pytest.raises(RuntimeError, match="the power went"):
            tp.fit(target, method, data, epochs=4, batch_size=9, checkpoint=tmp_path / "run", every=1000)
    steps = []
    with monkeypatch.context() as patch:
        original = tp.MAP.step
        patch.setattr(tp.MAP, "step", lambda *a: steps.append(1) or original(*a))
        resumed = tp.fit(target, method, data, epochs=4, batch_size=9, checkpoint=tmp_path / "run", every=1000)
    assert not steps  # all of the training was saved before the curvature pass began
    assert torch.equal(resumed.posterior.covariance(), whole.posterior.covariance())


def test_ensemble_members_are_those_of_single_runs():
    net, data = small_classifier()
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    one_by_one = tp.fit(target, tp.Ensemble(tp.Laplace(tp.MAP(lr=1e-2), tune=None), 3, batched=False), data, steps=30)
    batched = tp.fit(target, tp.Ensemble(tp.Laplace(tp.MAP(lr=1e-2), tune=None), 3, batched=True), data, steps=30)
    for a, b in zip(one_by_one.posterior.components, batched.posterior.components, strict=True):
        assert torch.allclose(a.covariance(), b.covariance(), rtol=1e-6, atol=1e-9)
    x = data.x[:6]
    mixed = one_by_one.predict(x, by="probit").probs
    alone = []
    for component in one_by_one.posterior.components:
        alone.append(tp.Fitted(target, component, one_by_one.info).predict(x, by="probit").probs)
    assert torch.allclose(mixed, torch.stack(alone).mean(0), atol=1e-12)
    with pytest.raises(ArgumentError, match="would choose different ones"):
        tp.Ensemble(tp.Laplace(NEWTON, tp.Dense(), tune=tp.Tune("layer", noise=True)), 2)


def test_bad_input():
    net, data = small_classifier()
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    with pytest.raises(ArgumentError, match="`curvature`"):
        tp.Laplace(curvature="kron", tune=None)
    with pytest.raises(ArgumentError, match="`base`"):
        tp.Laplace("MAP", tune=None)
    with pytest.raises(ArgumentError, match="is put around a point"):
        tp.Laplace(tp.Ensemble(tp.MAP(), 2), tune=None)
    with pytest.raises(ArgumentError, match="`on` must name"):
        tp.Laplace(on=3, tune=None)
    with pytest.raises(ArgumentError, match="one setting of θ"):
        tp.fit(target, tp.Laplace(tune=None), data, start=torch.zeros(2, 45, dtype=F64))

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3, dtype=F64)

        def forward(self, x):
            return nn.functional.dropout(self.layer(x), 0.5)

    with pytest.raises(NetworkError, match="deterministic"):
        tp.fit(tp.Target(Noisy(), tp.Categorical(), tp.GaussianPrior(1.0)), tp.Laplace(tune=None), data)

    class Moving(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, k):
            return torch.rand(3, dtype=F64, generator=RNG), k % 3

    with pytest.raises(DataError, match="same rows every time"):
        tp.fit(target, tp.Laplace(tune=None), Moving())


RNG = torch.Generator().manual_seed(0)


def test_indefinite_hessian_is_an_error_and_not_repaired():
    net, data = small_classifier(seed=4)
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(3.0))
    with pytest.raises(NumericalError, match="positive definite"):
        tp.fit(
            target, tp.Laplace(curvature=tp.Dense(kind="hessian"), tune=None), data, start=2 * torch.ones(45, dtype=F64)
        )


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (tp.Laplace(tp.MAP(), on="heed", tune=None), "`on` must name"),
        (tp.Laplace(tp.MAP(), tp.Dense(limit=10), tune=None), "`limit`"),
        (tp.Laplace(tp.MAP(), tp.KFAC(), on=tp.LargestVariance(3), tune=None), "single weights"),
        (tp.Laplace(tp.MAP(), tp.Dense(), on=tp.LargestMagnitude(99), tune=None), "`size` must be at most"),
        (tp.Laplace(tp.MAP(), tp.Lanczos(45), tune=None), "`rank` must be below"),
        (tp.Laplace(tp.MAP(), tp.KFAC(), tune="parameter"), '"parameter" needs'),
        (tp.Laplace(tp.MAP(), tune=tp.Tune("layer", noise=True)), "`noise` can be chosen"),
    ],
)
def test_what_must_fail_fails_before_training(method, message, monkeypatch):
    net, data = small_classifier()
    monkeypatch.setattr(tp.MAP, "step", lambda *_: pytest.fail("it trained first"))
    with pytest.raises(ArgumentError, match=message):
        tp.fit(tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0)), method, data, steps=5)


def test_priors_and_temperatures_that_must_fail_fail_before_training(monkeypatch):
    net, data = small_classifier()
    monkeypatch.setattr(tp.MAP, "step", lambda *_: pytest.fail("it trained first"))
    kinked = tp.Target(net, tp.Categorical(), tp.LaplacePrior(1.0))
    with pytest.raises(ArgumentError, match="must be smooth"):
        tp.fit(kinked, tp.Laplace(tp.MAP(), tune=None), data, steps=5)
    cold = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0), temperature=0.5)
    with pytest.raises(ArgumentError, match="`tune`: the evidence is defined at temperature 1"):
        tp.fit(cold, tp.Laplace(tp.MAP(), tune="layer"), data, steps=5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tp.Tune(reach=-1),
        lambda: tp.Tune(until="a"),
        lambda: tp.Tune(noise="x"),
        lambda: tp.Tune(every=True),
        lambda: tp.Tune(shift="a"),
        lambda: tp.Lanczos(3, tolerance=-1),
        lambda: tp.KFAC(seed="a"),
        lambda: tp.Dense(limit=-1),
        lambda: tp.FunctionalLaplace(seed=-1),
        lambda: tp.Laplace(tune="layers"),
    ],
)
def test_arguments_are_checked(make):
    with pytest.raises(ArgumentError, match="must be"):
        make()


def test_one_row_in_single_precision_with_a_precision_for_each_parameter():
    for seed in range(3):
        torch.manual_seed(seed)
        target = tp.Target(tp.nn.MLP(2, [5], 1), tp.Normal(), tp.GaussianPrior(1.0))
        method = tp.Laplace(tp.MAP(lr=1e-2), tp.Dense(), tune="parameter")
        fitted = tp.fit(target, method, (torch.randn(1, 2), torch.randn(1, 1)), steps=50)
        assert bool(torch.isfinite(fitted.predict(torch.randn(3, 2)).std()).all())


@pytest.mark.parametrize(
    "method",
    [
        tp.On(tp.last_layer, tp.Laplace(tp.MAP(lr=0.1), tune=None)),
        tp.Laplace(tp.MAP(lr=0.1), tp.Dense(), tune=None),
        tp.Laplace(tp.MAP(lr=0.1), tp.EKFAC(), tune=None),
        tp.FunctionalLaplace(tp.MAP(lr=0.1)),
    ],
    ids=["another part", "Dense", "EKFAC", "FunctionalLaplace"],
)
def test_an_earlier_posterior_of_another_form_is_refused_before_anything_is_trained(method, monkeypatch):
    net, data = small_classifier()
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    first = tp.fit(target, tp.Laplace(tp.MAP(lr=0.1), tune=None), data, steps=2, progress=False)
    later = first.target.with_prior(first.posterior.as_prior())
    steps = []
    monkeypatch.setattr(tp.MAP, "step", lambda *_: steps.append(1))
    with pytest.raises(ArgumentError, match="`prior`"):
        tp.fit(later, method, data, steps=5, progress=False)
    assert not steps
