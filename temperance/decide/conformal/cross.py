"""Promises where every row trains: cross-conformal sets and CV+ intervals (Vovk 2015; Barber et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_flag, check_level, shown
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.core.seeds import check_seed
from temperance.decide.conformal.base import (
    ConformalRule,
    check_scores,
    check_values,
    class_labels,
    every_class_score,
    finish,
    least_of,
    scored,
)
from temperance.decide.conformal.quantile import conformal_rank
from temperance.predict import CategoryPredictive, Predictive


@dataclass(frozen=True, eq=False)
class Cross(Value):
    """``rule`` for tables too small to hold rows back: rows are dealt into K folds, model k is trained without fold k,
    and each row is scored by the model that has not seen it.

    A new row is judged by all K models, each with the scores s_i of its own fold:

        interval:  from the ⌊(1 − level)(n + 1)⌋-th smallest lower end to the ⌈level (n + 1)⌉-th smallest upper end, of
                   the n ends that model k(i) gives at threshold s_i  (CV+; jackknife+ where K = n);
        sets:      classes whose score under k(i) is above s_i for fewer than ⌈level (n + 1)⌉ of the rows i.

    Whatever model and data, these cover with probability 2 · level − 1 at least, up to √(2/n) (Barber et al. 2021); in
    practice with about ``level``, for that bound is reached by models that change wildly with a single row only.
    ``per_class=True`` counts, for class c, the rows of class c alone.

    >>> import temperance as tp
    >>> from temperance.decide.conformal import Split
    >>> from temperance.predict.calibrated import from_outputs
    >>> y = torch.randn(2, 50, 1, generator=torch.Generator().manual_seed(0))
    >>> each = [from_outputs(torch.zeros(50, 1), tp.Normal(1.0)) for _ in range(2)]
    >>> made = Cross(Split()).calibrate(each, y)
    >>> low, high = made.interval([from_outputs(torch.zeros(1, 1), tp.Normal(1.0)) for _ in range(2)])
    >>> bool(1.2 < high < 2.2), bool(low == -high)
    (True, True)
    """

    rule: ConformalRule
    per_class: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.rule, ConformalRule):
            raise ArgumentError(f"`rule` must be a conformal rule such as Split(); got {shown(self.rule)}.")
        check_flag(self.per_class, "per_class")

    def calibrate(
        self, predictives: Sequence[Predictive], targets: Sequence[Any], level: float = 0.9, *, seed: int = 0
    ) -> CrossConformal:
        """From the predictive of each fold's rows, by the model that has not seen them, and their targets."""
        if len(predictives) < 2 or len(predictives) != len(targets):
            raise ArgumentError(
                f"`predictives` and `targets` must be those of at least two folds; got {len(predictives)} and "
                f"{len(targets)}."
            )
        scores, labels = [], []
        for predictive, y in zip(predictives, targets, strict=True):
            rule, found, _ = scored(self.rule, predictive, y, check_level(level), check_seed(seed))
            if rule is not self.rule:
                raise ArgumentError(
                    f"`rule` must not tune itself on the rows that it then promises with; give {type(rule).__name__} "
                    "its settings."
                )
            scores.append(found.cpu())
            if self.per_class:
                if not isinstance(predictive, CategoryPredictive):
                    raise ArgumentError("`per_class` is for classes; intervals have none.")
                labels.append(class_labels(predictive, y).cpu())
        return CrossConformal(self.rule, level, tuple(scores), tuple(labels) if self.per_class else None, seed)


@dataclass(frozen=True, eq=False, repr=False)
class CrossConformal(Value):
    """What :class:`Cross` calibrated: ``scores`` of each fold's rows, and their ``labels`` where each class has
    promises of its own. ``sets`` and ``interval`` take what the models of all folds, in order, predict of new rows.
    """

    rule: ConformalRule
    level: float
    scores: tuple[Tensor, ...]
    labels: tuple[Tensor, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        check_level(self.level)
        check_seed(self.seed)
        check_scores(self.scores)

    def __repr__(self) -> str:
        return f"CrossConformal({self.rule!r}, level={self.level}, rows={self.rows}, folds={len(self.scores)})"

    @property
    def rows(self) -> int:
        """How many rows promise."""
        return sum(len(part) for part in self.scores)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a user should know: too few rows for the level."""
        least = math.ceil(self.level / (1 - self.level) - 1e-9)
        if self.labels is None:
            few = {"": self.rows} if conformal_rank(self.rows, self.level) > self.rows else {}
        else:
            labels = torch.cat(self.labels)
            counts = {c: int((labels == c).sum()) for c in range(int(labels.max()) + 1)}
            few = {f" of class {c}": n for c, n in counts.items() if conformal_rank(n, self.level) > n}
        return tuple(
            f"{n} rows{where} are too few for level {self.level}, which needs {least}: the set is full, the interval "
            "infinite."
            for where, n in few.items()
        )

    def _check(self, predictives: Sequence[Predictive]) -> None:
        if len(predictives) != len(self.scores):
            raise ArgumentError(
                f"`predictives` must be of the {len(self.scores)} models of the folds; got {len(predictives)}."
            )

    def interval(self, predictives: Sequence[Predictive]) -> tuple[Tensor, Tensor]:
        """The ends of the interval, each rows × outputs; no smaller than the target can be, if one of the models says
        how small that is (those of other folds may have learned it in other units)."""
        self._check(predictives)
        lows, highs, least = [], [], -math.inf
        for predictive, scores in zip(predictives, self.scores, strict=True):
            known = check_values(predictive)
            device, least = known.weights.device, max(least, least_of(known))
            threshold = (scores if scores.dim() == 2 else scores.unsqueeze(-1)).unsqueeze(1).to(device)
            low, high = self.rule.value_bounds(known, threshold, self.level)
            lows.append(low)
            highs.append(high)
        rank = conformal_rank(self.rows, self.level)
        low, high = torch.cat(lows), torch.cat(highs)
        if rank > self.rows:
            low, high = torch.full_like(low[0], -math.inf), torch.full_like(high[0], math.inf)
        else:
            low, high = -(-low).kthvalue(rank, dim=0).values, high.kthvalue(rank, dim=0).values
        low, high = finish(check_values(predictives[0]), low, high)
        return (low, high) if least == -math.inf else (low.clamp(min=least), high.clamp(min=least))

    def sets(self, predictives: Sequence[Predictive]) -> Tensor:
        """The classes that are kept, a mask of rows × classes; it may be empty."""
        self._check(predictives)
        below: Tensor | None = None
        for k, (predictive, scores) in enumerate(zip(predictives, self.scores, strict=True)):
            every = every_class_score(self.rule, predictive, self.seed)
            labels = None if self.labels is None else self.labels[k]
            found = torch.stack(
                [
                    torch.searchsorted(
                        (scores if labels is None else scores[labels == c]).to(every).sort().values,
                        (every[:, c] - 1e-7).contiguous(),  # float32 gives equal rows scores that differ by a rounding
                    )
                    for c in range(every.shape[1])
                ],
                dim=1,
            )
            below = found if below is None else below + found
        assert below is not None
        counts = [self.rows] * below.shape[1]
        if self.labels is not None:
            known = torch.cat(self.labels)
            counts = [int((known == c).sum()) for c in range(below.shape[1])]
        ranks = torch.tensor([conformal_rank(n, self.level) for n in counts], device=below.device)
        return below < ranks
