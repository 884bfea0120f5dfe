"""What lies so far from the rest of a column that it is a mistake, or a code for something else.

Fences stand at multiples of the distance between the quartiles, which a few rows cannot move. Whatever is judged by
them is judged only where few rows lie beyond: many are a heavy tail, and a tail is learned like anything else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
LARGEST = 1e150
"""Numbers beyond have squares that are infinite, and no spread."""

_FEW = 0.01  # rows beyond a fence, as a share, up to which they are mistakes and not a tail
_TARGET = 6.0  # of normal numbers that is 8.8 standard deviations from the mean
_LOG_ABOVE, _LOG_BELOW = 4.0, 10.0  # the same of logarithms, whose lower tails are long by nature
_INPUT = 20.0
_CODE = 6.0
_TRIMMED = 0.01


def quartiles(values: Numbers) -> tuple[float, float]:
    """The quartiles; where they are one number (a column that is mostly zero), those of the other values."""
    low, high = np.quantile(values, [0.25, 0.75])
    if low == high and len(others := values[values != low]):
        low, high = np.quantile(others, [0.25, 0.75])
    return float(low), float(high)


def fences(values: Numbers, below: float, above: float | None = None) -> tuple[float, float]:
    """So many times the distance between the quartiles outside of them; nothing is outside where there is none.

    >>> fences(np.arange(101.0), 2.0)
    (-75.0, 175.0)
    """
    low, high = quartiles(values)
    with np.errstate(over="ignore"):
        gap = high - low
        if not gap > 0:
            return -np.inf, np.inf
        return float(low - below * gap), float(high + (below if above is None else above) * gap)


def target_limits(y: Numbers, logs: bool = False) -> tuple[float, float]:
    """Numbers beyond these are not learned from: one mistyped target of four hundred (×100) would otherwise decide the
    units, the noise and the calibration of all rows.

    A positive number is too large where it is far from the rest itself and by its logarithm, so that prices and
    incomes, which have long tails, stay. Where the logarithm is learned (``logs``), that alone decides. Where more than
    one row in a hundred (and more than two) lies beyond, none does.

    >>> y = np.r_[np.linspace(5.0, 25.0, 400), 2500.0]
    >>> low, high = target_limits(y)
    >>> 25 < high < 2500, bool((y > low).all())
    (True, True)
    """
    low, high = fences(y, _TARGET)
    if bool((y > 0).all()):
        bottom, top = fences(np.log(y), _LOG_BELOW, _LOG_ABOVE)
        with np.errstate(over="ignore"):
            low, high = (np.exp(bottom), np.exp(top)) if logs else (low, max(high, float(np.exp(top))))
    beyond = int(((y < low) | (y > high)).sum())
    return (-np.inf, np.inf) if beyond > max(2, _FEW * len(y)) else (float(low), float(high))


def within(y: Numbers, limits: tuple[float, float]) -> NDArray[np.bool_]:
    """Which numbers lie between limits."""
    return (y >= limits[0]) & (y <= limits[1])


def trimmed(values: Numbers) -> Numbers:
    """Without the hundredth at each end, one row at least: of a shape that no single row decides."""
    cut = max(1, round(_TRIMMED * len(values)))
    return np.sort(values)[cut:-cut] if len(values) > 4 * cut else values


def input_limits(known: Numbers) -> tuple[float, float] | None:
    """Where an input is cut, the ends of what lies inside of far fences; ``None`` where nothing lies outside of them,
    or too much for a mistake."""
    inside = within(known, fences(known, _INPUT))
    if not 0 < int((~inside).sum()) <= max(1, _FEW * len(known)):
        return None
    return float(known[inside].min()), float(known[inside].max())


def missing_codes(known: Numbers, least: int) -> tuple[float, ...]:
    """Numbers that stand for a missing one, such as −9999: at an end of the column, at least ``least`` times (and in
    one row of a hundred) the very same number, and nothing else near it.

    >>> missing_codes(np.r_[np.linspace(-3.0, 3.0, 95), [-9999.0] * 5], 2)
    (-9999.0,)
    """
    found: list[float] = []
    for _ in range(2):
        rest = known[~np.isin(known, found)]
        if len(rest) < 10:
            break
        for end in (float(rest.min()), float(rest.max())):
            same = rest == end
            others = rest[~same]
            if same.sum() < max(least, _FEW * len(known)) or same.mean() > 0.5 or len(np.unique(others)) < 10:
                continue
            low, high = fences(others, _CODE)
            clear = end < min(low, others.min()) or end > max(high, others.max())
            gap = float(others.max() - others.min())
            if clear and not others.min() - 2 * gap <= end <= others.max() + 2 * gap:
                found.append(end)
                break
    return tuple(sorted(found))
