"""``capacity``: does the cold-posterior effect grow with width and depth?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import temperance as tp
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset
from temperance.lab.figures import COLOURS, curve, panels
from temperance.lab.judge import RULE, above, difference, estimate
from temperance.lab.problems import Images, make_network, make_prior
from temperance.lab.sampling import Chain, sample
from temperance.lab.sweep import HEATS, SweepSettings, gaps, soundness, sweep_cells, sweep_picture


@dataclass(frozen=True)
class CapacitySettings(SweepSettings):
    """MLPs of ``widths`` with ``depth`` hidden layers, and of ``depths`` hidden layers of ``width`` units."""

    widths: tuple[int, ...] = (10, 30, 100, 200)
    depth: int = 3
    depths: tuple[int, ...] = (1, 2, 3, 5)
    width: int = 128

    def by_width(self) -> dict[int, str]:
        """The networks of several widths."""
        return {width: f"mlp-{width}x{self.depth}" for width in self.widths}

    def by_depth(self) -> dict[int, str]:
        """The networks of several depths."""
        return {depth: f"mlp-{self.width}x{depth}" for depth in self.depths}

    def networks(self) -> list[str]:
        """All of them, once each."""
        return list(dict.fromkeys([*self.by_width().values(), *self.by_depth().values()]))


PRESETS = {
    "quick": Preset(
        CapacitySettings(
            seeds=3,
            data=Images("digits", train=300),
            prior="normal-1",
            chain=Chain(0.05, 0.97, 50, 300, 60, 4),
            temperatures=(0.05, 1.0),
            widths=(10, 50),
            depth=2,
            depths=(1, 2),
            width=50,
        ),
        0.6,
    ),
    "standard": Preset(CapacitySettings(temperatures=(0.1, 1.0)), 5),
    "paper": Preset(
        CapacitySettings(
            data=Images("cifar10"),
            prior="normal-1",
            chain=Chain(0.1, 0.9, 128, 150 * 391, 50 * 391, 27),
            temperatures=(0.001, 0.01, 0.03, 0.1, 0.3, 1.0),
            widths=(32, 64, 128, 256, 512),
            depths=(1, 2, 3, 4, 5),
        ),
        10000,
    ),
}


def cells(settings: CapacitySettings) -> list[Cell]:
    """Network × temperature × seed."""
    return sweep_cells(settings, "network", settings.networks())


def run(settings: CapacitySettings, cell: Cell) -> dict[str, Any]:
    """A chain of one network at one temperature."""
    train, test = settings.data.load(cell["seed"])
    network = make_network(cell["network"], train, cell["seed"])
    target = tp.Target(network, tp.Categorical(), make_prior(settings.prior), cell["temperature"])
    return sample(target, settings.chain, train, test, cell["seed"])


def claims(settings: CapacitySettings, done: Cells) -> list[Claim]:
    """The effect in the largest network less that in the smallest, by width and by depth."""
    effects = gaps(done, settings, "network", settings.networks())
    made = []
    for what, family in (("width", settings.by_width()), ("depth", settings.by_depth())):
        small, large = family[min(family)], family[max(family)]
        growth = difference(effects[large], effects[small])
        parts = "; ".join(f"{size}: {estimate(list(effects[network].values()))}" for size, network in family.items())
        made.append(
            Claim(
                f"The cold-posterior effect grows with {what}",
                "stronger with depth and capacity (MLPs on CIFAR-10: width at depth 3, depth at width 128)",
                f"CE at T = 1 less CE at the best T < 1, by {what}: {parts}; largest less smallest {growth}",
                above(growth),
                f"difference above 0; {RULE}",
            )
        )
    return made + [soundness(done, network=network) for network in settings.networks()]


def figures(settings: CapacitySettings, done: Cells) -> list[Picture]:
    """The effect by width and by depth, and the sweeps behind it."""
    effects = gaps(done, settings, "network", settings.networks())
    figure, axes = panels(2, width=4.4, height=3.6)
    for axis, what, family in ((axes[0], "width", settings.by_width()), (axes[1], "depth", settings.by_depth())):
        points = {float(size): estimate(list(effects[network].values())) for size, network in family.items()}
        curve(axis, points, None, COLOURS[0])
        axis.axhline(0.0, color="#444444", linewidth=0.9, linestyle=":")
        fixed = f"depth {settings.depth}" if what == "width" else f"width {settings.width}"
        axis.set(xlabel=f"{what} (at {fixed})", ylabel="CE at T = 1 less CE at the best T < 1")
        axis.set_xticks(list(points), [str(size) for size in family])
        if what == "width":
            axis.set_xscale("log")
            axis.set_xticks(list(points), [str(size) for size in family])
            axis.minorticks_off()
    words = "The cold-posterior effect by capacity: how much the cross-entropy at T = 1 exceeds the best colder one."
    return [
        Picture("capacity", words, figure),
        _sweep(settings, done, "width", list(settings.by_width().values())),
        _sweep(settings, done, "depth", list(settings.by_depth().values())),
    ]


def _sweep(settings: CapacitySettings, done: Cells, what: str, networks: Sequence[str]) -> Picture:
    return sweep_picture(
        done,
        settings.temperatures,
        {network: {"network": network} for network in networks},
        ("ce", "accuracy", "ece", *HEATS),
        name=f"sweep-{what}",
        caption=f"MLPs on {settings.data.name} under {settings.prior}, by {what}: scores, and the chains' heat.",
    )


EXPERIMENT = Experiment(
    name="capacity",
    title="Capacity and cold posteriors",
    paper="Wenzel et al. 2020 (MLPs of several widths and depths on CIFAR-10)",
    question="Does the cold-posterior effect grow with the width and the depth of a network?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
