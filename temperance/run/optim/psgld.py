"""``PSGLD`` as an optimiser."""

from __future__ import annotations

from torch.optim.optimizer import ParamsT

from temperance import inference
from temperance.run.optim.base import LangevinOptimizer


class PSGLD(LangevinOptimizer):
    """Langevin dynamics preconditioned by RMSprop: :class:`temperance.PSGLD` for a loop of your own.

    With ℓ = c² ``lr`` (c = ``pace``), α = ``decay``, ε = ``epsilon``, N = ``num_data`` and g the mean gradient plus
    ``weight_decay`` · θ,

        V ← α V + (1 − α) g²,     Ḡ = 1 / (ε + √V)
        θ ← θ − ℓ Ḡ g + √(2 T ℓ Ḡ / N) ξ,     ξ ~ N(0, I).

    The first gradient starts V. Because Ḡ follows θ the law is not exact (a term ∇·Ḡ is left out, as is usual); after
    ``adapt`` steps V is frozen and nothing is left out. At T = 0 it is RMSprop with that start.

    Args:
        params: parameters, or groups of them, as for any optimiser of torch.
        lr: ℓ, in the units of ``torch.optim.RMSprop``.
        num_data: N, the size of the whole training set (not of a batch).
        decay: α, of the running average.
        epsilon: ε, which bounds the step of weights with tiny gradients.
        adapt: after how many steps of a parameter its V stays as it is; ``None`` adapts for ever.
        temperature: T; 1 is the posterior, below 1 is cold.
        weight_decay: λ, which adds λθ to the gradient. A Gaussian prior of scale σ is λ = 1/(N σ²):
            :func:`weight_decay_of`.
        seed: of the noise. Two chains need two seeds.
        pace: c, between 0 and 1; it scales ℓ by c².

    >>> import torch
    >>> theta = torch.nn.Parameter(torch.zeros(3))
    >>> optimizer = PSGLD([theta], lr=1e-3, num_data=100)
    >>> theta.grad = torch.tensor([1.0, 2.0, 3.0])
    >>> optimizer.step()
    >>> optimizer.state[theta]
    {'second_moment': tensor([1., 4., 9.]), 'step': 1}
    """

    method = inference.PSGLD
    rule_takes = ("lr", "decay", "epsilon", "adapt")
    settings = (*LangevinOptimizer.settings, "decay", "epsilon", "adapt")

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        num_data: int,
        decay: float = 0.99,
        epsilon: float = 1e-3,
        adapt: int | None = None,
        temperature: float = 1.0,
        weight_decay: float = 0.0,
        seed: int = 0,
        pace: float = 1.0,
    ) -> None:
        own = {"decay": decay, "epsilon": epsilon, "adapt": adapt}
        rest = {"temperature": temperature, "weight_decay": weight_decay, "pace": pace}
        super().__init__(params, seed, lr=lr, num_data=num_data, **own, **rest)
