"""A run and its scores in plain words."""

from __future__ import annotations

import math

from temperance.apps.tables.kinds import kind_of
from temperance.apps.tables.run import TableRun
from temperance.apps.tables.scores import Evaluation


def describe(found: Evaluation, run: TableRun) -> list[str]:
    """A few sentences for people who do not know what a log-loss is."""
    guard = run.guard
    made = kind_of(run.schema).sentences(found, guard.level)
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
    better, worse = found.scores["log_loss"], found.baseline["log_loss"]
    if not better < worse or math.isnan(better):
        made.append(
            "The log-loss is no better than the baseline's: the columns tell nothing of the target that was learned."
        )
    return made
