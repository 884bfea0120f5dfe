"""How much two posteriors are worth beside one another, by rows that neither has learned from."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from temperance.data.data import Data
from temperance.engine.engine import Engine
from temperance.posteriors import Posterior

_DRAWS = 30  # of a posterior that has any number of them
_AT_ONCE = 8  # draws
_GRID = 1000  # places of w
_ROWS = 10_000  # at once
_KNOWN = 2.0  # of the first law, in Beta(2, ½)


def weight_of_first(first: Tensor, second: Tensor, weights: Tensor | None = None) -> float:
    """The weight w of the first of two laws whose log densities at the same rows are ``first`` and ``second``, in

        p(y | x) = w p₁(y | x) + (1 − w) p₂(y | x).

    It is the mean of w given the rows, Π_n (w p₁ₙ + (1 − w) p₂ₙ) under Beta(2, ½): the first law is one that is known
    to do, the second has to earn its place. Few rows leave w near 0.8, and a second law under which rows are impossible
    gets ½ / (n + 2½). Rows count as often as their ``weights`` say. (Yao et al., 2018, stack with the w that is best.)

    >>> good, bad = torch.full((49,), -1.0), torch.full((49,), -50.0)
    >>> round(weight_of_first(good, bad), 3), round(weight_of_first(good, good), 3)
    (0.99, 0.8)
    """
    angle = (torch.arange(_GRID, dtype=torch.float64) + 0.5) / _GRID * (math.pi / 2)
    w = torch.sin(angle).square().unsqueeze(1)  # evenly in the angle: Beta(½, ½), to which the rest comes below
    one, two = (each.double().cpu() for each in (first, second))
    likelier = torch.maximum(one, two)
    possible = torch.isfinite(likelier)  # a row that neither law allows tells nothing of the two
    one, two = (torch.where(possible, each - likelier, 0.0).clamp(min=-1e30) for each in (one, two))
    counts = torch.ones_like(one) if weights is None else weights.double().cpu()
    total = torch.zeros(_GRID, dtype=torch.float64)
    for a, b, count in zip(*(each.split(_ROWS) for each in (one, two, counts)), strict=True):
        total += torch.logaddexp(w.log() + a, (1 - w).log() + b) @ count
    share = torch.softmax(total + (_KNOWN - 0.5) * w[:, 0].log(), 0)
    return float(share @ w[:, 0])


def log_densities(engine: Engine, posterior: Posterior, data: Data) -> Tensor:
    """log ∫ p(y_n | x_n, θ) p(θ) dθ of each row n, by the draws that prediction would take, through the network."""
    here = engine.on(posterior.retarget(engine.target))
    law = here.likelihood if here.likelihood.normalised else here.likelihood.for_new_rows
    nodes = posterior.nodes(_DRAWS)
    made = []
    with torch.no_grad():
        for batch in data.full_pass():
            rows = batch.to(here.device)
            found = []
            for start in range(0, len(nodes), _AT_ONCE):
                stop = min(start + _AT_ONCE, len(nodes))
                theta, buffers = nodes.fetch(start, stop)
                outputs = here.outputs(theta, rows.x, buffers or None)
                found.append(law.log_prob(outputs, rows.y, here.layout.unflatten(theta, "likelihood")).double())
            weighed = torch.cat(found) + nodes.weights.to(rows.y.device).log().unsqueeze(1)
            made.append(torch.logsumexp(weighed, 0))
    return torch.nan_to_num(torch.cat(made), nan=-math.inf)
