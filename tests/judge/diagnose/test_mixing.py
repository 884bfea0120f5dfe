from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from arviz_stats.base import array_stats

from temperance.core.errors import ArgumentError
from temperance.judge import diagnose


def autoregression(rate: float, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = np.empty(shape)
    x[:, 0] = rng.normal(size=shape[0])
    for t in range(1, shape[1]):
        x[:, t] = rate * x[:, t - 1] + (1 - rate**2) ** 0.5 * rng.normal(size=shape[0])
    return x


def rhat_by_hand(x: np.ndarray) -> float:
    """Vehtari et al. (2021), equations 1 to 4 and 14, with the folded form, for chains × draws."""

    def basic(z: np.ndarray) -> float:
        n = z.shape[1]
        within, between = z.var(1, ddof=1).mean(), n * z.mean(1).var(ddof=1)
        return float(np.sqrt(((n - 1) / n * within + between / n) / within))

    def scores(z: np.ndarray) -> np.ndarray:
        ranks = scipy.stats.rankdata(z, method="average").reshape(z.shape)
        return scipy.stats.norm.ppf((ranks - 3 / 8) / (z.size + 1 / 4))

    half = x.shape[1] // 2
    split = np.concatenate([x[:, :half], x[:, -half:]])
    return max(basic(scores(split)), basic(scores(np.abs(split - np.median(split)))))


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
def test_autoregressions_against_theory(rate):
    x = autoregression(rate, (4, 20_000))
    found = diagnose.autocorrelation(x, max_lag=5).mean(0)
    assert torch.allclose(found, rate ** torch.arange(6, dtype=torch.float64), atol=0.03)
    assert float(diagnose.ess(x)) == pytest.approx(x.size * (1 - rate) / (1 + rate), rel=0.1)
    assert float(diagnose.mcse(x)) == pytest.approx(((1 + rate) / (1 - rate) / x.size) ** 0.5, rel=0.1)


def test_equal_to_arviz_for_every_quantity():
    x = np.stack([autoregression(rate, (3, 200), seed=k) for k, rate in enumerate((0.1, 0.6, 0.95))], -1)
    rhats, bulk, tail = diagnose.rhat(x), diagnose.bulk_ess(x), diagnose.tail_ess(x)
    for k in range(3):
        one = x[:, :, k]
        assert float(rhats[k]) == pytest.approx(float(array_stats.rhat(one)))
        assert float(rhats[k]) == pytest.approx(rhat_by_hand(one))
        assert float(bulk[k]) == pytest.approx(float(array_stats.ess(one, method="bulk")))
        assert float(tail[k]) == pytest.approx(float(array_stats.ess(one, method="tail", prob=(0.05, 0.95))))


def test_rhat_sees_what_chains_disagree_about():
    x = np.random.default_rng(0).normal(size=(4, 500))
    assert float(diagnose.rhat(x)) < 1.01
    assert float(diagnose.rhat(x + np.arange(4)[:, None])) > 1.1
    assert float(diagnose.rhat(x * np.array([1, 1, 1, 4])[:, None])) > 1.1  # same means, other spreads: the folded form
    assert float(diagnose.rhat(x[0])) < 1.02
    assert float(diagnose.rhat(x[0] + np.linspace(0, 3, 500))) > 1.1  # one chain that drifts


def test_too_few_draws_give_nan_and_bad_input_an_error():
    assert diagnose.rhat(np.ones((2, 3))).isnan()
    assert diagnose.ess(torch.randn(3)).isnan()
    with pytest.raises(ArgumentError, match="`x` must be finite"):
        diagnose.ess([1.0, float("nan"), 2.0, 3.0])
    with pytest.raises(ArgumentError, match="chains × draws × quantities"):
        diagnose.ess(torch.zeros(2, 2, 2, 2))
    with pytest.raises(ArgumentError, match="`max_lag`"):
        diagnose.autocorrelation(torch.randn(10), max_lag=0)
