"""``GGMC`` as an optimiser: the one that needs a closure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from temperance.core.errors import ArgumentError, NumericalError
from temperance.core.seeds import generator
from temperance.engine.native import NormalStream
from temperance.inference.langevin.sampler import ChainState, check_momentum
from temperance.run.optim.base import Group
from temperance.run.optim.blocks import ParameterBlock, signature_of, views_of
from temperance.run.optim.families import MomentumOptimizer

Work = list[tuple[Group, ParameterBlock]]


class GGMC(MomentumOptimizer):
    """Langevin dynamics with a Metropolis correction: :class:`temperance.GGMC` on all data, for a loop of your own.

    With ℓ = ``lr``, β = ``momentum``, N = ``num_data``, M = ``mass`` and g the mean gradient plus ``weight_decay`` · θ,

        h = c √(ℓ/N),   β' = β^c,     c = ``pace``
        v ← √β' v + √(T (1 − β')) M^{-1/2} ξ,     ξ ~ N(0, I)               O
        v ← v − ½ h N M⁻¹ g(θ);   θ ← θ + h v;   v ← v − ½ h N M⁻¹ g(θ)     BAB
        v ← √β' v + √(T (1 − β')) M^{-1/2} ξ                                O,

    and all groups together are accepted with probability min(1, exp(−ΔE/T)), ΔE being the change of U and, in BAB, of
    ½ M ‖v‖². If not, θ goes back and v turns round. So exp(−U/T) is stationary at *any* step, with
    U = N (mean loss + ½ λ ‖θ‖²); too large a step costs acceptance, never correctness.

    Every call is ``step(closure)``. The closure zeroes the gradients, computes the mean loss over **all** the training
    data, calls ``backward`` and returns the loss; the same weights must give the same loss (no dropout, no
    augmentation, no batches drawn at random). It is called once a step, and once more at the first step, after
    ``load_state_dict``, and where someone else has changed a parameter. After a step, parameters, gradients and the
    loss returned belong together, accepted or not.

    Args:
        params: parameters, or groups of them, as for any optimiser of torch.
        lr: ℓ, as the learning rate of ``torch.optim.SGD`` on the mean loss.
        num_data: N, the size of the training set; one number for all groups.
        momentum: β, what is left of a velocity after a step; 0 is the Metropolis-adjusted Langevin algorithm.
        temperature: T > 0; one number for all groups.
        weight_decay: λ, which adds λθ to the gradient. A Gaussian prior of scale σ is λ = 1/(N σ²):
            :func:`weight_decay_of`.
        seed: of the noise and of the decisions. Two chains need two seeds.
        pace: c, between 0 and 1.
        mass: M, one number for a group.

    >>> theta = torch.nn.Parameter(torch.zeros(3))
    >>> optimizer = GGMC([theta], lr=0.1, num_data=10)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = 0.5 * theta.square().sum()
    ...     loss.backward()
    ...     return loss
    >>> for _ in range(100):
    ...     loss = optimizer.step(closure)
    >>> optimizer.acceptance > 0.9
    True
    """

    _here: tuple[Any, Work] | None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """See :class:`ChainOptimizer`."""
        super().__setstate__(state)
        self._here = None

    def add_param_group(self, param_group: Group) -> None:
        """See :class:`ChainOptimizer`."""
        super().add_param_group(param_group)
        self.param_groups[0].setdefault("accepted", 0)
        self.param_groups[0].setdefault("proposed", 0)
        self._here = None

    def check(self, group: Group) -> None:
        """See :class:`ChainOptimizer`."""
        super().check(group)
        check_momentum(group["momentum"])
        if group["temperature"] == 0:
            raise ArgumentError("`temperature` must be positive for GGMC, which accepts by exp(−ΔE/T); got 0.")
        first = self.param_groups[0]
        for name in ("temperature", "num_data"):
            if group[name] != first[name]:
                raise ArgumentError(
                    f"`{name}` must be one number for all groups of GGMC, which are accepted or rejected together; "
                    f"got {first[name]!r} and {group[name]!r}."
                )

    def slots(self, theta: Tensor, group: Group) -> dict[str, Tensor]:
        """The velocity v = M⁻¹ m."""
        return {"velocity": torch.zeros_like(theta)}

    @property
    def acceptance(self) -> float:
        """The fraction of the proposals that were accepted; NaN before the first."""
        first = self.param_groups[0]
        return float(first["accepted"] / first["proposed"]) if first["proposed"] else math.nan

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One proposal and its decision.

        Args:
            closure: zeroes the gradients, computes the mean loss over all data, calls ``backward``, returns the loss.

        Returns:
            The mean loss at the place where the chain is now.
        """
        if closure is None:
            raise ArgumentError(
                "`closure` must be given, for GGMC needs the loss to accept or reject: step(closure), where closure "
                "zeroes the gradients, computes the mean loss over all data, calls backward and returns it; got None."
            )
        for group in self.param_groups:
            self.check(group)
        if self._here is None or not self._unmoved(self._here[1]):
            self._here = None
            self._here = self._begin(closure)
        loss, work = self._here
        before = [(b.chain.theta.clone(), b.chain.slots["velocity"].clone(), b.chain.grad.clone()) for _, b in work]
        energy = self._energy(loss, work)
        try:
            end_loss, change = self._propose(closure, work)
        except BaseException:
            _go_back(work, before, turn=1.0)
            self._here = None
            raise
        delta = self._energy(end_loss, work) - energy + change
        first = self.param_groups[0]
        rng = generator(first["noise_seed"], "accept", first["proposed"])
        luck = float(torch.rand((), generator=rng, dtype=torch.float64))
        first["proposed"] += 1
        if math.isfinite(delta) and luck < math.exp(min(0.0, -delta / first["temperature"])):
            first["accepted"] += 1
            loss = end_loss
        else:
            _go_back(work, before, turn=-1.0)
        self._here = (loss, work)
        return loss

    def _begin(self, closure: Callable[[], Any]) -> tuple[Any, Work]:
        """Find out loss and gradient where the chain is; new parameters get a velocity from N(0, T/M)."""
        loss = _call(closure)
        gathered = [self._gather(index) for index in range(len(self.param_groups))]
        if not any(gathered):
            raise ArgumentError("`closure` must call backward; after it no parameter has a gradient.")
        if not math.isfinite(float(loss)):
            raise NumericalError(
                f"the loss that `closure` returned is not finite ({float(loss)}); nothing was changed."
            )
        for index, blocks in enumerate(gathered):
            self._refuse_non_finite(index, blocks)
        work = [(group, b) for group, blocks in zip(self.param_groups, gathered, strict=True) for b in blocks]
        for group, block in work:
            block.read_theta()
            if block.fresh:
                _draw_noise(group, block.chain)
                noise = views_of(block.chain.noise, block.params)
                for place in block.fresh:
                    block.slots["velocity"][place].copy_(noise[place] * math.sqrt(group["temperature"] / group["mass"]))
                block.fresh = []
        return loss, work

    def _unmoved(self, work: Work) -> bool:
        """Whether parameters and velocities are where the last step left them."""
        return all(block.intact(self.state) and block.holds_theta() for _, block in work)

    def _propose(self, closure: Callable[[], Any], work: Work) -> tuple[Any, float]:
        """OBABO; the loss at its end, and the change of ½ M ‖v‖² in BAB."""
        for group, block in work:
            _refresh(group, block)
        before = _kinetic(work)
        for group, block in work:
            _kick(group, block)
            block.chain.theta.add_(block.chain.slots["velocity"], alpha=_time_step(group))
            block.write_theta()
        loss = _call(closure)
        for index, group in enumerate(self.param_groups):
            if signature_of(self._active(index, group)) != self._records[index].signature:
                raise ArgumentError("`closure` must give gradients to the same parameters at every call; it did not.")
        for group, block in work:
            block.read_grad()
            _kick(group, block)
        after = _kinetic(work)
        for group, block in work:
            _refresh(group, block)
        return loss, after - before

    def _energy(self, loss: Any, work: Work) -> float:
        """U = N (mean loss + ½ λ ‖θ‖²)."""
        total = float(loss)
        for group, block in work:
            if group["weight_decay"]:
                total += 0.5 * group["weight_decay"] * float(block.chain.theta.double().square().sum())
        return float(self.param_groups[0]["num_data"] * total)


def _call(closure: Callable[[], Any]) -> Any:
    with torch.enable_grad():
        loss = closure()
    if loss is None:
        raise ArgumentError("`closure` must return the mean loss over all data; got None.")
    return loss.detach().clone() if isinstance(loss, Tensor) else loss


def _time_step(group: Group) -> float:
    return float(group["pace"] * math.sqrt(group["lr"] / group["num_data"]))


def _draw_noise(group: Group, chain: ChainState) -> None:
    """The next standard normal numbers of the group's stream, for a whole block at once."""
    stream = NormalStream(group["noise_seed"], group["noise_count"])
    stream.fill_(chain.noise)
    group["noise_count"] = stream.count


def _refresh(group: Group, block: ParameterBlock) -> None:
    """O: keeps N(0, T/M)."""
    keep = group["momentum"] ** group["pace"]
    spread = math.sqrt(group["temperature"] * (1 - keep) / group["mass"])
    _draw_noise(group, block.chain)
    block.chain.slots["velocity"].mul_(math.sqrt(keep)).add_(block.chain.noise, alpha=spread)


def _kick(group: Group, block: ParameterBlock) -> None:
    """B: half a step of the velocity."""
    chain, size = block.chain, -0.5 * _time_step(group) * group["num_data"] / group["mass"]
    chain.slots["velocity"].add_(chain.grad, alpha=size)
    if group["weight_decay"]:
        chain.slots["velocity"].add_(chain.theta, alpha=size * group["weight_decay"])


def _kinetic(work: Work) -> float:
    """½ M ‖v‖²."""
    return sum(0.5 * g["mass"] * float(b.chain.slots["velocity"].double().square().sum()) for g, b in work)


def _go_back(work: Work, before: list[tuple[Tensor, Tensor, Tensor]], turn: float) -> None:
    """θ and gradient as they were; the velocity too (``turn`` 1), or turned round (−1)."""
    for (_, block), (theta, velocity, grad) in zip(work, before, strict=True):
        block.chain.theta.copy_(theta)
        torch.mul(velocity, turn, out=block.chain.slots["velocity"])
        block.chain.grad.copy_(grad)
        block.write_theta()
        for p, saved in zip(block.params, block.grad, strict=True):
            if p.grad is not None:
                p.grad.copy_(saved)
