"""``liberty-hmc``: is a mode of the true posterior nearer to a factorised Gaussian in deeper networks?

MLPs of different depths and about the same number of parameters P learn two moons. Draws of the posterior by HMC are
cut down to one mode, and two Gaussians are matched to them: one with their whole covariance, one with their variances
alone. Two numbers say what the second loses:

    E_KL = KL(q_full ‖ q_diag) = ½ (Σ_i log Σ_ii − log det Σ) = −½ log det R,    R the correlation matrix,
    E_W  = W₂(p, q_diag) − W₂(p, q_full),    W₂ between equally many draws by the best assignment, exactly.

**One mode.** Gaussian mixtures of one to ``components`` parts are fitted to the draws' first ``projection`` principal
components (in P dimensions a mixture of full covariances would need P² draws), BIC chooses, with the effective number
of draws for their number, and the draws of the heaviest part are kept.

**Finite samples.** With ν = n − 1, ν Σ̂ of n independent Gaussian draws is distributed as Wishart(ν, Σ), so that

    E log det Σ̂ = log det Σ + Σ_{i=0}^{P−1} ψ((ν − i)/2) + P log(2/ν),    E log Σ̂_ii = log Σ_ii + ψ(ν/2) + log(2/ν),
    E[Ê_KL] = E_KL + b(ν),    b(ν) = ½ Σ_{i=0}^{P−1} [ψ(ν/2) − ψ((ν − i)/2)],

whatever Σ is. b is large: 94 nats for 1,000 parameters and 3,000 draws. Draws of a chain are worth fewer than they are:
ν is then an effective number. It is measured: turn every parameter's series round in time by a random amount of its
own. That keeps what each parameter does in time and undoes what it has to do with the others, so that E_KL is 0 and
what is found is b. (If all parameters forget their past alike, this is exact for any Σ.) The effective number of draws
is the ν at which the closed form gives the same b. E_W is corrected by its value for the shifted draws too. What the
correction cannot see is a chain that has not yet been everywhere: E_KL of half the draws shows it. What is left is of
order one over the number of draws, so that twice the E_KL of all draws less that of half of them is an estimate without
it (the jackknife).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq, linear_sum_assignment
from scipy.special import digamma
from sklearn.mixture import GaussianMixture
from torch import nn

import temperance as tp
from temperance.judge import diagnose
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, curve, panels, whole_numbers
from temperance.lab.judge import RULE, Estimate, above, all_of, below, difference, estimate, near
from temperance.lab.problems import fit

LEAST_ACCEPTANCE = 0.6
"""Below it a chain counts as stuck."""
AGREE = 0.01
"""Nats per parameter by which E_KL of half the draws may differ: more, and it still depends on their number."""


@dataclass(frozen=True)
class LibertySettings(Settings):
    """``rows`` points of two moons; networks of about ``parameters`` for each of ``depths`` (hidden layers) and
    ``slopes`` of the activation below zero (1: none at all, a linear network).

    ``prior`` is ``"normal-1"``, the paper's N(0, 1) on each weight, or ``"fan-in"``, N(0, 2/((1 + α²) fan-in)) for the
    slope α, which keeps signals of one size through all layers: under the former ten layers are so stiff that HMC needs
    steps of 10⁻⁵.

    The chain starts at the network's own initialisation. ``warmup`` trajectories of HMC set its step, so that
    ``acceptance`` of them are accepted, and one mass for each weight; each of the next ``draws`` ends in a draw. A
    trajectory lasts ``trajectory`` units of time, in which a weight of unit spread turns round after π/2.
    """

    parameters: int = 1000
    depths: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    slopes: tuple[float, ...] = (1.0, 0.1)
    rows: int = 500
    noise: float = 0.15
    test_rows: int = 500
    prior: str = "normal-1"
    warmup: int = 300
    acceptance: float = 0.8
    trajectory: float = 1.5
    draws: int = 3000
    components: int = 4
    projection: int = 4
    shifts: int = 10
    points: int = 500
    repeats: int = 3


PRESETS = {
    "quick": Preset(
        LibertySettings(
            seeds=3, parameters=22, depths=(1, 2), rows=40, test_rows=100, prior="fan-in", warmup=60, trajectory=1.0,
            draws=120, components=2, shifts=4, points=60, repeats=1,
        ),
        0.3,
    ),
    "standard": Preset(
        LibertySettings(seeds=3, prior="fan-in", rows=100, draws=6000, shifts=4, points=400, repeats=2), 10
    ),
    "paper": Preset(LibertySettings(seeds=20, slopes=(1.0, 0.95, 0.5, 0.1), draws=10000), 3000),
}  # fmt: skip


def count(width: int, depth: int) -> int:
    """Parameters of an MLP from two inputs to two logits.

    >>> count(200, 1), count(10, 10)
    (1002, 1042)
    """
    return 3 * width + (depth - 1) * width * (width + 1) + 2 * (width + 1)


def width_for(parameters: int, depth: int) -> int:
    """The width that comes closest to a number of parameters.

    >>> [width_for(1000, depth) for depth in range(1, 11)]
    [200, 29, 21, 17, 15, 13, 12, 11, 10, 10]
    """
    return min(range(1, parameters + 1), key=lambda width: abs(count(width, depth) - parameters))


def activation(slope: float) -> str:
    """Its name."""
    return {1.0: "linear", 0.0: "ReLU"}.get(slope, f"leaky {slope:g}")


def cells(settings: LibertySettings) -> list[Cell]:
    """Activation × depth × seed, the slow ones first."""
    return [
        Cell.of(slope=slope, depth=depth, seed=seed)
        for seed in settings.all_seeds()
        for depth in sorted(settings.depths, reverse=True)
        for slope in settings.slopes
    ]


def run(settings: LibertySettings, cell: Cell) -> dict[str, Any]:
    """One restart: draws from one place, one mode of them, and both errors."""
    seed, depth = cell["seed"], cell["depth"]
    train, test = moons(settings, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        act = functools.partial(nn.LeakyReLU, cell["slope"]) if cell["slope"] != 1.0 else nn.Identity
        network = tp.nn.MLP(2, [width_for(settings.parameters, depth)] * depth, 2, act)
    scale = 1.0 if settings.prior == "normal-1" else tp.FanIn(gain=math.sqrt(2 / (1 + cell["slope"] ** 2)))
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(scale))
    fitted = sample_posterior(settings, target, train, seed)
    told = fitted.posterior.trace.transitions  # type: ignore[attr-defined]
    theta = fitted.posterior.theta.double()  # type: ignore[attr-defined]
    kept, parts = one_mode(theta.numpy(), settings.components, settings.projection, seed)
    result = {
        "parameters": float(target.num_parameters),
        "acceptance": float(told.acceptance.mean()),
        "step": float(told.step_size[0]),
        "gradients": float(told.leapfrogs.sum()),
        "divergences": float(told.divergent.sum()),
        "accuracy": fitted.evaluate(test)["accuracy"],
        "parts": float(parts),
        "kept": float(kept.sum()) / len(kept),
        "ess": float(diagnose.ess(theta.unsqueeze(0)).median()),
        "ess_least": float(diagnose.ess(theta.unsqueeze(0)).min()),
        "rhat": float(diagnose.rhat(theta.unsqueeze(0)).max()),
    }
    return result | errors(settings, theta.numpy()[kept], seed)


def moons(settings: LibertySettings, seed: int) -> tuple[tp.data.Data, tp.data.Data]:
    """Training and test points; each seed has its own."""
    made = []
    for rows, number in ((settings.rows, 2 * seed), (settings.test_rows, 2 * seed + 1)):
        parts = tp.data.load("two-moons", seed=number, n=2 * rows, noise=settings.noise)
        x, y = torch.cat([torch.as_tensor(part.x) for part in parts]), torch.cat([part.y for part in parts])
        made.append(tp.data.Data(x[:rows], y[:rows], info=parts[0].info))
    return made[0], made[1]


# ---------------------------------------------------------------------- draws of the posterior


def sample_posterior(settings: LibertySettings, target: tp.Target, data: tp.data.Data, seed: int) -> tp.Fitted:
    """One chain of HMC, of which the posterior is exactly the stationary law."""
    quarter = settings.warmup // 4
    warm = tp.Warmup(
        tp.HMC(time=settings.trajectory), settings.warmup, accept=settings.acceptance, first=quarter, window=quarter,
        last=quarter,
    )  # fmt: skip
    return fit(target, tp.Collect(warm, last=settings.draws), data, seed=seed)


def one_mode(theta: np.ndarray, components: int, projection: int, seed: int) -> tuple[np.ndarray, int]:
    """Which draws belong to the heaviest part of the Gaussian mixture that BIC chooses, and how many parts it has."""
    centred = theta - theta.mean(0)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    view = left[:, :projection] * scale[:projection]
    worth = float(diagnose.ess(view[None]).mean())  # draws of a chain repeat themselves: their likelihood counts less
    options: dict[str, Any] = {"n_init": 3, "reg_covar": 1e-6 * float(view.var()), "random_state": seed}
    fits = [GaussianMixture(k, **options).fit(view) for k in range(1, components + 1)]

    def bic(mixture: GaussianMixture) -> float:
        k, d = mixture.n_components, view.shape[1]
        numbers = k * (1 + d + d * (d + 1) / 2) - 1
        return numbers * math.log(worth) - 2 * worth * float(mixture.score(view))

    chosen = min(fits, key=bic)
    part = chosen.predict(view)
    return part == np.bincount(part).argmax(), int(chosen.n_components)


# ---------------------------------------------------------------------- the two errors


def errors(settings: LibertySettings, theta: np.ndarray, seed: int) -> dict[str, float]:
    """E_KL and E_W of draws: raw, and without what a finite sample adds."""
    size, parameters = theta.shape
    rng = np.random.default_rng(seed)
    shifted = [shift(theta, rng) for _ in range(settings.shifts)]
    raw, null = kl_error(theta), float(np.mean([kl_error(draws) for draws in shifted]))
    chosen = rng.permutation(size)[: settings.points]
    wasserstein = wasserstein_error(theta, chosen, settings.repeats, rng)
    nothing = np.mean([wasserstein_error(draws, chosen, 1, rng) for draws in shifted[: settings.repeats]])
    return {
        "kl_raw": raw / parameters,
        "kl_independent": (raw - wishart_bias(parameters, size - 1)) / parameters,
        "kl": (raw - null) / parameters,
        "kl_half": half_error(theta, settings.shifts, rng) / parameters,
        "effective": effective_draws(parameters, null),
        "w_raw": wasserstein / math.sqrt(parameters),
        "w": (wasserstein - float(nothing)) / math.sqrt(parameters),
    }


def half_error(theta: np.ndarray, shifts: int, rng: np.random.Generator) -> float:
    """E_KL, corrected, of the first and of the second half of the draws on average. A chain that is still on its way
    through the posterior looks more correlated in each half than in both."""
    found = []
    for part in np.array_split(theta, 2):
        found.append(kl_error(part) - float(np.mean([kl_error(shift(part, rng)) for _ in range(shifts)])))
    return float(np.mean(found))


def kl_error(theta: np.ndarray) -> float:
    """−½ log det R of draws; NaN where there are too few for a correlation matrix.

    >>> x = np.random.default_rng(0).multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 100_000)
    >>> abs(kl_error(x) - 0.5108256) < 0.01
    True
    """
    if len(theta) <= theta.shape[1] + 1:
        return math.nan
    return -0.5 * float(np.linalg.slogdet(np.corrcoef(theta, rowvar=False))[1])


def wishart_bias(parameters: int, dof: float) -> float:
    """b(ν): what E_KL of ν + 1 independent draws is too large by, on average.

    >>> round(wishart_bias(1000, 2999), 1)
    94.5
    """
    return 0.5 * float(np.sum(digamma(dof / 2) - digamma((dof - np.arange(parameters)) / 2)))


def effective_draws(parameters: int, bias: float) -> float:
    """The number of independent draws at which :func:`wishart_bias` is ``bias``.

    >>> round(effective_draws(100, wishart_bias(100, 299)))
    300
    """
    if not math.isfinite(bias) or bias <= 0:
        return math.nan
    low, high = parameters - 1 + 1e-6, 1e9
    if wishart_bias(parameters, low) < bias:
        return float(parameters)
    return float(brentq(lambda dof: wishart_bias(parameters, dof) - bias, low, high)) + 1


def shift(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Every parameter's series turned round in time by an amount of its own."""
    size = len(theta)
    start = rng.integers(0, size, theta.shape[1])
    return np.take_along_axis(theta, (np.arange(size)[:, None] + start) % size, axis=0)


def wasserstein_error(theta: np.ndarray, chosen: np.ndarray, repeats: int, rng: np.random.Generator) -> float:
    """W₂(p, q_diag) − W₂(p, q_full), with the draws ``chosen`` for p and as many of each Gaussian, mean of ``repeats``.

    Both Gaussians are made of the same standard normal numbers z: mean + s ∘ z and mean + s ∘ R^½ z, with the symmetric
    root. Where R is I they are the same draws, and the difference is exactly 0.
    """
    if len(theta) <= theta.shape[1] + 1:
        return math.nan
    mean, scale = theta.mean(0), theta.std(0, ddof=1)
    values, vectors = np.linalg.eigh(np.corrcoef(theta, rowvar=False))
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    found = []
    for _ in range(repeats):
        z = rng.standard_normal((len(chosen), theta.shape[1]))
        diagonal, full = mean + scale * z, mean + scale * (z @ root)
        found.append(assignment_distance(theta[chosen], diagonal) - assignment_distance(theta[chosen], full))
    return float(np.mean(found))


def assignment_distance(a: np.ndarray, b: np.ndarray) -> float:
    """W₂ between two sets of equally many points: the root of the mean squared distance under the best pairing.

    >>> assignment_distance(np.array([[0.0], [1.0]]), np.array([[1.5], [0.5]]))
    0.5
    """
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return math.sqrt(max(0.0, float(squares[linear_sum_assignment(squares)].mean())))


# ---------------------------------------------------------------------- judging and drawing


def by_depth(settings: LibertySettings, done: Cells, entry: str, slope: float) -> dict[int, Estimate]:
    """An entry for each depth."""
    return {depth: estimate(done.values(entry, slope=slope, depth=depth)) for depth in sorted(settings.depths)}


def trend(settings: LibertySettings, done: Cells, entry: str, slope: float) -> Estimate:
    """The slope of an entry over log depth: a straight line for each seed, then their mean."""
    curves = {depth: done.by_seed(entry, slope=slope, depth=depth) for depth in settings.depths}
    found = []
    for seed in settings.all_seeds():
        known = {math.log(depth): values[seed] for depth, values in curves.items() if seed in values}
        if len(known) > 1:
            found.append(float(np.polyfit(list(known), list(known.values()), 1)[0]))
    return estimate(found)


def _told(values: dict[int, Estimate]) -> str:
    return "; ".join(f"depth {depth}: {value}" for depth, value in values.items())


def claims(settings: LibertySettings, done: Cells) -> list[Claim]:
    """Whether the draws can tell, for each activation; and if they can, whether both errors fall with depth."""
    quality = {slope: _draws_claim(settings, done, slope) for slope in settings.slopes}
    made = []
    words = {"kl": ("E_KL", "nats per parameter"), "w": ("E_W", "per root of the number of parameters")}
    for slope in settings.slopes:
        for entry, (name, unit) in words.items():
            falls = trend(settings, done, entry, slope)
            raw = _told(by_depth(settings, done, f"{entry}_raw", slope))
            made.append(
                Claim(
                    f"{activation(slope)}: {name} falls with depth",
                    "large in shallow networks, falls quickly with depth, for all activations (Figure 2)",
                    f"{name} ({unit}): {_told(by_depth(settings, done, entry, slope))}; slope over log depth {falls}; "
                    f"before correction: {raw}",
                    below(falls) if quality[slope].holds else None,
                    f"slope over log depth below 0; {RULE}; not judged unless the draws are good enough (below)",
                )
            )
    return made + [_extrapolated(settings, done, slope) for slope in settings.slopes] + list(quality.values())


def _extrapolated(settings: LibertySettings, done: Cells, slope: float) -> Claim:
    """What finitely many draws add falls as one over their number, so twice the E_KL of all draws less that of half of
    them is free of it to first order (the jackknife)."""
    seeds: dict[int, dict[int, float]] = {}
    for depth in sorted(settings.depths):
        whole, half = (done.by_seed(entry, slope=slope, depth=depth) for entry in ("kl", "kl_half"))
        for seed in whole.keys() & half.keys():
            seeds.setdefault(seed, {})[depth] = 2 * whole[seed] - half[seed]
    known = {depth: [found[depth] for found in seeds.values() if depth in found] for depth in sorted(settings.depths)}
    shallow = min(settings.depths)
    falls = estimate(
        [
            float(np.mean([value for depth, value in found.items() if depth > shallow])) - found[shallow]
            for found in seeds.values()
        ]
    )
    told = _told({depth: estimate(values) for depth, values in known.items()})
    return Claim(
        f"{activation(slope)}: E_KL extrapolated to endless draws is lower in deeper networks than in the shallowest",
        "large in shallow networks, falls quickly with depth, for all activations (Figure 2)",
        f"2 E_KL(all draws) − E_KL(half of them): {told}; deeper ones less the shallowest {falls}",
        below(falls),
        f"mean over depths above {shallow} less that at {shallow} below 0; {RULE}; asked after a first look at the "
        "rows above",
    )


def _draws_claim(settings: LibertySettings, done: Cells, slope: float) -> Claim:
    entries = ("effective", "acceptance", "accuracy", "ess_least", "kept")
    effective, acceptance, accuracy, ess, kept = (by_depth(settings, done, entry, slope) for entry in entries)
    halves = {}
    for depth in effective:
        half, whole = (done.by_seed(entry, slope=slope, depth=depth) for entry in ("kl_half", "kl"))
        halves[depth] = difference(half, whole)
    needed = {depth: count(width_for(settings.parameters, depth), depth) for depth in effective}
    return Claim(
        f"{activation(slope)}: the draws are good enough to tell",
        "depths beyond some are marked as less reliable",
        f"effective draws for E_KL (of {settings.draws}): {_told(effective)}; parameters: {_plain(needed)}; "
        f"E_KL of half the draws is higher by {_told(halves)}; least ESS of a parameter: {_told(ess)}; acceptance: "
        f"{_told(acceptance)}; share of draws in the mode: {_told(kept)}; test accuracy: {_told(accuracy)}",
        all_of(
            *(above(value, 1.5 * needed[depth]) for depth, value in effective.items()),
            *(above(value, LEAST_ACCEPTANCE) for value in acceptance.values()),
            *(near(value, 0.0, AGREE) for value in halves.values()),
        ),
        "at every depth half as many effective draws again as parameters, acceptance above "
        f"{LEAST_ACCEPTANCE}, and E_KL of half the draws within {AGREE}; {RULE}",
    )


def _plain(values: dict[int, int]) -> str:
    return ", ".join(str(value) for value in values.values())


def figures(settings: LibertySettings, done: Cells) -> list[Picture]:
    """Both errors against depth, and what the draws are worth."""
    sheet, axes = panels(2, width=4.8, height=3.8)
    for axis, entry in zip(axes, ("kl", "w"), strict=True):
        for k, slope in enumerate(settings.slopes):
            values = {float(depth): e for depth, e in by_depth(settings, done, entry, slope).items()}
            curve(axis, values, activation(slope), COLOURS[k % len(COLOURS)], marker="os^D"[k % 4])
        axis.axhline(0.0, color="#444444", linewidth=0.9, linestyle=":")
        axis.set_xlabel("hidden layers")
        whole_numbers(axis)
    for k, slope in enumerate(settings.slopes):
        values = {float(depth): e for depth, e in by_depth(settings, done, "kl_half", slope).items()}
        label = f"{activation(slope)}, half the draws"
        curve(axes[0], values, label, COLOURS[k % len(COLOURS)], marker="os^D"[k % 4], dashed=True)
    axes[0].set_ylim(top=1.3 * axes[0].get_ylim()[1])
    axes[0].set_ylabel("E_KL (nats per parameter)")
    axes[1].set_ylabel("E_W / √parameters")
    axes[0].legend()
    about = (
        f"What a factorised Gaussian loses against a full one, by depth, in networks of about {settings.parameters} "
        f"parameters on {settings.rows} points of two moons. From both is taken what they are for the same draws with "
        "every parameter's series turned round in time by an amount of its own: what finitely many, autocorrelated "
        "draws add. Dashed: E_KL of half the draws; where it is higher, the chains are too short. Bars: one standard "
        "error."
    )
    return [Picture("errors", about, sheet), _quality(settings, done)]


def _quality(settings: LibertySettings, done: Cells) -> Picture:
    sheet, axes = panels(3, width=4.0, height=3.5)
    entries = {"effective": "effective draws for E_KL", "acceptance": "acceptance", "accuracy": "test accuracy"}
    for axis, (entry, label) in zip(axes, entries.items(), strict=True):
        for k, slope in enumerate(settings.slopes):
            values = {float(depth): e for depth, e in by_depth(settings, done, entry, slope).items()}
            curve(axis, values, activation(slope), COLOURS[k % len(COLOURS)], marker="os^D"[k % 4])
        axis.set(xlabel="hidden layers", ylabel=label)
        whole_numbers(axis)
    needed = {depth: count(width_for(settings.parameters, depth), depth) for depth in sorted(settings.depths)}
    axes[0].plot(list(needed), list(needed.values()), ":k", label="parameters")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(loc="center left", bbox_to_anchor=(0.0, 0.36))
    words = (
        f"What the {settings.draws} draws of a chain are worth: as many independent ones would have the same bias of "
        "E_KL (it needs more than there are parameters); the share of accepted trajectories; and the accuracy of the "
        "averaged prediction."
    )
    return Picture("draws", words, sheet)


EXPERIMENT = Experiment(
    name="liberty-hmc",
    title="Depth and the factorised posterior",
    paper="Farquhar, Smith and Gal 2020, Liberty or depth (section 6.1: the true posterior by HMC)",
    question="In networks of one size, is a mode of the true posterior nearer to a factorised Gaussian with depth?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
