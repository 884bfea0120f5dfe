"""How good a run is on rows with known answers, in the target's own units, beside the plainest of baselines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.apps.tables.encode import Encoded
from temperance.apps.tables.kinds import kind_of, standard_error
from temperance.apps.tables.reading import TableFile
from temperance.apps.tables.run import TableRun
from temperance.apps.tables.worth import Worth, worth_of
from temperance.core.errors import DataError
from temperance.core.outcomes import Outcome

_ROWS = 20_000


@dataclass
class ClassScores:
    """One class: how many rows have it, how many of these are answered so (``recall``), hold it in their set
    (``coverage``), and are answered wrongly without a human being asked (``wrong_unasked``)."""

    name: str
    rows: int
    recall: float
    coverage: float
    wrong_unasked: int


@dataclass
class Evaluation:
    """Scores of a run and of the baseline; lower is better but for ``accuracy`` and ``coverage``.

    The baseline always predicts the training share of each class, or the training mean and spread. ``coverage`` is how
    often the truth lies in the interval (or set) of level ``level``, ``size`` the mean width of the interval (number of
    classes in the set); ``share_deferred`` on how many rows a human is asked, ``error_rate_answered`` how many of the
    other answers are wrong, and ``rows_answered`` of how many. ``errors`` are standard errors of the scores that are
    means over rows; ``worth`` is the gain in log-loss over the baseline, row by row. ``classes`` has the same of each
    class, the rarest first.
    """

    outcome: Outcome
    target: str
    rows: int
    level: float
    error_rate: float
    tolerance: float | None
    scores: dict[str, float]
    errors: dict[str, float]
    baseline: dict[str, float]
    coverage: float
    size: float
    share_deferred: float
    error_rate_answered: float
    rows_answered: int
    worth: Worth
    notices: list[str] = field(default_factory=list)
    classes: list[ClassScores] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what cannot be said (an error rate of no answers) is None."""
        made: dict[str, Any] = finite(plain_fields(self))
        return made


def plain_fields(value: Any) -> dict[str, Any]:
    """The fields of what was found, for JSON; the outcome by its name, under ``task`` as on the command line."""
    named = {"task" if key == "outcome" else key: entry for key, entry in asdict(value).items()}
    return named | {"task": value.outcome.name}


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value


def evaluate_table(run: TableRun, table: TableFile) -> Evaluation:
    """Scores of a run on a table that has the target, chunk by chunk."""
    found: list[dict[str, NDArray[np.float64]]] = []
    notices: list[str] = []
    skipped = 0
    for chunk in table.chunks(_ROWS, text=run.schema.text_columns, verbatim=run.schema.verbatim):
        y, words = run.truth(chunk.frame)
        notices += [word for word in words if word not in notices]
        known = ~np.isnan(y)
        skipped += int((~known).sum())
        if known.any():
            found.append(row_scores(run, run.encode(chunk.frame[known]), y[known]))
    if not found:
        raise DataError(f"{table.name} has no row with a value of `{run.schema.target}`.")
    if skipped:
        notices.append(f"{skipped:,} rows without a known value of `{run.schema.target}` are left out.")
    bent = run.schema.transform
    if bent is not None and (lost := sum(int((part["y"] <= bent.least).sum()) for part in found)):
        notices.append(
            f"{lost:,} rows have a `{run.schema.target}` of {bent.least:g} or less, which is impossible where the "
            "logarithm was learned: their log-loss is infinite, and so is the mean. If such rows can come, fit with "
            "--no-log."
        )
    rows = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
    return summary(run, rows, notices)


def row_scores(run: TableRun, encoded: Encoded, y: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """What each row contributes to the scores of the run and of the baseline."""
    kind, guard = kind_of(run.schema), run.guard_at(encoded)
    predictive = run.predictive_of(encoded)
    asked = guard.asks(predictive) | run.state.strangeness.flags(encoded.x)
    asked[encoded.open_rows] = True
    made = {"y": y, "asked": asked.astype(np.float64)}
    made["wrong"] = kind.wrong(predictive, y, guard.tolerance).astype(np.float64)
    return made | kind.row_scores(guard, predictive, y)


def summary(run: TableRun, rows: dict[str, NDArray[np.float64]], notices: list[str]) -> Evaluation:
    """The averages over rows."""
    count, kind = len(rows["y"]), kind_of(run.schema)
    own, own_errors = kind.summary(run.schema, rows)
    found = {"log_loss": float(rows["log_loss"].mean())} | own
    errors = {"log_loss": standard_error(rows["log_loss"])} | own_errors
    answered = rows["asked"] == 0
    return Evaluation(
        run.schema.outcome, run.schema.target, count, run.guard.level, run.guard.error_rate,
        kind.shown_tolerance(run.guard.tolerance), found, errors,
        kind.baseline_scores(run.baseline, rows["y"]), float(rows["covered"].mean()), float(rows["size"].mean()),
        float(rows["asked"].mean()), float(rows["wrong"][answered].mean()) if answered.any() else math.nan,
        int(answered.sum()), worth_of(kind, rows["log_loss"], kind.baseline_losses(run.baseline, rows["y"])), notices,
        _each_class(run.schema.classes, rows),
    )  # fmt: skip


def _each_class(names: Sequence[str], rows: dict[str, NDArray[np.float64]]) -> list[ClassScores]:
    made = []
    for k, name in enumerate(names):
        own = rows["y"] == k
        if own.any():
            wrong, unasked = rows["wrong"][own] == 1, rows["asked"][own] == 0
            recall, covered = 1 - float(wrong.mean()), float(rows["covered"][own].mean())
            made.append(ClassScores(name, int(own.sum()), recall, covered, int((wrong & unasked).sum())))
    return sorted(made, key=lambda found: found.rows)
