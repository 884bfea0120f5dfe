"""Real targets: y = location + scale · noise, with Gaussian or heavier-tailed noise."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_positive
from temperance.core.errors import DataError, TemperanceWarning
from temperance.core.outcomes import Outcome, Reals
from temperance.model.likelihoods.base import (
    LearnedParameter,
    LearnedValues,
    QuantityLikelihood,
    check_real_targets,
)

LOG_SCALE = "likelihood.log_scale"


class RealLikelihood(QuantityLikelihood):
    """y_d = location_d + scale_d · z_d, with independent z_d of a standard form. Subclasses say where location and
    scale come from and what z is; everything a mixture over draws of θ needs follows from these."""

    outcome: ClassVar[Outcome] = Reals()

    @abstractmethod
    def location(self, outputs: Tensor) -> Tensor:
        """... × B × D."""

    @abstractmethod
    def noise_scale(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
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

    @property
    def additive(self) -> bool:
        """Whether y = f + ε with noise ε whose scale does not depend on f."""
        return False

    @property
    def normals(self) -> tuple[tuple[float, float], ...]:
        """z as a mixture of normals of mean 0, the share and the standard deviation of each; none where it is no such
        mixture. Where the noise is also additive, and f Gaussian, so is y under each of them."""
        return ()

    def keeps_gaussian(self, outputs: int) -> bool:
        """Whether y is a mixture of Gaussians where f is Gaussian. Of several outputs each has a normal of its own."""
        return self.additive and len(self.normals) > 0 and (outputs == 1 or len(self.normals) == 1)

    def standard_log_moment(self, t: Tensor) -> Tensor | None:
        """log E exp(t z), where it is known in closed form."""
        return None

    def standard_sample(self, like: Tensor, rng: torch.Generator) -> Tensor:
        """Draws of z with the shape of ``like``."""
        return torch.randn(like.shape, generator=rng, dtype=like.dtype, device=like.device)

    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """Σ_d log f((y_d − location_d) / scale_d) − log scale_d."""
        scale = self.noise_scale(outputs, learned)
        z = (y - self.location(outputs)) / scale
        return (self.standard_log_density(z) - scale.log()).sum(-1)

    def cdf(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """P(Y_d ≤ y_d), ... × B × D."""
        return self.standard_cdf((y - self.location(outputs)) / self.noise_scale(outputs, learned))

    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """The location."""
        return self.location(outputs)

    def variance(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """scale² Var z."""
        location = self.location(outputs)
        return (self.noise_scale(outputs, learned).square() * self.standard_variance()).expand_as(location)

    def entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Σ_d log scale_d + entropy of z."""
        location = self.location(outputs)
        log_scale = self.noise_scale(outputs, learned).log().expand_as(location)
        return (log_scale + self.standard_entropy()).sum(-1)

    def sample(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        """Location plus noise."""
        location = self.location(outputs)
        return location + self.noise_scale(outputs, learned) * self.standard_sample(location, rng)

    def log_exponential_moment(self, outputs: Tensor, learned: LearnedValues, t: float) -> Tensor | None:
        """t · location + log E exp(t · scale · z)."""
        location = self.location(outputs).double()
        each = self.standard_log_moment(t * self.noise_scale(outputs, learned).double())
        return None if each is None else t * location + each

    def begin(self, y: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Refuse targets whose squares, of which variances are made, are infinite."""
        y = y if weights is None else y[weights > 0]
        largest = float(y.abs().max()) if y.numel() else 0.0
        if largest > 1e-3 * torch.finfo(y.dtype).max ** 0.5:
            raise DataError(
                f"`y` must be numbers whose squares {str(y.dtype).removeprefix('torch.')} can hold; got {largest:.3g}. "
                "Remove the row if it is a mistake, or change the units: Data(x, y).standardise()."
            )
        return {}

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`Likelihood`."""
        return check_real_targets(y, num_outputs, dtype, type(self).__name__)


def warn_of_units(mean: Tensor, spread: Tensor, noise: str | float) -> None:
    """Warn where targets of this mean and spread are no numbers of order one; of a noise of a given size, where they
    are far larger."""
    if isinstance(noise, str):
        far = bool(((spread > 30) | (spread < 1 / 30) | (mean.abs() > 10 * spread.clamp(min=1.0))).any())
    else:
        far = bool((spread > 100 * noise).any())
    if far:
        words = noise if isinstance(noise, str) else f"a noise scale of {noise:.3g}"
        warnings.warn(
            f"targets of mean {float(mean[0]):.3g} and spread {float(spread[0]):.3g} do not suit {words}: "
            "standardise them (Data(x, y).standardise()): prior and learning rate expect numbers of order one.",
            TemperanceWarning,
            stacklevel=5,
        )


class GaussianNoise(RealLikelihood):
    """z is standard normal: y ~ N(location, scale²)."""

    @property
    def normals(self) -> tuple[tuple[float, float], ...]:
        """One."""
        return ((1.0, 1.0),)

    def standard_log_moment(self, t: Tensor) -> Tensor | None:
        """t² / 2."""
        return 0.5 * t.square()


class AdditiveGaussianNoise(GaussianNoise):
    """y = f + ε with Gaussian ε whose scale does not depend on f: where f is Gaussian itself, so is y, and the
    variances add."""

    @property
    def additive(self) -> bool:
        """It is."""
        return True


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
        check_count(self.num_outputs, "num_outputs")

    def begin(self, y: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Start a learned scale at the spread of the targets; warn where they are far from standardised."""
        super().begin(y, weights)
        share = torch.ones(len(y), 1, dtype=torch.float64, device=y.device)
        if weights is not None:
            y, share = y[weights > 0], weights[weights > 0].to(share).unsqueeze(-1)
        share = share / share.sum()
        mean = (share * y.double()).sum(0)
        spread = (share * (y.double() - mean).square()).sum(0).sqrt().clamp(min=1e-6)
        if len(y) > 1:
            warn_of_units(mean, spread, "learned noise" if self.scale is None else self.scale)
        if self.scale is not None or len(y) < 2:  # one number has no spread
            return {}
        start = spread.log() if self.num_outputs > 1 else spread.log().mean(0, keepdim=True)
        return {LOG_SCALE: start.to(y.dtype)}

    def learned_parameters(self) -> tuple[LearnedParameter, ...]:
        """The log of the noise scale, if it is not given."""
        if self.scale is not None:
            return ()
        return (LearnedParameter(LOG_SCALE, (self.num_outputs,), initial=-1.0, prior_mean=0.0, prior_scale=1.0),)

    @property
    def additive(self) -> bool:
        """It is."""
        return True

    def log_noise_names(self) -> tuple[str, ...]:
        """The log of the noise scale, if it is not given."""
        return () if self.scale is not None else (LOG_SCALE,)

    def location(self, outputs: Tensor) -> Tensor:
        """The outputs themselves."""
        return outputs

    def noise_scale(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """The given scale, or the learned one."""
        if self.scale is not None:
            return outputs.new_tensor(self.scale)
        return learned[LOG_SCALE].exp().unsqueeze(-2)

    def scale_information(self) -> float:
        """Fisher information of log scale in one number y: 2 for Gaussian noise."""
        return 2.0

    def learned_fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
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
