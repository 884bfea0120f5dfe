"""``BayesianClassifier``: class probabilities that know what they do not know."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from temperance.apps.sklearn.base import _DTYPES, BayesianEstimator, Uncertainty
from temperance.apps.sklearn.units import as_array, row_weights
from temperance.core.errors import ArgumentError, DataError
from temperance.core.outcomes import Categories, Classes, Labels, Outcome
from temperance.judge.calibrate import CalibrationRule, Isotonic, Temperature, Vector
from temperance.predict import CategoryPredictive


class BayesianClassifier(ClassifierMixin, BayesianEstimator):
    """A Bayesian neural network for two or more classes, or for several yes/no labels (a y of zeros and ones with a
    column for each); settings are those of :class:`BayesianEstimator`.

    ``calibrate`` is ``"auto"``, ``"cross"``, ``"temperature"``, ``"vector"``, ``"isotonic"``, or a rule of
    :mod:`temperance.judge.calibrate`.
    ``classes_`` holds the labels in the order of the columns of ``predict_proba``; of yes/no labels their numbers, and
    ``predict_proba`` has the probability that each is true. ``class_weight`` is a dict of how often rows of each label
    count, or ``"balanced"``, which gives all labels the same share: probabilities are then those of such data, not of
    data as they come.

    On small tables the usual prior makes probabilities timid, and noisy labels make them too sure; a temperature found
    in folds, the default, mends both. Compare ``prior=GaussianPrior(1.0)`` by ``log_score`` on your own data.

    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> model = BayesianClassifier("Ensemble(MAP(lr=1e-2), 3)", hidden=(16,), epochs=20, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    >>> bool(model.uncertainty(X).total.mean() < np.log(3))
    True
    """

    _outcome: Outcome = Classes()
    _rules: ClassVar[dict[str, type[CalibrationRule]]] = {
        "temperature": Temperature,
        "vector": Vector,
        "isotonic": Isotonic,
    }
    _cross: ClassVar[CalibrationRule | None] = Temperature()
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
        calibrate: Any = "auto",
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
        self._forget()
        x, labels = self._checked_rows(X, y, first=True)
        classes = np.unique(labels) if labels.ndim == 1 else np.arange(labels.shape[1])
        rows = (x, labels, row_weights(sample_weight, x))
        self._learn_labels(*rows, classes)
        self._keep(*rows)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn from these rows and all that came before: the posterior given every row, as :meth:`fit` on all of them
        would find it. Rows are kept in memory for that (and not saved), and it takes longer the more there are.

        ``classes`` are all labels that may come; needed in the first call, as in scikit-learn's own estimators.
        """
        first = not self._goes_on()
        x, labels = self._checked_rows(X, y, first=first)
        if first and classes is None and labels.ndim == 1:
            raise ArgumentError("`classes` must be given in the first call of partial_fit: all labels that may come.")
        known = self.classes_ if not first else np.arange(labels.shape[1]) if labels.ndim == 2 else np.unique(classes)
        if labels.ndim == 1 and not np.isin(labels, known).all():
            new = labels[~np.isin(labels, known)][0]
            raise DataError(f"`y` must hold labels that `classes` named; got {new!r}.")
        if not first and labels.ndim != self._seen[1].ndim:
            raise DataError("`y` must be of the kind that it was in the first call of partial_fit.")
        rows = self._also(x, labels, row_weights(sample_weight, x))
        self._learn_labels(*rows, known)
        self._keep(*rows)
        return self

    def _checked_rows(self, X: Any, y: Any, first: bool) -> tuple[np.ndarray, np.ndarray]:
        """Rows, and labels: one a row, or zeros and ones with a column for each."""
        x, labels = validate_data(
            self, X, y, dtype=_DTYPES, reset=first, multi_output=True, ensure_all_finite="allow-nan"
        )
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = column_or_1d(labels, warn=True)
        check_classification_targets(labels)
        if labels.ndim == 2 and type_of_target(labels) != "multilabel-indicator":
            raise DataError(
                "`y` must have one label a row, or zeros and ones with a column for each yes/no label; got other "
                f"numbers in {labels.shape[1]} columns. Fit one classifier for each column."
            )
        return x, labels

    def _learn_labels(self, x: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, classes: np.ndarray) -> None:
        self.classes_ = classes
        if self.class_weight is not None:
            each = compute_sample_weight(self.class_weight, labels)
            weights = each if weights is None else each * weights
        if labels.ndim == 2:
            self._outcome = Labels()
            self._learn(x, labels.astype(np.float64), labels.shape[1], None, weights)
            return
        if len(classes) < 2:
            raise DataError(f"`y` must hold at least two classes; got 1 class, {classes[0]!r}.")
        self._outcome = Classes()
        self._learn(x, np.searchsorted(classes, labels).astype(np.int64), len(classes), None, weights)

    def _check_learned(self) -> None:
        super()._check_learned()
        labels = getattr(self, "classes_", None)
        if not isinstance(labels, np.ndarray) or labels.shape != (self._blueprint.outputs,):
            raise ValueError(f"`classes_` must hold the labels of its {self._blueprint.outputs} outputs")

    @property
    def _several(self) -> bool:
        """Whether there are yes/no labels, and not one class a row."""
        check_is_fitted(self)
        found = self._blueprint.outcome
        assert isinstance(found, Categories)
        return not found.exclusive

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _strata(self, y: np.ndarray, held: int) -> np.ndarray | None:
        if y.ndim == 2:
            return None
        counts = np.bincount(y)
        return y if counts.min() > 1 and held >= len(counts) <= len(y) - held else None

    def predictive(self, X: Any) -> CategoryPredictive:
        """The whole predictive distribution at X; class k is ``classes_[k]``."""
        found = super().predictive(X)
        assert isinstance(found, CategoryPredictive)
        return found

    def predict_proba(self, X: Any) -> np.ndarray:
        """p(y | x, D) of each class: the average over the posterior; of yes/no labels, that each is true."""
        probs = as_array(self.predictive(X).probs)
        return probs if self._several else probs / probs.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """log p(y | x, D) of each class, finite where the probability itself rounds to zero."""
        found = self.predictive(X)
        if self._several:
            with np.errstate(divide="ignore"):
                return np.log(as_array(found.probs))
        columns = [found.log_prob(torch.full((len(found),), k)) for k in range(len(self.classes_))]
        return as_array(torch.stack(columns, dim=1).log_softmax(1))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row; of yes/no labels, zeros and ones."""
        if self._several:
            return (self.predict_proba(X) > 0.5).astype(np.int64)
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def uncertainty(self, X: Any) -> Uncertainty:
        """In nats: entropy = aleatoric part + mutual information of label and weights."""
        found = self.predictive(X)
        parts = (found.entropy(), found.aleatoric(), found.mutual_information())
        return Uncertainty(*(as_array(part) for part in parts))

    def log_score(self, X: Any, y: Any) -> float:
        """Mean log p(y | x, D): the negative log-loss. A label that was not in the training data scores −∞; of yes/no
        labels the log-probabilities of all of a row's are added."""
        if self._several:
            known = np.asarray(y)
            predictive = self.predictive(X)
            if known.shape != (len(predictive), len(self.classes_)):
                raise DataError(
                    f"`y` must have {len(predictive)} rows and {len(self.classes_)} columns; got shape {known.shape}."
                )
            return float(predictive.log_prob(torch.from_numpy(known.astype(np.float64))).double().mean())
        found = self.predict_log_proba(X)
        given = np.asarray(y)
        if given.shape != (len(found),):
            raise DataError(f"`y` must have one label for each of the {len(found)} rows; got shape {given.shape}.")
        place = np.searchsorted(self.classes_, given).clip(max=len(self.classes_) - 1)
        known = self.classes_[place] == given
        return float(np.where(known, found[np.arange(len(found)), place], -np.inf).mean())
