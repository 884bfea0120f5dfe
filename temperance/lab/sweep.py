"""Sweeps over the temperature: what most experiments do, and how they judge it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from temperance.lab.experiment import Cell, Cells, Claim, Picture, Settings, Value
from temperance.lab.figures import COLOURS, curve, level, panels, plain_numbers, temperatures
from temperance.lab.judge import RULE, Estimate, all_of, below, estimate, near
from temperance.lab.problems import Images
from temperance.lab.sampling import Chain


@dataclass(frozen=True)
class SweepSettings(Settings):
    """A sweep over ``temperatures`` of a ``network`` under a ``prior`` on ``data`` by ``chain``, for each arm of an
    experiment.

    ``standard`` uses N(0, 9 / fan-in): under N(0, 1) on each of the 784 inputs the posterior is so stiff that no chain
    of a few seconds samples it soundly (``cold-posterior`` and ``prior-scale`` show what comes of it).
    """

    network: str = "mlp-100x2"
    prior: str = "fan-in-3"
    data: Images = field(default_factory=lambda: Images("fashion-mnist", train=1000, test=2000))
    chain: Chain = field(default_factory=Chain)
    temperatures: tuple[float, ...] = (0.01, 0.1, 0.3, 1.0, 3.0)


def sweep_cells(settings: SweepSettings, arm: str, values: Sequence[Value]) -> list[Cell]:
    """An arm for each value × temperature × seed."""
    return [
        Cell(params={arm: value, "temperature": t, "seed": seed})
        for value in values
        for t in settings.temperatures
        for seed in settings.all_seeds()
    ]


def gaps(done: Cells, settings: SweepSettings, arm: str, values: Sequence[Value]) -> dict[Value, dict[int, float]]:
    """The cold-posterior effect of each arm, by seed."""
    return {value: cold_gap(done, settings.temperatures, **{arm: value}) for value in values}


def told(effects: Mapping[Value, Mapping[int, float]]) -> str:
    """The effects of all arms in words."""
    return "; ".join(f"{name}: {estimate(list(by_seed.values()))}" for name, by_seed in effects.items())


def cold_gap(done: Cells, grid: Sequence[float], entry: str = "ce", /, **match: Value) -> dict[int, float]:
    """The cold-posterior effect by seed: CE at T = 1 less CE at the best colder T. More than 0: cold is better.

    Which T is best is decided by the *other* seeds, so that picking the smallest of several noisy numbers does not look
    like an effect.
    """
    warm = done.by_seed(entry, temperature=1.0, **match)
    curves = {t: done.by_seed(entry, temperature=t, **match) for t in grid if t < 1.0}
    gaps = {}
    for seed, value in warm.items():
        others = {t: estimate([v for s, v in by.items() if s != seed]).mean for t, by in curves.items() if seed in by}
        others = {t: mean for t, mean in others.items() if mean == mean}
        if others:
            best = min(others, key=lambda t: others[t])
            gaps[seed] = value - curves[best][seed]
    return gaps


def by_temperature(done: Cells, grid: Sequence[float], entry: str, /, **match: Value) -> dict[float, Estimate]:
    """Mean and standard error of an entry at each temperature."""
    return {t: estimate(done.values(entry, temperature=t, **match)) for t in grid}


def best_temperature(done: Cells, grid: Sequence[float], entry: str = "ce", /, **match: Value) -> float | None:
    """The temperature with the lowest mean."""
    known = {t: e.mean for t, e in by_temperature(done, grid, entry, **match).items() if e.count}
    return min(known, key=lambda t: known[t]) if known else None


LABELS = {
    "ce": "test cross-entropy (nats)",
    "accuracy": "test accuracy",
    "ece": "calibration error (ECE)",
    "gibbs_ce": "members' cross-entropy (nats)",
    "kinetic_slow": "kinetic temperature / T",
    "configurational": "configurational temperature / T",
    "curvature": "temperature by curvature / T",
}
HEATS = ("kinetic_slow", "configurational", "curvature")


def sweep_picture(
    done: Cells,
    grid: Sequence[float],
    arms: Mapping[str, Mapping[str, Value]],
    entries: Sequence[str] = ("ce", "accuracy"),
    name: str = "sweep",
    caption: str = "",
    marks: Mapping[str, Mapping[str, Value]] | None = None,
) -> Picture:
    """A panel for each entry; in it a curve over T for each arm, and a level for each mark (SGD, say)."""
    columns = 2 if len(entries) == 4 else min(3, len(entries))
    figure, axes = panels(columns, -(-len(entries) // columns), width=4.8, height=3.6)
    for axis in axes[len(entries) :]:
        axis.set_visible(False)
    for axis, entry in zip(axes, entries, strict=False):
        for k, (label, match) in enumerate(arms.items()):
            curve(axis, by_temperature(done, grid, entry, **match), label, COLOURS[k % len(COLOURS)])
        for k, (label, match) in enumerate((marks or {}).items()):
            level(axis, estimate(done.values(entry, **match)), label, COLOURS[(k + 5) % len(COLOURS)])
        if entry in HEATS:
            axis.axhline(1.0, color="#444444", linewidth=0.9, linestyle=":")
            axis.set_yscale("log")
            plain_numbers(axis)
        temperatures(axis, grid)
        axis.set_ylabel(LABELS[entry])
    axes[0].legend()
    return Picture(name, caption, figure)


def soundness(done: Cells, **match: Value) -> Claim:
    """Whether the chains at T = 1 were as hot as they should be: the claims about T = 1 rest on it."""
    kinetic, configurational, curvature = (
        estimate(done.values(entry, temperature=1.0, **match))
        for entry in ("kinetic_slow", "configurational", "curvature")
    )
    what = ", ".join(str(value) for value in match.values())
    return Claim(
        f"{what}: the chain at T = 1 is at T = 1" if what else "The chains at T = 1 are at T = 1",
        "kinetic 0.99 of readings inside, configurational 0.7–0.9 (released logs, ResNet-20)",
        f"kinetic {kinetic}, configurational {configurational}, by curvature {curvature}, in units of T",
        all_of(near(kinetic, 1.0, 0.1), near(configurational, 1.0, 0.25), below(curvature, 4.0)),
        f"kinetic within 0.1 and configurational within 0.25 of 1, by curvature (stiff directions) below 4; {RULE}",
    )


def gap_picture(gaps: Mapping[str, Estimate], axis_label: str, caption: str, name: str = "gap") -> Picture:
    """The effect for each arm, with 95 % intervals."""
    figure, (axis,) = panels(1, width=5.2, height=3.7)
    known = {label: e for label, e in gaps.items() if e.count}
    places = range(len(known))
    widths = [e.half_width if e.count > 2 else 0.0 for e in known.values()]
    axis.errorbar(list(places), [e.mean for e in known.values()], yerr=widths, fmt="o", color=COLOURS[0], capsize=3)
    axis.axhline(0.0, color="#444444", linewidth=0.9, linestyle=":")
    axis.set_xticks(list(places), list(known))
    axis.set_xlabel(axis_label)
    axis.set_ylabel("CE at T = 1 less CE at the best T < 1")
    axis.margins(x=0.1)
    return Picture(name, caption, figure)
