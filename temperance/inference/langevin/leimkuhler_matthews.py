"""``LeimkuhlerMatthews``: Langevin dynamics whose position variance is exact on a quadratic at any stable step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from temperance.engine.engine import Engine
from temperance.inference.base import Exactness
from temperance.inference.card import Card, MethodFamily
from temperance.inference.langevin.sampler import ChainState, LangevinSampler, Layerwise, Tempo


@dataclass(frozen=True, eq=False)
class LeimkuhlerMatthews(LangevinSampler):
    """:class:`SGLD` with each noise shared by two steps (Leimkuhler & Matthews, 2013),

        θ ← θ − ℓ M⁻¹ ∇G̃(θ) + √(2 T ℓ / N) M^{-1/2} (ξ_t + ξ_{t+1}) / 2,     ξ ~ N(0, I).

    The high-friction limit of BAOAB: with exact gradients, Var θ = T/k on a quadratic of curvature k, for any stable ℓ.

    Args:
        lr: ℓ, the learning rate of ``torch.optim.SGD`` on the mean loss.
        preconditioner: :class:`Layerwise` masses, or ``None`` for M = I.
        allow_batch_norm: sample though the network has batch norm, whose likelihood is not a product over examples.

    >>> import temperance as tp
    >>> tp.LeimkuhlerMatthews(lr=1e-3).facts().cost
    Cost(gradients_per_step=1, copies_of_theta=4)
    """

    card: ClassVar[Card] = Card(
        "`SGLD` with each noise shared by two steps",
        MethodFamily.LANGEVIN,
        papers=(
            "Leimkuhler & Matthews, Rational construction of stochastic numerical methods for molecular sampling, 2013",
        ),
        exact="the position variance, at any stable step",
    )

    scaled_slots: ClassVar[tuple[str, ...]] = ("noise_before",)
    exact: ClassVar[Exactness] = Exactness.POSTERIOR

    lr: float = 0.1
    preconditioner: Layerwise | None = None
    allow_batch_norm: bool = False

    def __post_init__(self) -> None:
        self._check()

    def slots(self, theta: Tensor, engine: Engine) -> dict[str, Tensor]:
        """The noise of the step before."""
        return {"noise_before": torch.zeros_like(theta)}

    def move(self, chain: ChainState, tempo: Tempo) -> None:
        """See :class:`LeimkuhlerMatthews`."""
        lr = self.lr * tempo.pace**2
        size = 0.5 * math.sqrt(2 * tempo.temperature * lr / tempo.num_data)
        before = chain.slots["noise_before"]
        chain.theta.add_(chain.grad, alpha=-lr)
        chain.theta.add_(before, alpha=size).add_(chain.noise, alpha=size)
        before.copy_(chain.noise)
