"""Tables of scores for the terminal."""

from __future__ import annotations

import math

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from temperance.apps.tables.compare import Comparison
from temperance.apps.tables.kinds import KINDS
from temperance.apps.tables.run import TableRun
from temperance.apps.tables.scores import Evaluation
from temperance.apps.tables.words import describe

_NAMES = {
    "log_loss": "log-loss", "accuracy": "accuracy", "brier": "Brier score", "ece": "calibration error", "rmse": "RMSE",
    "crps": "CRPS",
}  # fmt: skip

_CLASSES = 20


def show_evaluation(found: Evaluation, run: TableRun) -> None:
    """A run beside the baseline, and what that means in words."""
    table = Table(title=escape(f"{found.target}: {found.rows:,} test rows"), box=box.SIMPLE_HEAD, title_justify="left")
    for heading in ("score", "this run", "baseline"):
        table.add_column(heading, justify="left" if heading == "score" else "right")
    for name, value in found.scores.items():
        error = found.errors.get(name)
        table.add_row(
            _NAMES[name],
            f"{value:.4g}" + (f" ± {error:.2g}" if error is not None and math.isfinite(error) else ""),
            f"{found.baseline[name]:.4g}",
        )
    table.add_row(f"coverage of {found.level:.0%} {KINDS.of(found.outcome).promised}",
                  f"{found.coverage:.1%}", "")  # fmt: skip
    table.add_row("rows on which to ask a human", f"{found.share_deferred:.1%}", "")
    shown = f"{found.error_rate_answered:.1%}" if found.rows_answered else "none answered"
    table.add_row("wrong among the others", shown, "")
    _console().print(table)
    if found.classes:
        _show_classes(found)
    for words in [*found.notices, *describe(found, run)]:
        print(words)


def _show_classes(found: Evaluation) -> None:
    """What the averages hide: each class by itself, the rarest first."""
    table = Table(title="each class, the rarest first", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("class")
    for heading in ("test rows", "answered so (recall)", "in the set", "wrong, no human asked"):
        table.add_column(heading, justify="right")
    for own in found.classes[:_CLASSES]:
        shown = (f"{own.rows:,}", f"{own.recall:.1%}", f"{own.coverage:.1%}", f"{own.wrong_unasked:,}")
        table.add_row(escape(own.name), *shown)
    _console().print(table)
    if len(found.classes) > _CLASSES:
        print(f"({len(found.classes) - _CLASSES} more classes, with more rows: `temperance evaluate --json` has them)")


def show_comparison(found: Comparison) -> None:
    """Methods side by side, the best of each score in bold."""
    names = list(found.baseline)
    table = Table(
        title=escape(f"{found.target}: {found.test_rows:,} test rows, {found.seeds} seed{'s' * (found.seeds > 1)}"),
        caption="± standard errors of the paired differences to MAP over test rows; cost in multiples of MAP's",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("method")
    for name in names:
        table.add_column(_NAMES[name], justify="right")
    for heading in (f"coverage ({found.level:.0%})", "log-loss − MAP's", "gradients", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in found.lines:
        if not line.ok:
            table.add_row(escape(line.method), "[red]failed[/red]")
            continue
        cells = []
        for name in names:
            text = f"{line.scores[name]:.4g}"
            cells.append(f"[bold]{text}[/bold]" if line.scores[name] == found.best(name) else text)
        gap = line.versus_map.get("log_loss")
        shown = "–" if gap is None or line.method == "map" else f"{gap[0]:+.3g} ± {gap[1]:.2g}"
        table.add_row(
            escape(line.method), *cells, f"{line.coverage:.1%}", shown, _times(line.gradients), _times(line.time),
        )  # fmt: skip
    table.add_row("baseline", *(f"{found.baseline[name]:.4g}" for name in names), style="dim")
    _console().print(table)
    for line in found.lines:
        if not line.ok:
            print(f"{line.method} failed: {line.error}")
        for words in line.remarks:
            print(f"{line.method}: {words}")


def _times(value: float) -> str:
    return f"{value:.2g} ×" if math.isfinite(value) else "–"


def _console() -> Console:
    """As wide as the terminal; where there is none, wide enough for any table here."""
    console = Console()
    return console if console.is_terminal else Console(width=120)
