"""U and its gradient for many θ over all rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.data.data import Data
from temperance.engine.engine import Engine
from tests.inference.hamiltonian.test_hamiltonian import Swish, classifier, moons, whole


@pytest.mark.parametrize("activation", [nn.Tanh, Swish])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_energies_are_those_of_the_target(activation, dtype):
    target, data = classifier(dtype=dtype, activation=activation), moons()
    batch = whole(target, data)
    theta = torch.randn(3, target.num_parameters, generator=torch.Generator().manual_seed(0)).to(dtype)
    grad = torch.empty_like(theta)
    found = Engine(target).energies(theta, batch, grad)
    leaf = theta.clone().requires_grad_()
    wanted = Engine(target).energy(leaf, batch)
    (slope,) = torch.autograd.grad(wanted.sum(), leaf)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert found.dtype == torch.float64
    assert torch.allclose(found, wanted.detach().double(), rtol=tolerance)
    assert torch.allclose(grad, slope, rtol=10 * tolerance, atol=100 * tolerance)
    assert torch.allclose(Engine(target).energies(theta, batch), found, rtol=tolerance)


def test_one_by_one_in_pieces_equals_all_at_once(monkeypatch):
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 16, 3)).double()
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(30, 1, 6, 6, generator=rng).double()
    batch = whole(target, Data(x, torch.randint(3, (30,), generator=rng)))
    theta = torch.randn(2, target.num_parameters, generator=rng).double()
    one, two = torch.empty_like(theta), torch.empty_like(theta)
    energies = Engine(target).energies_on(batch)
    energies.batched = True
    together = energies(theta, one)
    energies.batched = False
    monkeypatch.setattr("temperance.engine.energy._ROWS_AT_ONCE", 7)
    apart = energies(theta, two)
    assert torch.allclose(together, apart, rtol=1e-13)
    assert torch.allclose(one, two, rtol=1e-10, atol=1e-12)


def test_energies_do_not_cancel_in_single_precision():
    """200,000 rows: U is about 3e5, and its change over a small move must be right to much less than one."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, 2, generator=rng)
    y = x.sum(1, keepdim=True) + torch.randn(200_000, 1, generator=rng)
    change = {}
    for dtype in (torch.float32, torch.float64):
        network = nn.Sequential(nn.Linear(2, 1), Swish(), nn.Linear(1, 1)).to(dtype)
        target = tp.Target(network, tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
        batch = whole(target, Data(x, y))
        theta = torch.linspace(-0.5, 0.5, target.num_parameters).to(dtype).unsqueeze(0)
        moved = theta + 0.0005
        change[dtype] = float(Engine(target).energies(moved, batch) - Engine(target).energies(theta, batch))
    assert abs(change[torch.float32] - change[torch.float64]) < 0.05


def test_energies_need_all_rows():
    target, data = classifier(), moons()
    part = next(iter(target.prepare(data).batches(10, seed=0)))
    with pytest.raises(ArgumentError, match="must hold all 60 rows"):
        Engine(target).energies(target.initial_theta().unsqueeze(0), part)
