"""``liberty-iris``: does a full covariance help variational inference in deeper networks?

Narrow MLPs of one to four hidden layers learn Iris twice: with independent normal weights (``MeanField``, 2 P numbers)
and with one normal over all P weights together (``FullRank``, P + P (P + 1)/2 numbers). Each restart has its own split
into 100 training and 50 test rows, first weights and noise, the same for both, so that differences are taken restart by
restart. The score is the cross-entropy of the averaged prediction on the test rows.

A family that holds another has an optimum at least as good: an ELBO of the full covariance below that of the diagonal
tells of optimisation, not of the families. So both are optimised with many draws a step, all data at once and a
learning rate of their own that falls to nothing, in float64, and some restarts are repeated with half as many steps:
what still changes, changes in their ELBO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import temperance as tp
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, curve, panels, whole_numbers
from temperance.lab.judge import RULE, Estimate, above, all_of, below, difference, estimate, near
from temperance.lab.problems import fit

FAMILIES: dict[str, Any] = {"full": tp.FullRank(), "diagonal": tp.MeanField()}
EQUAL = 0.02
"""Nats of test cross-entropy within which the two count as equal."""
CONVERGED = 2.0
"""Nats by which an ELBO may rise with twice the steps."""
REPEATED = 3
"""Restarts that are also run with half as many steps."""


@dataclass(frozen=True)
class IrisSettings(Settings):
    """``seeds`` restarts of MLPs with ``width`` units in each of ``depths`` hidden layers under N(0, 1).

    ``steps`` of Adam with AMSGrad, ``samples`` draws of θ a step, ``batch_size`` rows (0: all); the learning rate
    falls from ``lr`` to 0 along a cosine. ``predict_draws`` make the prediction.
    """

    width: int = 4
    depths: tuple[int, ...] = (1, 2, 3)
    rows: int = 100
    steps: int = 2500
    lr: float = 0.03
    samples: int = 32
    batch_size: int = 0
    predict_draws: int = 100
    elbo_draws: int = 2000


PRESETS = {
    "quick": Preset(
        IrisSettings(seeds=3, width=3, depths=(1, 2), steps=60, samples=4, predict_draws=20, elbo_draws=50), 0.3
    ),
    "standard": Preset(IrisSettings(seeds=6), 8),
    "paper": Preset(IrisSettings(seeds=100, depths=(1, 2, 3, 4), steps=50000, lr=1e-3, batch_size=16), 4000),
}


def cells(settings: IrisSettings) -> list[Cell]:
    """Family × depth × restart, and some of them again with half as many steps."""
    return [
        Cell.of(family=family, depth=depth, share=share, seed=seed)
        for seed in settings.all_seeds()
        for depth in sorted(settings.depths, reverse=True)
        for family in FAMILIES
        for share in ((1.0, 0.5) if seed < settings.seed + REPEATED else (1.0,))
    ]


def run(settings: IrisSettings, cell: Cell) -> dict[str, Any]:
    """One fit: ELBO, test scores, and how the ELBO rose."""
    seed, steps = cell["seed"], round(settings.steps * cell["share"])
    train, test = irises(settings, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = tp.nn.MLP(4, [settings.width] * cell["depth"], 3, nn.LeakyReLU).double()
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    method = tp.Variational(
        FAMILIES[cell["family"]],
        lr=settings.lr,
        optimizer_args={"amsgrad": True},
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR,
        scheduler_args={"T_max": steps},
        schedule_steps=True,
        samples=settings.samples,
    )
    fitted = fit(target, method, train, steps=steps, batch_size=settings.batch_size or len(train), seed=seed)
    elbo = fitted.elbo(train, draws=settings.elbo_draws)
    predictive = fitted.predict(test.x, draws=settings.predict_draws)
    history = fitted.info.elbos
    return {
        "ce": -float(predictive.log_prob(test.y).double().mean()),
        "accuracy": tp.scores.accuracy(predictive.mean(), test.y),
        "elbo": elbo.value,
        "elbo_error": elbo.standard_error,
        "parameters": float(target.num_parameters),
        "history": history[:: max(1, len(history) // 100)],
    }


def irises(settings: IrisSettings, seed: int) -> tuple[tp.data.Data, tp.data.Data]:
    """Training and test rows of a restart, in float64."""
    whole = tp.data.load_all("iris", split=seed)
    assert isinstance(whole.x, torch.Tensor)
    whole = tp.data.Data(whole.x.double(), whole.y, info=whole.info)
    return whole.subset(slice(0, settings.rows)), whole.subset(slice(settings.rows, len(whole)))


# ---------------------------------------------------------------------- judging and drawing


def by_depth(settings: IrisSettings, done: Cells, entry: str, family: str) -> dict[int, Estimate]:
    """An entry of the whole runs for each depth."""
    return {
        depth: estimate(done.values(entry, family=family, depth=depth, share=1.0)) for depth in sorted(settings.depths)
    }


def gains(settings: IrisSettings, done: Cells, entry: str) -> dict[int, Estimate]:
    """Diagonal less full, restart by restart, for each depth."""
    return {
        depth: difference(
            *(done.by_seed(entry, family=family, depth=depth, share=1.0) for family in ("diagonal", "full"))
        )
        for depth in sorted(settings.depths)
    }


def told(values: Mapping[int, Estimate]) -> str:
    """In words."""
    return "; ".join(f"{depth}: {value}" for depth, value in values.items())


def claims(settings: IrisSettings, done: Cells) -> list[Claim]:
    """Full better with one hidden layer, equal from two on; the bounds; and whether both have converged."""
    cost, loss = gains(settings, done, "ce"), gains(settings, done, "elbo")
    shallow, deeper = min(settings.depths), sorted(settings.depths)[1:]
    scores = "; ".join(f"{family} {by_depth(settings, done, 'ce', family)[shallow]}" for family in ("full", "diagonal"))
    shrinks = difference(_by_seed(done, "ce", shallow), _by_seed(done, "ce", max(settings.depths)))
    return [
        Claim(
            f"With {shallow} hidden layer a full covariance predicts better than a diagonal one",
            "lower test cross-entropy at one hidden layer (Figure 3)",
            f"test cross-entropy: {scores}; diagonal higher by {cost[shallow]}",
            above(cost[shallow]),
            f"difference above 0; {RULE}",
        ),
        Claim(
            "From two hidden layers on the diagonal matches the full covariance",
            "equal test cross-entropy from two hidden layers on (Figure 3)",
            f"cross-entropy of the diagonal less that of the full, by hidden layers: "
            f"{told({d: cost[d] for d in deeper})}",
            all_of(*(near(cost[d], 0.0, EQUAL) for d in deeper)),
            f"within {EQUAL:g} nats at each depth; {RULE}",
        ),
        Claim(
            "What a full covariance gains shrinks with depth",
            "implied by the two above",
            f"gain with {shallow} less gain with {max(settings.depths)} hidden layers: {shrinks}",
            above(shrinks),
            f"difference above 0; {RULE}",
        ),
        Claim(
            "A full covariance has the higher ELBO, at every depth",
            "its family holds the other; said to be hard to optimise",
            f"ELBO of the diagonal less that of the full (nats), by hidden layers: {told(loss)}; full: "
            f"{told(by_depth(settings, done, 'elbo', 'full'))}",
            all_of(*(below(value) for value in loss.values())),
            f"difference below 0 at each depth; {RULE}",
        ),
        _converged(settings, done),
    ]


def _by_seed(done: Cells, entry: str, depth: int) -> dict[int, float]:
    full, diagonal = (done.by_seed(entry, family=f, depth=depth, share=1.0) for f in ("full", "diagonal"))
    return {seed: diagonal[seed] - full[seed] for seed in full if seed in diagonal}


def _converged(settings: IrisSettings, done: Cells) -> Claim:
    rises = {
        f"{family}, {depth}": difference(
            *(done.by_seed("elbo", family=family, depth=depth, share=share) for share in (1.0, 0.5))
        )
        for family in FAMILIES
        for depth in sorted(settings.depths)
    }
    return Claim(
        "The fits have converged",
        "(asked here)",
        f"ELBO above that of half as many steps, {REPEATED} restarts (nats): "
        + "; ".join(f"{name}: {value}" for name, value in rises.items()),
        all_of(*(below(value, CONVERGED) for value in rises.values())),
        f"below {CONVERGED:g} nats for each family and depth; {RULE}",
    )


def figures(settings: IrisSettings, done: Cells) -> list[Picture]:
    """Cross-entropy, its difference and the ELBO against depth; and how the ELBO rose."""
    sheet, axes = panels(3, width=4.0, height=3.5)
    for k, family in enumerate(FAMILIES):
        for axis, entry in ((axes[0], "ce"), (axes[2], "elbo")):
            values = {float(depth): e for depth, e in by_depth(settings, done, entry, family).items()}
            curve(axis, values, f"{family} covariance", COLOURS[k], marker="os"[k])
    curve(axes[1], {float(d): e for d, e in gains(settings, done, "ce").items()}, None, COLOURS[2], marker="D")
    axes[1].axhline(0.0, color="#444444", linewidth=0.9, linestyle=":")
    axes[1].axhspan(-EQUAL, EQUAL, color="#444444", alpha=0.08, linewidth=0)
    axes[0].set_ylabel("test cross-entropy (nats)")
    axes[1].set_ylabel("cross-entropy, diagonal − full (nats)")
    axes[2].set_ylabel("ELBO (nats)")
    for axis in axes:
        axis.set_xlabel("hidden layers")
        whole_numbers(axis)
    axes[0].legend()
    words = (
        f"Full and diagonal covariance on Iris by depth, over {settings.seeds} restarts: test cross-entropy, what the "
        "diagonal loses restart by restart (grey: counts as equal), and the ELBO. Bars: one standard error."
    )
    return [Picture("iris", words, sheet), _histories(settings, done)]


def _histories(settings: IrisSettings, done: Cells) -> Picture:
    depths = sorted(settings.depths)
    sheet, axes = panels(len(depths), width=3.1, height=3.0)
    for axis, depth in zip(axes, depths, strict=True):
        ends = []
        for k, family in enumerate(FAMILIES):
            for number, found in enumerate(done.where(family=family, depth=depth, share=1.0)):
                history = found.result["history"]
                places = [settings.steps * (i + 1) / len(history) for i in range(len(history))]
                label = f"{family} covariance" if number == 0 else None
                axis.plot(places, history, color=COLOURS[k], alpha=0.7, linewidth=0.9, label=label)
                ends.append(history[-1])
        if ends:
            axis.set_ylim(min(ends) - 60, max(ends) + 15)
        axis.set_title(f"{depth} hidden layer{'s' if depth > 1 else ''}")
        axis.set_xlabel("step")
    axes[0].set_ylabel("ELBO of a step (nats)")
    axes[0].legend(fontsize=8)
    words = "How the ELBO rose in each restart, as measured with the draws of a step."
    return Picture("elbo", words, sheet)


EXPERIMENT = Experiment(
    name="liberty-iris",
    title="Full and diagonal covariance by depth",
    paper="Farquhar, Smith and Gal 2020, Liberty or depth (section 6.2, Figure 3)",
    question="With variational inference on Iris, does a full covariance still help when the network is deeper?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
