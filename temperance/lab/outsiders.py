"""What people use on tables who want no network: trees of scikit-learn, with its default settings.

Of numbers, trees give no distribution: a fifth of the training rows is kept from them, and their residuals there, put
around a prediction, are the forecast (a split conformal one: its 90 % interval holds 90 % of new rows).
"""

from __future__ import annotations

import importlib
import math
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import temperance as tp
from temperance.lab.tasks import Rows

OUTSIDERS = {
    "random-forest": ("RandomForestClassifier", "RandomForestRegressor"),
    "boosting": ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"),
}
"""Their names, and scikit-learn's for classes and for numbers."""

LEAST = 1e-3
"""The least probability that a class is given: a forest says 0 of what none of its trees has seen."""
_KEPT = 0.2


def score_outsider(name: str, rows: Rows, seed: int) -> dict[str, Any]:
    """Scores on the test rows, under the names that ``Fitted.evaluate`` gives them."""
    ensemble = importlib.import_module("sklearn.ensemble")  # takes a second: only who asks for it waits
    kind = getattr(ensemble, OUTSIDERS[name][rows.classes is None])(random_state=seed)
    return _numbers(kind, rows, seed) if rows.classes is None else _classes(kind, rows)


def _plain(x: Any) -> NDArray[np.float64]:
    assert isinstance(x, Tensor)
    return x.flatten(1).double().numpy() if x.dim() > 1 else x.numpy()


def _classes(model: Any, rows: Rows) -> dict[str, Any]:
    assert rows.classes is not None
    began = time.process_time()
    model.fit(_plain(rows.train.x), rows.train.y.numpy())
    seconds = time.process_time() - began
    probs = np.full((len(rows.test), rows.classes), LEAST)
    probs[:, model.classes_] = np.maximum(model.predict_proba(_plain(rows.test.x)), LEAST)
    probs /= probs.sum(axis=1, keepdims=True)
    return {
        "log_loss": tp.scores.log_loss(probs, rows.test.y),
        "accuracy": tp.scores.accuracy(probs, rows.test.y),
        "ece": tp.scores.ece(probs, rows.test.y).value,
        "seconds": seconds,
    }


def _numbers(model: Any, rows: Rows, seed: int) -> dict[str, Any]:
    train, kept = rows.train.hold_out(_KEPT, seed=seed)
    began = time.process_time()
    model.fit(_plain(train.x), train.y.flatten().numpy())
    seconds = time.process_time() - began
    residuals = np.sort(kept.y.flatten().numpy() - model.predict(_plain(kept.x)))
    mean, y = model.predict(_plain(rows.test.x)), rows.test.y.flatten().double()
    count = len(residuals)
    tail = math.floor(0.05 * (count + 1))  # of residuals beyond each end; fewer than one: the interval has no end
    low, high = (residuals[tail - 1], residuals[count - tail]) if tail else (-np.inf, np.inf)
    return {
        "rmse": tp.scores.rmse(mean, y),
        "crps": tp.scores.sample_crps(mean + residuals[:, None], y, fair=False),
        "coverage_90": tp.scores.interval_coverage(mean + low, mean + high, y).coverage,
        "seconds": seconds,
    }
