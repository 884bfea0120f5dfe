"""The commands, as somebody types them."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from temperance.apps.cli import main
from temperance.apps.tables.commands import add_commands, split_methods


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=300), "b": rng.choice(["u", "v"], 300)})
    frame["y"] = np.where(frame["a"] + (frame["b"] == "u") + 0.3 * rng.normal(size=300) > 0.5, "yes", "no")
    frame.to_csv(path / "data.csv", index=False)
    frame.assign(extra=1).to_csv(path / "new.csv", index=False)
    return path


@pytest.fixture(scope="module")
def run(folder: Path) -> str:
    made = str(folder / "run")
    data = str(folder / "data.csv")
    assert main(["fit", data, "--target", "y", "--method", "map", "--epochs", "4", "--out", made]) == 0
    return made


def test_fit_says_what_it_saw_and_what_comes_next(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(folder / "second")
    data = str(folder / "data.csv")
    assert main(["fit", data, "--target", "y", "--method", "map", "--epochs", "1", "--out", out, "--drop", "b"]) == 0
    said = capsys.readouterr().out
    assert "y: 2 different texts -> classification" in said
    assert "240 rows to train on and to promise with, in 5 folds, 60 for the test." in said
    assert "baseline" in said
    assert f"temperance predict {out} new.csv" in said


def test_predict_then_evaluate(run: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out.csv"
    assert main(["predict", run, str(folder / "new.csv"), "-o", str(out), "--error-rate", "0.3"]) == 0
    assert "`extra`: not used" in capsys.readouterr().out
    found = pd.read_csv(out)
    assert len(found) == 300
    assert set(found["ask_a_human"]) <= {"yes", "no"}
    assert main(["predict", run, str(folder / "new.csv"), "-o", str(out)]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main(["evaluate", run, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["scores"]["log_loss"] < scores["baseline"]["log_loss"]
    assert main(["evaluate", run, str(folder / "data.csv")]) == 0
    assert "classified rightly" in capsys.readouterr().out


def test_a_run_is_loaded_by_a_process_that_did_not_make_it(run: str, folder: Path) -> None:
    arguments = ["predict", run, str(folder / "new.csv"), "-o", str(folder / "elsewhere.csv")]
    subprocess.run(
        [sys.executable, "-m", "temperance.apps.cli", *arguments], check=True, capture_output=True, timeout=120
    )
    assert len(pd.read_csv(folder / "elsewhere.csv")) == 300


def test_compare_and_report(run: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(folder / "data.csv")
    arguments = ["compare", data, "--target", "y", "--methods", "map,MAP(lr=1e30)", "--epochs", "1"]
    assert main([*arguments, "--out", str(folder / "cmp")]) == 0
    assert "MAP(lr=1e30) failed" in capsys.readouterr().out
    assert (folder / "cmp" / "compare.json").is_file()
    assert main(["report", run, "-o", str(folder / "page")]) == 0
    assert (folder / "page" / "index.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit", "{data}", "--target", "yy"], "closest are `y`"),
        (["fit", "{data}", "--target", "y", "--method", "magic"], "must be one of map"),
        (["fit", "{data}", "--target", "y", "--level", "2"], "`level`"),
        (["fit", "{data}", "--target", "y", "--epochs", "0"], "`epochs`"),
        (["fit", "absent.csv", "--target", "y"], "there is none"),
        (["predict", "absent", "{data}", "-o", "{folder}/x.csv"], "table.json"),
        (["evaluate", "absent"], "table.json"),
        (["compare", "{data}", "--target", "y", "--methods", "magic"], "must be one of map"),
    ],
)
def test_mistakes_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    filled = [text.format(data=folder / "data.csv", folder=folder) for text in arguments]
    if filled[0] == "fit":
        filled += ["--out", str(folder / "never")]
    assert main(filled) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (folder / "never").exists()


def test_commands_have_help() -> None:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    for name in ("fit", "predict", "evaluate", "compare", "report"):
        with pytest.raises(SystemExit) as ended:
            parser.parse_args([name, "--help"])
        assert ended.value.code == 0


def test_methods_are_split_outside_brackets() -> None:
    assert split_methods("map, Ensemble(MAP(lr=1e-3), 5) ,swag,") == ["map", "Ensemble(MAP(lr=1e-3), 5)", "swag"]


def test_folds_classes_and_logarithms_are_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, data = str(folder / "third"), str(folder / "data.csv")
    fit = ["fit", data, "--target", "y", "--method", "map", "--epochs", "1", "--out", out]
    assert main([*fit, "--folds", "3", "--per-class"]) == 0
    said = capsys.readouterr().out
    assert "in 3 folds" in said
    assert "each class, the rarest first" in said
    assert main(["evaluate", out, "--no-per-class", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"name", "rows", "recall", "coverage", "wrong_unasked"} == set(found["classes"][0])
    assert main([*fit, "--overwrite", "--log"]) == 1
    assert "`log` is for positive numbers" in capsys.readouterr().err
