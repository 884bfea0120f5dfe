"""Inputs from elsewhere: a score, and a detector whose false alarms are bounded in finite samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.checks import check_level, check_real_tensor
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.decide.doubt import Score, check_kind, doubt
from temperance.predict import Predictive


def ood_score(predictive: Predictive, kind: Score = "entropy") -> Tensor:
    """How strange each row looks; higher is stranger. The kinds are those of :func:`~temperance.decide.doubt`: of
    classes ``"entropy"``, ``"mutual_information"``, ``"max_prob"``, ``"margin"``, ``"epistemic_std"``; of real targets
    ``"epistemic_std"`` and ``"mutual_information"`` (noise is no sign of strangeness).
    """
    return doubt(predictive, kind)


@dataclass(frozen=True, eq=False)
class OODDetector(Value):
    """Tells inputs from elsewhere by comparing their score with those of ordinary rows.

    The p-value of a row is (1 + number of ordinary scores that are at least as high) / (n + 1): for a new row of the
    ordinary kind P(p ≤ α) ≤ α, whatever the score and the model, over the draw of ordinary rows and of the new one
    (conformal prediction; Vovk 2005, Bates et al. 2023).

    >>> detector = OODDetector(torch.arange(19.0), "entropy", 0.05)
    >>> detector.threshold
    18.0
    """

    ordinary: Tensor
    kind: Score
    false_alarms: float

    def __post_init__(self) -> None:
        check_fields(self)
        check_level(self.false_alarms, "false_alarms")
        check_kind(self.kind, "kind")
        check_real_tensor(self.ordinary, "ordinary")

    @property
    def threshold(self) -> float:
        """Rows with a score above are flagged."""
        ranked = self.ordinary.sort(descending=True).values
        allowed = math.floor(self.false_alarms * (len(ranked) + 1) + 1e-9)
        return float(ranked[allowed - 1]) if allowed else math.inf

    def p_values(self, predictive: Predictive) -> Tensor:
        """How ordinary each row is; small for strange ones."""
        score = doubt(predictive, self.kind).to(self.ordinary)
        ranked = self.ordinary.sort().values
        at_least = len(ranked) - torch.searchsorted(ranked, score.contiguous())
        return (1 + at_least).double() / (len(ranked) + 1)

    def flags(self, predictive: Predictive) -> Tensor:
        """True for rows that look as if they came from elsewhere: p ≤ ``false_alarms``."""
        return self.p_values(predictive) <= self.false_alarms + 1e-12


def ood_threshold(in_predictive: Predictive, false_alarms: float = 0.05, kind: Score = "entropy") -> OODDetector:
    """A detector calibrated on ordinary rows that were not trained on; at most a fraction ``false_alarms`` of ordinary
    rows to come is flagged, on average over calibration sets.

    >>> import temperance as tp
    >>> from temperance.posteriors import Draws
    >>> target = tp.Target(torch.nn.Linear(1, 2, bias=False), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> fitted = tp.Fitted(target, Draws(torch.tensor([[-1.0, 1.0]])), None)
    >>> detector = ood_threshold(fitted.predict(torch.linspace(1, 4, 99).unsqueeze(1)))
    >>> detector.flags(fitted.predict(torch.tensor([[0.1], [3.0]])))
    tensor([ True, False])
    """
    alpha = check_level(false_alarms, "false_alarms")
    ordinary = doubt(in_predictive, kind)
    least = math.ceil(1 / alpha - 1e-9) - 1
    if len(ordinary) < least:
        raise ArgumentError(
            f"`in_predictive` must have at least {least} rows for a false-alarm rate of {alpha}; got {len(ordinary)}."
        )
    return OODDetector(ordinary, kind, alpha)
