"""A learned noise level, corrected by rows that were not learned from.

A noise scale that is learned with a network is that of rows which the network fits, and where training ends early it
has not come to rest. Rows that were held out from a pilot know how large it should be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.encoding import Value
from temperance.core.seeds import generator
from temperance.data.data import Data
from temperance.engine.engine import Engine
from temperance.model.likelihoods import Likelihood
from temperance.posteriors import Posterior
from temperance.posteriors.shifted import shifted
from temperance.posteriors.with_outliers import with_outliers

_SHIFTS = torch.arange(-80, 81, dtype=torch.float64) * 0.05  # log factors on the scale: a fiftieth of it to fifty times
_ROWS = 2000  # of those that were learned from, at most
_DRAWS = 30
_AT_ONCE = 8  # draws
_LOWER, _HIGHER = 2.0, 1.0  # standard errors that are kept back: too small a noise is the worse mistake
_MOST = 0.5  # by which a noise is raised at most, in its logarithm: one wild row of thirty wants more than that
_SHARE = 0.2  # of rows that are outliers, where there are any: what are few is told by how far out they are
_FACTORS = torch.arange(0, 21, dtype=torch.float64) * 0.1  # log of how much wider these are: up to seven times
_HARDLY = 0.05  # of that logarithm, below which the noise stays as it is
_BESIDE = 0.3  # on both sides, how much farther the level is looked for


@dataclass(frozen=True, eq=False)
class Noise(Value):
    """What held-out rows say of a learned noise: ``shift`` is added to the logarithms of its scales; ``likelihood`` is
    the law with outliers, or ``None``."""

    shift: float
    likelihood: Likelihood | None = None


def noise_entries(engine: Engine) -> Tensor:
    """The places in θ of logarithms of noise scales that are learned with the network."""
    names = engine.likelihood.log_noise_names()
    found = [entry for entry in engine.layout.entries_of("likelihood") if entry.name in names]
    return torch.tensor([place for entry in found for place in range(entry.start, entry.stop)], dtype=torch.long)


class _Rows:
    """Outputs and targets of rows under a posterior: log densities under any noise."""

    def __init__(self, engine: Engine, posterior: Posterior, data: Data) -> None:
        if len(data) > _ROWS:
            data = data.subset(torch.randperm(len(data), generator=generator(0, "noise"))[:_ROWS].sort().values)
        self.engine, self.data = engine.on(posterior.retarget(engine.target)), data
        self.nodes = posterior.nodes(_DRAWS)
        likelihood = self.engine.likelihood
        self.names = likelihood.log_noise_names()
        self.law = likelihood if likelihood.normalised else likelihood.for_new_rows

    def totals(self, law: Likelihood, shifts: Tensor) -> Tensor:
        """Σ_n w_n log ∫ p(y_n | f(x_n; θ), σ(θ) e^δ) p(θ) dθ for each δ of ``shifts``."""
        here, totals = self.engine, torch.zeros(len(shifts), dtype=torch.float64)
        log_weights = self.nodes.weights.log()
        with torch.no_grad():
            for batch in self.data.full_pass():
                rows = batch.to(here.device)
                found = torch.full((len(shifts), rows.size), -torch.inf, dtype=torch.float64)
                for start in range(0, len(self.nodes), _AT_ONCE):
                    stop = min(start + _AT_ONCE, len(self.nodes))
                    theta, buffers = self.nodes.fetch(start, stop)
                    theta = theta.to(here.device)
                    outputs = here.outputs(theta, rows.x, buffers or None)
                    learned = here.layout.unflatten(theta, "likelihood")
                    for k, shift in enumerate(shifts.tolist()):
                        moved = {name: v + shift if name in self.names else v for name, v in learned.items()}
                        each = law.log_prob(outputs, rows.y, moved).double().cpu()
                        found[k] = torch.logaddexp(
                            found[k], torch.logsumexp(each + log_weights[start:stop].unsqueeze(1), 0)
                        )
                weights = torch.ones(rows.size) if rows.weights is None else rows.weights.cpu()
                totals += (weights.double() * torch.where(weights > 0, found, 0.0)).sum(1)
        return torch.where(totals.isfinite(), totals, -torch.inf)


def best_shift(engine: Engine, posterior: Posterior, data: Data, likelihood: Likelihood | None = None) -> float:
    """The δ for which σ e^δ in the place of each learned noise scale σ makes rows most likely (2000 of them at most),
    under ``likelihood``, or the target's:

        δ = argmax Σ_n w_n log ∫ p(y_n | f(x_n; θ), σ(θ) e^δ) p(θ) dθ.
    """
    rows = _Rows(engine, posterior, data)
    totals = rows.totals(likelihood or rows.law, _SHIFTS)
    if not bool(totals.isfinite().any()):
        return 0.0  # rows that no noise makes possible say nothing of it
    return float(_SHIFTS[totals.argmax()])


def wanted_noise(engine: Engine, posterior: Posterior, held_out: Data) -> Noise | None:
    """What held-out rows say of a learned noise. ``None``: that it should stay.

    *Its tails.* Where the likelihood has a form with outliers, a fifth of the rows are e^κ times as far off as others,

        κ = E[κ | held-out rows],   κ ~ U(0, 2) before,  δ flat;

    few rows leave some tail, and many Gaussian ones none.

    *Its level* δ, under these tails: what rows want of it, as far as it is more than two standard errors below or one
    above where the variance stays as it was (each number that was held out tells 2 of log σ), for few rows say little,
    and they also said when to stop. At most ½.
    """
    rows = _Rows(engine, posterior, held_out)
    plain = rows.totals(rows.law, _SHIFTS)
    if not bool(plain.isfinite().any()):
        return None
    shift = float(_SHIFTS[plain.argmax()])
    law = _outliers(rows, shift)
    if law is not None:
        around = _levels(shift, float(_FACTORS[-1]), 0.05)
        shift = float(around[rows.totals(law, around).argmax()])
    still = 0.0 if law is None else -0.5 * math.log1p(_SHARE * (law.outlier_factor**2 - 1))
    kept = _kept(shift, still, held_out)
    return None if kept == 0.0 and law is None else Noise(kept, law)


def _outliers(rows: _Rows, shift: float) -> Likelihood | None:
    """The law with the tails that rows want, where their best Gaussian level is ``shift``."""
    if rows.law.with_outliers(_SHARE, 2.0) is None:
        return None
    logs = []
    for log_factor in _FACTORS.tolist():
        law = rows.law if log_factor == 0.0 else rows.law.with_outliers(_SHARE, math.exp(log_factor))
        assert law is not None
        logs.append(torch.logsumexp(rows.totals(law, _levels(shift, log_factor, 0.1)), 0))
    share = torch.softmax(torch.stack(logs), 0)
    found = float(share @ _FACTORS)
    return rows.law.with_outliers(_SHARE, math.exp(found)) if found > _HARDLY else None


def _levels(plain: float, log_factor: float, step: float) -> Tensor:
    """Where the level may be best under outliers, if it is best at ``plain`` without: below it by their factor at
    most."""
    return plain + torch.arange(-log_factor - _BESIDE, _BESIDE + step / 2, step, dtype=torch.float64)


def _kept(shift: float, still: float, held_out: Data) -> float:
    """What is kept of a ``shift`` away from ``still``, at which the noise has the variance that it had."""
    count = len(held_out) if held_out.weights is None else float(held_out.weights.sum())
    numbers = count * max(1, len(held_out.y.reshape(len(held_out), -1)[0]))
    error = 1.0 / math.sqrt(2.0 * max(numbers, 1e-9))
    if shift > still:
        return max(still, min(shift - _HIGHER * error, _MOST))
    return min(still, shift + _LOWER * error)


def with_noise(engine: Engine, posterior: Posterior, data: Data, noise: Noise) -> Posterior:
    """``posterior`` with that noise; but its level is no less than makes the rows ``data``, from which it has learned,
    most likely: no noise is smaller than that of those."""
    places = noise_entries(engine)
    least = best_shift(engine, posterior, data, noise.likelihood)
    level = torch.full((len(places),), max(noise.shift, least), dtype=engine.layout.dtype)
    moved = shifted(posterior, places, level)
    return moved if noise.likelihood is None else with_outliers(moved, noise.likelihood)


__all__ = ["Noise", "best_shift", "noise_entries", "wanted_noise", "with_noise"]
