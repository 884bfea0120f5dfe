"""Real targets: y = location + scale · noise, with Gaussian or heavier-tailed noise."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from temperance.core.checks import check_positive
from temperance.core.errors import ArgumentError, DataError, NetworkError, TemperanceWarning
from temperance.model.likelihoods.base import Learned, LearnedParameter, Likelihood, Task, check_real_targets, diagonal

LOG_SCALE = "likelihood.log_scale"


class RealLikelihood(Likelihood):
    """y_d = location_d + scale_d · z_d, with independent z_d of a standard form. Subclasses say where location and
    scale come from and what z is; everything a mixture over draws of θ needs follows from these."""

    task: ClassVar[Task] = "regression"

    @abstractmethod
    def location(self, outputs: Tensor) -> Tensor:
        """... × B × D."""

    @abstractmethod
    def noise_scale(self, outputs: Tensor, learned: Learned) -> Tensor:
        """Broadcastable to ... × B × D."""

    def standard_log_density(self, z: Tensor) -> Tensor:
        """log density of z; Gaussian unless overridden."""
        return -0.5 * z.square() - 0.5 * math.log(2 * math.pi)

    def standard_cdf(self, z: Tensor) -> Tensor:
        """P(Z ≤ z)."""
        return torch.special.ndtr(z)

    def standard_quantile(self, level: Tensor) -> Tensor:
        """The inverse of :meth:`standard_cdf`."""
        return torch.special.ndtri(level)

    def standard_variance(self) -> float:
        """Var z."""
        return 1.0

    def standard_entropy(self) -> float:
        """Entropy of z in nats."""
        return 0.5 * math.log(2 * math.pi * math.e)

    def standard_sample(self, like: Tensor, rng: torch.Generator) -> Tensor:
        """Draws of z with the shape of ``like``."""
        return torch.randn(like.shape, generator=rng, dtype=like.dtype, device=like.device)

    def log_prob(self, outputs: Tensor, y: Tensor, learned: Learned) -> Tensor:
        """Σ_d log f((y_d − location_d) / scale_d) − log scale_d."""
        scale = self.noise_scale(outputs, learned)
        z = (y - self.location(outputs)) / scale
        return (self.standard_log_density(z) - scale.log()).sum(-1)

    def cdf(self, outputs: Tensor, y: Tensor, learned: Learned) -> Tensor:
        """P(Y_d ≤ y_d), ... × B × D."""
        return self.standard_cdf((y - self.location(outputs)) / self.noise_scale(outputs, learned))

    def mean(self, outputs: Tensor, learned: Learned) -> Tensor:
        """The location."""
        return self.location(outputs)

    def variance(self, outputs: Tensor, learned: Learned) -> Tensor:
        """scale² Var z."""
        location = self.location(outputs)
        return (self.noise_scale(outputs, learned).square() * self.standard_variance()).expand_as(location)

    def entropy(self, outputs: Tensor, learned: Learned) -> Tensor:
        """Σ_d log scale_d + entropy of z."""
        location = self.location(outputs)
        log_scale = self.noise_scale(outputs, learned).log().expand_as(location)
        return (log_scale + self.standard_entropy()).sum(-1)

    def sample(self, outputs: Tensor, learned: Learned, rng: torch.Generator) -> Tensor:
        """Location plus noise."""
        location = self.location(outputs)
        return location + self.noise_scale(outputs, learned) * self.standard_sample(location, rng)

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`Likelihood`."""
        return check_real_targets(y, num_outputs, dtype, type(self).__name__)


@dataclass(frozen=True, eq=False)
class HomoscedasticLikelihood(RealLikelihood):
    """Noise of one scale for all inputs: given, or learned with the network when ``scale`` is ``None`` (the default).

    A learned scale is exp(log_scale) with log_scale ~ N(0, 1), a part of θ like any weight; ``num_outputs`` of them for
    targets of several columns.
    """

    scale: float | None = None
    num_outputs: int = 1

    def __post_init__(self) -> None:
        if self.scale is not None:
            check_positive(self.scale, "scale")
        if not isinstance(self.num_outputs, int) or self.num_outputs < 1:
            raise ArgumentError(f"`num_outputs` must be a positive integer; got {self.num_outputs!r}.")

    def begin(self, y: Tensor) -> dict[str, Tensor]:
        """Start a learned scale at the spread of the targets; warn where they are far from standardised."""
        mean, spread = y.double().mean(0), y.double().std(0, correction=0).clamp(min=1e-6)
        if self.scale is None:
            far = bool(((spread > 30) | (spread < 1 / 30) | (mean.abs() > 10 * spread.clamp(min=1.0))).any())
        else:
            far = bool((spread > 100 * self.scale).any())
        if far and len(y) > 1:
            noise = "learned noise" if self.scale is None else f"a noise scale of {self.scale:.3g}"
            warnings.warn(
                f"targets of mean {float(mean[0]):.3g} and spread {float(spread[0]):.3g} do not suit {noise}: "
                "standardise them (Data(x, y).standardise()): prior and learning rate expect numbers of order one.",
                TemperanceWarning,
                stacklevel=4,
            )
        if self.scale is not None or len(y) < 2:  # one number has no spread
            return {}
        start = spread.log() if self.num_outputs > 1 else spread.log().mean(0, keepdim=True)
        return {LOG_SCALE: start.to(y.dtype)}

    def learned_parameters(self) -> tuple[LearnedParameter, ...]:
        """The log of the noise scale, if it is not given."""
        if self.scale is not None:
            return ()
        return (LearnedParameter(LOG_SCALE, (self.num_outputs,), initial=-1.0, prior_mean=0.0, prior_scale=1.0),)

    def location(self, outputs: Tensor) -> Tensor:
        """The outputs themselves."""
        return outputs

    def noise_scale(self, outputs: Tensor, learned: Learned) -> Tensor:
        """The given scale, or the learned one."""
        if self.scale is not None:
            return outputs.new_tensor(self.scale)
        return learned[LOG_SCALE].exp().unsqueeze(-2)

    def scale_information(self) -> float:
        """Fisher information of log scale in one number y: 2 for Gaussian noise."""
        return 2.0

    def learned_fisher(self, outputs: Tensor, learned: Learned) -> Tensor:
        """The information of each log scale, once for every number that has it."""
        each = outputs.shape[-2] * outputs.shape[-1] // self.num_outputs
        eye = torch.eye(self.num_outputs, dtype=outputs.dtype, device=outputs.device)
        return self.scale_information() * each * eye

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`Likelihood`."""
        made = super().prepare(y, num_outputs, dtype)
        if self.scale is None and self.num_outputs not in (1, num_outputs):
            raise DataError(
                f"`num_outputs` of {type(self).__name__} must be 1 or the network's {num_outputs}; "
                f"got {self.num_outputs}."
            )
        return made


@dataclass(frozen=True, eq=False)
class Normal(HomoscedasticLikelihood):
    """y ~ N(f(x), scale²), independently per output. ``Normal()`` learns the noise; ``Normal(scale=0.1)`` fixes it.

    >>> Normal(scale=0.1).log_prob(torch.zeros(1, 1), torch.zeros(1, 1), {})
    tensor([1.3836])
    """

    def negative_log_likelihood(self, outputs: Tensor, y: Tensor, learned: Learned) -> Tensor:
        """The sum of squares directly, where the noise is given."""
        if self.scale is None:
            return super().negative_log_likelihood(outputs, y, learned)
        constant = math.log(self.scale) + 0.5 * math.log(2 * math.pi)
        squares = (y - outputs).square().sum((-1, -2))
        return squares * (0.5 / self.scale**2) + constant * outputs.shape[-1] * outputs.shape[-2]

    def fisher(self, outputs: Tensor, learned: Learned) -> Tensor:
        """I / scale²."""
        return diagonal(self.noise_scale(outputs, learned).pow(-2).expand_as(outputs))

    def hessian(self, outputs: Tensor, y: Tensor, learned: Learned) -> Tensor:
        """The same."""
        return self.fisher(outputs, learned)

    def perturb(self, y: Tensor, learned: Learned, temperature: float, rng: torch.Generator) -> Tensor | None:
        """y + √T · scale · ε, where the scale is given."""
        if self.scale is None:
            return None
        noise = torch.randn(y.shape, generator=rng, dtype=y.dtype, device=rng.device).to(y.device)
        return y + temperature**0.5 * self.noise_scale(y, learned) * noise


@dataclass(frozen=True, eq=False)
class StudentT(HomoscedasticLikelihood):
    """y = f(x) + scale · t_df: regression that outliers do not pull. ``scale=None`` learns the scale.

    >>> StudentT(df=3.0, scale=1.0).log_prob(torch.zeros(1, 1), torch.zeros(1, 1), {})
    tensor([-1.0009])
    """

    df: float = 4.0

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

    def hessian(self, outputs: Tensor, y: Tensor, learned: Learned) -> Tensor:
        """(ν+1)(ν − z²) / (ν + z²)² / scale²: negative for outliers."""
        scale = self.noise_scale(outputs, learned)
        z2 = ((y - outputs) / scale).square()
        return diagonal((self.df + 1) * (self.df - z2) / (self.df + z2).square() / scale.square())

    def fisher(self, outputs: Tensor, learned: Learned) -> Tensor:
        """(ν+1) / (ν+3) / scale²."""
        value = (self.df + 1) / (self.df + 3) * self.noise_scale(outputs, learned).pow(-2)
        return diagonal(value.expand_as(outputs))


@dataclass(frozen=True, eq=False)
class HeteroscedasticNormal(RealLikelihood):
    """y ~ N(m(x), s(x)²) with noise that depends on the input: the network gives 2D outputs, D means then D values of
    log s.

    >>> HeteroscedasticNormal().log_prob(torch.zeros(1, 2), torch.zeros(1, 1), {})
    tensor([-0.9189])
    """

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

    def noise_scale(self, outputs: Tensor, learned: Learned) -> Tensor:
        """exp of the second half."""
        return outputs[..., outputs.shape[-1] // 2 :].exp()

    def fisher(self, outputs: Tensor, learned: Learned) -> Tensor:
        """diag(1/s², 2)."""
        precision = self.noise_scale(outputs, learned).pow(-2)
        return diagonal(torch.cat([precision, torch.full_like(precision, 2.0)], -1))

    def hessian(self, outputs: Tensor, y: Tensor, learned: Learned) -> Tensor:
        """Blocks 1/s², 2δ/s², 2δ²/s² with δ = y − m."""
        precision = self.noise_scale(outputs, learned).pow(-2)
        delta = y - self.location(outputs)
        cross = diagonal(2 * delta * precision)
        top = torch.cat([diagonal(precision), cross], -1)
        bottom = torch.cat([cross, diagonal(2 * delta.square() * precision)], -1)
        return torch.cat([top, bottom], -2)
