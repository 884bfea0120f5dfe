"""The compiled part: small C files, built with the machine's own compiler at first use and kept in the user's cache.

Drawing Gaussian noise is what a Langevin step costs beside the gradient: ``normal_()`` of 0.67 million numbers takes as
long as the whole gradient of a small network. Where there is no compiler everything works without it, more slowly and
with the same numbers up to rounding; :func:`in_use` says which.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from temperance.core import files

_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_PARALLEL = ("-fopenmp",)  # PyTorch has loaded its OpenMP already, and shares its threads
_MADE = ("-fno-strict-aliasing",)  # gcc 12 reads masks of bytes wrongly without it, beside numbers of one precision
_SOURCE = "normal.c"

Fill = Callable[..., None]


def in_use() -> str:
    """Which generator of noise CPU tensors get: ``"compiled"`` or ``"eager"``."""
    return "eager" if compiled_fill() is None else "compiled"


@functools.cache
def _library(source: str = _SOURCE) -> ctypes.CDLL | None:
    if os.environ.get("TEMPERANCE_NO_COMPILER"):
        return None
    for extra in (_PARALLEL, ()):
        try:
            return ctypes.CDLL(str(_build(Path(__file__).with_name(source), (*_FLAGS, *extra))))
        except (OSError, subprocess.SubprocessError):
            continue
    return None


@functools.cache
def compiled_fill() -> Fill | None:
    """The C function, or ``None`` where there is no compiler or ``TEMPERANCE_NO_COMPILER`` is set."""
    library = _library()
    if library is None:
        return None
    fill = library.temperance_fill_normal
    pointer, count, threads, key = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_uint32
    fill.argtypes = [pointer, pointer, count, count, threads, key, key, key]
    fill.restype = None
    return fill


@functools.cache
def compiled_euler() -> Callable[..., None] | None:
    """Noise and a move of symplectic Euler in one pass over memory, in C; ``None`` as for :func:`compiled_fill`."""
    library = _library()
    if library is None:
        return None
    euler = library.temperance_symplectic_euler
    pointer, count, key, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32, ctypes.c_float
    euler.argtypes = [pointer] * 6 + [count] * 2 + [ctypes.c_int] + [key] * 3 + [number] * 4
    euler.restype = None
    return euler


@functools.cache
def c_function(name: str, arguments: tuple[Any, ...], source: str = _SOURCE) -> Callable[..., None] | None:
    """A function of the library of ``source`` by name, with its arguments' types; ``None`` as for
    :func:`compiled_fill`."""
    library = _library(source)
    if library is None:
        return None
    found = getattr(library, name)
    found.argtypes, found.restype = list(arguments), None
    return found


def library_of(text: str, includes: Path) -> ctypes.CDLL | None:
    """A library of C that was written just now, with files to include from a folder; ``None`` without a compiler.

    It is not kept: once loaded its file is no longer needed, and functions that users write would fill the cache."""
    compiler = _compiler()
    if os.environ.get("TEMPERANCE_NO_COMPILER") or compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="temperance-native-") as folder:
        source, built = Path(folder) / "made.c", Path(folder) / "made.so"
        files.write_text(source, text)
        for extra in (_PARALLEL, ()):
            command = [compiler, *_FLAGS, *_MADE, *extra, f"-I{includes}", "-o", str(built), str(source), "-lm"]
            try:
                subprocess.run(command, capture_output=True, check=True, timeout=60)
                return ctypes.CDLL(str(built))
            except (OSError, subprocess.SubprocessError):
                continue
    return None


def _compiler() -> str | None:
    return os.environ.get("CC") or next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)


def forget() -> None:
    """Look for a compiler anew at the next use."""
    for known in (_library, compiled_fill, compiled_euler, c_function):
        known.cache_clear()


def _build(source: Path, flags: tuple[str, ...]) -> Path:
    """Build the library unless the cache has it: named by source, flags, compiler and processor.

    What is in the cache is run, so it is trusted only where it is whole and ours: a file of this user that nobody else
    may write to, with the digest that was noted beside it when it was built. Anything else is built anew and put in its
    place in one step. (A library that was cut short, by a full disk say, would end the process with SIGBUS.)
    """
    compiler = _compiler()
    if compiler is None:
        raise OSError("no C compiler")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=20).stdout
    sources = b"".join(path.read_bytes() for path in sorted(source.parent.glob("*.c")))  # one may include another
    about = [sources, repr(flags).encode(), version, platform.machine().encode(), _processor()]
    name = f"{source.stem}-{hashlib.sha256(b'|'.join(about)).hexdigest()[:16]}.so"
    folder = _cache()
    made = folder / name
    if not _is_whole(made):
        # Two processes may build at once: each writes files of its own names and moves them here, the digest last; a
        # reader between the two moves finds no match and builds too.
        with files.replacing(made) as built:
            command = [compiler, *flags, "-o", str(built), str(source), "-lm"]
            subprocess.run(command, capture_output=True, check=True, timeout=60)
            built.chmod(0o700)
            digest = files.digest(built)
        files.write_text(_digest_of(made), digest)
        _digest_of(made).chmod(0o600)
    return made


def _digest_of(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _is_whole(library: Path) -> bool:
    """Whether a library in the cache is the one that was built, and only this user can have put it there."""
    try:
        if not all(_is_ours(path) for path in (library, _digest_of(library))):
            return False
        return _digest_of(library).read_text(encoding="utf-8") == files.digest(library)
    except (OSError, ValueError):
        return False


def _is_ours(path: Path) -> bool:
    """A file or folder, no link, of this user, that nobody else may write to."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return False
    return os.name != "posix" or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


def _cache() -> Path:
    """A folder that belongs to the user alone: what is in it will be run."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = root / "temperance" / "native"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK) and _is_ours(folder):
            return folder
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="temperance-native-"))


def _processor() -> bytes:
    """What ``-march=native`` depends on, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return platform.processor().encode()
    return b"".join(sorted({line for line in lines if line.startswith((b"model name", b"flags", b"Features"))}))
