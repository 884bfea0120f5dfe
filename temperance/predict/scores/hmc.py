"""How near predictions are to those of long-run HMC: the comparison of Izmailov et al. (2021).

Agreement is the fraction of test rows on which both name the same class, total variation the mean of ½ Σₖ |pₖ − qₖ|
(``temperance.predict.scores.agreement`` and ``total_variation``).
"""

from __future__ import annotations

import functools
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from temperance.core.errors import ArgumentError, DataError
from temperance.data.catalog import load
from temperance.data.reference import load_hmc_reference
from temperance.predict.predictive import Predictive
from temperance.predict.scores.classification import Array, accuracy, agreement, as_probs, log_loss, total_variation


@dataclass(frozen=True)
class HMCComparison:
    """Scores against the true labels, and nearness to HMC.

    Attributes:
        accuracy: fraction of true labels found.
        log_loss: mean of −log p(y), in nats.
        agreement: fraction of rows on which HMC names the same class.
        total_variation: mean distance of the probabilities from HMC's, from 0 to 1.

    >>> HMCComparison(0.875, 0.3, 0.95, 0.06).agreement
    0.95
    """

    accuracy: float
    log_loss: float
    agreement: float
    total_variation: float


def compare_to_hmc(
    probs: Array | Predictive | str | Path, name: str, *, rows: Array | None = None, y: Array | None = None
) -> HMCComparison:
    """Compare predictions on a test set with the published HMC predictive.

    Args:
        probs: test rows × classes; or a predictive of a classifier; or the path of a ``.npy`` file, or of a ``.npz``
            file with one array or an array ``probs``.
        name: ``"cifar10"`` or ``"imdb"``.
        rows: the test rows that the predictions are for, in their order. Unless told: all, in the order of
            ``temperance.data.load(name)``.
        y: labels of those rows. Unless told they are loaded, which takes a while for IMDB.

    >>> compare_to_hmc([[0.5, 0.5]], "mnist")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `name` must be one of cifar10, imdb; got 'mnist'.
    """
    reference = load_hmc_reference(name).probs
    given = as_probs("probs", _probabilities(probs))
    if rows is not None:
        reference = reference[_row_numbers(rows, len(reference))]
    if given.shape != reference.shape:
        wanted, got = (tuple(tensor.shape) for tensor in (reference, given))
        what = "rows of `rows`" if rows is not None else f"test rows of {name}"
        raise ArgumentError(f"`probs` must have shape {wanted}, one row for each of the {what}; got {got}.")
    if y is None:
        labels = _test_labels(name)
        y = labels if rows is None else labels[_row_numbers(rows, len(labels))]
    return HMCComparison(
        accuracy(given, y), log_loss(given, y), agreement(given, reference), total_variation(given, reference)
    )


def read_predictions(path: str | Path) -> Tensor:
    """Probabilities of a ``.npy`` file, or of a ``.npz`` file with one array or an array ``probs``.

    >>> read_predictions("nowhere.npy")
    Traceback (most recent call last):
    temperance.core.errors.DataError: file nowhere.npy: must be a readable .npy or .npz file of plain arrays; got ...
    """
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            array = found
        else:
            with found:
                names = found.files
                if "probs" not in names and len(names) != 1:
                    raise DataError(f"file {path}: must hold one array, or one called `probs`; got {names}.")
                array = found["probs" if "probs" in names else names[0]]
        return torch.from_numpy(array.astype(np.float64))
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"file {path}: must be a readable .npy or .npz file of plain arrays; got {error}.") from error


def _probabilities(probs: Array | Predictive | str | Path) -> Array:
    if isinstance(probs, Predictive):
        return probs.mean()
    if isinstance(probs, str | Path):
        return read_predictions(probs)
    return probs


def _row_numbers(rows: Array, count: int) -> Tensor:
    numbers = torch.as_tensor(rows)
    if numbers.dim() != 1 or numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise ArgumentError(
            f"`rows` must be whole numbers in one dimension; got {numbers.dtype} {list(numbers.shape)}."
        )
    if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= count):
        raise ArgumentError(f"`rows` must lie from 0 to {count - 1}; got {int(numbers.min())} to {int(numbers.max())}.")
    return numbers.long().cpu()


@functools.lru_cache(maxsize=2)
def _test_labels(name: str) -> Tensor:
    return load(name)[1].y
