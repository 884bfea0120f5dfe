"""``fit_table``: from a table to a run, and ``fit_prepared``, the same for one method of several."""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from temperance.apps.recipes import DEFAULT_METHOD, RECIPES, method_named, table_method, training
from temperance.apps.tables.encode import Encoded
from temperance.apps.tables.folder import check_out, claim_for_fit, save_table_run
from temperance.apps.tables.folds import CALIBRATE, FoldModel, check_folds
from temperance.apps.tables.kinds import kind_of
from temperance.apps.tables.learner import Learner, known_rows
from temperance.apps.tables.marginal import predict_encoded
from temperance.apps.tables.outliers import learn_strangeness, learn_strangeness_in_folds
from temperance.apps.tables.predictions import check_new_names
from temperance.apps.tables.prepare import MAX_ROWS, Prepared, Say, TablePart, prepare_table
from temperance.apps.tables.run import TableRun, TableState, guard_of, in_units
from temperance.apps.tables.safeguards import NO_GUARD, check_promises
from temperance.apps.tables.schema import Schema
from temperance.apps.tables.worth import some_rows, worth_held_back, worth_in_folds, worth_words
from temperance.core import files
from temperance.core.errors import ArgumentError, DataError, MismatchError, TemperanceWarning
from temperance.engine import native
from temperance.inference.base import Inference
from temperance.judge.diagnose import dead_units
from temperance.predict import Predictive
from temperance.predict.joined import joined_predictive
from temperance.run.fitted import Fitted

_TEST_ROWS = 10_000
_FULL_STEPS = 2000  # of methods that read all rows at each step: more than the 1000 of a warm-up
_CALIBRATE_IN_FOLDS = 20
_COPIED = 0.2  # of a table's rows, that stand in it already: beyond, chains are sure of what was said twice
_NUMBERS_AND_PLURALS = re.compile(r"[\d\s().,…]+|s\b")
_UNIT_ROWS = 10_000  # training rows on which units are looked at


def fit_table(
    data: Any,
    target: str,
    *,
    task: str | None = None,
    method: str | Inference[Any] | None = None,
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
    weights: str | None = None,
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
        method: a name from :data:`temperance.apps.recipes.RECIPES`, an expression, or a method. Unless given, that of
            :func:`temperance.apps.recipes.table_method`; where ``epochs`` are given, an ensemble.
        out: a folder for the run. It is saved as it goes, so that ``resume`` goes on bit for bit.
        seed: decides everything random.
        epochs: how long to train. Unless given, by the number of rows, and fewer where the rows that calibrate show
            clearly that trained networks know the training rows by heart.
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
        weights: a column that says how often each row counts in training (:class:`temperance.data.Data`); it is no
            input. Rows of weight 0 are left out. Intervals, sets and scores are about rows as they come, each once,
            which holds whatever was learned; nothing is calibrated, as in the scikit-learn estimators.
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
    given = None if method is None else method_named(method)
    check_promises(level, error_rate, tolerance)
    check_epochs(epochs)
    check_folds(folds)
    with contextlib.nullcontext() if out is None else files.holding(Path(out), "out"):
        folder = None if out is None else check_out(out, overwrite=overwrite, resume=resume)
        prepared = prepare_table(
            data, target, task=task, drop=drop, group=group, id=id, test=test, validation=validation, folds=folds,
            seed=seed, max_rows=max_rows, encoding=encoding, separator=separator, decimal=decimal, missing=missing,
            weights=weights, say=say,
        )  # fmt: skip
        chosen = method_named(_tell_usual(usual_method(prepared, epochs), say)) if given is None else given
        checkpoint = None if folder is None else claim_for_fit(folder)
        with _naming_a_method(resume and given is None, chosen):
            run = fit_prepared(
                prepared, chosen, seed=seed, epochs=epochs, level=level, error_rate=error_rate, tolerance=tolerance,
                per_class=per_class, log=log, checkpoint=checkpoint, progress=progress, say=say,
            )  # fmt: skip
        if folder is not None:
            save_table_run(run, folder, overwrite=True)
    return run


def usual_method(prepared: Prepared, epochs: int | None) -> str:
    """The method where nobody asks for one. Chains know of no ``epochs``, are slow where the kernels in C do not serve
    (rows with weights, machines without a compiler), and take the copy of a row for more evidence, which a training
    that stops early does not."""
    if epochs is not None or prepared.train.weights is not None or native.in_use() != "compiled":
        return DEFAULT_METHOD
    if prepared.copied > _COPIED:
        return DEFAULT_METHOD
    fits = 1 if prepared.folds is None else 2 + int(prepared.folds.max())
    return table_method(prepared.learnable, prepared.schema.outcome, prepared.schema.inputs, fits)


@contextlib.contextmanager
def _naming_a_method(doubtful: bool, chosen: Inference[Any]) -> Iterator[None]:
    """A run that was begun with another method cannot go on with the one that is usual here and now."""
    try:
        yield
    except MismatchError as error:
        if not doubtful:
            raise
        raise MismatchError(
            f"{error} Nobody named a method, and the usual one here is {type(chosen).__name__} of {chosen!r}: if the "
            "run was begun with another, name it (`--method`)."
        ) from error


def _tell_usual(name: str, say: Say | None) -> str:
    """The same, told where others are much faster."""
    if name != DEFAULT_METHOD and say is not None:
        say(
            f"method: {name}, {RECIPES[name].words.removesuffix(': slow')}. Numbers of so few rows are predicted best "
            f"so, as a rule; {DEFAULT_METHOD} (--method {DEFAULT_METHOD}) is faster."
        )
    return name


def one_of_each(told: list[str]) -> list[str]:
    """What several models had to say, once: where only the numbers differ, the first of them, and how many followed.

    >>> one_of_each(["2 of 9 chains stuck.", "1 of 9 chain stuck.", "Slow.", "Slow."])
    ['2 of 9 chains stuck. (1 more of the models trained here says the same with other numbers.)', 'Slow.']
    """
    alike: dict[str, list[str]] = {}
    for words in dict.fromkeys(told):
        alike.setdefault(_NUMBERS_AND_PLURALS.sub("", words), []).append(words)
    made = []
    for first, *others in alike.values():
        say = "says" if len(others) == 1 else "say"
        more = f" ({len(others)} more of the models trained here {say} the same with other numbers.)" if others else ""
        made.append(first + more)
    return made


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
    proposed = _FULL_STEPS if method.facts().reads == "full" else math.ceil(proposed * method.facts().longer)
    length = epochs if epochs is not None else None if method.facts().default_steps is not None else proposed
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TemperanceWarning)
        learner = Learner(prepared, method, length, batch, seed, checkpoint, progress, log, shorten=epochs is None)
        schema, fitted, folds = learner.learn()
        if prepared.folds is None:
            known, guard_rows = known_rows(prepared.calibration), known_rows(prepared.guard)
            usual = known.inside(schema.limits)
            calibrator = None
            if prepared.train.weights is None:
                said = predict_encoded(fitted, usual.encoded)
                calibrator = _calibrate(schema, said, kind_of(schema).model_targets(schema, usual.y), CALIBRATE)
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
    remarks = learner.words + one_of_each([str(w.message) for w in caught if issubclass(w.category, TemperanceWarning)])
    remarks += dead_units(fitted, _even(prepared.train.inside(schema.limits).encoded.x)).remarks()

    def predict(encoded: Encoded) -> Predictive:
        return in_units(schema, predict_encoded(fitted, encoded, calibrator=calibrator))

    if tolerance is None:
        tolerance = kind_of(schema).tolerance(prepared.train.inside(schema.limits).y)
    state = TableState(
        schema, calibrator, strangeness, NO_GUARD, torch.from_numpy(guard_rows.encoded.x),
        torch.from_numpy(guard_rows.y), baseline_of(prepared), fitted.target.likelihood, learner.hidden, seed,
        {
            "rows": len(prepared.train), "validation rows": len(prepared.calibration) + len(prepared.guard),
            "test rows": len(prepared.test), "epochs": learner.epochs, "batch size": batch,
        },
        tuple(FoldModel.of(fit, own) for own, fit in folds),
        None if prepared.folds is None else torch.from_numpy(prepared.folds), guard_usual,
    )  # fmt: skip
    if prepared.train.weights is None:  # weights make a model of other rows than those that come, better there or not
        remarks += _worth(prepared, state, guard_rows, predict, folds)
    guard, more = guard_of(state, predict, folds, level, error_rate, tolerance, per_class)
    state = replace(state, guard=guard)
    if say is not None:
        for remark in remarks + more:
            say(remark)
    kept = prepared.test_frame
    if len(kept) > _TEST_ROWS:
        kept = kept.sample(_TEST_ROWS, random_state=seed % 2**32).sort_index().reset_index(drop=True)
    return TableRun(state, fitted, kept, words + remarks + more)


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
    if prepared.train.weights is not None:
        return None
    said, known = [], []
    for k, (own, fitted) in enumerate(folds):
        rows = prepared.folds == k
        usual = prepared.train.some(np.flatnonzero(rows)).inside(own.limits)
        said.append(predict_encoded(fitted, usual.encoded))
        known.append(kind_of(own).model_targets(own, usual.y))
    return _calibrate(schema, joined_predictive(said), torch.cat(known), _CALIBRATE_IN_FOLDS)


def _worth(
    prepared: Prepared,
    state: TableState,
    guard_rows: TablePart,
    predict: Callable[[Encoded], Predictive],
    folds: Sequence[tuple[Schema, Fitted]],
) -> list[str]:
    """A warning where rows that were not learned from show no gain over the baseline."""
    schema = state.schema
    if prepared.folds is not None:
        found = worth_in_folds(schema, folds, prepared)
    else:
        rows = some_rows(guard_rows.inside(schema.limits))
        if not len(rows):
            return []
        found = worth_held_back(schema, predict(rows.encoded), rows, state.baseline)
    return worth_words(found, kind_of(schema), schema.target)


def _even(x: NDArray[np.float32]) -> torch.Tensor:
    """At most so many rows, evenly spaced."""
    picked = np.linspace(0, len(x) - 1, _UNIT_ROWS).round().astype(np.int64) if len(x) > _UNIT_ROWS else slice(None)
    return torch.from_numpy(x[picked])


def baseline_of(prepared: Prepared) -> torch.Tensor:
    """The training share of each class, or the mean and spread of the target."""
    return kind_of(prepared.schema).baseline(prepared.schema, prepared.train.inside(prepared.schema.limits).y)
