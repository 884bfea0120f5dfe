"""How long a table is trained on: fewer epochs where rows that calibrate are clearly better off so, and only there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from temperance.apps.recipes import training
from temperance.apps.tables import TableRun, fit_table, load_table_run
from temperance.core.outcomes import Classes, Reals

SHORTER = "epochs are used instead of"


def weak(rows: int, seed: int = 0) -> pd.DataFrame:
    """Two classes, one row in six of the rarer, of which twelve columns tell little."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 12))
    score = x[:, :5] @ [0.5, -0.4, 0.3, 0.25, -0.2] - 1.9
    frame = pd.DataFrame(x, columns=[f"x{k}" for k in range(12)])
    return frame.assign(y=np.where(rng.random(rows) < 1 / (1 + np.exp(-score)), "yes", "no"))


def clear(rows: int, seed: int = 0) -> pd.DataFrame:
    """A number that the columns tell well."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(rows, 3)), columns=list("abc"))
    return frame.assign(y=np.sin(2 * frame["a"]) * frame["b"] + 0.1 * rng.normal(size=rows))


def shortened(run: TableRun) -> bool:
    return any(SHORTER in words for words in run.notices)


@pytest.fixture(scope="module")
def run() -> TableRun:
    return fit_table(weak(2800), "y", method="Ensemble(MAP(lr=5e-3), 2)", progress=False)


def test_noise_is_not_learned_by_heart(run: TableRun) -> None:
    new = weak(6000, seed=1)
    whole = training(run.state.settings["rows"], Classes())[0]
    assert shortened(run)
    assert run.state.settings["epochs"] < whole / 2
    heart = fit_table(weak(2800), "y", method="Ensemble(MAP(lr=5e-3), 2)", epochs=whole, progress=False)
    assert not shortened(heart)
    assert heart.state.settings["epochs"] == whole
    assert run.evaluate(new).scores["log_loss"] < heart.evaluate(new).scores["log_loss"] - 0.03


def test_a_weak_signal_is_learned_as_well_as_by_logistic_regression(run: TableRun) -> None:
    train, new = weak(2800), weak(6000, seed=1)
    known = LogisticRegression().fit(train.drop(columns="y"), train["y"])
    best = log_loss(new["y"], known.predict_proba(new.drop(columns="y")))
    assert run.evaluate(new).scores["log_loss"] < best + 0.015


def test_where_there_is_much_to_learn_nothing_is_cut_short() -> None:
    frame = clear(900)
    run = fit_table(frame, "y", method="map", progress=False)
    whole = training(run.state.settings["rows"], Reals())[0]
    assert not shortened(run)
    assert run.state.settings["epochs"] == whole
    same = fit_table(frame, "y", method="map", epochs=whole, progress=False)
    pd.testing.assert_frame_equal(run.predict(frame.head(20)), same.predict(frame.head(20)))


def test_rows_that_promise_are_not_looked_at(run: TableRun) -> None:
    """The half of the validation rows that calibrates chose the length; the other half alone promises."""
    assert len(run.state.guard_x) == 280
    new = weak(6000, seed=1)
    assert abs(run.evaluate(new).coverage - 0.9) < 4 * np.sqrt(0.09 / 280)


@pytest.mark.parametrize(
    ("rows", "method"),
    [(200, "map"), (1200, "MAP(lr=5e-3, patience=0.1)"), (1200, "Ensemble(SWAG(MAP(lr=5e-3)), 2)")],
    ids=["in folds", "stops by itself", "has draws"],
)
def test_other_fits_are_as_long_as_they_were(rows: int, method: str) -> None:
    assert not shortened(fit_table(weak(rows), "y", method=method, progress=False))


def test_a_shorter_fit_is_saved_and_loaded(tmp_path: Path) -> None:
    frame = weak(2800)
    run = fit_table(frame, "y", method="map", out=tmp_path / "run", progress=False)
    assert shortened(run)
    again = load_table_run(tmp_path / "run")
    pd.testing.assert_frame_equal(run.predict(frame.head(20)), again.predict(frame.head(20)))
    assert not (tmp_path / "run" / "checkpoint").exists()
