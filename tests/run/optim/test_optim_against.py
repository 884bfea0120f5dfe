"""Where equality is a theorem: at T = 0 the optimisers of torch; at any T the methods of ``tp.fit``, path by path."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import temperance as tp
from temperance import inference
from temperance.core.seeds import generator
from temperance.data.data import Batch
from temperance.engine.engine import Engine
from temperance.engine.native import NormalStream
from temperance.run import optim
from temperance.testing import LinearLeaves

from .helpers import batches, make_net, train, weights

WITH_MOMENTUM = (optim.SGHMC, optim.BAOAB, optim.SGNHT)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [*WITH_MOMENTUM, optim.SGLD, optim.LeimkuhlerMatthews])
def test_without_temperature_it_is_sgd(kind, dtype, decay):
    ours, theirs = make_net(dtype), make_net(dtype)
    momentum = {"momentum": 0.9} if kind in WITH_MOMENTUM else {}
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.3, weight_decay=decay, **momentum)
    optimizer = kind(ours.parameters(), lr=0.3, num_data=5000, temperature=0.0, weight_decay=decay, **momentum)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    for one, two in zip(batches(30, dtype), batches(30, dtype), strict=True):
        train(ours, optimizer, [one])
        train(theirs, sgd, [two])
        assert torch.allclose(weights(ours), weights(theirs), rtol=tolerance, atol=tolerance)
    assert not torch.allclose(weights(ours), weights(make_net(dtype)), atol=0.02)


def test_without_temperature_psgld_is_rmsprop_begun_at_the_first_gradient():
    ours, theirs = make_net(torch.float64), make_net(torch.float64)
    rms = torch.optim.RMSprop(theirs.parameters(), lr=0.01, alpha=0.9, eps=1e-3)
    x, y = next(batches(1, torch.float64))
    torch.nn.functional.cross_entropy(theirs(x), y).backward()
    for p in theirs.parameters():
        if p.grad is not None:
            rms.state[p] = {"step": torch.tensor(0.0), "square_avg": p.grad.square()}
    optimizer = optim.PSGLD(ours.parameters(), lr=0.01, num_data=50, decay=0.9, temperature=0.0)
    train(ours, optimizer, batches(20, torch.float64))
    train(theirs, rms, batches(20, torch.float64))
    assert torch.allclose(weights(ours), weights(theirs), rtol=1e-11, atol=1e-12)


# ---------------------------------------------------------------------- the methods of tp.fit

SCALE, NOISE, ROWS = 0.8, 0.5, 40
RULES = {
    "SGLD": (optim.SGLD, inference.SGLD, {}),
    "SGHMC": (optim.SGHMC, inference.SGHMC, {"momentum": 0.8}),
    "PSGLD": (optim.PSGLD, inference.PSGLD, {"decay": 0.9, "adapt": 12}),
    "SGNHT": (optim.SGNHT, inference.SGNHT, {"momentum": 0.8}),
    "BAOAB": (optim.BAOAB, inference.BAOAB, {"momentum": 0.8}),
    "LeimkuhlerMatthews": (optim.LeimkuhlerMatthews, inference.LeimkuhlerMatthews, {}),
}


def problem(temperature=1.0):
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(ROWS, 5, generator=rng, dtype=torch.float64)
    y = torch.randn(ROWS, 2, generator=rng, dtype=torch.float64) + x[:, :2]
    torch.manual_seed(0)
    net = LinearLeaves()
    target = tp.Target(net, tp.Normal(scale=NOISE), tp.GaussianPrior(scale=SCALE), temperature)
    return net, target, x, y


def mean_loss(net, x, y):
    """−log p(y | x, θ), averaged over rows, with its constant."""
    return -torch.distributions.Normal(net(x), NOISE).log_prob(y).sum(-1).mean()


@pytest.mark.parametrize("name", RULES)
def test_path_of_the_method(name):
    """The same noise gives the same path as the method does within ``tp.fit``: gradients on batches, prior, pace, T."""
    kind, method_of, options = RULES[name]
    net, target, x, y = problem(temperature=0.6)
    method = method_of(lr=0.02, **options)
    engine = Engine(target)
    state = method.init(engine, tp.Starts(), [torch.Generator().manual_seed(0)])
    decay = optim.weight_decay_of(SCALE, ROWS)
    optimizer = kind(
        net.parameters(), lr=0.02, num_data=ROWS, temperature=0.6, weight_decay=decay, pace=0.7, seed=4, **options
    )
    state.streams = [NormalStream(optimizer.param_groups[0]["noise_seed"])]
    state.pace = 0.7
    start = state.theta.clone()
    for step in range(25):
        rows = slice(10 * (step % 4), 10 * (step % 4) + 10)
        state, info = method.step(engine, state, Batch(x[rows], y[rows], num_data=ROWS))
        assert info.status.ok
        optimizer.zero_grad()
        mean_loss(net, x[rows], y[rows]).backward()
        optimizer.step()
        assert torch.allclose(target.layout.flatten(net), state.theta, rtol=1e-9, atol=1e-10)
    assert (state.theta - start).abs().min() > 1e-4


def test_path_of_ggmc():
    """The same noise and luck: the same proposals, decisions, and turned velocities."""
    net, target, x, y = problem(temperature=0.6)
    method = inference.GGMC(lr=0.3, momentum=0.7, length=1)
    engine = Engine(target)
    state = method.init(engine, tp.Starts(), [torch.Generator().manual_seed(0)])
    decay = optim.weight_decay_of(SCALE, ROWS)
    optimizer = optim.GGMC(net.parameters(), 0.3, ROWS, momentum=0.7, temperature=0.6, weight_decay=decay, seed=2)
    seed, calls = optimizer.param_groups[0]["noise_seed"], 0
    state.chain.streams = [NormalStream(seed)]
    state.chain.streams[0].fill_(state.chain.slots["velocity"]).mul_(math.sqrt(0.6))

    def closure():
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = mean_loss(net, x, y)
        loss.backward()
        return loss

    for step in range(60):
        state.rng = generator(seed, "accept", step)
        state, _ = method.step(engine, state, Batch(x, y, num_data=ROWS))
        loss = optimizer.step(closure)
        assert torch.allclose(target.layout.flatten(net), state.chain.theta, rtol=1e-8, atol=1e-9)
        assert float(loss) == pytest.approx(float(mean_loss(net, x, y).detach()), rel=1e-12)
        grads = [p.grad.clone() for p in net.parameters()]
        closure()
        calls -= 1
        assert all(torch.allclose(g, p.grad, rtol=1e-10) for g, p in zip(grads, net.parameters(), strict=True))
    assert calls == 61  # one a step and one at the start; none after a rejection
    assert 10 < state.accepted < 50
    assert optimizer.acceptance == state.accepted / 60


def test_same_law_as_fit():
    """Means and variances of an own loop and of ``tp.fit``, on batches, beside each other; batch means give errors."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 20).unsqueeze(1)
    y = 0.5 * x + 0.2
    net = torch.nn.Linear(1, 1)
    steps, keep, blocks = 1700, 1500, 30
    target = tp.Target(copy.deepcopy(net), tp.Normal(scale=1.0), tp.GaussianPrior(scale=1.0))
    method = tp.Collect(tp.SGHMC(lr=0.2, momentum=0.7), burn=steps - keep, every=1)
    fitted = tp.fit(target, method, (x, y), steps=steps, batch_size=10, seed=1)
    optimizer = optim.SGHMC(net.parameters(), 0.2, 20, 0.7, weight_decay=optim.weight_decay_of(1.0, 20))
    draws = torch.empty(keep, 2)
    order = torch.Generator().manual_seed(0)
    for step in range(steps):
        if step % 2 == 0:
            rows = torch.randperm(20, generator=order).split(10)
        optimizer.zero_grad()
        (0.5 * (net(x[rows[step % 2]]) - y[rows[step % 2]]).square().mean()).backward()
        optimizer.step()
        if step >= steps - keep:
            draws[step - steps + keep] = torch.cat([p.detach().flatten() for p in net.parameters()])
    for function in (lambda d: d, lambda d: (d - torch.tensor([0.4, 0.2])).square()):
        one, two = (function(d.double()).reshape(blocks, -1, 2).mean(1) for d in (draws, fitted.posterior.theta))
        error = ((one.var(0) + two.var(0)) / blocks).sqrt()
        assert ((one.mean(0) - two.mean(0)).abs() < 5.0 * error).all()
        assert (error < 0.15).all()
