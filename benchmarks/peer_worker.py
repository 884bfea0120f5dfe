"""The far end of a benchmark: runs one contestant in an interpreter of its own and answers, one JSON line a request.

Standard library only, so that the Python of any peer's environment can run this file. What it understands::

    {"cmd": "build", "script": PATH, "function": NAME, "arguments": {...}, "threads": N or null, "versions": [NAME...]}
    {"cmd": "run", "rounds": 1}    ->  {"ok": true, "seconds": [0.0123]}
    {"cmd": "memory"}              ->  {"ok": true, "bytes": 1048576}      how far one round raised the peak memory
    {"cmd": "quit"}

``function(**arguments)`` prepares everything and returns a callable without arguments that performs one round. A
failure answers ``{"ok": false, "error": ...}``. The end of standard input ends the worker: it outlives nobody.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STEADY_HEAP = "--steady-heap"


class Worker:
    """Holds the one contestant that was built, and carries out the requests about it."""

    def __init__(self) -> None:
        self._round: Callable[[], Any] | None = None
        self._commands: dict[str, Callable[..., dict[str, Any]]] = {
            "build": self._build,
            "run": self._run,
            "memory": self._memory,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request; whatever goes wrong becomes an answer too."""
        try:
            return {"ok": True, **self._commands[request.pop("cmd")](**request)}
        except Exception as error:
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    def _build(
        self, script: str, function: str, arguments: dict[str, Any], threads: int | None, versions: list[str]
    ) -> dict[str, Any]:
        module = load(Path(script))
        torch = sys.modules.get("torch")
        if torch is not None and threads is not None:
            torch.set_num_threads(threads)
        self._round = getattr(module, function)(**arguments)
        return {
            "threads": torch.get_num_threads() if torch is not None else None,
            "versions": {"python": platform.python_version(), **{name: version_of(name) for name in versions}},
        }

    def _run(self, rounds: int) -> dict[str, Any]:
        return {"seconds": [seconds(self._built()) for _ in range(rounds)]}

    def _memory(self) -> dict[str, Any]:
        return {"bytes": peak_growth(self._built())}

    def _built(self) -> Callable[[], Any]:
        if self._round is None:
            raise RuntimeError("nothing was built yet: send the command 'build' first")
        return self._round


def steady_heap() -> bool:
    """Keep freed memory instead of handing it back to the system; return whether the C library could be told.

    Whether glibc hands memory back after every step, and faults it in anew, is a matter of how the heap happens to
    lie, and differs from one process to the next. It cost the same Adam loop from 1.2 to 1.6 times its time.
    """
    keep_when_freed, never_map = (-1, 2**31 - 1), (-4, 0)  # M_TRIM_THRESHOLD and M_MMAP_MAX of glibc's malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(*option) == 1 for option in (keep_when_freed, never_map))


def seconds(work: Callable[[], Any]) -> float:
    """Return how long one call takes; rubbish of earlier calls is taken out first, off the clock."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_growth(work: Callable[[], Any]) -> int:
    """Return by how many bytes one call raises the peak of resident memory above what is resident before it.

    Linux carries ``ru_maxrss`` over from the process that started this one, so that the child of a large parent would
    seem to grow by nothing; there the high-water mark of the process itself is lowered and read. Elsewhere
    ``ru_maxrss`` has to do.
    """
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
        work()
        return max(_resident("VmHWM") - before, 0)
    except FileNotFoundError:
        scale = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        work()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * scale


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no line {field}")


def load(script: Path) -> Any:
    """Import a file under a name of its own, which cannot hide a package that the file imports."""
    spec = importlib.util.spec_from_file_location(f"contestant_{script.stem}", script)
    if spec is None or spec.loader is None:
        raise ImportError(f"{script} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def serve() -> None:
    """Answer requests from standard input until it ends or says 'quit'."""
    if STEADY_HEAP in sys.argv:
        steady_heap()
    # Libraries print; the real standard output is kept for answers, and everybody else's goes to standard error.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # Scripts say `from benchmarks.peer_scripts...`; this folder itself, which Python put first, could hide packages.
    sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("cmd") == "quit":
            break
        print(json.dumps(worker.answer(request)), file=answers)


if __name__ == "__main__":
    serve()
