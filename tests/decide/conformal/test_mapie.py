"""Thresholds, sets and intervals agree with mapie's where the definitions do, through estimators that hand numbers
through: X holds the probabilities, or the mean and the two quantiles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

import temperance as tp
from temperance.decide.conformal import APS, CQR, Split, conformal_quantile
from temperance.predict.calibrated import from_outputs

pytest.importorskip("mapie")
from mapie.classification import SplitConformalClassifier
from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor

pytestmark = pytest.mark.filterwarnings("ignore")
CALIBRATION, NEW, LEVEL = 157, 300, 0.85


class Through(ClassifierMixin, BaseEstimator):
    """predict_proba(X) = X."""

    def fit(self, x, y):
        self.classes_, self.n_features_in_ = np.arange(x.shape[1]), x.shape[1]
        return self

    def predict_proba(self, x):
        return x

    def predict(self, x):
        return x.argmax(1)


class Column(RegressorMixin, BaseEstimator):
    """predict(X) = one column of X."""

    def __init__(self, column: int = 0):
        self.column = column

    def fit(self, x, y):
        self.n_features_in_ = x.shape[1]
        return self

    def predict(self, x):
        return x[:, self.column]


@pytest.fixture(scope="module")
def classes():
    rng = torch.Generator().manual_seed(0)
    f = torch.randn(CALIBRATION + NEW, 5, generator=rng, dtype=torch.float64)
    y = torch.multinomial((1.5 * f).softmax(-1), 1, generator=rng).squeeze(1)
    y[:5] = torch.arange(5)
    return f, y


def split(classes, score: str, state: int = 0):
    f, y = classes
    x = f.softmax(-1).numpy()
    estimator = Through().fit(x, y.numpy())
    made = SplitConformalClassifier(estimator, LEVEL, score, prefit=True, random_state=state)
    return made.conformalize(x[:CALIBRATION], y[:CALIBRATION].numpy()), x


def ours(classes):
    f, y = classes
    return (
        from_outputs(f[:CALIBRATION], tp.Categorical()),
        y[:CALIBRATION],
        from_outputs(f[CALIBRATION:], tp.Categorical()),
    )


def test_lac(classes):
    theirs, x = split(classes, "lac")
    calibration, y, new = ours(classes)
    made = Split().calibrate(calibration, y, LEVEL)
    _, sets = theirs.predict_set(x[CALIBRATION:])
    assert float(made.thresholds) == pytest.approx(
        float(theirs._mapie_classifier.conformity_score_function_.quantiles_[0]), abs=1e-12
    )
    assert np.array_equal(made.sets(new).numpy(), sets[..., 0])


def test_aps_with_the_same_random_numbers(classes):
    """mapie takes the cumulated probability less U p, ours what is before plus U' p: the same with U' = 1 − U."""
    theirs, x = split(classes, "aps", state=7)
    calibration, y, new = ours(classes)
    u = torch.as_tensor(1 - np.random.RandomState(7).uniform(size=CALIBRATION))
    scores = APS().class_scores(calibration.probs, u).gather(1, y.unsqueeze(1)).squeeze(1)
    threshold = float(conformal_quantile(scores, LEVEL))
    _, sets = theirs.predict_set(x[CALIBRATION:], conformity_score_params={"include_last_label": "randomized"})
    assert threshold == pytest.approx(
        float(theirs._mapie_classifier.conformity_score_function_.quantiles_[0]), abs=1e-12
    )
    v = torch.as_tensor(1 - np.random.RandomState(7).uniform(size=NEW))
    assert np.array_equal((APS().class_scores(new.probs, v) <= threshold).numpy(), sets[..., 0])


def test_absolute_residuals():
    rng = torch.Generator().manual_seed(1)
    mean = torch.randn(CALIBRATION + NEW, 1, generator=rng, dtype=torch.float64)
    y = mean + torch.randn(CALIBRATION + NEW, 1, generator=rng, dtype=torch.float64)
    estimator = Column().fit(mean.numpy(), y.numpy().ravel())
    theirs = SplitConformalRegressor(estimator, LEVEL, "absolute", prefit=True)
    theirs.conformalize(mean[:CALIBRATION].numpy(), y[:CALIBRATION].numpy().ravel())
    _, ends = theirs.predict_interval(mean[CALIBRATION:].numpy())
    made = Split().calibrate(from_outputs(mean[:CALIBRATION], tp.Normal(1.0)), y[:CALIBRATION], LEVEL)
    low, high = made.interval(from_outputs(mean[CALIBRATION:], tp.Normal(1.0)))
    assert np.allclose(ends[:, 0, 0], low[:, 0].numpy(), atol=1e-10)
    assert np.allclose(ends[:, 1, 0], high[:, 0].numpy(), atol=1e-10)


def test_conformalised_quantiles():
    rng = torch.Generator().manual_seed(2)
    x = torch.rand(CALIBRATION + NEW, 1, generator=rng, dtype=torch.float64)
    outputs = torch.cat([x, (0.3 + x).log()], 1)
    y = x + 2 * (0.3 + x) * torch.randn(len(x), 1, generator=rng, dtype=torch.float64)
    calibration = from_outputs(outputs[:CALIBRATION], tp.HeteroscedasticNormal())
    new = from_outputs(outputs[CALIBRATION:], tp.HeteroscedasticNormal())
    table = [torch.cat([*p.interval(LEVEL), p.mean()], 1).numpy() for p in (calibration, new)]
    estimators = [Column(k).fit(table[0], y[:CALIBRATION].numpy().ravel()) for k in (0, 1, 2)]
    theirs = ConformalizedQuantileRegressor(estimators, LEVEL, prefit=True)
    theirs.conformalize(table[0], y[:CALIBRATION].numpy().ravel())
    _, ends = theirs.predict_interval(table[1], symmetric_correction=True)
    low, high = CQR().calibrate(calibration, y[:CALIBRATION], LEVEL).interval(new)
    assert np.allclose(ends[:, 0, 0], low[:, 0].numpy(), atol=1e-10)
    assert np.allclose(ends[:, 1, 0], high[:, 0].numpy(), atol=1e-10)
