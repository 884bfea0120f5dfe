"""The main job, start to end: train on digits, then ask what each method knows of clean, noisy and foreign images."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

import temperance as tp
from temperance.apps.demo.figures import draw_figures
from temperance.apps.demo.page import write_page
from temperance.apps.recipes import method_named
from temperance.core import files
from temperance.inference.listing import listing

SHOWN: Mapping[str, Callable[[], tp.Inference[Any]]] = {
    line.name: partial(method_named, line.expression) for entry in listing() for line in entry.card.demo
}
"""The methods of the demo: those whose cards have a line for it, ordinary training first."""

EPOCHS = 100
SECOND_EPOCHS = 150


@dataclass(frozen=True)
class DemoResult:
    """One line of the table. Log-losses are per example in nats; less is better."""

    method: str
    log_loss: float
    accuracy: float
    ece: float
    corrupted_log_loss: float
    ood_auroc: float
    second_log_loss: float
    gradients: float
    time: float


@dataclass(frozen=True)
class Images:
    """The images the methods are asked about."""

    clean: Tensor
    corrupted: Tensor
    foreign: Tensor
    labels: Tensor


def images(test: tp.data.Data, seed: int) -> Images:
    """The test images, a copy under noise, and a copy with its pixels shuffled by one permutation: the same greys, no
    digits any more."""
    assert isinstance(test.x, Tensor)
    corrupted = tp.data.corrupt(test.x, "gaussian_noise", 5, seed=seed, image_shape=(1, 8, 8))
    order = torch.randperm(test.x.shape[1], generator=torch.Generator().manual_seed(seed))
    return Images(test.x, corrupted, test.x[:, order], test.y)


def run_demo(
    out: str | Path = "out/demo", *, seed: int = 0, seeds: int = 1, epochs: int = EPOCHS, console: Console | None = None
) -> list[DemoResult]:
    """Run every method of :data:`SHOWN` on digits (and, for a second opinion, on diabetes), print a table and write
    ``results.json``, plots and ``index.html`` to ``out``. With several seeds, numbers are averages over them."""
    console = console or Console()
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[DemoResult]] = {name: [] for name in SHOWN}
    shown: dict[str, dict[str, Any]] = {}
    for number in range(seeds):
        base: float | None = None
        for name, make in SHOWN.items():
            console.print(f"{name}: training on digits (seed {seed + number}) …")
            result, predictions = _one(name, make(), seed + number, epochs, base)
            base = base or result.time
            runs[name].append(_relative(result, base))
            if number == 0:
                shown[name] = predictions
    results = [_mean(lines) for lines in runs.values()]
    console.print(table(results, seeds))
    figures = draw_figures(shown, folder)
    settings = {"seed": seed, "seeds": seeds, "epochs": epochs, "second_epochs": SECOND_EPOCHS}
    data = {"settings": settings, "version": tp.__version__, "results": [asdict(r) for r in results]}
    files.write_text(folder / "results.json", json.dumps(data, indent=1))
    page = write_page(folder, results, figures, settings)
    console.print(f"Wrote {page} (open it in a browser), results.json and {len(figures)} plots.")
    return results


def _one(
    name: str, method: tp.Inference[Any], seed: int, epochs: int, base: float | None
) -> tuple[DemoResult, dict[str, Any]]:
    train, test = tp.data.load("digits", split=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        target = tp.Target(tp.nn.MLP(64, [128, 128], 10), tp.Categorical(), tp.GaussianPrior(scale=1.0))
        second = tp.Target(tp.nn.MLP(10, [50], 1), tp.Normal(scale=None), tp.GaussianPrior(scale=1.0))
    asked = images(test, seed)
    with contextlib.suppress(tp.errors.ArgumentError):  # SWAG has nothing to say of five steps
        tp.fit(target, method, train, steps=5, seed=seed)  # what only the first step costs is no part of the comparison
    began = time.perf_counter()
    fitted = tp.fit(target, method, train, epochs=epochs, seed=seed)
    seconds = time.perf_counter() - began
    clean, corrupted, foreign = (fitted.predict(x) for x in (asked.clean, asked.corrupted, asked.foreign))
    other_train, other_test = tp.data.load("diabetes", split=seed)
    other = tp.fit(second, method, other_train, epochs=SECOND_EPOCHS, seed=seed)
    probs = clean.mean()
    result = DemoResult(
        method=name,
        log_loss=tp.scores.log_loss(probs, asked.labels),
        accuracy=tp.scores.accuracy(probs, asked.labels),
        ece=tp.scores.ece(probs, asked.labels, resamples=100).value,
        corrupted_log_loss=tp.scores.log_loss(corrupted.mean(), asked.labels),
        ood_auroc=tp.scores.auroc(clean.entropy(), foreign.entropy()),
        second_log_loss=other.evaluate(other_test)["log_loss"],
        gradients=method.facts().cost.gradients_per_step,
        time=seconds,
    )
    predictions = {
        "probs": probs,
        "labels": asked.labels,
        "entropy": {"test": clean.entropy(), "noisy": corrupted.entropy(), "shuffled": foreign.entropy()},
        "mutual information": {
            "test": clean.mutual_information(),
            "noisy": corrupted.mutual_information(),
            "shuffled": foreign.mutual_information(),
        },
    }
    return result, predictions


def _relative(result: DemoResult, base: float) -> DemoResult:
    return DemoResult(**{**asdict(result), "time": result.time / base})


def _mean(lines: list[DemoResult]) -> DemoResult:
    numbers = {
        key: sum(asdict(line)[key] for line in lines) / len(lines) for key in asdict(lines[0]) if key != "method"
    }
    return DemoResult(method=lines[0].method, **numbers)


COLUMNS = {
    "log_loss": ("log-loss", "{:.3f}"),
    "accuracy": ("acc.", "{:.3f}"),
    "ece": ("ECE", "{:.3f}"),
    "corrupted_log_loss": ("noisy", "{:.2f}"),
    "ood_auroc": ("OOD", "{:.3f}"),
    "second_log_loss": ("diab.", "{:.2f}"),
    "gradients": ("grads", "{:.0f}x"),
    "time": ("time", "{:.1f}x"),
}


def table(results: list[DemoResult], seeds: int) -> Table:
    """The table of results; cost is relative to MAP."""
    legend = (
        "log-loss (nats, less is better) on test digits, on noisy ones, and on the regression set diabetes; OOD: AUROC "
        "of the entropy for pixel-shuffled images; grads and time (wall clock, rough on a busy machine) relative to MAP"
    )
    made = Table(
        title=f"digits, {seeds} seed{'s' if seeds > 1 else ''}",
        caption=legend,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    made.add_column("method", no_wrap=True)
    for heading, _ in COLUMNS.values():
        made.add_column(heading, justify="right")
    for result in results:
        row = asdict(result)
        made.add_row(result.method, *[form.format(row[key]) for key, (_, form) in COLUMNS.items()])
    return made
