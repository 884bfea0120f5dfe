"""The harness of every benchmark: jobs, the interleaved timing of their contestants, ratios, and goals for them.

Absolute times mean little on a machine that others use too. So contestants take turns, round after round, whether they
live in this process or in a peer's environment; a ratio is taken within each round, and its median over the rounds is
the result, with the quartiles to show how much it wavered. Within a round the order is drawn anew, because who comes
first after a change of process finds cold caches. A goal whose bound lies in the 95 % interval of the median is
called met or not met "within noise".

A job with ``quantity="memory"`` runs every round in a fresh process and measures how far it raised the peak.
"""

from __future__ import annotations

import json
import math
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.peer_worker import STEADY_HEAP, seconds
from benchmarks.peers import python_of

HERE = Path(__file__).resolve().parent
WORKER = HERE / "peer_worker.py"
ANSWER_TIMEOUT = 600.0
SETTLE_SECONDS = 0.01  # between turns of different processes: the idle threads of the last one stop spinning

Round = Callable[[], Any]


@dataclass(frozen=True)
class Goal:
    """A bound on the ratio of two contestants, ``numerator / denominator``."""

    numerator: str
    denominator: str
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("a goal has exactly one of at_most and at_least")

    def __str__(self) -> str:
        return f"<= {self.at_most:g}" if self.at_most is not None else f">= {self.at_least:g}"

    def met_by(self, ratio: float) -> bool:
        if self.at_most is not None:
            return ratio <= self.at_most
        return self.at_least is not None and ratio >= self.at_least


@dataclass(frozen=True)
class Script:
    """A contestant in a process of its own: ``function(**arguments)`` in a file returns a callable, one round.

    ``file`` is relative to ``benchmarks/``. ``environment`` is a folder of ``.venvs/``; None means this very Python.
    ``versions`` names the distributions whose versions belong in the results.
    """

    file: str
    function: str
    environment: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    versions: tuple[str, ...] = ("torch",)

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.environment is None else python_of(self.environment)


@dataclass(frozen=True)
class Job:
    """One comparison. ``setup()`` returns the contestants of this process: a name and a callable, one round of work.

    By custom they are called ``ours`` and ``floor``, but any names do. ``peers`` are those with a process of their own.
    ``unit`` says what is counted, and ``units`` how many of them one round performs: results are per unit.
    """

    name: str
    description: str
    setup: Callable[[], Mapping[str, Round]] = dict
    peers: Mapping[str, Script] = field(default_factory=dict)
    goals: tuple[Goal, ...] = ()
    unit: str = "step"
    units: int = 1
    rounds: int = 25
    warmup: int = 2
    threads: int | None = None
    quantity: Literal["time", "memory"] = "time"

    def __post_init__(self) -> None:
        if self.quantity == "memory" and self.setup is not dict:
            raise ValueError(f"job {self.name}: memory is measured in fresh processes, so give peers and no setup")

    def is_own(self, name: str) -> bool:
        """Tell whether a contestant runs on this Python: a failure of it is a failure of ours."""
        return name not in self.peers or self.peers[name].environment is None

    def pairs(self, names: list[str]) -> list[tuple[str, str]]:
        """Return the ratios to take: those with a goal, ours by the floor, and every other one by ours."""
        pairs = [(goal.numerator, goal.denominator) for goal in self.goals]
        if "ours" in names:
            pairs += [("ours", "floor")] * ("floor" in names)
            pairs += [(name, "ours") for name in names if name not in ("ours", "floor")]
        return [pair for at, pair in enumerate(pairs) if pair not in pairs[:at] and pair[::-1] not in pairs[:at]]


@dataclass(frozen=True)
class Measured:
    """The rounds of one contestant, per unit: seconds, or bytes in a job on memory."""

    rounds: list[float]
    where: str = "this process"
    versions: dict[str, str | None] = field(default_factory=dict)
    threads: int | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


@dataclass(frozen=True)
class Ratio:
    """One ratio, round by round, and its goal if it has one; without rounds, ``missing`` says why there are none."""

    numerator: str
    denominator: str
    goal: Goal | None = None
    rounds: tuple[float, ...] = ()
    missing: str | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.rounds) == 1:
            return self.rounds[0], self.rounds[0]
        lower, _, upper = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return lower, upper

    @property
    def met(self) -> bool | None:
        return self.goal.met_by(self.median) if self.goal is not None and self.rounds else None

    @property
    def verdict(self) -> str:
        if not self.rounds:
            return f"not measured: {self.missing}"
        if self.goal is None:
            return ""
        sides = {self.goal.met_by(end) for end in interval_of_median(self.rounds)}
        return ("met" if self.met else "not met") + (" (within noise)" if len(sides) > 1 else "")

    def as_json(self) -> dict[str, Any]:
        """Return plain data for the results file."""
        numbers = {"median": self.median, "quartiles": self.quartiles} if self.rounds else {}
        return {**asdict(self), **numbers, "met": self.met, "verdict": self.verdict}


@dataclass
class Result:
    """Everything one job yielded. ``missing`` has a reason for each contestant that was not measured."""

    job: Job
    measured: dict[str, Measured] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    ratios: list[Ratio] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    broken: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return plain data for the results file, raw rounds included."""
        job = self.job
        settings = {key: getattr(job, key) for key in ("name", "description", "quantity", "unit", "units", "threads")}
        contestants = {
            name: {"min": min(one.rounds), "median": one.median, **asdict(one)} for name, one in self.measured.items()
        }
        return {
            **settings,
            "contestants": contestants,
            "not_measured": self.missing,
            "ratios": [ratio.as_json() for ratio in self.ratios],
            "load_average": self.load,
            "broken": self.broken,
        }


class WorkerError(RuntimeError):
    """A contestant in another process could not be started, built or run."""


class WorkerProcess:
    """A contestant in another interpreter, spoken to line by line; ends with the ``with`` block that holds it."""

    def __init__(self, script: Script, threads: int | None = None, *, flags: tuple[str, ...] = ()) -> None:
        if not script.python.exists():
            raise WorkerError("not installed, run `make peers`")
        variables = dict(os.environ)
        if threads is not None:
            variables |= {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (close() closes it)
        self._process = subprocess.Popen(
            [str(script.python), str(WORKER), *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=variables,
        )
        try:
            self.built = self.ask(
                cmd="build",
                script=str(HERE / script.file),
                function=script.function,
                arguments=dict(script.arguments),
                threads=threads,
                versions=list(script.versions),
            )
        except BaseException:
            self.close()
            raise

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and return the answer; an error there is a WorkerError here."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(f"its process ended: {self._last_words()}") from None
        if not select.select([self._process.stdout], [], [], ANSWER_TIMEOUT)[0]:
            raise WorkerError(f"no answer to {request['cmd']!r} within {ANSWER_TIMEOUT:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"its process ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if not answer.pop("ok"):
            raise WorkerError(answer["error"])
        return answer

    def round_seconds(self) -> float:
        return float(self.ask(cmd="run", rounds=1)["seconds"][0])

    def close(self) -> None:
        """Let the process end by itself, and end it if it does not."""
        try:
            self._process.communicate(json.dumps({"cmd": "quit"}) + "\n", timeout=5)
        except (subprocess.TimeoutExpired, BrokenPipeError, ValueError):
            self._process.kill()
            self._process.wait()
        finally:
            self._errors.close()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last_words(self) -> str:
        self._process.wait(timeout=5)
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"


def peak_memory(script: Script, threads: int | None = None) -> int:
    """Return by how many bytes one round raises the peak memory of a fresh process; building it is not counted."""
    with WorkerProcess(script, threads) as worker:
        return int(worker.ask(cmd="memory")["bytes"])


def run(job: Job, *, quick: bool = False, threads: int | None = None) -> Result:
    """Measure one job. A contestant that fails is reported in the result and never stops the others."""
    result = Result(job)
    rounds, warmup = (min(3, job.rounds), min(1, job.warmup)) if quick else (job.rounds, job.warmup)
    threads = job.threads if threads is None else threads
    with _torch_threads(threads):
        measure = _measure_memory if job.quantity == "memory" else _measure_time
        measure(result, rounds, warmup, threads)
    _take_ratios(result)
    return result


def _measure_time(result: Result, rounds: int, warmup: int, threads: int | None) -> None:
    job = result.job
    turns: dict[str, Callable[[], float]] = {}
    facts: dict[str, dict[str, Any]] = {}
    with ExitStack() as processes:
        try:
            for name, work in job.setup().items():
                turns[name], facts[name] = _turn(work), {"threads": _torch_thread_count()}
        except Exception:
            result.broken = True
            sides = {"ours", *(side for pair in job.pairs([]) for side in pair)} - set(job.peers)
            result.missing |= {name: f"setup failed: {_last_line()}" for name in sorted(sides)}
        for name, script in job.peers.items():
            try:
                worker = processes.enter_context(WorkerProcess(script, threads, flags=(STEADY_HEAP,)))
            except Exception as error:
                result.missing[name] = str(error)
                result.broken |= job.is_own(name)
                continue
            where = f"environment {script.environment}" if script.environment else "process of its own"
            turns[name], facts[name] = worker.round_seconds, {"where": where, **worker.built}
        times = _interleave(result, turns, rounds, warmup, settle=SETTLE_SECONDS if job.peers else 0.0)
    for name, series in times.items():
        result.measured[name] = Measured([value / job.units for value in series], **facts[name])


def _interleave(
    result: Result, turns: dict[str, Callable[[], float]], rounds: int, warmup: int, settle: float
) -> dict[str, list[float]]:
    """Give every contestant one turn a round; one that fails drops out, with the reason, and the rest go on."""
    times: dict[str, list[float]] = {name: [] for name in turns}
    order = random.Random(0)
    for index in range(warmup + rounds):
        if index >= warmup and hasattr(os, "getloadavg"):
            result.load.append(os.getloadavg()[0])
        for name in order.sample(list(times), len(times)):
            time.sleep(settle)
            try:
                value = turns[name]()
            except Exception as error:
                del times[name]
                result.missing[name] = str(error) if isinstance(error, WorkerError) else _last_line()
                result.broken |= result.job.is_own(name)
                continue
            if index >= warmup:
                times[name].append(value)
    return times


def _measure_memory(result: Result, rounds: int, warmup: int, threads: int | None) -> None:
    job = result.job
    growth: dict[str, list[float]] = {name: [] for name in job.peers}
    for _ in range(rounds):
        for name in list(growth):
            try:
                growth[name].append(peak_memory(job.peers[name], threads) / job.units)
            except Exception as error:
                del growth[name]
                result.missing[name] = str(error)
                result.broken |= job.is_own(name)
    for name, series in growth.items():
        result.measured[name] = Measured(series, where=f"environment {job.peers[name].environment or 'of ours'}")


def _take_ratios(result: Result) -> None:
    job = result.job
    names = [*result.measured, *result.missing]
    for above, below in job.pairs(names):
        goals: list[Goal | None] = [goal for goal in job.goals if (goal.numerator, goal.denominator) == (above, below)]
        missing = [name for name in (above, below) if name not in result.measured]
        for goal in goals or [None]:
            if missing:
                reasons = [f"{name}: {result.missing.get(name, 'no such contestant')}" for name in missing]
                result.ratios.append(Ratio(above, below, goal, missing="; ".join(reasons)))
            else:
                both = zip(result.measured[above].rounds, result.measured[below].rounds, strict=True)
                result.ratios.append(Ratio(above, below, goal, tuple(a / b if b else math.inf for a, b in both)))


def interval_of_median(values: Sequence[float], coverage: float = 0.95) -> tuple[float, float]:
    """Return the order statistics between which the true median lies with at least this probability.

    The number of values below the true median is binomial whatever their distribution. Too few values for the
    coverage give the whole line.
    """
    ordered, count, below, depth = sorted(values), len(values), 0.0, 0
    while depth < count and 2 * (below := below + math.comb(count, depth) / 2**count) <= 1 - coverage:
        depth += 1
    return (ordered[depth - 1], ordered[count - depth]) if depth else (-math.inf, math.inf)


def _turn(work: Round) -> Callable[[], float]:
    return lambda: seconds(work)


def _last_line() -> str:
    return traceback.format_exc().strip().splitlines()[-1]


def _torch_thread_count() -> int | None:
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch is not None else None


@contextmanager
def _torch_threads(threads: int | None) -> Iterator[None]:
    """Set the threads of torch for a while. Without a number, torch's own default stays and torch is not imported."""
    if threads is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
