"""Chains that agree where the data are may still sit in different modes: look at the functions elsewhere, and at the
weights themselves, brought as near to one another as the network's symmetries allow."""

from __future__ import annotations

import torch
from torch import Tensor

from temperance.core.errors import NetworkError
from temperance.core.seeds import generator
from temperance.data.sources import Inputs, map_tensors, named_tensors
from temperance.judge.diagnose.chains import evenly, stack_chains
from temperance.judge.diagnose.checks import RHAT_LIMIT, RHAT_SHARE, Finding, rhat_by_chance
from temperance.judge.diagnose.convergence import _convergence, _parameter_names
from temperance.judge.symmetry import align
from temperance.model.target import Target
from temperance.posteriors import Chain

WEIGHTS = "R-hat of weights, aligned"
_STRETCH = 3.0
_MOST = 20_000  # parameters: units of larger networks take long to match
_QUANTITIES = 200


def away_from(x: Inputs) -> Inputs | None:
    """Inputs that no data are near: each number from a row of its own, and three times as far from the mean as it was.
    ``None`` where inputs are not real numbers, which cannot be stretched."""
    if not all(tensor.is_floating_point() for _, tensor in named_tensors(x)):
        return None
    rng = generator(0, "away")

    def stretched(rows: Tensor) -> Tensor:
        flat = rows.detach().cpu().flatten(1)
        order = torch.rand(flat.shape, generator=rng).argsort(0)
        mean = flat.mean(0)
        return (mean + _STRETCH * (flat.gather(0, order) - mean)).view(rows.shape).to(rows)

    return map_tensors(stretched, x)


def check_weights(target: Target, chains: tuple[Chain, ...]) -> Finding | None:
    """Whether chains have the same weights, up to symmetries. Several modes are no fault where every prediction agrees,
    so it is told and never fails. ``None`` for networks whose symmetries are not known, and for large ones."""
    if target.layout.size > _MOST or min(len(chain.theta) for chain in chains) < 4:
        return None
    try:
        reference = chains[0].theta[-1]
        values = stack_chains([align(target, chain.theta, reference) for chain in chains])
    except NetworkError:
        return None
    picked = evenly(target.layout.size, _QUANTITIES)
    found = _convergence("weights", _parameter_names(target, picked), values[..., picked.to(values.device)])
    limit = max(RHAT_LIMIT, rhat_by_chance(found.chains, found.draws))
    share = found.share_below(limit)
    measured = f"{share:.0%} below {limit:.3g}; median {found.median_rhat:.3f}"
    if share >= RHAT_SHARE:
        return Finding(WEIGHTS, True, measured)
    return Finding(
        WEIGHTS,
        None,
        f"{measured}: the chains are in different modes",
        "Nothing, where predictions agree at the data and away from them: the chains average over modes, each by the "
        "share that its start gave it. To weigh modes rightly, Tempered(...) or Cyclical(...).",
    )
