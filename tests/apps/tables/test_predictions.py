"""What is written beside a table: no formulas of ours, the user's columns as they were, any letters in any locale."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import temperance as tp
from temperance.apps.tables.predictions import escaped, predict_file
from temperance.apps.tables.reading import open_table

FORMULA, MINUS, NUMBER = "=1+1", "-cmd|' /C calc'!A0", "-1.5"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+A1", "'+A1"),
        ("-A1", "'-A1"),
        ("-1+A1", "'-1+A1"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        *((text, text) for text in ("", "no", "-1", "+1.5", "-1,5", "-1e-3", "-.5", "-inf", "a=b", "1=1", "'=1")),
    ],
)
def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe(text, written):
    assert escaped(text) == written


@pytest.mark.parametrize("quote", [False, True], ids=["plain", "quoted line breaks"])
def test_labels_of_ours_are_escaped_and_the_users_columns_are_not(quote, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(120, 2)), columns=["a", "b"])
    frame["note"] = [FORMULA if k % 2 else "plain" for k in range(120)]
    frame["y"] = np.where(frame.a > 0, FORMULA, MINUS)
    run = tp.tables.fit_table(frame, "y", method="map", epochs=20, drop=["note"], progress=False)
    new = frame.drop(columns="y").head(6)
    if quote:
        new.loc[0, "note"] = 'line\nbreak "quoted"'
    new.to_csv(tmp_path / "new.csv", index=False)
    predict_file(run, open_table(tmp_path / "new.csv"), tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["note"] for row in rows] == new.note.tolist()
    assert {row["prediction"] for row in rows} <= {"'" + FORMULA, "'" + MINUS}
    for row in rows:
        ours = {name: value for name, value in row.items() if name not in new.columns}
        assert not any(re.match(r"[=@\t\r]|[+-](?![\d.])", value) for value in ours.values()), ours


_COMMAND = "import sys; from temperance.apps.cli import main; sys.exit(main(sys.argv[1:]))"


def _under_c(*arguments: object) -> None:
    """Run ``temperance`` with the plainest locale there is."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHONIOENCODING"))}
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", _COMMAND, *map(str, arguments)],
        env={**environment, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-2000:]


def test_letters_of_any_kind_in_paths_and_tables_under_the_c_locale(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(120, 2)), columns=["länge", "π"])
    frame["farbe"] = ["grün", "weiß", "日本"] * 40
    frame["größe"] = np.where(frame["π"] > 0, "groß 🙂", "klein")
    table, out, written = tmp_path / "täble π.csv", tmp_path / "öut", tmp_path / "vorhersage ß.csv"
    frame.to_csv(table, index=False)
    _under_c("fit", table, "--target", "größe", "--method", "map", "--epochs", "2", "--out", out)
    _under_c("predict", out, table, "-o", written)
    made = pd.read_csv(written)
    assert made["farbe"].tolist() == frame["farbe"].tolist()
    assert set(made["prediction"]) <= {"groß 🙂", "klein"}
    assert tp.tables.load_table_run(out).schema.target == "größe"


def test_every_text_file_is_opened_in_utf8():
    """The locale's own encoding, which Python takes unless told, is ASCII under ``LC_ALL=C``."""
    root = Path(tp.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code = line.split("#")[0]
            if ">>>" in code or "..." in code or "encoding=" in code:
                continue
            if (
                re.search(r"\.(read_text|write_text)\((?!.*(path|place|folder).*,)", code)
                and "files.write_text" not in code
            ):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
            if re.search(r"(?<!os)(?<!tarfile)(?<!Image)(?<!gzip)\.open\((\"[rwa]t?\+?\"|\))", code):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)
