"""What kind of text a CSV is: its encoding, its separator, its decimal mark."""

from __future__ import annotations

import codecs
import csv
import gzip
import re
from dataclasses import dataclass
from pathlib import Path

from temperance.core.errors import ArgumentError, DataError

_BYTES = 2**20
_SEPARATORS = (",", ";", "\t", "|")
_WORDS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass(frozen=True)
class Dialect:
    """How a CSV is written.

    >>> Dialect(separator=";", decimal=",").encoding
    'utf-8'
    """

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"


def detect_encoding(path: Path) -> tuple[str, list[str]]:
    """UTF-8 if every byte fits; UTF-16 where the file begins with its mark; else Windows-1252 or Latin-1."""
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            start = stream.read(_BYTES)
            if not start:
                raise DataError(f"{path.name} is empty.")
            for mark, name in _BOMS:
                if start.startswith(mark):
                    return name, [] if name == "utf-8-sig" else [f"{path.name} is read as {name.upper()}."]
            candidates = {name: codecs.getincrementaldecoder(name)() for name in ("utf-8", "cp1252")}
            block = start
            while block:
                if b"\0" in block:
                    raise DataError(
                        f"{path.name} holds zero bytes: it is not a CSV (or UTF-16 without its mark; try --encoding)."
                    )
                for name, decoder in list(candidates.items()):
                    try:
                        decoder.decode(block)
                    except UnicodeDecodeError:
                        del candidates[name]
                block = stream.read(_BYTES)
            if "utf-8" in candidates:
                try:
                    candidates["utf-8"].decode(b"", final=True)
                    return "utf-8", []
                except UnicodeDecodeError:
                    pass
    except (gzip.BadGzipFile, EOFError) as error:
        raise DataError(f"{path.name} is not a whole gzip file: {error}.") from None
    found = "cp1252" if "cp1252" in candidates else "latin-1"
    return found, [f"{path.name} is not UTF-8: it is read as {found} (--encoding changes it)."]


def detect_dialect(
    sample: list[str], encoding: str, separator: str | None = None, decimal: str | None = None
) -> tuple[Dialect, list[str]]:
    """The separator that cuts the first records into equally many pieces, the most; and the decimal mark.

    >>> detect_dialect(["size;price", "3,5;10,25", "4,5;11,75"], "utf-8")[0]
    Dialect(separator=';', decimal=',', encoding='utf-8')
    """
    notices = []
    if separator is not None:
        separator = {"\\t": "\t", "tab": "\t"}.get(separator, separator)
        if len(separator) != 1:
            raise ArgumentError(f"`separator` must be one character (or 'tab'); got {separator!r}.")
    else:
        separator = max(_SEPARATORS, key=lambda mark: _agreement(sample, mark))
        if _agreement(sample, separator) == (0.0, 0):
            separator = ","
        if separator != ",":
            notices.append(f"values are separated by {_WORDS[separator]}.")
    if decimal is None:
        decimal = "."
        if separator != ",":
            values = [v.strip() for row in _cut(sample[1:], separator) for v in row]
            commas = sum(bool(re.fullmatch(r"[-+]?\d+,\d+", v)) for v in values)
            points = sum(bool(re.fullmatch(r"[-+]?\d+\.\d+", v)) for v in values)
            if commas > points:
                decimal = ","
                notices.append("numbers such as 3,14 are read with a decimal comma (--decimal changes it).")
    elif decimal not in (".", ","):
        raise ArgumentError(f"`decimal` must be '.' or ','; got {decimal!r}.")
    if decimal == separator:
        raise ArgumentError("`decimal` and `separator` must differ; both are a comma.")
    return Dialect(separator, decimal, encoding), notices


def _cut(records: list[str], separator: str) -> list[list[str]]:
    lines = [record.replace("\n", " ") for record in records]
    try:
        return list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
    except csv.Error:
        return []


def _agreement(sample: list[str], separator: str) -> tuple[float, int]:
    """(share of records with as many values as the header, values beyond the first): (0, 0) where nothing is cut."""
    widths = [len(row) for row in _cut(sample[:50], separator)]
    if not widths or widths[0] < 2:
        return 0.0, 0
    return sum(w == widths[0] for w in widths) / len(widths), widths[0]
