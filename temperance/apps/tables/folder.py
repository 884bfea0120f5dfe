"""A run on disk: ``table.json`` and its tensors, the posterior in a folder of its own, and the test rows.

New files are written under fresh names; then ``table.json`` is replaced in one step; then what it does not name any
more is removed. A process killed at any instant leaves the old run or the new one.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import safetensors
import safetensors.torch

import temperance.judge.calibrate  # noqa: F401  a saved calibrator is found by its name
from temperance.apps.recipes import table_target
from temperance.apps.tables.kinds import KINDS
from temperance.apps.tables.run import TableRun, TableState
from temperance.core.encoding import Tensors, decode, encode
from temperance.core.errors import ArgumentError, CorruptRunError, MismatchError, StoreError
from temperance.core.outcomes import Outcome
from temperance.core.version import __version__
from temperance.run.fitted import load
from temperance.run.store import describe_versions, file_digest

FORMAT = 2
_NAMED = 1  # the format whose schema has the name of its outcome, under `task`
TABLE = "table.json"
CHECKPOINT = "checkpoint"
TEST = "test.csv"
_OWN = (CHECKPOINT, "model-", "table-", f".{TABLE}-", f".{TEST}-")


def check_out(path: str | Path, *, overwrite: bool = False, resume: bool = False) -> Path:
    """A folder in which a run may be written: new or empty, an earlier run if it may be overwritten, or an unfinished
    one that goes on."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"`out` must be a folder; {str(folder)!r} is a file.")
    if not folder.is_dir() or not any(folder.iterdir()):
        return folder
    finished, begun = (folder / TABLE).is_file(), (folder / CHECKPOINT).is_dir()
    if not finished and not begun and not all(_is_ours(file.name) for file in folder.iterdir()):
        raise StoreError(f"`out` must be a new folder or a run of a table; {str(folder)!r} holds other files.")
    if finished and not overwrite and not begun:
        raise StoreError(f"`out` {str(folder)!r} holds a finished run; choose another folder, or --overwrite it.")
    if begun and not resume and not overwrite:
        raise StoreError(f"`out` {str(folder)!r} holds a run that was not finished: --resume it, or --overwrite it.")
    if begun and overwrite and not resume:
        for old in folder.glob(f"{CHECKPOINT}*"):
            shutil.rmtree(old)
    return folder


def save_table_run(run: TableRun, path: str | Path, *, overwrite: bool = False) -> None:
    """See :meth:`TableRun.save`."""
    folder = check_out(path, overwrite=overwrite, resume=True)
    token = secrets.token_hex(6)
    model, file = f"model-{token}", f"table-{token}.safetensors"
    tensors: Tensors = {}
    form = encode(run.state, tensors)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        run.fitted.save(folder / model)
        safetensors.torch.save_file({name: value.contiguous() for name, value in tensors.items()}, folder / file)
        run.test_frame.to_csv(folder / f".{TEST}-{token}", index=False)
        about = {
            "format": FORMAT,
            "versions": describe_versions(),
            "model": model,
            "tensors": file,
            "sha256": file_digest(folder / file),
            "notices": run.notices,
            "state": form,
        }
        (folder / f".{TABLE}-{token}").write_text(json.dumps(about, indent=1), encoding="utf-8")
        os.replace(folder / f".{TEST}-{token}", folder / TEST)
        os.replace(folder / f".{TABLE}-{token}", folder / TABLE)
    except OSError as error:
        for leftover in folder.glob(f"*{token}*"):
            shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink(missing_ok=True)
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"the run could not be written to {str(folder)!r}: {error}.") from error
    for old in folder.iterdir():
        if old.name.startswith(CHECKPOINT) or (
            _is_ours(old.name) and token not in old.name and old.name not in (TABLE, TEST)
        ):
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)


def load_table_run(path: str | Path) -> TableRun:
    """A run that :func:`~temperance.apps.tables.fit_table` or the command ``temperance fit`` saved."""
    folder = Path(path)
    file = folder / TABLE
    if not file.is_file():
        hint = (
            " It was not finished: run `temperance fit` again with --resume." if (folder / CHECKPOINT).is_dir() else ""
        )
        raise StoreError(f"`run` must be a folder that `temperance fit` made; {str(folder)!r} has no {TABLE}.{hint}")
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        version, made_by = about["format"], str(about["versions"]["temperance"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRunError(f"{str(file)!r} is damaged: {error}.") from error
    if version not in (_NAMED, FORMAT) or _major(made_by) > _major(__version__):
        raise MismatchError(
            f"the run {str(folder)!r} was made by temperance {made_by} (format {version}); this is temperance "
            f"{__version__}, which reads format {FORMAT}. Install that version, or fit again."
        )
    tensors_file = folder / about["tensors"]
    if not tensors_file.is_file() or file_digest(tensors_file) != about["sha256"]:
        raise CorruptRunError(f"the run {str(folder)!r} is damaged: {about['tensors']} is missing or was changed.")
    try:
        tensors = {name: value.clone() for name, value in safetensors.torch.load_file(tensors_file).items()}
        state = decode(_renewed(about["state"]) if version == _NAMED else about["state"], tensors)
    except (KeyError, TypeError, safetensors.SafetensorError) as error:
        raise CorruptRunError(f"{str(file)!r} is damaged: {error}.") from error
    if not isinstance(state, TableState):
        raise CorruptRunError(f"{str(file)!r} holds no table.")
    schema = state.schema
    target = table_target(
        schema.outcome, schema.inputs, schema.outputs, hidden=state.hidden, likelihood=state.likelihood
    )
    fitted = load(folder / about["model"], target.network)
    return TableRun(
        state, fitted, _test_rows(folder, [*schema.text_columns, schema.id, schema.group]), list(about["notices"])
    )


def _renewed(state: dict[str, Any]) -> dict[str, Any]:
    """A state of format 1 in the words of format 2."""
    schema = state["fields"]["schema"]["fields"]
    try:
        outcome = Outcome.named(schema.pop("task"), "task", among=KINDS.outcomes)
    except ArgumentError as error:
        raise MismatchError(f"the run predicts what is not known here: {error}") from error
    schema["outcome"] = encode(outcome, {})
    return state


def _test_rows(folder: Path, text: list[str | None]) -> pd.DataFrame:
    try:
        names = pd.read_csv(folder / TEST, nrows=0).columns
        return pd.read_csv(folder / TEST, dtype={name: str for name in text if name in names}, low_memory=False)
    except (OSError, ValueError):
        return pd.DataFrame()


def _is_ours(name: str) -> bool:
    return name in (TABLE, TEST) or name.startswith(_OWN)


def _major(version: str) -> int:
    first = version.split(".")[0]
    return int(first) if first.isdigit() else 0
