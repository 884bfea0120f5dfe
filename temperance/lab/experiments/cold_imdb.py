"""``cold-imdb``: the headline of the cold-posterior paper on its own network and data, all of them.

The CNN-LSTM of Wenzel et al. (2020), 2,638,966 weights, on 20,000 IMDB reviews: a chain at each of six temperatures
under the paper's prior N(0, 1), with SGD and ensembles beside it; then two explanations of the effect, each at T = 1
and below. *The prior*: the scale of each layer is learned (:class:`temperance.NonCentred`). *The likelihood*: reviews
are in the data because their authors were of one mind, so that labels are curated
(:class:`temperance.CuratedLabels`). One more chain is under the prior N(0, 1/40) of Izmailov et al. (2021), whose long
run of HMC is published: all predictions are compared with it.

``quick`` needs no files: made-up reviews, the true probabilities in place of HMC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

import temperance as tp
from temperance.judge import diagnose
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings, Sheet
from temperance.lab.experiments.hmc_agreement import MADE_UP, compared, hmc_level, hmc_scores, member_probs, reviews
from temperance.lab.figures import COLOURS, curve, level, panels, temperatures
from temperance.lab.judge import RULE, above, below, difference, estimate
from temperance.lab.problems import fit
from temperance.lab.sampling import Chain, sgd
from temperance.lab.sweep import HEATS, LABELS, best_temperature, by_temperature, cold_gap, soundness

PAPER, LEARNED, CURATED, HMC = "N(0, 1)", "learned scales", "curated labels", "N(0, 1/40)"
OPTIMISED, FRESH = "optimised", "fresh"
SGD, SGD_ENSEMBLE, EARLY, EARLY_ENSEMBLE = "sgd", "sgd-ensemble", "early", "early-ensemble"
POINTS = {
    SGD: "SGD",
    SGD_ENSEMBLE: "ensemble of SGD",
    EARLY: "early-stopped Adam",
    EARLY_ENSEMBLE: "ensemble of early-stopped Adam",
}


@dataclass(frozen=True)
class ImdbSettings(Settings):
    """The CNN-LSTM with word vectors of ``embedding`` numbers, ``channels`` and ``lstm`` units on ``data`` (``imdb`` or
    ``made-up``), its first ``train`` and first ``test`` rows (0: all of them); the ``held_out`` rows after the training
    rows say when Adam stops.

    Chains begin at each of ``starts``: where early-stopped Adam ends, and at fresh weights. Chains of this length do
    not forget where they began, so that how far the two are apart says how little either can be trusted.
    ``temperatures`` of the chain under N(0, 1) and ``few`` of those with learned scales and with labels on which
    ``labellers`` agreed. Their likelihood is that many times as stiff, and the noise of its gradients that many times
    squared as hot, so that the chain has a step of its own; with ten labellers one that is cool enough takes ten times
    as long to forget its start as this chain lasts. SGD runs for ``epochs``; ensembles have ``members``. ``hot_draws``:
    draws by which the temperature by curvature is found.
    """

    data: str = "imdb"
    train: int = 20000
    held_out: int = 5000
    test: int = 0
    vocabulary: int = 20000
    length: int = 100
    embedding: int = 128
    channels: int = 64
    lstm: int = 70
    chain: Chain = field(default_factory=Chain)
    temperatures: tuple[float, ...] = (1.0, 0.03, 0.001, 0.1, 0.3, 0.01)
    few: tuple[float, ...] = (1.0, 0.1)
    labellers: int = 3
    epochs: int = 10
    curated_lr: float = 0.02
    curated_momentum: float = 0.98
    sgd_lr: float = 0.1
    adam_lr: float = 1e-3
    starts: tuple[str, ...] = (OPTIMISED, FRESH)
    members: int = 5
    hot_draws: int = 2


_EPOCH = 625
PRESETS = {
    "quick": Preset(
        ImdbSettings(
            data=MADE_UP, train=200, held_out=100, test=200, vocabulary=40, length=16, embedding=4, channels=4, lstm=4,
            chain=Chain(0.03, 0.97, 32, 80, 20, 4), temperatures=(1.0, 0.1), few=(1.0, 0.1), epochs=10, members=2,
            adam_lr=0.01,
        ),
        0.5,
    ),
    "standard": Preset(ImdbSettings(chain=Chain(0.1, 0.98, 32, 15 * _EPOCH, 5 * _EPOCH, 10)), 210),
    "paper": Preset(
        ImdbSettings(
            chain=Chain(0.1, 0.9, 32, 50 * _EPOCH, 25 * _EPOCH, 18), epochs=20,
            temperatures=tuple(round(10 ** (-4 + k / 4), 6) for k in range(16, -1, -1)),
        ),
        6000,
    ),
}  # fmt: skip


def chains(settings: ImdbSettings) -> list[tuple[str, float]]:
    """Arm and temperature of each chain, the paper's ends first."""
    made = [(PAPER, t) for t in settings.temperatures[:2]]
    made += [(HMC, 1.0), *((arm, t) for t in settings.few for arm in (LEARNED, CURATED))]
    return made + [(PAPER, t) for t in settings.temperatures[2:]]


def cells(settings: ImdbSettings) -> list[Cell]:
    """For each seed the points, then the chains."""
    made = []
    for seed in settings.all_seeds():
        made += [Cell.of(arm=PAPER, method=method, seed=seed) for method in POINTS]
        made += [
            Cell.of(arm=arm, method="sghmc", temperature=t, start=start, seed=seed)
            for start in settings.starts
            for arm, t in chains(settings)
        ]
    return made


def rows(settings: ImdbSettings) -> tuple[tp.data.Data, tp.data.Data, tp.data.Data, torch.Tensor]:
    """Training rows, held-out rows, test rows, and the reference's probabilities of the last."""
    size = settings.train + settings.held_out
    both, test, reference = reviews(settings.data, size, settings.test, settings.vocabulary, settings.length)
    return both.subset(slice(0, settings.train)), both.subset(slice(settings.train, size)), test, reference


def chain_of(settings: ImdbSettings, arm: str) -> Chain:
    """The chain of an arm."""
    if arm != CURATED:
        return settings.chain
    return settings.chain.but(lr=settings.curated_lr, momentum=settings.curated_momentum)


def make_target(settings: ImdbSettings, arm: str, temperature: float, seed: int) -> tp.Target:
    """The network of this seed under the prior and the likelihood of an arm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: torch.nn.Module = tp.nn.CNNLSTM(
            settings.vocabulary, settings.embedding, settings.channels, lstm=settings.lstm, out_features=2
        )
    if arm == LEARNED:
        network = tp.NonCentred(network)
    likelihood = tp.CuratedLabels(settings.labellers) if arm == CURATED else tp.Categorical()
    return tp.Target(network, likelihood, tp.GaussianPrior(40**-0.5 if arm == HMC else 1.0), temperature)


def run(settings: ImdbSettings, cell: Cell) -> dict[str, Any]:
    """One fit: scores on test rows, the distance to HMC, and of a chain its temperatures."""
    train, held_out, test, reference = rows(settings)
    target = make_target(settings, cell["arm"], cell.get("temperature", 1.0), cell["seed"])
    chain = chain_of(settings, cell["arm"])
    options: dict[str, Any] = {"batch_size": settings.chain.batch_size, "seed": cell["seed"]}
    if cell["method"] == "sghmc":
        warm = cell["start"] == OPTIMISED
        start = _optimised(settings, EARLY, target, train, held_out, options) if warm else None
        fitted = fit(target, chain.method(), train, steps=chain.steps, start=start, **options)
    else:
        fitted = _optimised(settings, cell["method"], target, train, held_out, options)
    members = member_probs(fitted, test.x)
    averaged = members.mean(0)
    found = compared(averaged, test.y, reference)
    result: dict[str, Any] = {"ce": found.pop("log_loss"), **found, **hmc_scores(test.y, reference)}
    result["ece"] = tp.scores.ece(averaged, test.y, bins=10, resamples=10).value
    result["gibbs_ce"] = float(torch.stack([torch.tensor(tp.scores.log_loss(p, test.y)) for p in members]).mean())
    running = members.cumsum(0) / torch.arange(1, len(members) + 1).view(-1, 1, 1)
    result["ce_by_count"] = [tp.scores.log_loss(probs, test.y) for probs in running]
    result["epochs"] = fitted.info.steps * chain.batch_size / len(train)
    if cell["method"] == "sghmc":
        result |= _heat(settings, fitted, train)
    return result


def _optimised(
    settings: ImdbSettings,
    method: str,
    target: tp.Target,
    train: tp.data.Data,
    held_out: tp.data.Data,
    options: dict[str, Any],
) -> tp.Fitted:
    steps = settings.epochs * -(-len(train) // settings.chain.batch_size)
    early = method in (EARLY, EARLY_ENSEMBLE)
    point = tp.MAP(lr=settings.adam_lr, patience=2) if early else sgd(settings.sgd_lr, 0.9, steps)
    ensemble = method in (SGD_ENSEMBLE, EARLY_ENSEMBLE)
    more = {"held_out": held_out} if early else {}
    whole: tp.Inference[Any] = tp.Ensemble(point, settings.members) if ensemble else point
    return fit(target, whole, train, epochs=settings.epochs, **options, **more)


def _heat(settings: ImdbSettings, fitted: tp.Fitted, train: tp.data.Data) -> dict[str, Any]:
    """Temperatures in units of T, of all of θ and of each tensor; the learned scales of the last draw."""
    after = settings.chain.start
    slow = diagnose.kinetic(fitted, corrected=True, after=after, max_pace=0.5)
    configurational = diagnose.configurational(fitted, after=after)
    curvature = diagnose.curvature_temperature(fitted.target, fitted, train, max_draws=settings.hot_draws)
    found: dict[str, Any] = {
        "kinetic_slow": slow.network_mean,
        "kinetic_inside": slow.inside_share,
        "configurational": configurational.network_mean,
        "curvature": curvature.network_mean,
        "configurational_of": dict(zip(configurational.names, configurational.mean.tolist(), strict=True)),
    }
    network = fitted.network()
    if isinstance(network, tp.NonCentred):
        found["scales"] = network.hyper.of_normal(network.v.detach()).exp().tolist()
    return found


# ---------------------------------------------------------------------- judging


def claims(settings: ImdbSettings, done: Cells) -> list[Claim]:
    """The effect, what it is against, whether it is gone elsewhere, how near HMC is, and whether chains were sound."""
    first = settings.starts[0]
    paper = {"arm": PAPER, "method": "sghmc", "start": first}
    best = best_temperature(done, settings.temperatures, **paper)
    gap = estimate(list(cold_gap(done, settings.temperatures, **paper).values()))
    warm = estimate(done.values("ce", temperature=1.0, **paper))
    points = "; ".join(f"{name} {estimate(done.values('ce', method=key))}" for key, name in POINTS.items())
    cold = "–" if best is None else str(estimate(done.values("ce", temperature=best, **paper)))
    loss = difference(done.by_seed("accuracy", method=SGD), done.by_seed("accuracy", temperature=1.0, **paper))
    made = [
        Claim(
            "Under N(0, 1) a cold posterior predicts better than the Bayes posterior",
            "cross-entropy .446 at T = 1, .305 at T = 0.02 to 0.04",
            f"T = 1: {warm}; best T {'–' if best is None else format(best, 'g')}: {cold}; T = 1 is higher by {gap}",
            above(gap),
            f"gap above 0, best T chosen by the other seeds; {RULE}",
        ),
        Claim(
            "The Bayes posterior is less accurate than SGD",
            "accuracy .808 at T = 1, .830 of SGD (its cross-entropy .394)",
            f"T = 1 {estimate(done.values('accuracy', temperature=1.0, **paper))}, SGD "
            f"{estimate(done.values('accuracy', method=SGD))}; difference {loss}. Cross-entropy: {points}",
            above(loss),
            f"difference above 0; {RULE}",
        ),
    ]
    for arm, words in (
        (LEARNED, "with a learned prior"),
        (CURATED, f"with labels on which {settings.labellers} agreed"),
    ):
        match = {"arm": arm, "method": "sghmc", "start": _start(settings, done, arm)}
        effect = estimate(list(_warm_less_cold(settings, done, arm).values()))
        values = "; ".join(f"T = {t:g}: {estimate(done.values('ce', temperature=t, **match))}" for t in settings.few)
        made.append(
            Claim(
                f"The effect is gone {words}",
                "(not of the paper: an explanation that came later)",
                f"from {match['start']} weights {values}; T = 1 is higher by {effect}",
                below(effect, 0.01),
                f"cross-entropy at T = 1 not above that at T = {min(settings.few):g} by 0.01; {RULE}",
            )
        )
    hmc = {"arm": HMC, "start": _start(settings, done, HMC)}
    near = estimate(done.values("total_variation", **hmc))
    agree = estimate(done.values("agreement", **hmc))
    beside: dict[str, dict[str, Any]] = {"N(0, 1) at T = 1": {"temperature": 1.0, **paper}}
    beside |= {words: {"method": key} for key, words in POINTS.items()}
    others = "; ".join(f"{name} {estimate(done.values('total_variation', **match))}" for name, match in beside.items())
    nearest = difference(done.by_seed("total_variation", method=EARLY_ENSEMBLE), done.by_seed("total_variation", **hmc))
    made.append(
        Claim(
            "A chain under the prior of Izmailov et al. is nearer to their HMC than an ensemble",
            "(for CIFAR-10) total variation .074 between HMC's own chains, .115 of a deep ensemble, .109 of SGHMC",
            f"total variation {near} (agreement {agree}), the ensemble's less it {nearest}; {others}. Cross-entropy of "
            f"the chain {estimate(done.values('ce', **hmc))}, of HMC {hmc_level(done, 'log_loss')}; accuracy "
            f"{estimate(done.values('accuracy', **hmc))}, of HMC {hmc_level(done, 'accuracy')}",
            above(nearest),
            f"the ensemble's total variation above the chain's; {RULE}",
        )
    )
    made += _forgotten(settings, done)
    return made + [
        soundness(done, arm=arm, start=_start(settings, done, arm)) for arm in (PAPER, LEARNED, CURATED, HMC)
    ]


def _start(settings: ImdbSettings, done: Cells, arm: str) -> str:
    """The first of the starts from which chains of this arm have been run."""
    return next((start for start in settings.starts if done.values("ce", arm=arm, start=start)), settings.starts[0])


_NEAR = 0.02  # nats, within which two chains are one


def _forgotten(settings: ImdbSettings, done: Cells) -> list[Claim]:
    """Whether chains from two starts tell the same."""
    if len(settings.starts) < 2:
        return []
    one, two = settings.starts[:2]
    said, apart = [], []
    for arm, t in chains(settings):
        match: dict[str, Any] = {"arm": arm, "method": "sghmc", "temperature": t}
        gap = difference(done.by_seed("ce", start=two, **match), done.by_seed("ce", start=one, **match))
        if gap.count:
            said.append(f"{arm}, T = {t:g}: {gap}")
            apart.append(abs(gap.mean))
    return [
        Claim(
            f"Chains from {two} weights and from {one} ones end with the same predictions",
            "(asked here: otherwise they are too short)",
            f"cross-entropy of {two} less {one}: {'; '.join(said) or '–'}",
            max(apart) <= _NEAR if apart else None,
            f"every mean difference within {_NEAR:g}",
        )
    ]


def _warm_less_cold(settings: ImdbSettings, done: Cells, arm: str) -> dict[int, float]:
    """Cross-entropy at T = 1 less that at the lowest of the few temperatures, by seed."""
    match = {"arm": arm, "start": _start(settings, done, arm)}
    warm, cold = (done.by_seed("ce", temperature=t, **match) for t in (1.0, min(settings.few)))
    return {seed: warm[seed] - cold[seed] for seed in warm if seed in cold}


# ---------------------------------------------------------------------- drawing


def figures(settings: ImdbSettings, done: Cells) -> list[Picture]:
    """Scores and temperatures against T, and whether more draws would change anything."""
    grid = sorted(settings.temperatures)
    grids = {PAPER: grid, LEARNED: sorted(settings.few), CURATED: sorted(settings.few), HMC: [1.0]}
    arms = {arm: (own, {"arm": arm, "start": _start(settings, done, arm)}) for arm, own in grids.items()}
    arms |= {f"{PAPER}, from {start} weights": (grid, {"arm": PAPER, "start": start}) for start in settings.starts[1:]}
    return [
        _against_temperature(
            done,
            arms,
            ("ce", "accuracy", "total_variation"),
            "temperature",
            "Scores of the averaged predictions against temperature, and their distance to the published HMC; points "
            "and ensembles as levels. Chains begin where early-stopped Adam ends, unless said otherwise.",
            points=True,
        ),
        _against_temperature(
            done,
            arms,
            HEATS,
            "chain-temperatures",
            "How hot the chains were, in units of T. Where T is tiny, the noise of batches is hotter.",
        ),
        _by_count(settings, done),
    ]


_LABELS = {**LABELS, "total_variation": "total variation from HMC"}


def _against_temperature(
    done: Cells,
    arms: dict[str, tuple[list[float], dict[str, Any]]],
    entries: tuple[str, ...],
    name: str,
    caption: str,
    points: bool = False,
) -> Picture:
    figure, axes = panels(len(entries), width=4.6, height=3.8)
    for axis, entry in zip(axes, entries, strict=True):
        for k, (words, (grid, match)) in enumerate(arms.items()):
            curve(axis, by_temperature(done, grid, entry, method="sghmc", **match), words, COLOURS[k])
        for k, (key, words) in enumerate(POINTS.items() if points else ()):
            level(axis, estimate(done.values(entry, method=key)), words, COLOURS[(k + len(arms)) % len(COLOURS)])
        if entry in HEATS:
            axis.axhline(1.0, color="#444444", linewidth=0.9, linestyle=":")
        temperatures(axis, arms[PAPER][0])
        axis.set_ylabel(_LABELS[entry])
    axes[0].legend(fontsize=7)
    return Picture(name, caption, figure)


def _by_count(settings: ImdbSettings, done: Cells) -> Picture:
    figure, (axis,) = panels(1, width=5.6, height=3.8)
    for k, (arm, t) in enumerate(chains(settings)):
        found = done.first(arm=arm, method="sghmc", temperature=t, start=_start(settings, done, arm))
        if found is not None:
            values = found.result["ce_by_count"]
            axis.plot(range(1, len(values) + 1), values, marker=".", color=COLOURS[k % len(COLOURS)],
                      linestyle="-" if k < len(COLOURS) else "--", label=f"{arm}, T = {t:g}")  # fmt: skip
    axis.set_xlabel("draws that are averaged")
    axis.set_ylabel(_LABELS["ce"])
    axis.legend(fontsize=6)
    return Picture("draws", "Cross-entropy against the number of draws, of the first seed.", figure)


def sheets(settings: ImdbSettings, done: Cells) -> list[Sheet]:
    """All scores."""
    lines: list[tuple[str, dict[str, Any]]] = [(f"{words}", {"method": key}) for key, words in POINTS.items()]
    order = sorted(chains(settings), key=lambda pair: ((PAPER, LEARNED, CURATED, HMC).index(pair[0]), -pair[1]))
    lines += [
        (f"{arm}, T = {t:g}, from {start} weights", {"arm": arm, "method": "sghmc", "temperature": t, "start": start})
        for arm, t in order
        for start in settings.starts
    ]
    entries = ("ce", "accuracy", "ece", "gibbs_ce", "agreement", "total_variation", "epochs", *HEATS)
    columns = (
        "", "cross-entropy", "accuracy", "ECE", "members' cross-entropy", "agreement with HMC", "total variation",
        "epochs", "kinetic / T", "configurational / T", "by curvature / T",
    )  # fmt: skip
    body = tuple((words, *(str(estimate(done.values(entry, **match))) for entry in entries)) for words, match in lines)
    return [Sheet("All scores", "On test reviews; means over seeds, with their standard errors.", columns, body)]


EXPERIMENT = Experiment(
    name="cold-imdb",
    title="The headline at full size: CNN-LSTM on IMDB",
    paper="Wenzel et al. 2020; Izmailov et al. 2021 (HMC); Aitchison 2021 (curated labels)",
    question=(
        "Does the cold-posterior effect reproduce on the paper's own network and data, is it gone with a learned prior "
        "or with a likelihood of curated labels, and how far are the predictions from those of HMC?"
    ),
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
    sheets=sheets,
)
