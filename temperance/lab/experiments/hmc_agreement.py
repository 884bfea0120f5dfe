"""``hmc-agreement``: how near do a point, an ensemble and SG-MCMC come to the predictions of long-run HMC?

Izmailov et al. (2021) ran full-batch HMC on a CNN-LSTM for IMDB reviews, under N(0, 1/40) on every weight, and
published its averaged predictions. Here three methods learn from the same 20000 reviews and are compared with that run
on test reviews: the share of reviews on which both name the same class (agreement), and the mean of ½ Σₖ |pₖ − qₖ|
(total variation). As in the paper the others have priors of their own: under 1/40 the most probable network, which
is what a point looks for, is the one that says nothing. An ensemble of M and the sampler, which starts from one trained
point, cost M times the point.

``standard`` has a smaller network than the paper's and a short chain: what is left of the distance is in part the
network's, and in part burn-in. ``quick`` needs no files: made-up reviews, the true probabilities in place of HMC.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import temperance as tp
from temperance.data.reference import load_hmc_reference
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, GREY, curve, level, panels, whole_numbers
from temperance.lab.judge import RULE, Estimate, above, all_of, below, difference, estimate, near
from temperance.lab.problems import fit
from temperance.predict.scores.hmc import read_predictions

POINT, ENSEMBLE, SAMPLER = "map", "ensemble", "sghmc"
ARMS = {POINT: "MAP", ENSEMBLE: "deep ensemble", SAMPLER: "SGHMC"}
SCORES = {
    "agreement": "agreement with HMC",
    "total_variation": "total variation from HMC",
    "accuracy": "test accuracy",
    "log_loss": "test log-loss (nats)",
}
MADE_UP = "made-up"
MASSES = 8
"""Batches for an estimate of the chain's masses, at its start and before each cycle."""


@dataclass(frozen=True)
class AgreementSettings(Settings):
    """The CNN-LSTM with word vectors of ``embedding`` numbers, ``channels`` and ``lstm`` units on ``data`` (``imdb`` or
    ``made-up``), its first ``train`` and first ``test`` rows (0: all).

    MAP: Adam at ``lr``, along a cosine, for ``epochs`` of batches of ``batch_size``, under N(0, ``point_variance``);
    the ensemble has ``members`` of them. SGHMC with ``chain_lr`` and ``momentum`` under N(0, ``chain_variance``) starts
    from such a point and runs on for (``members`` − 1) × ``epochs``: ``burn`` of it without a draw, then ``draws``
    cycles.

    ``predictions``: files (.npy or .npz) with probabilities for all test rows, in the order of ``tp.data.load``, which
    are compared too.
    """

    data: str = "imdb"
    train: int = 20000
    test: int = 5000
    vocabulary: int = 20000
    length: int = 100
    embedding: int = 32
    channels: int = 32
    lstm: int = 32
    point_variance: float = 1 / 3
    chain_variance: float = 1 / 5
    epochs: int = 3
    batch_size: int = 250
    lr: float = 3e-3
    members: int = 4
    chain_lr: float = 0.3
    momentum: float = 0.98
    burn: float = 0.3
    draws: int = 12
    predictions: tuple[str, ...] = ()


PRESETS = {
    "quick": Preset(
        AgreementSettings(
            data=MADE_UP, train=200, test=200, vocabulary=40, length=16, embedding=4, channels=4, lstm=4,
            point_variance=1.0, chain_variance=1.0, epochs=20, batch_size=50, lr=0.03, members=3, chain_lr=0.03,
            draws=4,
        ),
        0.3,
    ),
    "standard": Preset(AgreementSettings(), 5),
    "paper": Preset(
        AgreementSettings(
            test=0, embedding=128, channels=64, lstm=70, epochs=500, batch_size=80, members=50,
            draws=900,
        ),
        5000,
    ),
}  # fmt: skip


# ---------------------------------------------------------------------- data


@functools.lru_cache(maxsize=1)
def reviews(
    data: str, train: int, test: int, vocabulary: int, length: int
) -> tuple[tp.data.Data, tp.data.Data, Tensor]:
    """The first training and test rows, and the reference's probabilities for these test rows. All seeds share them:
    the reference is about one posterior."""
    if data == MADE_UP:
        first, _ = made_up(train, vocabulary, length, 0)
        second, truth = made_up(test, vocabulary, length, 1)
        return first, second, truth
    first, second = tp.data.load(data, vocabulary=vocabulary, length=length)
    probs = load_hmc_reference(data).probs
    return first.subset(slice(0, train or None)), second.subset(slice(0, test or None)), probs[: test or None]


def made_up(rows: int, vocabulary: int, length: int, seed: int) -> tuple[tp.data.Data, Tensor]:
    """Reviews whose words are drawn by class, and p(y | x), which is known::

    p(word | y) ∝ exp(± s_word),    log p(1 | x) / p(0 | x) = Σ_words log p(word | 1) / p(word | 0)
    """
    words = torch.randn(vocabulary, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    log_p = torch.stack([-0.3 * words, 0.3 * words]).log_softmax(1)
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (rows,), generator=rng)
    x = torch.multinomial(log_p.exp()[y], length, replacement=True, generator=rng)
    info = tp.data.DataInfo(name=MADE_UP, outcome=tp.outcomes.Classes(), num_classes=2)
    return tp.data.Data(x, y, info=info), log_p[:, x].sum(-1).T.softmax(1)


# ---------------------------------------------------------------------- cells


def cells(settings: AgreementSettings) -> list[Cell]:
    """Method × seed, the long ones first; a file of predictions is a cell of its own."""
    files = [Cell.of(arm=f"file {k}", seed=settings.seed) for k in range(len(settings.predictions))]
    return [Cell.of(arm=arm, seed=seed) for arm in (SAMPLER, ENSEMBLE, POINT) for seed in settings.all_seeds()] + files


def run(settings: AgreementSettings, cell: Cell) -> dict[str, Any]:
    """One method: its scores, and how they grow with the members or draws that are averaged."""
    train, test, reference = reviews(settings.data, settings.train, settings.test, settings.vocabulary, settings.length)
    if cell["arm"] not in ARMS:
        path = settings.predictions[int(cell["arm"].removeprefix("file "))]
        return compared(read_predictions(path)[: len(test)], test.y, reference) | hmc_scores(test.y, reference)
    fitted = learn(settings, cell["arm"], train, cell["seed"])
    members = member_probs(fitted, test.x)
    result: dict[str, Any] = compared(members.mean(0), test.y, reference) | hmc_scores(test.y, reference)
    running = members.cumsum(0) / torch.arange(1, len(members) + 1).view(-1, 1, 1)
    for name in ("agreement", "total_variation"):
        result[f"{name}_by_count"] = [compared(probs, test.y, reference)[name] for probs in running]
    if cell["arm"] == SAMPLER:
        after = burn_steps(settings, len(train))
        result["kinetic"] = tp.diagnose.kinetic(fitted, corrected=True, after=after).network_mean
        result["configurational"] = tp.diagnose.configurational(fitted, after=after).network_mean
    return result


def learn(settings: AgreementSettings, arm: str, train: tp.data.Data, seed: int) -> tp.Fitted:
    """Fit the method of an arm; the chain starts from a point that is trained first, as the others are."""
    options: dict[str, Any] = {"batch_size": settings.batch_size, "seed": seed}
    first = ENSEMBLE if arm == ENSEMBLE else POINT
    rows = len(train)
    point = target(settings, seed, settings.point_variance)
    fitted = fit(point, method(settings, first, rows), train, steps=steps(settings, first, rows), **options)
    if arm != SAMPLER:
        return fitted
    assert isinstance(fitted.posterior, tp.posteriors.Point)
    options["start"] = fitted.posterior.theta
    whole = target(settings, seed, settings.chain_variance)
    return fit(whole, method(settings, arm, rows), train, steps=steps(settings, arm, rows), **options)


def target(settings: AgreementSettings, seed: int, variance: float) -> tp.Target:
    """The network with weights of this seed, under the prior N(0, ``variance``)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = tp.nn.CNNLSTM(
            settings.vocabulary, settings.embedding, settings.channels, lstm=settings.lstm, out_features=2
        )
    return tp.Target(network, tp.Categorical(), tp.GaussianPrior(variance**0.5))


def epoch_steps(settings: AgreementSettings, rows: int) -> int:
    """Batches of an epoch."""
    return -(-rows // settings.batch_size)


def burn_steps(settings: AgreementSettings, rows: int) -> int:
    """Steps of the chain before its first cycle."""
    return int(settings.burn * (settings.members - 1) * settings.epochs * epoch_steps(settings, rows))


def cycle_steps(settings: AgreementSettings, rows: int) -> int:
    """Moves in a cycle: an even share of what the point and the burn-in leave, less the steps that estimate masses."""
    whole = (settings.members - 1) * settings.epochs * epoch_steps(settings, rows) - burn_steps(settings, rows)
    return max(2, (whole - (settings.draws + 1) * MASSES) // settings.draws)


def steps(settings: AgreementSettings, arm: str, rows: int) -> int:
    """Steps of a fit; a step of the ensemble moves all members, and that of a chain does not count its start."""
    if arm == SAMPLER:
        cycles = settings.draws * (cycle_steps(settings, rows) + MASSES)
        return burn_steps(settings, rows) + MASSES + cycles
    return settings.epochs * epoch_steps(settings, rows)


def method(settings: AgreementSettings, arm: str, rows: int) -> tp.Inference[Any]:
    """The method of an arm."""
    if arm == SAMPLER:
        sampler = tp.SGHMC(settings.chain_lr, settings.momentum, preconditioner=tp.Layerwise(batches=MASSES))
        return tp.Collect(tp.Cyclical(sampler, cycle=cycle_steps(settings, rows), start=burn_steps(settings, rows)))
    point = tp.MAP(
        lr=settings.lr,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR,
        scheduler_args={"T_max": steps(settings, arm, rows)},
        schedule_steps=True,
    )
    return tp.Ensemble(point, settings.members) if arm == ENSEMBLE else point


def member_probs(fitted: tp.Fitted, x: Any) -> Tensor:
    """Probabilities by each member or draw: members × rows × classes, in float64."""
    nodes = fitted.posterior.nodes()
    found = []
    for k in range(len(nodes)):
        theta, buffers = nodes.fetch(k, k + 1)
        point = tp.posteriors.Point(theta[0], {name: value[0] for name, value in buffers.items()})
        found.append(tp.Fitted(fitted.target, point, fitted.info).predict(x).mean().cpu().double())
    return torch.stack(found)


def compared(probs: Tensor, y: Tensor, reference: Tensor) -> dict[str, float]:
    """All four scores."""
    return {
        "agreement": tp.scores.agreement(probs, reference),
        "total_variation": tp.scores.total_variation(probs, reference),
        "accuracy": tp.scores.accuracy(probs, y),
        "log_loss": tp.scores.log_loss(probs, y),
    }


def hmc_scores(y: Tensor, reference: Tensor) -> dict[str, float]:
    """Those of the reference itself on these rows."""
    return {"hmc_accuracy": tp.scores.accuracy(reference, y), "hmc_log_loss": tp.scores.log_loss(reference, y)}


# ---------------------------------------------------------------------- judging and drawing


def told(done: Cells, entry: str) -> str:
    """An entry of each arm, in words."""
    return ", ".join(f"{name} {estimate(done.values(entry, arm=arm))}" for arm, name in ARMS.items())


def over_point(done: Cells, arm: str, entry: str) -> Estimate:
    """An arm less the point, seed by seed."""
    return difference(done.by_seed(entry, arm=arm), done.by_seed(entry, arm=POINT))


def claims(settings: AgreementSettings, done: Cells) -> list[Claim]:
    """Nearer than the point; and which of the two is nearer."""
    between = {
        entry: difference(done.by_seed(entry, arm=SAMPLER), done.by_seed(entry, arm=ENSEMBLE))
        for entry in ("agreement", "total_variation")
    }
    kinetic, configurational = (estimate(done.values(entry, arm=SAMPLER)) for entry in ("kinetic", "configurational"))
    both = f"agreement: {told(done, 'agreement')}; total variation: {told(done, 'total_variation')}"
    return [
        Claim(
            f"{'An ensemble' if arm == ENSEMBLE else 'SG-MCMC'} is nearer to HMC than a single solution",
            "they generalise well, though their predictive distributions differ from HMC's",
            f"{both}; less the point: agreement {over_point(done, arm, 'agreement')}, total variation "
            f"{over_point(done, arm, 'total_variation')}",
            all_of(above(over_point(done, arm, "agreement")), below(over_point(done, arm, "total_variation"))),
            f"agreement above and total variation below that of the point; {RULE}",
        )
        for arm in (ENSEMBLE, SAMPLER)
    ] + [
        Claim(
            "SG-MCMC is nearer to HMC than an ensemble of the same cost",
            "deep ensembles are about as close to HMC as standard SGLD",
            f"SGHMC less ensemble: agreement {between['agreement']}, total variation {between['total_variation']}",
            all_of(above(between["agreement"]), below(between["total_variation"])),
            f"agreement above and total variation below that of the ensemble; {RULE}",
        ),
        Claim(
            "Both have a lower log-loss than a single solution",
            "cheaper alternatives such as ensembles and SG-MCMC can generalise well",
            f"log-loss: {told(done, 'log_loss')}, HMC {hmc_level(done, 'log_loss')}; accuracy: "
            f"{told(done, 'accuracy')}, HMC {hmc_level(done, 'accuracy')}",
            all_of(*(below(over_point(done, arm, "log_loss")) for arm in (ENSEMBLE, SAMPLER))),
            f"difference to the point below 0 for both; {RULE}",
        ),
        Claim(
            "The chain is at T = 1",
            "(not of the paper: what the rows about SG-MCMC rest on)",
            f"kinetic {kinetic}, configurational {configurational}, in units of T",
            all_of(near(kinetic, 1.0, 0.1), near(configurational, 1.0, 0.25)),
            f"kinetic within 0.1 and configurational within 0.25 of 1; {RULE}. A chain that has not mixed can show "
            "these temperatures too: look whether its curve still moves with the number of draws",
        ),
    ]


def hmc_level(done: Cells, entry: str) -> str:
    """The reference's own score, the same for all cells."""
    first = done.first()
    return f"{first.result[f'hmc_{entry}']:.4g}" if first is not None else "–"


def figures(settings: AgreementSettings, done: Cells) -> list[Picture]:
    """The four scores of each method, and nearness against the number averaged."""
    return [_scores_picture(settings, done), _count_picture(settings, done)]


def _scores_picture(settings: AgreementSettings, done: Cells) -> Picture:
    sheet, axes = panels(2, 2, width=4.4, height=3.2)
    known = done.options("arm")
    arms = [arm for arm in ARMS if arm in known] + [arm for arm in known if arm not in ARMS]
    for axis, (entry, label) in zip(axes, SCORES.items(), strict=True):
        for place, arm in enumerate(arms):
            values = done.values(entry, arm=arm)
            colour = COLOURS[place % len(COLOURS)]
            axis.plot([place] * len(values), values, "o", color=colour, alpha=0.35, markersize=4, linestyle="none")
            curve(axis, {float(place): estimate(values)}, None, colour, marker="_")
        first = done.first()
        if first is not None and f"hmc_{entry}" in first.result:
            level(axis, Estimate(float(first.result[f"hmc_{entry}"]), float("nan"), 1), "HMC", GREY)
            axis.legend()
        axis.set_xticks(range(len(arms)), [str(ARMS.get(arm, arm)) for arm in arms])
        axis.set_xlim(-0.5, len(arms) - 0.5)
        axis.set_ylabel(label)
    words = (
        f"Nearness to HMC and scores on {settings.test or 'all'} test rows of {settings.data}. The ensemble has "
        f"{settings.members} members; SGHMC has {settings.draws} draws and the same cost. Dots: seeds; bars: "
        "one standard error."
    )
    return Picture("scores", words, sheet)


def _count_picture(settings: AgreementSettings, done: Cells) -> Picture:
    sheet, axes = panels(2, width=4.6, height=3.4)
    for axis, entry in zip(axes, ("agreement", "total_variation"), strict=True):
        for k, (arm, name) in enumerate(ARMS.items()):
            by_count = [f.result[f"{entry}_by_count"] for f in done.where(arm=arm)]
            points = {float(count + 1): estimate(values) for count, values in enumerate(_columns(by_count))}
            if arm == POINT and points:
                level(axis, points[1.0], name, COLOURS[k])
            else:
                curve(axis, points, name, COLOURS[k], marker="os^"[k])
        axis.set_xlabel("members or draws averaged")
        axis.set_ylabel(SCORES[entry])
        whole_numbers(axis)
    axes[0].legend()
    words = "Nearness to HMC against how many members or draws are averaged. Bars and band: one standard error."
    return Picture("count", words, sheet)


def _columns(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [list(column) for column in zip(*rows, strict=False)]


EXPERIMENT = Experiment(
    name="hmc-agreement",
    title="Nearness to long-run HMC",
    paper="Izmailov et al. 2021, What are Bayesian neural network posteriors really like? (section 6)",
    question="How near do a point, a deep ensemble and SG-MCMC come to the predictions of long-run HMC on IMDB?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
