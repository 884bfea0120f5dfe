"""A save that is interrupted leaves the old run or the new one."""

from __future__ import annotations

import errno
import os
import signal
import stat

import pytest
import torch

import temperance as tp
from temperance.core import files, sealed
from temperance.run import store
from tests.run.saved import X, Y, fitted_run, network, same, target_of


def _raise_in_folder_sync(monkeypatch, error: BaseException) -> None:
    real_sync, folders = os.fsync, []

    def refuses(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            folders.append(handle)
            raise error
        return real_sync(handle)

    monkeypatch.setattr(files.os, "fsync", refuses)


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path, monkeypatch):
    fitted_run().save(tmp_path / "run")
    second = fitted_run(0.5)
    _raise_in_folder_sync(monkeypatch, OSError(errno.EINVAL, "Invalid argument"))
    second.save(tmp_path / "run")
    monkeypatch.undo()
    assert same(tmp_path / "run", second)


def test_an_interrupt_after_the_manifest_was_replaced_loses_nothing(tmp_path, monkeypatch):
    fitted_run().save(tmp_path / "run")
    second = fitted_run(0.5)
    _raise_in_folder_sync(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        second.save(tmp_path / "run")
    monkeypatch.undo()
    assert same(tmp_path / "run", second)


def test_an_interrupt_before_the_manifest_is_replaced_keeps_the_old_run(tmp_path, monkeypatch):
    first = fitted_run()
    first.save(tmp_path / "run")
    before = sorted(f.name for f in (tmp_path / "run").iterdir())

    def interrupted(source, path):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fitted_run(0.5).save(tmp_path / "run")
    monkeypatch.undo()
    assert sorted(f.name for f in (tmp_path / "run").iterdir()) == before
    assert same(tmp_path / "run", first)


def test_what_a_killed_save_left_is_removed_by_the_next_and_files_of_others_are_not(tmp_path):
    path = tmp_path / "run"
    fitted_run().save(path)
    left = ["posterior-0123456789ab.run.safetensors", "draws-0123456789ab.run.rows", ".manifest.json-0123456789ab"]
    mine = ["posterior-mine.safetensors", ".manifest.json-backup", "notes.md"]
    for name in (*left, *mine):
        (path / name).write_text("x")
    fitted_run(0.5).save(path)
    there = {f.name for f in path.iterdir()}
    assert there.isdisjoint(left)
    assert there.issuperset(mine)


@pytest.mark.parametrize("which", [1, 2], ids=["first", "final"])
def test_ctrl_c_during_the_first_or_the_final_save_leaves_a_whole_run(tmp_path, monkeypatch, which):
    real, count = sealed.render, 0

    def interrupted(content):
        nonlocal count
        count += 1
        if count == which:
            os.kill(os.getpid(), signal.SIGINT)
        return real(content)

    monkeypatch.setattr(store.sealed, "render", interrupted)
    net, options = network(), {"epochs": 1, "batch_size": 5, "checkpoint": tmp_path / "run"}
    if which == 1:
        with pytest.raises(KeyboardInterrupt):
            tp.fit(target_of(net), tp.MAP(), (X, Y), **options)
        assert tp.load(tmp_path / "run", net).info.status.code == "unfinished"
    else:
        fitted = tp.fit(target_of(net), tp.MAP(), (X, Y), **options)
        assert fitted.info.status.code == "ok"
        assert tp.load(tmp_path / "run", net).info.steps == 4
    whole = tp.fit(target_of(net), tp.MAP(), (X, Y), **{**options, "checkpoint": None})
    monkeypatch.undo()
    again = tp.fit(target_of(net), tp.MAP(), (X, Y), **options)
    assert torch.equal(again.posterior.theta, whole.posterior.theta)


def test_a_run_whose_removal_is_interrupted_is_no_run_any_more(tmp_path, monkeypatch):
    """Files go after the manifest that names them: what is left can be written to again, and is never a damaged run."""
    path = tmp_path / "run"
    fitted_run().save(path)
    real, count = os.unlink, 0

    def interrupted(*arguments, **options):
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(os, "unlink", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.remove_run(path)
    monkeypatch.undo()
    assert any(path.iterdir())
    assert not (path / store.MANIFEST).exists()
    again = fitted_run(0.5)
    again.save(path)
    assert same(path, again)
