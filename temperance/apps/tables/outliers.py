"""Rows unlike those of training: a distance among the inputs, turned into a p-value by rows that were held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temperance.core.checks import check_shape, check_vector
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.core.seeds import derive_seed

_ROWS = 20_000
_FALSE_ALARMS = 0.01
Flags = NDArray[np.bool_]


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

    def __post_init__(self) -> None:
        check_fields(self, "centre", "whitening", "ordinary")
        check_vector(self.centre, "centre")
        check_vector(self.ordinary, "ordinary")
        if self.whitening.dim() != 2:
            raise ArgumentError(f"`whitening` must be a matrix; got shape {tuple(self.whitening.shape)}.")
        check_shape(self.whitening, "whitening", len(self.centre), self.whitening.shape[1])

    def p_values(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """How ordinary each row is; small for strange ones."""
        return self._p_at(_distance(x, self.centre, self.whitening))

    def _p_at(self, distance: NDArray[np.float32]) -> NDArray[np.float64]:
        at_least = len(self.ordinary) - np.searchsorted(self.ordinary.numpy(), distance)
        return (1 + at_least) / (len(self.ordinary) + 1)

    def flags(self, x: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Rows whose p-value is at most ``false_alarms``."""
        return self.p_values(x) <= self.false_alarms + 1e-12

    def flags_at(self, distance: NDArray[np.float32]) -> Flags:
        """The same of rows whose distance is known."""
        return self._p_at(distance) <= self.false_alarms + 1e-12


def learn_strangeness(train: NDArray[np.float32], held_out: NDArray[np.float32], seed: int = 0) -> Strangeness:
    """From the inputs of the training rows (20,000 at most) and of held-out ones."""
    if len(train) > _ROWS:
        rng = np.random.default_rng(derive_seed(seed, "table-strange"))
        train = train[rng.choice(len(train), _ROWS, replace=False)]
    centre, turned = _whitened(train)
    ordinary = np.sort(_distance(held_out, centre, turned))
    return Strangeness(centre, turned, torch.from_numpy(ordinary), max(_FALSE_ALARMS, 1 / (len(held_out) + 1)))


def learn_strangeness_in_folds(x: NDArray[np.float32], folds: NDArray[np.int64]) -> tuple[Strangeness, Flags]:
    """The same where no rows are held out: each fold's rows are as far as the others' centre and spread say. Also
    which of them are flagged so."""
    distance = np.empty(len(x), dtype=np.float32)
    for k in range(int(folds.max()) + 1):
        own = folds == k
        distance[own] = _distance(x[own], *_whitened(x[~own]))
    made = Strangeness(*_whitened(x), torch.from_numpy(np.sort(distance)), max(_FALSE_ALARMS, 1 / (len(distance) + 1)))
    return made, made.flags_at(distance)


def _whitened(train: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
    from sklearn.covariance import LedoitWolf

    found = LedoitWolf().fit(train.astype(np.float64))
    values, vectors = np.linalg.eigh(found.covariance_)
    whitening = vectors / np.sqrt(np.maximum(values, 1e-9 * values.max()))
    centre = torch.from_numpy(found.location_.astype(np.float32))
    return centre, torch.from_numpy(np.ascontiguousarray(whitening, dtype=np.float32))


def _distance(x: NDArray[np.float32], centre: Tensor, whitening: Tensor) -> NDArray[np.float32]:
    turned = (x - centre.numpy()) @ whitening.numpy()
    return np.einsum("ij,ij->i", turned, turned)
