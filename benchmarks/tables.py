"""``python -m benchmarks.tables``: true posteriors of small networks on tables, beside *sklearn-contrib-bde*.

Both have eight networks of 16-16 units with noise that may vary, under N(0, 1): trained with early stopping, then each
the start of a microcanonical Langevin chain. Ours is the recipe ``mile``; bde has the settings of its documentation.
Each fit is a process of its own, one after the other; seconds are those of the processor, compiling included. ``refit``
beside them is the library's recommended default on a 50-50 network with one noise level, for what a tenth of the time
buys.

Needs the six UCI sets (``TEMPERANCE_DATA``) and the environment ``bde-peers`` (``make peers``). ``--sets`` takes files
as well, ``--sets yacht.txt,mine.csv``: rows of numbers, with spaces or commas between, the last of which is predicted;
their splits are made by the rule of the UCI sets. Results are appended to ``benchmarks/results/tables.jsonl`` one by
one, and what is there is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import temperance as tp
from benchmarks.peers import REPOSITORY, python_of
from temperance.apps import recipes
from temperance.data.tables import standard_split, standardise

SETS = ("concrete", "energy", "naval", "power-plant", "protein", "wine-red")
OURS = {
    "mile": recipes.method_named("mile"),
    "refit": tp.Refit(
        tp.Ensemble(tp.SWAG(tp.MAP(lr=2e-3), start=0.75), 5), tp.MAP(lr=2e-3, patience=0.1), stretch=1.33
    ),
}
ROWS = 1500
MODULE = "benchmarks.tables"
Measure = Callable[[str, int, str], dict[str, Any]]


def rows_of(name: str, split: int) -> tuple[tp.data.Data, tp.data.Data]:
    """At most 1,500 training rows and 2,000 test rows, standardised."""
    train, test = from_file(Path(name), split) if Path(name).suffix else tp.data.load(name, split=split)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(split))
    return train.subset(order[:ROWS].sort().values), test.subset(slice(0, 2000))


def from_file(path: Path, split: int) -> tuple[tp.data.Data, tp.data.Data]:
    """A split of a file of numbers by the rule of the UCI sets, standardised on its training rows."""
    values = np.array([line.replace(",", " ").split() for line in path.read_text().splitlines() if line.strip()])
    values = values.astype(np.float64)
    rows = standard_split(len(values), split)
    (train, test), _, _ = standardise(*(values[each] for each in rows))
    return tp.data.Data(train[:, :-1], train[:, -1:]), tp.data.Data(test[:, :-1], test[:, -1:])


def ours(name: str, split: int, method: str) -> dict[str, float]:
    """One fit of ours, in this process."""
    train, test = rows_of(name, split)
    inputs = train.x.shape[1]
    torch.manual_seed(split)
    if method == "mile":
        network, likelihood = tp.nn.MLP(inputs, [16, 16], 2), tp.HeteroscedasticNormal()
    else:
        network, likelihood = tp.nn.MLP(inputs, [50, 50], 1), tp.Normal()
    target = tp.Target(network, likelihood, tp.GaussianPrior(1.0))
    options: dict[str, Any] = {} if method == "mile" else {"epochs": 250, "batch_size": 64}
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = tp.fit(target, OURS[method], train, seed=split, progress=False, **options)
    seconds = time.process_time() - began
    scores = fitted.evaluate(test)
    return {"log_loss": scores["log_loss"], "rmse": scores["rmse"], "seconds": seconds}


def measured(name: str, split: int, method: str) -> dict[str, float]:
    """The same in a fresh process, of ours or of the peer."""
    if method != "bde":
        return in_fresh_process(MODULE, name, split, method)
    train, test = rows_of(name, split)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npz"
        arrays = {"x": train.x, "y": train.y.reshape(-1, 1), "test_x": test.x, "test_y": test.y}
        np.savez(path, seed=split, **{key: value.float().numpy() for key, value in arrays.items()})
        command = [str(python_of("bde-peers")), "-m", "benchmarks.peer_scripts.bde_table", str(path)]
        return dict(json.loads(last_line(command)))


def last_line(command: list[str]) -> str:
    """What a process of one thread printed last."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}  # threads that wait for each other are no work of either
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, env=variables)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout.strip().splitlines()[-1]


COLUMNS = {"log_loss": "log-loss", "rmse": "RMSE", "seconds": "CPU s"}


def table(found: list[dict[str, Any]], methods: list[str], columns: dict[str, str] = COLUMNS) -> str:
    """Means over splits, as Markdown."""
    headings = [f"{method}: {', '.join(columns.values())}" for method in methods]
    lines = [
        f"| set | splits | {' | '.join(headings)} |",
        f"|{'---|' * (2 + len(methods))}",
    ]
    for name in dict.fromkeys(each["set"] for each in found):
        here = [each for each in found if each["set"] == name]
        cells = []
        for method in methods:
            own = [each for each in here if each["method"] == method]
            known = [k for k in columns if all(k in each for each in own)] if own else []
            means = [f"{np.mean([each[k] for each in own]):.{0 if k == 'seconds' else 3}f}" for k in known]
            cells.append(", ".join(means) or "–")
        lines.append(f"| {name} | {len({each['split'] for each in here})} | {' | '.join(cells)} |")
    return "\n".join(lines)


def collected(results: Path, asked: list[tuple[str, int, str]], run: Measure) -> Any:
    """The measurements of (set, split, method) that ``results`` holds, after those that it did not are made."""
    results.parent.mkdir(exist_ok=True)
    found = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    for name, split, method in asked:
        if any((e["set"], e["split"], e["method"]) == (name, split, method) for e in found):
            continue
        found.append({"set": name, "split": split, "method": method, **run(name, split, method)})
        with results.open("a") as file:
            file.write(json.dumps(found[-1]) + "\n")
        print(found[-1], flush=True)
    return found


def in_fresh_process(module: str, name: str, split: int, method: str) -> dict[str, Any]:
    """What ``python -m MODULE --one`` prints of one fit."""
    return dict(json.loads(last_line([sys.executable, "-m", module, "--one", name, str(split), method])))


def command_line(
    module: str,
    words: str | None,
    *,
    sets: Sequence[str],
    methods: Sequence[str],
    one: Measure,
    measured: Measure,
    columns: dict[str, str] = COLUMNS,
) -> int:
    """``python -m MODULE``: run what its results do not hold yet, then print the table."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=words)
    parser.add_argument("--sets", default=",".join(sets))
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--methods", default=",".join(methods))
    parser.add_argument("--one", nargs=3, metavar=("SET", "SPLIT", "METHOD"), help="one fit, in this process")
    options = parser.parse_args()
    if options.one:
        name, split, method = options.one
        print(json.dumps(one(name, int(split), method)))
        return 0
    asked = list(itertools.product(range(options.splits), options.sets.split(","), options.methods.split(",")))
    results = REPOSITORY / "benchmarks" / "results" / f"{module.rpartition('.')[2]}.jsonl"
    found = collected(results, [(name, split, method) for split, name, method in asked], measured)
    print(table(found, options.methods.split(","), columns))
    return 0


def main() -> int:
    """Six sets by default."""
    return command_line(MODULE, __doc__, sets=SETS, methods=("mile", "bde", "refit"), one=ours, measured=measured)


if __name__ == "__main__":
    raise SystemExit(main())
