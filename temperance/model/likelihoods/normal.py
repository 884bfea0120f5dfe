"""Gaussian noise: of one size, or one that depends on the input."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from temperance.core.errors import NetworkError
from temperance.model.likelihoods.base import LearnedValues, diagonal
from temperance.model.likelihoods.contaminated import ContaminatedNormal
from temperance.model.likelihoods.real import LOG_SCALE, AdditiveGaussianNoise, GaussianNoise, HomoscedasticLikelihood

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_MOST = 40.0  # log s at most: in float32 exp(2 · 40) is finite, exp(2 · 45) is not
_LEAST = -20.0  # and at least: a scale of 2e-9 is none, and one of 0 makes densities of 0 / 0


@dataclass(frozen=True, eq=False)
class Normal(HomoscedasticLikelihood, AdditiveGaussianNoise):
    """y ~ N(f(x), scale²), independently per output. ``Normal()`` learns the noise; ``Normal(scale=0.1)`` fixes it.

    >>> Normal(scale=0.1).log_prob(torch.zeros(1, 1), torch.zeros(1, 1), {})
    tensor([1.3836])
    """

    def negative_log_likelihood(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """The sum of squares directly, where the noise is given."""
        if self.scale is None:
            return super().negative_log_likelihood(outputs, y, learned)
        constant = math.log(self.scale) + 0.5 * math.log(2 * math.pi)
        squares = (y - outputs).square().sum((-1, -2))
        return squares * (0.5 / self.scale**2) + constant * outputs.shape[-1] * outputs.shape[-2]

    def row_slopes(
        self, outputs: Tensor, y: Tensor, learned: LearnedValues
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """(f − y) / s² in the outputs, 1 − ((f − y) / s)² in log s."""
        scale = self.noise_scale(outputs, learned)
        z = (outputs - y) / scale
        squares = z.square()
        each = (0.5 * squares + (scale.log() + _HALF_LOG_2PI)).sum(-1)
        if self.scale is not None:
            return each, z / scale, {}
        spread = 1.0 - squares
        return each, z / scale, {LOG_SCALE: spread if self.num_outputs > 1 else spread.sum(-1, keepdim=True)}

    @property
    def given_noise(self) -> float | None:
        """The scale, unless it is learned."""
        return self.scale

    def with_noise(self, scale: float) -> Normal:
        """See :class:`Likelihood`."""
        return replace(self, scale=scale)

    def with_outliers(self, share: float, factor: float) -> ContaminatedNormal:
        """See :class:`Likelihood`."""
        return ContaminatedNormal(share, factor, self.scale, self.num_outputs, of_all=True)

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """I / scale²."""
        return diagonal(self.noise_scale(outputs, learned).pow(-2).expand_as(outputs))

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """The same."""
        return self.fisher(outputs, learned)

    def perturb(self, y: Tensor, learned: LearnedValues, temperature: float, rng: torch.Generator) -> Tensor | None:
        """y + √T · scale · ε, where the scale is given."""
        if self.scale is None:
            return None
        noise = torch.randn(y.shape, generator=rng, dtype=y.dtype, device=rng.device).to(y.device)
        return y + temperature**0.5 * self.noise_scale(y, learned) * noise


@dataclass(frozen=True, eq=False)
class HeteroscedasticNormal(GaussianNoise):
    """y ~ N(m(x), s(x)²) with noise that depends on the input: the network gives 2D outputs, D means then D values of
    log s. Beyond e⁴⁰ the noise grows no more, and below e⁻²⁰ it falls no more: far from the training rows densities
    would not be finite.

    >>> HeteroscedasticNormal().log_prob(torch.zeros(1, 2), torch.zeros(1, 1), {})
    tensor([-0.9189])
    """

    def outputs_for(self, targets: int) -> int:
        """A mean and a log scale for each."""
        return 2 * targets

    def check_outputs(self, outputs: Tensor) -> None:
        """See :class:`Likelihood`."""
        super().check_outputs(outputs)
        if outputs.shape[-1] % 2:
            raise NetworkError(
                "the network must have an even number of outputs for HeteroscedasticNormal, means then log scales; "
                f"got {outputs.shape[-1]}."
            )

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`Likelihood`."""
        return super().prepare(y, num_outputs // 2, dtype)

    def location(self, outputs: Tensor) -> Tensor:
        """The first half of the outputs."""
        return outputs[..., : outputs.shape[-1] // 2]

    def noise_scale(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """exp of the second half."""
        return outputs[..., outputs.shape[-1] // 2 :].clamp(_LEAST, _MOST).exp()

    def row_slopes(
        self, outputs: Tensor, y: Tensor, learned: LearnedValues
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """(m − y) / s² in the means, 1 − ((m − y) / s)² in the log scales."""
        means, log_scale = outputs.chunk(2, -1)
        capped = log_scale.clamp(_LEAST, _MOST)
        scale = capped.exp()
        z = (means - y) / scale
        squares = z.square()
        each = (0.5 * squares + (capped + _HALF_LOG_2PI)).sum(-1)
        return each, torch.cat([z / scale, (1.0 - squares) * (log_scale == capped)], -1), {}

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """diag(1/s², 2)."""
        precision = self.noise_scale(outputs, learned).pow(-2)
        return diagonal(torch.cat([precision, torch.full_like(precision, 2.0)], -1))

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """Blocks 1/s², 2δ/s², 2δ²/s² with δ = y − m."""
        precision = self.noise_scale(outputs, learned).pow(-2)
        delta = y - self.location(outputs)
        cross = diagonal(2 * delta * precision)
        top = torch.cat([diagonal(precision), cross], -1)
        bottom = torch.cat([cross, diagonal(2 * delta.square() * precision)], -1)
        return torch.cat([top, bottom], -2)
