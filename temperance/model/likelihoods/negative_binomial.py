"""Counts that vary more than a Poisson law lets them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import scipy  # its parts are imported when they are used
import torch
from torch import Tensor
from torch.nn import functional as F

from temperance.core.checks import check_count, check_positive
from temperance.core.errors import DataError
from temperance.model.likelihoods.base import LearnedParameter, LearnedValues
from temperance.model.likelihoods.counts import LogMeanCounts, expectation, normal_entropy
from temperance.model.likelihoods.poisson import poisson_draws

LOG_DISPERSION = "likelihood.log_dispersion"
_LEAST, _MOST = -14.0, 10.0  # of log a: below, it is a Poisson law to six digits
_LARGE, _NARROW = 1e4, 0.02  # means above with a standard deviation of that part or less are Gaussian enough


@dataclass(frozen=True, eq=False)
class NegativeBinomial(LogMeanCounts):
    """Counts with mean μ = exp f and variance μ + a μ², independently per output: a Poisson law whose rate is itself
    spread, like a gamma variable of mean μ and squared coefficient of variation a = ``dispersion``. With r = 1/a,

        p(y | f) = Γ(y + r) / (Γ(r) y!) · (r / (r + μ))^r · (μ / (r + μ))^y.

    ``NegativeBinomial()`` learns log a with the network, N(−1, 1.5²) beforehand, the same for all inputs
    (``num_outputs`` of them for targets of several columns); ``NegativeBinomial(dispersion=0.5)`` fixes a. As a → 0 it
    is ``Poisson()``.

    The Fisher information is μ / (1 + a μ) in f and has nothing in common with that of a; the Hessian depends on y.

    >>> NegativeBinomial(dispersion=1.0).log_prob(torch.zeros(1, 1), torch.tensor([[2.0]]), {}).exp()
    tensor([0.1250])
    """

    in_torch: ClassVar[bool] = False  # torch has no incomplete beta function

    dispersion: float | None = None
    num_outputs: int = 1

    def __post_init__(self) -> None:
        if self.dispersion is not None:
            check_positive(self.dispersion, "dispersion")
        check_count(self.num_outputs, "num_outputs")

    def learned_parameters(self) -> tuple[LearnedParameter, ...]:
        """The log of the dispersion, if it is not given."""
        if self.dispersion is not None:
            return ()
        return (LearnedParameter(LOG_DISPERSION, (self.num_outputs,), initial=-1.0, prior_mean=-1.0, prior_scale=1.5),)

    def begin(self, y: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Start a learned dispersion at that of the targets, (Var y − mean) / mean²: what x explains is still in it."""
        if self.dispersion is not None or len(y) < 2:
            return {}
        counts, share = y.double(), torch.ones(len(y), 1, dtype=torch.float64, device=y.device)
        if weights is not None:
            share = weights.to(share).view(-1, 1)
        share = share / share.sum()
        mean = (share * counts).sum(0).clamp(min=1e-6)
        variance = (share * (counts - mean).square()).sum(0) * len(y) / (len(y) - 1)
        start = ((variance - mean) / mean.square()).clamp(0.05, 5.0).log()
        start = start if self.num_outputs > 1 else start.mean(0, keepdim=True)
        return {LOG_DISPERSION: start.to(y.dtype)}

    def prepare(self, y: Tensor, num_outputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """See :class:`Likelihood`."""
        made = super().prepare(y, num_outputs, dtype)
        if self.dispersion is None and self.num_outputs not in (1, made.shape[1]):
            raise DataError(
                f"`num_outputs` of NegativeBinomial must be 1 or the {made.shape[1]} columns of y; got "
                f"{self.num_outputs}."
            )
        return made

    def _log_dispersion(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """log a in float64, broadcastable to ... × B × D."""
        if self.dispersion is not None:
            return outputs.new_tensor(math.log(self.dispersion), dtype=torch.float64).clamp(_LEAST, _MOST)
        return learned[LOG_DISPERSION].double().clamp(_LEAST, _MOST).unsqueeze(-2)

    def log_mass(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """log Γ(y + r) − log Γ(r) − log y! − r log(1 + a μ) − y log(1 + 1/(a μ)), in float64: the first two are large
        and nearly equal."""
        log_a, y = self._log_dispersion(outputs, learned), y.double()
        r, t = (-log_a).exp(), outputs.double() + log_a
        ways = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
        return (ways - r * F.softplus(t) - y * F.softplus(-t)).to(outputs.dtype)

    def _damped(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """1 / (1 + a μ)."""
        return torch.sigmoid(-(outputs + self._log_dispersion(outputs, learned).to(outputs.dtype)))

    def slope(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """(y − μ) / (1 + a μ)."""
        return (y - outputs.exp()) * self._damped(outputs, learned)

    def curvature(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """(1 + a y) μ / (1 + a μ)²."""
        a = self._log_dispersion(outputs, learned).exp().to(outputs.dtype)
        return (1 + a * y) * outputs.exp() * self._damped(outputs, learned).square()

    def information(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """μ / (1 + a μ)."""
        return outputs.exp() * self._damped(outputs, learned)

    def learned_slope(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """∂ log p / ∂ log a = −r (ψ(y + r) − ψ(r) − log(1 + a μ) + (μ − y) / (r + μ))."""
        log_a = self._log_dispersion(outputs, learned)
        r, t, mean = (-log_a).exp(), outputs.double() + log_a, outputs.double().exp()
        inner = torch.digamma(y + r) - torch.digamma(r) - F.softplus(t)
        return -r * inner - (mean - y) * torch.sigmoid(-t)

    def learned_fisher(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """That of each log dispersion, over the counts that have it."""
        return self.by_learned(self.learned_information(outputs, learned)).to(outputs.dtype)

    def by_learned(self, each: Tensor) -> Tensor:
        """See :class:`LogMeanCounts`."""
        total = each.sum(0) if self.num_outputs > 1 else each.sum().view(1)
        return torch.diag(total)

    def variance(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """μ + a μ²."""
        mean = outputs.exp()
        return mean + self._log_dispersion(outputs, learned).exp().to(outputs.dtype) * mean.square()

    def reach(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Twelve standard deviations, and thirty times the length a μ + 1 over which the tail falls by e."""
        wide = outputs.double()
        mean, a = wide.exp(), self._log_dispersion(outputs, learned).exp()
        return mean + 12 * (mean + a * mean.square()).sqrt() + 30 * (a * mean + 1)

    def nearly_normal(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """Large means with little dispersion."""
        mean = outputs.double().exp()
        relative = 1 / mean + self._log_dispersion(outputs, learned).exp()
        return (mean > _LARGE) & (relative < _NARROW**2)

    def cdf(self, outputs: Tensor, y: Tensor, learned: LearnedValues) -> Tensor:
        """P(Y ≤ y) = I(r, ⌊y⌋ + 1; 1 / (1 + a μ)), the regularised incomplete beta function; 0 below zero."""
        log_a = self._log_dispersion(outputs, learned)
        r, p, whole = (-log_a).exp(), torch.sigmoid(-(outputs.double() + log_a)), y.double().floor()
        arguments = torch.broadcast_tensors(r, whole.clamp(min=0) + 1, p)
        value = scipy.special.betainc(*(v.detach().cpu().numpy() for v in arguments))
        made = torch.as_tensor(value, device=outputs.device)
        return torch.where(whole < 0, torch.zeros_like(made), made).to(outputs.dtype)

    def exponential_moments(self) -> bool:
        """E exp(t y) is infinite from some t on."""
        return False

    def each_entropy(self, outputs: Tensor, learned: LearnedValues) -> Tensor:
        """−Σ_k p log p; that of a Gaussian where it is one."""
        wide, own = outputs.double(), {name: value.double() for name, value in learned.items()}
        normal = self.nearly_normal(wide, own)
        found = expectation(self, wide, own, lambda _, log_p: -log_p.exp() * log_p, ~normal)
        return torch.where(normal, normal_entropy(self.variance(wide, own)), found).to(outputs.dtype)

    def sample(self, outputs: Tensor, learned: LearnedValues, rng: torch.Generator) -> Tensor:
        """Poisson draws with rates that are gamma draws."""
        mean = outputs.double().clamp(max=40.0).exp()
        a = self._log_dispersion(outputs, learned).exp().expand_as(mean)
        rate = mean * a * torch._standard_gamma(1 / a, generator=rng)
        return poisson_draws(rate, rng).to(outputs.dtype)
