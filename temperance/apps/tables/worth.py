"""What a model is worth beside an answer that never looks at the columns, by rows that it has not learned from."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from temperance.apps.tables.kinds import TableKind, flat, kind_of, standard_error
from temperance.apps.tables.marginal import predict_encoded
from temperance.apps.tables.prepare import Prepared, TablePart
from temperance.apps.tables.robust import within
from temperance.apps.tables.run import in_units
from temperance.apps.tables.schema import Schema
from temperance.core.errors import DataError, TemperanceWarning
from temperance.predict import Predictive
from temperance.predict.joined import joined_predictive
from temperance.run.fitted import Fitted

NOISE = 2.0
"""Standard errors within which a gain says nothing."""
HARDLY = "hardly better than", "no better than"
"""How the words of :func:`worth_words` begin."""

_SURELY = 3.0  # standard errors beyond which rows in the middle leave no doubt
_ROWS = 5000  # more tell nothing new
_ENDS = 0.025
_FEWEST = 20  # rows from which a factor or a temperature is learned

Losses = NDArray[np.float64]


@dataclass(frozen=True)
class Worth:
    """Mean log-losses of a model and of the baseline on the same ``rows``; the ``gain`` is the mean difference and
    ``error`` its standard error, both row by row; ``least`` is a gain that is worth the name. ``middle`` is the gain
    without the rows at both ends (2.5 % each), in its standard errors: of a model that was too sure of two rows the
    mean is hardly known, and yet it is clear that it has learned something."""

    rows: int
    own: float
    baseline: float
    gain: float
    error: float
    least: float
    middle: float

    @property
    def clear(self) -> bool:
        """Whether the model is better by more than chance explains, and by more than next to nothing."""
        error = self.error if math.isfinite(self.error) else 0.0
        return self.gain > self.least and (self.gain > NOISE * error or self.middle > NOISE)


def worth_of(kind: TableKind, own: Losses, baseline: Losses) -> Worth:
    """The gain of rows whose log-losses these are.

    >>> from temperance.apps.tables.kinds import KINDS
    >>> from temperance.core.outcomes import Reals
    >>> good, bad = np.tile([1.0, 1.2], 50), np.tile([2.0, 2.4], 50)
    >>> worth_of(KINDS.of(Reals()), good, bad).clear, worth_of(KINDS.of(Reals()), bad, bad).clear
    (True, False)
    """
    gain, usual = baseline - own, float(baseline.mean())
    cut = max(1, math.ceil(_ENDS * len(gain))) if len(gain) >= _FEWEST else 0
    inner = np.sort(gain)[cut : len(gain) - cut]
    error = standard_error(inner)
    middle = float(inner.mean()) / error if error > 0 else 0.0
    found = float(gain.mean())
    return Worth(len(own), float(own.mean()), usual, found, standard_error(gain), kind.least_gain(usual), middle)


def worth_held_back(schema: Schema, said: Predictive, rows: TablePart, baseline: torch.Tensor) -> Worth:
    """By rows that took no part in training or calibration, of which the model has ``said`` this."""
    kind = kind_of(schema)
    own = -flat(said.log_prob(kind.known_targets(rows.y)))
    return worth_of(kind, own, kind.baseline_losses(baseline.numpy(), rows.y))


def worth_in_folds(schema: Schema, folds: Sequence[tuple[Schema, Fitted]], prepared: Prepared) -> Worth:
    """By all rows, each as the model says that has not seen it, calibrated by the rows of the other folds, beside the
    baseline of the rows that this model has seen."""
    assert prepared.folds is not None
    kind, train = kind_of(schema), prepared.train
    made: list[tuple[Schema, TablePart, Predictive, NDArray[np.bool_]]] = []
    for k, (own, fitted) in enumerate(folds):
        left_out = prepared.folds == k
        part = train.some(np.flatnonzero(left_out)).inside(own.limits)
        if len(part):
            made.append((own, part, predict_encoded(fitted, part.encoded), left_out))
    losses, others = [], []
    for own, part, said, left_out in made:
        seen = train.y[~left_out]
        usual = kind.baseline(own, seen[within(seen, own.limits)])
        said = _calibrated(kind, said, [entry[:3] for entry in made if entry[1] is not part])
        losses.append(-flat(in_units(own, said).log_prob(kind.known_targets(part.y))))
        others.append(kind.baseline_losses(usual.numpy(), part.y))
    return worth_of(kind, np.concatenate(losses), np.concatenate(others))


def _calibrated(
    kind: TableKind, predictive: Predictive, others: Sequence[tuple[Schema, TablePart, Predictive]]
) -> Predictive:
    """As the rows of the other folds want it; left as the network has it where these are too few, or all alike."""
    rule, known = kind.calibration(), [kind.model_targets(own, part.y) for own, part, _ in others]
    if rule is None or sum(map(len, known)) < _FEWEST:
        return predictive
    together = joined_predictive([said for _, _, said in others])
    if together is None:  # models whose members do not match: the fit is not calibrated either
        return predictive
    try:
        with warnings.catch_warnings():  # the fit's own calibration has said whatever there is to say
            warnings.simplefilter("ignore", TemperanceWarning)
            return rule.fit(together, torch.cat(known))(predictive)
    except DataError:
        return predictive


def some_rows(part: TablePart) -> TablePart:
    """At most as many rows as tell something new, evenly spaced."""
    if len(part) <= _ROWS:
        return part
    return part.some(np.linspace(0, len(part) - 1, _ROWS).round().astype(np.int64))


def worth_words(found: Worth, kind: TableKind, target: str) -> list[str]:
    """A warning where the columns have told the model next to nothing, with the figures and what to do."""
    if found.clear:
        return []
    if found.middle > _SURELY:
        return [
            f"a few rows decide: on {found.rows:,} rows that were not learned from, the log-loss of {target} is "
            f"{found.own:.4g} and that of {kind.plain_answer} {found.baseline:.4g}, a gain of {found.gain:.2g} ± "
            f"{found.error:.2g} nats a row; without the {_ENDS:.1%} of rows at either end the model is clearly better. "
            f"It has learned from the columns, and is too sure of those few: look whether their {target} is a mistake. "
            "Intervals and sets hold what they promise all the same."
        ]
    begin = HARDLY[0] if found.gain > 0 else HARDLY[1]
    return [
        f"{begin} {kind.plain_answer}: on {found.rows:,} rows that were not learned from, the log-loss of {target} is "
        f"{found.own:.4g} and that of an answer which never looks at the columns {found.baseline:.4g}, a gain of "
        f"{found.gain:.2g} ± {found.error:.2g} nats a row. The columns say little of {target}, the rows are too few to "
        "show it, or training has gone wrong: look for better columns or more rows, and try another method "
        "(temperance compare)."
    ]
