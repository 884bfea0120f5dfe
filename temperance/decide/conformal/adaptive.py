"""Conformal prediction for streams whose distribution drifts (adaptive conformal inference, Gibbs & Candès 2021)."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_level, check_positive, shown
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, NumericalError
from temperance.core.fields import check_fields
from temperance.core.seeds import check_seed, derive_seed
from temperance.decide.conformal.base import (
    ConformalRule,
    check_predictive,
    check_values,
    class_labels,
    finish,
    kept,
    precise_targets,
    probabilities,
    scored,
    uniforms,
)
from temperance.decide.conformal.quantile import conformal_rank
from temperance.predict import CategoryPredictive, Predictive, ValuePredictive


@dataclass(frozen=True, eq=False)
class AdaptiveConformal(Value):
    """``rule`` whose level follows what happens: after each target, with err_t = 1 if it was missed,

        α_{t+1} = α_t + gamma · (α − err_t),      α = 1 − level,

    so that misses widen the next set and hits narrow it. Whatever the stream does, exchangeable or not,

        |(1/T) Σ err_t − α| ≤ (max(α_1, 1 − α_1) + gamma) / (T · gamma).

    A larger ``gamma`` follows faster and swings more; 0.005 to 0.05 are usual. Scores come from the first rows
    (``start``) and from every target since; ``window`` keeps the latest only. Where α_t ≤ 0 the set is full and the
    interval infinite; where α_t ≥ 1 nothing is kept (an interval is then its middle), and it counts as a miss.
    """

    rule: ConformalRule
    gamma: float = 0.01
    level: float = 0.9
    window: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.rule, ConformalRule):
            raise ArgumentError(
                f"`rule` must be a conformal rule such as Split(), not Mondrian; got {shown(self.rule)}."
            )
        check_positive(self.gamma, "gamma")
        check_level(self.level)
        if self.window is not None:
            check_count(self.window, "window")

    def start(self, predictive: Predictive, y: Any, *, seed: int = 0) -> AdaptiveState:
        """The state after calibration rows that the model was not trained on."""
        rule, scores, _ = scored(self.rule, predictive, y, self.level, check_seed(seed))
        if scores.dim() == 2 and scores.shape[1] > 1:
            raise ArgumentError(
                f"`predictive` must have one output for a stream; got {scores.shape[1]}. Keep one state for each."
            )
        flat = scores.flatten().cpu()
        return AdaptiveState(
            replace(self, rule=rule), flat if self.window is None else flat[-self.window :], 1 - self.level, 0, 0, seed
        )


@dataclass(frozen=True, eq=False, repr=False)
class AdaptiveState(Value):
    """Where a stream is: the scores so far, the α in force, and how many targets came and were missed. It is a value:
    ``update`` gives the next one, and ``values.encode`` writes it down, to go on another day."""

    method: AdaptiveConformal
    scores: Tensor
    alpha: float
    steps: int
    misses: int
    seed: int

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def coverage(self) -> float:
        """The share of targets since ``start`` that were covered; NaN before the first."""
        return 1 - self.misses / self.steps if self.steps else float("nan")

    @property
    def threshold(self) -> float:
        """The score up to which the next target is kept."""
        return _threshold(sorted(self.scores.tolist()), self.alpha)

    def _uniforms(self, probs: Tensor) -> Tensor:
        """One number for each coming row: a function of its place in the stream alone."""
        made = [
            uniforms(1, derive_seed(self.seed, "stream", self.steps + k) % 2**62, "row", probs)
            for k in range(len(probs))
        ]
        return torch.cat(made)

    def sets(self, predictive: Predictive, *, allow_empty: bool = True) -> Tensor:
        """The classes that are kept for the next rows, all at the α now in force."""
        if not isinstance(predictive, CategoryPredictive):
            raise ArgumentError(f"`predictive` must be that of classes; got {type(predictive).__name__}. See interval.")
        probs = probabilities(predictive)
        every = self.method.rule.class_scores(probs, self._uniforms(probs))
        return kept(every, every.new_tensor(self.threshold), probs, allow_empty)

    def interval(self, predictive: Predictive) -> tuple[Tensor, Tensor]:
        """The ends of the interval for the next rows, all at the α now in force."""
        known = check_values(predictive)
        threshold = torch.tensor(self.threshold, dtype=torch.float64, device=known.weights.device)
        if self.threshold == -float("inf"):
            mean = known.mean().double()
            return finish(known, mean, mean)
        return finish(known, *self.method.rule.value_bounds(known, threshold, self.method.level))

    def update(self, predictive: Predictive, y: Any) -> AdaptiveState:
        """The state after these targets, taken one after the other in their order, each judged at the α of its own
        moment."""
        check_predictive(predictive)
        method, scores = self.method, self._scores(predictive, y)
        if not bool(torch.isfinite(scores).all()):
            raise NumericalError("the conformal scores are not finite: the predictive gives NaN or infinite numbers.")
        history = self.scores.tolist()
        ordered, alpha, misses = sorted(history), self.alpha, self.misses
        for score in scores.tolist():
            missed = score > _threshold(ordered, alpha)
            alpha += method.gamma * (1 - method.level - missed)
            misses += missed
            history.append(score)
            bisect.insort(ordered, score)
            if method.window is not None and len(history) > method.window:
                ordered.pop(bisect.bisect_left(ordered, history.pop(0)))
        made = torch.tensor(history, dtype=torch.float64)
        return replace(self, scores=made, alpha=alpha, steps=self.steps + len(scores), misses=misses)

    def _scores(self, predictive: Predictive, y: Any) -> Tensor:
        rule = self.method.rule
        if isinstance(predictive, ValuePredictive):
            return rule.value_scores(predictive, precise_targets(predictive, y), self.method.level).flatten()
        assert isinstance(predictive, CategoryPredictive)
        probs = probabilities(predictive)
        every = rule.class_scores(probs, self._uniforms(probs))
        return every.gather(1, class_labels(predictive, y).unsqueeze(1)).squeeze(1)


def _threshold(ordered: list[float], alpha: float) -> float:
    """The conformal quantile at level 1 − α of sorted scores: infinite for α ≤ 0, minus infinity for α ≥ 1."""
    if alpha >= 1:
        return -float("inf")
    k = conformal_rank(len(ordered), 1 - alpha)
    if alpha <= 0 or k > len(ordered):
        return float("inf")
    return ordered[k - 1] if k >= 1 else -float("inf")
