from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

import temperance as tp
from temperance.decide.conformal import (
    APS,
    CQR,
    RAPS,
    Mondrian,
    NormalisedResidual,
    Split,
    conformal_quantile,
    conformal_rank,
    coverage_law,
)
from temperance.decide.conformal.quantile import weighted_quantile
from temperance.predict.affine import AffinePredictive
from temperance.predict.calibrated import from_outputs

NORMAL = tp.Normal(scale=1.0)


def test_the_golden_numbers_of_the_coverage_law():
    for n, level, mean, std in (
        (100, 0.9, 0.900990, 0.029573),
        (999, 0.9, 0.9, 0.009482),
        (1000, 0.95, 0.950050, 0.006882),
    ):
        found = coverage_law(n, level)
        assert found == pytest.approx((mean, std), abs=1e-6)
        k = conformal_rank(n, level)
        law = scipy.stats.beta(k, n + 1 - k)
        assert found == pytest.approx((law.mean(), law.std()))
    assert coverage_law(5, 0.9) == (1.0, 0.0)


def test_the_rank_is_not_spoilt_by_rounding():
    for n in range(1, 400):
        for percent in (50, 70, 80, 90, 95, 99):
            assert conformal_rank(n, percent / 100) == -(-(n + 1) * percent // 100)


@pytest.mark.parametrize("n", [19, 100])
def test_coverage_given_the_calibration_rows_is_beta_for_residuals(n):
    rng = torch.Generator().manual_seed(n)
    zero = from_outputs(torch.zeros(n, 1, dtype=torch.float64), NORMAL)
    found = []
    for _ in range(500):
        y = torch.randn(n, 1, generator=rng, dtype=torch.float64)
        threshold = float(Split().calibrate(zero, y).thresholds)
        found.append(2 * scipy.stats.norm.cdf(threshold) - 1)
    k = conformal_rank(n, 0.9)
    assert scipy.stats.kstest(found, scipy.stats.beta(k, n + 1 - k).cdf).pvalue > 1e-3
    mean, std = coverage_law(n)
    assert np.mean(found) == pytest.approx(mean, abs=4 * std / math.sqrt(500))


def test_coverage_given_the_calibration_rows_is_beta_for_adaptive_sets():
    """With true probabilities the randomised score is uniform for every x, so the threshold is the coverage."""
    n, found = 50, []
    rng = torch.Generator().manual_seed(1)
    for seed in range(500):
        f = torch.randn(n, 4, generator=rng, dtype=torch.float64)
        y = torch.multinomial(f.softmax(-1), 1, generator=rng).squeeze(1)
        found.append(float(APS().calibrate(from_outputs(f, tp.Categorical()), y, 0.8, seed=seed).thresholds))
    k = conformal_rank(n, 0.8)
    assert scipy.stats.kstest(found, scipy.stats.beta(k, n + 1 - k).cdf).pvalue > 1e-3


def classes(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits of a bad model, and labels of the truth."""
    rng = torch.Generator().manual_seed(seed)
    f = torch.randn(n, 5, generator=rng, dtype=torch.float64)
    y = torch.multinomial((1.5 * f).softmax(-1), 1, generator=rng).squeeze(1)
    return 3 * f + torch.randn(n, 5, generator=rng, dtype=torch.float64), y


@pytest.mark.parametrize(
    "rule", [Split(), APS(), APS(randomised=False), RAPS(0.1, 2), RAPS(), RAPS(randomised=False)], ids=repr
)
def test_marginal_coverage_of_sets(rule):
    n, test, repeats, level = 60, 200, 120, 0.8
    found = []
    for seed in range(repeats):
        f, y = classes(n + test, seed)
        conformal = rule.calibrate(from_outputs(f[:n], tp.Categorical()), y[:n], level, seed=seed)
        sets = conformal.sets(from_outputs(f[n:], tp.Categorical()))
        found.append(float(sets.gather(1, y[n:].unsqueeze(1)).double().mean()))
    used = len(conformal.scores[0])
    assert used == (n - 20 if rule in (RAPS(), RAPS(randomised=False)) else n)
    error = np.std(found) / math.sqrt(repeats)
    assert level - 4 * error < np.mean(found) < level + 1 / (used + 1) + 4 * error
    assert np.mean(found) == pytest.approx(coverage_law(used, level)[0], abs=4 * error)


def values(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Mean and log scale of a model whose scale is wrong, and skewed heteroscedastic targets."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=rng, dtype=torch.float64)
    noise = torch.empty(n, 1, dtype=torch.float64).exponential_(generator=rng)
    return torch.cat([x + 1, (0.3 * (1 + x)).log()], 1), x + (1 + x) * noise


@pytest.mark.parametrize("rule", [Split(), NormalisedResidual(), CQR()], ids=repr)
def test_marginal_coverage_of_intervals(rule):
    n, test, repeats, level = 60, 200, 120, 0.8
    found = []
    for seed in range(repeats):
        outputs, y = values(n + test, seed)
        conformal = rule.calibrate(from_outputs(outputs[:n], tp.HeteroscedasticNormal()), y[:n], level)
        low, high = conformal.interval(from_outputs(outputs[n:], tp.HeteroscedasticNormal()))
        found.append(float(((y[n:] >= low) & (y[n:] <= high)).double().mean()))
    error = np.std(found) / math.sqrt(repeats)
    assert np.mean(found) == pytest.approx(coverage_law(n, level)[0], abs=4 * error)


@pytest.mark.parametrize("rule", [Split(), NormalisedResidual(), CQR()], ids=repr)
def test_marginal_coverage_of_counts(rule):
    n, test, repeats, level = 60, 200, 120, 0.8
    found = []
    for seed in range(repeats):
        rng = torch.Generator().manual_seed(seed)
        log_rate = torch.randn(n + test, 1, generator=rng, dtype=torch.float64)
        y = torch.poisson((1.3 * log_rate).exp(), generator=rng)
        conformal = rule.calibrate(from_outputs(log_rate[:n], tp.Poisson()), y[:n], level)
        low, high = conformal.interval(from_outputs(log_rate[n:], tp.Poisson()))
        assert torch.equal(low, low.round())
        assert torch.equal(high, high.round())
        assert (low >= 0).all()
        assert (low <= high).all()
        found.append(float(((y[n:] >= low) & (y[n:] <= high)).double().mean()))
    assert np.mean(found) > level - 4 * np.std(found) / math.sqrt(repeats)  # ties and whole numbers only add


def test_whole_numbers_at_the_threshold_are_kept():
    """Many rows tie at the threshold; float32 must not lose them."""
    rate = torch.full((40, 1), 0.1)  # mean 1.105…, so that mean ± threshold is not exact
    y = torch.tensor([0.0, 1.0, 2.0, 3.0] * 10).unsqueeze(1)
    for rule in (Split(), NormalisedResidual(), CQR()):
        predictive = from_outputs(rate, tp.Poisson())
        low, high = rule.calibrate(predictive, y, 0.9).interval(predictive)
        assert float(((y >= low) & (y <= high)).float().mean()) >= 0.9


def test_a_group_is_covered_where_the_whole_does_not_say_so():
    rng = torch.Generator().manual_seed(0)
    n, test, level = 400, 4000, 0.9
    groups = (torch.arange(n + test) % 4 == 0).long()  # a quarter is three times as noisy
    y = torch.randn(n + test, 1, generator=rng) * (1 + 2 * groups.unsqueeze(1))
    calibration, new = from_outputs(torch.zeros(n, 1), NORMAL), from_outputs(torch.zeros(test, 1), NORMAL)
    plain = Split().calibrate(calibration, y[:n], level).interval(new)
    made = Mondrian(Split()).calibrate(calibration, y[:n], level, groups=groups[:n])
    by_group = made.interval(new, groups=groups[n:])

    def coverage(ends: tuple[Tensor, Tensor], group: int) -> float:
        inside = (y[n:] >= ends[0]) & (y[n:] <= ends[1])
        return float(inside[groups[n:] == group].double().mean())

    assert coverage(plain, 1) < 0.75 < 0.95 < coverage(plain, 0)
    for group, size in ((0, 300), (1, 100)):
        spread = math.hypot(coverage_law(size, level)[1], math.sqrt(level * (1 - level) / 1000))
        assert coverage(by_group, group) == pytest.approx(level, abs=4 * spread)


def test_each_class_is_covered_where_the_whole_does_not_say_so():
    rng = torch.Generator().manual_seed(0)
    n, test, level = 900, 6000, 0.9
    y = (torch.rand(n + test, generator=rng) < 0.12).long()
    f = torch.randn(n + test, generator=rng) + 1.5 * y - 2.5  # the rare class is seldom thought likely
    logits = torch.stack([torch.zeros_like(f), f], 1)
    calibration, new = from_outputs(logits[:n], tp.Categorical()), from_outputs(logits[n:], tp.Categorical())
    plain = Split().calibrate(calibration, y[:n], level).sets(new)
    made = Mondrian(Split(), per_class=True).calibrate(calibration, y[:n], level)

    def coverage(sets: Tensor, c: int) -> float:
        return float(sets[y[n:] == c, c].double().mean())

    assert coverage(plain, 1) < 0.7
    for c in (0, 1):
        size = int((y[:n] == c).sum())
        spread = math.hypot(coverage_law(size, level)[1], math.sqrt(level * (1 - level) / int((y[n:] == c).sum())))
        assert coverage(made.sets(new), c) == pytest.approx(level, abs=4 * spread)


def test_weights_undo_a_shift_of_the_inputs():
    n, test, repeats, level = 200, 200, 100, 0.9
    plain, weighted = [], []
    for seed in range(repeats):
        rng = torch.Generator().manual_seed(seed)
        x = torch.randn(n + test, 1, generator=rng, dtype=torch.float64)
        x[n:] += 1.0
        y = x.clamp(min=0).exp() * torch.randn(n + test, 1, generator=rng, dtype=torch.float64)
        ratio = (x - 0.5).exp().flatten()  # N(1, 1) over N(0, 1)
        calibration, new = from_outputs(torch.zeros(n, 1), NORMAL), from_outputs(torch.zeros(test, 1), NORMAL)
        for found, ends in (
            (plain, Split().calibrate(calibration, y[:n], level).interval(new)),
            (
                weighted,
                Split().calibrate(calibration, y[:n], level, weights=ratio[:n]).interval(new, weights=ratio[n:]),
            ),
        ):
            found.append(float(((y[n:] >= ends[0]) & (y[n:] <= ends[1])).double().mean()))
    assert np.mean(plain) < 0.8
    assert np.mean(weighted) > level - 4 * np.std(weighted) / math.sqrt(repeats)
    assert np.mean(weighted) < 0.95


def test_equal_weights_are_no_weights():
    rng = torch.Generator().manual_seed(0)
    for n in (5, 9, 10, 19, 20, 57):
        scores = torch.randn(n, 2, generator=rng, dtype=torch.float64)
        found = weighted_quantile(scores, torch.ones(n).double(), torch.ones(3).double(), 0.9)
        assert torch.equal(found, conformal_quantile(scores, 0.9).expand(3, 2))


def test_units_and_calibration_pass_through():
    """Conformal prediction takes any predictive: in other units the interval is the same interval."""
    outputs, y = values(200, 0)
    base = from_outputs(outputs, tp.HeteroscedasticNormal())
    made = AffinePredictive(base, 100.0, 10.0)
    for rule in (Split(), NormalisedResidual(), CQR()):
        ends = rule.calibrate(base, y).interval(base)
        moved = rule.calibrate(made, 100 + 10 * y).interval(made)
        assert all(torch.allclose(100 + 10 * a, b) for a, b in zip(ends, moved, strict=True))
