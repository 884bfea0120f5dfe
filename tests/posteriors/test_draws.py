"""Draws."""

from __future__ import annotations

import torch

from temperance.posteriors import Draws


def test_draws_thin_evenly():
    draws = Draws(torch.arange(10.0).unsqueeze(1))
    nodes = draws.nodes(4)
    assert nodes.fetch(0, 4)[0].flatten().tolist() == [0, 3, 6, 9]
    assert len(draws.nodes(50)) == 10
