"""``BAOAB``: a splitting of Langevin dynamics whose position variance is exact on a quadratic at any stable step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from temperance.engine.engine import Engine
from temperance.inference.base import Exactness
from temperance.inference.card import Card, MethodFamily
from temperance.inference.langevin.sampler import ChainState, LangevinSampler, Layerwise, Tempo, check_momentum
from temperance.inference.langevin.thermal import Thermal


@dataclass(frozen=True, eq=False)
class BAOAB(LangevinSampler):
    """Kick, drift, fluctuate, drift (Leimkuhler & Matthews, 2013), with ℓ = ``lr`` and β = ``momentum``:

        h = √(2ℓ / (N(1 + β)))
        m ← m − h N ∇G̃(θ)                                        (two half kicks of adjoining steps in one)
        θ ← θ + ½ h M⁻¹ m
        m ← β m + √(T (1 − β²)) M^{1/2} ξ,     ξ ~ N(0, I)
        θ ← θ + ½ h M⁻¹ m

    With exact gradients, on a quadratic of curvature k, Var θ = T/k and Var m = T for any stable step
    (m as it is left by the fluctuation). One gradient a step, as SGD. A pace c scales h: h' = c h and β' = β^c.

    Args:
        lr: ℓ, the instantaneous effect of the mean gradient on θ, as the learning rate of ``torch.optim.SGD``;
            ``Thermal()`` finds one for each tensor.
        momentum: β, what is left of a momentum after a step.
        preconditioner: :class:`Layerwise` masses, or ``None`` for M = I.
        allow_batch_norm: sample though the network has batch norm, whose likelihood is not a product over examples.

    >>> import temperance as tp
    >>> tp.BAOAB(lr=1e-3, momentum=0.9).facts().cost
    Cost(gradients_per_step=1, copies_of_theta=4)
    """

    card: ClassVar[Card] = Card(
        "kick, drift, fluctuate, drift",
        MethodFamily.LANGEVIN,
        papers=(
            "Leimkuhler & Matthews, Rational construction of stochastic numerical methods for molecular sampling, 2013",
        ),
        exact="the position variance, at any stable step",
    )

    exact: ClassVar[Exactness] = Exactness.POSTERIOR

    lr: float | Thermal = 0.03
    momentum: float = 0.9
    preconditioner: Layerwise | None = None
    allow_batch_norm: bool = False

    def __post_init__(self) -> None:
        self._check()
        check_momentum(self.momentum)

    def slots(self, theta: Tensor, engine: Engine) -> dict[str, Tensor]:
        """The velocity M⁻¹ m."""
        return {"velocity": torch.zeros_like(theta)}

    def heating(self, num_data: int) -> tuple[float, float]:
        """See :class:`LangevinSampler`. Each kick adds h² N² σ² before the fluctuation, which leaves β² of it."""
        left = self.momentum**2
        return left / (1.0 - left) * 2 * num_data * self.rate / (1 + self.momentum), self.momentum

    def move(self, chain: ChainState, tempo: Tempo) -> None:
        """See :class:`BAOAB`."""
        h = tempo.pace * math.sqrt(2 * self.rate / (tempo.num_data * (1 + self.momentum)))
        decay = self.momentum**tempo.pace
        velocity = chain.slots["velocity"]
        velocity.add_(chain.grad, alpha=-h * tempo.num_data)
        chain.theta.add_(velocity, alpha=0.5 * h)
        velocity.mul_(decay).add_(chain.noise, alpha=math.sqrt(tempo.temperature * (1 - decay * decay)))
        chain.theta.add_(velocity, alpha=0.5 * h)
