"""A learned noise level, corrected by rows that were not learned from."""

from __future__ import annotations

import torch
from torch import Tensor

from temperance.data.data import Data
from temperance.engine.engine import Engine
from temperance.posteriors import Posterior, shifted

_SHIFTS = tuple(0.05 * k for k in range(-60, 61))  # log factors on the scale: from a twentieth of it to twenty times
_WORTH = 2.0  # nats that the rows must gain: by chance, of a right one, one time in twenty


def noise_entries(engine: Engine) -> Tensor:
    """The places in θ of logarithms of noise scales that are learned with the network."""
    names = engine.likelihood.log_noise_names()
    found = [entry for entry in engine.layout.entries_of("likelihood") if entry.name in names]
    return torch.tensor([place for entry in found for place in range(entry.start, entry.stop)], dtype=torch.long)


def noise_shift(engine: Engine, theta: Tensor, buffers: dict[str, Tensor], data: Data) -> float:
    """The δ for which σ e^δ makes these rows most likely at one θ, σ the learned noise scale; 0 where there is none, or
    where they do not want another clearly."""
    names = engine.likelihood.log_noise_names()
    if not names or not len(noise_entries(engine)):
        return 0.0
    law = engine.likelihood if engine.likelihood.normalised else engine.likelihood.for_new_rows
    learned = engine.layout.unflatten(theta.unsqueeze(0), "likelihood")
    stacked = {name: value.unsqueeze(0) for name, value in buffers.items()} or None
    totals = torch.zeros(len(_SHIFTS), dtype=torch.float64)
    with torch.no_grad():
        for batch in data.full_pass():
            rows = batch.to(engine.device)
            outputs = engine.outputs(theta.unsqueeze(0), rows.x, stacked)
            for k, shift in enumerate(_SHIFTS):
                moved = {name: value + shift if name in names else value for name, value in learned.items()}
                found = law.log_prob(outputs, rows.y, moved).double()
                totals[k] += float((found if rows.weights is None else found * rows.weights.to(found)).sum())
    best = int(torch.nan_to_num(totals, nan=-torch.inf).argmax())
    gain = float(totals[best] - totals[len(_SHIFTS) // 2])
    return _SHIFTS[best] if gain >= _WORTH else 0.0


def with_noise_shift(engine: Engine, posterior: Posterior, shift: float) -> Posterior:
    """``posterior`` with ``shift`` added to the logarithm of each learned noise scale; itself where that is 0."""
    places = noise_entries(engine)
    if not shift or not len(places):
        return posterior
    return shifted(posterior, places, torch.full((len(places),), shift, dtype=engine.layout.dtype))


__all__ = ["noise_entries", "noise_shift", "with_noise_shift"]
