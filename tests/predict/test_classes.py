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


class _Table(tp.predict.CategoryPredictive):
    """Probabilities from anywhere."""

    def __init__(self, base, probs):
        super().__init__(base.source, base.likelihood)
        self._probs = probs

    @property
    def probs(self):
        return self._probs


def test_whatever_has_class_probabilities_can_be_decided_with():
    base = tp.predict.from_outputs([[0.0, 0.0], [0.0, 0.0]], tp.Categorical())
    made = _Table(base, torch.tensor([[0.9, 0.1], [0.3, 0.7]]))
    assert made.predict().tolist() == [0, 1]
    assert made.entropy().tolist() == pytest.approx([0.325083, 0.610864], abs=1e-5)
    assert torch.equal(tp.decide.members.class_probabilities(made), made.probs)
    assert made.as_functions() is made


def test_the_ece_of_evaluate_is_that_of_the_scores():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=rng)
    y = (x[:, 0] + torch.randn(200, generator=rng) > 0).long()
    fitted = tp.fit(
        tp.Target(tp.nn.MLP(3, [8], 2), tp.Categorical(), tp.GaussianPrior(1.0)), tp.MAP(), (x, y), epochs=3
    )
    probs = fitted.predict(x).probs
    assert fitted.evaluate((x, y))["ece"] == pytest.approx(tp.scores.ece(probs, y).value, rel=1e-9)
    assert fitted.evaluate((x, y))["brier"] == pytest.approx(tp.scores.brier(probs, y), rel=1e-9)
