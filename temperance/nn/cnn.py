"""A small convolutional network for small images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from temperance.core.checks import check_counts, check_sizes
from temperance.core.errors import ArgumentError


class CNN(nn.Module):
    """3×3 convolutions with ReLU and 2×2 max-pooling, then one hidden layer.

    The defaults on 28×28 images: 32 channels, pool, 64 channels, pool, 64 · 7 · 7 = 3136 features, 128, outputs.

    Args:
        in_channels: channels of the images.
        out_features: number of outputs.
        channels: channels of each convolution; each is followed by a pooling that halves the sides.
        hidden: width of the hidden layer of the head.
        image_size: side of the (square) images.

    >>> import torch
    >>> CNN(1, 10)(torch.zeros(3, 1, 28, 28)).shape
    torch.Size([3, 10])
    """

    def __init__(
        self,
        in_channels: int,
        out_features: int,
        channels: Sequence[int] = (32, 64),
        hidden: int = 128,
        image_size: int = 28,
    ) -> None:
        super().__init__()
        check_counts(in_channels=in_channels, out_features=out_features, hidden=hidden, image_size=image_size)
        channels = check_sizes(channels, "channels")
        side = image_size // 2 ** len(channels)
        if side < 1:
            raise ArgumentError(
                f"`image_size` must be at least 2 to the number of `channels` (each pooling halves the image); "
                f"got {image_size} and {len(channels)} poolings."
            )
        self.in_channels = in_channels
        self.image_size = image_size
        layers: list[nn.Module] = []
        count_in = in_channels
        for count in channels:
            layers += [nn.Conv2d(count_in, count, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            count_in = count
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(count_in * side * side, hidden), nn.ReLU(), nn.Linear(hidden, out_features))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs, N × ``out_features``, of images N × channels × side × side."""
        expected = (self.in_channels, self.image_size, self.image_size)
        if tuple(x.shape[-3:]) != expected:
            raise ArgumentError(f"`x` must be images of shape {expected} after the first; got {tuple(x.shape)}.")
        return self.head(self.features(x).flatten(-3))
