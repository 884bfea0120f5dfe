"""Conformal prediction: sets and intervals that cover at a chosen level, whatever the model is worth.

For rows exchangeable with the calibration rows, P(y in the set) ≥ level, in finite samples and without any belief about
the model; a better predictive makes smaller sets. A rule is a value: ``rule.calibrate(predictive, y, level)`` looks at
rows that the model was not trained on and gives a :class:`Conformal`, a value too, with ``sets(predictive)`` for
classes and ``interval(predictive)`` for real targets and counts.

| rule | for | score |
|---|---|---|
| :class:`Split` | classes; values | 1 − p(y); abs(y − mean) |
| :class:`APS`, :class:`RAPS` | classes | probability of all likelier classes, with a price on rank |
| :class:`NormalisedResidual` | values | abs(y − mean) / std |
| :class:`CQR` | values | how far outside the predictive's own quantiles |
| :class:`Mondrian` | any of them | a threshold for each group, or each class |
| :class:`Cross` | any of them | K models, each with the scores of the fold that it has not seen |
| :class:`AdaptiveConformal` | streams | a level that follows the misses |

Why not `mapie`? It conformalises scikit-learn estimators: it wants an object with ``fit`` and ``predict`` and calls it
on X. Here the model has been averaged over θ already, and what there is, is a ``Predictive``, on its own device, of
classes, values or counts; and what is calibrated must be saved without pickle. Dummy estimators that hand numbers
through do work, and the tests use them to see that thresholds and sets agree where the definitions do.
"""

from __future__ import annotations

from temperance.decide.conformal.adaptive import AdaptiveConformal, AdaptiveState
from temperance.decide.conformal.base import Conformal, ConformalRule
from temperance.decide.conformal.cross import Cross, CrossConformal
from temperance.decide.conformal.mondrian import Mondrian
from temperance.decide.conformal.quantile import conformal_quantile, conformal_rank, coverage_law
from temperance.decide.conformal.rules import APS, CQR, RAPS, NormalisedResidual, Split

__all__ = [
    "APS",
    "CQR",
    "RAPS",
    "AdaptiveConformal",
    "AdaptiveState",
    "Conformal",
    "ConformalRule",
    "Cross",
    "CrossConformal",
    "Mondrian",
    "NormalisedResidual",
    "Split",
    "conformal_quantile",
    "conformal_rank",
    "coverage_law",
]
