"""``python -m benchmarks.table_default``: is the method that a small table of numbers gets by itself better than the
ensemble, as ``temperance fit`` comes? And would it be of classes?

Each set is a table of 1,500 rows at most, split by ``temperance fit`` as it likes: folds of small ones, rows held back
to calibrate of others; scores are those of test rows that the fit has never seen, after calibration, numbers in
standardised units. Each fit is a process of one thread. Results are appended to
``benchmarks/results/table_default.jsonl`` one by one, and what is there is not run again. The default was chosen on the
sets of :data:`DEVELOPMENT`.

Needs the sets (``TEMPERANCE_DATA``).
"""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import pandas as pd
import torch

import temperance as tp
from benchmarks.tables import command_line, in_fresh_process, rows_of
from temperance.apps import recipes

DEVELOPMENT = ("concrete", "naval", "wine-red", "freesolv")
REPORT = ("diabetes", "energy", "power-plant", "protein")
CLASSES = ("iris", "breast-cancer")
METHODS = (recipes.SAMPLED, recipes.DEFAULT_METHOD, "multiswag")
MODULE = "benchmarks.table_default"
COLUMNS = {"log_loss": "log-loss", "crps": "CRPS", "coverage": "coverage of 90 %", "seconds": "CPU s"}


def as_frame(rows: tp.data.Data) -> pd.DataFrame:
    """The columns x0, x1, … and y."""
    assert isinstance(rows.x, torch.Tensor)
    frame = pd.DataFrame(rows.x.numpy(), columns=[f"x{k}" for k in range(rows.x.shape[1])])
    return frame.assign(y=rows.y.numpy().reshape(-1))


def one(name: str, split: int, method: str) -> dict[str, Any]:
    """One fit, in this process."""
    train, test = rows_of(name, split)
    known, new = as_frame(train), as_frame(test)
    spread = 1.0 if name in CLASSES else float(known["y"].std())
    task = "classification" if name in CLASSES else "regression"
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = tp.tables.fit_table(known, "y", method=method, task=task, test=0.0, seed=split, progress=False)
        seconds = time.process_time() - began
        found = run.evaluate(new)
    scores = found.scores
    made = {"log_loss": scores["log_loss"] - math.log(spread), "coverage": found.coverage, "seconds": seconds}
    return made | {each: scores[each] / spread for each in ("crps", "rmse") if each in scores}


def measured(name: str, split: int, method: str) -> dict[str, Any]:
    """The same in a fresh process."""
    return in_fresh_process(MODULE, name, split, method)


def main() -> int:
    """All sets by default."""
    sets = DEVELOPMENT + REPORT + CLASSES
    return command_line(MODULE, __doc__, sets=sets, methods=METHODS, one=one, measured=measured, columns=COLUMNS)


if __name__ == "__main__":
    raise SystemExit(main())
