"""Small tables: every row trains and every row promises, by models that have each not seen a fold of the rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from temperance.apps.recipes import table_target
from temperance.apps.tables.schema import Schema
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.core.seeds import derive_seed
from temperance.model.likelihoods import Likelihood
from temperance.model.priors import Prior
from temperance.model.target import Target
from temperance.posteriors import Posterior
from temperance.predict.monotone import Monotone
from temperance.run.fitted import Fitted

FOLDS, MANY_FOLDS = 5, 10
_FEW = 100  # rows below which ten folds are taken: leaving out a fifth would leave too little to learn from
CALIBRATE = 50
"""Rows that a half of the validation rows must have: fewer are not calibrated on, for one number learned from a handful
does more harm than good; and tables that would have fewer promise by folds instead."""


def check_folds(folds: int | None) -> None:
    """Raise unless so many folds can be dealt; 0 holds rows back instead."""
    if folds is not None and (isinstance(folds, bool) or not isinstance(folds, int) or folds < 0 or folds == 1):
        raise ArgumentError(f"`folds` must be a whole number from 2 on, or 0 to hold rows back instead; got {folds!r}.")


def usual_folds(rows: int, held_out: int) -> int:
    """How many folds a table gets where nobody asks: none where the halves of ``held_out`` rows are large enough to
    calibrate and to promise with.

    >>> usual_folds(60, 20), usual_folds(300, 80), usual_folds(4000, 1000)
    (10, 5, 0)
    """
    if held_out >= 2 * CALIBRATE:
        return 0
    return MANY_FOLDS if rows < _FEW else FOLDS


def deal(
    rows: int, folds: int, seed: int, labels: NDArray[np.int64] | None, groups: pd.Series | None
) -> NDArray[np.int64]:
    """The fold of each row, at random: each fold has its share of each label, and no group is in two folds.

    >>> np.bincount(deal(12, 3, 0, np.arange(12) % 2, None)).tolist()
    [4, 4, 4]
    """
    rng = np.random.default_rng(derive_seed(seed, "table-folds"))
    if groups is not None:
        codes, names = pd.factorize(groups, use_na_sentinel=False)
        folds = min(folds, len(names))
        place: NDArray[np.int64] = rng.permutation(len(names))[codes] % folds
        return place
    order = np.lexsort((rng.random(rows), np.zeros(rows, dtype=np.int64) if labels is None else labels))
    made = np.empty(rows, dtype=np.int64)
    made[order] = np.arange(rows) % min(folds, rows)
    return made


@dataclass(frozen=True, eq=False)
class FoldModel(Value):
    """A model that has not seen one fold, in units of its own: what it is made of comes from the other rows alone."""

    posterior: Posterior
    likelihood: Likelihood
    prior: Prior
    centre: float
    spread: float
    transform: Monotone | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def of(cls, fitted: Fitted, schema: Schema) -> FoldModel:
        """What is kept of a fit."""
        target = fitted.target
        return cls(fitted.posterior, target.likelihood, target.prior, schema.centre, schema.spread, schema.transform)

    def schema(self, schema: Schema) -> Schema:
        """The table's, with the units of this model's target."""
        return replace(schema, centre=self.centre, spread=self.spread, transform=self.transform)

    def fitted(self, main: Fitted, schema: Schema, hidden: tuple[int, ...]) -> Fitted:
        """The fit again."""
        usual = table_target(schema.outcome, schema.inputs, schema.outputs, hidden=hidden, likelihood=self.likelihood)
        target = self.posterior.retarget(Target(usual.network, self.likelihood, self.prior))
        return Fitted(target, self.posterior, main.info, main.method, main.seed)
