"""What a table does with a target, by its outcome: reading it, promising about it, scoring it, speaking of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from temperance.apps.tables.schema import Schema
from temperance.core.errors import ArgumentError, DataError
from temperance.core.registry import ByOutcome
from temperance.decide.conformal import ConformalRule
from temperance.judge.calibrate import CalibrationRule
from temperance.model.likelihoods import Likelihood
from temperance.predict.monotone import Monotone

if TYPE_CHECKING:
    from temperance.apps.tables.safeguards import Guard
    from temperance.apps.tables.scores import Evaluation

Numbers = NDArray[np.float64]
Columns = dict[str, NDArray[Any]]


class TableKind(ABC):
    """A kind of target. It holds nothing: all it says is a function of the table's schema and of numbers."""

    likelihoods: ClassVar[tuple[Likelihood, ...]]
    """Those to try, the best first; the next one where a method fails with it."""
    promised: ClassVar[str]
    """What conformal promises are about: sets or intervals."""
    own_words: ClassVar[str]
    """What the model itself says, without conformal rules."""
    entry: ClassVar[str]
    """What a cell of the target holds."""
    plain_answer: ClassVar[str]
    """What the baseline answers."""
    keeps_words: ClassVar[bool] = False
    """Whether words such as None and NA can be values."""
    paired: ClassVar[tuple[str, ...]]
    """Scores that are compared with those of MAP row by row."""

    # ------------------------------------------------------------------ reading

    @abstractmethod
    def read(
        self, values: pd.Series, name: str, classes: Sequence[str] | None = None
    ) -> tuple[Numbers, tuple[str, ...], list[str]]:
        """The target as numbers, NaN where it is missing; the names of classes; and notices."""

    def check_learnable(self, y: Numbers, name: str, words: str, classes: Sequence[str]) -> None:
        """Raise where there is nothing to learn; ``words`` name the outcome."""
        if len(y) == 0:
            raise DataError(f"the target `{name}` must hold a {self.entry} in some row for {words}; got none.")
        self.check_variety(y, name, classes)
        if len(y) < 10:
            raise DataError(f"at least 10 rows with a target are needed; got {len(y)}.")

    @abstractmethod
    def check_variety(self, y: Numbers, name: str, classes: Sequence[str]) -> None:
        """Raise where all rows have the same target."""

    def strata(self, y: Numbers) -> NDArray[np.int64] | None:
        """Parts of the rows that a split keeps in proportion."""
        return None

    def remarks(self, y: Numbers, classes: Sequence[str]) -> list[str]:
        """What there is to say of the training rows' targets."""
        return []

    # ------------------------------------------------------------------ learning

    def units(self, y: Numbers, transform: Monotone | None = None) -> tuple[float, float]:
        """Centre and spread by which targets (bent by ``transform``) are standardised."""
        return 0.0, 1.0

    def limits(self, y: Numbers, transform: Monotone | None = None) -> tuple[float, float]:
        """Targets beyond these are not learned from."""
        return -math.inf, math.inf

    def least(self, y: Numbers) -> float:
        """No interval reaches below it, by what the targets ``y`` of all rows, the test's too, have shown."""
        return -math.inf

    def bounded(self, transform: Monotone, y: Numbers) -> Monotone:
        """The same units, with means bounded by what the targets ``y`` have shown."""
        return transform

    def transforms(self, y: Numbers) -> tuple[Monotone, ...]:
        """Units, other than its own, in which such a target may be easier to learn."""
        return ()

    def forced(self, y: Numbers, name: str) -> tuple[Monotone, ...]:
        """The same where the user asks for the logarithm: raise where there is none."""
        raise ArgumentError(f"`log` is for positive numbers; the target `{name}` has {self.entry}s of another kind.")

    @abstractmethod
    def model_targets(self, schema: Schema, y: Numbers) -> Tensor:
        """Targets as the network learns them."""

    @abstractmethod
    def known_targets(self, y: Numbers) -> Tensor:
        """Targets in their own units, as a predictive takes them."""

    def calibration(self) -> CalibrationRule | None:
        """How predictions are calibrated on held-out rows, if they are."""
        return None

    @abstractmethod
    def baseline(self, schema: Schema, y: Numbers) -> torch.Tensor:
        """What a forecast that never looks at the inputs has to know of the training rows."""

    # ------------------------------------------------------------------ promising

    @abstractmethod
    def conformal(self) -> ConformalRule:
        """The rule of sets or intervals."""

    @abstractmethod
    def tolerance(self, y: Numbers) -> float:
        """How far off an answer may be, unless the user says it."""

    @abstractmethod
    def wrong(self, predictive: Any, y: Numbers, tolerance: float) -> NDArray[np.bool_]:
        """Rows whose answer is wrong."""

    # ------------------------------------------------------------------ answering

    @abstractmethod
    def names(self, schema: Schema) -> list[str]:
        """The columns of an answer."""

    @abstractmethod
    def columns(self, schema: Schema, guard: Guard, predictive: Any, unknown: bool) -> tuple[Columns, Numbers, Numbers]:
        """These columns; then the epistemic part and the whole of the uncertainty."""

    # ------------------------------------------------------------------ scoring

    @abstractmethod
    def row_scores(self, guard: Guard, predictive: Any, y: Numbers) -> dict[str, Numbers]:
        """What each row contributes to the scores."""

    @abstractmethod
    def summary(self, schema: Schema, rows: dict[str, Numbers]) -> tuple[dict[str, float], dict[str, float]]:
        """Scores beside the log-loss, and their standard errors."""

    @abstractmethod
    def by_row(self, schema: Schema, rows: dict[str, Numbers]) -> dict[str, Numbers]:
        """The ``paired`` scores of each row."""

    @abstractmethod
    def baseline_scores(self, baseline: Numbers, y: Numbers) -> dict[str, float]:
        """All scores of the baseline."""

    @abstractmethod
    def baseline_losses(self, baseline: Numbers, y: Numbers) -> Numbers:
        """The baseline's log-loss on each row."""

    def least_gain(self, loss: float) -> float:
        """Nats a row by which a model must be better than a baseline of this log-loss to have learned something: of
        numbers, 0.005 is one hundredth of their variance explained."""
        return 0.005

    def shown_tolerance(self, tolerance: float) -> float | None:
        """The tolerance, where it means anything."""
        return tolerance

    @abstractmethod
    def sentences(self, found: Evaluation, level: float) -> list[str]:
        """How good it is and how far the promises were kept, in plain words."""


KINDS: ByOutcome[TableKind] = ByOutcome("ways to treat a table", "temperance.apps.tables.kinds.KINDS")
"""The kind of target of each outcome that tables know."""


def kind_of(schema: Schema) -> TableKind:
    """The kind of a table's target."""
    return KINDS.of(schema.outcome)


def flat(values: Tensor) -> Numbers:
    """One column of a tensor as a float64 array."""
    return values.detach().double().cpu().numpy().reshape(-1)


def standard_error(values: Numbers) -> float:
    """Of a mean over rows."""
    if len(values) < 2 or not np.isfinite(values).all():
        return float("nan")
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def joined(mask: NDArray[np.bool_], words: list[str], between: str) -> NDArray[np.object_]:
    """For each row the words whose place is true, joined; each different row is put together once."""
    packed = np.packbits(mask, axis=1)
    keys = packed.view(f"V{packed.shape[1]}").reshape(-1) if packed.shape[1] > 1 else packed.reshape(-1)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    texts = [between.join(word for word, on in zip(words, mask[k], strict=True) if on) for k in first]
    return np.array(texts, dtype=object)[inverse.reshape(-1)]
