"""A quiet style for all figures, and the two kinds that most experiments draw."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # needs no screen
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter

from temperance.lab.experiment import Picture
from temperance.lab.judge import Estimate

COLOURS = ("#1b6ca8", "#d98c21", "#3a8f5c", "#b3344a", "#7a5ba6", "#5f6b73", "#c46fa0", "#8a7a1f")
GREY = "#777777"
_STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 3.5,
    "svg.hashsalt": "temperance",
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """The laboratory's style, for as long as figures are drawn."""
    with plt.rc_context(_STYLE):
        yield


def panels(columns: int, rows: int = 1, width: float = 4.2, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """An empty figure and its axes in reading order."""
    size = (width * columns, height * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    return figure, [axis for row in axes for axis in row]


def save(picture: Picture, folder: Path) -> str:
    """Write a picture as PNG and SVG; the PNG's name."""
    folder.mkdir(parents=True, exist_ok=True)
    for ending in ("png", "svg"):
        metadata = {"Date": None} if ending == "svg" else None  # the same cells give the same file
        picture.figure.savefig(folder / f"{picture.name}.{ending}", dpi=130, metadata=metadata)
    plt.close(picture.figure)
    return f"{picture.name}.png"


def curve(
    axis: Axes,
    points: Mapping[float, Estimate],
    label: str | None,
    colour: str,
    marker: str = "o",
    dashed: bool = False,
) -> None:
    """Means with error bars of one standard error."""
    known = {x: e for x, e in points.items() if e.count}
    if not known:
        return
    errors = [e.error if e.count > 1 else 0.0 for e in known.values()]
    axis.errorbar(
        list(known),
        [e.mean for e in known.values()],
        yerr=errors,
        color=colour,
        marker=marker,
        linestyle="--" if dashed else "-",
        capsize=2.5,
        label=label,
    )


def level(axis: Axes, value: Estimate, label: str | None, colour: str = GREY, style: str = "--") -> None:
    """A horizontal line with a band of one standard error."""
    if not value.count:
        return
    axis.axhline(value.mean, color=colour, linestyle=style, linewidth=1.3, label=label)
    if value.count > 1:
        axis.axhspan(value.mean - value.error, value.mean + value.error, color=colour, alpha=0.12, linewidth=0)


def whole_numbers(axis: Axes) -> None:
    """Ticks of the horizontal axis at whole numbers only."""
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def plain_numbers(axis: Axes) -> None:
    """Ticks of a logarithmic vertical axis as plain numbers."""
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    low, high = axis.get_ylim()
    axis.yaxis.set_minor_formatter(StrMethodFormatter("{x:.3g}") if high < 8 * low else NullFormatter())


def temperatures(axis: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis of temperatures, with T = 1 marked."""
    axis.set_xscale("log")
    axis.set_xlabel("temperature T")
    if min(values) < 1 < max(values) or 1 in values:
        axis.axvline(1.0, color="#444444", linewidth=0.9, linestyle=":")
