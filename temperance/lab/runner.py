"""Run an experiment: what is done stays done, what failed is told, what is left goes on next time."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from temperance.core import files
from temperance.core.errors import ArgumentError
from temperance.lab.experiment import Cell, Claim, Experiment, Finished, Settings
from temperance.lab.folder import Folder, settings_from
from temperance.lab.pool import run_cells
from temperance.lab.report import write_report


@dataclass(frozen=True)
class Outcome:
    """What a run came to: claims, cells that failed, and the folder with the rest."""

    claims: tuple[Claim, ...]
    failed: tuple[Finished, ...]
    missing: int
    folder: Path

    @property
    def ok(self) -> bool:
        """Whether every cell was done."""
        return not self.failed and not self.missing


def run_experiment(
    experiment: Experiment,
    preset: str,
    out: str | Path,
    *,
    seed: int | None = None,
    seeds: int | None = None,
    workers: int = 2,
    console: Console | None = None,
) -> Outcome:
    """Run what is not yet done of an experiment, then write ``results.json``, ``README.md`` and the figures.

    Each finished cell is in the folder at once: the same call after a kill goes on where it stopped. Cells that failed
    are tried again.
    """
    console = console or Console()
    _check_positive("workers", workers)
    settings = choose_settings(experiment, preset, seed, seeds)
    cells = list_cells(experiment, settings)
    folder = Folder(out)
    with files.holding(folder.path, "out"):
        folder.begin(experiment, preset, settings)
        done = {key: f for key, f in folder.read(cells).items() if f.error is None}
        left = [cell for cell in cells if cell.key not in done]
        if done:
            console.print(f"{len(done)} of {len(cells)} cells are there already; {len(left)} to go.")
        began = time.perf_counter()
        _do(experiment, settings, cells, left, folder, workers, console)
        return _finish(experiment, preset, settings, folder, console, time.perf_counter() - began)


def show_experiment(experiment: Experiment, out: str | Path, console: Console | None = None) -> Outcome:
    """Judge and draw again what is in a folder; nothing is run."""
    folder = Folder(out)
    description = folder.describe()
    kind = type(next(iter(experiment.presets.values())).settings)
    settings = settings_from(kind, description["settings"])
    return _finish(experiment, description["preset"], settings, folder, console or Console(), 0.0)


def choose_settings(experiment: Experiment, preset: str, seed: int | None, seeds: int | None) -> Settings:
    """A preset's settings with another seed or another number of them."""
    settings = experiment.preset(preset).settings
    if seed is not None:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ArgumentError(f"`seed` must be an integer of at least 0; got {seed!r}.")
        settings = dataclasses.replace(settings, seed=seed)
    if seeds is not None:
        _check_positive("seeds", seeds)
        settings = dataclasses.replace(settings, seeds=seeds)
    return settings


def list_cells(experiment: Experiment, settings: Settings) -> list[Cell]:
    """The cells of an experiment, each with a name of its own."""
    cells = list(experiment.cells(settings))
    if len({cell.key for cell in cells}) != len(cells):
        raise ArgumentError(f"`cells` of {experiment.name} must differ in their parameters; two are the same.")
    return cells


def _check_positive(argument: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"`{argument}` must be a positive integer; got {value!r}.")


def _do(
    experiment: Experiment,
    settings: Settings,
    cells: list[Cell],
    left: list[Cell],
    folder: Folder,
    workers: int,
    console: Console,
) -> None:
    columns = (TextColumn(experiment.name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
    total = len(cells)
    done = total - len(left)
    work = run_cells(experiment.run, settings, left, workers)
    try:
        with bar:
            task = bar.add_task(experiment.name, total=total, completed=done)
            for finished in work:
                folder.write(finished)
                done += 1
                bar.update(task, completed=done)
                if finished.error is not None:
                    last = finished.error.splitlines()[-1]
                    console.print(f"failed: {finished.cell.key}: {last}", style="red", markup=False)
                elif not console.is_terminal:
                    line = f"{done}/{total} {finished.cell.key} ({finished.seconds:.1f} s)"
                    console.print(line, markup=False, highlight=False)
    except KeyboardInterrupt:
        # Counted in the folder: the signal may have come after a cell was written and before it was counted here.
        kept = sum(f.error is None for f in folder.read(cells).values())
        console.print(f"interrupted: {kept} of {total} cells are kept; the same command goes on from there.")
        raise
    finally:
        work.close()  # ends the workers


def _finish(
    experiment: Experiment, preset: str, settings: Settings, folder: Folder, console: Console, seconds: float
) -> Outcome:
    cells = list_cells(experiment, settings)
    finished = folder.read(cells)
    failed = tuple(f for f in finished.values() if f.error is not None)
    claims = write_report(experiment, preset, settings, list(finished.values()), len(cells), folder, console, seconds)
    return Outcome(tuple(claims), failed, len(cells) - len(finished), folder.path)
