"""A sampler written down a second time, short and slow, that can be told to go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from temperance.data.data import Data
from temperance.engine.engine import Engine
from temperance.model.target import Target
from temperance.posteriors import Draws, Mixture, Trace
from temperance.testing import ClosedForm

Gradient = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From θ of all chains, C × P, to N∇G̃ and the loss of each."""


def symplectic_euler(
    target: Target,
    gradient: Gradient,
    start: Tensor,
    num_data: int,
    *,
    lr: float,
    momentum: float = 0.9,
    mass: Tensor | float = 1.0,
    temperature: float = 1.0,
    steps: int = 2000,
    burn_in: int = 500,
    every: int = 10,
    noise_free: int = 0,
    seed: int = 0,
) -> Mixture:
    """Chains of m ← β m − h N∇G̃ + √(2T(1−β)) M^½ ξ, θ ← θ + h M⁻¹ m with h = √(ℓ/N), and a reading every so often,
    burn-in included. The first ``noise_free`` steps are at temperature zero."""
    rng = torch.Generator().manual_seed(seed)
    theta, m, h = start.clone(), torch.zeros_like(start), (lr / num_data) ** 0.5
    readings, draws, entries = [], [], target.layout.entries
    for step in range(steps):
        grad, loss = gradient(theta)
        heat = 0.0 if step < noise_free else temperature
        if step % every == 0:
            pair = (m.square() / mass, theta * grad)
            kinetic, config = (torch.stack([v[:, e.start : e.stop].mean(1) for e in entries], 1) for v in pair)
            readings.append((step, heat, kinetic, config, loss.clone()))
            if step >= burn_in:
                draws.append((step, theta.clone()))
        noise = torch.randn(theta.shape, generator=rng, dtype=theta.dtype)
        m.mul_(momentum).sub_(h * grad).add_((2 * heat * (1 - momentum) * mass) ** 0.5 * noise)
        theta.add_(h * m / mass)
    made = []
    for k in range(len(start)):
        trace = Trace(
            step=torch.tensor([r[0] for r in readings]),
            pace=torch.ones(len(readings)),
            temperature=torch.tensor([r[1] for r in readings]),
            kinetic_bias=torch.full((len(readings),), 2 / (1 + momentum)),
            kinetic=torch.stack([r[2][k] for r in readings]),
            configurational=torch.stack([r[3][k] for r in readings]),
            loss=torch.stack([r[4][k] for r in readings]),
            draw_step=torch.tensor([s for s, _ in draws]),
        )
        made.append(Draws(torch.stack([t[k] for _, t in draws]), trace=trace))
    return Mixture(tuple(made))


def quadratic(precision: Tensor, mean: Tensor) -> Gradient:
    """The gradient of ½ (θ−μ)ᵀΛ(θ−μ), which is also the loss; Λ a matrix, or its diagonal."""

    def gradient(theta: Tensor) -> tuple[Tensor, Tensor]:
        away = theta - mean
        grad = away * precision if precision.dim() == 1 else away @ precision
        return grad, 0.5 * (away * grad).sum(1)

    return gradient


def of_network(target: Target, data: Data, chains: int, batch_size: int | None = None, claim: float = 1.0) -> Gradient:
    """N∇G̃ of all chains at once, each on its own batches; ``claim`` multiplies the N that the batches tell of."""
    ready, epoch = target.prepare(data), 0
    walk = iter(())

    def gradient(theta: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal walk, epoch
        batch = next(walk, None)
        if batch is None:
            walk = iter(list(ready.batches(batch_size or len(ready), streams=chains, epoch=epoch)))
            batch, epoch = next(walk), epoch + 1
        batch = replace(batch, num_data=round(claim * len(ready)))
        grad = torch.empty_like(theta)
        loss = Engine(target).gradients(theta, batch, grad)
        return grad * batch.num_data, loss

    return gradient


def exact_draws(mean: Tensor, covariance: Tensor, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Independent draws of a Gaussian, ``shape`` × P."""
    noise = torch.randn((*shape, len(mean)), generator=torch.Generator().manual_seed(seed), dtype=mean.dtype)
    return mean + noise @ torch.linalg.cholesky(covariance).T


def on_linear_gaussian(problem: ClosedForm, chains: int = 4, **options) -> Mixture:
    """Chains on a problem in closed form, started at exact draws of its posterior unless told otherwise."""
    start = options.pop("start", None)
    if start is None:
        start = exact_draws(problem.mean, problem.covariance, (chains,), seed=9)
    options.setdefault("num_data", len(problem.data))
    gradient = options.pop("gradient", None) or quadratic(problem.precision, problem.mean)
    return symplectic_euler(problem.target, gradient, start, **options)
