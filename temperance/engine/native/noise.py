"""Streams of standard normal numbers that are a function of a seed and a count, so nothing else has to be saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.engine.native.build import Fill, compiled_fill

_WORD = 2**64 - 1
_THREADED = 2**14  # pairs above which threads are worth their start


@dataclass
class NormalStream:
    """Noise number ``count`` of the stream ``seed``.

    On a CPU: an integer hash and Box–Muller, compiled where there is a compiler (:func:`native.in_use`
    tells). Elsewhere: the device's own counter-based generator.

    >>> a, b = NormalStream(7), NormalStream(7, count=1)
    >>> _ = a.fill_(torch.empty(5))
    >>> torch.equal(a.fill_(torch.empty(5)), b.fill_(torch.empty(5)))
    True
    """

    seed: int
    count: int = 0

    def keys(self) -> tuple[int, int, int]:
        """Of the next noise, which counts as drawn."""
        self.count += 1
        return _keys(self.seed, self.count - 1)

    def fill_(self, out: Tensor) -> Tensor:
        """Write the next standard normal numbers into ``out``."""
        return fill_with_(out, self.keys())


def fill_with_(out: Tensor, keys: tuple[int, int, int]) -> Tensor:
    """Write the noise of ``keys`` into ``out``."""
    if out.device.type != "cpu":
        rng = torch.Generator(device=out.device)
        rng.manual_seed((keys[0] << 31) ^ keys[1])
        return out.normal_(generator=rng)
    if out.dtype != torch.float32 or not out.is_contiguous():
        return out.copy_(_fill(torch.empty(out.shape, dtype=torch.float32), keys))
    return _fill(out, keys)


def fill_rows_(out: Tensor, streams: Sequence[NormalStream]) -> Tensor:
    """Noise for one θ (``out`` of any shape, one stream), or for several: a row and a stream each."""
    if len(streams) == 1:
        streams[0].fill_(out if out.dim() == 1 else out[0])
        return out
    for row, stream in zip(out, streams, strict=True):
        stream.fill_(row)
    return out


def _keys(seed: int, count: int) -> tuple[int, int, int]:
    """Three 32-bit keys, by two rounds of splitmix64."""
    one = _scramble(seed + 0x9E3779B97F4A7C15 * (2 * count + 1))
    two = _scramble(one ^ _scramble(seed + 0x9E3779B97F4A7C15 * (2 * count + 2)))
    return one >> 32, one & 0xFFFFFFFF, two >> 32


def _scramble(x: int) -> int:
    x &= _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


def _fill(out: Tensor, keys: tuple[int, int, int]) -> Tensor:
    """Pairs (i, i + half); of an odd number the last pair's second is left out."""
    flat = out.view(-1)
    half = (flat.numel() + 1) // 2
    fill = compiled_fill()
    if fill is None:
        first, second = eager_pairs(half, keys)
        flat[:half] = first
        flat[half:] = second[: flat.numel() - half]
        return out
    pairs = flat.numel() - half
    place = flat.data_ptr()
    fill(place, place + 4 * half, 0, pairs, threads_for(pairs), *keys)
    if half > pairs:
        _fill_last(fill, flat, half, keys)
    return out


def threads_for(pairs: int) -> int:
    """As many as PyTorch uses, where there is enough to do."""
    return torch.get_num_threads() if pairs >= _THREADED else 1


def _fill_last(fill: Fill, flat: Tensor, half: int, keys: tuple[int, int, int]) -> None:
    """The unpaired number of an odd count: its partner goes to a scrap place."""
    scrap = torch.empty(1, dtype=torch.float32)
    last = half - 1
    fill(flat.data_ptr(), scrap.data_ptr() - 4 * last, last, half, 1, *keys)


# ---------------------------------------------------------------------- the same arithmetic in PyTorch

_LOG = (
    0.9999999741310671, -0.4999999638212503, 0.3333419328613587, -0.25001352185386944, 0.19955933358256733,
    -0.16577992899340357, 0.1497740128415435, -0.14269258189243703, 0.0853331304987428,
)  # fmt: skip
_COS = (
    0.999999999884617, -19.739208743087502, 64.9393890524762, -85.45665775339239, 60.24212492771494,
    -26.404630603916303, 7.800022165291011, -1.4529874920845032,
)  # fmt: skip
_SIN = (
    6.283185307136348, -41.34170221825741, 81.60524741397006, -76.70580003037628, 42.057751863590966,
    -15.086552631575614, 3.781282164156437, -0.6207367777824402,
)  # fmt: skip


def eager_pairs(pairs: int, keys: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """What ``normal.c`` computes, in PyTorch's wrapping 32-bit integers."""
    k0, k1, k2 = (signed(key) for key in keys)
    y = mix(torch.arange(pairs, dtype=torch.int32).add_(k0))
    s, t = mix(y ^ k1), mix(y ^ k2)
    u = (s & 0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31)
    r = _log(u).mul_(-2.0).clamp_(min=0.0).sqrt_()
    v = t.float().mul_(2.0**-32)
    x = v * v
    return r * _polynomial(x, _COS), r * v * _polynomial(x, _SIN)


def signed(word: int) -> int:
    """A 32-bit word as a signed integer."""
    return word - 2**32 if word >= 2**31 else word


def mix(x: Tensor) -> Tensor:
    """A hash of 32-bit integers, elementwise."""
    x = x ^ ((x >> 16) & 0xFFFF)  # masks, because the shift of a signed number copies its sign
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * signed(0x846CA68B)
    return x ^ ((x >> 16) & 0xFFFF)


def _log(u: Tensor) -> Tensor:
    bits = u.view(torch.int32) + (0x3F800000 - 0x3F3504F3)
    exponent = ((bits >> 23) - 127).float()
    f = ((bits & 0x007FFFFF) + 0x3F3504F3).view(torch.float32) - 1.0
    return exponent.mul_(0.6931471805599453).add_(f * _polynomial(f, _LOG))


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    made = torch.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        made.mul_(x).add_(c)
    return made
