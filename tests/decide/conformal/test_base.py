"""What all conformal rules rest on: rows one by one, their random numbers, their units."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest

import temperance as tp
from temperance.data.sources import row_uniforms
from temperance.decide.conformal import APS, Split
from temperance.posteriors import Point
from temperance.predict import AffinePredictive, from_outputs
from temperance.run.fitted import Fitted, RunInfo
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


def test_randomised_sets_of_a_network_are_the_same_row_by_row_and_differ_among_rows_equally_sure() -> None:
    """In float32 the probabilities of a row change in their last digits with the rows that come with it."""
    torch.manual_seed(0)
    network = tp.nn.MLP(6, [40, 40], 5)
    x = torch.randn(400, 6)
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=1e-2), 3), (x, torch.randint(0, 5, (400,))), epochs=1)
    made = APS().calibrate(fitted.predict(x[:200]), torch.randint(0, 5, (200,)), 0.8)
    together = made.sets(fitted.predict(x[200:]))
    alone = torch.cat([made.sets(fitted.predict(row.unsqueeze(0))) for row in x[200:]])
    assert torch.equal(alone, together)
    blocks = torch.cat([made.sets(fitted.predict(part)) for part in x[200:].split(33)])
    assert torch.equal(blocks, together)

    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    unsure = Fitted(
        tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0)), Point(torch.zeros(target.layout.size)), RunInfo()
    )
    sizes = APS().calibrate(unsure.predict(x[:200]), torch.randint(0, 5, (200,)), 0.8).sets(unsure.predict(x)).sum(1)
    assert len(sizes.unique()) > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_the_random_numbers_of_rows(dtype: torch.dtype) -> None:
    """Uniform, uncorrelated with the inputs and with their neighbours', and a function of seed and row alone."""
    x = torch.randn(20_000, 7, generator=torch.Generator().manual_seed(0))
    x = (x > 0).repeat(1, 5) ^ (torch.rand(20_000, 35) > 0.5) if dtype is torch.bool else (100 * x).to(dtype)
    u = row_uniforms(x, 0)
    assert kstest(u.numpy(), "uniform").pvalue > 1e-4
    for other in (x[:, 0].real.double() if x.is_complex() else x[:, 0].double(), u.roll(1)):
        assert abs(float(np.corrcoef(u, other)[0, 1])) < 4 / 20_000**0.5
    assert abs(float(np.corrcoef(u, row_uniforms(x, 1))[0, 1])) < 4 / 20_000**0.5
    order = torch.randperm(20_000)
    assert torch.equal(u[order], row_uniforms(x[order], 0))
    assert torch.equal(u[5:6], row_uniforms(x[5:6], 0))
    changed = x.clone()
    changed[:, -1] = ~changed[:, -1] if dtype is torch.bool else changed[:, -1] + 1
    assert abs(float(np.corrcoef(u, row_uniforms(changed, 0))[0, 1])) < 4 / 20_000**0.5
    pair = row_uniforms({"a": x, "b": x[:, :1]}, 0)
    assert kstest(pair.numpy(), "uniform").pvalue > 1e-4
    assert not torch.equal(pair, row_uniforms({"a": x, "b": x[:, 1:2]}, 0))


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
