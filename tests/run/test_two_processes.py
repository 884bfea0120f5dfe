"""Two who would write to one folder: the second is refused and nothing is lost; a reader sees a whole run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

import temperance as tp
from temperance.core import files
from temperance.core.errors import ArgumentError, CorruptRunError, StoreError
from temperance.decide import learn_actively
from temperance.run import store
from tests.lab.fake import make
from tests.run.saved import X, Y, fitted_run, network, same, target_of

HOLDER = """
import sys, time
from pathlib import Path
from temperance.core import files
with files.holding(Path(sys.argv[1]), "checkpoint"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def taken(tmp_path):
    """A folder that another process holds."""
    place = tmp_path / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(place)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    yield place, holder
    holder.kill()
    holder.wait()


@pytest.mark.skipif(os.name != "posix", reason="locks of folders are those of POSIX")
def test_a_folder_that_another_process_writes_is_refused_to_all_and_free_when_it_is_killed(taken, monkeypatch):
    place, holder = taken
    monkeypatch.setattr(files.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(files.holding.__wrapped__, "__defaults__", (0.0,))
    fitted = fitted_run()
    writers = {
        "`checkpoint`": lambda: tp.fit(target_of(), tp.MAP(lr=0.01), (X, Y), epochs=2, checkpoint=place),
        "`path`": lambda: fitted.save(place),
        "`folder`": lambda: learn_actively(
            target_of, tp.MAP(lr=0.01), (X, Y), rounds=1, start=4, batch=2, epochs=1, folder=place
        ),
        "`out`": lambda: tp.lab.run_experiment(make(), "quick", place, workers=1),
    }
    for argument, write in writers.items():
        with pytest.raises(StoreError, match=f"{argument} .* is being written by another run"):
            write()
    assert list(place.iterdir()) == []
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    fitted.save(place)
    assert same(place, fitted)


@pytest.mark.skipif(os.name != "posix", reason="locks of folders are those of POSIX")
def test_one_that_is_just_ending_is_waited_for(tmp_path):
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with files.holding(tmp_path / "run", "path"):
            entered.set()
            leave.wait(30)

    other = threading.Thread(target=hold)
    other.start()
    entered.wait(30)
    threading.Timer(0.3, leave.set).start()
    fitted = fitted_run()
    fitted.save(tmp_path / "run")
    other.join()
    assert same(tmp_path / "run", fitted)


def test_a_folder_that_cannot_be_locked_is_written_all_the_same(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(handle, how):
        raise OSError(95, "not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    fitted = fitted_run()
    fitted.save(tmp_path / "run")
    assert same(tmp_path / "run", fitted)


def test_a_folder_made_for_nothing_is_removed_and_one_that_was_there_is_not(tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("new", "mine"):
        with files.holding(tmp_path / name, "path"):
            assert (tmp_path / name).is_dir()
    assert [f.name for f in tmp_path.iterdir()] == ["mine"]


def test_a_reader_whose_files_are_replaced_meanwhile_reads_the_newer_run(tmp_path, monkeypatch):
    place, newer = tmp_path / "run", fitted_run(lr=0.05)
    fitted_run().save(place)
    opened, manifests = store.open_run, []

    def open_then_be_overtaken(path):
        run = opened(path)
        if not manifests:
            manifests.append(run.manifest)
            newer.save(place)
        return run

    monkeypatch.setattr(store, "open_run", open_then_be_overtaken)
    assert same(place, newer)
    for file in place.glob("posterior-*"):
        file.unlink()
    with pytest.raises(CorruptRunError, match="is missing"):
        tp.load(place, network())


def test_what_a_killed_save_left_is_removed_when_the_run_goes_on(tmp_path):
    place = tmp_path / "run"
    tp.fit(target_of(), tp.MAP(lr=0.01), (X, Y), epochs=2, checkpoint=place)
    left = [f"state-{files.token()}.run.safetensors", files.temporary_name("manifest.json")]
    for name in left:
        (place / name).write_bytes(b"half of it")
    (place / "notes.txt").write_text("the user's own")
    before = {f.name for f in place.iterdir()} - set(left)
    tp.load(place, network())
    assert {f.name for f in place.iterdir()} == before | set(left)  # a reader removes nothing
    tp.fit(target_of(), tp.MAP(lr=0.01), (X, Y), epochs=2, checkpoint=place)
    assert {f.name for f in place.iterdir()} == before


def test_processes_that_were_started_together_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    options = {"epochs": 1}
    for name in ("run", "run-0", "run-11", "run-0-of-2"):
        with pytest.raises(ArgumentError, match=r"`checkpoint` must be another folder for each of the 2 processes"):
            tp.fit(target_of(), tp.MAP(), (X, Y), checkpoint=tmp_path / "1" / name, **options)
    assert not (tmp_path / "1").exists()
    for name in ("run-1", "rank01", "1"):
        tp.fit(target_of(), tp.MAP(), (X, Y), checkpoint=tmp_path / name, **options).save(tmp_path / "saved")
    tp.fit(target_of(), tp.MAP(), (X, Y), **options)  # nothing is shared
    for world, rank in (("1", "0"), ("", ""), ("two", "1")):
        monkeypatch.setenv("WORLD_SIZE", world)
        monkeypatch.setenv("RANK", rank)
        tp.fit(target_of(), tp.MAP(), (X, Y), checkpoint=tmp_path / "run", **options)
