"""scikit-learn's own checks of an estimator, under Bayesian methods. One is expected to fail: weights are repeated rows
in the posterior, but steps of an optimiser on fewer rows are others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from temperance.apps.sklearn import BayesianClassifier, BayesianCounts, BayesianRegressor

SMALL: dict[str, Any] = {"hidden": (8,), "epochs": 12, "batch_size": 32}


class WholeNumbers(BayesianCounts):
    """The checks bring real targets; counts are whole and not negative. Beyond that, all checks must pass."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> WholeNumbers:
        return super().fit(X, _whole(y), sample_weight)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> WholeNumbers:
        return super().partial_fit(X, _whole(y), sample_weight)


def _whole(y: Any) -> Any:
    """Rounded, unless the check is about what an estimator says of bad targets."""
    if y is None or np.asarray(y).dtype.kind not in "if" or not np.isfinite(np.asarray(y)).all():
        return y
    return np.abs(np.rint(np.asarray(y)))


def _other_steps(estimator: Any) -> dict[str, str]:
    reason = "the same posterior, but training takes other steps on fewer rows"
    return {"check_sample_weight_equivalence_on_dense_data": reason}


@parametrize_with_checks(
    [
        BayesianClassifier("Ensemble(MAP(lr=5e-2), 2)", **SMALL),
        BayesianRegressor("Laplace(MAP(lr=5e-2))", **SMALL),
    ],
    expected_failed_checks=_other_steps,
)
def test_what_scikit_learn_expects(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        *(
            kind(method, **SMALL)
            for kind in (BayesianClassifier, BayesianRegressor)
            for method in ("MAP(lr=5e-2)", "Variational(MeanField(), lr=5e-2)", "Collect(SGHMC(lr=0.05))")
        ),
        BayesianClassifier("Laplace(MAP(lr=5e-2))", **SMALL),
        BayesianRegressor("Ensemble(MAP(lr=5e-2), 2)", **SMALL),
        WholeNumbers("Laplace(MAP(lr=2e-2))", hidden=(8,), epochs=30, batch_size=16),
    ],
    expected_failed_checks=_other_steps,
)
def test_what_scikit_learn_expects_of_other_methods(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)
