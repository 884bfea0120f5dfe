from __future__ import annotations

import numpy as np
import pytest
import torch

from temperance.core.errors import ArgumentError
from temperance.predict.scores import Binning, CalibrationError, calibration, ece, mce, reliability_curve


def forecasts(n: int, overconfidence: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes; the first has confidence c and probability c - 2 · overconfidence · (c - ½)."""
    rng = np.random.default_rng(seed)
    c = 0.5 + 0.5 * rng.beta(4, 1.5, n)
    y = (rng.random(n) >= c - 2 * overconfidence * (c - 0.5)).astype(int)
    return np.stack([c, 1 - c], 1), y


def slow_ece(probs: np.ndarray, y: np.ndarray, bins: int) -> tuple[float, float]:
    confidence, correct = probs.max(1), probs.argmax(1) == y
    expected, maximal = 0.0, 0.0
    for b in range(bins):
        inside = (confidence > b / bins) & (confidence <= (b + 1) / bins)
        if inside.any():
            gap = abs(correct[inside].mean() - confidence[inside].mean())
            expected += inside.mean() * gap
            maximal = max(maximal, gap)
    return expected, maximal


@pytest.mark.parametrize("bins", [1, 5, 10, 15, 100])
@pytest.mark.parametrize("seed", [0, 1])
def test_equal_to_a_slow_loop(bins: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(4), 200)
    y = rng.integers(0, 4, 200)
    expected, maximal = slow_ece(probs, y, bins)
    curve = reliability_curve(probs, y, bins)
    assert ece(probs, y, bins, resamples=2).value == pytest.approx(expected, abs=1e-13)
    assert mce(probs, y, bins, resamples=2).value == pytest.approx(maximal, abs=1e-13)
    assert (curve.expected_error, curve.maximal_error) == pytest.approx((expected, maximal), abs=1e-13)


def test_by_hand() -> None:
    probs = [[0.6, 0.4], [0.6, 0.4], [0.1, 0.9], [0.1, 0.9]]
    result = ece(probs, [0, 1, 1, 1], bins=10)
    assert result.value == pytest.approx(0.5 * 0.1 + 0.5 * 0.1)
    assert result.bins.confidence == pytest.approx((0.6, 0.9))
    assert result.bins.accuracy == (0.5, 1.0)
    assert result.bins.count == (2, 2)
    assert result.level == 0.95


def test_edges_belong_to_the_bin_below() -> None:
    probs = [[0.7, 0.3], [0.7001, 0.2999], [0.8, 0.2]]
    assert reliability_curve(probs, [0, 0, 0], bins=10).count == (1, 2)


def test_all_in_one_bin() -> None:
    for binning in Binning:
        result = ece([[0.9, 0.1]] * 10, [0] * 5 + [1] * 5, binning=binning)
        assert result.value == pytest.approx(0.4)
        assert result.bins.count == (10,)


def test_best_and_worst() -> None:
    sure = np.eye(2)[[0, 1] * 50]
    right, wrong = ece(sure, [0, 1] * 50), ece(sure, [1, 0] * 50)
    assert (right.value, right.low, right.high) == (0.0, 0.0, 0.0)
    assert (wrong.value, wrong.low, wrong.high) == (1.0, 1.0, 1.0)
    assert mce(sure, [1, 0] * 50).value == 1.0


def test_equal_mass_bins_are_equal_and_do_not_depend_on_the_order() -> None:
    probs, y = forecasts(103, 0.1, seed=0)
    probs[:30] = probs[0]  # many equal confidences
    shuffle = np.random.default_rng(1).permutation(103)
    first = reliability_curve(probs, y, 10, Binning.EQUAL_MASS)
    second = reliability_curve(probs[shuffle], y[shuffle], 10, Binning.EQUAL_MASS)
    assert first.count == second.count
    assert first.confidence == pytest.approx(second.confidence)
    assert first.accuracy == pytest.approx(second.accuracy)
    distinct, y = forecasts(103, 0.1, seed=0)
    counts = reliability_curve(distinct, y, 10, Binning.EQUAL_MASS).count
    assert len(counts) == 10
    assert set(counts) <= {10, 11}


def test_same_seed_same_interval_other_seed_another() -> None:
    probs, y = forecasts(300, 0.3, seed=0)
    assert ece(probs, y) == ece(probs, y)
    assert ece(probs, y, seed=1).low != ece(probs, y).low
    assert ece(probs, y, seed=1).value == ece(probs, y).value


def test_resampling_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, y = forecasts(300, 0.3, seed=0)
    whole = ece(probs, y, resamples=50)
    monkeypatch.setattr("temperance.predict.scores.calibration.RESAMPLED_AT_ONCE", 1000)
    assert ece(probs, y, resamples=50) == whole


@pytest.mark.parametrize("one_by_one", [10**9, 0])
def test_resampled_sums_have_the_moments_of_draws_with_replacement(
    one_by_one: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of N draws with replacement the sums S_b of the gaps g in bin b have the mean Σ_b g and the covariances
    δ_ab Σ_b g² − Σ_a g Σ_b g / N. One bin has five examples, in one they are all alike, and none are in order."""
    monkeypatch.setattr(calibration, "ONE_BY_ONE", one_by_one)
    rng = np.random.default_rng(3)
    number = rng.permutation(np.repeat([0, 1, 2, 3], [5, 1500, 495, 1000]))
    gap = np.where(rng.random(3000) < 0.7, 1.0, 0.0) - (0.6 + 0.1 * number / 4 + 0.02 * rng.random(3000))
    gap[number == 3] = 0.25
    many = 20_000
    sums, counts = calibration._resampled_gaps(torch.tensor(gap), torch.tensor(number), many, seed=1)
    totals = np.bincount(number, gap)
    covariance = np.diag(np.bincount(number, gap**2)) - np.outer(totals, totals) / 3000
    spread = np.sqrt(np.diag(covariance))
    assert np.abs(sums.mean(0).numpy() - totals).max() < 4 * (spread / many**0.5).max()
    off = (np.cov(sums.T.numpy()) - covariance) / np.outer(spread, spread)
    assert np.abs(off).max() < 0.05
    assert (counts.sum(1) == 3000).all()
    assert counts.double().mean(0).numpy() == pytest.approx(np.bincount(number), rel=0.01)


def test_many_examples_are_resampled_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, y = forecasts(5000, 0.2, seed=0)
    slow = ece(probs, y)
    monkeypatch.setattr(calibration, "ONE_BY_ONE", 1000)
    fast = ece(probs, y)
    assert fast.value == slow.value
    assert (fast.low, fast.high) == pytest.approx((slow.low, slow.high), abs=0.002)
    assert ece(probs, y, seed=1).low != fast.low
    assert fast.low != slow.low  # another stream: it was the other way of drawing
    assert ece(probs, y) == fast
    check(mce(probs, y))


def check(result: CalibrationError) -> None:
    assert 0 <= result.low <= result.value <= result.high


def test_a_calibrated_forecast_has_an_interval_from_zero_and_an_overconfident_one_has_not() -> None:
    calibrated = [ece(*forecasts(1000, 0.0, seed), resamples=300) for seed in range(30)]
    overconfident = [ece(*forecasts(1000, 0.2, seed), resamples=300) for seed in range(10)]
    for result in calibrated + overconfident:
        check(result)
    # Expected: 1.5 of 30 by chance. Without the rule that starts the interval at zero there are 5 on these seeds.
    assert sum(result.low > 0 for result in calibrated) <= 4
    assert max(result.high for result in calibrated) < 0.05  # plain percentiles reach 0.052
    assert min(result.low for result in overconfident) > 0.05


def test_the_interval_covers_the_true_error() -> None:
    """The truth is the mean over a long sample of overconfidence · 2 (c - ½); all gaps have one sign."""
    probs, _ = forecasts(400_000, 0.2, seed=9)
    truth = 0.4 * (probs[:, 0] - 0.5).mean()
    results = [ece(*forecasts(1000, 0.2, seed), level=0.9, resamples=300) for seed in range(60)]
    covered = sum(result.low <= truth <= result.high for result in results)
    assert covered >= 44  # Binomial(60, 0.9) falls below 44 with probability 1e-4
    widths = np.array([result.high - result.low for result in results])
    spread = np.std([result.value for result in results])
    assert widths.mean() / (2 * 1.645 * spread) == pytest.approx(1, abs=0.35)  # neither too narrow nor too wide


def test_more_examples_narrow_the_interval() -> None:
    wide, narrow = ece(*forecasts(500, 0.2, 0)), ece(*forecasts(8000, 0.2, 0))
    assert 2.5 < (wide.high - wide.low) / (narrow.high - narrow.low) < 6  # √16 = 4


def test_maximal_error_sees_one_bad_bin() -> None:
    probs = [[0.55, 0.45]] * 200 + [[0.95, 0.05]] * 200
    y = [0] * 110 + [1] * 90 + [0] * 150 + [1] * 50
    result = mce(probs, y)
    check(result)
    assert result.value == pytest.approx(0.2)
    assert result.low > 0.1
    calm = mce([[0.55, 0.45]] * 200, [0] * 108 + [1] * 92)
    check(calm)
    assert calm.low == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 0}, "`bins` must be a positive integer; got 0"),
        ({"bins": 2.5}, "`bins` must be a positive integer; got 2.5"),
        ({"binning": "equal_mass"}, "`binning` must be a member of Binning; got 'equal_mass'"),
        ({"level": 1.0}, "`level` must lie strictly between 0 and 1; got 1.0"),
        ({"resamples": 0}, "`resamples` must be a positive integer; got 0"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    for score in (ece, mce):
        with pytest.raises(ArgumentError, match=message):
            score([[0.5, 0.5]], [0], **options)  # type: ignore[arg-type]


def test_bad_forecasts_are_named() -> None:
    for score in (ece, mce, reliability_curve):
        with pytest.raises(ArgumentError, match="`probs` must have rows that sum to 1"):
            score([[0.5, 0.6]], [0])
        with pytest.raises(ArgumentError, match="`y` must have one entry for each of the 1 forecasts; got 2"):
            score([[0.5, 0.5]], [0, 1])
