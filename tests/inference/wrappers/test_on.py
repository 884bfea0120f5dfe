"""``On``: a method for a part of the network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError


@pytest.mark.parametrize(
    "method",
    [tp.Ensemble(tp.MAP(), 3), tp.SVGD(3), tp.RepulsiveEnsemble(3), tp.Ensemble(tp.Collect(tp.SGHMC(lr=0.01)), 3)],
    ids=lambda m: type(m).__name__,
)
def test_rows_that_differ_outside_of_the_part_are_refused(method):
    """On keeps one rest; that of the other rows would be dropped without a word."""
    x = torch.randn(12, 3)
    target = tp.Target(
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), tp.Normal(0.1), tp.GaussianPrior(1.0)
    )
    rows = torch.stack([target.fresh_theta(k) for k in range(3)])
    with pytest.raises(ArgumentError, match=r"agree outside of the subset '2'.*Ensemble\(On\('2'"):
        tp.fit(target, tp.On("2", method), (x, x[:, :1]), steps=2, start=rows)
    rows[:, :16] = rows[0, :16]
    found = tp.fit(target, tp.On("2", method), (x, x[:, :1]), steps=2, start=rows, progress=False)
    assert found.posterior.size == target.num_parameters
