"""``active-learning``: how many labels does a choice by uncertainty save?

A pool of rows without labels; a network is trained on a few, asks for the labels of a batch more, and is trained anew.
Rows are asked for at random, by the entropy of the prediction, by BALD (what a label tells of θ), by BatchBALD (what
the labels of the batch tell together) or by EPIG (what a label tells of predictions elsewhere). The posterior is MC
dropout, as in the papers; "MAP entropy" is the same trained network without its masks. Measured are accuracy and
log-loss after each round, and the labels at which accuracy first reaches a target, by a straight line between rounds;
an arm that never does is counted with all the labels it had.

Three pools: scikit-learn's digits, with a target of 90 %; the same with each of fewer rows several times under a little
noise, after the Repeated MNIST of Kirsch et al., with one of 85 %; Fashion-MNIST at 14 × 14 pixels, where a small
network and some two hundred labels do not reach 90 %, with one of 70 %. Seeds have pools of their own; within a seed
all arms share the pool and the first labels.

Near-duplicates are counted in two ways: by the distance of a chosen row to the nearest other of its batch, and on the
repeated pool by the share of chosen rows of which a copy had been chosen already.

Width, steps and learning rate were chosen on seed 100 by the accuracy of all arms. A first run, of seeds 0 to 4 with a
constant learning rate, ended its fits at noisy places; so the rate falls along a cosine now, the target of the repeated
pool, which holds few different rows, is 85 %, and the seeds are new.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import temperance as tp
from temperance.decide import acquire
from temperance.decide.active import learn_actively
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, curve, panels
from temperance.lab.judge import RULE, Estimate, above, all_of, below, difference, estimate
from temperance.lab.problems import Images, make_network

DIGITS, REPEATED, FASHION = "digits", "repeated digits", "fashion-mnist"
RANDOM, ENTROPY, BALD, BATCH_BALD, EPIG, MAP_ENTROPY = "random", "entropy", "BALD", "BatchBALD", "EPIG", "MAP entropy"
ARMS = (RANDOM, ENTROPY, BALD, BATCH_BALD, EPIG, MAP_ENTROPY)
ARMS_ON = {DIGITS: ARMS, REPEATED: (RANDOM, BALD, BATCH_BALD), FASHION: (RANDOM, BALD, BATCH_BALD)}
TARGETS = {DIGITS: 0.9, REPEATED: 0.85, FASHION: 0.7}
NOISE = 0.1
"""Standard deviation of what is added to copies, as of Kirsch et al.; pixels go from 0 to 1."""


@dataclass(frozen=True)
class ActiveSettings(Settings):
    """``start`` labels, then ``rounds`` batches of ``batch``; Fashion-MNIST has batches twice as large.

    The pools have ``pool`` rows, of which the repeated one has ``copies`` of each; Fashion-MNIST has ``test`` rows to
    be scored on, digits all that are not in the pool. Each fit takes ``steps`` of Adam, at a rate that falls from
    ``lr`` to 0; predictions average ``draws`` masks; BatchBALD looks at ``configurations`` of labels; EPIG at
    ``towards`` rows of the pool.
    """

    problems: tuple[str, ...] = (DIGITS, REPEATED, FASHION)
    network: str = "mlp-100x1-dropout"
    pool: int = 1000
    copies: int = 4
    test: int = 1000
    start: int = 20
    batch: int = 10
    rounds: int = 12
    steps: int = 60
    lr: float = 0.03
    batch_size: int = 50
    draws: int = 50
    configurations: int = 100
    towards: int = 50

    def batch_on(self, problem: str) -> int:
        """Rows that are asked for at once."""
        return 2 * self.batch if problem == FASHION else self.batch


PRESETS = {
    "quick": Preset(
        ActiveSettings(
            seeds=3, problems=(DIGITS, REPEATED), network="mlp-20x1-dropout", pool=200, rounds=2, steps=40, draws=10,
            configurations=50, towards=20,
        ),
        0.4,
    ),
    "standard": Preset(ActiveSettings(seed=10, seeds=5), 3),
    "paper": Preset(
        ActiveSettings(
            seeds=20, network="cnn-dropout", pool=20000, copies=3, test=10000, rounds=90, steps=1000, lr=1e-3,
            draws=100, configurations=10000, towards=1000,
        ),
        3000,
    ),
}  # fmt: skip


def cells(settings: ActiveSettings) -> list[Cell]:
    """Problem × arm × seed."""
    return [
        Cell.of(problem=problem, arm=arm, seed=seed)
        for seed in settings.all_seeds()
        for problem in settings.problems
        for arm in ARMS_ON[problem]
    ]


def load_pool(settings: ActiveSettings, problem: str, seed: int) -> tuple[tp.data.Data, tp.data.Data, int]:
    """A seed's pool, its test rows, and how many of the pool's rows are no copies: row i is a copy of i modulo that."""
    if problem == FASHION:
        pool, test = Images("fashion-mnist", settings.pool, settings.test).load(seed)
        return _halved(pool), _halved(test), len(pool)
    whole = _all_digits()
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(1000 + seed))
    pool_rows = min(settings.pool, 1000)
    test = whole.subset(order[pool_rows:])
    if problem == DIGITS:
        return whole.subset(order[:pool_rows]), test, pool_rows
    originals = pool_rows // settings.copies
    rows = whole.subset(order[:originals])
    assert isinstance(rows.x, Tensor)
    x = rows.x.repeat(settings.copies, 1)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(2000 + seed))
    return tp.data.Data(x + NOISE * noise, rows.y.repeat(settings.copies), info=rows.info), test, originals


def _all_digits() -> tp.data.Data:
    train, test = tp.data.load("digits")
    assert isinstance(train.x, Tensor)
    assert isinstance(test.x, Tensor)
    return tp.data.Data(torch.cat([train.x, test.x]), torch.cat([train.y, test.y]), info=train.info)


def _halved(data: tp.data.Data) -> tp.data.Data:
    """Images of 14 × 14 pixels, in rows."""
    assert isinstance(data.x, Tensor)
    info = dataclasses.replace(data.info, image_shape=(1, 14, 14))
    return tp.data.Data(nn.functional.avg_pool2d(data.x.reshape(-1, 1, 28, 28), 2).flatten(1), data.y, info=info)


def run(settings: ActiveSettings, cell: Cell) -> dict[str, Any]:
    """One arm: its curves, the labels that it needed, and how alike the rows of its batches were."""
    problem, arm, seed = cell["problem"], cell["arm"], cell["seed"]
    pool, test, originals = load_pool(settings, problem, seed)
    point = tp.MAP(
        lr=settings.lr,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR,
        scheduler_args={"T_max": settings.steps},
        schedule_steps=True,
    )
    batch = settings.batch_on(problem)
    scores: dict[str, acquire.Acquisition] = {
        RANDOM: acquire.random,
        BALD: acquire.bald,
        BATCH_BALD: functools.partial(acquire.batch_bald, configurations=settings.configurations),
        EPIG: acquire.epig,
    }
    assert isinstance(pool.x, Tensor)

    def target() -> tp.Target:
        network = make_network(settings.network, pool, int(torch.randint(2**31, ())))
        return tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))

    found = learn_actively(
        target,
        point if arm == MAP_ENTROPY else tp.MCDropout(point),
        pool,
        start=settings.start,
        batch=batch,
        rounds=settings.rounds,
        acquire=scores.get(arm, acquire.entropy),
        test=test,
        towards=pool.x[: settings.towards] if arm == EPIG else None,
        steps=settings.steps,
        batch_size=settings.batch_size,
        draws=None if arm == MAP_ENTROPY else settings.draws,
        candidates=max(1000, batch),
        seed=seed,
        progress=False,
    )
    accuracy, log_loss = found.curve("accuracy")[1], found.curve("log_loss")[1]
    needed = labels_needed(found.labels, accuracy, TARGETS[problem])
    return {
        "labels": found.labels,
        "accuracy": accuracy,
        "log_loss": log_loss,
        "needed": found.labels[-1] if needed is None else needed,
        "reached": needed is not None,
        "last_accuracy": accuracy[-1],
        "mean_accuracy": sum(accuracy) / len(accuracy),
        "mean_log_loss": sum(log_loss) / len(log_loss),
        "nearest": nearest_in_batch(pool.x[found.rows[settings.start :]], batch),
        "copied": copied(found.rows % originals, settings.start),
    }


def labels_needed(labels: list[int], accuracy: list[float], target: float) -> float | None:
    """Where a curve first reaches ``target``, by straight lines between its points.

    >>> labels_needed([10, 20, 30], [0.5, 0.8, 1.0], 0.9), labels_needed([10, 20], [0.5, 0.8], 0.9)
    (25.0, None)
    """
    for k, value in enumerate(accuracy):
        if value >= target:
            if k == 0:
                return float(labels[0])
            share = (target - accuracy[k - 1]) / (value - accuracy[k - 1])
            return labels[k - 1] + share * (labels[k] - labels[k - 1])
    return None


def nearest_in_batch(x: Tensor, batch: int) -> float:
    """The distance of a row to the nearest other of its batch, on average.

    >>> nearest_in_batch(torch.tensor([[0.0], [1.0], [5.0], [8.0]]), 2)
    2.0
    """
    parts = []
    for rows in x.flatten(1).double().split(batch):
        apart = torch.cdist(rows, rows) + torch.diag(torch.full((len(rows),), torch.inf, dtype=torch.float64))
        parts.append(apart.amin(1))
    return float(torch.cat(parts).mean())


def copied(originals: Tensor, start: int) -> float:
    """The share of rows after the first ``start`` whose original came before.

    >>> copied(torch.tensor([3, 1, 3, 2, 2, 7]), 2)
    0.5
    """
    seen = set(originals[:start].tolist())
    count = 0
    for row in originals[start:].tolist():
        count += row in seen
        seen.add(row)
    return count / max(1, len(originals) - start)


# ---------------------------------------------------------------------- judging


def told(settings: ActiveSettings, done: Cells, problem: str, entry: str, arms: tuple[str, ...] = ARMS) -> str:
    """An entry of each arm, in words."""
    return "; ".join(
        f"{arm} {estimate(done.values(entry, problem=problem, arm=arm))}" for arm in arms if arm in ARMS_ON[problem]
    )


def gap(done: Cells, problem: str, arm: str, other: str, entry: str = "needed") -> Estimate:
    """An entry of one arm less that of another, seed by seed."""
    return difference(*(done.by_seed(entry, problem=problem, arm=name) for name in (arm, other)))


def _short(done: Cells, problem: str) -> str:
    missed = {
        arm: sum(not f.result["reached"] for f in done.where(problem=problem, arm=arm)) for arm in ARMS_ON[problem]
    }
    told_of = ", ".join(f"{arm} {count}" for arm, count in missed.items() if count)
    return f"; target not reached (seeds): {told_of}" if told_of else ""


def claims(settings: ActiveSettings, done: Cells) -> list[Claim]:
    """Labels against random on each pool, diversity of batches, the repeated pool, and what the posterior is for."""
    papers = {
        (DIGITS, BALD): "MNIST, 10 % error: 145 images, random 255 (Gal et al. 2017)",
        (DIGITS, BATCH_BALD): "MNIST, 95 %: 200 labels on median, BALD 250 (Kirsch et al. 2019)",
        (REPEATED, BALD): "worse than random on Repeated MNIST (Kirsch et al. 2019)",
        (REPEATED, BATCH_BALD): "better than random on Repeated MNIST",
    }
    made = []
    for problem in settings.problems:
        all_arms = (
            f"labels for {100 * TARGETS[problem]:g} %: {told(settings, done, problem, 'needed')}"
            + _short(done, problem)
            + f"; accuracy averaged over rounds: {told(settings, done, problem, 'mean_accuracy')}; "
        )
        for arm in (BALD, BATCH_BALD):
            less = gap(done, problem, arm, RANDOM)
            worse = (problem, arm) == (REPEATED, BALD)
            made.append(
                Claim(
                    f"{problem}: {arm} needs {'more' if worse else 'fewer'} labels than random",
                    papers.get((problem, arm), "(asked here)"),
                    (all_arms if arm == BALD else "") + f"{arm} less random {less} labels",
                    above(less) if worse else below(less),
                    f"difference {'above' if worse else 'below'} 0; {RULE}",
                )
            )
    for problem in settings.problems:
        more = {arm: gap(done, problem, arm, RANDOM, "last_accuracy") for arm in (BALD, BATCH_BALD)}
        made.append(
            Claim(
                f"{problem}: with all labels spent, BALD and BatchBALD are more accurate than random",
                "MNIST, 1000 labels: error 1.80 % by BALD, 4.66 % at random (Gal et al. 2017)"
                if problem == DIGITS
                else "(asked here)",
                f"accuracy with {settings.start + settings.rounds * settings.batch_on(problem)} labels: "
                f"{told(settings, done, problem, 'last_accuracy')}; less random's: "
                + "; ".join(f"{arm} {value}" for arm, value in more.items()),
                all_of(*(above(value) for value in more.values())),
                f"both differences above 0; {RULE}",
            )
        )
    wider = {problem: gap(done, problem, BATCH_BALD, BALD, "nearest") for problem in settings.problems}
    made.append(
        Claim(
            "BatchBALD's batches have fewer near-duplicates than BALD's of the same size",
            "BALD picks similar points because their information is counted twice; BatchBALD does not",
            "distance to the nearest of the batch: "
            + "; ".join(
                f"{problem}: {told(settings, done, problem, 'nearest', (RANDOM, BALD, BATCH_BALD))}, BatchBALD less "
                f"BALD {value}"
                for problem, value in wider.items()
            ),
            all_of(*(above(value) for value in wider.values())),
            f"differences above 0 on every pool; {RULE}",
        )
    )
    if REPEATED in settings.problems:
        copies = gap(done, REPEATED, BATCH_BALD, BALD, "copied")
        labels = gap(done, REPEATED, BALD, BATCH_BALD)
        made += [
            Claim(
                f"{REPEATED}: BatchBALD asks for fewer copies than BALD",
                "as above",
                f"rows of which a copy was chosen before: {told(settings, done, REPEATED, 'copied')}; BatchBALD less "
                f"BALD {copies}",
                below(copies),
                f"difference below 0; {RULE}",
            ),
            Claim(
                f"{REPEATED}: BALD loses to BatchBALD",
                "BatchBALD keeps its performance where each image comes three times, BALD does not",
                f"labels for {100 * TARGETS[REPEATED]:g} %: BALD less BatchBALD {labels}; log-loss averaged over "
                f"rounds: {told(settings, done, REPEATED, 'mean_log_loss')}" + _short(done, REPEATED),
                above(labels),
                f"difference of labels above 0; {RULE}",
            ),
        ]
    if DIGITS in settings.problems:
        against_map = gap(done, DIGITS, BALD, MAP_ENTROPY)
        elsewhere = gap(done, DIGITS, EPIG, BALD)
        made += [
            Claim(
                f"{DIGITS}: BALD by a posterior needs fewer labels than the entropy of one network",
                "a Bayesian network beats a deterministic one with the same acquisition (Gal et al. 2017)",
                f"BALD less MAP entropy {against_map} labels; log-loss averaged over rounds: "
                f"{told(settings, done, DIGITS, 'mean_log_loss')}",
                below(against_map),
                f"difference below 0; {RULE}",
            ),
            Claim(
                f"{DIGITS}: EPIG needs fewer labels than BALD",
                "EPIG outperforms BALD, most on messy pools (Bickford Smith et al. 2023)",
                f"EPIG less BALD {elsewhere} labels",
                below(elsewhere),
                f"difference below 0; {RULE}",
            ),
        ]
    return made


# ---------------------------------------------------------------------- drawing


def figures(settings: ActiveSettings, done: Cells) -> list[Picture]:
    """Curves of accuracy and log-loss, and the labels and batches behind the claims."""
    return [_curves(settings, done), _needs(settings, done)]


def _colour(arm: str) -> str:
    return COLOURS[(5, 1, 0, 3, 2, 4)[ARMS.index(arm)]]


def _curves(settings: ActiveSettings, done: Cells) -> Picture:
    sheet, axes = panels(len(settings.problems), 2, width=4.4, height=3.3)
    width = len(settings.problems)
    for k, problem in enumerate(settings.problems):
        for row, entry in enumerate(("accuracy", "log_loss")):
            axis = axes[row * width + k]
            for arm in ARMS_ON[problem]:
                found = [f.result for f in done.where(problem=problem, arm=arm)]
                if not found:
                    continue
                columns = zip(*(result[entry] for result in found), strict=True)
                points = {float(n): estimate(values) for n, values in zip(found[0]["labels"], columns, strict=True)}
                curve(axis, points, arm, _colour(arm), marker="", dashed=arm in (RANDOM, MAP_ENTROPY))
            if row == 0:
                axis.axhline(TARGETS[problem], color="#444444", linewidth=0.9, linestyle=":")
                axis.set_title(problem)
            axis.set_xlabel("labels")
            axis.set_ylabel("test accuracy" if row == 0 else "test log-loss (nats)")
    axes[0].legend(fontsize=8)
    words = "What is reached with how many labels. Dotted: the target. Bars: one standard error over seeds."
    return Picture("curves", words, sheet)


def _needs(settings: ActiveSettings, done: Cells) -> Picture:
    sheet, axes = panels(3, width=4.6, height=3.4)
    entries = {
        "needed": "labels for the target, less random's",
        "nearest": "distance to the nearest of the batch,\nover random's",
        "copied": "chosen rows that are copies",
    }
    for axis, (entry, label) in zip(axes, entries.items(), strict=True):
        problems = [p for p in settings.problems if entry != "copied" or p == REPEATED]
        for k, problem in enumerate(problems):
            arms = [arm for arm in ARMS_ON[problem] if entry == "copied" or arm != RANDOM]
            for arm in arms:
                own, base = (done.by_seed(entry, problem=problem, arm=name) for name in (arm, RANDOM))
                if entry == "needed":
                    value = difference(own, base)
                elif entry == "nearest":
                    value = estimate([own[seed] / base[seed] for seed in own if seed in base])
                else:
                    value = estimate(list(own.values()))
                if not value.count:
                    continue
                place = k + (ARMS.index(arm) - 2.5) * 0.12
                error = value.error if value.count > 1 else 0.0
                first = k == 0 and entry == "needed"
                axis.errorbar(
                    place, value.mean, yerr=error, fmt="o", color=_colour(arm), capsize=2.5,
                    label=arm if first else None,
                )  # fmt: skip
                if entry == "copied":
                    axis.annotate(arm, (place, value.mean), (6, 0), textcoords="offset points", fontsize=8)
        axis.set_xticks(range(len(problems)), problems)
        axis.set_xlim(-0.55, len(problems) - 0.35)
        axis.set_ylabel(label)
        if entry == "copied":
            axis.set_ylim(0, None)
        else:
            axis.axhline(0.0 if entry == "needed" else 1.0, color="#777777", linewidth=1.0)
    axes[0].legend(fontsize=8)
    words = (
        "Labels that each choice needs, less those of random on the same pool (below the line is better); how far the "
        "rows of a batch are apart, relative to random ones; and how many of the rows were copies of earlier ones."
    )
    return Picture("needs", words + " Bars: one standard error.", sheet)


EXPERIMENT = Experiment(
    name="active-learning",
    title="Labels saved by asking",
    paper="Gal et al. 2017; Kirsch et al. 2019; Bickford Smith et al. 2023",
    question="How many labels does an accuracy take when they are chosen by uncertainty and not at random?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
