from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from temperance.core.errors import ArgumentError
from temperance.nn import FilterResponseNorm, group_norm


def slow_filter_response_norm(x: Tensor, layer: FilterResponseNorm) -> Tensor:
    """The formula, a number at a time."""
    gamma, beta = layer.scale.tolist(), layer.shift.tolist()
    tau = [-math.inf] * layer.channels if layer.cutoff is None else layer.cutoff.tolist()
    flat = x.reshape(x.shape[0], x.shape[1], -1)
    result = torch.empty_like(flat)
    for n in range(flat.shape[0]):
        for c in range(flat.shape[1]):
            values = [float(v) for v in flat[n, c]]
            nu2 = sum(v * v for v in values) / len(values)
            for s, v in enumerate(values):
                result[n, c, s] = max(gamma[c] * v / math.sqrt(nu2 + layer.eps) + beta[c], tau[c])
    return result.reshape(x.shape)


def random_layer(channels: int, threshold: bool, eps: float = 1e-6) -> FilterResponseNorm:
    layer = FilterResponseNorm(channels, eps=eps, threshold=threshold).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(channels, generator=generator, dtype=torch.float64))
    return layer


@pytest.mark.parametrize("space", [(7,), (3, 4), (2, 3, 2), (1, 1)])
@pytest.mark.parametrize("threshold", [True, False])
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_equals_the_slow_twin(space: tuple[int, ...], threshold: bool, eps: float) -> None:
    layer = random_layer(5, threshold, eps)
    x = torch.randn(2, 5, *space, generator=torch.Generator().manual_seed(4), dtype=torch.float64) + 0.3
    torch.testing.assert_close(layer(x), slow_filter_response_norm(x, layer), rtol=1e-12, atol=1e-12)


def test_gradients_are_right() -> None:
    layer = random_layer(2, threshold=True)
    x = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))


def test_starts_as_a_relu_of_the_normalised_input() -> None:
    layer = FilterResponseNorm(3)
    plain = FilterResponseNorm(3, threshold=False)
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(layer(x), torch.relu(plain(x)))
    torch.testing.assert_close(plain(x).square().mean((2, 3)), torch.ones(2, 3), rtol=1e-4, atol=1e-4)


def test_the_scale_of_the_input_does_not_matter_without_eps() -> None:
    layer = FilterResponseNorm(3, eps=0.0)
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(layer(x), layer(100 * x))


def test_group_norm_is_torchs() -> None:
    made = group_norm(4)(8)
    assert isinstance(made, nn.GroupNorm)
    x = torch.randn(2, 8, 3, 3)
    assert torch.equal(made(x), nn.GroupNorm(4, 8)(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FilterResponseNorm(0), "`channels` must be a positive integer; got 0"),
        (lambda: FilterResponseNorm(2, eps=-1.0), "`eps` must be at least 0; got -1.0"),
        (lambda: FilterResponseNorm(2, eps=math.nan), "`eps` must be at least 0; got nan"),
        (lambda: FilterResponseNorm(2)(torch.zeros(3, 4, 5)), r"`x` must be N x 2 channels .* got shape \(3, 4, 5\)"),
        (lambda: FilterResponseNorm(2)(torch.zeros(3, 2)), r"got shape \(3, 2\)"),
        (lambda: group_norm(0), "`groups` must be a positive integer; got 0"),
        (lambda: group_norm(3)(16), "`groups` must divide the number of channels; got 3 and 16 channels"),
    ],
)
def test_bad_arguments_are_named(make: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("threshold", [False, True])
def test_it_knows_the_gradients_of_its_own_parameters(threshold: bool) -> None:
    torch.manual_seed(0)
    layer = FilterResponseNorm(3, threshold=threshold).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x, g = torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randn(2, 3, 4, 5, dtype=torch.float64)
    layer(x).backward(g)
    found = layer.channel_gradients(x, g)
    assert set(found) == {name for name, _ in layer.named_parameters()}
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(found[name].sum((0, 2, 3)), parameter.grad, rtol=1e-10)
