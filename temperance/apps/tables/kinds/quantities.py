"""Tables whose target is a number: a quantity, or a count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import scipy.stats
import torch
from numpy.typing import NDArray
from torch import Tensor

from temperance.apps.tables.columns import numbers_of
from temperance.apps.tables.kinds.base import KINDS, Columns, Numbers, TableKind, flat, standard_error
from temperance.apps.tables.robust import target_limits, trimmed
from temperance.apps.tables.schema import Schema
from temperance.core.errors import ArgumentError, DataError
from temperance.core.outcomes import Counts, Reals
from temperance.decide.conformal import ConformalRule, NormalisedResidual
from temperance.judge.calibrate import CalibrationRule, VarianceScale
from temperance.model.likelihoods import HeteroscedasticNormal, Normal, Poisson
from temperance.predict import Log, Monotone, ValuePredictive, scores

if TYPE_CHECKING:
    from temperance.apps.tables.safeguards import Guard
    from temperance.apps.tables.scores import Evaluation

_DRAWS = 200
_SKEWED = 0.75  # without its outermost hundredths an exponential distribution has 1.5, a normal one 0
_BEYOND = 10.0
_TRIM = 0.02
_BASELINE_SEED, _BASELINE_DRAWS = 0, 2000
_LEAST_RATE = 1e-6


class QuantityKind(TableKind):
    """What real numbers and counts share: means, spreads and intervals."""

    promised, own_words, entry = "intervals", "intervals", "number"
    plain_answer = "the mean and the spread of all rows"
    paired = ("log_loss", "crps")

    def read(
        self, values: pd.Series, name: str, classes: Sequence[str] | None = None
    ) -> tuple[Numbers, tuple[str, ...], list[str]]:
        """See :class:`TableKind`."""
        numbers = numbers_of(values)
        bad = int((np.isnan(numbers) & values.notna().to_numpy()).sum())
        words = f"{bad:,} values of the target `{name}` are not finite numbers: these rows are left out."
        return numbers, (), [words] if bad else []

    def check_variety(self, y: Numbers, name: str, classes: Sequence[str]) -> None:
        """See :class:`TableKind`."""
        if y.min() == y.max():
            raise DataError(f"the target `{name}` has one value only ({y[0]:g}): there is nothing to learn.")

    def known_targets(self, y: Numbers) -> Tensor:
        """One column."""
        return torch.from_numpy(y)[:, None]

    def baseline(self, schema: Schema, y: Numbers) -> Tensor:
        """Mean and spread."""
        return torch.tensor([y.mean(), y.std() or 1.0], dtype=torch.float64)

    def conformal(self) -> ConformalRule:
        """Intervals in proportion to the predicted spread."""
        return NormalisedResidual()

    def tolerance(self, y: Numbers) -> float:
        """Half the spread of the targets that are learned from."""
        return 0.5 * (float(y.std()) or 1.0)

    def wrong(self, predictive: ValuePredictive, y: Numbers, tolerance: float) -> NDArray[np.bool_]:
        """Further off than the tolerance."""
        return np.abs(flat(predictive.mean()) - y) > tolerance

    def names(self, schema: Schema) -> list[str]:
        """See :class:`TableKind`."""
        return ["prediction_mean", "prediction_std", "prediction_low", "prediction_high"]

    def columns(
        self, schema: Schema, guard: Guard, predictive: ValuePredictive, unknown: bool
    ) -> tuple[Columns, Numbers, Numbers]:
        """See :class:`TableKind`; uncertainty is a variance."""
        made: Columns = {"prediction_mean": guard.mean(predictive)}
        known = flat(predictive.epistemic_variance())
        total = flat(predictive.aleatoric_variance()) + known
        made["prediction_std"] = np.sqrt(total)
        made["prediction_low"], made["prediction_high"] = guard.interval(predictive)
        return made, known, total

    def row_scores(self, guard: Guard, predictive: ValuePredictive, y: Numbers) -> dict[str, Numbers]:
        """See :class:`TableKind`."""
        made = {"log_loss": -flat(predictive.log_prob(torch.from_numpy(y)[:, None]))}
        made["error"] = guard.mean(predictive) - y
        low, high = guard.interval(predictive)
        made["covered"], made["size"] = ((low <= y) & (y <= high)).astype(np.float64), high - low
        made["crps"] = _crps(predictive, y)
        return made

    def summary(self, schema: Schema, rows: dict[str, Numbers]) -> tuple[dict[str, float], dict[str, float]]:
        """See :class:`TableKind`."""
        squares = np.square(rows["error"])
        found = {"rmse": float(np.sqrt(squares.mean())), "crps": float(rows["crps"].mean())}
        return found, {
            "rmse": standard_error(squares) / (2 * found["rmse"]) if found["rmse"] > 0 else 0.0,
            "crps": standard_error(rows["crps"]),
        }

    def by_row(self, schema: Schema, rows: dict[str, Numbers]) -> dict[str, Numbers]:
        """See :class:`TableKind`."""
        return {"log_loss": rows["log_loss"], "crps": rows["crps"]}

    def sentences(self, found: Evaluation, level: float) -> list[str]:
        """See :class:`TableKind`."""
        return [
            f"On {found.rows:,} test rows predictions of {found.target} are off by {found.scores['rmse']:.4g} (root "
            f"mean square); always predicting the mean is off by {found.baseline['rmse']:.4g}.",
            f"The interval holds the truth in {found.coverage:.1%} of rows (promised: {level:.0%}) and is "
            f"{found.size:.4g} wide on average.",
        ]


class RealKind(QuantityKind):
    """Standardised; the noise may depend on the row."""

    likelihoods = (HeteroscedasticNormal(), Normal())

    def units(self, y: Numbers, transform: Monotone | None = None) -> tuple[float, float]:
        """Mean and spread."""
        known = _bent(y, transform)
        return float(known.mean()), float(known.std()) or 1.0

    def limits(self, y: Numbers, transform: Monotone | None = None) -> tuple[float, float]:
        """See :func:`~temperance.apps.tables.robust.target_limits`."""
        return target_limits(y, logs=transform is not None)

    def least(self, y: Numbers) -> float:
        """0 where no target of the table is negative, a test row's neither. Rows come in any order, so one more is the
        first negative one of n + 1 with probability 1 / (n + 1) at most: that is all that an interval which ends at 0
        can lose of its promise."""
        return 0.0 if bool((y >= 0).all()) else -math.inf

    def bounded(self, transform: Monotone, y: Numbers) -> Monotone:
        """No mean is more than ten times the largest number that was learned from."""
        return transform.bounded(_BEYOND * float(y.max()))

    def transforms(self, y: Numbers) -> tuple[Monotone, ...]:
        """The logarithm of numbers that are all positive, and skewed, and less so after it: by the skewness without the
        outermost rows, for one of them (a number in cents among euros) would say that any target is skewed."""
        if not (y > 0).all():
            return ()
        inner = trimmed(y)
        if inner.min() == inner.max():
            return ()
        before, after = scipy.stats.skew(inner), scipy.stats.skew(np.log(inner))
        return (Log(),) if before > _SKEWED and abs(after) < before else ()

    def forced(self, y: Numbers, name: str) -> tuple[Monotone, ...]:
        """The logarithm, of positive numbers."""
        if not (y > 0).all():
            raise ArgumentError(f"`log` needs positive numbers; the target `{name}` has {y.min():g}. Leave it out.")
        return (Log(),)

    def model_targets(self, schema: Schema, y: Numbers) -> Tensor:
        """Standardised."""
        known = (_bent(y, schema.transform) - schema.centre) / schema.spread
        return torch.from_numpy(known.astype(np.float32)[:, None])

    def calibration(self) -> CalibrationRule | None:
        """A factor on the spread, on which a few rows far off have no say; they say how heavy the tails are."""
        return VarianceScale(trim=_TRIM, tails=True)

    def baseline_losses(self, baseline: Numbers, y: Numbers) -> Numbers:
        """Of a Gaussian."""
        found: Numbers = -scipy.stats.norm.logpdf(y, float(baseline[0]), float(baseline[1]))
        return found

    def baseline_scores(self, baseline: Numbers, y: Numbers) -> dict[str, float]:
        """Of a Gaussian."""
        mean, spread = float(baseline[0]), float(baseline[1])
        centre, wide = np.full(len(y), mean), np.full(len(y), spread)
        return {
            "log_loss": float(self.baseline_losses(baseline, y).mean()),
            "rmse": scores.rmse(centre, y),
            "crps": scores.gaussian_crps(centre, wide, y),
        }


class CountKind(QuantityKind):
    """Whole numbers from 0 on, as they are."""

    likelihoods = (Poisson(),)

    def read(
        self, values: pd.Series, name: str, classes: Sequence[str] | None = None
    ) -> tuple[Numbers, tuple[str, ...], list[str]]:
        """See :class:`TableKind`."""
        found = super().read(values, name, classes)
        known = found[0][~np.isnan(found[0])]
        if (known < 0).any() or (known != np.round(known)).any():
            raise DataError(
                f"`task` counts needs whole numbers from 0 up; `{name}` has values such as "
                f"{known[(known < 0) | (known != np.round(known))][0]:g}. Use --task regression."
            )
        return found

    def model_targets(self, schema: Schema, y: Numbers) -> Tensor:
        """One column of the numbers themselves."""
        return torch.from_numpy(y.astype(np.float32)[:, None])

    def baseline_losses(self, baseline: Numbers, y: Numbers) -> Numbers:
        """Of a Poisson distribution."""
        found: Numbers = -scipy.stats.poisson.logpmf(y, max(float(baseline[0]), _LEAST_RATE))
        return found

    def baseline_scores(self, baseline: Numbers, y: Numbers) -> dict[str, float]:
        """Of a Poisson distribution."""
        mean = float(baseline[0])
        rate, most = max(mean, _LEAST_RATE), _BASELINE_DRAWS
        draws = np.sort(np.random.default_rng(_BASELINE_SEED).poisson(rate, most).astype(np.float64))
        spread = float(((2.0 * np.arange(1, most + 1) - (most + 1)) * draws).sum() / (most * (most - 1)))
        values, counts = np.unique(y, return_counts=True)
        crps = sum(np.abs(draws - v).mean() * n for v, n in zip(values, counts, strict=True)) / len(y) - spread
        return {
            "log_loss": float(self.baseline_losses(baseline, y).mean()),
            "rmse": scores.rmse(np.full(len(y), mean), y),
            "crps": float(crps),
        }


def _bent(y: Numbers, transform: Monotone | None) -> Numbers:
    """Targets in the units that are learned."""
    return y if transform is None else transform.forward(torch.from_numpy(y)).numpy()


def _crps(predictive: ValuePredictive, y: Numbers) -> Numbers:
    """E|Y − y| − E|Y − Y'| / 2 of draws, each row by itself, without the bias of pairing a draw with itself."""
    draws = predictive.sample(_DRAWS).double().cpu().numpy().reshape(_DRAWS, -1)
    draws.sort(axis=0)
    weights = 2.0 * np.arange(1, _DRAWS + 1) - _DRAWS - 1
    spread = (weights[:, None] * draws).sum(0) / (_DRAWS * (_DRAWS - 1))
    found: Numbers = np.abs(draws - y).mean(0) - spread
    return found


KINDS.register(Reals, RealKind())
KINDS.register(Counts, CountKind())
