"""Cells in worker processes: one torch thread each, none left behind, and a worker that dies costs one cell only."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from temperance.lab.experiment import Cell, Finished, Settings
from temperance.lab.folder import to_json

Run = Callable[[Any, Cell], Mapping[str, Any]]
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_PATIENCE = 5.0  # seconds that a worker gets to end by itself


def run_cells(run: Run, settings: Settings, cells: Sequence[Cell], workers: int) -> Generator[Finished, None, None]:
    """Do all cells and give each as it is finished, in whatever order. One worker means this process.

    Whatever ends the iteration (an error, Ctrl-C, a caller that has had enough) ends the workers too.
    """
    if workers == 1:
        with _one_thread():
            for cell in cells:
                yield attempt(run, settings, cell)
    elif cells:
        yield from _in_processes(run, settings, cells, min(workers, len(cells)))


def attempt(run: Run, settings: Settings, cell: Cell) -> Finished:
    """One cell; an error becomes its text."""
    began = time.perf_counter()
    try:
        result, error = to_json(dict(run(settings, cell))), None
    except Exception as problem:  # whatever went wrong in one cell, the others are still wanted
        result, error = {}, "".join(traceback.format_exception(problem)).strip()
    return Finished(cell, result, time.perf_counter() - began, error)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _one_thread_in_children() -> Iterator[None]:
    """The libraries below torch read these when they are loaded."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@dataclass
class _Worker:
    process: Any
    connection: Connection
    cell: Cell
    began: float


def _in_processes(run: Run, settings: Settings, cells: Sequence[Cell], count: int) -> Iterator[Finished]:
    waiting = list(reversed(cells))
    working: list[_Worker] = []
    try:
        working.extend(_start(run, settings, waiting.pop()) for _ in range(count))
        while working:
            ready = wait([w.connection for w in working] + [w.process.sentinel for w in working])
            for worker in [w for w in working if w.connection in ready or w.process.sentinel in ready]:
                finished, alive = _collect(worker)
                if waiting and alive:
                    _send(worker, waiting.pop())
                else:
                    working.remove(worker)
                    _stop(worker)
                    if waiting:
                        working.append(_start(run, settings, waiting.pop()))
                yield finished
    finally:
        for worker in working:
            worker.process.terminate()
        for worker in working:
            _stop(worker)


def _start(run: Run, settings: Settings, cell: Cell) -> _Worker:
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads in a state nobody knows
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, run, settings), daemon=True)
    with _one_thread_in_children():
        process.start()
    theirs.close()
    worker = _Worker(process, ours, cell, time.perf_counter())
    _send(worker, cell)
    return worker


def _send(worker: _Worker, cell: Cell) -> None:
    worker.cell, worker.began = cell, time.perf_counter()
    with contextlib.suppress(OSError):  # a worker that is gone is found by its sentinel
        worker.connection.send(cell)


def _collect(worker: _Worker) -> tuple[Finished, bool]:
    """What a worker has to say, and whether it can go on."""
    try:
        if worker.connection.poll(0):
            return worker.connection.recv(), True
    except (EOFError, OSError):
        pass
    worker.process.join(_PATIENCE)
    seconds = time.perf_counter() - worker.began
    code = worker.process.exitcode
    return Finished(worker.cell, {}, seconds, f"the worker process died (exit code {code})"), False


def _stop(worker: _Worker) -> None:
    with contextlib.suppress(OSError):
        worker.connection.send(None)
    worker.connection.close()
    worker.process.join(_PATIENCE)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()


def _serve(connection: Connection, run: Run, settings: Settings) -> None:
    """The life of a worker: cells in, results out, until told to stop or alone in the world."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_follow_parent, daemon=True).start()
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, OSError):
        while (cell := connection.recv()) is not None:
            connection.send(attempt(run, settings, cell))


def _follow_parent() -> None:
    """End with the parent, also where it was killed in the middle of a cell and could not say goodbye."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
