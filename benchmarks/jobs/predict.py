"""What prediction costs."""

from __future__ import annotations

from benchmarks.harness import Goal, Job, Script

SCRIPT = "peer_scripts/predict_memory.py"

JOBS = [
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
