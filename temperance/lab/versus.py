"""Methods against a baseline, task by task: what the cells of ``defaults`` add up to.

A difference is that of log-losses in nats, split by split, averaged over the splits of a task. A method that failed on
one split has lost the task, however well it did on the others: whoever takes a default gets no second try.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from temperance.lab.experiment import Cells
from temperance.lab.judge import FEWEST, Estimate, difference, estimate
from temperance.lab.tasks import Task

LEVEL = 0.01
"""Nats within which two log-losses count as level."""


@dataclass(frozen=True)
class Difference:
    """A method less the baseline on one task: the estimate over splits, and on how many the method failed."""

    name: str
    value: Estimate
    failures: int

    @property
    def known(self) -> bool:
        """Whether there is anything to tell."""
        return self.failures > 0 or self.value.count > 0

    @property
    def nats(self) -> float:
        """The mean; infinite where a fit failed."""
        return math.inf if self.failures else self.value.mean

    @property
    def worse(self) -> bool:
        """Whether it is lost, by more than :data:`LEVEL`."""
        return not self.nats <= LEVEL

    def __str__(self) -> str:
        return f"{self.name} (failed {self.failures}x)" if self.failures else f"{self.name} {self.nats:+.3f}"


class Board:
    """The finished cells of some tasks, to be asked about methods."""

    def __init__(self, done: Cells, tasks: Sequence[Task], baseline: str) -> None:
        self.done, self.tasks, self.baseline = done, tuple(tasks), baseline

    def of(self, half: str) -> Board:
        """The tasks of one half."""
        return Board(self.done, [task for task in self.tasks if task.half == half], self.baseline)

    def scores(self, entry: str, task: Task, method: str) -> dict[int, float]:
        """One number of a method on a task, by split."""
        return self.done.by_seed(entry, task=task.name, method=method)

    def mean(self, entry: str, task: Task, method: str) -> float:
        """The same on average; NaN where there is none."""
        return estimate(list(self.scores(entry, task, method).values())).mean

    def failures(self, task: Task, method: str) -> int:
        """Splits on which the fit failed."""
        return sum("failed" in f.result for f in self.done.where(task=task.name, method=method))

    def against(self, task: Task, method: str, entry: str = "log_loss") -> Difference:
        """A method less the baseline."""
        own, base = (self.scores(entry, task, name) for name in (method, self.baseline))
        return Difference(task.name, difference(own, base), self.failures(task, method))

    def differences(self, method: str) -> list[Difference]:
        """Of all tasks that the method was run on."""
        found = [self.against(task, method) for task in self.tasks]
        return [each for each in found if each.known]

    def pairs(self, entry: str, method: str, other: str) -> dict[str, tuple[float, float]]:
        """The means of a method and of another by task, where both have finite ones; a failed task is infinite."""
        made = {}
        for task in self.tasks:
            own, base = (self.mean(entry, task, name) for name in (method, other))
            if self.failures(task, method) and math.isfinite(base):
                own = math.inf
            if not math.isnan(own) and math.isfinite(base):
                made[task.name] = (own, base)
        return made

    def decided(self, method: str, verdict: bool) -> bool | None:
        """A verdict, or ``None`` where fewer than three splits (or no task at all) stand behind it."""
        counts = [each.value.count + each.failures for each in self.differences(method)]
        return verdict if counts and min(counts) >= FEWEST else None


def ratio(pairs: dict[str, tuple[float, float]], floor: float = 1e-4) -> float:
    """The geometric mean of own / other; numbers below ``floor`` count as that, so that no perfect score decides alone.

    >>> round(ratio({"a": (1.0, 2.0), "b": (4.0, 2.0)}), 6)
    1.0
    """
    if not pairs:
        return math.nan
    logs = [math.log(max(own, floor) / max(other, floor)) for own, other in pairs.values()]
    return math.exp(math.fsum(logs) / len(logs))


def average(values: Sequence[float]) -> float:
    """The mean, NaN of none."""
    return math.fsum(values) / len(values) if values else math.nan
