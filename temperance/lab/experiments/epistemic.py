"""``epistemic``: how uncertain is f away from the data, and which method says so?

One input, 120 points in three clusters with noise (the toy of Izmailov et al. 2019 and of Wilson and Izmailov 2020;
where its file is not found, a function of the same shape stands in). A small MLP is fitted by each method, and the mean
and spread of f on a grid are held against those of long HMC, which at this size is the truth for all one can tell.

The distance at a place x is W₁ between the two distributions of f(x), the mean absolute difference of their quantiles,

    W₁ = ∫₀¹ |F⁻¹(u) − G⁻¹(u)| du,

and that of two spreads |sd_F − sd_G|; both are averaged over the grid. Units: y has standard deviation 1, x is in tens.

The seeds differ in starts, batches and draws; the data are the same, so error bars are not over data. The network was
chosen for an HMC run that mixes, the learning rate of SWAG (of three) on seed 100; the others were not tuned.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor

import temperance as tp
from temperance.data.files import FileSet, KnownFile
from temperance.judge import diagnose
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, GREY, panels, plain_numbers
from temperance.lab.judge import RULE, Estimate, above, all_of, below, difference, estimate
from temperance.lab.problems import fit

HMC, MEAN_FIELD = "HMC", "mean field"
METHODS = ("MAP", "Ensemble", "anchored ensemble", "SWAG", MEAN_FIELD, "Laplace", "SGHMC")
CLUSTERS = ((-1.0, -0.6), (0.6, 1.0), (1.4, 1.8))
REGIONS = ("data", "between", "outside")
GOOD_RHAT = 1.05
FILE = FileSet(
    "synthetic regression",
    ("hmc-reference",),
    (KnownFile("synth_reg_data.npz"),),
    "synth_reg_data.npz, the 1-D regression toy of https://github.com/google-research/google-research/bnn_hmc.",
)


@dataclass(frozen=True)
class EpistemicSettings(Settings):
    """MLPs of ``width`` units in each of ``depth`` hidden layers, priors with ``gain`` / √fan-in, noise of standard
    deviation ``noise`` (in units of y as given). Fits take ``steps`` over all data, except SWAG and SGHMC, which take
    batches of ``batch_size``. HMC: ``chains`` with ``warmup`` and ``draws`` trajectories that last ``time``."""

    noise: float = 0.02
    width: int = 20
    depth: int = 2
    gain: float = math.sqrt(2)
    steps: int = 3000
    lr: float = 0.01
    members: int = 10
    batch_size: int = 20
    swag_lr: float = 0.001
    swag_rank: int = 20
    vi_steps: int = 6000
    vi_lr: float = 0.02
    predict_draws: int = 500
    sghmc_lr: float = 1e-4
    sghmc_momentum: float = 0.99
    sghmc_batch: int = 60
    sghmc_steps: int = 10000
    sghmc_draws: int = 200
    time: float = 2.0
    chains: int = 4
    warmup: int = 200
    draws: int = 200


PRESETS = {
    "quick": Preset(
        EpistemicSettings(
            seeds=3, width=6, depth=1, steps=120, members=4, swag_rank=5, vi_steps=150, predict_draws=50,
            sghmc_lr=1e-4, sghmc_steps=200, sghmc_draws=30, time=0.1, chains=2, warmup=75, draws=30,
        ),
        0.3,
    ),
    "standard": Preset(EpistemicSettings(seeds=5), 5),
    "paper": Preset(
        EpistemicSettings(
            seeds=20, width=50, depth=3, steps=20000, vi_steps=50000, predict_draws=2000, sghmc_steps=100000, time=3.0,
            warmup=500, draws=1000,
        ),
        600,
    ),
}  # fmt: skip


def cells(settings: EpistemicSettings) -> list[Cell]:
    """Method × seed, the slow ones first."""
    return [Cell.of(method=name, seed=seed) for seed in settings.all_seeds() for name in (HMC, "SGHMC", *METHODS[:-1])]


def run(settings: EpistemicSettings, cell: Cell) -> dict[str, Any]:
    """One posterior: mean, spread and quantiles of f on the grid."""
    seed, name = cell["seed"], cell["method"]
    data, scale, _ = points()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = tp.nn.MLP(1, [settings.width] * settings.depth, 1)
    likelihood = tp.Normal(scale=settings.noise / scale)
    target = tp.Target(network, likelihood, tp.GaussianPrior(tp.FanIn(settings.gain)))
    method, options = build(settings, name, len(data))
    fitted = fit(target, method, data, seed=seed, **options)
    if name != HMC:
        return spread(settings, fitted)
    found = diagnose.predictions(fitted, grid())
    draws = outputs(fitted, None)
    halves = [quantiles(part) for part in draws.chunk(2)]
    trust = {"rhat": found.worst[1], "ess": found.least_ess, "floor": float((halves[0] - halves[1]).abs().mean())}
    return spread(settings, fitted) | trust


def points() -> tuple[tp.data.Data, float, bool]:
    """The data, x in tens and y standardised; the scale of y; and whether they are the published ones."""
    found = FILE.where()
    if found is not None:
        with np.load(io.BytesIO(FILE.read("synth_reg_data.npz")), allow_pickle=False) as archive:
            x, y = (torch.from_numpy(archive[key].astype(np.float32)).reshape(-1, 1) for key in ("x", "y"))
        x = x / 10
    else:
        x, y = stand_in()
    mean, scale = float(y.mean()), float(y.std())
    info = tp.data.DataInfo(name="three clusters", outcome=tp.outcomes.Reals())
    return tp.data.Data(x, (y - mean) / scale, info=info), scale, found is not None


def stand_in() -> tuple[Tensor, Tensor]:
    """Forty points in each cluster about a smooth function, with noise 0.02."""
    x = torch.cat([torch.linspace(low, high, 40) for low, high in CLUSTERS]).unsqueeze(1)
    rng = torch.Generator().manual_seed(0)
    return x, 0.25 * torch.tanh(1.2 * x) - 0.03 * x.square() + 0.02 * torch.randn(x.shape, generator=rng)


def grid() -> Tensor:
    """Where f is looked at: steps of 0.05, from 0.4 before the data to 0.4 after."""
    return torch.linspace(-1.4, 2.2, 73).unsqueeze(1)


def region(name: str) -> Tensor:
    """Which places of the grid lie at the ``data``, ``between`` the clusters, ``outside`` all of them.

    >>> [int(region(name).sum()) for name in REGIONS]
    [27, 30, 16]
    """
    x = grid().squeeze(1)
    inside = torch.stack([(x >= low - 1e-4) & (x <= high + 1e-4) for low, high in CLUSTERS]).any(0)
    beyond = (x < CLUSTERS[0][0] - 1e-4) | (x > CLUSTERS[-1][1] + 1e-4)
    return {"data": inside, "between": ~inside & ~beyond, "outside": beyond}[name]


# ---------------------------------------------------------------------- the methods


def build(settings: EpistemicSettings, name: str, rows: int) -> tuple[tp.Inference[Any], dict[str, Any]]:
    """A method by name, and what ``fit`` is told."""

    def falling(steps: int) -> dict[str, Any]:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR
        return {"scheduler": schedule, "scheduler_args": {"T_max": steps}, "schedule_steps": True}

    if name == HMC:
        sampler = tp.Warmup(
            tp.HMC(time=settings.time), settings.warmup, first=settings.warmup // 3, last=settings.warmup // 4
        )
        return tp.Ensemble(tp.Collect(sampler, last=settings.draws), settings.chains), {}
    if name == MEAN_FIELD:
        steps = settings.vi_steps
        method = tp.Variational(tp.MeanField(), lr=settings.vi_lr, estimator="local", **falling(steps))
        return method, {"steps": steps, "batch_size": rows}
    if name == "SGHMC":
        chain = tp.SGHMC(settings.sghmc_lr, settings.sghmc_momentum)
        options = {"steps": settings.sghmc_steps, "batch_size": settings.sghmc_batch}
        return tp.Collect(chain, last=settings.sghmc_draws), options
    if name == "SWAG":
        walk = tp.MAP(lr=settings.swag_lr, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
        every = max(1, settings.steps // 100)
        return tp.SWAG(walk, settings.swag_rank, every=every), {
            "steps": settings.steps,
            "batch_size": settings.batch_size,
        }
    best = tp.MAP(lr=settings.lr, **falling(settings.steps))
    made: dict[str, tp.Inference[Any]] = {
        "MAP": best,
        "Ensemble": tp.Ensemble(best, settings.members),
        "anchored ensemble": tp.Ensemble(tp.Anchored(best), settings.members),
        "Laplace": tp.Laplace(best, tp.KFAC(), tune=None),
    }
    return made[name], {"steps": settings.steps, "batch_size": rows}


# ---------------------------------------------------------------------- what is measured

LEVELS = (torch.arange(40, dtype=torch.float64) + 0.5) / 40


def outputs(fitted: tp.Fitted, draws: int | None) -> Tensor:
    """f at the grid for each draw, draws × places."""
    blocks = fitted.predict(grid(), draws=draws).source.blocks()
    return torch.cat([out for _, out, _ in blocks], 1).squeeze(-1).double()


def quantiles(values: Tensor) -> Tensor:
    """Of each place over the draws, levels × places."""
    return torch.quantile(values, LEVELS, dim=0)


def spread(settings: EpistemicSettings, fitted: tp.Fitted) -> dict[str, Any]:
    """Mean, standard deviation and quantiles of f on the grid; the mean spread in each region."""
    draws = None if fitted.posterior.finite else settings.predict_draws
    if isinstance(fitted.posterior, tp.posteriors.LaplacePosterior):  # linearised: f is Gaussian
        predictive = fitted.predict(grid())
        mean = predictive.mean().squeeze(1).double()
        std = predictive.epistemic_variance().squeeze(1).double().sqrt()
        levels = mean + std * torch.special.ndtri(LEVELS).unsqueeze(1)
    else:
        values = outputs(fitted, draws)
        mean, std, levels = values.mean(0), values.std(0, correction=0), quantiles(values)
    by_region = {f"std_{name}": float(std[region(name)].mean()) for name in REGIONS}
    return {"mean": _numbers(mean), "std": _numbers(std), "quantiles": [_numbers(row) for row in levels]} | by_region


def _numbers(values: Tensor) -> list[float]:
    return [round(float(v), 6) for v in values]


def distances(done: Cells, name: str) -> dict[str, dict[int, float]]:
    """W₁ and the difference of spreads to HMC's, averaged over the grid, by seed; W₁ in each region too."""
    truth = {f.cell["seed"]: f.result for f in done.where(method=HMC)}
    made: dict[str, dict[int, float]] = {}
    for f in done.where(method=name):
        seed = f.cell["seed"]
        if seed not in truth:
            continue
        gap = {
            entry: (torch.tensor(f.result[entry]) - torch.tensor(truth[seed][entry])).abs()
            for entry in ("quantiles", "std")
        }
        w1 = gap["quantiles"].mean(0)
        found = {"w1": w1.mean(), "std": gap["std"].mean()} | {f"w1_{r}": w1[region(r)].mean() for r in REGIONS}
        for entry, value in found.items():
            made.setdefault(entry, {})[seed] = float(value)
    return made


# ---------------------------------------------------------------------- judging and drawing


def ratio(done: Cells, name: str, place: str) -> Estimate:
    """How much larger the spread of f is in a region than at the data."""
    far, near = (done.by_seed(f"std_{where}", method=name) for where in (place, "data"))
    return estimate([far[seed] / near[seed] for seed in far if near.get(seed)])


def told(values: Mapping[str, Estimate]) -> str:
    """In words."""
    return "; ".join(f"{name} {value}" for name, value in values.items())


def claims(settings: EpistemicSettings, done: Cells) -> list[Claim]:
    """Where HMC is uncertain; who is near to it; and whether it can be trusted."""
    growth = {place: ratio(done, HMC, place) for place in REGIONS[1:]}
    apart = {name: distances(done, name) for name in METHODS}
    w1, std = (
        {name: estimate(list(found[entry].values())) for name, found in apart.items()} for entry in ("w1", "std")
    )
    gaps = {e: difference(apart["Ensemble"][e], apart[MEAN_FIELD][e]) for e in ("w1", "std")}
    point = difference(apart["MAP"]["w1"], apart[MEAN_FIELD]["w1"])
    anchored = {e: difference(apart["anchored ensemble"][e], apart[MEAN_FIELD][e]) for e in ("w1", "std")}
    sampled = {name: difference(apart["SGHMC"]["w1"], apart[name]["w1"]) for name in METHODS[:-1]}
    share = {name: _share(done, name) for name in METHODS if name != "MAP"}
    rhat, ess, floor = (estimate(done.values(e, method=HMC)) for e in ("rhat", "ess", "floor"))
    return [
        Claim(
            "HMC's spread of f grows away from the data",
            "epistemic uncertainty grows between and beyond the clusters (figure of Wilson and Izmailov 2020)",
            f"mean sd over that at the data: {told(growth)}",
            all_of(*(above(value, 1.0) for value in growth.values())),
            f"both above 1; {RULE}",
        ),
        Claim(
            "A deep ensemble is nearer to HMC than mean-field VI",
            "W₁ to HMC is smaller for deep ensembles than for VI",
            f"W₁: {told(w1)}; ensemble less mean field {gaps['w1']}, MAP less mean field {point}",
            below(gaps["w1"]),
            f"difference below 0; {RULE}",
        ),
        Claim(
            "So is its spread",
            "as above",
            f"mean difference of sd to HMC's: {told(std)}; ensemble less mean field {gaps['std']}",
            below(gaps["std"]),
            f"difference below 0; {RULE}",
        ),
        Claim(
            "An ensemble with anchors drawn from the prior is nearer in both",
            "(asked here; Pearce et al. 2020)",
            f"anchored ensemble less mean field: W₁ {anchored['w1']}, sd {anchored['std']}",
            all_of(*(below(gap) for gap in anchored.values())),
            f"both differences below 0; {RULE}",
        ),
        Claim(
            "Optimisers and Gaussians are too sure between the clusters",
            "(asked here)",
            f"sd between the clusters over HMC's: {told(share)}",
            all_of(*(below(value, 1.0) for name, value in share.items() if name != "SGHMC")),
            f"each of them below 1 (SGHMC is not judged); {RULE}",
        ),
        Claim(
            "Of the approximations SGHMC is the nearest to HMC",
            "(asked here)",
            f"W₁ of SGHMC less that of {told(sampled)}",
            all_of(*(below(value) for value in sampled.values())),
            f"all below 0; {RULE}",
        ),
        Claim(
            "The HMC run is the truth to within its own error",
            "(asked here)",
            f"largest R-hat of f on the grid {rhat}, fewest effective draws {ess}; W₁ between two halves of its chains "
            f"{floor}",
            below(rhat, GOOD_RHAT),
            f"R-hat below {GOOD_RHAT:g}; {RULE}",
        ),
    ]


def _share(done: Cells, name: str) -> Estimate:
    own, truth = (done.by_seed("std_between", method=m) for m in (name, HMC))
    return estimate([own[seed] / truth[seed] for seed in own if seed in truth])


def figures(settings: EpistemicSettings, done: Cells) -> list[Picture]:
    """Bands of each method beside HMC's; distances."""
    return [_bands(settings, done), _distances(done)]


def _bands(settings: EpistemicSettings, done: Cells) -> Picture:
    sheet, axes = panels(4, 2, width=3.5, height=2.7)
    x, (data, _, published) = grid().squeeze(1), points()
    assert isinstance(data.x, Tensor)
    truth = done.first(method=HMC, seed=settings.seed)
    for axis, name in zip(axes, (HMC, *METHODS), strict=True):
        for found, colour, shade in (
            (truth, GREY, 0.25),
            (done.first(method=name, seed=settings.seed), COLOURS[0], 0.3),
        ):
            if found is None or (name == HMC and colour != GREY):
                continue
            mean, std = (torch.tensor(found.result[entry]) for entry in ("mean", "std"))
            axis.fill_between(x, mean - 2 * std, mean + 2 * std, color=colour, alpha=shade, linewidth=0)
            axis.plot(x, mean, color=colour, linewidth=1.3)
        axis.plot(data.x.squeeze(1), data.y.squeeze(1), ".", color="#333333", markersize=2)
        axis.set_title(name, fontsize=10)
        axis.set_ylim(-3.6, 2.0)
    for axis in axes[4:]:
        axis.set_xlabel("x / 10")
    whose = "the published data" if published else "a stand-in, for the published data were not found"
    words = "Mean and two standard deviations of f under each method (blue) beside HMC's (grey), first seed; dots: "
    return Picture("bands", words + whose + ". Noise is not part of the bands.", sheet)


def _distances(done: Cells) -> Picture:
    sheet, axes = panels(2, width=4.8, height=3.6)
    names, places = METHODS, range(len(METHODS))
    apart = {name: distances(done, name) for name in names}
    for k, place in enumerate(REGIONS):
        known = [estimate(list(apart[name].get(f"w1_{place}", {}).values())) for name in names]
        errors = [e.error if e.count > 1 else 0.0 for e in known]
        heights = [p + (k - 1) * 0.2 for p in places]
        label = {"data": "at the data"}.get(place, place)
        axes[0].errorbar([e.mean for e in known], heights, xerr=errors, fmt="osD"[k], color=COLOURS[k], label=label)
    floor = estimate(done.values("floor", method=HMC))
    if floor.count:
        axes[0].axvline(floor.mean, color="#444444", linewidth=1.0, linestyle=":", label="two halves of HMC")
    axes[0].set_xscale("log")
    axes[0].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes[0].xaxis.set_major_formatter("{x:g}")
    axes[0].xaxis.set_minor_formatter(NullFormatter())
    axes[0].set_xlabel("W₁ to HMC's f(x)")
    axes[0].set_yticks(places, names)
    axes[0].invert_yaxis()
    axes[0].legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=2, fontsize=8)
    x = grid().squeeze(1)
    for k, name in enumerate((HMC, *names[1:])):
        rows = [torch.tensor(f.result["std"]) for f in done.where(method=name)]
        if rows:
            axes[1].plot(
                x,
                torch.stack(rows).mean(0),
                color="#222222" if name == HMC else COLOURS[k],
                linewidth=2.2 if name == HMC else 1.2,
                label=name,
            )
    for low, high in CLUSTERS:
        axes[1].axvspan(low, high, color="#dddddd", alpha=0.6, linewidth=0)
    axes[1].set_yscale("log")
    plain_numbers(axes[1])
    axes[1].set_xlabel("x / 10")
    axes[1].set_ylabel("sd of f")
    axes[1].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=8)
    words = (
        "Left: W₁ between each method's f(x) and HMC's, by region; bars: one standard error. Right: the spread of f, "
    )
    return Picture("distances", words + "mean over seeds; shaded: the clusters.", sheet)


EXPERIMENT = Experiment(
    name="epistemic",
    title="Uncertainty of f away from the data",
    paper="Wilson and Izmailov 2020; Wilson 2020, The case for Bayesian deep learning",
    question="Which methods are as uncertain about f as the posterior is, at the data and away from them?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
