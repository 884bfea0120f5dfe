"""A run and its scores in plain words."""

from __future__ import annotations

import math

from temperance.apps.tables.kinds import kind_of
from temperance.apps.tables.run import TableRun
from temperance.apps.tables.scores import Evaluation
from temperance.apps.tables.worth import NOISE

_BEHIND = 0.1  # how far the coverage of a class may lie below the level before it is said
_JUDGED = {"log_loss": "log-loss", "accuracy": "accuracy", "rmse": "root mean square"}


def describe(found: Evaluation, run: TableRun) -> list[str]:
    """A few sentences for people who do not know what a log-loss is."""
    guard = run.guard
    made = kind_of(run.schema).sentences(found, guard.level)
    made += _left_behind(found, guard.per_class)
    wrong = "" if found.tolerance is None else f", where wrong means off by more than {found.tolerance:.4g}"
    if found.rows_answered:
        made.append(
            f"Asking a human on {found.share_deferred:.1%} of rows leaves {found.rows_answered:,} answers, of which "
            f"{found.error_rate_answered:.1%} are wrong (tolerated: {guard.error_rate:.0%}){wrong}."
        )
    else:
        made.append(
            f"A human is asked on every row: no rule could be shown to keep wrong answers below {guard.error_rate:.0%}"
            f"{wrong}."
        )
    return made + beside_the_baseline(found)


def _left_behind(found: Evaluation, per_class: bool) -> list[str]:
    """Classes whose sets hold the truth less often than was promised over all rows, by more than chance explains."""
    low = [
        own
        for own in found.classes
        if own.coverage < found.level - _BEHIND
        and own.coverage + NOISE * math.sqrt(found.level * (1 - found.level) / own.rows) < found.level
    ]
    if not low:
        return []
    listed = ", ".join(f"{own.name!r} ({own.coverage:.0%} of {own.rows:,} rows)" for own in low[:3])
    advice = "" if per_class else " --per-class keeps the promise within each class."
    return [f"In some classes the set holds the truth less often: {listed}.{advice}"]


def beside_the_baseline(found: Evaluation) -> list[str]:
    """Where the model is no better than an answer that never looks at the columns: by the log-loss, compared row by row
    (:class:`~temperance.apps.tables.worth.Worth`), or by the accuracy or the root mean square, unless the gain is more
    than twice its standard error."""
    hardly, judged = [], [name for name in _JUDGED if name in found.scores]
    for name in judged:
        own, other = found.scores[name], found.baseline[name]
        gain, error = (own - other if name == "accuracy" else other - own), found.errors.get(name, 0.0)
        clear = gain > NOISE * (error if math.isfinite(error) else 0.0)
        shown = f"{own:.4g} against {other:.4g}"
        if name == "log_loss":
            clear, shown = found.worth.clear, f"{shown}, a gain of {gain:.2g} ± {found.worth.error:.2g}"
        if not clear:
            by = "hardly better" if gain > 0 else "no better"
            hardly.append(f"{by} by {_JUDGED[name]} ({shown})")
    if not hardly:
        return []
    end = ": the columns tell nothing of the target that was learned." if len(hardly) == len(judged) else "."
    return [
        f"Beside an answer that never looks at the columns the model is {' and '.join(hardly)}, as far as "
        f"{found.rows:,} test rows can tell{end}"
    ]
