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
import gc
import itertools
import json
import mmap
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.__main__ import RESULTS, machine, versions
from benchmarks.torture.forking import fork
from benchmarks.torture.subjects import Subject, subjects
from benchmarks.torture.trial import Bench
from temperance.testing.composition import table
from temperance.testing.composition.runs import Runs, says, small_problem

TROUBLES = ("loss", "difference", "leftover", "message")


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
