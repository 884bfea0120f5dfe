"""What methods share that learn from averages over a q(θ): gradients at several draws, the prior's part."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_flag
from temperance.core.errors import ArgumentError
from temperance.core.status import DIVERGED, NON_FINITE_GRADIENT, NON_FINITE_LOSS, OK, Status
from temperance.data.data import Batch
from temperance.engine.engine import Engine
from temperance.engine.native import NormalStream
from temperance.model.priors import BoundPrior
from temperance.model.priors.base import Density

DIVERGENCE = 1e4  # how many times the first loss counts as divergence


@dataclass
class Sampled:
    """S draws of θ and the gradients there: memory that is used again in every step."""

    theta: Tensor
    grad: Tensor

    def __init__(self, engine: Engine, samples: int, grad: Tensor | None = None) -> None:
        size, dtype, device = engine.layout.size, engine.layout.dtype, engine.device
        self.theta = torch.zeros(samples, size, dtype=dtype, device=device)
        self.grad = torch.zeros(samples, size, dtype=dtype, device=device) if grad is None else grad.unsqueeze(0)
        self.rows = list(zip(self.theta.unbind(0), self.grad.unbind(0), strict=True))
        self.at_once = (
            samples > 1
            and not engine.target.moving
            and engine.prefers_batched_training()
            and engine.can_batch_training()
        )

    def gradients(self, engine: Engine, batch: Batch, buffers: dict[str, Tensor], prior: bool = False) -> float:
        """∇G̃ (or that of its data term) at every draw; the mean of the batch's negative log-likelihoods."""
        if self.at_once:
            return float(engine.gradients(self.theta, batch, self.grad, prior=prior).mean())
        losses = [engine.gradient(theta, batch, grad, buffers, prior=prior) for theta, grad in self.rows]
        return float(losses[0] if len(losses) == 1 else torch.stack(losses).mean())


def fill_noise_(noise: Tensor, stream: NormalStream, antithetic: bool) -> None:
    """Standard normal rows; if antithetic, the second half is the first with its sign changed."""
    if not antithetic:
        stream.fill_(noise)
        return
    half = len(noise) // 2
    stream.fill_(noise[:half])
    torch.neg(noise[:half], out=noise[half:])


def check_samples(samples: int, antithetic: bool) -> None:
    """A positive number; an even one for pairs."""
    check_count(samples, "samples")
    check_flag(antithetic, "antithetic")
    if antithetic and samples % 2:
        raise ArgumentError(f"`samples` must be even, say 2, where draws come in pairs (`antithetic`); got {samples}.")


# ---------------------------------------------------------------------- the prior's part of an average over q


def has_closed_form(density: Density, normal: bool) -> bool:
    """Whether E log p(θᵢ) is known from the mean and variance of θᵢ, which may or may not be normal."""
    return density.averages_over == "anything" or (density.averages_over == "normals" and normal)


def closed_form(prior: BoundPrior, normal: bool) -> bool:
    """Whether every part of the prior has one."""
    return all(has_closed_form(density, normal) for _, density in prior.pieces)


def gaussian_precision(prior: BoundPrior, like: Tensor) -> Tensor | float | None:
    """1/scale² of a Gaussian prior, one number where it is the same everywhere; ``None`` for another prior."""
    scales = [parts[1] for _, density in prior.pieces if (parts := density.gaussian) is not None]
    if len(scales) < len(prior.pieces):
        return None
    if len(scales) == 1 and not isinstance(scales[0], Tensor):
        return float(scales[0]) ** -2
    found = torch.empty_like(like)
    for (piece, _), scale in zip(prior.pieces, scales, strict=True):
        found[piece] = torch.as_tensor(scale).to(found) ** -2
    return found


def average_scores(prior: BoundPrior, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of E log p(θ) in the mean and the variance of θ; every density must have a closed form."""
    by_mean, by_variance = torch.empty_like(mean), torch.empty_like(mean)
    for piece, density in prior.pieces:
        by_mean[piece], by_variance[piece] = density.average_scores(mean[piece], variance[piece])
    return by_mean, by_variance


def prior_average(prior: BoundPrior, mean: Tensor, variance: Tensor) -> float:
    """E log p(θ)."""
    parts = [density.average(mean[piece], variance[piece]).double().sum() for piece, density in prior.pieces]
    return float(torch.stack(parts).sum())


def judge(loss: float, gradient: Tensor, first: float | None) -> Status:
    """Look at the loss, and at the gradient before it is used; ``first`` is the first loss of the run."""
    if not math.isfinite(loss):
        return NON_FINITE_LOSS
    if not math.isfinite(float(gradient.sum())):
        return NON_FINITE_GRADIENT
    return DIVERGED if first is not None and loss > DIVERGENCE * (abs(first) + 1.0) else OK


@dataclass
class EpochLoss:
    """The losses of the epoch under way, for the ELBO at its end; and the first of the run."""

    total: float = 0.0
    count: int = 0
    first: float | None = None

    def add(self, loss: float, rows: int) -> None:
        """One more batch, of so many rows: the last one of an epoch may be smaller."""
        self.total += loss * rows
        self.count += rows
        self.first = loss if self.first is None else self.first

    def elbo(
        self, engine: Engine, num_data: int, mean: Tensor, variance: Tensor, entropy: float, draws: Tensor, normal: bool
    ) -> float:
        """(E log p(D | θ)/λ + E log p(θ)) / T + H[q], and begin anew. ``draws`` serve where log p has no average."""
        log_lik = -num_data * self.total / self.count / engine.likelihood_temperature
        self.total, self.count = 0.0, 0
        if closed_form(engine.bound_prior, normal):
            log_prior = prior_average(engine.bound_prior, mean, variance)
        else:
            log_prior = float(engine.bound_prior.log_prob(draws).mean())
        return (log_lik + log_prior) / engine.temperature + entropy
