"""A table's promises rest on rows that were used for nothing else."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import temperance as tp
from temperance.apps.tables import TableRun, fit_table


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


def test_few_rows_all_keep_the_promise_and_unknown_rows_list_more_classes() -> None:
    rng = np.random.default_rng(1)
    kind = rng.integers(0, 2, size=400)
    frame = pd.DataFrame(
        {"kind": np.array(["p", "q"])[kind], "x": rng.normal(size=400), "y": np.array(["no", "yes"])[kind]}
    )
    made = fit_table(frame, "y", method="map", epochs=40, progress=False)
    assert len(made.state.guard_x) == 80  # both halves: 40 rows are too few to calibrate on
    assert made.state.guard.deferral.answers
    new = made.predict(pd.DataFrame({"kind": ["p", "zzz"], "x": [0.0, 0.0]}))
    assert new.loc[0, "plausible"] == "no"
    assert set(new.loc[1, "plausible"].split(" | ")) == {"no", "yes"}
