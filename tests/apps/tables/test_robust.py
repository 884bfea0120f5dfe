"""One row does not decide what the others mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import temperance as tp
from temperance.apps.tables import fit_table
from temperance.apps.tables.columns import learn_number
from temperance.apps.tables.encode import encode
from temperance.apps.tables.kinds import KINDS
from temperance.apps.tables.robust import target_limits
from temperance.core.outcomes import Reals
from temperance.predict import Log, MonotonePredictive

QUICK: dict[str, Any] = {"method": "MAP(lr=1e-2)", "epochs": 40}


def linear(rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(rows, 3)), columns=list("abc"))
    return frame.assign(y=30 + 5 * frame["a"] + rng.normal(size=rows))


@pytest.mark.parametrize(("factor", "folds"), [(100, 0), (1000, 3)])
def test_one_mistyped_target_spoils_nothing_and_is_named(factor: int, folds: int) -> None:
    frame = linear()
    usual = fit_table(frame, "y", folds=folds, **QUICK)
    train = np.flatnonzero(~frame["y"].isin(usual.test_frame["y"]))
    wrong = frame.assign(y=np.where(np.arange(400) == train[7], factor * frame["y"], frame["y"]))
    run = fit_table(wrong, "y", folds=folds, **QUICK)
    words = " ".join(run.notices)
    assert "skewed" not in words
    assert f"row {train[7]} (" in words
    found, plain = run.evaluate(), usual.evaluate()
    assert found.scores["rmse"] < 1.5 * plain.scores["rmse"]
    assert found.size < 2 * plain.size
    assert run.guard.tolerance == pytest.approx(usual.guard.tolerance, rel=0.05)
    made = run.predict(frame)
    assert (made["prediction_mean"] < made["prediction_high"]).all()
    assert found.baseline["log_loss"] == pytest.approx(plain.baseline["log_loss"], rel=0.05)


def test_long_tails_are_no_mistakes() -> None:
    rng = np.random.default_rng(0)
    prices = np.exp(rng.normal(10, 1.2, 5000))
    assert (prices < target_limits(prices)[1]).all()
    assert (prices < target_limits(prices, logs=True)[1]).all()
    waiting = rng.exponential(1.0, 5000)
    assert (waiting > target_limits(waiting, logs=True)[0]).all()
    returns = rng.standard_cauchy(5000)  # a tail that nobody types
    assert np.isinf(target_limits(returns)).all()


def test_skewness_is_not_decided_by_one_row() -> None:
    rng = np.random.default_rng(0)
    kind = KINDS.of(Reals())
    level = rng.normal(30, 5, 400)
    assert not kind.transforms(np.r_[level, 100.0])
    assert not kind.transforms(np.r_[level, 3e4])
    assert kind.transforms(rng.exponential(3.0, 400))
    assert kind.transforms(np.exp(rng.normal(size=60)))


def test_means_of_learned_logarithms_stay_near_what_was_seen() -> None:
    base = tp.predict.from_outputs(torch.tensor([[1.0], [50.0]]), tp.Normal(scale=6.0))
    wild, tame = MonotonePredictive(base, Log()), MonotonePredictive(base, Log(most=float(np.log(70.0))))  # type: ignore[arg-type]
    assert float(wild.mean().min()) > 1e8
    assert float(tame.mean().max()) == pytest.approx(70.0)
    torch.testing.assert_close(wild.quantile(0.5), tame.quantile(0.5))
    rng = np.random.default_rng(1)
    frame = linear(120).assign(y=np.exp(rng.normal(size=120)))
    run = fit_table(frame, "y", log=True, folds=0, **QUICK)
    far = run.predict(pd.DataFrame({"a": [1e3], "b": [-1e3], "c": [1e3]}))
    assert far["prediction_mean"][0] <= 10 * frame["y"].max() * (1 + 1e-6)


def test_one_wild_cell_does_not_squash_its_column() -> None:
    frame = linear()
    clean = fit_table(frame, "y", **QUICK, folds=0).evaluate().scores["rmse"]
    wild = frame.assign(a=np.where(np.arange(400) == 3, 1e20, frame["a"]))
    run = fit_table(wild, "y", **QUICK, folds=0)
    assert run.evaluate(frame).scores["rmse"] < 1.3 * clean
    assert any("`a` has 1 value far from the others, e.g. 1e+20" in words for words in run.notices)


def test_a_code_for_missing_values_is_missing() -> None:
    values = np.random.default_rng(0).normal(size=600)
    values[::20] = -9999.0
    column = learn_number("sent", values)
    assert column is not None
    assert column.codes == (-9999.0,)
    assert column.missing
    assert column.scale == pytest.approx(1.0, rel=0.1)
    made = encode([column], pd.DataFrame({"sent": [0.5, -9999.0, np.nan]}))
    assert made.x[:, 1].tolist() == [0.0, 1.0, 1.0]
    assert made.x[1, 0] == made.x[2, 0]
    assert not made.flags
    frame = linear().assign(y=lambda f: f["a"] * 3)
    frame.loc[frame.index % 20 == 3, "a"] = -9999
    run = fit_table(frame, "y", **QUICK, folds=0)
    assert any("-9999 is taken for missing" in words for words in run.notices)


@pytest.mark.parametrize(
    "values",
    [np.arange(100.0), np.r_[np.zeros(80), np.arange(1.0, 21.0)], np.repeat([0.0, 1.0, 2.0, 30.0], 25)],
)
def test_usual_columns_have_no_codes(values: np.ndarray) -> None:
    column = learn_number("a", values)
    assert column is not None
    assert column.codes == ()
    assert column.cut is None
