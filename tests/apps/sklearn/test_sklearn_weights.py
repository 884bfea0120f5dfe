"""Weights of rows and of classes: a weight of 2 is the row twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from temperance.apps.sklearn import BayesianClassifier, BayesianRegressor
from temperance.core.errors import ArgumentError, DataError

LINEAR: dict[str, Any] = {"hidden": (), "epochs": 400, "batch_size": 1000, "random_state": 0}


def rows(count: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2))
    weights = rng.integers(0, 4, size=count)
    return x, (x[:, 0] + 0.5 * rng.normal(size=count) > 0.3).astype(int), weights


def test_integer_weights_are_repeated_rows() -> None:
    """At the mode of a convex problem, where steps have led to the same place."""
    x, y, w = rows()
    method = "Laplace(MAP(lr=3e-2), Dense(), tune=None)"
    ours = BayesianClassifier(method, **LINEAR).fit(x, y, sample_weight=w)
    theirs = BayesianClassifier(method, **LINEAR).fit(x.repeat(w, axis=0), y.repeat(w))
    np.testing.assert_allclose(ours._x_units[0], theirs._x_units[0])
    np.testing.assert_allclose(ours.predict_proba(x), theirs.predict_proba(x), rtol=2e-3)
    target = x[:, 1] + 0.1 * y
    weighted = BayesianRegressor(method, **LINEAR).fit(x, target, sample_weight=w)
    repeated = BayesianRegressor(method, **LINEAR).fit(x.repeat(w, axis=0), target.repeat(w))
    np.testing.assert_allclose(weighted.predict(x), repeated.predict(x), rtol=2e-3, atol=2e-3)


def test_classes_of_equal_shares() -> None:
    """Of two labels in one spot, balanced weights make them as probable as each other; weights multiply."""
    x = np.zeros((50, 1))
    y = np.array(["rare"] * 5 + ["usual"] * 45)
    fit = {**LINEAR, "standardise": False, "epochs": 600}
    plain = BayesianClassifier("MAP(lr=3e-2)", **fit).fit(x, y).predict_proba(x)[0, 0]
    even = BayesianClassifier("MAP(lr=3e-2)", class_weight="balanced", **fit).fit(x, y).predict_proba(x)[0, 0]
    assert plain == pytest.approx(0.1, abs=0.05)
    assert even == pytest.approx(0.5, abs=0.02)
    both = BayesianClassifier("MAP(lr=3e-2)", class_weight={"rare": 3.0, "usual": 1.0}, **fit)
    both.fit(x, y, sample_weight=np.where(y == "rare", 3.0, 1.0))
    assert both.predict_proba(x)[0, 0] == pytest.approx(0.5, abs=0.02)


def test_weights_are_saved_with_the_settings_and_bad_ones_are_refused(tmp_path: Path) -> None:
    x, y, w = rows()
    model = BayesianClassifier("MAP(lr=3e-2)", class_weight={0: 2.0, 1: 1.0}, hidden=(4,), epochs=2, random_state=0)
    model.fit(x, y).save(tmp_path / "run")
    again = BayesianClassifier.load(tmp_path / "run")
    assert again.class_weight == {0: 2.0, 1: 1.0}
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    with pytest.raises(ValueError, match="Negative values"):
        model.fit(x, y, sample_weight=-w.astype(float))
    with pytest.raises((DataError, ValueError), match="zero"):
        model.fit(x, y, sample_weight=np.zeros(len(y)))
    with pytest.raises(ArgumentError, match="`calibrate` must be None where rows have weights"):
        BayesianClassifier("MAP()", calibrate="temperature", epochs=1).fit(x, y, sample_weight=w)


@pytest.mark.parametrize("kind", [BayesianRegressor, BayesianClassifier])
def test_rows_of_weight_zero_are_no_rows(kind: type[Any]) -> None:
    """Whatever stands in them, missing inputs and targets a thousand spreads away included."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = x[:, 0] + 0.1 * rng.normal(size=60)
    y = (y > 0).astype(int) if kind is BayesianClassifier else y
    bad = np.arange(60) % 5 == 0
    spoiled_x, spoiled_y = x.copy(), y.copy()
    spoiled_x[bad], spoiled_y[bad] = np.nan, (1 - y[bad] if kind is BayesianClassifier else -9999.0)
    settings: dict[str, Any] = {"method": "Ensemble(MAP(lr=1e-2), 2)", "hidden": (8,), "epochs": 5, "random_state": 0}
    ours = kind(**settings).fit(spoiled_x, spoiled_y, sample_weight=(~bad).astype(float))
    theirs = kind(**settings).fit(x[~bad], y[~bad])
    np.testing.assert_allclose(ours.predict(x), theirs.predict(x), rtol=1e-12)
    if kind is BayesianRegressor:
        np.testing.assert_allclose(ours.predict_interval(x), theirs.predict_interval(x), rtol=1e-12)


def test_weights_of_zero_and_one_are_calibrated_as_the_rows_that_are_left() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(75, 2))
    y, bad = x[:, 0] + rng.normal(size=75), np.arange(75) % 5 == 0
    settings: dict[str, Any] = {"epochs": 5, "random_state": 0}
    ours = BayesianRegressor(**settings).fit(x, np.where(bad, -999.0, y), sample_weight=(~bad).astype(float))
    theirs = BayesianRegressor(**settings).fit(x[~bad], y[~bad])
    assert ours.calibrator_ is not None
    np.testing.assert_allclose(ours.predict_interval(x), theirs.predict_interval(x), rtol=1e-12)


def test_rows_of_hardly_any_weight_do_hardly_anything() -> None:
    """The learned noise starts at the weighted spread: 1e-6 rows far away do not move it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = x[:, 0] + 0.1 * rng.normal(size=60)
    bad = np.arange(60) % 5 == 0
    w = np.where(bad, 1e-9, 1.0)
    method = "Laplace(MAP(lr=3e-2), Dense(), tune=None)"  # which sets no rows aside
    ours = BayesianRegressor(method, **LINEAR).fit(x, np.where(bad, -99.0, y), sample_weight=w)
    theirs = BayesianRegressor(method, **LINEAR).fit(x[~bad], y[~bad])
    np.testing.assert_allclose(ours.predict(x), theirs.predict(x), atol=3e-3)
    for one, other in zip(ours.predict_interval(x), theirs.predict_interval(x), strict=True):
        np.testing.assert_allclose(one, other, atol=5e-3)


def test_classes_of_no_weight_leave_nothing_to_learn() -> None:
    x, y = np.arange(20.0)[:, None], np.arange(20) % 2
    with pytest.raises(DataError, match="all of them are zero"):
        BayesianClassifier("map", class_weight={0: 0.0, 1: 0.0}).fit(x, y)
    with pytest.raises(DataError, match="all of them are zero"):  # each by itself leaves some
        BayesianClassifier("map", class_weight={0: 0.0, 1: 1.0}).fit(x, y, sample_weight=1.0 - y)


@pytest.mark.parametrize("standardise", [True, False])
def test_missing_values_become_the_mean_of_rows_as_often_as_they_count(standardise: bool) -> None:
    x = np.array([[0.0], [1.0], [4.0], [np.nan], [2.0]])
    often = np.array([3, 1, 1, 2, 1])
    settings: dict[str, Any] = {"epochs": 2, "hidden": (3,), "standardise": standardise, "random_state": 0}
    weighed = BayesianRegressor("map", **settings).fit(x, np.arange(5.0), sample_weight=often)
    assert weighed._fill == pytest.approx([7 / 6])
    repeated = BayesianRegressor("map", **settings).fit(np.repeat(x, often, axis=0), np.repeat(np.arange(5.0), often))
    assert weighed._inputs(x).numpy() == pytest.approx(repeated._inputs(x).numpy())
