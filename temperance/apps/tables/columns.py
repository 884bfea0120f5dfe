"""Columns of a table: numbers, categories and dates; what was learned of each, and how each is recognised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from temperance.apps.tables.formats import format_of, written_number, written_numbers
from temperance.apps.tables.robust import LARGEST, input_limits, missing_codes
from temperance.core.encoding import Value
from temperance.core.errors import DataError
from temperance.core.fields import check_fields

IMPUTATIONS = 32
"""How many values stand for one that is unknown: equally many of each part of the training distribution."""

_NUMBER_SHARE = 0.9  # a column of text is one of numbers if at least so much of it can be read as numbers
_DATE_SHARE = 0.95
_LEVELS = 50  # most levels that a category keeps; the rest are rare
_COVERED = 0.5  # a category whose levels cover less of the rows is text or an identifier
_FORMATS = (
    "ISO8601", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%Y/%m/%d", "%Y/%m/%d %H:%M:%S", "%m/%d/%Y",
    "%m/%d/%Y %H:%M", "%d/%m/%Y", "%d/%m/%Y %H:%M", "%d-%m-%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
)  # fmt: skip
_DATE_PARTS = ("day", "year cos", "year sin", "week cos", "week sin", "hour cos", "hour sin")


@dataclass(frozen=True, eq=False)
class NumberColumn(Value):
    """A column of numbers: standardised; a missing one becomes the median, and where enough were missing in training a
    second feature says so. ``quantiles`` stand for an unknown value where missing ones could not be learned. Numbers
    in ``codes`` (−9999) mean missing; what lies outside ``cut`` counts as its nearer end."""

    name: str
    mean: float
    scale: float
    median: float
    low: float
    high: float
    missing: bool
    quantiles: tuple[float, ...]
    codes: tuple[float, ...] = ()
    cut: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def features(self) -> tuple[str, ...]:
        """What the network sees."""
        return (self.name, f"{self.name} was missing") if self.missing else (self.name,)


@dataclass(frozen=True, eq=False)
class CategoryColumn(Value):
    """A column of categories: one feature for each frequent level, one for the rare ones together, and one for missing
    ones where enough were missing in training. ``counts`` are the training rows of each feature."""

    name: str
    levels: tuple[str, ...]
    rare: tuple[str, ...]
    missing: bool
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def features(self) -> tuple[str, ...]:
        """What the network sees."""
        own = tuple(f"{self.name} = {level}" for level in self.levels)
        return (
            own
            + ((f"{self.name} is rare",) if self.rare else ())
            + ((f"{self.name} was missing",) if self.missing else ())
        )


@dataclass(frozen=True, eq=False)
class DateColumn(Value):
    """A column of dates: the day as a number, and where in the year, the week and the day it lies, as points of a
    circle; parts that do not vary are left out."""

    name: str
    format: str
    parts: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    median: float
    low: float
    high: float
    missing: bool
    quantiles: tuple[float, ...]

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def features(self) -> tuple[str, ...]:
        """What the network sees."""
        own = tuple(f"{self.name}: {part}" for part in self.parts)
        return (*own, f"{self.name} was missing") if self.missing else own


Column = NumberColumn | CategoryColumn | DateColumn


def numbers_of(values: pd.Series) -> NDArray[np.float64]:
    """A column as float64: NaN for what is missing, infinite or not a number."""
    if pd.api.types.is_timedelta64_dtype(values.dtype):
        made = values.dt.total_seconds().to_numpy(dtype=np.float64, na_value=np.nan)
    elif pd.api.types.is_numeric_dtype(values.dtype):
        made = values.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        text = values.astype(object) if isinstance(values.dtype, pd.CategoricalDtype) else values
        made = written_numbers(text)
    return made if np.isfinite(made).all() else np.where(np.isfinite(made), made, np.nan)


def texts_of(values: pd.Series) -> tuple[NDArray[np.int64], list[str]]:
    """A column as codes and different texts; −1 is missing.

    Spaces at the ends do not count, whole numbers are written without a point, and truth values as True and False,
    however a file writes them.

    >>> texts_of(pd.Series(["b", " a ", None, "b"]))
    (array([ 0,  1, -1,  0]), ['b', 'a'])
    """
    codes, found = pd.factorize(values)
    texts = [_as_text(value) for value in found.tolist()]
    unique = list(dict.fromkeys(text for text in texts if text))
    place = {text: k for k, text in enumerate(unique)}
    renumber = np.array([place.get(text, -1) for text in texts] + [-1], dtype=np.int64)
    return renumber[codes], unique


def _as_text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value).strip()
    return text.capitalize() if text.lower() in ("true", "false") else text


def dates_of(values: pd.Series, form: str) -> NDArray[np.float64]:
    """A column of dates as days since 1970, with NaN for what is missing or no date."""
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        made = values
    else:
        made = pd.to_datetime(values.astype(object), format=form, errors="coerce", utc=True)
    if getattr(made.dt, "tz", None) is not None:
        made = made.dt.tz_convert("UTC").dt.tz_localize(None)
    days = made.to_numpy(dtype="datetime64[us]").astype(np.int64) / 86_400e6
    return np.where(made.isna().to_numpy(), np.nan, days)


def date_parts(days: NDArray[np.float64], parts: tuple[str, ...] = _DATE_PARTS) -> NDArray[np.float64]:
    """Days since 1970 as rows × parts."""
    angles = {"year": days / 365.2425, "week": days / 7.0, "hour": days}
    made = []
    for part in parts:
        period, _, wave = part.partition(" ")
        made.append(days if not wave else (np.cos if wave == "cos" else np.sin)(2 * np.pi * angles[period]))
    return np.stack(made, 1) if made else np.zeros((len(days), 0))


def is_truth(values: pd.Series) -> bool:
    """Whether a column holds truth values, missing ones aside."""
    if pd.api.types.is_bool_dtype(values.dtype):
        return True
    return values.dtype == object and all(isinstance(v, bool | np.bool_) for v in values.dropna().head(1000))


def recognise(values: pd.Series, name: str) -> tuple[str, str, list[str]]:
    """What a column is: ``"number"``, ``"category"``, ``"date"`` or ``"empty"``; the format of a date; and notices.

    >>> recognise(pd.Series(["3", "4", "5", "6", "7", "8", "9", "10", "11", "n/a?"]), "age")
    ('number', '', ["1 of 10 values of `age` is not a number, e.g. 'n/a?': treated as missing."])
    """
    present = values.dropna()
    if not len(present):
        return "empty", "", []
    if is_truth(values) or isinstance(values.dtype, pd.CategoricalDtype):
        return "category", "", []
    if pd.api.types.is_numeric_dtype(values.dtype) or pd.api.types.is_timedelta64_dtype(values.dtype):
        infinite = int(np.isinf(present.to_numpy(dtype=np.float64)).sum()) if values.dtype.kind == "f" else 0
        words = f"{infinite:,} infinite value{'s' * (infinite > 1)} of `{name}`: treated as missing."
        return "number", "", [words] if infinite else []
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        return "date", "ISO8601", []
    text = present.astype(str)
    numeric = written_numbers(text)
    bad = int(np.isnan(numeric).sum())
    if bad < len(text):
        example, alike = format_of(text)
        if not alike and 1 - bad / len(text) >= _NUMBER_SHARE:
            words = (
                f"`{name}` holds numbers in several units, e.g. {example!r}: treated as categories. Write plain "
                "numbers of one unit."
            )
            return "category", "", [words]
        if bad == 0 or 1 - bad / len(text) >= _NUMBER_SHARE:
            written = [f"`{name}` is written like {example!r}: read as the number {written_number(example):.10g}."]
            if not bad:
                return "number", "", written if example else []
            example = str(text[np.isnan(numeric)].iloc[0])
            verb = "is not a number" if bad == 1 else "are not numbers"
            words = f"{bad:,} of {len(text):,} values of `{name}` {verb}, e.g. {example[:30]!r}: treated as missing."
            return "number", "", [*(written if format_of(text)[0] else []), words]
        good = len(text) - bad
        if good / len(text) >= 0.1:
            example = str(text[np.isnan(numeric)].iloc[0])
            words = (
                f"`{name}` mixes numbers ({good:,}) and text ({bad:,}, e.g. {example[:30]!r}): treated as categories, "
                f"for less than {_NUMBER_SHARE:.0%} are numbers."
            )
            return "category", "", [words]
    form = _date_format(text)
    if form:
        words = f"`{name}` holds dates, read as {form.replace('%', '')}."
        other = form.replace("%m/%d", "%d/%m")
        if (
            other != form
            and pd.to_datetime(text, format=other, errors="coerce", utc=True).notna().mean() >= _DATE_SHARE
        ):
            words = (
                f"`{name}` holds dates that can be read as month/day or as day/month, e.g. {text.iloc[0]!r}: read as "
                f"{form.replace('%', '')}. If the day comes first, write them as 2021-12-31."
            )
        return "date", form, [words]
    return "category", "", []


def _date_format(text: pd.Series) -> str:
    few = text.iloc[:: max(1, len(text) // 100)]
    if not few.str.contains(r"\d").mean() >= _DATE_SHARE or few.str.len().median() < 6:
        return ""
    for form in _FORMATS:
        if pd.to_datetime(few, format=form, errors="coerce", utc=True).notna().mean() < _DATE_SHARE:
            continue
        if pd.to_datetime(text, format=form, errors="coerce", utc=True).notna().mean() >= _DATE_SHARE:
            return form
    return ""


def enough(rows: int) -> int:
    """How often a level, or a missing value, must occur in training for it to be learned."""
    return 2 if rows < 500 else 5


def learn_number(name: str, values: NDArray[np.float64]) -> NumberColumn | None:
    """What a column of numbers needs; ``None`` where nothing varies. No few rows decide its scale: a code for missing
    values is one of these, and a number far outside is cut (:mod:`temperance.apps.tables.robust`)."""
    known = values[~np.isnan(values)]
    codes = missing_codes(known, enough(len(values))) if len(known) else ()
    known = known[~np.isin(known, codes)]
    absent = len(values) - len(known)
    marked = absent >= enough(len(values))
    if not len(known) or (known.min() == known.max() and not marked):
        return None
    cut = input_limits(known)
    if cut is not None:
        known = np.clip(known, *cut)
    if max(-known.min(), known.max()) > LARGEST:
        raise DataError(
            f"`{name}` must hold numbers up to {LARGEST:g} in size, whose squares are still numbers; got "
            f"{known[np.abs(known).argmax()]:.4g}. Divide the column, or leave it out: --drop {name!r}."
        )
    centre, spread = float(known.mean()), float(known.std())
    return NumberColumn(
        name, centre, spread if spread > 0 else 1.0, float(np.median(known)), float(known.min()), float(known.max()),
        marked, _quantiles(known), codes, cut,
    )  # fmt: skip


def number_remarks(column: NumberColumn, values: NDArray[np.float64]) -> list[str]:
    """What there is to say of the numbers that a column was learned from."""
    made = []
    for code in column.codes:
        count = int((values == code).sum())
        made.append(
            f"`{column.name}` is {code:g} in {count:,} rows and otherwise between {column.low:g} and {column.high:g}: "
            f"{code:g} is taken for missing, of which the network is told."
        )
    if column.cut is not None:
        known = values[~np.isnan(values) & ~np.isin(values, column.codes)]
        far = known[(known < column.cut[0]) | (known > column.cut[1])]
        inside = known[(known >= column.cut[0]) & (known <= column.cut[1])]
        made.append(
            f"`{column.name}` has {len(far):,} value{'s' * (len(far) > 1)} far from the others, e.g. {far[0]:g} (they "
            f"lie between {inside.min():g} and {inside.max():g}): cut at {column.cut[int(far[0] > 0)]:.4g}."
        )
    return made


def learn_date(name: str, days: NDArray[np.float64], form: str) -> DateColumn | None:
    """What a column of dates needs; ``None`` where nothing varies."""
    known = days[~np.isnan(days)]
    marked = len(days) - len(known) >= enough(len(days))
    if not len(known) or (known.min() == known.max() and not marked):
        return None
    values = date_parts(known)
    spread = values.std(0)
    keep = [k for k in range(len(_DATE_PARTS)) if spread[k] > 1e-6 or k == 0]
    spread = np.where(spread > 0, spread, 1.0)
    return DateColumn(
        name, form, tuple(_DATE_PARTS[k] for k in keep), tuple(values.mean(0)[keep].tolist()),
        tuple(spread[keep].tolist()), float(np.median(known)), float(known.min()), float(known.max()), marked,
        _quantiles(known),
    )  # fmt: skip


def learn_category(name: str, codes: NDArray[np.int64], texts: list[str]) -> CategoryColumn | str:
    """What a column of categories needs, or the reason why it cannot be used."""
    rows, least = len(codes), enough(len(codes))
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    absent = int((codes < 0).sum())
    order = np.argsort(-counts, kind="stable")
    kept = [int(k) for k in order[:_LEVELS] if counts[k] >= least]
    covered = sum(int(counts[k]) for k in kept)
    there = int((counts > 0).sum())
    if there <= 1 and absent < least:
        return "has one value only"
    if covered < _COVERED * max(1, rows - absent) and there > 2:
        return f"has {there:,} different values in {rows:,} rows: text or an identifier"
    others = [k for k in range(len(texts)) if counts[k] > 0 and k not in set(kept)]
    pooled = rows - absent - covered
    parts = [int(counts[k]) for k in kept] + ([pooled] if others else [])
    marked = absent >= least
    return CategoryColumn(
        name, tuple(texts[k] for k in kept), tuple(texts[k] for k in others), marked,
        tuple(parts + ([absent] if marked else [])),
    )  # fmt: skip


def _quantiles(known: NDArray[np.float64]) -> tuple[float, ...]:
    levels = (np.arange(IMPUTATIONS) + 0.5) / IMPUTATIONS
    return tuple(np.quantile(known, levels).tolist())
