"""``python -m benchmarks.torture``: runs of every method are killed and interrupted at random, and must not show it.

A trial begins a run in a folder, in a child process. A SIGKILL, or one or two Ctrl-Cs in quick succession, strike it;
it is begun again with the same folder, and struck again, up to five times; then it may end. What it has learned
(posterior, state, history, predictions) must be, bit for bit, what a run has learned that was never disturbed.

- A *loss* is a run that was published and cannot be read any more, or has gone back behind what was published, or a
  file of the user's in the folder that is gone or changed.
- A *difference* is any bit of the end result.
- A *leftover* is a file that no manifest names when all is done.
- A *message* is an end by anything but ``KeyboardInterrupt`` or the documented return, a traceback on the way, a Ctrl-C
  that nobody has heard, or a handler that was not put back.

A blow falls at a *moment* (after a random part of the time that the run takes), at a *call* that changes a disk (before
it, after it, and in the middle of a write; half of these are aimed at the first save or the last one), or at a *line*
of the code that saves. The seed decides which runs are struck how; moments are the machine's.

To import torch takes seconds, a run here a tenth of one: so children are forked by a process that has imported all.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import dataclasses
import gc
import hashlib
import inspect
import io
import itertools
import json
import mmap
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import temperance as tp
from benchmarks.__main__ import RESULTS, machine, versions
from temperance.apps.cli import main as command_line
from temperance.apps.tables import claim, fitting, folder
from temperance.apps.tables.folder import load_table_run
from temperance.core import files, growing, interrupts
from temperance.core.encoding import encode, tensor_bytes
from temperance.core.errors import TemperanceError
from temperance.run import fit, fitted, loop, store
from temperance.testing.composition import table
from temperance.testing.composition.runs import Runs, says, small_problem
from temperance.testing.inference import load_any

CALL, LINE, MOMENT = "call", "line", "moment"
WAYS = {CALL: 0.45, LINE: 0.25, MOMENT: 0.3}
TROUBLES = ("loss", "difference", "leftover", "message")
_UNCOUNTED = 0.75  # of the time of a run whose lines are counted is that of one whose lines are not
PATIENCE = 60.0  # seconds after which a child hangs
FINISHED = 10**9
"""Progress of a run that has nothing left to do."""
MINE = {"notes.md": b"of the user", "posterior-mine.safetensors": b"not a run's", ".manifest.json-backup": b"{}"}
"""Files of the user's with names near to ours."""
_WATCHED = {
    inspect.getsourcefile(m) for m in (claim, files, fitted, fitting, folder, growing, interrupts, loop, store, fit)
}
_DULL = {"_rows_named", "<genexpr>", "<setcomp>"}  # they walk through forms: most lines by far, and all alike
_UNHEARABLE = r"Exception ignored in: <%s.*?\nKeyboardInterrupt: *\n"
_IMPORTING = re.compile(_UNHEARABLE % "function _get_module_lock", re.S)
"""What Python does with a Ctrl-C that comes while it forgets the lock of an import: nobody can hear that one."""
_CLOSING = re.compile(_UNHEARABLE % "generator object", re.S)
"""And with a second one that comes while the first closes the generators it passes: it has interrupted already."""
_TOKENS = re.compile(r"(draws|model|test)-[0-9a-f]{12}")
_REAL = {name: getattr(os, name) for name in ("replace", "fsync", "unlink", "mkdir", "rmdir", "kill", "_exit")}
_real_open = builtins.open


def digest(value: Any) -> str:
    """Of everything that a value is made of, to the bit; names that are drawn afresh for each file left out."""
    tensors: dict[str, Tensor] = {}
    return digest_form(encode(value, tensors), tensors)


def digest_form(form: Any, tensors: dict[str, Tensor]) -> str:
    """The same of a value that is written down already."""
    made = hashlib.sha256(_TOKENS.sub(r"\1", json.dumps(form, sort_keys=True)).encode())
    for name in sorted(tensors):
        made.update(f"{name}{tuple(tensors[name].shape)}{tensors[name].dtype}".encode() + tensor_bytes(tensors[name]))
    return made.hexdigest()[:16]


# ---------------------------------------------------------------------- what is struck


class Subject:
    """Something that writes to a folder, can be begun again, and is to end as if nothing had been."""

    name: str
    weight: int = 1
    """How often it is drawn in each round of all subjects."""

    def begin(self, folder: Path) -> None:
        """What is there before the first run."""

    def ready(self, folder: Path | None) -> Callable[[], Any]:
        """Prepare in peace; the function given back is what is struck. ``None``: a run that keeps no checkpoint."""
        raise NotImplementedError

    def outcome(self, result: Any) -> str:
        """``"ended"`` or, of a run that was interrupted and has said so, ``"interrupted"``."""
        return "interrupted" if result.info.status.code == "interrupted" else "ended"

    def steps(self, result: Any) -> int | None:
        """How far an interrupted run says it has come; its folder must have come as far."""
        return None

    def learned(self, folder: Path | None, result: Any) -> dict[str, str]:
        """Digests of the end result."""
        raise NotImplementedError

    def look(self, folder: Path) -> int:
        """How far the run in the folder is, -1 where there is none; raises where it cannot be read."""
        raise NotImplementedError

    def after(self, published: int) -> int:
        """How far the run must be once a manifest that tells of so many steps was published."""
        return published

    def expected(self, folder: Path) -> set[str]:
        """The files, as paths within the folder, that may be there at the end."""
        raise NotImplementedError


def named_in(folder: Path) -> set[str]:
    """The manifest of a run and the files that it names."""
    run = store.open_run(folder)
    return {store.MANIFEST} | set(re.findall(r"[a-z]+-[0-9a-f]{12}\.run\.[a-z]+", json.dumps(run.manifest["parts"])))


def look_into(folder: Path, network: nn.Module | None) -> int:
    """Read all of a run, as a user would and as a resumed run does."""
    if not (folder / store.MANIFEST).is_file():
        return -1
    run = store.open_run(folder)
    for part in run.manifest["parts"]:
        run.tensors(part)
    if network is not None and run.has("posterior"):
        load_any(folder, network)
    return int(run.entry("info", dict)["steps"])


def history_of(info: Any) -> dict[str, Any]:
    """What is known of how a run went, but for the clock."""
    return {k: v for k, v in dataclasses.asdict(info).items() if k != "seconds"}


@dataclass
class Fit(Subject):
    """``tp.fit(..., checkpoint=folder)`` of one method of the composition table."""

    name: str
    make: Callable[[], Any]
    problem: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    weight: int = 1

    def ready(self, folder: Path | None) -> Callable[[], Any]:
        runs = Runs(small_problem(**self.problem), steps=12, batch_size=10)
        method = self.make()
        every = 1 + zlib.crc32(self.name.encode()) % 3
        kept = {} if folder is None else {"checkpoint": folder, "every": every}
        return lambda: runs.new(method, **kept, **self.options)

    def steps(self, result: Any) -> int | None:
        return int(result.info.steps)

    def learned(self, folder: Path | None, result: Any) -> dict[str, str]:
        problem = small_problem(**self.problem)
        found = {
            "posterior": digest(result.posterior),
            "history": digest(history_of(result.info)),
            "predictions": digest(dataclasses.asdict(says(result, problem.queries))),
        }
        if folder is not None:
            run, loaded = store.open_run(folder), load_any(folder, problem.network)
            found["state"] = digest_form(run.form("state"), run.tensors("state"))
            found["posterior on disk"] = digest(loaded.posterior)
            found["history on disk"] = digest(history_of(loaded.info))
            found["predictions of the folder"] = digest(dataclasses.asdict(says(loaded, problem.queries)))
        return found

    def look(self, folder: Path) -> int:
        return look_into(folder, small_problem(**self.problem).network)

    def expected(self, folder: Path) -> set[str]:
        return named_in(folder)


def _valley(theta: Tensor) -> Tensor:
    return -0.5 * theta[0].square() - 2.0 * (theta[1] - theta[0].square()).square()


@dataclass
class Sample(Subject):
    """``tp.sample(..., checkpoint=folder)``, which saves every 100 transitions."""

    name: str
    method: Any
    weight: int = 6

    def ready(self, folder: Path | None) -> Callable[[], Any]:
        return lambda: tp.sample(
            _valley, torch.zeros(2), self.method, draws=160, chains=2, warmup=80, checkpoint=folder, progress=False
        )

    def outcome(self, result: Any) -> str:
        return super().outcome(result.fitted)

    def steps(self, result: Any) -> int | None:
        return int(result.fitted.info.steps)

    def learned(self, folder: Path | None, result: Any) -> dict[str, str]:
        found = {
            "draws": digest({"theta": result.theta}),
            "posterior": digest(result.fitted.posterior),
            "history": digest(history_of(result.fitted.info)),
        }
        if folder is not None:
            run = store.open_run(folder)
            found["state"] = digest_form(run.form("state"), run.tensors("state"))
            found["posterior on disk"] = digest(run.value("posterior"))
        return found

    def look(self, folder: Path) -> int:
        return look_into(folder, None)

    def expected(self, folder: Path) -> set[str]:
        return named_in(folder)


@dataclass
class Save(Subject):
    """``fitted.save`` onto a run: what is there is the old one or the new one, and afterwards the new one."""

    name: str
    templates: Path
    method: Any
    other: Any = None
    """The method of the run that is there before; ``None``: the run itself, which is saved onto itself."""
    checkpointed: bool = False
    weight: int = 8

    def _made(self, method: Any, which: str, checkpointed: bool = False) -> Path:
        """A run that is made once, in a child, because it trains."""
        place = self.templates / f"{zlib.crc32(self.name.encode()):08x}-{which}"
        if not place.is_dir():
            draft = place.with_name(place.name + "-draft")

            def make() -> None:
                runs = Runs(small_problem(), steps=12, batch_size=10)
                if checkpointed:
                    runs.new(method, checkpoint=draft)
                else:
                    runs.new(method).save(draft)

            in_child(make)
            draft.rename(place)
        return place

    def begin(self, folder: Path) -> None:
        new = self._made(self.method, "new")
        old = new if self.other is None else self._made(self.other, "old", self.checkpointed)
        shutil.copytree(old, folder)

    def ready(self, folder: Path | None) -> Callable[[], Any]:
        source = self._made(self.method, "new") if self.other is not None or folder is None else folder
        loaded = load_any(source, small_problem().network)
        return (lambda: loaded) if folder is None else (lambda: loaded.save(folder) or loaded)

    def outcome(self, result: Any) -> str:
        return "ended"

    def learned(self, folder: Path | None, result: Any) -> dict[str, str]:
        problem = small_problem()
        read = result if folder is None else load_any(folder, problem.network)
        return {
            "posterior": digest(read.posterior),
            "history": digest(history_of(read.info)),
            "predictions": digest(dataclasses.asdict(says(read, problem.queries))),
        }

    def look(self, folder: Path) -> int:
        network = small_problem().network
        look_into(folder, network)
        found = digest(load_any(folder, network).posterior)
        ends = [digest(load_any(self._made(self.method, "new"), network).posterior)]
        if self.other is not None:
            ends.insert(0, digest(load_any(self._made(self.other, "old", self.checkpointed), network).posterior))
        return ends.index(found)  # raises for what is neither

    def after(self, published: int) -> int:
        return -1 if published < 0 else int(self.other is not None)

    def expected(self, folder: Path) -> set[str]:
        return named_in(folder)


@dataclass
class TableFit(Subject):
    """The command ``temperance fit --out folder``, gone on with by ``--resume``."""

    name: str
    templates: Path
    arguments: tuple[str, ...]
    rows: int = 120
    overwrite: bool = False
    weight: int = 10

    def _table(self) -> Path:
        place = self.templates / f"{zlib.crc32(self.name.encode()):08x}.csv"
        if not place.is_file():
            rng = np.random.default_rng(0)
            frame = pd.DataFrame({"a": rng.normal(size=self.rows), "b": rng.choice(list("xyz"), size=self.rows)})
            score = frame.a + (frame.b == "x") + 0.3 * rng.normal(size=self.rows)
            frame["kind"], frame["size"] = np.where(score > 0, "up", "down"), score
            frame.to_csv(place, index=False)
        return place

    def _command(self, folder: Path, *more: str) -> list[str]:
        return ["fit", str(self._table()), "--out", str(folder), *self.arguments, *more]

    def _old(self) -> Path:
        place = self.templates / f"{zlib.crc32(self.name.encode()):08x}-old"
        if not place.is_dir():
            draft = place.with_name(place.name + "-draft")
            in_child(lambda: command_line(self._command(draft, "--seed", "7")))
            draft.rename(place)
        return place

    def begin(self, folder: Path) -> None:
        if self.overwrite:
            shutil.copytree(self._old(), folder)

    def ready(self, folder: Path | None) -> Callable[[], Any]:
        again = ["--resume", *(["--overwrite"] if self.overwrite else [])]
        if folder is None:
            folder = Path(tempfile.mkdtemp(dir=self.templates)) / "whole"

        def run() -> Any:
            finished = (folder / "table.json").is_file() and not (folder / "checkpoint" / store.MANIFEST).is_file()
            code = command_line(self._command(folder, *again))
            if code == 130:
                raise KeyboardInterrupt
            if code != 0 and not (code == 1 and finished):  # of a finished run the command says that it is one
                raise RuntimeError(f"the command ended with {code}")
            return folder

        return run

    def outcome(self, result: Any) -> str:
        return "ended"

    def learned(self, folder: Path | None, result: Any) -> dict[str, str]:
        read = load_table_run(result)
        scores = json.dumps(read.evaluate().as_dict(), sort_keys=True, default=str)
        return {
            "posterior": digest(read.fitted.posterior),
            "table": digest(read.state),
            "history": digest(history_of(read.fitted.info)),
            "predictions": hashlib.sha256(read.predict(self._table()).to_csv().encode()).hexdigest()[:16],
            "scores": hashlib.sha256(scores.encode()).hexdigest()[:16],
        }

    def look(self, folder: Path) -> int:
        done = load_table_run(folder).state.seed == 0 if (folder / "table.json").is_file() else None
        if done:
            return FINISHED
        if self.overwrite and done is None:
            raise RuntimeError("the run that was there is gone before the new one is")
        return look_into(folder / "checkpoint", None)

    def expected(self, folder: Path) -> set[str]:
        about = json.loads((folder / "table.json").read_text())
        model = {f"{about['model']}/{name}" for name in named_in(folder / about["model"])}
        return {"table.json", "files.json", about["test"], *model}


def subjects(templates: Path) -> list[Subject]:
    """Every method of the composition table by itself and in every wrapper, and everything else that writes a run."""
    found: list[Subject] = [
        Fit(name, lambda inner=inner: inner, {"dropout": True} if "MCDropout" in name else {}, weight=2)
        for name, inner in table.INNERS.items()
    ]
    found += [Fit(c.name, lambda c=c: c.outer(c.inner), c.problem) for c in table.cells()]
    stopping = tp.MAP(lr=0.1, patience=2)
    found += [
        Fit("MAP, stopped early", lambda: stopping, options={"held_out": 0.3}, weight=6),
        Fit("Ensemble of MAP, stopped early", lambda: tp.Ensemble(stopping, 2), options={"held_out": 0.3}, weight=6),
        Sample("sample, NUTS", tp.NUTS(max_depth=4)),
        Sample("sample, SGHMC", tp.SGHMC(lr=0.01)),
        Sample("sample, Warmup(HMC)", tp.Warmup(tp.HMC(length=3), 20, mass="none")),
    ]
    point, chain = tp.MAP(lr=0.05), tp.Collect(tp.SGHMC(lr=0.03))
    found += [
        Save("save onto another run", templates, point, tp.Laplace(point)),
        Save("save draws onto draws", templates, tp.Ensemble(chain, 2), chain),
        Save("save onto a checkpoint", templates, tp.Laplace(point), chain, checkpointed=True),
        Save("save draws onto themselves", templates, chain),
    ]
    classes = ("--target", "kind", "--epochs", "4", "--drop", "size", "--method")
    reals = ("--target", "size", "--epochs", "4", "--drop", "kind", "--method")
    found += [
        TableFit("table, map", templates, (*classes, "map", "--folds", "0")),
        TableFit("table, folds", templates, (*reals, "ensemble", "--folds", "2")),
        TableFit("table, sghmc", templates, (*reals, "sghmc", "--folds", "0")),
        TableFit("table, overwritten", templates, (*classes, "laplace", "--folds", "0"), overwrite=True),
    ]
    return found


# ---------------------------------------------------------------------- in the child


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
        _REAL["kill"](os.getpid(), self.blow.signal)

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
            made = _REAL[name](*arguments, **options)
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


def fork(work: Callable[[], Any], words: Path | None = None) -> int:
    """A child that does ``work``, in a process group of its own so that a Ctrl-C at the terminal is the parent's."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        handle = os.open(os.devnull if words is None else words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        warnings.simplefilter("ignore")
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        _REAL["_exit"](code)
    raise AssertionError("unreachable")


def in_child(work: Callable[[], Any]) -> None:
    """Do something that trains, and so is not for the process that forks."""
    _, status = os.waitpid(fork(work), 0)
    if status:
        raise RuntimeError("a run that others are compared with could not be made")


# ---------------------------------------------------------------------- a trial


@dataclass
class Life:
    """How a child ended: what it said itself, and what it printed. A child that was killed says nothing."""

    report: dict[str, Any]
    words: str
    killed: bool
    struck: int
    under_way: bool
    where: str
    published: int
    hung: bool


@dataclass
class Undisturbed:
    """What a subject learns when it is left in peace, how long it takes, and where its saves are."""

    learned: dict[str, str]
    steps: int
    seconds: float
    calls: int
    lines: int
    saves: list[int]
    troubles: list[tuple[str, str]]


class Refused(Exception):
    """The library refuses this pair: there is nothing to strike."""


class Bench:
    """Runs trials one after the other, each in a folder of its own that goes when it is over."""

    def __init__(self, root: Path, seed: int, chosen: Sequence[Subject]) -> None:
        self.root, self.seed = root, seed
        self.subjects = list(chosen)
        self.turns = [k for k, subject in enumerate(chosen) for _ in range(subject.weight)]
        self.board = Board()
        self.known: dict[str, Undisturbed | Refused] = {}

    # -------------------------------------------------------------- one child

    def live(self, subject: Subject, place: Path | None, blow: Blow | None, lines: bool = False) -> Life:
        """A run of the subject, struck as told."""
        report, words = self.root / "report.json", self.root / "words.txt"
        report.unlink(missing_ok=True)
        self.board.clear()
        trap = Trap(self.board, blow, lines)
        pid = fork(lambda: child_run(subject, place, report, self.board, trap), words)
        hung = False
        try:
            if blow is not None and blow.way == MOMENT:
                self._strike_in_time(pid, blow)
            status = self._wait(pid)
            if status is None:
                hung = True
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
        except BaseException:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            raise
        told = json.loads(report.read_text()) if report.is_file() and not os.WIFSIGNALED(status) else {}
        return Life(
            told,
            words.read_text(errors="replace") if words.is_file() else "",
            os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and not hung,
            self.board["struck"],
            self.board["phase"] == Board.UNDER_WAY,
            Board.SAVES[self.board["where"]],
            self.board["published"],
            hung,
        )

    def _strike_in_time(self, pid: int, blow: Blow) -> None:
        until = time.perf_counter() + PATIENCE
        while self.board["phase"] == Board.BEFORE and time.perf_counter() < until:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return
            time.sleep(0.0002)
        time.sleep(blow.at)
        for pause in (0.0, blow.second):
            if pause is None or self.board["phase"] != Board.UNDER_WAY:
                return
            time.sleep(pause)
            if self.board["phase"] == Board.UNDER_WAY:
                self.board.note_blow()
                os.kill(pid, blow.signal)  # not reaped yet, so the number is its own

    def _wait(self, pid: int) -> int | None:
        until = time.perf_counter() + PATIENCE
        while True:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return status
            if time.perf_counter() > until:
                return None
            time.sleep(0.001)

    # -------------------------------------------------------------- what is compared with

    def undisturbed(self, subject: Subject) -> Undisturbed:
        """Two runs that must be equal: one in a folder, whose calls and lines are counted, and one without."""
        if subject.name not in self.known:
            try:
                self.known[subject.name] = self._undisturbed(subject)
            except Refused as refused:
                self.known[subject.name] = refused
        found = self.known[subject.name]
        if isinstance(found, Refused):
            raise found
        return found

    def _undisturbed(self, subject: Subject) -> Undisturbed:
        with self._place(subject) as place:
            lives = [self.live(subject, place, None, lines=True)]
            if lives[0].report.get("outcome") == "refused":
                raise Refused(lives[0].report["text"])
        lives.append(self.live(subject, None, None))
        for life in lives:
            if "learned" not in life.report:
                text = life.report.get("text") or life.words[-300:]
                return Undisturbed({}, 1, 0.1, 1, 1, [], [("message", f"left in peace, it fails: {text}")])
        whole, plain = (life.report for life in lives)
        troubles = [
            ("difference", f"left in peace, with and without a checkpoint: {key}")
            for key, value in plain["learned"].items()
            if value != whole["learned"][key]
        ]
        seconds = _UNCOUNTED * whole["seconds"]
        return Undisturbed(
            whole["learned"], whole["steps"] or 1, seconds, whole["calls"], whole["lines"], whole["saves"], troubles
        )

    @contextlib.contextmanager
    def _place(self, subject: Subject) -> Iterator[Path]:
        place = Path(tempfile.mkdtemp(dir=self.root))
        try:
            subject.begin(place / "run")
            yield place / "run"
        finally:
            shutil.rmtree(place, ignore_errors=True)

    # -------------------------------------------------------------- one trial

    def subject_of(self, number: int) -> Subject:
        """Every subject has its turns in each round, in an order of the round's own."""
        lap, turn = divmod(number, len(self.turns))
        order = list(self.turns)
        random.Random(f"{self.seed} order {lap}").shuffle(order)
        return self.subjects[order[turn]]

    def kind_of(self, number: int) -> str:
        return "kill" if random.Random(f"{self.seed} kind {number}").random() < 0.62 else "interrupt"

    def trial(self, number: int) -> dict[str, Any] | None:
        """Strike, begin again, let end, compare; ``None`` where the library refuses the pair."""
        subject, kind = self.subject_of(number), self.kind_of(number)
        try:
            known = self.undisturbed(subject)
        except Refused:
            return None
        rng = random.Random(f"{self.seed} trial {number}")
        made: dict[str, Any] = {"number": number, "subject": subject.name, "kind": kind, "blows": []}
        made |= {"kills": 0, "interrupts": 0, "doubles": 0, "resumed": 0, "troubles": list(known.troubles)}
        if not known.learned:
            return made
        began = time.perf_counter()
        with self._place(subject) as place:
            self._suffer(subject, known, place, kind, rng, made)
        made["seconds"] = time.perf_counter() - began
        return made

    def _suffer(
        self, subject: Subject, known: Undisturbed, place: Path, kind: str, rng: random.Random, made: dict[str, Any]
    ) -> None:
        reached = self._look(subject, place, made, -1)
        mine: dict[Path, bytes] = {}
        for _ in range(rng.choices((1, 2, 3, 5), (0.5, 0.25, 0.15, 0.1))[0]):
            own = kind if kind == "kill" or rng.random() < 0.8 else "kill"
            blow = draw_blow(own, known, reached / known.steps if 0 <= reached < known.steps else 0.0, rng)
            life = self.live(subject, place, blow)
            where = "the first save" if life.where == "a save" and max(reached, life.published) < 0 else life.where
            told = {"struck": life.struck, "mid-run": life.under_way, "where": where}
            made["blows"].append(dataclasses.asdict(blow) | told)
            if blow.kind == "kill":
                made["kills"] += life.killed and life.under_way
            else:
                made["interrupts"] += life.struck > 0
                made["doubles"] += life.struck > 1
            self._judge(life, blow, made)
            reached = self._look(subject, place, made, max(reached, subject.after(life.published)), life)
            if reached >= 0 and not mine:
                for name, content in MINE.items():
                    (place / name).write_bytes(content)
                    mine[place / name] = content
            if made["troubles"]:
                return
            made["resumed"] += 1
        life = self.live(subject, place, None)
        if "learned" not in life.report:
            said = life.report.get("text") or ("it hangs" if life.hung else life.words[-300:])
            made["troubles"].append(("loss", f"cannot go on: {said}"))
            made["trace"] = life.report.get("trace", "")
            return
        now = life.report["learned"]
        made["troubles"] += [("difference", key) for key in known.learned if known.learned[key] != now.get(key)]
        for file, content in mine.items():
            if not file.is_file() or file.read_bytes() != content:
                made["troubles"].append(("loss", f"the user's {file.name} is gone or changed"))
        there = {str(f.relative_to(place)) for f in place.rglob("*") if not f.is_dir()} - {f.name for f in mine}
        made["troubles"] += [("leftover", name) for name in sorted(there - subject.expected(place))]

    def _look(self, subject: Subject, place: Path, made: dict[str, Any], least: int, life: Life | None = None) -> int:
        """How far the folder is: never behind what was published, nor behind what an interrupted run has said."""
        try:
            found = subject.look(place) if place.is_dir() else -1
        except Exception as error:
            made["troubles"].append(("loss", f"cannot be read: {type(error).__name__}: {error}"))
            return least
        if found < least:
            made["troubles"].append(("loss", f"went back from {least} to {found}"))
        if life is not None and life.struck == 1 and life.report.get("outcome") == "interrupted":
            said = life.report.get("steps")
            if said is not None and said != found:
                made["troubles"].append(("loss", f"interrupted after {said} steps, saved {found}"))
        return found

    def _judge(self, life: Life, blow: Blow, made: dict[str, Any]) -> None:
        """What a run that was struck has said."""
        add = made["troubles"].append
        if life.hung:
            add(("message", f"hangs: {life.words[-300:]}"))
            return
        if life.killed:
            return
        told = life.report
        if told.get("outcome") not in ("ended", "interrupted", "KeyboardInterrupt"):
            add(("message", told.get("text") or f"ended without a word: {life.words[-300:]}"))
            made["trace"] = told.get("trace", "")
        words, of_python = _IMPORTING.subn("", life.words)
        if life.struck > 1 and told.get("outcome") == "KeyboardInterrupt":
            words = _CLOSING.sub("", words)
        if "Traceback" in words or "Exception ignored" in words:
            add(("message", f"a traceback on the way: {words[-500:]}"))
        if blow.kind == "interrupt" and life.struck:
            if told.get("outcome") == "ended" and "interrupted" not in words and not of_python:
                add(("message", "nobody has heard the Ctrl-C"))
            if told.get("handler") is False:
                add(("message", "the handler of Ctrl-C was not put back"))


def draw_blow(kind: str, known: Undisturbed, done: float, rng: random.Random) -> Blow:
    """Where to strike a run of which the share ``done`` is behind it."""
    way = rng.choices(tuple(WAYS), tuple(WAYS.values()))[0]
    left = max(0.1, 1.0 - done)
    second: float | None = None
    double = kind == "interrupt" and rng.random() < 0.5
    if way == MOMENT:
        if double:
            second = rng.choice((0.0, 0.0005, 0.002, 0.01))
        return Blow(kind, way, rng.random() * known.seconds * left, second)
    total = known.calls if way == CALL else known.lines
    if double:
        second = rng.choice((0, 1, 2, 5, 20))
    at = rng.random() * total * left
    if way == CALL and len(known.saves) > 1:
        aim = rng.random()
        if aim < 0.25 and not done:
            at = rng.random() * (known.saves[0] + 4)  # the first save, and what is tidied after it
        elif aim < 0.5:
            at = (known.saves[-2] + rng.random() * (total - known.saves[-2])) - done * total
    return Blow(kind, way, float(int(max(0.0, at))), second)


# ---------------------------------------------------------------------- many trials


def work_off(bench: Bench, share: int, workers: int, quota: dict[str, int], stop: Callable[[], bool]) -> Iterator[Any]:
    """The trials of one worker, until its share of kills and Ctrl-Cs has struck."""
    left = dict(quota)
    idle = 0
    for number in itertools.count(share, workers):
        if stop() or idle > max(50, 2 * len(bench.turns)) or not any(n > 0 for n in left.values()):
            return
        if left[bench.kind_of(number)] <= 0:
            continue
        idle += 1
        made = bench.trial(number)
        if made is None:
            continue
        idle = 0 if made["kills"] + made["interrupts"] else idle
        left["kill"] -= made["kills"]
        left["interrupt"] -= made["interrupts"]
        yield made


def torture(
    chosen: Sequence[Subject], root: Path, *, kills: int, interrupts: int, seed: int, workers: int, minutes: float,
    tell: Callable[[list[dict[str, Any]]], None],
) -> list[dict[str, Any]]:  # fmt: skip
    """All trials; of those that a Ctrl-C (or SIGTERM) cuts short, what was measured so far."""
    flag = mmap.mmap(-1, mmap.PAGESIZE)
    began, made = time.monotonic(), []
    reader, writer = os.pipe()

    def stop() -> bool:
        return flag[0] != 0 or time.monotonic() - began > 60 * minutes

    def worker(share: int) -> None:
        os.close(reader)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        own = root / f"worker-{share}"
        own.mkdir()
        bench = Bench(own, seed, chosen)
        quota = {"kill": -(-kills // workers), "interrupt": -(-interrupts // workers)}
        for trial in work_off(bench, share, workers, quota, stop):
            line = json.dumps(trial).encode() + b"\n"
            while line:  # in pieces that a pipe takes at once, but for findings that are long: one worker's come whole
                line = line[os.write(writer, line) :]

    gc.collect()
    gc.freeze()  # what is shared with the children is not to be copied for being looked at
    words = [root / f"words-{share}.txt" for share in range(workers)]
    pids = [fork(lambda share=share: worker(share), words[share]) for share in range(workers)]
    os.close(writer)

    def end(number: int, frame: Any) -> None:
        flag[0] = 1  # workers end with the trial they are at

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with os.fdopen(reader, "rb") as lines:
            for line in lines:
                made.append(json.loads(line))
                tell(made)
    finally:
        flag[0] = 1
        failed = [file for pid, file in zip(pids, words, strict=True) if os.waitpid(pid, 0)[1]]
        for number, handler in before.items():
            signal.signal(number, handler)
    if failed:
        raise RuntimeError(f"a worker failed: {failed[0].read_text()[-2000:]}")
    return made


def warm_up() -> None:
    """Let libraries import what they import late: here once, not in each child."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = small_problem()
        for name in ("Ensemble of MAP", "Laplace, KFAC"):
            says(Runs(problem, steps=2, batch_size=10).new(table.INNERS[name]), problem.queries)


def summary(made: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all trials."""
    totals: dict[str, Any] = {"trials": len(made), "subjects": len({t["subject"] for t in made})}
    for key in ("kills", "interrupts", "doubles", "resumed"):
        totals[key] = sum(t[key] for t in made)
    for where in ("the first save", "a save", "the final save"):
        totals[f"in {where}"] = sum(b["where"] == where for t in made for b in t["blows"] if b["struck"])
    for trouble in TROUBLES:
        totals[trouble] = sum(kind == trouble for t in made for kind, _ in t["troubles"])
    return totals


def show(made: Sequence[dict[str, Any]], console: Console) -> None:
    """A line for each method, and one for each thing that went wrong."""
    heads = ("trials", "kills in mid-run", "Ctrl-Cs", "double", "resumed", "losses", "differences", "leftovers",
             "messages")  # fmt: skip
    rows = Table(title="runs that were killed and interrupted, beside the same runs left in peace")
    rows.add_column("method")
    for head in heads:
        rows.add_column(head, justify="right")

    def row(name: str, own: Sequence[dict[str, Any]]) -> None:
        found = summary(own)
        keys = ("trials", "kills", "interrupts", "doubles", "resumed", *TROUBLES)
        rows.add_row(name, *(str(found[key]) for key in keys), style="red" if any(found[t] for t in TROUBLES) else "")

    for name in sorted({t["subject"] for t in made}):
        row(name, [t for t in made if t["subject"] == name])
    rows.add_section()
    row("all", made)
    console.print(rows)
    for trial in made:
        for kind, text in trial["troubles"]:
            blows = ", ".join(f"{b['kind']} at {b['way']} {b['at']:.4g}" for b in trial["blows"])
            words = f"trial {trial['number']}, {trial['subject']}: {kind}: {text} (after {blows})"
            console.print(words, style="red", markup=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: nothing was lost and nothing differs; 1: something did; 130: ended by Ctrl-C before all was done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torture", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000, help="SIGKILLs that strike a run under way (default: 1000)")
    parser.add_argument("--interrupts", type=int, default=500, help="runs struck by one or two Ctrl-Cs (default: 500)")
    parser.add_argument("--seed", type=int, default=0, help="decides which runs are struck how (default: 0)")
    parser.add_argument("--workers", type=int, default=1, help="trials at the same time (default: 1)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="only these (a trailing * stands for anything)")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long with what there is")
    parser.add_argument("--trial", type=int, metavar="NUMBER", help="one trial again, and all it says, as JSON")
    parser.add_argument("--list", action="store_true", help="say which methods there are and strike none")
    parser.add_argument(
        "--folder", type=Path, help="where the runs are meanwhile (default: the system's temporary folder)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the JSON goes (default: benchmarks/results/)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    console = Console(width=None if sys.stdout.isatty() else 160)
    root = Path(tempfile.mkdtemp(prefix="torture-", dir=options.folder))
    try:
        return _main(options, root, console)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _main(options: argparse.Namespace, root: Path, console: Console) -> int:
    templates = root / "templates"
    templates.mkdir()
    chosen = [s for s in subjects(templates) if _wanted(s.name, options.methods)]
    if options.list or not chosen:
        console.print("\n".join(s.name for s in chosen) or "no method has such a name", markup=False)
        return 0 if chosen else 2
    warm_up()
    if options.trial is not None:
        (root / "worker").mkdir()
        found = Bench(root / "worker", options.seed, chosen).trial(options.trial)
        print(json.dumps(found, indent=1))
        return int(bool(found and found["troubles"]))
    started, last = datetime.now().astimezone(), 0.0

    def tell(made: list[dict[str, Any]]) -> None:
        nonlocal last
        trial = made[-1]
        for kind, text in trial["troubles"]:
            print(f"trial {trial['number']}, {trial['subject']}: {kind}: {text}", flush=True)
        if time.monotonic() - last > 10:
            last = time.monotonic()
            so_far = summary(made)
            print(", ".join(f"{value} {name}" for name, value in so_far.items()), flush=True)

    made = torture(
        chosen, root, kills=options.kills, interrupts=options.interrupts, seed=options.seed, workers=options.workers,
        minutes=options.minutes, tell=tell,
    )  # fmt: skip
    show(made, console)
    totals = summary(made)
    minutes = (datetime.now().astimezone() - started).total_seconds() / 60
    whole = totals["kills"] >= options.kills and totals["interrupts"] >= options.interrupts
    path = options.out or RESULTS / f"torture-{started:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"started": started.isoformat(), "minutes": minutes, "seed": options.seed, "whole": whole}
    document |= {"machine": machine(), "versions": versions(), "totals": totals, "trials": made}
    path.write_text(json.dumps(document, indent=1) + "\n")
    words = ", ".join(f"{value} {name}" for name, value in totals.items())
    console.print(f"{words}; {minutes:.1f} minutes{'' if whole else ', ended early'}: {path}", soft_wrap=True)
    if any(totals[trouble] for trouble in TROUBLES):
        return 1
    return 0 if whole or options.minutes < 1e9 else 130


def _wanted(name: str, patterns: Sequence[str] | None) -> bool:
    return patterns is None or any(
        name == p or (p.endswith("*") and name.startswith(p.removesuffix("*"))) for p in patterns
    )


if __name__ == "__main__":
    raise SystemExit(main())
