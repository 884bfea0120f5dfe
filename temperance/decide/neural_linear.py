"""Neural-linear bandits (Riquelme et al. 2018): exact Bayesian linear regression on a trained network's features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.checks import check_count, check_positive
from temperance.core.errors import ArgumentError
from temperance.core.seeds import generator
from temperance.decide.policies import ArmNetwork, FittedPolicy


class NormalInverseGamma:
    """Conjugate linear regression with unknown noise: y = xᵀβ + ε, ε ~ N(0, σ²),

        σ² ~ IG(a₀, b₀),  β | σ² ~ N(0, σ² / λ),

    whose posterior after X, y is β | σ² ~ N(μ, σ² Λ⁻¹), σ² ~ IG(a, b) with

        Λ = XᵀX + λ I,  μ = Λ⁻¹ Xᵀy,  a = a₀ + n/2,  b = b₀ + ½ (yᵀy − μᵀΛμ).

    >>> belief = NormalInverseGamma(1, precision=1.0)
    >>> belief.update(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0]))
    >>> belief.mean
    tensor([0.8333], dtype=torch.float64)
    """

    def __init__(self, features: int, *, precision: float = 0.25, shape: float = 6.0, rate: float = 6.0) -> None:
        check_count(features, "features")
        for name, value in (("precision", precision), ("shape", shape), ("rate", rate)):
            check_positive(value, name)
        self.precision = precision * torch.eye(features, dtype=torch.float64)
        self.moment = torch.zeros(features, dtype=torch.float64)
        self.squares = 0.0
        self.shape, self.prior_rate = float(shape), float(rate)

    def update(self, x: Tensor, y: Tensor) -> None:
        """See more rows."""
        x, y = x.double(), y.double().reshape(-1)
        self.precision = self.precision + x.T @ x
        self.moment = self.moment + x.T @ y
        self.squares += float(y @ y)
        self.shape += len(y) / 2

    @property
    def mean(self) -> Tensor:
        """μ."""
        return torch.linalg.solve(self.precision, self.moment)

    @property
    def rate(self) -> float:
        """b."""
        return self.prior_rate + 0.5 * max(self.squares - float(self.moment @ self.mean), 0.0)

    def sample(self, rng: torch.Generator) -> Tensor:
        """A draw of β, with σ² drawn first."""
        gamma = torch._standard_gamma(torch.tensor(self.shape, dtype=torch.float64), generator=rng)
        scale = (self.rate / gamma).sqrt()
        lower = torch.linalg.cholesky(self.precision)
        noise = torch.randn(len(self.moment), 1, generator=rng, dtype=torch.float64)
        return self.mean + scale * torch.linalg.solve_triangular(lower.T, noise, upper=True)[:, 0]


class NeuralLinear(FittedPolicy):
    """Thompson sampling with :class:`NormalInverseGamma` for each arm on the last hidden layer's features, which are
    trained anew every ``every`` steps (by ``method``, MAP say) and fixed in between; the linear part learns at every
    step. The network must be an :class:`ArmNetwork`; the features are what its last ``nn.Linear`` receives, and a one.

    ``precision``, ``shape`` and ``rate`` are the prior of the linear part, in units of standardised rewards.
    """

    def __init__(
        self, *args: Any, precision: float = 0.25, shape: float = 6.0, rate: float = 6.0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.prior = {"precision": precision, "shape": shape, "rate": rate}
        for name, value in self.prior.items():
            check_positive(value, name)
        self.beliefs: list[NormalInverseGamma] = []
        self.network: ArmNetwork | None = None

    def features(self, contexts: Tensor) -> Tensor:
        """What the last layer receives, and a one."""
        assert self.network is not None
        last = [module for module in self.network.network.modules() if isinstance(module, nn.Linear)][-1]
        caught: list[Tensor] = []
        handle = last.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
        try:
            with torch.no_grad():
                self.network.network(contexts)
        finally:
            handle.remove()
        return torch.cat([caught[0], torch.ones_like(caught[0][:, :1])], dim=1).double()

    def refit(self) -> None:
        """New features, and the regression on them from the beginning."""
        super().refit()
        assert self.fitted is not None
        made = self.fitted.network()
        if not isinstance(made, ArmNetwork):
            raise ArgumentError(f"`make_target` must use an ArmNetwork for NeuralLinear; got {type(made).__name__}.")
        self.network = made
        contexts, arms, rewards = self.seen()
        spread = float(rewards.std(correction=0))
        self.shift, self.scale = float(rewards.mean()), spread if spread > 0 else 1.0
        features, scaled = self.features(contexts), (rewards.squeeze(1) - self.shift) / self.scale
        self.beliefs = [NormalInverseGamma(features.shape[1], **self.prior) for _ in range(self.num_arms)]
        for arm, belief in enumerate(self.beliefs):
            belief.update(features[arms == arm], scaled[arms == arm])

    def learn(self, context: Tensor, arm: int, reward: float) -> None:
        """Update the arm's regression; refit the features when it is time."""
        if self.network is not None:
            scaled = torch.tensor([(reward - self.shift) / self.scale])
            self.beliefs[arm].update(self.features(context.unsqueeze(0)), scaled)
        super().learn(context, arm, reward)

    def by_belief(self, context: Tensor) -> int:
        """Argmax of one draw of each arm's regression."""
        rng = generator(self.seed, "neural-linear", self.step)
        features = self.features(context.unsqueeze(0))[0]
        return int(torch.stack([features @ belief.sample(rng) for belief in self.beliefs]).argmax())
