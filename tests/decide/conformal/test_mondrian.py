"""Conformal sets group by group."""

from __future__ import annotations

import torch

from temperance.decide.conformal import RAPS, Mondrian
from temperance.decide.conformal.base import scored
from tests.decide.helpers import labelled as _classes


def test_mondrian_keeps_groups_and_rows_together_when_rows_were_spent_on_tuning() -> None:
    predictive, y = _classes(400, 3)
    groups = [int(k) for k in (torch.arange(400) % 3 == 0)]
    made = Mondrian(RAPS()).calibrate(predictive, y, 0.9, groups, seed=5)
    _, scores, used = scored(RAPS(), predictive, y, 0.9, 5)
    assert not bool(used.all())
    kept = torch.tensor(groups)[used]
    assert made.groups is not None
    for k, name in enumerate(made.groups):
        torch.testing.assert_close(made.scores[k].sort().values, scores[kept == name].sort().values)
