from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import TemperanceWarning
from temperance.engine.compiling import Compiled
from temperance.engine.engine import Engine

X, Y = torch.randn(48, 3, generator=torch.Generator().manual_seed(0)), torch.arange(48) % 4


@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="there is no compiler here")
def test_compiled_training_gives_the_same_members():
    method = tp.Ensemble(tp.MAP(lr=0.01), 3)
    network = tp.nn.MLP(3, [8], 4)
    plain, fast = (tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0)) for _ in range(2))
    one = tp.fit(plain, method, (X, Y), epochs=3, batch_size=16)
    two = tp.fit(fast, method, (X, Y), epochs=3, batch_size=16, compile=True)
    assert two.engine._compiled_stack.in_use == "compiled"
    for a, b in zip(one.posterior.components, two.posterior.components, strict=True):
        assert torch.allclose(a.theta, b.theta, atol=1e-5)


def test_without_a_compiler_it_says_so_and_goes_on(monkeypatch):
    def broken(function, **options):
        def fails(*args):
            raise RuntimeError("no working C++ compiler found")

        return fails

    monkeypatch.setattr(torch, "compile", broken)
    double = Compiled(lambda x: 2 * x)
    with pytest.warns(TemperanceWarning, match="no working C"):
        assert double(2) == 4
    assert double.in_use == "eager"
    assert double(3) == 6


def test_true_errors_are_not_hidden(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)

    def wrong(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        Compiled(wrong)(1)


def test_what_is_compiled_knows_the_temperature_and_the_likelihood_of_its_target(monkeypatch):
    """λ, and the noise of a target that takes the place of the first; without a compiler, for speed."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    target = tp.Target(network, tp.Normal(0.5), tp.GaussianPrior(1.0), likelihood_temperature=2.5)
    data = target.prepare(tp.data.Data(X.double(), Y[:, None].double()))
    batch = next(iter(data.batches(6, seed=0, streams=3)))
    theta = torch.stack([target.fresh_theta(k) for k in range(3)])
    fast, plain = Engine(target, data, compile=True), Engine(target, data)
    other = target.with_likelihood(tp.Normal(0.1))
    for one, two in ((fast, plain), (fast.on(other), plain.on(other)), (fast, plain)):
        assert one.is_compiled
        assert not two.is_compiled
        a, b = torch.ones_like(theta), torch.ones_like(theta)
        assert torch.allclose(one.gradients(theta, batch, a), two.gradients(theta, batch, b))
        assert torch.allclose(a, b, rtol=1e-10)
    assert fast._compiled_stack.in_use == "compiled"
