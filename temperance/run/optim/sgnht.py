"""``SGNHT`` as an optimiser."""

from __future__ import annotations

from temperance import inference
from temperance.run.optim.families import UnderdampedOptimizer


class SGNHT(UnderdampedOptimizer):
    """Nosé–Hoover thermostats, one for each weight: :class:`temperance.SGNHT` for a loop of your own.

    With ℓ = ``lr``, β = ``momentum``, N = ``num_data``, M = ``mass`` and g the mean gradient plus ``weight_decay`` · θ,

        h = c √(ℓ/N),   z₀ = (1 − β) √(N/ℓ),     c = ``pace``
        v ← v − h z ∘ v − h N M⁻¹ g + √(2 T h z₀) M^{-1/2} ξ,     ξ ~ N(0, I)
        θ ← θ + h v
        z ← z + h (M v² − T),     from z = z₀.

    Gradient noise of unknown size makes v hot; z then grows until it is balanced. ``state[p]["friction"]`` is z/z₀. At
    T = 0 the thermostat waits, and at a constant ``lr`` a step is that of ``torch.optim.SGD`` with momentum.

    Args:
        params: parameters, or groups of them, as for any optimiser of torch.
        lr: ℓ, the learning rate of ``torch.optim.SGD`` on the mean loss.
        num_data: N, the size of the whole training set (not of a batch).
        momentum: β, from which the thermostat starts.
        temperature: T; 1 is the posterior, below 1 is cold.
        weight_decay: λ, which adds λθ to the gradient. A Gaussian prior of scale σ is λ = 1/(N σ²):
            :func:`weight_decay_of`.
        seed: of the noise. Two chains need two seeds.
        pace: c, between 0 and 1.
        mass: M, one number for a group.

    >>> import torch
    >>> theta = torch.nn.Parameter(torch.zeros(3))
    >>> optimizer = SGNHT([theta], lr=1e-2, num_data=100)
    >>> theta.grad = torch.ones(3)
    >>> optimizer.step()
    >>> sorted(optimizer.state[theta])
    ['friction', 'velocity']
    """

    method = inference.SGNHT
