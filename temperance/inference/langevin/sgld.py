"""``SGLD``: stochastic gradient Langevin dynamics."""

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
class SGLD(LangevinSampler):
    """Gradient descent with noise (Welling & Teh, 2011),

        θ ← θ − ℓ M⁻¹ ∇G̃(θ) + √(2 T ℓ / N) M^{-1/2} ξ,     ξ ~ N(0, I),

    with ℓ = ``lr``. On a quadratic energy of curvature k its variance is (T/k) / (1 − ℓk/(2N)): right as ℓ → 0, too
    wide by a known factor before. Gradient noise of variance s² (of ∇U) makes it wider: with η = ℓ/N,
    (2Tη + η²s²) / (1 − (1 − ηk)²).

    Args:
        lr: ℓ, the learning rate of ``torch.optim.SGD`` on the mean loss.
        preconditioner: :class:`Layerwise` masses, or ``None`` for M = I.
        allow_batch_norm: sample though the network has batch norm, whose likelihood is not a product over examples.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, tp.Collect(SGLD(lr=5e-3)), (x, 2 * x + 1), steps=2000)
    >>> fitted.posterior.theta.shape
    torch.Size([30, 2])
    """

    card: ClassVar[Card] = Card(
        "gradient descent with noise",
        MethodFamily.LANGEVIN,
        papers=("Welling & Teh, Bayesian learning via stochastic gradient Langevin dynamics, ICML 2011",),
        exact="its own, known law: too wide by 1 / (1 − ℓk/2N)",
    )

    scaled_slots: ClassVar[tuple[str, ...]] = ()
    exact: ClassVar[Exactness] = Exactness.OWN_LAW

    lr: float = 0.1
    preconditioner: Layerwise | None = None
    allow_batch_norm: bool = False

    def __post_init__(self) -> None:
        self._check()

    def _vectors(self) -> int:
        return 0

    def law(self, precision: Tensor, num_data: int, temperature: float) -> Tensor:
        """T Λ⁻¹ (I − ℓΛ/(2N))⁻¹."""
        unit = torch.eye(len(precision), dtype=precision.dtype)
        return temperature * torch.linalg.inv(precision @ (unit - self.lr / (2 * num_data) * precision))

    def slots(self, theta: Tensor, engine: Engine) -> dict[str, Tensor]:
        """None."""
        return {}

    def move(self, chain: ChainState, tempo: Tempo) -> None:
        """See :class:`SGLD`."""
        lr = self.lr * tempo.pace**2
        chain.theta.add_(chain.grad, alpha=-lr)
        chain.theta.add_(chain.noise, alpha=math.sqrt(2 * tempo.temperature * lr / tempo.num_data))
