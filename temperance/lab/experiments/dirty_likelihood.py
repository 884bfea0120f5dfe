"""``dirty-likelihood``: is the cold-posterior effect made by augmentation, batch norm or dropout?

Each of them makes what is trained something else than a likelihood of the data: augmentation looks at images that are
not in the data, batch norm ties the examples of a batch together, dropout is another network at each step. A clean
configuration leaves N·∇G̃ unbiased for ∇U: averaged over all minibatches it is the full gradient. That is measured here
too, against ∇U of the network as it predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import temperance as tp
from temperance.engine.engine import Engine
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset
from temperance.lab.figures import COLOURS, panels
from temperance.lab.judge import RULE, above, all_of, below, difference, estimate
from temperance.lab.problems import Images, make_network, make_prior
from temperance.lab.sampling import Chain, sample
from temperance.lab.sweep import HEATS, SweepSettings, cold_gap, gap_picture, soundness, sweep_cells, sweep_picture

SWITCHES = {"": "clean", "-augmented": "augmentation", "-bn": "batch norm", "-dropout": "dropout"}
EXACT, CHANGED = 1e-3, 0.01
"""Relative errors of the averaged gradient below which it counts as unbiased, and above which U counts as changed."""


@dataclass(frozen=True)
class DirtySettings(SweepSettings):
    """Each of ``bases`` as it is, and with one switch at a time. ``repeats`` epochs are averaged for the gradient."""

    bases: tuple[str, ...] = ("mlp-100x2", "cnn")
    repeats: int = 10

    def networks(self) -> list[str]:
        """All of them."""
        return [base + switch for base in self.bases for switch in SWITCHES]


PRESETS = {
    "quick": Preset(
        DirtySettings(
            seeds=3,
            data=Images("digits", train=300),
            chain=Chain(0.05, 0.97, 50, 300, 60, 3, allow_batch_norm=True),
            temperatures=(0.05, 1.0),
            bases=("mlp-30x2",),
            repeats=3,
        ),
        0.8,
    ),
    "standard": Preset(
        DirtySettings(chain=Chain(cycles=15, allow_batch_norm=True), temperatures=(0.1, 1.0)),
        7,
    ),
    "paper": Preset(
        DirtySettings(
            data=Images("cifar10"),
            prior="normal-1",
            chain=Chain(0.1, 0.9, 128, 150 * 391, 50 * 391, 27, allow_batch_norm=True),
            temperatures=(0.001, 0.01, 0.03, 0.1, 0.3, 1.0),
            bases=("cnn",),
        ),
        10000,
    ),
}


def cells(settings: DirtySettings) -> list[Cell]:
    """Network × temperature × seed, and a look at the gradient for each network and seed."""
    looks = [
        Cell.of(network=network, look="gradient", seed=seed)
        for network in settings.networks()
        for seed in settings.all_seeds()
    ]
    return looks + sweep_cells(settings, "network", settings.networks())


def run(settings: DirtySettings, cell: Cell) -> dict[str, Any]:
    """A chain at one temperature, or the bias of the gradient."""
    train, test = settings.data.load(cell["seed"])
    network = make_network(cell["network"], train, cell["seed"])
    target = tp.Target(network, tp.Categorical(), make_prior(settings.prior), cell.get("temperature", 1.0))
    if "temperature" in cell.params:
        return sample(target, settings.chain, train, test, cell["seed"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cell["seed"])
        return {"bias": gradient_bias(target, train, settings.chain.batch_size, settings.repeats)}


def gradient_bias(target: tp.Target, data: tp.data.Data, batch_size: int, repeats: int) -> float:
    """‖mean of N·∇G̃ over all minibatches − ∇U‖ / ‖∇U‖ at the network's first weights, ∇U in evaluation mode."""
    ready, theta, engine = target.prepare(data), target.initial_theta(), Engine(target)
    gradient, total = torch.zeros_like(theta), torch.zeros_like(theta, dtype=torch.float64)
    for epoch in range(repeats):
        for batch in ready.batches(batch_size, epoch=epoch):
            engine.gradient(theta, batch, gradient)
            total += gradient.double() * batch.size / repeats  # N · (size / N): a ragged batch counts by its rows
    theta.requires_grad_(True)
    (exact,) = torch.autograd.grad(engine.energy(theta, ready), theta)
    return float((total - exact).norm() / exact.norm())


def claims(settings: DirtySettings, done: Cells) -> list[Claim]:
    """What is unbiased and what is not; whether the effect is there without switches; what each switch adds."""

    def biases(switches: Sequence[str]) -> dict[str, Any]:
        networks = [base + switch for base in settings.bases for switch in switches]
        return {network: estimate(done.values("bias", network=network, look="gradient")) for network in networks}

    clean, dirty = biases([""]), biases([switch for switch in SWITCHES if switch])
    made = [
        Claim(
            "A clean configuration leaves N·∇G̃ unbiased for ∇U",
            "a theorem",
            "relative error of the average over all minibatches: " + "; ".join(f"{n}: {e}" for n, e in clean.items()),
            all_of(*(below(e, EXACT) for e in clean.values())),
            f"below {EXACT:g}; {RULE}",
        ),
        Claim(
            "Augmentation, batch norm and dropout change U",
            "named as dirty likelihoods",
            "; ".join(f"{n}: {e}" for n, e in dirty.items()),
            all_of(*(above(e, CHANGED) for e in dirty.values())),
            f"relative error above {CHANGED:g} for each; {RULE}",
        ),
    ]
    for base in settings.bases:
        effects = {switch: cold_gap(done, settings.temperatures, network=base + switch) for switch in SWITCHES}
        plain = estimate(list(effects[""].values()))
        made.append(
            Claim(
                f"{base}: the cold-posterior effect is there with a clean likelihood",
                "a hypothesis: dirty likelihoods are the cause; then a clean one has no effect",
                f"CE at T = 1 less CE at the best T < 1: {plain}",
                above(plain),
                f"gap above 0; {RULE}",
            )
        )
        more = {switch: difference(effects[switch], effects[""]) for switch in SWITCHES if switch}
        made.append(
            Claim(
                f"{base}: augmentation strengthens the effect",
                "without augmentation T = 1 is fine (Izmailov et al. 2021; Kapoor et al. 2022)",
                "gap larger than clean by: " + "; ".join(f"{SWITCHES[s]} {e}" for s, e in more.items()),
                above(more["-augmented"]),
                f"difference for augmentation above 0; {RULE}",
            )
        )
    return made + [soundness(done, network=base) for base in settings.bases]


def figures(settings: DirtySettings, done: Cells) -> list[Picture]:
    """Sweeps and effects for each base; the bias of the gradient."""
    pictures = []
    for base in settings.bases:
        arms = {label: {"network": base + switch} for switch, label in SWITCHES.items()}
        pictures.append(
            sweep_picture(
                done,
                settings.temperatures,
                arms,
                ("ce", "accuracy", "ece", *HEATS),
                name=f"sweep-{base}",
                caption=f"{base} on {settings.data.name}, clean and with one switch at a time: scores, and the "
                "temperatures of the chains.",
            )
        )
        effects = {
            label: estimate(list(cold_gap(done, settings.temperatures, network=base + switch).values()))
            for switch, label in SWITCHES.items()
        }
        words = f"{base}: the cold-posterior effect with one switch at a time (95 % intervals)."
        pictures.append(gap_picture(effects, "", words, name=f"gap-{base}"))
    figure, (axis,) = panels(1, width=5.4, height=3.6)
    for k, base in enumerate(settings.bases):
        values = [estimate(done.values("bias", network=base + s, look="gradient")) for s in SWITCHES]
        places = [number + 0.12 * (k - (len(settings.bases) - 1) / 2) for number in range(len(SWITCHES))]
        known = [(place, value) for place, value in zip(places, values, strict=True) if value.count]
        axis.plot([p for p, _ in known], [max(v.mean, 1e-9) for _, v in known], "o", color=COLOURS[k], label=base)
    axis.set_xticks(range(len(SWITCHES)), list(SWITCHES.values()))
    axis.set(yscale="log", ylabel="relative error of the mean gradient")
    axis.axhline(EXACT, color="#444444", linewidth=0.9, linestyle=":")
    axis.legend()
    words = "How far the minibatch gradients, averaged over whole epochs, are from ∇U of the network that predicts."
    return [*pictures, Picture("gradient-bias", words, figure)]


EXPERIMENT = Experiment(
    name="dirty-likelihood",
    title="Dirty likelihoods and cold posteriors",
    paper="Wenzel et al. 2020 (hypothesis: dirty likelihoods); Izmailov et al. 2021; Kapoor et al. 2022",
    question="Do augmentation, batch norm or dropout make the cold-posterior effect?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
