"""A progress bar with loss, rate and time left; silent when nobody is looking."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class ProgressBar:
    """``with ProgressBar("MAP", total=100, show=None) as bar: bar.advance_to(7, loss=0.3)``.

    ``show=None`` shows it on a terminal only. Drawing is limited to ten times a second, so a step never waits for it.
    """

    def __init__(self, title: str, total: int, show: bool | None = None) -> None:
        visible = sys.stderr.isatty() if show is None else show
        self._progress: Progress | None = None
        self._next = 0.0
        if visible:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]}"),
                TextColumn("{task.fields[rate]}/s"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(stderr=True, force_terminal=True if show else None),
                transient=False,
            )
            self._task = self._progress.add_task(title, total=total, loss="–", rate="–")
            self._start = time.perf_counter()
            self._first: int | None = None

    def __enter__(self) -> ProgressBar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance_to(self, step: int, loss: float, last: bool = False) -> None:
        """Show that ``step`` steps are done."""
        if self._progress is None:
            return
        now = time.perf_counter()
        if self._first is None:
            self._first, self._start = step - 1, now
        if now < self._next and not last:
            return
        self._next = now + 0.1
        rate = (step - self._first) / max(now - self._start, 1e-9)
        self._progress.update(self._task, completed=step, loss=f"{loss:.4g}", rate=f"{rate:.3g}")


def say(words: str, show: bool | None = None) -> None:
    """A line where a progress bar would be: on a terminal, unless told."""
    if sys.stderr.isatty() if show is None else show:
        print(words, file=sys.stderr)
