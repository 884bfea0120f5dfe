"""``bandit``: does acting on draws from a posterior pay?

The mushroom bandit of Blundell et al. (2015): a mushroom is shown, the agent eats it or not. An edible one pays 5, a
poisonous one 5 or −35 with probability ½ each, not eating pays 0 and tells nothing. Regret is the expected reward of
the best arm less that of the arm pulled, 5 for an edible mushroom left and 15 for a poisonous one eaten; summed over
the steps.

Every agent but "uniform" trains the same small network, anew every ``every`` steps, on what it has seen; the noise is
learned. "ε-greedy" takes the arm of the best mean of a MAP fit, and any arm with probability ``epsilon``. The others
are Thompson sampling: the best arm under one draw of θ, by a deep ensemble, one with anchors drawn from the prior, a
Laplace approximation of the last layer, SGHMC, and exact linear regression on the network's features (neural-linear of
Riquelme et al. 2018, which alone learns between fits). A seed decides the mushrooms and the luck; all agents meet the
same.

Beside it, arms that pay with fixed probabilities, for which Thompson sampling with a Beta posterior is exact and its
regret grows as Σ_a Δ_a / KL(p_a ‖ p*) · log T (Lai and Robbins 1985, Agrawal and Goyal 2012). Under a logarithm each
doubling of T costs the same.

Learned noise (against fixed scales of 0.3, 0.5 and 1), the ten first pulls, the number of steps of a fit and SGHMC's
step (of two) were chosen by a look at all agents on seed 100, the horizon by the time there was.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import temperance as tp
from temperance.core.seeds import derive_seed
from temperance.decide.bandit import BernoulliBandit, BetaBernoulli, MushroomBandit, Policy, UniformPolicy, play
from temperance.decide.neural_linear import NeuralLinear
from temperance.decide.policies import ArmNetwork, EpsilonGreedy, ThompsonSampling
from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
from temperance.lab.figures import COLOURS, GREY, panels
from temperance.lab.judge import RULE, Estimate, all_of, below, difference, estimate
from temperance.model.theta import last_layer
from temperance.predict import Predictive

UNIFORM, GREEDY, ENSEMBLE, ANCHORED = "uniform", "ε-greedy", "ensemble", "anchored ensemble"
LAPLACE, SGHMC, LINEAR = "last-layer Laplace", "SGHMC", "neural-linear"
THOMPSON = (ENSEMBLE, ANCHORED, LAPLACE, SGHMC, LINEAR)
BETA = "Beta-Bernoulli"
NAMES = {UNIFORM: "uniform", GREEDY: "greedy", ENSEMBLE: "ensemble", ANCHORED: "anchored", LAPLACE: "laplace",
         SGHMC: "sghmc", LINEAR: "linear", BETA: "beta"}  # fmt: skip
"""Agents by the names of their cells' files."""
POINTS = 50
"""Places at which a curve is kept."""
SLACK = 0.1
"""The share of the best agent's regret within which another is among the best."""


@dataclass(frozen=True)
class BanditSettings(Settings):
    """``agents`` play ``horizon`` mushrooms; the first ``first`` are eaten or left in turn. A fit takes ``steps`` of
    Adam (SGHMC takes ``sampler_steps`` and keeps draws of the second half) on batches of ``batch_size``, for a network
    of ``width`` hidden units under the prior N(0, gain²/fan-in). The ``world`` "digits" needs no files.

    The arms without context pay with ``probs``, for ``flat_horizon`` steps, ``repeats`` times for each seed.
    """

    agents: tuple[str, ...] = (UNIFORM, GREEDY, *THOMPSON)
    world: str = "mushrooms"
    horizon: int = 1000
    every: int = 50
    first: int = 10
    width: int = 50
    gain: float = 3.0
    steps: int = 100
    lr: float = 0.01
    sampler_steps: int = 200
    sampler_lr: float = 0.02
    batch_size: int = 64
    members: int = 5
    epsilon: float = 0.05
    probs: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7)
    flat_horizon: int = 2000
    repeats: int = 10


PRESETS = {
    "quick": Preset(
        BanditSettings(
            seeds=3, agents=(UNIFORM, GREEDY, LINEAR), world="digits", horizon=150, width=10, steps=30,
            flat_horizon=200, repeats=3,
        ),
        0.3,
    ),
    "standard": Preset(BanditSettings(seeds=5), 4),
    "paper": Preset(
        BanditSettings(
            seeds=20, horizon=50000, every=100, width=100, steps=500, sampler_steps=2000, flat_horizon=50000,
            repeats=100,
        ),
        6000,
    ),
}  # fmt: skip


def cells(settings: BanditSettings) -> list[Cell]:
    """Agent × seed; the arms without context are one agent more."""
    return [
        Cell.of(agent=NAMES[agent], seed=seed) for seed in settings.all_seeds() for agent in (*settings.agents, BETA)
    ]


class DigitBandit(MushroomBandit):
    """Scikit-learn's digits in place of mushrooms: even ones are edible."""

    def __init__(self, seed: int = 0) -> None:
        data = tp.data.load("digits")[0]
        assert isinstance(data.x, Tensor)
        self.x, self.edible = data.x, data.y % 2 == 0
        self.num_arms, self.num_features, self.seed = 2, self.x.shape[1], seed


class DrawnThompson(ThompsonSampling):
    """Thompson sampling that sends one draw of θ through the network at each step. For a Gaussian over the last layer
    that is exact, the network being linear in it, and many times as fast as the linearised predictive."""

    def predict(self, context: Tensor) -> Predictive:
        """One draw's rewards, a row for each arm."""
        if self.fitted is None:
            return super().predict(context)
        x = (context.expand(self.num_arms, -1), torch.arange(self.num_arms))
        return self.fitted.predict(x, draws=1, by="network", seed=derive_seed(self.seed, "draws", self.step))


def make_policy(settings: BanditSettings, agent: str, features: int, seed: int) -> Policy:
    """An agent by name."""

    def target() -> tp.Target:
        network = ArmNetwork(tp.nn.MLP(features, [settings.width], 2))
        return tp.Target(network, tp.Normal(), tp.GaussianPrior(tp.FanIn(settings.gain)))

    point = tp.MAP(lr=settings.lr)
    how: dict[str, Any] = {
        "every": settings.every,
        "first": settings.first,
        "steps": settings.sampler_steps if agent == SGHMC else settings.steps,
        "batch_size": settings.batch_size,
        "seed": seed,
    }
    if agent == UNIFORM:
        return UniformPolicy(2, seed=seed)
    if agent == GREEDY:
        return EpsilonGreedy(target, point, 2, epsilon=settings.epsilon, **how)
    if agent == LINEAR:
        return NeuralLinear(target, point, 2, **how)
    if agent == LAPLACE:
        return DrawnThompson(target, tp.On(last_layer, tp.Laplace(point, tune=None)), 2, **how)
    methods = {
        ENSEMBLE: tp.Ensemble(point, settings.members),
        ANCHORED: tp.Ensemble(tp.Anchored(point), settings.members),
        SGHMC: tp.Collect(tp.SGHMC(lr=settings.sampler_lr), burn=settings.sampler_steps // 2),
    }
    return ThompsonSampling(target, methods[agent], 2, **how)


def run(settings: BanditSettings, cell: Cell) -> dict[str, Any]:
    """One agent's regret, as a curve and in parts."""
    agent = next(name for name, short in NAMES.items() if short == cell["agent"])
    seed = cell["seed"]
    if agent == BETA:
        return run_flat(settings, seed)
    world = DigitBandit(seed) if settings.world == "digits" else MushroomBandit(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tp.errors.TemperanceWarning)  # short chains say that they are short
        found = play(world, make_policy(settings, agent, world.num_features, seed), settings.horizon, progress=False)
    quarter = settings.horizon // 4
    steps, curve = thinned(found.cumulative_regret)
    return {
        "regret": float(found.regret.sum()),
        "early": float(found.regret[:quarter].mean()),
        "late": float(found.regret[-quarter:].mean()),
        "late_poisonous": float((found.regret[-quarter:] == 15).double().sum()),
        "late_left": float((found.regret[-quarter:] == 5).double().sum()),
        "steps": steps,
        "curve": curve,
    }


def run_flat(settings: BanditSettings, seed: int) -> dict[str, Any]:
    """Beta-Bernoulli Thompson sampling: the regret averaged over repeats, and of its last two doublings."""
    total = torch.zeros(settings.flat_horizon, dtype=torch.float64)
    for k in range(settings.repeats):
        world = BernoulliBandit(settings.probs, seed=derive_seed(seed, "flat", k))
        policy = BetaBernoulli(world.num_arms, seed=derive_seed(seed, "beta", k))
        total += play(world, policy, settings.flat_horizon, progress=False).cumulative_regret / settings.repeats
    half, quarter = settings.flat_horizon // 2, settings.flat_horizon // 4
    steps, curve = thinned(total, geometric=True)
    return {
        "regret": float(total[-1]),
        "last_doubling": float(total[2 * half - 1] - total[half - 1]),
        "doubling_before": float(total[half - 1] - total[quarter - 1]),
        "steps": steps,
        "curve": curve,
    }


def thinned(curve: Tensor, geometric: bool = False) -> tuple[list[int], list[float]]:
    """Up to ``POINTS`` steps, counted from one, with the curve there; ``geometric``: evenly on a logarithmic axis.

    >>> thinned(torch.tensor([1.0, 2.0, 4.0]))
    ([1, 2, 3], [1.0, 2.0, 4.0])
    """
    count = min(POINTS, len(curve))
    end = math.log10(len(curve))
    places = torch.logspace(0, end, count) if geometric else torch.linspace(1, len(curve), count)
    places = places.round().long().clamp(1, len(curve)).unique()
    return places.tolist(), [round(float(v), 4) for v in curve[places - 1]]


def lowest_slope(probs: Sequence[float]) -> float:
    """Σ_a Δ_a / KL(p_a ‖ p*): regret per log T that no sensible policy stays below.

    >>> round(lowest_slope([0.1, 0.3, 0.5, 0.7]), 2)
    4.23
    """
    best = max(probs)
    apart = [(best - p, p * math.log(p / best) + (1 - p) * math.log((1 - p) / (1 - best))) for p in probs if p < best]
    return sum(gap / divergence for gap, divergence in apart)


# ---------------------------------------------------------------------- judging


def told(settings: BanditSettings, done: Cells, entry: str = "regret") -> str:
    """An entry of each agent, in words."""
    return "; ".join(f"{agent} {estimate(done.values(entry, agent=NAMES[agent]))}" for agent in settings.agents)


def gap(done: Cells, agent: str, other: str, entry: str = "regret") -> Estimate:
    """An entry of one agent less that of another, on the same mushrooms."""
    return difference(*(done.by_seed(entry, agent=NAMES[name]) for name in (agent, other)))


def claims(settings: BanditSettings, done: Cells) -> list[Claim]:
    """Each posterior against ε-greedy, early and late regret, neural-linear, and the logarithm."""
    posteriors = [agent for agent in settings.agents if agent in THOMPSON]
    made = [
        Claim(
            f"Thompson sampling by {agent} regrets less than ε-greedy",
            "a posterior's draws explore as much as is needed, ε-greedy too much (Blundell et al. 2015, by mean-field "
            "VI and 50,000 mushrooms)",
            f"regret over {settings.horizon} mushrooms: {told(settings, done)}; {agent} less ε-greedy "
            f"{gap(done, agent, GREEDY)}"
            if agent == posteriors[0]
            else f"{agent} less ε-greedy {gap(done, agent, GREEDY)}",
            below(gap(done, agent, GREEDY)),
            f"difference below 0; {RULE}",
        )
        for agent in posteriors
    ]
    learners = [agent for agent in settings.agents if agent != UNIFORM]
    falls = {a: difference(*(done.by_seed(e, agent=NAMES[a]) for e in ("late", "early"))) for a in learners}
    late = {agent: gap(done, agent, GREEDY, "late") for agent in posteriors}
    made += [
        Claim(
            "Regret per step falls, for all that learn",
            "cumulative regret flattens",
            f"in the last quarter: {told(settings, done, 'late')}; in the first: {told(settings, done, 'early')}",
            all_of(*(below(value) for value in falls.values())),
            f"last quarter below the first; {RULE}",
        ),
        Claim(
            "In the last quarter every posterior regrets less than ε-greedy",
            "ε-greedy goes on exploring",
            "regret per step less ε-greedy's: " + "; ".join(f"{agent} {value}" for agent, value in late.items()),
            all_of(*(below(value) for value in late.values())),
            f"differences below 0; {RULE}",
        ),
    ]
    others = [agent for agent in learners if agent != LINEAR]
    means = {agent: estimate(done.values("regret", agent=NAMES[agent])).mean for agent in others}
    known = [agent for agent in others if math.isfinite(means[agent])]
    if LINEAR in settings.agents and known:
        best = min(known, key=lambda agent: means[agent])
        lead = gap(done, LINEAR, best)
        made.append(
            Claim(
                "Neural-linear is among the best",
                "neural-linear is the best or near it on most problems (Riquelme et al. 2018)",
                f"regret less that of the best other ({best}): {lead}",
                below(lead, SLACK * means[best]),
                f"at most {100 * SLACK:g} % above the best other, by mean regret; {RULE}",
            )
        )
    doublings = [done.by_seed(entry, agent=NAMES[BETA]) for entry in ("last_doubling", "doubling_before")]
    slower = difference(doublings[0], {seed: math.sqrt(2) * value for seed, value in doublings[1].items()})
    slope = lowest_slope(settings.probs)
    made.append(
        Claim(
            "Without context, Beta-Bernoulli regret grows slower than √T",
            f"as log T: each doubling costs {math.log(2) * slope:.2f} in the end (Lai & Robbins 1985)",
            f"last doubling {estimate(list(doublings[0].values()))}, the one before "
            f"{estimate(list(doublings[1].values()))}; regret after {settings.flat_horizon} steps "
            f"{estimate(done.values('regret', agent=NAMES[BETA]))}",
            below(slower),
            f"the last doubling below √2 times the one before; {RULE}",
        )
    )
    return made


# ---------------------------------------------------------------------- drawing


def figures(settings: BanditSettings, done: Cells) -> list[Picture]:
    """Cumulative regret on mushrooms, its rate early and late, and the arms without context."""
    sheet, axes = panels(3, width=4.8, height=3.8)
    learners = [agent for agent in settings.agents if agent != UNIFORM]
    top = 0.0
    for agent in settings.agents:
        colour = GREY if agent == UNIFORM else COLOURS[(0, 1, 2, 3, 4, 6)[learners.index(agent)]]
        steps, mean, error = _mean_curve(done, agent)
        if not steps:
            continue
        axes[0].plot(steps, mean, color=colour, label=agent, linestyle="--" if agent in (UNIFORM, GREEDY) else "-")
        axes[0].fill_between(steps, mean - error, mean + error, color=colour, alpha=0.15, linewidth=0)
        top = max(top, float(mean[-1])) if agent != UNIFORM else top
    axes[0].set_ylim(0, 1.25 * top if top else None)
    axes[0].set_xlabel("mushrooms")
    axes[0].set_ylabel("cumulative regret")
    axes[0].legend(fontsize=7, ncols=2)
    for k, (entry, name) in enumerate((("early", "first quarter"), ("late", "last quarter"))):
        found = [estimate(done.values(entry, agent=NAMES[agent])) for agent in learners]
        places = [p + (k - 0.5) * 0.2 for p in range(len(learners))]
        errors = [e.error if e.count > 1 else 0.0 for e in found]
        axes[1].errorbar(
            places, [e.mean for e in found], yerr=errors, fmt="os"[k], color=COLOURS[k], capsize=2.5, label=name
        )
    axes[1].set_xticks(range(len(learners)), [a.replace(" ", "\n") for a in learners], fontsize=8, rotation=30)
    axes[1].set_ylabel("regret per mushroom")
    axes[1].set_ylim(0, None)
    axes[1].legend()
    steps, mean, error = _mean_curve(done, BETA)
    if steps:
        axes[2].plot(steps, mean, color=COLOURS[0], label="Beta-Bernoulli Thompson")
        axes[2].fill_between(steps, mean - error, mean + error, color=COLOURS[0], alpha=0.2, linewidth=0)
        slope, middle = lowest_slope(settings.probs), len(steps) // 2
        line = [float(mean[middle]) + slope * math.log(t / steps[middle]) for t in steps[1:]]
        axes[2].plot(steps[1:], line, color=COLOURS[3], linestyle="--", label="slope of Lai and Robbins")
        axes[2].set_ylim(0, None)
        axes[2].set_xscale("log")
        axes[2].legend()
    axes[2].set_xlabel("steps, arms without context")
    axes[2].set_ylabel("cumulative regret")
    words = (
        "Left: regret on mushrooms, summed; uniform leaves the picture. Middle: its rate in the first and the last "
        "quarter. Right: arms without context; a logarithm is a straight line. Bands and bars: one standard error."
    )
    return [Picture("regret", words, sheet)]


def _mean_curve(done: Cells, agent: str) -> tuple[list[int], Tensor, Tensor]:
    found = [f.result for f in done.where(agent=NAMES[agent])]
    if not found:
        return [], torch.empty(0), torch.empty(0)
    rows = torch.tensor([result["curve"] for result in found])
    error = rows.std(0) / len(rows) ** 0.5 if len(rows) > 1 else torch.zeros(rows.shape[1])
    return list(found[0]["steps"]), rows.mean(0), error


EXPERIMENT = Experiment(
    name="bandit",
    title="Acting on a posterior's draws",
    paper="Blundell et al. 2015; Riquelme et al. 2018",
    question="Does Thompson sampling by a posterior over networks regret less than ε-greedy, and by which posterior?",
    presets=PRESETS,
    cells=cells,
    run=run,
    claims=claims,
    figures=figures,
)
