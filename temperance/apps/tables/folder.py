"""A run on disk: ``table.json``, the model in a folder of its own, and the test rows.

New files are written under fresh names; then ``table.json`` is replaced in one step; then what it does not name any
more is removed. A process killed at any instant leaves the old run or the new one. What may be removed is what
``files.json`` lists (see :mod:`temperance.apps.tables.claim`): a file of the user's never is.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temperance.apps.recipes import table_target
from temperance.apps.tables.claim import COMPARISON, Claim
from temperance.apps.tables.formats import NOTHING
from temperance.apps.tables.run import TableRun, TableState
from temperance.core import files, sealed
from temperance.core.checks import check_path
from temperance.core.errors import CorruptRunError, MismatchError, StoreError
from temperance.core.version import __version__
from temperance.run import store
from temperance.run.loading import check_posterior, fitted_of
from temperance.run.manifest import reading
from temperance.run.parts import value_part

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 4
TABLE = "table.json"
CHECKPOINT = "checkpoint"
_PART = "table"
_ENTRIES = {
    "versions": dict,
    "model": str,
    "sha256 of its manifest": str,
    "test": str,
    "sha256 of test": str,
    "notices": list,
}


def check_out(path: str | Path, *, overwrite: bool = False, resume: bool = False) -> Path:
    """A folder in which a run may be written: new or empty, an earlier run if it may be overwritten, or an unfinished
    one that goes on."""
    claim = Claim.of(path)
    finished = claim.holds(TABLE)
    begun = claim.holds(CHECKPOINT) and (claim.folder / CHECKPOINT / store.MANIFEST).is_file()
    if finished and not begun:
        _tidy(claim)
    if finished and not overwrite and not begun:
        raise StoreError(f"`out` {str(claim.folder)!r} holds a finished run; choose another folder, or --overwrite it.")
    if begun and not resume and not overwrite:
        raise StoreError(
            f"`out` {str(claim.folder)!r} holds a run that was not finished: --resume it, or --overwrite it."
        )
    if begun and overwrite and not resume:
        _drop_checkpoints(claim)
    return claim.folder


def _drop_checkpoints(claim: Claim) -> None:
    claim.remove(name for name in claim.names if name.startswith(CHECKPOINT))


def _tidy(claim: Claim) -> None:
    """Remove what a process that was killed after its run was finished had still to remove."""
    with contextlib.suppress(OSError):  # of errors of ours too: whether the run can be read is not asked here
        about = _about(claim.folder)
        claim.tidy()  # while the names of a killed save are still in the list
        claim.remove(name for name in claim.names if name not in (about["model"], about["test"], TABLE, *COMPARISON))


def claim_for_fit(folder: Path) -> Path:
    """Note that the checkpoints of a fit will be ours, and say where they go."""
    Claim.of(folder).add(CHECKPOINT, f"{CHECKPOINT}-again")
    return folder / CHECKPOINT


def save_table_run(run: TableRun, path: str | Path, *, overwrite: bool = False) -> None:
    """See :meth:`TableRun.save`."""
    folder = check_out(path, overwrite=overwrite, resume=True)
    claim, token = Claim.of(folder), files.token()
    model, test = f"model-{token}", f"test-{token}.csv"
    try:
        claim.add(model, test, TABLE)
        manifest, parts = run.fitted.written()
        store.write_run(folder / model, manifest, {**parts, **value_part(_PART, run.state)})
        with files.replacing(folder / test) as draft:
            run.test_frame.to_csv(draft, index=False)
        about = {
            "format": FORMAT,
            "versions": store.describe_versions(),
            "model": model,
            "sha256 of its manifest": files.digest(folder / model / store.MANIFEST),
            "test": test,
            "sha256 of test": files.digest(folder / test),
            "notices": run.notices,
        }
        files.write_bytes(folder / TABLE, sealed.render(about))
    except OSError as error:
        claim.remove([model, test])
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"the run could not be written to {str(folder)!r}: {error}.") from error
    claim.tidy()  # while the names of a killed save are still in the list
    claim.remove(name for name in claim.names if name not in (model, test, TABLE, *COMPARISON))


def load_table_run(path: str | Path) -> TableRun:
    """A run that :func:`~temperance.apps.tables.fit_table` or the command ``temperance fit`` saved."""
    folder = check_path(path, "path")
    if not files.is_file(folder / TABLE):
        hint = (
            " It was not finished: run `temperance fit` again with --resume." if (folder / CHECKPOINT).is_dir() else ""
        )
        raise StoreError(f"`path` must be a folder that `temperance fit` made; {str(folder)!r} has no {TABLE}.{hint}")
    about = _about(folder)
    manifest = folder / about["model"] / store.MANIFEST
    if not files.is_file(manifest) or files.digest(manifest) != about["sha256 of its manifest"]:
        raise CorruptRunError(f"the run {str(folder)!r} is damaged: {about['model']} is missing or was changed.")
    saved = store.open_run(manifest.parent)
    state = saved.value(_PART)
    if not isinstance(state, TableState):
        raise CorruptRunError(f"{str(manifest.parent)!r} holds no table.")
    schema = state.schema
    with reading(f"the table of the run {str(folder)!r}"):
        target = table_target(
            schema.outcome, schema.inputs, schema.outputs, hidden=state.hidden, likelihood=state.likelihood
        )
        text = [*schema.text_columns, schema.id, schema.group, *schema.verbatim]
    rows = _test_rows(folder, about, text, schema.verbatim)
    fitted = fitted_of(saved, target.network)
    with reading(f"the folds of the run {str(folder)!r}"):
        for model in state.folds:
            check_posterior(model.posterior, fitted.target.layout)
    return TableRun(state, fitted, rows, list(about["notices"]))


def _about(folder: Path) -> dict[str, Any]:
    """What ``table.json`` says, checked."""
    try:
        about = sealed.read(folder / TABLE, FORMAT)
    except MismatchError as error:
        raise MismatchError(f"{error} Install the version that made it, or fit again.") from error
    with reading(f"{str(folder / TABLE)!r}"):
        made_by = str(about["versions"]["temperance"])
        for name, kind in _ENTRIES.items():
            if not isinstance(about[name], kind):
                raise TypeError(f"`{name}` must be of type {kind.__name__}")
    if _major(made_by) > _major(__version__):
        raise MismatchError(
            f"the run {str(folder)!r} was made by temperance {made_by}; this is temperance {__version__}. Install that "
            "version, or fit again."
        )
    if not Claim.may_name(about["model"]) or not Claim.may_name(about["test"]):
        raise CorruptRunError(f"{str(folder / TABLE)!r} is damaged: it names files outside its folder.")
    return about


def _test_rows(folder: Path, about: dict[str, Any], text: list[str | None], verbatim: list[str]) -> pd.DataFrame:
    """The test rows as they were saved; none where the user has removed them."""
    import pandas as pd

    file = folder / about["test"]
    if not files.is_file(file):
        return pd.DataFrame()
    if files.digest(file) != about["sha256 of test"]:
        raise CorruptRunError(f"the run {str(folder)!r} is damaged: {file.name} was changed.")
    with reading(f"{str(file)!r}"):
        try:
            names = pd.read_csv(file, nrows=0).columns
        except pd.errors.EmptyDataError:  # a run without test rows
            return pd.DataFrame()
        nothing = {name: [""] if name in verbatim else sorted(NOTHING) for name in names}
        kinds = {name: str for name in text if name in names}
        return pd.read_csv(file, dtype=kinds, low_memory=False, na_values=nothing, keep_default_na=False)


def _major(version: str) -> int:
    first = version.split(".")[0]
    return int(first) if first.isdigit() else 0
