"""``python -m temperance.lab.measured DIR``: what ``tp.auto`` knows, and the page on which method to use, from a run of
the experiment ``defaults``.

Both halves of the tasks count here: the choice among families is made on all that was seen. How good the chosen one is
says the page of the experiment, by the half that nobody chose on.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from temperance.apps.auto import CLASSES, MEASURED, NUMBERS, TRAINED, records
from temperance.apps.recipes import method_named
from temperance.core.files import replacing
from temperance.lab.experiment import Cells
from temperance.lab.experiments.defaults import BASELINE, METHODS, PLAIN, RECOMMENDED, DefaultsSettings, cells
from temperance.lab.experiments.defaults import TRAINED as TRAINED_METHODS
from temperance.lab.folder import Folder, settings_from
from temperance.lab.tasks import HALVES, POST_HOC, REPORT, Task, find_task
from temperance.lab.versus import Board, average, ratio

_ELSEWHERE = ("dropout",)  # on a network of its own, with dropout in it
PAGE, README = Path("docs") / "which-method.md", Path("README.md")
BLOCK = re.compile(r"(<!-- measured -->\n).*?(\n<!-- end -->)", re.DOTALL)
"""Where README has its table."""


def measured(done: Cells, settings: DefaultsSettings) -> dict[str, Any]:
    """The records of each kind of task, of methods that never failed."""
    tasks = [find_task(name) for name in settings.tasks]
    made: dict[str, list[dict[str, Any]]] = {CLASSES: [], NUMBERS: [], TRAINED: []}
    for kind, entries in made.items():
        own = [task for task in tasks if (task.group == POST_HOC) == (kind == TRAINED)]
        board = Board(done, own, BASELINE)
        if kind != TRAINED:
            scored = set(board.pairs("ece", PLAIN, BASELINE))
            board = Board(done, [task for task in own if (task.name in scored) == (kind == CLASSES)], BASELINE)
        known = TRAINED_METHODS if kind == TRAINED else METHODS
        for name in known:
            found = board.differences(name)
            if not found or name in (*_ELSEWHERE, BASELINE) or any(each.failures for each in found):
                continue
            expression = known[name]
            if "{" in expression:
                continue  # lengths that a task decides
            cost, steps = (ratio(board.pairs(entry, name, PLAIN), floor=1e-9) for entry in ("seconds", "steps"))
            facts = method_named(expression).facts()
            entries.append(
                {
                    "name": name,
                    "method": expression,
                    "tasks": len(found),
                    "worse": sum(each.worse for each in found),
                    "nats": round(average([each.nats for each in found]), 4),
                    "cost": 0.0 if math.isnan(cost) else round(cost, 2),
                    "gradients": 0.0 if math.isnan(steps) else round(steps * facts.cost.gradients_per_step, 2),
                }
            )
    before = json.loads(MEASURED.read_text(encoding="utf-8"))["kinds"] if MEASURED.exists() else {}
    made = {kind: entries or before.get(kind, []) for kind, entries in made.items()}  # what this run has not stays
    counts = [len(Board(done, [task], BASELINE).scores("log_loss", task, BASELINE)) for task in tasks]
    splits = min(count for count in counts if count)
    return {"splits": splits, "families": _families(done, tasks), "kinds": made}


def _families(done: Cells, tasks: list[Task]) -> list[dict[str, Any]]:
    """A line for each family: on how many tasks of each half it is worse, and its log-loss on those of the half that
    nobody chose on, by outcome."""
    made = []
    whole = Board(done, [task for task in tasks if task.group != POST_HOC], BASELINE)
    classes = set(whole.pairs("ece", PLAIN, BASELINE))
    for name in METHODS:
        if name == BASELINE:
            continue
        line: dict[str, Any] = {"name": name}
        for half in HALVES:
            found = whole.of(half).differences(name)
            line[half] = [sum(each.worse for each in found), len(found)]
        pairs = whole.of(REPORT).pairs("log_loss", name, BASELINE)
        own = {task: pair for task, pair in pairs.items() if task in classes}
        line["classes"] = round(ratio(own), 3) if own else None
        numbers = [one - other for task, (one, other) in pairs.items() if task not in classes]
        line["numbers"] = round(average(numbers), 3) if numbers else None
        line["cost"] = round(ratio(whole.pairs("seconds", name, PLAIN), floor=1e-9), 1)
        made.append(line)
    return made


def families() -> str:
    """The table that README shows first."""
    known = json.loads(MEASURED.read_text(encoding="utf-8"))
    lines = [
        "| family | worse, development | worse, report | log-loss, classes | log-loss, numbers | cost |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for each in known["families"]:
        worse = [f"{each[half][0]} of {each[half][1]}" for half in HALVES]
        name = f"**{each['name']}**" if each["name"] == RECOMMENDED else each["name"]
        scores = [
            "" if each["classes"] is None else f"{each['classes']:.2f} ×",
            "" if each["numbers"] is None else f"{each['numbers']:+.2f}",
        ]
        lines.append(f"| {' | '.join([name, *worse, *scores])} | {each['cost']:.1f} × |")
    return "\n".join(lines)


def page() -> str:
    """The guide, from what ``tp.auto`` knows."""
    words = {
        CLASSES: "Classes",
        NUMBERS: "Numbers",
        TRAINED: "A network that is trained already",
    }
    lines = [
        "# Which method should I use?",
        "",
        '`tp.auto(budget="2x")` in place of a method takes the first line below that costs no more than the budget:',
        "",
        "```python",
        'fitted = tp.fit(target, tp.auto(budget="2x"), train, epochs=50)   # how long one network would be trained',
        "print(fitted.info.chosen)",
        "```",
        "",
        "Log-losses are less that of MAP with tuned weight decay and early stopping (of a trained network: less its",
        "own), averaged over tasks; *worse on* counts tasks on which it is higher by more than 0.01 nats. Costs are in",
        "trainings of one network: of small networks, whose members train at once, and of large ones, by gradients.",
        "A line that is written out, `Refit(...)` or `WarmStart(...)`, has two parts and wants more `epochs` than one",
        "training: times `method.facts().longer`, as `auto` does.",
        "`python -m temperance.lab.measured` makes this page from a run of `temperance lab run defaults`; tasks",
        "and all numbers, are in [lab/defaults](lab/defaults/README.md).",
    ]
    for kind, title in words.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| method | log-loss | worse on | cost, small | cost, large |",
            "|---|---|---|---|---|",
        ]
        for each in records(kind):
            costs = f"{each.cost:.1f} × | {each.gradients:.1f} ×" if kind != TRAINED else "a pass | a pass"
            lines.append(f"| `{each.method}` | {each.nats:+.3f} | {each.worse} of {each.tasks} | {costs} |")
    lines += [
        "",
        "## What no table says",
        "",
        "- **A table of up to a few thousand rows, half a minute to spare:** chains from eight trained networks, the",
        "  recipe `mile`, on a network of 16-16 units whose noise may vary, `HeteroscedasticNormal()`: what",
        "  `temperance fit` takes for numbers by itself. `python -m benchmarks.table_default` sets it beside the",
        "  ensemble, `python -m benchmarks.tables` beside *sklearn-contrib-bde*. Exact draws, of a few hundred rows:",
        "  the recipe `nuts`.",
        "- **Batch norm:** samplers refuse it; everything else above takes it.",
        "- **Exploration** (bandits, Bayesian optimisation): wide posteriors, `Laplace(tune=None)`, ensembles.",
        "- **Promises about single rows:** conformal sets and intervals on top of any of these (`tp.decide`).",
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Write both files."""
    if len(arguments) != 1:
        print(__doc__)
        return 2
    folder = Folder(arguments[0])
    settings = settings_from(DefaultsSettings, folder.describe()["settings"])
    found = measured(Cells(list(folder.read(cells(settings)).values())), settings)
    with replacing(MEASURED) as place:
        place.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    records.cache_clear()
    PAGE.write_text(page(), encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    README.write_text(BLOCK.sub(lambda found: f"{found[1]}{families()}{found[2]}", text), encoding="utf-8")
    print(f"{MEASURED}, {PAGE} and {README} are written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


__all__ = ["families", "main", "measured", "page"]
