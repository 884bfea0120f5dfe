"""Predictives of real targets where members differ much."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import temperance as tp
from temperance.engine.engine import Engine
from temperance.posteriors import Draws, Mixture, Point
from temperance.predict import predict
from tests.small import ONE, members


@pytest.mark.parametrize(
    ("scales", "exact"), [((1.0, 0.1), 0.4333), ((1.0, 0.01), 0.6406), ((1.0, 0.01, 0.01, 0.01), 1.321)]
)
def test_mutual_information_of_members_with_different_noise(scales, exact):
    """Exact by fine numerical integration here, too."""
    target, draws = members(tp.HeteroscedasticNormal(), [[0.0, math.log(s)] for s in scales])
    made = float(predict(Engine(target), draws, ONE).mutual_information())
    grid = torch.cat([torch.linspace(-10, 10, 400_001), torch.linspace(-0.1, 0.1, 200_001)]).unique().double()
    p = torch.stack([torch.distributions.Normal(0.0, s).log_prob(grid).exp() for s in scales])
    mixed = p.mean(0)
    entropy = torch.trapezoid(torch.special.entr(mixed), grid)
    members_entropy = np.mean([0.5 * math.log(2 * math.pi * math.e * s * s) for s in scales])
    assert made == pytest.approx(float(entropy) - members_entropy, abs=1e-4)
    if len(scales) == 2:
        assert made == pytest.approx(exact, abs=1e-3)


def test_weights_count_in_the_mutual_information_of_many_members():
    target = tp.Target(nn.Linear(1, 1, bias=False).double(), tp.Normal(1e-3), tp.GaussianPrior(1.0))
    for heavy in (1, 2):
        weights = [0.01 / 99] * 100
        weights[heavy] = 0.99
        mixture = Mixture(
            tuple(Point(torch.tensor([float(k)], dtype=torch.float64)) for k in range(100)), tuple(weights)
        )
        made = float(predict(Engine(target), mixture, ONE).mutual_information())
        assert made == pytest.approx(-sum(w * math.log(w) for w in weights), abs=1e-3)


def test_weights_are_exact_enough_for_extreme_scales():
    target = tp.Target(nn.Linear(1, 1, bias=False).double(), tp.Normal(1e-6), tp.GaussianPrior(1.0))
    pred = predict(Engine(target), Draws(torch.full((3, 1), 1e6, dtype=torch.float64)), ONE)
    assert float(pred.mean()) == pytest.approx(1e6, abs=1e-8)
    assert float(pred.std()) == pytest.approx(1e-6, rel=1e-3)
    cauchy, draws = members(tp.StudentT(1.0, 1.0), [[0.0]] * 25)
    assert float(predict(Engine(cauchy), draws, ONE).quantile(1 - 1e-9)) == pytest.approx(1e9 / math.pi, rel=1e-3)
