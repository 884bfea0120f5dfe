"""What the estimators share: settings, training, prediction, and how they are kept."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from temperance.apps.recipes import DEFAULT_METHOD, default_training, method_named, threads_for, training
from temperance.apps.sklearn import saving
from temperance.apps.sklearn.blueprint import Blueprint, check_factory, check_hidden
from temperance.apps.sklearn.cross import LEAST, MOST, in_folds
from temperance.apps.sklearn.units import check_gaps, check_units, standard, units_of
from temperance.core.checks import check_count, check_level, is_whole, shown
from temperance.core.errors import ArgumentError, DataError, StoreError, TemperanceWarning
from temperance.core.outcomes import Outcome
from temperance.data.data import Data
from temperance.inference.base import Inference
from temperance.judge.calibrate import CalibrationRule, Calibrator
from temperance.model.likelihoods import Likelihood
from temperance.predict import Predictive
from temperance.run import store
from temperance.run.fit import fit
from temperance.run.fitted import Fitted

_DTYPES = (np.float64, np.float32)


class Uncertainty(NamedTuple):
    """How uncertain each prediction is, and from where: noise in the data (``aleatoric``), and what more data would
    remove (``epistemic``)."""

    total: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray


class BayesianEstimator(BaseEstimator):
    """Settings shared by :class:`BayesianClassifier`, :class:`BayesianRegressor` and :class:`BayesianCounts`.

    Args:
        method: how the posterior is found: a name (``"ensemble"``, ``"laplace"``, ``"swag"``, … see
            :data:`tp.recipes.RECIPES`), an expression such as ``"Ensemble(MAP(lr=1e-3), 10)"``, or a method. The
            default is an ensemble, on small tables of classes with fewer and longer steps
            (:func:`temperance.apps.recipes.default_training`).
        hidden: widths of the hidden layers; ``()`` for a linear model.
        network: a function of (inputs, outputs) that makes a module, in place of the usual network.
        prior: over the weights; that of :func:`temperance.apps.recipes.table_target` unless told.
        epochs, batch_size: by the number of rows unless told (:func:`temperance.apps.recipes.training`).
        standardise: shift and scale columns of X (and real targets) to mean 0 and standard deviation 1 for training.
        calibrate: rescale predictions by what they are worth on rows that were not learned from; see the estimator for
            the rules. A rule by its name, or a rule, holds rows back for it. ``"cross"`` holds none back: five more
            models, each trained without a fifth of the rows, say how far off predictions are, and the model of all rows
            is calibrated by that. ``"auto"``, the default, is ``"cross"`` where nobody asks for a method or a
            likelihood, of 50 to 2,000 rows without weights, and nothing else; ``None`` is nothing.
        validation_fraction: share of the rows held out for ``calibrate``, and for methods that stop early.
        draws: how many settings of the weights predictions average over, where the posterior leaves a choice.
        random_state: an integer to repeat a fit bit for bit, a ``RandomState``, or ``None`` for a new one each time.
        device: where to train and predict, such as ``"cuda"``; torch's default device unless told.
        verbose: show a progress bar.

    X may have missing values (NaN): in training they become their column's mean, and where a column has some a second
    input says which rows these are, so that what missing means is learned. Where a column had none in training, one
    that is missing later is taken for the mean, with a warning: how unsure that makes a prediction was not learned.

    X of float32 is learned in float32, anything else in float64, as scikit-learn's own networks do. A
    ``sample_weight`` of 2 is the row twice (:class:`temperance.data.Data`), in the standardisation too: the posterior
    is that of as many rows, so weights should say how often a row was seen, not only which rows matter more.

    Attributes: ``fitted_`` is the :class:`temperance.Fitted`, in standardised units; ``calibrator_`` what ``calibrate``
    learned, or ``None``; ``n_features_in_`` and ``feature_names_in_`` as always.
    """

    _outcome: Outcome
    _rules: ClassVar[dict[str, type[CalibrationRule]]] = {}
    _cross: ClassVar[CalibrationRule | None] = None
    _learned: ClassVar[tuple[str, ...]] = (
        "n_features_in_",
        "feature_names_in_",
        "classes_",
        "_flat",
        "_x_units",
        "_y_units",
        "_fill",
        "_gaps",
    )
    fitted_: Fitted
    calibrator_: Calibrator | None
    n_features_in_: int
    _seen: tuple[np.ndarray, np.ndarray, np.ndarray | None]

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
        calibrate: Any = "auto",
        validation_fraction: float = 0.1,
        draws: int | None = None,
        random_state: Any = None,
        device: Any = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.hidden = hidden
        self.network = network
        self.prior = prior
        self.epochs = epochs
        self.batch_size = batch_size
        self.standardise = standardise
        self.calibrate = calibrate
        self.validation_fraction = validation_fraction
        self.draws = draws
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    # ------------------------------------------------------------------ learning

    def _learn(
        self,
        x: np.ndarray,
        y: np.ndarray,
        outputs: int,
        likelihood: Likelihood | None,
        weights: np.ndarray | None = None,
    ) -> None:
        """Train on rows of x and prepared targets (labels 0, 1, …; or rows × outputs), counted as ``weights`` says:
        those of weight 0 are none at all, in batches, epochs and gaps too."""
        method = self._method()
        if weights is not None and not weights.any():
            raise DataError("weights of rows and classes must leave a row to learn from: all of them are zero.")
        if weights is not None and not weights.all():
            x, y, weights = x[weights > 0], y[weights > 0], weights[weights > 0]
        if weights is not None and bool((weights == 1).all()):
            weights = None  # each row once: as without weights, calibration included
        rule = self._calibration_rule()
        cross = self._cross_rule(len(y), weights)
        if (rule is not None or self.calibrate == "cross") and weights is not None:
            raise ArgumentError(
                "`calibrate` must be None where rows have weights: it looks at held-out rows that count once each, and "
                "would take back what the weights did."
            )
        if self.draws is not None:
            check_count(self.draws, "draws")
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        device = self._device()
        dtype = "float32" if device.type == "mps" else x.dtype.name  # mps has no float64
        hidden = check_hidden(self.hidden)
        train, held = self._split(y, seed, rule is not None)
        shares = None if weights is None else weights[train]
        self._x_units = units_of(x[train], shares) if self.standardise else None
        self._fill, self._gaps = units_of(x[train], shares)[0], np.flatnonzero(np.isnan(x[train]).any(0))
        inputs = x.shape[1] + len(self._gaps)
        blueprint = Blueprint(self._outcome, inputs, outputs, hidden, dtype, seed, check_factory(self.network))
        target = blueprint.target(likelihood, self.prior).to(device)
        self._y_units = units_of(y[train], shares) if self.standardise and self._outcome.has_units else None
        self._blueprint = blueprint
        method, epochs, batch_size = self._training(method, len(train))
        data = Data(self._inputs(x[train]), torch.from_numpy(standard(y[train], self._y_units)), weights=shares)
        size = batch_size if self.batch_size is None else self.batch_size
        work = int(size) * max((inputs, *hidden)) * method.facts().streams if self.network is None else 2**30
        with warnings.catch_warnings(), threads_for(work):
            if self._y_units is not None:  # targets are standardised: only those that do not vary are not
                warnings.filterwarnings("ignore", "targets of mean", TemperanceWarning)
            self.fitted_ = fit(
                target,
                method,
                data,
                epochs=epochs if self.epochs is None and method.facts().default_steps is None else self.epochs,
                batch_size=size,
                seed=seed,
                held_out=float(self._fraction()) if method.facts().held_out else None,
                progress=bool(self.verbose),
            )
        self.calibrator_ = None
        if rule is not None:
            known = torch.from_numpy(standard(y[held], self._y_units))
            self.calibrator_ = rule.fit(self._predict_standard(x[held]), known)
        elif cross is not None:

            def learn(rows: np.ndarray, state: int) -> BayesianEstimator:
                made = clone(self).set_params(calibrate=None, random_state=state, verbose=False)
                made._outcome = self._outcome
                made._learn(x[rows], y[rows], outputs, likelihood)
                return made

            def predict(made: BayesianEstimator, rows: np.ndarray) -> tuple[object, Tensor]:
                return made._predict_standard(x[rows]), torch.from_numpy(standard(y[rows], made._y_units)).to(device)

            self.calibrator_ = in_folds(cross, y, seed, learn, predict)

    def _training(self, method: Inference[Any], rows: int) -> tuple[Inference[Any], int, int]:
        """Method, epochs and batch size: those that go well together, where nobody has an opinion on any of them."""
        opinions = (self.network, self.epochs, self.batch_size, None if self._wants_default() else self.method)
        if all(opinion is None for opinion in opinions):
            return default_training(rows, self._outcome)
        epochs, batch_size = training(rows, self._outcome)
        return method, math.ceil(epochs * method.facts().longer), batch_size

    def _wants_default(self) -> bool:
        return isinstance(self.method, str) and self.method == "default"

    def _method(self) -> Inference[Any]:
        wanted = DEFAULT_METHOD if self._wants_default() else self.method
        method = method_named(wanted)
        if method.facts().default_steps == 0 and self.network is None:
            raise ArgumentError(
                f"`method` {type(method).__name__} trains nothing, and there is no trained `network` to start from: "
                "give it a base, as in Laplace(MAP(lr=1e-3))."
            )
        return method

    def _device(self) -> torch.device:
        try:
            return torch.get_default_device() if self.device is None else torch.device(self.device)
        except (RuntimeError, TypeError) as error:
            raise ArgumentError(f"`device` must be a torch device such as 'cpu'; got {self.device!r}.") from error

    def _calibration_rule(self) -> CalibrationRule | None:
        wanted = self.calibrate
        if wanted is None or (isinstance(wanted, str) and (wanted == "auto" or (wanted == "cross" and self._cross))):
            return None
        if isinstance(wanted, str) and wanted in self._rules:
            return self._rules[wanted]()
        if self._rules and isinstance(wanted, CalibrationRule):
            return wanted
        known = ", ".join(repr(name) for name in self._rules)
        more = f", 'cross', {known} or a rule of temperance.judge.calibrate" if known else ""
        raise ArgumentError(f"`calibrate` must be 'auto' or None{more} for {type(self).__name__}; got {wanted!r}.")

    def _cross_rule(self, rows: int, weights: np.ndarray | None) -> CalibrationRule | None:
        """The rule by which folds calibrate, where they do: asked for, or usual and nobody has other wishes."""
        if not isinstance(self.calibrate, str) or self.calibrate not in ("auto", "cross"):
            return None
        usual = self._wants_default() and getattr(self, "likelihood", None) is None and weights is None
        if self.calibrate == "auto" and not (usual and LEAST <= rows <= MOST):
            return None
        if rows < LEAST:
            warnings.warn(
                f"not calibrated (`calibrate`): {rows} rows are too few to calibrate in folds (at least {LEAST}). "
                "Predictions are as the network has them.",
                TemperanceWarning,
                stacklevel=4,
            )
            return None
        return self._cross

    def _fraction(self) -> float:
        return check_level(self.validation_fraction, "validation_fraction")

    def _split(self, y: np.ndarray, seed: int, hold_out: bool) -> tuple[np.ndarray, np.ndarray]:
        """Rows to train on and rows to calibrate on; classes keep their shares where they have enough rows."""
        rows = np.arange(len(y))
        if not hold_out:
            return rows, rows[:0]
        held = max(1, round(self._fraction() * len(y)))
        if held > len(y) - 2:
            raise ArgumentError(f"`validation_fraction` {self.validation_fraction} of {len(y)} rows leaves too few.")
        train, rest = train_test_split(rows, test_size=held, random_state=seed, stratify=self._strata(y, held))
        return np.sort(train), np.sort(rest)

    def _strata(self, y: np.ndarray, held: int) -> np.ndarray | None:
        """Parts of the rows that keep their shares when ``held`` rows are held out."""
        return None

    # ------------------------------------------------------------------ predicting

    def _checked(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        made: np.ndarray = validate_data(self, X, reset=False, dtype=_DTYPES, ensure_all_finite="allow-nan")
        new = np.setdiff1d(np.flatnonzero(np.isnan(made).any(0)), self._gaps)
        if len(new):
            names = getattr(self, "feature_names_in_", np.arange(made.shape[1]))
            warnings.warn(
                f"columns {', '.join(map(str, names[new][:5]))} have missing values and had none in training: they are "
                "taken for the mean. Leave some missing in training, or impute them.",
                TemperanceWarning,
                stacklevel=3,
            )
        return made

    def _inputs(self, x: np.ndarray) -> Tensor:
        gaps = np.isnan(x)
        made = standard(np.where(gaps, self._fill, x) if gaps.any() else x, self._x_units)
        if len(self._gaps):
            made = np.concatenate([made, gaps[:, self._gaps]], axis=1)
        return torch.from_numpy(made.astype(self._blueprint.dtype, copy=False))

    def _also(
        self, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The rows seen so far with these after them; :meth:`_keep` them for the next time once they are learned."""
        if hasattr(self, "_seen"):
            old_x, old_y, old = self._seen
            if weights is not None or old is not None:
                parts = [np.ones(len(rows)) if w is None else w for rows, w in ((old_x, old), (x, weights))]
                weights = np.concatenate(parts)
            x, y = np.concatenate([old_x, x]), np.concatenate([old_y, y])
        return x, y, weights

    def _keep(self, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> None:
        """Rows that were learned from, for the next call: those of a call that failed would count twice."""
        self._seen = (x, y, weights)

    def _goes_on(self) -> bool:
        """Whether rows were seen before."""
        if hasattr(self, "fitted_") and not hasattr(self, "_seen"):
            raise ArgumentError(
                "`partial_fit` needs the rows seen before, which are not saved with an estimator: `fit` all rows at "
                "once."
            )
        return hasattr(self, "_seen")

    def _forget(self) -> None:
        """Rows seen before are none of a new ``fit``'s."""
        if hasattr(self, "_seen"):
            del self._seen

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _predict_standard(self, x: np.ndarray) -> Predictive:
        """The predictive in the units that were learned in, before calibration."""
        return self.fitted_.predict(self._inputs(x), draws=self.draws, seed=self.fitted_.seed)

    def predictive(self, X: Any) -> Predictive:
        """The whole predictive distribution at X, in the units of y: everything of
        :class:`temperance.predict.Predictive`."""
        found = self._predict_standard(self._checked(X))
        return found if self.calibrator_ is None else self.calibrator_(found)

    # ------------------------------------------------------------------ saving

    def _extras(self) -> dict[str, Any]:
        return {"calibrator": self.calibrator_}

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_seen", None)  # nobody expects the rows themselves in what is sent around
        if "fitted_" in state:
            state["fitted_"] = saving.pack(self.fitted_, self._extras(), self._known_learned())
            state.pop("calibrator_")
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        packed = state.pop("fitted_", None)
        super().__setstate__(state)
        if packed is not None:
            run = saving.unpack(packed, self._known_learned())
            self.calibrator_ = saving.extras_in(run, ["calibrator"])["calibrator"]
            self.fitted_ = saving.fitted_in(run, self._blueprint, self._device_here())

    def _known_learned(self) -> dict[str, Any]:
        """What was learned of the columns."""
        return {name: getattr(self, name) for name in self._learned if hasattr(self, name)}

    def _device_here(self) -> torch.device:
        """The device that was asked for, or the CPU where this machine lacks it."""
        device = self._device()
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError):
            return torch.device("cpu")
        return device

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to a folder, without pickle: safetensors and JSON.

        A ``network`` function is not written: give it to :meth:`load` again.
        """
        check_is_fitted(self)
        kept = {
            "class": type(self).__name__,
            "params": {name: saving.setting(name, value) for name, value in self.get_params(deep=False).items()},
            "blueprint": self._blueprint.describe(),
            "own_network": self._blueprint.factory is not None,
            "learned": {name: saving.to_plain(value) for name, value in self._known_learned().items()},
        }
        saving.save_run(path, self.fitted_, {**self._extras(), **kept})

    @classmethod
    def _rebuilt(cls, kept: dict[str, Any], network: Any) -> Self:
        """The estimator of what :meth:`save` kept, but for its fit."""
        made = cls(**{**kept["params"], "network": network})
        made._blueprint = Blueprint.described(kept["blueprint"], network)
        made._outcome = made._blueprint.outcome
        if not isinstance(kept["calibrator"], Calibrator | None):
            raise TypeError(f"its calibrator cannot be {shown(kept['calibrator'])}")
        made.calibrator_ = kept["calibrator"]
        for name, value in kept["learned"].items():
            if name not in cls._learned:
                raise ValueError(f"{name!r} is nothing that {cls.__name__} learns")
            setattr(made, name, saving.from_plain(value))
        made._check_learned()
        check_gaps(made)
        check_units(made._x_units, made._blueprint.inputs - len(made._gaps))
        check_units(made._y_units, made._blueprint.outputs)
        return made

    def _check_learned(self) -> None:
        """Raise where what was read from a file is nothing that a fit can have learned."""
        if not is_whole(getattr(self, "n_features_in_", None), 1):
            raise TypeError("`n_features_in_` must be the number of its columns")
        names = getattr(self, "feature_names_in_", None)
        if names is not None and np.shape(names) != (self.n_features_in_,):
            raise ValueError(f"`feature_names_in_` must name each of {self.n_features_in_} columns")

    @classmethod
    def load(cls, path: str | Path, *, network: Any = None) -> Self:
        """The estimator that :meth:`save` wrote; its predictions are the same bit for bit."""
        run = store.open_run(path)
        if not run.has(saving.PART):
            raise StoreError(f"`path` must be the folder of a saved estimator; {str(path)!r} holds a plain run.")
        kept = saving.extras_in(run, saving.EXTRAS)
        if kept["class"] != cls.__name__:
            raise StoreError(f"`path` {str(path)!r} holds a {kept['class']}: use {kept['class']}.load.")
        if kept["own_network"] != (check_factory(network) is not None):
            rule = "the function that made the network" if kept["own_network"] else "left out: the usual network"
            raise ArgumentError(f"`network` must be {rule} when the estimator was fitted; got {network!r}.")
        made = run.read(lambda: cls._rebuilt(kept, network), "the estimator")
        made.fitted_ = saving.fitted_in(run, made._blueprint, made._device_here())
        return made
