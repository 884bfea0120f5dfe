"""Fits of a table's rows: of all of them, and of those without each fold; in which units, and until when."""

from __future__ import annotations

import contextlib
import math
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.apps.recipes import table_hidden, table_target, threads_for
from temperance.apps.tables.folds import CALIBRATE
from temperance.apps.tables.kinds import flat, kind_of
from temperance.apps.tables.marginal import predict_encoded
from temperance.apps.tables.prepare import Prepared, TablePart
from temperance.apps.tables.robust import within
from temperance.apps.tables.run import in_units
from temperance.apps.tables.schema import Schema
from temperance.apps.tables.worth import NOISE, some_rows, worth_of
from temperance.core.errors import DataError, NumericalError, TemperanceWarning
from temperance.core.seeds import derive_seed
from temperance.core.status import INTERRUPTED
from temperance.inference import MAP
from temperance.inference.base import Inference
from temperance.model.likelihoods import Likelihood
from temperance.model.target import Target
from temperance.predict.monotone import Monotone
from temperance.run import store
from temperance.run.fit import fit
from temperance.run.fitted import Fitted
from temperance.run.parts import info_in

_LOOK = 60  # epochs of the networks that say in which units a target is learned
_LOOK_ROWS = 5000
_PATIENCE, _EARLY = 0.1, 0.25  # of the epochs: for how many a network looks for fewer, and which are fewer
_STILL = 0.8  # of those: a network that is best so late may become better still
_LEAST_EPOCHS = 3
_LEAST_GAIN = 0.01  # nats
_SHORTEN_ROWS = 20_000  # training rows beyond which such networks do not learn the noise by heart
_STOP = 0.15  # of the rows of a fit, where a method stops early and no rows are held back


@dataclass
class Learner:
    """Fits: of all training rows, and of those without each fold. What a fit is made of (units of the target, when to
    stop) comes from its own rows alone, or from rows that promise nothing. With ``shorten`` fewer epochs are taken
    where those rows are clearly better off (:meth:`_shorter`); ``epochs`` then are those that were."""

    prepared: Prepared
    method: Inference[Any]
    epochs: int | None
    batch_size: int
    seed: int
    checkpoint: Path | None
    progress: bool | None
    log: bool | None = None
    shorten: bool = False
    looked: bool = False
    words: list[str] = field(default_factory=list)

    @property
    def hidden(self) -> tuple[int, ...]:
        """The widths of all networks of this table, those of folds too."""
        return table_hidden(len(self.prepared.train), self.method)

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
                fitted = self._shorter(schema, likelihood, fitted)
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
            rows = train.some(np.flatnonzero(folds != k))
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
            self.looked, judge = True, known_rows(self.prepared.calibration)
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
        # Of all rows, the test's too: they only ever take a bound away, and that makes no promise worse.
        least = kind.least(np.concatenate([self.prepared.targets, self.prepared.test.y]))
        return replace(schema, centre=centre, spread=spread, transform=transform, limits=limits, least=least)

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
        held_out, facts = None, self.method.facts()
        if facts.held_out and (facts.learns_held_out or self.prepared.folds is not None):
            # rows that are learned from in the end must not be those by which predictions are calibrated
            rows, stop = _apart(rows, seed)
            held_out = self.prepared.data(stop, schema)
        elif facts.held_out:
            self.looked, stop = True, self.prepared.calibration
            held_out = self.prepared.data(stop, schema)
        begun = _steps_of(path)
        with threads_for(self.batch_size * max(self.hidden) * self.method.facts().streams):
            fitted = fit(
            target, self.method, self.prepared.data(rows, schema), epochs=self.epochs, batch_size=self.batch_size,
            seed=seed, progress=self.progress, checkpoint=path, held_out=held_out,
        )  # fmt: skip
        if fitted.info.status == INTERRUPTED and (path is not None or self.prepared.folds is not None):
            raise KeyboardInterrupt
        if begun is not None and begun != fitted.info.total_steps:
            self.words.append(
                f"this run was begun for {begun:,} steps and went on for {fitted.info.total_steps:,}: --epochs is not "
                "what it was, so the result is not that of either number from the start."
            )
        return fitted

    def _shorter(self, schema: Schema, likelihood: Likelihood, fitted: Fitted) -> Fitted:
        """The fit, or one of fewer epochs. Networks that are trained to the end learn the noise of a table by heart
        where there is much of it, and no temperature takes that back. So one network says after how many epochs the
        rows that calibrate were best off; where that is early, the method is run for so long, on all rows, and kept if
        it is better there, after calibration, by more than twice the standard error of the difference row by row."""
        prepared, whole = self.prepared, self.epochs
        if not self.shorten or whole is None or prepared.folds is not None or prepared.train.weights is not None:
            return fitted
        if self.method.facts().held_out or not all(part.single for _, part in fitted.posterior.parts()):
            return fitted  # it stops by itself, or has draws, which need their time
        judge = some_rows(known_rows(prepared.calibration).inside(schema.limits))
        if len(judge) < CALIBRATE or len(prepared.train) > _SHORTEN_ROWS:
            return fitted
        self.looked = True
        seed = derive_seed(self.seed, "table-length")
        try:
            tried = max(_LEAST_EPOCHS, math.ceil(_EARLY * whole))
            patience = max(_LEAST_EPOCHS, math.ceil(_PATIENCE * whole))
            probe = fit(
                self._target(schema, likelihood, seed), MAP(lr=5e-3, patience=patience),
                prepared.data(prepared.train, schema), epochs=tried, batch_size=self.batch_size, seed=seed,
                progress=False, held_out=prepared.data(judge, schema),
            )  # fmt: skip
            best = 1 + int(np.argmax(probe.info.held_out_scores or [0.0]))
            if probe.info.status == INTERRUPTED:
                raise KeyboardInterrupt
            if best > _STILL * tried:
                return fitted
            self.epochs = max(_LEAST_EPOCHS, best)
            short = self._fit(schema, prepared.train, likelihood, self.seed, None)
        except NumericalError:
            self.epochs = whole
            return fitted
        if short.info.status == INTERRUPTED:
            raise KeyboardInterrupt
        long_loss, short_loss = (_calibrated_losses(schema, made, judge) for made in (fitted, short))
        found = worth_of(kind_of(schema), short_loss, long_loss)
        if not found.gain > max(NOISE * found.error, _LEAST_GAIN):
            self.epochs = whole
            return fitted
        self.words.append(
            f"{self.epochs} epochs are used instead of {whole}, after which the training rows are known by heart: on "
            f"{found.rows:,} rows not learned from the log-loss is {found.gain:.2g} ± {found.error:.2g} lower so "
            "(--epochs decides it)."
        )
        return short

    def _target(self, schema: Schema, likelihood: Likelihood, seed: int) -> Target:
        return table_target(
            schema.outcome, schema.inputs, schema.outputs, hidden=self.hidden, likelihood=likelihood, seed=seed
        )


def _calibrated_losses(schema: Schema, fitted: Fitted, rows: TablePart) -> NDArray[np.float64]:
    """Log-losses in the units that are learned, after calibration on the same rows: one number, alike for all fits."""
    kind, said = kind_of(schema), predict_encoded(fitted, rows.encoded)
    rule, y = kind.calibration(), kind.model_targets(schema, rows.y)
    if rule is not None:
        with (
            warnings.catch_warnings(),
            contextlib.suppress(DataError),
        ):  # what there is to say, the fit that is kept says
            warnings.simplefilter("ignore", TemperanceWarning)
            said = rule.fit(said, y)(said)
    return -flat(said.log_prob(y))


def _steps_of(path: Path | None) -> int | None:
    """For how many steps a run was begun that goes on."""
    if path is None or not (path / store.MANIFEST).is_file():
        return None
    return info_in(store.open_run(path)).total_steps


def _apart(part: TablePart, seed: int, count: int | None = None) -> tuple[TablePart, TablePart]:
    """Rows to train on, and some of them kept apart, to say when to stop or in which units to learn."""
    rng = np.random.default_rng(derive_seed(seed, "table-stop"))
    order = rng.permutation(len(part))
    count = max(1, round(_STOP * len(part))) if count is None else count
    return part.some(np.sort(order[count:])), part.some(order[:count])


def known_rows(part: TablePart) -> TablePart:
    """The rows without an unknown value: the others are never answered without a human."""
    keep = np.ones(len(part), dtype=bool)
    keep[part.encoded.open_rows] = False
    if not keep.any():
        raise DataError("every validation row has a value never seen in training: split otherwise (--group?).")
    return part.some(np.flatnonzero(keep))
