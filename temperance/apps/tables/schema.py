"""What a run knows of its table: the target, the columns that are used, those that are not and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from temperance.apps.tables.columns import (
    Column,
    DateColumn,
    NumberColumn,
    dates_of,
    is_truth,
    learn_category,
    learn_date,
    learn_number,
    number_remarks,
    numbers_of,
    recognise,
    texts_of,
)
from temperance.apps.tables.formats import looks_like_numbers
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, DataError
from temperance.core.fields import check_fields
from temperance.core.outcomes import Classes, Counts, Outcome, Reals
from temperance.predict.monotone import Monotone

_FEW = 10  # whole numbers with at most so many different values are classes
_DISPERSED = 5.0  # whole numbers whose variance is more than so many times their mean are no counts


@dataclass(frozen=True, eq=False)
class Schema(Value):
    """The columns of a run. Real targets are standardised: y = centre + spread · z, or ``transform`` of y is; those
    outside ``limits`` are not learned from (:func:`~temperance.apps.tables.robust.target_limits`), and no interval
    reaches below ``least``.

    >>> Schema("price", Reals(), (), (), centre=100.0, spread=10.0).class_index
    {}
    """

    target: str
    outcome: Outcome
    columns: tuple[Column, ...]
    classes: tuple[str, ...] = ()
    centre: float = 0.0
    spread: float = 1.0
    transform: Monotone | None = None
    id: str | None = None
    group: str | None = None
    dropped: dict[str, str] = field(default_factory=dict)
    limits: tuple[float, float] = (-math.inf, math.inf)
    least: float = -math.inf

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def inputs(self) -> int:
        """How many features the network sees."""
        return sum(len(column.features) for column in self.columns)

    @property
    def outputs(self) -> int:
        """How many outputs the network has."""
        return len(self.classes) or 1

    @property
    def class_index(self) -> dict[str, int]:
        """The number of each class."""
        return {name: k for k, name in enumerate(self.classes)}

    @property
    def text_columns(self) -> list[str]:
        """Input columns that a file must give as text."""
        return [c.name for c in self.columns if not isinstance(c, NumberColumn | DateColumn)]

    @property
    def verbatim(self) -> list[str]:
        """Columns that a file must give letter for letter: classes may be called NA, None or 01."""
        return [self.target] if self.classes else []

    def kept_as_text(self, names: Sequence[str]) -> list[str]:
        """Those of ``names`` that are no numbers to the model: in predictions they stay as the file has them."""
        numbers = {c.name for c in self.columns if isinstance(c, NumberColumn | DateColumn)}
        return [name for name in names if name not in numbers]


def check_target(names: Sequence[str], target: str, argument: str = "target") -> None:
    """Raise unless ``target`` is a column, naming those that are nearly it."""
    if target in names:
        return
    near = get_close_matches(target.lower(), [name.lower() for name in names], n=3, cutoff=0.5)
    close = [name for wanted in near for name in names if name.lower() == wanted]
    listed = ", ".join(f"`{name}`" for name in (close or names[:30]))
    listed += ", …" if not close and len(names) > 30 else ""
    words = "The closest are" if close else "The columns are"
    raise ArgumentError(f"`{argument}` must be a column of the table; there is no `{target}`. {words} {listed}.")


def recognise_outcome(values: pd.Series, name: str, asked: Outcome | None = None) -> tuple[Outcome, str]:
    """What kind of target a column is, and why: classes, a quantity or counts.

    Text, truth values, and whole numbers with at most 10 different values are classes. Whole numbers from 0 or 1 up
    whose variance is less than 5 times their mean are counts. Everything else is a quantity.

    >>> recognise_outcome(pd.Series(["yes", "no", "yes"]), "spam")
    (Classes(), 'spam: 2 different texts -> classification')
    """
    kind, _, said = recognise(values, name)
    if kind == "empty":
        raise DataError(f"the target `{name}` is empty.")
    if kind == "date":
        raise DataError(f"the target `{name}` holds dates; give a number (such as days) in their place.")
    if kind == "category" and asked is None and not is_truth(values):
        _refuse_odd_numbers(values, name)
    if kind == "category":
        what = "truth values" if is_truth(values) else "different texts"
        return Classes(), f"{name}: {len(texts_of(values)[1]):,} {what} -> classification"
    numbers = numbers_of(values)
    numbers = numbers[~np.isnan(numbers)]
    unique = np.unique(numbers)
    written = f" ({said[0].removesuffix('.')})" if said and "is written like" in said[0] else ""
    if (unique != np.round(unique)).any():
        return Reals(), f"{name}: {len(unique):,} different numbers -> regression{written}"
    if len(unique) <= _FEW:
        words = f"{name}: whole numbers with {len(unique)} different values -> classification"
        if len(unique) > 2:
            words += " (if they are amounts: --task regression; if they count events: --task counts)"
        return Classes(), words
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = numbers.var() / max(numbers.mean(), 1e-12)
    if unique[0] in (0, 1) and ratio < _DISPERSED:
        return Counts(), (
            f"{name}: whole numbers from {unique[0]:.0f} to {unique[-1]:.0f}, variance {ratio:.2g} times their mean -> "
            "counts (if they are amounts: --task regression)"
        )
    return Reals(), (
        f"{name}: {len(unique):,} different whole numbers -> regression (if they count events: --task counts){written}"
    )


def _refuse_odd_numbers(values: pd.Series, name: str) -> None:
    """Raise where a target of text is one of numbers that cannot be read: as classes they would be learned as names."""
    text = values.dropna().astype(str)
    numeric = numbers_of(text)
    good, bad = int((~np.isnan(numeric)).sum()), text[np.isnan(numeric)]
    if good > _FEW and len(np.unique(numeric[~np.isnan(numeric)])) > _FEW and good >= 0.3 * len(text):
        example = f", e.g. {bad.iloc[0][:30]!r}, in {len(bad):,} rows" if len(bad) else ""
        words = f"mixes numbers ({good:,} rows) and text{example}" if len(bad) else "has numbers in several units"
        remedy = "Leave unknown numbers empty and write the others plainly"
    elif looks_like_numbers(text):
        words = f"holds what look like numbers, written in a way that is not known, e.g. {text.iloc[0][:30]!r}"
        remedy = "Write them plainly, as 1234.5 (or give --decimal)"
    else:
        return
    raise DataError(
        f"the target `{name}` {words}. {remedy}; --task regression leaves out what cannot be read, --task "
        "classification takes each text for a class."
    )


def learn_columns(frame: pd.DataFrame, leave: dict[str, str], train: NDArray[np.int64]) -> tuple[
    tuple[Column, ...], dict[str, str], list[str]
]:  # fmt: skip
    """The columns to use, learned from the rows ``train``; those left out, with the reason; and notices."""
    columns: list[Column] = []
    dropped, notices = dict(leave), []
    for name in frame.columns:
        if name in leave:
            continue
        values = frame[name]
        kind, form, words = recognise(values, name)
        notices += words
        reason = ""
        if kind == "empty":
            reason = "is empty"
        elif kind == "number":
            numbers = numbers_of(values)
            made = None if _counts_rows(values, numbers) else learn_number(name, numbers[train])
            reason = "numbers the rows" if _counts_rows(values, numbers) else "does not vary" if made is None else ""
            notices += [] if made is None else number_remarks(made, numbers[train])
        elif kind == "date":
            made = learn_date(name, dates_of(values, form)[train], form)  # type: ignore[assignment]
            reason = "does not vary" if made is None else ""
        else:
            codes, texts = texts_of(values)
            found = learn_category(name, codes[train], texts)
            made, reason = (None, found) if isinstance(found, str) else (found, "")  # type: ignore[assignment]
        if reason:
            dropped[name] = reason
            notices.append(f"`{name}` {reason}: left out.")
        elif made is not None:
            columns.append(made)
    return tuple(columns), dropped, notices


def row_numbers(frame: pd.DataFrame) -> list[str]:
    """The columns that number the rows."""
    return [
        name
        for name in frame.columns
        if frame[name].dtype.kind in "iu" and _counts_rows(frame[name], numbers_of(frame[name]))
    ]


def _counts_rows(values: pd.Series, numbers: NDArray[np.float64]) -> bool:
    """1, 2, 3, … (or at least a quarter of these numbers, in order): a column that numbers the rows."""
    if len(numbers) < 10 or values.dtype.kind == "f" or np.isnan(numbers).any():
        return False
    whole = bool((numbers == np.round(numbers)).all())
    return whole and bool((np.diff(numbers) > 0).all()) and numbers[-1] - numbers[0] < 4 * len(numbers)
