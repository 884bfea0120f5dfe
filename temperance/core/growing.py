"""A matrix that grows row by row: in memory, or in a file of a run's folder so that memory does not grow with it.

The file holds the rows' bytes and nothing else; how many rows count, their width and a checksum are in the run's
manifest. Rows that were written after the last checkpoint of a killed run are cut off when it goes on.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from temperance.core.encoding import SCRATCH, tensor_bytes
from temperance.core.errors import CorruptRunError, StoreError
from temperance.core.files import is_file, telling, token

SUFFIX = ".run.rows"
_NAME = re.compile(r"draws-[0-9a-f]{12}\.run\.rows")


@dataclass(frozen=True)
class RowsFile:
    """Where the rows of a matrix are on disk."""

    path: Path
    rows: int
    checksum: int


@dataclass
class Rows:
    """Rows of equal width and dtype.

    >>> rows = Rows()
    >>> for k in range(3):
    ...     rows.append(torch.full((2,), float(k)))
    >>> rows.tensor()
    tensor([[0., 0.],
            [1., 1.],
            [2., 2.]])
    """

    name: str = ""
    count: int = 0
    checksum: int = 0
    width: int = 0
    dtype: str = ""
    folder: Path | None = field(default=None, metadata=SCRATCH)
    kept: list[Tensor] = field(default_factory=list, metadata=SCRATCH)

    def __len__(self) -> int:
        return self.count

    def append(self, row: Tensor) -> None:
        """Add a copy of ``row``."""
        if self.count == 0:
            self.width, self.dtype = row.numel(), str(row.dtype).removeprefix("torch.")
        if self.folder is None:
            self.kept.append(row.detach().clone())
        else:
            data = tensor_bytes(row)
            try:
                with self._file().open("r+b" if self._file().exists() else "x+b") as stream:
                    stream.seek(self.count * len(data))
                    stream.write(data)
            except OSError as error:
                raise StoreError(f"a draw could not be written to {str(self._file())!r}: {error}.") from error
            self.checksum = zlib.crc32(data, self.checksum)
        self.count += 1

    def keep_in(self, folder: Path) -> None:
        """From now on the rows are in a file there; one that an earlier process wrote is cut to the rows that count."""
        if not self.name:
            self.name = f"draws-{token()}{SUFFIX}"
        self._check(folder)
        before, self.kept = self.kept, []
        self.folder = folder
        if self.count and not before:
            size = self.count * self.width * self._type().itemsize
            if not is_file(self._file()) or self._file().stat().st_size < size:
                raise CorruptRunError(f"the run {str(folder)!r} is incomplete: {self.name} lacks draws.")
            verify(RowsFile(self._file(), self.count, self.checksum), size)
            if self._file().stat().st_size > size:
                # A new file, because someone may still read the draws of the old one.
                old, self.name = self._file(), f"draws-{token()}{SUFFIX}"
                _copy_start(old, self._file(), size)
            return
        self.count = 0
        for row in before:
            self.append(row)

    def _check(self, folder: Path) -> None:
        """What came from a manifest may say anything; a file outside the folder is never touched."""
        counts = (self.count, self.width, self.checksum)
        fits = all(isinstance(n, int) and 0 <= n < 2**48 for n in counts) and _NAME.fullmatch(str(self.name))
        if not fits or (self.count and not isinstance(getattr(torch, self.dtype, None), torch.dtype)):
            raise CorruptRunError(f"the run {str(folder)!r} is damaged: its rows {str(self.name)[:80]!r} cannot be.")

    def tensor(self) -> Tensor:
        """All rows, count × width; of a file, mapped into memory and read when they are used."""
        if self.folder is None:
            return torch.stack(self.kept)
        return map_rows(RowsFile(self._file(), self.count, self.checksum), self.width, self._type())

    def _type(self) -> torch.dtype:
        found = getattr(torch, self.dtype)
        assert isinstance(found, torch.dtype)
        return found

    def _file(self) -> Path:
        assert self.folder is not None
        return self.folder / self.name


def map_rows(file: RowsFile, width: int, dtype: torch.dtype) -> Tensor:
    """The matrix in a file of rows, not read until it is used; it remembers where it is from."""
    try:
        flat = torch.from_file(str(file.path), shared=False, size=file.rows * width, dtype=dtype)
    except RuntimeError as error:
        raise CorruptRunError(f"the draws in {str(file.path)!r} cannot be read: {error}") from error
    made = flat.view(file.rows, width)
    made.rows_file = file  # type: ignore[attr-defined]
    made.rows_version = made._version  # type: ignore[attr-defined]
    return made


def rows_file(tensor: Tensor) -> RowsFile | None:
    """The file that a matrix is mapped from, if it is and nobody has written into it."""
    same = getattr(tensor, "rows_version", None) == tensor._version
    return getattr(tensor, "rows_file", None) if same else None


def write_rows(tensor: Tensor, path: Path) -> RowsFile:
    """Write a matrix to a new file, some rows at a time."""
    checksum, block = 0, max(1, 2**24 // max(1, tensor.shape[1] * tensor.element_size()))
    with path.open("xb") as stream:
        for start in range(0, len(tensor), block):
            data = tensor_bytes(tensor[start : start + block])
            stream.write(data)
            checksum = zlib.crc32(data, checksum)
    return RowsFile(path, len(tensor), checksum)


def _copy_start(source: Path, path: Path, size: int) -> None:
    with source.open("rb") as reader, path.open("xb") as writer:
        left = size
        while left > 0 and (block := reader.read(min(left, 2**24))):
            writer.write(block)
            left -= len(block)


def verify(file: RowsFile, size: int) -> None:
    """Raise :class:`CorruptRunError` unless the first ``size`` bytes have the checksum they should have."""
    found, left = 0, size
    with telling(file.path), file.path.open("rb") as stream:
        while left > 0:
            block = stream.read(min(left, 2**24))
            if not block:
                break
            found, left = zlib.crc32(block, found), left - len(block)
    if left or found != file.checksum:
        raise CorruptRunError(f"the file {str(file.path)!r} is damaged: its draws do not match their checksum.")
