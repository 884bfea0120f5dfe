"""A small regression problem, members with given outputs, runs that are killed: what tests of several rooms share."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.posteriors import Draws
from temperance.run.loop import Loop

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


class _Killed(Exception):
    pass


@contextmanager
def killed_at(step):
    """What is fitted inside is saved after so many steps, and goes no further."""
    recorded = Loop._record

    def record(self, batch, info):
        recorded(self, batch, info)
        if self.info.steps == step:
            self.save()
            raise _Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_record", record)
        with pytest.raises(_Killed):
            yield
