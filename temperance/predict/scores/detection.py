"""Can the uncertainty tell what it should be uncertain about: strange inputs, or the model's own errors?

A score is any number that is higher where there is more doubt: entropy, mutual information, 1 - max p. What is to be
found (inputs from elsewhere, errors) is the positive class. Equal scores are never put in an order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.checks import real, shown
from temperance.core.errors import ArgumentError
from temperance.predict.scores.classification import Array, as_float64, as_probs, check_length


def _two(score_in: Array, score_out: Array) -> tuple[Tensor, Tensor]:
    return (
        as_float64("score_in", score_in, dims=1, finite=False),
        as_float64("score_out", score_out, dims=1, finite=False),
    )


def auroc(score_in: Array, score_out: Array) -> float:
    """Area under the ROC curve: P(out > in) + ½ P(out = in) for one score of each kind drawn at random.

    Args:
        score_in: scores of ordinary inputs.
        score_out: scores of inputs from elsewhere, which should be higher.

    >>> auroc([0.1, 0.2, 0.3], [0.2, 0.9])
    0.75
    """
    inside, outside = _two(score_in, score_out)
    inside = inside.sort().values
    below = torch.searchsorted(inside, outside)
    below_or_equal = torch.searchsorted(inside, outside, right=True)
    return float((below + below_or_equal).sum()) / (2 * len(inside) * len(outside))


def auprc(score_in: Array, score_out: Array) -> float:
    """Area under the precision-recall curve as average precision, Σ_t (recall_t - recall_{t-1}) · precision_t.

    t runs over the distinct scores from the highest down; inputs from elsewhere are the positives. Forecasting at
    random gives their fraction, not one half.

    >>> round(auprc([0.1, 0.2, 0.3], [0.25, 0.9]), 4)
    0.8333
    """
    inside, outside = _two(score_in, score_out)
    values, place = torch.unique(torch.cat([outside, inside]), return_inverse=True)
    found = torch.bincount(place[: len(outside)], minlength=len(values)).flip(0)
    called = torch.bincount(place, minlength=len(values)).flip(0)
    precision = found.cumsum(0).double() / called.cumsum(0)
    return float((found * precision).sum()) / len(outside)


def fpr_at_tpr(score_in: Array, score_out: Array, tpr: float = 0.95) -> float:
    """Fraction of ordinary inputs that are called strange when at least ``tpr`` of the strange ones are.

    The threshold is the highest that finds a fraction ``tpr`` of ``score_out``; scores at the threshold are called.

    >>> fpr_at_tpr([0.1, 0.2, 0.3, 0.4], [0.3, 0.6, 0.7, 0.8])
    0.5
    """
    inside, outside = _two(score_in, score_out)
    if not 0 < real(tpr) <= 1:
        raise ArgumentError(f"`tpr` must be above 0 and at most 1; got {shown(tpr)}.")
    needed = math.ceil(tpr * len(outside) - 1e-9)  # 1e-9: a product such as 0.07 * 100 may lie just above its integer
    threshold = outside.sort(descending=True).values[max(needed, 1) - 1]
    return float((inside >= threshold).double().mean())


@dataclass(frozen=True)
class ErrorDetection:
    """How well doubt points at errors: areas under the two curves, and false alarms when 95 % of errors are found.

    >>> ErrorDetection(auroc=0.9, auprc=0.4, fpr95=0.3).auroc
    0.9
    """

    auroc: float
    auprc: float
    fpr95: float


def error_detection(probs_or_score: Array, correct: Array) -> ErrorDetection:
    """How well a model's doubt tells its errors from its successes.

    Args:
        probs_or_score: N × C probabilities, whose doubt is 1 - max p, or N scores, higher where there is more doubt.
        correct: N truth values, whether the model was right; both kinds must occur.

    >>> error_detection([0.1, 0.2, 0.9], [True, True, False])
    ErrorDetection(auroc=1.0, auprc=1.0, fpr95=0.0)
    """
    score = as_float64("probs_or_score", probs_or_score, finite=False)
    if score.dim() == 2:
        score = 1 - as_probs("probs_or_score", score).max(1).values
    elif score.dim() != 1:
        raise ArgumentError(f"`probs_or_score` must be N x C or N numbers; got shape {tuple(score.shape)}.")
    right = as_float64("correct", correct, dims=1)
    check_length("correct", right, len(score))
    if not ((right == 0) | (right == 1)).all():
        raise ArgumentError(f"`correct` must hold truth values; got {right[(right != 0) & (right != 1)][0].item():g}.")
    if right.min() == right.max():
        raise ArgumentError(
            f"`correct` must hold both successes and errors, to tell them apart; got {len(right)} "
            f"{'successes' if right[0] == 1 else 'errors'} only."
        )
    success, failure = score[right == 1], score[right == 0]
    return ErrorDetection(auroc(success, failure), auprc(success, failure), fpr_at_tpr(success, failure, 0.95))


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Mean error (risk) of the examples that are kept, as the most doubtful are given up; see :func:`risk_coverage`.

    >>> curve = RiskCoverage(torch.tensor([0.5, 1.0]), torch.tensor([0.0, 0.5]), aurc=0.25, oracle_aurc=0.25)
    >>> curve.excess_aurc
    0.0
    """

    coverage: Tensor
    risk: Tensor
    aurc: float
    oracle_aurc: float

    @property
    def excess_aurc(self) -> float:
        """What is lost against the score that knows the errors: aurc - oracle_aurc, never negative."""
        return self.aurc - self.oracle_aurc


def risk_coverage(score: Array, error: Array) -> RiskCoverage:
    """Selective prediction: keep the k least doubtful of N examples; risk_k is their mean error, coverage_k = k / N.

    ``aurc`` is the mean of risk_k over k = 1 ... N; ``oracle_aurc`` is that of the score that orders examples by their
    error (Geifman et al. 2019). Among equal scores the risk is the mean over all orders.

    Args:
        score: N scores that are higher where there is more doubt.
        error: N losses, 0 / 1 or real.

    >>> curve = risk_coverage([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1])
    >>> curve.risk.tolist()
    [0.0, 0.5, 0.3333333333333333, 0.5]
    >>> round(curve.aurc, 4), round(curve.oracle_aurc, 4)
    (0.3333, 0.2083)
    """
    doubt = as_float64("score", score, dims=1, finite=False)
    loss = as_float64("error", error, dims=1)
    check_length("error", loss, len(doubt))
    kept = torch.arange(1, len(doubt) + 1, dtype=torch.float64)
    _, place, count = torch.unique(doubt, return_inverse=True, return_counts=True)
    mean_of_equals = torch.bincount(place, loss) / count
    risk = torch.repeat_interleave(mean_of_equals, count).cumsum(0) / kept
    oracle = loss.sort().values.cumsum(0) / kept
    return RiskCoverage(kept / len(doubt), risk, float(risk.mean()), float(oracle.mean()))
