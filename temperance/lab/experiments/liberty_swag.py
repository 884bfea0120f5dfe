"""``liberty-swag``: does SWAG need its low-rank covariance in deep residual networks?

SGD walks with a constant learning rate, and a Gaussian is made of the places it passes. Of one and the same walk two
are made: SWAG, half the variances and half a low-rank covariance of the last deviations, and SWAG-Diag, the variances
alone. What differs between them is nothing but the covariance. Both predict with as many draws, each with batch
statistics of its own; for each seed both are scored on the same images, so that differences are taken seed by seed.

Scores: negative log-likelihood, accuracy, and ECE with ten bins; also those of the mean of the walk (SWA).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import temperance as tp
from temperance.engine.engine import Engine
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, GREY, curve, panels
from temperance.lab.judge import RULE, Estimate, above, all_of, below, difference, estimate, near
from temperance.lab.problems import Images, fit

ARMS = {"low_rank": "low-rank (SWAG)", "diagonal": "diagonal (SWAG-Diag)", "average": "average of weights (SWA)"}
EQUAL = 0.02
"""Nats within which the two count as equal."""


@dataclass(frozen=True)
class SwagSettings(Settings):
    """PreResNets of ``depths`` (6n + 2) with ``widths`` channels, on images averaged over ``pool`` × ``pool`` pixels.

    SGD with momentum 0.9 for ``epochs``: a warm start at ``lr``, from ``start`` of the way on at ``swag_lr``, where
    ``collect`` iterates an epoch are collected. ``rank`` deviations are kept; ``draws`` make a prediction. The prior
    N(0, ``scale``²) is the weight decay 1 / (N ``scale``²).
    """

    data: Images = field(default_factory=lambda: Images("fashion-mnist", train=1500, test=1000))
    pool: int = 2
    depths: tuple[int, ...] = (8, 14, 20)
    widths: tuple[int, ...] = (4, 8, 16)
    epochs: int = 20
    batch_size: int = 100
    lr: float = 0.1
    swag_lr: float = 0.05
    start: float = 0.5
    collect: int = 2
    rank: int = 20
    draws: int = 15
    scale: float = 1.0


PRESETS = {
    "quick": Preset(
        SwagSettings(
            seeds=3, data=Images("digits", train=200, test=100), pool=1, depths=(8, 14), widths=(2, 2, 4), epochs=4,
            collect=2, rank=3, draws=3,
        ),
        0.5,
    ),
    "standard": Preset(SwagSettings(), 3),
    "paper": Preset(
        SwagSettings(
            seeds=5, data=Images("cifar100"), pool=1, depths=(8, 14, 20, 26, 32, 38), widths=(16, 32, 64), epochs=300,
            batch_size=128, swag_lr=0.01, start=161 / 300, collect=1, draws=30, scale=0.26,
        ),
        6000,
    ),
}  # fmt: skip


class TwoGaussians(tp.SWAG):
    """SWAG whose posterior has two parts, made of the same walk: with the low-rank covariance, and the diagonal."""

    def posteriors(self, engine: Engine, state: Any, data: tp.data.Data | None) -> tuple[tp.posteriors.Posterior, ...]:
        """A mixture of the two; they are meant to be looked at one by one."""
        diagonal = tp.SWAG(self.base, rank=0, start=self.start, every=self.every, lr=self.lr, draws=self.draws)
        pairs = zip(super().posteriors(engine, state, data), diagonal.posteriors(engine, state, data), strict=True)
        return tuple(tp.posteriors.Mixture(pair) for pair in pairs)


def cells(settings: SwagSettings) -> list[Cell]:
    """Depth × seed, the deep ones first."""
    return [
        Cell.of(depth=depth, seed=seed)
        for seed in settings.all_seeds()
        for depth in sorted(settings.depths, reverse=True)
    ]


def run(settings: SwagSettings, cell: Cell) -> dict[str, Any]:
    """One walk; the scores of both Gaussians and of their mean."""
    train, test = small_images(settings, cell["seed"])
    assert isinstance(train.x, Tensor)
    assert train.info.num_classes is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cell["seed"])
        network = tp.nn.PreResNet(
            cell["depth"], train.x.shape[1], train.info.num_classes, nn.BatchNorm2d, widths=settings.widths
        )
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(settings.scale))
    base = tp.MAP(lr=settings.lr, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
    steps = -(-len(train) // settings.batch_size)
    method = TwoGaussians(
        base,
        rank=settings.rank,
        start=settings.start,
        every=max(1, steps // settings.collect),
        lr=settings.swag_lr,
        draws=settings.draws,
    )
    options: dict[str, Any] = {"epochs": settings.epochs, "batch_size": settings.batch_size, "seed": cell["seed"]}
    fitted = fit(target, method, train, **options)
    assert isinstance(fitted.posterior, tp.posteriors.Mixture)
    low_rank, diagonal = fitted.posterior.components
    average = tp.posteriors.Point(low_rank.mean, low_rank.buffers)  # type: ignore[attr-defined]
    result: dict[str, Any] = {"parameters": float(target.num_parameters), "loss": fitted.info.losses[-1]}
    for name, posterior in zip(ARMS, (low_rank, diagonal, average), strict=True):
        found = scores(tp.Fitted(fitted.target, posterior, fitted.info), test)
        result |= {f"{name}_{entry}": value for entry, value in found.items()}
    return result


def small_images(settings: SwagSettings, seed: int) -> tuple[tp.data.Data, tp.data.Data]:
    """Training and test images, standardised and averaged over small squares."""
    try:
        train, test = settings.data.load(seed)
    except tp.errors.MissingDataSetError as error:
        if settings.data.name != "cifar100":
            raise
        raise tp.errors.MissingDataSetError(  # the last line is the one that a run prints
            f"{error}\nThis preset of liberty-swag needs CIFAR-100, which is missing: provide cifar-100-binary.tar.gz."
        ) from error
    assert isinstance(train.x, Tensor)
    mean, scale = float(train.x.mean()), float(train.x.std())
    return tuple(_small(part, settings.pool, mean, scale) for part in (train, test))  # type: ignore[return-value]


def _small(data: tp.data.Data, pool: int, mean: float, scale: float) -> tp.data.Data:
    assert isinstance(data.x, Tensor)
    shape = data.info.image_shape or (1, 8, 8)
    x = (data.x.view(-1, *shape) - mean) / scale
    return tp.data.Data(F.avg_pool2d(x, pool) if pool > 1 else x, data.y, info=data.info)


def scores(fitted: tp.Fitted, test: tp.data.Data) -> dict[str, float]:
    """Of the averaged prediction."""
    predictive = fitted.predict(test.x)
    probs = predictive.mean()
    return {
        "nll": -float(predictive.log_prob(test.y).double().mean()),
        "accuracy": tp.scores.accuracy(probs, test.y),
        "ece": tp.scores.ece(probs, test.y, bins=10, resamples=10).value,
    }


# ---------------------------------------------------------------------- judging and drawing


def by_depth(settings: SwagSettings, done: Cells, entry: str) -> dict[int, Estimate]:
    """An entry for each depth."""
    return {depth: estimate(done.values(entry, depth=depth)) for depth in sorted(settings.depths)}


def gain(done: Cells, entry: str, depth: int) -> dict[int, float]:
    """Diagonal less low-rank, by seed."""
    low, diagonal = (done.by_seed(f"{arm}_{entry}", depth=depth) for arm in ("low_rank", "diagonal"))
    return {seed: diagonal[seed] - low[seed] for seed in low if seed in diagonal}


def gains(settings: SwagSettings, done: Cells, entry: str) -> dict[int, Estimate]:
    """The same for each depth."""
    return {depth: estimate(list(gain(done, entry, depth).values())) for depth in sorted(settings.depths)}


def told(values: Mapping[int, Estimate]) -> str:
    """In words."""
    return "; ".join(f"depth {depth}: {value}" for depth, value in values.items())


def claims(settings: SwagSettings, done: Cells) -> list[Claim]:
    """Equal in each score; and whether what there is of a difference shrinks with depth."""
    nll, accuracy, ece = (gains(settings, done, entry) for entry in ("nll", "accuracy", "ece"))
    shallow, deep = min(settings.depths), max(settings.depths)
    trend = difference(gain(done, "nll", shallow), gain(done, "nll", deep))
    return [
        Claim(
            "Low-rank and diagonal SWAG have the same log-likelihood at every depth",
            "no observable difference in negative log-likelihood (Figure 4, CIFAR-100)",
            f"NLL of the diagonal less that of the low-rank: {told(nll)}; low-rank: "
            f"{told(by_depth(settings, done, 'low_rank_nll'))}",
            all_of(*(near(value, 0.0, EQUAL) for value in nll.values())),
            f"within {EQUAL:g} nats at each depth; {RULE}",
        ),
        Claim(
            "They have the same accuracy and calibration",
            "or accuracy (Appendix C.4); ECE .046 against .020 on Imagenet (DenseNet-161)",
            f"diagonal less low-rank, accuracy: {told(accuracy)}; ECE: {told(ece)}",
            all_of(*(near(value, 0.0, EQUAL) for value in (*accuracy.values(), *ece.values()))),
            f"within {EQUAL:g} at each depth; {RULE}",
        ),
        Claim(
            "What the low rank gains shrinks with depth",
            "past two hidden layers, further depth is not essential",
            f"gain in NLL at depth {shallow} less gain at depth {deep}: {trend}",
            None if all(near(value, 0.0, EQUAL) for value in nll.values()) else above(trend),
            f"difference above 0, where there is a gain of more than {EQUAL:g} nats to shrink; {RULE}",
        ),
        Claim(
            "Both predict better than the average of the weights",
            "SWAG improves on SWA (Maddox et al. 2019)",
            "NLL less that of SWA, low-rank: "
            + told(_over_average(settings, done, "low_rank"))
            + "; diagonal: "
            + told(_over_average(settings, done, "diagonal")),
            all_of(
                *(below(e) for arm in ("low_rank", "diagonal") for e in _over_average(settings, done, arm).values())
            ),
            f"below 0 at each depth; {RULE}",
        ),
    ]


def _over_average(settings: SwagSettings, done: Cells, arm: str) -> dict[int, Estimate]:
    return {
        depth: difference(done.by_seed(f"{arm}_nll", depth=depth), done.by_seed("average_nll", depth=depth))
        for depth in sorted(settings.depths)
    }


def figures(settings: SwagSettings, done: Cells) -> list[Picture]:
    """Scores against depth, and the difference."""
    sheet, axes = panels(2, 2, width=4.6, height=3.3)
    labels = {"nll": "test NLL (nats)", "accuracy": "test accuracy", "ece": "calibration error (ECE)"}
    colours = {"low_rank": COLOURS[0], "diagonal": COLOURS[1], "average": GREY}
    for axis, (entry, label) in zip(axes, labels.items(), strict=False):
        for k, (arm, name) in enumerate(ARMS.items()):
            values = {float(d): e for d, e in by_depth(settings, done, f"{arm}_{entry}").items()}
            curve(axis, values, name, colours[arm], marker="os^"[k], dashed=arm == "average")
        axis.set_ylabel(label)
    curve(axes[3], {float(d): e for d, e in gains(settings, done, "nll").items()}, None, COLOURS[2], marker="D")
    axes[3].axhline(0.0, color="#444444", linewidth=0.9, linestyle=":")
    axes[3].axhspan(-EQUAL, EQUAL, color="#444444", alpha=0.08, linewidth=0)
    axes[3].set_ylabel("NLL, diagonal − low-rank (nats)")
    for axis in axes:
        axis.set_xlabel("depth")
        axis.set_xticks(sorted(settings.depths))
    axes[0].legend(fontsize=8)
    rows = settings.data.train or "all"
    words = (
        f"SWAG with rank {settings.rank} and its diagonal twin, of the same walks of SGD, by depth of a PreResNet on "
        f"{rows} images of {settings.data.name}: scores, and what the diagonal loses seed by seed (grey: counts as "
        "equal). Bars: one standard error."
    )
    return [Picture("swag", words, sheet)]


EXPERIMENT = Experiment(
    name="liberty-swag",
    title="Low-rank and diagonal SWAG by depth",
    paper="Farquhar, Smith and Gal 2020, Liberty or depth (section 6.2, Figure 4)",
    question="In residual networks, does SWAG predict better with its low-rank covariance than with a diagonal one?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
