"""Finding the files of a data set, and making sure that they are the ones we mean.

A result on damaged or different data is worse than an error, so every file that we know is compared with its published
checksum. What is hashed is the *unpacked* content: the same digits compressed by another gzip are still the same
digits. It is computed at every load (some 30 ms for MNIST): a file's size and time of change say nothing about its
content. Archives are checked before they are opened, read in memory, and never extracted to disk.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from temperance.core.errors import DataError, MissingDataSetError

DATA_VARIABLE = "TEMPERANCE_DATA"
CACHE_VARIABLE = "TEMPERANCE_CACHE"

_UNPACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.decompress, ".xz": lzma.decompress}


def cache_folder() -> Path:
    """The library's own folder for data: ``TEMPERANCE_CACHE``, or ``~/.cache/temperance/data``."""
    given = os.environ.get(CACHE_VARIABLE, "").strip()
    return Path(given).expanduser() if given else Path.home() / ".cache" / "temperance" / "data"


def data_folders() -> list[Path]:
    """The folders that are searched, in order: those of ``TEMPERANCE_DATA``, then the cache."""
    given = os.environ.get(DATA_VARIABLE, "").split(os.pathsep)
    return [*(Path(entry.strip()).expanduser() for entry in given if entry.strip()), cache_folder()]


@dataclass(frozen=True)
class KnownFile:
    """A file whose unpacked content we know by digest (``"sha256:…"`` or ``"md5:…"``; any one of them will do).

    ``packings`` are the endings under which the file may be found: ``""`` as it is, ``".gz"`` or ``".xz"`` packed.
    Without digests the file is not checked here: its reader checks what it decodes.
    """

    name: str
    digests: tuple[str, ...] = ()
    packings: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class FileSet:
    """Files that together make a data set, the sub-folders they may lie in, and how a user can come by them."""

    data_set: str
    folders: tuple[str, ...]
    files: tuple[KnownFile, ...]
    provide: str

    def places(self) -> list[Path]:
        """All folders in which the files are looked for."""
        return [root / folder for root in data_folders() for folder in self.folders]

    def locate(self, known: KnownFile) -> tuple[Path, str] | None:
        """The path of one file and its packing, or ``None``."""
        for place in self.places():
            for packing in known.packings:
                path = place / (known.name + packing)
                if path.is_file():
                    return path, packing
        return None

    def where(self) -> Path | None:
        """The folder of the first file if all files are there, else ``None``."""
        found = [self.locate(known) for known in self.files]
        return found[0][0].parent if found[0] is not None and all(found) else None

    def read(self, name: str, *, check: bool = True) -> bytes:
        """The unpacked, verified content of the file called ``name``."""
        known = next(file for file in self.files if file.name == name)
        found = self.locate(known)
        if found is None:
            raise missing_error([self])
        path, packing = found
        content = _unpack(path, packing)
        if check and known.digests:
            _verify(path, content, known.digests)
        return content


def missing_error(sets: Sequence[FileSet]) -> MissingDataSetError:
    """The error for a data set of which none of the alternatives ``sets`` is complete."""
    lines = [f"data set {sets[0].data_set!r} was not found. These folders were searched:"]
    lines += [f"  {folder}" for folder in data_folders()]
    lines.append("What is missing there:" if len(sets) == 1 else "What is missing there (any one line would do):")
    for files in sets:
        lacking = [known for known in files.files if files.locate(known) is None]
        names = ", ".join(" or ".join(known.name + packing for packing in known.packings) for known in lacking)
        below = " or ".join("the folder itself" if folder == "." else f"{folder}/" for folder in files.folders)
        lines.append(f"  {names} (in {below})")
    home = min((files.folders[0] for files in sets), key=len)
    lines += ["How to provide it:", *(f"  Get {line}" for line in dict.fromkeys(files.provide for files in sets))]
    lines += [
        f"  Put the files, as they are, in {cache_folder() / home}, or in a sub-folder `{home}` of a folder that the",
        f"  environment variable {DATA_VARIABLE} names (several are separated by {os.pathsep!r}).",
    ]
    return MissingDataSetError("\n".join(lines))


def check_digest(content: bytes, expected: str, what: str) -> None:
    """Compare the sha256 of decoded ``content`` with what was published; ``what`` names it in the error."""
    got = hashlib.sha256(content).hexdigest()
    if got != expected:
        raise DataError(f"{what}: sha256 must be {expected}; got {got}. The data are damaged or are not the original.")


def _unpack(path: Path, packing: str) -> bytes:
    try:
        return _UNPACK[packing](path.read_bytes())
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"file {path}: must be a readable {packing or 'plain'} file; got {error}.") from error


def _verify(path: Path, content: bytes, accepted: tuple[str, ...]) -> None:
    """Raise unless the content has one of the accepted digests."""
    got: list[str] = []
    for expected in accepted:
        algorithm = expected.partition(":")[0]
        digest = f"{algorithm}:{hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()}"
        if digest == expected:
            return
        got.append(digest)
    raise DataError(
        f"file {path}: the checksum of its content must be {' or '.join(accepted)}; got {' and '.join(got)}. "
        "The file is damaged or is another version: delete it and fetch it again."
    )
