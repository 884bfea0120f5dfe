"""Are the numbers of the estimators right? Against closed forms and Monte-Carlo error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris, make_blobs

import temperance as tp
from temperance.apps.sklearn import BayesianClassifier, BayesianCounts, BayesianRegressor

NEWTON: dict[str, Any] = {"tolerance_grad": 1e-14, "tolerance_change": 1e-16}
EXACT = tp.Laplace(tp.MAP(lr=1.0, optimizer=torch.optim.LBFGS, optimizer_args=NEWTON), curvature=tp.Dense(), tune=None)
NOISE, PRIOR = 0.3, 0.7
DRAWS = 600


def line(rows: int, seed: int, noise: float = 10.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(2.0, 3.0, (rows, 2))
    return x, 1000 + x @ np.array([5.0, -8.0]) + rng.normal(0, noise, rows)


@pytest.fixture(scope="module")
def linear() -> BayesianRegressor:
    """A linear model with learned noise, 400 rows."""
    return BayesianRegressor("Laplace(MAP(lr=2e-2))", hidden=(), epochs=40, random_state=0).fit(*line(400, 0))


@pytest.fixture(scope="module")
def iris() -> tuple[BayesianClassifier, np.ndarray, np.ndarray]:
    x, y = load_iris(return_X_y=True)
    model = BayesianClassifier("Ensemble(MAP(lr=2e-2), 3)", hidden=(16,), epochs=20, random_state=0)
    return model.fit(x, y), x, y


@pytest.mark.parametrize("standardise", [False, True])
def test_linear_regression_has_the_closed_form(standardise: bool) -> None:
    rng = np.random.default_rng(1)
    x, new = rng.normal(3, 2, (25, 2)), rng.normal(3, 6, (7, 2))
    y = x @ np.array([0.5, -0.2]) + 0.1 + rng.normal(0, NOISE, 25)
    model = BayesianRegressor(
        EXACT,
        hidden=(),
        likelihood=tp.Normal(scale=NOISE),
        prior=tp.GaussianPrior(scale=PRIOR),
        standardise=standardise,
        epochs=20,
        batch_size=25,
        random_state=0,
    ).fit(x, y)
    mean, std = model.predict(new, return_std=True)

    x_shift, x_scale, y_shift, y_scale = 0.0, 1.0, 0.0, 1.0
    if standardise:
        x_shift, x_scale, y_shift, y_scale = x.mean(0), x.std(0), y.mean(), y.std()
    phi, phi_new = (np.column_stack([(v - x_shift) / x_scale, np.ones(len(v))]) for v in (x, new))
    covariance = np.linalg.inv(phi.T @ phi / NOISE**2 + np.eye(3) / PRIOR**2)
    weights = covariance @ phi.T @ ((y - y_shift) / y_scale) / NOISE**2
    variance = np.einsum("ni,ij,nj->n", phi_new, covariance, phi_new)
    np.testing.assert_allclose(mean, y_shift + y_scale * phi_new @ weights, rtol=1e-6)
    np.testing.assert_allclose(std, y_scale * np.sqrt(variance + NOISE**2), rtol=1e-6)

    total, aleatoric, epistemic = model.uncertainty(new)
    np.testing.assert_allclose(aleatoric, NOISE * y_scale, rtol=1e-6)
    np.testing.assert_allclose(epistemic, y_scale * np.sqrt(variance), rtol=1e-6)
    np.testing.assert_allclose(total, std, rtol=1e-12)
    expected = -0.5 * ((mean - 1.0) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    assert model.log_score(new, np.ones(7)) == pytest.approx(expected.mean(), rel=1e-6)


def test_intervals_hold_as_much_as_they_say(linear: BayesianRegressor) -> None:
    x, y = line(2000, 1)
    low, high = linear.predict_interval(x, level=0.9)
    covered = np.mean((low <= y) & (y <= high))
    # Binomial error 0.0067; σ from 400 rows is known to 3.5 %, which moves coverage by 2 · 1.645 · φ(1.645) · 0.035.
    assert abs(covered - 0.9) < 4 * np.hypot(0.0067, 0.012)
    np.testing.assert_allclose(linear.predict_quantile(x, 0.95), high, rtol=1e-9)


def test_other_units_change_nothing_but_the_units() -> None:
    x, y = line(60, 2)
    settings: dict[str, Any] = {"hidden": (8,), "epochs": 10, "random_state": 0}
    plain = BayesianRegressor("Ensemble(MAP(lr=1e-2), 2)", **settings).fit(x, y)
    large = BayesianRegressor("Ensemble(MAP(lr=1e-2), 2)", **settings).fit(x * [1e-3, 1e6] + 7, 1000 * y + 5)
    mean, std = plain.predict(x, return_std=True)
    mean_large, std_large = large.predict(x * [1e-3, 1e6] + 7, return_std=True)
    np.testing.assert_allclose(mean_large, 1000 * mean + 5, rtol=1e-6)
    np.testing.assert_allclose(std_large, 1000 * std, rtol=1e-6)
    assert large.log_score(x * [1e-3, 1e6] + 7, 1000 * y + 5) == pytest.approx(plain.log_score(x, y) - np.log(1000))


def test_a_small_spread_far_from_zero_is_seen_in_float32() -> None:
    rng = np.random.default_rng(0)
    x = (1e4 + rng.uniform(0, 1, (200, 1))).astype(np.float32)
    y = 1e6 + (x[:, 0].astype(np.float64) - 1e4) + rng.normal(0, 0.01, 200)
    model = BayesianRegressor("map", hidden=(), epochs=60, random_state=0).fit(x, y)
    assert model.fitted_.posterior.theta.dtype == torch.float32
    assert model.score(x, y) > 0.9


def test_draws_of_y_agree_with_mean_and_std(linear: BayesianRegressor) -> None:
    x = np.array([[2.0, 2.0], [60.0, 60.0], [61.0, 60.0]])
    mean, std = linear.predict(x, return_std=True)
    drawn = linear.sample_y(x, DRAWS, random_state=3)
    assert drawn.shape == (3, DRAWS)
    assert np.all(np.abs(drawn.mean(1) - mean) < 4 * std / np.sqrt(DRAWS))
    np.testing.assert_allclose(drawn.std(1), std, rtol=4 / np.sqrt(2 * DRAWS))
    few = linear.sample_y(x, 5, random_state=3)
    np.testing.assert_array_equal(few, linear.sample_y(x, 5, random_state=3))
    assert not np.array_equal(few, linear.sample_y(x, 5, random_state=4))
    # Far away nearly all uncertainty is that of the weights, which two near rows of a draw share.
    parts = linear.uncertainty(x)
    expected = parts.epistemic[1] * parts.epistemic[2] / (std[1] * std[2])
    assert expected > 0.3
    assert np.corrcoef(drawn[1], drawn[2])[0, 1] == pytest.approx(expected, abs=4 / np.sqrt(DRAWS) + 0.02)


def test_several_outputs_have_noise_of_their_own() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 1))
    y = np.column_stack([100 * x[:, 0] + rng.normal(0, 10, 500), x[:, 0] + rng.normal(0, 1, 500)])
    model = BayesianRegressor("MAP(lr=2e-2)", hidden=(), epochs=30, random_state=0).fit(x, y)
    mean, std = model.predict(x, return_std=True)
    assert mean.shape == std.shape == (500, 2)
    np.testing.assert_allclose(std.mean(0), [10, 1], rtol=5 / np.sqrt(2 * 500))
    assert model.sample_y(x[:4], 6).shape == (4, 2, 6)
    assert model.predict_interval(x)[0].shape == (500, 2)
    single = BayesianRegressor("MAP(lr=2e-2)", hidden=(), epochs=1, random_state=0)
    assert single.fit(x, y[:, :1]).predict(x).shape == (500, 1)
    assert single.fit(x, y[:, 0]).predict(x).shape == (500,)


@pytest.mark.parametrize("likelihood", [tp.StudentT(), tp.HeteroscedasticNormal()])
def test_other_noise(likelihood: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (400, 1))
    y = 10 * x[:, 0] + rng.normal(size=400) * np.where(x[:, 0] > 0, 3.0, 0.3)
    model = BayesianRegressor("MAP(lr=2e-2)", hidden=(16,), likelihood=likelihood, epochs=40, random_state=0)
    _, std = model.fit(x, y).predict([[-0.7], [0.7]], return_std=True)
    ratio = std[1] / std[0]
    assert ratio > 3 if isinstance(likelihood, tp.HeteroscedasticNormal) else ratio == pytest.approx(1)


def test_counts_find_the_rate() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (500, 1))
    y = rng.poisson(np.exp(1 + x[:, 0]))
    model = BayesianCounts("Laplace(MAP(lr=2e-2))", hidden=(), epochs=30, random_state=0).fit(x, y)
    mean, std = model.predict([[0.0]], return_std=True)
    assert mean[0] == pytest.approx(np.e, abs=4 * np.sqrt(np.e / 500))
    assert std[0] ** 2 == pytest.approx(mean[0], rel=0.05)  # Poisson, and little is left open
    low, high = model.predict_interval(x, level=0.9)
    assert np.mean((low <= y) & (y <= high)) > 0.9 - 4 * np.sqrt(0.09 / 500)
    assert np.all(model.sample_y(x, 3) == np.rint(model.sample_y(x, 3)))


def test_probabilities_are_probabilities(iris: tuple[BayesianClassifier, np.ndarray, np.ndarray]) -> None:
    model, x, y = iris
    probs = model.predict_proba(x)
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-14)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(x)), probs, rtol=1e-9, atol=1e-15)
    np.testing.assert_array_equal(model.predict(x), model.classes_[probs.argmax(1)])
    assert model.log_score(x, y) == pytest.approx(np.log(probs[np.arange(len(y)), y]).mean(), rel=1e-9)
    assert model.log_score(x, np.where(y == 2, 9, y)) == -np.inf
    assert model.score(x, y) > 0.9


def test_uncertainty_of_classes_adds_up(iris: tuple[BayesianClassifier, np.ndarray, np.ndarray]) -> None:
    model, x, _ = iris
    total, aleatoric, epistemic = model.uncertainty(x)
    probs = model.predict_proba(x)
    np.testing.assert_allclose(total, -(probs * np.log(probs)).sum(1), atol=1e-9)
    np.testing.assert_allclose(total, aleatoric + epistemic, atol=1e-9)
    assert epistemic.min() > -1e-9
    assert epistemic.max() > 1e-3


def test_log_probabilities_stay_finite_where_probabilities_vanish() -> None:
    x, y = make_blobs(60, centers=[[-1, 0], [1, 0]], cluster_std=0.1, random_state=0)
    model = BayesianClassifier("map", hidden=(), epochs=50, random_state=0, standardise=False)
    model.fit(x.astype(np.float32), y)
    far = np.array([[1e4, 0.0]], dtype=np.float32)
    assert model.predict_proba(far)[0, 0] == 0
    assert np.isfinite(model.predict_log_proba(far)).all()


def test_temperature_is_learned_on_rows_that_were_not_trained_on() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5))
    y = (x[:, 0] + rng.normal(0, 1.5, 300) > 0).astype(int)
    settings: dict[str, Any] = {"hidden": (50,), "prior": tp.GaussianPrior(10.0), "epochs": 60, "random_state": 0}
    model = BayesianClassifier("MAP(lr=1e-2)", calibrate="temperature", validation_fraction=0.3, **settings).fit(x, y)
    assert model.fitted_.run["num_data"] == 210
    assert model.calibrator_.rows == 90
    assert model.calibrator_.temperature > 1.5  # it was overfitted
    assert model.calibrator_.after < model.calibrator_.before
    model.calibrator_, kept = None, model.calibrator_
    before = model.predict_proba(x)
    model.calibrator_ = kept
    np.testing.assert_array_equal(model.predict_proba(x).argmax(1), before.argmax(1))
    assert model.predict_proba(x).max(1).mean() < before.max(1).mean()


def test_variance_is_learned_on_rows_that_were_not_trained_on() -> None:
    x, y = line(600, 5)
    model = BayesianRegressor(
        "MAP(lr=2e-2)",
        hidden=(),
        likelihood=tp.Normal(scale=0.01),
        calibrate="variance",
        validation_fraction=0.5,
        epochs=30,
        random_state=0,
    ).fit(x, y)
    assert model.fitted_.run["num_data"] == 300
    std = model.predict(x, return_std=True)[1]
    np.testing.assert_allclose(std, 10, rtol=4 / np.sqrt(2 * 300))
