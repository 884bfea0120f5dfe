"""A table becomes a run: units, promises, unknown values, saving, resuming."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from temperance.apps.tables import TableRun, compare_table, fit_table, load_table_run
from temperance.apps.tables.claim import Claim
from temperance.apps.tables.columns import IMPUTATIONS, CategoryColumn
from temperance.apps.tables.encode import Encoded
from temperance.apps.tables.predictions import predict_file
from temperance.apps.tables.reading import open_table
from temperance.core import sealed
from temperance.core.errors import ArgumentError, CorruptRunError, DataError, MismatchError, StoreError
from temperance.predict import ClassPredictive, ValuePredictive
from temperance.run import loop, store

ODD = ('a, "b"', "<b>c</b>", "Zürich")


def houses(rows: int = 700, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": [f"{k:05d}" for k in range(rows)],
            "size": rng.gamma(4.0, 25.0, rows).round(2),
            "town": rng.choice(["Bern", "Basel", "Chur"], rows, p=[0.5, 0.3, 0.2]),
            "garden": rng.random(rows) < 0.4,
        }
    )
    effect = frame["town"].map({"Bern": 0.0, "Basel": 200.0, "Chur": -200.0})
    frame["price"] = (frame["size"] * 4 + effect + rng.normal(0, 20, rows)).round(2)
    frame.loc[rng.random(rows) < 0.05, "size"] = np.nan
    frame["kind"] = np.array(ODD)[np.digitize(frame["price"], [300.0, 500.0])]
    frame["visits"] = rng.poisson(np.exp(frame["size"].fillna(100.0) / 100))
    return frame


@pytest.fixture(scope="module")
def values() -> TableRun:
    frame = houses().drop(columns=["kind", "visits"])
    return fit_table(frame, "price", id="id", method="Ensemble(MAP(lr=2e-2), 3)", epochs=12, error_rate=0.2)


@pytest.fixture(scope="module")
def classes() -> TableRun:
    frame = houses().drop(columns=["price", "visits"])
    return fit_table(frame, "kind", id="id", method="Ensemble(MAP(lr=2e-2), 3)", epochs=6, error_rate=0.2)


@pytest.fixture(scope="module")
def counts() -> TableRun:
    frame = houses().drop(columns=["price", "kind"])
    return fit_table(frame, "visits", id="id", task="counts", method="MAP(lr=1e-2)", epochs=5)


def test_predictions_beat_the_baseline_and_keep_their_promises(
    values: TableRun, classes: TableRun, counts: TableRun
) -> None:
    for run in (values, classes, counts):
        found = run.evaluate()
        assert found.scores["log_loss"] < found.baseline["log_loss"]
        # coverage over calibration and test: Beta(k, n + 1 − k), then binomial
        n, m = len(run.state.guard_y), found.rows
        spread = np.sqrt(0.9 * 0.1 * (1 / n + 1 / m))
        assert found.coverage > 0.9 - 4 * spread
        if found.rows_answered:
            assert found.error_rate_answered < run.guard.error_rate + 4 * np.sqrt(0.25 / found.rows_answered)
    assert values.evaluate().share_deferred < 1


def test_columns_of_predictions(values: TableRun, classes: TableRun, counts: TableRun) -> None:
    frame = houses(30, seed=1)
    made = values.predict(frame)
    assert list(made.columns[: len(frame.columns)]) == list(frame.columns)
    assert (made["prediction_low"] < made["prediction_mean"]).all()
    assert (made["prediction_mean"] < made["prediction_high"]).all()
    assert made["epistemic_share"].between(0, 1).all()
    probs = classes.predict(frame)[[f"probability_{name}" for name in sorted(ODD)]]
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)
    one = classes.predict(frame).iloc[0]
    assert one["prediction"] in one["plausible"]
    whole = counts.predict(frame)[["prediction_low", "prediction_high"]].to_numpy()
    assert (whole == np.round(whole)).all()
    assert (whole >= 0).all()


def test_units_follow_the_target() -> None:
    frame = houses(300).drop(columns=["kind", "visits"])
    settings: dict[str, Any] = {"id": "id", "method": "map", "epochs": 3}
    first = fit_table(frame, "price", **settings).predict(frame.head(20))
    moved = fit_table(frame.assign(price=1e6 - 1000 * frame["price"]), "price", **settings)
    # the network learns z or −z: only shift and scale are compared, through their own units
    assert moved.schema.spread == pytest.approx(1000 * frame["price"].std(ddof=0), rel=0.1)
    assert moved.predict(frame.head(20))["prediction_mean"].mean() == pytest.approx(
        1e6 - 1000 * first["prediction_mean"].mean(), abs=1000 * frame["price"].std()
    )
    scaled = fit_table(frame.assign(price=5e5 + 1000 * frame["price"]), "price", **settings).predict(frame.head(20))
    for name, shift in (("mean", 5e5), ("low", 5e5), ("high", 5e5), ("std", 0.0)):
        wanted = shift + 1000 * first[f"prediction_{name}"]
        np.testing.assert_allclose(scaled[f"prediction_{name}"], wanted, rtol=1e-3)


@pytest.mark.parametrize("which", ["values", "classes"])
def test_unknown_values_are_averaged_over_and_never_more_certain(which: str, request: pytest.FixtureRequest) -> None:
    run: TableRun = request.getfixturevalue(which)
    frame = houses(8, seed=2).assign(town="Lugano")
    encoded = run.encode(frame)
    assert encoded.open_rows.tolist() == list(range(8))
    mixed = run.fitted.predict(torch.from_numpy(encoded.imputed(encoded.open_rows).reshape(8 * IMPUTATIONS, -1)))
    plain = [run.predictive(frame.assign(town=town)) for town in ("Bern", "Basel", "Chur")]
    found = run.predictive(frame)
    if which == "classes":
        assert isinstance(found, ClassPredictive)
        by_hand = mixed.mean().view(8, IMPUTATIONS, -1).mean(1)
        raw = run.state.calibrator
        if raw is None:
            torch.testing.assert_close(found.probs, by_hand, rtol=1e-4, atol=1e-5)
        column = next(column for column in run.schema.columns if column.name == "town")
        assert isinstance(column, CategoryColumn)
        counted = zip(column.levels, column.counts, strict=True)
        weight = {level: count / sum(column.counts) for level, count in counted}
        known = sum(
            weight[town] * p.entropy().double() for town, p in zip(("Bern", "Basel", "Chur"), plain, strict=True)
        )
        # the stand-ins have each share to 1/32, and entropy is at most log 3
        assert bool((found.entropy() >= known - 3 * np.log(3) / IMPUTATIONS).all())
        assert bool((found.mutual_information() >= -1e-6).all())
    else:
        assert isinstance(found, ValuePredictive)
        means = torch.stack([p.mean() for p in plain])
        quiet = torch.stack([p.std() for p in plain]).mean(0)
        assert bool((found.std() > quiet).all())  # towns differ by 400: not knowing which is worse than noise of 20
        assert bool((found.mean() > means.amin(0)).all())
        assert bool((found.mean() < means.amax(0)).all())
        # the law of total variance, by hand over the stand-ins
        mean, variance = (t.view(8, IMPUTATIONS) for t in (mixed.mean(), mixed.variance()))
        scale = 1.0 if run.state.calibrator is None else float(run.state.calibrator.scale)
        parts = scale**2 * variance.mean(1) + mean.var(1, correction=0)  # noise is calibrated, the stand-ins stay apart
        torch.testing.assert_close(
            found.std()[:, 0].double(), parts.double().sqrt() * run.schema.spread, rtol=1e-3, atol=0.0
        )
    made = run.predict(frame)
    assert (made["ask_a_human"] == "yes").all()
    assert made["flags"].str.contains("town has a value never seen in training").all()


def test_rows_that_are_strange_are_flagged_and_left_to_a_human(values: TableRun) -> None:
    frame = houses(6, seed=3).assign(size=100.0)
    frame.loc[0, "size"] = 1e5
    frame["garden"] = frame["garden"].astype(object)
    frame.loc[1, "garden"] = None
    frame.loc[2, "size"] = np.nan
    made = values.predict(frame)
    assert "size outside the training range" in made.loc[0, "flags"]
    assert "unlike the training rows" in made.loc[0, "flags"]
    assert "garden is missing, which it never was in training" in made.loc[1, "flags"]
    assert "missing" not in made.loc[2, "flags"]
    assert (made.loc[:1, "ask_a_human"] == "yes").all()


def test_mixing_known_and_unknown_rows_changes_neither(values: TableRun) -> None:
    frame = houses(40, seed=4)
    some = frame.copy()
    some.loc[[3, 17], "town"] = "Lugano"
    alone, together = values.predict(frame), values.predict(some)
    same = [k for k in range(40) if k not in (3, 17)]
    for name in ("prediction_mean", "prediction_std", "prediction_high"):
        np.testing.assert_allclose(together.loc[same, name], alone.loc[same, name], rtol=1e-5)
    both = values.predictive(some)
    np.testing.assert_allclose(both.mean()[:, 0], together["prediction_mean"], rtol=1e-5, atol=0.01)
    np.testing.assert_allclose(both.std()[:, 0], together["prediction_std"], rtol=1e-4)


def test_another_level_and_error_rate_come_from_the_kept_rows(values: TableRun) -> None:
    frame = houses(50, seed=5)
    wide, narrow = values.predict(frame, level=0.98), values.predict(frame, level=0.5)
    assert (wide["prediction_high"] > narrow["prediction_high"]).all()
    strict, lax = values.predict(frame, error_rate=0.02), values.predict(frame, error_rate=0.6)
    assert (strict["ask_a_human"] == "yes").sum() >= (lax["ask_a_human"] == "yes").sum()
    assert values.with_guard(0.9) is values
    with pytest.raises(ArgumentError, match="`level`"):
        values.predict(frame, level=1.5)


def test_a_saved_run_predicts_the_same_to_the_bit(values: TableRun, classes: TableRun, tmp_path: Path) -> None:
    for k, run in enumerate((values, classes)):
        run.save(tmp_path / str(k))
        again = load_table_run(tmp_path / str(k))
        frame = houses(20, seed=6)
        frame.loc[4, "town"] = "Lugano"
        pd.testing.assert_frame_equal(again.predict(frame), run.predict(frame))
        assert again.evaluate().scores == pytest.approx(run.evaluate().scores, rel=1e-6)
        assert sorted(p.name.split("-")[0] for p in (tmp_path / str(k)).iterdir()) == [
            "files.json", "model", "table.json", "test",
        ]  # fmt: skip
    with pytest.raises(StoreError, match="finished run"):
        values.save(tmp_path / "0")
    values.save(tmp_path / "1", overwrite=True)
    assert load_table_run(tmp_path / "1").schema.outcome.name == "regression"


def test_runs_of_other_versions_and_damaged_ones(values: TableRun, tmp_path: Path) -> None:
    values.save(tmp_path / "run")
    file = tmp_path / "run" / "table.json"
    before = file.read_bytes()
    about = json.loads(before)
    del about["sha256"]
    file.write_bytes(sealed.render({**about, "versions": {**about["versions"], "temperance": "7.0.0"}}))
    with pytest.raises(MismatchError, match=r"made by temperance 7\.0\.0"):
        load_table_run(tmp_path / "run")
    changes = [{"model": "../run"}, {"model": 3}, {"test": "/etc/passwd"}, {"notices": None}, {"versions": []}]
    for change in (*changes, {"sha256 of its manifest": "0" * 64}, {"sha256 of test": "0" * 64}):
        file.write_bytes(sealed.render({**about, **change}))
        with pytest.raises(CorruptRunError, match="damaged"):
            load_table_run(tmp_path / "run")
    for place in range(0, len(before), 7):
        changed = bytearray(before)
        changed[place] ^= 1 << place % 8
        file.write_bytes(bytes(changed))
        with pytest.raises(CorruptRunError):
            load_table_run(tmp_path / "run")
    file.write_bytes(before)
    rows = next((tmp_path / "run").glob("test-*.csv"))
    kept = rows.read_bytes()
    rows.write_bytes(kept.replace(b"1", b"2"))
    with pytest.raises(CorruptRunError, match="was changed"):
        load_table_run(tmp_path / "run")
    rows.unlink()  # their owner may want them gone
    with pytest.raises(ArgumentError, match="no test rows"):
        load_table_run(tmp_path / "run").evaluate()
    file.write_text("{")
    with pytest.raises(CorruptRunError, match="damaged"):
        load_table_run(tmp_path / "run")
    with pytest.raises(StoreError, match="folder that `temperance fit` made"):
        load_table_run(tmp_path)


MINE = ["test.csv", "model-card.md", "checkpoint-notes.md", "table-1.csv", "table.json", "files.json", "notes"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_files_of_the_user_is_refused_and_named(
    values: TableRun, tmp_path: Path, overwrite: bool
) -> None:
    for name in MINE:
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text("mine")
        with pytest.raises(StoreError, match=f"other files.*{name}"):
            fit_table(houses(60), "kind", out=folder, overwrite=overwrite, method="map", epochs=1)
        with pytest.raises(StoreError, match=f"other files.*{name}"):
            values.save(folder, overwrite=overwrite)
        assert [(p.name, p.read_text()) for p in folder.iterdir()] == [(name, "mine")]
    project = tmp_path / "project"
    (project / "checkpoint").mkdir(parents=True)
    (project / "checkpoint" / "weights.pt").write_text("mine")
    (project / "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match=r"other files.*checkpoint, thesis\.tex"):
        fit_table(houses(60), "kind", out=project, overwrite=overwrite, method="map", epochs=1)
    assert (project / "checkpoint" / "weights.pt").read_text() == "mine"
    assert (project / "thesis.tex").read_text() == "mine"


def test_files_that_came_later_survive_every_overwriting(values: TableRun, tmp_path: Path) -> None:
    run = tmp_path / "run"
    values.save(run)
    later = ["test.csv", "model-card.md", "checkpoint-notes.md", "table-1.csv", "model-0123456789ab.md"]
    for name in later:
        (run / name).write_text("mine")
    model = next(p for p in run.iterdir() if p.is_dir())
    (model / "notes.txt").write_text("mine")
    (run / "checkpoint").mkdir()
    (run / "checkpoint" / "weights.pt").write_text("mine")
    with pytest.raises(StoreError, match="holds checkpoint, which no run of ours made"):
        fit_table(houses(60), "kind", id="id", out=run, overwrite=True, method="map", epochs=1)
    values.save(run, overwrite=True)
    assert all((run / name).read_text() == "mine" for name in later)
    assert (run / "checkpoint" / "weights.pt").read_text() == "mine"
    assert (model / "notes.txt").read_text() == "mine"
    assert [p.name for p in model.iterdir()] == ["notes.txt"]  # what was ours there is gone
    load_table_run(run)


def test_what_a_killed_save_left_is_removed_by_the_next(values: TableRun, tmp_path: Path, monkeypatch) -> None:
    values.save(tmp_path / "run")
    before = len(list((tmp_path / "run").iterdir()))

    class Killed(BaseException):
        pass

    def killed(*_: Any, **options: Any) -> None:
        raise Killed

    monkeypatch.setattr(pd.DataFrame, "to_csv", killed)  # the model is written by then
    with pytest.raises(Killed):
        values.save(tmp_path / "run", overwrite=True)
    monkeypatch.undo()
    load_table_run(tmp_path / "run")  # the old one
    for name in (".table.json-0123456789ab", ".files.json-0123456789ab"):
        (tmp_path / "run" / name).write_text("half")
    values.save(tmp_path / "run", overwrite=True)
    assert len(list((tmp_path / "run").iterdir())) == before
    load_table_run(tmp_path / "run")


def test_a_killed_fit_goes_on_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = houses(200).drop(columns=["price", "visits"])
    settings: dict[str, Any] = {"id": "id", "method": "Ensemble(MAP(lr=1e-2), 2)", "epochs": 6}
    whole = fit_table(frame, "kind", out=tmp_path / "whole", **settings)

    class Killed(BaseException):
        pass

    real = loop.Loop._record

    def record(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        if self.info.steps == self.total // 2 + 1:
            raise Killed

    monkeypatch.setattr(loop.Loop, "_record", record)
    with pytest.raises(Killed):
        fit_table(frame, "kind", out=tmp_path / "run", **settings)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="--resume"):
        load_table_run(tmp_path / "run")
    with pytest.raises(StoreError, match="--resume it"):
        fit_table(frame, "kind", out=tmp_path / "run", **settings)
    with pytest.raises(MismatchError, match="differ"):
        fit_table(frame, "kind", out=tmp_path / "run", resume=True, **{**settings, "seed": 1})
    again = fit_table(frame, "kind", out=tmp_path / "run", resume=True, **settings)
    pd.testing.assert_frame_equal(again.predict(frame), whole.predict(frame))
    assert not (tmp_path / "run" / "checkpoint").exists()


@pytest.mark.parametrize("files_gone", [0, 1, 2])
def test_killed_while_its_checkpoint_is_removed_a_run_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_gone: int
) -> None:
    frame = houses(120).drop(columns=["price", "visits"])
    settings: dict[str, Any] = {"id": "id", "method": "MAP(lr=1e-2)", "epochs": 2, "folds": 0, "progress": False}
    remove = store.remove_run

    class Killed(BaseException):
        pass

    def killed(path: Path) -> None:
        real, gone = os.unlink, 0

        def unlink(*arguments: Any, **options: Any) -> None:
            nonlocal gone
            if gone == files_gone:
                raise Killed
            gone += 1
            real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", unlink)
            remove(path)

    monkeypatch.setattr(store, "remove_run", killed)
    with pytest.raises(Killed):
        fit_table(frame, "kind", out=tmp_path / "run", **settings)
    monkeypatch.undo()
    whole = load_table_run(tmp_path / "run").predict(frame)
    if files_gone:  # the command says so, and tidies up
        with pytest.raises(StoreError, match="holds a finished run"):
            fit_table(frame, "kind", out=tmp_path / "run", resume=True, **settings)
    else:
        fit_table(frame, "kind", out=tmp_path / "run", resume=True, **settings)
    pd.testing.assert_frame_equal(load_table_run(tmp_path / "run").predict(frame), whole)
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_what_a_fit_killed_after_its_end_had_still_to_remove_is_removed(values: TableRun, tmp_path: Path) -> None:
    run = tmp_path / "run"
    values.save(run)
    whole = sorted(f.name for f in run.iterdir())
    claim = Claim.of(run)
    claim.add("model-0123456789ab", "test-0123456789ab.csv")
    values.fitted.save(run / "model-0123456789ab")
    for name in ("test-0123456789ab.csv", ".files.json-0123456789ab", "notes.md"):
        (run / name).write_text("x")
    with pytest.raises(StoreError, match="holds a finished run"):
        fit_table(houses(60), "price", out=run, resume=True)
    assert sorted(f.name for f in run.iterdir()) == sorted([*whole, "notes.md"])
    load_table_run(run)


def test_ctrl_c_before_the_first_draw_of_a_table_is_no_failure_of_its_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for one: another fit began, with noise of one size for all rows."""
    frame = houses(120).drop(columns=["kind", "visits"])
    settings: dict[str, Any] = {"id": "id", "method": "Collect(SGHMC(lr=1e-3), burn=8)", "epochs": 6, "folds": 0}
    settings |= {"log": False, "progress": False}
    whole = fit_table(frame, "price", out=tmp_path / "whole", **settings)
    real = loop.Loop._record

    def record(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        if self.info.steps == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop.Loop, "_record", record)
    with pytest.raises(KeyboardInterrupt):
        fit_table(frame, "price", out=tmp_path / "run", **settings)
    monkeypatch.undo()
    assert not (tmp_path / "run" / "checkpoint-again").exists()
    again = fit_table(frame, "price", out=tmp_path / "run", resume=True, **settings)
    pd.testing.assert_frame_equal(again.predict(frame), whole.predict(frame))


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz", "out.parquet"])
def test_a_file_is_predicted_chunk_by_chunk_as_a_whole(
    values: TableRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    frame = houses(3500, seed=7).drop(columns=["price", "kind", "visits"]).assign(note='say "hi", ok')
    frame.loc[[5, 2500], "town"] = "Lugano"
    frame.to_csv(tmp_path / "new.csv", index=False)
    monkeypatch.setattr("temperance.apps.tables.predictions.CHUNK", 1000)
    asked = predict_file(values, open_table(tmp_path / "new.csv"), tmp_path / name)
    found = (
        pd.read_parquet(tmp_path / name)
        if name.endswith("parquet")
        else pd.read_csv(tmp_path / name, dtype={"id": str})
    )
    wanted = values.predict(frame)
    assert len(found) == 3500
    assert asked == (wanted["ask_a_human"] == "yes").sum() == (found["ask_a_human"] == "yes").sum()
    if name.endswith("csv"):
        assert found["id"].tolist() == frame["id"].tolist()  # 00007 stays 00007
        assert found["note"].tolist() == frame["note"].tolist()
    np.testing.assert_allclose(found["prediction_mean"], wanted["prediction_mean"], rtol=1e-5)
    with pytest.raises(StoreError, match="exists"):
        predict_file(values, open_table(tmp_path / "new.csv"), tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["new.csv", name])


def test_class_names_survive_a_csv_and_short_rows_are_filled(classes: TableRun, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("size,garden,town,last\n120,True,Bern,x\n80,False,Basel\n")
    predict_file(classes, open_table(tmp_path / "new.csv"), tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv")
    assert set(found["prediction"]) <= set(ODD)
    assert {f"probability_{name}" for name in ODD} <= set(found.columns)
    assert found["last"].tolist()[0] == "x"
    assert found["last"].isna().tolist() == [False, True]


def test_decimal_commas_are_written_as_they_are_read(values: TableRun, tmp_path: Path) -> None:
    houses(20, seed=8).to_csv(tmp_path / "new.csv", index=False, sep=";", decimal=",")
    predict_file(values, open_table(tmp_path / "new.csv"), tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv", sep=";", decimal=",")
    wanted = values.predict(houses(20, seed=8))
    np.testing.assert_allclose(found["prediction_std"], wanted["prediction_std"], rtol=1e-5)


def test_bad_tables_are_refused(values: TableRun, tmp_path: Path) -> None:
    frame = houses(60)
    quick: dict[str, Any] = {"method": "map", "epochs": 1}
    with pytest.raises(ArgumentError, match="closest are `price`"):
        fit_table(frame, "Prise", **quick)
    with pytest.raises(DataError, match="one class only"):
        fit_table(frame.assign(kind="a"), "kind", **quick)
    with pytest.raises(DataError, match="no column to predict"):
        fit_table(frame[["price"]].assign(same=1), "price", **quick)
    with pytest.raises(ArgumentError, match="`id` must be a column"):
        fit_table(frame, "price", id="nobody", **quick)
    with pytest.raises(ArgumentError, match="must not also be"):
        fit_table(frame, "price", drop=["price"], **quick)
    with pytest.raises(ArgumentError, match="`task`"):
        fit_table(frame, "price", task="guess", **quick)
    with pytest.raises(DataError, match="whole numbers"):
        fit_table(frame, "price", task="counts", **quick)
    with pytest.raises(ArgumentError, match="one of map, swag"):
        fit_table(frame, "price", method="mapp")
    with pytest.raises(DataError, match="`size`"):
        values.predict(frame.drop(columns="size"))
    with pytest.raises(ArgumentError, match="`prediction_mean`"):
        values.predict(frame.assign(prediction_mean=1))
    with pytest.raises(ArgumentError, match="there is no `price`"):
        values.evaluate(frame.drop(columns="price"))


def test_rows_without_a_target_are_left_out_and_counted() -> None:
    frame = houses(80)
    frame.loc[:9, "price"] = np.nan
    said: list[str] = []
    run = fit_table(frame, "price", method="map", epochs=1, drop=["kind", "visits"], say=said.append)
    assert "10 rows without a value of `price`: left out." in said
    assert "price: 70 different numbers -> regression" in said
    assert any(words.startswith("few rows") for words in said)
    assert run.notices[: len(said)] == said
    assert run.evaluate(frame).rows == 70


def test_noise_of_one_size_where_the_other_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from temperance.apps.tables import learner
    from temperance.core.errors import NumericalError
    from temperance.model.likelihoods import HeteroscedasticNormal, Normal

    real = learner.fit

    def fails(target: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(target.likelihood, HeteroscedasticNormal):
            raise NumericalError("it became NaN. Lower something.")
        return real(target, *arguments, **options)

    monkeypatch.setattr(learner, "fit", fails)
    run = fit_table(houses(80), "price", method="map", epochs=1)
    assert isinstance(run.fitted.target.likelihood, Normal)
    assert any("it became NaN" in words for words in run.notices)


def test_a_comparison_goes_on_when_a_method_fails(tmp_path: Path) -> None:
    frame = houses(150).drop(columns=["price", "visits"])
    methods = ["Ensemble(MAP(lr=1e-2), 2)", "MAP(lr=1e30)"]
    found = compare_table(frame, "kind", methods, epochs=4, id="id", out=tmp_path, seeds=2)
    assert [line.method for line in found.lines] == ["map", *methods]
    assert [line.ok for line in found.lines] == [True, True, False]
    assert "NaN or infinite" in found.lines[2].error
    assert found.lines[1].gradients == 2
    gap, error = found.lines[1].versus_map["log_loss"]
    assert gap == pytest.approx(found.lines[1].scores["log_loss"] - found.lines[0].scores["log_loss"], abs=1e-6)
    assert error > 0
    written = json.loads((tmp_path / "compare.json").read_text())
    assert written["lines"][2]["scores"] == {}
    assert pd.read_csv(tmp_path / "compare.csv")["method"].tolist() == ["map", *methods, "(baseline)"]
    with pytest.raises(StoreError, match="--overwrite"):
        compare_table(frame, "kind", methods, out=tmp_path)


def test_the_page_shows_names_as_they_are(classes: TableRun, tmp_path: Path) -> None:
    page = classes.report(tmp_path / "page").read_text(encoding="utf-8")
    assert "&lt;b&gt;c&lt;/b&gt;" in page
    assert "<b>c</b>" not in page


def test_promises_hold_for_rows_that_are_not_strange(values: TableRun) -> None:
    x = values.state.guard_x.numpy()
    usual = ~values.state.strangeness.flags(x)
    assert values.guard.deferral.rows == int(usual.sum())
    p = values.state.strangeness.p_values(x)
    # p-values of rows like the held-out ones are uniform from 1/(n+1) to 1
    assert abs(p.mean() - 0.5) < 4 * np.sqrt((1 / 12) * (1 / len(p) + 1 / len(values.state.strangeness.ordinary)))
    assert isinstance(values.predictive_of(Encoded(x)), ValuePredictive)


def _damaged(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("place", [0, 15, 90, 150, -3])
def test_a_damaged_list_is_said_to_be_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    a = np.random.default_rng(0).normal(size=300)
    frame = pd.DataFrame({"a": a, "y": np.where(a > 0, "yes", "no")})

    class Killed(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    def begin(out: Path, resume: bool = False) -> TableRun:
        return fit_table(frame, "y", out=out, method="map", epochs=2, folds=0, progress=False, resume=resume)

    for name in ("one", "two"):
        with monkeypatch.context() as patch:
            patch.setattr(loop.Loop, "finish", killed)
            with pytest.raises(Killed):
                begin(tmp_path / name)
    out, mine = tmp_path / "one", tmp_path / "one" / "notes.md"
    mine.write_text("mine")
    _damaged(out / "files.json", place)
    before = {f: f.read_bytes() for f in out.rglob("*") if f.is_file()}
    for resume in (True, False):
        with pytest.raises(CorruptRunError, match=r"files\.json.* is damaged.*--resume.*Nothing was changed"):
            begin(out, resume)
    assert {f: f.read_bytes() for f in out.rglob("*") if f.is_file()} == before
    (out / "files.json").write_bytes((tmp_path / "two" / "files.json").read_bytes())  # as the error says
    begin(out, resume=True)
    assert mine.read_text() == "mine"
    assert (out / "table.json").is_file()


def test_the_damaged_list_of_a_finished_run_keeps_everything(values: TableRun, tmp_path: Path) -> None:
    values.save(tmp_path / "run")
    _damaged(tmp_path / "run" / "files.json", 100)
    before = {f: f.read_bytes() for f in (tmp_path / "run").rglob("*") if f.is_file()}
    with pytest.raises(CorruptRunError, match=r"files\.json.* is damaged.*choose another folder"):
        values.save(tmp_path / "run", overwrite=True)
    assert {f: f.read_bytes() for f in (tmp_path / "run").rglob("*") if f.is_file()} == before
    load_table_run(tmp_path / "run")


def test_a_negative_target_of_a_test_row_takes_the_bound_away() -> None:
    """What an interval may not reach below is what no row of the user's table lies below, whichever part it is in."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=300)})
    frame["y"] = np.abs(frame.a + rng.normal(size=300))

    def fitted() -> TableRun:
        return fit_table(frame, "y", method="map", epochs=2, folds=0, progress=False)

    run = fitted()
    assert run.schema.least == 0.0
    frame.loc[np.flatnonzero(np.isin(frame.a, run.test_frame.a))[0], "y"] = -0.5
    again = fitted()
    assert (again.test_frame.y < 0).sum() == 1  # the same split: the negative row is a test row
    assert again.schema.least == -np.inf
    assert float(again.predict(frame[["a"]]).prediction_low.min()) < 0
