"""``SGHMC``: stochastic gradient Hamiltonian Monte Carlo by symplectic Euler, in SGD's own parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from temperance.engine.engine import Engine
from temperance.engine.native import NormalStream, symplectic_euler_
from temperance.inference.base import Exactness
from temperance.inference.card import Card, MethodFamily, Recipe
from temperance.inference.langevin.sampler import ChainState, LangevinSampler, Layerwise, Tempo, check_momentum
from temperance.inference.langevin.thermal import Thermal

_USUAL = 0.03  # ℓ, with masses by layer


@dataclass(frozen=True, eq=False)
class SGHMC(LangevinSampler):
    """SGD with momentum, and noise (Chen et al., 2014; Wenzel et al., 2020). With ℓ = ``lr`` and β = ``momentum``,

        h = √(ℓ/N),   γ = (1 − β)/h,
        m ← β m − h N ∇G̃(θ) + √(2 T (1 − β)) M^{1/2} ξ,     ξ ~ N(0, I)
        θ ← θ + h M⁻¹ m,

    a symplectic Euler step of dθ = M⁻¹m dt, dm = −∇U dt − γ m dt + √(2γT) M^{1/2} dW, whose stationary law is
    θ ~ exp(−U/T), m ~ N(0, T M). As T → 0 it is SGD with momentum, step for step. A pace c (:class:`Cyclical`) scales
    h and not ℓ: h' = c h, ℓ' = c² ℓ, β' = 1 − c(1 − β).

    On a quadratic of curvature k: Var m = T / ((1+β)/2 − h²k/4), Var θ = (T/k) ((1+β)/2) / ((1+β)/2 − h²k/4). So even
    as h → 0 its kinetic temperature is 2T/(1+β), while θ is right.

    Args:
        lr: ℓ, the learning rate of ``torch.optim.SGD`` on the mean loss. Without one, :class:`Thermal` goes down to a
            mode first and finds a step for each tensor: half of the run, which ``Collect`` leaves out. (With a
            ``preconditioner``, and no ``lr``, it is 0.03.)
        momentum: β, the momentum of ``torch.optim.SGD``.
        preconditioner: :class:`Layerwise` masses, or ``None`` for M = I.
        allow_batch_norm: sample though the network has batch norm, whose likelihood is not a product over examples.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, tp.Collect(SGHMC(lr=1e-3, momentum=0.9)), (x, 2 * x + 1), steps=2000)
    >>> fitted.predict(torch.tensor([[0.5]])).mean().round(decimals=1)
    tensor([[2.]])
    """

    card: ClassVar[Card] = Card(
        "SGD with momentum, and noise (symplectic Euler)",
        MethodFamily.LANGEVIN,
        papers=("Chen et al., Stochastic gradient Hamiltonian Monte Carlo, ICML 2014", *Layerwise.card.papers),
        exact="its own, known law; SGD with momentum as T → 0",
        cost="two copies more while it looks for steps",
        recipes=(
            Recipe(
                "sghmc",
                "WarmStart(Collect(SGHMC()), TunedDecay(MAP(lr=5e-3, patience=0.1)))",
                "draws around a trained network, by SG Hamiltonian Monte Carlo",
            ),
        ),
        demo=(Recipe("SGHMC", "Collect(SGHMC(lr=0.03))"),),
    )

    exact: ClassVar[Exactness] = Exactness.OWN_LAW

    lr: float | Thermal = None  # type: ignore[assignment]  # said by __post_init__
    momentum: float = 0.9
    preconditioner: Layerwise | None = None
    allow_batch_norm: bool = False

    def __post_init__(self) -> None:
        check_momentum(self.momentum)
        if self.lr is None:  # masses by layer and steps by heat are two ways to one end
            object.__setattr__(self, "lr", Thermal() if self.preconditioner is None else _USUAL)
        self._check()

    def law(self, precision: Tensor, num_data: int, temperature: float) -> Tensor:
        """T Λ⁻¹ b (b I − h²Λ/4)⁻¹, b = (1 + β)/2."""
        b = 0.5 * (1 + self.momentum)
        unit = torch.eye(len(precision), dtype=precision.dtype)
        return temperature * b * torch.linalg.inv(precision @ (b * unit - self.rate / (4 * num_data) * precision))

    def slots(self, theta: Tensor, engine: Engine) -> dict[str, Tensor]:
        """The velocity M⁻¹ m."""
        return {"velocity": torch.zeros_like(theta)}

    def kinetic_bias(self, pace: float) -> float:
        """2 / (1 + β')."""
        return 2.0 / (2.0 - pace * (1.0 - self.momentum))

    def heating(self, num_data: int) -> tuple[float, float]:
        """See :class:`LangevinSampler`. Each step adds h² N² σ² to the noise 2 T (1 − β) of a momentum."""
        return 0.5 * num_data * self.rate / (1.0 - self.momentum), self.momentum

    def _numbers(self, tempo: Tempo) -> tuple[float, float, float, float]:
        """β', h N, the size of the noise, h."""
        h = tempo.pace * math.sqrt(self.rate / tempo.num_data)
        friction = tempo.pace * (1.0 - self.momentum)
        return 1.0 - friction, h * tempo.num_data, math.sqrt(2 * tempo.temperature * friction), h

    def move(self, chain: ChainState, tempo: Tempo) -> None:
        """See :class:`SGHMC`."""
        decay, force, spread, h = self._numbers(tempo)
        velocity = chain.slots["velocity"]
        velocity.mul_(decay).sub_(chain.grad, alpha=force).add_(chain.noise, alpha=spread)
        chain.theta.add_(velocity, alpha=h)

    def move_at_once(self, chain: ChainState, tempo: Tempo, stream: NormalStream) -> bool:
        """See :class:`LangevinSampler`."""
        return symplectic_euler_(chain.theta, chain.slots["velocity"], chain.grad, stream, *self._numbers(tempo))
