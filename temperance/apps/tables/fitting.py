"""``fit_table``: from a table to a run, and ``fit_prepared``, the same for one method of several."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from temperance.apps.recipes import DEFAULT_METHOD, method_named, table_target, threads_for, training
from temperance.apps.tables.encode import Encoded
from temperance.apps.tables.folder import check_out, claim_for_fit, save_table_run
from temperance.apps.tables.folds import CALIBRATE, FoldModel, check_folds
from temperance.apps.tables.kinds import kind_of
from temperance.apps.tables.marginal import joined_predictive, predict_encoded
from temperance.apps.tables.outliers import learn_strangeness, learn_strangeness_in_folds
from temperance.apps.tables.predictions import check_new_names
from temperance.apps.tables.prepare import MAX_ROWS, Prepared, Say, TablePart, prepare_table
from temperance.apps.tables.robust import within
from temperance.apps.tables.run import TableRun, TableState, guard_of, in_units
from temperance.apps.tables.safeguards import NO_GUARD, check_promises
from temperance.apps.tables.schema import Schema
from temperance.core import files
from temperance.core.errors import ArgumentError, DataError, NumericalError, TemperanceWarning
from temperance.core.seeds import derive_seed
from temperance.core.status import INTERRUPTED
from temperance.inference import MAP
from temperance.inference.base import Inference
from temperance.model.likelihoods import Likelihood
from temperance.model.target import Target
from temperance.predict import Predictive
from temperance.predict.monotone import Monotone
from temperance.run.fit import fit
from temperance.run.fitted import Fitted

HIDDEN = (50, 50)
_TEST_ROWS = 10_000
_FULL_STEPS = 2000  # of methods that read all rows at each step: more than the 1000 of a warm-up
_LOOK = 60  # epochs of the networks that say in which units a target is learned
_LOOK_ROWS = 5000
_CALIBRATE_IN_FOLDS = 20
_STOP = 0.15  # of the rows of a fit, where a method stops early and no rows are held back


def fit_table(
    data: Any,
    target: str,
    *,
    task: str | None = None,
    method: str | Inference[Any] = DEFAULT_METHOD,
    out: str | Path | None = None,
    seed: int = 0,
    epochs: int | None = None,
    test: float = 0.2,
    validation: float = 0.2,
    drop: Sequence[str] = (),
    group: str | None = None,
    id: str | None = None,
    level: float = 0.9,
    error_rate: float = 0.05,
    tolerance: float | None = None,
    per_class: bool = False,
    folds: int | None = None,
    log: bool | None = None,
    max_rows: int = MAX_ROWS,
    encoding: str | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    missing: Sequence[str] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool | None = None,
    say: Say | None = None,
) -> TableRun:
    """Learn to predict one column of a table from the others, with calibrated uncertainty.

    Args:
        data: the path of a CSV (plain or gzipped) or parquet file, or a pandas ``DataFrame``.
        target: the column to predict.
        task: ``"classification"``, ``"regression"`` or ``"counts"``; recognised unless given.
        method: a name from :data:`temperance.apps.recipes.RECIPES`, an expression, or a method.
        out: a folder for the run. It is saved as it goes, so that ``resume`` goes on bit for bit.
        seed: decides everything random.
        epochs: how long to train; by the number of rows unless given.
        test, validation: fractions of the rows kept apart. Validation rows calibrate (one half) and give the promises
            of intervals and of the advice to ask a human (the other half).
        drop: columns to leave out.
        group: a column whose values are never divided between training, validation and test.
        id: a column that names the rows; it is not an input.
        level: of the intervals and sets.
        error_rate: wrong answers tolerated among those on which no human is asked.
        tolerance: how far off a number must be to be called wrong; half the target's spread unless given.
        per_class: of classes, keep ``level`` within each class, rare ones too, and not only over all rows; sets grow.
        folds: a small table holds no rows back to promise with: all but those of the test train, and so many more
            models, each trained without one part of the rows, say how wrong it is on rows that it has not seen
            (CV+ intervals, cross-conformal sets). Unless given, 10 or 5 where a half of the validation rows would be
            fewer than 50 and the method does not read all rows at each step; 0 holds rows back in any case.
        log: learn the logarithm of a positive number, so that intervals stay positive; unless given, chosen for skewed
            targets by the density of rows that were not learned from, in the target's own units.
        max_rows: of longer tables a random sample of so many rows is used.
        encoding, separator, decimal: of a CSV; recognised unless given.
        missing: words that mean that a class is not known. Unless given, words such as ``NA`` and ``None`` do where
            they are fewer than one row in twenty; where there are more they are classes. An empty cell always does.
        overwrite, resume: of an ``out`` that exists: replace it, or go on with an unfinished run.
        progress: show a progress bar; ``None`` shows it on a terminal.
        say: called with each remark on the table; they are also in ``notices``.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"size": np.arange(60.0), "kind": ["a", "b"] * 30})
    >>> frame["big"] = np.where(frame["size"] > 30, "yes", "no")
    >>> run = fit_table(frame, "big", method="map", epochs=3)
    >>> run.predict(frame.head(2))["prediction"].isin(["yes", "no"]).all()
    np.True_
    """
    chosen = method_named(method)
    check_promises(level, error_rate, tolerance)
    check_epochs(epochs)
    check_folds(folds)
    if folds is None and chosen.facts().reads == "full":
        folds = 0  # such a fit takes minutes: not once more for each fold
    with contextlib.nullcontext() if out is None else files.holding(Path(out), "out"):
        folder = None if out is None else check_out(out, overwrite=overwrite, resume=resume)
        prepared = prepare_table(
            data, target, task=task, drop=drop, group=group, id=id, test=test, validation=validation, folds=folds,
            seed=seed, max_rows=max_rows, encoding=encoding, separator=separator, decimal=decimal, missing=missing,
            say=say,
        )  # fmt: skip
        checkpoint = None if folder is None else claim_for_fit(folder)
        run = fit_prepared(
            prepared, chosen, seed=seed, epochs=epochs, level=level, error_rate=error_rate, tolerance=tolerance,
            per_class=per_class, log=log, checkpoint=checkpoint, progress=progress, say=say,
        )  # fmt: skip
        if folder is not None:
            save_table_run(run, folder, overwrite=True)
    return run


def check_epochs(epochs: int | None) -> None:
    """Raise unless ``epochs`` can be trained for."""
    if epochs is not None and (isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1):
        raise ArgumentError(f"`epochs` must be a positive whole number; got {epochs!r}.")


def fit_prepared(
    prepared: Prepared,
    method: Inference[Any],
    *,
    seed: int = 0,
    epochs: int | None = None,
    level: float = 0.9,
    error_rate: float = 0.05,
    tolerance: float | None = None,
    per_class: bool = False,
    log: bool | None = None,
    checkpoint: Path | None = None,
    progress: bool | None = None,
    say: Say | None = None,
) -> TableRun:
    """Train, calibrate, and make the promises."""
    schema, words = prepared.schema, list(prepared.notices)
    check_epochs(epochs)
    check_new_names(schema, list(prepared.test_frame.columns))
    proposed, batch = training(len(prepared.train), schema.outcome)
    if method.facts().reads == "full":
        proposed = _FULL_STEPS
    length = epochs if epochs is not None else None if method.facts().default_steps is not None else proposed
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TemperanceWarning)
        learner = _Learner(prepared, method, length, batch, seed, checkpoint, progress, log)
        schema, fitted, folds = learner.learn()
        if prepared.folds is None:
            known, guard_rows = _known(prepared.calibration), _known(prepared.guard)
            usual = known.inside(schema.limits)
            calibrator = _calibrate(
                schema,
                predict_encoded(fitted, usual.encoded),
                kind_of(schema).model_targets(schema, usual.y),
                CALIBRATE,
            )
            strangeness, guard_usual = learn_strangeness(prepared.train.encoded.x, known.encoded.x, seed), None
            if calibrator is None and len(known) < CALIBRATE and not learner.looked:
                # nothing was learned from them: they can keep promises too. Rows that chose when to stop, or the units
                # of the target, cannot.
                both = np.concatenate([known.encoded.x, guard_rows.encoded.x])
                guard_rows = TablePart(Encoded(both), np.concatenate([known.y, guard_rows.y]))
        else:
            calibrator, guard_rows = _calibrate_in_folds(schema, folds, prepared), prepared.train
            strangeness, strange = learn_strangeness_in_folds(prepared.train.encoded.x, prepared.folds)
            guard_usual = torch.from_numpy(~strange)
    remarks = learner.words + list(
        dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, TemperanceWarning))
    )

    def predict(encoded: Encoded) -> Predictive:
        return in_units(schema, predict_encoded(fitted, encoded, calibrator=calibrator))

    if tolerance is None:
        tolerance = kind_of(schema).tolerance(prepared.train.inside(schema.limits).y)
    state = TableState(
        schema, calibrator, strangeness, NO_GUARD, torch.from_numpy(guard_rows.encoded.x),
        torch.from_numpy(guard_rows.y), baseline_of(prepared), fitted.target.likelihood, HIDDEN, seed,
        {
            "rows": len(prepared.train), "validation rows": len(prepared.calibration) + len(prepared.guard),
            "test rows": len(prepared.test), "epochs": length, "batch size": batch,
        },
        tuple(FoldModel.of(fit, own) for own, fit in folds),
        None if prepared.folds is None else torch.from_numpy(prepared.folds), guard_usual,
    )  # fmt: skip
    guard, more = guard_of(state, predict, folds, level, error_rate, tolerance, per_class)
    state = replace(state, guard=guard)
    if say is not None:
        for remark in remarks + more:
            say(remark)
    kept = prepared.test_frame
    if len(kept) > _TEST_ROWS:
        kept = kept.sample(_TEST_ROWS, random_state=seed % 2**32).sort_index().reset_index(drop=True)
    return TableRun(state, fitted, kept, words + remarks + more)


@dataclass
class _Learner:
    """Fits: of all training rows, and of those without each fold. What a fit is made of (units of the target, when to
    stop) comes from its own rows alone, or from rows that promise nothing."""

    prepared: Prepared
    method: Inference[Any]
    epochs: int | None
    batch_size: int
    seed: int
    checkpoint: Path | None
    progress: bool | None
    log: bool | None = None
    looked: bool = False
    words: list[str] = field(default_factory=list)

    def learn(self) -> tuple[Schema, Fitted, list[tuple[Schema, Fitted]]]:
        """The model, and those of the folds, with their units. The noise of a real target may depend on the inputs, for
        then it is known where to ask a human; a method that fails with such noise is given noise of one size."""
        choices, checkpoint = kind_of(self.prepared.schema).likelihoods, self.checkpoint
        for k, likelihood in enumerate(choices):
            path = None if checkpoint is None else checkpoint.with_name(checkpoint.name + "-again" * k)
            later = None if checkpoint is None else checkpoint.with_name(checkpoint.name + "-again" * (k + 1))
            if later is not None and later.is_dir():
                continue  # this choice failed before the run was interrupted
            try:
                schema = self._units(self.prepared.train, likelihood, self.seed, aloud=True)
                self._say_outlying(schema)
                fitted = self._fit(schema, self.prepared.train, likelihood, self.seed, path)
                return schema, fitted, self._folds(likelihood)
            except NumericalError as error:
                if k + 1 == len(choices):
                    raise
                words = str(error).split(". ")[0]
                warnings.warn(f"noise of one size for all rows is used, for: {words}.", TemperanceWarning, stacklevel=2)
        raise AssertionError("unreachable")

    def _folds(self, likelihood: Likelihood) -> list[tuple[Schema, Fitted]]:
        made: list[tuple[Schema, Fitted]] = []
        folds, train = self.prepared.folds, self.prepared.train
        for k in range(0 if folds is None else int(folds.max()) + 1):
            rows = TablePart(Encoded(train.encoded.x[folds != k]), train.y[folds != k])
            seed = derive_seed(self.seed, "table-fold", k)
            own = self._units(rows, likelihood, seed)
            made.append((own, self._fit(own, rows, likelihood, seed, None)))
        return made

    def _units(self, rows: TablePart, likelihood: Likelihood, seed: int, aloud: bool = False) -> Schema:
        """The units in which these rows are learned: of several, those in which a plain network gives rows that it has
        not seen the higher density, in the target's own units."""
        kind = kind_of(self.prepared.schema)
        choices: list[Monotone | None] = [None, *self._transforms()]
        made = [self._in(transform, rows.y) for transform in choices]
        if self.log is not None or len(made) == 1:
            return made[-1]
        if self.prepared.folds is None:
            self.looked, judge = True, _known(self.prepared.calibration)
        else:
            rows, judge = _apart(rows, seed)
        if len(rows) > _LOOK_ROWS:
            rows, _ = _apart(rows, seed, len(rows) - _LOOK_ROWS)
        for own in made:
            judge = judge.inside(own.limits)
        found = []
        for own in (self._in(transform, rows.y) for transform in choices):
            target = self._target(own, likelihood, seed)
            epochs = min(_LOOK, self.epochs or _LOOK)
            try:
                tried = fit(
                    target, MAP(lr=5e-3), self.prepared.data(rows, own), epochs=epochs, batch_size=self.batch_size,
                    seed=seed, progress=False,
                )  # fmt: skip
            except NumericalError:
                found.append(-math.inf)
                continue
            predictive = in_units(own, predict_encoded(tried, judge.encoded))
            found.append(float(predictive.log_prob(kind.known_targets(judge.y)).double().mean()))
        best = int(np.argmax(found))
        if aloud:
            self._say_units(choices, found, best)
        return made[best]

    def _transforms(self) -> tuple[Monotone, ...]:
        if self.log is False:
            return ()
        kind, everything = kind_of(self.prepared.schema), self.prepared.targets
        return kind.forced(everything, self.prepared.schema.target) if self.log else kind.transforms(everything)

    def _in(self, transform: Monotone | None, y: NDArray[np.float64]) -> Schema:
        schema, kind = self.prepared.schema, kind_of(self.prepared.schema)
        limits = kind.limits(y, transform)
        y = y[within(y, limits)]
        centre, spread = kind.units(y, transform)
        if transform is not None:
            transform = kind.bounded(transform, y)
        return replace(schema, centre=centre, spread=spread, transform=transform, limits=limits)

    def _say_outlying(self, schema: Schema) -> None:
        """Name the rows whose targets are too far from the others to be learned from."""
        if self.prepared.numbered is None:
            return
        lines, y = self.prepared.numbered
        far = np.flatnonzero(~within(y, schema.limits))
        if not len(far):
            return
        listed = ", ".join(f"row {lines[k]} ({y[k]:.6g})" for k in far[:5]) + (" …" if len(far) > 5 else "")
        usual = y[within(y, schema.limits)]
        self.words.append(
            f"{schema.target} lies far from all other rows, which are between {usual.min():.4g} and {usual.max():.4g}, "
            f"in {listed}: neither learned nor calibrated from, for a mistyped number would spoil every prediction. "
            "Promises and scores count such rows. Correct them, or remove them."
        )

    def _say_units(self, choices: list[Monotone | None], found: list[float], best: int) -> None:
        name, other = self.prepared.schema.target, 1 - best
        what = "its logarithm is learned" if choices[best] is not None else "it is learned as it is, not its logarithm"
        self.words.append(
            f"{name} is positive and skewed: {what}, for the log-density of rows not seen is {found[best]:.3g} so and "
            f"{found[other]:.3g} otherwise (--log and --no-log decide it)."
        )

    def _fit(self, schema: Schema, rows: TablePart, likelihood: Likelihood, seed: int, path: Path | None) -> Fitted:
        target = self._target(schema, likelihood, seed)
        held_out = None
        if self.method.facts().held_out:
            self.looked, stop = True, self.prepared.calibration
            if self.prepared.folds is not None:
                rows, stop = _apart(rows, seed)
            held_out = self.prepared.data(stop, schema)
        with threads_for(self.batch_size * max(HIDDEN) * self.method.facts().streams):
            fitted = fit(
            target, self.method, self.prepared.data(rows, schema), epochs=self.epochs, batch_size=self.batch_size,
            seed=seed, progress=self.progress, checkpoint=path, held_out=held_out,
        )  # fmt: skip
        if fitted.info.status == INTERRUPTED and (path is not None or self.prepared.folds is not None):
            raise KeyboardInterrupt
        return fitted

    def _target(self, schema: Schema, likelihood: Likelihood, seed: int) -> Target:
        return table_target(
            schema.outcome, schema.inputs, schema.outputs, hidden=HIDDEN, likelihood=likelihood, seed=seed
        )


def _apart(part: TablePart, seed: int, count: int | None = None) -> tuple[TablePart, TablePart]:
    """Rows to train on, and some of them kept apart, to say when to stop or in which units to learn."""
    rng = np.random.default_rng(derive_seed(seed, "table-stop"))
    order = rng.permutation(len(part))
    count = max(1, round(_STOP * len(part))) if count is None else count
    first, second = (
        TablePart(Encoded(part.encoded.x[rows]), part.y[rows]) for rows in (np.sort(order[count:]), order[:count])
    )
    return first, second


def _known(part: TablePart) -> TablePart:
    """The rows without an unknown value: the others are never answered without a human."""
    keep = np.ones(len(part), dtype=bool)
    keep[part.encoded.open_rows] = False
    if not keep.any():
        raise DataError("every validation row has a value never seen in training: split otherwise (--group?).")
    return TablePart(Encoded(part.encoded.x[keep]), part.y[keep])


def _calibrate(schema: Schema, predictive: Predictive | None, y: torch.Tensor, least: int) -> Any:
    """A temperature for classes, a factor on the spread for real numbers, nothing for counts."""
    rule = kind_of(schema).calibration()
    if rule is None or predictive is None:
        return None
    if len(y) < least:
        words = f"{len(y)} rows are too few to calibrate on (at least {least}): left as the network has it."
        warnings.warn(words, TemperanceWarning, stacklevel=2)
        return None
    try:
        return rule.fit(predictive, y)
    except DataError as error:
        warnings.warn(f"not calibrated: {error}", TemperanceWarning, stacklevel=2)
        return None


def _calibrate_in_folds(schema: Schema, folds: Sequence[tuple[Schema, Fitted]], prepared: Prepared) -> Any:
    """The same from what the models of the folds say of rows that they have not seen. It changes what is predicted and
    no promise: these are made, of the same rows, before calibration."""
    assert prepared.folds is not None
    said, known = [], []
    for k, (own, fitted) in enumerate(folds):
        rows = prepared.folds == k
        usual = TablePart(Encoded(prepared.train.encoded.x[rows]), prepared.train.y[rows]).inside(own.limits)
        said.append(predict_encoded(fitted, usual.encoded))
        known.append(kind_of(own).model_targets(own, usual.y))
    return _calibrate(schema, joined_predictive(said), torch.cat(known), _CALIBRATE_IN_FOLDS)


def baseline_of(prepared: Prepared) -> torch.Tensor:
    """The training share of each class, or the mean and spread of the target."""
    return kind_of(prepared.schema).baseline(prepared.schema, prepared.train.inside(prepared.schema.limits).y)
