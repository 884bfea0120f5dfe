"""Which networks are chains, and what they apply in which order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.engine.native.mlp import _layers_of
from temperance.model.theta import Layout
from temperance.nn.chain import called, is_altered, plain_chain


class Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(super().forward(x))


class Backwards(nn.Sequential):
    def __iter__(self):
        return reversed(list(self._modules.values()))


class Renamed(nn.Sequential):
    """A subclass that does nothing of its own."""


def test_called_follows_the_calls_by_name():
    layer = nn.Linear(3, 3)
    network = nn.Sequential(layer, nn.Sequential(nn.Tanh(), layer), tp.nn.MLP(3, [4], 2), Renamed(nn.ReLU()))
    found = [(name, type(module).__name__) for name, module in called(network)]
    assert found == [
        ("0", "Linear"), ("1.0", "Tanh"), ("1.1", "Linear"),
        ("2.flatten", "Flatten"), ("2.0", "Linear"), ("2.1", "ReLU"), ("2.2", "Linear"), ("3.0", "ReLU"),
    ]  # fmt: skip
    heard: list[str] = []
    network = tp.nn.CNN(1, 3, [2], 4, 8)
    names = {id(module): name for name, module in called(network)}
    assert "features.0" in names.values()
    for module in network.modules():
        if id(module) in names:
            module.register_forward_hook(lambda m, *_: heard.append(names[id(m)]))
    network(torch.zeros(1, 1, 8, 8))
    assert heard == [name for name in names.values() if "flatten" not in name]


@pytest.mark.parametrize("kind", [Doubled, Backwards])
def test_a_sequential_that_does_something_else_is_one_module(kind):
    network = kind(nn.Linear(3, 3), nn.ReLU())
    assert [found.module for found in called(network)] == [network]
    assert plain_chain(network) is None


def test_a_plain_chain_has_names_that_reach_its_parameters():
    network = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.GELU()), nn.Dropout(0.5), nn.Linear(4, 2)).eval()
    found = plain_chain(network)
    assert [layer.name for layer in found] == ["0.0", "0.1", "2"]
    parameters = dict(network.named_parameters())
    assert parameters[found[2].parameter("bias")] is network[2].bias
    assert plain_chain(nn.Linear(3, 2))[0].parameter("weight") == "weight"
    assert plain_chain(network.train()) is None  # dropout that is at work


def _tied() -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    network[2].weight = network[0].weight
    return network


def _forward_replaced() -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 3))
    network[0].forward = lambda x: x
    return network


def _heard(how: str) -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 3))
    getattr(network[0], f"register_{how}")(lambda *_: None)
    return network


def _shared() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


NO_CHAINS = {
    "tied": _tied, "shared": _shared, "replaced": _forward_replaced,
    "norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)),
    "activation first": lambda: nn.Sequential(nn.ReLU(), nn.Linear(3, 2)),
    "empty": lambda: nn.Sequential(),
    "parametrised": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))),
    "weight norm of old": lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 2))),
    **{how: (lambda how=how: _heard(how)) for how in (
        "forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook")},
}  # fmt: skip


@pytest.mark.parametrize("name", NO_CHAINS)
def test_what_is_no_plain_chain(name):
    assert plain_chain(NO_CHAINS[name]().eval()) is None


@pytest.mark.parametrize("name", ["replaced", "parametrised", "forward_hook", "full_backward_hook"])
def test_altered_modules_are_seen(name):
    assert any(is_altered(module) for module in NO_CHAINS[name]().modules())


def test_the_energy_in_c_reads_chains_where_theta_is_their_weights_in_order():
    x = torch.zeros(5, 3)
    good = nn.Sequential(tp.nn.MLP(3, [4], 2, nn.Tanh), nn.Identity(), nn.Sigmoid(), nn.Linear(2, 1, bias=False))
    layers = _layers_of(good, Layout.of(good), x)
    assert [(la.name, la.inputs, la.outputs, la.weight, la.bias) for la in layers] == [
        ("0.0", 3, 4, 0, 12), ("0.2", 4, 2, 16, 24), ("3", 2, 1, 26, -1),
    ]  # fmt: skip
    assert _layers_of(good, Layout.of(good, tp.last_layer), x) is None  # a part of the weights
    assert _layers_of(good, Layout.of(good), torch.zeros(5, 4)) is None  # another width
    assert _layers_of(good, Layout.of(good), torch.zeros(5, 1, 3)) is not None  # MLP flattens
    bare = nn.Sequential(nn.Linear(3, 1))
    assert _layers_of(bare, Layout.of(bare), torch.zeros(5, 1, 3)) is None
    for wrong in (
        _tied(), _shared(), nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.ReLU()),
        nn.Sequential(nn.Tanh(), nn.Linear(3, 1)),
        nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)), nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 1)),
    ):  # fmt: skip
        assert _layers_of(wrong, Layout.of(wrong), x) is None
