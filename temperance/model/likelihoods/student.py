"""Student's noise, whose tails are heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from temperance.core.checks import check_positive
from temperance.model.likelihoods.base import LearnedValues, diagonal
from temperance.model.likelihoods.real import HomoscedasticLikelihood


@dataclass(frozen=True, eq=False)
class StudentT(HomoscedasticLikelihood):
    """y = f(x) + scale · t_df: regression that outliers do not pull. ``scale=None`` learns the scale; ``df`` is given,
    for predictions need one form of the noise for all draws of θ. Compare a few by their scores on held-out rows.

    >>> StudentT(df=3.0, scale=1.0).log_prob(torch.zeros(1, 1), torch.zeros(1, 1), {})
    tensor([-1.0009])
    """

    df: float = 4.0
    in_torch: ClassVar[bool] = False  # torch has no Student distribution function

    def __init__(self, df: float = 4.0, scale: float | None = None, num_outputs: int = 1) -> None:
        object.__setattr__(self, "df", check_positive(df, "df"))
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "num_outputs", num_outputs)
        self.__post_init__()

    def standard_log_density(self, z: Tensor) -> Tensor:
        """−(ν+1)/2 log(1 + z²/ν) + constant."""
        nu = self.df
        norm = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - 0.5 * math.log(nu * math.pi)
        return norm - 0.5 * (nu + 1) * torch.log1p(z.square() / nu)

    def standard_cdf(self, z: Tensor) -> Tensor:
        """Student's distribution function."""
        values = scipy.special.stdtr(self.df, z.detach().double().cpu().numpy())
        return torch.as_tensor(values, dtype=z.dtype, device=z.device)

    def standard_quantile(self, level: Tensor) -> Tensor:
        """Student's quantiles."""
        values = scipy.special.stdtrit(self.df, level.detach().double().cpu().numpy())
        return torch.as_tensor(values, dtype=level.dtype, device=level.device)

    def standard_variance(self) -> float:
        """ν / (ν − 2), infinite for ν ≤ 2."""
        return self.df / (self.df - 2) if self.df > 2 else math.inf

    def exponential_moments(self) -> bool:
        """The tails are too heavy for E exp(t y)."""
        return False

    def scale_information(self) -> float:
        """2ν / (ν + 3)."""
        return 2 * self.df / (self.df + 3)

    def standard_entropy(self) -> float:
        """In closed form."""
        return float(scipy.stats.t(self.df).entropy())

    def standard_sample(self, like: Tensor, rng: torch.Generator) -> Tensor:
        """A normal over the root of a scaled χ²."""
        alpha = torch.full(like.shape, self.df / 2, device=like.device, dtype=torch.float64)
        chi2 = 2 * torch._standard_gamma(alpha, generator=rng)
        return super().standard_sample(like, rng) / (chi2 / self.df).sqrt().to(like.dtype)

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """(ν+1)(ν − z²) / (ν + z²)² / scale²: negative for outliers."""
        scale = self.noise_scale(outputs, learned)
        z2 = ((y - outputs) / scale).square()
        return diagonal((self.df + 1) * (self.df - z2) / (self.df + z2).square() / scale.square())

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """(ν+1) / (ν+3) / scale²."""
        value = (self.df + 1) / (self.df + 3) * self.noise_scale(outputs, learned).pow(-2)
        return diagonal(value.expand_as(outputs))
