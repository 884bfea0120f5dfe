"""``basins``: is it better to average over several basins of the loss, or over one?

One basin: SWAG, mean-field VI, and Laplace (KFAC, linearised), each around one solution. Several: an ensemble of MAP
fits, MultiSWAG, cyclical SGHMC, HMC. They are compared in two ways. *Equal compute*: each has the same number of passes
over the data, all of them for one solution or shared by several; how many settings of the weights it then averages is
its own affair. *Equal samples*: each averages as many settings of the weights; a method of several basins trains each
of them, one of a single basin trains once.

The truth is long HMC in four chains, affordable for a network this small, against which the averaged predictions are
held: agreement of labels, and total variation ½ Σ_c |p_c − q_c| averaged over test rows. Diversity is the total
variation between the predictions of two members, averaged over pairs. An ensemble that approximates a posterior must
collapse as that does: its diversity is measured against the number of training data.

How it was chosen: the problem by a look at eight (moons or digits, three priors) on seed 0, which is among the seeds of
the runs, for an HMC run that mixes and an ensemble whose members differ; so it is one that favours several basins. The
learning rates of SWAG (of four) and SGHMC (of three) by log-loss on seed 100, which is not; that of VI was not tuned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor

import temperance as tp
from temperance.judge import diagnose
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, curve, panels
from temperance.lab.judge import RULE, above, all_of, below, difference, estimate
from temperance.lab.problems import Images, fit, make_network, make_prior

POINT, HMC = "MAP", "HMC"
ONE = ("SWAG", "mean field", "Laplace")
SEVERAL = ("Ensemble", "MultiSWAG", "cyclical SGHMC", HMC)
REGIMES = {"samples": "equal samples", "compute": "equal compute"}
GOOD_RHAT = 1.05
MOST_MEMBERS = 40
"""Members between which pairs are taken."""


@dataclass(frozen=True)
class BasinSettings(Settings):
    """An MLP under ``prior`` on ``data``, of which each seed has rows of its own.

    Training takes ``steps`` steps of ``batch_size`` rows for one basin; methods of several have ``basins`` of them, so
    that equal compute is ``basins`` × ``steps`` steps for all. Equal samples are ``basins`` samples each. Gaussians
    predict with ``draws`` at equal compute. Cyclical SGHMC has ``cycles``. The short HMC run has one gradient over all
    data where others have one a pass; the truth has ``chains`` of ``truth_warmup`` and ``truth_draws`` trajectories.
    Collapse: ensembles and HMC (``collapse_warmup``, ``collapse_draws``) with each of ``rows``.
    """

    network: str = "mlp-10x2"
    prior: str = "normal-1"
    data: Images = field(default_factory=lambda: Images("digits", train=100))
    batch_size: int = 50
    basins: int = 10
    steps: int = 1000
    draws: int = 100
    lr: float = 0.01
    swag_lr: float = 0.1
    swag_rank: int = 20
    sghmc_lr: float = 0.02
    sghmc_momentum: float = 0.98
    cycles: int = 20
    length: int = 25
    warmup: int = 100
    time: float = 2.0
    chains: int = 4
    truth_warmup: int = 200
    truth_draws: int = 400
    rows: tuple[int, ...] = (50, 100, 200, 400)
    collapse_warmup: int = 150
    collapse_draws: int = 50
    collapse_time: float = 1.0


PRESETS = {
    "quick": Preset(
        BasinSettings(
            seeds=3, network="mlp-5x1", data=Images("digits", train=60, test=100), batch_size=30, basins=4, steps=80,
            draws=20, swag_rank=5, cycles=6, length=3, warmup=32, time=0.4, chains=2, truth_warmup=75, truth_draws=40,
            rows=(30, 120), collapse_warmup=75, collapse_draws=20, collapse_time=0.3,
        ),
        0.4,
    ),
    "standard": Preset(BasinSettings(seeds=5), 6),
    "paper": Preset(
        BasinSettings(
            seeds=20, network="mlp-20x2", data=Images("digits", train=300), steps=5000, draws=1000, cycles=100,
            length=100, warmup=200, truth_warmup=500, truth_draws=2000, rows=(50, 100, 200, 400, 800, 1400),
            collapse_warmup=300, collapse_draws=200,
        ),
        600,
    ),
}  # fmt: skip


def cells(settings: BasinSettings) -> list[Cell]:
    """Method × seed, and number of rows × seed for the collapse; the slow ones first."""
    kinds = [
        *(("collapse", HMC, n) for n in sorted(settings.rows, reverse=True)),
        *(("compare", name, settings.data.train) for name in (HMC, *ONE, *SEVERAL[:-1], POINT)),
        *(("collapse", "Ensemble", n) for n in settings.rows),
    ]
    return [
        Cell.of(part=part, method=name, rows=n, seed=seed) for seed in settings.all_seeds() for part, name, n in kinds
    ]


def run(settings: BasinSettings, cell: Cell) -> dict[str, Any]:
    """One method, in both regimes; or the diversity of one with a number of rows."""
    seed, name = cell["seed"], cell["method"]
    images = Images(settings.data.name, cell["rows"], settings.data.test)
    data, test = images.load(seed)
    target = tp.Target(
        make_network(settings.network, data, seed), tp.Categorical(), make_prior(settings.prior)
    )  # fmt: skip
    options: dict[str, Any] = {"batch_size": min(settings.batch_size, len(data)), "seed": seed}
    if cell["part"] == "collapse":
        if name == HMC:
            method = truth(settings.collapse_time, settings.chains, settings.collapse_warmup, settings.collapse_draws)
            return measure(fit(target, method, data, seed=seed).predict(test.x), test.y)
        method = build(settings, name, settings.steps)
        return measure(fit(target, method, data, steps=settings.steps, **options).predict(test.x), test.y)
    if name == HMC:
        return _hamiltonian(settings, target, data, test, seed)
    result: dict[str, Any] = {}
    whole, samples = settings.basins * settings.steps, settings.basins
    if name in SEVERAL:
        steps = whole if name == "cyclical SGHMC" else settings.steps
        both = fit(target, build(settings, name, steps), data, steps=steps, **options)
        fits = {"compute": both, "samples": both}
    else:
        lengths = {"compute": whole, "samples": settings.steps}
        fits = {
            regime: fit(target, build(settings, name, steps), data, steps=steps, **options)
            for regime, steps in lengths.items()
        }
    for regime, fitted in fits.items():
        kept = _last(fitted, samples) if regime == "samples" else fitted
        wanted = None if kept.posterior.finite else (samples if regime == "samples" else settings.draws)
        result |= named(regime, measure(kept.predict(test.x, draws=wanted), test.y))
    return result


def _hamiltonian(
    settings: BasinSettings, target: tp.Target, data: tp.data.Data, test: tp.data.Data, seed: int
) -> dict[str, Any]:
    """A short run with everybody's compute; the truth, whether it can be trusted, and a few of its draws."""
    share = settings.warmup // 4
    warm = tp.Warmup(tp.HMC(length=settings.length), settings.warmup, first=share, window=share, last=share)
    passes = settings.basins * settings.steps * settings.batch_size // len(data)
    left = passes // settings.length - settings.warmup
    short = fit(target, tp.Collect(warm, last=left), data, seed=seed)
    method = truth(settings.time, settings.chains, settings.truth_warmup, settings.truth_draws)
    long = fit(target, method, data, seed=seed)
    found = diagnose.predictions(long, test.x)
    probs = members(long.predict(test.x))
    halves = [part.mean(0) for part in probs.chunk(2)]
    few = _evenly(probs, settings.basins)
    known = measure(long.predict(test.x), test.y)
    return (
        named("compute", measure(short.predict(test.x), test.y))
        | named("samples", scores_of(few, test.y))
        | named("truth", known)
        | {"rhat": found.worst[1], "ess": found.least_ess, "floor": tp.scores.total_variation(*halves)}
    )


# ---------------------------------------------------------------------- the methods


def build(settings: BasinSettings, name: str, steps: int) -> tp.Inference[Any]:
    """A method by name, for a run of ``steps``."""
    schedule: dict[str, Any] = {
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR,
        "scheduler_args": {"T_max": steps},
        "schedule_steps": True,
    }
    best = tp.MAP(lr=settings.lr, **schedule)
    walk = tp.MAP(lr=settings.swag_lr, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
    swag = tp.SWAG(walk, rank=settings.swag_rank, every=max(1, steps // 100))
    sampler = tp.SGHMC(settings.sghmc_lr, settings.sghmc_momentum)
    made: dict[str, tp.Inference[Any]] = {
        POINT: best,
        "SWAG": swag,
        "mean field": tp.Variational(tp.MeanField(), lr=settings.lr, **schedule),
        "Laplace": tp.Laplace(best, tp.KFAC(), tune=None),
        "Ensemble": tp.Ensemble(best, settings.basins),
        "MultiSWAG": tp.Ensemble(swag, settings.basins),
        "cyclical SGHMC": tp.Collect(tp.Cyclical(sampler, cycle=max(1, steps // settings.cycles))),
    }
    return made[name]


def truth(time: float, chains: int, warmup: int, draws: int) -> tp.Inference[Any]:
    """HMC in several chains, each from a start of its own, with a step and masses found in its warm-up."""
    first, last = min(75, warmup // 3), min(50, warmup // 3)
    sampler = tp.Warmup(tp.HMC(time=time), warmup, first=first, last=last)
    return tp.Ensemble(tp.Collect(sampler, last=draws), chains)


def _last(fitted: tp.Fitted, count: int) -> tp.Fitted:
    """The last ``count`` draws of a chain; anything else as it is."""
    if not isinstance(fitted.posterior, tp.posteriors.Draws):
        return fitted
    return tp.Fitted(fitted.target, tp.posteriors.Draws(fitted.posterior.theta[-count:]), fitted.info)


# ---------------------------------------------------------------------- what is measured


def members(predictive: Any) -> Tensor:
    """The probabilities that each member gives, members × rows × classes."""
    blocks = predictive.source.blocks()
    return torch.cat([predictive.likelihood.mean(outputs, learned) for _, outputs, learned in blocks], 1).double()


def _evenly(probs: Tensor, count: int) -> Tensor:
    places = torch.linspace(0, len(probs) - 1, min(count, len(probs)), dtype=torch.float64)
    return probs[places.round().long()]


def diversity(probs: Tensor) -> dict[str, float]:
    """Between two members, on average over pairs and rows: total variation, and how often their labels differ.

    >>> one, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.25, 0.75]])
    >>> diversity(torch.stack([one, other, one]))
    {'diversity': 0.5, 'disagreement': 0.6666666666666666}
    """
    few = _evenly(probs, MOST_MEMBERS)
    pairs = torch.combinations(torch.arange(len(few)), 2).T
    if not pairs.numel():
        return {"diversity": 0.0, "disagreement": 0.0}
    one, other = few[pairs[0]], few[pairs[1]]
    apart = 0.5 * (one - other).abs().sum(-1).mean()
    return {"diversity": float(apart), "disagreement": float((one.argmax(-1) != other.argmax(-1)).double().mean())}


def scores_of(probs: Tensor, labels: Any) -> dict[str, Any]:
    """Log-loss, accuracy and diversity of members' probabilities, and their average."""
    mean = probs.mean(0)
    return {
        "ce": -float(mean[torch.arange(len(mean)), labels].clamp_min(1e-30).log().mean()),
        "accuracy": tp.scores.accuracy(mean, labels),
        "probs": [[round(float(p), 6) for p in row] for row in mean],
    } | diversity(probs)


def measure(predictive: Any, labels: Any) -> dict[str, Any]:
    """The same of a prediction; its averages are its own."""
    mean = predictive.mean().double()
    return {
        "ce": -float(predictive.log_prob(labels).double().mean()),
        "accuracy": tp.scores.accuracy(mean, labels),
        "probs": [[round(float(p), 6) for p in row] for row in mean],
    } | diversity(members(predictive))


def named(regime: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Entries with the regime before their names."""
    return {f"{regime}_{entry}": value for entry, value in values.items()}


# ---------------------------------------------------------------------- judging


def by_method(done: Cells, entry: str, names: Sequence[str]) -> dict[str, dict[int, float]]:
    """An entry of each method, by seed."""
    return {name: done.by_seed(entry, part="compare", method=name) for name in names}


def to_truth(
    done: Cells, regime: str, names: Sequence[str], score: str = "total_variation"
) -> dict[str, dict[int, float]]:
    """How far each method's averaged predictions are from the truth's, by seed (or how often they agree)."""
    compare = getattr(tp.scores, score)
    long = {f.cell["seed"]: f.result["truth_probs"] for f in done.where(part="compare", method=HMC)}
    return {
        name: {
            seed: compare(torch.tensor(f.result[f"{regime}_probs"]).double(), torch.tensor(long[seed]).double())
            for f in done.where(part="compare", method=name)
            if (seed := f.cell["seed"]) in long
        }
        for name in names
    }


def best_of(values: Mapping[str, Mapping[int, float]]) -> dict[int, float]:
    """The smallest of several methods, by seed; which it is, the other seeds decide."""
    found = {}
    for seed in {seed for by_seed in values.values() for seed in by_seed}:
        others = {
            name: estimate([v for s, v in by_seed.items() if s != seed]).mean
            for name, by_seed in values.items()
            if seed in by_seed
        }
        known = {name: mean for name, mean in others.items() if mean == mean}
        if known:
            found[seed] = values[min(known, key=lambda name: known[name])][seed]
    return dict(sorted(found.items()))


def told(values: Mapping[str, Mapping[int, float]]) -> str:
    """In words."""
    return "; ".join(f"{name} {estimate(list(by_seed.values()))}" for name, by_seed in values.items())


def slope(done: Cells, rows: Sequence[int], name: str, entry: str = "diversity") -> dict[int, float]:
    """The slope of log diversity over log rows, by seed: −½ where the spread of a posterior falls as 1/√N."""
    series = {n: done.by_seed(entry, part="collapse", method=name, rows=n) for n in rows}
    found = {}
    for seed in set.intersection(*(set(by_seed) for by_seed in series.values())):
        x, y = ([math.log(v) for v in values] for values in (rows, [series[n][seed] for n in rows]))
        centre = sum(x) / len(x)
        found[seed] = sum((a - centre) * b for a, b in zip(x, y, strict=True)) / sum((a - centre) ** 2 for a in x)
    return dict(sorted(found.items()))


def claims(settings: BasinSettings, done: Cells) -> list[Claim]:
    """Log-loss, nearness, diversity, collapse; and whether the truth can be trusted."""
    papers = {
        "samples": "ensembles find many basins, which gives a better average than methods that focus on one",
        "compute": "if one were to control for computation, a single basin may be preferred",
    }
    made = []
    for regime, words in REGIMES.items():
        one, several = (by_method(done, f"{regime}_ce", names) for names in (ONE, SEVERAL))
        gap = difference(best_of(several), best_of(one))
        made.append(
            Claim(
                f"At {words} several basins predict better than one",
                papers[regime],
                f"log-loss: {told(several)}; one basin: {told(one)}; {told(by_method(done, f'{regime}_ce', (POINT,)))};"
                f" best of several less best of one: {gap}",
                below(gap),
                f"the best of each kind (chosen by the other seeds); {RULE}",
            )
        )
    points = {
        words: difference(
            best_of(by_method(done, f"{r}_ce", SEVERAL)), done.by_seed(f"{r}_ce", part="compare", method=POINT)
        )
        for r, words in REGIMES.items()
    }
    made.append(
        Claim(
            "Several basins predict better than a single MAP fit",
            "better accuracy and better calibration than classical training",
            "log-loss of the best of several less that of MAP: " + "; ".join(f"{w}: {e}" for w, e in points.items()),
            all_of(*(below(e) for e in points.values())),
            f"below 0 in both; the best is chosen by the other seeds; {RULE}",
        )
    )
    swags = {r: by_method(done, f"{r}_ce", ("SWAG", "MultiSWAG")) for r in REGIMES}
    gains = {words: difference(swags[r]["MultiSWAG"], swags[r]["SWAG"]) for r, words in REGIMES.items()}
    made.append(
        Claim(
            "The same approximation is better in several basins than in one",
            "(MultiSWAG, Wilson and Izmailov 2020)",
            "log-loss of MultiSWAG less that of SWAG: " + "; ".join(f"{w}: {gain}" for w, gain in gains.items()),
            all_of(*(below(gain) for gain in gains.values())),
            f"below 0 in both; {RULE}",
        )
    )
    for regime, words in REGIMES.items():
        one, several = (to_truth(done, regime, names) for names in (ONE, SEVERAL[:-1]))
        gap = difference(best_of(several), best_of(one))
        made.append(
            Claim(
                f"At {words} several basins are nearer to long HMC than one",
                "a better approximation to the integral over weights",
                f"total variation: {told(several)}; one basin: {told(one)}; best of several less best of one: {gap}; "
                f"agreement: {told(to_truth(done, regime, (*SEVERAL[:-1], *ONE), 'agreement'))}",
                below(gap),
                f"the best of each kind (chosen by the other seeds; HMC itself left out); {RULE}",
            )
        )
    return [*made, *_diverse(done), *_collapsed(settings, done), _trusted(done)]


def _diverse(done: Cells) -> list[Claim]:
    spread = by_method(done, "samples_diversity", (*ONE, *SEVERAL))
    gain = difference(spread["MultiSWAG"], spread["SWAG"])
    pairs = [difference(spread[name], spread[other]) for name in SEVERAL for other in ONE]
    return [
        Claim(
            "Several basins are more diverse in their predictions than one, for the same approximation",
            "functional diversity is important for a good approximation to the integral",
            f"total variation between members: MultiSWAG less SWAG {gain}",
            above(gain),
            f"above 0; {RULE}",
        ),
        Claim(
            "Every method of several basins is more diverse than every one of a single basin",
            "as above",
            f"total variation between members: {told(spread)}",
            all_of(*(above(pair) for pair in pairs)),
            f"all {len(pairs)} pairs above 0; {RULE}",
        ),
    ]


def _collapsed(settings: BasinSettings, done: Cells) -> list[Claim]:
    made = []
    for name, words in ((HMC, "The posterior collapses"), ("Ensemble", "Ensembles collapse with it")):
        found = estimate(list(slope(done, settings.rows, name).values()))
        values = {n: estimate(done.values("diversity", part="collapse", method=name, rows=n)) for n in settings.rows}
        made.append(
            Claim(
                f"{words} as data grow",
                "as we observe more data the posterior collapses; deep ensembles collapse with it",
                "total variation between members: "
                + "; ".join(f"{n} rows: {value}" for n, value in values.items())
                + f"; slope of its log over log rows {found}",
                below(found),
                f"slope below 0; {RULE}",
            )
        )
    return made


def _trusted(done: Cells) -> Claim:
    rhat, ess, floor = (estimate(done.values(e, part="compare", method=HMC)) for e in ("rhat", "ess", "floor"))
    return Claim(
        "The long HMC run is the truth to within its own error",
        "(asked here)",
        f"largest R-hat of a predicted probability {rhat}, fewest effective draws {ess}; total variation between two "
        f"halves of its chains {floor}; its log-loss {estimate(done.values('truth_ce', part='compare', method=HMC))}",
        below(rhat, GOOD_RHAT),
        f"R-hat below {GOOD_RHAT:g}; {RULE}",
    )


# ---------------------------------------------------------------------- drawing


def figures(settings: BasinSettings, done: Cells) -> list[Picture]:
    """Methods side by side, and the collapse."""
    return [_methods(done), _collapse(settings, done)]


def _methods(done: Cells) -> Picture:
    names = (POINT, *ONE, *SEVERAL)
    sheet, axes = panels(3, width=4.4, height=3.9)
    sources = {
        "test log-loss (nats)": {r: by_method(done, f"{r}_ce", names) for r in REGIMES},
        "total variation to long HMC": {r: to_truth(done, r, names) for r in REGIMES},
        "total variation between members": {r: by_method(done, f"{r}_diversity", names) for r in REGIMES},
    }
    for axis, (label, regimes) in zip(axes, sources.items(), strict=True):
        for k, (regime, values) in enumerate(regimes.items()):
            estimates = {name: estimate(list(by_seed.values())) for name, by_seed in values.items()}
            places = [place + (k - 0.5) * 0.22 for place in range(len(names))]
            errors = [e.error if e.count > 1 else 0.0 for e in estimates.values()]
            means = [e.mean for e in estimates.values()]
            axis.errorbar(means, places, xerr=errors, fmt="os"[k], color=COLOURS[k], capsize=2.5, label=REGIMES[regime])
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        axis.axhline(0.5, color="#bbbbbb", linewidth=0.8)
        axis.axhline(len(ONE) + 0.5, color="#bbbbbb", linewidth=0.8)
        axis.set_xlabel(label)
    long = estimate(done.values("truth_ce", part="compare", method=HMC))
    floor = estimate(done.values("floor", part="compare", method=HMC))
    for axis, value, words in ((axes[0], long, "long HMC"), (axes[1], floor, "two halves of long HMC")):
        if value.count:
            axis.axvline(value.mean, color="#444444", linewidth=1.0, linestyle=":", label=words)
    for axis in axes[:2]:
        axis.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=3, fontsize=8, handlelength=1.5)
    axes[0].set_xscale("log")
    axes[0].xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes[0].xaxis.set_major_formatter("{x:g}")
    axes[0].xaxis.set_minor_formatter(NullFormatter())
    words = (
        "A point (MAP), one basin, several basins: log-loss, distance to long HMC, and how much members differ. HMC is "
        "a short run at equal compute, a few draws of the long one at equal samples. Bars: one standard error."
    )
    return Picture("methods", words, sheet)


def _collapse(settings: BasinSettings, done: Cells) -> Picture:
    sheet, axes = panels(3, width=4.2, height=3.5)
    entries = {"diversity": "total variation between members", "disagreement": "pairs with different labels",
               "ce": "test log-loss (nats)"}  # fmt: skip
    for axis, (entry, label) in zip(axes, entries.items(), strict=True):
        for k, name in enumerate((HMC, "Ensemble")):
            points = {
                float(n): estimate(done.values(entry, part="collapse", method=name, rows=n)) for n in settings.rows
            }
            curve(axis, points, name, COLOURS[k], marker="os"[k])
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(settings.rows, [str(n) for n in settings.rows])
        axis.minorticks_off()
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_xlabel("training rows")
        axis.set_ylabel(label)
    axes[0].legend()
    words = "How much the members of HMC and of ensembles differ on test rows, and how well they predict together, by "
    return Picture("collapse", words + "the number of training rows. Bars: one standard error.", sheet)


EXPERIMENT = Experiment(
    name="basins",
    title="One basin or several",
    paper="Wilson 2020, The case for Bayesian deep learning; Wilson and Izmailov 2020",
    question="Does averaging over several basins of the loss predict better and nearer to the posterior?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
