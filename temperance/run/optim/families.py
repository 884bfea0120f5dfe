"""The two sets of numbers that most optimisers are made with, written once."""

from __future__ import annotations

from torch.optim.optimizer import ParamsT

from temperance.run.optim.base import ChainOptimizer, LangevinOptimizer


class OverdampedOptimizer(LangevinOptimizer):
    """θ moves along the gradient, with no velocity; ``mass`` divides its step. See :class:`SGLD` for the arguments."""

    settings = (*LangevinOptimizer.settings, "mass")

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        num_data: int,
        temperature: float = 1.0,
        weight_decay: float = 0.0,
        seed: int = 0,
        pace: float = 1.0,
        mass: float = 1.0,
    ) -> None:
        numbers = {"temperature": temperature, "weight_decay": weight_decay, "pace": pace, "mass": mass}
        super().__init__(params, seed, lr=lr, num_data=num_data, **numbers)


class MomentumOptimizer(ChainOptimizer):
    """θ moves with a velocity that keeps ``momentum`` of itself. See :class:`SGHMC` for the arguments."""

    settings = (*ChainOptimizer.settings, "momentum", "mass")

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        num_data: int,
        momentum: float = 0.9,
        temperature: float = 1.0,
        weight_decay: float = 0.0,
        seed: int = 0,
        pace: float = 1.0,
        mass: float = 1.0,
    ) -> None:
        numbers = {"temperature": temperature, "weight_decay": weight_decay, "pace": pace, "mass": mass}
        super().__init__(params, seed, lr=lr, num_data=num_data, momentum=momentum, **numbers)


class UnderdampedOptimizer(MomentumOptimizer, LangevinOptimizer):
    """A :class:`MomentumOptimizer` whose rule is that of a method with a learning rate and a momentum."""

    rule_takes = ("lr", "momentum")
