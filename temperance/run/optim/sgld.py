"""``SGLD`` as an optimiser."""

from __future__ import annotations

from temperance import inference
from temperance.run.optim.families import OverdampedOptimizer


class SGLD(OverdampedOptimizer):
    """Gradient descent with noise: :class:`temperance.SGLD` for a loop of your own.

    With ℓ = c² ``lr`` (c = ``pace``), N = ``num_data``, M = ``mass`` and g the mean gradient plus ``weight_decay`` · θ,

        θ ← θ − ℓ M⁻¹ g + √(2 T ℓ / N) M^{-1/2} ξ,     ξ ~ N(0, I).

    At T = 0 it is ``torch.optim.SGD``, step for step.

    Args:
        params: parameters, or groups of them, as for any optimiser of torch.
        lr: ℓ, the learning rate of ``torch.optim.SGD`` on the mean loss.
        num_data: N, the size of the whole training set (not of a batch).
        temperature: T; 1 is the posterior, below 1 is cold, 0 is SGD.
        weight_decay: λ, which adds λθ to the gradient. A Gaussian prior of scale σ is λ = 1/(N σ²):
            :func:`weight_decay_of`.
        seed: of the noise. Two chains need two seeds.
        pace: c, between 0 and 1; it scales the time step √(ℓ/N), so ℓ by c².
        mass: M, one number for a group.

    >>> import torch
    >>> theta = torch.nn.Parameter(torch.zeros(3))
    >>> optimizer = SGLD([theta], lr=1e-2, num_data=100, temperature=0.0)
    >>> theta.grad = torch.ones(3)
    >>> optimizer.step()
    >>> theta.data
    tensor([-0.0100, -0.0100, -0.0100])
    """

    method = inference.SGLD
