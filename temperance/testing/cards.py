"""Tables made from the cards of methods: ``python -m temperance.testing.cards``, at the root of the repository.

It writes ``docs/methods.md`` and, in ``README.md``, what stands between ``<!-- methods: … -->`` and ``<!-- end -->``:
the methods of the families that the comment names, or the numbers of ``docs/demo.json`` (what ``temperance demo
--seeds 5`` wrote as ``results.json``) for ``demo``. The tests make them again and compare.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from temperance.apps.methods import Line, lines
from temperance.apps.recipes import method_named
from temperance.core import files
from temperance.core.errors import ArgumentError
from temperance.inference.card import MethodFamily
from temperance.inference.listing import Listed, listing

_REGION = re.compile(r"(<!-- methods: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_DEMO = {
    "log_loss": ("log-loss", "{:.3f}"),
    "accuracy": ("accuracy", "{:.3f}"),
    "ece": ("ECE", "{:.3f}"),
    "corrupted_log_loss": ("log-loss, noisy", "{:.2f}"),
    "ood_auroc": ("OOD AUROC", "{:.3f}"),
    "second_log_loss": ("log-loss, diabetes", "{:.2f}"),
}
_HEAD = """# The methods

Made by `python -m temperance.testing.cards` from the card in each method's own file and from `facts()` of the method
as it is written here; the tests compare. `temperance methods` prints the same in a terminal, and
[composition.md](composition.md) says what goes with what.

*Exact* is what a method gets right on a linear-Gaussian model with posterior N(μ, Λ⁻¹) at temperature T, as
`temperance.testing.check_inference` measures it; then, in words, where else it is exact. *Copies of θ* is what its
state holds.
"""


def methods_page() -> str:
    """``docs/methods.md``: families, parts, short names and papers."""
    everything = list(lines())
    out = [_HEAD]
    for family in MethodFamily:
        chosen = [line for line in everything if line.entry.card.family is family]
        if not chosen:
            continue
        out += [f"## {family.value.capitalize()}: {family.words}", ""]
        head = ("method", "idea", "posterior", "exact", "gradients a step", "copies of θ", "reads", "cost, in words")
        out += _table(head, [_full_row(line) for line in chosen])
        parts = [e for e in listing() if e.card.family is family and not e.shown]
        if parts:
            out += ["", "Parts: " + "; ".join(f"`{e.kind.__name__}`, {e.card.idea}" for e in parts) + "."]
        out += ["", *_papers(family)]
    out += ["## Short names", "", "For `temperance fit --method` and `tp.sklearn`, with settings that suit tables.", ""]
    recipes = [recipe for entry in listing() for recipe in entry.card.recipes]
    out += _table(("name", "what it is", "method"), [(r.name, r.words, f"`{r.expression}`") for r in recipes])
    return "\n".join(out) + "\n"


def family_table(families: Sequence[MethodFamily]) -> str:
    """README's table of some families: each method in the main way to write it."""
    chosen = [line for line in lines() if line.is_main and line.entry.card.family in families]
    chosen.sort(key=lambda line: families.index(line.entry.card.family))
    rows = [(f"`{line.expression}`", line.entry.card.idea, _exact(line), _cost(line)) for line in chosen]
    return "\n".join(_table(("method", "idea", "exact", "cost"), rows)) + "\n"


def demo_table(results: dict[str, dict[str, Any]]) -> str:
    """README's table of measured numbers, a line for each of the demo's methods."""
    headings = [heading for heading, _ in _DEMO.values()]
    rows = []
    for recipe in (recipe for entry in listing() for recipe in entry.card.demo):
        facts, found = method_named(recipe.expression).facts(), results.get(recipe.name)
        numbers = ["–" if found is None else form.format(found[key]) for key, (_, form) in _DEMO.items()]
        time = "–" if found is None else f"{found['time']:.1f}x"
        gradients = f"{facts.cost.gradients_per_step:.2g}x"
        copies = f"{facts.cost.copies_of_theta:g}"
        rows.append((f"`{recipe.expression}`", facts.gives.__name__, *numbers, gradients, copies, time))
    return "\n".join(_table(("method", "posterior", *headings, "gradients", "copies of θ", "time"), rows)) + "\n"


def with_tables(text: str, results: dict[str, dict[str, Any]]) -> str:
    """``text`` with all its regions made anew.

    >>> print(with_tables("before <!-- methods: curvature -->\\nold\\n<!-- end --> after", {})[:60])
    before <!-- methods: curvature -->
    | method | idea | exact |
    """

    def made(region: re.Match[str]) -> str:
        names = region[2].split()
        if names == ["demo"]:
            return region[1] + demo_table(results) + region[3]
        known = {family.value: family for family in MethodFamily}
        if not set(names) <= set(known):
            raise ArgumentError(f"`methods:` must name families ({', '.join(known)}) or demo; got {region[2]!r}.")
        return region[1] + family_table([known[name] for name in names]) + region[3]

    return _REGION.sub(made, text)


def pages(root: Path) -> dict[Path, str]:
    """The files that are made from cards, and what they must hold."""
    measured = json.loads((root / "docs" / "demo.json").read_text(encoding="utf-8"))["results"]
    results = {line["method"]: line for line in measured}
    readme = root / "README.md"
    return {
        readme: with_tables(readme.read_text(encoding="utf-8"), results),
        root / "docs" / "methods.md": methods_page(),
    }


def _exact(line: Line) -> str:
    """What was measured, then in words what that does not say."""
    return "; ".join(part for part in (line.exact, line.entry.card.exact) if part and part != "–") or "–"


def _cost(line: Line) -> str:
    assert line.facts is not None
    gradients = f"{line.facts.cost.gradients_per_step:.2g}" if line.gradients.count(".") else line.gradients
    plural = "" if gradients == "1" else "s"
    data = " of all data" if line.facts.reads == "full" else ""
    copies = "copies of θ by layer size" if line.copies == "by layer" else f"{line.copies} copies of θ"
    words = f" ({line.entry.card.cost})" if line.entry.card.cost else ""
    return f"{gradients} gradient{plural}{data} a step, {copies}{words}"


def _full_row(line: Line) -> tuple[str, ...]:
    assert line.facts is not None
    card = line.entry.card
    gives = line.facts.gives.__name__
    if not line.is_main:
        return f"`{line.expression}`", "", gives, line.exact, line.gradients, line.copies, line.reads, ""
    return f"`{line.expression}`", card.idea, gives, _exact(line), line.gradients, line.copies, line.reads, card.cost


def _papers(family: MethodFamily) -> list[str]:
    by_paper: dict[str, list[Listed]] = {}
    for entry in listing():
        if entry.card.family is family:
            for paper in entry.card.papers:
                by_paper.setdefault(paper, []).append(entry)
    cited = [f"- {', '.join(f'`{e.kind.__name__}`' for e in of)}: {paper}" for paper, of in by_paper.items()]
    return [*cited, ""] if cited else []


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of Markdown; a bar inside a cell would end it."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)]


def main(arguments: list[str]) -> None:
    """Write the pages under the folder named, or under this one."""
    for path, text in pages(Path(arguments[0]) if arguments else Path()).items():
        files.write_text(path, text)
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
