"""How good a run is on rows with known answers, in the target's own units, beside the plainest of baselines."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import scipy.stats
import torch
from numpy.typing import NDArray

from temperance.apps.tables.encode import Encoded
from temperance.apps.tables.reading import TableFile
from temperance.apps.tables.run import TableRun
from temperance.apps.tables.safeguards import flat, wrong_answers
from temperance.apps.tables.schema import Schema
from temperance.core.errors import DataError
from temperance.predict import ClassPredictive, Predictive, scores

_ROWS = 20_000
_DRAWS = 200
_BASELINE_SEED = 0


@dataclass
class Evaluation:
    """Scores of a run and of the baseline; lower is better but for ``accuracy`` and ``coverage``.

    The baseline always predicts the training share of each class, or the training mean and spread. ``coverage`` is how
    often the truth lies in the interval (or set) of level ``level``, ``size`` the mean width of the interval (number of
    classes in the set); ``share_deferred`` on how many rows a human is asked, ``error_rate_answered`` how many of the
    other answers are wrong, and ``rows_answered`` of how many. ``errors`` are standard errors of the scores that are
    means over rows.
    """

    task: str
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
    notices: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what cannot be said (an error rate of no answers) is None."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }


def evaluate_table(run: TableRun, table: TableFile) -> Evaluation:
    """Scores of a run on a table that has the target, chunk by chunk."""
    found: list[dict[str, NDArray[np.float64]]] = []
    notices: list[str] = []
    skipped = 0
    for chunk in table.chunks(_ROWS, text=run.schema.text_columns):
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
    rows = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
    return summary(run, rows, notices)


def row_scores(run: TableRun, encoded: Encoded, y: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """What each row contributes to the scores of the run and of the baseline."""
    schema, guard = run.schema, run.guard
    predictive = run.predictive_of(encoded)
    asked = guard.asks(predictive) | run.state.strangeness.flags(encoded.x)
    asked[encoded.open_rows] = True
    made = {"y": y, "asked": asked.astype(np.float64)}
    made["wrong"] = wrong_answers(predictive, y, schema.task, guard.tolerance).astype(np.float64)
    if isinstance(predictive, ClassPredictive):
        label = y.astype(np.int64)
        made["log_loss"] = -flat(predictive.log_prob(torch.from_numpy(label)))
        probs = predictive.probs.double().cpu().numpy()
        made["probs"] = probs / probs.sum(1, keepdims=True)
        sets = guard.sets(predictive)
        made["covered"] = sets[np.arange(len(y)), label].astype(np.float64)
        made["size"] = sets.sum(1).astype(np.float64)
        return made
    made["log_loss"] = -flat(predictive.log_prob(torch.from_numpy(y)[:, None]))
    made["error"] = flat(predictive.mean()) - y
    low, high = guard.interval(predictive, schema.task)
    made["covered"], made["size"] = ((low <= y) & (y <= high)).astype(np.float64), high - low
    made["crps"] = _crps(predictive, y)
    return made


def _crps(predictive: Predictive, y: NDArray[np.float64]) -> NDArray[np.float64]:
    """E|Y − y| − E|Y − Y'| / 2 of draws, each row by itself, without the bias of pairing a draw with itself."""
    draws = predictive.sample(_DRAWS).double().cpu().numpy().reshape(_DRAWS, -1)
    draws.sort(axis=0)
    weights = 2.0 * np.arange(1, _DRAWS + 1) - _DRAWS - 1
    spread = (weights[:, None] * draws).sum(0) / (_DRAWS * (_DRAWS - 1))
    return np.abs(draws - y).mean(0) - spread


def summary(run: TableRun, rows: dict[str, NDArray[np.float64]], notices: list[str]) -> Evaluation:
    """The averages over rows."""
    count = len(rows["y"])
    found: dict[str, float] = {"log_loss": float(rows["log_loss"].mean())}
    errors = {"log_loss": _standard_error(rows["log_loss"])}
    if run.schema.task == "classification":
        label = rows["y"].astype(np.int64)
        squares = np.square(rows["probs"] - np.eye(len(run.schema.classes))[label]).sum(1)
        found |= {"accuracy": 1 - float(rows["wrong"].mean()), "brier": float(squares.mean())}
        errors |= {"accuracy": _standard_error(rows["wrong"]), "brier": _standard_error(squares)}
        found["ece"] = scores.ece(rows["probs"], label, resamples=1).value
    else:
        squares = np.square(rows["error"])
        found |= {"rmse": float(np.sqrt(squares.mean())), "crps": float(rows["crps"].mean())}
        errors |= {
            "rmse": _standard_error(squares) / (2 * found["rmse"]) if found["rmse"] > 0 else 0.0,
            "crps": _standard_error(rows["crps"]),
        }
    answered = rows["asked"] == 0
    return Evaluation(
        run.schema.task, run.schema.target, count, run.guard.level, run.guard.error_rate,
        None if run.schema.task == "classification" else run.guard.tolerance, found, errors,
        baseline_scores(run.schema, run.baseline, rows["y"]), float(rows["covered"].mean()), float(rows["size"].mean()),
        float(rows["asked"].mean()), float(rows["wrong"][answered].mean()) if answered.any() else math.nan,
        int(answered.sum()), notices,
    )  # fmt: skip


def baseline_scores(schema: Schema, baseline: NDArray[np.float64], y: NDArray[np.float64]) -> dict[str, float]:
    """The same scores for a forecast that never looks at the inputs."""
    if schema.task == "classification":
        probs = np.broadcast_to(baseline, (len(y), len(baseline)))
        label = y.astype(np.int64)
        return {
            "log_loss": scores.log_loss(probs, label),
            "accuracy": scores.accuracy(probs, label),
            "brier": scores.brier(probs, label),
            "ece": round(scores.ece(probs, label, resamples=1).value, 12),
        }
    mean, spread = float(baseline[0]), float(baseline[1])
    centre, wide = np.full(len(y), mean), np.full(len(y), spread)
    found = {"rmse": scores.rmse(centre, y)}
    if schema.task == "regression":
        log_loss = -scipy.stats.norm.logpdf(y, mean, spread).mean()
        return {"log_loss": float(log_loss), **found, "crps": scores.gaussian_crps(centre, wide, y)}
    rate = max(mean, 1e-6)
    draws = np.sort(np.random.default_rng(_BASELINE_SEED).poisson(rate, 2000).astype(np.float64))
    spread = float(((2.0 * np.arange(1, 2001) - 2001) * draws).sum() / (2000 * 1999))
    values, counts = np.unique(y, return_counts=True)
    crps = sum(np.abs(draws - v).mean() * n for v, n in zip(values, counts, strict=True)) / len(y) - spread
    return {"log_loss": float(-scipy.stats.poisson.logpmf(y, rate).mean()), **found, "crps": float(crps)}


def _standard_error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
