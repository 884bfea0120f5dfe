"""The columns that ``temperance predict`` adds to a table, and writing them beside it, a chunk at a time."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from temperance.apps.tables.claim import Claim
from temperance.apps.tables.dialect import Dialect
from temperance.apps.tables.encode import Encoded
from temperance.apps.tables.kinds import joined, kind_of
from temperance.apps.tables.reading import CHUNK, Chunk, TableFile
from temperance.apps.tables.run import TableRun
from temperance.apps.tables.schema import Schema
from temperance.core import files
from temperance.core.errors import ArgumentError, DataError, StoreError

_OPEN_ROWS = 512  # rows with unknown values at once: each stands for many
_OUTPUTS = 2**24  # draws × rows × outputs of a chunk, which are then kept between statistics
_NUMBER = re.compile(r"[+-](\d+([.,]\d*)*|[.,]\d+)([eE][+-]?\d+)?|[+-](inf|nan)")
_ENDINGS = (".csv", ".csv.gz", ".tsv", ".parquet")
STRANGE = "unlike the training rows"


def new_names(schema: Schema) -> list[str]:
    """The names of the columns that are added."""
    return [*kind_of(schema).names(schema), "epistemic_share", "ask_a_human", "flags"]


def check_new_names(schema: Schema, columns: Sequence[str]) -> None:
    """Raise where the table has such a column already."""
    twice = [name for name in new_names(schema) if name in set(columns)]
    if twice:
        listed = ", ".join(f"`{name}`" for name in twice[:5])
        raise ArgumentError(f"the table must not have columns named like the predictions; got {listed}. Rename them.")


def prediction_columns(run: TableRun, frame: pd.DataFrame) -> dict[str, NDArray[Any]]:
    """The added columns for the rows of ``frame``."""
    encoded = run.encode(frame)
    total, unsure = len(encoded.x), encoded.open_rows
    strange = run.state.strangeness.flags(encoded.x)
    if not len(unsure):
        made = _columns_of(run, encoded)
    else:
        plain = np.setdiff1d(np.arange(total), unsure)
        parts = [(plain, Encoded(encoded.x[plain]))] if len(plain) else []
        for start in range(0, len(unsure), _OPEN_ROWS):
            rows = unsure[start : start + _OPEN_ROWS]
            parts.append((rows, encoded.some(rows)))
        made = {}
        for rows, part in parts:
            for name, values in _columns_of(run, part).items():
                made.setdefault(name, np.empty(total, dtype=values.dtype))[rows] = values
    made["epistemic_share"][strange] = 1.0  # whatever the model says of them is extrapolation
    ask = made["ask_a_human"] | strange
    ask[unsure] = True
    made["ask_a_human"] = np.where(ask, "yes", "no").astype(object)
    made["flags"] = _flag_texts(run, encoded, strange)
    return made


def _columns_of(run: TableRun, encoded: Encoded) -> dict[str, NDArray[Any]]:
    guard, predictive = run.guard_at(encoded), run.predictive_of(encoded)
    made, known, total = kind_of(run.schema).columns(run.schema, guard, predictive, bool(encoded.unknown))
    made["epistemic_share"] = epistemic_share(known, total)
    made["ask_a_human"] = guard.asks(predictive)
    return made


def epistemic_share(epistemic: NDArray[np.float64], total: NDArray[np.float64]) -> NDArray[np.float64]:
    """The part of the uncertainty that more data would remove: 0 where there is none at all, 1 where it has no bound.

    >>> epistemic_share(np.array([1.0, 0.0, 5.0]), np.array([4.0, 0.0, np.inf])).tolist()
    [0.25, 0.0, 1.0]
    """
    finite = np.isfinite(total) & (total > 0)
    share = np.divide(epistemic, total, out=np.zeros_like(total), where=finite)
    return np.where(np.isfinite(total), np.clip(share, 0.0, 1.0), 1.0)


def _flag_texts(run: TableRun, encoded: Encoded, strange: NDArray[np.bool_]) -> NDArray[Any]:
    words = [flag.words for flag in encoded.flags]
    made = np.full(len(strange), "", dtype=object)
    mask = np.zeros((len(strange), len(words) + 1), dtype=bool)
    for k, flag in enumerate(encoded.flags):
        mask[flag.rows, k] = True
    mask[:, -1] = strange
    some = np.flatnonzero(mask.any(1))
    words.append(f"{STRANGE} (p <= {run.state.strangeness.false_alarms:.2g})")
    if len(some):
        made[some] = joined(mask[some], words, "; ")
    return made


def check_output(out: str | Path) -> Path:
    """A file that predictions may be written to, whether it exists or not."""
    path = Path(out)
    if path.is_dir():
        raise ArgumentError(
            f"`out` must be a file, such as {str(path / 'predictions.csv')!r}; {str(path)!r} is a folder."
        )
    if not path.name.lower().endswith(_ENDINGS):
        raise ArgumentError(f"`out` must end in {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}; got {path.name!r}.")
    owner = Claim.owns(path)
    if owner is not None:
        raise StoreError(
            f"`out` {str(path)!r} is a file of the run in {str(owner)!r}, which would be damaged: choose another name."
        )
    return path


def predict_file(
    run: TableRun,
    table: TableFile,
    out: str | Path,
    *,
    overwrite: bool = False,
    advance: Callable[[int], None] | None = None,
) -> int:
    """Write the rows of ``table`` with predictions beside them to ``out`` (``.csv``, ``.csv.gz``, ``.tsv`` or
    ``.parquet``), in the memory of one chunk; returns how many rows asked for a human.

    What was read from a CSV is written as it was, letter for letter. In the columns that are added, text that a
    spreadsheet would take for a formula (a class called ``=1+1``, say) gets an apostrophe before it, see
    :func:`escaped`: a label that came from somebody else's table is not to run in the reader's. The file appears when
    it is whole.
    """
    path = check_output(out)
    if path.exists() and not overwrite:
        raise StoreError(f"`out` {str(path)!r} exists; choose another name, or --overwrite it.")
    if not path.parent.is_dir():
        raise StoreError(f"`out` {str(path)!r} cannot be written: there is no folder {str(path.parent)!r}.")
    lacking = [c.name for c in run.schema.columns if c.name not in table.columns]
    if lacking:
        raise DataError(f"{table.name} lacks columns of the training table: {', '.join(f'`{n}`' for n in lacking)}.")
    check_new_names(run.schema, table.columns)
    rows = max(1000, min(CHUNK, _OUTPUTS // (30 * run.schema.outputs)))
    if run.state.folds:  # each new row is compared with each row that promises
        rows = max(1000, min(rows, _OUTPUTS // len(run.state.guard_y)))
    asked = total = 0
    try:
        with files.replacing(path) as draft:
            with _writer(draft, path, table, run) as write:
                for chunk in table.chunks(rows, text=run.schema.kept_as_text(table.columns), keep_records=True):
                    made = prediction_columns(run, chunk.frame)
                    asked += int((made["ask_a_human"] == "yes").sum())
                    total += len(chunk.frame)
                    write(chunk, made)
                    if advance is not None:
                        advance(total)
            if not total:
                raise DataError(f"{table.name} has a header and no rows.")
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{str(path)!r} could not be written: {error}.") from error
    return asked


class _writer:
    """Opens the output and gives a function that appends a chunk."""

    def __init__(self, temporary: Path, path: Path, table: TableFile, run: TableRun) -> None:
        self.temporary, self.table, self.run = temporary, table, run
        ending = path.suffix.lower()
        self.parquet, self.packed, self.tabs = (ending == end for end in (".parquet", ".gz", ".tsv"))
        self.stream: IO[str] | None = None
        self.sink: Any = None

    def __enter__(self) -> Callable[[Chunk, dict[str, NDArray[Any]]], None]:
        if self.parquet:
            return self._append_parquet
        raw = gzip.open(self.temporary, "wb", compresslevel=4) if self.packed else self.temporary.open("wb")
        self.stream = io.TextIOWrapper(raw, encoding="utf-8", newline="")
        self.dialect = self.table.dialect or Dialect()
        self.tabs = self.tabs and self.dialect.separator != "\t"  # what was read cannot be written as it was
        if self.tabs:
            self.dialect = replace(self.dialect, separator="\t")
        names = [*self.table.columns, *new_names(self.run.schema)]
        self.stream.write(self.dialect.separator.join(quoted(name, self.dialect.separator) for name in names) + "\n")
        return self._append_csv

    def _append_csv(self, chunk: Chunk, made: dict[str, NDArray[Any]]) -> None:
        assert self.stream is not None
        mark = self.dialect.separator
        records = None if self.tabs else chunk.records
        if records is None:
            text = chunk.frame.to_csv(
                index=False, header=False, sep=mark, decimal=self.dialect.decimal, lineterminator="\n"
            )
            records = text.split("\n")[:-1] if '"' not in text else None
        elif len(self.table.columns) > 1:
            records = _filled(records, np.flatnonzero(chunk.frame.iloc[:, -1].isna()), len(self.table.columns), mark)
        if records is None:  # quoted line breaks may be inside: let pandas write all of it
            ours = {name: _escaped_all(values) if values.dtype == object else values for name, values in made.items()}
            both = pd.concat([chunk.frame.reset_index(drop=True), pd.DataFrame(ours)], axis=1)
            both.to_csv(
                self.stream, index=False, header=False, sep=mark, decimal=self.dialect.decimal, lineterminator="\n"
            )
            return
        digits = digits_of(made)
        columns = [_formatted(name, values, self.dialect, digits) for name, values in made.items()]
        self.stream.write("\n".join(map(mark.join, zip(records, *columns, strict=True))) + "\n")

    def _append_parquet(self, chunk: Chunk, made: dict[str, NDArray[Any]]) -> None:
        import pyarrow
        import pyarrow.parquet

        frame = chunk.frame.reset_index(drop=True)
        if self.table.dialect is not None:  # a column may be whole numbers in one chunk and not in the next
            frame = frame.astype({name: "float64" for name in frame.columns if frame[name].dtype.kind in "iuf"})
        both = pd.concat([frame, pd.DataFrame(made)], axis=1)
        rows = pyarrow.Table.from_pandas(
            both, schema=None if self.sink is None else self.sink.schema, preserve_index=False
        )
        if self.sink is None:
            self.sink = pyarrow.parquet.ParquetWriter(self.temporary, rows.schema)
        self.sink.write_table(rows)

    def __exit__(self, *error: Any) -> None:
        for opened in (self.stream, self.sink):
            if opened is not None:
                opened.close()


def _filled(records: list[str], rows: NDArray[np.int64], width: int, mark: str) -> list[str]:
    """Records with fewer values than the header, among ``rows``, filled up: what is added stands under its name."""
    made = list(records)
    for k in rows.tolist():
        if records[k].count(mark) < width - 1 or '"' in records[k]:
            made[k] += mark * (width - len(next(csv.reader([records[k]], delimiter=mark))))
    return made


def _escaped_all(values: NDArray[Any]) -> NDArray[Any]:
    return np.array([escaped(str(value)) for value in values], dtype=object)


def escaped(text: str) -> str:
    """``text`` with an apostrophe before it where a spreadsheet would take it for a formula: where it begins with
    ``=``, ``@``, a tab or a carriage return, or with ``+`` or ``-`` and is no number.

    >>> escaped("=HYPERLINK(0)"), escaped("-1.5"), escaped("-cmd"), escaped("no")
    ("'=HYPERLINK(0)", '-1.5', "'-cmd", 'no')
    """
    if text.startswith(("=", "@", "\t", "\r")):
        return "'" + text
    return "'" + text if text.startswith(("+", "-")) and _NUMBER.fullmatch(text) is None else text


def quoted(text: str, mark: str) -> str:
    """A value as it stands in a CSV."""
    special = any(c in text for c in (mark, '"', "\n", "\r"))
    return '"' + text.replace('"', '""') + '"' if special else text


def digits_of(made: dict[str, NDArray[Any]]) -> int:
    """Significant digits with which predictions show a ten-thousandth of their spread, 8 at least: a number near 1.7e9
    that is known to ±3 needs more of them than one near 100.

    >>> digits_of({"prediction_mean": np.array([1.7e9]), "prediction_std": np.array([3.0])})
    14
    """
    if "prediction_std" not in made:
        return 8
    mean, std = np.abs(made["prediction_mean"]), made["prediction_std"]
    known = np.isfinite(mean) & np.isfinite(std) & (std > 0) & (mean > 0)
    if not known.any():
        return 8
    return int(np.clip(np.ceil(np.log10(mean[known] / std[known])).max() + 5, 8, 17))


def _formatted(name: str, values: NDArray[Any], dialect: Dialect, digits: int) -> list[str]:
    if values.dtype == object:
        codes, found = pd.factorize(values)
        texts = np.array([quoted(escaped(str(v)), dialect.separator) for v in found], dtype=object)
        return texts[codes].tolist()
    form = "%.4g" if name == "epistemic_share" else "%.6g" if name.startswith("probability_") else f"%.{digits}g"
    made = list(map(form.__mod__, values.tolist()))
    return [text.replace(".", ",") for text in made] if dialect.decimal == "," else made
