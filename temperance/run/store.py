"""A run is a folder with ``manifest.json`` and the tensor files that the manifest names.

Tensor files are written first, under names that no earlier manifest knows, and synced; then the manifest is replaced in
one atomic step; then files that no manifest names any more are removed. A process killed at any instant leaves either
the old run or the new one, never a mixture. The manifest holds a digest of every file and one of itself, so a reader
can check every byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from temperance.core import files, sealed
from temperance.core import growing as rows
from temperance.core.checks import check_path
from temperance.core.encoding import decode, tensor_bytes
from temperance.core.errors import ArgumentError, CorruptRunError, MismatchError, StoreError
from temperance.core.version import __version__
from temperance.run.manifest import check_manifest, reading

FORMAT = 2
MANIFEST = "manifest.json"
_OURS = re.compile(r"[a-z]+-[0-9a-f]{12}\.run\.(safetensors|rows)")

Parts = Mapping[str, tuple[Any, dict[str, Tensor]]]
Made = TypeVar("Made")


@dataclass
class Run:
    """What :func:`open_run` found: the manifest and, on demand, its tensors."""

    path: Path
    manifest: dict[str, Any]
    _cache: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def has(self, part: str) -> bool:
        """Whether the run has this part."""
        return part in self.manifest["parts"]

    def form(self, part: str) -> Any:
        """The JSON form that goes with the tensors of a part."""
        if not self.has(part):
            raise CorruptRunError(f"the run {str(self.path)!r} is incomplete: it has no part {part!r}.")
        return self.manifest["parts"][part]["form"]

    def tensors(self, part: str) -> dict[str, Tensor]:
        """The tensors of one part (``"posterior"``, ``"state"``), checked against their digest."""
        if part not in self._cache:
            self.form(part)
            self._cache[part] = self._read(self.manifest["parts"][part])
        return self._cache[part]

    def value(self, part: str) -> Any:
        """The value that a part holds. Whatever cannot be read is a :class:`CorruptRunError`; what needs code of the
        user's a :class:`MismatchError`."""
        form, tensors = self.form(part), self.tensors(part)
        return self.read(lambda: decode(form, tensors), f"the part {part!r}")

    def read(self, make: Callable[[], Made], what: str) -> Made:
        """``make()``, with whatever a manifest of the wrong shape makes it raise as a :class:`CorruptRunError`."""
        with reading(f"{what} of the run {str(self.path)!r}"):
            return make()

    def entry(self, name: str, kind: type[Made]) -> Made:
        """One entry of the manifest, of the type it must have."""
        found = self.manifest.get(name)
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            raise CorruptRunError(
                f"the manifest of the run {str(self.path)!r} is damaged: {name!r} must be of type {kind.__name__}; "
                f"got {type(found).__name__ if name in self.manifest else 'nothing'}."
            )
        return found

    def superseded(self) -> bool:
        """Whether another process has saved to the folder since it was opened."""
        try:
            return open_run(self.path).manifest != self.manifest
        except StoreError:
            return False

    def _read(self, entry: dict[str, Any]) -> dict[str, Tensor]:
        made = {} if entry["file"] is None else self._plain(entry)
        for name, about in entry.get("rows", {}).items():
            made[name] = self._map(about)
        return made

    def _plain(self, entry: dict[str, Any]) -> dict[str, Tensor]:
        file = self.path / entry["file"]
        if not files.is_file(file):
            raise CorruptRunError(f"the run {str(self.path)!r} is incomplete: {entry['file']} is missing.")
        found = files.digest(file)
        if found != entry["sha256"]:
            raise CorruptRunError(
                f"the file {str(file)!r} is damaged: its sha256 should be {entry['sha256'][:16]}…, is {found[:16]}…"
            )
        try:
            # Copies, because tensors inside the file are not aligned as torch aligns its own, and the rounding of
            # vectorised sums depends on alignment: without this a resumed L-BFGS drifts from the uninterrupted one.
            with files.telling(file):
                return {name: value.clone() for name, value in safetensors.torch.load_file(file).items()}
        except (safetensors.SafetensorError, ValueError, KeyError) as error:
            raise CorruptRunError(f"the file {str(file)!r} cannot be read: {error}") from error

    def _map(self, about: dict[str, Any]) -> Tensor:
        """A matrix that is in a file of its own, checked and mapped."""
        where = rows.RowsFile(self.path / about["file"], about["rows"], about["checksum"])
        if not files.is_file(where.path):
            raise CorruptRunError(f"the run {str(self.path)!r} is incomplete: {about['file']} is missing.")
        dtype = getattr(torch, about["dtype"])
        rows.verify(where, where.rows * about["width"] * dtype.itemsize)
        return rows.map_rows(where, about["width"], dtype)


def open_run(path: str | Path) -> Run:
    """Read and check a run's manifest."""
    folder = check_path(path, "path")
    file = folder / MANIFEST
    if not files.is_file(file):
        raise StoreError(f"`path` must be the folder of a saved run; {str(folder)!r} has no {MANIFEST}.")
    manifest = sealed.read(file, FORMAT)
    check_manifest(manifest, _OURS, f"the manifest {str(file)!r}")
    return Run(folder, manifest)


def write_run(
    path: str | Path, manifest: Mapping[str, Any], parts: Parts, *, old: Collection[str] | None = None
) -> None:
    """Write a run: ``parts`` maps a name to (JSON form, tensors). All of it appears at once, or none of it. ``old`` are
    the files that may be removed afterwards if the run does not name them; any, unless told.

    Raises :class:`StoreError` on a read-only or full disk, or where ``path`` holds something that is not a run; what
    was there before stays as it was.
    """
    folder = check_place(path)
    draft = _Draft(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (form, tensors) in parts.items():
            draft.add(name, form, tensors)
        draft.publish(manifest)
    except BaseException as error:
        draft.abandon()
        if isinstance(error, StoreError) or not isinstance(error, OSError):
            raise
        raise StoreError(
            f"the run could not be written to {str(folder)!r}: {error}. Nothing was changed there."
        ) from error
    _sweep(folder, draft.named(), old)


class Background:
    """Writes runs to a folder in a thread of its own, one after the other, each as it was when it was given: from a
    copy of its tensors, so that they may change meanwhile. A process killed at any instant leaves a whole run there, if
    one step older."""

    def __init__(self) -> None:
        self._done = threading.Event()  # a thread's own `join` takes it for ended once a Ctrl-C has interrupted it
        self._done.set()
        self._failure: BaseException | None = None

    def write(self, path: Path, manifest: Mapping[str, Any], parts: Parts) -> None:
        """Begin to write, once the run before is written."""
        self.wait()
        copies = {
            name: (form, {k: _copy(value) for k, value in given.items()}) for name, (form, given) in parts.items()
        }
        # What comes into the folder from now on, draws of a sampler say, is not for this run to remove.
        old = [file.name for file in path.iterdir()] if path.is_dir() else []
        thread = threading.Thread(target=self._write, args=(path, manifest, copies, old), name="temperance-save")
        self._done.clear()
        try:
            thread.start()
        except BaseException:
            if thread.ident is None:  # it never began: there is nothing to wait for
                self._done.set()
            raise

    def wait(self) -> None:
        """Until what was given is written; what went wrong is raised here, once."""
        self._done.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def settle(self) -> None:
        """Wait, whatever comes: nobody else may have the folder before. A Ctrl-C meanwhile is raised afterwards."""
        interrupt: KeyboardInterrupt | None = None
        while not self._done.is_set():
            try:
                self._done.wait()
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _write(self, path: Path, manifest: Mapping[str, Any], parts: Parts, old: list[str]) -> None:
        try:
            write_run(path, manifest, parts, old=old)
        except BaseException as error:
            self._failure = error
        finally:
            self._done.set()


def _copy(value: Tensor) -> Tensor:
    """On the processor, in memory of its own; rows of a file stay there, for nothing changes them."""
    return value if rows.rows_file(value) is not None else value.detach().to("cpu", copy=True)


_PLAIN = frozenset(("target", "history", "method", "posterior", "state"))


def check_loses_nothing(path: str | Path, parts: Parts) -> None:
    """Raise where the run at ``path`` has something beside a run that ``parts`` do not have: an estimator, say."""
    try:
        there = open_run(path)
    except (StoreError, OSError):
        return
    lost = sorted(set(there.manifest["parts"]) - _PLAIN - set(parts))
    if lost:
        raise StoreError(
            f"`path` must not hold more than what is saved there: {str(path)!r} holds a saved {lost[0]}, which a plain "
            "run would replace. Choose another folder, or remove it first. Nothing was changed there."
        )


class _Draft:
    """A run being written: files that nothing names yet, until the manifest does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: list[Path] = []
        self.entries: dict[str, Any] = {}
        self.manifest: Path | None = None  # under its temporary name, once it is whole and on the disk

    def add(self, name: str, form: Any, tensors: Mapping[str, Tensor]) -> None:
        """Write the tensors of a part, if it has any."""
        mapped = {key: value for key, value in tensors.items() if rows.rows_file(value) is not None}
        plain = {key: value for key, value in tensors.items() if key not in mapped}
        entry: dict[str, Any] = {"file": None, "sha256": None, "form": form}
        if plain:
            file = self._fresh(name, ".run.safetensors")
            entry |= {"file": file.name, "sha256": _write_tensors(file, plain)}
        if mapped:
            entry["rows"] = {key: self._keep_rows(value) for key, value in mapped.items()}
        self.entries[name] = entry

    def publish(self, manifest: Mapping[str, Any]) -> None:
        """Put the manifest in its place: from then on the new run is the run."""
        for named in _rows_named(self.entries):
            if (self.folder / named).is_file():
                files.sync(self.folder / named)
        whole = {"format": FORMAT, "versions": describe_versions(), **manifest, "parts": self.entries}
        beside = self.folder / files.temporary_name(MANIFEST)
        self.written.append(beside)
        files.write_new(beside, sealed.render(whole))
        self.manifest = beside
        files.move(beside, self.folder / MANIFEST)

    def abandon(self) -> None:
        """Remove what was written, unless a manifest names it already: whatever was raised then, the run is there."""
        if self.manifest is not None and not self.manifest.exists():
            return
        for leftover in self.written:
            with contextlib.suppress(OSError):
                leftover.unlink()

    def named(self) -> set[str]:
        """The files that the manifest speaks of."""
        return {entry["file"] for entry in self.entries.values()} | _rows_named(self.entries)

    def _fresh(self, name: str, suffix: str) -> Path:
        file = self.folder / f"{name}-{files.token()}{suffix}"
        self.written.append(file)
        return file

    def _keep_rows(self, value: Tensor) -> dict[str, Any]:
        """Name the file of a mapped matrix; bring a copy of it into the folder if it is from another one."""
        source = rows.rows_file(value)
        assert source is not None
        if source.path.parent.resolve() != self.folder.resolve() or not source.path.is_file():
            source = rows.write_rows(value, self._fresh("draws", rows.SUFFIX))
        return {
            "file": source.path.name,
            "rows": source.rows,
            "width": value.shape[1],
            "dtype": str(value.dtype).removeprefix("torch."),
            "checksum": source.checksum,
        }


_NAMES = {  # in the order in which safetensors puts tensors of these kinds
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def _write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write and sync a new file of tensors as safetensors does, byte for byte, and return its digest. From the tensors'
    own memory, so that there is no second copy of a large θ; and under this name from the start, where safetensors
    itself begins under one that a killed process would leave behind."""
    kinds = list(_NAMES)
    if any(value.dtype not in _NAMES for value in tensors.values()):  # complex numbers, say, in a buffer: by a copy
        whole = safetensors.torch.save({name: value.clone().contiguous() for name, value in tensors.items()})
        files.write_new(file, whole)
        return hashlib.sha256(whole).hexdigest()
    order = sorted(tensors, key=lambda name: (kinds.index(tensors[name].dtype), name))
    head: dict[str, Any] = {}
    place = 0
    for name in order:
        value = tensors[name]
        stop = place + value.numel() * value.element_size()
        head[name] = {"dtype": _NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [place, stop]}
        place = stop
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with file.open("xb") as stream:
        first = len(text).to_bytes(8, "little") + text
        for data in (memoryview(first), *(tensor_bytes(tensors[name]) for name in order)):
            stream.write(data)
            digest.update(data)
        stream.flush()
        os.fsync(stream.fileno())
    return digest.hexdigest()


def check_place(path: str | Path) -> Path:
    """A folder in which a run may be written: new, empty, or an earlier run."""
    folder = check_path(path, "path")
    try:
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"`path` must be a folder; {str(folder)!r} is a file.")
        if folder.is_dir() and any(folder.iterdir()) and not is_run(folder):
            raise StoreError(
                f"`path` must be a new or empty folder or an earlier run; {str(folder)!r} holds other files."
            )
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"the run could not be written to {str(folder)!r}: {error}.") from error
    return folder


def check_one_writer(path: Path, argument: str) -> None:
    """Refuse one folder for all processes that a launcher (``torchrun``, ``accelerate launch``) has started with one
    script: each would take what another has written for its own. A folder that ends in the process's number is its own.
    """
    world, rank = os.environ.get("WORLD_SIZE", ""), os.environ.get("RANK", "")
    if not (world.isdigit() and rank.isdigit()) or int(world) < 2:
        return
    if int(rank) not in {int(number) for number in re.findall(r"\d+", path.name)}:
        raise ArgumentError(
            f"`{argument}` must be another folder for each of the {world} processes that were started together (each "
            f"of them fits by itself); got {str(path)!r} in process {rank}. Put its number into the name, "
            f"{argument}=f\"{path.name}-{{os.environ['RANK']}}\", or start one process."
        )


def held(path: str | Path | None, argument: str = "path") -> contextlib.AbstractContextManager[None]:
    """Have the folder of a run to oneself; nothing for ``None``. What is in it is for others to look at."""
    if path is None:
        return contextlib.nullcontext()
    folder = check_path(path, argument)
    if folder.is_file():
        check_place(folder)
    return files.holding(folder, argument)


def is_run(folder: Path) -> bool:
    """A run, even one whose manifest is of another format, or what is left of one killed before its first manifest."""
    if not (folder / MANIFEST).is_file():
        return all(is_file_of_run(f.name) for f in folder.iterdir())
    try:
        sealed.read(folder / MANIFEST, FORMAT)
    except MismatchError:
        return any(_OURS.fullmatch(f.name) for f in folder.iterdir())
    except CorruptRunError:
        return False
    return True


def is_file_of_run(name: str) -> bool:
    """Whether only a run of ours can have given a file this name."""
    return _OURS.fullmatch(name) is not None or files.is_temporary_of(name, MANIFEST)


def remove_run(folder: Path) -> None:
    """Remove the files of a run, and the folder if nothing else is in it."""
    if is_run(folder):  # the manifest goes first: a process killed now leaves no run, not one that lacks its files
        (folder / MANIFEST).unlink(missing_ok=True)
    for file in [f for f in folder.iterdir() if is_file_of_run(f.name) and f.is_file()]:
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something of the user's is there
        folder.rmdir()


def tidy(run: Run) -> None:
    """Remove what a killed process left in a run's folder; for those who hold it (:func:`held`), since another one
    might be writing just that."""
    entries = run.manifest["parts"]
    _sweep(run.path, {entry["file"] for entry in entries.values()} | _rows_named(entries))


def _sweep(folder: Path, keep: set[str], old: Collection[str] | None = None) -> None:
    """Remove files that no manifest names any more, and what a killed process left; of ``old`` alone, where given. The
    new run is safe by now, so nothing that goes wrong here is an error."""
    with contextlib.suppress(OSError):
        for file in list(folder.iterdir()):
            if is_file_of_run(file.name) and file.name not in keep and (old is None or file.name in old):
                with contextlib.suppress(OSError):
                    file.unlink()


def _rows_named(entries: Any) -> set[str]:
    """Files of rows that a manifest speaks of: of posteriors, and of states that still write to them."""
    if isinstance(entries, dict):
        own = {v for v in entries.values() if isinstance(v, str) and v.endswith(rows.SUFFIX)}
        return own.union(*(_rows_named(v) for v in entries.values()))
    if isinstance(entries, list):
        return set().union(*(_rows_named(v) for v in entries))
    return set()


def describe_versions() -> dict[str, str]:
    """Who wrote the run."""
    return {"temperance": __version__, "torch": torch.__version__, "python": platform.python_version()}
