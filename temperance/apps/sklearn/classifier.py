"""``BayesianClassifier``: class probabilities that know what they do not know."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from temperance.apps.sklearn.base import _DTYPES, BayesianEstimator, Uncertainty, as_array, row_weights
from temperance.core.errors import DataError
from temperance.core.outcomes import Classes, Outcome
from temperance.judge.calibrate import CalibrationRule, Isotonic, Temperature, Vector
from temperance.predict import CategoryPredictive


class BayesianClassifier(ClassifierMixin, BayesianEstimator):
    """A Bayesian neural network for two or more classes; settings are those of :class:`BayesianEstimator`.

    ``calibrate`` is ``"temperature"``, ``"vector"``, ``"isotonic"``, or a rule of :mod:`temperance.judge.calibrate`.
    ``classes_`` holds the labels in the order of the columns of ``predict_proba``. ``class_weight`` is a dict of how
    often rows of each label count, or ``"balanced"``, which gives all labels the same share: probabilities are then
    those of such data, not of data as they come.

    How it compares, both sides with their own defaults (two times five folds, columns standardised): log-loss 0.089 ±
    0.008 on breast cancer and 0.172 ± 0.006 on wine, ``MLPClassifier()`` 0.081 ± 0.014 and 0.065 ± 0.005; accuracy
    0.979 and 0.992 against 0.972 and 0.978. On a table as small as wine the usual prior makes probabilities
    too timid; with ``prior=GaussianPrior(1.0)`` ordinary training (``"map"``, 100 epochs, five folds) goes from 0.169
    to 0.038 there, but from 0.089 to 0.121 on breast cancer. Compare priors and ``calibrate="temperature"`` by
    ``log_score`` on your own data.

    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> model = BayesianClassifier("Ensemble(MAP(lr=1e-2), 3)", hidden=(16,), epochs=20, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    >>> bool(model.uncertainty(X).total.mean() < np.log(3))
    True
    """

    _outcome: ClassVar[Outcome] = Classes()
    _rules: ClassVar[dict[str, type[CalibrationRule]]] = {
        "temperature": Temperature,
        "vector": Vector,
        "isotonic": Isotonic,
    }
    classes_: np.ndarray

    def __init__(
        self,
        method: Any = "default",
        *,
        hidden: Any = (50, 50),
        network: Any = None,
        prior: Any = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        standardise: bool = True,
        class_weight: Any = None,
        calibrate: Any = None,
        validation_fraction: float = 0.1,
        draws: int | None = None,
        random_state: Any = None,
        device: Any = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            method,
            hidden=hidden,
            network=network,
            prior=prior,
            epochs=epochs,
            batch_size=batch_size,
            standardise=standardise,
            calibrate=calibrate,
            validation_fraction=validation_fraction,
            draws=draws,
            random_state=random_state,
            device=device,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows of X and their labels y, of any kind; ``sample_weight`` says how often each row counts."""
        x, labels = validate_data(self, X, y, dtype=_DTYPES)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(f"`y` must hold at least two classes; got 1 class, {self.classes_[0]!r}.")
        weights = row_weights(sample_weight, x)
        if self.class_weight is not None:
            each = compute_sample_weight(self.class_weight, labels)
            weights = each if weights is None else each * weights
        self._learn(x, codes.astype(np.int64), len(self.classes_), None, weights)
        return self

    def _strata(self, y: np.ndarray, held: int) -> np.ndarray | None:
        counts = np.bincount(y)
        return y if counts.min() > 1 and held >= len(counts) <= len(y) - held else None

    def predictive(self, X: Any) -> CategoryPredictive:
        """The whole predictive distribution at X; class k is ``classes_[k]``."""
        found = super().predictive(X)
        assert isinstance(found, CategoryPredictive)
        return found

    def predict_proba(self, X: Any) -> np.ndarray:
        """p(y | x, D) of each class: the average over the posterior."""
        probs = as_array(self.predictive(X).probs)
        return probs / probs.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """log p(y | x, D) of each class, finite where the probability itself rounds to zero."""
        found = self.predictive(X)
        columns = [found.log_prob(torch.full((len(found),), k)) for k in range(len(self.classes_))]
        return as_array(torch.stack(columns, dim=1).log_softmax(1))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def uncertainty(self, X: Any) -> Uncertainty:
        """In nats: entropy = aleatoric part + mutual information of label and weights."""
        found = self.predictive(X)
        parts = (found.entropy(), found.aleatoric(), found.mutual_information())
        return Uncertainty(*(as_array(part) for part in parts))

    def log_score(self, X: Any, y: Any) -> float:
        """Mean log p(y | x, D): the negative log-loss. A label that was not in the training data scores −∞."""
        found = self.predict_log_proba(X)
        given = np.asarray(y)
        if given.shape != (len(found),):
            raise DataError(f"`y` must have one label for each of the {len(found)} rows; got shape {given.shape}.")
        place = np.searchsorted(self.classes_, given).clip(max=len(self.classes_) - 1)
        known = self.classes_[place] == given
        return float(np.where(known, found[np.arange(len(found)), place], -np.inf).mean())
