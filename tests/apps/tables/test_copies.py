"""Copies of a row stay together; files of others stay where they are; digits are as many as are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from temperance.apps.cli import main
from temperance.apps.sklearn import BayesianRegressor
from temperance.apps.tables import compare_table, fit_table
from temperance.apps.tables.copies import copies_of
from temperance.apps.tables.predictions import check_output, predict_file
from temperance.apps.tables.prepare import Prepared, prepare_table
from temperance.apps.tables.reading import open_table
from temperance.core.errors import ArgumentError, DataError, StoreError

QUICK: dict[str, Any] = {"method": "MAP(lr=1e-2)", "epochs": 3}


def linear(rows: int = 300, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(rows, 2)), columns=list("ab"))
    return frame.assign(y=frame["a"] + 0.3 * rng.normal(size=rows))


def parts(made: Prepared) -> list[set[float]]:
    each = [made.train, made.calibration, made.guard, made.test]
    if made.folds is not None:
        folds = [set(made.train.y[made.folds == k].tolist()) for k in range(int(made.folds.max()) + 1)]
        return [*folds, set(made.test.y.tolist())]
    return [set(part.y.tolist()) for part in each]


@pytest.mark.parametrize("folds", [0, 4])
@pytest.mark.parametrize("classes", [False, True])
def test_copies_stay_on_one_side(folds: int, classes: bool) -> None:
    frame = pd.concat([linear(150)] * 4).sample(frac=1, random_state=0).reset_index(drop=True)
    made = prepare_table(frame, "y", folds=folds)
    found = parts(made)
    for k, one in enumerate(found):
        for other in found[k + 1 :]:
            assert not one & other
    assert made.rows == 600
    assert any("600 of 600 rows stand in the table more than once" in words for words in made.notices)
    if classes:
        labelled = prepare_table(frame.assign(y=np.where(frame["y"] > 0, "u", "v")), "y", folds=folds)
        train, test = labelled.train.encoded.x, labelled.test.encoded.x
        assert not set(map(tuple, train.round(5))) & set(map(tuple, test.round(5)))


def test_rows_that_are_equal_by_chance_are_no_copies() -> None:
    rng = np.random.default_rng(0)
    few = pd.DataFrame(
        {"a": rng.choice(list("uvw"), 400), "b": rng.integers(0, 3, 400), "y": rng.choice(["n", "o"], 400)}
    )
    assert copies_of(few) is None
    assert copies_of(linear()) is None
    numbered = pd.concat([linear(100)] * 2).reset_index(drop=True).assign(row=np.arange(200))
    assert any("more than once" in words for words in prepare_table(numbered, "y").notices)


def test_comparisons_replace_nothing_of_others(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "compare.csv").write_text("my own")
    settings: dict[str, Any] = {"methods": ["MAP(lr=1e-2)"], "epochs": 2}
    for overwrite in (False, True):
        with pytest.raises(StoreError, match="holds other files"):
            compare_table(linear(), "y", out=mine, overwrite=overwrite, **settings)
    assert (mine / "compare.csv").read_text() == "my own"
    found = compare_table(linear(), "y", out=tmp_path / "ours", **settings)
    with pytest.raises(StoreError, match="holds a comparison"):
        found.save(tmp_path / "ours")
    found.save(tmp_path / "ours", overwrite=True)
    run = fit_table(linear(), "y", out=tmp_path / "ours", **QUICK)  # a run beside it leaves it alone
    run.save(tmp_path / "ours", overwrite=True)
    assert (tmp_path / "ours" / "compare.json").is_file()


def test_predictions_go_to_a_file_of_a_known_kind_and_never_into_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = tmp_path / "d.csv", tmp_path / "run"
    linear().to_csv(data, index=False)
    fit_table(data, "y", out=run, **QUICK)
    kept = {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()}
    own = next(name for name in kept if name.startswith("test-"))
    for out, words in [
        (run / own, "is a file of the run"),
        (next(run.glob("model-*")) / "x.csv", "is a file of the run"),
        (tmp_path / "p.xlsx", "`out` must end in .csv, .csv.gz, .tsv or .parquet; got 'p.xlsx'"),
        (tmp_path / "p", "`out` must end in"),
        (run, "is a folder"),
    ]:
        assert main(["predict", str(run), str(data), "-o", str(out), "--overwrite"]) == 1
        assert words in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()} == kept
    assert main(["predict", str(run), str(data), "-o", str(tmp_path / "p.tsv")]) == 0
    assert len(pd.read_csv(tmp_path / "p.tsv", sep="\t").columns) == 10


def test_a_plain_run_does_not_replace_an_estimator(tmp_path: Path) -> None:
    frame = linear(40)
    model = BayesianRegressor("map", hidden=(4,), epochs=2, random_state=0).fit(frame[["a", "b"]], frame["y"])
    model.save(tmp_path / "model")
    model.save(tmp_path / "model")
    with pytest.raises(StoreError, match="holds a saved estimator"):
        model.fitted_.save(tmp_path / "model")
    again = BayesianRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(frame[["a", "b"]]), model.predict(frame[["a", "b"]]))
    model.fitted_.save(tmp_path / "plain")
    model.fitted_.save(tmp_path / "plain")


@pytest.mark.parametrize("offset", [1.7e9, 1e12])
def test_digits_and_intervals_of_numbers_far_from_zero(offset: float, tmp_path: Path) -> None:
    frame = linear(400)
    frame["y"] *= 10
    plain, far = (fit_table(frame.assign(y=frame["y"] + by), "y", folds=0, **QUICK) for by in (0.0, offset))
    frame.to_csv(tmp_path / "d.csv", index=False)
    predict_file(far, open_table(tmp_path / "d.csv"), tmp_path / "p.csv")
    shown, wanted = pd.read_csv(tmp_path / "p.csv"), plain.predict(frame)
    assert (shown["prediction_low"] < shown["prediction_mean"]).all()
    assert (shown["prediction_mean"] < shown["prediction_high"]).all()
    for name in ("mean", "low", "high"):
        np.testing.assert_allclose(
            shown[f"prediction_{name}"] - offset, wanted[f"prediction_{name}"], rtol=0, atol=2e-3 + 5e-14 * offset
        )


def test_columns_too_large_to_square_are_named() -> None:
    frame = linear().assign(huge=lambda f: f["a"] * 1e307)
    with pytest.raises(DataError, match=r"`huge` must hold numbers up to 1e\+150.*--drop 'huge'"):
        prepare_table(frame, "y")
    with pytest.raises(DataError, match=r"target `y` must hold numbers up to 1e\+150"):
        prepare_table(linear().assign(y=lambda f: f["y"] * 1e307), "y")
    with pytest.raises(ArgumentError, match="must be a file"):
        check_output("/tmp")
