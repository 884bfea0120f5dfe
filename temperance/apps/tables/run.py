"""``TableRun``: a model of a table, with everything that turns new rows into calibrated predictions and advice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from temperance.apps.tables.encode import Encoded, encode
from temperance.apps.tables.folds import FoldModel
from temperance.apps.tables.kinds import kind_of
from temperance.apps.tables.marginal import predict_encoded
from temperance.apps.tables.outliers import Strangeness
from temperance.apps.tables.reading import TableFile, open_table
from temperance.apps.tables.safeguards import Guard, GuardRows, make_guard
from temperance.apps.tables.schema import Schema, check_target
from temperance.core import files
from temperance.core.checks import check_shape, check_sizes, shown
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, DataError
from temperance.core.fields import check_fields
from temperance.judge.calibrate import Calibrator
from temperance.model.likelihoods import Likelihood
from temperance.predict import MonotonePredictive, Predictive, ValuePredictive
from temperance.predict.affine import AffinePredictive
from temperance.run.fitted import Fitted

if TYPE_CHECKING:
    from temperance.apps.tables.scores import Evaluation


@dataclass(frozen=True, eq=False)
class TableState(Value):
    """What is saved of a run beside its posterior. A small table has models of ``folds``; ``guard_folds`` then
    says which of them has not seen each of the rows that promise, ``guard_usual`` which of these are like the others.
    """

    schema: Schema
    calibrator: Any
    strangeness: Strangeness
    guard: Guard
    guard_x: torch.Tensor
    guard_y: torch.Tensor
    baseline: torch.Tensor
    likelihood: Likelihood
    hidden: tuple[int, ...]
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)
    folds: tuple[FoldModel, ...] = ()
    guard_folds: torch.Tensor | None = None
    guard_usual: torch.Tensor | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_sizes(self.hidden, "hidden")
        if not isinstance(self.calibrator, Calibrator | None):
            raise ArgumentError(f"`calibrator` must be a Calibrator or None; got {shown(self.calibrator)}.")
        rows, inputs = self.guard_x.shape[0] if self.guard_x.dim() else 0, self.schema.inputs
        if rows < 1:
            raise ArgumentError(f"`guard_x` must have a row at least; got shape {tuple(self.guard_x.shape)}.")
        check_shape(self.guard_x, "guard_x", rows, inputs)
        check_shape(self.strangeness.centre, "strangeness.centre", inputs)
        for name in ("guard_y", "guard_folds", "guard_usual"):
            check_shape(getattr(self, name), name, rows)
        check_shape(self.baseline, "baseline", len(self.schema.classes) or 2)


@dataclass
class TableRun:
    """A fitted table: ``fit_table`` makes it, ``load_table_run`` loads it.

    ``predict`` gives the columns of the command ``temperance predict``; ``predictive`` the distribution behind them, in
    the target's own units.
    """

    state: TableState
    fitted: Fitted
    test_frame: pd.DataFrame
    notices: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        schema = self.schema
        return f"TableRun({schema.outcome} of {schema.target!r} from {len(schema.columns)} columns, {self.fitted!r})"

    @property
    def schema(self) -> Schema:
        """The target and the columns."""
        return self.state.schema

    @property
    def guard(self) -> Guard:
        """The intervals, sets and advice."""
        return self.state.guard

    def predictive(self, data: Any) -> Predictive:
        """The calibrated predictive distribution of rows, in the target's own units."""
        return self.predictive_of(self.encode(whole_frame(open_table(data), self.schema.text_columns)))

    def encode(self, frame: pd.DataFrame) -> Encoded:
        """Rows as the network sees them; columns that are missing are named."""
        if not len(frame):
            raise DataError("the table has a header and no rows.")
        return encode(self.schema.columns, frame)

    def predictive_of(self, encoded: Encoded) -> Predictive:
        """The same of encoded rows."""
        return in_units(self.schema, predict_encoded(self.fitted, encoded, calibrator=self.state.calibrator))

    @cached_property
    def _fold_fits(self) -> list[tuple[Schema, Fitted]]:
        return [
            (model.schema(self.schema), model.fitted(self.fitted, self.schema, self.state.hidden))
            for model in self.state.folds
        ]

    def guard_at(self, encoded: Encoded) -> Guard:
        """The promises for these rows: those of a small table ask the models of all folds."""
        if not self.state.folds:
            return self.guard
        plain = in_units(self.schema, predict_encoded(self.fitted, encoded))
        return self.guard.beside(plain, [in_units(own, predict_encoded(fit, encoded)) for own, fit in self._fold_fits])

    def with_guard(
        self,
        level: float | None = None,
        error_rate: float | None = None,
        tolerance: float | None = None,
        per_class: bool | None = None,
    ) -> TableRun:
        """The run with another level of the intervals or another error rate, from the validation rows it keeps."""
        old = self.guard
        level, error_rate, tolerance = (
            then if now is None else now
            for now, then in ((level, old.level), (error_rate, old.error_rate), (tolerance, old.tolerance))
        )
        per_class = old.per_class if per_class is None else per_class
        if (level, error_rate, tolerance, per_class) == (old.level, old.error_rate, old.tolerance, old.per_class):
            return self
        guard, words = guard_of(
            self.state, self.predictive_of, self._fold_fits, level, error_rate, tolerance, per_class
        )
        return TableRun(
            dataclasses.replace(self.state, guard=guard), self.fitted, self.test_frame, [*self.notices, *words]
        )

    def predict(
        self,
        data: Any,
        *,
        level: float | None = None,
        error_rate: float | None = None,
        tolerance: float | None = None,
        per_class: bool | None = None,
    ) -> pd.DataFrame:
        """The rows of ``data`` with predictions beside them; see ``temperance predict --help`` for the columns."""
        from temperance.apps.tables.predictions import check_new_names, prediction_columns

        table = open_table(data)
        run = self.with_guard(level, error_rate, tolerance, per_class)
        frame = whole_frame(table, self.schema.kept_as_text(table.columns))
        check_new_names(run.schema, frame.columns)
        made = pd.DataFrame(prediction_columns(run, frame), index=frame.index)
        return pd.concat([frame, made], axis=1)

    def truth(self, frame: pd.DataFrame) -> tuple[NDArray[np.float64], list[str]]:
        """The target of rows as numbers, NaN where it is missing or a class never seen; and notices."""
        check_target(list(frame.columns), self.schema.target)
        name = self.schema.target
        y, _, notices = kind_of(self.schema).read(frame[name], name, self.schema.classes or None)
        return y, notices

    def evaluate(self, data: Any = None) -> Evaluation:
        """Scores on rows with known answers (the run's own test rows unless told), beside a baseline."""
        from temperance.apps.tables.scores import evaluate_table

        return evaluate_table(self, open_table(self._test_rows() if data is None else data))

    def report(self, path: str | Path, data: Any = None, *, overwrite: bool = False) -> Path:
        """A page that says how far to trust the model; returns its path."""
        from temperance.apps.tables.page import report_table

        return report_table(self, path, open_table(self._test_rows() if data is None else data), overwrite=overwrite)

    def _test_rows(self) -> pd.DataFrame:
        if not len(self.test_frame):
            raise ArgumentError(
                "`data` must be given: this run has no test rows (made with --test 0, or they were removed)."
            )
        return self.test_frame

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the run to a folder: safetensors and JSON, all at once or not at all."""
        from temperance.apps.tables.folder import save_table_run

        with files.holding(Path(path), "path"):
            save_table_run(self, path, overwrite=overwrite)

    @cached_property
    def baseline(self) -> NDArray[np.float64]:
        """What the baseline predicts: the training share of each class, or the mean and spread of the target."""
        return self.state.baseline.numpy()


def calibrated(calibrator: Any, predictive: Predictive) -> Predictive:
    """The calibrated predictive; the same one where there was nothing to calibrate."""
    return predictive if calibrator is None else calibrator(predictive)


def in_units(schema: Schema, predictive: Predictive) -> Predictive:
    """A predictive of standardised targets, in their own units."""
    if not schema.outcome.has_units:
        return predictive
    assert isinstance(predictive, ValuePredictive)
    shift, scale = torch.tensor([[schema.centre], [schema.spread]], dtype=torch.float64)
    made = AffinePredictive(predictive, shift, scale)
    return made if schema.transform is None else MonotonePredictive(made, schema.transform)


def guard_of(
    state: TableState,
    predict: Callable[[Encoded], Predictive],
    folds: Sequence[tuple[Schema, Fitted]],
    level: float,
    error_rate: float,
    tolerance: float,
    per_class: bool = False,
) -> tuple[Guard, list[str]]:
    """The promises that the rows kept for them allow."""
    kind = kind_of(state.schema)
    if per_class and not state.schema.classes:
        raise ArgumentError(f"`per_class` is for classes; the target `{state.schema.target}` has none. Leave it out.")
    x, y = state.guard_x.numpy(), state.guard_y.numpy()
    usual = ~state.strangeness.flags(x) if state.guard_usual is None else state.guard_usual.numpy().copy()
    if not usual.any():
        usual[:] = True
    place = np.zeros(len(y), dtype=np.int64) if state.guard_folds is None else state.guard_folds.numpy()
    parts = []
    for k, ask in enumerate(_askers(predict, folds)):
        own = place == k
        some = own & usual
        parts.append(GuardRows(ask(x[own]), y[own], usual[own], ask(x[some]) if some.any() else None))
    rows = sum(state.settings[name] for name in ("rows", "validation rows", "test rows"))
    guard, words = make_guard(
        parts, kind, level, error_rate, tolerance, per_class=per_class, table_rows=rows, classes=state.schema.classes
    )
    return dataclasses.replace(guard, least=state.schema.least), words


def _askers(
    predict: Callable[[Encoded], Predictive], folds: Sequence[tuple[Schema, Fitted]]
) -> list[Callable[[NDArray[np.float32]], Predictive]]:
    """The model, or those of the folds: each from inputs to a predictive."""

    def ask(fold: tuple[Schema, Fitted], x: NDArray[np.float32]) -> Predictive:
        return in_units(fold[0], predict_encoded(fold[1], Encoded(x)))

    return [partial(ask, fold) for fold in folds] or [lambda x: predict(Encoded(x))]


def whole_frame(table: TableFile, text: list[str] | None = None) -> pd.DataFrame:
    """All rows of a table in memory."""
    parts = [chunk.frame for chunk in table.chunks(text=text or [])]
    if not parts:
        raise DataError(f"{table.name} has a header and no rows.")
    return parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)
