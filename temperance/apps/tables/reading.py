"""Files of rows: CSV in any common dialect (plain or gzipped) and parquet, read a chunk at a time.

A CSV is cut into records before pandas parses it, so that predictions can be written next to the very text that was
read: an identifier ``007`` stays ``007``.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from temperance.apps.tables.dialect import Dialect, detect_dialect, detect_encoding
from temperance.apps.tables.formats import NOTHING
from temperance.core.errors import ArgumentError, DataError
from temperance.core.seeds import check_seed, derive_seed

CHUNK = 50_000
"""Rows read at once."""

_LONGEST = 5000  # lines in one quoted value


@dataclass(frozen=True)
class Chunk:
    """Some rows of a table, with the text they were read from where it is a CSV."""

    frame: pd.DataFrame
    records: list[str] | None = None


@dataclass(frozen=True)
class TableFile:
    """A table on disk or in memory: what its columns are and how it is read."""

    name: str
    columns: tuple[str, ...]
    dialect: Dialect | None = None
    path: Path | None = None
    frame: pd.DataFrame | None = field(default=None, repr=False)
    notices: tuple[str, ...] = ()

    @property
    def first_row(self) -> int:
        """What people call the first row: 2 of a CSV, whose first line is the header; 0 of a frame; 1 else."""
        return 0 if self.frame is not None else 1 if self.dialect is None else 2

    def chunks(
        self, rows: int = CHUNK, text: Sequence[str] = (), keep_records: bool = False, verbatim: Sequence[str] = ()
    ) -> Iterator[Chunk]:
        """The rows in order, at most ``rows`` at a time; the columns ``text`` as text, whatever they look like, and of
        the columns ``verbatim`` words such as NA and None too."""
        if self.frame is not None:
            for start in range(0, len(self.frame), rows):
                yield Chunk(self.frame.iloc[start : start + rows])
        elif self.dialect is None:
            yield from self._parquet_chunks(rows)
        else:
            yield from self._csv_chunks(self.dialect, rows, text, keep_records, set(verbatim))

    def _parquet_chunks(self, rows: int) -> Iterator[Chunk]:
        with _parquet_errors(self.name):
            for batch in _parquet(self.path).iter_batches(batch_size=rows):
                frame = batch.to_pandas()
                yield Chunk(frame.set_axis([str(name) for name in frame.columns], axis=1))

    def _csv_chunks(
        self, dialect: Dialect, rows: int, text: Sequence[str], keep: bool, verbatim: set[str]
    ) -> Iterator[Chunk]:
        assert self.path is not None
        chosen = set(text) | verbatim
        nothing = {k: [""] if name in verbatim else sorted(NOTHING) for k, name in enumerate(self.columns)}
        kinds: dict[Any, Any] = {k: str for k, name in enumerate(self.columns) if name in chosen}
        with open_text(self.path, dialect.encoding) as stream:
            first = 1
            for batch in _records(stream, rows, dialect.separator, self.name):
                records = batch[1:] if first == 1 else batch  # without the header
                if records:
                    frame = self._parse(records, dialect, kinds, max(2, first), nothing if verbatim else None)
                    yield Chunk(frame, records if keep else None)
                first += len(batch)

    def _parse(
        self, records: list[str], dialect: Dialect, kinds: dict[Any, Any], first: int, nothing: dict[int, Any] | None
    ) -> pd.DataFrame:
        raw = io.BytesIO("\n".join(records).encode("utf-8", "replace"))
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            try:
                frame = pd.read_csv(
                    raw,
                    header=None,
                    names=range(len(self.columns)),
                    index_col=False,
                    sep=dialect.separator,
                    decimal=dialect.decimal,
                    dtype=kinds,
                    skipinitialspace=True,
                    skip_blank_lines=False,
                    low_memory=False,
                    na_values=nothing,
                    keep_default_na=nothing is None,
                )
            except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
                found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
                where = f"row {first + int(found[2]) - 1}" if found else f"row {first} or a later one"
                got = f"got {found[3]}" if found else "got more"
                raise DataError(
                    f"{self.name}: each row must have at most the {len(self.columns)} values that the header names; "
                    f"{where} of the file {got}. (Another separator? Try `--separator`.)"
                ) from None
        return frame.set_axis(list(self.columns), axis=1)


def open_table(
    source: Any, *, encoding: str | None = None, separator: str | None = None, decimal: str | None = None
) -> TableFile:
    """A table from a path (``.csv``, ``.csv.gz``, ``.tsv``, ``.parquet``) or a pandas ``DataFrame``.

    >>> open_table(pd.DataFrame({"age": [31, 54], "price": [1.5, 2.0]})).columns
    ('age', 'price')
    """
    if isinstance(source, TableFile):
        return source
    if isinstance(source, pd.DataFrame):
        names = [str(name) for name in source.columns]
        _check_names(names, "the frame")
        return TableFile("the frame", tuple(names), frame=source.set_axis(names, axis=1))
    if not isinstance(source, str | Path):
        raise ArgumentError(f"`data` must be the path of a file or a DataFrame; got {type(source).__name__}.")
    path = Path(source)
    if not path.is_file():
        raise DataError(f"`data` must be a file; there is none at {str(path)!r}.")
    if path.stat().st_size == 0:
        raise DataError(f"{path.name} is empty.")
    if path.suffix.lower() in (".parquet", ".pq"):
        with _parquet_errors(path.name):
            names = [str(name) for name in _parquet(path).schema_arrow.names]
        _check_names(names, path.name)
        return TableFile(path.name, tuple(names), path=path)
    known, notices = (encoding, []) if encoding else detect_encoding(path)
    try:
        with open_text(path, known) as stream:
            sample = next(_records(stream, 200, separator or ",", path.name), [])
    except (UnicodeError, LookupError) as error:
        raise DataError(f"`encoding` {known!r} cannot read {path.name}: {error}.") from None
    if not sample:
        raise DataError(f"{path.name} is empty.")
    dialect, more = detect_dialect(sample, known, separator, decimal)
    header = next(csv.reader([sample[0]], delimiter=dialect.separator, skipinitialspace=True))
    names = [name.strip() or f"column {k + 1}" for k, name in enumerate(header)]
    _check_names(names, path.name)
    return TableFile(path.name, tuple(names), dialect, path, notices=(*notices, *more))


def read_rows(
    table: TableFile, max_rows: int, seed: int = 0, text: Sequence[str] = (), verbatim: Sequence[str] = ()
) -> tuple[pd.DataFrame, list[str]]:
    """All rows, or, where there are more than ``max_rows``, so many chosen at random in one pass, and notices.

    Each row draws a random number, and those with the smallest stay: a uniform sample whatever the number of rows, in
    the memory of twice ``max_rows``. The columns ``text`` are read as text; so is a column that is numbers in one
    place and text in another. The index says where each row stands in the table, from 0 on.
    """
    if not isinstance(max_rows, int) or max_rows < 1:
        raise ArgumentError(f"`max_rows` must be a positive whole number; got {max_rows!r}.")
    frame, total = _sample(table, max_rows, seed, text, verbatim)
    mixed = [
        name
        for name in table.columns
        if table.frame is None and frame[name].dtype == object and _is_mixed(frame[name].to_numpy())
    ]
    if mixed and table.dialect is not None:
        frame, total = _sample(table, max_rows, seed, [*mixed, *text], verbatim)
    if total == 0:
        raise DataError(f"{table.name} has a header and no rows.")
    notices = list(table.notices)
    if total > max_rows:
        notices.append(
            f"{table.name} has {total:,} rows: {max_rows:,} of them, chosen at random, are used (see --max-rows)."
        )
    return frame, notices


def _sample(
    table: TableFile, max_rows: int, seed: int, text: Sequence[str], verbatim: Sequence[str]
) -> tuple[pd.DataFrame, int]:
    rng = np.random.default_rng(derive_seed(check_seed(seed), "table-rows"))
    kept: list[pd.DataFrame] = []
    keys: list[np.ndarray] = []
    total = held = 0
    for chunk in table.chunks(text=text, verbatim=verbatim):
        kept.append(chunk.frame.set_axis(range(total, total + len(chunk.frame)), axis=0))
        keys.append(rng.random(len(chunk.frame)))
        total, held = total + len(chunk.frame), held + len(chunk.frame)
        if held > 2 * max_rows:
            kept, keys = _smallest(kept, keys, max_rows)
            held = max_rows
    if not kept:
        return pd.DataFrame(columns=list(table.columns)), 0
    if held > max_rows:
        kept, _ = _smallest(kept, keys, max_rows)
    return kept[0] if len(kept) == 1 else pd.concat(kept), total


def _smallest(
    kept: list[pd.DataFrame], keys: list[np.ndarray], count: int
) -> tuple[list[pd.DataFrame], list[np.ndarray]]:
    """The rows with the ``count`` smallest keys, in their order."""
    whole, key = pd.concat(kept), np.concatenate(keys)
    chosen = np.sort(np.argpartition(key, count - 1)[:count])
    return [whole.iloc[chosen]], [key[chosen]]


def _is_mixed(values: np.ndarray) -> bool:
    """Text beside numbers or truth values, as chunks of one column that were recognised differently give it."""
    text = np.fromiter((isinstance(v, str) for v in values), bool, len(values))
    return bool(text.any()) and not bool((text | pd.isna(values)).all())


def open_text(path: Path, encoding: str) -> IO[str]:
    """A text stream of a file, unpacked where it is gzipped; every kind of line ending becomes a newline."""
    if path.suffix.lower() == ".gz":
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding=encoding)
    return path.open(encoding=encoding)


def _records(stream: IO[str], rows: int, separator: str, name: str) -> Iterator[list[str]]:
    """Lists of about ``rows`` lines, put together again where a quoted value holds a line break, without blank ones."""
    mark = re.escape(separator)
    value = f'(?:"(?:[^"]|"")*"[^{mark}]*|[^"{mark}][^{mark}]*|)'
    whole = re.compile(f"{value}(?:{mark}\\s*{value})*")
    number = 0
    try:
        while lines := list(islice(stream, rows)):
            text = "".join(lines)
            simple = '"' not in text
            found = text.split("\n") if simple else list(_whole_records(lines, stream, whole, number, name))
            number += len(lines)
            kept = [record for record in found if record and not record.isspace()]
            if kept:
                yield kept
    except (EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"{name} is not a whole gzip file: {error}.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not all text in {error.encoding}: {error.reason}; try `--encoding`.") from None


def _whole_records(lines: list[str], more: IO[str], whole: re.Pattern[str], before: int, name: str) -> Iterator[str]:
    """The records of ``lines``; if the last one is open, it goes on in ``more``."""
    parts: list[str] = []
    began = 0
    for number, ended in enumerate(chain(lines, more), before + 1):
        line = ended.rstrip("\n")
        odd = '"' in line and line.count('"') % 2 == 1
        if parts:
            parts.append(line)
            if odd:
                yield "\n".join(parts)
                parts = []
            elif len(parts) > _LONGEST:
                break
        elif odd and not whole.fullmatch(line):
            parts, began = [line], number
        else:
            yield line
        if number >= before + len(lines) and not parts:
            return
    if parts:
        raise DataError(f"{name}: the quotation mark opened in line {began} is never closed.")


def _check_names(names: list[str], where: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        listed = ", ".join(f"`{name}`" for name in twice[:5])
        raise DataError(f"{where}: column names must differ; {listed} occur{'s' if len(twice) == 1 else ''} twice.")


class _parquet_errors:
    """Turns pyarrow's errors into ours."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and type(error).__module__.startswith("pyarrow"):
            raise DataError(f"{self.name} cannot be read as parquet: {str(error).splitlines()[0]}") from None


def _parquet(path: Path | None) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ArgumentError('parquet files need pyarrow: pip install "temperance[parquet]".') from None
    return pyarrow.parquet.ParquetFile(path)
