"""What ``temperance methods`` shows: every method with its idea, what it gets exactly right and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from textwrap import fill, wrap
from types import ModuleType

from rich.console import Console
from rich.text import Text

from temperance.apps.recipes import method_named
from temperance.inference.base import Facts
from temperance.inference.listing import Listed, listing


@dataclass(frozen=True)
class Line:
    """A method as it is written, and its facts; none where it cannot be made without arguments."""

    entry: Listed
    expression: str
    facts: Facts | None

    @property
    def is_main(self) -> bool:
        """Whether it is the main way to write the method: the others share its idea."""
        return self.expression == self.entry.shown[0]

    @property
    def gradients(self) -> str:
        """Gradients a step."""
        return "–" if self.facts is None else f"{self.facts.cost.gradients_per_step:.4g}"

    @property
    def copies(self) -> str:
        """Vectors of the size of θ."""
        if self.facts is None:
            return "–"
        copies = self.facts.cost.copies_of_theta
        return f"{copies:g}" if math.isfinite(copies) else "by layer"

    @property
    def exact(self) -> str:
        """What is exact on a linear-Gaussian model."""
        return "–" if self.facts is None else self.facts.exact.value

    @property
    def reads(self) -> str:
        """What a step reads."""
        return "–" if self.facts is None else {"minibatch": "batch", "full": "all"}[self.facts.reads]


def lines(*modules: ModuleType) -> Iterator[Line]:
    """Every way in which a card shows its method: those of the library, and those that ``modules`` define.

    >>> [line.expression for line in lines()][:2]
    ['MAP()', 'MCDropout(MAP())']
    """
    for entry in listing(*modules):
        if entry.kind.__module__.startswith("temperance."):
            for expression in entry.shown:
                yield Line(entry, expression, method_named(expression).facts())
        elif entry.is_method:
            yield _of_a_user(entry)


def _of_a_user(entry: Listed) -> Line:
    """Expressions name only classes of the library, so a user's method is made by its class: if it can be."""
    try:
        return Line(entry, entry.shown[0], entry.kind().facts())
    except (TypeError, AttributeError):  # it has no defaults, or they are no methods
        return Line(entry, entry.shown[0], None)


_LEGEND = (
    "exact: on a linear-Gaussian model with posterior N(μ, Λ⁻¹) at temperature T. grads: gradients a step. copies: "
    "vectors of the size of θ in its state. reads: a minibatch a step, or all data."
)
_SHORT = (
    "For `temperance fit --method`, `temperance compare --methods`, tp.tables and tp.sklearn, with settings that suit "
    "small networks on tables:"
)


def print_methods(console: Console, *modules: ModuleType) -> None:
    """The methods by family, then the short names; made for 80 columns and more."""
    everything = list(lines(*modules))
    widest = max(len(line.expression) for line in everything)
    exact = min(36, max(18, console.width - widest - 23))  # the columns after it take 19, the gaps four

    def row(line: str, first: str, grads: str, copies: str, reads: str) -> str:
        head, *more = wrap(first, exact) or [""]
        whole = f"{line:{widest}} {head:{exact}} {grads:>6} {copies:>8} {reads}"
        return "\n".join([whole.rstrip(), *(" " * (widest + 1) + rest for rest in more)])

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style), soft_wrap=True)

    for family, group in groupby(everything, key=lambda line: line.entry.card.family):
        say(f"{family.value.upper()}: {family.words}", "bold")
        say(row("", "exact", "grads", "copies", "reads"), "dim")
        for line in group:
            say(row(line.expression, line.exact, line.gradients, line.copies, line.reads), "cyan")
            if line.is_main:
                say(_indented(line.entry.card.idea.replace("`", ""), console.width))
        say("")
    say(fill(_LEGEND, console.width), "dim")
    say("\nSHORT NAMES", "bold")
    say(fill(_SHORT, console.width))
    for recipe in (recipe for entry in listing(*modules) for recipe in entry.card.recipes):
        say(f"{recipe.name:12}{recipe.words}", "cyan")
        say(_indented(recipe.expression, console.width))


def _indented(text: str, width: int) -> str:
    return fill(text, width, initial_indent="    ", subsequent_indent="    ", break_long_words=False)


__all__ = ["Line", "lines", "print_methods"]
