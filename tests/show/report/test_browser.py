"""The page in a real browser: it loads by itself, is seen on a phone and by night, and runs nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import temperance as tp
from temperance.show.report import report, write_report
from tests.show.report.pages import random

BAD = "<script>window.hacked = 1; console.error('ran')</script><img src=x onerror='window.hacked = 1'>"

_CONTRAST = """
() => {
  const parse = text => (text.match(/[0-9.]+/g) || []).map(Number);
  const light = rgb => {
    const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = rgb.slice(0, 3).map(v => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || (colour.length === 4 && colour[3] > 0.99)) return colour;
    }
    return [255, 255, 255];
  };
  const found = {};
  const all = 'p, li, h1, h2, h3, h4, figcaption, caption, th, td, a, summary, dt, dd, span, code, svg text';
  for (const e of document.querySelectorAll(all)) {
    if (!e.textContent.trim() || e.classList.contains('track') || e.classList.contains('fill')) continue;
    const style = getComputedStyle(e);
    const colour = parse(e.closest('svg') ? style.fill : style.color);
    const [a, b] = [light(colour), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const name = e.tagName.toLowerCase() + (e.className && e.className.baseVal === undefined ? '.' + e.className : '');
    found[name] = Math.min(found[name] ?? 99, ratio);
  }
  return found;
}
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> dict[str, Path]:
    """One page of each sort: classes with images and bad names, values in a table, a sampler's."""
    folder = tmp_path_factory.mktemp("pages")
    classes, y = random("classes", 60)
    away, _ = random("classes", 60, seed=1)
    made = {
        "classes": write_report(
            folder / "classes",
            predictive=classes,
            y=y,
            ood=away,
            examples=torch.rand(60, 8, 8),
            class_names=[BAD, "a_very_long_class_name_without_any_place_to_break_it_at_all", "c"],
            caution="A caution.",
        )
    }
    values, truth = random("outputs", 60)
    rows = [{BAD: BAD, "x" * 80: k, "third": k / 7} for k in range(60)]
    made["values"] = write_report(
        folder / "values", predictive=values, y=truth, ood=values, examples=rows, title=BAD, target_name=BAD
    )
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=rng)
    target = tp.Target(tp.nn.MLP(2, [4], 2), tp.Categorical(), tp.GaussianPrior(1.0))
    method = tp.Ensemble(tp.Collect(tp.SGHMC(lr=0.05), burn=0.2, every=5, read_every=5), 2)
    fitted = tp.fit(target, method, (x, (x[:, 0] > 0).long()), steps=150, batch_size=30, progress=False)
    made["chains"] = report(fitted, folder / "chains")
    return made


@pytest.fixture(params=["classes", "values", "chains"])
def opened(request: pytest.FixtureRequest, browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    """A function that opens the page at a width, by day or night, and notes what it asks for and complains of."""
    contexts = []

    def open_page(width: int = 1200, night: bool = False) -> tuple[Any, list[str], list[str]]:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme="dark" if night else "light"
        )
        contexts.append(context)
        page = context.new_page()
        complaints: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda wanted: asked.append(wanted.url))
        page.goto(pages[request.param].as_uri())
        return page, complaints, asked

    yield open_page
    for context in contexts:
        context.close()


def test_it_loads_by_itself_and_runs_nothing(opened: Any) -> None:
    page, complaints, asked = opened()
    assert complaints == []
    assert all(url.startswith(("file:", "data:")) for url in asked)
    assert sum(url.startswith("file:") for url in asked) == 1
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.scripts.length") == 0
    sizes = page.evaluate(
        "[...document.querySelectorAll('svg.plot, img')].map(e => [e.getBoundingClientRect().width,"
        " e.getBoundingClientRect().height])"
    )
    assert len(sizes) >= 4
    assert all(width > 40 and height > 40 for width, height in sizes)
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")


def test_everything_has_a_name_and_its_place(opened: Any) -> None:
    page, _, _ = opened()
    unnamed = page.evaluate(
        """[...document.querySelectorAll('img, svg')].filter(e => {
          if (e.tagName === 'IMG') return !e.alt;
          const title = document.getElementById(e.getAttribute('aria-labelledby'));
          return e.getAttribute('role') !== 'img' || !title || !title.textContent.trim();
        }).length"""
    )
    assert unnamed == 0
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(e => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert all(later <= before + 1 for before, later in itertools.pairwise(levels))
    assert page.evaluate("[...document.querySelectorAll('th')].every(e => e.scope)")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    assert page.evaluate("!!document.querySelector(document.activeElement.getAttribute('href'))")


def test_a_phone_shows_it_without_scrolling_sideways(opened: Any) -> None:
    page, _, _ = opened(width=360)
    page.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    outside = page.evaluate(
        """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') && !e.closest('svg')
          && !e.classList.contains('skip') && e.getBoundingClientRect().right > 361).map(e => e.tagName).slice(0, 5)"""
    )
    assert outside == []
    smallest = page.evaluate(
        """Math.min(...[...document.querySelectorAll('svg.plot')].map(e =>
          e.getBoundingClientRect().width / e.viewBox.baseVal.width))"""
    )
    assert smallest * 7.5 >= 7  # the smallest print of a plot, in pixels


@pytest.mark.parametrize("night", [False, True])
def test_text_can_be_read_by_day_and_by_night(opened: Any, night: bool) -> None:
    page, _, _ = opened(night=night)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(v) for v in background[4:-1].split(",")) < 150) == night
    page.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    found = page.evaluate(_CONTRAST)
    assert {"p.lead", "figcaption", "td", "text"} <= set(found)
    assert {name: ratio for name, ratio in found.items() if ratio < 4.5} == {}


def test_paper_is_white_even_at_night(opened: Any) -> None:
    page, _, _ = opened(night=True)
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
