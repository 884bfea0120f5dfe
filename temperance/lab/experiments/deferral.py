"""``deferral``: which images should be left to a human, and does a promise about the rest hold?

Answer the least doubtful images only (by 1 − max p): the risk, the share of wrong answers, falls as coverage does. AURC
is the mean risk over all coverages; see :func:`temperance.predict.scores.risk_coverage`.

A rule with a promise (:func:`temperance.decide.defer_at`) is calibrated on some of the test rows: with probability 95 %
over these rows, at most 5 % of the answers are wrong. It is tried on many random splits: how often is the promise
broken on the other rows, clean, and corrupted, of which the rule knows nothing?

With a price for asking and a cost of 1 for a wrong answer, :func:`temperance.decide.bayes_action` asks where that is
cheaper in expectation. What it costs in truth, and what the method expected, show whether its probabilities can be
decided with.

Settings were chosen as in ``ood``, without a look at deferral. Whether the chain of SGHMC is sound is told there.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import temperance as tp
from temperance.core.errors import TemperanceWarning
from temperance.decide import bayes_action, defer_at, doubt, with_abstention
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset
from temperance.lab.figures import COLOURS, GREY, panels
from temperance.lab.image_methods import (
    CHAIN,
    LARGE,
    SMALL,
    ImageSettings,
    against,
    ask,
    by_method,
    clean_scores,
    corrupted,
    load_parts,
    mean_of,
    method_cells,
    of_methods,
    told,
    train,
)
from temperance.lab.judge import RULE, above, all_of, below, difference
from temperance.predict.calibrated import from_outputs

CLEAN = "clean"
POINTS = 41
"""Places on the curve of risk against coverage that are kept."""


@dataclass(frozen=True)
class DeferralSettings(ImageSettings):
    """``shifts`` at a ``severity``; rules that promise ``risk`` with ``confidence`` from ``calibration`` rows, on
    ``splits`` random splits of the test rows; ``prices`` of asking."""

    shifts: tuple[str, ...] = ("gaussian_noise", "occlude")
    severity: int = 3
    risk: float = 0.05
    confidence: float = 0.95
    calibration: int = 1000
    splits: int = 100
    prices: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
    price: float = 0.1

    @property
    def places(self) -> tuple[str, ...]:
        """Clean images, and each shift."""
        return (CLEAN, *self.shifts)


PRESETS = {
    "quick": Preset(
        DeferralSettings(seeds=3, shifts=("gaussian_noise",), risk=0.2, calibration=100, splits=10, **SMALL), 0.4
    ),
    "standard": Preset(DeferralSettings(seeds=5), 3),
    "paper": Preset(DeferralSettings(seeds=5, splits=1000, **LARGE), 1000),
}


def run(settings: DeferralSettings, cell: Cell) -> dict[str, Any]:
    """One method: risk against coverage, promises kept and broken, and costs."""
    name, seed = cell["method"], cell["seed"]
    parts = load_parts(settings, seed)
    fitted = train(settings, name, parts, seed)
    y = parts.test.y
    result: dict[str, Any] = {}
    probs: dict[str, Tensor] = {}
    for place in settings.places:
        x = parts.test.x if place == CLEAN else corrupted(parts.test, place, settings.severity)
        predictive = ask(settings, fitted, x)
        probs[place] = predictive.probs.double().cpu()
        found = clean_scores(predictive, y) | selective(predictive, y) | costs(settings, predictive, y)
        result |= {f"{entry} {place}": value for entry, value in found.items()}
    return result | promises(settings, probs, y, seed)


def selective(predictive: Any, y: Tensor) -> dict[str, Any]:
    """AURC, what of it is due to the order, and the curve at some coverages."""
    wrong = predictive.predict() != y
    found = tp.scores.risk_coverage(doubt(predictive), wrong.double())
    kept = torch.linspace(0, len(wrong) - 1, POINTS).round().long()
    return {
        "aurc": found.aurc,
        "excess": found.excess_aurc,
        "coverage": [round(float(v), 4) for v in found.coverage[kept]],
        "risk": [round(float(v), 5) for v in found.risk[kept]],
    }


def costs(settings: DeferralSettings, predictive: Any, y: Tensor) -> dict[str, float]:
    """Mean cost of the best action, true and expected, and how often it is to ask; wrong answers cost 1."""
    classes = predictive.probs.shape[1]
    found = {}
    for price in settings.prices:
        matrix = with_abstention(1.0 - torch.eye(classes), price)
        decision = bayes_action(predictive, matrix)
        action = decision.action.cpu()
        found[f"paid-{price:g}"] = float(matrix[action, y].double().mean())
        found[f"expected-{price:g}"] = float(decision.cost.double().mean())
        found[f"asked-{price:g}"] = float((action == classes).double().mean())
    return found


def promises(settings: DeferralSettings, probs: dict[str, Tensor], y: Tensor, seed: int) -> dict[str, float]:
    """Calibrate a rule on some clean rows, and try it on the others, in every state; again for each split.

    A rule that answers nothing breaks no promise: its risk counts as 0.
    """
    rng = torch.Generator().manual_seed(2000 + seed)
    met: dict[str, list[float]] = {place: [] for place in probs}
    answered: dict[str, list[float]] = {place: [] for place in probs}
    for _ in range(settings.splits):
        order = torch.randperm(len(y), generator=rng)
        known, rest = order[: settings.calibration], order[settings.calibration :]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TemperanceWarning)  # where nothing can be promised: counted below
            rule = defer_at(given(probs[CLEAN][known]), y[known], settings.risk, settings.confidence)
        for place, table in probs.items():
            answers = ~rule(given(table[rest]))
            wrong = (table[rest].argmax(-1) != y[rest]) & answers
            met[place].append(float(wrong.sum()) / max(1, int(answers.sum())))
            answered[place].append(float(answers.double().mean()))
    found = {}
    for place in probs:
        risks = torch.tensor(met[place])
        found[f"met {place}"] = float(risks.mean())
        found[f"broken {place}"] = float((risks > settings.risk).double().mean())
        found[f"answered {place}"] = sum(answered[place]) / len(answered[place])
    return found


def given(probs: Tensor) -> Any:
    """A predictive with these probabilities.

    >>> given(torch.tensor([[0.25, 0.75]])).probs
    tensor([[0.2500, 0.7500]])
    """
    return from_outputs(probs.clamp_min(1e-300 if probs.dtype == torch.float64 else 1e-30).log(), tp.Categorical())


# ---------------------------------------------------------------------- judging


def claims(settings: DeferralSettings, done: Cells) -> list[Claim]:
    """Order, promises, and costs."""
    made = [_order(settings, done, name, place) for place in (CLEAN, "shifted") for name in settings.marginal]
    made += [_kept(settings, done), _answers_more(settings, done)]
    made += [_broken(settings, done, place) for place in settings.shifts]
    made += [_cheaper(settings, done, place) for place in (CLEAN, "shifted")]
    return [*made, _overoptimistic(settings, done)]


def _entries(settings: DeferralSettings, entry: str, place: str) -> list[str]:
    return [f"{entry} {where}" for where in ((CLEAN,) if place == CLEAN else settings.shifts)]


def _by_shift(settings: DeferralSettings, done: Cells, entry: str, place: str, names: Sequence[str]) -> str:
    """The differences from MAP for each shift by itself: a mean may be the work of one."""
    if place == CLEAN or len(settings.shifts) < 2:
        return ""
    return "".join(f"; {shift} alone: {told(against(done, f'{entry} {shift}', names))}" for shift in settings.shifts)


def _order(settings: DeferralSettings, done: Cells, name: str, place: str) -> Claim:
    entries = _entries(settings, "aurc", place)
    less = against(done, entries, [name])[name]
    order = against(done, _entries(settings, "excess", place), [name])[name]
    right = against(done, _entries(settings, "accuracy", place), [name])[name]
    return Claim(
        f"{name}: less risk over all coverages than MAP on {place} images",
        "area under the curve of selective accuracy .989 for MAP, .984 for function-space VI (ResNet, Fashion-MNIST, "
        "Rudner et al. 2023)"
        if place == CLEAN
        else "(asked here)",
        f"AURC {told(of_methods(done, entries, ('MAP', name)))}; difference {less}, of its order alone (excess AURC) "
        f"{order}; accuracy {right}{_by_shift(settings, done, 'aurc', place, [name])}",
        below(less),
        f"difference below 0; {RULE}" + (CHAIN if name == "SGHMC" else ""),
    )


def _kept(settings: DeferralSettings, done: Cells) -> Claim:
    broken = of_methods(done, f"broken {CLEAN}", settings.methods)
    return Claim(
        f"The promise of at most {settings.risk:.0%} wrong answers is kept on clean images",
        f"broken for at most {1 - settings.confidence:.2g} of calibration sets (a theorem: Angelopoulos et al. 2021)",
        f"share of splits that broke it: {told(broken)}; risk met on average: "
        f"{told(of_methods(done, f'met {CLEAN}', settings.methods))}",
        all_of(*(below(e, 1 - settings.confidence) for e in broken.values())),
        f"shares below {1 - settings.confidence:.2g}, every method; {RULE}",
    )


def _answers_more(settings: DeferralSettings, done: Cells) -> Claim:
    entry = f"answered {CLEAN}"
    more = against(done, entry, settings.marginal)
    return Claim(
        "Under the same promise, every method that averages answers more images than MAP",
        "(asked here)",
        f"coverage: {told(of_methods(done, entry, settings.methods))}; less that of MAP: {told(more)}",
        all_of(*(above(e) for e in more.values())),
        f"more for every method; {RULE}",
    )


def _broken(settings: DeferralSettings, done: Cells, place: str) -> Claim:
    met = of_methods(done, f"met {place}", settings.methods)
    return Claim(
        f"{place}, severity {settings.severity}: a promise made on clean images is broken for every method",
        "the promise is about rows exchangeable with those of the calibration",
        f"risk met: {told(met)}; coverage {told(of_methods(done, f'answered {place}', settings.methods))}",
        all_of(*(above(e, settings.risk) for e in met.values())),
        f"mean risk above {settings.risk:g}, every method; {RULE}",
    )


def _cheaper(settings: DeferralSettings, done: Cells, place: str) -> Claim:
    entries = _entries(settings, f"paid-{settings.price:g}", place)
    less = against(done, entries, settings.marginal)
    return Claim(
        f"Deciding costs less than with MAP on {place} images (asking for {settings.price:g})",
        "(asked here)",
        f"mean cost: {told(of_methods(done, entries, settings.methods))}; less that of MAP: {told(less)}"
        + _by_shift(settings, done, f"paid-{settings.price:g}", place, settings.marginal),
        all_of(*(below(e) for e in less.values())),
        f"less for every method that averages; {RULE}",
    )


def _overoptimistic(settings: DeferralSettings, done: Cells) -> Claim:
    paid, expected = (_entries(settings, f"{word}-{settings.price:g}", "shifted") for word in ("paid", "expected"))
    more = {name: difference(mean_of(done, paid, name), mean_of(done, expected, name)) for name in settings.methods}
    return Claim(
        f"On shifted images every method pays more than it expects (asking for {settings.price:g})",
        "calibration falls with shift (Ovadia et al. 2019)",
        f"cost paid less expected: {told(more)}",
        all_of(*(above(e) for e in more.values())),
        f"differences above 0; {RULE}",
    )


# ---------------------------------------------------------------------- drawing


def figures(settings: DeferralSettings, done: Cells) -> list[Picture]:
    """Risk against coverage, promises, and costs."""
    return [_curves(settings, done), _promised(settings, done), _costs(settings, done)]


def _title(settings: DeferralSettings, place: str) -> str:
    return place if place == CLEAN else f"{place.replace('_', ' ')}, severity {settings.severity}"


def _line(settings: DeferralSettings, name: str) -> dict[str, Any]:
    k = settings.methods.index(name)
    return {"color": COLOURS[k % len(COLOURS)], "label": name, "linestyle": "--" if name == "scaled MAP" else "-"}


def _mean_rows(done: Cells, entry: str, name: str) -> Tensor | None:
    rows = [f.result[entry] for f in done.where(method=name)]
    return torch.tensor(rows).mean(0) if rows else None


def _curves(settings: DeferralSettings, done: Cells) -> Picture:
    sheet, axes = panels(len(settings.places), width=4.3)
    for axis, place in zip(axes, settings.places, strict=True):
        for name in settings.methods:
            risk, coverage = (_mean_rows(done, f"{entry} {place}", name) for entry in ("risk", "coverage"))
            if risk is not None and coverage is not None:
                axis.plot(coverage, risk, **_line(settings, name))
        axis.set_title(_title(settings, place))
        axis.set_xlabel("coverage: share that is answered")
    axes[0].set_ylabel("risk: share of answers that are wrong")
    axes[0].legend(fontsize=8)
    return Picture("risk-coverage", "Risk of the least doubtful images, by 1 − max p; mean of seeds.", sheet)


def _promised(settings: DeferralSettings, done: Cells) -> Picture:
    sheet, axes = panels(2, width=5.6)
    for k, place in enumerate(settings.places):
        offset = 0.15 * (k - 0.5 * (len(settings.places) - 1))
        for axis, entry in zip(axes, ("met", "answered"), strict=True):
            values = of_methods(done, f"{entry} {place}", settings.methods)
            by_method(axis, values, _title(settings, place), COLOURS[k], "osD"[k % 3], offset)
    axes[0].axhline(settings.risk, color=GREY, linestyle=":", linewidth=1.2)
    axes[0].set_ylabel("risk met")
    axes[1].set_ylabel("share that is answered")
    sheet.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(settings.places))
    words = (
        f"Rules that promise a risk of at most {settings.risk:g} (dotted), calibrated on {settings.calibration} clean "
        f"rows; mean over {settings.splits} splits and seeds. Bars: one standard error over seeds."
    )
    return Picture("promises", words, sheet)


def _costs(settings: DeferralSettings, done: Cells) -> Picture:
    sheet, axes = panels(len(settings.places), width=4.3)
    for axis, place in zip(axes, settings.places, strict=True):
        for name in settings.methods:
            ends = [(p, _ratio(settings, done, place, name, p)) for p in settings.prices]
            axis.plot(
                [p for p, v in ends if v], [v for _, v in ends if v], marker="o", markersize=3, **_line(settings, name)
            )
        axis.axhline(1.0, color=GREY, linestyle=":", linewidth=1)
        axis.set_title(_title(settings, place))
        axis.set_xlabel("price of asking")
    axes[0].set_ylabel("cost, in units of MAP's")
    axes[0].legend(fontsize=8)
    return Picture("costs", "Mean cost of the best action, wrong answers costing 1, divided by that of MAP.", sheet)


def _ratio(settings: DeferralSettings, done: Cells, place: str, name: str, price: float) -> float:
    own, first = (of_methods(done, f"paid-{price:g} {place}", [m])[m] for m in (name, "MAP"))
    return own.mean / first.mean if own.count and first.count and first.mean else 0.0


EXPERIMENT = Experiment(
    name="deferral",
    title="What to leave to a human",
    paper="Geifman et al. 2019; Angelopoulos et al. 2021; Rudner et al. 2023",
    question="Does averaging over θ order images better, are promises about errors kept, and what do decisions cost?",
    presets=PRESETS,
    cells=method_cells,
    run=run,
    claims=claims,
    figures=figures,
)
