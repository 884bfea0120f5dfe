"""``defaults``: does a method of Bayes, as it comes, beat ordinary training by somebody who knows how?

The default of each family on every task of :mod:`temperance.lab.tasks`, against ``tuned-map``: MAP whose weight decay
was chosen among five and whose training stopped early, both by a tenth of the rows. On tables also against trees
without Bayes. Nothing is calibrated, nobody looks at test rows, and a fit that fails is a loss.

A cell's name has a digest of the method's expression, so that whoever mends one in :data:`METHODS` runs its cells again
and no others. What was mended inside a method is not seen: remove ``cells/*method=NAME*`` then.
"""

from __future__ import annotations

import functools
import hashlib
import math
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch

import temperance as tp
from temperance.apps import recipes
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings, Sheet
from temperance.lab.outsiders import OUTSIDERS, score_outsider
from temperance.lab.tasks import HALVES, POST_HOC, TABLES, TASKS, Rows, Task, find_task, load_rows, make_target
from temperance.lab.versus import LEVEL, Board, average, ratio
from temperance.lab.versus_page import everything, heat_map, summary

START = "MAP(lr=2e-3, patience=0.1)"
TUNED = f"TunedDecay({START})"
METHODS = {
    "map": "MAP(lr=2e-3)",
    "tuned-map": START,
    "laplace": f"Laplace({TUNED})",
    "last-layer": f"On(last_layer, Laplace({TUNED}))",
    "vi": f"WarmStart(Variational(MeanField(), lr=2e-3, initial_scale=1e-3), {TUNED})",
    "ivon": f"WarmStart(IVON(lr=0.1, clip=0.01), {TUNED})",
    "swag": f"Refit(SWAG(MAP(lr=2e-3), start=0.75), {TUNED}, stretch=1.33)",
    "multiswag": f"Refit(Ensemble(SWAG(MAP(lr=2e-3), start=0.75), 5), {TUNED}, stretch=1.33)",
    "sghmc": f"WarmStart(Collect(SGHMC(lr=Thermal())), {TUNED})",
    "cyclical": f"WarmStart(Collect(Cyclical(SGHMC(lr=Thermal()), cycle={{cycle}}, start={{start}})), {TUNED})",
    "dropout": f"Refit(MCDropout(MAP(lr=2e-3)), TunedDecay({START}, dropout=(0.0,)))",
    "anchored": f"Ensemble(WarmStart(Anchored(MAP(lr=2e-3)), {START}), 5)",
    "ensemble": f"Refit(Ensemble(MAP(lr=2e-3), 5), {TUNED})",
}
"""The default of each family. A chain has a quarter of the steps at least, the last four fifths of them in cycles of
``{cycle}`` after ``{start}``."""

TRAINED = {"tuned-map": "", "laplace": "Laplace()", "last-layer": "On(last_layer, Laplace())"}
"""What runs on a network that is trained already; the baseline is the network as it comes."""

PLAIN, BASELINE, RECOMMENDED = "map", "tuned-map", "multiswag"
SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Scales of the prior, that is weight decays 1 / (N scale²), among which the baseline chooses."""


@dataclass(frozen=True)
class DefaultsSettings(Settings):
    """``methods`` (and trees, on tables) on ``tasks``; a seed is a split. Training lasts ``length`` times as long as
    the tasks say."""

    seeds: int = 5
    tasks: tuple[str, ...] = tuple(task.name for task in TASKS)
    methods: tuple[str, ...] = (*METHODS, *OUTSIDERS)
    length: float = 1.0


PRESETS = {
    "quick": Preset(DefaultsSettings(seeds=3, tasks=("iris", "wine", "diabetes"), length=0.1), 0.9),
    "standard": Preset(DefaultsSettings(seeds=5), 60),
    "paper": Preset(DefaultsSettings(seeds=20), 300),
}


def runs_on(method: str, task: Task) -> bool:
    """Whether a method is asked about a task: trees about tables, and about trained networks what trains nothing."""
    if task.group == POST_HOC:
        return method in TRAINED
    return method in METHODS or task.group == TABLES


def cells(settings: DefaultsSettings) -> list[Cell]:
    """Task × method × split, all of one split first."""
    return [
        Cell.of(task=task.name, method=method, recipe=_digest(method, task), seed=seed)
        for seed in settings.all_seeds()
        for task in map(find_task, settings.tasks)
        for method in settings.methods
        if runs_on(method, task)
    ]


def _digest(method: str, task: Task) -> str:
    text = (TRAINED if task.group == POST_HOC else METHODS).get(method, method)
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def run(settings: DefaultsSettings, cell: Cell) -> dict[str, Any]:
    """One method on one split. Seconds are those of the processor, for the fit alone."""
    task, name, seed = find_task(cell["task"]), cell["method"], cell["seed"]
    rows = load_rows(task, seed)
    _warm_up()
    began = time.process_time()
    try:
        if name in OUTSIDERS:
            return score_outsider(name, rows, seed)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", tp.errors.TemperanceWarning)
            if task.group == POST_HOC:
                result = _after_training(task, name, rows, seed)
            elif name == BASELINE:
                result = _tuned(task, rows, seed, settings.length)
            else:
                result = _plain(task, name, rows, seed, settings.length)
        remarks = [str(w.message) for w in told if issubclass(w.category, tp.errors.TemperanceWarning)]
        return result | {"remarks": list(dict.fromkeys(remarks))}
    except tp.errors.MissingDataSetError:
        raise
    except Exception as error:  # whatever kept a user from having a posterior: it is a loss, and told
        text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return {"failed": text, "status": "failed", "seconds": time.process_time() - began}


@functools.lru_cache(maxsize=1)
def _warm_up() -> None:
    """A few steps, once in each process: the first fit also loads libraries, which is no method's cost."""
    task = find_task("iris")
    rows = load_rows(task, 0)
    for name in (PLAIN, "ensemble"):
        _plain(task, name, rows, 0, 1e-3)


def method_for(name: str, task: Task, rows: int, length: float) -> tuple[tp.Inference[Any], int]:
    """A method of :data:`METHODS` and its epochs, for so many training rows: those of one training, and what it needs
    beside that. Most end long before; what they take is in the costs."""
    plain = recipes.method_named(METHODS[name].format(cycle=1, start=0))
    epochs = task.epochs(rows, length * plain.facts().longer)
    steps = epochs * math.ceil(rows / task.batch_size)
    lengths = {"cycle": max(1, steps // 40), "start": steps // 16}
    return recipes.method_named(METHODS[name].format(**lengths)), epochs


def _fit(task: Task, target: tp.Target, name: str, rows: Rows, seed: int, length: float) -> tuple[tp.Fitted, float]:
    """A fit and its seconds. Methods that choose by held-out rows keep a tenth apart by themselves."""
    method, epochs = method_for(name, task, len(rows.train), length)
    options: dict[str, Any] = {"batch_size": task.batch_size, "seed": seed, "progress": False}
    began = time.process_time()
    fitted = tp.fit(target, method, rows.train, epochs=epochs, **options)
    if fitted.info.status is tp.status.INTERRUPTED:
        raise KeyboardInterrupt
    return fitted, time.process_time() - began


def _scored(fitted: tp.Fitted, rows: Rows, seconds: float, **more: Any) -> dict[str, Any]:
    began = time.process_time()
    scores = fitted.evaluate(rows.test)
    if not math.isfinite(scores["log_loss"]):
        raise tp.errors.NumericalError(f"the log-loss of test rows must be finite; got {scores['log_loss']}.")
    told = {"seconds": seconds, "predicting": time.process_time() - began, "status": fitted.info.status.code}
    assert isinstance(fitted.method, tp.Inference)
    if rows.classes is not None:
        told["ece_by_chance"] = ece_by_chance(fitted.predict(rows.test.x).mean())
    told |= {"steps": fitted.info.steps, "streams": fitted.method.facts().streams}
    return {**scores, **told, **more}


def ece_by_chance(probs: torch.Tensor, times: int = 50) -> float:
    """The calibration error that so many rows have by chance where these probabilities are right: labels are drawn."""
    rng = torch.Generator().manual_seed(0)
    p = probs.detach().cpu().double()
    drawn = torch.multinomial(p, times, replacement=True, generator=rng)
    return average([tp.scores.ece(p, labels, resamples=2).value for labels in drawn.T])


def _plain(task: Task, name: str, rows: Rows, seed: int, length: float) -> dict[str, Any]:
    fitted, seconds = _fit(task, make_target(task, rows, seed, dropout=name == "dropout"), name, rows, seed, length)
    return _scored(fitted, rows, seconds)


def _tuned(task: Task, rows: Rows, seed: int, length: float) -> dict[str, Any]:
    """The best of five by the held-out rows, with the cost of all. It fails where all five do."""
    best: tuple[float, float, tp.Fitted] | None = None
    began = time.process_time()
    trouble: tp.errors.NumericalError | None = None
    for scale in SCALES:
        try:
            fitted, _ = _fit(task, make_target(task, rows, seed, scale=scale), BASELINE, rows, seed, length)
        except tp.errors.NumericalError as error:
            trouble = error
            continue
        score = max(fitted.info.held_out_scores)
        if best is None or score > best[0]:
            best = (score, scale, fitted)
    if best is None:
        raise trouble or tp.errors.NumericalError("no scale of the prior was tried.")
    seconds = time.process_time() - began
    return _scored(best[2], rows, seconds, scale=best[1])


def _after_training(task: Task, name: str, rows: Rows, seed: int) -> dict[str, Any]:
    target = make_target(task, rows, seed)
    if name == BASELINE:
        assert isinstance(rows.test.x, torch.Tensor)
        with torch.no_grad():
            probs = torch.cat([target.network(part).softmax(-1) for part in rows.test.x.split(500)])
        return {
            "log_loss": tp.scores.log_loss(probs, rows.test.y),
            "accuracy": tp.scores.accuracy(probs, rows.test.y),
            "ece": tp.scores.ece(probs, rows.test.y).value,
            "ece_by_chance": ece_by_chance(probs),
            "seconds": 0.0,
            "status": "as it comes",
        }
    began = time.process_time()
    method = recipes.method_named(TRAINED[name])
    options: dict[str, Any] = {"batch_size": task.batch_size, "seed": seed, "progress": False}
    fitted = tp.fit(target, method, rows.train, held_out=rows.held_out, **options)
    return _scored(fitted, rows, time.process_time() - began)


# ---------------------------------------------------------------------- judging


SHARE, GAIN, PRICE = 0.9, 0.1, 5.0
"""Of tasks on which a default may not lose; what the recommended one is to gain on average; what it may cost."""


def board(settings: DefaultsSettings, done: Cells) -> Board:
    """The cells by task and method."""
    return Board(done, [find_task(name) for name in settings.tasks], BASELINE)


def claims(settings: DefaultsSettings, done: Cells) -> list[Claim]:
    """The recommended default, the other families, trees on tables: each for both halves apart."""
    whole, made = board(settings, done), []
    for half in HALVES:
        part = whole.of(half)
        if not part.tasks:
            continue
        made += _recommended(half, part)
        others = [name for name in METHODS if name in settings.methods and name not in (BASELINE, RECOMMENDED)]
        made += [claim for name in others if (claim := _harmless(half, part, name)) is not None]
        made += _tables(half, part, [name for name in OUTSIDERS if name in settings.methods])
    return made


def _lost(part: Board, method: str) -> tuple[str, bool | None]:
    """How often a method is worse than the baseline, in words, and whether that is seldom enough."""
    found = part.differences(method)
    lost = [each for each in found if each.worse]
    finite = [each.nats for each in found if not each.failures]
    words = f"worse on {len(lost)} of {len(found)} tasks"
    if found:
        words += f"; worst: {max(found, key=lambda each: each.nats)}"
    words += f"; mean {average(finite):+.3f} nats" if finite else ""
    failures = sum(each.failures for each in found)
    words += f"; {failures} fits failed" if failures else ""
    return words, part.decided(method, bool(found) and len(found) - len(lost) >= SHARE * len(found))


_RULE = f"not above the baseline's by more than {LEVEL:g} nats, on average over splits, on {SHARE:.0%} of tasks"


def _harmless(half: str, part: Board, method: str) -> Claim | None:
    """A line for a family."""
    if not part.differences(method):
        return None
    words, holds = _lost(part, method)
    text = f"{half}: {method} is no worse than {BASELINE} on {SHARE:.0%} of tasks"
    return Claim(
        text, "(asked here: a default must be safe)", words, holds, f"log-loss {_RULE}; a failed fit is a loss"
    )


def _recommended(half: str, part: Board) -> list[Claim]:
    """Log-loss, its size, calibration and cost."""
    found = part.differences(RECOMMENDED)
    if not found:
        return []
    words, holds = _lost(part, RECOMMENDED)
    log_loss = part.pairs("log_loss", RECOMMENDED, BASELINE)
    ece = part.pairs("ece", RECOMMENDED, BASELINE)
    classes = {name: pair for name, pair in log_loss.items() if name in ece}
    numbers = [own - base for name, (own, base) in log_loss.items() if name not in ece]
    gains, kept = [], []
    if classes:
        gains.append(f"classes: {ratio(classes):.3f} times the baseline's log-loss")
        kept.append(ratio(classes) <= 1 - GAIN)
    if numbers:
        gains.append(f"numbers: {average(numbers):+.3f} nats")
        kept.append(average(numbers) <= -GAIN)
    large = {name: pair for name, pair in ece.items() if pair[1] > 0.02}
    halved = sum(own <= 0.5 * base for own, base in large.values())
    plain, tuned = (part.pairs("seconds", RECOMMENDED, other) for other in (PLAIN, BASELINE))
    made = [
        Claim(
            f"{half}: the recommended {RECOMMENDED} is level with {BASELINE} or better on {SHARE:.0%} of tasks",
            "marginalisation improves accuracy and calibration (Wilson & Izmailov 2020)",
            words,
            holds,
            f"log-loss {_RULE}",
        ),
        Claim(
            f"{half}: it is better by {GAIN:.0%} on average",
            "as above",
            "; ".join(gains),
            part.decided(RECOMMENDED, all(kept)),
            f"classes: geometric mean over tasks of the ratio of log-losses at most {1 - GAIN:g}; numbers: mean "
            f"difference at most −{GAIN:g} nats; both, where there are both",
        ),
    ]
    if large:
        made.append(
            Claim(
                f"{half}: its calibration error is at most half of {BASELINE}'s where that exceeds 0.02",
                "as above",
                f"on {halved} of {len(large)} tasks; geometric mean of the ratios {ratio(large):.2f}",
                part.decided(RECOMMENDED, ratio(large) <= 0.5),
                "ECE, means over splits; geometric mean over these tasks at most 0.5",
            )
        )
    chance = {name: part.pairs("ece_by_chance", RECOMMENDED, BASELINE).get(name, (0.0, 0.0)) for name in ece}
    beyond = {name: tuple(max(0.0, e - c) for e, c in zip(ece[name], chance[name], strict=True)) for name in ece}
    truly = {name: (own, base) for name, (own, base) in beyond.items() if base > 0.02}
    if ece:
        halves = sum(own <= 0.5 * base for own, base in truly.values())
        means = [average([pair[k] for pair in beyond.values()]) for k in (0, 1)]
        made.append(
            Claim(
                f"{half}: beyond what so few test rows have by chance, it is at most half of {BASELINE}'s",
                "as above",
                f"{BASELINE}'s exceeds chance by more than 0.02 on {len(truly)} of {len(ece)} tasks, and there it is "
                f"halved on {halves}; over all tasks {means[0]:.4f} beyond chance, {BASELINE} {means[1]:.4f}",
                part.decided(RECOMMENDED, halves >= SHARE * len(truly) and means[0] <= means[1]),
                "ECE less its mean under labels drawn from the predictions themselves; halved on 90 % of these tasks, "
                "and no larger on average over all",
            )
        )
    if plain and tuned:
        cost = ratio(plain, floor=1e-9)
        made.append(
            Claim(
                f"{half}: it costs at most {PRICE:g} times plain MAP",
                "five members",
                f"{cost:.1f} times plain MAP, {ratio(tuned, floor=1e-9):.1f} times {BASELINE} with its five fits",
                part.decided(RECOMMENDED, cost <= PRICE),
                "CPU seconds of the fit, geometric mean over tasks",
            )
        )
    return made


def _tables(half: str, part: Board, outsiders: list[str]) -> list[Claim]:
    """The recommended default against the better of the trees, task by task; the coverage of its intervals."""
    tables = Board(part.done, [task for task in part.tasks if task.group == TABLES], BASELINE)
    best: dict[str, tuple[float, float]] = {}
    for name in outsiders:
        numbers = tables.pairs("crps", RECOMMENDED, name)
        for task, (own, other) in {**tables.pairs("log_loss", RECOMMENDED, name), **numbers}.items():
            best[task] = (own, min(other, best.get(task, (own, math.inf))[1]))
    made = []
    if best:
        ahead = sum(own <= other for own, other in best.values())
        near = sum(own <= 1.05 * other for own, other in best.values())
        relative = {name: own / max(other, 1e-9) for name, (own, other) in best.items()}
        worst = max(relative, key=lambda name: relative[name])
        made.append(
            Claim(
                f"{half}: on tables it is level with the better of random forest and boosting on half, near on 80 %",
                "trees are hard to beat on tables (Grinsztajn et al. 2022)",
                f"level or ahead on {ahead} of {len(best)}, within 5 % on {near}; worst: {relative[worst]:.2f} times "
                f"theirs on {worst}",
                tables.decided(RECOMMENDED, ahead >= 0.5 * len(best) and near >= 0.8 * len(best)),
                "log-loss of classes, CRPS of numbers, means over splits",
            )
        )
    coverage = [tables.mean("coverage_90", task, RECOMMENDED) for task in tables.tasks]
    covered = [value for value in coverage if not math.isnan(value)]
    if covered:
        made.append(
            Claim(
                f"{half}: its 90 % intervals hold 90 % of numbers",
                "(asked here)",
                f"{average(covered):.3f} on average over {len(covered)} tables of numbers; from {min(covered):.3f} to "
                f"{max(covered):.3f}",
                tables.decided(RECOMMENDED, abs(average(covered) - 0.9) <= 0.03),
                "mean over tables within 0.03 of 0.9",
            )
        )
    return made


# ---------------------------------------------------------------------- drawing


def figures(settings: DefaultsSettings, done: Cells) -> list[Picture]:
    """The heat map of tasks and methods."""
    shown = [name for name in METHODS if name in settings.methods and name != BASELINE]
    return [heat_map(board(settings, done), shown)]


def sheets(settings: DefaultsSettings, done: Cells) -> list[Sheet]:
    """A line for each method, and all numbers."""
    others = [name for name in METHODS if name in settings.methods and name != BASELINE]
    whole = board(settings, done)
    return [summary(whole, others, PLAIN), everything(whole, settings.methods)]


EXPERIMENT = Experiment(
    name="defaults",
    title="Bayes by default",
    paper="Wilson & Izmailov 2020; Papamarkou et al. 2024 (adoption waits for software)",
    question=(
        "Does each family of methods, as it comes, predict at least as well as MAP with tuned weight decay and early "
        "stopping, on 26 tasks of real data?"
    ),
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
    sheets=sheets,
)
