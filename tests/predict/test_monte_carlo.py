from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.engine.engine import Engine
from temperance.judge import diagnose
from temperance.linalg import DiagonalCovariance
from temperance.posteriors import CurvePosterior, Draws, Gaussian, Mixture, Point, Posterior, Stratum
from temperance.predict import AffinePredictive, MonotonePredictive, from_outputs, predict
from temperance.predict.calibrated import map_logits
from temperance.predict.monotone import Log
from temperance.predict.monte_carlo import chain_variance, standard_error

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def target(likelihood: tp.Likelihood | None = None, outputs: int = 3) -> tp.Target:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs)).double()
    return tp.Target(net, likelihood or tp.Categorical(), tp.GaussianPrior(1.0))


def gaussian(problem: tp.Target, scale: float = 0.7, seed: int = 0) -> Gaussian:
    mean = problem.fresh_theta(seed).double()
    return Gaussian(mean, DiagonalCovariance(torch.full_like(mean, scale**2)))


def ratio(means: Tensor, errors: Tensor) -> Tensor:
    """The estimated standard error over the true one, that of ``means`` over seeds (the first dimension)."""
    return errors.square().mean(0).sqrt() / means.std(0)


def over_seeds(problem: tp.Target, posterior: Posterior, draws: int, repeats: int = 400) -> Tensor:
    engine = Engine(problem)
    made = [predict(engine, posterior, X, draws=draws, seed=seed) for seed in range(repeats)]
    return ratio(torch.stack([p.mean() for p in made]), torch.stack([p.monte_carlo_error() for p in made]))


def agrees(found: Tensor) -> bool:
    return bool(((found > 0.8) & (found < 1.25)).all())


def test_plain_draws():
    values = torch.randn(2000, 20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).exp()
    equal = torch.full((20,), 1 / 20)
    errors = torch.stack([standard_error(v, equal, (Stratum(20),)) for v in values])
    assert agrees(ratio(values.mean(1), errors))
    plain = values[0].std(0) / math.sqrt(20)
    assert torch.allclose(errors[0], plain)


def test_draws_with_weights_of_their_own():
    rng = torch.Generator().manual_seed(0)
    values = torch.randn(2000, 20, 3, generator=rng, dtype=torch.float64)
    weights = 0.8 ** torch.arange(20, dtype=torch.float64)
    weights = weights / weights.sum()
    errors = torch.stack([standard_error(v, weights, (Stratum(20),)) for v in values])
    means = torch.einsum("s,rsq->rq", weights, values)
    assert agrees(ratio(means, errors))
    unweighted = torch.stack([standard_error(v, torch.full((20,), 1 / 20), (Stratum(20),)) for v in values])
    assert float(ratio(means, unweighted).max()) < 0.95


@pytest.mark.parametrize("draws", [16, 17])
def test_antithetic_pairs_count_as_one(draws):
    problem = target()
    posterior = gaussian(problem)
    assert agrees(over_seeds(problem, posterior, draws))


def test_the_naive_formula_would_be_wrong_for_antithetic_pairs():
    problem = target()
    posterior = gaussian(problem, scale=0.2)
    made = [predict(Engine(problem), posterior, X, draws=16, seed=seed) for seed in range(100)]
    naive = torch.stack([p.epistemic_variance().sqrt() / math.sqrt(15) for p in made])
    assert not agrees(ratio(torch.stack([p.mean() for p in made]), naive))
    assert agrees(over_seeds(problem, posterior, 16))


@pytest.mark.parametrize("weights", [(0.9, 0.1), None])
def test_components_count_by_their_weights_and_not_how_far_apart_they_are(weights):
    problem = target()
    posterior = Mixture((gaussian(problem, 0.7, 0), gaussian(problem, 0.3, 1)), weights)
    assert agrees(over_seeds(problem, posterior, 24))
    apart = Mixture((Point(problem.fresh_theta(0)), Point(problem.fresh_theta(1))), weights)
    assert not predict(Engine(problem), apart, X).monte_carlo_error().any()


def autoregression(rate: float, count: int, chains: int, seed: int = 0) -> Tensor:
    """count × chains, of variance one."""
    noise = torch.randn(count, chains, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    made = [noise[0]]
    for step in noise[1:]:
        made.append(rate * made[-1] + math.sqrt(1 - rate**2) * step)
    return torch.stack(made)


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
def test_neighbours_of_a_chain_resemble_one_another(rate):
    walks = autoregression(rate, 1000, 500)
    factor = (1 + rate) / (1 - rate)
    found = chain_variance(walks)
    assert float(found.mean()) * 1000 == pytest.approx(factor, rel=0.2)
    assert agrees((found.mean().sqrt() / walks.mean(0).std()).reshape(1))
    assert torch.allclose(chain_variance(walks.reshape(1000, 5, 100)).flatten(), found)


def test_the_estimator_is_that_of_diagnose():
    walks = autoregression(0.7, 800, 40)
    ours = chain_variance(walks).sqrt()
    theirs = diagnose.mcse(walks.unsqueeze(0))
    assert float((ours / theirs).median()) == pytest.approx(1.0, abs=0.02)
    near = ((ours / theirs).log().abs() < 0.1).double().mean()  # ArviZ cuts a chain into halves, which may disagree
    assert float(near) >= 0.9


def test_a_sampler_s_draws_are_worth_less_than_independent_ones():
    """A network whose output is its weight: predictions are the chain itself."""
    problem = tp.Target(nn.Linear(1, 1, bias=False).double(), tp.Normal(1.0), tp.GaussianPrior(1.0))
    one = torch.ones(1, 1, dtype=torch.float64)
    walks = autoregression(0.8, 600, 120)
    made = [predict(Engine(problem), Draws(walk.unsqueeze(1)), one) for walk in walks.T]
    means, errors = (
        torch.stack([f(p).flatten() for p in made]) for f in (lambda p: p.mean(), lambda p: p.monte_carlo_error())
    )
    assert agrees(ratio(means, errors))
    together = predict(Engine(problem), Mixture(tuple(Draws(walk.unsqueeze(1)) for walk in walks.T[:4])), one)
    assert float(together.monte_carlo_error()) == pytest.approx(float(errors[:4].square().sum().sqrt()) / 4, rel=1e-6)


def test_blocks_within_a_chain_are_averaged_first():
    walk = autoregression(0.8, 300, 1)
    offsets = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    twice = (walk.unsqueeze(1) + offsets).reshape(600, 1)
    weights = torch.full((600,), 1 / 600)
    found = standard_error(twice, weights, (Stratum(600, block=2, chain=True),))
    assert torch.allclose(found, chain_variance(walk).sqrt())


def test_nothing_was_drawn_or_nothing_can_be_told():
    problem = target()
    engine, posterior = Engine(problem), gaussian(problem)
    assert not predict(engine, Point(posterior.mean), X).monte_carlo_error().any()
    curve = CurvePosterior(torch.stack([problem.fresh_theta(0), problem.fresh_theta(1)]).double())
    assert not predict(engine, curve, X).monte_carlo_error().any()
    for draws in (1, 2):  # one, or one pair
        assert bool(torch.isinf(predict(engine, posterior, X, draws=draws).monte_carlo_error()).all())
    assert bool(torch.isfinite(predict(engine, posterior, X, draws=3).monte_carlo_error()).all())
    assert not from_outputs(torch.randn(4, 3), tp.Categorical()).monte_carlo_error().any()


@pytest.mark.parametrize(
    ("likelihood", "outputs"),
    [
        (tp.Categorical(), 3),
        (tp.Bernoulli(), 2),
        (tp.Normal(0.5), 2),
        (tp.HeteroscedasticNormal(), 4),
        (tp.Poisson(), 2),
    ],
)
def test_every_predictive_has_it_in_the_shape_of_its_mean(likelihood, outputs):
    problem = target(likelihood, outputs)
    found = predict(Engine(problem), gaussian(problem), X, draws=32)
    assert found.monte_carlo_error().shape == found.mean().shape
    assert bool((found.monte_carlo_error() > 0).all())
    few = predict(Engine(problem), gaussian(problem), X, draws=32, batch_size=2)
    assert torch.allclose(few.monte_carlo_error(), found.monte_carlo_error())


def test_other_units_and_positions():
    problem = target(tp.Normal(0.5), 1)
    found = predict(Engine(problem), gaussian(problem), X, draws=32)
    shifted = AffinePredictive(found, 100.0, 7.0)
    assert torch.allclose(shifted.monte_carlo_error(), 7 * found.monte_carlo_error())
    assert torch.allclose(shifted.imprecision(), found.imprecision())
    plain = [predict(Engine(problem), gaussian(problem), X, draws=32, seed=seed) for seed in range(300)]
    bent = [MonotonePredictive(made, Log()) for made in plain]
    assert agrees(ratio(torch.stack([p.mean() for p in bent]), torch.stack([p.monte_carlo_error() for p in bent])))
    logits = torch.randn(6, 2, 4, 3)
    placed = from_outputs(logits, tp.PerPosition(tp.Categorical()))
    assert placed.monte_carlo_error().shape == placed.probs.shape == (2, 4, 3)


def test_linearised_networks():
    train, test = tp.data.load("iris")
    problem = tp.Target(tp.nn.MLP(4, [8], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    fitted = tp.fit(problem, tp.Laplace(tp.MAP(lr=1e-2)), train, epochs=20, seed=0)
    for by in ("probit", "bridge"):
        assert not fitted.predict(test.x, by=by).monte_carlo_error().any()
    points = fitted.predict(test.x)
    error = points.monte_carlo_error()
    assert torch.equal(error, points.monte_carlo_error())
    exact = torch.stack([points._mean_of(fitted.predict(test.x).source.again(k)) for k in range(8, 72)]).mean(0)
    off = (points.mean() - exact).square().mean().sqrt()
    assert 0.5 < float(error.square().mean().sqrt() / off) < 2.0
    functions = fitted.predict(test.x, by="functions", draws=64)
    assert functions.source.strata == (Stratum(64),)
    assert float(functions.monte_carlo_error().mean()) > 5 * float(error.mean())
    cooler = map_logits(points, torch.tensor([0.7]), torch.zeros(1))
    assert 0 < float(cooler.monte_carlo_error().max()) < 0.05
    noise = tp.Target(tp.nn.MLP(4, [8], 1), tp.Normal(), tp.GaussianPrior(1.0))
    for tails in (False, True):  # without, outputs and noise are Gaussian in closed form; with, by exact points
        method = tp.Laplace(tp.MAP(lr=1e-2), tune=tp.Width(noise=tails))
        regression = tp.fit(noise, method, (train.x, train.x[:, :1]), epochs=5, seed=0)
        assert (regression.target.likelihood != noise.likelihood) is tails
        assert float(regression.predict(test.x).monte_carlo_error().max()) <= (1e-6 if tails else 0.0)
