from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.posteriors import Draws, Mixture

botorch = pytest.importorskip("botorch")
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement, qUpperConfidenceBound  # noqa: E402

from temperance.apps.integrations.botorch import (  # noqa: E402
    GaussianPosteriorModel,
    MemberSampler,
    PosteriorModel,
    expected_improvement,
    optimise,
    thompson_sampling,
    upper_confidence_bound,
)

X = torch.rand(4, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TRAIN = torch.rand(12, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def target() -> tp.Target:
    network = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    return tp.Target(network, tp.Normal(scale=0.1), tp.GaussianPrior(1.0))


@pytest.fixture(scope="module")
def ensemble() -> tp.Fitted:
    return tp.fit(target(), tp.Ensemble(tp.MAP(lr=0.05), 4), (TRAIN, TRAIN.sin().sum(1)), steps=40)


@pytest.fixture(scope="module")
def laplace() -> tp.Fitted:
    return tp.fit(target(), tp.Laplace(tp.MAP(lr=0.05), tp.Dense(), tune=None), (TRAIN, TRAIN.sin().sum(1)), steps=40)


def members(fitted: tp.Fitted, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([outputs for _, outputs, _ in fitted.predict(x).source.blocks()], dim=1)[..., 0]


def test_values_are_those_of_the_members_and_the_covariance_theirs(ensemble):
    posterior = PosteriorModel(ensemble).posterior(X)
    assert posterior.values.shape == (4, 4, 3, 1)  # b × S × q × m
    for b in range(4):
        own = members(ensemble, X[b])
        assert torch.allclose(posterior.values[b, :, :, 0], own)
        joint = GaussianPosteriorModel(ensemble).posterior(X[b])
        centred = own - own.mean(0)
        assert torch.allclose(joint.distribution.covariance_matrix, centred.T @ centred / 4, atol=1e-5)
        assert torch.allclose(joint.mean[:, 0], own.mean(0))
    assert posterior.mean.shape == (4, 3, 1)
    assert posterior.rsample(torch.Size([5])).shape == (5, 4, 3, 1)
    assert PosteriorModel(ensemble).posterior(X[0]).mean.shape == (3, 1)


def test_linearised_draws_have_the_joint_covariance_of_the_laplace_predictive(laplace):
    draws = 3000
    values = PosteriorModel(laplace, draws=draws).posterior(X[0]).values[..., 0]
    exact = laplace.predict(X[0]).output_covariance()
    spread = exact.diagonal().sqrt()
    assert ((values.T.cov() - exact).abs() < 5 * spread.outer(spread) * math.sqrt(2 / draws)).all()
    mean = laplace.predict(X[0]).mean()[:, 0]
    assert ((values.mean(0) - mean).abs() < 5 * spread / math.sqrt(draws)).all()


def test_a_loaded_run_serves_as_well(ensemble, tmp_path):
    ensemble.save(tmp_path / "run")
    network = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    again = PosteriorModel(tp.load(tmp_path / "run", network))
    assert torch.allclose(again.posterior(X).values, PosteriorModel(ensemble).posterior(X).values)


def test_a_mixture_of_laplaces_keeps_draws_with_their_own_mode(laplace):
    first, second = (
        laplace.posterior,
        tp.fit(
            target(), tp.Laplace(tp.MAP(lr=0.05), tp.Dense(), tune=None), (TRAIN, -TRAIN.sin().sum(1)), steps=40, seed=5
        ).posterior,
    )
    both = tp.Fitted(laplace.target, Mixture([first, second], (0.25, 0.75)), laplace.info)
    model = PosteriorModel(both, draws=10)
    assert model.members == 10
    assert model.member_weights[:5].sum() == pytest.approx(0.25)
    values = model.posterior(X[0]).values[..., 0]
    assert values[:5].mean() > 0
    assert values[5:].mean() < 0


@pytest.mark.parametrize("kind", [PosteriorModel, GaussianPosteriorModel])
@pytest.mark.parametrize("which", ["ensemble", "laplace"])
def test_gradients_in_the_points_are_right(kind, which, request):
    model = kind(request.getfixturevalue(which), draws=6)
    weights = torch.randn(3, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: (model.posterior(x).mean * weights).sum(), X[0].clone().requires_grad_())
    assert torch.autograd.gradcheck(lambda x: model.posterior(x).variance.sum(), X[0].clone().requires_grad_())


def test_acquisition_functions_take_it(ensemble, laplace):
    for fitted in (ensemble, laplace):
        for kind in (PosteriorModel, GaussianPosteriorModel):
            model = kind(fitted)
            for made in (
                qLogExpectedImprovement(model, 0.5),
                qUpperConfidenceBound(model, 2.0),
                expected_improvement(model, 0.5, 0),
                upper_confidence_bound(model, 0.5, 0),
                thompson_sampling(model, 0.5, 3),
            ):
                assert made(X).shape == (4,)
            assert LogExpectedImprovement(model, 0.5)(X[:, :1]).shape == (4,)


def test_expected_improvement_is_the_average_over_members(ensemble):
    model = PosteriorModel(ensemble)
    sampler = MemberSampler(model)
    assert torch.equal(sampler(model.posterior(X)), model.posterior(X).values.movedim(1, 0))
    found = expected_improvement(model, 0.2, 0)(X).exp()
    exact = torch.stack([(members(ensemble, x).amax(1) - 0.2).clamp(min=0).mean() for x in X])
    assert torch.allclose(found, exact, atol=0.02)  # it is smoothed


def test_conditioning_weighs_members_by_their_likelihood(ensemble):
    model = PosteriorModel(ensemble)
    x, y = X[0], X[0].sin().sum(1, keepdim=True)
    made = model.condition_on_observations(x, y)
    own = members(ensemble, x)
    log_prob = torch.distributions.Normal(own, 0.1).log_prob(y.T).sum(1)
    assert torch.allclose(made.member_weights, log_prob.softmax(0))
    assert torch.allclose(made.posterior(x).mean[:, 0], log_prob.softmax(0) @ own)
    assert model.member_weights.tolist() == pytest.approx([0.25] * 4)
    assert made.posterior(x).values.shape == (4, 3, 1)
    assert MemberSampler(made).sample_shape == (256,)


class Fourier(nn.Module):
    """Random Fourier features: with a Gaussian prior on the weights, a Gaussian process with a squared-exponential
    kernel, of which Laplace is exact."""

    def __init__(self, features: int = 100, length: float = 0.6) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(0)
        self.register_buffer("w", torch.randn(2, features, generator=rng, dtype=torch.float64) / length)
        self.register_buffer("b", 2 * math.pi * torch.rand(features, generator=rng, dtype=torch.float64))
        self.linear = nn.Linear(features, 1, bias=False, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear((x @ self.w + self.b).cos() * math.sqrt(2 / len(self.b)))


def branin(x: torch.Tensor) -> torch.Tensor:
    a, b = x[:, 0], x[:, 1]
    valley = (b - 5.1 / (4 * math.pi**2) * a**2 + 5 / math.pi * a - 6) ** 2
    return valley + 10 * (1 - 1 / (8 * math.pi)) * a.cos() + 10


BOUNDS = [[-5.0, 0.0], [10.0, 15.0]]


def surrogate() -> tp.Target:
    return tp.Target(Fourier(), tp.Normal(scale=0.02), tp.GaussianPrior(2.0))


def test_branin_beats_random_search():
    assert float(branin(torch.tensor([[math.pi, 2.275]]))) == pytest.approx(0.397887, abs=1e-5)
    rng = torch.Generator().manual_seed(0)
    points = torch.rand(500 * 20, 2, generator=rng, dtype=torch.float64) * 15 + torch.tensor([-5.0, 0.0])
    by_chance = branin(points).view(500, 20).amin(1)
    method = tp.Laplace(tp.MAP(lr=1.0, optimizer=torch.optim.LBFGS), tp.Dense(), tune=None)
    found = optimise(
        branin,
        BOUNDS,
        surrogate,
        method,
        evaluations=20,
        start=8,
        acquire=thompson_sampling,
        steps=5,
        restarts=2,
        seed=1,
    )
    assert found.x.shape == (20, 2)
    assert found.best_value == pytest.approx(float(branin(found.x).min()))
    assert torch.equal(found.best_x, found.x[found.y.argmin()])
    assert 0.3978 < found.best_value < float(by_chance.quantile(0.2))


@pytest.mark.parametrize("acquire", [expected_improvement, upper_confidence_bound])
def test_batches_maxima_and_seeds(acquire):
    def bump(x: torch.Tensor) -> torch.Tensor:
        return -(x - 0.3).square().sum(1)

    method = tp.Ensemble(tp.MAP(lr=0.05), 3)
    make = lambda: tp.Target(tp.nn.MLP(2, [6], 1), tp.Normal(scale=0.1), tp.GaussianPrior(1.0))  # noqa: E731
    run = lambda: optimise(  # noqa: E731
        bump, [[0, 0], [1, 1]], make, method, evaluations=7, start=4, batch=2, maximise=True, acquire=acquire, steps=30
    )
    found = run()
    assert found.x.shape == (7, 2)
    assert ((found.x >= 0) & (found.x <= 1)).all()
    assert found.best_value == float(found.y.max())
    assert torch.equal(found.x, run().x)


def test_bad_input(ensemble):
    classes = tp.Target(nn.Sequential(nn.Linear(2, 2)), tp.Categorical(), tp.GaussianPrior(1.0))
    for call, message in [
        (lambda: PosteriorModel(3), "`fitted`"),
        (lambda: PosteriorModel(tp.Fitted(classes, Draws(torch.zeros(1, 6)), ensemble.info)), "real targets"),
        (lambda: PosteriorModel(ensemble).condition_on_observations(X, X[..., :1]), "`X`"),
        (lambda: optimise(branin, [[0, 1], [1, 1]], surrogate, tp.MAP()), "`bounds`"),
        (lambda: optimise(branin, BOUNDS, surrogate, tp.MAP(), evaluations=3, start=8), "`start`"),
        (lambda: optimise(lambda x: x[:, 0] * math.nan, BOUNDS, surrogate, tp.MAP()), "`objective`"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()
