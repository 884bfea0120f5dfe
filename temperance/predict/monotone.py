"""A predictive of bent units: y' = g⁻¹(y) for an increasing g, such as prices whose logarithm was learned.

The sibling of :class:`~temperance.predict.affine.AffinePredictive` where units are not only shifted and scaled. What
depends on order alone follows without approximation, and so does the density, by its Jacobian:

    log p'(y') = log p(g(y')) + Σ_d log g'(y'_d),      F'(y') = F(g(y')),      q'(α) = g⁻¹(q(α)),      I' = I,
    H' = H − Σ_d E[log g'(y'_d)].

Means and variances do not: E g⁻¹(y) is no g⁻¹(E y). They are the members' own, in closed form where there is one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.model.likelihoods import QuantityLikelihood, RealLikelihood
from temperance.model.likelihoods.base import LearnedValues
from temperance.predict.quantities import ValuePredictive
from temperance.predict.source import MappedOutputs, OutputBlock, Outputs

_NODES = 64
_MOST = 340.0  # exponents are cut here: e^340 and its square are still finite in float64


class Monotone(Value, ABC):
    """An increasing map g from the user's units onto all real numbers, in which the network learns."""

    least: float = -math.inf
    """Numbers of the user's units lie above this."""

    @abstractmethod
    def forward(self, y: Tensor) -> Tensor:
        """g(y); −∞ for what the user's units cannot be."""

    @abstractmethod
    def inverse(self, z: Tensor) -> Tensor:
        """g⁻¹(z)."""

    @abstractmethod
    def log_slope(self, y: Tensor) -> Tensor:
        """log g'(y); −∞ for what the user's units cannot be."""

    def moments(self, family: RealLikelihood, outputs: Tensor, learned: LearnedValues) -> tuple[Tensor, Tensor]:
        """Mean and variance of g⁻¹(y) of each member: by quadrature over the noise, unless a map knows better."""
        nodes, shares = np.polynomial.legendre.leggauss(_NODES)
        level = torch.as_tensor((nodes + 1) / 2)
        share = torch.as_tensor(shares / 2).to(outputs.device)
        location = family.location(outputs).double()
        scale = family.noise_scale(outputs, learned).double()
        noise = family.standard_quantile(level).to(location.device)
        each = torch.stack([self.inverse(location + scale * z) for z in noise])
        mean = torch.tensordot(share, each, dims=1)
        return mean, torch.tensordot(share, (each - mean).square(), dims=1)

    def bounded(self, most: float) -> Monotone:
        """The same map, by which no mean is more than ``most``; itself, where means need no bound."""
        return self

    @abstractmethod
    def mean_log_slope(self, base: ValuePredictive) -> Tensor:
        """Σ_d E[log g'(g⁻¹(y_d))] of each row."""


@dataclass(frozen=True, eq=False)
class Log(Monotone):
    """g(y) = log y, for y > 0: prices, sizes, durations.

    Under Gaussian noise members are log-normal: E y = exp(m + s²/2), Var y = (exp(s²) − 1) (E y)². Noise without
    exponential moments (Student's) has no mean here, and is refused. Exponents are cut at ±340, so that nothing
    overflows however far an input lies from the training rows.

    ``most`` bounds log E y of each member. A log-normal mean is made by its upper tail, and where s is large by a part
    of the tail in which nobody has ever seen a number: exp(s²/2) is then a property of the normal distribution and not
    of the data. Tables set it to ten times the largest number that was learned from; quantiles, intervals, densities
    and draws know nothing of it.

    >>> Log().inverse(Log().forward(torch.tensor([2.0, 0.0])))
    tensor([2., 0.])
    """

    most: float = _MOST

    least = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.most, int | float) or not self.most <= _MOST:
            raise ArgumentError(f"`most` must be the logarithm of a number, {_MOST:g} or less; got {self.most!r}.")

    def forward(self, y: Tensor) -> Tensor:
        """log y."""
        return y.clamp(min=0.0).log()

    def inverse(self, z: Tensor) -> Tensor:
        """exp z."""
        return torch.where(z == math.inf, z, z.clamp(max=_MOST).exp())

    def log_slope(self, y: Tensor) -> Tensor:
        """−log y."""
        return torch.where(y > 0, -y.clamp(min=1e-300).log(), torch.full_like(y, -math.inf))

    def moments(self, family: RealLikelihood, outputs: Tensor, learned: LearnedValues) -> tuple[Tensor, Tensor]:
        """From E exp(y) and E exp(2 y)."""
        first = family.log_exponential_moment(outputs, learned, 1.0)
        second = family.log_exponential_moment(outputs, learned, 2.0)
        if first is None or second is None:
            return super().moments(family, outputs, learned)
        spread = (second - 2 * first).clamp(min=0.0, max=_MOST)
        mean = first.clamp(max=self.most)
        return mean.exp(), (2 * mean.clamp(max=_MOST - spread / 2)).exp() * torch.expm1(spread)

    def bounded(self, most: float) -> Log:
        """See :class:`Monotone`."""
        return replace(self, most=min(math.log(most), _MOST))

    def mean_log_slope(self, base: ValuePredictive) -> Tensor:
        """−E[y] of the base."""
        return -base.mean().double().sum(-1)


@dataclass(frozen=True, eq=False)
class Bent(QuantityLikelihood):
    """The likelihood of the members of a :class:`MonotonePredictive`: that of ``family`` in the user's units. It
    describes members of a predictive and is not for training."""

    family: RealLikelihood
    transform: Monotone

    @property
    def outcome(self) -> Any:  # type: ignore[override]
        """That of the family."""
        return self.family.outcome

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`~temperance.model.likelihoods.Likelihood`."""
        return self.family.prepare(y, num_outputs, dtype)

    def log_prob(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """log p(g(y)) + Σ log g'(y)."""
        slope = self.transform.log_slope(y).sum(-1)
        found = self.family.log_prob(outputs, self.transform.forward(y).clamp(min=-1e300), learned)
        return torch.where(slope == -math.inf, slope.expand_as(found), found + slope)

    def cdf(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """F(g(y))."""
        return self.family.cdf(outputs, self.transform.forward(y), learned)

    def mean(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """E g⁻¹(y)."""
        return self.transform.moments(self.family, outputs, learned)[0]

    def variance(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Var g⁻¹(y)."""
        return self.transform.moments(self.family, outputs, learned)[1]

    def entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Not of a member alone: a predictive knows it of all of them."""
        raise NotImplementedError("ask the predictive for its entropy")

    def sample(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        """g⁻¹ of draws."""
        return self.transform.inverse(self.family.sample(outputs, learned, rng))

    def exponential_moments(self) -> bool:
        """Nobody knows."""
        return False

    def hessian(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """Not for training."""
        raise NotImplementedError("a predictive in other units is not trained: use the base's likelihood")

    def fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Not for training."""
        raise NotImplementedError("a predictive in other units is not trained: use the base's likelihood")


class _Wide(MappedOutputs):
    """The members of ``base`` in float64, for exponentials of float32 are coarse."""

    def __init__(self, base: Outputs) -> None:
        self.base, self.engine, self.rows, self.num_outputs = base, base.engine, base.rows, base.num_outputs
        weights = base.weights.double()
        self.weights = weights / weights.sum()

    def blocks(self) -> Iterator[OutputBlock]:
        """See :class:`~temperance.predict.source.Source`."""
        for rows, outputs, learned in self.base.blocks():
            yield rows, outputs.double(), {name: value.double() for name, value in learned.items()}


class MonotonePredictive(ValuePredictive):
    """The predictive of y' = g⁻¹(y), for y of ``base`` and g the ``transform``.

    >>> import temperance as tp
    >>> from temperance.predict.calibrated import from_outputs
    >>> made = MonotonePredictive(from_outputs(torch.tensor([[1.0]]), tp.Normal(scale=0.5)), Log())
    >>> made.quantile(0.5), made.mean()  # e, and e · exp(0.5² / 2)
    (tensor([[2.7183]], dtype=torch.float64), tensor([[3.0802]], dtype=torch.float64))
    """

    def __init__(self, base: ValuePredictive, transform: Monotone) -> None:
        family = getattr(base, "likelihood", None)
        if not isinstance(base, ValuePredictive) or not isinstance(family, RealLikelihood):
            what = f"{type(base).__name__} of {family!r}" if isinstance(base, ValuePredictive) else repr(base)
            raise ArgumentError(f"`base` must be the predictive of real targets, not of counts or classes; got {what}.")
        if not isinstance(transform, Monotone):
            raise ArgumentError(f"`transform` must be an increasing map such as Log(); got {transform!r}.")
        if not family.exponential_moments():
            raise ArgumentError(
                f"`base` must have noise whose exponential has a mean; {type(family).__name__} has none. Use Normal()."
            )
        self.base, self.transform = base, transform
        super().__init__(_Wide(base.source), Bent(family, transform))

    def _known(self, y: Any) -> Tensor:
        """Targets in float64, after the checks that any targets get."""
        self._targets(y)
        given = torch.as_tensor(y).to(self.weights.device)
        return self.likelihood.prepare(given, self.source.num_outputs, torch.float64)

    def symmetric(self) -> tuple[ValuePredictive, Monotone | None]:
        """The base: there the noise is symmetric."""
        return self.base, self.transform

    def log_prob(self, y: Any) -> Tensor:
        """log p(y' | x, D) per row."""
        known = self._known(y)
        slope = self.transform.log_slope(known).sum(-1)
        possible = slope > -math.inf
        inner = torch.where(possible.unsqueeze(-1), self.transform.forward(known), torch.zeros_like(known))
        return torch.where(possible, self.base.log_prob(inner).double() + slope, slope)

    def joint_log_prob(self, y: Any) -> Tensor:
        """log p of all rows together."""
        known = self._known(y)
        slope = self.transform.log_slope(known).sum()
        if slope == -math.inf:
            return slope
        return self.base.joint_log_prob(self.transform.forward(known)).double() + slope

    def aleatoric(self) -> Tensor:
        """The base's − E log g'."""
        return self.base.aleatoric().double() - self.transform.mean_log_slope(self.base)

    def entropy(self) -> Tensor:
        """The base's − E log g'."""
        return self.base.entropy().double() - self.transform.mean_log_slope(self.base)

    def mutual_information(self) -> Tensor:
        """The base's: units tell nothing of θ."""
        return self.base.mutual_information()

    def cdf(self, y: Any) -> Tensor:
        """P(Y' ≤ y'), rows × outputs."""
        known = self._known(y)
        inner = self.transform.forward(known)
        found = self.base.cdf(torch.where(inner == -math.inf, torch.zeros_like(inner), inner)).double()
        return torch.where(inner == -math.inf, torch.zeros_like(found), found)

    def quantile(self, level: float) -> Tensor:
        """g⁻¹ of the base's."""
        return self.transform.inverse(self.base.quantile(level).double())

    def as_functions(self) -> MonotonePredictive:
        """The base's, in the user's units."""
        base = self.base.as_functions()
        assert isinstance(base, ValuePredictive)
        return self if base is self.base else MonotonePredictive(base, self.transform)

    def sample(self, n: int = 1, seed: int = 0) -> Tensor:
        """g⁻¹ of the base's draws."""
        return self.transform.inverse(self.base.sample(n, seed).double())
