"""Predictives of classes and labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.engine.engine import Engine
from temperance.posteriors import Draws
from temperance.predict import predict
from tests.small import ONE, members


def test_confident_yes_or_no_ensembles_have_finite_entropy():
    target = tp.Target(nn.Linear(1, 1, bias=False), tp.Bernoulli(), tp.GaussianPrior(1.0))
    for count in (52, 60, 76):
        pred = predict(Engine(target), Draws(torch.full((count, 1), 30.0)), torch.ones(1, 1))
        assert float(pred.entropy()) == pytest.approx(0.0, abs=1e-5)

    @dataclass(frozen=True, eq=False)
    class Mine(tp.Bernoulli):
        pass

    ours, draws = members(Mine(), [[0.0]])
    assert float(predict(Engine(ours), draws, ONE).entropy()) == pytest.approx(math.log(2))
