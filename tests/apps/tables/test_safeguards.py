"""A table's promises rest on rows that were used for nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import temperance as tp
from temperance.apps.tables import TableRun, fit_table, learner, load_table_run
from temperance.apps.tables.folds import deal
from temperance.apps.tables.marginal import predict_encoded
from temperance.apps.tables.run import in_units
from temperance.decide.doubt import doubt
from temperance.run.fit import fit


@pytest.fixture(scope="module")
def run() -> TableRun:
    rng = np.random.default_rng(0)
    x = rng.standard_t(3, size=(4000, 2))
    y = np.tanh(x[:, 0]) + 0.3 * rng.normal(size=4000)
    return fit_table(pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y}), "y", method="map", epochs=3, progress=False)


def test_strangeness_is_learned_on_held_out_rows_and_strange_rows_are_not_promised_for(run: TableRun) -> None:
    strange = run.state.strangeness.flags(run.state.guard_x.numpy())
    assert 0 < int(np.asarray(strange).sum()) < len(strange)
    deferral = run.state.guard.deferral
    assert deferral.rows == len(strange) - int(np.asarray(strange).sum())
    assert len(run.state.strangeness.ordinary) < 0.15 * 4000  # a half of the validation rows, not the training rows


def test_guard_rows_are_not_those_that_were_calibrated_on(run: TableRun) -> None:
    assert len(run.state.guard_x) < 0.15 * 4000


def test_grouped_rows_come_with_a_caution() -> None:
    frame = pd.DataFrame({"x": np.arange(80.0), "site": np.arange(80) // 10, "y": np.tile([0.0, 1.5], 40)})
    frame["x"] += np.random.default_rng(0).normal(size=80)
    made = fit_table(frame, "y", task="regression", method="map", group="site", epochs=2, progress=False)
    assert any("Rows come in groups" in words and "rough" in words for words in made.notices)
    assert isinstance(made.state.guard_x, torch.Tensor)


def test_columns_named_like_predictions_are_refused_before_training() -> None:
    frame = pd.DataFrame({"prediction": np.arange(60.0), "flags": np.arange(60.0) % 7, "y": ["a", "b"] * 30})
    with pytest.raises(tp.errors.ArgumentError, match="named like the predictions"):
        fit_table(frame, "y", method="map", epochs=1, progress=False)


def test_texts_where_numbers_were_are_unknown_and_left_to_a_human(run: TableRun) -> None:
    frame = pd.DataFrame({"a": ["0.5", "1.5 m²", "abc", "0.1"], "b": [0.1, 0.2, 0.3, 0.4]})
    made = run.predict(frame)
    assert list(made["flags"].str.contains("a is not a number")) == [False, True, True, False]
    assert (made["ask_a_human"][1:3] == "yes").all()
    assert (made["prediction_std"][1:3] > made["prediction_std"][[0, 3]].max()).all()


def coins(rows: int, seed: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 2, size=rows)
    return pd.DataFrame(
        {"kind": np.array(["p", "q"])[kind], "x": rng.normal(size=rows), "y": np.array(["no", "yes"])[kind]}
    )


def test_few_rows_all_keep_the_promise_and_unknown_rows_list_more_classes() -> None:
    made = fit_table(coins(400), "y", method="map", epochs=40, folds=0, progress=False)
    assert len(made.state.guard_x) == 80  # both halves: 40 rows are too few to calibrate on
    assert made.state.guard.deferral.answers
    new = made.predict(pd.DataFrame({"kind": ["p", "zzz"], "x": [0.0, 0.0]}))
    assert new.loc[0, "plausible"] == "no"
    assert set(new.loc[1, "plausible"].split(" | ")) == {"no", "yes"}


def test_rows_that_chose_when_to_stop_give_no_promises() -> None:
    stopping = "MAP(lr=5e-3, patience=2)"
    made = fit_table(coins(400), "y", method=stopping, epochs=10, folds=0, progress=False)
    assert len(made.state.guard_x) == 40
    assert made.fitted.held_out is not None
    chose = {tuple(row) for row in torch.as_tensor(made.fitted.held_out.x).tolist()}
    assert not chose & {tuple(row) for row in made.state.guard_x.tolist()}


def test_in_folds_no_row_promises_by_a_model_that_it_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[tuple[float, ...]]] = []

    def remembering(target: Any, method: Any, data: Any, **options: Any) -> Any:
        trained, stopped = ({tuple(row) for row in part.x.tolist()} for part in (data, options["held_out"]))
        assert not trained & stopped  # rows say when to stop that are not learned from
        seen.append(trained | stopped)
        return fit(target, method, data, **options)

    monkeypatch.setattr(learner, "fit", remembering)
    made = fit_table(coins(90), "y", method="MAP(lr=5e-3, patience=2)", epochs=4, progress=False)
    state = made.state
    assert state.guard_folds is not None
    assert len(state.guard_x) == 72
    assert len(seen[0]) == 72  # all rows but those of the test
    assert len(seen) == 1 + len(state.folds) == 11
    for k, rows in enumerate(seen[1:]):
        own = {tuple(row) for row in state.guard_x[state.guard_folds == k].tolist()}
        assert own
        assert not own & rows


@pytest.fixture(scope="module")
def small() -> TableRun:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(120, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": 50 + 10 * x[:, 0] + rng.normal(size=120)})
    return fit_table(frame, "y", method="MAP(lr=2e-2)", epochs=40, progress=False)


def test_a_small_table_keeps_the_models_of_its_folds(small: TableRun, tmp_path: Path) -> None:
    assert len(small.state.folds) == 10
    assert len(small.state.guard_y) == 96  # every row but those of the test
    new = small.test_frame.drop(columns="y")
    made = small.predict(new)
    assert (made["prediction_low"] <= made["prediction_mean"]).all()
    assert np.isfinite(made["prediction_high"]).all()
    small.save(tmp_path / "run")
    again = load_table_run(tmp_path / "run")
    pd.testing.assert_frame_equal(again.predict(new), made)
    pd.testing.assert_frame_equal(again.predict(new, level=0.5), small.predict(new, level=0.5))
    narrow = small.predict(new, level=0.5)
    assert (narrow["prediction_high"] <= made["prediction_high"]).all()
    assert (narrow["prediction_high"] < made["prediction_high"]).mean() > 0.8


def test_intervals_of_folds_are_those_of_barber_et_al(small: TableRun) -> None:
    encoded = small.encode(small.test_frame)
    ends: list[tuple[np.ndarray, np.ndarray]] = []
    assert small.state.guard_folds is not None
    for k, (schema, fitted) in enumerate(small._fold_fits):
        own = (small.state.guard_folds == k).numpy()
        before = fitted.predict(small.state.guard_x[own])
        z = (small.state.guard_y.numpy()[own] - schema.centre) / schema.spread
        residual = np.abs(z - before.mean()[:, 0].double().numpy()) / before.std()[:, 0].double().numpy()
        now = fitted.predict(torch.from_numpy(encoded.x))
        mean, std = (part[:, 0].double().numpy() for part in (now.mean(), now.std()))
        ends += [tuple(schema.centre + schema.spread * (mean + s * r * std) for s in (-1, 1)) for r in residual]
    low, high = (np.sort(np.stack(part), axis=0) for part in zip(*ends, strict=True))
    rank = int(np.ceil(0.9 * 97))
    made = small.predict(small.test_frame)
    mean = made["prediction_mean"]  # of the model of all rows; where it lies outside, it is inside all the same
    np.testing.assert_allclose(made["prediction_high"], np.maximum(high[rank - 1], mean), rtol=1e-5)
    np.testing.assert_allclose(made["prediction_low"], np.minimum(low[96 - rank], mean), rtol=1e-5)


def test_whom_a_small_table_asks_about_knows_nothing_of_the_calibration(small: TableRun) -> None:
    assert small.state.calibrator is not None
    encoded = small.encode(small.test_frame)
    calibrated = small.predictive_of(encoded)
    plain = doubt(in_units(small.schema, predict_encoded(small.fitted, encoded))).double()
    threshold = float(plain.median() + doubt(calibrated).double().median()) / 2  # between the two
    rule = replace(small.guard.deferral, threshold=threshold)
    run = TableRun(replace(small.state, guard=replace(small.guard, deferral=rule)), small.fitted, small.test_frame)
    asked = torch.from_numpy(run.guard_at(encoded).asks(calibrated))
    assert torch.equal(asked, plain >= threshold)  # as the rows that promise were looked at
    assert not torch.equal(asked, rule(calibrated))


def test_where_nothing_can_be_promised_it_is_said_what_would_do() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=40), "y": ["p", "q"] * 20})
    made = fit_table(frame, "y", method="map", epochs=2, progress=False)
    (said,) = [words for words in made.notices if "cannot promise" in words]
    assert "More rows alone will not do" in said
    made = fit_table(coins(40), "y", method="MAP(lr=2e-2)", epochs=40, progress=False)
    (said,) = [words for words in made.notices if "cannot promise" in words]
    assert "A table of about 74 rows would do (this one has 40)" in said
    assert "--error-rate 0.09 can be promised" in said


def test_folds_are_refused_by_name() -> None:
    for folds in (1, -2, True, 2.5):
        with pytest.raises(tp.errors.ArgumentError, match="`folds`"):
            fit_table(coins(40), "y", folds=folds)  # type: ignore[arg-type]


def prices(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    size, town = rng.normal(size=rows), rng.choice(["Bern", "Chur"], rows)
    price = 100 * np.exp(1.2 * size + 0.5 * (town == "Bern") + 0.5 * rng.normal(size=rows))
    return pd.DataFrame({"size": size, "town": town, "price": price})


@pytest.mark.parametrize("rows", [150, 1200])
def test_skewed_positive_targets_have_positive_intervals(rows: int, tmp_path: Path) -> None:
    frame = prices(rows)
    run = fit_table(frame, "price", method="MAP(lr=1e-2)", epochs=40, progress=False)
    assert any("its logarithm is learned" in words for words in run.notices)
    made = run.predict(frame.head(100))
    low = made["prediction_low"]
    # of a small table a fold may find the price easier as it is: the interval is then cut off at 0
    assert (low > 0).all() if rows == 1200 else (low > 0).mean() > 0.8 and (low >= 0).all()
    plain = fit_table(frame, "price", method="MAP(lr=1e-2)", epochs=40, log=False, progress=False)
    assert (plain.predict(frame.head(100))["prediction_low"] == 0).any()  # the twin: cut off where prices end
    new = prices(2000, seed=1)
    found, twin = run.evaluate(new), plain.evaluate(new)
    assert found.scores["log_loss"] < twin.scores["log_loss"] - 0.1
    assert found.coverage > 0.8
    run.save(tmp_path / "run")
    pd.testing.assert_frame_equal(load_table_run(tmp_path / "run").predict(frame.head(100)), made)


@pytest.mark.parametrize("bent", [0, 3, None])
def test_intervals_stay_positive_though_folds_learn_a_price_as_it_is(
    bent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def units(self: learner.Learner, rows: Any, likelihood: Any, seed: int, aloud: bool = False) -> Any:
        """The logarithm for the model of all rows, and in one fold, or none."""
        calls.append(len(calls))
        return self._in(tp.predict.Log() if calls[-1] == 0 or calls[-1] - 1 == bent else None, rows.y)

    monkeypatch.setattr(learner.Learner, "_units", units)
    frame = prices(120)
    made = fit_table(frame, "price", method="map", epochs=3, progress=False)
    assert [fold.transform is not None for fold in made.state.folds].count(True) == (bent is not None)
    found = made.predict(frame)
    assert (found["prediction_low"] >= 0).all()
    assert (found["prediction_high"] > 0).all()


@pytest.mark.parametrize("rows", [100, 1200])  # promises by folds, and by rows held back
@pytest.mark.parametrize("smallest", [0.5, 0.0, -1.0])
def test_no_interval_reaches_below_zero_unless_a_target_does(rows: int, smallest: float, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=rows)
    y = np.maximum(smallest, 3 + 2 * x + rng.normal(size=rows))
    frame = pd.DataFrame({"x": x, "y": y})
    run = fit_table(frame, "y", method="MAP(lr=1e-2)", epochs=20, log=False, test=0.1, progress=False)
    new = pd.DataFrame({"x": np.linspace(-8, 2, 50)})
    made, signed = run.predict(new), replace(run.guard, least=-math.inf)
    encoded = run.encode(new)
    predictive, guard = run.predictive_of(encoded), run.guard_at(encoded)
    low, high = replace(guard, least=-math.inf).interval(predictive)
    assert (low < 0).any()  # the network knows nothing of it
    assert (signed.mean(predictive) < 0).any()
    if smallest < 0:
        np.testing.assert_array_equal(made["prediction_low"], low)
        np.testing.assert_array_equal(made["prediction_mean"], signed.mean(predictive))
    else:
        np.testing.assert_array_equal(made["prediction_low"], np.maximum(low, 0))
        np.testing.assert_array_equal(made["prediction_high"], np.maximum(high, 0))
        np.testing.assert_array_equal(made["prediction_mean"], np.maximum(signed.mean(predictive), 0))
    assert (made["prediction_low"] <= made["prediction_mean"]).all()
    run.save(tmp_path / "run")
    pd.testing.assert_frame_equal(load_table_run(tmp_path / "run").predict(new), made)
    wider = run.predict(new, level=0.99)
    assert (wider["prediction_low"] >= 0).all() == (smallest >= 0)


def test_rows_that_chose_the_units_give_no_promises() -> None:
    made = fit_table(prices(300), "price", method="map", epochs=3, folds=0, progress=False)
    assert len(made.state.guard_x) == 30  # a half of the validation rows: the other chose


def test_a_logarithm_that_there_is_not_is_refused() -> None:
    frame = prices(60)
    with pytest.raises(tp.errors.ArgumentError, match="`log` needs positive numbers"):
        fit_table(frame.assign(price=frame["price"] - 100), "price", method="map", epochs=1, log=True, progress=False)
    with pytest.raises(tp.errors.ArgumentError, match="`log` is for positive numbers"):
        fit_table(coins(60), "y", method="map", epochs=1, log=True, progress=False)


def test_a_small_table_interrupted_among_its_folds_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame, settings = coins(60), {"method": "map", "epochs": 3, "progress": False}
    calls: list[int] = []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return fit(*arguments, **options)

    whole = fit_table(frame, "y", out=tmp_path / "whole", **settings)  # type: ignore[arg-type]
    monkeypatch.setattr(learner, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit_table(frame, "y", out=tmp_path / "run", **settings)  # type: ignore[arg-type]
    again = fit_table(frame, "y", out=tmp_path / "run", resume=True, **settings)  # type: ignore[arg-type]
    pd.testing.assert_frame_equal(again.predict(frame), whole.predict(frame))
    pd.testing.assert_frame_equal(load_table_run(tmp_path / "run").predict(frame), whole.predict(frame))


def test_no_group_is_in_two_folds() -> None:
    groups = pd.Series(np.repeat(list("abcdefghij"), 6))
    place = deal(60, 5, 0, None, groups)
    assert (pd.Series(place).groupby(groups).nunique() == 1).all()
    assert np.bincount(place).tolist() == [12] * 5
