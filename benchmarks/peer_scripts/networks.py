"""The networks and the data of the timings, in plain PyTorch, the same for every contestant."""

from __future__ import annotations

import torch
from torch import nn

BATCH = 128
CLASSES = 10


class FilterResponseNorm(nn.Module):
    """Divides every channel by the root of its mean square over the image, then learns a threshold."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        shape = (1, channels, 1, 1)
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.threshold = nn.Parameter(torch.zeros(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.square().mean(dim=(2, 3), keepdim=True) + 1e-6)
        return torch.maximum(x * scale * self.weight + self.bias, self.threshold)


class Block(nn.Module):
    """Two convolutions and a shortcut, which is a strided convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.first_norm = FilterResponseNorm(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = FilterResponseNorm(after)
        changes = stride != 1 or before != after
        self.shortcut = nn.Conv2d(before, after, 1, stride=stride, bias=False) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.second(self.first_norm(self.first(x)))
        return self.second_norm(inner + self.shortcut(x))


def mlp() -> nn.Sequential:
    """784-512-512-10 with ReLU."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES))


def resnet20() -> nn.Sequential:
    """ResNet-20 for 32 x 32 images: widths 16, 32 and 64, three blocks each, filter response norm for batch norm."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), FilterResponseNorm(16)]
    before = 16
    for width in (16, 32, 64):
        for index in range(3):
            layers.append(Block(before, width, stride=2 if index == 0 and width > 16 else 1))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


NETWORKS = {"mlp": (mlp, (784,)), "resnet20": (resnet20, (3, 32, 32))}


def problem(network: str, batch: int = BATCH, seed: int = 0) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """Return a network with one batch of made-up inputs and labels, the same for the same seed."""
    torch.manual_seed(seed)
    build, shape = NETWORKS[network]
    return build(), torch.randn(batch, *shape), torch.randint(CLASSES, (batch,))
