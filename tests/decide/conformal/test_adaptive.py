from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import temperance as tp
from temperance.core import encoding as values
from temperance.core.errors import ArgumentError
from temperance.decide.conformal import APS, CQR, AdaptiveConformal, Mondrian, Split
from temperance.predict import Predictive
from temperance.predict.calibrated import from_outputs


def zeros(n: int) -> Predictive:
    return from_outputs(torch.zeros(n, 1, dtype=torch.float64), tp.Normal(scale=1.0))


def stream(kind: str, n: int) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(n, 1, generator=rng, dtype=torch.float64)
    time = torch.arange(n, dtype=torch.float64).unsqueeze(1)
    scales = {"still": 1.0 + 0 * time, "drift": 1 + 9 * time / n, "jump": torch.where(time < n / 2, 1.0, 30.0)}
    if kind == "hostile":  # ever larger, so that every finite interval misses
        return 2.0 ** (time.clamp(max=900))
    return noise * scales[kind]


@pytest.mark.parametrize("kind", ["still", "drift", "jump", "hostile"])
@pytest.mark.parametrize("gamma", [0.005, 0.05, 0.5])
@pytest.mark.parametrize("length", [50, 700])
def test_the_theorem_of_gibbs_and_candes(kind, gamma, length):
    y = stream(kind, length)
    state = AdaptiveConformal(Split(), gamma=gamma, level=0.9).start(zeros(30), stream("still", 30))
    after = state.update(zeros(length), y)
    bound = (max(state.alpha, 1 - state.alpha) + gamma) / (length * gamma)
    assert abs((1 - after.coverage) - 0.1) <= bound + 1e-12
    assert -gamma <= after.alpha <= 1 + gamma
    # The sum telescopes: α_T − α_1 = γ Σ (α − err).
    assert after.alpha == pytest.approx(state.alpha + gamma * (length * 0.1 - after.misses))


def test_coverage_holds_under_drift_where_split_fails():
    y = stream("jump", 2000)
    start = stream("still", 200)
    low, high = Split().calibrate(zeros(200), start).interval(zeros(2000))
    late = slice(1000, 2000)
    assert float(((y >= low) & (y <= high))[late].double().mean()) < 0.2
    state = AdaptiveConformal(Split(), gamma=0.02, level=0.9).start(zeros(200), start)
    half = state.update(zeros(1000), y[:1000])
    end = half.update(zeros(1000), y[late])
    assert half.coverage == pytest.approx(0.9, abs=0.03)
    assert 1 - (end.misses - half.misses) / 1000 > 0.84  # the bound allows 0.045 + what it takes to notice
    window = AdaptiveConformal(Split(), gamma=0.02, level=0.9, window=100).start(zeros(200), start)
    later = window.update(zeros(1000), y[:1000]).update(zeros(1000), y[late])
    assert len(later.scores) == 100
    assert later.threshold > 20  # what is old is forgotten


def test_row_by_row_is_the_same_as_all_at_once_and_a_saved_state_goes_on():
    rng = torch.Generator().manual_seed(0)
    f = torch.randn(120, 3, generator=rng)
    y = torch.randint(3, (120,), generator=rng)
    method = AdaptiveConformal(APS(), gamma=0.05, level=0.8, window=40)
    start = method.start(from_outputs(f[:30], tp.Categorical()), y[:30], seed=4)
    whole = start.update(from_outputs(f[30:], tp.Categorical()), y[30:])
    state, hits = start, 0
    for k in range(30, 120):
        row = from_outputs(f[k : k + 1], tp.Categorical())
        hits += int(state.sets(row)[0, y[k]])
        state = state.update(row, y[k : k + 1])
        if k == 60:
            tensors: dict[str, Tensor] = {}
            state = values.decode(values.encode(state, tensors), tensors)
    assert state == whole
    assert hits == 90 - whole.misses  # the sets that were given out are the sets that are judged


def test_the_interval_given_out_is_the_one_that_is_judged():
    y = stream("drift", 200)
    state, hits = AdaptiveConformal(CQR(), gamma=0.1, level=0.8).start(zeros(20), stream("still", 20)), 0
    for k in range(200):
        low, high = state.interval(zeros(1))
        inside = bool(low <= y[k]) and bool(y[k] <= high)
        hits += inside if state.threshold > -math.inf else 0
        state = state.update(zeros(1), y[k : k + 1])
    assert hits == 200 - state.misses


def test_the_ends_of_alpha():
    state = AdaptiveConformal(Split(), gamma=0.5, level=0.9).start(zeros(20), stream("still", 20))
    missed = state.update(zeros(1), torch.full((1, 1), 1e9))
    assert missed.alpha == pytest.approx(0.1 - 0.45)
    assert missed.threshold == math.inf
    low, high = missed.interval(zeros(1))
    assert float(low) == -math.inf
    assert float(high) == math.inf
    eager = AdaptiveConformal(Split(), gamma=20.0, level=0.9).start(zeros(20), stream("still", 20))
    bold = eager.update(zeros(1), torch.zeros(1, 1))  # a hit: α = 0.1 + 2
    assert bold.threshold == -math.inf
    assert float(bold.interval(zeros(1))[1]) == 0.0
    assert bold.update(zeros(1), torch.zeros(1, 1)).misses == 1


def test_bad_input():
    for wrong in ({"gamma": 0.0}, {"gamma": -1.0}, {"level": 1.0}, {"window": 0}, {"window": 2.5}):
        with pytest.raises(ArgumentError, match=f"`{next(iter(wrong))}`"):
            AdaptiveConformal(Split(), **wrong)
    with pytest.raises(ArgumentError, match="not Mondrian"):
        AdaptiveConformal(Mondrian(Split()))  # type: ignore[arg-type]
    two = from_outputs(torch.zeros(5, 2), tp.Normal(scale=1.0))
    with pytest.raises(ArgumentError, match="one output"):
        AdaptiveConformal(Split()).start(two, torch.zeros(5, 2))
    state = AdaptiveConformal(Split()).start(zeros(5), torch.zeros(5, 1))
    assert math.isnan(state.coverage)
    with pytest.raises(ArgumentError, match="See interval"):
        state.sets(zeros(5))
