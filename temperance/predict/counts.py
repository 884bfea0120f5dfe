"""The predictive of counts: a mixture of Poisson distributions."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from temperance.core.checks import check_level
from temperance.core.outcomes import Counts
from temperance.model.likelihoods import Normal, Poisson
from temperance.predict.predictive import PREDICTIVES
from temperance.predict.quantities import ValuePredictive
from temperance.predict.reals import mixture_divergence

_BISECTIONS = 400  # at most: halving stops when nothing lies between the ends
_LOG_RATE = 40.0  # counts beyond e⁴⁰ are treated as of this rate
_LARGE_LOG_RATE = 6.2  # rates above about 500 are Gaussian enough


class CountPredictive(ValuePredictive):
    """For ``Poisson``. Of several outputs, entropy and mutual information are sums over the outputs.

    Counts of another law need a predictive of their own: derive their outcome from ``Counts``, and register it."""

    @property
    def _family(self) -> Poisson:
        return cast(Poisson, self.likelihood)

    def quantile(self, level: float) -> Tensor:
        """The smallest whole number whose distribution function reaches ``level``."""
        wanted = check_level(level)

        def solve(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            wide = outputs.double().clamp(max=_LOG_RATE)
            weights = self.weights.double() / self.weights.double().sum()
            rate = wide.exp().amax(0)
            low, high = torch.full_like(rate, -1.0), (rate + 40 * rate.sqrt() + 40).ceil()
            for _ in range(_BISECTIONS):
                middle = (low + (high - low) / 2).floor()
                if bool(((middle <= low) | (middle >= high)).all()):
                    break
                reached = torch.tensordot(weights, self._family.cdf(wide, middle, learned), dims=1) >= wanted
                low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
            return high.to(outputs.dtype)

        return self._over_rows(solve)

    def entropy(self) -> Tensor:
        """The members' expected entropy plus the mutual information."""
        return self.aleatoric() + self.mutual_information()

    def mutual_information(self) -> Tensor:
        """Σ_s w_s KL(p_s ‖ Σ w p): summed over the counts, or, for rates above 500, by the Gaussian approximation."""

        def compute(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            log_rates = outputs.double().clamp(max=_LOG_RATE).flatten(1)  # S × (rows · outputs)
            weights = self.weights.double() / self.weights.double().sum()
            large = log_rates.amax(0) > _LARGE_LOG_RATE
            made = torch.zeros(log_rates.shape[1], dtype=torch.float64, device=log_rates.device)
            if bool(large.any()):
                rates = log_rates[:, large].exp()
                made[large] = mixture_divergence(Normal(1.0), rates, rates.sqrt().clamp(min=0.3), weights)
            if bool((~large).any()):
                made[~large] = _count_divergence(log_rates[:, ~large], weights)
            return made.view(outputs.shape[1:]).sum(-1).to(outputs.dtype)

        return self._over_rows(compute)


def _count_divergence(log_rates: Tensor, weights: Tensor) -> Tensor:
    """Σ_s w_s KL(p_s ‖ Σ w p) of Poisson members (S × cells), summed over all counts that carry mass."""
    rates = log_rates.exp()
    top = int(rates.max() + 12 * rates.max().sqrt() + 30)
    total = torch.zeros(rates.shape[1], dtype=torch.float64, device=rates.device)
    for start in range(0, top + 1, 32):
        k = torch.arange(start, min(start + 32, top + 1), dtype=torch.float64, device=rates.device)
        log_p = k * log_rates.unsqueeze(-1) - rates.unsqueeze(-1) - torch.lgamma(k + 1)
        mixed = (log_p + weights.log().view(-1, 1, 1)).logsumexp(0)
        total += (weights.view(-1, 1, 1) * log_p.exp() * (log_p - mixed)).sum((0, 2))
    return total


PREDICTIVES.register(Counts, CountPredictive)
