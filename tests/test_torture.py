"""``make torture`` finds what it looks for: five small ones, four of them of a library with a bug planted in it.

They run in a process of their own, which forks its trials, for this one may have threads. Nothing here judges how
long anything takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

SCRIPT = """
import sys
from unittest import mock

import torch
from benchmarks import torture
from temperance.core.interrupts import GracefulInterrupt
from temperance.run import store
from temperance.run.loop import Loop

out = sys.argv[1]


def run(name, methods, kills, interrupts):
    code = torture.main(
        ["--methods", *methods, "--kills", str(kills), "--interrupts", str(interrupts), "--out", f"{out}/{name}.json",
         "--folder", out]
    )
    print(f"code of {name}: {code}")


def hasty(self, folder):  # the files that the old manifest names go before the new one is there
    store._sweep(folder, set())
    draft(self, folder)


def skipping(self, saved):  # the state comes back, torch's own generator does not
    now = torch.get_rng_state()
    restore(self, saved)
    torch.set_rng_state(now)


def clumsy(self, number, frame):
    raise RuntimeError("planted")


draft, restore = store._Draft.__init__, Loop._restore
run("none", ["MAP", "Collect of SGHMC", "save draws onto themselves", "table, map"], 3, 2)
with mock.patch.object(store._Draft, "__init__", hasty):
    run("loss", ["MAP"], 6, 0)
with mock.patch.object(Loop, "_restore", skipping):
    run("difference", ["MCDropout"], 5, 0)
with mock.patch.object(store, "_sweep", lambda *given: None):
    run("leftover", ["MAP"], 1, 0)
with mock.patch.object(GracefulInterrupt, "_handle", clumsy):
    run("message", ["MAP"], 0, 3)
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torture")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, done.stdout


@pytest.mark.parametrize("bug", ["none", "loss", "difference", "leftover", "message"])
def test_a_planted_bug_is_found_and_named(found, bug):
    folder, words = found
    told = json.loads((folder / f"{bug}.json").read_text())
    totals = told["totals"]
    assert [kind for kind in ("loss", "difference", "leftover", "message") if totals[kind]] == [bug][bug == "none" :]
    assert f"code of {bug}: {int(bug != 'none')}" in words
    assert totals["kills"] + totals["interrupts"] > 0
    assert all(trial["blows"] for trial in told["trials"])  # so the run that was left in peace was a good one
    assert "left in peace" not in json.dumps([trial["troubles"] for trial in told["trials"]])


def test_nothing_is_left_of_it(found):
    assert {f.suffix for f in found[0].iterdir()} == {".json"}
