from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from temperance.core.errors import ArgumentError
from temperance.predict.scores import gaussian_crps, gaussian_log_score, interval_coverage, rmse, sample_crps


def test_rmse() -> None:
    rng = np.random.default_rng(0)
    mean, y = rng.normal(size=(2, 50, 3))
    assert rmse(mean, y) == pytest.approx(math.sqrt(((mean - y) ** 2).mean()), rel=1e-14)
    assert rmse(y, y) == 0.0
    assert type(rmse(torch.tensor(mean), y.tolist())) is float


def test_gaussian_log_score_is_scipys() -> None:
    rng = np.random.default_rng(0)
    mean, y = rng.normal(size=(2, 50))
    std = rng.gamma(2.0, size=50)
    assert gaussian_log_score(mean, std, y) == pytest.approx(stats.norm.logpdf(y, mean, std).mean(), rel=1e-13)
    assert gaussian_log_score(mean, 0.5, y) == pytest.approx(stats.norm.logpdf(y, mean, 0.5).mean(), rel=1e-13)


def crps_by_integration(distribution: stats.rv_continuous, y: float) -> float:
    below, _ = integrate.quad(lambda t: distribution.cdf(t) ** 2, -40, y, epsabs=1e-12, limit=400)
    above, _ = integrate.quad(lambda t: distribution.sf(t) ** 2, y, 40, epsabs=1e-12, limit=400)
    return below + above


@pytest.mark.parametrize(("mean", "std", "y"), [(0, 1, 0), (0, 1, 2.5), (1.3, 0.4, -0.7), (-2, 3, 1), (0, 1, -6)])
def test_gaussian_crps_is_the_integral(mean: float, std: float, y: float) -> None:
    assert gaussian_crps([mean], [std], [y]) == pytest.approx(crps_by_integration(stats.norm(mean, std), y), abs=1e-8)


def test_gaussian_crps_goldens_and_limits() -> None:
    assert gaussian_crps([0.0], [1.0], [0.0]) == pytest.approx((math.sqrt(2) - 1) / math.sqrt(math.pi), rel=1e-14)
    assert gaussian_crps([1.0, 2.0], [0.0, 0.0], [1.0, 5.0]) == 1.5  # std 0: the absolute error
    assert gaussian_crps([1.0], [1e-9], [5.0]) == pytest.approx(4.0, abs=1e-8)
    assert gaussian_crps([0.0], [1e-3], [1e4]) == pytest.approx(1e4 - 1e-3 / math.sqrt(math.pi), rel=1e-12)
    assert gaussian_crps([3.0, 6.0], 2.0, [1.0, 4.0]) == gaussian_crps([3.0, 6.0], [2.0, 2.0], [1.0, 4.0])


def slow_sample_crps(samples: np.ndarray, y: np.ndarray, fair: bool) -> float:
    size = len(samples)
    total = 0.0
    for n in range(len(y)):
        pairs = sum(abs(a - b) for a in samples[:, n] for b in samples[:, n])
        total += np.abs(samples[:, n] - y[n]).mean() - pairs / (2 * size * (size - 1 if fair else size))
    return total / len(y)


@pytest.mark.parametrize("fair", [True, False])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_sample_crps_is_the_double_loop(fair: bool, offset: float) -> None:
    rng = np.random.default_rng(0)
    samples, y = rng.normal(size=(13, 7)), rng.normal(size=7)
    samples[3] = samples[5]  # equal samples
    expected = slow_sample_crps(samples, y, fair)
    assert sample_crps(samples + offset, y + offset, fair) == pytest.approx(expected, abs=1e-15 + 1e-15 * offset)


def test_sample_crps_of_one_sample_is_the_absolute_error() -> None:
    assert sample_crps([[1.0, 2.0]], [4.0, 2.0], fair=False) == 1.5


def test_plain_sample_crps_is_the_integral_of_the_empirical_distribution() -> None:
    samples, y = np.array([0.3, -1.0, 2.0]), 0.5
    knots = np.sort(np.append(samples, y))
    middles = (knots[1:] + knots[:-1]) / 2
    heights = [((samples <= t).mean() - (t >= y)) ** 2 for t in middles]
    assert sample_crps(samples[:, None], [y], fair=False) == pytest.approx(np.dot(heights, np.diff(knots)))


def test_fair_sample_crps_agrees_with_the_closed_form_within_monte_carlo_error() -> None:
    rng = np.random.default_rng(1)
    mean, std, y = 0.7, 1.5, 2.0
    estimates = np.array([sample_crps(rng.normal(mean, std, (20, 1)), [y]) for _ in range(2000)])
    plain = np.array([sample_crps(rng.normal(mean, std, (20, 1)), [y], fair=False) for _ in range(2000)])
    error = estimates.std(ddof=1) / math.sqrt(len(estimates))
    assert abs(estimates.mean() - gaussian_crps([mean], [std], [y])) < 4 * error
    assert plain.mean() - gaussian_crps([mean], [std], [y]) > 4 * error  # biased upwards by E|X - X'| / 2S
    assert plain.mean() - gaussian_crps([mean], [std], [y]) == pytest.approx(
        std / math.sqrt(math.pi) / 20, abs=5 * error
    )


def test_crps_of_tables() -> None:
    rng = np.random.default_rng(0)
    samples, y = rng.normal(size=(9, 4, 3)), rng.normal(size=(4, 3))
    assert sample_crps(samples, y) == pytest.approx(sample_crps(samples.reshape(9, 12), y.reshape(12)))


def test_the_true_forecast_scores_best_on_average() -> None:
    y = np.random.default_rng(0).normal(size=4000)
    zero, one = np.zeros(4000), np.ones(4000)
    for other_mean, other_std in ((0.5, 1.0), (0.0, 2.0), (0.0, 0.5)):
        assert gaussian_crps(zero, one, y) < gaussian_crps(zero + other_mean, other_std * one, y)
        assert gaussian_log_score(zero, one, y) > gaussian_log_score(zero + other_mean, other_std * one, y)


def test_interval_coverage_by_hand_and_by_scipy() -> None:
    y = np.arange(10.0)
    result = interval_coverage(np.full(10, 2.0), np.full(10, 8.0), y)  # ends count: 2, ..., 8
    reference = stats.binomtest(7, 10).proportion_ci(0.95, "exact")
    assert (result.coverage, result.mean_width, result.level) == (0.7, 6.0, 0.95)
    assert (result.low, result.high) == pytest.approx((reference.low, reference.high), rel=1e-9)
    narrow = interval_coverage(np.full(10, 2.0), np.full(10, 8.0), y, level=0.5)
    assert result.low < narrow.low < 0.7 < narrow.high < result.high


def test_interval_coverage_of_all_and_none() -> None:
    y = np.zeros(20)
    every, none = interval_coverage(y - 1, y + 1, y), interval_coverage(y + 1, y + 2, y)
    assert (every.coverage, every.high) == (1.0, 1.0)
    assert every.low == pytest.approx(0.025 ** (1 / 20))
    assert (none.coverage, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 20))
    assert interval_coverage([-math.inf], [math.inf], [3.0]).mean_width == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rmse([1.0], [1.0, 2.0]), r"`mean` must have the shape of `y`, \(2,\); got \(1,\)"),
        (lambda: rmse(np.zeros((3, 1)), np.zeros(3)), r"`mean` must have the shape of `y`, \(3,\); got \(3, 1\)"),
        (lambda: rmse([], []), "`mean` must not be empty"),
        (lambda: rmse([math.nan], [0.0]), "`mean` must hold finite numbers; got 1 that is not, of 1"),
        (lambda: gaussian_crps([0.0], [-1.0], [0.0]), "`std` must not be negative; got -1"),
        (lambda: gaussian_crps([0.0], [math.inf], [0.0]), "`std` must hold finite numbers"),
        (lambda: gaussian_crps([0.0, 1.0], [1.0], [0.0, 1.0]), r"`std` must have the shape of `y`, \(2,\); got \(1,\)"),
        (lambda: gaussian_log_score([0.0], [0.0], [0.0]), "`std` must be positive; got 0"),
        (lambda: gaussian_log_score([0.0], [-2.0], [0.0]), "`std` must be positive; got -2"),
        (lambda: gaussian_log_score([0.0], [1.0], [math.nan]), "`y` must hold finite numbers"),
        (lambda: sample_crps([[0.0]], [0.0]), "`samples` must be at least 2 for the fair score; got 1"),
        (lambda: sample_crps(np.zeros((3, 2)), np.zeros(3)), r"`samples` must be S x the shape of `y`, \(3,\)"),
        (lambda: sample_crps([[math.nan], [0.0]], [0.0]), "`samples` must hold finite numbers"),
        (lambda: interval_coverage([1.0], [0.0], [0.5]), "`low` must not be above `high`; got 1 that are"),
        (lambda: interval_coverage([0.0], [1.0, 2.0], [0.5]), "`high` must have the shape of `y`"),
        (lambda: interval_coverage([math.nan], [1.0], [0.5]), "`low` must hold numbers, not NaN"),
        (lambda: interval_coverage([0.0], [1.0], [0.5], level=95), "`level` must lie strictly between 0 and 1; got 95"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()  # type: ignore[operator]
