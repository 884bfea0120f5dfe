"""The page of what goes with what, made by trying it: ``python -m temperance.testing.composition.page``.

It writes ``docs/composition.md`` (or the file named after the command). The tests try the same cells and compare, so
the page cannot say what is not so.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from temperance.testing.composition.check import Composition
from temperance.testing.composition.table import INNERS, WRAPPERS, Cell, cells

_HEAD = """# What goes with what

A wrapper takes a method and is a method. A pair **works** (it fits, predicts, can be saved and resumed bit for bit, and
has the spread that theory gives), or it is *refused* before the first step, for the reason numbered in its cell.

Made by `python -m temperance.testing.composition.page` from `temperance.testing.check_composition`, which tries every
cell on a small problem; the tests compare this page with what they find. Rows are the methods inside, columns the
wrappers around them.
"""


def page(found: dict[str, Composition], of: list[Cell]) -> str:
    """The page, from what was found of each cell."""
    reasons: dict[str, tuple[int, str]] = {}
    grid = {(c.row, c.column): c for c in of if c.row}
    rows = [r for r in INNERS if any(row == r for row, _ in grid)]
    columns = [c for c in WRAPPERS if any(column == c for _, column in grid)]
    lines = [_HEAD, f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for row in rows:
        shown = [_shown(found[grid[row, c].name], grid[row, c], reasons) if (row, c) in grid else "" for c in columns]
        lines.append(f"| {row} | {' | '.join(shown)} |")
    longer = [c for c in of if not c.row]
    if longer:
        lines += ["", "## More levels, other data", "", "| | |", "|---|---|"]
        lines += [f"| {c.name} | {_shown(found[c.name], c, reasons)} |" for c in longer]
    if reasons:
        lines += [
            "",
            "## Reasons",
            "",
            "Each in the words of one cell; others of that number name their own method.",
            "",
        ]
        lines += [f"{number}. {text}" for number, text in reasons.values()]
    wrong = [c for c in of if found[c.name].outcome == "fails"]
    if wrong:
        lines += ["", "## What fails", "", "Neither one nor the other: faults of the library.", ""]
        lines += [f"- `{c.name}`: {_short(found[c.name].short, c)}" for c in wrong]
    return "\n".join(lines) + "\n"


def _shown(report: Composition, cell: Cell, reasons: dict[str, tuple[int, str]]) -> str:
    if report.outcome == "works":
        return "works"
    if report.outcome == "fails":
        return "**fails**"
    text = _short(report.reason, cell)
    alike = re.sub(rf"\b{type(cell.inner).__name__}\b", "·", text)
    number, _ = reasons.setdefault(alike, (len(reasons) + 1, text))
    return f"refused {number}"


def _short(text: str, cell: Cell) -> str:
    """A message in one line, without the settings of the method."""
    return " ".join(text.replace(repr(cell.inner), type(cell.inner).__name__).split())


def outcomes(text: str) -> dict[str, str]:
    """What a page says of each cell, by the cell's name.

    >>> outcomes("| | On |\\n|---|---|\\n| MAP | works |\\n| SVGD | refused 3 |\\n| On(On(MAP)) | **fails** |\\n")
    {'On | MAP': 'works', 'On | SVGD': 'refused', 'On | On(On(MAP))': 'fails'}
    """
    said: dict[str, str] = {}
    columns: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = []
            continue
        first, *rest = [entry.strip() for entry in line.strip("|").split("|")]
        if not columns:
            columns = rest
        elif not set(line) <= set("|-"):
            for column, entry in zip(columns, rest, strict=True):
                if entry:
                    said[f"{column} | {first}" if column else first] = entry.strip("*").split()[0]
    return said


def main(arguments: list[str]) -> None:
    """Try every cell and write the page; say how it went on the way."""
    parser = argparse.ArgumentParser(prog="python -m temperance.testing.composition.page", description=main.__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/composition.md"), help="where to write it")
    where = parser.parse_args(arguments).file
    found: dict[str, Composition] = {}
    everything = cells()
    for number, cell in enumerate(everything, start=1):
        found[cell.name] = cell.examine()
        if sys.stderr.isatty():
            print(f"\r{number} of {len(everything)}", end="", file=sys.stderr)
    where.write_text(page(found, everything), encoding="utf-8")
    counts = {kind: sum(r.outcome == kind for r in found.values()) for kind in ("works", "refused", "fails")}
    print(f"{where}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
