"""``SGNHT``: a thermostat for each weight, which takes out the heat that noisy gradients bring in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from temperance.engine.engine import Engine
from temperance.inference.base import Exactness
from temperance.inference.card import Card, MethodFamily
from temperance.inference.langevin.sampler import (
    ChainState,
    LangevinSampler,
    Layerwise,
    Tempo,
    check_momentum,
    scale_tensors_,
)


@dataclass(frozen=True, eq=False)
class SGNHT(LangevinSampler):
    """Stochastic gradient Nosé–Hoover thermostat (Ding et al., 2014), with a friction z of its own for each weight:

        h = √(ℓ/N),   z₀ = (1 − β)/h
        m ← m − h N ∇G̃(θ) − h z ∘ m + √(2 T (1 − β)) M^{1/2} ξ,     ξ ~ N(0, I)
        θ ← θ + h M⁻¹ m
        z ← z + h (m ∘ M⁻¹m − T)

    The friction grows where the momentum is hotter than T and falls where it is colder, so gradient noise of unknown
    size is balanced: E[m∘M⁻¹m] = T holds by construction. The price of symplectic Euler is then paid by θ: on a
    quadratic its variance is about (T/k)(1 + β')/2, with β' = 1 − h z what the thermostat leaves of a momentum after a
    step, so keep β near one. While the noise is off (an exploring :class:`Cyclical`) the thermostat waits.

    Args:
        lr: ℓ, the learning rate of ``torch.optim.SGD`` on the mean loss.
        momentum: β, from which the thermostat starts.
        preconditioner: :class:`Layerwise` masses, or ``None`` for M = I.
        allow_batch_norm: sample though the network has batch norm, whose likelihood is not a product over examples.

    >>> import temperance as tp
    >>> tp.SGNHT(lr=1e-3, momentum=0.9).facts().cost
    Cost(gradients_per_step=1, copies_of_theta=5)
    """

    card: ClassVar[Card] = Card(
        "momentum under thermostats, which balance gradient noise of unknown size",
        MethodFamily.LANGEVIN,
        papers=("Ding et al., Bayesian sampling using stochastic gradient thermostats, NeurIPS 2014",),
        exact="the kinetic temperature, also under noisy gradients",
    )

    exact: ClassVar[Exactness] = Exactness.APPROXIMATE

    lr: float = 0.03
    momentum: float = 0.9
    preconditioner: Layerwise | None = None
    allow_batch_norm: bool = False

    def __post_init__(self) -> None:
        self._check()
        check_momentum(self.momentum)

    def _vectors(self) -> int:
        return 2

    def slots(self, theta: Tensor, engine: Engine) -> dict[str, Tensor]:
        """The velocity M⁻¹m, and the friction z relative to z₀."""
        return {"velocity": torch.zeros_like(theta), "friction": torch.ones_like(theta)}

    def move(self, chain: ChainState, tempo: Tempo) -> None:
        """See :class:`SGNHT`."""
        h_base = math.sqrt(self.lr / tempo.num_data)
        h = tempo.pace * h_base
        loss = tempo.pace * (1.0 - self.momentum)  # h z₀
        velocity, friction = chain.slots["velocity"], chain.slots["friction"]
        velocity.addcmul_(velocity, friction, value=-loss)
        velocity.add_(chain.grad, alpha=-h * tempo.num_data)
        velocity.add_(chain.noise, alpha=math.sqrt(2 * tempo.temperature * loss))
        chain.theta.add_(velocity, alpha=h)
        if tempo.temperature > 0:
            torch.mul(velocity, velocity, out=chain.noise)
            if chain.scale is not None:
                scale_tensors_(chain, "noise", chain.scale.square().reciprocal())
            friction.add_(chain.noise.sub_(tempo.temperature), alpha=h * h_base / (1.0 - self.momentum))
