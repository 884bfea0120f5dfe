"""Thresholds for each group, or for each class, on their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from temperance.core.checks import check_flag, check_level, shown
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.core.seeds import check_seed
from temperance.decide.conformal.base import (
    Conformal,
    ConformalRule,
    check_predictive,
    class_labels,
    group_list,
    scored,
)
from temperance.predict import CategoryPredictive, Predictive


@dataclass(frozen=True, eq=False)
class Mondrian(Value):
    """``rule`` with a threshold for each group (Vovk 2003), so that coverage holds within each:

        P(y in the set | group) ≥ level.

    ``groups`` are known before y is: sites, sexes, devices. ``per_class=True`` makes each class a group instead, for
    class-conditional coverage P(y in the set | y = c) ≥ level: class c is kept where its score is at most the threshold
    of c. A group that was not among the calibration rows gets the full set or the infinite interval
    (``conformal.known(groups)`` says which), and so does one with too few rows (``conformal.remarks``).

    >>> import temperance as tp
    >>> from temperance.decide.conformal import Split
    >>> from temperance.predict.calibrated import from_outputs
    >>> rng = torch.Generator().manual_seed(0)
    >>> groups = ["calm", "wild"] * 100
    >>> y = torch.randn(200, 1, generator=rng) * torch.tensor([1.0, 9.0]).repeat(100).unsqueeze(1)
    >>> conformal = Mondrian(Split()).calibrate(from_outputs(torch.zeros(200, 1), tp.Normal(1.0)), y, groups=groups)
    >>> low, high = conformal.interval(from_outputs(torch.zeros(3, 1), tp.Normal(1.0)), ["calm", "wild", "new"])
    >>> high.flatten()
    tensor([ 1.5616, 15.2683,     inf])
    >>> conformal.known(["calm", "wild", "new"])
    tensor([ True,  True, False])
    """

    rule: ConformalRule
    per_class: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.rule, ConformalRule):
            raise ArgumentError(f"`rule` must be a conformal rule such as Split(); got {shown(self.rule)}.")
        check_flag(self.per_class, "per_class")

    def calibrate(
        self, predictive: Predictive, y: Any, level: float = 0.9, groups: Any = None, *, seed: int = 0
    ) -> Conformal:
        """See :meth:`ConformalRule.calibrate`."""
        check_predictive(predictive)
        if self.per_class:
            if groups is not None:
                raise ArgumentError("`groups` must not be given with per_class=True: the classes are the groups.")
            if not isinstance(predictive, CategoryPredictive):
                raise ArgumentError("`per_class` is for classes; for values give `groups`.")
            rule, scores, used = scored(self.rule, predictive, y, check_level(level), check_seed(seed))
            labels = class_labels(predictive, y)[used]
            classes = max(2, predictive.source.num_outputs)
            each = tuple(scores[labels == c] for c in range(classes))
            return Conformal(rule, level, each, None, tuple(range(classes)), seed, per_class=True)
        if groups is None:
            raise ArgumentError("`groups` must be given, one label a row (or use Mondrian(rule, per_class=True)).")
        given = group_list(groups, len(predictive))
        rule, scores, used = scored(self.rule, predictive, y, check_level(level), check_seed(seed))
        names = sorted(set(given), key=lambda g: (isinstance(g, str), g))
        place = {name: k for k, name in enumerate(names)}
        number = torch.tensor([place[name] for name in given], device=scores.device)[used]
        return Conformal(rule, level, tuple(scores[number == k] for k in range(len(names))), None, tuple(names), seed)
