"""Outputs in blocks of rows."""

from __future__ import annotations

import torch

import temperance as tp
from tests.small import X, Y, real


def test_a_prediction_does_not_change_with_its_input():
    fitted = tp.fit(real(), tp.MAP(), (X, Y), epochs=1)
    x = X.clone()
    pred = fitted.predict(x)
    expected = fitted.predict(X).mean()
    x.fill_(100.0)
    assert torch.equal(pred.mean(), expected)
