"""Functions of the fraction of a run, or of a cycle, that is over: factors on a step."""

from __future__ import annotations

import math

from temperance.core.encoding import setting


@setting
def cosine(fraction: float) -> float:
    """½ (cos π x + 1)."""
    return 0.5 * (math.cos(math.pi * fraction) + 1.0)


@setting
def glide(fraction: float) -> float:
    """exp(−x / (1 − x))."""
    return math.exp(-fraction / (1.0 - fraction)) if fraction < 1.0 else 0.0


@setting
def flat(fraction: float) -> float:
    """1: cycles without a change of pace, for the sake of their ends."""
    return 1.0


_RISE = 0.05  # of the run


@setting
def rise_and_fall(fraction: float) -> float:
    """From 0 to 1 in a straight line over the first twentieth, then ½ (cos π x + 1) over the rest.

    >>> [round(rise_and_fall(x), 2) for x in (0.0, 0.025, 0.05, 0.525, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    return fraction / _RISE if fraction < _RISE else cosine((fraction - _RISE) / (1.0 - _RISE))
