"""Intervals and probabilities of the default estimators are worth what they say, on rows that were not learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import make_friedman1

import temperance as tp
from temperance.apps.sklearn import BayesianClassifier, BayesianRegressor
from temperance.apps.sklearn.cross import deal
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.judge.calibrate import VarianceScale
from temperance.predict.calibrated import from_outputs

QUICK: dict[str, Any] = {"epochs": 60, "random_state": 0}


def test_default_intervals_hold_what_they_promise() -> None:
    X, y = make_friedman1(260, 8, noise=1.0, random_state=1)
    new, truth = X[100:], y[100:]
    plain = BayesianRegressor(calibrate=None, random_state=0).fit(X[:100], y[:100])
    usual = BayesianRegressor(random_state=0).fit(X[:100], y[:100])
    covered = []
    for model in (plain, usual):
        low, high = model.predict_interval(new)
        covered.append(float(np.mean((low <= truth) & (truth <= high))))
    assert covered[0] < 0.7
    assert covered[1] > 0.8
    assert usual.log_score(new, truth) > plain.log_score(new, truth) + 0.5
    np.testing.assert_allclose(usual.predict(new), plain.predict(new), rtol=1e-6)  # all rows train in both


def test_noisy_labels_are_not_believed() -> None:
    gains = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(600, 5))
        y = (rng.random(600) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
        plain, usual = (
            BayesianClassifier(calibrate=how, random_state=0).fit(X[:100], y[:100]).log_score(X[100:], y[100:])
            for how in (None, "auto")
        )
        gains.append(usual - plain)
    assert min(gains) > -0.02
    assert np.mean(gains) > 0.03


def test_only_where_nobody_has_other_wishes() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), rng.normal(size=60)
    assert BayesianRegressor(**QUICK).fit(X, y).calibrator_ is not None
    for options in ({"calibrate": None}, {"method": "map"}, {"likelihood": tp.StudentT()}):
        assert BayesianRegressor(**{**QUICK, **options}).fit(X, y).calibrator_ is None
    assert BayesianRegressor(**QUICK).fit(X, y, sample_weight=np.full(60, 2.0)).calibrator_ is None
    assert BayesianRegressor(**QUICK).fit(X[:49], y[:49]).calibrator_ is None
    assert BayesianRegressor("map", calibrate="cross", **QUICK).fit(X, y).calibrator_ is not None
    with pytest.raises(ArgumentError, match="`calibrate` must be None where rows have weights"):
        BayesianRegressor(calibrate="cross", **QUICK).fit(X, y, sample_weight=np.full(60, 2.0))


def test_too_few_rows_to_calibrate_with_are_said_to_be() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)), rng.normal(size=40)
    with pytest.warns(TemperanceWarning, match="40 rows are too few to calibrate in folds"):
        assert BayesianRegressor("map", calibrate="cross", **QUICK).fit(X, y).calibrator_ is None


def test_several_columns_have_a_factor_each_and_it_is_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = BayesianRegressor(**QUICK).fit(X, np.stack([X[:, 0], rng.normal(size=60)], 1))
    assert model.calibrator_ is not None
    assert model.calibrator_.scale.shape == (2,)  # type: ignore[attr-defined]
    model.save(tmp_path / "model")
    again = BayesianRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(np.stack(again.predict_interval(X)), np.stack(model.predict_interval(X)))


def test_folds_have_their_share_of_each_label() -> None:
    place = deal(np.repeat([0, 1], [40, 10]), 0)
    for k in range(5):
        assert np.bincount(np.repeat([0, 1], [40, 10])[place == k]).tolist() == [8, 2]


def test_a_few_rows_far_off_do_not_widen_all_intervals() -> None:
    torch.manual_seed(0)
    y = 2 * torch.randn(2000, 1)
    y[:10] *= 100
    base = from_outputs(torch.zeros(2000, 1), tp.Normal(scale=1.0))
    assert float(VarianceScale().fit(base, y).scale) > 8
    assert float(VarianceScale(trim=0.02).fit(base, y).scale) == pytest.approx(2.0, rel=0.06)
    assert float(VarianceScale(trim=0.02).fit(base, y / 2).scale) == pytest.approx(1.0, rel=0.06)
    with pytest.raises(ArgumentError, match="`trim`"):
        VarianceScale(trim=0.5)
