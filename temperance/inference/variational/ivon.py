"""``IVON``: variational learning at the cost of Adam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from temperance.data.data import Batch
from temperance.engine.engine import Engine
from temperance.engine.native import NormalStream
from temperance.engine.native.gaussian import can_fuse, draw_by_precision_, ivon_
from temperance.inference.base import Info
from temperance.inference.card import Card, MethodFamily, Recipe
from temperance.inference.schedules import rise_and_fall
from temperance.inference.variational.expectations import judge
from temperance.inference.variational.natural import NaturalGradient, NaturalState


@dataclass(frozen=True, eq=False)
class IVON(NaturalGradient):
    """The improved variational online Newton method (Shen et al., 2024): natural-gradient ascent on the mean-field ELBO
    with one gradient a step, taken at a draw. q = N(m, σ²) with σ² = T / (N (h + δ)), δ = 1 / (N scale²) of a
    Gaussian prior N(m₀, scale²), and for draws θ = m + σ ε with mean gradient g,

        ĥ = g ε / σ                                                    (the curvature, by Stein's identity)
        ḡ ← β₁ ḡ + (1 − β₁) g
        h ← β₂ h + (1 − β₂) ĥ + ½ (1 − β₂)² (h − ĥ)² / (h + δ)         (stays positive)
        m ← m − ℓ (h₀ + δ) (ḡ / (1 − β₁ᵗ) + δ (m − m₀)) / (h + δ).

    A prior that is not Gaussian enters by its gradient at the draws, with δ = 0.

    Args:
        lr: ℓ; of the size that suits SGD with momentum (0.1 for a ResNet with norms), for the step is scaled by h₀ + δ.
            What suits SGD depends on the loss: for a regression with noise of scale s the loss is 1/s² times as steep
            as for standardised targets and s = 1, so divide ``lr`` by as much.
        betas: β₁, β₂. For runs of more than some 10,000 steps a β₂ nearer to one, up to 0.99999, averages more noise
            out of the curvature.
        initial_hessian: h₀, which is also the first guess of the curvature of the mean loss: σ starts at 1/√(N h₀).
        samples: draws a step, one gradient each.
        antithetic: draws in pairs ±ε.
        clip: largest change of a weight in one step.
        schedule: a factor on ``lr`` by the fraction of the run: ``tp.rise_and_fall``, ``tp.flat``, or a function
            of your own.
        draws: for networks with batch norm, the number of draws that get batch statistics of their own.

    Its fixed point on a linear-Gaussian model is the optimum of the mean field: mean μ, variances T/Λᵢᵢ.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> method = tp.IVON(lr=0.01, betas=(0.9, 0.99), initial_hessian=100.0)
    >>> fitted = tp.fit(target, method, (x, 2 * x + 1), steps=1000)
    >>> fitted.predict(torch.tensor([[0.5]])).mean().round(decimals=1)
    tensor([[2.]])
    """

    card: ClassVar[Card] = Card(
        "independent normals by natural gradients, at the price of Adam",
        MethodFamily.VARIATIONAL,
        papers=("Shen et al., Variational learning is effective for large deep networks, ICML 2024",),
        recipes=(
            Recipe(
                "ivon",
                "WarmStart(IVON(lr=0.1, clip=0.01), TunedDecay(MAP(lr=5e-3, patience=0.1)))",
                "the best Gaussian without correlations, by natural gradients",
            ),
        ),
        demo=(Recipe("IVON", "IVON(lr=0.1)"),),
    )

    schedule: Callable[[float], float] = rise_and_fall

    def look(self, engine: Engine, state: NaturalState, batch: Batch, root: Tensor) -> tuple[float, Tensor, Tensor]:
        """See :class:`NaturalGradient`."""
        sampled = state.sampled
        through_draws = not isinstance(state.prior_precision, Tensor) and state.prior_precision == 0
        loss = sampled.gradients(engine, batch, state.buffers, prior=through_draws)
        with torch.no_grad():
            if self.samples == 1:
                gradient = sampled.grad[0]
                curvature = state.noise[0].mul_(gradient).mul_(root)
            else:
                curvature = state.noise.mul_(sampled.grad).mean(0).mul_(root)
                gradient = sampled.grad.mean(0)
        return loss, gradient, curvature

    def can_fuse(self, engine: Engine, theta: Tensor, precision: Tensor | float | None) -> bool:
        """With one draw, a Gaussian prior of mean zero and no clipping, on a CPU with a compiler."""
        centres = [getattr(density, "mean", None) for _, density in engine.bound_prior.pieces]
        centred = all(isinstance(centre, float | int) and centre == 0 for centre in centres)
        return self.samples == 1 and self.clip is None and precision is not None and centred and can_fuse((theta,))

    def step_at_once(
        self, engine: Engine, state: NaturalState, batch: Batch, stream: NormalStream
    ) -> tuple[NaturalState, Info]:
        """The same in two passes over memory, which make the noise as they go."""
        keys = stream.keys()
        state.noise_count = stream.count
        count = batch.num_data / engine.temperature
        each = state.prior_precision if isinstance(state.prior_precision, Tensor) else None
        delta = 1.0 / batch.num_data if each is not None else float(state.prior_precision) / batch.num_data
        theta, grad = state.sampled.rows[0]
        draw_by_precision_(theta, state.mean, state.hessian, keys, delta, each, count)
        loss = float(engine.gradient(theta, batch, grad, state.buffers, prior=False))
        status = judge(loss, grad, state.epoch_loss.first)
        if status.ok:
            state.clock += 1
            ivon_(
                state.mean,
                state.hessian,
                state.momentum,
                grad,
                keys,
                delta=delta,
                deltas=each,
                count=count,
                betas=self.betas,
                correction=1.0 / (1.0 - self.betas[0] ** state.clock),
                rate=self.lr * self.schedule(batch.progress),
                initial=self.initial_hessian,
            )
        return self.account(engine, state, batch, loss, status)

    def rate(self, delta: Tensor | float) -> Tensor | float:
        """ℓ (h₀ + δ)."""
        return (delta + self.initial_hessian) * self.lr

    def learn_curvature(self, hessian: Tensor, estimate: Tensor, total: Tensor) -> None:
        """The rule of the class, in place."""
        learn_hessian_(hessian, estimate, total, self.betas[1])


def learn_hessian_(hessian: Tensor, estimate: Tensor, total: Tensor, beta: float) -> None:
    """h ← h + (1 − β₂)(ĥ − h) + ½ (1 − β₂)² (ĥ − h)² / (h + δ): ``estimate`` and ``total`` are used up."""
    share = 1 - beta
    estimate.sub_(hessian)
    hessian.add_(estimate, alpha=share)
    hessian.addcdiv_(estimate.square_(), total, value=0.5 * share**2)
