"""Priors of the form p(θ) = f((θ − mean) / scale) / scale: Gaussian, Laplace, Student-t."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from temperance.core.checks import check_positive, check_real_tensor, real, shown
from temperance.core.errors import ArgumentError
from temperance.model.learned import LearnedParameter
from temperance.model.priors.base import Density, FixedScale, Prior, check_scale, resolve_scale, span, to_tensor
from temperance.model.priors.learned import Learned, ScaledDensity
from temperance.model.theta import Entry, Layout

Scale = FixedScale | Learned
"""A scale that is given, or one that is learned."""


class LocationScaleDensity(Density):
    """Independent numbers with a mean and a scale each; subclasses give the standard form f."""

    def __init__(self, mean: float | Tensor, scale: float | Tensor) -> None:
        self.mean, self.scale = mean, scale
        self.log_scale = scale.log() if isinstance(scale, Tensor) else math.log(scale)

    @abstractmethod
    def standard_log_density(self, z: Tensor) -> Tensor:
        """log f(z)."""

    @abstractmethod
    def standard_score(self, z: Tensor) -> Tensor:
        """(log f)'(z)."""

    @abstractmethod
    def standard_sample(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """Draws from f."""

    def standard_variance(self) -> float | None:
        """The variance under f, where it is known."""
        return None

    @abstractmethod
    def with_parameters(self, mean: float | Tensor, scale: float | Tensor) -> LocationScaleDensity:
        """The same form with other mean and scale."""

    def log_density(self, theta: Tensor) -> Tensor:
        """See :class:`Density`."""
        return self.standard_log_density((theta - self.mean) / self.scale) - self.log_scale

    def score(self, theta: Tensor) -> Tensor:
        """See :class:`Density`."""
        return self.standard_score((theta - self.mean) / self.scale) / self.scale

    def moments(self) -> tuple[float | Tensor, float | Tensor] | None:
        """See :class:`Density`. Without a mean (Cauchy's law has none) the centre stands for it."""
        variance = self.standard_variance()
        return None if variance is None else (self.mean, variance * self.scale**2)

    def sample(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """See :class:`Density`."""
        return self.mean + self.scale * self.standard_sample(shape, rng).to(self.dtype)

    def to(self, device: torch.device, dtype: torch.dtype) -> LocationScaleDensity:
        """See :class:`Density`."""
        moved = self.with_parameters(to_tensor(self.mean, device, dtype), to_tensor(self.scale, device, dtype))
        moved.dtype = dtype
        return moved

    def part(self, places: Tensor, size: int) -> LocationScaleDensity:
        """See :class:`Density`."""
        chosen = [
            v[places.to(v.device)] if isinstance(v, Tensor) and v.numel() == size > 1 else v
            for v in (self.mean, self.scale)
        ]
        made = self.with_parameters(*chosen)
        made.dtype = self.dtype
        return made

    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, eq=False)
class LocationScalePrior(Prior):
    """A prior with a ``scale`` and, if not zero, a ``mean``."""

    scale: Scale = 1.0
    mean: float | Tensor = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.scale, Learned):
            check_scale(self.scale)
        if isinstance(self.mean, Tensor):
            check_real_tensor(self.mean, "mean")
        elif not math.isfinite(real(self.mean)):
            raise ArgumentError(f"`mean` must be a finite number, or a tensor of such; got {shown(self.mean)}.")

    @abstractmethod
    def density(self, mean: float | Tensor, scale: float | Tensor) -> LocationScaleDensity:
        """The elementwise density with resolved mean and scale."""

    def learned_parameters(self, entries: Sequence[Entry]) -> tuple[LearnedParameter, ...]:
        """Those of a :class:`Learned` scale."""
        return self.scale.parameters(entries) if isinstance(self.scale, Learned) else ()

    @property
    def learns(self) -> bool:
        """Whether the scale is :class:`Learned`."""
        return isinstance(self.scale, Learned)

    def densities(self, layout: Layout, entries: Sequence[Entry]) -> list[tuple[slice, Density]]:
        """See :class:`Prior`."""
        if isinstance(self.scale, Learned):
            return self._with_scales(self.scale, layout, entries)
        scale = resolve_scale(self.scale, layout, entries)
        mean = self.mean
        if isinstance(mean, Tensor) and mean.dim() and mean.numel() > 1:
            resolve_scale(mean.abs() + 1.0, layout, entries, "mean")  # for its check of the shape
        return [(span(entries), self.density(mean, scale))]

    def _with_scales(self, learned: Learned, layout: Layout, entries: Sequence[Entry]) -> list[tuple[slice, Density]]:
        """Weights and their learned scales as one piece of θ."""
        ((piece, weights),) = replace(self, scale=learned.scale).densities(layout, entries)
        numbers = learned.groups(entries)
        group = torch.cat([torch.full((e.size,), k) for e, k in zip(entries, numbers, strict=True)])
        size = max(numbers) + 1
        made = ScaledDensity(weights, self.mean, group, size, learned.hyper)
        return [(slice(piece.start, piece.stop + size), made)]


@dataclass(frozen=True, eq=False)
class GaussianPrior(LocationScalePrior):
    """θᵢ ~ N(mean, scale²), independently. ``scale`` is a standard deviation.

    With N data, the gradient of the per-datum loss is that of weight decay 1 / (N scale²).

    >>> from temperance.model.priors import FanIn
    >>> GaussianPrior(scale=1.0) == GaussianPrior(1.0)
    True
    >>> prior = GaussianPrior(scale=FanIn(gain=2**0.5))
    """

    def density(self, mean: float | Tensor, scale: float | Tensor) -> LocationScaleDensity:
        """See :class:`LocationScalePrior`."""
        return GaussianDensity(mean, scale)


class GaussianDensity(LocationScaleDensity):
    """Independent Gaussians."""

    def standard_log_density(self, z: Tensor) -> Tensor:
        """−z²/2 − log √(2π)."""
        return -0.5 * z.square() - 0.5 * math.log(2 * math.pi)

    def standard_score(self, z: Tensor) -> Tensor:
        """−z."""
        return -z

    def standard_sample(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """Standard normal draws."""
        return torch.randn(shape, generator=rng, device=rng.device, dtype=self.dtype)

    def with_parameters(self, mean: float | Tensor, scale: float | Tensor) -> GaussianDensity:
        """See :class:`LocationScaleDensity`."""
        return GaussianDensity(mean, scale)

    @property
    def gaussian(self) -> tuple[float | Tensor, float | Tensor]:
        """Its mean and scale. A subclass that is no longer Gaussian says ``None``."""
        return self.mean, self.scale

    def standard_variance(self) -> float:
        """1."""
        return 1.0

    def curvature(self, theta: Tensor) -> Tensor:
        """1 / scale², wherever θ is."""
        return torch.as_tensor(self.scale, dtype=theta.dtype, device=theta.device).pow(-2).expand(theta.shape)

    averages_over = "anything"

    def average(self, mean: Tensor, variance: Tensor) -> Tensor:
        """log p(mean) − ½ variance / scale²: whatever the law of θᵢ."""
        return self.log_density(mean) - 0.5 * variance / self.scale**2

    def average_scores(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor | float]:
        """(mean₀ − mean) / scale² and −½ / scale²."""
        return self.score(mean), -0.5 / self.scale**2

    def add_score(self, theta: Tensor, grad: Tensor, factor: float) -> None:
        """One fused pass over θ where the mean is zero: the cost of weight decay."""
        centred = theta if isinstance(self.mean, float | int) and self.mean == 0 else theta - self.mean
        if isinstance(self.scale, Tensor):
            grad.addcdiv_(centred, self.scale.square(), value=-factor)
        else:
            grad.add_(centred, alpha=-factor / self.scale**2)


@dataclass(frozen=True, eq=False)
class LaplacePrior(LocationScalePrior):
    """p(θᵢ) = exp(−|θᵢ − mean| / scale) / (2 scale): sparse, its MAP is the lasso. Its standard deviation is √2·scale.

    >>> LaplacePrior(scale=0.5).scale
    0.5
    """

    def density(self, mean: float | Tensor, scale: float | Tensor) -> LocationScaleDensity:
        """See :class:`LocationScalePrior`."""
        return LaplaceDensity(mean, scale)


class LaplaceDensity(LocationScaleDensity):
    """Independent double exponentials."""

    def standard_log_density(self, z: Tensor) -> Tensor:
        """−|z| − log 2."""
        return -z.abs() - math.log(2.0)

    def standard_score(self, z: Tensor) -> Tensor:
        """−sign z."""
        return -z.sign()

    def standard_sample(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """The difference of two exponentials."""
        pair = torch.empty((2, *shape), device=rng.device, dtype=self.dtype).exponential_(generator=rng)
        return pair[0] - pair[1]

    def standard_variance(self) -> float:
        """2."""
        return 2.0

    bends = False
    averages_over = "normals"

    def average(self, mean: Tensor, variance: Tensor) -> Tensor:
        """−E|θᵢ − mean₀| / scale − log(2 scale), by the mean of a folded normal."""
        root, centred = variance.sqrt(), mean - self.mean
        folded = root * math.sqrt(2 / math.pi) * torch.exp(-0.5 * centred.square() / variance)
        folded = folded + centred * torch.erf(centred / (root * math.sqrt(2.0)))
        return -folded / self.scale - math.log(2.0) - self.log_scale

    def average_scores(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor | float]:
        """−erf(z / √2) / scale and −φ(z) / (scale √variance), with z = (mean − mean₀) / √variance."""
        root = variance.sqrt()
        z = (mean - self.mean) / root
        bump = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
        return -torch.erf(z / math.sqrt(2.0)) / self.scale, -bump / (self.scale * root)

    def with_parameters(self, mean: float | Tensor, scale: float | Tensor) -> LaplaceDensity:
        """See :class:`LocationScaleDensity`."""
        return LaplaceDensity(mean, scale)


@dataclass(frozen=True, eq=False)
class StudentTPrior(LocationScalePrior):
    """Student's t with ``df`` degrees of freedom: heavy tails; ``df=1`` is the Cauchy.

    For df > 2 the standard deviation is ``scale · √(df / (df − 2))``.

    >>> StudentTPrior(scale=1.0, df=3.0).df
    3.0
    """

    df: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self.df, "df")

    def density(self, mean: float | Tensor, scale: float | Tensor) -> LocationScaleDensity:
        """See :class:`LocationScalePrior`."""
        return StudentTDensity(mean, scale, float(self.df))


class StudentTDensity(LocationScaleDensity):
    """Independent Student-t."""

    def __init__(self, mean: float | Tensor, scale: float | Tensor, df: float) -> None:
        super().__init__(mean, scale)
        self.df = df
        self.log_norm = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)

    def standard_log_density(self, z: Tensor) -> Tensor:
        """−(ν+1)/2 · log(1 + z²/ν) + constant."""
        return self.log_norm - 0.5 * (self.df + 1) * torch.log1p(z.square() / self.df)

    def standard_score(self, z: Tensor) -> Tensor:
        """−(ν+1) z / (ν + z²)."""
        return -(self.df + 1) * z / (self.df + z.square())

    def standard_sample(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """A normal over the root of a scaled χ²; the χ² from torch's gamma sampler."""
        normal = torch.randn(shape, generator=rng, device=rng.device, dtype=self.dtype)
        alpha = torch.full(shape, self.df / 2, device=rng.device, dtype=torch.float64)
        chi2 = 2 * torch._standard_gamma(alpha, generator=rng)
        return normal / (chi2 / self.df).sqrt().to(normal.dtype)

    def standard_variance(self) -> float:
        """ν / (ν − 2), infinite where ν ≤ 2."""
        return self.df / (self.df - 2) if self.df > 2 else math.inf

    def with_parameters(self, mean: float | Tensor, scale: float | Tensor) -> StudentTDensity:
        """See :class:`LocationScaleDensity`."""
        return StudentTDensity(mean, scale, self.df)
