"""Answer or ask a human: a threshold on doubt with a guarantee on the errors among what is answered."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import scipy
import torch
from torch import Tensor

from temperance.core.checks import check_count, check_level
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.decide.doubt import Score, doubt
from temperance.decide.members import check_predictive
from temperance.predict import CategoryPredictive, Predictive

_ROUNDING = (1e-7, 1e-5)  # absolute and relative, of doubts in float32


@dataclass(frozen=True, eq=False)
class Deferral(Value):
    """Ask a human where doubt reaches ``threshold``: ``deferral(predictive)`` is a mask, true = ask.

    Attributes:
        threshold: rows whose doubt is below are answered.
        score: the kind of doubt, see :func:`~temperance.decide.doubt`.
        risk, confidence: with probability ``confidence`` over the calibration rows, at most ``risk`` of the rows that
            are answered are wrong.
        coverage: the fraction of calibration rows that would be answered: what to expect of new ones.
        errors, answered, rows: of the calibration rows, how many were wrong, answered, and there.

    >>> rule = Deferral(0.5, "entropy", 0.05, 0.95, coverage=0.8, errors=3, answered=160, rows=200)
    >>> rule.answers, round(rule.bound, 4)
    (True, 0.0477)
    """

    threshold: float
    score: Score
    risk: float
    confidence: float
    coverage: float
    errors: int
    answered: int
    rows: int

    @property
    def answers(self) -> bool:
        """Whether anything is answered at all."""
        return self.threshold > -math.inf

    @property
    def bound(self) -> float:
        """Clopper and Pearson's upper bound on the error rate at this threshold alone, at ``confidence``: for reading,
        not corrected for the choice among thresholds."""
        return float(clopper_pearson(self.errors, self.answered, self.confidence))

    def __call__(self, predictive: Predictive) -> Tensor:
        """True for rows on which to ask a human."""
        return doubt(predictive, self.score).double() >= self.threshold


def clopper_pearson(errors: int, rows: int, confidence: float = 0.95) -> float:
    """The largest error rate under which so few errors still have probability 1 − ``confidence``.

    >>> round(clopper_pearson(0, 59), 4)
    0.0495
    """
    if errors >= rows:
        return 1.0
    return float(scipy.special.betaincinv(errors + 1, rows - errors, confidence))


def defer_at(
    predictive: Predictive,
    y: Any,
    risk: float = 0.05,
    confidence: float = 0.95,
    *,
    score: Score = "confidence",
    error: Any = None,
    thresholds: int = 16,
) -> Deferral:
    """The rule that answers as many rows as it may while at most a fraction ``risk`` of the answers is wrong, with
    probability ``confidence`` over the draw of the held-out rows.

    ``thresholds`` candidates lie at fixed ranks of the held-out doubt. Given the value t of the doubt at a rank, the
    rows below it are independent draws of rows with less doubt than t, so their errors are binomial; a candidate passes
    if so few errors had probability at most (1 − ``confidence``) / ``thresholds`` at the rate ``risk`` (an exact test
    with Bonferroni's correction: Learn-then-Test, Angelopoulos et al. 2021). The one that answers most is taken.
    Nothing is assumed of score or model; rows to come must be drawn like these. If none passes, all is deferred, with a
    warning.

    Args:
        predictive: of held-out rows, not of those that the model was trained or calibrated on.
        y: their answers.
        risk: the error rate that is tolerated among answered rows.
        confidence: the probability with which the rule keeps it.
        score: the kind of doubt to order rows by.
        error: truth values, wrong or not, in place of "the most probable class is not y"; real targets need it:
            ``error=(pred.mean() - y).abs().squeeze(1) > tolerance``.
        thresholds: how many candidates.

    >>> import temperance as tp
    >>> from temperance.posteriors import Draws
    >>> target = tp.Target(torch.nn.Linear(1, 2, bias=False), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> x = torch.linspace(0.01, 4, 400).unsqueeze(1)
    >>> pred = tp.Fitted(target, Draws(torch.tensor([[-1.0, 1.0]])), None).predict(x)
    >>> y = (torch.arange(400) % 4 != 0).long()  # of the doubtful half, every fourth answer is wrong
    >>> y[200:] = 1
    >>> rule = defer_at(pred, y, risk=0.05)
    >>> rule.coverage, int(rule(pred).sum())
    (0.5225, 191)
    """
    made = check_predictive(predictive)
    check_level(risk, "risk")
    check_level(confidence, "confidence")
    check_count(thresholds, "thresholds")
    wrong = _errors(made, y, error)
    value = doubt(made, score).double().cpu()
    return defer_by(value, wrong, risk, confidence, score=score, thresholds=thresholds)


def defer_by(
    value: Tensor,
    wrong: Tensor,
    risk: float = 0.05,
    confidence: float = 0.95,
    *,
    score: Score = "confidence",
    thresholds: int = 16,
) -> Deferral:
    """:func:`defer_at` where the doubt of each row and whether its answer is wrong are known already, such as those of
    rows that several models have each not seen."""
    value, wrong = value.double().cpu(), wrong.bool().cpu()
    level = (1 - confidence) / thresholds
    found = choose_threshold(value, wrong, risk, level, thresholds)
    if found is None:
        least = math.ceil(math.log(level) / math.log1p(-risk))
        warnings.warn(
            f"no threshold keeps the error rate below {risk} with probability {confidence} on these {len(value)} rows: "
            f"every row is deferred. (At least {least} rows without an error are needed; a larger `risk`, more rows "
            "or a better model would help.)",
            TemperanceWarning,
            stacklevel=3,
        )
        return Deferral(-math.inf, score, risk, confidence, 0.0, 0, 0, len(value))
    below = value < found
    answered = int(below.sum())
    errors = int(wrong[below].sum())
    return Deferral(found, score, risk, confidence, answered / len(value), errors, answered, len(value))


def choose_threshold(value: Tensor, wrong: Tensor, risk: float, level: float, candidates: int) -> float | None:
    """The largest of some thresholds whose error rate is shown to be at most ``risk``, each at ``level``; ``None``, if
    there is none. Rows whose doubt is strictly below are answered.

    What is tested is the doubt of the first row that is not answered. In float32 equal rows of other batches differ by
    a rounding, so the threshold lies a rounding below it, but never so low that a row would change sides.
    """
    rows = len(value)
    least = math.ceil(math.log(level) / math.log1p(-risk))  # fewer rows cannot pass, even without an error
    if rows < least:
        return None
    order = value.argsort(stable=True)
    sorted_value = torch.cat([value[order], value.new_tensor([math.inf])])
    errors = torch.cat([torch.zeros(1), wrong[order].double().cumsum(0)])
    ranks = torch.linspace(rows, least, candidates, dtype=torch.float64).round().long()
    threshold = sorted_value[ranks]  # so many rows lie below it, or fewer where there are ties
    answered = torch.searchsorted(sorted_value[:rows], threshold)
    probability = scipy.special.bdtr(errors[answered].numpy(), answered.numpy(), risk)
    passed = torch.from_numpy((probability <= level) & (answered.numpy() > 0)).nonzero()
    if not len(passed):
        return None
    first, below = float(threshold[passed[0, 0]]), float(sorted_value[answered[passed[0, 0]] - 1])
    if first == math.inf:
        return first
    between = max(first - _ROUNDING[0] - _ROUNDING[1] * abs(first), below + 0.5 * (first - below))
    return between if between > below else first


def _errors(predictive: Predictive, y: Any, error: Any) -> Tensor:
    if error is not None:
        made = torch.as_tensor(error(predictive, torch.as_tensor(y)) if callable(error) else error)
        made = made.squeeze(-1) if made.dim() == 2 and made.shape[1] == 1 else made
        if made.shape != (len(predictive),) or not bool(((made == 0) | (made == 1)).all()):
            raise ArgumentError(
                f"`error` must hold a truth value for each of {len(predictive)} rows; got shape {tuple(made.shape)}."
            )
        return made.bool()
    if not isinstance(predictive, CategoryPredictive):
        raise ArgumentError(
            "`error` must say which rows are wrong where targets are real numbers, e.g. "
            "(pred.mean() - y).abs().squeeze(1) > tolerance; got None."
        )
    wrong = predictive.predict() != predictive.known_classes(y)
    return wrong.any(-1) if wrong.dim() == 2 else wrong
