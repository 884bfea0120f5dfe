"""Predictions where a value is unknown: the average over the values that may stand for it.

With values v₁, …, v_K of equal weight in place of the unknown one, p(y | rest, D) = (1/K) Σ_k p(y | rest, v_k, D). By
the concavity of the entropy, and by the law of total variance, that is never more certain than the average of its
parts; and where the parts differ, the difference counts as epistemic, for knowing the value would remove it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.apps.tables.columns import IMPUTATIONS
from temperance.apps.tables.encode import Encoded
from temperance.posteriors import Stratum
from temperance.predict import PREDICTIVES, Predictive
from temperance.predict.source import OutputBlock, Outputs
from temperance.run.fitted import Fitted

_OUTPUTS = 2**23  # numbers in a block: draws × imputations × rows × outputs
_KEEP = 2**25


class MarginalSource(Outputs):
    """Outputs of all rows under all draws and all imputations: (S · K) × N × C. A row without an unknown value has the
    same outputs under each imputation."""

    def __init__(self, fitted: Fitted, encoded: Encoded, seed: int = 0, calibrator: Any = None) -> None:
        self.fitted, self.encoded, self.seed, self.calibrator = fitted, encoded, seed, calibrator
        self._open = np.zeros(len(encoded.x), dtype=bool)
        self._open[encoded.open_rows] = True
        self._scramble = 0
        first = self._plain(slice(0, 1))
        probe, self.likelihood = first.source, first.likelihood
        self.engine, self.num_outputs = probe.engine, probe.num_outputs
        self.rows, self._draws = len(encoded.x), len(probe)
        self._strata, self._scrambled = probe.strata, probe.scrambled
        self.weights = probe.weights.repeat_interleave(IMPUTATIONS) / IMPUTATIONS
        size = len(self) * self.num_outputs
        self._block = max(1, _OUTPUTS // size)
        self._kept: list[OutputBlock] | None = None
        if size * self.rows <= _KEEP:
            self._kept = list(self._compute())

    def __len__(self) -> int:
        return self._draws * IMPUTATIONS

    def blocks(self) -> Iterator[OutputBlock]:
        """See :class:`~temperance.predict.source.Source`."""
        yield from self._compute() if self._kept is None else self._kept

    @property
    def strata(self) -> tuple[Stratum, ...]:
        """Those of the draws: the imputations of each belong together."""
        return tuple(replace(s, count=s.count * IMPUTATIONS, block=s.block * IMPUTATIONS) for s in self._strata)

    @property
    def scrambled(self) -> bool:
        """As the predictive of complete rows is."""
        return self._scrambled

    def again(self, scramble: int) -> MarginalSource:
        """The same by other quasi-random points; nothing of it is kept."""
        made = copy.copy(self)
        made._scramble, made._kept = scramble, None
        return made

    def row_inputs(self) -> Tensor:
        """The encoded rows, unknown values as they are filled in for a single prediction."""
        return torch.from_numpy(self.encoded.x)

    def _plain(self, rows: slice) -> Predictive:
        return self._at(self.encoded.x[rows])

    def _at(self, x: Any) -> Predictive:
        made = self.fitted.predict(torch.from_numpy(x), seed=self.seed)
        return made if self.calibrator is None else self.calibrator(made)

    def _compute(self) -> Iterator[OutputBlock]:
        for start in range(0, self.rows, self._block):
            rows = slice(start, min(start + self._block, self.rows))
            here = np.flatnonzero(self._open[rows])
            count = rows.stop - rows.start
            outputs, learned = _all_outputs(self._plain(rows).source.again(self._scramble))
            made = outputs.unsqueeze(1).repeat(1, IMPUTATIONS, 1, 1)
            if len(here):
                x = self.encoded.imputed(here + start)
                filled = self._at(x.reshape(len(here) * IMPUTATIONS, -1)).source
                inner, _ = _all_outputs(filled.again(self._scramble))
                inner = inner.view(self._draws, len(here), IMPUTATIONS, -1).transpose(1, 2)
                made[:, :, torch.from_numpy(here).to(made.device)] = inner
            wide = {name: value.repeat_interleave(IMPUTATIONS, 0) for name, value in learned.items()}
            yield rows, made.reshape(len(self), count, -1), wide


def _all_outputs(source: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
    parts = [(outputs.clone(), learned) for _, outputs, learned in source.blocks()]
    return torch.cat([outputs for outputs, _ in parts], dim=1), parts[0][1]


def predict_encoded(fitted: Fitted, encoded: Encoded, seed: int = 0, calibrator: Any = None) -> Predictive:
    """The predictive of encoded rows, averaged over the values that may stand for unknown ones."""
    if not encoded.unknown:
        made = fitted.predict(torch.from_numpy(encoded.x), seed=seed)
        return made if calibrator is None else calibrator(made)
    source = MarginalSource(fitted, encoded, seed, calibrator)
    return PREDICTIVES.of(source.likelihood.outcome)(source, source.likelihood)
