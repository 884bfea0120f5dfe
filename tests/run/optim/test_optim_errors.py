"""Errors name the argument, the rule and what was got; nothing is changed by a step that raises."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from temperance.core.errors import ArgumentError, NumericalError
from temperance.run import optim

from .helpers import ALL, LANGEVIN

WRONG = [
    ({"lr": 0.0}, "`lr` must be a positive"),
    ({"lr": -0.1}, "`lr` must be a positive"),
    ({"lr": float("nan")}, "`lr` must be a positive"),
    ({"lr": torch.tensor(0.1)}, "`lr` must be a positive"),
    ({"num_data": 0}, "`num_data` must be a positive integer .the size of the whole training set"),
    ({"num_data": 10.0}, "`num_data` must be a positive integer .*got 10.0"),
    ({"num_data": True}, "`num_data` must be a positive integer"),
    ({"temperature": -1.0}, "`temperature` must be a finite number, 0 or more; got -1.0"),
    ({"temperature": float("inf")}, "`temperature` must be"),
    ({"weight_decay": -1e-4}, "`weight_decay` must be"),
    ({"pace": 1.5}, r"`pace` must lie in \[0, 1\]; got 1.5"),
    ({"seed": -1}, "`seed` must be an integer"),
]


def make(kind, params, **options):
    return kind(params, **{"lr": 0.1, "num_data": 10, **options})


@pytest.fixture
def ones():
    return torch.nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_numbers(name, options, message, ones):
    with pytest.raises(ArgumentError, match=message):
        make(ALL[name], [ones], **options)
    with pytest.raises(ArgumentError, match=message):
        make(ALL[name], [{"params": [ones], **options}])


@pytest.mark.parametrize("name", ["SGHMC", "SGNHT", "BAOAB", "GGMC"])
@pytest.mark.parametrize("momentum", [-0.1, 1.0, "0.9"])
def test_wrong_momentum(name, momentum, ones):
    with pytest.raises(ArgumentError, match=r"`momentum` must lie in \[0, 1\)"):
        make(ALL[name], [ones], momentum=momentum)


def test_numbers_of_one_optimiser(ones):
    with pytest.raises(ArgumentError, match="`mass` must be a positive"):
        make(optim.SGHMC, [ones], mass=0.0)
    with pytest.raises(ArgumentError, match="`decay` must lie"):
        make(optim.PSGLD, [ones], decay=1.0)
    with pytest.raises(ArgumentError, match="`adapt` must be"):
        make(optim.PSGLD, [ones], adapt=0)
    with pytest.raises(ArgumentError, match="`scale` must be"):
        optim.weight_decay_of(0.0, 10)
    with pytest.raises(ArgumentError, match="`num_data` must be"):
        optim.weight_decay_of(1.0, 0)


def test_a_refused_group_is_not_added(ones):
    optimizer = make(optim.SGHMC, [ones])
    with pytest.raises(ArgumentError, match="`temperature`"):
        optimizer.add_param_group({"params": torch.nn.Parameter(torch.zeros(2)), "temperature": -1.0})
    assert len(optimizer.param_groups) == 1


def test_numbers_changed_later_are_checked_before_anything_moves(ones):
    ones.grad = torch.ones(3)
    optimizer = make(optim.SGHMC, [ones])
    for name, value in (("temperature", -1.0), ("lr", -0.1), ("momentum", 1.0), ("mass", 0.0), ("pace", 2.0)):
        good = optimizer.param_groups[0][name]
        optimizer.param_groups[0][name] = value
        with pytest.raises(ArgumentError, match=f"`{name}`"):
            optimizer.step()
        optimizer.param_groups[0][name] = good
    assert torch.equal(ones, torch.ones(3))
    optimizer.step()
    assert not torch.equal(ones, torch.ones(3))


def test_numbers_of_numpy_become_plain(ones):
    optimizer = make(optim.SGHMC, [ones], lr=np.float64(0.1), num_data=np.int64(10))
    assert type(optimizer.param_groups[0]["lr"]) is float
    assert type(optimizer.param_groups[0]["num_data"]) is int


def test_wrong_parameters(ones):
    with pytest.raises(ArgumentError, match="floating dtype; parameter 0 of group 0"):
        make(optim.SGLD, [torch.zeros(3, dtype=torch.complex64, requires_grad=True)])
    with pytest.warns(UserWarning, match="duplicate"), pytest.raises(ArgumentError, match="once"):
        make(optim.SGLD, [ones, ones])


@pytest.mark.parametrize("name", LANGEVIN)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_gradient_changes_nothing(name, bad, ones):
    net = torch.nn.Linear(2, 2)
    optimizer = make(LANGEVIN[name], [{"params": [("first", ones)]}, {"params": list(net.named_parameters())}])
    for p in (ones, *net.parameters()):
        p.grad = torch.ones_like(p)
    optimizer.step()
    start = [p.detach().clone() for p in (ones, *net.parameters())]
    state = {key: value.clone() for key, value in optimizer.state[ones].items() if isinstance(value, torch.Tensor)}
    counts = [group["noise_count"] for group in optimizer.param_groups]
    net.bias.grad[1] = bad
    with pytest.raises(NumericalError, match=r"'bias' \(parameter 1 of group 1, of shape \(2,\)\) is not finite"):
        optimizer.step()
    assert all(torch.equal(p, was) for p, was in zip((ones, *net.parameters()), start, strict=True))
    assert all(torch.equal(optimizer.state[ones][key], value) for key, value in state.items())
    assert counts == [group["noise_count"] for group in optimizer.param_groups]


def test_huge_but_finite_gradients_pass(ones):
    optimizer = make(optim.SGLD, [ones], lr=1e-30)
    ones.grad = torch.full((3,), 3e38)  # their sum is not finite
    optimizer.step()
    assert torch.isfinite(ones).all()


@pytest.mark.parametrize("name", ALL)
def test_sparse_gradient(name):
    table = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = make(ALL[name], table.parameters())

    def closure():
        optimizer.zero_grad()
        loss = table(torch.tensor([1, 3])).square().mean()
        loss.backward()
        return loss

    with pytest.raises(ArgumentError, match=r"dense .*parameter 0 of group 0, of shape \(5, 2\) is sparse"):
        optimizer.step(closure)


def test_closure_of_ggmc(ones):
    optimizer = make(optim.GGMC, [ones])
    with pytest.raises(ArgumentError, match="`closure` must be given"):
        optimizer.step()
    with pytest.raises(ArgumentError, match="must return the mean loss"):
        optimizer.step(lambda: None)
    with pytest.raises(ArgumentError, match="must call backward"):
        optimizer.step(lambda: 1.0)

    def closure(factor):
        optimizer.zero_grad()
        loss = ones.sum() * factor
        loss.backward()
        return loss

    with pytest.raises(NumericalError, match="the loss that `closure` returned is not finite"):
        optimizer.step(lambda: closure(float("nan")))
    assert torch.equal(ones, torch.ones(3))


def test_ggmc_wants_one_temperature(ones):
    with pytest.raises(ArgumentError, match="`temperature` must be positive for GGMC"):
        make(optim.GGMC, [ones], temperature=0.0)
    other = torch.nn.Parameter(torch.zeros(2))
    for name, value in (("temperature", 0.5), ("num_data", 11)):
        with pytest.raises(ArgumentError, match=f"`{name}` must be one number for all groups"):
            make(optim.GGMC, [{"params": [ones]}, {"params": [other], name: value}])


def test_ggmc_wants_the_same_parameters_at_each_call(ones):
    other, calls = torch.nn.Parameter(torch.zeros(2)), 0
    optimizer = make(optim.GGMC, [ones, other])

    def closure():
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = ones.square().sum() + (other.square().sum() if calls % 2 else 0.0)
        loss.backward()
        return loss

    with pytest.raises(ArgumentError, match="the same parameters at every call"):
        optimizer.step(closure)
    assert torch.equal(ones, torch.ones(3))
