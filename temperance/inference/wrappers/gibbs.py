"""``Gibbs``: learned scales of a prior drawn exactly given the weights, between the moves of a sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count, shown
from temperance.core.errors import ArgumentError
from temperance.core.seeds import spawn
from temperance.data.data import Batch
from temperance.engine.engine import Engine
from temperance.inference.base import Inference, Info, Starts, WrapperState, refuse
from temperance.inference.card import Card, MethodFamily
from temperance.inference.hamiltonian.elliptical import EllipticalSlice
from temperance.inference.hamiltonian.tempered import Tempered
from temperance.inference.langevin.sampler import Sampler, SamplerWrapper
from temperance.inference.wrappers.cyclical import Cyclical


@dataclass
class GibbsState(WrapperState):
    """The base's state, a generator for each chain, and the moves since the scales were last drawn."""

    rngs: list[torch.Generator] = field(default_factory=list)
    moves: int = 0


@dataclass(frozen=True, eq=False)
class Gibbs(SamplerWrapper):
    """``base``, and after each ``every`` of its moves the prior's learned scales e^u anew, exactly, given the weights.

    For ``GaussianPrior(Learned(scale, InverseGamma(a, b)))``, n weights w of a group with mean m, at temperature T,

        e^{2u} | w ~ InverseGamma((n/2 + a) / T, (S/2 + b) / T),     S = Σ ((w − m) / scale)².

    Both the base's moves and these leave exp(−U/T) where it is. A scale that has to wait for a thousand weights to move
    before it can is here drawn at once; the base still moves weights and scales together between the draws.

    Args:
        base: a sampler: SGHMC, HMC, ``Warmup(NUTS(), 500)`` ...
        every: moves between draws of the scales.

    >>> import temperance as tp
    >>> prior = tp.GaussianPrior(tp.Learned(hyper=tp.InverseGamma(2.0, 1.0)))
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), prior)
    >>> method = tp.Collect(Gibbs(tp.HMC(step_size=0.02, length=10)), burn=20, every=1)
    >>> tp.fit(target, method, (x, 2 * x + 1), steps=50).posterior.theta.shape
    torch.Size([30, 3])
    """

    card: ClassVar[Card] = Card(
        "draws learned scales of the prior exactly given the weights, between a sampler's moves",
        MethodFamily.WRAPPERS,
        papers=("Neal, Bayesian learning for neural networks, 1996",),
        exact="as its base",
        cost="as its base; a gradient more where the base keeps it",
        shown=("Gibbs(HMC(step_size=0.1, length=10))",),
    )

    base: Sampler
    every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.every, "every")

    def check_base(self, base: Inference[Any]) -> None:
        """It must have a chain, and one temperature."""
        name = type(base).__name__
        if not isinstance(base, Sampler) or isinstance(base, Gibbs):
            refuse(
                self,
                base,
                f"it draws scales between the moves of a sampler such as SGHMC or HMC, and {name} is none of these",
                "Collect(Gibbs(SGHMC(lr=1e-3)))",
            )
        if isinstance(base, EllipticalSlice):
            refuse(
                self,
                base,
                "its ellipse is that of a Gaussian prior, and weights with learned scales have none",
                "Collect(Gibbs(HMC(step_size=0.1, length=10)))",
            )
        if isinstance(base, Tempered | Cyclical):
            refuse(
                self,
                base,
                f"the law of the scales has a temperature, and {name} changes that of its chains from outside",
                f"{name}(...) without Gibbs, or Gibbs({type(base.base).__name__}(...)) without {name}",
            )

    @property
    def takes_heat(self) -> bool:  # type: ignore[override]
        """The temperature of the draws is the run's."""
        return False

    @property
    def takes_pace(self) -> bool:  # type: ignore[override]
        """As the base does."""
        return self.base.takes_pace

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> GibbsState:
        """See :class:`Inference`."""
        prior = engine.target.prior
        if self._laws(engine, engine.target.initial_theta()) is None:
            raise ArgumentError(
                f"`prior`: Gibbs({type(self.base).__name__}) draws learned scales whose law given weights is known: "
                f"an inverse gamma law over Gaussian weights; got {shown(prior)}. Write "
                f"GaussianPrior(scale=Learned(hyper=InverseGamma(2.0, 1.0))), or {type(self.base).__name__} without "
                "Gibbs."
            )
        base = self.base.init(engine, starts, rngs)
        own = []
        for rng in rngs:
            made = torch.Generator()
            made.manual_seed(spawn(rng))
            own.append(made)
        return GibbsState(base, own)

    def step(self, engine: Engine, state: GibbsState, batch: Batch) -> tuple[GibbsState, Info]:
        """A move of the base; then the scales."""
        state.base, info = self.base.step(engine, state.base, batch)
        chain = self.chain(state)
        if not info.status.ok or not chain.moved:
            return state, info
        state.moves += 1
        if state.moves % self.every == 0:
            laws = self._laws(engine, chain.theta)
            assert laws is not None
            place, shape, rate = laws
            for k, rng in enumerate(state.rngs):
                chain.theta[k, place] = _log_scales(shape[k], rate[k], rng).to(chain.theta)
            self.moved_by_others(state)
        return state, info

    def _laws(self, engine: Engine, theta: Tensor) -> tuple[slice, Tensor, Tensor] | None:
        """Where the scales are in θ, and their law given the weights."""
        entries = engine.layout.entries_of("prior")
        for piece, density in engine.bound_prior.pieces:
            found = density.scales_given_weights(theta[..., piece], engine.temperature)
            if found is not None and entries:
                return slice(entries[0].start, entries[-1].stop), *found
        return None


def _log_scales(shape: Tensor, rate: Tensor, rng: torch.Generator) -> Tensor:
    """u = ½ (log rate − log t), t ~ Gamma(shape, 1). The law of t is that of Gamma(shape + 1) · U^{1/shape}, whose
    logarithm does not underflow where the shape is small."""
    large = torch._standard_gamma(shape.cpu() + 1.0, generator=rng)
    luck = torch.rand(shape.shape, generator=rng, dtype=torch.float64).clamp(min=1e-300)
    return 0.5 * (rate.cpu().log() - large.log() - luck.log() / shape.cpu())
