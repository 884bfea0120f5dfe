"""Columns are recognised, learned and encoded; what is strange is flagged."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from temperance.apps.tables.columns import (
    IMPUTATIONS,
    CategoryColumn,
    DateColumn,
    NumberColumn,
    learn_category,
    learn_date,
    learn_number,
    recognise,
    texts_of,
)
from temperance.apps.tables.encode import encode
from temperance.apps.tables.schema import learn_columns, recognise_outcome
from temperance.apps.tables.split import halves, split_rows
from temperance.core.errors import DataError

NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, 3], "number"),
        ([1.5, None, np.inf], "number"),
        (["1", "2", "3.5"], "number"),
        ([True, False, None], "category"),
        (["a", "b", None], "category"),
        ([None, None], "empty"),
        (["2020-01-31", "2021-12-01T10:30:00", None], "date"),
        (["31.01.2020", "01.12.2021"], "date"),
        (["12/31/2020", "01/12/2021"], "date"),
        (["31/12/2020", "01/12/2021"], "date"),
        (["12345678", "abcdefgh1"], "category"),
        (pd.to_datetime(["2020-01-01", None]), "date"),
        (pd.Categorical(["u", "v"]), "category"),
        (pd.to_timedelta(["1 day", "2 days"]), "number"),
        (pd.array([1, None], dtype="Int64"), "number"),
    ],
)
def test_kinds(values: object, kind: str) -> None:
    assert recognise(pd.Series(values), "c")[0] == kind


def test_mixed_columns_follow_the_rule_of_nine_tenths() -> None:
    few = pd.Series([str(k) for k in range(95)] + ["?"] * 5)
    kind, _, words = recognise(few, "age")
    assert kind == "number"
    assert words == ["5 of 100 values of `age` are not numbers, e.g. '?': treated as missing."]
    many = pd.Series([str(k) for k in range(80)] + ["?"] * 20)
    kind, _, words = recognise(many, "age")
    assert kind == "category"
    assert "mixes numbers (80) and text (20" in words[0]


def test_texts_have_one_form() -> None:
    codes, texts = texts_of(pd.Series([3.0, "3", " a", "a ", "", "TRUE", True, None, 2.5], dtype=object))
    assert texts == ["3", "a", "True", "2.5"]
    assert codes.tolist() == [0, 0, 1, 1, -1, 2, 2, -1, 3]


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (["yes", "no"], "classification"),
        ([True, False], "classification"),
        ([0.0, 1.0, 1.0], "classification"),
        ([1, 2, 3, 4, 5] * 3, "classification"),
        (np.arange(300) / 7, "regression"),
        (np.arange(300) * 10, "regression"),
        (np.random.default_rng(0).poisson(6, 300), "counts"),
        (np.random.default_rng(0).poisson(6, 300).astype(float), "counts"),
        (-np.arange(300), "regression"),
    ],
)
def test_tasks(values: object, task: str) -> None:
    found, why = recognise_outcome(pd.Series(values), "y")
    assert found.name == task
    assert f"-> {task}" in why


def test_numbers_are_standardised_and_missing_ones_marked() -> None:
    values = np.array([1.0, 2.0, 3.0, NAN, NAN, 6.0])
    column = learn_number("a", values)
    assert isinstance(column, NumberColumn)
    assert column.features == ("a", "a was missing")
    x = encode([column], pd.DataFrame({"a": values}), training=True).x
    known = values[~np.isnan(values)]
    np.testing.assert_allclose(x[:3, 0], (known[:3] - known.mean()) / known.std(), rtol=1e-6)
    np.testing.assert_allclose(x[3:5], [[(2.5 - 3) / known.std(), 1]] * 2, rtol=1e-6)


def test_dates_are_days_and_circles() -> None:
    days = (pd.Timestamp("2020-01-01") - pd.Timestamp("1970-01-01")).days + np.arange(800.0)
    column = learn_date("d", days, "ISO8601")
    assert isinstance(column, DateColumn)
    assert column.parts == ("day", "year cos", "year sin", "week cos", "week sin")  # no time of day
    frame = pd.DataFrame({"d": ["2020-01-01", "2020-01-08", "1999-01-01"]})
    made = encode([column], frame)
    np.testing.assert_allclose(made.x[0, 3:], made.x[1, 3:], atol=1e-5)  # the same day of the week
    assert [(flag.words, flag.rows.tolist()) for flag in made.flags] == [("d outside the training range", [2])]


def test_categories_levels_rare_and_missing() -> None:
    texts = ["a"] * 60 + ["b"] * 30 + ["c"] + [None] * 9
    column = learn_category("t", *texts_of(pd.Series(texts)))
    assert isinstance(column, CategoryColumn)
    assert (column.levels, column.rare, column.missing) == (("a", "b"), ("c",), True)
    assert column.counts == (60, 30, 1, 9)
    made = encode([column], pd.DataFrame({"t": ["a", "b", "c", None, "new"]}))
    np.testing.assert_array_equal(made.x, np.vstack([np.eye(4), np.zeros(4)]))
    assert made.open_rows.tolist() == [4]
    assert made.flags[0].words == "t has a value never seen in training"


def test_identifiers_constants_and_row_numbers_are_left_out() -> None:
    rows = 200
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "key": [f"k{i}" for i in range(rows)],
            "row": np.arange(5, rows + 5),
            "same": 3,
            "gone": [None] * rows,
            "free": rng.normal(size=rows),
        }
    )
    columns, dropped, notices = learn_columns(frame, {}, np.arange(rows))
    assert [c.name for c in columns] == ["free"]
    assert set(dropped) == {"key", "row", "same", "gone"}
    assert len(notices) == 4


def test_unknown_values_stand_for_the_training_distribution() -> None:
    numbers = learn_number("a", np.arange(100.0))
    texts = learn_category("t", *texts_of(pd.Series(["u"] * 75 + ["v"] * 25)))
    assert isinstance(numbers, NumberColumn)
    assert isinstance(texts, CategoryColumn)
    made = encode([numbers, texts], pd.DataFrame({"a": [NAN, 50.0], "t": ["u", "w"]}))
    assert made.open_rows.tolist() == [0, 1]
    filled = made.imputed(made.open_rows)
    assert filled.shape == (2, IMPUTATIONS, 3)
    np.testing.assert_allclose(filled[0, :, 0].mean(), 0, atol=1e-6)  # by symmetry
    np.testing.assert_allclose(filled[0, :, 0].std(), 1, atol=2 / IMPUTATIONS)
    np.testing.assert_array_equal(filled[0, :, 1], 1)  # what is known stays
    assert filled[1, :, 1].mean() == 0.75
    assert filled[1, :, 2].mean() == 0.25


def test_huge_and_infinite_numbers_stay_finite() -> None:
    column = learn_number("a", np.arange(100.0))
    assert column is not None
    made = encode([column], pd.DataFrame({"a": [1e300, -np.inf, 3.0]}))
    assert np.isfinite(made.x).all()
    assert {flag.words: flag.rows.tolist() for flag in made.flags} == {
        "a is not a number": [1],
        "a outside the training range": [0],
    }


def test_columns_that_are_not_there_are_named() -> None:
    column = learn_number("a", np.arange(100.0))
    assert column is not None
    with pytest.raises(DataError, match="`a`"):
        encode([column], pd.DataFrame({"b": [1]}))


def test_classes_are_split_in_proportion_and_none_is_lost() -> None:
    labels = np.repeat([0, 1, 2], [500, 100, 1])
    train, validation, test = split_rows(labels, len(labels), 0.2, 0.2, seed=0)
    assert sorted(np.concatenate([train, validation, test]).tolist()) == list(range(601))
    for rows, share in ((train, 0.6), (validation, 0.2), (test, 0.2)):
        assert np.bincount(labels[rows], minlength=3)[:2].tolist() == [500 * share, 100 * share]
    assert 2 in labels[train]
    other = split_rows(labels, len(labels), 0.2, 0.2, seed=1)[0]
    assert set(other.tolist()) != set(train.tolist())


def test_groups_are_never_divided() -> None:
    groups = pd.Series(np.random.default_rng(0).integers(0, 40, 400).astype(str))
    parts = split_rows(None, 400, 0.2, 0.2, 0, groups)
    named = [set(groups[rows]) for rows in (*parts[::2], *halves(parts[1], 0, groups))]
    assert sum(map(len, named)) == len(set.union(*named)) == groups.nunique()
    with pytest.raises(DataError, match="at least 4"):
        split_rows(None, 400, 0.2, 0.2, 0, pd.Series(["a", "b"] * 200))
