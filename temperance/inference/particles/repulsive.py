"""``RepulsiveEnsemble``: a deep ensemble whose members keep apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import shown
from temperance.core.errors import ArgumentError
from temperance.inference.card import Card, MethodFamily, Recipe
from temperance.inference.particles.kernels import RBF, Interaction, ParticleKernel
from temperance.inference.particles.particles import Particles, Space


@dataclass(frozen=True, eq=False)
class RepulsiveEnsemble(Particles):
    """Members that climb the posterior each by itself, and repel one another (D'Angelo and Fortuin, 2021):

        φ_i = ∇log p(θ_i | D) − Σ_j ∇_{θ_i} k_ij / Σ_j k_ij,      ∇log p = −∇U/T.

    The second term is the gradient of a kernel estimate of the members' log density: as their number grows they become
    draws of the posterior, where a plain ensemble gathers at its modes. The optimiser descends along −φ_i T/N, which
    for one member is the gradient of ``MAP``. All members see the same minibatch.

    With ``space="functions"``, the default, members repel in what they predict at the batch's inputs, f_i, rather than
    in their weights, of which many settings mean the same function:

        φ_i = ∇log p(θ_i | D) − J_iᵀ [ Σ_j ∇_{f_i} k_ij / Σ_j k_ij ].

    The prior acts in weight space. What the likelihood learns (a noise scale) is not repelled there.

    Args:
        size: how many members.
        kernel: ``RBF()`` or ``IMQ()``; ``LinearKernel()`` does not repel.
        space: where members repel: ``"functions"`` or ``"weights"``.
        lr, optimizer, optimizer_args, scheduler, scheduler_args, schedule_steps, clip: as for ``MAP``; optimisers that
            need a closure (L-BFGS) are refused.
        batched: move all members as one batched network (``True``) or one after the other (``False``); ``None`` goes by
            the network's size. Both give the same up to rounding.

    Members start at fresh weights, or at the rows of ``start``.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(tp.nn.MLP(1, [16], 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, RepulsiveEnsemble(5, lr=0.01), (x, x**2), steps=200)
    >>> fitted.posterior.theta.shape
    torch.Size([5, 49])
    """

    card: ClassVar[Card] = Card(
        "members that climb each by itself and repel one another, in functions or weights",
        MethodFamily.PARTICLES,
        papers=("D'Angelo & Fortuin, Repulsive deep ensembles are Bayesian, NeurIPS 2021",),
        exact="one particle = `MAP`",
        cost="in weights 5 gradients",
        recipes=(Recipe("repulsive", "RepulsiveEnsemble(5, lr=5e-3)", "five networks that push each other apart"),),
        demo=(Recipe("Repulsive × 5", "RepulsiveEnsemble(5, lr=1e-3)"),),
    )

    count_name: ClassVar[str] = "size"

    size: int = 5
    kernel: ParticleKernel = field(default_factory=RBF)
    space: Space = "functions"
    lr: float = 1e-3
    optimizer: type[torch.optim.Optimizer] = torch.optim.Adam
    optimizer_args: Mapping[str, Any] = field(default_factory=dict)
    scheduler: type[torch.optim.lr_scheduler.LRScheduler] | None = None
    scheduler_args: Mapping[str, Any] = field(default_factory=dict)
    schedule_steps: bool = False
    clip: float | None = None
    batched: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kernel.repels:
            raise ArgumentError(f"`kernel` must repel, as RBF() or IMQ() do; got {shown(self.kernel)}.")

    @property
    def count(self) -> int:
        """See :class:`Particles`."""
        return self.size

    def mixing(self, found: Interaction) -> tuple[Tensor | None, Tensor]:
        """W = I; R = A / Σ_j k_ij, for ∇_{x_i} k_ij = −∇_{x_j} k_ij."""
        return None, found.push / found.values.sum(1, keepdim=True)
