"""A learned noise level, corrected by rows that were not learned from.

A noise scale that is learned with a network is that of rows which the network fits, and where training ends early it
has not come to rest. Rows that were held out from a pilot know how large it should be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

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
_FEW = 2**22  # numbers that are predicted, over rows and draws: so many outputs are kept
_LOWER, _HIGHER = 2.0, 1.0  # standard errors that are kept back: too small a noise is the worse mistake
_DOUBTED = 0.5  # of what a noise has fallen since it was looked at
_MOST = 0.5  # by which a noise is raised at most, in its logarithm: one wild row of thirty wants more than that
_SHARE = 0.2  # of rows that are outliers, where there are any: what are few is told by how far out they are
_FACTORS = torch.arange(0, 21, dtype=torch.float64) * 0.1  # log of how much wider these are: up to seven times
_HARDLY = 0.05  # of that logarithm, below which the noise stays as it is
_USUAL = 1.0  # that logarithm, about, where rows say nothing of it
_BESIDE = 0.3  # on both sides, how much farther the level is looked for


@dataclass(frozen=True, eq=False)
class Noise(Value):
    """What held-out rows say of a learned noise: ``shift`` is added to the logarithms of its scales, which were
    ``level``; ``likelihood`` is the law with outliers, or ``None``."""

    shift: float
    level: Tensor
    likelihood: Likelihood | None = None


def noise_entries(engine: Engine) -> Tensor:
    """The places in θ of logarithms of noise scales that are learned with the network."""
    names = engine.likelihood.log_noise_names()
    found = [entry for entry in engine.layout.entries_of("likelihood") if entry.name in names]
    return torch.tensor([place for entry in found for place in range(entry.start, entry.stop)], dtype=torch.long)


@dataclass(frozen=True)
class _Block:
    """Outputs of some draws at the rows of a batch."""

    batch: int
    y: Tensor
    weights: Tensor | None
    outputs: Tensor
    learned: dict[str, Tensor]
    log_weights: Tensor


class _Rows:
    """Outputs and targets of rows under a posterior: log densities under any noise. Outputs are computed once where
    they are few, and else for each question."""

    def __init__(self, engine: Engine, posterior: Posterior, data: Data) -> None:
        if len(data) > _ROWS:
            data = data.subset(torch.randperm(len(data), generator=generator(0, "noise"))[:_ROWS].sort().values)
        self.engine, self.data = engine.on(posterior.retarget(engine.target)), data
        self.nodes = posterior.nodes(_DRAWS)
        likelihood = self.engine.likelihood
        self.names = likelihood.log_noise_names()
        self.law = likelihood if likelihood.normalised else likelihood.for_new_rows
        self.known: list[_Block] | None = None

    def _blocks(self) -> Iterator[_Block]:
        """Of some rows and draws, all of both."""
        here, log_weights = self.engine, self.nodes.weights.log()
        for number, batch in enumerate(self.data.full_pass()):
            rows = batch.to(here.device)
            for start in range(0, len(self.nodes), _AT_ONCE):
                stop = min(start + _AT_ONCE, len(self.nodes))
                theta, buffers = self.nodes.fetch(start, stop)
                theta = theta.to(here.device)
                outputs = here.outputs(theta, rows.x, buffers or None)
                learned = here.layout.unflatten(theta, "likelihood")
                yield _Block(number, rows.y, rows.weights, outputs, learned, log_weights[start:stop].unsqueeze(1))

    def _outputs(self) -> Iterable[_Block]:
        if self.known is not None:
            return self.known
        example = self.data.y[:1].numel() * len(self.data) * len(self.nodes)
        if example > _FEW:
            return self._blocks()
        self.known = list(self._blocks())
        return self.known

    def totals(self, law: Likelihood, shifts: Tensor) -> Tensor:
        """Σ_n w_n log ∫ p(y_n | f(x_n; θ), σ(θ) e^δ) p(θ) dθ for each δ of ``shifts``."""
        totals = torch.zeros(len(shifts), dtype=torch.float64)
        with torch.no_grad():
            for _, blocks in itertools.groupby(self._outputs(), key=lambda block: block.batch):
                found, weights = torch.full((len(shifts), 1), -torch.inf, dtype=torch.float64), torch.ones(1)
                for block in blocks:
                    for_each = [law.log_prob(block.outputs, block.y, self._moved(block, by)) for by in shifts.tolist()]
                    each = torch.stack(for_each).double().cpu() + block.log_weights
                    found = torch.logaddexp(found, torch.logsumexp(each, 1))
                    weights = torch.ones(len(block.y)) if block.weights is None else block.weights.cpu()
                totals += (weights.double() * torch.where(weights > 0, found, 0.0)).sum(1)
        return torch.where(totals.isfinite(), totals, -torch.inf)

    def _moved(self, block: _Block, shift: float) -> dict[str, Tensor]:
        return {name: value + shift if name in self.names else value for name, value in block.learned.items()}


def _levels(engine: Engine, posterior: Posterior) -> Tensor:
    """The mean logarithm of each noise scale."""
    nodes = posterior.nodes(_DRAWS)
    theta, _ = nodes.fetch(0, len(nodes))
    return nodes.weights.to(theta) @ theta[:, noise_entries(engine).to(theta.device)]


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
    """What held-out rows say of a learned noise; ``None`` where they are impossible under any.

    *Its tails.* Where the likelihood has a form with outliers, a fifth of the rows are e^κ times as far off as others,

        κ = E[κ | held-out rows],   p(κ) ∝ e^{−κ} on [0, 2] before,   δ flat where it is looked for;

    few rows leave some tail, and many Gaussian ones none. The law with outliers has the standard deviation σ, as the
    Gaussian one has, so that who leaves the tails out has a noise of the right size.

    *Its level* δ, under these tails: what rows want of it, less two standard errors where that is lower and one where
    it is higher (each number that was held out tells 2 of it), for few rows say little, and they also said when to
    stop. At most ½, of what is no outlier.
    """
    rows = _Rows(engine, posterior, held_out)
    plain = rows.totals(rows.law, _SHIFTS)
    if not bool(plain.isfinite().any()):
        return None
    shift = float(_SHIFTS[plain.argmax()])
    law = outliers(rows, shift)
    if law is not None:
        shift = level_under(rows, law, shift)
    return Noise(_kept(shift, held_out, _MOST + _widening(law)), _levels(engine, posterior), law)


class Asked(Protocol):
    """Rows that say something of a noise."""

    @property
    def law(self) -> Likelihood:
        """The likelihood that they are under without outliers."""

    def totals(self, law: Likelihood, shifts: Tensor) -> Tensor:
        """The log density of all rows under ``law``, for each of these shifts of its learned log scales."""


def outliers(rows: Asked, shift: float) -> Likelihood | None:
    """The law with the tails that rows want, where their best Gaussian level is ``shift``: under outliers it is lower,
    or higher by what they widen the noise at most. See :func:`wanted_noise`."""
    if rows.law.with_outliers(_SHARE, 2.0) is None:
        return None
    logs = []
    for log_factor in _FACTORS.tolist():
        law = rows.law.with_outliers(_SHARE, math.exp(log_factor)) if log_factor else None
        around = shift + torch.arange(-_BESIDE, _BESIDE + _widening(law) + 0.05, 0.1, dtype=torch.float64)
        logs.append(torch.logsumexp(rows.totals(law or rows.law, around), 0) - log_factor / _USUAL)
    share = torch.softmax(torch.stack(logs), 0)
    found = float(share @ _FACTORS)
    return rows.law.with_outliers(_SHARE, math.exp(found)) if found > _HARDLY else None


def level_under(rows: Asked, law: Likelihood, shift: float) -> float:
    """The level that rows want under a law with outliers, where their best Gaussian one is ``shift``."""
    around = shift + torch.arange(-_BESIDE, _BESIDE + _widening(law) + 0.025, 0.05, dtype=torch.float64)
    return float(around[rows.totals(law, around).argmax()])


def _widening(law: Likelihood | None) -> float:
    """The logarithm of how much wider all of the noise is than that of what is no outlier."""
    return 0.0 if law is None else 0.5 * math.log1p(_SHARE * (law.outlier_factor**2 - 1))


def _kept(shift: float, held_out: Data, most: float) -> float:
    """What is kept of a ``shift``."""
    count = len(held_out) if held_out.weights is None else float(held_out.weights.sum())
    numbers = count * max(1, len(held_out.y.reshape(len(held_out), -1)[0]))
    error = 1.0 / math.sqrt(2.0 * max(numbers, 1e-9))
    kept = min(shift - _HIGHER * error, most) if shift > 0 else -shift - _LOWER * error
    return math.copysign(max(kept, 0.0), shift)


def with_noise(engine: Engine, posterior: Posterior, data: Data, noise: Noise) -> Posterior:
    """``posterior`` with that noise. By as much as its own fell below the level that was looked at, because training
    went on, half is given back: the rows that say so are those which it fits. And it is no less than makes these rows,
    ``data``, most likely."""
    places = noise_entries(engine)
    least = best_shift(engine, posterior, data, noise.likelihood)
    fallen = (noise.level - _levels(engine, posterior)).clamp(min=0.0)
    moved = shifted(posterior, places, (noise.shift + _DOUBTED * fallen).clamp(min=least))
    return moved if noise.likelihood is None else with_outliers(moved, noise.likelihood)


__all__ = ["Asked", "Noise", "best_shift", "level_under", "noise_entries", "outliers", "wanted_noise", "with_noise"]
