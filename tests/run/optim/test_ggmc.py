"""What only the optimiser with a closure can get wrong."""

from __future__ import annotations

import pytest
import torch

from temperance.run import optim


def test_ggmc_looks_again_when_someone_moved_a_parameter():
    p = torch.nn.Parameter(torch.zeros(3))
    optimizer = optim.GGMC([p], lr=0.1, num_data=10)
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert calls == 2
    optimizer.zero_grad()
    optimizer.step(closure)
    assert calls == 3
    with torch.no_grad():
        p.add_(100.0)
    optimizer.step(closure)
    assert calls == 5
    assert optimizer.acceptance > 0  # by the energy at the new place; by that at the old it would be refused
    assert float(p.detach().mean()) > 50


def test_ggmc_rejects_what_is_not_finite_and_survives_an_exception():
    p = torch.nn.Parameter(torch.zeros(3))
    optimizer = optim.GGMC([p], lr=0.1, num_data=10)
    trouble = None

    def closure():
        optimizer.zero_grad()
        loss = p.square().sum()
        if trouble == "nan" and float(p.detach().abs().max()) > 0:
            loss = loss * float("nan")
        loss.backward()
        if trouble == "raise" and not torch.equal(p.detach(), before):
            raise KeyboardInterrupt
        return loss

    trouble = "nan"
    optimizer.step(closure)
    assert torch.equal(p, torch.zeros(3))
    assert optimizer.acceptance == 0.0
    assert torch.equal(p.grad, torch.zeros(3))
    trouble = None
    while optimizer.acceptance == 0.0:
        optimizer.step(closure)
    trouble, before = "raise", p.detach().clone()
    velocity = optimizer.state[p]["velocity"].clone()
    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert torch.equal(p, before)
    assert torch.equal(optimizer.state[p]["velocity"], velocity)
