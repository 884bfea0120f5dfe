"""What all conformal rules rest on: rows one by one, their random numbers, their units."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import temperance as tp
from temperance.decide.conformal import APS, Split
from temperance.decide.conformal.base import row_uniforms
from temperance.predict import AffinePredictive, from_outputs
from tests.decide.helpers import labelled as _classes


def test_sets_do_not_depend_on_how_rows_come() -> None:
    held, y = _classes(300, 1)
    new, answers = _classes(2000, 2)
    made = APS().calibrate(held, y, 0.8, seed=3)
    together = made.sets(new)
    outputs = next(iter(new.source.blocks()))[1]
    for row in range(0, 200, 7):
        alone = made.sets(from_outputs(outputs[:, row : row + 1].clone(), tp.Categorical()))
        assert torch.equal(alone[0], together[row])
    covered = together[torch.arange(2000), answers].double().mean()
    # given 300 calibration rows the coverage is Beta(241, 60): sd 0.023, and 2,000 rows add 0.009
    assert abs(float(covered) - 0.8) < 4 * (0.023**2 + 0.009**2) ** 0.5


def test_the_random_numbers_are_uniform_and_follow_the_seed() -> None:
    predictive, _ = _classes(20_000, 4)
    probs = predictive.probs.double()  # type: ignore[attr-defined]
    u = row_uniforms(probs, 0)
    from scipy.stats import kstest

    assert kstest(u.numpy(), "uniform").pvalue > 1e-4
    assert abs(float(np.corrcoef(u, probs[:, 0])[0, 1])) < 4 / 20_000**0.5
    assert not torch.equal(u, row_uniforms(probs, 1))
    assert torch.equal(u[5:6], row_uniforms(probs[5:6], 0))


@pytest.mark.parametrize(("centre", "spread"), [(2e7, 1.0), (1.7e9, 20.0)])
def test_intervals_keep_the_digits_of_the_units(centre: float, spread: float) -> None:
    rng = torch.Generator().manual_seed(0)
    truth = centre + spread * torch.randn(4000, 1, generator=rng, dtype=torch.float64)
    base = from_outputs(torch.zeros(1, 2000, 1), tp.Normal(scale=1.0))
    predictive = AffinePredictive(
        base, torch.tensor(centre, dtype=torch.float64), torch.tensor(spread, dtype=torch.float64)
    )
    low, high = Split().calibrate(predictive, truth[:2000], 0.8).interval(predictive)
    assert float((high - low).mean()) == pytest.approx(2 * 1.2816 * spread, rel=0.1)
    inside = ((truth[2000:] >= low) & (truth[2000:] <= high)).double().mean()
    assert abs(float(inside) - 0.8) < 4 * (2 * 0.8 * 0.2 / 2000) ** 0.5
