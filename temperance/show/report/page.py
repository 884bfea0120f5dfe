"""The page as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from temperance.core.errors import ArgumentError
from temperance.core.version import __version__
from temperance.predict import Predictive
from temperance.run.fitted import Fitted
from temperance.show.report import classes, examples, regression, sampler, settings  # noqa: F401  chapters
from temperance.show.report.chapter import CHAPTERS, Chapter
from temperance.show.report.doubt import Doubt
from temperance.show.report.folder import MARK, check_folder, write_page
from temperance.show.report.html import Markup, Section, escape, join, paragraphs, table, tag
from temperance.show.report.request import Request
from temperance.show.report.style import STYLE
from temperance.show.report.words import count

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def write(path: str | Path, request: Request, overwrite: bool) -> Path:
    """Measure, draw, write."""
    folder = check_folder(path, overwrite)
    return write_page(folder, render(request))


def render(request: Request) -> str:
    """The page's text."""
    part = _part(request)
    part.seen, part.advise, part.calibration_words = request.seen, request.advise, request.calibration_words
    rows = examples.Examples(request.examples, part.rows, request.feature_names)
    doubt = Doubt(part, request.ood, request.ood_words)
    fitted = request.fitted
    chains = None if fitted is None else sampler.examine(fitted, request.x, part.uncertain(3))
    told = [*part.sentences(), *doubt.sentences(), *(() if chains is None else (chains.sentence,))]
    sections = [_summary(part, told, request), *part.sections(), doubt.section(), examples.section(part, rows)]
    if chains is not None:
        sections.append(chains.section)
    sections += [_extra(k, heading, body) for k, (heading, body) in enumerate(request.extra.items())]
    sections += [settings.section(fitted, request.settings), settings.cite(fitted)]
    return _frame(request, part, sections)


def _part(request: Request) -> Chapter:
    predictive = request.predictive
    if not isinstance(predictive, Predictive):
        raise ArgumentError(
            f"`predictive` must be what `fitted.predict` returned, of classes, real values or counts; got "
            f"{type(predictive).__name__}."
        )
    return CHAPTERS.of(predictive.outcome)(request)


def _summary(part: Chapter, sentences: Sequence[str], request: Request) -> Section:
    cautions = [text for text in (request.caution, _unfinished(request.fitted), part.caution()) if text]
    tiles = tag("ul", *(tile.render() for tile in part.tiles()), class_="tiles")
    whose = paragraphs(part.whose, "note")
    told = tag("ul", *(tag("li", text) for text in sentences), class_="summary")
    scored = table("Scores", ("score", "value", "what it says"), part.scores(), hidden=True)
    return Section(
        "summary",
        "In short",
        (
            paragraphs(cautions, "caution"),
            paragraphs(request.notes),
            whose,
            tiles,
            told,
            tag("h3", "Scores for the expert"),
            scored,
        ),
    )


def _unfinished(fitted: Fitted | None) -> str:
    if fitted is None or (fitted.info.status.ok and fitted.info.status.code in ("ok", "early-stopped")):
        return ""
    return f"The run did not come to its end: {fitted.info.status}"


def _extra(k: int, heading: str, body: object) -> Section:
    made: object
    if isinstance(body, Mapping):
        made = table(str(heading), ("what", "value"), list(body.items()), hidden=True)
    elif isinstance(body, str):
        made = tag("p", body)
    elif isinstance(body, Sequence):
        made = paragraphs(body)
    else:
        raise ArgumentError(f"`extra` must map headings to texts or mappings; got {type(body).__name__}.")
    return Section(f"extra-{k + 1}", str(heading), (made,))


def _frame(request: Request, part: Chapter, sections: Sequence[Section]) -> str:
    head = join(
        (
            tag("meta", charset="utf-8"),
            Markup(MARK),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'),
            tag("title", request.title),
            tag("style", Markup(STYLE)),
        )
    )
    lead = f"Measured on {part.rows:,} {request.rows_words}."
    if request.method_words:
        lead = f"{request.method_words} {lead}"
    links = [tag("li", tag("a", part_.heading, href=f"#{part_.key}")) for part_ in sections]
    body = join(
        (
            tag("a", "Skip to the content", class_="skip", href="#content"),
            tag("header", tag("h1", request.title), tag("p", lead, class_="lead"),
                tag("nav", tag("ul", *links), aria_label="On this page")),
            tag("main", *(section.render() for section in sections), id="content"),
            tag("footer", f"Written by Temperance {__version__}. This page is one file: it loads nothing and sends "
                f"nothing. {count(part.rows, 'row')} measured."),
        )
    )  # fmt: skip
    return "<!doctype html>\n" + tag("html", tag("head", head), tag("body", body), lang="en") + "\n"
