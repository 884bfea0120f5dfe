"""The batched product of chains equals the network called draw by draw, and steps aside where there is no chain."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.engine import outputs as forward
from temperance.engine.engine import Engine
from temperance.engine.outputs import chain_outputs, outputs
from temperance.model.theta import Layout
from temperance.posteriors.affine import subspace_target


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


def _tied() -> nn.Sequential:
    network = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    network[2].weight = network[0].weight
    return network


def _shared() -> nn.Sequential:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer)


def _heard() -> nn.Sequential:
    network = nn.Sequential(nn.Linear(3, 2))
    network[0].register_forward_hook(lambda module, args, out: out + 1)
    return network


CHAINS = {
    "a bare layer": lambda: nn.Linear(3, 2),
    "MLP": lambda: tp.nn.MLP(3, [5, 4], 2),
    "linear": lambda: tp.nn.MLP(3, [], 1),
    "no bias": lambda: tp.nn.MLP(3, [5], 2, bias=False),
    "nested": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(3, 4), nn.GELU()), nn.Dropout(0.5), nn.Linear(4, 2), nn.SiLU()
    ),
    "two activations": lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.ReLU(), nn.Tanh(), nn.Linear(4, 1)),
}  # fmt: skip
OTHERS = {
    "used twice": Twice, "tied": _tied, "shared": _shared, "hook": _heard,
    "norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)),
    "parametrised": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))),
    "activation first": lambda: nn.Sequential(nn.ReLU(), nn.Linear(3, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("rows", [1, 700])
def test_equals_draw_by_draw(name: str, rows: int) -> None:
    torch.manual_seed(0)
    network = CHAINS[name]().eval()
    layout = Layout.of(network)
    theta, x = torch.randn(40, layout.size), torch.randn(rows, 3)
    before = x.clone()
    with torch.no_grad():
        fast = chain_outputs(network, layout.unflatten(theta, "network"), x, 40)
        slow = outputs(network, layout, theta, x, batched=False)
    assert fast is not None
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", OTHERS)
def test_steps_aside(name: str) -> None:
    network = OTHERS[name]().eval()
    layout = Layout.of(network)
    theta, x = torch.randn(3, layout.size), torch.randn(4, 3)
    with torch.no_grad():
        assert chain_outputs(network, layout.unflatten(theta, "network"), x, 3) is None
        assert outputs(network, layout, theta, x).shape[:2] == (3, 4)


def test_a_subset_uses_the_frozen_layers_and_images_are_flattened() -> None:
    torch.manual_seed(0)
    target = tp.Target(tp.nn.MLP(4, [5], 2), tp.Categorical(), tp.GaussianPrior(), subset=tp.last_layer)
    theta, x = torch.randn(3, target.layout.size), torch.randn(6, 1, 2, 2)
    with torch.no_grad():
        fast = Engine(target).outputs(theta, x)
        slow = Engine(target).outputs(theta, x, batched=False)
    torch.testing.assert_close(fast, slow)


def test_dropout_that_is_on_is_not_skipped() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)).train()
    layout = Layout.of(network)
    assert (
        chain_outputs(network, layout.unflatten(torch.randn(3, layout.size), "network"), torch.randn(4, 3), 3) is None
    )


class Untraceable(nn.Module):
    """Cannot be batched: it looks at the value of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.layer(x)
        return out * 2 if float(out.sum()) > 0 else out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batched_and_looped_evaluation_agree(dtype):
    network = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.GroupNorm(1, 3),
        nn.Flatten(),
        nn.LayerNorm(48),
        nn.Linear(48, 2),
    ).to(dtype)
    layout = Layout.of(network)
    assert layout.dtype == dtype
    theta = torch.randn(4, layout.size, dtype=dtype) * 0.3
    x = torch.randn(5, 1, 4, 4, dtype=dtype)
    one = forward.outputs(network, layout, theta, x, batched=True)
    assert forward.can_batch(network)
    two = forward.outputs(network, layout, theta, x, batched=False)
    assert torch.allclose(one, two, atol=1e-5 if dtype == torch.float32 else 1e-12)


def test_a_network_that_cannot_be_batched_falls_back_to_a_loop():
    network = Untraceable()
    layout = Layout.of(network)
    theta = torch.randn(3, layout.size)
    x = torch.randn(4, 3)
    made = forward.outputs(network, layout, theta, x, batched=True)
    assert not forward.can_batch(network)
    for row, out in zip(theta, made, strict=True):
        network.layer.weight.data, network.layer.bias.data = layout.unflatten(row).values()
        assert torch.allclose(network(x), out)


class TiedWords(nn.Module):
    """Words in and words out by one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.middle, self.out = nn.Embedding(7, 3), nn.Linear(3, 3), nn.Linear(3, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.out(torch.tanh(self.middle(self.embed(words).mean(1))))


def _one_module_twice() -> nn.Sequential:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer)


def _two_names_and_a_shared_weight() -> nn.Sequential:
    layer, other = nn.Linear(3, 3), nn.Linear(3, 3)
    other.weight = layer.weight
    return nn.Sequential(layer, nn.Tanh(), layer, other, nn.Sequential(layer))


@pytest.mark.parametrize("make", [TiedWords, _one_module_twice, _two_names_and_a_shared_weight, _tied])
def test_tied_weights_are_one_and_leave_nothing_behind(make):
    torch.manual_seed(0)
    network = make()
    x = torch.randint(7, (20, 5)) if make is TiedWords else torch.randn(20, 3)
    layout = Layout.of(network)
    before = dict(network.named_parameters())
    theta = torch.randn(4, layout.size)
    made = outputs(network, layout, theta, x, batched=True)
    assert forward.can_batch(network)
    assert all(now is before[name] for name, now in network.named_parameters())
    for row, out in zip(theta, made, strict=True):
        layout.attach(network, row.clone())
        assert torch.allclose(network(x), out, atol=1e-5)


@pytest.mark.parametrize("make", [TiedWords, _one_module_twice, _two_names_and_a_shared_weight, _tied])
@pytest.mark.parametrize("size", [1, 3])
def test_ensembles_of_networks_with_tied_weights(make, size):
    torch.manual_seed(0)
    x = torch.randint(7, (20, 5)) if make is TiedWords else torch.randn(20, 3)
    target = tp.Target(make(), tp.Categorical(), tp.GaussianPrior(1.0))
    method = tp.Ensemble(tp.MAP(lr=0.1), size)
    fitted = tp.fit(target, method, (x, torch.randint(3, (20,))), steps=5, progress=False)
    assert fitted.predict(x).probs.isfinite().all()


def test_a_subspace_of_a_module_with_two_names():
    target = tp.Target(_one_module_twice(), tp.Categorical(), tp.GaussianPrior(1.0))
    size = target.layout.size
    network = subspace_target(target, torch.zeros(size), torch.randn(size, 2)).network
    before = dict(network.named_parameters())
    outputs(network, Layout.of(network, "z"), torch.randn(3, 2), torch.randn(4, 3), batched=True)
    assert forward.can_batch(network)
    assert all(now is before[name] for name, now in network.named_parameters())
