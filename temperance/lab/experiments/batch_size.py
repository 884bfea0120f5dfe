"""``batch-size``: is the cold-posterior effect due to the noise of minibatches?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import temperance as tp
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset
from temperance.lab.judge import RULE, above, all_of, difference, estimate, near
from temperance.lab.problems import Images, make_network, make_prior
from temperance.lab.sampling import Chain, sample
from temperance.lab.sweep import HEATS, SweepSettings, gap_picture, gaps, soundness, sweep_cells, sweep_picture, told

TOLERANCE = 0.1
"""Nats of cross-entropy at T = 1 within which batch sizes count as equal."""


@dataclass(frozen=True)
class BatchSettings(SweepSettings):
    """``sizes`` of batches; the number of steps is the same for all."""

    sizes: tuple[int, ...] = (20, 100, 500)


PRESETS = {
    "quick": Preset(
        BatchSettings(
            seeds=3,
            network="mlp-30x2",
            data=Images("digits", train=300),
            prior="normal-1",
            chain=Chain(0.05, 0.97, 50, 300, 60, 4),
            temperatures=(0.05, 1.0),
            sizes=(30, 300),
        ),
        0.5,
    ),
    "standard": Preset(
        BatchSettings(data=Images("fashion-mnist", train=500, test=2000), temperatures=(0.03, 0.3, 1.0)),
        4,
    ),
    "paper": Preset(
        BatchSettings(
            network="resnet20-frn",
            data=Images("cifar10"),
            prior="normal-1",
            chain=Chain(0.1, 0.9, 128, 150 * 391, 50 * 391, 27),
            temperatures=(0.001, 0.01, 0.03, 0.1, 0.3, 1.0),
            sizes=(32, 128, 512, 1024),
        ),
        40000,
    ),
}


def cells(settings: BatchSettings) -> list[Cell]:
    """Batch size × temperature × seed, the large batches first."""
    return sweep_cells(settings, "batch", sorted(settings.sizes, reverse=True))


def run(settings: BatchSettings, cell: Cell) -> dict[str, Any]:
    """A chain with one batch size at one temperature."""
    train, test = settings.data.load(cell["seed"])
    network = make_network(settings.network, train, cell["seed"])
    target = tp.Target(network, tp.Categorical(), make_prior(settings.prior), cell["temperature"])
    return sample(target, settings.chain.but(batch_size=cell["batch"]), train, test, cell["seed"])


def claims(settings: BatchSettings, done: Cells) -> list[Claim]:
    """The effect stays with the largest batch; T = 1 gives the same for all; small T is hotter with small batches."""
    sizes = sorted(settings.sizes)
    effects = gaps(done, settings, "batch", sizes)
    largest = estimate(list(effects[sizes[-1]].values()))
    reference = done.by_seed("ce", temperature=1.0, batch=sizes[-1])
    apart = {size: difference(done.by_seed("ce", temperature=1.0, batch=size), reference) for size in sizes[:-1]}
    cold = min(settings.temperatures)
    hot = difference(
        done.by_seed("kinetic_slow", temperature=cold, batch=sizes[0]),
        done.by_seed("kinetic_slow", temperature=cold, batch=sizes[-1]),
    )
    whole = " (the whole data)" if sizes[-1] == settings.data.train else ""
    return [
        Claim(
            "The cold-posterior effect does not go away without the noise of minibatches",
            "inference works well enough: minibatch noise is not the cause",
            f"CE at T = 1 less CE at the best T < 1, by batch size: {told(effects)}",
            above(largest),
            f"gap above 0 at batch size {sizes[-1]}{whole}; {RULE}",
        ),
        Claim(
            "At T = 1 all batch sizes give the same posterior",
            "inference is accurate enough",
            f"CE at T = 1 against batch size {sizes[-1]}: " + "; ".join(f"{size}: {e}" for size, e in apart.items()),
            all_of(*(near(e, 0.0, TOLERANCE) for e in apart.values())),
            f"within {TOLERANCE} nats; {RULE}",
        ),
        Claim(
            f"At T = {cold:g} the noise of small batches heats the chain",
            "kinetic temperatures fail at small T (released logs)",
            f"kinetic temperature / T higher by {hot} with batches of {sizes[0]} than of {sizes[-1]}",
            above(hot),
            f"difference above 0; {RULE}",
        ),
        soundness(done, batch=sizes[-1]),
    ]


def figures(settings: BatchSettings, done: Cells) -> list[Picture]:
    """Scores and temperatures against T for each batch size, and the effect by batch size."""
    sizes = sorted(settings.sizes)
    arms = {f"batch {size}": {"batch": size} for size in sizes}
    effects = {str(size): estimate(list(by.values())) for size, by in gaps(done, settings, "batch", sizes).items()}
    return [
        sweep_picture(
            done,
            settings.temperatures,
            arms,
            ("ce", "accuracy", "ece", *HEATS),
            name="batch-size",
            caption=f"{settings.network} on {settings.data.train or 'all'} rows of {settings.data.name}, by batch size "
            "with the same number of steps: scores, and the temperatures of the chains.",
        ),
        gap_picture(effects, "batch size", "The cold-posterior effect by batch size (95 % intervals)."),
    ]


EXPERIMENT = Experiment(
    name="batch-size",
    title="The noise of minibatches and cold posteriors",
    paper="Wenzel et al. 2020 (batch-size ablation at a fixed number of iterations)",
    question="Is the cold-posterior effect made by the noise of minibatch gradients?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
