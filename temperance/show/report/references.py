"""What to cite: this software, and the papers behind a method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from temperance.core.version import __version__
from temperance.inference.card import card_of
from temperance.show.report.html import Markup, tag

TITLE = "Temperance: Bayesian deep learning as easy and nearly as cheap as ordinary training"
AUTHORS = "The Temperance developers"


def parts_of(value: Any) -> Iterator[type]:
    """The classes in a method, its own first, then those of what it wraps."""
    if is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for part in fields(value):
            yield from parts_of(getattr(value, part.name))
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from parts_of(entry)


def papers(method: Any) -> list[str]:
    """The papers behind a method and its parts, each once: those of their cards.

    >>> import temperance as tp
    >>> [paper.split(",")[0] for paper in papers(tp.Ensemble(tp.SWAG(tp.MAP()), 3))]
    ['Lakshminarayanan et al.', 'Maddox et al.']
    """
    found = [paper for kind in parts_of(method) for paper in card_of(kind).papers]
    return list(dict.fromkeys(found))


def citation() -> Markup:
    """How to cite this software, as text and as BibTeX."""
    text = f"{AUTHORS}. {TITLE}. Version {__version__}, 2026."
    bib = (
        "@software{temperance,\n"
        f"  author  = {{{{{AUTHORS}}}}},\n  title   = {{{TITLE}}},\n"
        f"  version = {{{__version__}}},\n  year    = {{2026}}\n}}"
    )
    return Markup(tag("p", text) + tag("pre", tag("code", bib)))
