"""Plots inside the page: SVG that follows the reader's light or dark, with its numbers in a table below."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from temperance.show.plot import style
from temperance.show.report.html import Markup, table, tag

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "temperance", "font.family": "DejaVu Sans", "path.simplify": True}
SHADES = {
    "blue": (style.BLUE, "#5cb3ea"),
    "orange": (style.ORANGE, "#ff9a57"),
    "green": (style.GREEN, "#43cfa2"),
    "purple": (style.PURPLE, "#e08dc0"),
    "sky": (style.SKY, "#8ccdf5"),
    "yellow": (style.YELLOW, "#e3c04a"),
    "brown": (style.BROWN, "#c7a27c"),
    "ink": (style.INK, "#e8ecf1"),
    "muted": (style.MUTED, "#aab4c0"),
    "grid": (style.GRID, "#2c343e"),
    "band": (style.BAND, "#76828f"),
}
"""The colours of plots by day and by night."""


def draw_svg(key: str, draw: Callable[[Axes], object], label: str, width: float, height: float) -> Markup:
    """What ``draw`` puts on its axes, as an SVG element with ``label`` for those who do not see it."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0)
        ax = figure.subplots()
        ax.patch.set_alpha(0)
        draw(ax)
        ax.set_title("")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=True)
    text = buffer.getvalue().decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]*)"', rf'id="{key}-\1"', text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{key}-", text)
    text = text.replace("xlink:href", "href")
    for name, (shade, _) in SHADES.items():
        text = text.replace(shade, f"var(--plot-{name})")
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None
    head = f'<svg viewBox="{box.group(1)}" role="img" aria-labelledby="{key}-title" class="plot">'
    title = tag("title", label, id=f"{key}-title")
    return Markup(re.sub(r"<svg[^>]*>", lambda _: head + title, text, count=1))


def figure(
    key: str,
    draw: Callable[[Axes], object],
    *,
    label: str,
    caption: object,
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    width: float = 4.6,
    height: float = 3.5,
) -> Markup:
    """A plot with its caption, and its numbers as a table for those who prefer or need them."""
    numbers = tag(
        "details", tag("summary", "The numbers in a table"), table(f"Numbers: {label}", head, rows, hidden=True)
    )
    picture = draw_svg(key, draw, label, width, height)
    return tag("figure", picture, tag("figcaption", caption), numbers)
