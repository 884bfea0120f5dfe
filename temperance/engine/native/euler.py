"""Noise and a move of symplectic Euler in one pass over memory, where there is a compiler."""

from __future__ import annotations

import torch
from torch import Tensor

from temperance.engine.native.build import compiled_euler
from temperance.engine.native.noise import NormalStream, eager_pairs, threads_for


def symplectic_euler_(
    theta: Tensor,
    velocity: Tensor,
    grad: Tensor,
    stream: NormalStream,
    decay: float,
    force: float,
    spread: float,
    h: float,
) -> bool:
    """v ← decay·v − force·g + spread·ξ and θ ← θ + h·v, ξ the stream's next noise. ``False``, with nothing done, where
    there is no compiler or the tensors are not of single precision, contiguous, on a CPU."""
    euler = compiled_euler()
    tensors = (theta, velocity, grad)
    if euler is None or not all(
        t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous() for t in tensors
    ):
        return False
    theta, velocity, grad = tensors = tuple(t.view(-1) for t in tensors)  # type: ignore[assignment]
    size = theta.numel()
    half = (size + 1) // 2
    keys = stream.keys()
    places = [place for t in tensors for place in (t.data_ptr(), t.data_ptr() + 4 * half)]
    numbers = (decay, force, spread, h)
    pairs = size - half
    euler(*places, 0, pairs, threads_for(pairs), *keys, *numbers)
    if size % 2:  # the number without a partner
        noise = _last(half, keys)
        last = slice(half - 1, half)
        velocity[last].mul_(decay).sub_(grad[last], alpha=force).add_(noise, alpha=spread)
        theta[last].add_(velocity[last], alpha=h)
    return True


def _last(half: int, keys: tuple[int, int, int]) -> Tensor:
    """The first of pair ``half − 1`` alone: pairs are counted from k0, so a shifted key gives it as pair 0."""
    return eager_pairs(1, ((keys[0] + half - 1) & 0xFFFFFFFF, keys[1], keys[2]))[0]
