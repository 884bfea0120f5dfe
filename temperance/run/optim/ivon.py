"""``IVON`` as an optimiser."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from temperance.inference.variational.ivon import learn_hessian_
from temperance.run.optim.natural import Group, NaturalOptimizer


class IVON(NaturalOptimizer):
    """Variational learning in a loop of your own: :class:`temperance.IVON` as an optimiser.

    The parameters are the means of q = N(m, σ²), σ² = T / (N (h + δ)). Forward and backward pass go into a block in
    which they are a draw θ = m + σ ε; with g the mean gradient there,

        ĥ = g ε / σ,   ḡ ← β₁ ḡ + (1 − β₁) g
        h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)² / (h + δ)
        m ← m − ℓ (h₀ + δ) (ḡ / (1 − β₁ᵗ) + δ m) / (h + δ).

    Gradients may be accumulated over micro-batches (``loss / k``) and scaled by a ``GradScaler``; they must come from
    inside the block. Do not clip them: the curvature is learned from their size (``clip`` limits the step instead).
    ``zero_grad`` forgets what blocks have shown so far; ``state_dict`` holds all that the next step needs.

    Args:
        params: parameters, or groups of them, as for any optimiser of torch.
        lr: ℓ; of the size that suits SGD with momentum.
        num_data: N, the size of the whole training set (not of a batch).
        betas: β₁, β₂. For runs of more than some 10,000 steps a β₂ up to 0.99999.
        initial_hessian: h₀: σ starts at 1/√(N h₀).
        weight_decay: δ. A Gaussian prior of scale s is δ = 1/(N s²): :func:`weight_decay_of`.
        temperature: T.
        clip: largest change of a weight in one step.
        samples: draws a step.
        seed: of the noise.

    >>> net = torch.nn.Linear(1, 1)
    >>> optimizer = IVON(net.parameters(), lr=0.1, num_data=100, weight_decay=1 / 100)
    >>> for _ in range(3):
    ...     optimizer.zero_grad()
    ...     with optimizer.perturbed():
    ...         (net(torch.ones(5, 1)) - 1).square().mean().backward()
    ...     optimizer.step()
    >>> with optimizer.drawn(seed=0):
    ...     prediction = net(torch.ones(1, 1))
    >>> optimizer.scale_of(net.weight).shape
    torch.Size([1, 1])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        num_data: int,
        betas: tuple[float, float] = (0.9, 0.9995),
        initial_hessian: float = 1.0,
        weight_decay: float = 1e-4,
        temperature: float = 1.0,
        clip: float | None = None,
        samples: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(params, lr, num_data, betas, initial_hessian, weight_decay, temperature, clip, samples, seed)

    def _forget(self) -> None:
        super()._forget()
        self._products: dict[int, Tensor] = {}

    @torch.no_grad()
    def _end(self, noises: list[list[Tensor]]) -> None:
        if self.samples == 1:
            return
        for group, noise in zip(self.param_groups, noises, strict=True):
            for p, z in zip(group["params"], noise, strict=True):
                if p.grad is not None:
                    product = p.grad * z
                    known = self._products.get(id(p))
                    self._products[id(p)] = product if known is None else known.add_(product)

    def _curvature(self, p: Tensor, gradient: Tensor, noise: Tensor, root: Tensor, factor: float) -> Tensor:
        if self.samples == 1:
            return noise.mul_(gradient).mul_(root)
        return self._products[id(p)].mul_(factor / self.samples).mul_(root)

    def _learn(self, hessian: Tensor, estimate: Tensor, total: Tensor, beta: float) -> None:
        learn_hessian_(hessian, estimate, total, beta)

    def _rate(self, group: Group) -> float:
        return float(group["lr"] * (group["initial_hessian"] + group["weight_decay"]))
