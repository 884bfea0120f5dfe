from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

import temperance as tp
from temperance.apps.cli import main
from temperance.apps.demo.run import SHOWN


def test_it_is_a_module_too():
    done = subprocess.run([sys.executable, "-m", "temperance", "--version"], capture_output=True, text=True, check=True)
    assert tp.__version__ in done.stdout


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip() == f"temperance {tp.__version__}"


def test_no_command_prints_help(capsys):
    assert main([]) == 2
    assert "demo" in capsys.readouterr().out


def test_methods(capsys):
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("MAP()", "Anchored()", "Ensemble(MAP(), 5)"))


def test_data_list_and_verify(capsys, monkeypatch, tmp_path):
    assert main(["data", "list"]) == 0
    assert "digits" in capsys.readouterr().out
    assert main(["data", "verify", "digits"]) == 0
    monkeypatch.setenv("TEMPERANCE_DATA", str(tmp_path))
    monkeypatch.setenv("TEMPERANCE_CACHE", str(tmp_path))
    assert main(["data", "verify", "mnist"]) == 1
    assert "missing" in capsys.readouterr().out
    assert main(["data", "verify", "minst"]) == 1
    assert "mnist" in capsys.readouterr().err
    with pytest.raises(tp.errors.MissingDataSetError, match="TEMPERANCE_DATA"):
        tp.data.load("mnist")


def test_demo_writes_a_self_contained_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("temperance.apps.demo.run.SECOND_EPOCHS", 2)
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), "--epochs", "3"]) == 0
    assert "Ensemble × 5" in capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())["results"]
    assert [r["method"] for r in results] == list(SHOWN)
    assert results[0]["time"] == 1.0
    assert all(0 < r["accuracy"] <= 1 and r["log_loss"] > 0 for r in results)
    page = (out / "index.html").read_text()
    assert page.count("<img alt='") == 3
    assert not re.search(r"(src|href)='?http", page)
    assert main(["demo", "--out", str(out), "--epochs", "0"]) == 1
    assert "`--epochs`" in capsys.readouterr().err
