"""Steps of a diagonal Gaussian that draw their noise as they go, in one pass over memory, where there is a compiler.

Noise is a function of keys, so it is made twice (for the draw, and for the gradient) and never kept. A number without a
partner, at the end of an odd count, is left to the caller: :func:`unpaired`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from temperance.engine.native.build import c_function
from temperance.engine.native.noise import eager_pairs, threads_for

Keys = tuple[int, int, int]
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_float
_TAIL: tuple[Any, ...] = (*[ctypes.c_int64] * 2, ctypes.c_int, *[ctypes.c_uint32] * 3)


def _function(name: str, pointers: int, numbers: int) -> Callable[..., None] | None:
    return c_function(name, (*[_POINTER] * pointers, *[_NUMBER] * numbers, *_TAIL))


def can_fuse(tensors: Sequence[Tensor]) -> bool:
    """Whether there is a compiler, and the tensors are vectors of single precision on a CPU."""
    fits = all(t.dtype == torch.float32 and t.device.type == "cpu" and t.dim() == 1 for t in tensors)
    return fits and all(t.is_contiguous() for t in tensors) and _function("temperance_ivon", 5, 7) is not None


def _tail(size: int, keys: Keys) -> tuple[int, ...]:
    half = (size + 1) // 2
    return (half, size - half, threads_for(size - half), *keys)


def unpaired(size: int, keys: Keys) -> tuple[slice, Tensor] | None:
    """The place and the noise of the number that has no partner."""
    if size % 2 == 0:
        return None
    last = (size + 1) // 2 - 1
    shifted = ((keys[0] + last) & 0xFFFFFFFF, keys[1], keys[2])  # pairs are counted from the first key
    return slice(last, last + 1), eager_pairs(1, shifted)[0]


def draw_by_log_scale_(theta: Tensor, mean: Tensor, log_scale: Tensor, keys: Keys) -> None:
    """θ = mean + exp(log_scale) ξ."""
    function = _function("temperance_draw_by_log_scale", 3, 0)
    assert function is not None
    function(theta.data_ptr(), mean.data_ptr(), log_scale.data_ptr(), *_tail(len(theta), keys))
    rest = unpaired(len(theta), keys)
    if rest is not None:
        at, noise = rest
        theta[at] = mean[at] + log_scale[at].exp() * noise


def pull_to_log_scale_(
    out: Tensor, grad: Tensor, log_scale: Tensor, keys: Keys, variance: float, variances: Tensor | None, entropy: float
) -> None:
    """out = s (g ξ + 2 s v) − e with s = exp(log_scale), v = ``variance`` (times ``variances``), e = ``entropy``."""
    function = _function("temperance_pull_to_log_scale", 4, 2)
    assert function is not None
    places = (out.data_ptr(), grad.data_ptr(), log_scale.data_ptr(), _place(variances))
    function(*places, variance, entropy, *_tail(len(out), keys))
    rest = unpaired(len(out), keys)
    if rest is not None:
        at, noise = rest
        scale = log_scale[at].exp()
        v = variance if variances is None else variance * variances[at]
        out[at] = scale * (grad[at] * noise + 2 * scale * v) - entropy


def draw_by_precision_(
    theta: Tensor, mean: Tensor, hessian: Tensor, keys: Keys, delta: float, deltas: Tensor | None, count: float
) -> None:
    """θ = mean + ξ / √(count (h + δ)), δ = ``delta`` (times ``deltas``)."""
    function = _function("temperance_draw_by_precision", 4, 2)
    assert function is not None
    places = (theta.data_ptr(), mean.data_ptr(), hessian.data_ptr(), _place(deltas))
    function(*places, delta, count, *_tail(len(theta), keys))
    rest = unpaired(len(theta), keys)
    if rest is not None:
        at, noise = rest
        d = delta if deltas is None else delta * deltas[at]
        theta[at] = mean[at] + noise / (count * (hessian[at] + d)).sqrt()


def ivon_(
    mean: Tensor,
    hessian: Tensor,
    momentum: Tensor,
    grad: Tensor,
    keys: Keys,
    *,
    delta: float,
    deltas: Tensor | None,
    count: float,
    betas: tuple[float, float],
    correction: float,
    rate: float,
    initial: float,
) -> None:
    """The updates of :class:`temperance.IVON` after a gradient at the draw of ``keys``, for a prior of mean zero."""
    function = _function("temperance_ivon", 5, 7)
    assert function is not None
    places = (mean.data_ptr(), hessian.data_ptr(), momentum.data_ptr(), grad.data_ptr(), _place(deltas))
    rest = unpaired(len(mean), keys)
    kept = None if rest is None else [t[rest[0]].clone() for t in (mean, hessian, momentum)]
    function(*places, delta, count, *betas, correction, rate, initial, *_tail(len(mean), keys))
    if rest is not None and kept is not None:
        at, noise = rest
        d = delta if deltas is None else delta * deltas[at]
        m, h, average = kept
        share = 1 - betas[1]
        change = grad[at] * noise * (count * (h + d)).sqrt() - h
        momentum[at] = betas[0] * average + (1 - betas[0]) * grad[at]
        hessian[at] = h + share * change + 0.5 * share**2 * change.square() / (h + d)
        step = (momentum[at] * correction + d * m) / (hessian[at] + d)
        mean[at] = m - rate * (initial + d) * step


def _place(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
