"""The working copy: buffers that move, batch norms, what a start brings along."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

import temperance as tp
from temperance.core.errors import ArgumentError, NetworkError, TemperanceWarning
from temperance.engine.engine import Engine
from temperance.engine.workspace import reinitialised
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


# ---------------------------------------------------------------------- members that start apart


def _members(network: nn.Module) -> tuple[torch.Tensor, torch.Tensor, tp.Target]:
    target = tp.Target(network, tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    return target.fresh_theta(1), target.fresh_theta(2), target


@pytest.mark.parametrize("make", [weight_norm, spectral_norm], ids=lambda f: f.__name__)
def test_parametrised_weights_start_afresh(make):
    """What `reset_parameters` writes into a parametrised weight is lost; members would all be one network."""
    one, two, target = _members(nn.Sequential(make(nn.Linear(3, 5, bias=False)), nn.Tanh(), nn.Linear(5, 1)))
    for entry in target.layout.network_entries:
        assert not torch.equal(one[entry.start : entry.stop], two[entry.start : entry.stop]), entry.name
    x = torch.randn(7, 3)
    first, second = Engine(target).outputs(torch.stack([one, two]), x)
    assert float((first - second).abs().max()) > 0.01
    assert torch.equal(target.fresh_theta(1), one)
    if make is weight_norm:  # the plain weight is what a plain layer would have
        network = nn.Sequential(make(nn.Linear(3, 5, bias=False)))
        torch.manual_seed(0)
        wanted = nn.Linear(3, 5, bias=False).weight
        torch.manual_seed(0)
        assert torch.allclose(reinitialised(network)[0].weight, wanted)


def test_a_parametrisation_that_keeps_its_start_in_a_buffer_is_warned_about():
    with pytest.warns(TemperanceWarning, match=r"start alike.*weight\.original"):
        _members(nn.Sequential(orthogonal(nn.Linear(3, 5, bias=False)), nn.Tanh(), nn.Linear(5, 1)))


def test_attention_starts_afresh_in_all_its_parts():
    one, two, target = _members(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    alike = [
        e.name
        for e in target.layout.network_entries
        if len(e.shape) > 1 and torch.equal(one[e.start : e.stop], two[e.start : e.stop])
    ]
    assert not alike


class _ResetsHalf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.forgotten = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
        self.child = nn.Linear(3, 1)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.own)

    def forward(self, x):
        return self.child(x * self.own * self.forgotten)


def test_what_a_reset_leaves_alone_is_warned_about():
    network = _ResetsHalf()
    with pytest.warns(TemperanceWarning, match=r"start alike in every member: \['forgotten'\]"):
        one, two, target = _members(network)
    assert not torch.equal(one[target.layout["child.weight"].start :], two[target.layout["child.weight"].start :])
    assert torch.equal(target.initial_theta(), target.layout.flatten(network))  # nobody was reset in place
    only = nn.Module()
    only.weight = nn.Parameter(torch.randn(2, 2))
    only.forward = lambda x: x @ only.weight
    with pytest.raises(NetworkError, match="start apart"):
        _members(only)


# ---------------------------------------------------------------------- buffers that are assigned to


class _Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)  # assigned, not written into
        return self.layer(x - self.mean)


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: tp.Ensemble(m, 2), lambda m: tp.On("layer", m)])
def test_a_buffer_that_the_network_assigns_to_belongs_to_the_weights(wrap, tmp_path, monkeypatch):
    x = torch.randn(64, 1, generator=torch.Generator().manual_seed(0)) + 10
    target = tp.Target(_Centred(), tp.Normal(scale=0.1), tp.GaussianPrior(10.0))
    options = {"batch_size": 16, "progress": False}
    fitted = tp.fit(target, wrap(tp.MAP(lr=0.05)), (x, x - 10), steps=120, **options)
    assert float((fitted.predict(x).mean() - (x - 10)).square().mean()) < 0.01
    assert float(target.network.mean) == 0.0
    half = {**options, "checkpoint": tmp_path, "every": 50}
    whole = tp.MAP.step

    def dies(self, engine, state, batch):
        if batch.step == 70:
            raise OSError("killed")
        return whole(self, engine, state, batch)

    monkeypatch.setattr(tp.MAP, "step", dies)
    with pytest.raises(OSError, match="killed"):
        tp.fit(target, wrap(tp.MAP(lr=0.05)), (x, x - 10), steps=120, **half)
    monkeypatch.setattr(tp.MAP, "step", whole)
    resumed = tp.fit(target, wrap(tp.MAP(lr=0.05)), (x, x - 10), steps=120, **half)
    assert torch.equal(resumed.predict(x).mean(), fitted.predict(x).mean())


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
