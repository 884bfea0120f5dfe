"""A tiny experiment that can be told to be slow, to fail and to die. In a module, so that workers can import it."""

from __future__ import annotations

import math
import os
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temperance.lab import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.judge import above, below, difference, estimate


@dataclass(frozen=True)
class Inner:
    numbers: tuple[float, ...] = (1.0, 2.0)


@dataclass(frozen=True)
class FakeSettings(Settings):
    arms: tuple[str, ...] = ("a", "b")
    scale: float = 1.0
    fail: str = ""
    die: str = ""
    marks: str = ""
    inner: Inner = field(default_factory=Inner)


def cells(settings: FakeSettings) -> list[Cell]:
    return [Cell.of(arm=arm, seed=seed) for arm in settings.arms for seed in settings.all_seeds()]


def run(settings: FakeSettings, cell: Cell) -> dict[str, Any]:
    if settings.marks:  # each run of a cell leaves a file that says which cell and which process
        Path(settings.marks, f"{cell.key}@{os.getpid()}@{uuid.uuid4().hex}").touch()
    time.sleep(float(os.environ.get("FAKE_PAUSE", "0")))
    if cell["arm"] == settings.fail:
        raise RuntimeError(f"arm {cell['arm']} is broken")
    if cell.key == settings.die:
        os._exit(7)
    value = settings.scale * (1.0 + (cell["arm"] == "b")) + 0.01 * math.sin(cell["seed"])
    return {"value": value, "nothing": math.nan, "list": [1.0, math.inf]}


def claims(settings: FakeSettings, done: Cells) -> list[Claim]:
    gap = difference(done.by_seed("value", arm="b"), done.by_seed("value", arm="a"))
    return [
        Claim("b is larger", "b > a", str(gap), above(gap), "rule"),
        Claim("a is larger", "a > b", str(gap), below(gap)),
        Claim("about nothing", "?", "–", above(estimate(done.values("absent", arm="a")))),
    ]


def figures(settings: FakeSettings, done: Cells) -> list[Picture]:
    from temperance.lab.figures import COLOURS, curve, panels  # workers need not wait for matplotlib

    sheet, (axis,) = panels(1)
    for k, arm in enumerate(settings.arms):
        curve(axis, {float(k): estimate(done.values("value", arm=arm))}, arm, COLOURS[k])
    return [Picture("values", "What the arms gave.", sheet)]


def make(**settings: Any) -> Experiment:
    return Experiment(
        name="fake",
        title="A fake | experiment",
        paper="none",
        question="Is b larger than a?",
        presets={"quick": Preset(FakeSettings(**settings), 0.01)},
        cells=cells,
        run=run,
        claims=claims,
        figures=figures,
    )
