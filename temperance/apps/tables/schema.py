"""What a run knows of its table: the target, the columns that are used, those that are not and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

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
    numbers_of,
    recognise,
    texts_of,
)
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, DataError

Task = Literal["classification", "regression", "counts"]
TASKS = ("classification", "regression", "counts")
_FEW = 10  # whole numbers with at most so many different values are classes
_CLASSES = 200
_DISPERSED = 5.0  # whole numbers whose variance is more than so many times their mean are no counts


@dataclass(frozen=True, eq=False)
class Schema(Value):
    """The columns of a run. Real targets are standardised: y = centre + spread · z.

    >>> Schema("price", "regression", (), (), centre=100.0, spread=10.0).class_index
    {}
    """

    target: str
    task: Task
    columns: tuple[Column, ...]
    classes: tuple[str, ...] = ()
    centre: float = 0.0
    spread: float = 1.0
    id: str | None = None
    group: str | None = None
    dropped: dict[str, str] = field(default_factory=dict)

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


def recognise_task(values: pd.Series, name: str) -> tuple[Task, str]:
    """What kind of target a column is, and why: classes, a quantity or counts.

    Text, truth values, and whole numbers with at most 10 different values are classes. Whole numbers from 0 or 1 up
    whose variance is less than 5 times their mean are counts. Everything else is a quantity.

    >>> recognise_task(pd.Series(["yes", "no", "yes"]), "spam")
    ('classification', 'spam: 2 different texts -> classification')
    """
    kind, _, _ = recognise(values, name)
    if kind == "empty":
        raise DataError(f"the target `{name}` is empty.")
    if kind == "date":
        raise DataError(f"the target `{name}` holds dates; give a number (such as days) in their place.")
    if kind == "category":
        what = "truth values" if is_truth(values) else "different texts"
        return "classification", f"{name}: {len(texts_of(values)[1]):,} {what} -> classification"
    numbers = numbers_of(values)
    numbers = numbers[~np.isnan(numbers)]
    unique = np.unique(numbers)
    if (unique != np.round(unique)).any():
        return "regression", f"{name}: {len(unique):,} different numbers -> regression"
    if len(unique) <= _FEW:
        words = f"{name}: whole numbers with {len(unique)} different values -> classification"
        if len(unique) > 2:
            words += " (if they are amounts: --task regression; if they count events: --task counts)"
        return "classification", words
    ratio = numbers.var() / max(numbers.mean(), 1e-12)
    if unique[0] in (0, 1) and ratio < _DISPERSED:
        return "counts", (
            f"{name}: whole numbers from {unique[0]:.0f} to {unique[-1]:.0f}, variance {ratio:.2g} times their mean -> "
            "counts (if they are amounts: --task regression)"
        )
    return "regression", (
        f"{name}: {len(unique):,} different whole numbers -> regression (if they count events: --task counts)"
    )


def read_target(
    values: pd.Series, name: str, task: Task, classes: Sequence[str] | None = None
) -> tuple[NDArray[np.float64], tuple[str, ...], list[str]]:
    """The target as numbers, NaN where it is missing: classes by their place in the sorted list of names."""
    if task == "classification":
        codes, texts = texts_of(values)
        names = tuple(_in_order(texts)) if classes is None else tuple(classes)
        place = {text: k for k, text in enumerate(names)}
        unknown = [text for text in texts if text not in place]
        notices = []
        if unknown:
            count = int(np.isin(codes, [k for k, t in enumerate(texts) if t not in place]).sum())
            notices = [
                f"{count:,} rows have a class of `{name}` never seen in training, e.g. {unknown[0]!r}: left out."
            ]
        found = np.array([place.get(text, np.nan) for text in texts] + [np.nan], dtype=np.float64)
        return found[codes], names, notices
    numbers = numbers_of(values)
    bad = int((np.isnan(numbers) & values.notna().to_numpy()).sum())
    notices = [f"{bad:,} values of the target `{name}` are not finite numbers: these rows are left out."] if bad else []
    if task == "counts":
        known = numbers[~np.isnan(numbers)]
        if (known < 0).any() or (known != np.round(known)).any():
            raise DataError(
                f"`task` counts needs whole numbers from 0 up; `{name}` has values such as "
                f"{known[(known < 0) | (known != np.round(known))][0]:g}. Use --task regression."
            )
    return numbers, (), notices


def _in_order(texts: list[str]) -> list[str]:
    """Numbers by size, then text by alphabet."""

    def key(text: str) -> tuple[int, float, str]:
        try:
            return 0, float(text), text
        except ValueError:
            return 1, 0.0, text

    return sorted(texts, key=key)


def check_learnable(y: NDArray[np.float64], name: str, task: Task, classes: Sequence[str]) -> None:
    """Raise where there is nothing to learn."""
    if len(y) == 0:
        what = "value" if task == "classification" else "number"
        raise DataError(f"the target `{name}` must hold a {what} in some row for {task}; got none.")
    if task == "classification":
        if len(classes) < 2:
            raise DataError(f"the target `{name}` has one class only ({classes[0]!r}): there is nothing to learn.")
        if len(classes) > _CLASSES:
            raise DataError(
                f"the target `{name}` has {len(classes):,} different values; classification takes up to {_CLASSES}. "
                "Is it the right column?"
            )
    elif y.min() == y.max():
        raise DataError(f"the target `{name}` has one value only ({y[0]:g}): there is nothing to learn.")
    if len(y) < 10:
        raise DataError(f"at least 10 rows with a target are needed; got {len(y)}.")


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


def _counts_rows(values: pd.Series, numbers: NDArray[np.float64]) -> bool:
    """1, 2, 3, … (or at least a quarter of these numbers, in order): a column that numbers the rows."""
    if len(numbers) < 10 or values.dtype.kind == "f" or np.isnan(numbers).any():
        return False
    whole = bool((numbers == np.round(numbers)).all())
    return whole and bool((np.diff(numbers) > 0).all()) and numbers[-1] - numbers[0] < 4 * len(numbers)
