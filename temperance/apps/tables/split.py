"""Rows for training, for validation and for the test: by class, or by group."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from temperance.core.errors import ArgumentError, DataError
from temperance.core.seeds import derive_seed

Rows = NDArray[np.int64]


def check_fractions(test: float, validation: float) -> None:
    """Raise unless something is left for training and for validation."""
    for name, value in (("test", test), ("validation", validation)):
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise ArgumentError(f"`{name}` must be a fraction from 0 to below 1; got {value!r}.")
    if validation == 0:
        raise ArgumentError("`validation` must be above 0: calibration needs rows that the model was not trained on.")
    if test + validation > 0.9:
        raise ArgumentError(
            f"`test` and `validation` must leave a tenth of the rows to train on; got {test + validation}."
        )


def split_rows(
    labels: NDArray[np.int64] | None,
    rows: int,
    test: float,
    validation: float,
    seed: int,
    groups: pd.Series | None = None,
) -> tuple[Rows, Rows, Rows]:
    """(training, validation, test) row numbers, in order.

    With ``labels`` each class is divided in these proportions, and the first row of each goes to training. With
    ``groups`` no group is in two parts; the proportions are then of groups.

    >>> train, validation, test = split_rows(None, 10, 0.2, 0.2, seed=0)
    >>> len(train), len(validation), len(test)
    (6, 2, 2)
    """
    rng = np.random.default_rng(derive_seed(seed, "table-split"))
    if groups is None:
        place = _places(np.zeros(rows, dtype=np.int64) if labels is None else labels, rng)
        if labels is not None:
            place[_firsts(labels, place)] = 0.0
    else:
        codes, names = pd.factorize(groups, use_na_sentinel=False)
        if len(names) < 4:
            raise DataError(f"`group` must have at least 4 different values to split by; got {len(names)}.")
        place = _places(np.zeros(len(names), dtype=np.int64), rng)[codes]
    trained = 1 - test - validation
    part = np.where(place < trained, 0, np.where(place < 1 - test, 1, 2))
    found = tuple(np.flatnonzero(part == k) for k in range(3))
    if not len(found[0]) or len(found[1]) < 2:
        raise DataError(f"{rows} rows are too few for training and validation.")
    return found  # type: ignore[return-value]


def halves(rows: Rows, seed: int, groups: pd.Series | None = None) -> tuple[Rows, Rows]:
    """Two halves of the validation rows, at random: one to calibrate on, one for guarantees. Groups stay together where
    there are at least 4."""
    rng = np.random.default_rng(derive_seed(seed, "table-halves"))
    if groups is not None:
        codes, names = pd.factorize(groups.iloc[rows], use_na_sentinel=False)
        if len(names) >= 4:
            first = (_places(np.zeros(len(names), dtype=np.int64), rng) < 0.5)[codes]
            return rows[first], rows[~first]
    first = _places(np.zeros(len(rows), dtype=np.int64), rng) < 0.5
    return rows[first], rows[~first]


def _firsts(labels: NDArray[np.int64], place: NDArray[np.float64]) -> Rows:
    """The row of each label with the smallest place."""
    order = np.lexsort((place, labels))
    return order[np.flatnonzero(np.diff(labels[order], prepend=-1))]


def _places(labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
    """A place between 0 and 1 for each row, at random and evenly spread within each label."""
    order = np.lexsort((rng.random(len(labels)), labels))
    counts = np.bincount(labels)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    place = np.empty(len(labels))
    place[order] = (np.arange(len(labels)) - starts + 0.5) / np.repeat(counts, counts)
    return place
