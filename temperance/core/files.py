"""Writing files so that a reader sees the old one or the new one, never half of either: the only place that does it.

A file is written beside its place under a name of its own, synced to the disk, and moved there in one step; then the
folder is synced, where the file system knows how. A process killed at any instant leaves at most a file whose name
begins with a dot beside one that is whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from temperance.core.errors import CorruptRunError, StoreError

_TOKEN = 6  # bytes of randomness in a temporary name
_TAKEN = (errno.EAGAIN, errno.EACCES)


def token() -> str:
    """Twelve hexadecimal digits that no other file's name has."""
    return secrets.token_hex(_TOKEN)


def temporary_name(name: str) -> str:
    """A name beside ``name`` for the time of writing; :func:`is_temporary_of` knows it again."""
    return f".{name}-{token()}"


def is_temporary_of(candidate: str, name: str) -> bool:
    """Whether ``candidate`` is what a process killed while writing ``name`` left behind.

    >>> is_temporary_of(temporary_name("a.json"), "a.json"), is_temporary_of(".a.json", "a.json")
    (True, False)
    """
    return re.fullmatch(rf"\.{re.escape(name)}-[0-9a-f]{{{2 * _TOKEN}}}", candidate) is not None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to; when the block ends it is synced and takes the place of ``path``, unless the block raised.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "page.txt"
    >>> with replacing(place) as draft:
    ...     _ = draft.write_text("whole")
    >>> place.read_text()
    'whole'
    """
    draft = path.with_name(temporary_name(path.name))
    try:
        yield draft
        sync(draft)
        move(draft, path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """All of the file or nothing of it."""
    with replacing(path) as draft:
        draft.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """The same for text, in UTF-8 and with the line ends it has."""
    write_bytes(path, text.encode("utf-8"))


def write_new(path: Path, data: bytes) -> None:
    """Write and sync a file under a name that nobody has used: it is not seen before something names it."""
    with path.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def move(source: Path, path: Path) -> None:
    """Put ``source``, which is on the disk, in the place of ``path`` in one step.

    Once the move is made it is not undone: a file system that refuses to sync a folder (some on networks do) raises
    nothing.
    """
    os.replace(source, path)
    sync_folder(path.parent)


def sync(path: Path) -> None:
    """Make sure that what was written to a file is on the disk."""
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Make sure that names in a folder are on the disk, where the file system allows it."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def telling(path: Path) -> Iterator[None]:
    """What the system raises in the block because ``path`` cannot be read (a bad sector, no permission) becomes a
    :class:`CorruptRunError` that names it.

    >>> with telling(Path("nowhere")):
    ...     open("nowhere")
    Traceback (most recent call last):
    temperance.core.errors.CorruptRunError: 'nowhere' cannot be read: [Errno 2] No such file or directory: 'nowhere'...
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise CorruptRunError(
            f"{str(path)!r} cannot be read: {error}. Look at the disk and at who may read the file."
        ) from error


def digest(path: Path) -> str:
    """sha256 of a file, in hexadecimal; :class:`CorruptRunError` where it cannot be read."""
    with telling(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_file(path: Path) -> bool:
    """Whether a file is there; :class:`CorruptRunError` where the system does not let one look."""
    with telling(path):
        return path.is_file()


@contextlib.contextmanager
def holding(folder: Path, argument: str, patience: float = 3.0) -> Iterator[None]:
    """Have a folder to oneself: a second process that would write to it is refused, as is a second thread.

    The folder itself is locked, by the system: no file is left behind, and a process that is killed lets go. One that
    is just ending is waited for, ``patience`` seconds. Where the file system knows no locks (some on networks, Windows)
    nothing is locked. A folder that is not there yet is made, and removed again if nothing came into it.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> with holding(place, "checkpoint"), holding(place, "checkpoint", patience=0.0):
    ...     pass
    Traceback (most recent call last):
    temperance.core.errors.StoreError: `checkpoint` ... is being written by another run...
    """
    made = not folder.exists()
    if folder.is_file():
        raise StoreError(f"`{argument}` must be a folder; {str(folder)!r} is a file.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"`{argument}`: the run could not be written to {str(folder)!r}: {error}.") from error
    try:
        with _locked(folder, argument, patience):
            yield
    finally:
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextlib.contextmanager
def _locked(folder: Path, argument: str, patience: float) -> Iterator[None]:
    if os.name != "posix":
        yield
        return
    import fcntl

    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that cannot be opened cannot be locked; whether it can be written shows soon
        yield
        return
    deadline = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in _TAKEN:  # no locks here
                    break
            if time.monotonic() >= deadline:
                raise StoreError(
                    f"`{argument}` {str(folder)!r} is being written by another run, in this process or another one. "
                    "Wait until that has ended, or choose another folder."
                )
            time.sleep(0.05)
        yield
    finally:
        os.close(handle)
