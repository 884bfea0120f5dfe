from __future__ import annotations

import pytest
import torch
from torch import nn

from temperance.core.errors import ArgumentError
from temperance.nn import CNN, MLP


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("network", "parameters"),
    [
        (MLP(784, [50], 10), 784 * 50 + 50 + 50 * 10 + 10),
        (MLP(784, [50], 10, bias=False), 784 * 50 + 50 * 10),
        (MLP(5, [], 3), 5 * 3 + 3),
        (MLP(4, [4], 3), 35),  # protocols B.5: Iris, widths of 4, one to four hidden layers
        (MLP(4, [4] * 4, 3), 95),
        (CNN(1, 10), 9 * 32 + 32 + 32 * 64 * 9 + 64 + 3136 * 128 + 128 + 128 * 10 + 10),
        (CNN(3, 10, image_size=32), 27 * 32 + 32 + 32 * 64 * 9 + 64 + 4096 * 128 + 128 + 128 * 10 + 10),
        (CNN(1, 2, channels=(), hidden=3, image_size=4), 16 * 3 + 3 + 3 * 2 + 2),
    ],
)
def test_parameter_counts(network: nn.Module, parameters: int) -> None:
    assert count(network) == parameters


def test_mlp_is_the_formula() -> None:
    network = MLP(3, [4], 2, activation=nn.Tanh).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    first, last = network[0], network[2]
    expected = torch.tanh(x @ first.weight.T + first.bias) @ last.weight.T + last.bias
    torch.testing.assert_close(network(x), expected)


def test_mlp_flattens_images_and_takes_one_vector() -> None:
    network = MLP(12, [5], 2)
    x = torch.randn(4, 3, 2, 2)
    assert torch.equal(network(x), network(x.reshape(4, 12)))
    torch.testing.assert_close(network(x[0].reshape(12)), network(x)[0])


def test_cnn_takes_one_image() -> None:
    network = CNN(1, 10)
    x = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(network(x[0]), network(x)[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(0, [3], 1), "`in_features` must be a positive integer; got 0"),
        (lambda: MLP(2, [3, -1], 1), r"`hidden\[1\]` must be a positive integer; got -1"),
        (lambda: MLP(2, [3], 1.5), "`out_features` must be a positive integer; got 1.5"),
        (lambda: MLP(2, [3], True), "`out_features` must be a positive integer; got True"),
        (lambda: CNN(1, 10, hidden=0), "`hidden` must be a positive integer; got 0"),
        (lambda: CNN(1, 10, channels=(3, 0)), r"`channels\[1\]` must be a positive integer; got 0"),
        (lambda: CNN(1, 10, image_size=3), "`image_size` must be at least .* got 3 and 2 poolings"),
        (lambda: CNN(1, 10)(torch.zeros(2, 1, 32, 32)), r"`x` must be images of shape \(1, 28, 28\)"),
    ],
)
def test_bad_arguments_are_named(make: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()  # type: ignore[operator]
