"""What an experiment is: a question, settings as data, independent cells, figures and claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from temperance.core.errors import ArgumentError

if TYPE_CHECKING:  # matplotlib takes its time to import: only those who draw wait for it
    from matplotlib.figure import Figure

Value = str | int | float | bool
"""What tells a cell from the others."""


@dataclass(frozen=True)
class Settings:
    """The numbers that an experiment runs with; each experiment adds its own fields.

    Attributes:
        seed: the first seed.
        seeds: how many seeds; more of them make the error bars smaller. A folder of results can be given more later.
    """

    seed: int = 0
    seeds: int = 3

    def all_seeds(self) -> range:
        """seed, seed + 1, …"""
        return range(self.seed, self.seed + self.seeds)


@dataclass(frozen=True)
class Preset:
    """Settings with a name, and the minutes they take on two cores (``paper``: on a GPU, a rough guess)."""

    settings: Settings
    minutes: float


@dataclass(frozen=True)
class Cell:
    """One independent piece of work, told from the others by its parameters.

    >>> Cell.of(network="mlp", temperature=0.1, seed=3).key
    'network=mlp,temperature=0.1,seed=3'
    """

    params: Mapping[str, Value]

    @classmethod
    def of(cls, **params: Value) -> Cell:
        """A cell with these parameters."""
        return cls(params)

    @property
    def key(self) -> str:
        """Its name, which is also that of its file."""
        text = ",".join(f"{name}={value}" for name, value in self.params.items())
        return "".join(letter if letter.isalnum() or letter in "=,.-_+" else "_" for letter in text)

    def __getitem__(self, name: str) -> Any:
        return self.params[name]

    def get(self, name: str, default: Any) -> Any:
        """A parameter that not every cell has."""
        return self.params.get(name, default)


@dataclass(frozen=True)
class Finished:
    """What became of a cell: a result, or the text of an error."""

    cell: Cell
    result: Mapping[str, Any]
    seconds: float
    error: str | None = None


class Cells:
    """The finished cells of a run, to be asked by their parameters.

    >>> done = [Finished(Cell.of(arm=arm, seed=s), {"ce": s + len(arm)}, 0.1) for arm in ("a", "bb") for s in (0, 1)]
    >>> Cells(done).values("ce", arm="bb")
    [2.0, 3.0]
    """

    def __init__(self, finished: Sequence[Finished]) -> None:
        self.finished = [f for f in finished if f.error is None]

    def __len__(self) -> int:
        return len(self.finished)

    def __iter__(self) -> Iterator[Finished]:
        return iter(self.finished)

    def where(self, **match: Value) -> Cells:
        """The cells whose parameters are these."""
        return Cells([f for f in self.finished if all(f.cell.params.get(k) == v for k, v in match.items())])

    def options(self, name: str) -> list[Any]:
        """The values that a parameter takes, in the order of the cells."""
        return list(dict.fromkeys(f.cell.params[name] for f in self.finished if name in f.cell.params))

    def by_seed(self, entry: str, **match: Value) -> dict[int, float]:
        """One number of each matching cell, by seed; what is not finite is left out."""
        found = {int(f.cell["seed"]): float(f.result[entry]) for f in self.where(**match) if entry in f.result}
        return {seed: value for seed, value in sorted(found.items()) if math.isfinite(value)}

    def values(self, entry: str, **match: Value) -> list[float]:
        """The same as a list."""
        return list(self.by_seed(entry, **match).values())

    def first(self, **match: Value) -> Finished | None:
        """The first matching cell, if there is one."""
        return next(iter(self.where(**match)), None)


@dataclass(frozen=True)
class Claim:
    """Something a paper says, beside what was measured.

    Attributes:
        text: the claim.
        paper: the paper's own numbers, or words.
        measured: ours, with their uncertainty.
        holds: judged by a rule in code; ``None`` where the measurement does not decide.
        note: the rule, or why it was not judged.
    """

    text: str
    paper: str
    measured: str
    holds: bool | None
    note: str = ""

    @property
    def verdict(self) -> str:
        """In words."""
        return {True: "holds", False: "does not hold", None: "not judged"}[self.holds]


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its file (without ending) and what it shows, in words."""

    name: str
    caption: str
    figure: Figure = field(repr=False)


@dataclass(frozen=True)
class Sheet:
    """A table of the page, for numbers that a reader wants to look up: a heading, words, columns and rows of text."""

    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def no_sheets(settings: Any, done: Cells) -> Sequence[Sheet]:
    """Most experiments say everything in claims and figures."""
    return ()


@dataclass(frozen=True)
class Experiment:
    """An experiment of the laboratory.

    Attributes:
        name: as on the command line.
        title: a few words.
        paper: where the question comes from.
        question: what it asks, in a sentence or two.
        presets: settings by name: ``quick``, ``standard``, ``paper``.
        cells: the independent pieces of work for some settings.
        run: does one of them; a function of a module (workers import it), giving numbers, strings and lists of them.
        claims: judges the finished cells.
        figures: draws them.
        sheets: tables for the page, if there are any.
    """

    name: str
    title: str
    paper: str
    question: str
    presets: Mapping[str, Preset]
    cells: Callable[[Any], Sequence[Cell]]
    run: Callable[[Any, Cell], Mapping[str, Any]]
    claims: Callable[[Any, Cells], Sequence[Claim]]
    figures: Callable[[Any, Cells], Sequence[Picture]]
    sheets: Callable[[Any, Cells], Sequence[Sheet]] = no_sheets

    def preset(self, name: str) -> Preset:
        """A preset by name, or an error that lists them."""
        if name not in self.presets:
            raise ArgumentError(f"`preset` must be one of {', '.join(self.presets)} for {self.name}; got {name!r}.")
        return self.presets[name]
