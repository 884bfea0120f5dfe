"""Calibration without rows to spare: each row is predicted by an estimator that has not seen it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from temperance.core.errors import DataError, NumericalError, TemperanceWarning
from temperance.core.seeds import derive_seed
from temperance.judge.calibrate import CalibrationRule, Calibrator
from temperance.predict.joined import joined_predictive

if TYPE_CHECKING:
    from temperance.apps.sklearn.base import BayesianEstimator

FOLDS = 5
LEAST, MOST = 50, 2000
"""Rows between which calibration in folds is the default: fewer say too little, and of more the noise is known well
enough that five more fits do not pay."""


def in_folds(
    rule: CalibrationRule,
    y: np.ndarray,
    seed: int,
    learn: Callable[[np.ndarray, int], BayesianEstimator],
    predict: Callable[[BayesianEstimator, np.ndarray], tuple[object, torch.Tensor]],
) -> Calibrator | None:
    """What ``rule`` learns from all rows, each predicted by the estimator that ``learn`` made without its fold.
    ``None``, with a warning, where that cannot be done."""
    place = deal(y, seed)
    said, known = [], []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TemperanceWarning)  # the fit of all rows has said it
            for k in range(int(place.max()) + 1):
                made = learn(np.flatnonzero(place != k), derive_seed(seed, "calibrate-fold", k) % 2**31)
                found, targets = predict(made, np.flatnonzero(place == k))
                said.append(found)
                known.append(targets)
            joined = joined_predictive(said)  # type: ignore[arg-type]
        if joined is None:
            raise DataError("the models of the folds average over different numbers of members")
        return rule.fit(joined, torch.cat(known))
    except (DataError, NumericalError) as error:
        warnings.warn(
            f"not calibrated (`calibrate`): {str(error).rstrip('.')}. Predictions are as the network has them.",
            TemperanceWarning,
            stacklevel=4,
        )
        return None


def deal(y: np.ndarray, seed: int) -> np.ndarray:
    """The fold of each row: at random, and of labels each fold its share."""
    rng = np.random.default_rng(derive_seed(seed, "calibrate-folds"))
    labels = y if y.ndim == 1 and y.dtype.kind == "i" else np.zeros(len(y))
    order = np.lexsort((rng.random(len(y)), labels))
    place = np.empty(len(y), dtype=np.int64)
    place[order] = np.arange(len(y)) % min(FOLDS, len(y))
    return place
