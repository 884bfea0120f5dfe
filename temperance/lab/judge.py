"""Estimates over seeds and the rules by which claims are judged.

A rule answers True, False, or None: *the measurement does not decide*. It decides where the 95 % interval of Student's
t over the seeds lies on one side of the bound; with fewer than three seeds nothing is decided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import t as student

FEWEST = 3
LEVEL = 0.95
RULE = "95 % t-interval over seeds on one side"


@dataclass(frozen=True)
class Estimate:
    """A mean over ``count`` independent repetitions and its standard error."""

    mean: float
    error: float
    count: int

    def __str__(self) -> str:
        if self.count == 0:
            return "–"
        if self.count == 1:
            return f"{self.mean:.4g} (one seed)"
        digits = max(0, 1 - math.floor(math.log10(self.error))) if self.error > 0 else 4
        if digits > 6:
            return f"{self.mean:.2g} ± {self.error:.1g}"
        return f"{self.mean:.{digits}f} ± {self.error:.{digits}f}"

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval."""
        if self.count < 2:
            return math.inf
        return float(student.ppf((1 + LEVEL) / 2, self.count - 1)) * self.error


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and standard error.

    >>> print(estimate([1.0, 2.0, 3.0]))
    2.00 ± 0.58
    """
    kept = [float(v) for v in values if math.isfinite(v)]
    n = len(kept)
    if n == 0:
        return Estimate(math.nan, math.nan, 0)
    mean = math.fsum(kept) / n
    if n == 1:
        return Estimate(mean, math.nan, 1)
    variance = math.fsum((v - mean) ** 2 for v in kept) / (n - 1)
    return Estimate(mean, math.sqrt(variance / n), n)


def difference(a: Mapping[int, float], b: Mapping[int, float]) -> Estimate:
    """The mean of a − b over the seeds that both have: what the seeds share cancels.

    >>> difference({0: 1.0, 1: 2.0, 2: 3.5}, {0: 0.5, 1: 1.5, 2: 3.0})
    Estimate(mean=0.5, error=0.0, count=3)
    """
    return estimate([a[seed] - b[seed] for seed in a if seed in b])


def above(value: Estimate, bound: float = 0.0) -> bool | None:
    """Whether the mean lies above ``bound``."""
    if value.count < FEWEST:
        return None
    if value.mean - value.half_width > bound:
        return True
    if value.mean + value.half_width < bound:
        return False
    return None


def below(value: Estimate, bound: float = 0.0) -> bool | None:
    """Whether the mean lies below ``bound``."""
    found = above(value, bound)
    return None if found is None else not found


def near(value: Estimate, bound: float, tolerance: float) -> bool | None:
    """Whether the mean lies within ``tolerance`` of ``bound``: yes where the whole interval does, no where none of it
    does."""
    if value.count < FEWEST:
        return None
    low, high = value.mean - value.half_width, value.mean + value.half_width
    if bound - tolerance <= low and high <= bound + tolerance:
        return True
    if high < bound - tolerance or low > bound + tolerance:
        return False
    return None


def all_of(*verdicts: bool | None) -> bool | None:
    """Several verdicts as one: all must hold; one that fails decides.

    >>> all_of(True, None), all_of(None, False), all_of(True, True)
    (None, False, True)
    """
    if any(v is False for v in verdicts):
        return False
    return None if not verdicts or any(v is None for v in verdicts) else True
