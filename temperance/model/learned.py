"""Numbers that are learned beside the network's weights: a noise level, the scale of a prior. They are part of θ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LearnedParameter:
    """Numbers at the end of θ, with a Gaussian prior of their own in the unconstrained scale."""

    name: str
    shape: tuple[int, ...]
    initial: float
    prior_mean: float
    prior_scale: float
