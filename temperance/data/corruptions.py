"""Corruptions of images in five severities, to ask whether a model becomes less sure when it sees less well.

Each takes images N × C × H × W in [0, 1], or flat rows (N × D) with ``image_shape``, and gives the same shape back, in
[0, 1]. Random ones draw from a generator of their own, on the CPU, so that a seed gives the same images on every
device and leaves global random state alone. Severities share their random numbers: the noise, the side or the place
is the same one, only more of it. The strengths are for small images (8 to 64 pixels a side), in the spirit of
Hendrycks & Dietterich (2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from temperance.core.checks import check_sizes, is_whole, shown
from temperance.core.errors import ArgumentError, DataError
from temperance.core.seeds import check_seed, generator

Kernel = Callable[[Tensor, int, torch.Generator], Tensor]


class Corruption(Protocol):
    """What every function here looks like from outside."""

    __name__: str

    def __call__(self, x: Tensor, severity: int, *, seed: int = 0, image_shape: Sequence[int] | None = None) -> Tensor:
        """Corrupted images in the shape of ``x``."""


def _corruption(kernel: Kernel) -> Corruption:
    """Add to a kernel on N × C × H × W what all share: checks, flat rows, a generator, the range [0, 1]."""

    def corrupted(x: Tensor, severity: int, *, seed: int = 0, image_shape: Sequence[int] | None = None) -> Tensor:
        images = _as_images(x, image_shape)
        level = _check_severity(severity) - 1
        result = kernel(images, level, generator(check_seed(seed), "corrupt", kernel.__name__))
        return result.clamp(0.0, 1.0).to(x.dtype).reshape(x.shape)

    corrupted.__name__ = corrupted.__qualname__ = kernel.__name__
    corrupted.__doc__ = kernel.__doc__
    corrupted.__module__ = kernel.__module__
    return corrupted


def _check_severity(severity: object) -> int:
    if not is_whole(severity, 1) or severity > 5:  # type: ignore[operator]
        raise ArgumentError(f"`severity` must be an integer from 1 to 5; got {shown(severity)}.")
    return int(severity)  # type: ignore[call-overload]


def _as_images(x: Tensor, image_shape: Sequence[int] | None) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise DataError(f"`x` must be a tensor of floating-point images in [0, 1]; got {got}.")
    if x.numel() == 0 or not bool(((x >= 0.0) & (x <= 1.0)).all()):
        got = f"values from {float(x.min()):g} to {float(x.max()):g}" if x.numel() else "an empty tensor"
        raise DataError(f"`x` must lie in [0, 1] (corrupt first, standardise afterwards); got {got}.")
    if image_shape is not None:
        image_shape = check_sizes(image_shape, "image_shape")
    if image_shape is None and x.dim() == 4:
        return x
    if image_shape is None:
        raise ArgumentError(
            f"`image_shape` must be given (channels, height, width) unless `x` is N × C × H × W; got x of shape "
            f"{tuple(x.shape)}."
        )
    shape = (1, *image_shape) if len(image_shape) == 2 else tuple(image_shape)
    if len(shape) != 3 or math.prod(shape) != math.prod(x.shape[1:]):
        raise ArgumentError(
            f"`image_shape` must be (channels, height, width) with as many values as a row of `x` "
            f"({math.prod(x.shape[1:])}); got {tuple(image_shape)}."
        )
    return x.reshape(-1, *shape)


def _uniform(shape: Sequence[int], like: Tensor, rng: torch.Generator) -> Tensor:
    return torch.rand(tuple(shape), generator=rng).to(like)


@_corruption
def gaussian_noise(x: Tensor, level: int, rng: torch.Generator) -> Tensor:
    """Add independent Gaussian noise to each value."""
    scale = (0.05, 0.1, 0.15, 0.22, 0.3)[level]
    return x + scale * torch.randn(x.shape, generator=rng).to(x)


@_corruption
def shot_noise(x: Tensor, level: int, rng: torch.Generator) -> Tensor:
    """Count photons: each value becomes a Poisson count with fewer and fewer photons at full brightness."""
    photons = (60.0, 25.0, 12.0, 6.0, 3.0)[level]
    return (torch.poisson(x.detach().float().cpu() * photons, generator=rng) / photons).to(x)


@_corruption
def blur(x: Tensor, level: int, rng: torch.Generator) -> Tensor:
    """Convolve with a Gaussian, first along the columns, then along the rows; the border is repeated outwards."""
    width = (0.5, 0.8, 1.2, 1.8, 2.5)[level]
    radius = math.ceil(3.0 * width)
    offsets = torch.arange(-radius, radius + 1, device=x.device, dtype=x.dtype)
    weights = torch.softmax(-(offsets**2) / (2.0 * width**2), dim=0)
    channels = x.shape[1]
    padded = F.pad(x, (radius, radius, radius, radius), mode="replicate")
    columns = F.conv2d(padded, weights.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return F.conv2d(columns, weights.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)


@_corruption
def contrast(x: Tensor, level: int, rng: torch.Generator) -> Tensor:
    """Draw the values of each image towards their mean."""
    kept = (0.75, 0.55, 0.4, 0.25, 0.12)[level]
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    return mean + kept * (x - mean)


@_corruption
def brightness(x: Tensor, level: int, rng: torch.Generator) -> Tensor:
    """Add the same light everywhere."""
    return x + (0.1, 0.2, 0.3, 0.4, 0.5)[level]


@_corruption
def pixelate(x: Tensor, level: int, rng: torch.Generator) -> Tensor:
    """Average over fewer, larger pixels; one that lies across two of these takes its share of both."""
    cell = (1.3, 1.7, 2.3, 3.3, 5.0)[level]
    rows, columns = (_coarsen(size, cell).to(x) for size in x.shape[-2:])
    return rows @ x @ columns.T


def _coarsen(size: int, cell: float) -> Tensor:
    """The matrix that replaces ``size`` pixels in a row by their averages over cells of ``cell`` pixels."""
    pixel, border = torch.arange(size), cell * torch.arange(math.ceil(size / cell))
    overlap = torch.minimum(pixel[:, None] + 1, border + cell) - torch.maximum(pixel[:, None], border)
    overlap = overlap.clamp(min=0.0)
    return overlap @ (overlap / overlap.sum(dim=0)).T


@_corruption
def rotate(x: Tensor, level: int, rng: torch.Generator) -> Tensor:
    """Turn each image about its centre, to the left or to the right at random; the border is repeated outwards."""
    angle = math.radians((8.0, 16.0, 26.0, 38.0, 52.0)[level])
    height, width = x.shape[-2:]
    sign = torch.where(_uniform((len(x),), x, rng) < 0.5, -1.0, 1.0).to(x)
    cosine, sine, zero = torch.full_like(sign, math.cos(angle)), sign * math.sin(angle), torch.zeros_like(sign)
    # Sampling coordinates run from -1 to 1 along both sides, so a turn of an oblong image has to undo the stretch.
    first = torch.stack([cosine, -sine * (height / width), zero], dim=1)
    second = torch.stack([sine * (width / height), cosine, zero], dim=1)
    grid = F.affine_grid(torch.stack([first, second], dim=1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


@_corruption
def occlude(x: Tensor, level: int, rng: torch.Generator) -> Tensor:
    """Paint a black rectangle at a random place, growing with severity."""
    side = (0.15, 0.3, 0.4, 0.5, 0.65)[level]
    position = torch.rand(2, len(x), generator=rng).to(x.device)
    hidden = []
    for size, place in zip(x.shape[-2:], position, strict=True):
        length = max(1, round(side * size))
        start = (place * (size - length + 1)).floor()[:, None]
        pixels = torch.arange(size, device=x.device)
        hidden.append((pixels >= start) & (pixels < start + length))
    return x.masked_fill((hidden[0][:, :, None] & hidden[1][:, None, :])[:, None], 0.0)


_ALL = (gaussian_noise, shot_noise, blur, contrast, brightness, pixelate, rotate, occlude)
CORRUPTIONS: dict[str, Corruption] = {function.__name__: function for function in _ALL}
"""The kinds of corruption by name."""


def corrupt(x: Tensor, kind: str, severity: int, seed: int = 0, *, image_shape: Sequence[int] | None = None) -> Tensor:
    """Corrupt images in the way called ``kind``, one of :data:`CORRUPTIONS`.

    >>> corrupt(torch.full((1, 1, 2, 2), 0.5), "brightness", 3)[0, 0, 0]
    tensor([0.8000, 0.8000])
    """
    if not isinstance(kind, str) or kind not in CORRUPTIONS:
        raise ArgumentError(f"`kind` must be one of {', '.join(CORRUPTIONS)}; got {shown(kind)}.")
    return CORRUPTIONS[kind](x, severity, seed=seed, image_shape=image_shape)
