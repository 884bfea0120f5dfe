"""``SVGD``: Stein variational gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.inference.card import Card, MethodFamily
from temperance.inference.particles.kernels import RBF, Interaction, ParticleKernel
from temperance.inference.particles.particles import Particles, Space


@dataclass(frozen=True, eq=False)
class SVGD(Particles):
    """n particles that become draws of the posterior together (Liu and Wang, 2016): θ_i moves along

        φ_i = (1/n) Σ_j [ k(θ_j, θ_i) ∇log p(θ_j) + ∇_{θ_j} k(θ_j, θ_i) ],      ∇log p = −∇U/T,

    up the posterior of all particles near it, and away from them. The optimiser descends along −φ_i T/N, which for one
    particle is the gradient of ``MAP``. All particles see the same minibatch, on which N∇G̃ stands for ∇U.

    With ``space="functions"`` the kernel compares the outputs f_i at the batch's inputs, and the force there is carried
    to the weights (Wang et al., 2019), with N/B scaling the batch and λ the target's ``likelihood_temperature``:

        φ_i = J_iᵀ (1/n) Σ_j [ k_ij (N/B) ∇_{f_j} log p(y | f_j) / (λT) + ∇_{f_j} k_ij ]
              + ((1/n) Σ_j k_ij) ∇log p(θ_i) / T.

    The prior acts in weight space there, and what the likelihood learns (a noise scale) has its plain gradient. The
    kernel then depends on the batch, so the expected force depends on the batch size; in weight space it does not.

    Args:
        particles: n. Each is a network in memory, in training and in prediction.
        kernel: ``RBF()``, ``IMQ()`` or ``LinearKernel()``.
        space: where particles are compared: ``"weights"`` or ``"functions"``.
        lr, optimizer, optimizer_args, scheduler, scheduler_args, schedule_steps, clip: as for ``MAP``. The average over
            particles makes the gradient about n/2 times smaller than that of ``MAP``; Adam does not mind, but SGD wants
            a larger ``lr``. Optimisers that need a closure (L-BFGS) are refused.
        batched: move all particles as one batched network (``True``) or one after the other (``False``); ``None`` goes
            by the network's size. Both give the same up to rounding.

    Particles start at fresh weights, or at the rows of ``start``. With ``LinearKernel()`` and more particles than
    weights their mean and covariance are exact on a linear-Gaussian model. With ``RBF()`` in many dimensions the push
    is weak and their spread is far too small: see Ba et al. (2022).

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, SVGD(8, lr=0.05), (x, 2 * x + 1), steps=300)
    >>> fitted.posterior.theta.shape, fitted.predict(torch.tensor([[0.5]])).mean().round(decimals=1)
    (torch.Size([8, 2]), tensor([[2.]]))
    """

    card: ClassVar[Card] = Card(
        "particles that climb together and push one another apart, in weights or functions",
        MethodFamily.PARTICLES,
        papers=("Liu & Wang, Stein variational gradient descent, NeurIPS 2016",),
        exact="with `LinearKernel()`: mean and covariance of a Gaussian",
    )

    particles: int = 16
    kernel: ParticleKernel = field(default_factory=RBF)
    space: Space = "weights"
    lr: float = 1e-3
    optimizer: type[torch.optim.Optimizer] = torch.optim.Adam
    optimizer_args: Mapping[str, Any] = field(default_factory=dict)
    scheduler: type[torch.optim.lr_scheduler.LRScheduler] | None = None
    scheduler_args: Mapping[str, Any] = field(default_factory=dict)
    schedule_steps: bool = False
    clip: float | None = None
    batched: bool | None = None

    @property
    def count(self) -> int:
        """See :class:`Particles`."""
        return self.particles

    def mixing(self, found: Interaction) -> tuple[Tensor | None, Tensor]:
        """W = K/n and R = A/n."""
        n = len(found.values)
        return found.values / n, found.push / n
