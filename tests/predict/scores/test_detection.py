from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn import metrics

from temperance.core.errors import ArgumentError
from temperance.predict.scores import auprc, auroc, error_detection, fpr_at_tpr, risk_coverage


def two_samples(seed: int, ties: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(0, 1, 90), rng.normal(0.8, 1.2, 60)
    return (inside.round(0), outside.round(0)) if ties else (inside, outside)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("ties", [True, False])
def test_areas_are_scikit_learns(seed: int, ties: bool) -> None:
    inside, outside = two_samples(seed, ties)
    truth = np.r_[np.zeros(90), np.ones(60)]
    scores = np.r_[inside, outside]
    assert auroc(inside, outside) == pytest.approx(metrics.roc_auc_score(truth, scores), abs=1e-13)
    assert auprc(inside, outside) == pytest.approx(metrics.average_precision_score(truth, scores), abs=1e-13)


@pytest.mark.parametrize("tpr", [0.07, 0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("ties", [True, False])
def test_false_alarms_are_those_of_the_first_point_of_the_curve_that_finds_enough(tpr: float, ties: bool) -> None:
    inside, outside = two_samples(3, ties)
    fprs, tprs, _ = metrics.roc_curve(np.r_[np.zeros(90), np.ones(60)], np.r_[inside, outside], drop_intermediate=False)
    assert fpr_at_tpr(inside, outside, tpr) == pytest.approx(fprs[np.argmax(tprs >= tpr - 1e-12)], abs=1e-13)


def test_by_hand_with_ties() -> None:
    assert auroc([1, 2, 2, 3], [2, 4]) == pytest.approx((1 + 0.5 * 2 + 4) / 8)
    # thresholds 4, 3, 2: precision 1 at recall ½, then (at 2) 2 of 5 at recall 1
    assert auprc([1, 2, 2, 3], [2, 4]) == pytest.approx(0.5 * 1 + 0.5 * 2 / 5)
    assert fpr_at_tpr([1, 2, 2, 3], [2, 4], tpr=0.5) == 0.0
    assert fpr_at_tpr([1, 2, 2, 3], [2, 4], tpr=0.51) == 0.75


def test_perfect_worst_and_blind() -> None:
    low, high = np.arange(5.0), np.arange(10.0, 15.0)
    assert (auroc(low, high), auprc(low, high), fpr_at_tpr(low, high)) == (1.0, 1.0, 0.0)
    assert (auroc(high, low), fpr_at_tpr(high, low)) == (0.0, 1.0)
    assert auprc(high, low) == pytest.approx(np.mean([k / (5 + k) for k in range(1, 6)]))
    same = np.ones(6)
    assert (auroc(same, same[:2]), auprc(same, same[:2]), fpr_at_tpr(same, same[:2])) == (0.5, 0.25, 1.0)


def test_infinite_scores_have_a_place() -> None:
    assert auroc([0.0, -math.inf], [math.inf, 1.0]) == 1.0
    assert auprc([0.0, -math.inf], [math.inf, 1.0]) == 1.0


def test_only_the_order_matters() -> None:
    inside, outside = two_samples(0, ties=False)
    for score in (auroc, auprc, fpr_at_tpr):
        assert score(np.exp(inside), np.exp(outside)) == score(inside, outside)


def test_area_of_two_gaussians() -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(0, 1, 20_000), rng.normal(1, 1, 20_000)
    expected = 0.5 * (1 + math.erf(0.5))  # Φ(1 / √2)
    assert auroc(inside, outside) == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(20_000))


def test_error_detection_from_scores_and_from_probabilities() -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), 200)
    correct = rng.random(200) < probs.max(1)
    doubt = 1 - probs.max(1)
    result = error_detection(probs, correct)
    assert (
        result == error_detection(doubt, correct.astype(int)) == error_detection(torch.tensor(probs), correct.tolist())
    )
    assert result.auroc == pytest.approx(metrics.roc_auc_score(~correct, doubt))
    assert result.auprc == pytest.approx(metrics.average_precision_score(~correct, doubt))
    assert result.fpr95 == fpr_at_tpr(doubt[correct], doubt[~correct])


def test_risk_coverage_by_hand() -> None:
    curve = risk_coverage([0.4, 0.1, 0.3, 0.2], [1, 0, 0, 1])
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])
    assert curve.aurc == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert curve.oracle_aurc == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4)
    assert curve.excess_aurc == pytest.approx(1 / 8)


def test_risk_coverage_with_ties_is_the_mean_over_all_orders() -> None:
    score, error = [0.1, 0.5, 0.5, 0.5, 0.9], [0.2, 1.0, 0.0, 3.0, 0.5]
    risks = []
    for order in itertools.permutations([1, 2, 3]):
        sequence = np.array([error[0], *(error[i] for i in order), error[4]])
        risks.append(sequence.cumsum() / np.arange(1, 6))
    assert risk_coverage(score, error).risk.tolist() == pytest.approx(np.mean(risks, 0))


def test_risk_coverage_of_the_best_the_blind_and_the_worst() -> None:
    error = np.array([0.0] * 80 + [1.0] * 20)
    best, blind, worst = risk_coverage(error, error), risk_coverage(np.ones(100), error), risk_coverage(-error, error)
    assert best.excess_aurc == pytest.approx(0, abs=1e-15)
    assert blind.aurc == pytest.approx(0.2)
    assert best.aurc < blind.aurc < worst.aurc
    assert [curve.risk[-1].item() for curve in (best, blind, worst)] == pytest.approx([0.2] * 3)


@pytest.mark.parametrize("score", [auroc, auprc, fpr_at_tpr])
@pytest.mark.parametrize(
    ("inside", "outside", "message"),
    [
        ([], [1.0], "`score_in` must not be empty"),
        ([1.0], [], "`score_out` must not be empty"),
        ([math.nan], [1.0], "`score_in` must hold numbers, not NaN; got 1 that is not, of 1"),
        ([1.0], [1.0, math.nan, math.nan], "`score_out` must hold numbers, not NaN; got 2 that are not, of 3"),
        ([[1.0]], [1.0], r"`score_in` must have 1 dimension\(s\); got shape \(1, 1\)"),
    ],
)
def test_bad_scores_are_named(score: object, inside: list[float], outside: list[float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        score(inside, outside)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fpr_at_tpr([0.0], [1.0], tpr=0.0), "`tpr` must be above 0 and at most 1; got 0.0"),
        (lambda: fpr_at_tpr([0.0], [1.0], tpr=95), "`tpr` must be above 0 and at most 1; got 95"),
        (lambda: error_detection([0.1, 0.2], [1, 1]), "`correct` must hold both .* got 2 successes only"),
        (lambda: error_detection([0.1, 0.2], [0, 0]), "`correct` must hold both .* got 2 errors only"),
        (lambda: error_detection([0.1, 0.2], [0, 3]), "`correct` must hold truth values; got 3"),
        (lambda: error_detection([0.1, 0.2], [0, 1, 1]), "`correct` must have one entry for each of the 2 .* got 3"),
        (lambda: error_detection([[0.1, 0.2]], [0]), "`probs_or_score` must have rows that sum to 1"),
        (lambda: error_detection(np.zeros((1, 1, 1)), [0]), "`probs_or_score` must be N x C or N numbers"),
        (lambda: risk_coverage([0.1], [0, 1]), "`error` must have one entry for each of the 1 forecasts; got 2"),
        (lambda: risk_coverage([math.nan], [0]), "`score` must hold numbers, not NaN"),
        (lambda: risk_coverage([0.1], [math.inf]), "`error` must hold finite numbers"),
        (lambda: risk_coverage([], []), "`score` must not be empty"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()  # type: ignore[operator]
