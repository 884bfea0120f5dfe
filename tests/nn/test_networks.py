"""What every network must do, one row a network: shapes, gradients, vmap, copies, precision, fresh starts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

from temperance.nn import CNN, CNNLSTM, MLP, FilterResponseNorm, PreResNet, ResNet, Shortcut, SingleBiasLSTM, group_norm

FRN = FilterResponseNorm


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def words(*shape: int) -> Tensor:
    return torch.randint(0, 40, shape, generator=torch.Generator().manual_seed(0))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor, int]] = {
    "mlp": (lambda: MLP(12, [7, 5], 3), images(4, 3, 2, 2), 3),
    "mlp linear": (lambda: MLP(6, (), 2, bias=False), images(4, 6), 2),
    "mlp tanh": (lambda: MLP(6, (4,), 2, activation=nn.Tanh), images(4, 6), 2),
    "cnn": (lambda: CNN(2, 3, channels=(4, 5), hidden=6, image_size=9), images(4, 2, 9, 9), 3),
    "resnet frn": (lambda: ResNet(8, norm=FRN, widths=(4, 6, 8)), images(4, 3, 8, 8), 10),
    "resnet frn swish": (
        lambda: ResNet(8, 1, 2, norm=partial(FRN, threshold=False), activation=nn.SiLU, widths=(4, 6, 8)),
        images(4, 1, 8, 8),
        2,
    ),
    "resnet group": (
        lambda: ResNet(8, norm=group_norm(2), widths=(4, 6, 8), bias=False, shortcut=Shortcut.ZERO_PAD),
        images(4, 3, 8, 8),
        10,
    ),
    "resnet bare": (lambda: ResNet(6, norm=None, widths=(4, 6)), images(4, 3, 8, 8), 10),
    "resnet frn alone": (
        lambda: ResNet(8, norm=FRN, activation=nn.Identity, widths=(4, 6, 8)),
        images(4, 3, 8, 8),
        10,
    ),
    "preresnet frn": (lambda: PreResNet(8, norm=FRN, widths=(4, 6, 8)), images(4, 3, 8, 8), 10),
    "lstm": (lambda: SingleBiasLSTM(3, 5), images(4, 7, 3), 5),
    "cnn-lstm": (
        lambda: CNNLSTM(40, embedding=6, channels=5, kernel=3, pool=2, lstm=4, out_features=2),
        words(4, 13),
        2,
    ),
}
WITH_BATCH_NORM: dict[str, tuple[Callable[[], nn.Module], Tensor, int]] = {
    "resnet": (lambda: ResNet(8, widths=(4, 6, 8)), images(4, 3, 8, 8), 10),
    "resnet zero-pad": (
        lambda: ResNet(8, widths=(4, 6, 8), bias=False, shortcut=Shortcut.ZERO_PAD),
        images(4, 3, 8, 8),
        10,
    ),
    "preresnet": (lambda: PreResNet(8, widths=(4, 6, 8)), images(4, 3, 8, 8), 10),
}
BEFORE_RELU = ("resnet frn", "preresnet frn")
ALL = NETWORKS | WITH_BATCH_NORM


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


@pytest.mark.parametrize("name", ALL)
def test_outputs_have_the_promised_shape_and_gradients_reach_every_parameter(name: str) -> None:
    make, x, out_features = ALL[name]
    network = seeded(make, 1).double()
    outputs = network(x.double() if x.is_floating_point() else x)
    assert outputs.shape == (4, out_features)
    assert outputs.dtype == torch.float64
    outputs.square().sum().backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        # A bias before a batch norm is invisible to the outputs; a threshold at 0 is invisible behind a ReLU.
        invisible = "bias" if name in WITH_BATCH_NORM else "cutoff" if name in BEFORE_RELU else "none"
        if not parameter_name.endswith(invisible):
            assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", NETWORKS)
def test_vmap_over_stacked_parameters_equals_a_loop(name: str) -> None:
    make, x, _ = NETWORKS[name]
    members = [seeded(make, seed).double() for seed in range(3)]
    x = x.double() if x.is_floating_point() else x
    parameters, buffers = stack_module_state(members)  # type: ignore[arg-type]

    def call(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        return functional_call(members[0], (p, b), (x,))

    together = vmap(call)(parameters, buffers)
    one_by_one = torch.stack([member(x) for member in members])
    torch.testing.assert_close(together, one_by_one, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(together[0], together[1])


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_each_example_and_forward_mode_work(name: str) -> None:
    make, x, _ = NETWORKS[name]
    network = seeded(make, 1).double()
    x = x.double() if x.is_floating_point() else x
    parameters = {k: v.detach() for k, v in network.named_parameters()}

    def total(p: dict[str, Tensor], one: Tensor) -> Tensor:
        return functional_call(network, p, (one.unsqueeze(0),)).square().sum()

    each = vmap(grad(total), (None, 0))(parameters, x)
    whole = grad(lambda p: functional_call(network, p, (x,)).square().sum())(parameters)
    direction = {k: torch.ones_like(v) for k, v in parameters.items()}
    _, slope = jvp(lambda p: functional_call(network, p, (x,)).square().sum(), (parameters,), (direction,))
    for key in parameters:
        torch.testing.assert_close(each[key].sum(0), whole[key], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(slope, sum(g.sum() for g in whole.values()), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", NETWORKS)
def test_examples_do_not_see_each_other(name: str) -> None:
    make, x, _ = NETWORKS[name]
    network = seeded(make, 1).double()
    x = x.double() if x.is_floating_point() else x
    torch.testing.assert_close(network(x)[:2], network(x[:2]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_deepcopy_is_equal_and_independent(name: str) -> None:
    make, x, _ = ALL[name]
    network = seeded(make, 1).eval()
    twin = copy.deepcopy(network)
    before = network(x)
    assert torch.equal(before, twin(x))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(before, network(x))


@pytest.mark.parametrize("name", ALL)
def test_double_precision_agrees_with_single(name: str) -> None:
    make, x, _ = ALL[name]
    network = seeded(make, 1).eval()
    single = network(x)
    double = network.double()(x.double() if x.is_floating_point() else x)
    torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_every_module_that_owns_parameters_can_start_afresh_as_the_constructor_does(name: str) -> None:
    make, _, _ = ALL[name]
    network = seeded(make, 1)
    constructed = [(p.clone(), key) for key, p in network.named_parameters()]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(100.0)
    torch.manual_seed(2)
    for module in network.modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.reset_parameters()  # type: ignore[operator]
    for parameter, (before, key) in zip(network.parameters(), constructed, strict=True):
        assert parameter.abs().max() < 10, key
        if before.dim() > 1 and before.numel() >= 20:  # the same law, another draw
            assert not torch.equal(parameter, before), key
            torch.testing.assert_close(parameter.std(), before.std(), rtol=0.8, atol=0.0)


@pytest.mark.parametrize("name", ALL)
def test_same_seed_same_weights(name: str) -> None:
    make, _, _ = ALL[name]
    pairs = zip(seeded(make, 5).parameters(), seeded(make, 5).parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
