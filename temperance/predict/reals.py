"""The predictive of real numbers: a mixture whose members are location + scale · z."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import check_level
from temperance.core.outcomes import Reals
from temperance.model.likelihoods import GaussianNoise, RealLikelihood
from temperance.predict.forms import Reshaped
from temperance.predict.predictive import PREDICTIVES
from temperance.predict.quantiles import mixture_quantile
from temperance.predict.quantities import ValuePredictive

_TAIL = (1e-10, 1e-7, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.15, 0.3)
_CUTS = (*_TAIL, 0.5, *(1 - level for level in reversed(_TAIL)))  # levels of the quantiles at which the line is cut
_MEMBERS = 512  # more members than these are represented by so many
_CUT_MEMBERS = 128
_GAUSS = 4
_EVALUATIONS = 2**21  # of member densities at once
_OUTER = 64  # members over which the outer average of the mutual information runs; all, if there are fewer
_SOBOL = 256  # quasi-random points of the noise where there are several outputs


class RealPredictive(ValuePredictive):
    """For ``Normal``, ``HeteroscedasticNormal``, ``StudentT`` and ``ContaminatedNormal``."""

    @property
    def _family(self) -> RealLikelihood:
        return cast(RealLikelihood, self.likelihood)

    def reshaped(self, law: RealLikelihood) -> ValuePredictive | None:
        """See :class:`ValuePredictive`."""
        if not isinstance(self.likelihood, GaussianNoise):
            return None
        return RealPredictive(self.source, Reshaped(self.likelihood, law))

    def quantile(self, level: float) -> Tensor:
        """Where the mixture's distribution function reaches ``level``; see :mod:`temperance.predict.quantiles`."""
        wanted = check_level(level)

        def solve(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            location, scale = self._family.location(outputs), self._family.noise_scale(outputs, learned)
            return mixture_quantile(self._family, location, scale, self.weights, wanted).to(outputs.dtype)

        return self._over_rows(solve)

    def entropy(self) -> Tensor:
        """The members' expected entropy, in closed form, plus the mutual information."""
        return self.aleatoric() + self.mutual_information()

    def mutual_information(self) -> Tensor:
        """Σ_s w_s KL(p_s ‖ Σ w p), each member's divergence from the mixture: by numerical integration for one output,
        by quasi-random points of each member's noise for several. It is exactly zero where all members agree."""

        def compute(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            location = self._family.location(outputs).double()
            scale = self._family.noise_scale(outputs, learned).double().expand_as(location)
            weights = self.weights.double() / self.weights.double().sum()
            if location.shape[-1] == 1:
                made = mixture_divergence(self._family, location[..., 0], scale[..., 0], weights)
            else:
                made = self._sampled_divergence(location, scale, weights)
            return made.to(outputs.dtype)

        return self._over_rows(compute)

    def _sampled_divergence(self, location: Tensor, scale: Tensor, weights: Tensor) -> Tensor:
        points, shares = self._noise_points(location)
        total = torch.zeros(location.shape[1], dtype=torch.float64, device=location.device)
        members = representatives(weights, _OUTER)
        for member in members.tolist():
            for z, share in zip(points, shares.tolist(), strict=True):
                y = location[member] + scale[member] * z
                log_p = (self._family.standard_log_density((y - location) / scale) - scale.log()).sum(-1)
                mixed = (log_p + weights.log().unsqueeze(-1)).logsumexp(0)
                total += share * (log_p[member] - mixed) / len(members)
        return total

    def _noise_points(self, location: Tensor) -> tuple[Tensor, Tensor]:
        """Sobol points of the standard noise, and their weights."""
        uniform = torch.quasirandom.SobolEngine(location.shape[-1], scramble=True, seed=0).draw(_SOBOL)
        made = self._family.standard_quantile(uniform.double().clamp(1e-9, 1 - 1e-9)).to(location.device)
        return made, torch.full((_SOBOL,), 1.0 / _SOBOL)


def representatives(weights: Tensor, limit: int) -> Tensor:
    """At most about ``limit`` members that stand for all, each once for its share of the weight (systematic
    resampling); equal weights and few members give each member once."""
    if len(weights) <= limit and bool((weights == weights[0]).all()):
        return torch.arange(len(weights))
    levels = (torch.arange(limit, dtype=torch.float64) + 0.5) / limit
    return torch.searchsorted(weights.double().cumsum(0).cpu(), levels).clamp(max=len(weights) - 1)


def mixture_divergence(family: RealLikelihood, location: Tensor, scale: Tensor, weights: Tensor) -> Tensor:
    """Σ_s w_s KL(p_s ‖ Σ_t w_t p_t) for one-dimensional members location + scale · z (S × rows), per row.

    The line is cut at quantiles of the members (of about 96 that stand for all, where there are more than 128), so that
    a narrow member inside a wide one is seen, and each piece is integrated by Gauss–Legendre. Each member's sum is
    divided by the mass that the rule finds for it, which corrects what lies beyond the outermost quantiles; a member of
    more than 128 whose mass is not found is left out of the average.
    """
    if len(weights) > _MEMBERS:
        members = representatives(weights, _MEMBERS).to(location.device)
        location, scale = location[members], scale[members]
        weights = torch.full((_MEMBERS,), 1.0 / _MEMBERS, dtype=weights.dtype, device=weights.device)
    cuts = family.standard_quantile(torch.tensor(_CUTS, dtype=torch.float64)).to(location.device)
    nodes, shares = np.polynomial.legendre.leggauss(_GAUSS)
    node, share = (torch.as_tensor(v, device=location.device) for v in (nodes, shares))
    some = torch.arange(len(weights), device=location.device)
    if len(weights) > _CUT_MEMBERS:
        evenly = torch.linspace(0, len(weights) - 1, _CUT_MEMBERS // 4).long()
        some = torch.cat([representatives(weights, _CUT_MEMBERS // 2), evenly]).unique().to(location.device)
    log_weights = weights.log()
    made = []
    at_once = max(1, _EVALUATIONS // (len(weights) * len(some) * len(cuts) * _GAUSS))
    for rows in torch.arange(location.shape[1], device=location.device).split(at_once):
        at, width = location[:, rows], scale[:, rows]
        edges = (at[some].unsqueeze(0) + cuts.view(-1, 1, 1) * width[some].unsqueeze(0)).flatten(0, 1).sort(0).values
        half = (edges[1:] - edges[:-1]) / 2
        y = (edges[:-1] + half).unsqueeze(0) + half.unsqueeze(0) * node.view(-1, 1, 1)
        measure = (half.unsqueeze(0) * share.view(-1, 1, 1)).flatten(0, 1)
        z = (y.flatten(0, 1).unsqueeze(0) - at.unsqueeze(1)) / width.unsqueeze(1)
        log_p = family.standard_log_density(z) - width.log().unsqueeze(1)
        mixed = (log_p + log_weights.view(-1, 1, 1)).logsumexp(0)
        density = log_p.exp() * measure
        mass = density.sum(1)
        found = (mass > 0.5).double() * weights.unsqueeze(-1)
        divergence = (density * (log_p - mixed)).sum(1) / mass.clamp(min=1e-12)
        made.append((found * divergence).sum(0) / found.sum(0))
    return torch.cat(made)


PREDICTIVES.register(Reals, RealPredictive)
