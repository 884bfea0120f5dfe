"""Files that are there and cannot be read: a bad sector, a file that belongs to somebody else. One error of ours that
names the file, from every reader."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import temperance as tp
from temperance.apps.cli import main
from temperance.core.errors import StoreError
from temperance.run import loop
from tests.run.saved import X, Y, network, target_of

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="reading this file is what fails here"),
]


class Stopped(Exception):
    pass


def _go_on(path: Path) -> Any:
    method = tp.Collect(tp.SGHMC(lr=1e-4), burn=0.25, every=2)
    return tp.fit(target_of(), method, (X, Y), steps=12, batch_size=5, checkpoint=path, every=4, progress=False)


def checkpoint(path: Path) -> Callable[[], Any]:
    """Draws and a state, in the middle of a run that goes on."""

    def stop(*_: Any) -> None:
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Loop, "finish", stop)
        with pytest.raises(Stopped):
            _go_on(path)
    return lambda: _go_on(path)


def chain(path: Path) -> Callable[[], Any]:
    _go_on(path)
    return lambda: tp.load(path, network())


def calibrated(path: Path) -> Callable[[], Any]:
    fitted = tp.fit(target_of(), tp.MAP(), (X, Y), steps=3, progress=False)
    tp.calibrate.calibrated(fitted, (X.repeat(3, 1) + 1, Y.repeat(3)), tp.calibrate.Isotonic()).save(path)
    return lambda: tp.load(path, network())


def estimator(path: Path) -> Callable[[], Any]:
    tp.sklearn.BayesianRegressor("map", hidden=(4,), epochs=1).fit(X.numpy(), X[:, 0].numpy()).save(path)
    return lambda: tp.sklearn.BayesianRegressor.load(path)


def _frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(size=120), "y": ["yes", "no"] * 60})


def table(path: Path) -> Callable[[], Any]:
    tp.tables.fit_table(_frame(), "y", out=path, method="map", epochs=1, progress=False)
    return lambda: tp.tables.load_table_run(path)


def _said(use: Callable[[], Any]) -> str | None:
    try:
        use()
    except StoreError as error:
        return str(error)
    return None


@pytest.mark.parametrize("make", [checkpoint, chain, calibrated, estimator, table])
def test_every_file_that_cannot_be_read_is_named(tmp_path: Path, make: Callable[[Path], Callable[[], Any]]) -> None:
    path, kept = tmp_path / "run", tmp_path / "kept"
    use = make(path)
    shutil.copytree(path, kept)
    found = []
    for file in sorted(f.relative_to(kept) for f in kept.rglob("*") if f.is_file()):
        shutil.rmtree(path)
        shutil.copytree(kept, path)
        (path / file).unlink()
        (path / file).symlink_to("/proc/self/mem")  # its first page is no memory: an input/output error
        said = _said(use)
        if said is not None:
            assert file.name in said
            assert "cannot be read" in said or (make is checkpoint and file.suffix == ".rows")  # it is also written to
            found.append(file.name.split("-")[0].split(".")[0])
    needed = {
        checkpoint: {"manifest", "state", "draws"},
        chain: {"manifest", "posterior", "draws"},
        calibrated: {"manifest", "posterior", "calibrator"},
        estimator: {"manifest", "posterior"},
        table: {"manifest", "posterior", "table", "test"},
    }
    assert needed[make] <= set(found)  # the others are not needed for it


def test_the_command_line_says_it_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path / "run")
    (found,) = (tmp_path / "run").glob("test-*.csv")
    found.unlink()
    found.symlink_to("/proc/self/mem")
    assert main(["evaluate", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert found.name in said
    assert "cannot be read" in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_looked_into(tmp_path: Path) -> None:
    use = calibrated(tmp_path / "run")
    (tmp_path / "run").chmod(0)
    try:
        with pytest.raises(StoreError, match="cannot be read"):
            use()
    finally:
        (tmp_path / "run").chmod(0o700)
