"""Plots inside the page."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from matplotlib.axes import Axes

from temperance.show import plot
from temperance.show.plot import style
from temperance.show.report import write_report
from temperance.show.report.figures import SHADES, draw_svg
from tests.show.report.pages import Page, random


def test_an_svg_follows_the_page_and_keeps_its_ids_apart() -> None:
    def draw(ax: Axes) -> None:
        plot.uncertainty_histogram({"<in> & $": [0.1, 0.2], "out": [0.4]}, ax, xlabel="a <b>")

    svg = draw_svg("first", draw, 'a "label" <x>', 4, 3)
    root = ElementTree.fromstring(svg)
    assert root.attrib["role"] == "img"
    title = root.find("{*}title") if root.find("{*}title") is not None else root.find("title")
    assert title is not None
    assert title.text == 'a "label" <x>'
    ids = re.findall(r'\bid="([^"]*)"', svg)
    assert len(ids) == len(set(ids))
    assert all(name.startswith("first-") for name in ids)
    assert set(re.findall(r"(?:url\(|href=\")#([^\")]*)", svg)) <= set(ids)
    assert style.BLUE not in svg
    assert "var(--plot-blue)" in svg
    assert "<in> &" in "".join(root.itertext())
    assert "http" not in svg.replace("http://www.w3.org/1999/xlink", "").replace("http://www.w3.org/2000/svg", "")
    assert "<style" not in svg


def test_every_colour_of_a_plot_has_its_shade_for_the_night() -> None:
    day = {shades[0] for shades in SHADES.values()}
    assert set(style.COLOURS) | {style.INK, style.MUTED, style.GRID, style.BAND} <= day


def test_drawn_pages_are_whole(tmp_path: Path) -> None:
    for kind in ("classes", "counts"):
        predictive, y = random(kind, 60)
        page = Page(write_report(tmp_path / kind, predictive=predictive, y=y, ood=predictive))
        ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", page.text))
        assert colours <= {"#ffffff", "#000000"}, colours  # everything else follows day and night
