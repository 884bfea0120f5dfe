"""State that resumes to the bit, groups, schedules, parameters that come and go."""

from __future__ import annotations

import copy
import io
import json

import pytest
import safetensors.torch
import torch

from temperance.run import optim

from .helpers import ALL, LANGEVIN, batches, make_net, train, weights


def two_groups(kind, net, seed=0, **changed):
    heads = {"params": list(net.head.parameters()), "lr": 0.02, "temperature": 0.5, "weight_decay": 0.01}
    body = {"params": [net.scalar, *net.kernel.parameters(), net.spare], "pace": 0.8}
    if kind is optim.GGMC:
        heads.pop("temperature")
    return kind([heads, body], **{"lr": 0.05, "num_data": 60, "seed": seed, **changed})


def decaying(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)


def same_closure_data(count):
    """The same batch again and again: what GGMC asks for, and as good as any for the others."""
    return list(batches(1)) * count


@pytest.mark.parametrize("name", ALL)
def test_resume_to_the_bit(name):
    """Weights, slots, noise and schedule, by torch.save and back, into an optimiser made with other numbers."""
    net = make_net()
    optimizer = two_groups(ALL[name], net)
    scheduler = decaying(optimizer)
    train(net, optimizer, same_closure_data(7), scheduler)
    file = io.BytesIO()
    torch.save([net.state_dict(), optimizer.state_dict(), scheduler.state_dict()], file)
    train(net, optimizer, same_closure_data(7), scheduler)

    again = make_net(seed=9)
    resumed = two_groups(ALL[name], again, seed=77, lr=0.5, num_data=9)
    rescheduled = decaying(resumed)
    train(again, resumed, same_closure_data(2), rescheduled)  # a past that loading has to wipe out
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    for thing, state in zip((again, resumed, rescheduled), saved, strict=True):
        thing.load_state_dict(state)
    train(again, resumed, same_closure_data(7), rescheduled)
    assert torch.equal(weights(net), weights(again))
    assert _flat(optimizer.state_dict()).keys() == _flat(resumed.state_dict()).keys()
    for key, value in _flat(optimizer.state_dict()).items():
        assert torch.equal(value, _flat(resumed.state_dict())[key])


def _flat(state_dict):
    return {
        f"{i}.{name}": torch.as_tensor(value) for i, own in state_dict["state"].items() for name, value in own.items()
    }


@pytest.mark.parametrize("name", ALL)
def test_state_fits_into_safetensors_and_json(name):
    net = make_net()
    optimizer = two_groups(ALL[name], net)
    train(net, optimizer, same_closure_data(5))
    state = optimizer.state_dict()
    data, text = safetensors.torch.save(_flat(state)), json.dumps(state["param_groups"])
    again = make_net()
    again.load_state_dict(copy.deepcopy(net.state_dict()))
    train(net, optimizer, same_closure_data(3))

    read: dict = {"state": {}, "param_groups": json.loads(text)}
    for key, value in safetensors.torch.load(data).items():
        place, slot = key.split(".")
        read["state"].setdefault(int(place), {})[slot] = int(value) if slot == "step" else value
    resumed = two_groups(ALL[name], again)
    resumed.load_state_dict(read)
    train(again, resumed, same_closure_data(3))
    assert torch.equal(weights(net), weights(again))


@pytest.mark.parametrize("name", ALL)
def test_a_copy_goes_its_own_way_and_the_same(name):
    net = make_net()
    optimizer = two_groups(ALL[name], net)
    train(net, optimizer, same_closure_data(4))
    other, twin = copy.deepcopy((net, optimizer))
    train(net, optimizer, same_closure_data(4))
    assert not torch.equal(weights(net), weights(other))
    train(other, twin, same_closure_data(4))
    assert torch.equal(weights(net), weights(other))


def test_loading_leaves_the_source_alone():
    net = make_net()
    optimizer = two_groups(optim.SGHMC, net)
    train(net, optimizer, batches(3))
    other = make_net()
    twin = two_groups(optim.SGHMC, other)
    twin.load_state_dict(optimizer.state_dict())
    before = optimizer.state[net.scalar]["velocity"].clone()
    train(other, twin, batches(3))
    assert torch.equal(optimizer.state[net.scalar]["velocity"], before)


@pytest.mark.parametrize("name", ALL)
def test_seeds(name):
    def run(seed):
        net = make_net()
        train(net, ALL[name](net.parameters(), lr=0.05, num_data=60, seed=seed), same_closure_data(4))
        return weights(net)

    assert torch.equal(run(3), run(3))
    assert not torch.equal(run(3), run(4))


@pytest.mark.parametrize("kind", [optim.SGLD, optim.SGHMC])
def test_groups_have_noise_of_their_own(kind):
    ps = [torch.nn.Parameter(torch.zeros(5000)) for _ in range(3)]
    optimizer = kind([{"params": [ps[0]]}, {"params": [ps[1]]}], lr=0.1, num_data=10)
    optimizer.add_param_group({"params": ps[2], "lr": 0.4})
    for p in ps:
        p.grad = torch.zeros(5000)
    optimizer.step()
    moves = torch.stack([p.detach() for p in ps]).double()
    assert (torch.corrcoef(moves) - torch.eye(3)).abs().max() < 5 / 5000**0.5
    assert float(moves[2].std() / moves[0].std()) == pytest.approx(2.0, rel=0.1)  # √lr


def test_groups_keep_their_own_numbers():
    """Two groups are as good as two optimisers."""
    one, two = make_net(torch.float64), make_net(torch.float64)
    both = two_groups(optim.SGHMC, one, temperature=0.0, momentum=0.5)
    both.param_groups[0].update(temperature=0.0, momentum=0.7)
    heads = optim.SGHMC(two.head.parameters(), 0.02, 60, 0.7, 0.0, 0.01)
    body = optim.SGHMC([two.scalar, *two.kernel.parameters()], 0.05, 60, 0.5, 0.0, pace=0.8)
    for x, y in batches(10, torch.float64):
        for net, optimizers in ((one, [both]), (two, [heads, body])):
            net.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
    assert torch.allclose(weights(one), weights(two), rtol=1e-12)


def test_schedule_moves_lr_and_zero_stands_still():
    p = torch.nn.Parameter(torch.zeros(1000))
    optimizer = optim.SGLD([p], lr=0.1, num_data=10)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (0.0, 1.0, 0.25)[step])
    spreads = []
    for step in range(3):
        before = p.detach().clone()
        p.grad = torch.zeros(1000)
        optimizer.step()
        spreads.append(float((p.detach() - before).std()))
        if step < 2:
            scheduler.step()
    assert spreads[0] == 0.0
    assert spreads[1] == pytest.approx((2 * 0.1 / 10) ** 0.5, rel=0.1)
    assert spreads[2] == pytest.approx((2 * 0.025 / 10) ** 0.5, rel=0.1)


@pytest.mark.parametrize("name", LANGEVIN)
def test_parameters_come_and_go(name):
    """One without a gradient is left alone with its state; it takes part again when it has one."""
    a, b = (torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2))
    options = {"adapt": 2} if name == "PSGLD" else {}
    optimizer = LANGEVIN[name]([a, b], lr=0.1, num_data=10, temperature=0.0, **options)
    alone = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    reference = LANGEVIN[name]([alone], lr=0.1, num_data=10, temperature=0.0, **options)
    for step in range(6):
        gradient = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) * (step + 1)
        a.grad = gradient.clone()
        b.grad = gradient.clone() if step % 2 else None
        before = b.detach().clone()
        optimizer.step()
        if step % 2:
            alone.grad = gradient.clone()
            reference.step()
        else:
            assert torch.equal(b, before)
        assert torch.allclose(b, alone, rtol=1e-14)
    if name == "PSGLD":
        assert optimizer.state[b]["step"] == 2
    b.grad = None
    optimizer.step()
    for value in optimizer.state[b].values():  # what is left behind holds no memory but its own
        assert not isinstance(value, torch.Tensor) or value.untyped_storage().nbytes() == 24


def test_nothing_to_do():
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = optim.SGHMC([p], lr=0.1, num_data=10)
    optimizer.step()
    assert torch.equal(p, torch.ones(3))
    assert optimizer.state_dict()["state"] == {}


def test_clearing_the_state_forgets_velocities():
    p = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = optim.SGHMC([p], lr=0.1, num_data=10, temperature=0.0)
    p.grad = torch.ones(3, dtype=torch.float64)
    for _ in range(3):
        optimizer.step()
    optimizer.state.clear()
    before = p.detach().clone()
    optimizer.step()
    assert torch.allclose(p, before - 0.1)


def test_mixed_dtypes_and_memory_formats():
    """Blocks by dtype; a kernel in channels-last order moves as one in the usual order."""
    torch.manual_seed(0)
    start, gradient = torch.randn(2, 4, 3, 3), torch.randn(2, 4, 3, 3)
    moved = []
    for order in (torch.contiguous_format, torch.channels_last):
        kernel = torch.nn.Parameter(start.clone(memory_format=order))
        other = torch.nn.Parameter(torch.zeros(7, dtype=torch.float64))
        half = torch.nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
        optimizer = optim.BAOAB([kernel, other, half], lr=0.1, num_data=10, seed=1)
        for _ in range(3):
            kernel.grad = gradient.clone(memory_format=order)
            other.grad, half.grad = torch.ones_like(other), torch.ones_like(half)
            optimizer.step()
        assert kernel.is_contiguous(memory_format=order)
        assert (other.detach() != 0).all()
        assert (half.detach() != 0).all()
        moved.append(kernel.detach().contiguous())
    assert torch.equal(*moved)


def test_closure_is_called_with_gradients_on_and_its_value_returned():
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = optim.SGLD([p], lr=0.1, num_data=10, temperature=0.0)

    def closure():
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert float(optimizer.step(closure)) == 3.0
    assert torch.allclose(p, torch.tensor(0.8))
    assert optimizer.step() is None
