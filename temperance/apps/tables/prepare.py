"""From a table to numbers: what is to be predicted, from which columns, and which rows are for what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from temperance.apps.tables.columns import numbers_of
from temperance.apps.tables.copies import Copies, copies_of
from temperance.apps.tables.encode import Encoded, encode
from temperance.apps.tables.folds import check_folds, deal, usual_folds
from temperance.apps.tables.formats import NOTHING, settled, without_nothing
from temperance.apps.tables.kinds import KINDS, kind_of
from temperance.apps.tables.reading import open_table, read_rows
from temperance.apps.tables.robust import LARGEST, within
from temperance.apps.tables.schema import Schema, check_target, learn_columns, recognise_outcome, row_numbers
from temperance.apps.tables.split import Rows, check_fractions, halves, split_rows
from temperance.core.errors import ArgumentError, DataError
from temperance.core.outcomes import Outcome
from temperance.core.seeds import check_seed, derive_seed
from temperance.data.data import Data, DataInfo

Say = Callable[[str], None]
MAX_ROWS = 500_000
"""Rows of a table that are used; of longer ones a random sample."""

_GUARD_ROWS = 20_000
_FEW = 200


@dataclass
class TablePart:
    """Some rows, as the network sees them, with their targets in their own units."""

    encoded: Encoded
    y: NDArray[np.float64]
    weights: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def inside(self, limits: tuple[float, float]) -> TablePart:
        """The rows whose targets lie within limits; itself where all do."""
        keep = within(self.y, limits)
        return self if keep.all() else self.some(np.flatnonzero(keep))

    def some(self, rows: Rows) -> TablePart:
        """Some of the rows, in this order."""
        return TablePart(self.encoded.some(rows), self.y[rows], None if self.weights is None else self.weights[rows])


@dataclass
class Prepared:
    """A table ready for any method: ``calibration`` and ``guard`` are the halves of the validation rows. Of a small
    table there are none: all rows but the test's are in ``train``, and ``folds`` has the fold of each."""

    schema: Schema
    train: TablePart
    calibration: TablePart
    guard: TablePart
    test: TablePart
    test_frame: pd.DataFrame
    notices: list[str] = field(default_factory=list)
    folds: NDArray[np.int64] | None = None
    numbered: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None
    """Where all rows stand in the table, and their targets."""
    copied: float = 0.0
    """The share of rows that stand in the table already."""

    @property
    def rows(self) -> int:
        """How many rows the table has."""
        return len(self.train) + len(self.calibration) + len(self.guard) + len(self.test)

    @property
    def learnable(self) -> int:
        """How many rows it has beside the test's."""
        return self.rows - len(self.test)

    @property
    def targets(self) -> NDArray[np.float64]:
        """Those of all rows but the test's: of what kind they are, not what they are."""
        return np.concatenate([part.y for part in (self.train, self.calibration, self.guard)])

    def data(self, part: TablePart, schema: Schema | None = None) -> Data:
        """Rows for :func:`temperance.run.fit`: classes as integers, real targets in the units of ``schema``; without
        those whose targets are outside its limits."""
        known = self.schema if schema is None else schema
        info = DataInfo(name=known.target, outcome=known.outcome, classes=known.classes)
        usual = part.inside(known.limits)
        targets = kind_of(known).model_targets(known, usual.y)
        return Data(torch.from_numpy(usual.encoded.x), targets, weights=usual.weights, info=info)


def prepare_table(
    data: Any,
    target: str,
    *,
    task: str | None = None,
    drop: Sequence[str] = (),
    group: str | None = None,
    id: str | None = None,
    test: float = 0.2,
    validation: float = 0.2,
    folds: int | None = None,
    seed: int = 0,
    max_rows: int = MAX_ROWS,
    encoding: str | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    missing: Sequence[str] | None = None,
    weights: str | None = None,
    say: Say | None = None,
) -> Prepared:
    """Read a table, recognise its columns, split its rows and encode them; see :func:`~tp.tables.fit_table`."""
    tell = _Teller(say)
    check_fractions(test, validation)
    check_folds(folds)
    seed = check_seed(seed)
    asked = None if task is None else Outcome.named(task, among=KINDS.outcomes)
    table = open_table(data, encoding=encoding, separator=separator, decimal=decimal)
    check_target(table.columns, target)
    for name, argument in [(id, "id"), (group, "group"), (weights, "weights"), *((name, "drop") for name in drop)]:
        if name is not None:
            check_target(table.columns, name, argument)
    if target in (id, group, weights, *drop):
        raise ArgumentError(f"`target` `{target}` must not also be an id, a group, a weight or dropped.")
    frame, notices = read_rows(table, max_rows, seed, [name for name in (id, group) if name], [target])
    tell.all(notices)
    lines = frame.index.to_numpy(dtype=np.int64) + table.first_row
    frame = frame.reset_index(drop=True)
    if table.dialect is not None:
        frame[target] = settled(frame[target], table.dialect.decimal)
    gone = None if missing is None else tuple(missing)
    outcome, y, classes = _target(frame[target], target, asked, gone, lines, tell)
    kind = KINDS.of(outcome)
    present = ~np.isnan(y)
    if not present.all():
        frame, y, lines = frame[present].reset_index(drop=True), y[present], lines[present]
    shares = None if weights is None else row_weights(frame[weights], weights, lines)
    if shares is not None and not shares.all():
        counted = shares > 0
        tell(f"{int((~counted).sum()):,} rows of weight 0 (`{weights}`): left out everywhere.")
        frame, y, lines, shares = frame[counted].reset_index(drop=True), y[counted], lines[counted], shares[counted]
    if shares is not None:
        tell(
            f"`{weights}` says how often each row counts in training (from {shares.min():.4g} to {shares.max():.4g}). "
            "Promises and scores are about rows as they come, each once; nothing is calibrated, for that would take "
            "back what the weights did."
        )
    kind.check_learnable(y, target, outcome.name, classes)
    groups = None if group is None else frame[group]
    leave = {target: "is the target"} | dict.fromkeys(drop, "was dropped")
    others = ((id, "is the identifier"), (group, "is the group"), (weights, "says how often rows count"))
    leave |= {name: word for name, word in others if name}
    copies = None
    if groups is None:
        leave_out = [name for name in leave if name != target] + row_numbers(frame)
        copies = copies_of(frame.drop(columns=leave_out))
    if copies is None:
        train, held, tested = split_rows(kind.strata(y), len(y), test, validation, seed, groups)
        apart = len(held)
    else:
        tell(_copy_words(copies, lines))
        train, held, tested = copies.split(
            lambda first: split_rows(kind.strata(y[first]), len(first), test, validation, seed)
        )
        apart = len(copies.firsts(held)[0])
    copied = 0.0 if copies is None else 1 - copies.distinct / len(y)
    count = usual_folds(len(train) + len(held), apart) if folds is None else folds
    if count:
        train, held = np.sort(np.concatenate([train, held])), held[:0]
    columns, dropped, words = learn_columns(frame, leave, train)
    tell.all(words)
    if not columns:
        raise DataError(f"{table.name} has no column to predict `{target}` from: none varies, or all were dropped.")
    _check_size(y[train], target)
    limits = kind.limits(y[train])
    units = kind.units(y[train][within(y[train], limits)])
    schema = Schema(target, outcome, columns, classes, *units, None, id, group, dropped, limits)
    if count:
        made = _in_folds(frame, y, schema, count, train, tested, seed, groups, copies, tell)
        if shares is not None:
            made.train.weights = shares[train]
        return replace(made, numbered=(lines, y), copied=copied)
    if copies is None:
        first, second = halves(held, seed, groups)
    else:
        first, second = copies.split(lambda each: halves(np.arange(len(each)), seed), held)
    if groups is not None:
        tell(_group_words(groups, first, second))
    rng = np.random.default_rng(derive_seed(seed, "table-guard"))
    first, second = (np.sort(rng.permutation(rows)[:_GUARD_ROWS]) for rows in (first, second))
    _say_rows(tell, train, held, tested)
    tell.all(kind.remarks(y[train], classes))
    own = None if shares is None else shares[train]
    learned = TablePart(encode(columns, frame.iloc[train], training=True), y[train], own)
    calibration, guard, last = (
        TablePart(encode(columns, frame.iloc[rows]), y[rows]) for rows in (first, second, tested)
    )
    kept = frame.iloc[tested].reset_index(drop=True)
    return Prepared(schema, learned, calibration, guard, last, kept, tell.said, numbered=(lines, y), copied=copied)


def _in_folds(
    frame: pd.DataFrame,
    y: NDArray[np.float64],
    schema: Schema,
    count: int,
    train: Rows,
    tested: Rows,
    seed: int,
    groups: pd.Series | None,
    copies: Copies | None,
    tell: _Teller,
) -> Prepared:
    """A small table: all rows but those of the test train, and promise by the folds that they are dealt into."""
    kind = kind_of(schema)
    if copies is None:
        place = deal(len(train), count, seed, kind.strata(y[train]), None if groups is None else groups.iloc[train])
    else:
        firsts, which = copies.firsts(train)
        place = deal(len(firsts), count, seed, kind.strata(y[train][firsts]), None)[which]
    made = int(place.max()) + 1
    tell(f"{len(train):,} rows to train on and to promise with, in {made} folds, {len(tested):,} for the test.")
    tell(
        f"few rows: none are held back. {made} more models, each trained without one fold, say how far off predictions "
        "are on rows that a model has not seen; intervals and sets are made with all of them (CV+). Such promises hold "
        "in practice; what can be proved is weaker (of 90 % intervals, 80 %) than of rows held back (--folds 0)."
    )
    if groups is not None:
        found = groups.iloc[train].nunique(dropna=False)
        rough = ", too few for the promise to be more than rough." if found < 20 else "."
        tell(
            f"Rows come in groups: coverage and error rate are promised for rows as independent as the {found} groups "
            f"they were checked on{rough}"
        )
    tell.all(kind.remarks(y[train], schema.classes))
    learned = TablePart(encode(schema.columns, frame.iloc[train], training=True), y[train])
    none, last = (TablePart(encode(schema.columns, frame.iloc[rows]), y[rows]) for rows in (train[:0], tested))
    return Prepared(schema, learned, none, none, last, frame.iloc[tested].reset_index(drop=True), tell.said, place)


def _copy_words(copies: Copies, lines: NDArray[np.int64]) -> str:
    """That rows occur more than once, and what follows."""
    codes = copies.codes
    again = np.bincount(codes)[codes] > 1
    one = codes[np.flatnonzero(again)[0]]
    pair = lines[np.flatnonzero(codes == one)[:2]]
    return (
        f"{int(again.sum()):,} of {len(codes):,} rows stand in the table more than once (e.g. rows {pair[0]} and "
        f"{pair[1]} are identical): copies stay on one side of each split, as rows of a --group do, and the promises "
        f"are as good as {copies.distinct:,} different rows can make them. Remove copies that were not measured anew: "
        "they teach the network to be too sure."
    )


def _group_words(groups: pd.Series, first: Rows, second: Rows) -> str:
    """What grouped rows do to the promises: rows of a group are not independent."""
    guards, shared = groups.iloc[second].nunique(dropna=False), set(groups.iloc[first]) & set(groups.iloc[second])
    words = (
        f"Rows come in groups: coverage and error rate are promised for rows as independent as the {guards} groups "
        "they were checked on" + (", too few for the promise to be more than rough." if guards < 20 else ".")
    )
    return words + (" With so few groups, some had to be divided between calibration and check." if shared else "")


def row_weights(values: pd.Series, name: str, lines: NDArray[np.int64]) -> NDArray[np.float64]:
    """How often each row counts: numbers from 0 on."""
    made = numbers_of(values)
    bad = np.flatnonzero(~(made >= 0))
    if len(bad):
        raise DataError(
            f"`weights` `{name}` must hold numbers from 0 on, one in each row; got {str(values.iloc[bad[0]])!r} in row "
            f"{lines[bad[0]]}. Write 0 for rows that are not to count."
        )
    if not made.any():
        raise DataError(f"`weights` `{name}` must not be 0 in all rows: there would be nothing to learn from.")
    return made


def _check_size(y: NDArray[np.float64], name: str) -> None:
    """Raise where targets are so large that their squares are none."""
    largest = float(np.abs(y).max())
    if largest > LARGEST:
        raise DataError(
            f"the target `{name}` must hold numbers up to {LARGEST:g} in size, whose squares are still numbers; got "
            f"{largest:.4g}. Divide the column, or correct the row."
        )


class _Teller:
    """Says things, and remembers them."""

    def __init__(self, say: Say | None) -> None:
        self._say, self.said = say, list[str]()

    def __call__(self, words: str) -> None:
        self.said.append(words)
        if self._say is not None:
            self._say(words)

    def all(self, many: Sequence[str]) -> None:
        for words in many:
            self(words)


def _target(
    values: pd.Series,
    name: str,
    asked: Outcome | None,
    missing: tuple[str, ...] | None,
    lines: NDArray[np.int64],
    tell: _Teller,
) -> tuple[Outcome, NDArray[np.float64], tuple[str, ...]]:
    """What the target is, its numbers and classes. Words for nothing are nothing where numbers are expected; among
    classes they may be one."""
    present = values if pd.api.types.is_numeric_dtype(values.dtype) else values.where(~values.isin(NOTHING), None)
    found, why = recognise_outcome(present if present.notna().any() else values, name, asked)
    outcome = asked or found
    kind = KINDS.of(outcome)
    notices: list[str] = []
    if kind.keeps_words:
        values, notices = without_nothing(values, name, missing)
        if asked in (None, found):
            found, why = recognise_outcome(values, name, asked)
    else:
        values = present
    tell(why if asked in (None, found) else f"{name}: taken for {outcome}, as asked.")
    tell.all(notices)
    y, classes, _ = kind.read(values, name)
    empty = values.isna().to_numpy()
    if empty.any():
        tell(f"{int(empty.sum()):,} rows without a value of `{name}`: left out.")
    odd = np.flatnonzero(np.isnan(y) & ~empty)
    if len(odd):
        verb, many = ("is no finite number", "it is") if len(odd) == 1 else ("are no finite numbers", "these rows are")
        tell(
            f"{len(odd):,} value{'s' * (len(odd) > 1)} of the target `{name}` {verb}, e.g. "
            f"{str(values.iloc[odd[0]])[:30]!r} in row {lines[odd[0]]}: {many} left out."
        )
    return outcome, y, classes


def _say_rows(tell: _Teller, train: NDArray[np.int64], held: NDArray[np.int64], test: NDArray[np.int64]) -> None:
    tell(f"{len(train):,} rows to train on, {len(held):,} for validation, {len(test):,} for the test.")
    if len(train) + len(held) + len(test) < _FEW:
        tell(
            "few rows: scores, intervals and the advice to ask a human are rough, and intervals may be wide (or "
            "infinite), for half the validation rows calibrate and half give guarantees."
        )
