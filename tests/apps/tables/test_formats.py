"""Words that look like nothing, codes that look like numbers, numbers that look like text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from temperance.apps.tables import fit_table, load_table_run
from temperance.apps.tables.columns import numbers_of, recognise
from temperance.apps.tables.formats import settled
from temperance.apps.tables.prepare import prepare_table
from temperance.core.errors import DataError

QUICK: dict[str, Any] = {"method": "MAP(lr=1e-2)", "epochs": 3}


def frame_of(rows: int = 300) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    return pd.DataFrame(x, columns=list("ab")), (x[:, 0] > 0.4).astype(int) + (x[:, 1] > 0.3)


def written(path: Path, frame: pd.DataFrame, **options: Any) -> Path:
    frame.to_csv(path, index=False, **options)
    return path


def test_classes_called_none_and_na_are_classes(tmp_path: Path) -> None:
    frame, k = frame_of()
    path = written(tmp_path / "a.csv", frame.assign(y=np.array(["None", "NA", "high"])[k]))
    run = fit_table(path, "y", out=tmp_path / "run", **QUICK)
    assert set(run.schema.classes) == {"None", "NA", "high"}
    assert any("'None' stands in" in words and "--missing None" in words for words in run.notices)
    assert run.evaluate().rows == load_table_run(tmp_path / "run").evaluate().rows == 60
    assert run.evaluate(path).rows == 300
    assert {c.name for c in load_table_run(tmp_path / "run").evaluate(path).classes} == {"None", "NA", "high"}
    without = prepare_table(path, "y", missing=["NA"])
    assert without.schema.classes == ("None", "high")


def test_few_words_for_nothing_are_counted_quoted_and_can_be_kept(tmp_path: Path) -> None:
    frame, k = frame_of()
    label = np.array(["low", "mid", "high"])[k].astype(object)
    label[:6] = "NA"
    path = written(tmp_path / "a.csv", frame.assign(y=label))
    made = prepare_table(path, "y")
    assert made.schema.classes == ("high", "low", "mid")
    assert any("'NA' stands in 6 of 300 rows of `y`: taken for a missing class" in words for words in made.notices)
    assert any('--missing ""' in words for words in made.notices)
    assert prepare_table(path, "y", missing=[]).schema.classes == ("NA", "high", "low", "mid")


def test_codes_keep_their_zeros(tmp_path: Path) -> None:
    frame, k = frame_of()
    path = written(tmp_path / "a.csv", frame.assign(y=np.array(["01", "02", "10"])[k]))
    run = fit_table(path, "y", out=tmp_path / "run", **QUICK)
    assert run.schema.classes == ("01", "02", "10")
    assert set(run.predict(frame)["prediction"]) <= {"01", "02", "10"}
    assert load_table_run(tmp_path / "run").evaluate().rows == 60
    plain = written(tmp_path / "b.csv", frame.assign(y=k.astype(float)))
    run = fit_table(plain, "y", out=tmp_path / "run2", **QUICK)
    assert run.schema.classes == ("0", "1", "2")
    assert load_table_run(tmp_path / "run2").evaluate(plain).rows == 300


@pytest.mark.parametrize(
    ("form", "factor"),
    [("{:.1f}%", 1.0), ("${:,.0f}", 1000.0), ("{:,.2f}", 1000.0), ("{:,.2f} €", 1000.0), ("CHF {:.2f}", 1.0)],
)
def test_formatted_numbers_are_numbers(form: str, factor: float, tmp_path: Path) -> None:
    frame, _ = frame_of()
    number = factor * (10 + 3 * frame["a"])
    shown = number.map(form.format)
    path = written(tmp_path / "a.csv", frame.assign(y=shown, c=shown))
    made = prepare_table(path, "y")
    assert made.schema.outcome.name == "regression"
    np.testing.assert_allclose(np.sort(np.r_[made.targets, made.test.y]), np.sort(number), atol=0.51)
    assert any("is written like" in words for words in made.notices)
    assert [column.name for column in made.schema.columns] == ["a", "b", "c"]
    assert made.schema.columns[2].features == ("c",)
    run = fit_table(path, "y", **QUICK)
    assert run.evaluate(path).rows == 300


def test_numbers_of_several_units_are_not_one_column() -> None:
    mixed = pd.Series([f"{k}%" for k in range(50)] + [f"{k / 100}" for k in range(50)])
    kind, _, words = recognise(mixed, "c")
    assert kind == "category"
    assert "several units" in words[0]
    assert recognise(pd.Series([f"${k},000" for k in range(1, 50)]), "c")[0] == "number"
    assert np.isnan(numbers_of(pd.Series(["1.234,56", "a"]))).all()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (lambda v, k: "unknown" if k % 3 == 0 else f"{v:.2f}", r"mixes numbers \(200 rows\) and text, e.g. 'unknown'"),
        (
            lambda v, k: f"1.{abs(v):06.2f}".replace(".", "_").replace("_", ".", 1).replace("_", ","),
            "look like numbers",
        ),
    ],
)
def test_targets_that_cannot_be_read_are_refused_with_an_example(text: Any, match: str, tmp_path: Path) -> None:
    frame, _ = frame_of()
    shown = [text(100 + v, k) for k, v in enumerate(frame["a"])]
    with pytest.raises(DataError, match=match):
        prepare_table(written(tmp_path / "a.csv", frame.assign(y=shown)), "y")


def test_a_text_among_numbers_is_quoted_once_with_its_row(tmp_path: Path) -> None:
    frame, _ = frame_of()
    shown = (10 + frame["a"]).round(3).astype(str)
    shown[17] = "n.b."
    made = prepare_table(written(tmp_path / "a.csv", frame.assign(y=shown)), "y")
    about = [words for words in made.notices if "left out" in words]
    assert about == ["1 value of the target `y` is no finite number, e.g. 'n.b.' in row 19: it is left out."]


def test_decimal_commas_and_truths_are_settled() -> None:
    assert settled(pd.Series(["3,5", "4", None]), ",").tolist()[:2] == [3.5, 4.0]
    assert settled(pd.Series(["True", "false"])).tolist() == [True, False]
    assert settled(pd.Series(["1", "2"])).dtype.kind == "i"
