"""From the rows of a table to the numbers that a network sees, and what is strange about each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from temperance.apps.tables.columns import (
    IMPUTATIONS,
    CategoryColumn,
    Column,
    DateColumn,
    NumberColumn,
    date_parts,
    dates_of,
    numbers_of,
    texts_of,
)
from temperance.core.errors import DataError

_FAR = 1e4  # standard deviations at which a number is cut, so that the network stays finite
_MARKS = frozenset(
    ("", "?", "-", "--", ".", "*", "x", "n/a", "n.a.", "na", "nan", "null", "none", "nil", "missing", "unknown")
)
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Flag:
    """Something strange about some rows. Where ``unknown``, what the value would be is not known to the model."""

    words: str
    rows: Rows
    unknown: bool


@dataclass
class Encoded:
    """``x``, rows × features in float32; the flags; and values that are unknown.

    An unknown value (a category never seen, a missing value where none was missing in training) is not guessed: it
    stands for all the values that the column had in training, in their proportions. :meth:`imputed` gives rows
    with each of ``IMPUTATIONS`` equally likely values in its place.
    """

    x: NDArray[np.float32]
    flags: list[Flag] = field(default_factory=list)
    unknown: dict[int, Rows] = field(default_factory=dict)
    _columns: Sequence[Column] = ()

    @property
    def open_rows(self) -> Rows:
        """The rows with a value that is unknown."""
        return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *self.unknown.values()]))

    def some(self, rows: Rows) -> Encoded:
        """Some of the rows, in this order, without their flags."""
        unknown = {k: np.flatnonzero(np.isin(rows, at)) for k, at in self.unknown.items()}
        return Encoded(self.x[rows], [], {k: at for k, at in unknown.items() if len(at)}, self._columns)

    def imputed(self, rows: Rows) -> NDArray[np.float32]:
        """len(rows) × IMPUTATIONS × features: ``rows`` with each of the values that may stand for unknown ones."""
        made = np.repeat(self.x[rows][:, None, :], IMPUTATIONS, axis=1)
        first = 0
        for k, column in enumerate(self._columns):
            width = len(column.features)
            if k in self.unknown:
                which = np.isin(rows, self.unknown[k])
                order = np.random.default_rng(k).permutation(IMPUTATIONS)  # columns are imputed independently
                made[which, :, first : first + width] = _stand_ins(column)[order]
            first += width
        return made


def encode(columns: Sequence[Column], frame: pd.DataFrame, *, training: bool = False) -> Encoded:
    """The rows of ``frame`` as the network sees them.

    ``training`` is for the rows that the columns were learned from: nothing in them is strange, and what is too rare to
    be learned is imputed without a mark.
    """
    lacking = [column.name for column in columns if column.name not in frame.columns]
    if lacking:
        raise DataError(f"the table must have the columns {', '.join(f'`{n}`' for n in lacking)}; they are missing.")
    x = np.zeros((len(frame), sum(len(c.features) for c in columns)), dtype=np.float32)
    made = Encoded(x, _columns=columns)
    first = 0
    for k, column in enumerate(columns):
        part = x[:, first : first + len(column.features)]
        if isinstance(column, CategoryColumn):
            _encode_category(column, frame[column.name], part, made, k)
        else:
            _encode_number(column, frame[column.name], part, made, k)
        first += len(column.features)
    if training:
        made.flags, made.unknown = [], {}
    return made


def _encode_number(
    column: NumberColumn | DateColumn, values: pd.Series, part: NDArray[np.float32], made: Encoded, place: int
) -> None:
    number = numbers_of(values) if isinstance(column, NumberColumn) else dates_of(values, column.format)
    coded = np.isin(number, column.codes) if isinstance(column, NumberColumn) else np.zeros(len(number), dtype=bool)
    number = np.where(coded, np.nan, number)
    absent = np.isnan(number)
    if absent.any():
        rows = np.flatnonzero(absent)
        unread = rows[~_is_missing(values.iloc[rows]) & ~coded[rows]]
        gone = np.zeros(0, dtype=np.int64) if column.missing else np.setdiff1d(rows, unread)
        if column.missing:
            part[rows, -1] = 1.0
        if len(gone):
            made.flags.append(Flag(f"{column.name} is missing, which it never was in training", gone, True))
        if len(unread):
            kind = "number" if isinstance(column, NumberColumn) else "date"
            made.flags.append(Flag(f"{column.name} is not a {kind}", unread, True))
        if len(gone) or len(unread):
            made.unknown[place] = np.sort(np.concatenate([gone, unread]))
        number = np.where(absent, column.median, number)
    outside = (number < column.low) | (number > column.high)
    if outside.any():
        made.flags.append(Flag(f"{column.name} outside the training range", np.flatnonzero(outside), False))
    width = part.shape[1] - int(column.missing)
    part[:, :width] = _standardised(column, number)


def _is_missing(values: pd.Series) -> NDArray[np.bool_]:
    """Which of these are nothing, or a mark that people write for nothing; others were meant to be something."""
    blank = values.isna().to_numpy(dtype=bool).copy()
    if not pd.api.types.is_numeric_dtype(values.dtype) and not blank.all():
        blank[~blank] = [str(value).strip().lower() in _MARKS for value in values[~blank]]
    return blank


def _standardised(column: NumberColumn | DateColumn, number: NDArray[np.float64]) -> NDArray[np.float64]:
    if isinstance(column, NumberColumn):
        made = ((number if column.cut is None else np.clip(number, *column.cut)) - column.mean) / column.scale
        return np.clip(made, -_FAR, _FAR)[:, None]
    parts = date_parts(number, column.parts)
    return np.clip((parts - np.array(column.mean)) / np.array(column.scale), -_FAR, _FAR)


def _encode_category(
    column: CategoryColumn, values: pd.Series, part: NDArray[np.float32], made: Encoded, place: int
) -> None:
    codes, texts = texts_of(values)
    known = {level: k for k, level in enumerate(column.levels)} | dict.fromkeys(column.rare, len(column.levels))
    unseen, absent = -1, len(column.features) - 1 if column.missing else -2
    where = np.array([known.get(text, unseen) for text in texts] + [absent], dtype=np.int64)[codes]
    rows = np.flatnonzero(where >= 0)
    part[rows, where[rows]] = 1.0
    strange = np.flatnonzero(where == unseen)
    gone = np.flatnonzero(where == -2)
    if len(strange):
        made.flags.append(Flag(f"{column.name} has a value never seen in training", strange, True))
    if len(gone):
        made.flags.append(Flag(f"{column.name} is missing, which it never was in training", gone, True))
    if len(strange) or len(gone):
        made.unknown[place] = np.sort(np.concatenate([strange, gone]))


def _stand_ins(column: Column) -> NDArray[np.float32]:
    """IMPUTATIONS × features of a column: equally likely values, in the proportions of the training rows."""
    made = np.zeros((IMPUTATIONS, len(column.features)), dtype=np.float32)
    if isinstance(column, CategoryColumn):
        shares = np.cumsum(column.counts) / sum(column.counts)
        levels = np.searchsorted(shares, (np.arange(IMPUTATIONS) + 0.5) / IMPUTATIONS)
        made[np.arange(IMPUTATIONS), levels] = 1.0
    else:
        width = made.shape[1] - int(column.missing)
        made[:, :width] = _standardised(column, np.array(column.quantiles))
    return made
