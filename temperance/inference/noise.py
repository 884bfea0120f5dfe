"""A learned noise level, corrected by rows that were not learned from.

A noise scale that is learned with a network is that of rows which the network fits, and where training ends early it
has not come to rest. Rows that were held out from a pilot know how large it should be.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from temperance.core.seeds import generator
from temperance.data.data import Data
from temperance.engine.engine import Engine
from temperance.posteriors import Posterior
from temperance.posteriors.shifted import shifted

_SHIFTS = torch.arange(-80, 81, dtype=torch.float64) * 0.05  # log factors on the scale: a fiftieth of it to fifty times
_ROWS = 2000  # of those that were learned from, at most
_DRAWS = 30
_AT_ONCE = 8  # draws
_LOWER, _HIGHER = 2.0, 1.0  # standard errors that are kept back: too small a noise is the worse mistake
_MOST = 0.5  # by which a noise is raised at most, in its logarithm: one wild row of thirty wants more than that


def noise_entries(engine: Engine) -> Tensor:
    """The places in θ of logarithms of noise scales that are learned with the network."""
    names = engine.likelihood.log_noise_names()
    found = [entry for entry in engine.layout.entries_of("likelihood") if entry.name in names]
    return torch.tensor([place for entry in found for place in range(entry.start, entry.stop)], dtype=torch.long)


def best_shift(engine: Engine, posterior: Posterior, data: Data) -> tuple[float, float]:
    """The δ for which σ e^δ in the place of each learned noise scale σ makes rows most likely (2000 of them at most),
    and how many nats they gain by it:

        δ = argmax Σ_n w_n log ∫ p(y_n | f(x_n; θ), σ(θ) e^δ) p(θ) dθ.
    """
    if len(data) > _ROWS:
        data = data.subset(torch.randperm(len(data), generator=generator(0, "noise"))[:_ROWS].sort().values)
    here = engine.on(posterior.retarget(engine.target))
    names = here.likelihood.log_noise_names()
    law = here.likelihood if here.likelihood.normalised else here.likelihood.for_new_rows
    nodes = posterior.nodes(_DRAWS)
    log_weights = nodes.weights.log()
    totals = torch.zeros(len(_SHIFTS), dtype=torch.float64)
    with torch.no_grad():
        for batch in data.full_pass():
            rows = batch.to(here.device)
            found = torch.full((len(_SHIFTS), rows.size), -torch.inf, dtype=torch.float64)
            for start in range(0, len(nodes), _AT_ONCE):
                stop = min(start + _AT_ONCE, len(nodes))
                theta, buffers = nodes.fetch(start, stop)
                theta = theta.to(here.device)
                outputs = here.outputs(theta, rows.x, buffers or None)
                learned = here.layout.unflatten(theta, "likelihood")
                for k, shift in enumerate(_SHIFTS.tolist()):
                    moved = {name: value + shift if name in names else value for name, value in learned.items()}
                    each = law.log_prob(outputs, rows.y, moved).double().cpu() + log_weights[start:stop].unsqueeze(1)
                    found[k] = torch.logaddexp(found[k], torch.logsumexp(each, 0))
            weights = torch.ones(rows.size) if rows.weights is None else rows.weights.cpu()
            totals += (weights.double() * torch.where(weights > 0, found, 0.0)).sum(1)
    totals = torch.where(totals.isfinite(), totals, -torch.inf)
    if not bool(totals.isfinite().any()):
        return 0.0, 0.0  # rows that no noise makes possible say nothing of it
    best = int(totals.argmax())
    return float(_SHIFTS[best]), float(totals[best] - totals[len(_SHIFTS) // 2])


def wanted_shift(engine: Engine, posterior: Posterior, held_out: Data) -> float | None:
    """What held-out rows add to the logarithm of a learned noise: what they want of it, less two standard errors where
    that is lower and one where it is higher (each number that was held out tells 2 of it), for few rows say little, and
    they also said when to stop. At most ½. ``None`` where nothing is left."""
    shift, _ = best_shift(engine, posterior, held_out)
    count = len(held_out) if held_out.weights is None else float(held_out.weights.sum())
    numbers = count * max(1, len(held_out.y.reshape(len(held_out), -1)[0]))
    error = 1.0 / math.sqrt(2.0 * max(numbers, 1e-9))
    kept = min(shift - _HIGHER * error, _MOST) if shift > 0 else -shift - _LOWER * error
    return math.copysign(kept, shift) if kept > 0 else None


def with_noise(engine: Engine, posterior: Posterior, data: Data, shift: float) -> Posterior:
    """``posterior`` with ``shift`` added to the logarithm of each learned noise; but no less than makes the rows
    ``data``, from which it has learned, most likely: no noise is smaller than that of those."""
    places = noise_entries(engine)
    least, _ = best_shift(engine, posterior, data)
    return shifted(posterior, places, torch.full((len(places),), max(shift, least), dtype=engine.layout.dtype))


__all__ = ["best_shift", "noise_entries", "wanted_shift", "with_noise"]
