"""Rows that count more or less than once; comparisons that measure what a fit does; and plain words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from temperance.apps.cli import main
from temperance.apps.tables import compare_table, fit_table, fitting
from temperance.apps.tables.columns import recognise
from temperance.apps.tables.prepare import prepare_table
from temperance.core.errors import ArgumentError, DataError

QUICK: dict[str, Any] = {"method": "MAP(lr=1e-2)", "epochs": 5}


def linear(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(rows, 2)), columns=list("ab"))
    return frame.assign(y=20 + frame["a"] + 0.3 * rng.normal(size=rows), w=rng.integers(1, 4, rows).astype(float))


@pytest.mark.parametrize("folds", [0, 3])
def test_weights_go_to_training_and_are_no_input(folds: int) -> None:
    frame = linear()
    made = prepare_table(frame, "y", weights="w", folds=folds)
    assert [column.name for column in made.schema.columns] == ["a", "b"]
    data = made.data(made.train)
    place = dict(zip(frame["y"], frame["w"], strict=True))
    assert data.weights is not None
    assert data.weights.tolist() == [place[y] for y in made.train.y]
    run = fit_table(frame, "y", weights="w", folds=folds, **QUICK)
    assert run.state.calibrator is None
    assert any("nothing is calibrated" in words for words in run.notices)
    assert run.evaluate().coverage > 0.7
    assert "w" in run.schema.dropped


def test_weights_change_what_is_learned_and_rows_of_weight_zero_are_gone() -> None:
    frame = linear()
    shifted = frame["b"] > 0
    frame["y"] += np.where(shifted & (frame["a"] > 0), 10.0, 0.0)
    only = fit_table(frame.assign(w=np.where(frame["a"] > 0, 0.0, 1.0)), "y", weights="w", folds=0, **QUICK)
    assert any("rows of weight 0 (`w`): left out" in words for words in only.notices)
    assert only.evaluate().rows < 60
    assert only.schema.spread < 2


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (lambda f: np.where(f.index == 7, -1.0, f["w"]), r"`weights` `w` must hold numbers from 0 on.*'-1.0' in row 7"),
        (lambda f: np.where(f.index == 7, np.nan, f["w"]), "in row 7"),
        (lambda f: 0.0 * f["w"], "must not be 0 in all rows"),
    ],
)
def test_bad_weights_are_refused(values: Any, match: str) -> None:
    frame = linear()
    with pytest.raises(DataError, match=match):
        prepare_table(frame.assign(w=values(frame)), "y", weights="w")
    with pytest.raises(ArgumentError, match="must not also be"):
        prepare_table(frame, "y", weights="y")


def test_weights_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    linear().to_csv(tmp_path / "d.csv", index=False)
    fit = ["fit", str(tmp_path / "d.csv"), "--target", "y", "--method", "map", "--epochs", "1"]
    assert main([*fit, "--weights", "w", "--out", str(tmp_path / "run")]) == 0
    assert "`w` says how often each row counts" in capsys.readouterr().out


def test_comparisons_of_small_tables_are_by_folds_as_fits_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from temperance.apps.tables import compare

    seen, real = [], fitting.fit_prepared

    def watching(prepared: Any, *arguments: Any, **options: Any) -> Any:
        seen.append((type(arguments[0]).__name__, prepared.folds is not None))
        return real(prepared, *arguments, **options)

    monkeypatch.setattr(compare, "fit_prepared", watching)
    frame = linear(80).drop(columns="w")
    found = compare_table(frame, "y", ["MAP(lr=1e-2)"], epochs=2)
    assert seen == [("MAP", True)] * 2
    run = fit_table(frame, "y", method="map", epochs=2)
    (line,) = [line for line in found.lines if line.method == "map"]
    assert line.scores["rmse"] == pytest.approx(run.evaluate().scores["rmse"])
    assert line.coverage == pytest.approx(run.evaluate().coverage)


def test_methods_that_fail_or_fall_back_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from temperance.apps.tables import learner
    from temperance.core.errors import NumericalError

    real = learner.fit

    def fails(target: Any, method: Any, *arguments: Any, **options: Any) -> Any:
        if target.likelihood.outputs_for(1) == 2 and type(method).__name__ == "SWAG":
            raise NumericalError("the loss is not finite. Lower it.")
        return real(target, method, *arguments, **options)

    monkeypatch.setattr(learner, "fit", fails)
    said: list[str] = []
    found = compare_table(linear().drop(columns="w"), "y", ["SWAG()"], epochs=2, folds=0, say=said.append)
    (line,) = [line for line in found.lines if line.method == "SWAG()"]
    assert line.ok
    assert line.remarks == ["noise of one size for all rows is used, for: the loss is not finite."]


def test_words_of_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    linear().drop(columns="w").to_csv(tmp_path / "d.csv", index=False)
    run = str(tmp_path / "run")
    fit = ["fit", str(tmp_path / "d.csv"), "--target", "y", "--method", "map", "--epochs", "1", "--folds", "0"]
    assert main([*fit, "--out", run, "--error-rate", "0.001"]) == 0
    assert "validation rows (those that did not calibrate) cannot promise" in capsys.readouterr().out
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("mine")
    assert main(["report", run, "-o", str(tmp_path / "mine")]) == 1
    error = capsys.readouterr().err
    assert "`--out` must be a new" in error
    assert "--overwrite" in error
    assert "overwrite=True" not in error


def test_dates_that_may_be_read_in_two_ways_are_said_to_be() -> None:
    both = pd.Series([f"{k % 12 + 1:02d}/{k % 11 + 1:02d}/2021" for k in range(50)])
    assert "as month/day or as day/month" in recognise(both, "d")[2][0]
    assert "day/month" not in recognise(pd.Series([f"01/{k + 1:02d}/2021" for k in range(28)]), "d")[2][0]


def test_targets_that_a_learned_logarithm_cannot_have_are_explained() -> None:
    frame = linear().drop(columns="w")
    run = fit_table(frame, "y", log=True, folds=0, **QUICK)
    found = run.evaluate(frame.assign(y=np.where(frame.index == 3, 0.0, frame["y"])))
    assert found.scores["log_loss"] == np.inf
    assert any("1 rows have a `y` of 0 or less" in words and "--no-log" in words for words in found.notices)


def test_going_on_with_other_epochs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from temperance.apps.tables import learner

    real = learner.fit

    def stopped(*arguments: Any, **options: Any) -> Any:
        real(*arguments, **{**options, "epochs": 2})
        raise KeyboardInterrupt

    frame = linear().drop(columns="w")
    monkeypatch.setattr(learner, "fit", stopped)
    with pytest.raises(KeyboardInterrupt):
        fit_table(frame, "y", out=tmp_path / "run", folds=0, **QUICK)
    monkeypatch.setattr(learner, "fit", real)
    run = fit_table(frame, "y", out=tmp_path / "run", folds=0, resume=True, **QUICK)
    assert any("--epochs is not what it was" in words for words in run.notices)
