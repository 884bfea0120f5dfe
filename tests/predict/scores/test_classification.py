from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics

from temperance.core.errors import ArgumentError
from temperance.predict.scores import (
    accuracy,
    agreement,
    brier,
    brier_decomposition,
    log_loss,
    total_variation,
)

DATA = Path(os.environ.get("TEMPERANCE_DATA") or Path(__file__).parents[4] / "shared" / "data")
HMC = DATA / "hmc-reference" / "hmc_cifar10_resnet20frn.npz"


def random_forecasts(n: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(classes, 0.7), n)
    return probs, np.array([rng.choice(classes, p=0.5 * row + 0.5 / classes) for row in probs])


@pytest.mark.parametrize("classes", [2, 5])
def test_equal_to_scikit_learn(classes: int) -> None:
    probs, y = random_forecasts(300, classes)
    labels = np.arange(classes)
    assert log_loss(probs, y) == pytest.approx(metrics.log_loss(y, probs, labels=labels), rel=1e-12)
    assert accuracy(probs, y) == pytest.approx(metrics.accuracy_score(y, probs.argmax(1)), abs=1e-15)
    if classes == 2:
        assert brier(probs, y) == pytest.approx(2 * metrics.brier_score_loss(y, probs[:, 1]), rel=1e-12)


def test_by_hand() -> None:
    probs = [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]]
    y = [0, 2, 2]
    assert log_loss(probs, y) == pytest.approx(-(math.log(0.7) + math.log(0.8) + math.log(0.3)) / 3)
    assert brier(probs, y) == pytest.approx((0.09 + 0.04 + 0.01 + 0.01 + 0.01 + 0.04 + 0.09 + 0.16 + 0.49) / 3)
    assert accuracy(probs, y) == pytest.approx(2 / 3)


def test_perfect_and_worst() -> None:
    sure = np.eye(3)
    assert (log_loss(sure, [0, 1, 2]), brier(sure, [0, 1, 2]), accuracy(sure, [0, 1, 2])) == (0.0, 0.0, 1.0)
    assert (log_loss(sure, [1, 2, 0]), brier(sure, [1, 2, 0]), accuracy(sure, [1, 2, 0])) == (math.inf, 2.0, 0.0)
    assert log_loss(sure, [0, 1, 0]) == math.inf  # one impossible event among three: not clipped


def test_equal_probabilities_count_for_the_first_class() -> None:
    assert accuracy([[0.5, 0.5], [0.5, 0.5]], [0, 1]) == 0.5


def test_tensors_arrays_and_lists_give_the_same_python_float() -> None:
    probs, y = random_forecasts(20, 3)
    forms = [
        (probs, y),
        (probs.tolist(), y.tolist()),
        (torch.tensor(probs, requires_grad=True), torch.tensor(y)),
        (probs, y.astype(np.float64)),
    ]
    for score in (log_loss, accuracy, brier):
        values = [score(*form) for form in forms]
        assert all(type(value) is float for value in values)
        assert len(set(values)) == 1


def test_single_precision_is_scored_in_double() -> None:
    probs, y = random_forecasts(1000, 10)
    single = torch.softmax(torch.tensor(probs).log().float(), dim=1)
    assert log_loss(single, y) == pytest.approx(log_loss(probs, y), rel=1e-6)


@pytest.mark.parametrize("bins", [1, 3, 10, 50, None])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_brier_parts_add_up_exactly(bins: int | None, classes: int, seed: int) -> None:
    probs, y = random_forecasts(200, classes, seed)
    parts = brier_decomposition(probs, y, bins)
    assert parts.brier == pytest.approx(brier(probs, y), abs=1e-13)
    assert min(parts.uncertainty, parts.resolution, parts.reliability, parts.within_bin_variance) >= 0


@pytest.mark.parametrize("bins", [4, None])
def test_brier_three_parts_are_the_score_of_the_binned_forecast_by_a_slow_loop(bins: int | None) -> None:
    probs, y = random_forecasts(60, 3, seed=5)
    binned = np.empty_like(probs)
    for k in range(3):
        group = probs.argmax(1) if bins is None else np.ceil(probs[:, k] * bins)
        for g in np.unique(group):
            binned[group == g, k] = probs[group == g, k].mean()
    score = ((binned - np.eye(3)[y]) ** 2).sum(1).mean()
    assert brier_decomposition(probs, y, bins).binned_brier == pytest.approx(score, abs=1e-13)


def test_brier_three_parts_suffice_where_forecasts_in_a_bin_are_equal() -> None:
    rng = np.random.default_rng(0)
    p = rng.choice([0.05, 0.35, 0.75], 100)
    probs, y = np.stack([1 - p, p], 1), (rng.random(100) < p).astype(int)
    parts = brier_decomposition(probs, y, bins=10)
    assert parts.within_bin_variance == pytest.approx(0, abs=1e-15)
    assert parts.within_bin_covariance == pytest.approx(0, abs=1e-15)
    assert parts.binned_brier == pytest.approx(brier(probs, y), abs=1e-13)


def test_brier_parts_by_hand() -> None:
    """Ten forecasts of 0.8, six of which come true; ten of 0.2, two of which do."""
    probs = [[0.2, 0.8]] * 10 + [[0.8, 0.2]] * 10
    y = [1] * 6 + [0] * 4 + [1] * 2 + [0] * 8
    parts = brier_decomposition(probs, y)
    assert parts.uncertainty == pytest.approx(2 * 0.4 * 0.6)
    assert parts.resolution == pytest.approx(2 * 0.2**2)
    assert parts.reliability == pytest.approx(2 * (0.2**2 + 0) / 2)


def test_base_rate_forecast_has_uncertainty_only() -> None:
    parts = brier_decomposition([[0.3, 0.7]] * 10, [0] * 3 + [1] * 7)
    assert parts.uncertainty == pytest.approx(0.42)
    assert (parts.resolution, parts.reliability) == pytest.approx((0, 0), abs=1e-15)


def test_agreement_and_total_variation() -> None:
    p, _ = random_forecasts(50, 4, 1)
    q, _ = random_forecasts(50, 4, 2)
    assert (agreement(p, p), total_variation(p, p)) == (1.0, 0.0)
    assert agreement(p, q) == (p.argmax(1) == q.argmax(1)).mean()
    assert total_variation(p, q) == pytest.approx(0.5 * np.abs(p - q).sum() / 50)
    assert total_variation(p, q) == total_variation(q, p)
    assert (agreement(np.eye(2), np.eye(2)[::-1]), total_variation(np.eye(2), np.eye(2)[::-1])) == (0.0, 1.0)


GOOD = [[0.5, 0.5], [0.2, 0.8]]


@pytest.mark.parametrize("score", [log_loss, accuracy, brier, brier_decomposition])
@pytest.mark.parametrize(
    ("probs", "y", "message"),
    [
        ([[0.5, float("nan")], [0.2, 0.8]], [0, 1], "`probs` must hold finite numbers; got 1 that is not, of 4"),
        ([[0.5, 0.4], [0.2, 0.8]], [0, 1], "`probs` must have rows that sum to 1; got a row that sums to 0.9"),
        ([[1.5, -0.5], [0.2, 0.8]], [0, 1], "`probs` must not be negative; got -0.5"),
        (np.zeros((0, 2)), [], "`probs` must not be empty"),
        ([0.5, 0.5], [0, 1], r"`probs` must be N x C, .* got shape \(2,\)"),
        ([[1.0], [1.0]], [0, 0], r"`probs` must be N x C, .* got shape \(2, 1\)"),
        ([[0.5, 0.5], [1.0]], [0, 1], "`probs` must hold numbers in a rectangular array"),
        ("half", [0, 1], "`probs` must hold numbers"),
        (torch.zeros(2, 2, dtype=torch.complex64), [0, 1], "`probs` must hold real numbers"),
        (GOOD, [0, 2], "`y` must hold whole numbers from 0 to 1; got 2"),
        (GOOD, [0, -1], "`y` must hold whole numbers from 0 to 1; got -1"),
        (GOOD, [0, 0.5], "`y` must hold whole numbers from 0 to 1; got 0.5"),
        (GOOD, [0, float("nan")], "`y` must hold finite numbers"),
        (GOOD, [0, 1, 1], "`y` must have one entry for each of the 2 forecasts; got 3"),
        (GOOD, [[0], [1]], r"`y` must have 1 dimension\(s\); got shape \(2, 1\)"),
    ],
)
def test_bad_input_is_named(score: object, probs: object, y: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        score(probs, y)  # type: ignore[operator]


def test_other_bad_input_is_named() -> None:
    with pytest.raises(ArgumentError, match="`bins` must be a positive integer; got 0"):
        brier_decomposition(GOOD, [0, 1], bins=0)
    for score in (agreement, total_variation):
        with pytest.raises(ArgumentError, match=r"`q` must have the shape of `p`, \(2, 2\); got \(1, 2\)"):
            score(GOOD, GOOD[:1])
        with pytest.raises(ArgumentError, match="`q` must have rows that sum to 1"):
            score(GOOD, [[0.5, 0.6], [0.2, 0.8]])


@pytest.mark.skipif(
    not HMC.is_file() or not (DATA / "cifar10" / "labels.npz").is_file(),
    reason=f"needs hmc-reference and cifar10 in {DATA} (set TEMPERANCE_DATA)",
)
def test_published_numbers_of_the_long_hmc_run_on_cifar10() -> None:
    stored = np.load(HMC)
    y = np.load(DATA / "cifar10" / "labels.npz")["test"][stored["canonical_index"]]
    assert accuracy(stored["probs"], y) == pytest.approx(0.9144, abs=1e-9)
    assert log_loss(stored["probs"], y) == pytest.approx(0.277, abs=5e-4)
