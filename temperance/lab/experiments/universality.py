"""``universality``: two hidden layers of independent weights can say anything; here is one that does.

A network with a factorised Gaussian over its weights can match any continuous predictive density if it has two hidden
layers (Proposition 4 of the paper). The proof builds it, and so does this experiment, for a target p(y | x) of two
Gaussian bumps that part as x grows. With ReLU throughout:

* the first hidden layer has two units: x + 1 (never negative, as x ∈ [−1, 1]) and Z + 5, whose bias is the only random
  number that matters, Z ~ N(0, 1);
* the second has ``width`` units relu(a_k x + b_k Z + c_k) with random directions and thresholds;
* the output is their weighted sum, fitted by least squares to F⁻¹(Φ(Z) | x): then the output has the law F(· | x).

Residuals are weighted by the density p(F⁻¹ | x), which makes them errors of the CDF to first order. All other weights
have a standard deviation of 10⁻⁶. The error is Kolmogorov's, sup_y |F̂(y | x) − F(y | x)|: the largest difference of the
two distribution functions, by quadrature over Z.

Beside it a network of *one* hidden layer, all of whose weights are independent Gaussians, means and variances trained
by gradient descent to bring the quantiles of its output to those of the target. There the noise of one unit cannot be
shared by others: at each x the output is a sum of independent terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, GREY, curve, panels
from temperance.lab.judge import RULE, Estimate, above, all_of, below, difference, estimate
from temperance.run.fitted import RunInfo

SHOWN = (-0.8, 0.0, 0.8)
"""Inputs at which predictives are drawn."""
_LIFT = 5.0  # Z + 5 is below zero once in three million draws
_NOISE = 1e-3  # of the likelihood, in units of y: too little to matter
_SEEN = 0.4, 0.3  # weight of the lower bump, standard deviation of both


@dataclass(frozen=True)
class UniversalitySettings(Settings):
    """``widths`` of the second hidden layer (or of the only one); least squares on ``fit_inputs`` × ``fit_levels``
    points, errors on ``inputs`` × ``levels``. ``draws`` of all weights through the library's own prediction, at the
    ``spreads`` of all weights but one; ``steps`` of training for one hidden layer, with ``batch`` draws each."""

    widths: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    fit_inputs: int = 41
    fit_levels: int = 400
    inputs: int = 20
    levels: int = 4000
    draws: int = 4000
    spreads: tuple[float, ...] = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
    steps: int = 3000
    batch: int = 128
    single_widths: tuple[int, ...] = (4, 16, 64)


PRESETS = {
    "quick": Preset(
        UniversalitySettings(
            seeds=3, widths=(4, 16, 64), fit_inputs=15, fit_levels=80, inputs=6, levels=500, draws=300,
            spreads=(1e-6, 1e-1), steps=100, batch=32, single_widths=(4, 64),
        ),
        0.1,
    ),
    "standard": Preset(UniversalitySettings(seeds=5), 3),
    "paper": Preset(
        UniversalitySettings(
            seeds=20, widths=(4, 8, 16, 32, 64, 128, 256, 512, 1024), steps=20000, batch=512,
            single_widths=(4, 16, 64, 256), draws=20000,
        ),
        60,
    ),
}  # fmt: skip


def cells(settings: UniversalitySettings) -> list[Cell]:
    """Layers × width × seed."""
    made = []
    for seed in settings.all_seeds():
        made += [Cell.of(layers=1, width=width, seed=seed) for width in settings.single_widths]
        made += [Cell.of(layers=2, width=width, seed=seed) for width in settings.widths]
    return made


def run(settings: UniversalitySettings, cell: Cell) -> dict[str, Any]:
    """One network and its errors."""
    if cell["layers"] == 1:
        return run_single(settings, cell["width"], cell["seed"])
    return run_double(settings, cell["width"], cell["seed"])


# ---------------------------------------------------------------------- the target


def bumps(x: Tensor) -> tuple[Tensor, Tensor]:
    """Where the two bumps of p(y | x) are: they part as x grows, and both drift."""
    drift = 0.4 * torch.sin(2 * x)
    apart = 0.6 + 0.5 * x
    return drift - apart, drift + apart


def cdf(y: Tensor, x: Tensor) -> Tensor:
    """F(y | x)."""
    low, high = bumps(x)
    weight, scale = _SEEN
    return weight * torch.special.ndtr((y - low) / scale) + (1 - weight) * torch.special.ndtr((y - high) / scale)


def density(y: Tensor, x: Tensor) -> Tensor:
    """p(y | x)."""
    weight, scale = _SEEN
    parts = [torch.exp(-0.5 * ((y - m) / scale) ** 2) / (scale * math.sqrt(2 * math.pi)) for m in bumps(x)]
    return weight * parts[0] + (1 - weight) * parts[1]


def quantile(level: Tensor, x: Tensor) -> Tensor:
    """F⁻¹(level | x), by bisection.

    >>> x = torch.tensor(0.3, dtype=torch.float64)
    >>> float(cdf(quantile(torch.tensor(0.25, dtype=torch.float64), x), x))
    0.25
    """
    level, x = torch.broadcast_tensors(level, x)
    low, high = torch.full_like(x, -8.0), torch.full_like(x, 8.0)
    for _ in range(60):
        middle = 0.5 * (low + high)
        below_level = cdf(middle, x) < level
        low, high = torch.where(below_level, middle, low), torch.where(below_level, high, middle)
    return 0.5 * (low + high)


def levels(count: int) -> Tensor:
    """Evenly spaced levels inside (0, 1)."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def grid(count: int) -> Tensor:
    """Inputs over [−1, 1]."""
    return torch.linspace(-1, 1, count, dtype=torch.float64)


def kolmogorov(draws: Tensor, x: Tensor) -> Tensor:
    """sup_y |F̂ − F| for each input, with F̂ of ``draws`` (draws × inputs) of equal weight."""
    ordered = draws.sort(0).values
    true, count = cdf(ordered, x), len(draws)
    steps = torch.arange(count + 1, dtype=torch.float64).unsqueeze(-1) / count
    return torch.maximum((true - steps[:-1]).abs(), (true - steps[1:]).abs()).amax(0)


# ---------------------------------------------------------------------- two hidden layers


def build(settings: UniversalitySettings, width: int, seed: int) -> tuple[tp.nn.MLP, Tensor, Tensor]:
    """The network at the means of its weights; their means and, but for one, zero variances as vectors θ."""
    rng = torch.Generator().manual_seed(seed)
    x, z = torch.meshgrid(grid(settings.fit_inputs), torch.special.ndtri(levels(settings.fit_levels)), indexing="ij")
    x, z = x.flatten(), z.flatten()
    wanted = quantile(torch.special.ndtr(z), x)
    angle = 2 * math.pi * torch.rand(width, generator=rng, dtype=torch.float64)
    a, b = torch.sin(angle), torch.cos(angle)
    place = torch.randint(len(x), (width,), generator=rng)  # hinges where the points are
    c = -(a * x[place] + b * z[place])
    features = torch.relu(x.unsqueeze(1) * a + z.unsqueeze(1) * b + c)
    features = torch.cat([features, torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
    weight = density(wanted, x).unsqueeze(1)  # an error of y, times the density, is one of the CDF
    rows, right = weight * features, weight.squeeze(1) * wanted
    ridge = 1e-8 * float(rows.square().sum()) / rows.shape[1]
    gram = rows.T @ rows + ridge * torch.eye(rows.shape[1], dtype=torch.float64)
    solved = torch.linalg.solve(gram, rows.T @ right)
    network = tp.nn.MLP(1, [2, width], 1).double()
    values = {
        "0.weight": torch.tensor([[1.0], [0.0]]),
        "0.bias": torch.tensor([1.0, _LIFT]),
        "2.weight": torch.stack([a, b], dim=1),
        "2.bias": c - a - _LIFT * b,
        "4.weight": solved[:-1].unsqueeze(0),
        "4.bias": solved[-1:],
    }
    network.load_state_dict({name: value.double() for name, value in values.items()})
    layout = tp.Layout.of(network)
    noise = {name: torch.zeros_like(value.double()) for name, value in values.items()}
    noise["0.bias"][1] = 1.0
    return network, layout.flatten(network), layout.flatten(noise)


def as_posterior(mean: Tensor, noise: Tensor, spread: float) -> tp.posteriors.Gaussian:
    """The factorised Gaussian: the one noisy weight, and ``spread`` for the standard deviation of all others."""
    variance = torch.where(noise > 0, noise, torch.full_like(noise, spread**2))
    return tp.posteriors.Gaussian(mean, tp.linalg.DiagonalCovariance(variance))


def run_double(settings: UniversalitySettings, width: int, seed: int) -> dict[str, Any]:
    """Errors by quadrature over Z, and by draws of all weights through the library."""
    network, mean, noise = build(settings, width, seed)
    at = grid(settings.inputs)
    result: dict[str, Any] = by_quadrature(settings, network, at)
    if width == max(settings.widths):
        target = tp.Target(network, tp.Normal(scale=_NOISE), tp.GaussianPrior(1.0))
        for spread in settings.spreads:
            fitted = tp.Fitted(target, as_posterior(mean, noise, spread), RunInfo())
            found = kolmogorov(outputs_of(fitted, at, settings.draws, seed), at)
            result[f"drawn@{spread:g}"] = float(found.mean())
    if width == max(settings.widths) and seed == settings.seed:
        shown = torch.tensor(SHOWN, dtype=torch.float64)
        fitted = tp.Fitted(target, as_posterior(mean, noise, settings.spreads[0]), RunInfo())
        result["shown"] = outputs_of(fitted, shown, settings.draws, seed + 1).T
    return result


def by_quadrature(settings: UniversalitySettings, network: tp.nn.MLP, at: Tensor) -> dict[str, Any]:
    """Errors with Z at evenly spaced levels of its distribution and all other weights at their means."""
    z = torch.special.ndtri(levels(settings.levels))
    with torch.no_grad():
        first = torch.relu(torch.stack(torch.broadcast_tensors(at + 1, z.unsqueeze(1) + _LIFT), dim=-1))
        found = kolmogorov(nn.Sequential(*list(network)[2:])(first).squeeze(-1), at)
    return {"error": float(found.mean()), "worst": float(found.max())}


def outputs_of(fitted: tp.Fitted, at: Tensor, draws: int, seed: int) -> Tensor:
    """The network at each of the draws of its weights that ``predict`` averages: draws × inputs."""
    predictive = fitted.predict(at.unsqueeze(1), draws=draws, seed=seed)
    return torch.cat([outputs.squeeze(-1) for _, outputs, _ in predictive.source.blocks()], dim=1)


# ---------------------------------------------------------------------- one hidden layer


def run_single(settings: UniversalitySettings, width: int, seed: int) -> dict[str, Any]:
    """Train means and standard deviations of all weights so that the ordered outputs of ``batch`` draws come to the
    quantiles of the target, weighted as above; then the error of many draws, at the end of training."""
    rng = torch.Generator().manual_seed(seed)
    network = tp.nn.MLP(1, [width], 1).double()
    target = tp.Target(network, tp.Normal(scale=_NOISE), tp.GaussianPrior(1.0))
    size = target.num_parameters
    shapes = target.layout.unflatten(torch.randn(size, generator=rng, dtype=torch.float64))
    shapes["2.weight"] /= math.sqrt(width)
    mean = target.layout.flatten(shapes).requires_grad_()
    log_scale = torch.full((size,), -2.0, dtype=torch.float64, requires_grad=True)
    at = grid(settings.inputs)
    wanted = quantile(levels(settings.batch).unsqueeze(1), at)
    weight = density(wanted, at)
    optimizer = torch.optim.Adam([mean, log_scale], lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    for _ in range(settings.steps):
        theta = mean + log_scale.exp() * torch.randn(settings.batch, size, generator=rng, dtype=torch.float64)
        w = target.layout.unflatten(theta)
        hidden = torch.relu(at.view(1, -1, 1) * w["0.weight"].mT + w["0.bias"].unsqueeze(1))
        made = (hidden @ w["2.weight"].mT).squeeze(-1) + w["2.bias"]
        loss = (weight * (made.sort(0).values - wanted)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    posterior = tp.posteriors.Gaussian(
        mean.detach(), tp.linalg.DiagonalCovariance((2 * log_scale.detach()).exp().clamp_min(1e-30))
    )
    fitted = tp.Fitted(target, posterior, RunInfo())
    found = kolmogorov(outputs_of(fitted, at, settings.draws, seed), at)
    result: dict[str, Any] = {"error": float(found.mean()), "worst": float(found.max())}
    if width == max(settings.single_widths) and seed == settings.seed:
        shown = torch.tensor(SHOWN, dtype=torch.float64)
        result["shown"] = outputs_of(fitted, shown, settings.draws, seed + 1).T
    return result


# ---------------------------------------------------------------------- judging and drawing


def by_width(done: Cells, entry: str, layers: int) -> dict[int, Estimate]:
    """An entry for each width."""
    there = done.where(layers=layers).options("width")
    return {width: estimate(done.values(entry, layers=layers, width=width)) for width in sorted(there)}


def claims(settings: UniversalitySettings, done: Cells) -> list[Claim]:
    """The error falls with width, comes near zero, is that of the library's draws, and needs two layers."""
    widths = sorted(settings.widths)
    found = by_width(done, "error", 2)
    curves = {width: done.by_seed("error", layers=2, width=width) for width in widths}
    falls = estimate(
        [
            float(np.polyfit(np.log(widths), np.log([curves[width][seed] for width in widths]), 1)[0])
            for seed in settings.all_seeds()
            if all(seed in curves[width] for width in widths)
        ]
    )
    worst = by_width(done, "worst", 2)[widths[-1]]
    least, most = min(settings.spreads), max(settings.spreads)
    drawn = {s: done.by_seed(f"drawn@{s:g}", layers=2, width=widths[-1]) for s in settings.spreads}
    floor = 0.87 / math.sqrt(settings.draws)  # the mean of Kolmogorov's statistic for draws of the target itself
    excess = difference(drawn[least], {seed: value + floor for seed, value in curves[widths[-1]].items()})
    single = by_width(done, "error", 1)
    last = max(settings.single_widths)
    same = max(width for width in widths if width <= last)
    gap = difference(done.by_seed("error", layers=1, width=last), curves[same])
    spoiled = difference(drawn[most], drawn[least])
    return [
        Claim(
            "With two hidden layers the error of the predictive CDF falls with width",
            "any predictive density, arbitrarily closely, given arbitrary width (Proposition 4)",
            "largest difference of the CDFs, mean over x: "
            + "; ".join(f"width {w}: {e}" for w, e in found.items())
            + f"; slope of its log over log width {falls}",
            below(falls),
            f"slope below 0; {RULE}",
        ),
        Claim(
            f"At width {widths[-1]} the predictive is near the target at every x",
            "arbitrarily closely",
            f"largest difference of the CDFs, mean over x {found[widths[-1]]}, worst x {worst}",
            below(worst, 0.05),
            f"below 0.05 at the worst x; {RULE}",
        ),
        Claim(
            "Draws of the factorised Gaussian through `predict` show the same",
            "– (a check)",
            f"error of {settings.draws} draws, with a standard deviation of {least:g} for all weights but one: "
            f"{estimate(list(drawn[least].values()))}; above that by quadrature plus {floor:.4f}, the error of as many "
            f"draws of the target itself, by {excess}",
            all_of(below(excess, 0.01), above(excess, -0.01 - floor)),
            f"not more than 0.01 above it, nor below quadrature by more than 0.01; {RULE}",
        ),
        Claim(
            "One hidden layer does not get there",
            "– (the proposition is for two or more)",
            "error of one hidden layer, trained: "
            + "; ".join(f"width {w}: {e}" for w, e in single.items())
            + f"; above two hidden layers, the last of {same}, by {gap}",
            above(gap),
            f"difference above 0; {RULE}. Gradient descent may not have found the best single layer",
        ),
        Claim(
            "All other weights must be nearly certain",
            "to make the error small the variance of weights must fall, at the cost of the ELBO",
            "error by their standard deviation: "
            + "; ".join(f"{s:g}: {estimate(list(values.values()))}" for s, values in drawn.items()),
            above(spoiled),
            f"error at {most:g} above that at {least:g}; {RULE}",
        ),
    ]


def figures(settings: UniversalitySettings, done: Cells) -> list[Picture]:
    """Errors against width and against the spread of the other weights; predictives at three inputs."""
    return [_errors(settings, done), _predictives(settings, done)]


def _errors(settings: UniversalitySettings, done: Cells) -> Picture:
    sheet, axes = panels(2, width=4.8, height=3.8)
    labels = {(2, "error"): "two layers, mean over x", (2, "worst"): "two layers, worst x"}
    labels |= {(1, "error"): "one layer, mean over x", (1, "worst"): "one layer, worst x"}
    for (layers, entry), label in labels.items():
        values = {float(width): e for width, e in by_width(done, entry, layers).items()}
        curve(
            axes[0],
            values,
            label,
            COLOURS[2 - layers],
            marker="o" if entry == "error" else "^",
            dashed=entry != "error",
        )
    axes[0].set(xscale="log", yscale="log", xlabel="width of the last hidden layer", ylabel="sup |CDF − target|")
    axes[0].set_xticks(sorted(settings.widths), [str(width) for width in sorted(settings.widths)])
    axes[0].legend()
    width = max(settings.widths)
    drawn = {s: estimate(done.values(f"drawn@{s:g}", layers=2, width=width)) for s in settings.spreads}
    curve(axes[1], drawn, f"two layers of width {width}, draws", COLOURS[0])
    floor = 0.87 / math.sqrt(settings.draws)
    axes[1].axhline(floor, color=GREY, linestyle="--", linewidth=1.3, label="as many draws of the target")
    axes[1].set(xscale="log", yscale="log", xlabel="standard deviation of all other weights")
    axes[1].set_ylabel("sup |CDF − target|, mean over x")
    axes[1].legend(loc="upper left")
    for axis in axes:
        axis.set_ylim(bottom=min(0.01, axis.get_ylim()[0]))
        ticks = [t for t in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if t >= axis.get_ylim()[0]]
        axis.set_yticks(ticks, [f"{t:g}" for t in ticks])
        axis.minorticks_off()
    words = (
        "Left: how far the predictive of factorised networks is from a bimodal target, by width. Right: the same for "
        "draws of all weights through `predict`, if weights other than the noisy one are uncertain too. Bars: one "
        "standard error."
    )
    return Picture("errors", words, sheet)


def _predictives(settings: UniversalitySettings, done: Cells) -> Picture:
    sheet, axes = panels(len(SHOWN), width=3.7, height=3.3)
    shown = {
        "two hidden layers": (done.first(layers=2, width=max(settings.widths), seed=settings.seed), COLOURS[0]),
        "one hidden layer": (done.first(layers=1, width=max(settings.single_widths), seed=settings.seed), COLOURS[1]),
    }
    y = torch.linspace(-2.4, 2.4, 400, dtype=torch.float64)
    bins = np.linspace(-2.4, 2.4, 49).tolist()
    for k, (axis, x) in enumerate(zip(axes, SHOWN, strict=True)):
        for label, (cell, colour) in shown.items():
            if cell is not None:
                options: dict[str, Any] = {"histtype": "step"} if label.startswith("one") else {"alpha": 0.45}
                axis.hist(cell.result["shown"][k], bins=bins, density=True, color=colour, label=label, **options)
        axis.plot(y, density(y, torch.tensor(x, dtype=torch.float64)), "k", linewidth=1.3, label="target")
        axis.set(title=f"x = {x:g}", xlabel="y")
        axis.grid(False)
    axes[0].set_ylabel("density")
    top = max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(0, top * 1.05)
    axes[-1].legend(fontsize=8)
    words = (
        "Predictives at three inputs, of draws from factorised Gaussians over the weights: two hidden layers (the last "
        f"of {max(settings.widths)}), built; one hidden layer (of {max(settings.single_widths)}), trained; the target."
    )
    return Picture("predictives", words, sheet)


EXPERIMENT = Experiment(
    name="universality",
    title="Any predictive from factorised weights",
    paper="Farquhar, Smith and Gal 2020, Liberty or depth (Proposition 4)",
    question="Can two hidden layers of independent Gaussian weights give a bimodal predictive density, and one not?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
