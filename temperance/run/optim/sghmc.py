"""``SGHMC`` as an optimiser."""

from __future__ import annotations

from temperance import inference
from temperance.run.optim.families import UnderdampedOptimizer


class SGHMC(UnderdampedOptimizer):
    """SGD with momentum, and noise: :class:`temperance.SGHMC` for a loop of your own.

    With ℓ = ``lr``, β = ``momentum``, N = ``num_data``, M = ``mass`` and g the mean gradient plus ``weight_decay`` · θ,

        h = c √(ℓ/N),   β' = 1 − c (1 − β),     c = ``pace``
        v ← β' v − h N M⁻¹ g + √(2 T (1 − β')) M^{-1/2} ξ,     ξ ~ N(0, I)
        θ ← θ + h v.

    As the step vanishes θ ~ exp(−U(θ)/T), U being N times the mean loss, plus ½ N λ ‖θ‖². At T = 0 and a constant
    ``lr`` it is ``torch.optim.SGD`` with momentum, step for step. (Under a schedule the velocity is kept as physics
    does: SGD keeps a sum of gradients instead.)

    Every number can differ between parameter groups, and be changed there between steps: a scheduler of torch changes
    ``lr``; a cyclical sampler changes ``group["pace"]``, which scales the time step h and leaves the friction alone. At
    a learning rate of 0 nothing moves. ``state_dict`` holds the noise's seed and count too: a run that is resumed goes
    on exactly.

    Args:
        params: parameters, or groups of them, as for any optimiser of torch.
        lr: ℓ, the learning rate of ``torch.optim.SGD`` on the mean loss.
        num_data: N, the size of the whole training set (not of a batch).
        momentum: β, the momentum of ``torch.optim.SGD``.
        temperature: T; 1 is the posterior, below 1 is cold, 0 is SGD.
        weight_decay: λ, which adds λθ to the gradient. A Gaussian prior of scale σ is λ = 1/(N σ²):
            :func:`weight_decay_of`.
        seed: of the noise. Two chains need two seeds.
        pace: c, between 0 and 1.
        mass: M, one number for a group; v = M⁻¹ m has variance T/M.

    >>> import torch
    >>> net = torch.nn.Linear(1, 1)
    >>> optimizer = SGHMC(net.parameters(), lr=1e-2, num_data=100, weight_decay=1 / 100)
    >>> for _ in range(3):
    ...     optimizer.zero_grad()
    ...     (net(torch.ones(5, 1)) - 1).square().mean().backward()
    ...     optimizer.step()
    >>> optimizer.state[net.weight]["velocity"].shape
    torch.Size([1, 1])
    """

    method = inference.SGHMC
