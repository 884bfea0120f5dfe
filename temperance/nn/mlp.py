"""The multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from temperance.core.checks import check_counts, check_flag, check_maker, check_sizes


class MLP(nn.Sequential):
    """Fully connected layers with an activation between them.

    With weights Wᵢ, biases bᵢ and activation φ: h₀ = x, hᵢ = φ(Wᵢ hᵢ₋₁ + bᵢ), output = W h + b.
    An input of more than two dimensions is flattened to N × ``in_features``.

    Args:
        in_features: size of one flattened input.
        hidden: widths of the hidden layers; empty for a linear model.
        out_features: number of outputs.
        activation: makes the activation module, once a hidden layer.
        bias: whether the layers have biases.

    >>> import torch
    >>> MLP(784, [50, 50], 10)(torch.zeros(3, 1, 28, 28)).shape
    torch.Size([3, 10])
    >>> MLP(2, [], 1)
    MLP(
      (0): Linear(in_features=2, out_features=1, bias=True)
    )
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        out_features: int,
        activation: Callable[[], nn.Module] = nn.ReLU,
        bias: bool = True,
    ) -> None:
        check_counts(in_features=in_features, out_features=out_features)
        check_flag(bias, "bias")
        layers: list[nn.Module] = []
        width_in = in_features
        for width in check_sizes(hidden, "hidden"):
            made = check_maker(activation, "activation", nn.Module, "a function that makes a module, such as nn.ReLU")
            layers += [nn.Linear(width_in, width, bias=bias), made]
            width_in = width
        layers.append(nn.Linear(width_in, out_features, bias=bias))
        super().__init__(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs, N × ``out_features``; an unbatched vector gives a vector."""
        return super().forward(x.flatten(1) if x.dim() > 2 else x)
