"""The laboratory's runner, on a fake experiment: nothing is lost, nothing is done twice, nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

import temperance.lab.experiments
from temperance.apps.cli import main
from temperance.core.errors import ArgumentError, MismatchError, StoreError
from temperance.lab import run_experiment, show_experiment
from temperance.lab.experiment import Cell, Finished
from temperance.lab.folder import Folder
from tests.lab.fake import make

QUIET = Console(quiet=True)


def go(out: Path, workers: int = 1, **settings):
    return run_experiment(make(**settings), "quick", out, workers=workers, console=QUIET)


def results(out: Path):
    return json.loads((out / "results.json").read_text())


def done_twice(marks: Path) -> list[str]:
    keys = [mark.name.split("@")[0] for mark in marks.iterdir()]
    return sorted(key for key in set(keys) if keys.count(key) > 1)


def test_a_run_leaves_results_figures_and_a_page(tmp_path):
    outcome = go(tmp_path)
    assert outcome.ok
    found = results(tmp_path)
    assert len(found["cells"]) == 6
    assert found["settings"]["scale"] == 1.0
    assert found["versions"]["temperance"]
    assert [c["verdict"] for c in found["claims"]] == ["holds", "does not hold", "not judged"]
    assert found["cells"][0]["result"]["list"][0] == 1.0
    assert (tmp_path / "figures" / "values.png").stat().st_size > 1000
    assert (tmp_path / "figures" / "values.svg").exists()
    page = (tmp_path / "README.md").read_text()
    for words in ("Is b larger than a?", "**holds**", "**does not hold**", "figures/values.png", "temperance lab run"):
        assert words in page


def test_a_second_run_does_nothing_again(tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    go(tmp_path / "out", marks=str(marks))
    (tmp_path / "out" / "cells" / "arm=a,seed=1.json").write_text('{"params": {}, "resu')  # half a file
    go(tmp_path / "out", marks=str(marks))
    assert done_twice(marks) == ["arm=a,seed=1"]


def test_more_seeds_only_add_cells(tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    go(tmp_path / "out", marks=str(marks))
    assert len(results(tmp_path / "out")["cells"]) == 6
    outcome = run_experiment(make(marks=str(marks)), "quick", tmp_path / "out", seeds=4, workers=1, console=QUIET)
    assert outcome.ok
    assert len(results(tmp_path / "out")["cells"]) == 8
    assert done_twice(marks) == []


def test_other_settings_are_refused_and_named(tmp_path):
    go(tmp_path)
    with pytest.raises(MismatchError, match=r"scale: 1\.0 there, 2\.0 now"):
        go(tmp_path, scale=2.0)
    with pytest.raises(MismatchError, match="seed: 0 there, 5 now"):
        run_experiment(make(), "quick", tmp_path, seed=5, workers=1, console=QUIET)


def test_a_failing_cell_is_told_and_the_others_are_done(tmp_path):
    outcome = go(tmp_path, fail="b")
    assert not outcome.ok
    assert len(outcome.failed) == 3
    assert "arm b is broken" in outcome.failed[0].error
    found = results(tmp_path)
    assert sum(c["error"] is None for c in found["cells"]) == 3
    assert "arm b is broken" in "".join(found["problems"])
    assert "arm b is broken" in (tmp_path / "README.md").read_text()


def test_a_failed_cell_is_tried_again(tmp_path):
    go(tmp_path)
    path = tmp_path / "cells" / "arm=b,seed=2.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"error": "the disk was full", "result": {}}))
    assert not show_experiment(make(), tmp_path, QUIET).ok
    assert go(tmp_path).ok


def test_workers_give_the_same_numbers_as_none_and_one_that_dies_or_fails_costs_its_cells_only(tmp_path):
    assert go(tmp_path / "one").ok
    outcome = go(tmp_path / "two", 2, arms=("a", "b", "c"), die="arm=a,seed=0", fail="c")
    assert {f.cell.key for f in outcome.failed} == {"arm=a,seed=0", "arm=c,seed=0", "arm=c,seed=1", "arm=c,seed=2"}
    assert "died (exit code 7)" in outcome.failed[0].error
    assert "arm c is broken" in outcome.failed[1].error

    def numbers(out):
        return {str(c["params"]): c["result"] for c in results(out)["cells"] if c["error"] is None}

    one, two = numbers(tmp_path / "one"), numbers(tmp_path / "two")
    assert len(two) == 5
    assert all(one[key] == result for key, result in two.items())


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from tests.lab.fake import make
from temperance.lab import run_experiment
if __name__ == "__main__":
    experiment = make(arms=tuple("abcdef"), marks={marks!r})
    try:
        outcome = run_experiment(experiment, "quick", {out!r}, workers=2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0 if outcome.ok else 1)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_killed_goes_on_and_leaves_no_worker_behind(tmp_path, how):
    marks, out = tmp_path / "marks", tmp_path / "out"
    marks.mkdir()
    script = tmp_path / "script.py"
    tests = str(Path(__file__).resolve().parents[2])
    script.write_text(SCRIPT.format(tests=tests, marks=str(marks), out=str(out)))
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=os.environ | {"FAKE_PAUSE": "0.3"}
    )
    deadline = time.monotonic() + 60
    while len(list(out.glob("cells/*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, how)
    said = process.communicate(timeout=30)[0]
    workers = {int(mark.name.split("@")[1]) for mark in marks.iterdir()}
    kept = {path.stem for path in out.glob("cells/*.json")}
    assert len(workers) == 2
    assert 3 <= len(kept) < 18
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert f"{len(kept)} of 18 cells are kept" in said
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)

    assert go(out, arms=tuple("abcdef"), marks=str(marks)).ok
    assert not kept & set(done_twice(marks))
    assert len(results(out)["cells"]) == 18


def test_an_interrupt_right_after_a_cell_was_written_still_counts_that_cell_and_no_failed_one(
    tmp_path, capsys, monkeypatch
):
    write, seen = Folder.write, []

    def write_then_interrupt(folder, finished):
        write(folder, finished)
        seen.append(finished)
        if len(seen) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Folder, "write", write_then_interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(make(fail="a"), "quick", tmp_path, workers=1)
    assert sum(f.error is None for f in seen) == 2
    assert "interrupted: 2 of 6 cells are kept" in capsys.readouterr().out


def test_show_draws_again_without_running(tmp_path, capsys):
    go(tmp_path)
    for name in ("README.md", "results.json", "figures/values.png"):
        (tmp_path / name).unlink()
    outcome = show_experiment(make(fail="a"), tmp_path)
    assert outcome.ok
    assert "b is larger" in capsys.readouterr().out
    assert (tmp_path / "figures" / "values.png").exists()
    assert len(results(tmp_path)["cells"]) == 6


def test_commands_and_their_exit_codes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(temperance.lab.experiments, "find_experiment", lambda name: make(fail="b"))
    out = str(tmp_path / "out")
    assert main(["lab", "run", "fake", "--out", out, "--workers", "1", "--seeds", "2"]) == 1
    assert main(["lab", "show", out]) == 1
    monkeypatch.setattr(temperance.lab.experiments, "find_experiment", lambda name: make())
    assert main(["lab", "run", "fake", "--out", str(tmp_path / "good"), "--workers", "1"]) == 0
    assert main(["lab", "show", str(tmp_path / "good")]) == 0
    capsys.readouterr()
    assert main(["lab", "run", "fake", "--out", str(tmp_path / "good"), "--seed", "3"]) == 1
    assert "seed: 0 there, 3 now" in capsys.readouterr().err
    assert main(["lab", "show", str(tmp_path / "nowhere")]) == 1
    assert "holds no run" in capsys.readouterr().err


def test_packed_cells_are_not_done_again_and_a_file_is_newer(tmp_path, capsys):
    """Also where a line is damaged, which costs that cell alone, and where cells are added and packed again."""
    marks, out = tmp_path / "marks", tmp_path / "out"
    marks.mkdir()
    go(out, marks=str(marks))
    before = results(out)["cells"]
    (out / "cells" / "torn.json").write_text('{"params": {}, "resu')
    assert main(["lab", "pack", str(out)]) == 0
    assert "6 cells are in" in capsys.readouterr().out
    assert [path.name for path in (out / "cells").iterdir()] == ["torn.json"]  # what cannot be read is left alone
    go(out, marks=str(marks))
    assert results(out)["cells"] == before
    assert done_twice(marks) == []
    run_experiment(make(marks=str(marks)), "quick", out, seeds=4, workers=1, console=QUIET)
    assert len(list((out / "cells").iterdir())) == 3
    assert main(["lab", "pack", str(out)]) == 0
    lines = (out / "cells.jsonl").read_text().splitlines()
    assert len(lines) == 8
    (out / "cells.jsonl").write_text("\n".join([lines[0][:40], *lines[1:]]) + "\n")
    run_experiment(make(marks=str(marks)), "quick", out, seeds=4, workers=1, console=QUIET)
    again = done_twice(marks)
    assert again == [json.loads(lines[0])["cell"]]
    path = out / "cells" / f"{again[0]}.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "seconds": 77.0}))
    (out / "cells.jsonl").write_text("\n".join(lines) + "\n")
    show_experiment(make(), out)
    assert 77.0 in [cell["seconds"] for cell in results(out)["cells"]]
    assert main(["lab", "pack", str(tmp_path / "marks")]) == 1
    assert "holds no run" in capsys.readouterr().err


CELLS = [Cell.of(arm=arm, seed=0) for arm in "ab"]


def folder_of(path):
    folder = Folder(path)
    folder.cells.mkdir(parents=True)
    (path / "run.json").write_text('{"experiment": "fake"}')
    return folder


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x1c", "\x0b", "\r"])
def test_words_with_any_character_are_packed_whole(tmp_path, mark):
    """JSON allows characters within strings at which Python ends lines."""
    folder = folder_of(tmp_path)
    told = [Finished(CELLS[0], {"text": "one" + mark}, 1.0), Finished(CELLS[1], {}, 1.0, "Traceback: bad \u2028")]
    for finished in told:
        folder.write(finished)
    before = folder.read(CELLS)
    assert len(before) == 2
    for _ in range(2):
        assert folder.pack() == len(before)
        assert folder.read(CELLS) == before
    assert not list(folder.cells.iterdir())


def test_a_file_is_newer_than_its_line_when_packed_again(tmp_path):
    folder = folder_of(tmp_path)
    for number in (1, 2):
        folder.write(Finished(CELLS[0], {"v": number}, 1.0))
        assert folder.pack() == 1
        assert folder.read(CELLS)[CELLS[0].key].result == {"v": number}


LINE = {"cell": CELLS[0].key, "params": {"arm": "a", "seed": 0}, "seconds": 1.0, "error": None, "result": {"v": 1}}
DAMAGED = {
    "seconds": json.dumps(LINE | {"seconds": None}),
    "a list": json.dumps(LINE | {"cell": ["x"]}),
    "a number": json.dumps(LINE | {"cell": 3}),
    "no result": json.dumps(LINE | {"result": None}),
    "error": json.dumps(LINE | {"error": 3}),
    "nan": json.dumps(LINE | {"seconds": float("nan")}),
    "deep": json.dumps(LINE).replace('{"v": 1}', "[" * 100_000 + "]" * 100_000),
    "long": json.dumps(LINE).replace('{"v": 1}', '{"v": ' + "1" * 5000 + "}"),
    "no json": "garbage",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_line_that_is_no_cell_costs_that_cell_alone_and_is_kept(tmp_path, capsys, name):
    folder, other = folder_of(tmp_path), Finished(CELLS[1], {"v": 2}, 1.0)
    folder.write(other)
    folder.pack()
    with folder.packed.open("a") as file:
        file.write(DAMAGED[name] + "\n")
    assert folder.read(CELLS) == {CELLS[1].key: other}
    assert main(["lab", "pack", str(tmp_path)]) == 0
    assert "could not be read" in capsys.readouterr().out
    assert folder.damaged.read_text() == DAMAGED[name] + "\n"
    assert folder.read(CELLS) == {CELLS[1].key: other}
    (folder.cells / f"{CELLS[0].key}.json").write_text(DAMAGED[name])
    named = name in ("a list", "a number")  # a file's name says which cell it is
    assert set(folder.read(CELLS)) == {each.key for each in CELLS[0 if named else 1 :]}
    assert folder.pack() == 1 + named
    assert set(folder.read(CELLS)) == {each.key for each in CELLS[0 if named else 1 :]}


def test_a_line_of_another_cell_by_the_same_name_is_not_taken(tmp_path):
    folder = folder_of(tmp_path)
    folder.packed.write_text(json.dumps(LINE | {"params": {"arm": "z", "seed": 0}}) + "\n")
    assert folder.read(CELLS) == {}
    folder.packed.write_text(json.dumps(LINE) + "\n")
    assert folder.read(CELLS)[CELLS[0].key].result == {"v": 1}


def test_names_and_presets_that_do_not_exist(capsys, tmp_path):
    assert main(["lab", "run", "prior-predictve"]) == 1
    assert "Did you mean prior-predictive?" in capsys.readouterr().err
    out = tmp_path / "out"
    assert main(["lab", "run", "prior-predictive", "--preset", "huge", "--out", str(out)]) == 1
    assert "`preset` must be one of quick, standard, paper for prior-predictive; got 'huge'" in capsys.readouterr().err
    assert not out.exists()
    for name, value in (("seeds", 0), ("workers", 0), ("seed", -1)):
        with pytest.raises(ArgumentError, match=f"`{name}` must be"):
            run_experiment(make(), "quick", out, **{name: value})


def test_out_must_be_a_folder_that_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="must be a folder"):
        go(tmp_path / "file")
