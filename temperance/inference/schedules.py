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
