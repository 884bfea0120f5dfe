"""``PSGLD``: Langevin dynamics preconditioned by RMSprop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_part, check_positive
from temperance.engine.engine import Engine
from temperance.inference.base import Exactness
from temperance.inference.card import Card, MethodFamily
from temperance.inference.langevin.sampler import ChainState, LangevinSampler, Layerwise, Tempo


@dataclass(frozen=True, eq=False)
class PSGLD(LangevinSampler):
    """:class:`SGLD` with a step of its own for each weight (Li et al., 2016),

        V ← α V + (1 − α) (∇G̃)²,     Ḡ = 1 / (ε + √V)
        θ ← θ − ℓ Ḡ ∇G̃(θ) + √(2 T ℓ Ḡ / N) ξ,     ξ ~ N(0, I).

    Because Ḡ follows θ, the exact law would need a term Γ(θ) = ∇·Ḡ, which is left out as is usual: the slower the
    average (α → 1), the smaller the error. After ``adapt`` steps V is frozen and nothing is left out; ``None`` adapts
    for ever.

    Args:
        lr: ℓ, in the units of RMSprop.
        decay: α, of the running average.
        epsilon: ε, which bounds the step of weights with tiny gradients.
        adapt: after how many steps V stays as it is.
        allow_batch_norm: sample though the network has batch norm, whose likelihood is not a product over examples.

    >>> import temperance as tp
    >>> tp.PSGLD(lr=1e-4).facts().cost
    Cost(gradients_per_step=1, copies_of_theta=4)
    """

    card: ClassVar[Card] = Card(
        "`SGLD` with the steps of RMSprop, one for each weight",
        MethodFamily.LANGEVIN,
        papers=("Li et al., Preconditioned stochastic gradient Langevin dynamics for deep neural networks, AAAI 2016",),
        exact="the law of `SGLD`, once V is frozen (`adapt=`)",
    )

    scaled_slots: ClassVar[tuple[str, ...]] = ()
    exact: ClassVar[Exactness] = Exactness.APPROXIMATE

    lr: float = 3e-3
    decay: float = 0.99
    epsilon: float = 1e-3
    adapt: int | None = None
    allow_batch_norm: bool = False
    preconditioner: Layerwise | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._check()
        check_positive(self.epsilon, "epsilon")
        check_part(self.decay, "decay")
        if self.adapt is not None:
            check_count(self.adapt, "adapt")

    def slots(self, theta: Tensor, engine: Engine) -> dict[str, Tensor]:
        """V, and how many steps it has seen."""
        return {"second_moment": torch.zeros_like(theta), "seen": torch.zeros((), dtype=torch.int64)}

    def move(self, chain: ChainState, tempo: Tempo) -> None:
        """See :class:`PSGLD`."""
        lr = self.lr * tempo.pace**2
        v, seen = chain.slots["second_moment"], chain.slots["seen"]
        if self.adapt is None or int(seen) < self.adapt:
            decay = self.decay if int(seen) else 0.0  # the first gradient starts the average
            v.mul_(decay).addcmul_(chain.grad, chain.grad, value=1 - decay)
            seen += 1
        root = v.sqrt().add_(self.epsilon)
        chain.theta.addcdiv_(chain.grad, root, value=-lr)
        chain.theta.addcdiv_(chain.noise, root.sqrt_(), value=math.sqrt(2 * tempo.temperature * lr / tempo.num_data))
