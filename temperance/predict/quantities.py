"""What predictives of numbers share: real numbers, counts, and whatever else has a distribution function."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from temperance.core.checks import check_level
from temperance.core.outcomes import Quantities
from temperance.model.likelihoods import QuantityLikelihood, RealLikelihood
from temperance.predict import scores
from temperance.predict.predictive import SCORES, Predictive

if TYPE_CHECKING:
    from temperance.predict.monotone import Monotone


class ValuePredictive(Predictive):
    """For real targets and counts: a mixture over members of their own distributions."""

    @property
    def outcome(self) -> Quantities:
        """What kind of number is predicted."""
        return cast(Quantities, self.likelihood.outcome)

    @property
    def numbers(self) -> QuantityLikelihood:
        """The likelihood, as one of numbers."""
        return cast(QuantityLikelihood, self.likelihood)

    def std(self) -> Tensor:
        """√variance: the predictive standard deviation, noise included."""
        return self.variance().sqrt()

    def epistemic_std(self) -> Tensor:
        """The standard deviation of the members' means: what more data would remove."""
        return self.epistemic_variance().sqrt()

    def cdf(self, y: Any) -> Tensor:
        """P(Y ≤ y | x, D), rows × outputs."""
        engine = self._targets(y)
        parts = []
        for rows, outputs, learned in self.source.blocks():
            parts.append(self._average(partial(self._member_cdf, engine[rows]), outputs, learned))
        return torch.cat(parts)

    def _member_cdf(self, y: Tensor, outputs: Tensor, learned: dict[str, Tensor]) -> Tensor:
        return self.numbers.cdf(outputs, y, learned)

    def symmetric(self) -> tuple[ValuePredictive, Monotone | None]:
        """A predictive of the same in units where its noise is symmetric, and the map there from its own; itself and
        ``None``, unless its units were bent (see :mod:`temperance.predict.monotone`)."""
        return self, None

    def reshaped(self, law: RealLikelihood) -> ValuePredictive | None:
        """The same members, whose Gaussian noise has the form of ``law`` and the variance that it had; ``None`` where
        their noise is not Gaussian. What θ leaves open stays what it was."""
        return None

    @abstractmethod
    def quantile(self, level: float) -> Tensor:
        """The value below which y falls with probability ``level``, rows × outputs."""

    def joint_moments(self, by_draws: bool = False) -> tuple[Tensor, Tensor]:
        """Of all rows together, in float64: a factor F, rows × outputs × K, of the covariance Σ_k F_ik F_jkᵀ of the
        members' means between any rows, and the variance of the noise, rows × outputs.

        The covariance is that of the members, Σ_s w_s (f_s − f̄)(f_s − f̄)ᵀ, unless the predictive knows its own;
        ``by_draws`` takes draws even then, so that two predictives of the same draws fit together.
        """
        made = self.as_functions()
        weights = made.weights.double()
        weights = (weights / weights.sum()).view(-1, 1, 1)
        factors, noises = [], []
        for _, outputs, learned in made.source.blocks():
            means = made.likelihood.mean(outputs, learned).double()
            factors.append(((means - (weights * means).sum(0)) * weights.sqrt()).permute(1, 2, 0))
            noises.append((weights * made.likelihood.variance(outputs, learned).double()).sum(0))
        return torch.cat(factors), torch.cat(noises)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Central predictive interval of y: (low, high), rows × outputs."""
        tail = (1 - check_level(level)) / 2
        return self.quantile(tail), self.quantile(1 - tail)


def quantity_scores(predictive: ValuePredictive, y: Tensor) -> dict[str, float]:
    """``rmse``, ``coverage_90`` of the 90 % interval and ``crps`` of 200 draws of y."""
    known = y if y.dim() == 2 else y.unsqueeze(-1)
    low, high = predictive.interval(0.9)
    return {
        "rmse": scores.rmse(predictive.mean(), known),
        "coverage_90": scores.interval_coverage(low, high, known).coverage,
        "crps": scores.sample_crps(predictive.sample(200).flatten(1), known.flatten()),
    }


SCORES.register(Quantities, quantity_scores)
