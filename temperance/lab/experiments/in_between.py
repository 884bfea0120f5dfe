"""``in-between``: is a mean-field posterior uncertain between two clusters of data?

Inputs lie in [−1, −0.7] and [0.5, 1], and y = cos(4x + 0.8) with noise. An MLP of one hidden layer of ReLUs with
independent normal weights cannot be uncertain in between: for any p < 0 < q and any r nearer to 0 than both,

    Var f(r) ≤ Var f(p) + Var f(q),        (Foong et al. 2020, Theorem 1)

whatever the data. Deeper networks of independent weights can (two hidden layers of them can have any mean and
variance, given enough units), but that does not say that the ELBO is largest there. Measured are, at each depth,

    ratio = mean std of f over the middle half of the gap / mean std of f over both clusters,
    bound = max over |r| ≤ 0.5 of Var f(r) / (Var f(−0.7) + Var f(0.5)),    at most 1 for one hidden layer,

for mean-field VI and for draws of the true posterior of the same network (Metropolis-corrected, over all data). The
prior is N(0, 2 / fan-in) on weights and N(0, 1) on biases, so that functions are of one size at all depths.

Whether VI has converged is judged against fits of half as many steps: what still changes, changes in the ELBO.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor

import temperance as tp
from temperance.judge import diagnose
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, GREY, curve, panels, plain_numbers, whole_numbers
from temperance.lab.judge import RULE, Estimate, above, all_of, below, difference, estimate, near
from temperance.lab.problems import fit

CLUSTERS = ((-1.0, -0.7), (0.5, 1.0))
MIDDLE = (-0.4, 0.2)
"""The middle half of the gap."""
INNER = 0.5
"""Nearer to 0 than both clusters: where the theorem speaks."""
MEAN_FIELD, HALF, REFERENCE = "mean field", "mean field, half as long", "true posterior"
SETTLED = 0.15
"""By how much the ratio may change (as a share) with twice the steps, for VI to count as converged."""
MARGIN = 1.25
"""Up to this ratio the uncertainty in between counts as no more than at the data."""


@dataclass(frozen=True)
class BetweenSettings(Settings):
    """``rows`` data with noise of standard deviation ``noise``; MLPs of ``width`` units in each of ``depths`` hidden
    layers, priors with ``gain`` / √fan-in.

    Mean field: ``steps`` of Adam over all data with local reparametrisation, the learning rate falling from ``lr`` to 0
    along a cosine. The true posterior: ``chains`` of NUTS, each from a MAP fit of its own; ``warmup`` transitions
    of at most 2^``max_depth`` gradients set steps and masses, and each of the next ``draws`` ends in a draw.
    """

    rows: int = 100
    noise: float = 0.1
    width: int = 50
    depths: tuple[int, ...] = (1, 2, 3)
    gain: float = math.sqrt(2)
    steps: int = 10000
    lr: float = 0.03
    predict_draws: int = 1000
    map_steps: int = 1000
    chains: int = 4
    warmup: int = 200
    acceptance: float = 0.8
    max_depth: int = 8
    draws: int = 100


PRESETS = {
    "quick": Preset(
        BetweenSettings(
            seeds=3, rows=24, width=8, depths=(1, 2), steps=150, predict_draws=100, map_steps=100, chains=2, warmup=60,
            max_depth=4, draws=24,
        ),
        0.3,
    ),
    "standard": Preset(BetweenSettings(seeds=3), 9),
    "paper": Preset(
        BetweenSettings(seeds=10, depths=(1, 2, 3, 4, 5), steps=100000, lr=0.01, warmup=1000, max_depth=10, draws=2000),
        1500,
    ),
}  # fmt: skip


def cells(settings: BetweenSettings) -> list[Cell]:
    """Posterior × depth × seed, the slow ones first."""
    return [
        Cell.of(arm=arm, depth=depth, seed=seed)
        for seed in settings.all_seeds()
        for arm in (REFERENCE, MEAN_FIELD, HALF)
        for depth in sorted(settings.depths, reverse=True)
    ]


def run(settings: BetweenSettings, cell: Cell) -> dict[str, Any]:
    """One posterior: its mean and spread on a grid, the numbers made of them, and whether it can be trusted."""
    seed = cell["seed"]
    data = clusters(settings, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = tp.nn.MLP(1, [settings.width] * cell["depth"], 1)
    target = tp.Target(network, tp.Normal(scale=settings.noise), tp.GaussianPrior(tp.FanIn(settings.gain)))
    if cell["arm"] == REFERENCE:
        fitted, trust = sample_posterior(settings, target, data, seed)
    else:
        steps = settings.steps if cell["arm"] == MEAN_FIELD else settings.steps // 2
        fitted, trust = mean_field(settings, target, data, steps, seed)
    return spread(settings, fitted) | trust


def clusters(settings: BetweenSettings, seed: int) -> tp.data.Data:
    """Half of the rows in each cluster; each seed has its own."""
    rng = torch.Generator().manual_seed(seed)
    half = settings.rows // 2
    places = [low + (high - low) * torch.rand(half, 1, generator=rng) for low, high in CLUSTERS]
    x = torch.cat(places)
    y = truth(x) + settings.noise * torch.randn(x.shape, generator=rng)
    return tp.data.Data(x, y, info=tp.data.DataInfo(name="two clusters", outcome=tp.outcomes.Reals()))


def truth(x: Tensor) -> Tensor:
    """The function without noise."""
    return torch.cos(4 * x + 0.8)


def grid() -> Tensor:
    """Where predictions are looked at: steps of 0.05, the clusters' ends among them."""
    return torch.linspace(-1.5, 1.5, 61).unsqueeze(1)


def spread(settings: BetweenSettings, fitted: tp.Fitted) -> dict[str, Any]:
    """Mean and standard deviation of f on the grid, the ratio and the bound."""
    x = grid().squeeze(1)
    wanted = None if isinstance(fitted.posterior, tp.posteriors.Draws) else settings.predict_draws
    predictive = fitted.predict(grid(), draws=wanted)
    variance = predictive.epistemic_variance().squeeze(1).double()
    return {"mean": predictive.mean().squeeze(1), "std": variance.sqrt()} | numbers(x, variance)


def numbers(x: Tensor, variance: Tensor) -> dict[str, float]:
    """The ratio and the bound of a variance function given at ``x``.

    >>> x = grid().squeeze(1)
    >>> numbers(x, torch.ones(len(x)))
    {'ratio': 1.0, 'bound': 0.5, 'std_gap': 1.0, 'std_data': 1.0}
    """
    std = variance.sqrt()
    near_data = torch.stack([_inside(x, low, high) for low, high in CLUSTERS]).any(0)
    gap, at_data = float(std[_inside(x, *MIDDLE)].mean()), float(std[near_data].mean())
    ends = [variance[int((x - end).abs().argmin())] for end in (CLUSTERS[0][1], CLUSTERS[1][0])]
    bound = float(variance[_inside(x, -INNER, INNER)].max() / (ends[0] + ends[1]))
    return {"ratio": gap / at_data, "bound": bound, "std_gap": gap, "std_data": at_data}


def _inside(x: Tensor, low: float, high: float) -> Tensor:
    return (x >= low - 1e-6) & (x <= high + 1e-6)


# ---------------------------------------------------------------------- the posteriors


def mean_field(
    settings: BetweenSettings, target: tp.Target, data: tp.data.Data, steps: int, seed: int
) -> tuple[tp.Fitted, dict[str, float]]:
    """VI, with its ELBO."""
    method = tp.Variational(
        tp.MeanField(),
        lr=settings.lr,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR,
        scheduler_args={"T_max": steps},
        schedule_steps=True,
        estimator="local",
    )
    fitted = fit(target, method, data, steps=steps, batch_size=len(data), seed=seed)
    return fitted, {"elbo": fitted.elbo(data, draws=settings.predict_draws).value}


def sample_posterior(
    settings: BetweenSettings, target: tp.Target, data: tp.data.Data, seed: int
) -> tuple[tp.Fitted, dict[str, float]]:
    """Draws of the true posterior: chains of NUTS, each from a start of its own near a MAP. R-hat and effective draws
    are those of f on the grid."""
    bases = tp.Ensemble(tp.MAP(lr=0.01), settings.chains)
    best = fit(target, bases, data, steps=settings.map_steps, batch_size=len(data), seed=seed).posterior
    start = torch.stack([member.mean for member in best.components])  # type: ignore[attr-defined]
    quarter = settings.warmup // 4
    warm = tp.Warmup(
        tp.NUTS(max_depth=settings.max_depth), settings.warmup, accept=settings.acceptance, first=quarter,
        window=quarter, last=quarter,
    )  # fmt: skip
    method = tp.Ensemble(tp.Collect(warm, last=settings.draws), settings.chains)
    fitted = fit(target, method, data, start=start, seed=seed)
    found = diagnose.predictions(fitted, grid())
    chains: Any = fitted.posterior
    stories = [chain.trace.transitions for chain in chains.components]
    trust = {
        "acceptance": sum(float(story.acceptance.mean()) for story in stories) / len(stories),
        "rhat": float(found.rhat.nan_to_num(1.0).max()),
        "ess": float(found.bulk_ess.nan_to_num(0.0).min()),
        "step": sum(float(story.step_size[0]) for story in stories) / len(stories),
        "divergences": float(sum(int(story.divergent.sum()) for story in stories)),
    }
    return fitted, trust


# ---------------------------------------------------------------------- judging and drawing


def by_depth(settings: BetweenSettings, done: Cells, entry: str, arm: str) -> dict[int, Estimate]:
    """An entry for each depth."""
    return {depth: estimate(done.values(entry, arm=arm, depth=depth)) for depth in sorted(settings.depths)}


def told(values: Mapping[int, Estimate]) -> str:
    """In words."""
    return "; ".join(f"{_layers(depth)}: {value}" for depth, value in values.items())


def _layers(depth: int) -> str:
    return f"{depth} hidden layer{'s' if depth > 1 else ''}"


def claims(settings: BetweenSettings, done: Cells) -> list[Claim]:
    """One hidden layer, deeper ones, the reference; and whether both methods can be trusted."""
    ratios = {arm: by_depth(settings, done, "ratio", arm) for arm in (MEAN_FIELD, REFERENCE)}
    bounds = by_depth(settings, done, "bound", MEAN_FIELD)
    shallow, deeper = min(settings.depths), [depth for depth in sorted(settings.depths) if depth > 1]
    base = done.by_seed("ratio", arm=MEAN_FIELD, depth=shallow)
    gains = {d: difference(done.by_seed("ratio", arm=MEAN_FIELD, depth=d), base) for d in deeper}
    return [
        Claim(
            "One hidden layer of independent weights is no more uncertain in between than at the data",
            "a pathology of single-layer mean field, proved by Foong et al. 2020: Var f(r) ≤ Var f(p) + Var f(q)",
            f"std in the gap / std at the data: {ratios[MEAN_FIELD][shallow]}; Var f(r) / bound: {bounds[shallow]}",
            all_of(below(ratios[MEAN_FIELD][shallow], MARGIN), below(bounds[shallow], 1.0)) if shallow == 1 else None,
            f"ratio below {MARGIN:g} and bound below 1; {RULE}",
        ),
        Claim(
            "Deeper mean field is more uncertain in between than at the data",
            "deep mean field can have in-between uncertainty (Proposition 4, Figure 5)",
            f"std in the gap / std at the data: {told({d: ratios[MEAN_FIELD][d] for d in deeper})}; Var f(r) / bound: "
            f"{told({d: bounds[d] for d in deeper})}",
            all_of(*(above(ratios[MEAN_FIELD][d], 1.0) for d in deeper)),
            f"ratio above 1 at each depth; {RULE}",
        ),
        Claim(
            "Deeper mean field has more of it than one hidden layer",
            "as above",
            f"ratio higher than with one hidden layer by: {told(gains)}",
            all_of(*(above(gain) for gain in gains.values())),
            f"difference above 0 at each depth; {RULE}",
        ),
        Claim(
            "The true posterior is more uncertain in between, at every depth",
            "the gap is where data say nothing",
            f"std in the gap / std at the data: {told(ratios[REFERENCE])}",
            all_of(*(above(value, MARGIN) for value in ratios[REFERENCE].values())),
            f"ratio above {MARGIN:g}; {RULE}",
        ),
        _converged(settings, done),
        _sampled(settings, done),
    ]


def _converged(settings: BetweenSettings, done: Cells) -> Claim:
    changes, rises = {}, {}
    for depth in sorted(settings.depths):
        long, short = (done.by_seed("ratio", arm=arm, depth=depth) for arm in (MEAN_FIELD, HALF))
        changes[depth] = estimate([long[s] / short[s] for s in long if s in short])
        rises[depth] = difference(*(done.by_seed("elbo", arm=arm, depth=depth) for arm in (MEAN_FIELD, HALF)))
    return Claim(
        "The ratio of the mean-field fits has converged",
        "(asked here)",
        f"ELBO (nats): {told(by_depth(settings, done, 'elbo', MEAN_FIELD))}; above that of half as many steps by "
        f"{told(rises)}; ratio over that of half as many steps: {told(changes)}",
        all_of(*(near(change, 1.0, SETTLED) for change in changes.values())),
        f"the ratio within {SETTLED:g} (as a share) of that of half as many steps; {RULE}",
    )


def _sampled(settings: BetweenSettings, done: Cells) -> Claim:
    acceptance, rhat, ess = (by_depth(settings, done, e, REFERENCE) for e in ("acceptance", "rhat", "ess"))
    return Claim(
        "The draws of the true posterior are good enough to tell",
        "(asked here)",
        f"largest R-hat of f on the grid: {told(rhat)}; fewest effective draws (of "
        f"{settings.chains * settings.draws}): {told(ess)}; "
        f"acceptance: {told(acceptance)}",
        all_of(*(below(value, 1.2) for value in rhat.values()), *(above(value, 0.5) for value in acceptance.values())),
        f"R-hat below 1.2 and acceptance above 0.5 at each depth; {RULE}",
    )


def figures(settings: BetweenSettings, done: Cells) -> list[Picture]:
    """Bands for each depth, and the ratio against depth."""
    return [_bands(settings, done), _ratios(settings, done)]


def _bands(settings: BetweenSettings, done: Cells) -> Picture:
    depths, x = sorted(settings.depths), grid().squeeze(1)
    sheet, axes = panels(len(depths), 2, width=3.6, height=2.7)
    data = clusters(settings, settings.seed)
    assert isinstance(data.x, Tensor)
    for row, arm in enumerate((MEAN_FIELD, REFERENCE)):
        for column, depth in enumerate(depths):
            axis: Axes = axes[row * len(depths) + column]
            found = done.first(arm=arm, depth=depth, seed=settings.seed)
            if found is not None:
                mean, std = (torch.tensor(found.result[entry]) for entry in ("mean", "std"))
                for times, shade in ((2, 0.18), (1, 0.3)):
                    low, high = mean - times * std, mean + times * std
                    axis.fill_between(x, low, high, color=COLOURS[row], alpha=shade, linewidth=0)
                axis.plot(x, mean, color=COLOURS[row])
            axis.plot(x, truth(x), color=GREY, linestyle=":", linewidth=1.1)
            axis.plot(data.x.squeeze(1), data.y.squeeze(1), ".", color="#333333", markersize=2.5)
            axis.set_ylim(-2.6, 2.6)
            axis.set_title(f"{arm}, {_layers(depth)}", fontsize=10)
            if row == 1:
                axis.set_xlabel("x")
    words = (
        "Mean and one and two standard deviations of f under mean-field VI (above) and the true posterior (below), by "
        "depth; dots: data, dotted: the function that made them. Noise is not part of the bands."
    )
    return Picture("bands", words, sheet)


def _ratios(settings: BetweenSettings, done: Cells) -> Picture:
    sheet, axes = panels(2, width=4.4, height=3.5)
    for k, arm in enumerate((MEAN_FIELD, REFERENCE)):
        for axis, entry in zip(axes, ("ratio", "bound"), strict=True):
            values = {float(depth): e for depth, e in by_depth(settings, done, entry, arm).items()}
            curve(axis, values, arm, COLOURS[k], marker="os"[k])
    axes[0].set_ylabel("std in the gap / std at the data")
    axes[1].set_ylabel("Var f(r) / (Var f(p) + Var f(q))")
    for axis in axes:
        axis.axhline(1.0, color="#444444", linewidth=0.9, linestyle=":")
        axis.set_xlabel("hidden layers")
        axis.set_yscale("log")
        plain_numbers(axis)
        whole_numbers(axis)
    axes[0].legend()
    words = (
        "How much more uncertain f is between the clusters than at them, by depth. Right: against the bound that no "
        "single hidden layer of independent weights can exceed (1, dotted). Bars: one standard error."
    )
    return Picture("ratio", words, sheet)


EXPERIMENT = Experiment(
    name="in-between",
    title="Uncertainty between two clusters",
    paper="Farquhar, Smith and Gal 2020, Liberty or depth (section 5, Figure 5); Foong et al. 2020",
    question="Is mean-field VI uncertain between two clusters of data, and does depth help?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
