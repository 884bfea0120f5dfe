"""Tolerances derived from Monte-Carlo error: how far may a sample's mean and covariance be from the truth?

For n independent draws of a Gaussian with mean μ and covariance Σ,

    sd(mean_i) = √(Σ_ii / n),     sd(cov_ij) = √((Σ_ii Σ_jj + Σ_ij²) / (n − 1)).

Each entry's deviation, in these units, is compared with the standard normal quantile at which m such comparisons give a
false alarm with probability ``false_alarm`` in all (Bonferroni). For draws of a chain, n is the effective sample size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import scipy.stats
from torch import Tensor

from temperance.core.checks import check_count, check_level


class InconclusiveError(AssertionError):
    """There are too few draws to tell right from wrong, which is no pass."""


@dataclass(frozen=True)
class MomentErrors:
    """Deviations of a sample's moments from given ones, in standard errors."""

    mean: Tensor
    covariance: Tensor

    @property
    def worst(self) -> float:
        """The largest of them."""
        return max(float(self.mean.abs().max()), float(self.covariance.abs().max()))


def critical_value(comparisons: int, false_alarm: float = 1e-6) -> float:
    """How many standard errors ``comparisons`` deviations may reach.

    >>> round(critical_value(1, false_alarm=0.05), 2)
    1.96
    """
    check_count(comparisons, "comparisons")
    check_level(false_alarm, "false_alarm")
    return float(scipy.stats.norm.isf(false_alarm / (2 * comparisons)))


def draws_needed(comparisons: int, false_alarm: float = 1e-6) -> int:
    """How many independent draws it takes to see, nearly always, a variance that is twice what it should be.

    It is off by √((n − 1)/2) standard errors then, give or take twice two of them.

    >>> draws_needed(152)
    194
    """
    return math.ceil(1 + 2 * (critical_value(comparisons, false_alarm) + 4) ** 2)


def moment_errors(draws: Tensor, mean: Tensor, covariance: Tensor, ess: float | None = None) -> MomentErrors:
    """Deviations of ``draws`` (n × P) from N(mean, covariance), in standard errors."""
    draws, mean, covariance = draws.double(), mean.double(), covariance.double()
    n = float(len(draws) if ess is None else ess)
    variance = covariance.diagonal()
    mean_error = (draws.mean(0) - mean) / (variance / n).sqrt()
    centred = draws - draws.mean(0)
    sample = centred.T @ centred / (len(draws) - 1)
    spread = ((variance.unsqueeze(0) * variance.unsqueeze(1) + covariance.square()) / (n - 1)).sqrt()
    return MomentErrors(mean_error, (sample - covariance) / spread)


def assert_moments(
    draws: Tensor, mean: Tensor, covariance: Tensor, *, ess: float | None = None, false_alarm: float = 1e-6
) -> None:
    """Raise ``AssertionError`` if the draws' mean or covariance is not what it should be, beyond Monte-Carlo error; and
    :class:`InconclusiveError` where they are worth too few to see a covariance twice what it should be."""
    size = len(mean)
    comparisons = size + size * (size + 1) // 2
    limit, least = critical_value(comparisons, false_alarm), draws_needed(comparisons, false_alarm)
    worth = float(len(draws) if ess is None else ess)
    errors = moment_errors(draws, mean, covariance, max(2.0, worth))
    problems = []
    for name, deviation in (("mean", errors.mean), ("covariance", errors.covariance)):
        worst = float(deviation.abs().max())
        if not worst <= limit:  # also catches NaN
            place = int(deviation.abs().nan_to_num(math.inf).argmax())
            where = place if name == "mean" else divmod(place, size)
            problems.append(f"{name} at {where} is {worst:.1f} standard errors off (at most {limit:.1f})")
    if problems and worth >= 2.0:
        raise AssertionError("; ".join(problems) + f"; from {len(draws)} draws")
    if not worth >= least:
        more = math.ceil(least / max(worth, 0.1)) if worth > 0 else least
        raise InconclusiveError(
            f"inconclusive: {len(draws)} draws, worth {worth:.1f}, are too few to see a covariance twice what it "
            f"should be, for which it takes {least}: give {more:,} times as many."
        )
