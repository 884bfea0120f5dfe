"""``python -m benchmarks``: runs the jobs, shows a table of ratios against their goals, and keeps the raw rounds."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.harness import HERE, Ratio, Result, run
from benchmarks.jobs import discover
from benchmarks.peer_worker import steady_heap

RESULTS = HERE / "results"
LIBRARIES = ("temperance", "torch", "numpy")
COLOURS = {"met": "green", "not met": "red"}
FULL_WIDTH = 160


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for. 0: done; 1: ``--strict`` and a goal is not met; 2: a contestant of ours is broken."""
    options = _parse(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=FULL_WIDTH)
    pattern = options.only if "*" in options.only else f"*{options.only}*"
    jobs = [job for job in discover() if fnmatch(job.name, pattern)]
    if not jobs:
        console.print(f"no job has a name like {pattern!r}", markup=False)
        return 0
    if options.list:
        for job in jobs:
            contestants = f" (peers: {', '.join(job.peers)})" if job.peers else ""
            console.print(f"{job.name}: {job.description}{contestants}", markup=False, soft_wrap=True)
        return 0
    started = datetime.now().astimezone()
    results = []
    for job in jobs:
        console.print(f"running {job.name} ...", style="dim", markup=False)
        results.append(run(job, quick=options.quick, threads=options.threads))
    show(results, console)
    path = options.out or RESULTS / f"{started:%Y%m%d-%H%M%S}.json"
    write(path, results, {"started": started.isoformat(), "quick": options.quick})
    console.print(f"raw rounds: {path}", markup=False, soft_wrap=True)
    if any(result.broken for result in results):
        return 2
    goals = [ratio for result in results for ratio in result.ratios if ratio.goal is not None]
    return int(options.strict and not all(ratio.met for ratio in goals))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only jobs with this in their name (* allowed)")
    parser.add_argument("--quick", action="store_true", help="three rounds a job: to see that it works, not how fast")
    parser.add_argument("--list", action="store_true", help="say which jobs there are and run none")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of every contestant, whatever the job says")
    parser.add_argument("--strict", action="store_true", help="exit code 1 unless every goal is measured and met")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the JSON goes (default: benchmarks/results/)")
    return parser.parse_args(arguments)


def show(results: Sequence[Result], console: Console) -> None:
    """Print one block a job: the contestants' medians, and a line for each ratio."""
    table = Table(title="median of rounds; ratios are taken within each round: median \\[quartiles]", show_lines=True)
    for column in ("job", "ours", "floor", "others", "ratio", "goal", ""):
        table.add_column(column, overflow="fold")
    for result in results:
        job = result.job
        others = [name for name in (*result.measured, *result.missing) if name not in ("ours", "floor")]
        ratios = result.ratios
        table.add_row(
            f"{escape(job.name)}\n[dim]per {escape(job.unit)}[/]",
            _median(result, "ours"),
            _median(result, "floor"),
            "\n".join(f"{escape(name)} {_median(result, name)}" for name in others),
            "\n".join(map(_ratio, ratios)),
            "\n".join(str(ratio.goal or "") for ratio in ratios),
            "\n".join(_verdict(ratio) for ratio in ratios),
        )
    console.print(table)
    for result in results:
        for name, reason in result.missing.items():
            kind = "peer" if name in result.job.peers else "contestant"
            console.print(f"{result.job.name}: {kind} {name}: {reason}", style="yellow", markup=False, soft_wrap=True)


def _median(result: Result, name: str) -> str:
    if name in result.missing:
        return "[yellow]-[/]"
    if name not in result.measured:
        return ""
    median = result.measured[name].median
    return megabytes(median) if result.job.quantity == "memory" else duration(median)


def _ratio(ratio: Ratio) -> str:
    name = escape(f"{ratio.numerator} / {ratio.denominator}")
    if not ratio.rounds:
        return f"{name} -"
    lower, upper = ratio.quartiles
    return f"{name} [bold]{ratio.median:.3g}[/] " + escape(f"[{lower:.3g}, {upper:.3g}]")


def _verdict(ratio: Ratio) -> str:
    # The reason is printed under the table, where there is room for it.
    verdict = ratio.verdict if ratio.rounds else "not measured"
    return f"[{COLOURS.get(verdict, 'yellow')}]{verdict}[/]" if verdict else ""


def duration(seconds: float) -> str:
    """Write a time with a fitting unit."""
    scale, unit = (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
    return f"{seconds * scale:.3g} {unit}"


def megabytes(size: float) -> str:
    """Write a size in MiB."""
    return f"{size / 2**20:.1f} MiB"


def write(path: Path, results: Sequence[Result], circumstances: dict[str, Any]) -> None:
    """Write everything that was measured, with the machine and the versions, as JSON."""
    document = {
        **circumstances,
        "machine": machine(),
        "versions": versions(),
        "jobs": [result.as_json() for result in results],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Return what is known of this machine."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "system": platform.platform(),
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
    }


def versions() -> dict[str, str | None]:
    """Return the versions of Python, of the libraries here, and the commit of this repository if there is one."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    try:
        git = subprocess.run(["git", "rev-parse", "--verify", "HEAD"], cwd=HERE, capture_output=True, text=True)
        found["commit"] = git.stdout.strip() or None
    except OSError:
        found["commit"] = None
    return found


if __name__ == "__main__":
    steady_heap()
    raise SystemExit(main())
