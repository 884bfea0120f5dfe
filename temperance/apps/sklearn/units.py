"""Columns in units of mean 0 and standard deviation 1, weights of rows, and what a file says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from temperance.core.errors import DataError

if TYPE_CHECKING:
    from temperance.apps.sklearn.base import BayesianEstimator


def units_of(values: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale of each column, over what is not missing; scale 1 for columns that do not vary."""
    with np.errstate(invalid="ignore"):  # a column that is missing everywhere
        scaler = StandardScaler().fit(values, sample_weight=weights)
    mean, scale = (np.asarray(part, dtype=np.float64) for part in (scaler.mean_, scaler.scale_))
    return np.nan_to_num(mean), np.where(np.isnan(scale), 1.0, scale)


def check_gaps(made: BayesianEstimator) -> None:
    """Which columns had missing values, and what they are filled with, read from a file."""
    gaps, fill = getattr(made, "_gaps", None), getattr(made, "_fill", None)
    if not isinstance(gaps, np.ndarray) or gaps.ndim != 1 or not np.issubdtype(gaps.dtype, np.integer):
        raise ValueError("its columns with missing values must be whole numbers")
    columns = made._blueprint.inputs - len(gaps)
    if columns != made.n_features_in_:
        raise ValueError(f"its network is one of {columns} columns; it says that it has {made.n_features_in_}")
    if not isinstance(fill, np.ndarray) or fill.shape != (columns,) or bool(((gaps < 0) | (gaps >= columns)).any()):
        raise ValueError(f"what missing values become must be a number for each of {columns} columns")


def check_units(units: Any, columns: int) -> None:
    """What :func:`units_of` gave once, read from a file."""
    if units is None:
        return
    good = isinstance(units, tuple) and len(units) == 2
    if not good or not all(isinstance(part, np.ndarray) and part.shape == (columns,) for part in units):
        raise ValueError(f"its units must be a mean and a scale for each of {columns} columns")
    if not all(part.dtype == np.float64 and np.isfinite(part).all() for part in units) or not (units[1] > 0).all():
        raise ValueError("its units must be finite, and scales positive")


def standard(values: np.ndarray, units: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """Columns shifted and scaled, in float64; a copy without ``units``."""
    return np.array(values) if units is None else (values.astype(np.float64) - units[0]) / units[1]


def row_weights(sample_weight: Any, x: np.ndarray) -> np.ndarray | None:
    """Numbers from 0 on, one a row; ``None`` where there are none."""
    if sample_weight is None:
        return None
    made: np.ndarray = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
    if not made.sum() > 0:
        raise DataError("`sample_weight` must not be zero for all rows: there would be nothing to learn from.")
    return made


def as_array(value: Tensor) -> np.ndarray:
    """Numbers for scikit-learn."""
    made: np.ndarray = value.detach().cpu().numpy()
    return made
