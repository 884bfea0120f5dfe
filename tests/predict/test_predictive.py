from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch
from torch import nn

import temperance as tp
from temperance import predict as predict_room
from temperance.core.errors import ArgumentError, DataError
from temperance.engine.engine import Engine
from temperance.linalg import DenseCovariance
from temperance.posteriors import Draws, Gaussian, Mixture, Point
from temperance.predict import ClassPredictive, OutputSource, predict
from temperance.testing import conjugate_regression

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def classifier() -> tuple[tp.Target, Draws]:
    target = tp.Target(nn.Linear(3, 4).double(), tp.Categorical(), tp.GaussianPrior(1.0))
    rng = torch.Generator().manual_seed(0)
    return target, Draws(torch.randn(6, target.num_parameters, generator=rng, dtype=torch.float64))


def logits(target: tp.Target, theta: torch.Tensor) -> torch.Tensor:
    values = target.layout.unflatten(theta)
    return X @ values["weight"].T + values["bias"]


def test_probabilities_are_averaged_not_logits():
    target, draws = classifier()
    pred = predict(Engine(target), draws, X)
    members = torch.stack([logits(target, theta).softmax(-1) for theta in draws.theta])
    assert torch.allclose(pred.probs, members.mean(0))
    wrong = torch.stack([logits(target, theta) for theta in draws.theta]).mean(0).softmax(-1)
    assert not torch.allclose(pred.probs, wrong, atol=1e-3)
    y = torch.arange(12) % 4
    assert torch.allclose(pred.log_prob(y), members.mean(0)[torch.arange(12), y].log())
    assert torch.allclose(pred.std(), members.std(0, correction=0))
    assert torch.equal(pred.predict(), members.mean(0).argmax(-1))


def test_entropy_splits_exactly():
    target, draws = classifier()
    pred = predict(Engine(target), draws, X)
    members = torch.stack([logits(target, theta).softmax(-1) for theta in draws.theta])
    entropy = lambda p: -(p * p.log()).sum(-1)  # noqa: E731
    assert torch.allclose(pred.entropy(), entropy(members.mean(0)))
    assert torch.allclose(pred.aleatoric(), entropy(members).mean(0))
    assert torch.allclose(pred.mutual_information(), pred.entropy() - pred.aleatoric())
    assert (pred.mutual_information() > 0).all()
    one = predict(Engine(target), Point(draws.theta[0]), X)
    assert one.mutual_information().abs().max() < 1e-12


def test_two_opposite_members_have_log_two_of_mutual_information():
    target = tp.Target(nn.Linear(1, 2, bias=False).double(), tp.Categorical(), tp.GaussianPrior(1.0))
    sure = torch.tensor([[50.0, -50.0], [-50.0, 50.0]], dtype=torch.float64)
    pred = predict(Engine(target), Draws(sure), torch.ones(1, 1, dtype=torch.float64))
    assert float(pred.mutual_information()) == pytest.approx(math.log(2))
    assert float(pred.aleatoric()) == pytest.approx(0, abs=1e-12)


def test_joint_log_prob_sees_what_marginals_do_not():
    target, draws = classifier()
    pred = predict(Engine(target), draws, X)
    y = torch.arange(12) % 4
    members = torch.stack([logits(target, t).log_softmax(-1)[torch.arange(12), y].sum() for t in draws.theta])
    expected = members.logsumexp(0) - math.log(6)
    assert torch.allclose(pred.joint_log_prob(y), expected)
    assert float(pred.joint_log_prob(y)) != pytest.approx(float(pred.log_prob(y).sum()), rel=1e-2)
    assert torch.allclose(predict(Engine(target), draws, X[:1]).joint_log_prob(y[:1]), pred.log_prob(y)[0])


def test_samples_share_one_theta_over_rows():
    target = tp.Target(nn.Linear(1, 2, bias=False).double(), tp.Categorical(), tp.GaussianPrior(1.0))
    sure = torch.tensor([[50.0, -50.0], [-50.0, 50.0]], dtype=torch.float64)
    pred = predict(Engine(target), Draws(sure), torch.ones(5, 1, dtype=torch.float64))
    y = pred.sample(400, seed=1)
    assert y.shape == (400, 5)
    assert (y == y[:, :1]).all()  # rows agree within a draw
    assert abs(float(y[:, 0].double().mean()) - 0.5) < 0.13
    assert torch.equal(y, pred.sample(400, seed=1))


def test_weights_of_a_mixture_count():
    target, draws = classifier()
    mixture = Mixture((Point(draws.theta[0]), Point(draws.theta[1])), weights=(0.9, 0.1))
    pred = predict(Engine(target), mixture, X)
    expected = 0.9 * logits(target, draws.theta[0]).softmax(-1) + 0.1 * logits(target, draws.theta[1]).softmax(-1)
    assert torch.allclose(pred.probs, expected)
    low, high = pred.interval(0.5)
    assert torch.allclose(low, logits(target, draws.theta[0]).softmax(-1))
    assert torch.allclose(high, low)


def test_class_intervals_cover_the_members():
    target, draws = classifier()
    low, high = predict(Engine(target), draws, X).interval(0.99)
    members = torch.stack([logits(target, t).softmax(-1) for t in draws.theta])
    assert torch.allclose(low, members.min(0).values)
    assert torch.allclose(high, members.max(0).values)


def test_gaussian_posterior_of_a_linear_model_gives_the_closed_form_predictive():
    """Golden: mean .3852451805, Var f 1.8008505352e-3, Var y 1.1800850535e-2 at x = .5."""
    problem = conjugate_regression()
    posterior = Gaussian(problem.mean, DenseCovariance(problem.covariance))
    at = torch.tensor([[1.0, 0.5, 0.25]], dtype=torch.float64)
    pred = predict(Engine(problem.target), posterior, at, draws=20_000)
    error = (1.8008505352e-3 / 20_000) ** 0.5
    assert abs(float(pred.mean()) - 0.3852451805) < 5 * error
    assert float(pred.epistemic_variance()) == pytest.approx(1.8008505352e-3, rel=5 * (2 / 20_000) ** 0.5)
    assert float(pred.aleatoric_variance()) == pytest.approx(0.01)
    assert float(pred.variance()) == pytest.approx(1.1800850535e-2, rel=0.01)
    low, high = pred.interval(0.9)
    half = 1.6448536 * 1.1800850535e-2**0.5
    assert float(high - low) / 2 == pytest.approx(half, rel=0.02)
    assert float(pred.entropy()) == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 1.1800850535e-2), abs=0.01)


@pytest.mark.parametrize(
    ("likelihood", "family"),
    [
        (tp.Normal(0.4), scipy.stats.norm),
        (tp.StudentT(3.0, 0.4), scipy.stats.t(3.0)),
    ],
    ids=["normal", "student"],
)
def test_mixtures_of_real_members_against_numerical_integration(likelihood, family):
    target = tp.Target(nn.Linear(1, 1, bias=False).double(), likelihood, tp.GaussianPrior(1.0))
    theta = torch.tensor([[-1.0], [0.5], [2.5]], dtype=torch.float64)
    pred = predict(Engine(target), Draws(theta), torch.ones(1, 1, dtype=torch.float64))

    def density(y: float) -> float:
        return float(np.mean([family.pdf((y - m) / 0.4) / 0.4 for m in theta.flatten().tolist()]))

    grid = np.linspace(-60, 60, 240_001)
    p = np.mean([family.pdf((grid - m) / 0.4) / 0.4 for m in theta.flatten().tolist()], axis=0)
    entropy = scipy.integrate.simpson(scipy.special.entr(p), x=grid)
    assert float(pred.entropy()) == pytest.approx(entropy, abs=2e-3)
    assert float(pred.log_prob(torch.tensor([[0.3]]))) == pytest.approx(math.log(density(0.3)), rel=1e-6)
    for level in (0.05, 0.5, 0.95):
        quantile = float(pred.quantile(level))
        mass = scipy.integrate.quad(density, -np.inf, quantile, limit=500)[0]
        assert mass == pytest.approx(level, abs=1e-5)
        assert float(pred.cdf(torch.tensor([[quantile]], dtype=torch.float64))) == pytest.approx(level, abs=1e-9)
    variance = theta.var(correction=0) + 0.16 * likelihood.standard_variance()
    assert float(pred.variance()) == pytest.approx(float(variance))


def test_several_outputs_and_input_dependent_noise():
    target = tp.Target(nn.Linear(3, 4).double(), tp.HeteroscedasticNormal(), tp.GaussianPrior(1.0))
    draws = Draws(0.3 * torch.randn(5, target.num_parameters, dtype=torch.float64))
    pred = predict(Engine(target), draws, X)
    assert pred.mean().shape == (12, 2)
    members = torch.stack([logits(target, t) for t in draws.theta])
    scale = torch.where(members[..., 2:] > 0, 1 + members[..., 2:], members[..., 2:].exp())
    expected = scale.square().mean(0) + members[..., :2].var(0, correction=0)
    assert torch.allclose(pred.variance(), expected)
    y = torch.randn(12, 2, dtype=torch.float64)
    normal = torch.distributions.Normal(members[..., :2], scale)
    assert torch.allclose(pred.log_prob(y), normal.log_prob(y).sum(-1).logsumexp(0) - math.log(5))
    low, high = pred.interval(0.8)
    share = torch.stack([(row > low) & (row < high) for row in pred.sample(4000, seed=0)]).double().mean(0)
    assert (share - 0.8).abs().max() < 0.04
    mc = -torch.stack([pred.log_prob(row) for row in pred.sample(2000, seed=1)])
    assert ((pred.entropy() - mc.mean(0)).abs() < 5 * mc.std(0) / 2000**0.5 + 5e-3).all()
    assert (pred.mutual_information() > 0).all()


def test_counts():
    target = tp.Target(nn.Linear(1, 1, bias=False).double(), tp.Poisson(), tp.GaussianPrior(1.0))
    theta = torch.tensor([[0.5], [1.8]], dtype=torch.float64)
    pred = predict(Engine(target), Draws(theta), torch.ones(1, 1, dtype=torch.float64))
    rates = np.exp([0.5, 1.8])
    k = np.arange(200)
    p = (scipy.stats.poisson.pmf(k, rates[0]) + scipy.stats.poisson.pmf(k, rates[1])) / 2
    assert float(pred.entropy()) == pytest.approx(-(p[p > 0] * np.log(p[p > 0])).sum(), abs=1e-8)
    assert float(pred.mean()) == pytest.approx((k * p).sum())
    assert float(pred.variance()) == pytest.approx((k**2 * p).sum() - (k * p).sum() ** 2)
    members = [scipy.stats.poisson(rate).entropy() for rate in rates]
    assert float(pred.aleatoric()) == pytest.approx(np.mean(members), abs=1e-6)
    assert (pred.mutual_information() > 0).all()
    for level in (0.05, 0.5, 0.95):
        assert float(pred.quantile(level)) == k[np.searchsorted(p.cumsum(), level)]
    low, high = pred.interval(0.9)
    assert p[int(low) : int(high) + 1].sum() >= 0.9


def test_yes_or_no_labels():
    target = tp.Target(nn.Linear(3, 2).double(), tp.Bernoulli(), tp.GaussianPrior(1.0))
    draws = Draws(torch.randn(6, target.num_parameters, dtype=torch.float64))
    pred = predict(Engine(target), draws, X)
    members = torch.stack([logits(target, t).sigmoid() for t in draws.theta])
    assert torch.allclose(pred.probs, members.mean(0))
    y = torch.randint(0, 2, (12, 2))
    each = torch.where(y == 1, members, 1 - members).prod(-1)
    assert torch.allclose(pred.log_prob(y), each.mean(0).log())
    assert (pred.mutual_information() > 0).all()
    assert pred.sample(3).shape == (3, 12, 2)
    assert set(pred.predict().flatten().tolist()) <= {0, 1}


def test_large_predictions_are_streamed_with_the_same_result(monkeypatch):
    """Memory is bounded by the block: nothing of size draws × rows is kept, and every statistic is the same."""
    target, _ = classifier()
    posterior = Gaussian(torch.zeros(16).double(), DenseCovariance(torch.eye(16, dtype=torch.float64)))
    y = torch.arange(12) % 4
    kept = predict(Engine(target), posterior, X, draws=50)
    monkeypatch.setattr(predict_room.source, "_BLOCK_BYTES", 50 * 4 * 8 * 5)
    monkeypatch.setattr(predict_room.source, "_THETA_BYTES", 16 * 8 * 7)
    source = OutputSource(Engine(target), posterior.nodes(50), X, keep_bytes=0, batch_size=2)
    assert [o.shape for _, o, _ in source.blocks()] == [(50, 5, 4), (50, 5, 4), (50, 2, 4)]
    assert not source._kept
    streamed = ClassPredictive(source, target.likelihood)
    for name in ("probs", "mean", "std", "entropy", "aleatoric", "mutual_information"):
        one, two = getattr(kept, name), getattr(streamed, name)
        assert torch.allclose(one if name == "probs" else one(), two if name == "probs" else two()), name
    assert torch.allclose(kept.log_prob(y), streamed.log_prob(y))
    assert torch.allclose(kept.joint_log_prob(y), streamed.joint_log_prob(y))
    for a, b in zip(kept.interval(0.8), streamed.interval(0.8), strict=True):
        assert torch.allclose(a, b)


def test_bad_arguments():
    target, draws = classifier()
    with pytest.raises(DataError, match=r"`x` must be finite"):
        predict(Engine(target), draws, torch.full((2, 3), float("nan")))
    with pytest.raises(DataError, match="at least one row"):
        predict(Engine(target), draws, torch.zeros(0, 3))
    with pytest.raises(ArgumentError, match="cannot take inputs"):
        predict(Engine(target), draws, torch.zeros(2, 5))
    with pytest.raises(ArgumentError, match="`draws`"):
        predict(Engine(target), draws, X, draws=0)
    with pytest.raises(ArgumentError, match="target's 16 parameters"):
        predict(Engine(target), Point(torch.zeros(3)), X)
    pred = predict(Engine(target), draws, X)
    for level in (0.0, 1.0, 1.5, "0.9"):
        with pytest.raises(ArgumentError, match="`level`"):
            pred.interval(level)
    with pytest.raises(ArgumentError, match="each of the 12 rows"):
        pred.log_prob(torch.zeros(5, dtype=torch.long))
    with pytest.raises(DataError, match="classes from 0 to 3"):
        pred.log_prob(torch.full((12,), 9))
    with pytest.raises(ArgumentError, match="`n`"):
        pred.sample(0)


def test_arrays_lists_and_data_are_inputs_too():
    target, draws = classifier()
    expected = predict(Engine(target), draws, X).probs
    for x in (X.numpy(), X.tolist(), tp.data.Data(X, torch.zeros(12))):
        assert torch.allclose(predict(Engine(target), draws, x).probs, expected, atol=1e-6)


def test_members_that_agree_have_no_epistemic_variance_and_others_theirs() -> None:
    made = tp.predict.from_outputs(torch.tensor([0.3, 0.1]).expand(7, 5, 2).clone(), tp.Categorical())
    assert bool((made.epistemic_variance() == 0).all())
    f = 1e3 + torch.randn(9, 5, 1, dtype=torch.float64)
    weights = torch.rand(9, dtype=torch.float64)
    spread = tp.predict.from_outputs(f, tp.Normal(scale=1.0), weights=weights).epistemic_variance()
    share = weights / weights.sum()
    centre = torch.tensordot(share, f, dims=1)
    torch.testing.assert_close(spread, torch.tensordot(share, (f - centre).square(), dims=1), rtol=1e-6, atol=1e-9)
