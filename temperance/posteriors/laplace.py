"""A Gaussian around a mode, as curvature gives it; the evidence that comes with it; and such a posterior as a prior."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_positive
from temperance.core.encoding import Value, moved
from temperance.core.errors import ArgumentError, NumericalError
from temperance.core.fields import check_fields
from temperance.linalg.assembled import PosteriorCovariance
from temperance.model.likelihoods import Likelihood
from temperance.model.priors import BoundPrior, Prior
from temperance.model.priors.base import Density
from temperance.model.target import Target
from temperance.model.theta import Entry, Layout
from temperance.posteriors.gaussian import Gaussian


@dataclass(frozen=True, eq=False, repr=False)
class EvidenceTerms(Value):
    """What the evidence is made of, at the θ* around which the curvature was taken.

    Attributes:
        log_likelihood: log p(D | θ*).
        log_prior: log p(θ*) of the parameters that are random.
        gradient: ∇ log p(D | θ*), P numbers.
        slack: ½ gᵀ Λ⁻¹ g with g = ∇ log p(D, θ*), under the prior and noise that θ* was trained with: how many nats a
            Newton step would still gain. Zero at a mode.
        counted: how much of such a gain counts towards the evidence: all of it where Λ is dense, else nothing.
        effective: tr(H Λ⁻¹), the number of parameters that the data determine.
        prior_mean: the mean of a Gaussian prior, P numbers; ``None`` for another prior.
        num_targets: how many numbers y there are.
        noise: the noise scale of a ``Normal`` likelihood that was given one.
        dense: whether all of the curvature is kept.
        tempered: whether a temperature other than one is in force, or a likelihood that is no density in y.
    """

    log_likelihood: float
    log_prior: float
    gradient: Tensor
    slack: float
    counted: float
    effective: float
    prior_mean: Tensor | None = None
    num_targets: float = 0
    noise: float | None = None
    dense: bool = False
    tempered: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "gradient", "prior_mean")
        if not 0 <= self.num_targets < math.inf:
            raise ArgumentError(f"`num_targets` must be a number from 0 on; got {self.num_targets!r}.")

    @property
    def tolerance(self) -> float:
        """How large a slack still counts as a mode: a nat, or a tenth of a nat for each determined parameter."""
        return max(1.0, 0.1 * self.effective)


class CurvatureGaussian(Gaussian):
    """A Gaussian whose covariance is inverse curvature, in blocks: the network is linearised at its mean, and the
    evidence is known there."""

    operator: PosteriorCovariance
    terms: EvidenceTerms

    @abstractmethod
    def log_evidence(self, tolerance: float | None = None) -> float:
        """log p(D); refused where a Newton step would gain more than ``tolerance`` nats."""


@dataclass(frozen=True, eq=False, init=False, repr=False)
class LaplacePosterior(CurvatureGaussian):
    """N(θ*, Σ) with Σ = T (H + Λ_prior)⁻¹, the inverse curvature at θ*. Predictions linearise the network there.

    ``prior`` and ``likelihood`` are those of the target after their hyperparameters were chosen by evidence. ``width``
    is what other rows chose: a factor on the standard deviation of the prior under which the curvature is inverted, and
    no change of the prior itself. The evidence is under that, and so is this posterior as a prior for further data.
    """

    predicts: ClassVar[str] = "linearised"

    operator: PosteriorCovariance
    terms: EvidenceTerms  # type: ignore[misc]
    prior: Prior | None = None
    likelihood: Likelihood | None = None
    width: float = 1.0

    def __init__(
        self,
        mean: Tensor,
        operator: PosteriorCovariance,
        terms: EvidenceTerms,
        buffers: dict[str, Tensor] | None = None,
        prior: Prior | None = None,
        likelihood: Likelihood | None = None,
        width: float = 1.0,
    ) -> None:
        check_positive(width, "width")
        for name, value in (
            ("mean", mean),
            ("operator", operator),
            ("buffers", {} if buffers is None else buffers),
            ("terms", terms),
            ("prior", prior),
            ("likelihood", likelihood),
            ("width", width),
        ):
            object.__setattr__(self, name, value)
        self.__post_init__()

    def retarget(self, target: Target) -> Target:
        """The target with the prior and the noise that were chosen."""
        if self.prior is not None and target.layout.size == self.size:  # a prior over a part is not one over the whole
            target = target.with_prior(self.prior)
        if self.likelihood is not None:
            target = target.with_likelihood(self.likelihood)
        return target

    def log_evidence(self, tolerance: float | None = None) -> float:
        """log p(D) = log p(D | θ*) + log p(θ*) + ½ P log 2π − ½ log |Λ|, and with a dense Λ + ½ gᵀ Λ⁻¹ g, the step from
        θ* to the mode of the quadratic approximation.

        Away from a mode that step gains much and the approximation means nothing: where it is worth more than
        ``tolerance`` nats (by default one, or a tenth for each parameter that the data determine) the evidence is
        refused.
        """
        terms = self.terms
        if terms.tempered:
            raise ArgumentError(
                "the evidence is defined at temperature 1 and likelihood temperature 1, under a likelihood that sums "
                "to one over y (`normalised`); this posterior is tempered, or its likelihood is a factor for θ."
            )
        allowed = terms.tolerance if tolerance is None else tolerance
        if not terms.slack <= allowed:
            raise NumericalError(
                "the evidence needs a mode: here a Newton step would still gain "
                f"{terms.slack:.3g} nats, more than the {allowed:.3g} allowed. Train longer (a smaller learning rate "
                "at the end, full batches), or give a larger `tolerance` if you know what you compare."
            )
        rank = self.operator.rank
        log_det = -float(self._under_the_prior().log_det().double())
        laplace = 0.5 * rank * math.log(2 * math.pi) - 0.5 * log_det
        return terms.log_likelihood + terms.log_prior + laplace + terms.counted

    def as_prior(self) -> PosteriorPrior:
        """This posterior as the prior for further data: ``target.with_prior(fitted.posterior.as_prior())``."""
        if self.operator.rank != self.operator.size:
            raise ArgumentError(
                f"only {self.operator.rank} of {self.operator.size} parameters are random in this posterior; a prior "
                "needs a distribution over all of them. Use a Target with that subset instead."
            )
        if self.operator.temperature != 1.0:
            raise ArgumentError("a tempered posterior is no prior for further data; fit at temperature 1.")
        return PosteriorPrior(self.mean, self._under_the_prior())

    def at_width(self, width: float) -> LaplacePosterior:
        """The same with the prior's standard deviation times ``width`` in the covariance: Λ = ρ H + diag τ / width²."""
        plain = self._under_the_prior()
        operator = replace(plain, prior_precision=plain.prior_precision / width**2)
        return LaplacePosterior(self.mean, operator, self.terms, self.buffers, self.prior, self.likelihood, width)

    def _under_the_prior(self) -> PosteriorCovariance:
        """Σ at width one."""
        if self.width == 1.0:
            return self.operator
        return replace(self.operator, prior_precision=self.operator.prior_precision * self.width**2)


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorPrior(Prior):
    """N(mean, Σ) of an earlier posterior, correlations included: what was learned from data that came before."""

    mean: Tensor
    operator: PosteriorCovariance

    def __post_init__(self) -> None:
        check_fields(self, "mean")

    def densities(self, layout: Layout, entries: Sequence[Entry]) -> list[tuple[slice, Density]]:
        """See :class:`Prior`."""
        if layout.size != self.operator.size:
            raise ArgumentError(
                f"`prior`: the earlier posterior is over {self.operator.size} parameters, the target has {layout.size}."
            )
        return [(slice(0, layout.size), CorrelatedDensity(self.mean, self.operator))]

    def bind(self, layout: Layout, device: torch.device | str = "cpu") -> BoundPrior:
        """Over all of θ, what the likelihood learns included."""
        pieces = self.densities(layout, layout.entries)
        return BoundPrior([(piece, density.to(torch.device(device), layout.dtype)) for piece, density in pieces])


class CorrelatedGaussian(Density):
    """A prior that is a Gaussian with correlations, N(mean, Σ): its log density is one number for all of θ in place of
    one for each element, and its curvature is that of Σ's blocks."""

    mean: Tensor
    operator: PosteriorCovariance

    def curvature(self, theta: Tensor) -> Tensor:
        """Not elementwise: see ``operator``."""
        raise ArgumentError("a Gaussian with correlations has a curvature of all of θ together, not one by one.")


class CorrelatedDensity(CorrelatedGaussian):
    """An earlier posterior as a density."""

    def __init__(self, mean: Tensor, operator: PosteriorCovariance) -> None:
        self.mean, self.operator = mean, operator

    def log_density(self, theta: Tensor) -> Tensor:
        """log N(θ; mean, Σ), ... × 1."""
        return self.operator.log_density(theta - self.mean).unsqueeze(-1)

    def score(self, theta: Tensor) -> Tensor:
        """−Σ⁻¹ (θ − mean)."""
        return -self.operator.solve(theta - self.mean)

    def sample(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """n × P draws."""
        return torch.stack([self.mean + self.operator.draw(rng) for _ in range(shape[0])])

    def part(self, places: Tensor, size: int) -> Density:
        """Not had from a factored precision."""
        raise ArgumentError("an earlier posterior as a prior is over all of θ; it has no part for a subset.")

    def to(self, device: torch.device, dtype: torch.dtype) -> CorrelatedDensity:
        """See :class:`Density`."""
        return CorrelatedDensity(self.mean.to(device=device, dtype=dtype), moved(self.operator, device, dtype))
