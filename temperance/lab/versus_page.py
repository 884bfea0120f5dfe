"""The heat map and the tables of a :class:`~temperance.lab.versus.Board`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from temperance.lab.experiment import Picture, Sheet
from temperance.lab.figures import panels
from temperance.lab.tasks import HALVES
from temperance.lab.versus import LEVEL, Board, average

CLIP = 0.2
"""Nats at which the heat map's colours end."""


def heat_map(board: Board, methods: Sequence[str]) -> Picture:
    """Tasks × methods: the difference to the baseline, in colour and in numbers."""
    tasks = [task for half in HALVES for task in board.tasks if task.half == half]
    sheet, (axis,) = panels(1, width=2.6 + 0.72 * len(methods), height=1.3 + 0.3 * len(tasks))
    rows = [[board.against(task, method) for method in methods] for task in tasks]
    colours = [[max(-CLIP, min(CLIP, each.nats)) if each.known else math.nan for each in row] for row in rows]
    image = axis.imshow(colours, cmap="RdBu_r", vmin=-CLIP, vmax=CLIP, aspect="auto")
    for y, row in enumerate(rows):
        for x, each in enumerate(row):
            if each.known:
                text = "failed" if each.failures else f"{each.nats:+.2f}"
                strong = abs(each.nats) > 0.6 * CLIP
                axis.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if strong else "black")
    axis.set_xticks(range(len(methods)), list(methods), rotation=40, ha="right")
    axis.set_yticks(range(len(tasks)), [f"{task.name} ({task.half[0].upper()})" for task in tasks])
    axis.grid(False)
    between = sum(task.half == HALVES[0] for task in tasks) - 0.5
    axis.axhline(between, color="black", linewidth=1.5)
    sheet.colorbar(image, ax=axis, label="nats")
    caption = (
        f"Log-loss of each method less that of {board.baseline} on the same splits, in nats: blue is better, red is "
        f"worse, colours end at ±{CLIP:g}. Above the line the tasks of development (D), below it those of report (R). "
        "Empty: not run."
    )
    return Picture("differences", caption, sheet)


def _number(value: float, digits: int = 3) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def summary(board: Board, methods: Sequence[str], plain: str) -> Sheet:
    """A line for each method and half: tasks lost, the worst, the average, the cost."""
    lines = []
    for half in HALVES:
        part = board.of(half)
        for method in methods:
            found = part.differences(method)
            if found:
                finite = [each.nats for each in found if not each.failures]
                costs = [own / base for own, base in part.pairs("seconds", method, plain).values() if base > 0]
                lines.append(
                    (
                        half,
                        method,
                        str(len(found)),
                        str(sum(each.worse for each in found)),
                        str(sum(each.failures > 0 for each in found)),
                        str(max(found, key=lambda each: each.nats)),
                        f"{average(finite):+.3f}" if finite else "",
                        f"{sorted(finite)[len(finite) // 2]:+.3f}" if finite else "",
                        _number(average([cost for cost in costs if math.isfinite(cost)]), 1),
                    )
                )
    columns = (
        "half", "method", "tasks", f"worse by > {LEVEL:g}", "failed on", "worst task", "mean difference",
        "median difference", f"CPU seconds / {plain}'s",
    )  # fmt: skip
    words = (
        f"Log-loss less that of {board.baseline}, in nats. Means and medians are over the tasks without a failed fit."
    )
    return Sheet("By method", words, columns, tuple(lines))


def everything(board: Board, methods: Sequence[str]) -> Sheet:
    """All numbers."""
    lines = []
    for task in board.tasks:
        for method in methods:
            cells = board.done.where(task=task.name, method=method)
            if len(cells):
                log_loss, *others = (
                    board.mean(entry, task, method)
                    for entry in ("log_loss", "accuracy", "rmse", "ece", "crps", "coverage_90")
                )
                failed = board.failures(task, method)
                difference = board.against(task, method)
                lines.append(
                    (
                        task.name,
                        task.half,
                        method,
                        str(len(cells)),
                        _number(log_loss),
                        str(difference.value) if difference.value.count else "",
                        *(_number(value) for value in others),
                        _number(board.mean("seconds", task, method), 1),
                        f"failed {failed}x: {_why(board, task.name, method)}" if failed else "",
                    )
                )
    columns = (
        "task", "half", "method", "splits", "log-loss", "less the baseline's", "accuracy", "RMSE", "ECE", "CRPS",
        "coverage of 90 %", "CPU s", "failures",
    )  # fmt: skip
    words = f"Means over splits on test rows; numbers are standardised. The baseline is {board.baseline}."
    return Sheet("All numbers", words, columns, tuple(lines))


def _why(board: Board, task: str, method: str) -> str:
    texts = (str(f.result["failed"]) for f in board.done.where(task=task, method=method) if "failed" in f.result)
    return next(texts, "")[:120]
