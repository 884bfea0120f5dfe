"""Kernels that draw their noise as they go, against the same in plain PyTorch."""

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.engine.native import NormalStream, in_use
from temperance.engine.native.gaussian import (
    can_fuse,
    draw_by_log_scale_,
    draw_by_precision_,
    ivon_,
    pull_to_log_scale_,
)
from temperance.engine.native.noise import fill_with_

needs_compiler = pytest.mark.skipif(in_use() != "compiled", reason="no C compiler on this machine")
SIZES = [1, 2, 7, 64, 1001, 40_003]


def vectors(size, count):
    rng = torch.Generator().manual_seed(size)
    return [torch.randn(size, generator=rng) for _ in range(count)]


def noise(size):
    keys = NormalStream(7, size).keys()
    return keys, fill_with_(torch.empty(size), keys)


@needs_compiler
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("threads", [1, 2])
def test_draw_and_gradient_by_log_scale(size, threads):
    mean, log_scale, grad, out = vectors(size, 4)
    log_scale = 3 * log_scale - 3
    keys, xi = noise(size)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        draw_by_log_scale_(out, mean, log_scale, keys)
        torch.testing.assert_close(out, mean + log_scale.exp() * xi, rtol=2e-6, atol=2e-6)
        for variances in (None, mean.square()):
            v = 0.3 * (1.0 if variances is None else variances)
            pull_to_log_scale_(out, grad, log_scale, keys, 0.3, variances, 0.01)
            scale = log_scale.exp()
            torch.testing.assert_close(out, scale * (grad * xi + 2 * scale * v) - 0.01, rtol=1e-5, atol=1e-5)
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("each", [False, True])
def test_draw_by_precision_and_a_step_of_ivon(size, each):
    mean, grad, momentum, out = vectors(size, 4)
    hessian = vectors(size + 1, 1)[0][:size].abs() + 0.1
    deltas = mean.abs() if each else None
    delta = 0.2 * (deltas if deltas is not None else torch.ones(size))
    keys, xi = noise(size)
    draw_by_precision_(out, mean, hessian, keys, 0.2, deltas, 50.0)
    root = (50 * (hessian + delta)).sqrt()
    torch.testing.assert_close(out, mean + xi / root, rtol=1e-5, atol=1e-6)
    m, h, average = mean.clone(), hessian.clone(), momentum.clone()
    numbers = {"count": 50.0, "betas": (0.9, 0.95), "correction": 1.5, "rate": 0.1, "initial": 0.7}
    ivon_(m, h, average, grad, keys, delta=0.2, deltas=deltas, **numbers)
    estimate = grad * xi * root
    expected = 0.95 * hessian + 0.05 * estimate + 0.5 * 0.05**2 * (hessian - estimate) ** 2 / (hessian + delta)
    averaged = 0.9 * momentum + 0.1 * grad
    torch.testing.assert_close(average, averaged, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(h, expected, rtol=1e-4, atol=1e-5)
    step = 0.1 * (0.7 + delta) * (averaged * 1.5 + delta * mean) / (expected + delta)
    torch.testing.assert_close(m, mean - step, rtol=1e-4, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("method", [tp.Variational(lr=1e-2), tp.IVON()], ids=["Variational", "IVON"])
@pytest.mark.parametrize("prior", [tp.GaussianPrior(0.7), tp.GaussianPrior(tp.FanIn(1.5))], ids=["one scale", "fan-in"])
def test_a_run_is_the_same_without_a_compiler(method, prior, monkeypatch):
    train, _ = tp.data.load("iris")
    found = []
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr("temperance.inference.variational.variational.can_fuse", lambda tensors: False)
            monkeypatch.setattr("temperance.inference.variational.ivon.can_fuse", lambda tensors: False)
        torch.manual_seed(0)
        target = tp.Target(tp.nn.MLP(4, [7], 3), tp.Categorical(), prior)
        found.append(tp.fit(target, method, train, epochs=5, batch_size=32).posterior)
    torch.testing.assert_close(found[0].mean, found[1].mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[0].covariance(), found[1].covariance(), rtol=1e-4, atol=1e-7)


def test_other_precisions_are_left_to_pytorch():
    assert not can_fuse((torch.zeros(3, dtype=torch.float64),))
    assert not can_fuse((torch.zeros(6)[::2],))
    target = tp.Target(nn.Linear(2, 1).double(), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    x = torch.ones(4, 2, dtype=torch.float64)
    assert tp.fit(target, tp.IVON(), (x, x[:, :1]), steps=3).posterior.mean.dtype == torch.float64
