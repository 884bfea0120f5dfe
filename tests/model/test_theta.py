from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, NetworkError
from temperance.engine import outputs as forward
from temperance.model.theta import Layout, selected


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.decoder = nn.Linear(4, 4)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(torch.tanh(self.encoder(x)))


def test_flatten_and_unflatten_are_inverse():
    network = small()
    layout = Layout.of(network)
    theta = layout.flatten(network)
    for name, value in layout.unflatten(theta).items():
        assert torch.equal(value, dict(network.named_parameters())[name])
    assert torch.equal(layout.flatten(layout.unflatten(theta)), theta)
    stacked = layout.unflatten(torch.stack([theta, 2 * theta]))
    assert stacked["0.weight"].shape == (2, 4, 3)
    assert torch.equal(stacked["0.weight"][1], 2 * network[0].weight)


def test_parameters_and_gradients_are_views_of_one_vector():
    network = small()
    layout = Layout.of(network)
    theta, grad = layout.flatten(network), torch.zeros(layout.size)
    layout.attach(network, theta, grad)
    x = torch.randn(5, 3)
    before = network(x)
    network(x).sum().backward()
    assert network[0].weight.data_ptr() == theta.data_ptr()
    assert network[0].weight.grad.data_ptr() == grad.data_ptr()
    by_hand = torch.cat([p.grad.flatten() for p in network.parameters()])
    assert torch.equal(grad, by_hand)
    assert grad.abs().sum() > 0
    theta.mul_(2)
    assert not torch.equal(network(x), before)
    grad.zero_()
    network(x).sum().backward()
    assert torch.equal(grad, torch.cat([p.grad.flatten() for p in network.parameters()]))


def test_subsets():
    network = small()
    network[0].bias.requires_grad_(False)
    names = lambda subset: [name for name, _ in selected(network, subset)]  # noqa: E731
    assert names(None) == ["0.weight", "2.weight", "2.bias"]
    assert names(tp.last_layer) == ["2.weight", "2.bias"]
    assert names("2") == ["2.weight", "2.bias"]
    assert names("*.weight") == ["0.weight", "2.weight"]
    assert names(["0.weight", "2.bias"]) == ["0.weight", "2.bias"]
    assert names(tp.biases) == ["0.bias", "2.bias"]
    assert names(lambda name, p: p.dim() == 2) == ["0.weight", "2.weight"]
    with pytest.raises(ArgumentError, match=r"nothing matches 'head'.*0\.weight"):
        names("head")
    with pytest.raises(ArgumentError, match="selects none"):
        names(lambda name, p: False)
    with pytest.raises(NetworkError, match="requires_grad"):
        selected(nn.Linear(1, 1).requires_grad_(False))


def test_a_subset_trains_only_its_part_and_shares_the_frozen_rest():
    network = small()
    target = tp.Target(network, tp.Normal(0.1), tp.GaussianPrior(1.0), subset=tp.last_layer)
    assert target.num_parameters == 10
    assert target.network[0].weight.data_ptr() == network[0].weight.data_ptr()
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    fitted = tp.fit(target, tp.MAP(lr=0.05), (x, y), epochs=30)
    assert all(p.grad is None for p in network.parameters())
    made = fitted.network()
    assert torch.equal(made[0].weight, network[0].weight)
    assert not torch.equal(made[2].weight, network[2].weight)


def test_tied_weights_appear_once_and_move_together():
    network = Tied()
    layout = Layout.of(network)
    assert [e.name for e in layout.entries] == ["encoder.weight", "encoder.bias", "decoder.bias"]
    theta = layout.flatten(network)
    x = torch.randn(5, 4)
    made = forward.outputs(network, layout, torch.stack([theta, theta * 0.5]), x)
    assert torch.allclose(made[0], network(x), atol=1e-6)
    with torch.no_grad():
        for p in network.parameters():
            p.mul_(0.5)
    assert torch.allclose(made[1], network(x), atol=1e-6)
    target = tp.Target(network, tp.Normal(1.0), tp.GaussianPrior(1.0))
    assert target.network.decoder.weight is target.network.encoder.weight


def test_true_errors_of_a_network_are_not_hidden_by_the_fallback():
    network = small()
    layout = Layout.of(network)
    with pytest.raises(RuntimeError, match="shape"):
        forward.outputs(network, layout, layout.flatten(network).unsqueeze(0), torch.randn(2, 7))


def test_networks_of_several_inputs():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.layer(a * b)

    a, b = torch.randn(20, 3), torch.randn(20, 3)
    for x in ((a, b), {"a": a, "b": b}):
        target = tp.Target(Two(), tp.Normal(0.5), tp.GaussianPrior(1.0))
        fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=0.05), 2), (x, (a * b).sum(1)), epochs=50)
        assert torch.allclose(fitted.predict(x).mean().squeeze(), (a * b).sum(1), atol=0.6)


def test_mixed_dtypes_are_refused():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(NetworkError, match="one dtype"):
        Layout.of(network)


def test_description_round_trip():
    layout = Layout.of(small(), extras=(("noise", (2,), "likelihood"),))
    assert Layout.from_description(layout.describe()) == layout
    assert layout.size == layout.network_size + 2


def test_norms_are_no_weights_for_fan_in():
    layout = tp.Layout.of(nn.Sequential(nn.LayerNorm((4, 5)), nn.Linear(5, 2)))
    assert [e.fan_in for e in layout.entries] == [0, 0, 5, 0]


def test_last_layer_finds_tied_weights():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5)
            self.head.weight = self.emb.weight

    assert tp.last_layer.names(Tied()) == ["emb.weight", "head.bias"]


def test_what_is_learned_beside_the_network_is_read_without_a_theta():
    prior = tp.GaussianPrior(scale=tp.Learned())
    layout = tp.Target(nn.Linear(2, 2), tp.Normal(num_outputs=2), prior).layout
    assert {entry.role for entry in layout.entries} == {"network", "prior", "likelihood"}
    theta = torch.arange(3.0 * layout.size).reshape(3, layout.size)
    for role in ("prior", "likelihood"):
        wanted = layout.unflatten(theta, role)
        found = layout.unflatten_learned(theta[:, layout.network_size :], role)
        assert wanted.keys() == found.keys()
        assert len(wanted) > 0
        assert all(torch.equal(found[name], value) for name, value in wanted.items())
