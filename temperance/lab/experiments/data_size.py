"""``data-size``: does the cold-posterior effect shrink as data outweigh the prior?"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import temperance as tp
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset
from temperance.lab.figures import COLOURS, curve, panels
from temperance.lab.judge import RULE, above, all_of, difference, estimate
from temperance.lab.problems import Images, make_network, make_prior
from temperance.lab.sampling import Chain, sample
from temperance.lab.sweep import HEATS, SweepSettings, gaps, soundness, sweep_cells, sweep_picture, told


@dataclass(frozen=True)
class SizeSettings(SweepSettings):
    """``sizes`` of the training set. What only the prior knows, of precision λ, needs N(1 − β)/(ℓλ) steps to forget its
    start: up to N = ``chain_size`` the chain is as given, beyond that its steps grow like √N."""

    sizes: tuple[int, ...] = (250, 1000, 4000)
    chain_size: int = 1000

    def chain_for(self, size: int) -> Chain:
        """The chain for N = ``size``."""
        factor = max(1.0, (size / self.chain_size) ** 0.5)
        return self.chain.but(
            start=round(self.chain.start * factor),
            cycle=round(self.chain.cycle * factor),
            batch_size=min(self.chain.batch_size, size),
        )


PRESETS = {
    "quick": Preset(
        SizeSettings(
            seeds=3,
            network="mlp-30x2",
            data=Images("digits"),
            prior="normal-1",
            chain=Chain(0.05, 0.97, 50, 300, 60, 4),
            temperatures=(0.05, 1.0),
            sizes=(100, 400),
            chain_size=300,
        ),
        0.5,
    ),
    "standard": Preset(SizeSettings(temperatures=(0.03, 0.3, 1.0)), 4),
    "paper": Preset(
        SizeSettings(
            network="resnet20-frn",
            data=Images("cifar10"),
            prior="normal-1",
            chain=Chain(0.1, 0.9, 128, 150 * 391, 50 * 391, 27),
            temperatures=(0.001, 0.01, 0.03, 0.1, 0.3, 1.0),
            sizes=(2500, 10000, 25000, 50000),
            chain_size=50000,
        ),
        40000,
    ),
}


def cells(settings: SizeSettings) -> list[Cell]:
    """Size × temperature × seed, the large ones first."""
    return sweep_cells(settings, "size", sorted(settings.sizes, reverse=True))


def run(settings: SizeSettings, cell: Cell) -> dict[str, Any]:
    """A chain on so many rows at one temperature."""
    train, test = dataclasses.replace(settings.data, train=cell["size"]).load(cell["seed"])
    network = make_network(settings.network, train, cell["seed"])
    target = tp.Target(network, tp.Categorical(), make_prior(settings.prior), cell["temperature"])
    return sample(target, settings.chain_for(cell["size"]), train, test, cell["seed"])


def claims(settings: SizeSettings, done: Cells) -> list[Claim]:
    """The effect at each size, and whether it shrinks."""
    sizes = sorted(settings.sizes)
    effects = gaps(done, settings, "size", sizes)
    shrink = difference(effects[sizes[0]], effects[sizes[-1]])
    return [
        Claim(
            "The cold-posterior effect is there at every size of the training set",
            "– (the code can subsample; its results were not to be had)",
            f"CE at T = 1 less CE at the best T < 1, by rows: {told(effects)}",
            all_of(*(above(estimate(list(by_seed.values()))) for by_seed in effects.values())),
            f"gap above 0 for each size; {RULE}",
        ),
        Claim(
            "More data outweigh the prior: the effect shrinks",
            "– (asked here: a poor prior should matter less)",
            f"gap at {sizes[0]} rows less gap at {sizes[-1]}: {shrink}",
            above(shrink),
            f"difference above 0; {RULE}",
        ),
        *(soundness(done, size=size) for size in sizes),
    ]


def figures(settings: SizeSettings, done: Cells) -> list[Picture]:
    """The effect by size, and the sweeps behind it."""
    sizes = sorted(settings.sizes)
    figure, (axis,) = panels(1, width=4.8, height=3.6)
    points = {
        float(size): estimate(list(by_seed.values()))
        for size, by_seed in zip(sizes, gaps(done, settings, "size", sizes).values(), strict=True)
    }
    curve(axis, points, None, COLOURS[0])
    axis.set_xscale("log")
    axis.set_xticks(list(points), [str(size) for size in sizes])
    axis.minorticks_off()
    axis.axhline(0.0, color="#444444", linewidth=0.9, linestyle=":")
    axis.set(xlabel="rows of the training set", ylabel="CE at T = 1 less CE at the best T < 1")
    return [
        Picture("data-size", "The cold-posterior effect by the size of the training set.", figure),
        sweep_picture(
            done,
            settings.temperatures,
            {f"{size} rows": {"size": size} for size in sizes},
            ("ce", "accuracy", "ece", *HEATS),
            name="sweep",
            caption=f"{settings.network} on {settings.data.name} under {settings.prior}, by rows: scores, and the "
            "temperatures of the chains.",
        ),
    ]


EXPERIMENT = Experiment(
    name="data-size",
    title="The size of the training set and cold posteriors",
    paper="Wenzel et al. 2020 (subsampled training sets)",
    question="Does the cold-posterior effect depend on the size of the training set?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
