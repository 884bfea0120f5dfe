"""Do the estimators behave as scikit-learn's users expect? Seeds, errors, tools, and keeping."""

from __future__ import annotations

import copy
import io
import json
import pickle
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.ensemble import VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import temperance as tp
from temperance.apps.sklearn import BayesianClassifier, BayesianCounts, BayesianRegressor
from temperance.core import sealed
from temperance.core.errors import ArgumentError, CorruptRunError, DataError, StoreError, TemperanceWarning

QUICK: dict[str, Any] = {"hidden": (6,), "epochs": 4, "random_state": 0}
X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]


def pyramid(inputs: int, outputs: int) -> torch.nn.Module:
    """A network of the user's own, with a part that is random and frozen."""
    made = torch.nn.Sequential(torch.nn.Linear(inputs, 12), torch.nn.Tanh(), torch.nn.Linear(12, outputs))
    for parameter in made[0].parameters():
        parameter.requires_grad_(False)
    return made


# ---------------------------------------------------------------------- seeds


def test_an_integer_repeats_a_fit_whatever_the_global_state() -> None:
    first = BayesianClassifier("Ensemble(MAP(lr=1e-2), 2)", **QUICK).fit(X, Y).predict_proba(X)
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    before = torch.get_rng_state()
    again = BayesianClassifier("Ensemble(MAP(lr=1e-2), 2)", **QUICK).fit(X, Y).predict_proba(X)
    np.testing.assert_array_equal(first, again)
    assert torch.equal(before, torch.get_rng_state())
    other = BayesianClassifier("Ensemble(MAP(lr=1e-2), 2)", **{**QUICK, "random_state": 1}).fit(X, Y).predict_proba(X)
    assert not np.array_equal(first, other)


def test_a_random_state_moves_on_and_none_is_new_each_time() -> None:
    def fitted(random_state: Any) -> np.ndarray:
        return BayesianClassifier("map", **{**QUICK, "random_state": random_state}).fit(X, Y).predict_proba(X)

    one, two = np.random.RandomState(5), np.random.RandomState(5)
    first, second = fitted(one), fitted(one)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(fitted(two), first)
    np.random.seed(3)  # noqa: NPY002
    fresh = fitted(None)
    assert not np.array_equal(fresh, fitted(None))
    np.random.seed(3)  # noqa: NPY002
    np.testing.assert_array_equal(fresh, fitted(None))


# ---------------------------------------------------------------------- what comes in


@pytest.mark.parametrize(
    "labels", [NAMES, NAMES.astype(object), Y == 1, Y * 10 - 7, Y.astype(float), pd.Series(NAMES, dtype="category")]
)
def test_labels_of_any_kind_come_back(labels: Any) -> None:
    model = BayesianClassifier("map", **QUICK).fit(X, labels)
    np.testing.assert_array_equal(model.classes_, np.unique(np.asarray(labels)))
    predicted = model.predict(X)
    assert set(predicted) <= set(np.asarray(labels))
    assert np.mean(predicted == np.asarray(labels)) == model.score(X, labels)
    assert np.isfinite(model.log_score(X, labels))


def test_tables_of_pandas_keep_their_names() -> None:
    frame = pd.DataFrame(X, columns=list("abcd")).assign(constant=3, count=np.arange(len(X)))
    model = BayesianRegressor("map", **QUICK).fit(frame, pd.Series(X[:, 0]))
    assert list(model.feature_names_in_) == ["a", "b", "c", "d", "constant", "count"]
    assert model.n_features_in_ == 6
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a", "c", "d", "constant", "count"]])
    np.testing.assert_array_equal(model.predict(frame[:5]), model.predict(frame)[:5].copy())


def test_constant_columns_and_targets_do_no_harm() -> None:
    x = np.column_stack([X, np.full(len(X), 1e9 + 0.1)])
    with pytest.warns(TemperanceWarning, match="do not vary"):
        model = BayesianRegressor("map", **QUICK).fit(x, np.full(len(X), 7.0))
    mean, std = model.predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert np.isfinite(BayesianClassifier("map", **QUICK).fit(x, Y).predict_proba(x)).all()


def test_float32_is_learned_in_float32() -> None:
    narrow = BayesianClassifier("map", **QUICK).fit(X.astype(np.float32), Y)
    wide = BayesianClassifier("map", **QUICK).fit(X, Y)
    assert narrow.predict_proba(X).dtype == np.float32
    assert wide.predict_proba(X.astype(np.float32)).dtype == np.float64
    np.testing.assert_allclose(narrow.predict_proba(X), wide.predict_proba(X), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (np.where(X > 7, np.inf, X), Y, "infinity"),
        (X, np.zeros(len(X), int), "1 class"),
        (X[:1], Y[:1], "1 class"),
        (X, Y[:-1], "inconsistent numbers of samples"),
        (X, X[:, 0], "Unknown label type"),
        (X[:0], Y[:0], "0 sample"),
        (X[0], Y[:1], "2D array"),
    ],
)
def test_bad_tables_are_refused(x: Any, y: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        BayesianClassifier("map", **QUICK).fit(x, y)


def test_other_bad_tables() -> None:
    with pytest.raises(ValueError, match="1 sample"):
        BayesianRegressor("map", **QUICK).fit(X[:1], [1.0])
    with pytest.raises(ValueError, match="NaN"):
        BayesianRegressor("map", **QUICK).fit(X[:2], [1.0, np.nan])
    with pytest.raises(DataError, match="whole numbers"):
        BayesianCounts("map", **QUICK).fit(X, X[:, 0])
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        BayesianClassifier("map", **QUICK).fit(scipy.sparse.csr_array(X), Y)
    with pytest.raises(NotFittedError):
        BayesianClassifier().predict(X)
    model = BayesianClassifier("map", **QUICK).fit(X, Y)
    with pytest.raises(ValueError, match="expecting 4 features"):
        model.predict(X[:, :3])
    with pytest.raises(DataError, match="one label for each of the 3 rows"):
        model.log_score(X[:3], Y[:4])
    regressor = BayesianRegressor("map", **QUICK).fit(X, X[:, :2])
    for y in (X[:, 0], X[:3, :2], X[0, 0]):
        with pytest.raises(DataError, match="`y` must have 150 rows and 2 columns"):
            regressor.log_score(X, y)
    with pytest.raises(ArgumentError, match="`n_samples`"):
        regressor.sample_y(X, 0)
    with pytest.raises(ArgumentError, match="`level`"):
        regressor.predict_interval(X, 90)
    with pytest.raises(ArgumentError, match="`likelihood` must be"):
        BayesianRegressor("map", likelihood="normal").fit(X, Y)
    with pytest.raises(ArgumentError, match="`calibrate` must be 'auto' or None for BayesianCounts"):
        BayesianCounts("map", calibrate="variance").fit(X, Y)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"method": "ensembel"}, "Did you mean 'ensemble'"),
        ({"method": tp.MAP}, "`method` must be"),
        ({"method": tp.Laplace(tune=None)}, "trains nothing"),
        ({"hidden": 50}, "`hidden` must be a sequence"),
        ({"hidden": (50, 0)}, "`hidden` must hold positive"),
        ({"hidden": (2.5,)}, "`hidden` must hold positive"),
        ({"network": torch.nn.Linear(4, 3)}, "`network` must be a function"),
        ({"network": lambda inputs, outputs: 3}, "`network` must return"),
        ({"prior": 1.0}, "`prior` must be"),
        ({"epochs": 0}, "`epochs` must be"),
        ({"batch_size": 0}, "`batch_size` must be"),
        ({"draws": 0}, "`draws` must be"),
        ({"calibrate": "variance"}, "`calibrate` must be 'auto' or None, 'cross', 'temperature'"),
        ({"calibrate": "temperature", "validation_fraction": 1.0}, "`validation_fraction` must"),
        ({"device": "toaster"}, "`device` must be"),
    ],
)
def test_bad_settings_are_refused_by_fit(setting: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        BayesianClassifier(**{**QUICK, "method": "map", **setting}).fit(X, Y)


def test_methods_that_stop_early_get_their_rows() -> None:
    model = BayesianClassifier("MAP(lr=1e-2, patience=2)", **{**QUICK, "epochs": 3}, validation_fraction=0.2)
    model.fit(X, Y)
    assert model.fitted_.run["num_data"] == 120
    assert len(model.fitted_.info.held_out_scores) > 0


# ---------------------------------------------------------------------- scikit-learn's tools


def test_grid_search_over_methods_and_widths() -> None:
    grid = {"method": ["map", tp.Laplace(tp.MAP(lr=5e-3), tune=None)], "hidden": [(4,), ()]}
    search = GridSearchCV(BayesianClassifier(**QUICK), grid, cv=2, scoring=BayesianClassifier.log_score)
    search.fit(X, NAMES)
    assert len(search.cv_results_["params"]) == 4
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.predict(X[:2]).shape == (2,)
    scores = cross_val_score(BayesianClassifier("map", **QUICK), X, NAMES, cv=2, scoring="neg_log_loss")
    assert np.isfinite(scores).all()


def test_pipelines_votes_and_other_wrappers() -> None:
    quick = BayesianClassifier("map", **QUICK)
    pipeline = make_pipeline(StandardScaler(), quick).set_output(transform="pandas")
    frame = pd.DataFrame(X, columns=list("abcd"))
    assert list(pipeline.fit(frame, NAMES)[-1].feature_names_in_) == list("abcd")
    vote = VotingClassifier([("bayes", quick), ("linear", LogisticRegression(max_iter=1000))], voting="soft").fit(
        X, NAMES
    )
    np.testing.assert_allclose(vote.predict_proba(X).sum(1), 1)
    outside = CalibratedClassifierCV(quick, cv=2).fit(X, NAMES)
    np.testing.assert_allclose(outside.predict_proba(X).sum(1), 1)


def test_clones_are_unfitted_and_equal() -> None:
    model = BayesianRegressor(tp.MAP(lr=1e-2), prior=tp.GaussianPrior(2.0), **QUICK).fit(X, X[:, 0])
    twin = clone(model)
    assert not hasattr(twin, "fitted_")
    assert twin.get_params() == model.get_params()
    np.testing.assert_array_equal(twin.fit(X, X[:, 0]).predict(X), model.predict(X))


# ---------------------------------------------------------------------- keeping

METHODS = [
    "Laplace(MAP(lr=1e-2), tune='layer')",
    "Ensemble(SWAG(MAP(lr=1e-2, optimizer=SGD), rank=2), 2)",
    "Collect(SGHMC(lr=0.02))",
    "Variational(MeanField(), lr=1e-2)",
]


def same_predictions(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    if isinstance(one, BayesianClassifier):
        np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))
        np.testing.assert_array_equal(one.classes_, other.classes_)
        assert one.classes_.dtype == other.classes_.dtype
    else:
        np.testing.assert_array_equal(one.predict(X, return_std=True)[1], other.predict(X, return_std=True)[1])
    for part, again in zip(one.uncertainty(X[:9]), other.uncertainty(X[:9]), strict=True):
        np.testing.assert_array_equal(part, again)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [BayesianClassifier, BayesianRegressor])
def test_pickled_and_saved_estimators_predict_the_same_bits(method: str, kind: Any, tmp_path: Path) -> None:
    target = NAMES if kind is BayesianClassifier else X[:, :2]
    model = kind(method, **QUICK).fit(pd.DataFrame(X, columns=list("abcd")), target)
    model.set_params(hidden=(3, 3), method="map")  # settings for a later fit do not change what was learned
    same_predictions(model, pickle.loads(pickle.dumps(model)))
    same_predictions(model, copy.deepcopy(model))
    stream = io.BytesIO()
    joblib.dump(model, stream)
    same_predictions(model, joblib.load(stream))
    model.save(tmp_path / "model")
    again = kind.load(tmp_path / "model")
    same_predictions(model, again)
    assert list(again.feature_names_in_) == list("abcd")
    assert again.get_params() == model.get_params()
    assert again.fitted_.method == model.fitted_.method


@pytest.mark.parametrize("calibrate", ["temperature", "vector"])
def test_calibration_is_kept(calibrate: str, tmp_path: Path) -> None:
    noisy = np.where(np.arange(len(Y)) % 5 == 0, (Y + 1) % 3, Y)
    model = BayesianClassifier("map", calibrate=calibrate, validation_fraction=0.4, **QUICK).fit(X, noisy)
    assert model.calibrator_ is not None
    same_predictions(model, pickle.loads(pickle.dumps(model)))
    model.save(tmp_path / "model")
    same_predictions(model, BayesianClassifier.load(tmp_path / "model"))


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    model = BayesianRegressor("Laplace(MAP(lr=1e-2))", network=pyramid, **QUICK).fit(X, X[:, 0])
    assert model.fitted_.target.num_parameters == 13 + 1  # the last layer, and the noise
    same_predictions(model, pickle.loads(pickle.dumps(model)))
    model.save(tmp_path / "model")
    same_predictions(model, BayesianRegressor.load(tmp_path / "model", network=pyramid))
    with pytest.raises(ArgumentError, match="`network` must be the function"):
        BayesianRegressor.load(tmp_path / "model")


def test_folders_that_are_something_else_are_refused(tmp_path: Path) -> None:
    model = BayesianClassifier("map", **{**QUICK, "random_state": np.random.RandomState(0)})
    with pytest.raises(NotFittedError):
        model.save(tmp_path / "model")
    model.fit(X, Y).save(tmp_path / "model")
    assert BayesianClassifier.load(tmp_path / "model").random_state is None
    with pytest.raises(StoreError, match=r"use BayesianClassifier\.load"):
        BayesianRegressor.load(tmp_path / "model")
    with pytest.raises(ArgumentError, match="left out"):
        BayesianClassifier.load(tmp_path / "model", network=pyramid)
    model.fitted_.save(tmp_path / "plain")
    with pytest.raises(StoreError, match="plain run"):
        BayesianClassifier.load(tmp_path / "plain")
    with pytest.raises(StoreError, match="saved run"):
        BayesianClassifier.load(tmp_path / "nowhere")
    run = tp.load(tmp_path / "model", tp.nn.MLP(4, [6], 3).double())
    assert torch.equal(run.posterior.theta, model.fitted_.posterior.theta)


def test_a_damaged_or_malformed_estimator_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "model"
    BayesianClassifier("map", **QUICK).fit(X, NAMES).save(path)
    for file in path.iterdir():
        before = file.read_bytes()
        for place in range(0, len(before), max(1, len(before) // 40)):
            changed = bytearray(before)
            changed[place] ^= 1 << place % 8
            file.write_bytes(bytes(changed))
            with pytest.raises(CorruptRunError):
                BayesianClassifier.load(path)
        file.write_bytes(before)
    before = (path / "manifest.json").read_bytes()
    for number in range(6):
        manifest = json.loads(before)
        del manifest["sha256"]
        entries = manifest["parts"]["estimator"]["form"]["$dict"]
        name = entries[number][0]
        for value in (None, {"$dict": [["surprise", 1]]}) if name in ("params", "blueprint", "learned") else ():
            entries[number][1] = value
            (path / "manifest.json").write_bytes(sealed.render(manifest))
            with pytest.raises(CorruptRunError):
                BayesianClassifier.load(path)
        del entries[number]
        (path / "manifest.json").write_bytes(sealed.render(manifest))
        with pytest.raises(CorruptRunError, match=name):
            BayesianClassifier.load(path)
    (path / "manifest.json").write_bytes(before)
    BayesianClassifier.load(path)


# ---------------------------------------------------------------------- missing values, more rows, several labels


def test_missing_values_are_learned_from_and_answered() -> None:
    rng = np.random.default_rng(0)
    holes = np.where((rng.random(X.shape) < 0.2) & (np.arange(4) < 2), np.nan, X)
    holes[Y == 2, 0] = np.nan  # that it is missing says something
    model = BayesianClassifier("map", hidden=(8,), epochs=30, random_state=0).fit(holes, Y)
    assert model.n_features_in_ == 4
    assert model._blueprint.inputs == 6  # two columns have gaps
    assert model.score(holes, Y) > 0.9
    same_predictions(model, pickle.loads(pickle.dumps(model)))
    assert model.__sklearn_tags__().input_tags.allow_nan
    with pytest.warns(TemperanceWarning, match="columns 3 have missing values and had none in training"):
        assert np.isfinite(model.predict_proba(np.where(np.arange(4) == 3, np.nan, X))).all()
    regressor = BayesianRegressor("map", **QUICK).fit(holes, X[:, 2])
    assert np.isfinite(regressor.predict(holes)).all()
    empty = np.where(np.arange(4) == 1, np.nan, X)
    assert np.isfinite(BayesianRegressor("map", **QUICK).fit(empty, X[:, 2]).predict(empty)).all()


def test_missing_values_are_saved(tmp_path: Path) -> None:
    holes = np.where(X > 6, np.nan, X)
    model = BayesianClassifier("map", **QUICK).fit(holes, Y)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(
        BayesianClassifier.load(tmp_path / "model").predict_proba(holes), model.predict_proba(holes)
    )


def test_rows_that_come_in_parts_are_learned_as_one() -> None:
    whole = BayesianClassifier("map", **QUICK).fit(X, NAMES).predict_proba(X)
    model = BayesianClassifier("map", **QUICK)
    model.partial_fit(X[:60], NAMES[:60], classes=np.unique(NAMES))  # two of the three classes
    assert model.predict_proba(X).shape == (150, 3)
    model.partial_fit(X[60:], NAMES[60:])
    np.testing.assert_array_equal(model.predict_proba(X), whole)
    with pytest.raises(DataError, match="labels that `classes` named"):
        model.partial_fit(X[:2], ["rose", "setosa"])
    with pytest.raises(ArgumentError, match="`classes` must be given"):
        BayesianClassifier("map", **QUICK).partial_fit(X, Y)
    after = BayesianClassifier("map", **QUICK).fit(X[50:], NAMES[50:])
    with pytest.raises(DataError, match="labels that `classes` named"):
        after.partial_fit(X[:50], NAMES[:50])
    with pytest.raises(ArgumentError, match="not saved with an estimator"):
        pickle.loads(pickle.dumps(model)).partial_fit(X, NAMES)
    first = BayesianRegressor("map", **QUICK).fit(X, X[:, 0]).predict(X)
    parts = BayesianRegressor("map", **QUICK).partial_fit(X[:100], X[:100, 0]).partial_fit(X[100:], X[100:, 0])
    np.testing.assert_array_equal(parts.predict(X), first)
    with pytest.raises(DataError, match="as many columns"):
        parts.partial_fit(X, X[:, :2])


@pytest.mark.parametrize("kind", [BayesianClassifier, BayesianRegressor])
def test_rows_of_a_call_that_failed_are_not_counted_when_it_is_repeated(kind: Any) -> None:
    y = Y if kind is BayesianClassifier else X[:, 0]
    known = {"classes": np.unique(Y)} if kind is BayesianClassifier else {}
    model = kind("map", **QUICK).partial_fit(X[:60], y[:60], **known)
    good = model.epochs
    with pytest.raises(ArgumentError, match="epochs"):
        model.set_params(epochs=-1).partial_fit(X[60:], y[60:])
    model.set_params(epochs=good).partial_fit(X[60:], y[60:])
    assert np.array_equal(model.predict(X), kind("map", **QUICK).fit(X, y).predict(X))
    with pytest.raises(ArgumentError, match="epochs"):
        model.set_params(epochs=-1).fit(X[:60], y[:60])
    with pytest.raises(ArgumentError, match="partial_fit"):  # what was seen before is forgotten, not half kept
        model.set_params(epochs=good).partial_fit(X[60:], y[60:])


def test_several_labels_are_bernoulli(tmp_path: Path) -> None:
    labels = np.column_stack([X[:, 0] > 5.8, Y == 0, Y != 0]).astype(int)
    model = BayesianClassifier("Ensemble(MAP(lr=2e-2), 2)", hidden=(8,), epochs=40, random_state=0).fit(X, labels)
    assert isinstance(model.fitted_.target.likelihood, tp.Bernoulli)
    probs = model.predict_proba(X)
    assert probs.shape == (150, 3)
    assert probs[:, 1:].sum(1) == pytest.approx(np.ones(150), abs=0.2)
    assert (model.predict(X) == (probs > 0.5)).all()
    assert model.score(X, labels) > 0.9
    by_hand = np.log(np.where(labels == 1, probs, 1 - probs)).sum(1).mean()
    assert model.log_score(X, labels) == pytest.approx(by_hand, rel=1e-3)
    total, aleatoric, epistemic = model.uncertainty(X)
    np.testing.assert_allclose(total, aleatoric + epistemic, atol=1e-6)
    same_predictions(model, pickle.loads(pickle.dumps(model)))
    model.save(tmp_path / "model")
    same_predictions(model, BayesianClassifier.load(tmp_path / "model"))
    assert model.fit(X, Y).predict(X).shape == (150,)  # and back
    with pytest.raises(ValueError, match=r"zeros and ones|not supported|Unknown label"):
        BayesianClassifier("map", **QUICK).fit(X, np.column_stack([Y, Y]))


def test_grid_search_over_names_expressions_and_methods() -> None:
    methods = ["map", "Ensemble(MAP(lr=1e-2), 2)", tp.Laplace(tp.MAP(lr=5e-3), tune=None)]
    search = GridSearchCV(BayesianRegressor(**QUICK), {"method": methods}, cv=2, n_jobs=1).fit(X, X[:, 0])
    assert search.best_params_["method"] in methods
    for method in methods:
        model = clone(BayesianRegressor(**QUICK).set_params(method=method))
        assert model.get_params()["method"] == method
        assert np.isfinite(model.fit(X, X[:, 0]).predict(X)).all()


def test_small_fits_take_one_thread_and_give_it_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    seen = []
    try:
        real = tp.MAP.step

        def step(self: Any, *arguments: Any) -> Any:
            seen.append(torch.get_num_threads())
            return real(self, *arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tp.MAP, "step", step)
            BayesianClassifier("map", **QUICK).fit(X, Y)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_default_that_is_given_in_part_is_the_one_of_the_recipe() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 2)), np.arange(20) % 2
    short = BayesianClassifier(random_state=0).fit(X, y).fitted_
    assert (short.info.steps, short.method.base.lr) == (100, 1e-2)
    for options in ({"epochs": 1}, {"batch_size": 16}, {"method": "ensemble", "epochs": 1}):
        assert BayesianClassifier(random_state=0, **options).fit(X, y).fitted_.method.base.lr == 5e-3


def test_one_flipped_bit_of_a_pickled_estimator_never_gives_other_predictions() -> None:
    """Of what we put into it: the framing of pickle is its own."""
    model = BayesianRegressor("map", **QUICK).fit(X, X[:, 0])
    packed = model.__getstate__()
    right = model.predict(X)

    def restored(state: dict[str, Any]) -> BayesianRegressor:
        made = BayesianRegressor()
        made.__setstate__(state)
        return made

    np.testing.assert_array_equal(restored(packed).predict(X), right)
    for name, part in packed["fitted_"]["parts"].items():
        for place in range(0, len(part["tensors"]), max(1, len(part["tensors"]) // 20)):
            changed = copy.deepcopy(packed)
            data = bytearray(part["tensors"])
            data[place] ^= 1 << place % 8
            changed["fitted_"]["parts"][name]["tensors"] = bytes(data)
            with pytest.raises(CorruptRunError, match=f"pickled estimator is damaged: {name} does not have its sha256"):
                restored(changed)
    changed = copy.deepcopy(packed)
    changed["_x_units"][0][0] += 1e-9
    with pytest.raises(CorruptRunError, match="what it learned of the columns"):
        restored(changed)
    changed = copy.deepcopy(packed)
    changed["fitted_"]["manifest"]["seed"] += 1
    with pytest.raises(CorruptRunError, match="the manifest"):
        restored(changed)
    changed = copy.deepcopy(packed)
    del changed["fitted_"]["sha256"]
    with pytest.raises(CorruptRunError, match="the pickled estimator"):
        restored(changed)
