"""Tables whose target is one of several classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from temperance.apps.tables.columns import texts_of
from temperance.apps.tables.kinds.base import KINDS, Columns, Numbers, TableKind, flat, joined, standard_error
from temperance.apps.tables.schema import Schema
from temperance.core.errors import DataError
from temperance.core.outcomes import Classes
from temperance.decide.conformal import ConformalRule, Split
from temperance.judge.calibrate import CalibrationRule, Temperature
from temperance.model.likelihoods import Categorical
from temperance.predict import CategoryPredictive, scores

if TYPE_CHECKING:
    from temperance.apps.tables.safeguards import Guard
    from temperance.apps.tables.scores import Evaluation

_MOST = 200
_RARE = 5


class ClassKind(TableKind):
    """Classes by their place in the sorted list of names; sets of plausible ones."""

    likelihoods = (Categorical(),)
    promised, own_words, entry = "sets", "probabilities", "value"
    plain_answer = "the base rate, the share of each class"
    paired = ("log_loss", "accuracy", "brier")
    keeps_words = True

    def read(
        self, values: pd.Series, name: str, classes: Sequence[str] | None = None
    ) -> tuple[Numbers, tuple[str, ...], list[str]]:
        """See :class:`TableKind`."""
        codes, texts = texts_of(values)
        names = tuple(_in_order(texts)) if classes is None else tuple(classes)
        place = {text: k for k, text in enumerate(names)}
        texts = [text if text in place else _plain(text) for text in texts]
        unknown = [text for text in texts if text not in place]
        notices = []
        if unknown:
            count = int(np.isin(codes, [k for k, t in enumerate(texts) if t not in place]).sum())
            notices = [
                f"{count:,} rows have a class of `{name}` never seen in training, e.g. {unknown[0]!r}: left out."
            ]
        found = np.array([place.get(text, np.nan) for text in texts] + [np.nan], dtype=np.float64)
        return found[codes], names, notices

    def check_variety(self, y: Numbers, name: str, classes: Sequence[str]) -> None:
        """See :class:`TableKind`."""
        if len(classes) < 2:
            raise DataError(f"the target `{name}` has one class only ({classes[0]!r}): there is nothing to learn.")
        if len(classes) > _MOST:
            raise DataError(
                f"the target `{name}` has {len(classes):,} different values; classification takes up to {_MOST}. "
                "Is it the right column?"
            )

    def strata(self, y: Numbers) -> NDArray[np.int64] | None:
        """The classes."""
        return y.astype(np.int64)

    def remarks(self, y: Numbers, classes: Sequence[str]) -> list[str]:
        """Which classes are rare."""
        rare = [name for k, name in enumerate(classes) if (y == k).sum() < _RARE]
        if not rare:
            return []
        listed = ", ".join(repr(name) for name in rare[:5])
        return [f"classes with fewer than {_RARE} training rows: {listed}{' …' if len(rare) > 5 else ''}."]

    def model_targets(self, schema: Schema, y: Numbers) -> Tensor:
        """Class numbers."""
        return torch.from_numpy(y.astype(np.int64))

    def known_targets(self, y: Numbers) -> Tensor:
        """The same."""
        return torch.from_numpy(y.astype(np.int64))

    def calibration(self) -> CalibrationRule | None:
        """A temperature."""
        return Temperature()

    def baseline(self, schema: Schema, y: Numbers) -> Tensor:
        """The share of each class."""
        counts = np.bincount(y.astype(np.int64), minlength=len(schema.classes)) + 1.0
        return torch.from_numpy(counts / counts.sum())

    def conformal(self) -> ConformalRule:
        """Sets by the probability of each class."""
        return Split()

    def tolerance(self, y: Numbers) -> float:
        """It means nothing here."""
        return 1.0

    def shown_tolerance(self, tolerance: float) -> float | None:
        """It means nothing here."""
        return None

    def wrong(self, predictive: CategoryPredictive, y: Numbers, tolerance: float) -> NDArray[np.bool_]:
        """Another class than the most probable."""
        found: NDArray[np.bool_] = predictive.predict().cpu().numpy() != y
        return found

    def names(self, schema: Schema) -> list[str]:
        """See :class:`TableKind`."""
        return ["prediction", *(f"probability_{name}" for name in schema.classes), "plausible"]

    def columns(
        self, schema: Schema, guard: Guard, predictive: CategoryPredictive, unknown: bool
    ) -> tuple[Columns, Numbers, Numbers]:
        """See :class:`TableKind`; uncertainty is in nats."""
        probs = predictive.probs.double().cpu().numpy()
        names = np.array(schema.classes, dtype=object)
        made: Columns = {"prediction": names[probs.argmax(1)]}
        made |= {f"probability_{name}": probs[:, k] for k, name in enumerate(schema.classes)}
        made["plausible"] = joined(guard.sets(predictive, unknown), list(schema.classes), " | ")
        return made, flat(predictive.mutual_information()), flat(predictive.entropy())

    def row_scores(self, guard: Guard, predictive: CategoryPredictive, y: Numbers) -> dict[str, Numbers]:
        """See :class:`TableKind`."""
        label = y.astype(np.int64)
        made = {"log_loss": -flat(predictive.log_prob(torch.from_numpy(label)))}
        probs = predictive.probs.double().cpu().numpy()
        made["probs"] = probs / probs.sum(1, keepdims=True)
        sets = guard.sets(predictive)
        made["covered"] = sets[np.arange(len(y)), label].astype(np.float64)
        made["size"] = sets.sum(1).astype(np.float64)
        return made

    def _squares(self, schema: Schema, rows: dict[str, Numbers]) -> Numbers:
        truth = np.eye(len(schema.classes))[rows["y"].astype(np.int64)]
        found: Numbers = np.square(rows["probs"] - truth).sum(1)
        return found

    def summary(self, schema: Schema, rows: dict[str, Numbers]) -> tuple[dict[str, float], dict[str, float]]:
        """See :class:`TableKind`."""
        squares = self._squares(schema, rows)
        found = {"accuracy": 1 - float(rows["wrong"].mean()), "brier": float(squares.mean())}
        found["ece"] = scores.ece(rows["probs"], rows["y"].astype(np.int64), resamples=1).value
        return found, {"accuracy": standard_error(rows["wrong"]), "brier": standard_error(squares)}

    def by_row(self, schema: Schema, rows: dict[str, Numbers]) -> dict[str, Numbers]:
        """See :class:`TableKind`."""
        return {
            "log_loss": rows["log_loss"],
            "accuracy": 1 - rows["wrong"],
            "brier": self._squares(schema, rows),
        }

    def baseline_scores(self, baseline: Numbers, y: Numbers) -> dict[str, float]:
        """Of the training share of each class."""
        probs = np.broadcast_to(baseline, (len(y), len(baseline)))
        label = y.astype(np.int64)
        return {
            "log_loss": scores.log_loss(probs, label),
            "accuracy": scores.accuracy(probs, label),
            "brier": scores.brier(probs, label),
            "ece": round(scores.ece(probs, label, resamples=1).value, 12),
        }

    def baseline_losses(self, baseline: Numbers, y: Numbers) -> Numbers:
        """By the training share of each row's class."""
        found: Numbers = -np.log(baseline[y.astype(np.int64)])
        return found

    def least_gain(self, loss: float) -> float:
        """One hundredth of the baseline's, for of rare classes there are few nats to gain."""
        return 0.01 * loss

    def sentences(self, found: Evaluation, level: float) -> list[str]:
        """See :class:`TableKind`."""
        return [
            f"Of {found.rows:,} test rows {found.scores['accuracy']:.1%} are classified rightly; always answering the "
            f"most frequent class gives {found.baseline['accuracy']:.1%}.",
            f"The set of plausible classes holds the truth in {found.coverage:.1%} of rows (promised: "
            f"{level:.0%}) and has {found.size:.2f} classes on average.",
        ]


def _plain(text: str) -> str:
    """A number written otherwise, as whole numbers are: 2.0 is the class 2."""
    try:
        value = float(text)
    except ValueError:
        return text
    return str(int(value)) if value.is_integer() else text


def _in_order(texts: list[str]) -> list[str]:
    """Numbers by size, then text by alphabet."""

    def key(text: str) -> tuple[int, float, str]:
        try:
            return 0, float(text), text
        except ValueError:
            return 1, 0.0, text

    return sorted(texts, key=key)


KINDS.register(Classes, ClassKind())
