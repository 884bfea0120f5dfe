"""A run is a folder with ``manifest.json`` and the tensor files that the manifest names.

Tensor files are written first, under names that no earlier manifest knows, and synced; then the manifest is replaced in
one atomic step; then files that no manifest names any more are removed. A process killed at any instant leaves either
the old run or the new one, never a mixture, and a reader can check every byte against the manifest's digests.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from temperance.core import growing as rows
from temperance.core.errors import ArgumentError, CorruptRunError, MismatchError, StoreError
from temperance.core.version import __version__

FORMAT = 1
MANIFEST = "manifest.json"
_OURS = re.compile(r"[a-z]+-[0-9a-f]{12}\.run\.(safetensors|rows)|\.manifest\.json-[0-9a-f]{12}")


@dataclass
class Run:
    """What :func:`open_run` found: the manifest and, on demand, its tensors."""

    path: Path
    manifest: dict[str, Any]
    _cache: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def tensors(self, part: str) -> dict[str, Tensor]:
        """The tensors of one part (``"posterior"``, ``"state"``), checked against their digest."""
        if part not in self._cache:
            self._cache[part] = self._read(part)
        return self._cache[part]

    def has(self, part: str) -> bool:
        """Whether the run has this part."""
        return part in self.manifest["parts"]

    def form(self, part: str) -> Any:
        """The JSON form that goes with the tensors of a part."""
        return self.manifest["parts"][part]["form"]

    def _read(self, part: str) -> dict[str, Tensor]:
        entry = self.manifest["parts"][part]
        file = self.path / entry["file"]
        if not file.is_file():
            raise CorruptRunError(f"the run {str(self.path)!r} is incomplete: {entry['file']} is missing.")
        found = file_digest(file)
        if found != entry["sha256"]:
            raise CorruptRunError(
                f"the file {str(file)!r} is damaged: its sha256 should be {entry['sha256'][:16]}…, is {found[:16]}…"
            )
        try:
            # Copies, because tensors inside the file are not aligned as torch aligns its own, and the rounding of
            # vectorised sums depends on alignment: without this a resumed L-BFGS drifts from the uninterrupted one.
            made = {name: value.clone() for name, value in safetensors.torch.load_file(file).items()}
        except safetensors.SafetensorError as error:
            raise CorruptRunError(f"the file {str(file)!r} cannot be read: {error}") from error
        for name, about in entry.get("rows", {}).items():
            made[name] = self._map(about)
        return made

    def _map(self, about: dict[str, Any]) -> Tensor:
        """A matrix that is in a file of its own, checked and mapped."""
        where = rows.RowsFile(self.path / about["file"], about["rows"], about["checksum"])
        if not where.path.is_file():
            raise CorruptRunError(f"the run {str(self.path)!r} is incomplete: {about['file']} is missing.")
        dtype = getattr(torch, about["dtype"])
        rows.verify(where, where.rows * about["width"] * dtype.itemsize)
        return rows.map_rows(where, about["width"], dtype)


def write_run(
    path: str | Path, manifest: Mapping[str, Any], parts: Mapping[str, tuple[Any, dict[str, Tensor]]]
) -> None:
    """Write a run: ``parts`` maps a name to (JSON form, tensors). All of it appears at once, or none of it.

    Raises :class:`StoreError` on a read-only or full disk, or where ``path`` holds something that is not a run; what
    was there before stays as it was.
    """
    if not isinstance(path, str | Path):
        raise ArgumentError(f"`path` must be the name of a folder; got {path!r}.")
    folder = Path(path)
    written: list[Path] = []
    try:
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"`path` must be a folder; {str(folder)!r} is a file.")
        if folder.is_dir() and any(folder.iterdir()) and not _is_ours(folder):
            raise StoreError(
                f"`path` must be a new or empty folder or an earlier run; {str(folder)!r} holds other files."
            )
        folder.mkdir(parents=True, exist_ok=True)
        entries: dict[str, Any] = {}
        for name, (form, tensors) in parts.items():
            file = folder / f"{name}-{secrets.token_hex(6)}.run.safetensors"
            written.append(file)
            mapped = {key: value for key, value in tensors.items() if rows.rows_file(value) is not None}
            plain = {key: value for key, value in tensors.items() if key not in mapped}
            data = safetensors.torch.save(
                {key: value.detach().cpu().contiguous() for key, value in _own(plain).items()}
            )
            _write_synced(file, data)
            entries[name] = {"file": file.name, "sha256": hashlib.sha256(data).hexdigest(), "form": form}
            if mapped:
                entries[name]["rows"] = {key: _keep_rows(folder, value, written) for key, value in mapped.items()}
        for named in _rows_named(entries):
            if (folder / named).is_file():
                rows.sync(folder / named)
        whole = {"format": FORMAT, "versions": describe_versions(), **manifest, "parts": entries}
        temporary = folder / f".{MANIFEST}-{secrets.token_hex(6)}"
        written.append(temporary)
        _write_synced(temporary, json.dumps(whole, indent=1).encode())
        os.replace(temporary, folder / MANIFEST)
        _sync_folder(folder)
    except BaseException as error:
        for leftover in written:
            with contextlib.suppress(OSError):
                leftover.unlink()
        if isinstance(error, StoreError) or not isinstance(error, OSError):
            raise
        raise StoreError(
            f"the run could not be written to {str(folder)!r}: {error}. Nothing was changed there."
        ) from error
    keep = {entry["file"] for entry in entries.values()} | _rows_named(entries)
    for file in folder.iterdir():
        if _OURS.fullmatch(file.name) and file.name not in keep:
            with contextlib.suppress(OSError):
                file.unlink()


def open_run(path: str | Path) -> Run:
    """Read a run's manifest."""
    folder = Path(path)
    file = folder / MANIFEST
    if not file.is_file():
        raise StoreError(f"`path` must be the folder of a saved run; {str(folder)!r} has no {MANIFEST}.")
    try:
        manifest = json.loads(file.read_text())
        version, parts = manifest["format"], manifest["parts"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CorruptRunError(f"the manifest {str(file)!r} is damaged: {error}") from error
    if version != FORMAT or not isinstance(parts, dict):
        raise MismatchError(
            f"the run {str(folder)!r} has format {version!r}; this version of temperance reads format {FORMAT}."
        )
    return Run(folder, manifest)


def _keep_rows(folder: Path, value: Tensor, written: list[Path]) -> dict[str, Any]:
    """Name the file of a mapped matrix; bring a copy of it into the folder if it is from another one."""
    source = rows.rows_file(value)
    assert source is not None
    if source.path.parent.resolve() != folder.resolve() or not source.path.is_file():
        file = folder / f"draws-{secrets.token_hex(6)}{rows.SUFFIX}"
        written.append(file)
        source = rows.write_rows(value, file)
    dtype = str(value.dtype).removeprefix("torch.")
    return {
        "file": source.path.name,
        "rows": source.rows,
        "width": value.shape[1],
        "dtype": dtype,
        "checksum": source.checksum,
    }


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


def file_digest(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses tensors that share memory: such ones are copied."""
    seen: set[int] = set()
    made: dict[str, Tensor] = {}
    for name, value in tensors.items():
        place = value.untyped_storage().data_ptr()
        made[name] = value.clone() if place in seen else value
        seen.add(place)
    return made


def _is_ours(folder: Path) -> bool:
    """A run, or what is left of one that was killed before its first manifest."""
    if (folder / MANIFEST).is_file():
        try:
            manifest = json.loads((folder / MANIFEST).read_text())
            return isinstance(manifest["format"], int) and isinstance(manifest["parts"], dict)
        except (ValueError, KeyError, TypeError):
            return False
    return all(_OURS.fullmatch(f.name) for f in folder.iterdir())


def _write_synced(file: Path, data: bytes) -> None:
    with file.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
