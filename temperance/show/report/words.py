"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import stats

SPACE = "\u00a0"  # no line ends there


def percent(share: float, digits: int = 1) -> str:
    """A share as a percentage; nearly all and nearly none are not rounded to all and none.

    >>> percent(0.5), percent(0.12345), percent(0.9999), percent(1.0)
    ('50\\xa0%', '12.3\\xa0%', '> 99.9\\xa0%', '100\\xa0%')
    """
    if math.isnan(share):
        return "–"
    least = 10.0**-digits / 2
    value = 100 * share
    if 0 < value < least:
        return f"< {10.0**-digits:g}{SPACE}%"
    if 100 - least < value < 100:
        return f"> {100 - 10.0**-digits:g}{SPACE}%"
    text = f"{value:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}{SPACE}%"


def number(value: object, digits: int = 3) -> str:
    """A number to ``digits`` significant digits, without needless exponents; text as it is.

    >>> number(0.0123456), number(12345.6), number(7), number(2.0), number(1e-9), number("red")
    ('0.0123', '12,346', '7', '2', '1e-09', 'red')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        try:
            value = value.item()  # type: ignore[attr-defined]
        except (AttributeError, ValueError, RuntimeError):
            return str(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e15 or size < 1e-4:
        return f"{value:.{digits}g}"
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    text = f"{value:.{digits - 1 - math.floor(math.log10(size))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def cell(value: object) -> str:
    """A value of a row as the table has it: no thousands separators (it may be a year), and no NaN.

    >>> cell(1907.0), cell(1907), cell(float("nan")), cell(None), cell(0.123456), cell("1,5")
    ('1907', '1907', 'missing', 'missing', '0.123', '1,5')
    """
    if value is None or str(value) in ("nan", "NaT", "<NA>"):
        return "missing"
    return str(value) if isinstance(value, str) else number(value).replace(",", "")


def count(size: int, one: str, many: str | None = None) -> str:
    """``1 row``, ``2 rows``.

    >>> count(1, "row"), count(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{size:,} {one if size == 1 else many or one + 's'}"


def share_interval(hits: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """The Clopper–Pearson interval of a probability, from ``hits`` out of ``total``.

    >>> [round(end, 3) for end in share_interval(9, 10)]
    [0.555, 0.997]
    """
    tail = (1 - level) / 2
    low = float(stats.beta.ppf(tail, hits, total - hits + 1)) if hits > 0 else 0.0
    high = float(stats.beta.ppf(1 - tail, hits + 1, total - hits)) if hits < total else 1.0
    return low, high


def kept_promise(hits: int, total: int, promised: float, level: float = 0.95) -> str:
    """``"as promised"``, ``"fewer than promised"`` or ``"more than promised"``: what chance explains is as promised.

    >>> kept_promise(88, 100, 0.9), kept_promise(70, 100, 0.9)
    ('as promised', 'fewer than promised')
    """
    tail = (1 - level) / 2
    low, high = (float(stats.binom.ppf(q, total, promised)) for q in (tail, 1 - tail))
    if hits < low:
        return "fewer than promised"
    return "more than promised" if hits > high else "as promised"


def names_or(names: Sequence[str] | None, size: int, word: str) -> list[str]:
    """The names given, or numbered ones."""
    return [str(name) for name in names] if names is not None else [f"{word} {k}" for k in range(size)]
