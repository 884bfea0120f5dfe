"""The quantile of a mixture against a slow, obviously right twin: bisection by scipy."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

import temperance as tp
from temperance.engine.engine import Engine
from temperance.model.likelihoods.real import RealLikelihood
from temperance.predict import predict
from temperance.predict.quantiles import mixture_quantile
from tests.small import ONE, members


def _cases() -> dict[str, tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(0)
    normal = torch.randn(8, 12, generator=rng, dtype=torch.float64)
    uniform = torch.rand(8, 12, generator=rng, dtype=torch.float64)
    return {
        "overlapping": (normal, uniform + 0.5),
        "far apart": (100 * normal, 0.01 * uniform + 1e-3),
        "all alike": (torch.ones(8, 12, dtype=torch.float64), torch.ones(8, 12, dtype=torch.float64)),
        "of many widths": (3 * normal, 10 ** (3 * normal.flip(0))),
        "tiny spread far from zero": (1e4 + 1e-6 * normal, 1e-3 * uniform + 1e-6),
    }


@pytest.mark.parametrize("family", [tp.Normal(scale=1.0), tp.StudentT(df=3.0, scale=1.0)], ids=["Normal", "StudentT"])
@pytest.mark.parametrize("level", [1e-7, 0.05, 0.5, 0.975])
@pytest.mark.parametrize("case", _cases())
def test_bisection_agrees(family: RealLikelihood, level: float, case: str) -> None:
    location, scale = _cases()[case]
    weights = torch.linspace(1, 2, 8, dtype=torch.float64)
    found = mixture_quantile(family, location, scale, weights, level)
    share = weights / weights.sum()

    def mass(y: float, row: int) -> float:
        return float(share @ family.standard_cdf((y - location[:, row]) / scale[:, row])) - level

    z = float(family.standard_quantile(torch.tensor(level, dtype=torch.float64)))
    for row in range(12):
        ends = location[:, row] + scale[:, row] * z
        slack = 1e-9 * float(scale[:, row].max())
        low, high = float(ends.min()) - slack, float(ends.max()) + slack
        exact = brentq(mass, low, high, args=(row,), xtol=1e-300, rtol=1e-15, maxiter=500)
        at = abs(mass(float(found[row]), row))
        assert at <= 1e-9 * min(level, 1 - level) + 1e-15 or abs(float(found[row]) - exact) <= 1e-9 * abs(exact)


def test_shapes_and_one_member() -> None:
    location = torch.randn(1, 4, 2)
    made = mixture_quantile(tp.Normal(scale=2.0), location, torch.tensor(2.0), torch.ones(1), 0.9)
    assert made.shape == (4, 2)
    torch.testing.assert_close(made, location[0].double() + 2 * 1.2815515655446004)


def test_quantiles_with_one_enormous_member():
    target, draws = members(tp.HeteroscedasticNormal(), [[0.0, -7.0]] * 9 + [[0.0, 50.0]])
    pred = predict(Engine(target), draws, ONE)
    assert abs(float(pred.quantile(0.5))) < 1e-9
    assert float(pred.cdf(pred.quantile(0.3))) == pytest.approx(0.3, abs=1e-6)
