"""The curvature pass and the linearised predictive of laplace-torch, beside an epoch over the same rows.

In a job, as any peer's script (``environment="torch-peers"``, ``versions=("torch", "laplace-torch")``)::

    Script("peer_scripts/laplace_fit.py", "fit", "torch-peers", {"network": "mlp", "structure": "kron"})
    Script("peer_scripts/laplace_fit.py", "predict", "torch-peers", {"network": "mlp", "count": 100})
    Script("peer_scripts/laplace_fit.py", "epoch", "torch-peers", {"network": "mlp"})  # its own yardstick

A round that takes longer than its ``limit`` seconds fails with TimeoutError, and the job reports the peer as not
measured. By itself, one process a case, fit and epoch taking turns within it, under a limit of time and of memory::

    .venvs/torch-peers/bin/python -m benchmarks.peer_scripts.laplace_fit [--case kron-mlp ...] [--out FILE.json]

``fit`` with ``structure="kron"`` ends with the eigendecomposition of the factors, which is done once, however many rows
there are. So for a data set of realistic length the ratio is that of ``fit`` less ``decompose``, which is shown too.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.peer_scripts.curvature_problems import BATCH, ROWS, Batches, epoch, epoch_over, inputs, problem

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from laplace import Laplace
    from laplace.curvature import AsdlGGN, BackPackGGN, CurvlinopsGGN

__all__ = ["decompose", "epoch", "fit", "predict"]

BACKENDS = {"curvlinops": CurvlinopsGGN, "backpack": BackPackGGN, "asdl": AsdlGGN}  # the first is its default
LIMIT = 120.0
MEMORY = 12 * 2**30
ENOUGH = 0.1  # seconds: a shorter epoch is repeated to fill them
GRACE = 60.0  # for starting a process, and for an operation that a signal cannot interrupt
Round = Callable[[], Any]


def approximation(
    net: torch.nn.Module,
    structure: str = "kron",
    subset: str = "all",
    backend: str = "curvlinops",
    stochastic: bool = False,
) -> Any:
    """Return laplace-torch's object, not fitted. ``stochastic`` asks its backend for the Monte Carlo Fisher."""
    options = {"stochastic": True} if stochastic else {}
    return Laplace(net, "classification", subset, structure, backend=BACKENDS[backend], backend_kwargs=options)


def fit(
    network: str = "mlp",
    structure: str = "kron",
    subset: str = "all",
    backend: str = "curvlinops",
    stochastic: bool = False,
    rows: int = ROWS,
    batch: int = BATCH,
    limit: float = LIMIT,
) -> Round:
    """Return a round: one pass of curvature over the rows, ``la.fit(loader)``."""
    net, batches = problem(network, rows, batch)
    la = approximation(net, structure, subset, backend, stochastic)
    return limited(limit, lambda: la.fit(batches))


def decompose(network: str = "mlp", backend: str = "curvlinops", rows: int = BATCH, limit: float = LIMIT) -> Round:
    """Return a round: the eigendecomposition of the Kronecker factors, with which ``fit`` ends."""
    net, batches = problem(network, rows)
    la = approximation(net, "kron", "all", backend)
    limited(limit, lambda: la.fit(batches))()
    return limited(limit, lambda: la.H_facs.decompose())


def predict(
    network: str = "mlp",
    structure: str = "kron",
    subset: str = "all",
    backend: str = "curvlinops",
    count: int = 100,
    chunk: int | None = None,
    link: str = "probit",
    rows: int = 2 * BATCH,
    limit: float = LIMIT,
) -> Round:
    """Return a round: the linearised predictive for ``count`` inputs, ``chunk`` at a time (all at once if None).

    The posterior is fitted, off the clock, to few rows, because they make no difference to the time.
    """
    net, batches = problem(network, rows)
    la = approximation(net, structure, subset, backend)
    limited(limit, lambda: la.fit(batches))()
    chunks = inputs(network, count).split(chunk or count)
    return limited(limit, lambda: [la(x, pred_type="glm", link_approx=link) for x in chunks])


def limited(seconds: float, work: Round) -> Round:
    """Return the same work, which fails with TimeoutError when it takes longer."""

    def round_with_limit() -> Any:
        with time_limit(seconds):
            return work()

    return round_with_limit


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class Case:
    """One line of the table: a curvature pass, or with ``count`` a prediction for that many inputs."""

    name: str
    network: str
    structure: str = "kron"
    subset: str = "all"
    backend: str = "curvlinops"
    stochastic: bool = False
    rows: int = ROWS
    count: int | None = None
    chunk: int | None = None
    rounds: int = 7
    limit: float = LIMIT


CASES = (
    Case("kron-mlp", "mlp"),
    Case("kron-mc-mlp", "mlp", stochastic=True),
    Case("kron-mlp-backpack", "mlp", backend="backpack"),
    Case("kron-mc-mlp-backpack", "mlp", backend="backpack", stochastic=True),
    Case("kron-mlp-asdl", "mlp", backend="asdl"),
    Case("kron-mc-mlp-asdl", "mlp", backend="asdl", stochastic=True),
    Case("kron-cnn", "cnn", rows=1_024, rounds=5),
    Case("kron-mc-cnn", "cnn", stochastic=True, rows=1_024, rounds=5),
    Case("kron-cnn-backpack", "cnn", backend="backpack", rows=1_024, rounds=5),
    Case("kron-mc-cnn-backpack", "cnn", backend="backpack", stochastic=True, rows=1_024, rounds=5),
    Case("kron-cnn-asdl", "cnn", backend="asdl", rows=1_024, rounds=5),
    Case("kron-mc-cnn-asdl", "cnn", backend="asdl", stochastic=True, rows=1_024, rounds=5),
    Case("diag-small-mlp", "small_mlp", "diag", rows=256),
    Case("diag-mc-small-mlp", "small_mlp", "diag", stochastic=True, rows=256),
    Case("diag-small-mlp-backpack", "small_mlp", "diag", backend="backpack", rows=256),
    Case("diag-small-mlp-asdl", "small_mlp", "diag", backend="asdl", rows=256),
    Case("diag-mlp", "mlp", "diag", rows=256, rounds=1, limit=200.0),
    Case("diag-mlp-backpack", "mlp", "diag", backend="backpack", rows=256),
    Case("diag-mlp-asdl", "mlp", "diag", backend="asdl", rows=256),
    Case("last-layer-resnet20", "resnet20", "full", "last_layer", rows=512, rounds=3),
    Case("last-layer-resnet20-backpack", "resnet20", "full", "last_layer", backend="backpack", rows=512, rounds=3),
    Case("glm-mlp", "mlp", rows=256, count=100, rounds=3),
    Case("glm-mlp-by-10", "mlp", rows=256, count=100, chunk=10, rounds=3),
)


@dataclass
class Outcome:
    """What a case yielded: seconds of every round, and the ratios within them; ``error`` if it failed."""

    case: dict[str, Any]
    epoch: list[float] = field(default_factory=list)
    first: float | None = None
    work: list[float] = field(default_factory=list)
    decompose: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    load_average: float | None = None
    error: str | None = None

    @property
    def ratio(self) -> float | None:
        """Work by epoch, the median over rounds; None after a failure, and for a prediction, which has other rows."""
        if self.case["count"] is not None:
            return None
        return _median([a / b for a, b in zip(self.work, self.epoch, strict=False)])

    @property
    def ratio_without_decomposition(self) -> float | None:
        """The same without the part that does not grow with the number of rows."""
        parts = zip(self.work, self.decompose, self.epoch, strict=False)
        return _median([(a - once) / b for a, once, b in parts])

    def as_json(self) -> dict[str, Any]:
        numbers = {"ratio": self.ratio, "ratio_without_decomposition": self.ratio_without_decomposition}
        return {**asdict(self), **numbers}

    def __str__(self) -> str:
        shown = {
            "epoch": _seconds(_median(self.epoch)),
            "first": _seconds(self.first),
            "work": _seconds(_median(self.work)),
            "work/epoch": _times(self.ratio),
            "decompose": _seconds(_median(self.decompose)),
            "without it": _times(self.ratio_without_decomposition),
            "peak": "-" if self.peak_bytes is None else f"{self.peak_bytes / 2**30:.1f} GB",
        }
        line = "  ".join(f"{name} {value:>8}" for name, value in shown.items())
        return f"{self.case['name']:30} {line}" + (f"  {self.error}" if self.error else "")


def measure(case: Case) -> Outcome:
    """Measure one case in this process, which should be a fresh one: an epoch, then the work, and so on in turns."""
    outcome = Outcome(asdict(case))
    started = time.perf_counter()
    try:
        net, batches = problem(case.network, case.rows)
        one_epoch = epoch_over(copy.deepcopy(net), batches)  # a copy: backends leave hooks in the network
        one_epoch()
        repeats = 1 + int(ENOUGH / _clock(one_epoch))
        outcome.epoch.append(_clock(one_epoch, repeats))
        la = approximation(net, case.structure, case.subset, case.backend, case.stochastic)
        work = limited(case.limit, _work(case, la, batches))
        outcome.first = _clock(work)
        outcome.epoch.clear()
        for index in range(case.rounds):
            if index and time.perf_counter() - started + outcome.work[-1] > case.limit:
                break
            one_epoch()  # what ran before it has left its caches cold
            outcome.epoch.append(_clock(one_epoch, repeats))
            outcome.work.append(_clock(work))
            if case.structure == "kron" and case.count is None:
                outcome.decompose.append(_clock(la.H_facs.decompose))
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {error}"[:300]
        if isinstance(error, TimeoutError) and outcome.epoch:
            outcome.error += f", which is {case.limit / outcome.epoch[0]:.0f} epochs"
    outcome.load_average = os.getloadavg()[0]
    outcome.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return outcome


def _work(case: Case, la: Any, batches: Batches) -> Round:
    if case.count is None:
        return lambda: la.fit(batches)
    la.fit(batches)
    chunks = inputs(case.network, case.count).split(case.chunk or case.count)
    return lambda: [la(x, pred_type="glm", link_approx="probit") for x in chunks]


def _clock(work: Round, repeats: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g} s"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}x"


def _in_a_process(name: str, threads: int, memory: int) -> dict[str, Any]:
    """Measure one case in a fresh process of this Python and return its outcome as plain data."""
    case = next(case for case in CASES if case.name == name)
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.peer_scripts.laplace_fit", "--one", name]
    limits = ["--threads", str(threads), "--memory", str(memory)]
    deadline = 3 * case.limit + GRACE
    try:
        done = subprocess.run([*command, *limits], capture_output=True, text=True, timeout=deadline)
    except subprocess.TimeoutExpired:
        return Outcome(asdict(case), error=f"no answer within {deadline:.0f} s").as_json()
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return Outcome(asdict(case), error=f"exit code {done.returncode}: {last}").as_json()
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cases asked for, print a line for each, and write the raw rounds as JSON if a file is named."""
    parser = argparse.ArgumentParser(description="laplace-torch's curvature pass and predictive by an epoch.")
    parser.add_argument("--case", nargs="*", choices=[case.name for case in CASES], help="which; all unless said")
    parser.add_argument("--out", type=Path, help="write the raw rounds here, as JSON")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", type=int, default=MEMORY, help="bytes of address space that a case may have")
    parser.add_argument("--one", choices=[case.name for case in CASES], help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        resource.setrlimit(resource.RLIMIT_AS, (options.memory, options.memory))
        torch.set_num_threads(options.threads)
        print(json.dumps(measure(next(case for case in CASES if case.name == options.one)).as_json()))
        return 0
    outcomes = []
    for name in options.case or [case.name for case in CASES]:
        found = _in_a_process(name, options.threads, options.memory)
        outcomes.append(found)
        shown = {key: found[key] for key in found if not key.startswith("ratio")}
        print(Outcome(**shown), flush=True)
        if options.out:
            options.out.write_text(json.dumps({"threads": options.threads, "cases": outcomes}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
