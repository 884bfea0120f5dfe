"""Estimators for scikit-learn: a Bayesian neural network behind ``fit`` and ``predict``.

>>> from sklearn.datasets import load_iris
>>> from temperance.apps.sklearn import BayesianClassifier
>>> X, y = load_iris(return_X_y=True)
>>> model = BayesianClassifier("map", hidden=(16,), epochs=20, random_state=0).fit(X, y)
>>> model.predict_proba(X[:2]).shape
(2, 3)
"""

from __future__ import annotations

from temperance.apps.sklearn.base import BayesianEstimator, Uncertainty
from temperance.apps.sklearn.classifier import BayesianClassifier
from temperance.apps.sklearn.regressor import BayesianCounts, BayesianRegressor

__all__ = ["BayesianClassifier", "BayesianCounts", "BayesianEstimator", "BayesianRegressor", "Uncertainty"]
