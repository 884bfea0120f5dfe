"""Rows that stand in a table more than once. A model that has seen a row knows its copy: a copy in the test, or among
the rows that promise, would make both look better than they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Rows = NDArray[np.int64]
_TELLING = 0.5  # of the different rows: a column with so many different values tells rows apart


@dataclass(frozen=True)
class Copies:
    """Which rows are the same: ``codes`` has one number for all copies of a row."""

    codes: Rows

    @property
    def distinct(self) -> int:
        """How many different rows there are."""
        return int(self.codes.max()) + 1

    def firsts(self, rows: Rows | None = None) -> tuple[Rows, Rows]:
        """Of some rows (all unless told), the place of the first of each kind, and for each row which kind it is."""
        codes = self.codes if rows is None else self.codes[rows]
        _, first, kind = np.unique(codes, return_index=True, return_inverse=True)
        return first, kind.reshape(-1)

    def split(self, divide: Callable[[Rows], Sequence[Rows]], rows: Rows | None = None) -> list[Rows]:
        """``divide`` takes the first of each kind and gives parts of them, by number; the parts with all copies."""
        where = np.arange(len(self.codes)) if rows is None else rows
        first, kind = self.firsts(rows)
        return [where[np.isin(kind, part)] for part in divide(first)]


def copies_of(frame: pd.DataFrame) -> Copies | None:
    """The copies among rows of inputs and target; ``None`` where there are none, or where rows that are equal are so by
    chance: where no column tells different rows apart, as among a few categories.

    >>> frame = pd.DataFrame({"a": [0.5, 0.7, 0.5, 0.9], "b": [1, 2, 1, 2]})
    >>> copies_of(frame).codes.tolist(), copies_of(frame[["b"]])
    ([0, 1, 0, 2], None)
    """
    plain = frame.apply(lambda column: column.astype(str) if column.dtype == object else column)
    codes, found = pd.factorize(pd.util.hash_pandas_object(plain, index=False))
    if len(found) == len(frame):
        return None
    different = plain[~pd.Series(codes).duplicated().to_numpy()]
    telling = any(different[name].nunique() >= max(3, _TELLING * len(different)) for name in different.columns)
    return Copies(codes.astype(np.int64)) if telling else None
