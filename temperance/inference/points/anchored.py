"""``Anchored``: randomised MAP, whose solutions are posterior draws on a linear-Gaussian model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_flag
from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError
from temperance.core.seeds import generator, spawn
from temperance.data.data import Batch
from temperance.engine.engine import Engine
from temperance.inference.base import Exactness, Facts, Inference, Info, Starts, Wrapper, WrapperState, refuse
from temperance.inference.card import Card, MethodFamily, Recipe
from temperance.inference.points.map import MAP
from temperance.model.priors import GaussianPrior


@dataclass
class AnchoredState(WrapperState):
    """The base's state, the anchors (members × P), and the seeds of the noise on the targets."""

    anchor: Tensor
    noise_seeds: list[int]
    engine: Engine | None = field(default=None, metadata=SCRATCH)
    noise: Tensor | None = field(default=None, metadata=SCRATCH)


@dataclass(frozen=True, eq=False)
class Anchored(Wrapper):
    """A draw by optimisation: the prior is centred at a draw from it, and each target gets noise of its own,

        θ̂ = argmin −Σ log p(y_i + ε_i | x_i, θ) + ½ ‖(θ − θ_anchor) / scale‖²,
        θ_anchor ~ N(mean, T·scale²),   ε_i ~ N(0, T·σ²).

    On a linear-Gaussian model θ̂ is distributed exactly as the posterior N(μ, T Λ⁻¹), so
    ``Ensemble(Anchored(MAP()), 5)`` holds five posterior draws; on a network it is a principled way to spread an
    ensemble (Pearce et al., 2020). It needs a Gaussian prior. The noise on targets needs ``Normal(scale=...)`` with a
    given scale; ``target_noise=None`` adds it there and nowhere else.

    >>> import temperance as tp
    >>> method = tp.Ensemble(Anchored(tp.MAP(lr=1e-2)), 5)
    """

    card: ClassVar[Card] = Card(
        "a draw by optimisation: the prior centred at a draw from it, noise on the targets",
        MethodFamily.POINTS,
        papers=("Pearce et al., Uncertainty in neural networks: approximately Bayesian ensembling, AISTATS 2020",),
        recipes=(
            Recipe(
                "anchored",
                "Ensemble(WarmStart(Anchored(MAP(lr=5e-3)), MAP(lr=5e-3, patience=0.1)), 5)",
                "five networks, each pulled to its own prior draw",
            ),
        ),
        demo=(Recipe("Anchored × 5", "Ensemble(Anchored(MAP(lr=1e-3)), 5)"),),
    )

    base: Inference[Any] = field(default_factory=MAP)
    target_noise: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag(self.target_noise, "target_noise", optional=True)

    def check_base(self, base: Inference[Any]) -> None:
        """It must descend to a mode."""
        if not isinstance(base, MAP):
            refuse(
                self,
                base,
                "the draw is the minimum of a loss that Anchored has changed, which only MAP looks for",
                f"Anchored(MAP(lr=1e-3)), or {type(base).__name__} without it",
            )

    def facts(self) -> Facts:
        """The base's and the anchor; one draw of the posterior where it is Gaussian."""
        base = super().facts()
        return replace(base, exact=Exactness.POSTERIOR, cost=base.cost.plus(1))

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> AnchoredState:
        """See :class:`Inference`."""
        pairs = [(self._anchor(engine, rng), spawn(rng)) for rng in rngs]
        anchor = torch.stack([anchor for anchor, _ in pairs])
        return AnchoredState(self.base.init(engine, starts, rngs), anchor, [seed for _, seed in pairs])

    def _anchor(self, engine: Engine, rng: torch.Generator) -> Tensor:
        engine.target.refuse_learned_scales("Anchored", "an anchor is a draw of a Gaussian prior")
        pieces = engine.bound_prior.pieces
        size = engine.layout.network_size
        mean = torch.zeros(size, dtype=engine.layout.dtype, device=engine.device)
        for piece, density in pieces:
            found = density.gaussian
            if found is None:
                raise ArgumentError(
                    "`prior` must be Gaussian with independent weights for Anchored; got "
                    f"{engine.target.prior!r}. Use a GaussianPrior, or Ensemble(MAP(lr=1e-3), 5)."
                )
            if piece.stop <= size:
                mean[piece] = found[0]
        draw = engine.target.sample_prior(1, rng)[0, :size].to(engine.device)
        return mean + engine.temperature**0.5 * (draw - mean)

    def _tilted(self, engine: Engine, state: AnchoredState) -> Engine:
        """The target whose prior is centred at the anchor."""
        if state.engine is None:
            size = engine.layout.network_size
            scale = torch.ones(size, dtype=engine.layout.dtype)
            for piece, density in engine.bound_prior.pieces:
                found = density.gaussian
                assert found is not None  # an anchor was drawn
                if piece.stop <= size:
                    scale[piece] = torch.as_tensor(found[1], dtype=scale.dtype)
            mean = state.anchor[0] if len(state.anchor) == 1 else state.anchor
            state.engine = engine.on(engine.target.with_prior(GaussianPrior(scale=scale, mean=mean)))
        return state.engine

    def _noise(self, engine: Engine, state: AnchoredState, batch: Batch) -> Tensor:
        """Noise for every row and member, or an empty tensor where the likelihood has no additive noise."""
        level = engine.temperature * engine.likelihood_temperature
        few = torch.zeros(1, 1, dtype=engine.layout.dtype)
        if engine.likelihood.perturb(few, {}, level, generator(0, "target-noise")) is None:
            if self.target_noise:
                raise ArgumentError(
                    "`target_noise` needs additive noise of a given scale, Normal(scale=...); got "
                    f"{engine.likelihood!r}."
                )
            return few.new_empty(0)
        zeros = torch.zeros(batch.num_data, batch.y.shape[-1], dtype=engine.layout.dtype)
        rngs = [generator(seed, "target-noise") for seed in state.noise_seeds]
        rows = [engine.likelihood.perturb(zeros, {}, level, rng) for rng in rngs]
        return torch.stack([row for row in rows if row is not None]).to(engine.device)

    def _perturbed(self, engine: Engine, state: AnchoredState, batch: Batch) -> Batch:
        """The batch with each row's own noise added to its target: the same noise whenever the row comes by."""
        if self.target_noise is False:
            return batch
        if state.noise is None:
            state.noise = self._noise(engine, state, batch)
        if state.noise.numel() == 0:
            return batch
        if batch.index is None:
            raise ArgumentError("`batch` must carry the index of its rows for Anchored; got none.")
        if batch.streams is None:
            noise = state.noise[0][batch.index]
        else:
            noise = torch.stack([member[rows] for member, rows in zip(state.noise, batch.index, strict=True)])
        if batch.weights is not None:  # a row twice has two draws of noise, which is one of half the variance
            noise = noise / batch.weights.clamp(min=1e-12).sqrt().unsqueeze(-1).to(noise)
        return replace(batch, y=batch.y + noise)

    def step(self, engine: Engine, state: AnchoredState, batch: Batch) -> tuple[AnchoredState, Info]:
        """See :class:`Inference`."""
        tilted, noisy = self._tilted(engine, state), self._perturbed(engine, state, batch)
        state.base, info = self.base.step(tilted, state.base, noisy)
        return state, info
