"""``table-defaults``: which method should someone get who brings a table and no opinion?

Every recipe of :mod:`temperance.apps.recipes`, with the network, the prior and the length of training that ``temperance
fit`` uses, on tables of classes and of numbers. Scored by log-loss on test rows, once as it comes and once after
calibration on rows held out for it (one temperature for classes, one factor on the spread for numbers), which is what
``temperance fit`` gives. MAP is ordinary training: what a method is worth is its log-loss less that of MAP on the
same split.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import temperance as tp
from temperance.apps import recipes
from temperance.judge import calibrate
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, GREY, panels
from temperance.lab.judge import RULE, Estimate, all_of, below, estimate

SLACK = 0.05
"""Nats by which a default may lose to MAP on one table before it counts as harm."""


@dataclass(frozen=True)
class TableSettings(Settings):
    """``methods`` by recipe on each of ``tables``; a seed is a split of the data too. A fifth of the training rows is
    kept for calibration. Training lasts ``length`` times what the recipes say."""

    tables: tuple[str, ...] = ("wine", "breast-cancer", "diabetes", "energy")
    methods: tuple[str, ...] = ("map", "ensemble", "anchored", "laplace", "swag", "ivon", "sghmc")
    length: float = 1.0


PRESETS = {
    "quick": Preset(TableSettings(seeds=3, tables=("iris", "diabetes"), methods=("map", "ensemble"), length=0.05), 0.3),
    "standard": Preset(TableSettings(seeds=3), 10),
    "paper": Preset(
        TableSettings(
            seeds=20,
            tables=("iris", "wine", "breast-cancer", "diabetes", "concrete", "energy", "wine-red", "power-plant"),
            methods=tuple(recipes.RECIPES),
        ),
        600,
    ),
}


def cells(settings: TableSettings) -> list[Cell]:
    """Table × method × seed."""
    return [
        Cell.of(table=table, method=method, seed=seed)
        for seed in settings.all_seeds()
        for table in settings.tables
        for method in settings.methods
    ]


def run(settings: TableSettings, cell: Cell) -> dict[str, Any]:
    """One fit, scored before and after calibration."""
    seed = cell["seed"]
    whole, test = tp.data.load(cell["table"], split=seed)
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
    held = len(whole) // 5
    rows, kept = whole.subset(order[held:]), whole.subset(order[:held])
    classes = isinstance(whole.info.outcome, tp.outcomes.Categories)
    epochs, batch_size = recipes.training(len(rows))
    assert isinstance(whole.x, Tensor)
    assert whole.info.outcome is not None
    method = recipes.method_named(cell["method"])
    shape = (whole.x.shape[1], int(whole.y.max()) + 1 if classes else 1)
    length = max(3, round(settings.length * epochs))
    noises: tuple[tp.Likelihood, ...] = (tp.Categorical(),) if classes else (tp.HeteroscedasticNormal(), tp.Normal())
    began = time.perf_counter()
    for noise in noises:  # as `temperance fit` does: noise that depends on the row, where the method can learn it
        target = recipes.table_target(whole.info.outcome, *shape, likelihood=noise, seed=seed)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", tp.errors.TemperanceWarning)
                fitted = tp.fit(target, method, rows, epochs=length, batch_size=batch_size, seed=seed, progress=False)
            break
        except tp.errors.NumericalError:
            if noise is noises[-1]:
                raise
    seconds = time.perf_counter() - began
    rule = calibrate.Temperature() if classes else calibrate.VarianceScale()
    calibrator = rule.fit(fitted.predict(kept.x), kept.y)
    raw = fitted.predict(test.x)
    mended = calibrator(raw)
    return {
        "log_loss": -float(raw.log_prob(test.y).double().mean()),
        "calibrated": -float(mended.log_prob(test.y).double().mean()),
        "seconds": seconds,
        "gradients": method.facts().cost.gradients_per_step,
        "plain_noise": isinstance(target.likelihood, tp.Normal),
    }


# ---------------------------------------------------------------------- judging


def gains(settings: TableSettings, done: Cells, method: str, table: str, entry: str = "log_loss") -> Estimate:
    """Log-loss of a method less that of MAP on one table, over the splits that both have: below 0 is better."""
    own, base = (done.by_seed(entry, table=table, method=m) for m in (method, "map"))
    return estimate([own[seed] - base[seed] for seed in own if seed in base])


def over_tables(settings: TableSettings, done: Cells, method: str, entry: str = "log_loss") -> Estimate:
    """The same averaged over tables, split by split."""
    per_seed = []
    for seed in settings.all_seeds():
        found = []
        for table in settings.tables:
            own, base = (done.by_seed(entry, table=table, method=m).get(seed) for m in (method, "map"))
            if own is not None and base is not None:
                found.append(own - base)
        if len(found) == len(settings.tables):
            per_seed.append(sum(found) / len(found))
    return estimate(per_seed)


def times(settings: TableSettings, done: Cells, method: str) -> float:
    """Seconds relative to MAP, averaged over tables."""
    ratios = []
    for table in settings.tables:
        own, base = (done.values("seconds", table=table, method=m) for m in (method, "map"))
        if own and base:
            ratios.append((sum(own) / len(own)) / (sum(base) / len(base)))
    return sum(ratios) / len(ratios) if ratios else float("nan")


def claims(settings: TableSettings, done: Cells) -> list[Claim]:
    """The recommended method against MAP: on average, on every table, and after calibration."""
    default = recipes.DEFAULT_METHOD
    others = [m for m in settings.methods if m != "map"]
    average = {m: over_tables(settings, done, m) for m in others}
    mended = {m: over_tables(settings, done, m, "calibrated") for m in others}
    worst = {m: max(gains(settings, done, m, t).mean for t in settings.tables) for m in others}
    harmless = [below(gains(settings, done, default, table), SLACK) for table in settings.tables]
    cost = "; ".join(f"{m} {times(settings, done, m):.1f}x" for m in others)
    return [
        Claim(
            f"The default ({default}) predicts better than ordinary training, on average over tables",
            "marginalisation improves accuracy and calibration (Wilson & Izmailov 2020)",
            "log-loss less MAP's: " + "; ".join(f"{m} {e}" for m, e in average.items()),
            below(average[default]),
            f"the default's below 0; {RULE}",
        ),
        Claim(
            f"It does no harm: on no table does it lose {SLACK:g} nats to MAP",
            "(asked here: a default must be safe)",
            "worst table of each method, log-loss less MAP's: " + "; ".join(f"{m} {v:.3f}" for m, v in worst.items()),
            all_of(*harmless),
            f"every table's below {SLACK:g}; {RULE}",
        ),
        Claim(
            "It is better after calibration too",
            "(asked here: is a temperature for MAP all that is needed?)",
            "calibrated log-loss less calibrated MAP's: " + "; ".join(f"{m} {e}" for m, e in mended.items()),
            below(mended[default]),
            f"the default's below 0; {RULE}. Time relative to MAP: {cost}",
        ),
    ]


# ---------------------------------------------------------------------- drawing


def figures(settings: TableSettings, done: Cells) -> list[Picture]:
    """Gains by table, before and after calibration."""
    others = [m for m in settings.methods if m != "map"]
    sheet, axes = panels(2, width=6.0, height=4.2)
    for axis, entry, title in zip(
        axes, ("log_loss", "calibrated"), ("as it comes", "both calibrated on held-out rows"), strict=True
    ):
        for k, method in enumerate(others):
            found = [gains(settings, done, method, table, entry) for table in settings.tables]
            places = [p + (k - 0.5 * (len(others) - 1)) * 0.1 for p in range(len(found))]
            errors = [e.error if e.count > 1 else 0.0 for e in found]
            axis.errorbar(
                places, [e.mean for e in found], yerr=errors, fmt="os^vDP*X<>h"[k % 11], capsize=2,
                color=COLOURS[k % len(COLOURS)], label=method,
            )  # fmt: skip
        axis.axhline(0.0, color=GREY, linewidth=1.0)
        axis.set_yscale("symlog", linthresh=0.1)
        axis.set_xticks(range(len(settings.tables)), list(settings.tables), fontsize=8, rotation=20)
        axis.set_ylabel("log-loss less MAP's (nats)")
        axis.set_title(title, fontsize=10)
    axes[0].legend(fontsize=7, ncols=2)
    words = "Log-loss of each method less that of ordinary training on the same split; below the line is better. Bars: "
    return [Picture("gains", words + "one standard error over splits. The axis is linear up to 0.1.", sheet)]


EXPERIMENT = Experiment(
    name="table-defaults",
    title="Which method for a table?",
    paper="Wilson & Izmailov 2020; Papamarkou et al. 2024 (adoption waits for software)",
    question="Which method should be the default for someone who brings a table and no opinion?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
