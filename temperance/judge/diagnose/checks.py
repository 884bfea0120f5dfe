"""The single checks that a verdict is made of; each names what it measured and what to change.

Tolerances: a mean over time passes if it lies within its allowance widened by its own statistical error, at a false
alarm of one in a hundred for the check as a whole. A failure must be beyond both; a check whose statistical error alone
is as large as what it looks for is not judged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import scipy
import torch
from torch import Tensor

from temperance.judge.diagnose.convergence import Convergence
from temperance.judge.diagnose.mixing import ess, mcse
from temperance.judge.diagnose.temperature import Temperatures
from temperance.posteriors import Chain
from temperance.run.fitted import RunInfo

FALSE_ALARM = 0.01
LEAST_READINGS = 20
LEAST_DRAWS = 10
LEAST_ESS = 25.0  # the error of a posterior mean is then a fifth of the posterior's standard deviation
KINETIC_ALLOWANCE = 0.10
CONFIGURATIONAL_ALLOWANCE = 0.15
CURVATURE_FACTOR = 2.0  # stiff directions feel the step and the noise of minibatches first; a wrong N goes beyond
RHAT_LIMIT, RHAT_SHARE = 1.1, 0.95


@dataclass(frozen=True)
class Finding:
    """One check: ``passed`` is ``None`` where it could not be judged, ``remedy`` empty where nothing is to be done.

    ``inconclusive``: it was measured, and chance alone could have made more of it than what is looked for; of a run
    that merely has no such thing (momenta, a trace) it is not true.
    """

    name: str
    passed: bool | None
    measured: str
    remedy: str = ""
    inconclusive: bool = False


def check_status(info: RunInfo) -> Finding:
    """Whether the run came to its end."""
    status = info.status
    steps = f"{info.steps} of {info.total_steps} steps"
    if not status.ok:
        return Finding("run", False, f"stopped after {steps}: {status.message or status.code}", status.remedy)
    if info.steps < info.total_steps and status.code != "early-stopped":
        return Finding("run", None, f"not finished: {steps}", status.remedy or "Let it run to its end.")
    return Finding("run", True, f"finished, {steps}")


def check_draws(chains: tuple[Chain, ...]) -> Finding:
    """Enough draws, and no two in a row alike."""
    counts = [len(chain.theta) for chain in chains]
    same = sum(int((chain.theta[1:] == chain.theta[:-1]).all(1).sum()) for chain in chains)
    measured = f"{sum(counts)} in {len(chains)} chain{'s' if len(chains) > 1 else ''}"
    if sum(counts) < LEAST_DRAWS:
        return Finding("draws", False, f"{measured}, fewer than {LEAST_DRAWS}", "Run longer, or draw more often.")
    if same:
        measured += f", of which {same} repeat the one before"
    if 2 * same > sum(counts):  # a Metropolis step that is rejected repeats a draw, and rightly
        remedy = "The chain stood still: draw less often, or look for a step of zero (an ended schedule, a pace of 0)."
        return Finding("draws", False, measured, remedy)
    return Finding("draws", True, measured)


def check_acceptance(acceptance: Tensor) -> Finding:
    """Of a Metropolis-corrected sampler: neither nearly none nor, at a waste of steps, all."""
    share = float(acceptance[-1])
    measured = f"{share:.0%} of proposals"
    if share < 0.1:
        return Finding("acceptance", False, measured, "Nearly all proposals are rejected: lower the learning rate.")
    return Finding("acceptance", True, measured)


def check_divergences(chains: tuple[Chain, ...]) -> Finding | None:
    """Of samplers that tell of each transition: none should diverge. ``None`` for all others."""
    told = [c.trace.transitions for c in chains if c.trace is not None and c.trace.transitions is not None]
    if not told:
        return None
    count, total = sum(int(t.divergent.sum()) for t in told), sum(len(t.divergent) for t in told)
    if not count:
        return Finding("divergences", True, f"none in {total} transitions")
    remedy = "Warm up with a higher acceptance (accept=0.95), lower the step, or write the model in other coordinates."
    return Finding("divergences", False, f"{count} of {total} transitions", remedy)


def check_kinetic(found: Temperatures, note: str = "") -> Finding:
    """Every tensor's kinetic temperature, averaged over time, within 10 % and its statistical error."""
    name = "kinetic temperature"
    count = found.readings.shape[0] * found.readings.shape[1]
    if count < LEAST_READINGS:
        return Finding(
            name, None, f"only {count} readings since the first draw", "Run longer, or take readings oftener."
        )
    error = tolerance(found.error, found.effective, len(found.names))
    excess = (found.mean - 1).abs() - error - KINETIC_ALLOWANCE
    place = int(excess.nan_to_num(-math.inf).argmax())
    bad = int((excess > 0).sum())
    measured = (
        f"worst {found.names[place]}: {_value(found.mean[place], found.error[place])} T; {len(found.names) - bad} of "
        f"{len(found.names)} tensors right; {found.inside_share:.0%} of readings inside the {found.level:.0%} χ² "
        f"interval{note}"
    )
    if bad:
        return Finding(name, False, measured, _kinetic_remedy(found, place, bad))
    whole = float(tolerance(torch.tensor(found.network_error), ess(found.network), 1))
    if not whole <= 0.5:
        return Finding(name, None, measured, "Too few independent readings: run longer.", inconclusive=True)
    return Finding(name, True, measured)


def _kinetic_remedy(found: Temperatures, place: int, bad: int) -> str:
    if found.mean[place] < 1:
        return "The momenta are too cold: check that noise of the right temperature is added, and run longer."
    if 2 * bad < len(found.names):
        return (
            f"{found.names[place]} is stiffer than the rest: use a preconditioner (tp.Layerwise()), or lower the "
            "learning rate."
        )
    return "The step is too large, or batches too noisy: lower the learning rate, or use larger batches."


def check_configurational(found: Temperatures, name: str, note: str = "") -> Finding:
    """The temperature of the whole, averaged over time, within 15 % and its statistical error."""
    count = found.readings.shape[0] * found.readings.shape[1]
    if count < LEAST_READINGS:
        return Finding(name, None, f"only {count} readings since the first draw", "Run longer, or draw more often.")
    low, high = 1 - CONFIGURATIONAL_ALLOWANCE, 1 + CONFIGURATIONAL_ALLOWANCE
    return _judge(name, found, low, high, most=0.5, note=note)


def check_curvature(found: Temperatures) -> Finding:
    """The temperature of directions counted by their curvature, within a factor of two and its statistical error."""
    name = "temperature by curvature"
    count = found.readings.shape[0] * found.readings.shape[1]
    if count < LEAST_DRAWS:
        return Finding(name, None, f"only {count} draws", "Run longer, or draw more often.")
    return _judge(name, found, 1 / CURVATURE_FACTOR, CURVATURE_FACTOR, most=1.0)


def _judge(name: str, found: Temperatures, low: float, high: float, most: float, note: str = "") -> Finding:
    """Beyond the range by more than chance: failed. Chance alone beyond ``most``: not judged."""
    mean, error = found.network_mean, found.network_error
    allowed = float(tolerance(torch.tensor(error), ess(found.network), 1))
    measured = f"{_value(mean, error)} T (allowed: {max(0.0, low - allowed):.2f} to {high + allowed:.2f}){note}"
    if mean + allowed < low:
        return Finding(
            name,
            False,
            measured,
            "Too cold: check that N (`num_data` of the batches) is the size of the whole training set and that the "
            "noise has the target's temperature; otherwise slow directions have not spread yet: run longer.",
        )
    if mean - allowed > high:
        return Finding(
            name,
            False,
            measured,
            "Too hot: lower the learning rate or use larger batches; check that N (`num_data` of the batches) is the "
            "size of the whole training set; otherwise the run has not come to rest yet: a longer burn-in.",
        )
    if not allowed <= most:
        return Finding(name, None, measured, "Too few independent readings: run longer.", inconclusive=True)
    return Finding(name, True, measured)


def check_rhat(found: Convergence, elsewhere: bool = False) -> Finding:
    """R-hat of predictions below 1.1, or below what chance makes of few draws, for 95 % of them; at the data, or
    ``elsewhere``."""
    name = "R-hat away from the data" if elsewhere else "R-hat of predictions"
    limit = max(RHAT_LIMIT, rhat_by_chance(found.chains, found.draws))
    share = found.share_below(limit)
    if math.isnan(share):
        return Finding(name, None, "all predictions are constant", "Look at rows where the network is less sure.")
    where, worst = found.worst
    measured = f"{share:.0%} below {limit:.3g}; median {found.median_rhat:.3f}, worst {worst:.2f} ({where})"
    if share < RHAT_SHARE:
        return Finding(
            name,
            False,
            measured,
            "The chains predict different things where there are no data: they sit in different modes, and new inputs "
            "may be there. Run longer, with more chains, or let them cross: Tempered(...), Cyclical(...)."
            if elsewhere
            else "The chains (or the halves of the chain) predict different things: run longer, with a longer burn-in.",
        )
    return Finding(name, True, measured)


def rhat_by_chance(chains: int, draws: int) -> float:
    """What one in a hundred R-hats exceeds though all draws are independent and alike: with m half chains (quarters of
    a single chain) of n draws, R-hat² = (n − 1)/n + F/n with F of m − 1 and m(n − 1) degrees of freedom.

    >>> round(rhat_by_chance(4, 1000), 3), round(rhat_by_chance(1, 30), 2)
    (1.002, 1.24)
    """
    count = 4 if chains == 1 else 2 * chains
    size = max(2, chains * draws // count)
    return math.sqrt((size - 1 + float(scipy.stats.f.isf(FALSE_ALARM, count - 1, count * (size - 1)))) / size)


def check_ess(found: Convergence) -> Finding:
    """Enough effective draws of predictions."""
    measured = f"median {found.median_ess:.0f} of {found.chains * found.draws} draws, least {found.least_ess:.0f}"
    if math.isnan(found.median_ess):
        return Finding("effective draws", None, "all predictions are constant")
    if found.median_ess < LEAST_ESS:
        remedy = f"Draws of predictions are worth fewer than {LEAST_ESS:.0f} independent ones: run longer."
        return Finding("effective draws", False, measured, remedy)
    return Finding("effective draws", True, measured)


def check_loss(loss: Tensor, num_data: int, num_parameters: int, temperature: float) -> Finding:
    """Whether the loss (C × R readings since the first draw) still falls: its mean over the first half against that
    over the second.

    At equilibrium the energy of d directions varies by T√(d/2), so a fall of N·loss by less than twice that is no news.
    The statistical error is that of the second half less its straight line: a fall must not count as its own noise.
    """
    name = "loss settled"
    half = loss.shape[1] // 2
    if loss.shape[0] * half < LEAST_DRAWS or half < 4:
        return Finding(name, None, f"only {loss.shape[0] * loss.shape[1]} readings since the first draw", "Run longer.")
    first, second = loss[:, :half].double(), loss[:, -half:].double()
    drop = float(first.mean() - second.mean())
    level = _less_line(second)
    allowed = float(tolerance(2**0.5 * mcse(level), ess(level), 1))
    news = 2 * temperature * math.sqrt(num_parameters / 2) / num_data
    measured = f"{float(first.mean()):.4g} in the first half since the first draw, {float(second.mean()):.4g} later"
    if drop > allowed and drop > news:
        return Finding(name, False, measured, "The loss still falls: a longer burn-in, and a longer run.")
    return Finding(name, True, measured)


def _less_line(series: Tensor) -> Tensor:
    """Each row less the straight line that fits it best."""
    time = torch.linspace(-1, 1, series.shape[1], dtype=series.dtype)
    slope = (series @ time) / time.square().sum()
    return series - slope.unsqueeze(1) * time


def tolerance(error: Tensor, effective: Tensor, comparisons: int) -> Tensor:
    """How far a mean may be from the truth by chance: Student's quantile times its standard error."""
    freedom = (effective - 1).clamp(min=1.0).numpy()
    quantile = scipy.stats.t.isf(FALSE_ALARM / (2 * comparisons), freedom)
    return error * torch.as_tensor(quantile)


def _value(mean: float | Tensor, error: float | Tensor) -> str:
    return f"{float(mean):.3f} ± {float(error):.3f}"
