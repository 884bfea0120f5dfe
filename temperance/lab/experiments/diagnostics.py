"""``diagnostics``: do the temperatures of a chain tell a sound run from a broken one?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import temperance as tp
from temperance.judge import diagnose
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, GREY, panels
from temperance.lab.judge import RULE, above, below, estimate, near
from temperance.lab.problems import Images, fit, make_network
from temperance.lab.sampling import Chain

RUNS = {
    "healthy": "healthy",
    "large-step": "step too large",
    "no-preconditioner": "no preconditioner, step too large for the stiffest layer",
}
_POINTS = 200  # readings kept for the figures


@dataclass(frozen=True)
class DiagnosticSettings(Settings):
    """A network under a Gaussian prior of scale ``prior``, sampled by ``chain``; the broken runs multiply ℓ by
    ``factor``, one of them with the layerwise masses switched off."""

    network: str = "mlp-30x2"
    data: Images = field(default_factory=lambda: Images("digits"))
    prior: float = 0.3
    temperature: float = 1.0
    chain: Chain = field(default_factory=Chain)
    factor: float = 10.0

    def chain_of(self, name: str) -> Chain:
        """The chain of a run."""
        if name == "healthy":
            return self.chain
        return self.chain.but(lr=self.chain.lr * self.factor, preconditioned=name != "no-preconditioner")


PRESETS = {
    "quick": Preset(
        DiagnosticSettings(
            seeds=3, network="mlp-20x1", data=Images("digits", train=500), chain=Chain(0.05, 0.97, 100, 400, 60, 80)
        ),
        0.8,
    ),
    "standard": Preset(
        DiagnosticSettings(
            seeds=5, data=Images("digits", train=500), chain=Chain(0.03, 0.97, 250, 1000, 100, 80), factor=8.0
        ),
        3,
    ),
    "paper": Preset(
        DiagnosticSettings(
            seeds=3,
            network="resnet20-frn",
            data=Images("cifar10"),
            prior=1.0,
            chain=Chain(0.1, 0.9, 128, 150 * 391, 50 * 391, 27),
        ),
        5000,
    ),
}


def cells(settings: DiagnosticSettings) -> list[Cell]:
    """Run × seed."""
    return [Cell.of(run=name, seed=seed) for name in RUNS for seed in settings.all_seeds()]


def run(settings: DiagnosticSettings, cell: Cell) -> dict[str, Any]:
    """A chain; its readings over time and by tensor; the verdict on it."""
    train, test = settings.data.load(cell["seed"])
    network = make_network(settings.network, train, cell["seed"])
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(settings.prior), settings.temperature)
    chain = settings.chain_of(cell["run"])
    options = {"steps": chain.steps, "batch_size": chain.batch_size, "seed": cell["seed"]}
    try:
        fitted = fit(target, chain.method(), train, throw=False, **options)
    except tp.errors.NumericalError as error:  # a chain that broke before its first draw
        return {"passed": False, "verdict": str(error), "failed": ["run"], "draws": 0.0}
    verdict = diagnose.sampling(fitted, train)
    result: dict[str, Any] = {
        "passed": verdict.passed,
        "verdict": str(verdict),
        "failed": [check.name for check in verdict.failed],
        "draws": float(len(fitted.posterior.nodes())),
        "ce": fitted.evaluate(test)["log_loss"],
    }
    kinetic = diagnose.kinetic(fitted, corrected=True, after=chain.start)
    slow = diagnose.kinetic(fitted, corrected=True, after=chain.start, max_pace=0.5)
    configurational = diagnose.configurational(fitted, after=chain.start)
    result |= {
        "names": list(kinetic.names),
        "kinetic": kinetic.network_mean,
        "kinetic_slow": slow.network_mean,
        "inside": slow.inside_share,
        "configurational": configurational.network_mean,
        "kinetic_layers": slow.mean,
        "configurational_layers": configurational.mean,
        "worst_layer": float((slow.mean - 1).abs().max()),
    }
    for name, found in (("kinetic", kinetic), ("configurational", configurational)):
        keep = torch.linspace(0, len(found.step) - 1, min(_POINTS, len(found.step))).long()
        result[f"{name}_steps"] = found.step[keep]
        result[f"{name}_series"] = found.network[0][keep]
    return result


def claims(settings: DiagnosticSettings, done: Cells) -> list[Claim]:
    """Temperatures of the sound run; the verdicts on all."""
    kinetic = estimate(done.values("kinetic_slow", run="healthy"))
    configurational = estimate(done.values("configurational", run="healthy"))
    inside = estimate(done.values("inside", run="healthy"))
    made = [
        Claim(
            "The kinetic temperature of a healthy chain is T at the slow ends of its cycles",
            "99 % of readings inside the 99 % interval for T ≥ 0.1 (released logs, ResNet-20)",
            f"kinetic temperature / T {kinetic}; {inside} of readings inside",
            near(kinetic, 1.0, 0.05),
            f"mean within 0.05 of 1; {RULE}",
        ),
        Claim(
            "Its configurational temperature is T",
            "0.7–0.9 of T at T = 1 (released logs): slow directions",
            f"configurational temperature / T {configurational}",
            near(configurational, 1.0, 0.1),
            f"mean within 0.1 of 1; {RULE}",
        ),
    ]
    for name, label in RUNS.items():
        passed = estimate([float(f.result["passed"]) for f in done.where(run=name)])
        reasons = sorted({reason for f in done.where(run=name) for reason in f.result["failed"]})
        verdict = above(passed, 0.5) if name == "healthy" else below(passed, 0.5)
        made.append(
            Claim(
                f"The verdict on a run ({label}) is right",
                "diagnostics check out" if name == "healthy" else "diagnostics fail",
                f"passed in {passed.mean * passed.count:.0f} of {passed.count} runs"
                + (f"; failed: {', '.join(reasons)}" if reasons else ""),
                verdict,
                ("passed" if name == "healthy" else "did not pass") + f" in more than half; {RULE}",
            )
        )
    return made


def figures(settings: DiagnosticSettings, done: Cells) -> list[Picture]:
    """Temperatures over time, and by layer, for each run."""
    cells_by_run = {name: done.first(run=name, seed=settings.seed) for name in RUNS}
    known = {name: f.result for name, f in cells_by_run.items() if f is not None and "names" in f.result}
    return [_over_time(known), _by_layer(known)] if known else []


def _over_time(known: Mapping[str, Mapping[str, Any]]) -> Picture:
    figure, axes = panels(2, width=5.0, height=3.7)
    for axis, kind in zip(axes, ("kinetic", "configurational"), strict=True):
        for k, name in enumerate(RUNS):
            if name in known:
                found = known[name]
                axis.plot(found[f"{kind}_steps"], found[f"{kind}_series"], color=COLOURS[k], linewidth=1.1, label=name)
        axis.axhline(1.0, color="black", linewidth=1.0, linestyle=":")
        axis.set(xlabel="step", ylabel=f"{kind} temperature / T")
        _scale(axis)
    axes[0].legend()
    words = "Temperatures of the whole network along a healthy and two broken runs, in units of T (one is right); the "
    return Picture("over-time", words + "kinetic one without the integrator's own factor.", figure)


def _scale(axis: Any) -> None:
    """A linear axis where all is near one; otherwise one that shows runs that are hundreds of times too hot as well."""
    low, high = axis.get_ylim()
    if high > 4.0:
        axis.set_yscale("symlog", linthresh=2.0)
        axis.set_yticks([t for t in (0, 1, 2, 10, 100, 1000) if low <= t <= high])
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")
    else:
        axis.set_ylim(min(0.5, low), max(1.5, high))


def _by_layer(known: Mapping[str, Mapping[str, Any]]) -> Picture:
    figure, axes = panels(2, width=5.0, height=3.9)
    for axis, kind in zip(axes, ("kinetic", "configurational"), strict=True):
        for k, name in enumerate(RUNS):
            if name in known:
                values = known[name][f"{kind}_layers"]
                axis.plot(range(len(values)), values, "o-", color=COLOURS[k], label=name)
        names = next(iter(known.values()))["names"]
        axis.set_xticks(range(len(names)), names, rotation=40, ha="right", color=GREY)
        axis.axhline(1.0, color="black", linewidth=1.0, linestyle=":")
        axis.set_ylabel(f"{kind} temperature / T")
        _scale(axis)
    axes[0].legend()
    words = "The same by tensor, averaged over time (the kinetic one in the slow half of cycles)."
    return Picture("by-layer", words, figure)


EXPERIMENT = Experiment(
    name="diagnostics",
    title="Thermometers for a chain",
    paper="Wenzel et al. 2020 (diagnostics for SG-MCMC)",
    question="Do kinetic and configurational temperatures tell a sound chain from a broken one?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
