"""Laplace as it comes, against the MAP that it was put around, on two small data sets."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp

CASES = {
    "sine": (lambda: tp.nn.MLP(1, [50], 1, activation=nn.Tanh), 1e-2, 800),
    "diabetes": (lambda: tp.nn.MLP(10, [50], 1), 1e-3, 400),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("curvature", [tp.KFAC(), tp.Diagonal()], ids=["KFAC", "Diagonal"])
def test_the_log_score_is_not_worse_than_that_of_map(name, curvature):
    make, lr, epochs = CASES[name]
    scores = []
    for seed in range(2):
        train, test = tp.data.load(name, split=seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            target = tp.Target(make(), tp.Normal(), tp.GaussianPrior(1.0))
        point = tp.fit(target, tp.MAP(lr=lr), train, epochs=epochs, seed=seed)
        spread = tp.fit(target, tp.Laplace(curvature=curvature, tune=None), train, start=point.posterior.theta)
        scores.append([f.evaluate(test)["log_loss"] for f in (point, spread)])
    point, spread = torch.tensor(scores).mean(0)
    assert float(spread) <= float(point)
