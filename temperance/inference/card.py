"""The card of a method: what a list, a page or a report says of it, written once, beside the method itself.

What it costs and what it gets exactly right are facts of a method with its settings (``method.facts()``) and are never
written here; a card has words for what no number says.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from enum import Enum

from temperance.core.checks import shown
from temperance.core.errors import ArgumentError


class MethodFamily(Enum):
    """The kinds of methods, in the order of lists; each is a folder of ``temperance/inference``."""

    POINTS = "points"
    CURVATURE = "curvature"
    VARIATIONAL = "variational"
    LANGEVIN = "langevin"
    HAMILTONIAN = "hamiltonian"
    PARTICLES = "particles"
    WRAPPERS = "wrappers"
    OWN = "your own"

    @property
    def words(self) -> str:
        """What they have in common."""
        return _WORDS[self]


_WORDS = {
    MethodFamily.POINTS: "training, and what is made around a point",
    MethodFamily.CURVATURE: "a Gaussian from the curvature at a mode",
    MethodFamily.VARIATIONAL: "the best distribution of a given form",
    MethodFamily.LANGEVIN: "samplers for minibatches",
    MethodFamily.HAMILTONIAN: "exact samplers, on all data",
    MethodFamily.PARTICLES: "networks that move together",
    MethodFamily.WRAPPERS: "methods around any method",
    MethodFamily.OWN: "defined outside the library",
}


@dataclass(frozen=True)
class Recipe:
    """A method under a short name, as it would be written: ``Recipe("map", "MAP(lr=5e-3)", "ordinary training")``."""

    name: str
    expression: str
    words: str = ""


@dataclass(frozen=True)
class Card:
    """What is said of a method, or of a part of one (a curvature, a family of distributions, a basis, a kernel).

    Attributes:
        idea: in one line, without a full stop.
        family: the folder it is in; ``OWN`` outside the library.
        papers: what to cite for it; nothing for what is ours, or nobody's.
        exact: where it is exact, in words, if ``facts().exact`` is too coarse.
        cost: how the cost follows from the settings, in words, if the numbers of ``facts().cost`` do not say it.
        shown: how it is written in lists, the main way first. A method's default is its name and ``()``; a part
            without one is in no list of methods.
        recipes: short names for the command line, with settings that suit small networks on tables.
        demo: its lines in ``temperance demo``, with settings that suit digits.

    >>> Card("gradient descent with noise", papers=("Welling & Teh, ..., ICML 2011",)).year
    2011
    """

    idea: str
    family: MethodFamily = MethodFamily.OWN
    papers: tuple[str, ...] = ()
    exact: str = ""
    cost: str = ""
    shown: tuple[str, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    demo: tuple[Recipe, ...] = ()

    def __post_init__(self) -> None:
        for name in ("papers", "shown", "recipes", "demo"):
            if not isinstance(getattr(self, name), tuple):
                raise ArgumentError(f"`{name}` of a card must be a tuple; got {shown(getattr(self, name))}.")

    @property
    def year(self) -> int:
        """That of its first paper; 0 without one. Lists are in this order."""
        found = [int(year) for paper in self.papers for year in re.findall(r"\b(?:1[6-9]|20)\d\d\b", paper)[-1:]]
        return min(found, default=0)


def card_of(kind: type) -> Card:
    """The card of a class; for one without, its docstring's first sentence and the papers of what it derives from.

    >>> class Mine:
    ...     '''Keeps every other θ. Slowly.'''
    >>> card_of(Mine)
    Card(idea='Keeps every other θ', family=<MethodFamily.OWN: 'your own'>, ...)
    """
    own = vars(kind).get("card")
    if isinstance(own, Card):
        return own
    inherited = [card for base in kind.__mro__ if isinstance(card := vars(base).get("card"), Card)]
    return Card(_first_sentence(kind), papers=inherited[0].papers if inherited else ())


def _first_sentence(kind: type) -> str:
    """A dataclass without a docstring has its signature for one, which is no sentence."""
    text = inspect.cleandoc(vars(kind).get("__doc__") or "")
    if not text or text.startswith(f"{kind.__name__}("):
        return kind.__name__
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"\.(?=\s+[^a-z])|[.:,]$", paragraph)[0]  # a small letter after a full stop: an abbreviation


__all__ = ["Card", "MethodFamily", "Recipe", "card_of"]
