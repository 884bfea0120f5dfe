"""The helper that all tolerances come from, tested itself."""

from __future__ import annotations

import pytest
import torch

from temperance.testing import (
    InconclusiveError,
    assert_moments,
    conjugate_regression,
    critical_value,
    draws_needed,
    linear_gaussian,
    skewed_counts,
)

MEAN = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
ROOT = torch.tensor([[1.0, 0, 0], [0.9, 0.3, 0], [-0.5, 0.2, 2.0]], dtype=torch.float64)
COVARIANCE = ROOT @ ROOT.T


def draws(n: int, seed: int) -> torch.Tensor:
    return MEAN + torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) @ ROOT.T


def test_false_alarms_are_as_rare_as_promised():
    """At a false-alarm rate of 10 % (by Bonferroni, so at most that), about 5 to 12 % of right samples are refused."""
    refused = 0
    for seed in range(1000):
        try:
            assert_moments(draws(400, seed), MEAN, COVARIANCE, false_alarm=0.1)
        except AssertionError:
            refused += 1
    assert 30 < refused < 140


def test_wrong_moments_are_found_out():
    sample = draws(20_000, 0)
    assert_moments(sample, MEAN, COVARIANCE)
    for wrong in (2.0, 0.5, 1.1, 0.9):
        with pytest.raises(AssertionError, match="covariance"):
            assert_moments(sample, MEAN, wrong * COVARIANCE)
    with pytest.raises(AssertionError, match="covariance at"):
        assert_moments(sample, MEAN, torch.diag(COVARIANCE.diagonal()))
    with pytest.raises(AssertionError, match="mean at 1"):
        assert_moments(sample, MEAN + torch.tensor([0, 0.05, 0]), COVARIANCE)
    with pytest.raises(AssertionError, match="covariance"):
        assert_moments(sample.flip(1), MEAN.flip(0), COVARIANCE)
    with pytest.raises(AssertionError):
        assert_moments(torch.full_like(sample, torch.nan), MEAN, COVARIANCE)


def test_fewer_effective_draws_widen_the_tolerance():
    sample = draws(20_000, 0) + torch.tensor([0.0, 0.05, 0.0])
    with pytest.raises(AssertionError):
        assert_moments(sample, MEAN, COVARIANCE)
    assert_moments(sample, MEAN, COVARIANCE, ess=500)


def test_too_few_draws_are_no_pass():
    """Right ones, and ones that are four times too wide: neither can be told from the other."""
    for spread in (1.0, 2.0):
        few = MEAN + spread * (draws(30, 0) - MEAN)
        with pytest.raises(InconclusiveError, match=r"30 draws, worth 1\.0, .* takes \d+: give \d+ times as many"):
            assert_moments(few, MEAN, COVARIANCE, ess=1.0)
    with pytest.raises(InconclusiveError):
        assert_moments(draws(20_000, 0), MEAN, COVARIANCE, ess=float("nan"))
    with pytest.raises(AssertionError, match="mean at"):  # what is wrong beyond doubt is said, however few there are
        assert_moments(draws(30, 0) + 1e3, MEAN, COVARIANCE)


def test_as_many_draws_as_are_asked_for_see_a_variance_twice_too_large():
    enough = draws_needed(9)
    seen = 0
    for seed in range(200):
        try:
            assert_moments(MEAN + 2**0.5 * (draws(enough, seed) - MEAN), MEAN, COVARIANCE)
        except AssertionError as error:
            seen += "covariance" in str(error)
    assert seen > 190
    assert_moments(draws(enough, 0), MEAN, COVARIANCE)
    with pytest.raises(InconclusiveError):
        assert_moments(draws(enough - 1, 0), MEAN, COVARIANCE)


def test_critical_values():
    assert critical_value(1, 0.05) == pytest.approx(1.959964, abs=1e-6)
    assert critical_value(100) > critical_value(1) > 4.8


def test_golden_numbers_of_the_conjugate_problem():
    problem = conjugate_regression()
    assert problem.log_evidence == pytest.approx(-108.7043827878, abs=1e-8)
    assert problem.mean.tolist() == pytest.approx([0, 0.770490361, 0], abs=1e-8)
    variances = [0.0022739457, 0.0024485354, 0.0076966489]
    assert problem.covariance.diagonal().tolist() == pytest.approx(variances, abs=1e-9)
    assert (1 / problem.precision.diagonal()).tolist() == pytest.approx(
        [0.000999001, 0.0024485354, 0.0033813296], abs=1e-9
    )


def test_problems_are_not_symmetric():
    problem = linear_gaussian()
    assert problem.mean.abs().min() > 1e-3
    correlation = problem.covariance / problem.covariance.diagonal().sqrt().outer(problem.covariance.diagonal().sqrt())
    assert (correlation - torch.eye(16)).abs().max() > 0.5
    assert abs(skewed_counts().third_moment) > 0.05
