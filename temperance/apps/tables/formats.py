"""Numbers as people write them for people: ``12.3%``, ``$14,488``, ``14'488.00 CHF``; and words for nothing."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

NOTHING = frozenset(
    (
        "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
        "NULL", "NaN", "None", "n/a", "nan", "null",
    )
)  # fmt: skip
"""What a cell of a CSV may hold where there is nothing."""

_MONEY = r"(?:[$€£¥₹]|USD|EUR|GBP|CHF)"
_WRITTEN = re.compile(
    rf"(?P<first>[-+−]?)\s*(?P<before>{_MONEY}?)\s*(?P<sign>[-+−]?)"
    r"(?P<body>\d{1,3}(?P<mark>[,'’\u00a0\u202f])\d{3}(?:(?P=mark)\d{3})*(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+)"
    rf"\s*(?P<after>{_MONEY}?)\s*(?P<percent>%?)"
)
_EXAMPLES = 1000


def written_number(text: str) -> float:
    """The number that a text shows; NaN where it shows none. Percent stay percent: 12.3% is 12.3.

    >>> written_number("$14,488"), written_number("-12.3 %"), written_number("1.234,56"), written_number("3,14")
    (14488.0, -12.3, nan, nan)
    """
    found = _WRITTEN.fullmatch(text.strip())
    if found is None:
        return float("nan")
    value = float(re.sub(r"[^\d.]", "", found["body"]))
    return -value if (found["first"] + found["sign"]) in ("-", "−") else value


def written_numbers(values: pd.Series) -> NDArray[np.float64]:
    """The numbers of a column of text, however they are written; NaN for what is none."""
    made = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan).copy()
    holes = np.flatnonzero(np.isnan(made) & values.notna().to_numpy())
    if len(holes):
        codes, texts = pd.factorize(values.iloc[holes])
        made[holes] = np.array([written_number(str(text)) for text in texts], dtype=np.float64)[codes]
    return made


def format_of(texts: pd.Series) -> tuple[str, bool]:
    """An example of how the numbers of a column are adorned ("" where they are not); and whether all mean the same: a
    percentage beside a plain number, or dollars beside euros, do not."""
    plain = pd.to_numeric(texts, errors="coerce").isna().to_numpy()
    adorned = [found for text in texts[plain].head(_EXAMPLES) if (found := _WRITTEN.fullmatch(str(text).strip()))]
    if not adorned:
        return "", True
    percent, money = (
        {bool(found["percent"]) for found in adorned},
        {found["before"] or found["after"] for found in adorned},
    )
    alike = len(percent) == 1 and len(money - {""}) <= 1 and (percent != {True} or bool(plain.all()))
    return adorned[0].string, alike


def looks_like_numbers(texts: pd.Series) -> bool:
    """Whether texts are made of digits and marks, without a letter, and differ: numbers in a form that is not known."""
    few = texts.drop_duplicates().head(_EXAMPLES).astype(str).str.strip()
    return len(few) > 10 and bool(few.str.fullmatch(r"[^A-Za-z]*\d[^A-Za-z]*").mean() > 0.9)


def settled(values: pd.Series, decimal: str = ".") -> pd.Series:
    """A column that was read letter for letter: numbers where all are plain numbers (but codes such as 01 stay as they
    are written), truth values where all are, and text. Words for nothing stay in text alone."""
    texts = [value.strip() if isinstance(value, str) else None for value in values.tolist()]
    if decimal == ",":
        mark = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
        texts = [text.replace(",", ".") if text and mark.fullmatch(text) else text for text in texts]
    present = pd.Series([text for text in texts if text and text not in NOTHING], dtype=object)
    plain = [text if text and text not in NOTHING else None for text in texts]
    if not len(present):
        return pd.Series(plain, index=values.index, dtype=object)
    if bool(present.str.lower().isin(("true", "false")).all()):
        truths = [None if text is None else text.lower() == "true" for text in plain]
        return pd.Series(truths, index=values.index, dtype=object)
    if bool(pd.to_numeric(present, errors="coerce").notna().all()):
        made = pd.Series(plain, index=values.index, dtype=object)
        coded = bool(present.str.fullmatch(r"[-+]?0\d+").any())
        return made if coded else pd.to_numeric(made)
    return pd.Series([text or None for text in texts], index=values.index, dtype=object)


def without_nothing(
    values: pd.Series, name: str, missing: tuple[str, ...] | None, share: float = 0.05
) -> tuple[pd.Series, list[str]]:
    """Classes in which words for nothing (``None``, ``NA``) are classes where they are a ``share`` of the rows, or
    where ``missing`` does not list them; and what there is to say of that."""
    if not any(isinstance(value, str) for value in values.head(_EXAMPLES)):
        return values, []
    values = values.astype(object)
    notices, kept = [], values
    for word, count in values[values.isin(NOTHING)].value_counts().items():
        known = word not in missing if missing is not None else count >= max(5, share * len(values))
        quoted, rows = repr(word), f"{count:,} of {len(values):,} rows"
        if known and missing is None:
            notices.append(
                f"{quoted} stands in {rows} of `{name}`: taken for a class of that name (--missing {word} if it means "
                "that the class is not known)."
            )
        elif not known:
            kept = kept.where(kept != word, None)
            notices.append(
                f"{quoted} stands in {rows} of `{name}`: taken for a missing class"
                + ("." if missing is not None else ' (--missing "" if it is the name of a class).')
            )
    for word in missing or ():
        if word not in NOTHING and bool((kept == word).any()):
            notices.append(f"{word!r} stands in {int((kept == word).sum()):,} rows of `{name}`: missing, as asked.")
            kept = kept.where(kept != word, None)
    return kept, notices
