"""The working copy: buffers that move, batch norms, what a start brings along."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, NetworkError
from temperance.engine.engine import Engine
from temperance.predict import predict
from tests.small import X, Y, real


def batch_norm_network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_batch_norm_is_trained_by_map_and_its_statistics_are_kept_and_saved(tmp_path):
    network = batch_norm_network()
    x, y = torch.randn(60, 3) * 3 + 5, torch.randn(60, 2)
    target = tp.Target(network, tp.Normal(0.5), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=0.01), 2), (x, y), epochs=5)
    first, second = fitted.posterior.components
    assert first.buffers["1.running_mean"].abs().max() > 0.1
    assert not torch.equal(first.buffers["1.running_mean"], second.buffers["1.running_mean"])
    assert torch.equal(network[1].running_mean, torch.zeros(4))
    mean = fitted.predict(x).mean()
    by_hand = torch.stack([fitted.network(k)(x) for k in range(2)]).mean(0)
    assert torch.allclose(mean, by_hand, atol=1e-5)
    fitted.save(tmp_path / "run")
    assert torch.equal(tp.load(tmp_path / "run", batch_norm_network()).predict(x).mean(), mean)


def test_batch_norm_policy_for_samplers():
    target = tp.Target(batch_norm_network(), tp.Normal(0.5), tp.GaussianPrior(1.0))
    with pytest.raises(NetworkError, match=r"SGHMC.*batch norm.*FilterResponseNorm.*GroupNorm.*freeze_batch_norm"):
        target.refuse_batch_norm("SGHMC")
    frozen = tp.Target(batch_norm_network(), tp.Normal(0.5), tp.GaussianPrior(1.0), freeze_batch_norm=True)
    frozen.refuse_batch_norm("SGHMC")
    x, y = torch.randn(60, 3) + 5, torch.randn(60, 2)
    fitted = tp.fit(frozen, tp.MAP(lr=0.01), (x, y), epochs=3)
    assert torch.equal(frozen.network[1].running_mean, torch.zeros(4))
    # one example's output does not depend on its neighbours
    assert torch.allclose(fitted.predict(x[:1]).mean(), fitted.predict(x).mean()[:1], atol=1e-6)
    assert [e.name for e in frozen.layout.entries if e.name.startswith("1.")] == ["1.weight", "1.bias"]


class Counter(nn.Module):
    """Counts its training passes in a buffer that changes its output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
        return self.layer(x) + 0.01 * self.count


def test_buffers_of_the_users_own_are_kept_with_the_weights(tmp_path):
    target = real(Counter())
    first = tp.fit(target, tp.MAP(lr=0.1), (X, Y), epochs=3, batch_size=5)
    before = first.predict(X).mean()
    second = tp.fit(target, tp.MAP(lr=0.1), (X, Y), epochs=3, batch_size=5)
    assert torch.equal(first.posterior.theta, second.posterior.theta)
    assert float(first.posterior.buffers["count"]) == 12
    assert torch.equal(first.predict(X).mean(), before)
    first.save(tmp_path / "run")
    assert torch.equal(tp.load(tmp_path / "run", Counter()).predict(X).mean(), before)


def test_start_brings_its_statistics_and_must_share_what_is_frozen():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).eval()
    trained = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).eval()
    trained[1].running_mean.fill_(0.7)
    for freeze in (True, False):
        target = real(net, freeze_batch_norm=freeze).adopting(trained)
        engine = Engine(target)
        state = tp.MAP().init(engine, tp.Starts.of(target.theta_of(trained)), [torch.Generator()])
        posterior = tp.MAP().posteriors(engine, state, None)[0]
        assert torch.allclose(predict(Engine(target), posterior, X).mean(), trained(X), atol=1e-6)
    with pytest.raises(ArgumentError, match="frozen parameters"):
        tp.fit(real(net, subset=tp.last_layer), tp.MAP(), (X, Y), epochs=1, start=trained)


def test_each_setting_of_the_buffers_moves_alone():
    """Also where weights and gradient are the same tensors."""
    target = real(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)))
    data = target.prepare(tp.data.Data(X, Y))
    engine, batch = Engine(target, data), next(iter(data.full_pass()))
    theta = target.initial_theta()
    grad, one, two = torch.empty_like(theta), engine.target.running_buffers(), engine.target.running_buffers()
    for buffers in (one, two, one):
        engine.gradient(theta, batch, grad, buffers)
    assert int(one["1.num_batches_tracked"]) == 2
    assert int(two["1.num_batches_tracked"]) == 1
    assert not torch.equal(one["1.running_mean"], two["1.running_mean"])
