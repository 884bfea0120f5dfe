"""``VOGN``: natural-gradient VI with the Gauss–Newton matrix's diagonal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from temperance.core.checks import check_choice
from temperance.core.errors import ArgumentError, NumericalError
from temperance.core.seeds import generator
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.base import Starts
from temperance.inference.card import Card, MethodFamily
from temperance.inference.curvature.stochastic import BatchCurvature
from temperance.inference.curvature.sweep import Kind
from temperance.inference.variational.expectations import gaussian_precision
from temperance.inference.variational.natural import NaturalGradient, NaturalState

_KINDS: dict[str, Kind] = {"ggn": "ggn", "sampled": "monte-carlo", "gradients": "empirical"}


@dataclass(frozen=True, eq=False)
class VOGN(NaturalGradient):
    """The variational online Gauss–Newton method (Khan et al., 2018; Osawa et al., 2019): q = N(m, σ²) with
    σ² = T / (N (h + δ)), δ = 1 / (N scale²) of a Gaussian prior N(m₀, scale²), and at a draw θ = m + σ ε with mean
    gradient g,

        ĥ = (1/B) Σ_i diag(J_iᵀ H_i J_i)                               (by the ``curvature`` below)
        ḡ ← β₁ ḡ + (1 − β₁) g
        h ← β₂ h + (1 − β₂) ĥ
        m ← m − ℓ (ḡ / (1 − β₁ᵗ) + δ (m − m₀)) / (h + δ).

    Args:
        lr: ℓ, a share of a Newton step.
        betas: β₁, β₂.
        initial_hessian: the first guess of h, the curvature of the mean loss.
        curvature: ``"sampled"``: squared gradients of single examples under labels that the model draws itself, one
            more backward pass, exact on average; ``"ggn"``: exact, a backward pass for each output; ``"gradients"``:
            squared gradients under the data's own labels, as published: no further pass, but another matrix, which is
            too small where the data are fitted well.
        samples, antithetic, clip, schedule, draws: as for :class:`IVON`.

    Gradients of single examples come from the layers' inputs and output gradients (:mod:`curvature`); the
    network runs in evaluation mode, so dropout is off. Batch norm is refused: it has no gradients of single examples.

    Its fixed point on a linear-Gaussian model, with ``"ggn"`` or ``"sampled"``, is the optimum of the mean field: mean
    μ, variances T/Λᵢᵢ.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, tp.VOGN(lr=0.1, betas=(0.9, 0.9)), (x, 2 * x + 1), steps=200)
    >>> fitted.predict(torch.tensor([[0.5]])).mean().round(decimals=1)
    tensor([[2.]])
    """

    card: ClassVar[Card] = Card(
        "independent normals by natural gradients, with gradients of single examples",
        MethodFamily.VARIATIONAL,
        papers=(
            "Khan et al., Fast and scalable Bayesian deep learning by weight-perturbation in Adam, ICML 2018",
            "Osawa et al., Practical deep learning with Bayesian principles, NeurIPS 2019",
        ),
    )

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    curvature: Literal["sampled", "ggn", "gradients"] = "sampled"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.curvature, "curvature", tuple(_KINDS))

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> NaturalState:
        """See :class:`Inference`."""
        engine.target.refuse_batch_norm("VOGN")
        engine.needs_whole_batches("VOGN")
        if gaussian_precision(engine.bound_prior, engine.target.initial_theta()) is None:
            raise ArgumentError(
                "`prior` must be made of independent Gaussians for VOGN, whose curvature they join; use IVON or "
                "Variational."
            )
        return super().init(engine, starts, rngs)

    def learn_curvature(self, hessian: Tensor, estimate: Tensor, total: Tensor) -> None:
        """h ← β₂ h + (1 − β₂) ĥ."""
        hessian.lerp_(estimate, 1 - self.betas[1])

    def look(self, engine: Engine, state: NaturalState, batch: Batch, root: Tensor) -> tuple[float, Tensor, Tensor]:
        """See :class:`NaturalGradient`."""
        gradient = torch.zeros_like(state.mean)
        curvature = torch.zeros_like(state.mean)
        loss = 0.0
        for k, theta in enumerate(state.sampled.theta):
            rng = generator(state.noise_seed, "vogn", state.noise_count, k, device=engine.device)
            try:
                here, slope, squares = self._one(engine, state, theta, batch, rng)
            except NumericalError:  # of outputs or curvature that are not finite: the run stops as at any such loss
                return math.nan, gradient, curvature
            loss += here / self.samples
            gradient.add_(slope, alpha=1.0 / self.samples)
            curvature.add_(squares, alpha=1.0 / self.samples)
        return loss, gradient, curvature

    def _one(
        self, engine: Engine, state: NaturalState, theta: Tensor, batch: Batch, rng: torch.Generator
    ) -> tuple[float, Tensor, Tensor]:
        work = state.work
        if not isinstance(work, BatchCurvature):
            data = batch.whole if batch.whole is not None else Data(batch.x, batch.y, weights=batch.weights)
            work = BatchCurvature(engine, theta, state.buffers, data, _KINDS[self.curvature])
            state.work = work
        return work.at(theta, batch, rng)
