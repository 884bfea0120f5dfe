"""What prediction costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

import temperance as tp
from benchmarks.harness import Goal, Job, Round, Script
from temperance.apps import recipes

SCRIPT = "peer_scripts/predict_memory.py"

ROWS, COLUMNS, DRAWS = 20_000, 20, 30


def rows_job(task: str, outputs: int) -> Callable[[], dict[str, Round]]:
    """A saved run of 30 draws, loaded: what one asks for a table, beside 30 bare forward passes of the same network."""

    def setup() -> dict[str, Round]:
        import tempfile

        target = recipes.table_target(task, COLUMNS, outputs)
        theta = torch.stack([target.fresh_theta(seed) for seed in range(DRAWS)])
        with tempfile.TemporaryDirectory() as folder:
            tp.Fitted(target, tp.posteriors.Draws(theta), tp.run.fitted.RunInfo()).save(f"{folder}/run")
            fitted = tp.load(f"{folder}/run", target.network)
        networks = [tp.Fitted(target, tp.posteriors.Point(row), fitted.info).network() for row in theta]
        x = torch.randn(ROWS, COLUMNS)

        def bare() -> None:
            with torch.no_grad():
                for network in networks:
                    network(x)

        def moments() -> None:
            made = fitted.predict(x)
            made.mean(), made.std()

        def everything() -> None:
            made = fitted.predict(x)
            made.mean(), made.std(), made.interval(0.9)
            if task == "classification":
                cast(tp.predict.ClassPredictive, made).entropy(), made.mutual_information()
            else:
                made.epistemic_variance()

        return {"predict": lambda: float(fitted.predict(x).mean().sum()), "mean and std": moments, "all": everything,
                "bare": bare}  # fmt: skip

    return setup


JOBS = [
    *(
        Job(
            f"predict-rows-{task}",
            f"{ROWS:,} rows of {COLUMNS} columns through a loaded run of {DRAWS} draws, two layers of 50, one core, "
            "beside 30 bare forward passes: the mean; mean and standard deviation; with intervals and entropies too.",
            rows_job(task, outputs),
            goals=(
                Goal("predict", "bare", at_most=1.3),
                Goal("mean and std", "bare", at_most=1.3),
            ),
            unit="row",
            units=ROWS,
            rounds=15,
            threads=1,
        )
        for task, outputs in (("regression", 1), ("classification", 3))
    ),
    Job(
        "predict-memory",
        "Peak memory of predicting 5,000 rows with 4,000 draws (800 MB of outputs) against 400 draws.",
        peers={
            "4000 draws": Script(SCRIPT, "predict", environment=None, arguments={"draws": 4000}),
            "400 draws": Script(SCRIPT, "predict", environment=None, arguments={"draws": 400}),
        },
        goals=(Goal("4000 draws", "400 draws", at_most=2.0),),
        quantity="memory",
        unit="prediction",
        rounds=2,
    ),
]
