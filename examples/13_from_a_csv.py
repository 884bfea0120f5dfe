"""From a CSV to calibrated predictions and a decision, without writing a network: what the commands

    temperance fit patients.csv --target outcome
    temperance predict run new.csv -o predictions.csv
    temperance report run

do, from Python."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.datasets import load_breast_cancer

from temperance.apps.tables import fit_table, load_table_run

rng = np.random.default_rng(0)
frame = load_breast_cancer(as_frame=True).frame.iloc[:, [0, 1, 4, 5, 6, 20, 21, 30]]
frame["outcome"] = frame.pop("target").map({0: "malignant", 1: "benign"})
frame.insert(0, "patient", [f"{k:04d}" for k in range(len(frame))])
frame["clinic"] = rng.choice(["north", "south"], len(frame))
frame.loc[rng.random(len(frame)) < 0.1, "mean texture"] = np.nan  # real tables have holes

with TemporaryDirectory() as folder:
    path = Path(folder)
    frame.iloc[:-40].to_csv(path / "patients.csv", index=False)

    run = fit_table(
        path / "patients.csv", "outcome", id="patient", validation=0.4, epochs=30, error_rate=0.1, out=path / "run",
        say=print,
    )  # fmt: skip
    found = run.evaluate()
    print(f"accuracy {found.scores['accuracy']:.1%}, baseline {found.baseline['accuracy']:.1%}")
    print(f"asking a human on {found.share_deferred:.0%} of rows leaves {found.error_rate_answered:.1%} wrong answers")

    new = frame.iloc[-40:].drop(columns="outcome").reset_index(drop=True)
    new.loc[0, "clinic"] = "a clinic that opened yesterday"
    new.to_csv(path / "new.csv", index=False)
    made = load_table_run(path / "run").predict(path / "new.csv")
    print(made[["patient", "prediction", "probability_malignant", "ask_a_human", "flags"]].head(6).to_string())

assert found.scores["log_loss"] < found.baseline["log_loss"]
assert made.loc[0, "ask_a_human"] == "yes"
assert "never seen in training" in made.loc[0, "flags"]
