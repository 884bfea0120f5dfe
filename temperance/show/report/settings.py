"""The page's last part: how the model was made, and what to cite."""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Iterator, Mapping
from importlib import metadata

from temperance.core.version import __version__
from temperance.inference import Inference
from temperance.run.fitted import Fitted
from temperance.show.report.html import Markup, Section, table, tag
from temperance.show.report.references import citation, papers
from temperance.show.report.words import count, number


def section(fitted: Fitted | None, settings: Mapping[str, object]) -> Section:
    """Everything that is needed to make the model again."""
    rows = [*(_of_fit(fitted) if fitted is not None else ()), *((str(k), _shown(v)) for k, v in settings.items())]
    rows += list(_versions())
    made = tag("div", table("Settings", ("setting", "value"), rows, hidden=True), class_="stack wide")
    body: list[object] = [made]
    if fitted is not None and fitted.info.remarks:
        body += [tag("h3", "Remarks of the method"), tag("ul", *(tag("li", remark) for remark in fitted.info.remarks))]
    return Section("settings", "How it was made", tuple(body))


def cite(fitted: Fitted | None) -> Section:
    """This software, and the papers behind the method."""
    body: list[object] = [citation()]
    found = papers(fitted.method) if fitted is not None else []
    if found:
        body += [tag("h3", "The method's papers"), tag("ul", *(tag("li", paper) for paper in found))]
    return Section("cite", "How to cite", tuple(body))


def _shown(value: object) -> object:
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else plain(str(value))


def _code(value: object) -> Markup:
    return tag("code", plain(repr(value)))


def plain(text: str) -> str:
    """Classes and functions by their bare names.

    >>> plain("MAP(optimiser=<class 'torch.optim.adam.Adam'>, lr=0.1)")
    'MAP(optimiser=Adam, lr=0.1)'
    """
    text = re.sub(r"<class '(?:[^'<>]*\.)?(\w+)'>", r"\1", text)
    return re.sub(r"<function (?:[^ ]*\.)?([^ .]+) at 0x[0-9a-f]+>", r"\1", text)


def _of_fit(fitted: Fitted) -> Iterator[tuple[object, object]]:
    target, info, run = fitted.target, fitted.info, fitted.run
    if fitted.method is not None:
        yield "method", _code(fitted.method)
    yield "posterior", type(fitted.posterior).__name__
    yield "likelihood", _code(target.likelihood)
    yield "prior", _code(target.prior)
    if target.temperature != 1 or target.likelihood_temperature != 1:
        yield "temperature", f"{target.temperature:g} (of the likelihood alone {target.likelihood_temperature:g})"
    yield "parameters", f"{target.layout.size:,}"
    yield "seed", str(fitted.seed)
    yield "steps", f"{info.steps:,} of {info.total_steps:,}"
    if "batch_size" in run:
        yield "batch size", f"{run['batch_size']:,}"
    yield "ended", f"{info.status.code}{': ' + info.status.message if info.status.message else ''}"
    yield "time", f"{number(float(info.seconds))} s"
    if isinstance(fitted.method, Inference):
        cost = fitted.method.facts().cost
        copies = number(float(cost.copies_of_theta))
        yield "cost", f"{number(float(cost.gradients_per_step))} gradients a step, {copies} copies of the weights held"
    if info.data.get("rows"):
        yield "training data", f"{info.data.get('name', 'data')}, {count(int(info.data['rows']), 'row')}"
    if run.get("data"):
        yield "data fingerprint", tag("code", str(run["data"])[:16])


def _versions() -> Iterator[tuple[object, object]]:
    yield "temperance", __version__
    for package in ("torch", "numpy"):
        yield package, metadata.version(package)
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "written", datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
