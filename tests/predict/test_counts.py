"""Predictives of counts."""

from __future__ import annotations

import math

import pytest
import torch

import temperance as tp
from temperance.engine.engine import Engine
from temperance.predict import predict
from tests.small import ONE, members


def test_counts_of_extreme_rates():
    target, draws = members(tp.Poisson(), [[-110.0], [-100.0]])
    pred = predict(Engine(target), draws, ONE)
    assert float(pred.aleatoric()) == pytest.approx(0.0, abs=1e-30)
    assert float(pred.mutual_information()) == pytest.approx(0.0, abs=1e-30)
    target, draws = members(tp.Poisson(), [[13.0], [13.1]])
    pred = predict(Engine(target), draws, ONE)
    assert float(pred.mutual_information()) == pytest.approx(math.log(2), abs=1e-3)
    target, draws = members(tp.Poisson(), [[60.0], [800.0]])
    pred = predict(Engine(target), draws, ONE)
    assert (pred.sample(5) > 0).all()
    assert torch.isfinite(pred.mutual_information()).all()
    exact, large = (members(tp.Poisson(), [[a], [b]]) for a, b in ((6.1, 6.15), (6.25, 6.3)))
    one, two = (float(predict(Engine(t), draws, ONE).mutual_information()) for t, draws in (exact, large))
    assert 0 < one < two < math.log(2)  # the two ways of computing it meet
