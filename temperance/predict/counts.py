"""The predictive of counts: a mixture of their laws, one for each draw of θ."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from temperance.core.checks import check_level
from temperance.core.outcomes import Counts
from temperance.model.likelihoods import CountLikelihood, Normal
from temperance.model.likelihoods.counts import sums
from temperance.predict.predictive import PREDICTIVES
from temperance.predict.quantities import ValuePredictive
from temperance.predict.reals import mixture_divergence

_BISECTIONS = 400  # at most: halving stops when nothing lies between the ends
_LOG_RATE = 40.0  # counts beyond e⁴⁰ are treated as of this rate


class CountPredictive(ValuePredictive):
    """For ``Poisson``, ``NegativeBinomial``, ``ZeroInflated`` and whatever else is a ``CountLikelihood``. Of several
    counts, entropy and mutual information are sums over these.

    Counts of another kind need a predictive of their own: derive their outcome from ``Counts``, and register it."""

    @property
    def _family(self) -> CountLikelihood:
        return cast(CountLikelihood, self.likelihood)

    def quantile(self, level: float) -> Tensor:
        """The smallest whole number whose distribution function reaches ``level``."""
        wanted = check_level(level)

        def solve(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            wide, own = _wide(outputs, learned)
            weights = self.weights.double() / self.weights.double().sum()
            high = (3 * self._family.reach(wide, own).amax(0)).ceil()
            low = torch.full_like(high, -1.0)
            for _ in range(_BISECTIONS):
                middle = (low + (high - low) / 2).floor()
                if bool(((middle <= low) | (middle >= high)).all()):
                    break
                reached = torch.tensordot(weights, self._family.cdf(wide, middle, own), dims=1) >= wanted
                low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
            return high.to(outputs.dtype)

        return self._over_rows(solve)

    def entropy(self) -> Tensor:
        """The members' expected entropy plus the mutual information."""
        return self.aleatoric() + self.mutual_information()

    def mutual_information(self) -> Tensor:
        """Σ_s w_s KL(p_s ‖ Σ w p): summed over the counts, or, where these are large and nearly so, by Gaussians."""

        def compute(outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
            wide, own = _wide(outputs, learned)
            weights = self.weights.double() / self.weights.double().sum()
            large = self._family.nearly_normal(wide, own).any(0)
            made = torch.zeros(large.shape, dtype=torch.float64, device=wide.device)
            if not bool(large.all()):
                made = _count_divergence(self._family, wide, own, weights, ~large)
            if bool(large.any()):
                mean = self._family.mean(wide, own)[:, large]
                spread = self._family.variance(wide, own)[:, large].sqrt()
                made[large] = mixture_divergence(Normal(1.0), mean, spread.clamp(min=0.3), weights)
            return made.sum(-1).to(outputs.dtype)

        return self._over_rows(compute)


def _wide(outputs: Tensor, learned: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    return outputs.double().clamp(max=_LOG_RATE), {name: value.double() for name, value in learned.items()}


def _count_divergence(
    law: CountLikelihood, outputs: Tensor, learned: dict[str, Tensor], weights: Tensor, where: Tensor
) -> Tensor:
    """Σ_s w_s KL(p_s ‖ Σ w p) of each count (rows × counts), summed over all numbers that carry mass at ``where``."""
    share = weights.view(-1, 1, 1)
    total = torch.zeros(where.shape, dtype=torch.float64, device=outputs.device)
    for _, often, log_p in sums(law, outputs, learned, where.expand(len(weights), *where.shape)):
        mixed = (log_p + share.log()).logsumexp(1, keepdim=True)
        total += (often * share * log_p.exp() * (log_p - mixed)).sum((0, 1))
    return total


PREDICTIVES.register(Counts, CountPredictive)
