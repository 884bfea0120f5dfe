"""With nothing but defaults, a sampler predicts no worse than MAP does under the same (fan-in scaled) prior."""

from __future__ import annotations

import functools

import pytest
import torch

import temperance as tp

SETS = {"digits": ([128, 128], 100), "breast_cancer": ([50], 200)}


def score(method: tp.Inference, name: str) -> float:
    """Mean test log-score over two splits and seeds."""
    hidden, epochs = SETS[name]
    total = 0.0
    for seed in range(2):
        train, test = tp.data.load(name, split=seed)
        torch.manual_seed(seed)
        network = tp.nn.MLP(train.x.shape[1], hidden, int(train.y.max()) + 1)
        target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(scale=tp.FanIn(gain=2**0.5)))
        steps = epochs * train.steps_per_epoch(128)
        total -= tp.fit(target, method, train, steps=steps, seed=seed).evaluate(test)["log_loss"]
    return total / 2


@functools.cache
def map_score(name: str) -> float:
    return score(tp.MAP(), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    "method",
    [tp.SGLD(), tp.SGHMC(), tp.PSGLD(), tp.SGNHT(), tp.BAOAB(), tp.LeimkuhlerMatthews(), tp.GGMC()],
    ids=lambda m: type(m).__name__,
)
def test_defaults_are_no_worse_than_map(method, name):
    assert score(tp.Collect(method), name) >= map_score(name) - 0.005
