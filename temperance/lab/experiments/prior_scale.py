"""``prior-scale``: is the cold-posterior effect due to the scale of the Gaussian prior?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import temperance as tp
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset
from temperance.lab.judge import RULE, above, all_of, difference, estimate
from temperance.lab.problems import Images, make_network, make_prior
from temperance.lab.sampling import Chain, sample
from temperance.lab.sweep import (
    HEATS,
    SweepSettings,
    best_temperature,
    gap_picture,
    gaps,
    soundness,
    sweep_cells,
    sweep_picture,
    told,
)

UNIT = "normal-1"


@dataclass(frozen=True)
class ScaleSettings(SweepSettings):
    """``priors``: ``normal-SCALE`` for all weights alike, or ``fan-in-GAIN`` for a scale of gain / √fan-in. One of them
    is ``normal-1``."""

    priors: tuple[str, ...] = ("normal-0.1", "normal-0.3", UNIT, "fan-in-1.4", "fan-in-3")


PRESETS = {
    "quick": Preset(
        ScaleSettings(
            seeds=3,
            network="mlp-30x2",
            data=Images("digits", train=300),
            chain=Chain(0.05, 0.97, 50, 300, 60, 4),
            temperatures=(0.05, 1.0),
            priors=("normal-0.3", UNIT, "fan-in-3"),
        ),
        0.6,
    ),
    "standard": Preset(ScaleSettings(chain=Chain(start=2500), temperatures=(0.03, 0.3, 1.0)), 5),
    "paper": Preset(
        ScaleSettings(
            network="resnet20-frn",
            data=Images("cifar10"),
            chain=Chain(0.1, 0.9, 128, 150 * 391, 50 * 391, 27),
            temperatures=(0.001, 0.01, 0.03, 0.1, 0.3, 1.0),
            priors=("normal-0.01", "normal-0.1", UNIT, "normal-10", "normal-100"),
        ),
        40000,
    ),
}


def cells(settings: ScaleSettings) -> list[Cell]:
    """Prior × temperature × seed."""
    return sweep_cells(settings, "prior", settings.priors)


def run(settings: ScaleSettings, cell: Cell) -> dict[str, Any]:
    """A chain under one prior at one temperature."""
    train, test = settings.data.load(cell["seed"])
    network = make_network(settings.network, train, cell["seed"])
    target = tp.Target(network, tp.Categorical(), make_prior(cell["prior"]), cell["temperature"])
    return sample(target, settings.chain, train, test, cell["seed"])


def claims(settings: ScaleSettings, done: Cells) -> list[Claim]:
    """The effect at every scale; less of it for a prior that fits; and what the best prior at T = 1 is worth."""
    effects = gaps(done, settings, "prior", settings.priors)
    every = all_of(*(above(estimate(list(by_seed.values()))) for by_seed in effects.values()))
    scaled = settings.priors[-1]
    shrink = difference(effects[UNIT], effects[scaled])
    best = {arm: best_temperature(done, settings.temperatures, prior=arm) for arm in settings.priors}
    warm = {arm: estimate(done.values("ce", temperature=1.0, prior=arm)) for arm in settings.priors}
    known = {arm: e.mean for arm, e in warm.items() if e.count}
    good = min(known, key=lambda arm: known[arm])
    gain = difference(done.by_seed("ce", temperature=1.0, prior=UNIT), done.by_seed("ce", temperature=1.0, prior=good))
    return [
        Claim(
            "The cold-posterior effect is there at every scale of the Gaussian prior",
            "a hypothesis: current priors are poor (the results of the sweep were not to be had)",
            f"CE at T = 1 less CE at the best T < 1, by prior: {told(effects)}; best T: "
            + ", ".join(f"{arm} {t:g}" for arm, t in best.items() if t is not None),
            every,
            f"gap above 0 for each prior; {RULE}",
        ),
        Claim(
            f"{scaled} has less of the effect than N(0, 1)",
            "– (asked here)",
            f"gap smaller by {shrink}",
            above(shrink),
            f"difference above 0; {RULE}",
        ),
        Claim(
            "At T = 1 another scale predicts better than N(0, 1)",
            "– (asked here)",
            f"best at T = 1: {good}, cross-entropy lower by {gain}; "
            + "; ".join(f"{arm}: {e}" for arm, e in warm.items()),
            above(gain) if good != UNIT else False,
            f"difference above 0; {RULE}; the scale was chosen on the same data",
        ),
        *(soundness(done, prior=arm) for arm in settings.priors),
    ]


def figures(settings: ScaleSettings, done: Cells) -> list[Picture]:
    """Scores against temperature for each prior, and the effect by prior."""
    arms = {arm: {"prior": arm} for arm in settings.priors}
    words = f"{settings.network} on {settings.data.name} under Gaussian priors of several scales. Bars: one standard "
    effects = {arm: estimate(list(by.values())) for arm, by in gaps(done, settings, "prior", settings.priors).items()}
    return [
        sweep_picture(done, settings.temperatures, arms, name="prior-scale", caption=words + "error over seeds."),
        gap_picture(
            {str(arm): e for arm, e in effects.items()},
            "prior",
            "The cold-posterior effect by prior: how much the cross-entropy at T = 1 exceeds the best colder.",
        ),
        sweep_picture(
            done,
            settings.temperatures,
            arms,
            HEATS,
            name="chain-temperatures",
            caption="How hot the chains were, in units of T.",
        ),
    ]


EXPERIMENT = Experiment(
    name="prior-scale",
    title="The scale of the prior and cold posteriors",
    paper="Wenzel et al. 2020 (prior scale sweep of the released code)",
    question="Is T = 1 the best temperature if the Gaussian prior has another scale than 1?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
