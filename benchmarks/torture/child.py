"""In the child: where a blow falls, and the run that it falls on."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import io
import json
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.torture.forking import REAL
from benchmarks.torture.subjects import FINISHED, Subject
from temperance.apps.tables import claim, fitting, folder
from temperance.core import files, growing, interrupts
from temperance.core.errors import TemperanceError
from temperance.run import fit, fitted, loop, store

CALL, LINE, MOMENT = "call", "line", "moment"
_WATCHED = {
    inspect.getsourcefile(m) for m in (claim, files, fitted, fitting, folder, growing, interrupts, loop, store, fit)
}
_DULL = {"_rows_named", "<genexpr>", "<setcomp>"}  # they walk through forms: most lines by far, and all alike
_real_open = builtins.open


class Board:
    """A page that child and parent share: it outlives a child that is killed."""

    FIELDS = ("phase", "struck", "call", "line", "published", "saving", "where")
    BEFORE, UNDER_WAY, OVER = 0, 1, 2
    SAVES = ("", "a save", "the final save")

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self._numbers = memoryview(self._page).cast("q")

    def __getitem__(self, name: str) -> int:
        return self._numbers[self.FIELDS.index(name)]

    def __setitem__(self, name: str, value: int) -> None:
        self._numbers[self.FIELDS.index(name)] = value

    def clear(self) -> None:
        for name in self.FIELDS:
            self[name] = 0
        self["published"] = -1

    def note_blow(self) -> None:
        """A blow falls now; where the first one fell is remembered."""
        if self["struck"] == 0:
            self["where"] = self["saving"]
        self["struck"] += 1


@dataclass(frozen=True)
class Blow:
    """One SIGKILL, or one or two Ctrl-Cs. ``at`` is the number of the call or line, or a share of the time."""

    kind: str  # "kill" or "interrupt"
    way: str
    at: float
    second: float | None = None
    """Calls or lines, or seconds, until the second Ctrl-C."""

    @property
    def signal(self) -> int:
        return signal.SIGKILL if self.kind == "kill" else signal.SIGINT


class Trap:
    """Counts calls that change the disk, and lines of the code that saves; strikes at the one it was told."""

    def __init__(self, board: Board, blow: Blow | None, lines: bool) -> None:
        self.board, self.blow, self.lines = board, blow, lines
        self.next: dict[str, float] = {}
        if blow is not None and blow.way != MOMENT:
            self.next[blow.way] = blow.at
            self.lines = lines or blow.way == LINE
        self.saves: list[int] = []  # the number of the call by which each manifest was put in its place

    def reached(self, way: str) -> None:
        if self.board["phase"] != Board.UNDER_WAY:
            return
        count = self.board[way]
        self.board[way] = count + 1
        if count >= self.next.get(way, FINISHED):
            self._strike()

    def _strike(self) -> None:
        assert self.blow is not None
        first, self.next = self.board["struck"] == 0, {}
        self.board.note_blow()
        if first and self.blow.second is not None:
            # Lines are no longer counted once an exception was raised at one: calls are.
            self.next = {way: self.board[way] + self.blow.second for way in (CALL, self.blow.way)}
        REAL["kill"](os.getpid(), self.blow.signal)

    def set(self) -> None:
        """Put it around everything that changes a disk, for the rest of this process."""
        for name in ("replace", "fsync", "unlink", "mkdir", "rmdir"):
            setattr(os, name, self._around(name))
        io.open = builtins.open = self._open  # type: ignore[assignment]
        loop.Loop.save = self._saving(loop.Loop.save)  # type: ignore[method-assign]
        fitted.Fitted.save = self._saving(fitted.Fitted.save)  # type: ignore[method-assign]
        fitting.save_table_run = self._saving(fitting.save_table_run)
        if self.lines:
            sys.settrace(self._trace)

    def _around(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.reached(CALL)
            made = REAL[name](*arguments, **options)
            if name == "replace" and Path(arguments[1]).name == store.MANIFEST:
                self.saves.append(self.board[CALL])
                if Path(arguments[1]).parent.name in ("run", "checkpoint"):
                    with _real_open(arguments[1], "rb") as stream:
                        self.board["published"] = int(json.load(stream)["info"]["steps"])
            self.reached(CALL)
            return made

        return call

    def _saving(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def save(*arguments: Any, **options: Any) -> Any:
            self.board["saving"] = 2 if options.get("finished", not isinstance(arguments[0], loop.Loop)) else 1
            try:
                return real(*arguments, **options)
            finally:
                self.board["saving"] = 0

        return save

    def _open(self, file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        if self.board["phase"] != Board.UNDER_WAY or isinstance(file, int) or not set(mode) & set("wax+"):
            return _real_open(file, mode, *more, **options)
        self.reached(CALL)
        raw = _Writes(file, mode.replace("b", "").replace("t", ""))
        raw.trap = self
        made: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" not in mode:
            text = {k: v for k, v in options.items() if k in ("encoding", "errors", "newline")}
            made = io.TextIOWrapper(made, **text)
        self.reached(CALL)
        return made

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        code = frame.f_code
        return self._line if code.co_filename in _WATCHED and code.co_name not in _DULL else None

    def _line(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            self.reached(LINE)
        return self._line


class _Writes(io.FileIO):
    """A file that can be struck when half of what is written is on the disk."""

    trap: Trap

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        half = len(view) // 2
        self.trap.reached(CALL)
        written = super().write(view[:half]) or 0
        if written == half:
            self.trap.reached(CALL)
            written += super().write(view[half:]) or 0
        self.trap.reached(CALL)
        return written


def child_run(subject: Subject, place: Path | None, report: Path, board: Board, trap: Trap) -> None:
    """A child's whole life: one run, then a page that tells of it, if it is left to."""
    found: dict[str, Any] = {"outcome": "error", "text": ""}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    result: Any = None
    try:
        work = subject.ready(place)
        trap.set()
        began = time.perf_counter()
        try:
            board["phase"] = Board.UNDER_WAY
            result = work()
            found["outcome"] = subject.outcome(result)
            found["steps"] = subject.steps(result)
        finally:
            board["phase"] = Board.OVER
            sys.settrace(None)
            handler = signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        found["seconds"] = time.perf_counter() - began
    except KeyboardInterrupt:
        found["outcome"] = "KeyboardInterrupt"
    except BaseException as error:
        refused = isinstance(error, TemperanceError) and not trap.saves and not board["struck"]
        found = {"outcome": "refused" if refused else "error", "text": f"{type(error).__name__}: {error}"}
        found["trace"] = traceback.format_exc()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(NameError):
        found["handler"] = handler is signal.default_int_handler
    found |= {"calls": board["call"], "lines": board["line"], "saves": trap.saves}
    if found["outcome"] == "ended" and board["struck"] == 0:
        try:
            found["learned"] = subject.learned(place, result)
        except Exception as error:
            found |= {"outcome": "error", "text": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    report.write_text(json.dumps(found))
