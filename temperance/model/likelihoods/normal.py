"""Gaussian noise: of one size, or one that depends on the input."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.errors import NetworkError
from temperance.model.likelihoods.base import LearnedValues, diagonal
from temperance.model.likelihoods.contaminated import ContaminatedNormal
from temperance.model.likelihoods.real import (
    LOG_SCALE,
    AdditiveGaussianNoise,
    GaussianNoise,
    HomoscedasticLikelihood,
    warn_of_units,
)

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_MOST = 1e15  # r at most: its square is finite in float32
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
    """y ~ N(m(x), s(x)²) with noise that depends on the input: the network gives 2D outputs, D means then D values r of
    which the noise is made,

        s = e^r up to r = 0,    1 + r above,

    with one slope where both meet. For targets of spread one: a noise below that has a logarithm that is free, and one
    above grows no faster than the outputs do. Far from the training rows r may be anything, and e^r would be noise of
    thousands. Below e⁻²⁰ it falls no more, for densities would not be finite. :meth:`made_of` is the inverse.

    >>> HeteroscedasticNormal().log_prob(torch.zeros(1, 2), torch.zeros(1, 1), {})
    tensor([-0.9189])
    >>> HeteroscedasticNormal.made_of(torch.tensor([0.5, 1.0, 3.0]))
    tensor([-0.6931,  0.0000,  2.0000])
    """

    EDITION: ClassVar[int] = 2  # of the first, the noise was e^r everywhere

    @staticmethod
    def made_of(scale: Tensor) -> Tensor:
        """The outputs r that make this noise."""
        return torch.where(scale < 1, scale.clamp(max=1.0).log(), scale - 1)

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
        """e^r up to one, and 1 + r above, of the second half."""
        below, above = _halves(outputs[..., outputs.shape[-1] // 2 :])
        return below.exp() * above

    def begin(self, y: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Warn where targets are far from standardised."""
        super().begin(y, weights)
        used = y if weights is None else y[weights > 0]
        if len(used) > 1:
            warn_of_units(used.double().mean(0), used.double().std(0, correction=0), "noise that depends on the input")
        return {}

    def row_slopes(
        self, outputs: Tensor, y: Tensor, learned: LearnedValues
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """(m − y) / s² in the means, 1 − ((m − y) / s)² in log s."""
        means, made_of = outputs.chunk(2, -1)
        below, above = _halves(made_of)
        scale = below.exp() * above
        z = (means - y) / scale
        squares = z.square()
        each = (0.5 * squares + (below + above.log() + _HALF_LOG_2PI)).sum(-1)
        return each, torch.cat([z / scale, (1.0 - squares) * _slope(made_of)], -1), {}

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """diag(1/s², 2 g'²), g' the slope of log s."""
        precision = self.noise_scale(outputs, learned).pow(-2)
        return diagonal(torch.cat([precision, 2.0 * _slope(outputs.chunk(2, -1)[1]).square()], -1))

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """Blocks 1/s², 2δg'/s², 2δ²g'²/s² + (1 − δ²/s²) g'' with δ = y − m, and g' and g'' the slope and the bend of
        log s: −g'² above one."""
        precision = self.noise_scale(outputs, learned).pow(-2)
        delta, made_of = y - self.location(outputs), outputs.chunk(2, -1)[1]
        slope = _slope(made_of)
        bend = torch.where(made_of > 0, -slope.square(), torch.zeros_like(slope))
        squares = delta.square() * precision
        cross = diagonal(2 * delta * slope * precision)
        top = torch.cat([diagonal(precision), cross], -1)
        bottom = torch.cat([cross, diagonal(2 * squares * slope.square() + (1 - squares) * bend)], -1)
        return torch.cat([top, bottom], -2)


def _halves(made_of: Tensor) -> tuple[Tensor, Tensor]:
    """log s below one, and s above one. (By ``where``: at 0 two clamps would both pass the slope on.)"""
    high, none = made_of > 0, torch.zeros_like(made_of)
    below, above = torch.where(high, none, made_of), torch.where(high, made_of, none)
    return below.clamp(min=_LEAST), 1.0 + above.clamp(max=_MOST)


def _slope(made_of: Tensor) -> Tensor:
    """That of log s, none beyond both ends."""
    inside = (made_of >= _LEAST) & (made_of <= _MOST)
    return inside / (1.0 + made_of.clamp(0.0, _MOST))
