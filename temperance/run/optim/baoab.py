"""``BAOAB`` as an optimiser."""

from __future__ import annotations

from temperance import inference
from temperance.run.optim.families import UnderdampedOptimizer


class BAOAB(UnderdampedOptimizer):
    """Kick, drift, fluctuate, drift: :class:`temperance.BAOAB` for a loop of your own.

    With ℓ = ``lr``, β = ``momentum``, N = ``num_data``, M = ``mass`` and g the mean gradient plus ``weight_decay`` · θ,

        h = c √(2ℓ / (N (1 + β))),   β' = β^c,     c = ``pace``
        v ← v − h N M⁻¹ g
        θ ← θ + ½ h v
        v ← β' v + √(T (1 − β'²)) M^{-1/2} ξ,     ξ ~ N(0, I)
        θ ← θ + ½ h v.

    With exact gradients, on a quadratic, θ has the right variance at any stable step. At T = 0 and a constant ``lr`` it
    is ``torch.optim.SGD`` with momentum, step for step.

    Args:
        params: parameters, or groups of them, as for any optimiser of torch.
        lr: ℓ, the learning rate of ``torch.optim.SGD`` on the mean loss.
        num_data: N, the size of the whole training set (not of a batch).
        momentum: β, what is left of a velocity after a step.
        temperature: T; 1 is the posterior, below 1 is cold, 0 is SGD.
        weight_decay: λ, which adds λθ to the gradient. A Gaussian prior of scale σ is λ = 1/(N σ²):
            :func:`weight_decay_of`.
        seed: of the noise. Two chains need two seeds.
        pace: c, between 0 and 1.
        mass: M, one number for a group.

    >>> import torch
    >>> theta = torch.nn.Parameter(torch.zeros(3))
    >>> optimizer = BAOAB([theta], lr=1e-2, num_data=100)
    >>> theta.grad = torch.ones(3)
    >>> optimizer.step()
    >>> bool((theta != 0).all())
    True
    """

    method = inference.BAOAB
