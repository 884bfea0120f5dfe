"""``cold-posterior``: is the Bayes posterior, at T = 1, the one that predicts best?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import temperance as tp
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.judge import RULE, above, difference, estimate
from temperance.lab.problems import Images, fit, make_network, make_prior, scores
from temperance.lab.sampling import Chain, sample, sgd
from temperance.lab.sweep import HEATS, best_temperature, cold_gap, soundness, sweep_picture


@dataclass(frozen=True)
class Arm:
    """A network under a prior on data, with the chain and the SGD that suit it."""

    network: str
    prior: str
    data: Images
    chain: Chain
    sgd_steps: int
    sgd_lr: float = 0.1

    @property
    def name(self) -> str:
        """Network and prior."""
        return f"{self.network} {self.prior}"


@dataclass(frozen=True)
class ColdSettings(Settings):
    """``arms`` at ``temperatures``; an SGD ensemble has ``members``. The paper's prior is ``normal-1``."""

    arms: tuple[Arm, ...] = ()
    temperatures: tuple[float, ...] = ()
    members: int = 5

    def arm(self, name: str) -> Arm:
        """By name."""
        return next(arm for arm in self.arms if arm.name == name)


_DIGITS = Images("digits", train=300)
_FASHION = Images("fashion-mnist", train=1000, test=2000)
_CIFAR_EPOCH, _IMDB_EPOCH = 391, 625  # 50,000 rows in batches of 128; 20,000 in batches of 32
PRESETS = {
    "quick": Preset(
        ColdSettings(
            seeds=3,
            arms=(Arm("mlp-30x2", "normal-1", _DIGITS, Chain(0.05, 0.97, 50, 300, 60, 6), 200),),
            temperatures=(0.01, 0.1, 1.0),
            members=3,
        ),
        0.6,
    ),
    "standard": Preset(
        ColdSettings(
            seeds=3,
            arms=(
                Arm("mlp-100x2", "fan-in-3", _FASHION, Chain(cycles=25), 1500),
                Arm("mlp-100x2", "normal-1", _FASHION, Chain(0.01, 0.99, 100, 2000, 150, 20), 1500),
                Arm("cnn", "normal-1", _FASHION, Chain(0.02, 0.99, 100, 1000, 100, 20), 1000),
            ),
            temperatures=(1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
        ),
        8,
    ),
    "paper": Preset(
        ColdSettings(
            seeds=3,
            arms=(
                Arm(
                    "resnet20-bn-augmented",
                    "normal-1",
                    Images("cifar10"),
                    Chain(0.1, 0.9, 128, 150 * _CIFAR_EPOCH, 50 * _CIFAR_EPOCH, 27, allow_batch_norm=True),
                    200 * _CIFAR_EPOCH,
                ),
                Arm(
                    "resnet20-frn",
                    "normal-1",
                    Images("cifar10"),
                    Chain(0.1, 0.9, 128, 150 * _CIFAR_EPOCH, 50 * _CIFAR_EPOCH, 27),
                    200 * _CIFAR_EPOCH,
                ),
                Arm(
                    "cnn-lstm",
                    "normal-1",
                    Images("imdb", train=20000),
                    Chain(0.1, 0.9, 32, 50 * _IMDB_EPOCH, 25 * _IMDB_EPOCH, 18),
                    20 * _IMDB_EPOCH,
                ),
            ),
            temperatures=tuple(round(10 ** (-4 + k / 4), 6) for k in range(17)),
        ),
        60000,
    ),
}


def cells(settings: ColdSettings) -> list[Cell]:
    """For each network and seed: SGD, an ensemble of it, and a chain at each temperature."""
    made = []
    for arm in settings.arms:
        for seed in settings.all_seeds():
            made += [Cell.of(arm=arm.name, method=method, seed=seed) for method in ("sgd-ensemble", "sgd")]
            made += [Cell.of(arm=arm.name, method="sghmc", temperature=t, seed=seed) for t in settings.temperatures]
    return made


def run(settings: ColdSettings, cell: Cell) -> dict[str, Any]:
    """Scores on test data; of a chain also its temperatures."""
    arm, seed = settings.arm(cell["arm"]), cell["seed"]
    train, test = arm.data.load(seed)
    network = make_network(arm.network, train, seed)
    target = tp.Target(network, tp.Categorical(), make_prior(arm.prior), cell.get("temperature", 1.0))
    if cell["method"] == "sghmc":
        return sample(target, arm.chain, train, test, seed)
    method: tp.Inference[Any] = sgd(arm.sgd_lr, 0.9, arm.sgd_steps)
    if cell["method"] == "sgd-ensemble":
        method = tp.Ensemble(method, settings.members)
    fitted = fit(target, method, train, steps=arm.sgd_steps, batch_size=arm.chain.batch_size, seed=seed)
    return scores(fitted, test)


_PAPER = {
    "best": "lowest cross-entropy at T ≈ 0.07 (ResNet-20, .219 against .358 at T = 1), 0.02–0.04 (CNN-LSTM, .305 "
    "against .446)",
    "sgd": "accuracy at T = 1 .882 against SGD's .922 (ResNet-20), .808 against .830 (CNN-LSTM)",
    "cold": "cross-entropy .219 against SGD's .327 (ResNet-20), .305 against .394 (CNN-LSTM)",
}


def claims(settings: ColdSettings, done: Cells) -> list[Claim]:
    """For each network: cold is better than T = 1, T = 1 is worse than SGD, cold beats SGD; sampling was sound."""
    made = []
    for arm in settings.arms:
        match = {"arm": arm.name, "method": "sghmc"}
        grid, at = settings.temperatures, {"arm": arm.name}
        best = best_temperature(done, grid, **match)
        gap = estimate(list(cold_gap(done, grid, **match).values()))
        made.append(
            Claim(
                f"{arm.name}: a cold posterior (T < 1) predicts better than the Bayes posterior",
                _PAPER["best"],
                f"best T {best:g}; cross-entropy at T = 1 is higher by {gap}",
                above(gap),
                f"gap above 0, best T chosen by the other seeds; {RULE}",
            )
        )
        loss = difference(
            done.by_seed("accuracy", method="sgd", **at), done.by_seed("accuracy", temperature=1.0, **match)
        )
        made.append(
            Claim(
                f"{arm.name}: the Bayes posterior is less accurate than SGD",
                _PAPER["sgd"],
                f"SGD {estimate(done.values('accuracy', method='sgd', **at))}, T = 1 "
                f"{estimate(done.values('accuracy', temperature=1.0, **match))}; difference {loss}",
                above(loss),
                f"difference above 0; {RULE}",
            )
        )
        made.append(_cold_beats_sgd(settings, done, arm.name))
        made.append(soundness(done, arm=arm.name))
    return made


def _cold_beats_sgd(settings: ColdSettings, done: Cells, arm: str) -> Claim:
    plain, cold = done.by_seed("ce", arm=arm, method="sgd"), {}
    for seed in plain:  # the temperature is chosen by the other seeds
        others = Cells([f for f in done.where(arm=arm, method="sghmc") if f.cell["seed"] != seed])
        colder = [t for t in settings.temperatures if t < 1]
        best = best_temperature(others, colder)
        found = {} if best is None else done.by_seed("ce", arm=arm, method="sghmc", temperature=best)
        if seed in found:
            cold[seed] = found[seed]
    gain = difference(plain, cold)
    ensemble = estimate(done.values("ce", arm=arm, method="sgd-ensemble"))
    return Claim(
        f"{arm}: the cold posterior beats SGD",
        _PAPER["cold"],
        f"cross-entropy: SGD {estimate(list(plain.values()))}, cold {estimate(list(cold.values()))} (lower by {gain}); "
        f"an ensemble of {settings.members} SGD runs {ensemble}",
        above(gain),
        f"difference above 0, T chosen by the other seeds; {RULE}",
    )


def figures(settings: ColdSettings, done: Cells) -> list[Picture]:
    """Scores against temperature for each network, with SGD marked; and the chains' own temperatures."""
    pictures = []
    for arm in settings.arms:
        at = {"arm": arm.name}
        pictures.append(
            sweep_picture(
                done,
                settings.temperatures,
                {"SG-MCMC": at | {"method": "sghmc"}},
                ("ce", "accuracy", "ece", "gibbs_ce"),
                name=f"temperature-{arm.network}-{arm.prior}",
                caption=f"{arm.name} on {arm.data.name}: scores of the averaged prediction against temperature; the "
                "dotted line is the Bayes posterior, T = 1. Bars and bands: one standard error over seeds.",
                marks={"SGD": at | {"method": "sgd"}, "SGD ensemble": at | {"method": "sgd-ensemble"}},
            )
        )
    pictures.append(
        sweep_picture(
            done,
            settings.temperatures,
            {arm.name: {"arm": arm.name, "method": "sghmc"} for arm in settings.arms},
            HEATS,
            name="chain-temperatures",
            caption="How hot the chains were, in units of T. Where T is tiny, the noise of batches is hotter.",
        )
    )
    return pictures


EXPERIMENT = Experiment(
    name="cold-posterior",
    title="Cold posteriors",
    paper="Wenzel et al. 2020, How good is the Bayes posterior in deep neural networks really?",
    question="Does the Bayes posterior, at temperature 1, predict best, or does a colder one?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
