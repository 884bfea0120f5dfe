"""``valley``: are two modes of the loss joined by a valley, and do predictions change along it?

Two MAP fits from different starts; between them a straight line in weight space, and a Bézier curve whose inner points
are trained so that the loss is low all along (:class:`temperance.Curve`). The *barrier* of a path is how far the loss
rises on it above that of the worse end.

A valley is of use to a Bayesian only if its places predict differently. The middle of the curve is held against the
nearer of its ends: total variation ½ Σ_c |p_c − q_c|, averaged over test rows, and how often labels differ. As a
control an end is trained on for as many steps as the curve was: that is how far an optimiser strays within a mode.
Last, probabilities are averaged along the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import temperance as tp
from temperance.judge import diagnose
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, panels
from temperance.lab.judge import RULE, Estimate, above, all_of, below, difference, estimate
from temperance.lab.problems import Images, fit, make_network, make_prior

LOW = 0.1
"""A barrier below this share of the straight line's is low."""
AVERAGES = {"end": "one end", "two_ends": "both ends", "curve": "along the curve"}


@dataclass(frozen=True)
class ValleySettings(Settings):
    """A ``network`` under each of ``priors``: ``steps`` of Adam train the ends, as many the curve with each number of
    ``bends``, the learning rate falling from ``lr`` to 0 along a cosine. Losses are taken at ``points`` places."""

    network: str = "mlp-50x2"
    priors: tuple[str, ...] = ("fan-in-3", "normal-1")
    bends: tuple[int, ...] = (1, 3)
    data: Images = field(default_factory=lambda: Images("digits", train=300))
    batch_size: int = 50
    steps: int = 2000
    lr: float = 0.01
    points: int = 31
    draws: int = 30


PRESETS = {
    "quick": Preset(
        ValleySettings(
            seeds=3, network="mlp-10x1", priors=("normal-1",), data=Images("digits", train=100, test=100), steps=150,
            points=11, draws=10,
        ),
        0.2,
    ),
    "standard": Preset(ValleySettings(seeds=6), 4),
    "paper": Preset(
        ValleySettings(
            seeds=10, network="resnet20", priors=("normal-1",), bends=(1,), data=Images("cifar10"), batch_size=128,
            steps=40000, points=61,
        ),
        2000,
    ),
}  # fmt: skip


def cells(settings: ValleySettings) -> list[Cell]:
    """Prior × bends × seed."""
    return [
        Cell.of(prior=prior, bends=bends, seed=seed)
        for seed in settings.all_seeds()
        for prior in settings.priors
        for bends in settings.bends
    ]


def run(settings: ValleySettings, cell: Cell) -> dict[str, Any]:
    """One curve: losses along it, how its predictions change, and what averaging gives."""
    seed, steps = cell["seed"], settings.steps
    data, test = settings.data.load(seed)
    network = make_network(settings.network, data, seed)
    target = tp.Target(network, tp.Categorical(), make_prior(cell["prior"]))
    base = tp.MAP(
        lr=settings.lr,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR,
        scheduler_args={"T_max": steps},
        schedule_steps=True,
    )
    options: dict[str, Any] = {"batch_size": settings.batch_size, "seed": seed}
    fitted = fit(target, tp.Curve(base, bends=cell["bends"]), data, steps=2 * steps, **options)
    path = fitted.posterior
    assert isinstance(path, tp.posteriors.CurvePosterior)
    further = fit(target, base, data, steps=steps, start=path.points[0], **options)
    on_train, on_test = (diagnose.loss_along(fitted, rows, settings.points) for rows in (data, test))

    def probabilities(theta: Tensor) -> Tensor:
        point = tp.Fitted(target, tp.posteriors.Point(theta), fitted.info)
        return point.predict(test.x).mean().double()

    first, middle, last = (probabilities(path.at(t)[0]) for t in (0.0, 0.5, 1.0))
    return {
        "train_barrier": on_train.barrier,
        "train_straight": on_train.straight_barrier,
        "test_barrier": on_test.barrier,
        "test_straight": on_test.straight_barrier,
        **changes(first, middle, last, further.predict(test.x).mean().double()),
        "ce_end": 0.5 * (log_loss(first, test.y) + log_loss(last, test.y)),
        "ce_two_ends": log_loss(0.5 * (first + last), test.y),
        "ce_middle": log_loss(middle, test.y),
        "ce_curve": -float(fitted.predict(test.x, draws=settings.draws).log_prob(test.y).double().mean()),
        "t": _numbers(on_train.t),
        "train_loss": _numbers(on_train.loss),
        "train_line": _numbers(on_train.straight),
        "test_loss": _numbers(on_test.loss),
        "test_line": _numbers(on_test.straight),
        "changed": _numbers(on_test.disagreement),
        "line_changed": _numbers(on_test.straight_disagreement),
    }


def changes(first: Tensor, middle: Tensor, last: Tensor, further: Tensor) -> dict[str, float]:
    """How far predictions are apart: the middle from the nearer end, the ends, and an end trained on from itself.

    >>> a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])
    >>> changes(a, b, a, a)["apart_middle"]
    0.5
    """
    apart, labels = tp.scores.total_variation, _relabelled
    return {
        "apart_middle": min(apart(middle, first), apart(middle, last)),
        "apart_ends": apart(first, last),
        "apart_further": apart(first, further),
        "labels_middle": min(labels(middle, first), labels(middle, last)),
        "labels_ends": labels(first, last),
        "labels_further": labels(first, further),
    }


def _relabelled(p: Tensor, q: Tensor) -> float:
    return 1.0 - tp.scores.agreement(p, q)


def log_loss(probs: Tensor, labels: Any) -> float:
    """Mean −log p(y); a probability that has been rounded to nothing counts as 10⁻³⁰."""
    return -float(probs[torch.arange(len(probs)), labels].clamp_min(1e-30).log().mean())


def _numbers(values: Tensor) -> list[float]:
    return [round(float(v), 6) for v in values]


# ---------------------------------------------------------------------- judging


def by_bends(settings: ValleySettings, make: Callable[[int], Estimate]) -> dict[int, Estimate]:
    """An estimate for each number of bends."""
    return {bends: make(bends) for bends in settings.bends}


def told(values: Mapping[int, Estimate]) -> str:
    """In words."""
    return "; ".join(f"{n} bend{'s' if n > 1 else ''}: {value}" for n, value in values.items())


def claims(settings: ValleySettings, done: Cells) -> list[Claim]:
    """Five for each prior."""
    return [claim for prior in settings.priors for claim in _claims_of(settings, done, prior)]


def _claims_of(settings: ValleySettings, done: Cells, prior: str) -> list[Claim]:
    def value(entry: str) -> dict[int, Estimate]:
        return by_bends(settings, lambda n: estimate(done.values(entry, prior=prior, bends=n)))

    def gap(entry: str, other: str, factor: float = 1.0) -> dict[int, Estimate]:
        def one(n: int) -> Estimate:
            a, b = (done.by_seed(e, prior=prior, bends=n) for e in (entry, other))
            return difference(a, {seed: factor * v for seed, v in b.items()})

        return by_bends(settings, one)

    made = []
    for rows, words in (("train", "training"), ("test", "test")):
        low = gap(f"{rows}_barrier", f"{rows}_straight", LOW)
        made.append(
            Claim(
                f"{prior}: a curve joins two modes at low {words} loss",
                "valleys over which parameters incur very little loss (Garipov et al. 2018)",
                f"barrier on the curve: {told(value(f'{rows}_barrier'))}; on the straight line: "
                f"{told(value(f'{rows}_straight'))} (nats)",
                all_of(*(below(e) for e in low.values())),
                f"the curve's below {LOW:g} of the straight line's; {RULE}",
            )
        )
    differs = gap("apart_middle", "apart_further")
    made.append(
        Claim(
            f"{prior}: predictions differ along the curve",
            "the functions of a valley make meaningfully different predictions on test data",
            f"total variation between the middle and the nearer end: {told(value('apart_middle'))}; between the ends: "
            f"{told(value('apart_ends'))}; between an end and itself trained on: {told(value('apart_further'))}; "
            f"labels that change: {told(value('labels_middle'))}, ends {told(value('labels_ends'))}",
            all_of(*(above(e) for e in differs.values())),
            f"the middle further from the nearer end than training on leads; {RULE}",
        )
    )
    for other, words, paper in (
        ("end", "an end", "different but high performing models, for better accuracy and calibration"),
        ("two_ends", "the average of both ends", "(asked here)"),
    ):
        less = gap("ce_curve", f"ce_{other}")
        made.append(
            Claim(
                f"{prior}: averaging along the curve predicts better than {words}",
                paper,
                f"log-loss along the curve: {told(value('ce_curve'))}; less that of {words}: {told(less)}",
                all_of(*(below(e) for e in less.values())),
                f"differences below 0; {RULE}",
            )
        )
    return made


# ---------------------------------------------------------------------- drawing


def figures(settings: ValleySettings, done: Cells) -> list[Picture]:
    """Losses and labels along the paths, and the averages."""
    return [_along(settings, done), _averages(settings, done)]


def _along(settings: ValleySettings, done: Cells) -> Picture:
    sheet, axes = panels(3, len(settings.priors), width=4.1, height=3.2)
    kinds = (("train_loss", "train_line", "training loss (nats)"), ("test_loss", "test_line", "test loss (nats)"),
             ("changed", "line_changed", "labels other than the first end's"))  # fmt: skip
    for row, prior in enumerate(settings.priors):
        for axis, (own, line, label) in zip(axes[3 * row : 3 * row + 3], kinds, strict=True):
            lines = [(own, n, f"curve, {n} bend{'s' if n > 1 else ''}") for n in settings.bends]
            for k, (entry, bends, name) in enumerate([*lines, (line, settings.bends[0], "straight line")]):
                found = [f.result for f in done.where(prior=prior, bends=bends)]
                if not found:
                    continue
                rows = torch.tensor([result[entry] for result in found])
                t, mean = torch.tensor(found[0]["t"]), rows.mean(0)
                axis.plot(t, mean, color=COLOURS[k], label=name)
                if len(rows) > 1:
                    error = rows.std(0) / len(rows) ** 0.5
                    axis.fill_between(t, mean - error, mean + error, color=COLOURS[k], alpha=0.2, linewidth=0)
            axis.set_xlabel("t")
            axis.set_ylabel(label)
            axis.set_title(prior, fontsize=10)
    axes[0].legend()
    words = "From one mode to another, along curves and along the straight line. Bands: one standard error."
    return Picture("along", words, sheet)


def _averages(settings: ValleySettings, done: Cells) -> Picture:
    sheet, axes = panels(2 * len(settings.priors), width=3.6, height=3.4)
    entries = {
        "test log-loss (nats)": {f"ce_{k}": word for k, word in AVERAGES.items()},
        "total variation of predictions": {
            "apart_further": "end trained on",
            "apart_middle": "middle to end",
            "apart_ends": "end to end",
        },
    }
    for k, prior in enumerate(settings.priors):
        for axis, (label, shown) in zip(axes[2 * k : 2 * k + 2], entries.items(), strict=True):
            for j, bends in enumerate(settings.bends):
                known = [estimate(done.values(entry, prior=prior, bends=bends)) for entry in shown]
                places = [p + (j - 0.5 * (len(settings.bends) - 1)) * 0.15 for p in range(len(shown))]
                errors = [e.error if e.count > 1 else 0.0 for e in known]
                name = f"{bends} bend{'s' if bends > 1 else ''}"
                axis.errorbar(
                    places, [e.mean for e in known], yerr=errors, fmt="osD"[j % 3], color=COLOURS[j], capsize=2.5,
                    label=name,
                )  # fmt: skip
            axis.set_xticks(range(len(shown)), list(shown.values()), fontsize=8)
            axis.margins(x=0.15)
            axis.set_ylabel(label)
            axis.set_title(prior, fontsize=10)
    axes[0].legend()
    words = (
        "Log-loss of one end, of both ends averaged, and averaged along the curve; and how far predictions are apart."
    )
    return Picture("averages", words + " Bars: one standard error.", sheet)


EXPERIMENT = Experiment(
    name="valley",
    title="A valley between two modes",
    paper="Garipov et al. 2018; Wilson 2020, The case for Bayesian deep learning",
    question="Is there a path of low loss between two modes, and do the networks on it predict differently?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
