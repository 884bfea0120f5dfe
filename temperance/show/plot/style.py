"""What all plots share: colours, quiet axes, and the doors that arguments pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from temperance.core.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#008f68", "#a3457f"
SKY, YELLOW, BROWN = "#3d9bd1", "#b58900", "#7a5c3e"
INK, MUTED, GRID, BAND = "#1c2128", "#57606a", "#e3e7ec", "#9aa4b0"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, BROWN, MUTED)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MOST_POINTS = 2000  # of a line: more are not seen, and make files large

Numbers = NDArray[np.float64]


def axes(ax: Axes | None, title: str, xlabel: str, ylabel: str, grid: bool = True) -> Axes:
    """The axes to draw on, new ones where none are given, dressed quietly and labelled."""
    if ax is None:
        from matplotlib import pyplot as plt

        _, ax = plt.subplots(figsize=(4.8, 3.8), layout="constrained")
    from matplotlib.axes import Axes

    if not isinstance(ax, Axes):
        raise ArgumentError(f"`ax` must be matplotlib axes, or None for new ones; got {type(ax).__name__}.")
    ax.set_title(title, fontsize=11, color=INK)
    ax.set_xlabel(xlabel, fontsize=10, color=INK)
    ax.set_ylabel(ylabel, fontsize=10, color=INK)
    ax.set_axisbelow(True)
    if grid:
        ax.grid(True, color=GRID, linewidth=0.8)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(BAND)
    ax.tick_params(colors=MUTED, labelsize=9)
    return ax


def legend(ax: Axes, **where: Any) -> None:
    """A legend without a frame, in ink."""
    made = ax.legend(frameon=False, fontsize=9, **where)
    for text in made.get_texts():
        text.set_color(INK)


def few_ticks(*parts: Axis) -> None:
    """At most six ticks, and large numbers as 100k or 1.5M, so that labels neither overlap nor need an offset."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    for axis in parts:
        axis.set_major_locator(MaxNLocator(5))
        low, high = sorted(float(end) for end in axis.get_view_interval())
        size = max(abs(low), abs(high))
        if size >= 1e4 and high - low >= 1e-3 * size:  # closer ones would all read alike
            axis.set_major_formatter(EngFormatter(sep=""))


def short(value: float) -> str:
    """A number to three significant digits, without an exponent where it is large.

    >>> short(0.12345), short(41875.2)
    ('0.123', '41,875')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"


def plain(text: object, most: int = 40) -> str:
    """``text`` of a user as matplotlib shall draw it: dollars are no mathematics, and very long names are cut.

    >>> plain("price in $")
    'price in \\\\$'
    """
    words = str(text)
    words = words if len(words) <= most else words[: most - 1] + "…"
    return words.replace("$", r"\$")


def thinned(*series: Numbers) -> list[Numbers]:
    """At most :data:`MOST_POINTS` points of series of equal length, evenly spaced, first and last included."""
    size = len(series[0])
    if size <= MOST_POINTS:
        return list(series)
    kept = np.linspace(0, size - 1, MOST_POINTS).round().astype(int)
    return [values[kept] for values in series]
