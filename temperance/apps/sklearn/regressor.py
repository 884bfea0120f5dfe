"""``BayesianRegressor`` and ``BayesianCounts``: predictions with a standard deviation and an interval."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data
from torch import Tensor

from temperance.apps.sklearn.base import _DTYPES, BayesianEstimator, Uncertainty
from temperance.apps.sklearn.units import as_array, row_weights
from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError, DataError, TemperanceWarning
from temperance.core.outcomes import Counts, Outcome, Reals
from temperance.judge.calibrate import CalibrationRule, VarianceScale
from temperance.model.likelihoods import Likelihood, Normal, RealLikelihood
from temperance.predict import ValuePredictive
from temperance.predict.affine import AffinePredictive


class _ValueEstimator(RegressorMixin, BayesianEstimator):
    """What real targets and counts share: y has one column, or several."""

    _flat: bool

    def _likelihood(self, columns: int) -> Likelihood | None:
        return None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows of X and targets y: a number, or several, for each row; ``sample_weight`` says how often each
        row counts."""
        self._forget()
        x, given = self._checked_rows(X, y, first=True)
        rows = (x, given, row_weights(sample_weight, x))
        self._learn_values(*rows)
        self._keep(*rows)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from these rows and all that came before: the posterior given every row, as :meth:`fit` on all of them
        would find it. Rows are kept in memory for that (and not saved), and it takes longer the more there are."""
        first = not self._goes_on()
        x, given = self._checked_rows(X, y, first=first)
        if not first and given.shape[1:] != self._seen[1].shape[1:]:
            raise DataError("`y` must have as many columns as in the first call of partial_fit.")
        rows = self._also(x, given, row_weights(sample_weight, x))
        self._learn_values(*rows)
        self._keep(*rows)
        return self

    def _checked_rows(self, X: Any, y: Any, first: bool) -> tuple[np.ndarray, np.ndarray]:
        x, given = validate_data(
            self, X, y, dtype=_DTYPES, reset=first, y_numeric=True, multi_output=True,
            ensure_min_samples=2 if first else 1, ensure_all_finite="allow-nan",
        )  # fmt: skip
        return x, given

    def _learn_values(self, x: np.ndarray, given: np.ndarray, weights: np.ndarray | None) -> None:
        self._flat = given.ndim == 1
        targets = given.reshape(len(given), -1).astype(np.float64)
        counted = targets if weights is None else targets[weights > 0]
        if self._outcome.has_units and bool((counted == counted[0]).all(0).any()):
            warnings.warn(
                "targets that do not vary leave nothing to learn but a noise near zero.",
                TemperanceWarning,
                stacklevel=2,
            )
        self._learn(x, targets, targets.shape[1], self._likelihood(targets.shape[1]), weights)

    def _check_learned(self) -> None:
        super()._check_learned()
        if not isinstance(getattr(self, "_flat", None), bool):
            raise TypeError("`_flat` must say whether y was one column")

    def _shaped(self, value: Tensor) -> np.ndarray:
        made = as_array(value)
        return made[:, 0] if self._flat else made

    def predictive(self, X: Any) -> ValuePredictive:
        """The whole predictive distribution at X, in the units of y."""
        found = super().predictive(X)
        assert isinstance(found, ValuePredictive)
        return found if self._y_units is None else AffinePredictive(found, *self._y_units)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The predictive mean; with ``return_std`` also the predictive standard deviation, noise included."""
        found = self.predictive(X)
        mean = self._shaped(found.mean())
        return (mean, self._shaped(found.std())) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the central interval that holds y with probability ``level``."""
        low, high = self.predictive(X).interval(level)
        return self._shaped(low), self._shaped(high)

    def predict_quantile(self, X: Any, level: float) -> np.ndarray:
        """The value below which y falls with probability ``level``; 0.5 is the median."""
        return self._shaped(self.predictive(X).quantile(level))

    def uncertainty(self, X: Any) -> Uncertainty:
        """Standard deviations in the units of y; total² = aleatoric² + epistemic²."""
        found = self.predictive(X)
        parts = (found.variance(), found.aleatoric_variance(), found.epistemic_variance())
        return Uncertainty(*(self._shaped(part.sqrt()) for part in parts))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draws of y at all rows together, as those of ``GaussianProcessRegressor``: rows × draws, or rows × columns
        of y × draws. Rows of a draw go together: they share one setting of the weights."""
        seed = int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
        check_count(n_samples, "n_samples")
        drawn = np.moveaxis(as_array(self.predictive(X).sample(n_samples, seed)), 0, -1)
        return drawn[:, 0] if self._flat else drawn

    def log_score(self, X: Any, y: Any) -> float:
        """Mean log p(y | x, D) of each row, in the units of y: higher is better, and overconfidence is punished."""
        found = self.predictive(X)
        given = np.asarray(y, dtype=np.float64)
        columns = given.reshape(-1, 1) if given.ndim == 1 else given
        if columns.shape != (len(found), self._blueprint.outputs):
            raise DataError(
                f"`y` must have {len(found)} rows and {self._blueprint.outputs} columns; got shape {given.shape}."
            )
        nats = found.log_prob(torch.from_numpy(columns))
        return float(nats.double().mean())


class BayesianRegressor(_ValueEstimator):
    """A Bayesian neural network for one or several real targets; settings are those of :class:`BayesianEstimator`.

    ``likelihood`` says what the noise is: ``Normal`` with one learned scale for each column of y unless told;
    ``StudentT()`` for outliers, ``HeteroscedasticNormal()`` for noise that depends on x. A given scale is in units of
    the standardised y. ``calibrate`` is ``"auto"``, ``"cross"``, ``"variance"``, or a rule of
    :mod:`temperance.judge.calibrate`. Without it 90 % intervals of networks that fit their training rows closely hold
    50 to 85 % of new rows where these are few: learned noise is that of rows that were learned from.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (100, 1))
    >>> y = 1000 + 50 * X[:, 0] + rng.normal(0, 10, 100)
    >>> model = BayesianRegressor("Laplace(MAP(lr=2e-2))", hidden=(), epochs=60, random_state=0).fit(X, y)
    >>> mean, std = model.predict([[0.0]], return_std=True)
    >>> bool(abs(mean[0] - 1000) < 5), bool(8 < std[0] < 12)
    (True, True)
    """

    _outcome: Outcome = Reals()
    _rules: ClassVar[dict[str, type[CalibrationRule]]] = {"variance": VarianceScale}
    _cross: ClassVar[CalibrationRule | None] = VarianceScale(per_output=True, trim=0.02)

    def __init__(
        self,
        method: Any = "default",
        *,
        hidden: Any = (50, 50),
        network: Any = None,
        likelihood: Any = None,
        prior: Any = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        standardise: bool = True,
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
        self.likelihood = likelihood

    def _likelihood(self, columns: int) -> Likelihood:
        if self.likelihood is None:
            return Normal(num_outputs=columns)
        if not isinstance(self.likelihood, RealLikelihood):
            raise ArgumentError(f"`likelihood` must be that of real targets, e.g. StudentT(); got {self.likelihood!r}.")
        return self.likelihood

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class BayesianCounts(_ValueEstimator):
    """A Bayesian neural network for counts, y ~ Poisson(exp f(x)); settings are those of :class:`BayesianEstimator`.

    y holds whole numbers from 0 on. ``predict`` gives the expected count. There is no ``calibrate``.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (200, 1))
    >>> y = rng.poisson(np.exp(1 + X[:, 0]))
    >>> model = BayesianCounts("MAP(lr=2e-2)", hidden=(), epochs=60, random_state=0).fit(X, y)
    >>> low, high = model.predict_interval([[0.0]], level=0.9)
    >>> low, high
    (array([0.]), array([6.]))
    """

    _outcome: Outcome = Counts()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.positive_only = True
        return tags
