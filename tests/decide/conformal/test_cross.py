"""Cross-conformal sets by their definition, counted row by row."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import temperance as tp
from temperance.decide.conformal import Cross, Split
from temperance.predict import Log, MonotonePredictive, ValuePredictive
from temperance.predict.calibrated import from_outputs

FOLDS, ROWS, NEW, CLASSES = 3, 14, 9, 3


def _logits(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, CLASSES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("level", [0.5, 0.7, 0.9])
def test_sets_are_those_of_vovk(per_class: bool, level: float) -> None:
    old, new = [_logits(ROWS, k) for k in range(FOLDS)], [_logits(NEW, 10 + k) for k in range(FOLDS)]
    labels = [torch.arange(ROWS) * (k + 1) % CLASSES for k in range(FOLDS)]
    made = Cross(Split(), per_class).calibrate([from_outputs(f, tp.Categorical()) for f in old], labels, level)
    found = made.sets([from_outputs(f, tp.Categorical()) for f in new])
    wanted = torch.zeros(NEW, CLASSES, dtype=torch.bool)
    for j in range(NEW):
        for c in range(CLASSES):
            above = rows = 0
            for k in range(FOLDS):
                mine = 1 - float(new[k].softmax(-1)[j, c])
                for i in range(ROWS):
                    if not per_class or int(labels[k][i]) == c:
                        rows += 1
                        above += mine > 1 - float(old[k].softmax(-1)[i, labels[k][i]])
            wanted[j, c] = above < math.ceil(level * (rows + 1) - 1e-9)
    assert torch.equal(found, wanted)
    assert 0 < int(found.sum()) < found.numel() or level == 0.9


def test_a_row_like_those_that_promise_keeps_its_class() -> None:
    alike = [from_outputs(torch.tensor([[1.0, 0.0, -1.0]]).expand(20, 3), tp.Categorical()) for _ in range(2)]
    for label, kept in ((0, [True, False, False]), (1, [True, True, False])):
        made = Cross(Split()).calibrate(alike, [torch.full((20,), label)] * 2, 0.9)
        assert made.sets([from_outputs(torch.tensor([[1.0, 0.0, -1.0]]), tp.Categorical())] * 2).tolist() == [kept]


@pytest.mark.parametrize("bent", [0, 1])
def test_an_interval_is_positive_where_one_model_knows_that_the_target_is(bent: int) -> None:
    def said(rows: int) -> list[ValuePredictive]:
        plain = from_outputs(torch.zeros(rows, 1), tp.Normal(scale=1.0))
        assert isinstance(plain, ValuePredictive)
        return [MonotonePredictive(plain, Log()) if k == bent else plain for k in range(2)]

    y = torch.rand(2, 20, 1, generator=torch.Generator().manual_seed(0)) + 0.5
    low, high = Cross(Split()).calibrate(said(20), y, 0.9).interval(said(1))
    assert float(low) == 0.0 < float(high)
