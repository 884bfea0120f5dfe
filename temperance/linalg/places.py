"""Where in θ the coordinates of a block are."""

from __future__ import annotations

import torch
from torch import Tensor

Places = tuple[tuple[int, int], ...] | Tensor
"""Half-open ranges, or single indices."""


def take(vector: Tensor, places: Places) -> Tensor:
    """The coordinates of a block out of ``vector`` (... × P): ... × p."""
    if isinstance(places, Tensor):
        return vector[..., places.to(vector.device)]
    if len(places) == 1:
        return vector[..., places[0][0] : places[0][1]]
    return torch.cat([vector[..., start:stop] for start, stop in places], dim=-1)


def put(vector: Tensor, places: Places, values: Tensor) -> None:
    """Write the coordinates of a block into ``vector`` (... × P), in place."""
    if isinstance(places, Tensor):
        vector[..., places.to(vector.device)] = values
        return
    at = 0
    for start, stop in places:
        vector[..., start:stop] = values[..., at : at + stop - start]
        at += stop - start


def places_size(places: Places) -> int:
    """p, the number of coordinates."""
    return len(places) if isinstance(places, Tensor) else sum(stop - start for start, stop in places)
