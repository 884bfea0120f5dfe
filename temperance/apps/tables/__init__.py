"""A table in, calibrated predictions and decisions out: what ``temperance fit``, ``predict``, ``evaluate``, ``compare``
and ``report`` do, as functions.

    run = fit_table("houses.csv", "price", out="run")
    run.predict("new.csv")            # a DataFrame: mean, std, interval, what more data would teach, ask a human?
    run.evaluate("test.csv")
    run.report("page")

pandas and the rest are imported when the first of these names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from temperance.core.demand import on_demand

if TYPE_CHECKING:
    from temperance.apps.tables.compare import Comparison, compare_table
    from temperance.apps.tables.fitting import fit_table
    from temperance.apps.tables.folder import load_table_run
    from temperance.apps.tables.run import TableRun
    from temperance.apps.tables.scores import Evaluation

_PLACES = {
    "Comparison": "compare",
    "Evaluation": "scores",
    "TableRun": "run",
    "compare_table": "compare",
    "fit_table": "fitting",
    "load_table_run": "folder",
}


__getattr__ = on_demand(__name__, _PLACES)

__all__ = ["Comparison", "Evaluation", "TableRun", "compare_table", "fit_table", "load_table_run"]
