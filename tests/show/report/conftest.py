"""A real browser for the pages, where there is one."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from temperance.show.report import figures
from temperance.show.report.html import Markup, tag

NO_BROWSER = "browser tests of the report were SKIPPED: "
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; without one the tests are skipped, visibly."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _skip("playwright is not installed (pip install playwright).")
    if found is None:
        _skip("no chromium, chromium-browser or google-chrome was found.")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=list(_ARGUMENTS))
        yield started
        started.close()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages whose plots are empty frames, for tests of everything else: drawing is most of a page's time."""

    def frame(key: str, draw: object, label: str, width: float, height: float) -> Markup:
        return tag("svg", tag("title", label, id=f"{key}-title"), role="img", aria_labelledby=f"{key}-title")

    monkeypatch.setattr(figures, "draw_svg", frame)


def _skip(reason: str) -> None:
    warnings.warn(NO_BROWSER + reason, stacklevel=2)  # pytest-xdist shows warnings of its workers, but no summary
    pytest.skip(NO_BROWSER + reason)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say it once more at the end."""
    for report in terminalreporter.stats.get("skipped", []):
        told = str(report.longrepr)
        if NO_BROWSER in told:
            terminalreporter.write_line(told[told.index(NO_BROWSER) :].rstrip("')"), yellow=True)
            return
