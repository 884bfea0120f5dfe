"""HTML that escapes by default: what is not :class:`Markup` is text."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

VOID = frozenset({"img", "meta", "br", "hr"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """``value`` as HTML: escaped unless it is HTML already.

    >>> escape("<b>"), escape(Markup("<b>"))
    ('&lt;b&gt;', '<b>')
    """
    return value if isinstance(value, Markup) else Markup(html.escape(str(value), quote=True))


def join(parts: Iterable[object]) -> Markup:
    """All parts, one after the other."""
    return Markup("".join(escape(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element. A trailing underscore of an attribute is dropped and others become hyphens; ``None`` and ``False``
    leave an attribute out, ``True`` is one without a value.

    >>> tag("p", "1 < 2", class_="note", aria_hidden="true")
    '<p class="note" aria-hidden="true">1 &lt; 2</p>'
    """
    told = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        told += f" {attribute}" if value is True else f' {attribute}="{escape(value)}"'
    if name in VOID:
        return Markup(f"<{name}{told}>")
    return Markup(f"<{name}{told}>{join(children)}</{name}>")


@dataclass(frozen=True)
class Section:
    """A part of the page: its address, heading, and content."""

    key: str
    heading: str
    body: Sequence[object] = field(default_factory=tuple)

    def render(self) -> Markup:
        """As HTML."""
        heading = tag("h2", self.heading, id=f"{self.key}-heading")
        return tag("section", heading, *self.body, id=self.key, aria_labelledby=f"{self.key}-heading")


@dataclass(frozen=True)
class Tile:
    """A number to read first, what it is, and what it means."""

    value: str
    label: str
    note: str = ""

    def render(self) -> Markup:
        """As HTML."""
        note = tag("p", self.note, class_="note") if self.note else ""
        return tag("li", tag("p", self.value, class_="value"), tag("p", self.label, class_="label"), note)


def table(caption: str, head: Sequence[object], rows: Iterable[Sequence[object]], *, hidden: bool = False) -> Markup:
    """A table whose first column names its rows. It scrolls by itself where the screen is narrow."""
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in rows  # an empty table is still a table
    ]
    made = tag(
        "table", tag("caption", caption, class_="hidden" if hidden else None), tag("thead", top), tag("tbody", *body)
    )
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def beside(texts: Iterable[object], drawn: object) -> Markup:
    """Words beside what they speak of; above it where the screen is narrow."""
    return tag("div", tag("div", paragraphs(texts)), drawn, class_="figures")


def paragraphs(texts: Iterable[object], class_: str | None = None) -> Markup:
    """One ``p`` for each text."""
    return join(tag("p", text, class_=class_) for text in texts)
