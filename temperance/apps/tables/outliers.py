"""Rows unlike those of training: a distance among the inputs, turned into a p-value by rows that were held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temperance.core.encoding import Value
from temperance.core.seeds import derive_seed

_ROWS = 20_000
_FALSE_ALARMS = 0.01


@dataclass(frozen=True, eq=False)
class Strangeness(Value):
    """Mahalanobis distance from the training rows, compared with those of held-out rows.

    The p-value of a row is (1 + number of held-out rows at least as far) / (n + 1), so of rows like the held-out ones
    at most a fraction ``false_alarms`` is flagged.
    """

    centre: Tensor
    whitening: Tensor
    ordinary: Tensor
    false_alarms: float

    def p_values(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """How ordinary each row is; small for strange ones."""
        distance = _distance(x, self.centre, self.whitening)
        at_least = len(self.ordinary) - np.searchsorted(self.ordinary.numpy(), distance)
        return (1 + at_least) / (len(self.ordinary) + 1)

    def flags(self, x: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Rows whose p-value is at most ``false_alarms``."""
        return self.p_values(x) <= self.false_alarms + 1e-12


def learn_strangeness(train: NDArray[np.float32], held_out: NDArray[np.float32], seed: int = 0) -> Strangeness:
    """From the inputs of the training rows (20,000 at most) and of held-out ones."""
    from sklearn.covariance import LedoitWolf

    if len(train) > _ROWS:
        rng = np.random.default_rng(derive_seed(seed, "table-strange"))
        train = train[rng.choice(len(train), _ROWS, replace=False)]
    found = LedoitWolf().fit(train.astype(np.float64))
    values, vectors = np.linalg.eigh(found.covariance_)
    whitening = vectors / np.sqrt(np.maximum(values, 1e-9 * values.max()))
    centre = torch.from_numpy(found.location_.astype(np.float32))
    turned = torch.from_numpy(np.ascontiguousarray(whitening, dtype=np.float32))
    ordinary = np.sort(_distance(held_out, centre, turned))
    return Strangeness(centre, turned, torch.from_numpy(ordinary), max(_FALSE_ALARMS, 1 / (len(held_out) + 1)))


def _distance(x: NDArray[np.float32], centre: Tensor, whitening: Tensor) -> NDArray[np.float32]:
    turned = (x - centre.numpy()) @ whitening.numpy()
    return np.einsum("ij,ij->i", turned, turned)
