"""What a run leaves behind: ``results.json``, the figures, ``README.md``, and the claims in the terminal."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from temperance.lab.experiment import Cells, Claim, Experiment, Finished, Settings, Sheet
from temperance.lab.folder import Folder, to_json, versions, write_json, write_text

_MARK = {True: "✓ holds", False: "✗ does not hold", None: "· not judged"}


def write_report(
    experiment: Experiment,
    preset: str,
    settings: Settings,
    finished: Sequence[Finished],
    total: int,
    folder: Folder,
    console: Console,
    seconds: float,
) -> list[Claim]:
    """Judge, draw, write and print. What cannot be judged or drawn because cells are missing is said, not raised."""
    cells, problems = Cells(finished), [f"cell {f.cell.key} failed: {_last(f.error)}" for f in finished if f.error]
    if len(finished) < total:
        problems.append(f"{total - len(finished)} of {total} cells have not been run yet")
    claims, figures = (
        _judge(experiment, settings, cells, problems),
        _draw(experiment, settings, cells, folder, problems),
    )
    sheets = _tabulate(experiment, settings, cells, problems)
    run = {
        "experiment": experiment.name,
        "preset": preset,
        "settings": dataclasses.asdict(settings),
        "versions": versions(),
        "claims": [dataclasses.asdict(claim) | {"verdict": claim.verdict} for claim in claims],
        "problems": problems,
        "figures": figures,
        "cell_seconds": round(sum(f.seconds for f in finished), 1),
        "last_run_seconds": round(seconds, 1),
        "cells": [
            {"params": dict(f.cell.params), "seconds": f.seconds, "error": f.error, "result": f.result}
            for f in finished
        ],
    }
    write_json(folder.path / "results.json", to_json(run))
    write_text(folder.path / "README.md", page(experiment, run, claims, sheets))
    print_claims(experiment, claims, problems, console)
    console.print(f"Wrote {folder.path / 'README.md'}, results.json and {len(figures)} figures.", highlight=False)
    return claims


def _judge(experiment: Experiment, settings: Settings, cells: Cells, problems: list[str]) -> list[Claim]:
    if not len(cells):
        return []
    try:
        return list(experiment.claims(settings, cells))
    except Exception as error:  # a claim that needs a missing cell must not hide the rest of the run
        problems.append(f"the claims could not be judged: {''.join(traceback.format_exception_only(error)).strip()}")
        return []


def _draw(
    experiment: Experiment, settings: Settings, cells: Cells, folder: Folder, problems: list[str]
) -> dict[str, str]:
    if not len(cells):
        return {}
    from temperance.lab.figures import save, style  # matplotlib takes its time: other commands need not wait for it

    try:
        with style():
            return {save(p, folder.figures): p.caption for p in experiment.figures(settings, cells)}
    except Exception as error:
        problems.append(f"the figures could not be drawn: {''.join(traceback.format_exception_only(error)).strip()}")
        return {}


def _tabulate(experiment: Experiment, settings: Settings, cells: Cells, problems: list[str]) -> list[Sheet]:
    try:
        return list(experiment.sheets(settings, cells)) if len(cells) else []
    except Exception as error:
        problems.append(f"the tables could not be made: {''.join(traceback.format_exception_only(error)).strip()}")
        return []


def print_claims(experiment: Experiment, claims: Sequence[Claim], problems: Sequence[str], console: Console) -> None:
    """The table of claims, and what went wrong."""
    table = Table(title=experiment.title, box=box.SIMPLE_HEAD)
    for heading in ("claim", "the paper says", "measured", "verdict"):
        table.add_column(heading, overflow="fold")
    style = {True: "green", False: "red", None: "yellow"}
    for claim in claims:
        verdict = f"[{style[claim.holds]}]{_MARK[claim.holds]}[/]"
        table.add_row(_plain(claim.text), _plain(claim.paper), _plain(claim.measured), verdict)
    console.print(table)
    for problem in problems:
        console.print(problem, style="red", markup=False)


def _plain(text: str) -> str:
    return text.replace("[", "\\[")


def page(experiment: Experiment, run: dict[str, Any], claims: Sequence[Claim], sheets: Sequence[Sheet] = ()) -> str:
    """``README.md``: question, claims, figures, tables, settings, how to run it again."""
    settings = run["settings"]
    lines = [f"# {experiment.title}", "", experiment.question, "", f"*Source: {experiment.paper}*", "", "## Claims", ""]
    lines += ["| claim | the paper says | measured | verdict | how it was judged |", "|---|---|---|---|---|"]
    for claim in claims:
        row = (claim.text, claim.paper, claim.measured, f"**{claim.verdict}**", claim.note)
        lines.append("| " + " | ".join(_cell(text) for text in row) + " |")
    lines += ["", "Measured: mean ± standard error over seeds."]
    if run["problems"]:
        lines += ["", "## Problems", ""] + [f"- {problem}" for problem in run["problems"]]
    lines += ["", "## Figures", ""]
    for name, caption in run["figures"].items():
        lines += [f"![{caption}](figures/{name})", "", caption, ""]
    for sheet in sheets:
        lines += [f"## {sheet.title}", "", sheet.caption, "", "| " + " | ".join(sheet.columns) + " |"]
        lines.append("|---" * len(sheet.columns) + "|")
        lines += ["| " + " | ".join(_cell(text) for text in row) + " |" for row in sheet.rows]
        lines.append("")
    lines += ["## Settings", "", f"Preset `{run['preset']}`:", "", "| setting | value |", "|---|---|"]
    lines += [f"| {name} | {_cell(_short(value))} |" for name, value in settings.items()]
    command = f"temperance lab run {experiment.name} --preset {run['preset']} --out DIR"
    command += f" --seed {settings['seed']} --seeds {settings['seeds']}"
    used = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    lines += ["", "## Run it again", "", "```", command, "```", ""]
    lines += [f"{len(run['cells'])} cells, {run['cell_seconds']:.0f} s of work on one core each; {used}.", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_short(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_short(v) if not isinstance(v, list | tuple) else f"({_short(v)})" for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _last(error: str | None) -> str:
    return (error or "").splitlines()[-1] if error else ""
