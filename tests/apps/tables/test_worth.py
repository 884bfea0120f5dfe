"""A model that has learned nothing says so, by rows that it has not learned from; a healthy one does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

import temperance as tp
from temperance.apps.cli import main
from temperance.apps.tables import compare_table, fit_table
from temperance.apps.tables.fitting import fit_prepared
from temperance.apps.tables.kinds import KINDS, kind_of
from temperance.apps.tables.prepare import prepare_table
from temperance.apps.tables.words import beside_the_baseline
from temperance.apps.tables.worth import HARDLY, worth_held_back, worth_in_folds, worth_of, worth_words
from temperance.core.outcomes import Classes, Reals
from temperance.judge.diagnose.dead import ENDED


def noise(rows: int, target: str, seed: int = 0) -> pd.DataFrame:
    """Columns that say nothing of the target."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(rows, 5)), columns=list("abcde"))
    made: dict[str, Any] = {
        "classes": np.where(rng.random(rows) < 0.2, "yes", "no"),
        "numbers": 10 + 5 * rng.normal(size=rows),
        "counts": rng.poisson(8, size=rows),
    }
    frame["y"] = made[target]
    return frame


def learnable() -> pd.DataFrame:
    """A number that two of six columns tell."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(900, 6)), columns=list("abcdef"))
    return frame.assign(y=np.sin(1.5 * frame["a"]) + 0.5 * frame["b"] + 0.4 * rng.normal(size=900))


def hardly(notices: list[str]) -> list[str]:
    return [words for words in notices if words.startswith(HARDLY)]


@pytest.mark.parametrize("target", ["classes", "numbers", "counts"])
@pytest.mark.parametrize("rows", [120, 900])  # in folds, and with rows held back
def test_noise_is_told_from_what_was_learned(rows: int, target: str) -> None:
    run = fit_table(noise(rows, target), "y", method="map", epochs=30, progress=False)
    (said,) = hardly(run.notices)
    assert (run.state.guard_folds is not None) == (rows == 120)
    count = 96 if rows == 120 else 90
    assert f"on {count} rows that were not learned from" in said
    assert "log-loss of y is" in said
    assert "nats a row" in said
    assert "temperance compare" in said
    assert ("base rate" in said) == (target == "classes")


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_healthy_tables_of_classes_hear_nothing(name: str) -> None:
    frame = getattr(datasets, f"load_{name}")(as_frame=True).frame
    run = fit_table(frame, "target", method="Ensemble(MAP(lr=5e-3), 2)", epochs=40, progress=False)
    assert hardly(run.notices) == []
    assert not [words for words in run.notices if words.startswith(ENDED)]


@pytest.mark.parametrize("name", ["concrete", "energy"])
def test_healthy_tables_of_numbers_hear_nothing(name: str) -> None:
    train, _ = tp.data.load(name)
    frame = pd.DataFrame(train.x.numpy()).add_prefix("x").assign(y=train.y.numpy().ravel().astype(float))
    run = fit_table(frame, "y", task="regression", method="MAP(lr=5e-3)", epochs=20, log=False, progress=False)
    assert not [words for words in run.notices if words.startswith((*HARDLY, ENDED))]


def test_a_weak_signal_is_no_noise() -> None:
    frame = noise(3000, "numbers")
    frame["y"] += 3 * frame["a"]
    assert hardly(fit_table(frame, "y", method="map", epochs=5, progress=False).notices) == []


def test_rows_in_folds_are_judged_by_the_model_that_has_not_seen_them() -> None:
    """Of a network that knows its rows by heart these say that it is far better than the base rate. It is not."""
    frame = noise(100, "classes")
    prepared = prepare_table(frame, "y")
    run = fit_prepared(prepared, tp.MAP(lr=2e-2), epochs=200, progress=False)
    kind = kind_of(run.schema)
    assert prepared.folds is not None
    own = worth_held_back(run.schema, run.fitted.predict(prepared.train.encoded.x), prepared.train, run.state.baseline)
    assert own.clear  # the broken twin: rows that were learned from
    found = worth_in_folds(run.schema, run._fold_fits, prepared)
    assert not found.clear
    assert found.rows == len(prepared.train)
    assert hardly(run.notices)
    # the baseline of a row's fold does not know the row either
    losses = []
    for k in range(int(prepared.folds.max()) + 1):
        left_out = prepared.folds == k
        usual = kind.baseline(run.schema, prepared.train.y[~left_out])
        losses.append(kind.baseline_losses(usual.numpy(), prepared.train.y[left_out]))
    assert found.baseline == pytest.approx(np.concatenate(losses).mean())


def test_the_gain_is_judged_row_by_row() -> None:
    kind, rng = KINDS.of(Reals()), np.random.default_rng(0)
    baseline = 10 * rng.normal(size=400)  # rows differ by far more than the two answers do
    found = worth_of(kind, baseline - 0.05 + 0.1 * rng.normal(size=400), baseline)
    assert found.clear
    assert found.error == pytest.approx(0.1 / 20, rel=0.2)
    assert not worth_of(kind, baseline - 0.05 + 2.0 * rng.normal(size=400), baseline).clear  # by chance as likely
    few = baseline - 1.0 + 0.1 * rng.normal(size=400)
    few[:2] += 150  # two rows that it was too sure of: the mean is no longer known, that it has learned something is
    found = worth_of(kind, few, baseline)
    assert found.clear
    assert found.gain < 2 * found.error
    few[:2] += 1000
    assert not worth_of(kind, few, baseline).clear  # all in all worse, by whatever rows
    assert not worth_of(kind, baseline - 1e-4, baseline).clear  # surely better, and by nothing
    assert worth_of(KINDS.of(Classes()), np.full(400, 0.050), np.full(400, 0.056)).clear  # rare classes have few nats


def test_a_few_rows_that_decide_are_told_from_columns_that_say_nothing() -> None:
    kind, rng = KINDS.of(Reals()), np.random.default_rng(0)
    baseline = 2.0 + 0.1 * rng.normal(size=400)
    own = baseline - 1.0 + 0.1 * rng.normal(size=400)
    own[:3] += 300.0
    (said,) = worth_words(worth_of(kind, own, baseline), kind, "price")
    assert said.startswith("a few rows decide")
    assert "price" in said
    assert not hardly([said])
    (said,) = worth_words(worth_of(kind, baseline + 0.1 * rng.normal(size=400), baseline), kind, "price")
    assert hardly([said])
    assert worth_words(worth_of(kind, baseline - 1.0, baseline), kind, "price") == []


@pytest.mark.parametrize("target", ["classes", "numbers", "counts"])
def test_losses_of_the_baseline_are_those_of_its_scores(target: str) -> None:
    run = fit_table(noise(400, target), "y", method="map", epochs=1, progress=False)
    kind, y = kind_of(run.schema), run.truth(run.test_frame)[0]
    rows = kind.baseline_losses(run.baseline, y)
    assert rows.shape == y.shape
    assert rows.mean() == pytest.approx(kind.baseline_scores(run.baseline, y)["log_loss"])
    found = run.evaluate()
    assert found.worth.baseline == pytest.approx(found.baseline["log_loss"])
    assert found.worth.own == pytest.approx(found.scores["log_loss"])
    assert found.as_dict()["worth"]["rows"] == found.rows


def test_weighted_rows_are_not_compared_with_rows_as_they_come() -> None:
    frame = noise(400, "classes").assign(w=np.tile([1.0, 2.0], 200))
    run = fit_table(frame, "y", weights="w", method="map", epochs=2, progress=False)
    assert hardly(run.notices) == []


def test_the_terminal_and_the_page_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learnable().to_csv(tmp_path / "data.csv", index=False)
    out = str(tmp_path / "run")
    arguments = ["fit", str(tmp_path / "data.csv"), "--target", "y", "--method", "MAP(lr=0.5)"]
    assert main([*arguments, "--out", out]) == 0
    said = capsys.readouterr().out
    page = tp.tables.load_table_run(out).report(tmp_path / "page").read_text(encoding="utf-8")
    for text in (said, page):
        assert "better than the mean and the spread of all rows" in text
        assert ENDED in text
        assert "smaller learning rate" in text


@pytest.mark.parametrize("method", ["MAP(lr=0.5)", "Ensemble(MAP(lr=0.5), 2)", "Laplace(MAP(lr=0.5), tune=None)"])
def test_steps_that_are_too_large_are_told(method: str) -> None:
    frame = learnable()
    run = fit_table(frame, "y", method=method, progress=False)
    assert [words for words in run.notices if words.startswith(ENDED)], method
    good = fit_table(frame, "y", method=method.replace("0.5", "0.005"), progress=False)
    assert not [words for words in good.notices if words.startswith(ENDED)]


def test_a_comparison_names_methods_that_learned_nothing() -> None:
    found = compare_table(noise(400, "classes"), "y", ["map"], epochs=5, progress=False)
    assert hardly(found.lines[0].remarks)


def test_the_test_rows_are_compared_row_by_row_too() -> None:
    run = fit_table(noise(900, "numbers"), "y", method="map", epochs=30, progress=False)
    (said,) = beside_the_baseline(run.evaluate())
    assert "by log-loss" in said
    assert "a gain of" in said


def test_a_few_rows_far_off_do_not_make_a_model_worse_than_the_mean() -> None:
    """One row in twenty has ten times the noise of others: its density must not undo what was learned of the rest."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1600, 2))
    noise = 0.3 * rng.normal(size=1600) * np.where(rng.random(1600) < 0.05, 10.0, 1.0)
    frame = pd.DataFrame(x, columns=list("ab")).assign(y=x[:, 0] + x[:, 1] ** 2 + noise)
    run = fit_table(frame[:600], "y", method="MAP(lr=1e-2)", epochs=60, progress=False)
    found = run.evaluate(frame[600:])
    assert found.scores["log_loss"] < found.baseline["log_loss"] - 0.3
    assert not any(word.startswith(HARDLY) for word in run.notices)
