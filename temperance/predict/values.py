"""Predictives for real targets and counts: mixtures whose distribution function is known, inverted by bisection."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from temperance.likelihoods.poisson import Poisson
from temperance.likelihoods.real import RealLikelihood
from temperance.predict.predictive import ValuePredictive, check_level

_BISECTIONS = 60  # halves a bracket below rounding in float64
_NODES = 32  # Gauss–Hermite points of one member's noise
_OUTER = 64  # members over which the outer average of the mutual information runs; all, if there are fewer
_SOBOL = 256  # quasi-random points of the noise where there are several outputs


class RealPredictive(ValuePredictive):
    """For ``Normal``, ``HeteroscedasticNormal`` and ``StudentT``."""

    @property
    def _family(self) -> RealLikelihood:
        return cast(RealLikelihood, self.likelihood)

    def quantile(self, level: float) -> Tensor:
        """Bisection on the mixture's distribution function."""
        wanted = check_level(level)

        def solve(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            location = self._family.location(outputs).double()
            scale = self._family.noise_scale(outputs, learned).double().expand_as(location)
            reach = scale.amax(0)
            low, high = location.amin(0) - reach, location.amax(0) + reach
            weights = self.weights.double()

            def mass(y: Tensor) -> Tensor:
                return torch.tensordot(weights, self._family.standard_cdf((y - location) / scale), dims=1)

            for _ in range(200):
                short_low, short_high = mass(low) > wanted, mass(high) < wanted
                if not bool(short_low.any() | short_high.any()):
                    break
                reach = reach * 2
                low, high = torch.where(short_low, low - reach, low), torch.where(short_high, high + reach, high)
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                below = mass(middle) < wanted
                low, high = torch.where(below, middle, low), torch.where(below, high, middle)
            return ((low + high) / 2).to(outputs.dtype)

        return self._over_rows(solve)

    def entropy(self) -> Tensor:
        """The members' expected entropy, in closed form, plus the mutual information."""
        return self.aleatoric() + self.mutual_information()

    def mutual_information(self) -> Tensor:
        """Σ_s w_s KL(p_s ‖ Σ w p): each member's divergence from the mixture, by quadrature over the member's noise.

        The log ratio inside is bounded by −log w_s, so a few points do; it is exactly zero where members agree.
        """

        def compute(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            location = self._family.location(outputs).double()
            scale = self._family.noise_scale(outputs, learned).double().expand_as(location)
            weights = self.weights.double()
            points, shares = self._noise_points(location)
            members = torch.arange(len(weights))
            if len(members) > _OUTER:
                members = torch.linspace(0, len(weights) - 1, _OUTER).long()
            outer = weights[members] / weights[members].sum()
            total = torch.zeros(location.shape[1], dtype=torch.float64, device=location.device)
            for member, weight in zip(members.tolist(), outer.tolist(), strict=True):
                for z, share in zip(points, shares.tolist(), strict=True):
                    y = location[member] + scale[member] * z
                    log_p = (self._family.standard_log_density((y - location) / scale) - scale.log()).sum(-1)
                    mixed = (log_p + weights.log().unsqueeze(-1)).logsumexp(0)
                    total += weight * share * (log_p[member] - mixed)
            return total.to(outputs.dtype)

        return self._over_rows(compute)

    def _noise_points(self, location: Tensor) -> tuple[Tensor, Tensor]:
        """Points of the standard noise and their weights: a rule for one output, Sobol points for several."""
        outputs = location.shape[-1]
        if outputs == 1:
            points, shares = self._family.quadrature(_NODES)
            return torch.as_tensor(points, device=location.device), torch.as_tensor(shares)
        uniform = torch.quasirandom.SobolEngine(outputs, scramble=True, seed=0).draw(_SOBOL, dtype=torch.float64)
        made = self._family.standard_quantile(uniform.clamp(1e-9, 1 - 1e-9)).to(location.device)
        return made, torch.full((_SOBOL,), 1.0 / _SOBOL)


class CountPredictive(ValuePredictive):
    """For ``Poisson``."""

    @property
    def _family(self) -> Poisson:
        return cast(Poisson, self.likelihood)

    def quantile(self, level: float) -> Tensor:
        """The smallest whole number whose distribution function reaches ``level``."""
        wanted = check_level(level)

        def solve(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            wide = outputs.double()
            weights = self.weights.double()
            rate = wide.exp().amax(0)
            low, high = torch.full_like(rate, -1.0), (rate + 40 * rate.sqrt() + 40).ceil()
            for _ in range(_BISECTIONS):
                middle = ((low + high) / 2).floor()
                reached = torch.tensordot(weights, self._family.cdf(wide, middle, learned), dims=1) >= wanted
                low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
            return high.to(outputs.dtype)

        return self._over_rows(solve)

    def entropy(self) -> Tensor:
        """−Σ_k p log p over the counts that carry the mass; of several outputs, the sum over outputs."""

        def compute(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            rates = outputs.double().exp()
            top = int(rates.max() + 12 * rates.max().sqrt() + 30)
            total = torch.zeros(rates.shape[1:], dtype=torch.float64, device=rates.device)
            for start in range(0, top + 1, 64):
                k = torch.arange(start, min(start + 64, top + 1), dtype=torch.float64, device=rates.device)
                log_p = k * rates.unsqueeze(-1).log() - rates.unsqueeze(-1) - torch.lgamma(k + 1)
                mixed = (log_p + self.weights.double().log().view(-1, 1, 1, 1)).logsumexp(0)
                total -= (mixed.exp() * mixed).sum(-1)
            return total.sum(-1).to(outputs.dtype)

        return self._over_rows(compute)
