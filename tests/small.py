"""A small regression problem, and members with given outputs, that tests of several rooms share."""

from __future__ import annotations

import torch
from torch import nn

import temperance as tp
from temperance.posteriors import Draws

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
Y = torch.randn(20, 1, generator=torch.Generator().manual_seed(2))
ONE = torch.ones(1, 1, dtype=torch.float64)


def real(net: nn.Module | None = None, **options) -> tp.Target:
    return tp.Target(net or nn.Linear(3, 1), tp.Normal(0.5), tp.GaussianPrior(1.0), **options)


def members(likelihood: tp.Likelihood, outputs: list[list[float]]) -> tuple[tp.Target, Draws]:
    """A network without inputs to speak of: its outputs are its weights."""
    values = torch.tensor(outputs, dtype=torch.float64)
    target = tp.Target(nn.Linear(1, values.shape[1], bias=False).double(), likelihood, tp.GaussianPrior(1.0))
    return target, Draws(values)
