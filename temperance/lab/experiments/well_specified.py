"""``well-specified``: where the model is right, is T = 1 right too, and does SG-MCMC find it?

θ* is drawn from the prior N(0, 1) of a small MLP, inputs from N(0, I), labels from its softmax. Averaged over such
problems the T = 1 predictive has the lowest expected log-loss: that is what Bayes' rule is for. Chains start at another
draw from the prior. The cross-entropy is taken exactly over the true label probabilities, so that test labels add no
noise.

Beside it a linear model where everything is in closed form: Φ = (1, x, x²) at ten points, noise 0.1, prior N(0, I). The
posterior at temperature T has covariance T·Λ⁻¹, and with v_T = σ² + T s² at a new point the expected log predictive is

    −½ log(2π v_T) − ½ v_1 / v_T,     largest at T = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import temperance as tp
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, curve, panels, temperatures
from temperance.lab.judge import RULE, Estimate, above, all_of, below, difference, near
from temperance.lab.problems import fit

AGREE = 0.05
"""Nats within which the two samplers count as agreeing."""


@dataclass(frozen=True)
class WellSettings(Settings):
    """``seeds`` problems of ``rows`` data each. SG-MCMC: SGHMC with minibatches; full batch: GGMC, Metropolis-corrected
    trajectories of ``length`` steps over all data, which starts where ``settle`` steps of SGHMC end: far out, where the
    energy is steep, it would reject everything. The first half of each chain is thrown away."""

    features: int = 5
    hidden: tuple[int, ...] = (10, 10)
    classes: int = 3
    rows: int = 100
    test_rows: int = 500
    temperatures: tuple[float, ...] = (0.01, 0.1, 0.3, 1.0, 3.0)
    sg_lr: float = 0.02
    sg_momentum: float = 0.97
    sg_batch: int = 50
    sg_steps: int = 4000
    full_lr: float = 0.06
    full_momentum: float = 0.95
    full_length: int = 10
    full_steps: int = 300
    settle: int = 500
    draws: int = 100
    linear_problems: int = 20000


PRESETS = {
    "quick": Preset(
        WellSettings(
            seeds=4, temperatures=(0.03, 1.0), sg_steps=1000, full_steps=80, draws=30, test_rows=200,
            linear_problems=2000,
        ),
        0.6,
    ),
    "standard": Preset(
        WellSettings(seeds=30, temperatures=(0.01, 0.1, 1.0, 3.0), sg_steps=3000, full_steps=240), 6
    ),
    "paper": Preset(WellSettings(seeds=100, sg_steps=50000, full_steps=5000, draws=400), 500),
}  # fmt: skip


def cells(settings: WellSettings) -> list[Cell]:
    """Sampler × problem, and as many batches of linear problems."""
    return [
        Cell.of(sampler=sampler, seed=seed)
        for seed in settings.all_seeds()
        for sampler in ("sg-mcmc", "full-batch", "linear")
    ]


def run(settings: WellSettings, cell: Cell) -> dict[str, Any]:
    """One problem at every temperature."""
    if cell["sampler"] == "linear":
        return linear(settings, cell["seed"])
    data, test, probs, start = problem(settings, cell["seed"])
    network = tp.nn.MLP(settings.features, settings.hidden, settings.classes)
    result: dict[str, Any] = {"entropy": float(torch.special.entr(probs).sum(-1).mean())}
    for temperature in settings.temperatures:
        target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0), temperature)
        if cell["sampler"] == "sg-mcmc":
            sampler: Any = tp.SGHMC(settings.sg_lr, settings.sg_momentum)
            steps, batch = settings.sg_steps, settings.sg_batch
        else:
            sampler = tp.GGMC(settings.full_lr, settings.full_momentum, length=settings.full_length)
            steps, batch = settings.full_steps, settings.rows
            settle = tp.SGHMC(settings.sg_lr, settings.sg_momentum)
            start = fit(
                target, settle, data, steps=settings.settle, batch_size=batch, start=start, seed=cell["seed"]
            ).posterior.theta[0]  # type: ignore[attr-defined]
        method = tp.Collect(sampler, burn=0.5, last=settings.draws)
        fitted = fit(target, method, data, steps=steps, batch_size=batch, start=start, seed=cell["seed"])
        predicted = fitted.predict(test).mean().double().clamp_min(1e-300)
        result[f"ce@{temperature:g}"] = float(-(probs * predicted.log()).sum(-1).mean())
    return result


def problem(settings: WellSettings, seed: int) -> tuple[tp.data.Data, Tensor, Tensor, Tensor]:
    """Data from a draw of the prior, test inputs with their true label probabilities, and another draw to start at."""
    rng = torch.Generator().manual_seed(seed)
    network = tp.nn.MLP(settings.features, settings.hidden, settings.classes)
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    truth, start = target.sample_prior(2, rng)
    x, test = (torch.randn(n, settings.features, generator=rng) for n in (settings.rows, settings.test_rows))

    def probabilities(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.func.functional_call(network, target.layout.unflatten(truth), (inputs,)).softmax(-1)

    y = torch.multinomial(probabilities(x), 1, generator=rng).squeeze(1)
    info = tp.data.DataInfo(name="a draw from the prior", outcome=tp.outcomes.Classes(), num_classes=settings.classes)
    return tp.data.Data(x, y, info=info), test, probabilities(test).double(), start


def closed_form(temperature: float) -> tuple[float, float, float]:
    """Expected log predictive at x = 0.5, and v_1 and v_T."""
    precision, new = _linear_model()[1:3]
    spread = float(new @ torch.linalg.solve(precision, new))
    one, this = 0.01 + spread, 0.01 + temperature * spread
    return -0.5 * math.log(2 * math.pi * this) - 0.5 * one / this, one, this


def _linear_model() -> tuple[Tensor, Tensor, Tensor]:
    x = torch.linspace(-1, 1, 10, dtype=torch.float64)
    phi = torch.stack([torch.ones_like(x), x, x**2], 1)
    return phi, torch.eye(3, dtype=torch.float64) + phi.T @ phi / 0.01, torch.tensor([1.0, 0.5, 0.25]).double()


def linear(settings: WellSettings, seed: int) -> dict[str, Any]:
    """Many linear problems drawn from the prior: the mean log predictive of a new y at each temperature."""
    rng = torch.Generator().manual_seed(seed)
    phi, precision, new = _linear_model()
    count = settings.linear_problems
    theta = torch.randn(count, 3, generator=rng, dtype=torch.float64)
    y = theta @ phi.T + 0.1 * torch.randn(count, len(phi), generator=rng, dtype=torch.float64)
    fresh = theta @ new + 0.1 * torch.randn(count, generator=rng, dtype=torch.float64)
    mean = torch.linalg.solve(precision, (y @ phi / 0.01).T).T @ new
    result = {}
    for temperature in settings.temperatures:
        spread = closed_form(temperature)[2]
        score = -0.5 * math.log(2 * math.pi * spread) - 0.5 * (fresh - mean) ** 2 / spread
        result[f"score@{temperature:g}"] = float(score.mean())
    return result


def excess(settings: WellSettings, done: Cells, sampler: str) -> dict[float, Estimate]:
    """Cross-entropy at each temperature less that at T = 1, over problems."""
    warm = done.by_seed("ce@1", sampler=sampler)
    return {t: difference(done.by_seed(f"ce@{t:g}", sampler=sampler), warm) for t in settings.temperatures}


def claims(settings: WellSettings, done: Cells) -> list[Claim]:
    """T = 1 is best for both samplers; they agree; and so it is in closed form."""
    made = []
    for sampler in ("full-batch", "sg-mcmc"):
        found = {t: e for t, e in excess(settings, done, sampler).items() if t != 1.0}
        ends = [above(found[t]) for t in (min(found), max(found))]
        better = any(below(e) for e in found.values())
        made.append(
            Claim(
                f"If the model is well specified T = 1 is optimal ({sampler})",
                "T = 1 is the best temperature on data from an MLP of the prior",
                "cross-entropy above that at T = 1: " + "; ".join(f"T = {t:g}: {e}" for t, e in found.items()),
                False if better else all_of(*ends),
                f"no other T better, and the coldest and the hottest worse; {RULE}, {settings.seeds} problems",
            )
        )
    gap = {
        t: difference(done.by_seed(f"ce@{t:g}", sampler="sg-mcmc"), done.by_seed(f"ce@{t:g}", sampler="full-batch"))
        for t in settings.temperatures
    }
    made.append(
        Claim(
            "SG-MCMC and full-batch sampling agree",
            "the curves of SG-MCMC and HMC coincide",
            "cross-entropy of SG-MCMC less that of GGMC: " + "; ".join(f"T = {t:g}: {e}" for t, e in gap.items()),
            all_of(*(near(e, 0.0, AGREE) for e in gap.values())),
            f"within {AGREE} nats at each T; {RULE}",
        )
    )
    warm = done.by_seed("score@1", sampler="linear")
    losses = {t: difference(warm, done.by_seed(f"score@{t:g}", sampler="linear")) for t in settings.temperatures}
    expected = {t: closed_form(1.0)[0] - closed_form(t)[0] for t in settings.temperatures}
    others = [t for t in settings.temperatures if t != 1.0]
    made.append(
        Claim(
            "A conjugate linear model loses what the closed form says away from T = 1",
            "loss of expected log predictive: " + "; ".join(f"T = {t:g}: {expected[t]:.6f}" for t in others),
            "; ".join(f"T = {t:g}: {losses[t]}" for t in others),
            all_of(*(near(losses[t], expected[t], max(5e-4, 0.2 * expected[t])) for t in others)),
            f"within a fifth (or 0.0005) of the closed form at each T; {RULE}",
        )
    )
    return made


def figures(settings: WellSettings, done: Cells) -> list[Picture]:
    """Excess cross-entropy against T for both samplers, and the linear model beside its closed form."""
    figure, axes = panels(2, width=4.8, height=3.8)
    for k, sampler in enumerate(("full-batch", "sg-mcmc")):
        label = {"full-batch": "full batch (GGMC)", "sg-mcmc": "SG-MCMC (SGHMC)"}[sampler]
        curve(axes[0], excess(settings, done, sampler), label, COLOURS[k], marker="os"[k], dashed=bool(k))
    axes[0].set_ylabel("cross-entropy above that at T = 1 (nats)")
    axes[0].set_title("MLP drawn from its prior")
    warm = done.by_seed("score@1", sampler="linear")
    points = {t: difference(warm, done.by_seed(f"score@{t:g}", sampler="linear")) for t in settings.temperatures}
    curve(axes[1], points, "simulated", COLOURS[2])
    grid = [10 ** (-2 + k / 20) for k in range(51)]
    axes[1].plot(grid, [closed_form(1.0)[0] - closed_form(t)[0] for t in grid], ":k", label="closed form")
    axes[1].set_ylabel("log predictive lost against T = 1 (nats)")
    axes[1].set_title("conjugate linear model")
    for axis in axes:
        axis.axhline(0.0, color="#444444", linewidth=0.9, linestyle=":")
        temperatures(axis, settings.temperatures)
        axis.legend()
    words = (
        f"What a temperature other than 1 costs where the model is right, over {settings.seeds} problems drawn from "
    )
    return [Picture("well-specified", words + "the prior. Bars: one standard error.", figure)]


EXPERIMENT = Experiment(
    name="well-specified",
    title="T = 1 where the model is right",
    paper="Wenzel et al. 2020 (synthetic data from an MLP)",
    question="On data from the model itself, is T = 1 best, and does SG-MCMC find what full-batch sampling finds?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
