"""Predictions that others computed at great cost: the long Hamiltonian Monte Carlo runs of Izmailov et al. (2021).

They ran full-batch HMC on 512 TPUs until the predictions settled, and published the averaged class probabilities on
the test sets. An approximate method that samples the same posterior should predict the same.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import shown
from temperance.core.errors import ArgumentError, DataError
from temperance.data.files import FileSet, KnownFile, check_digest

_PROVIDE = (
    "the npz: the array `probs` with one row of class probabilities for each test row, from "
    "https://github.com/google-research/google-research/tree/master/bnn_hmc."
)


@dataclass(frozen=True)
class HMCReference:
    """The averaged predictions of a long HMC run.

    Attributes:
        data_set: what ``temperance.data.load`` calls the data.
        network: what was sampled.
        prior_variance: of each weight, in N(0, variance).
        probs: test rows × classes in float64, in the order of that data set's test rows.
    """

    data_set: str
    network: str
    prior_variance: float
    probs: Tensor


@dataclass(frozen=True)
class _Published:
    network: str
    prior_variance: float
    shape: tuple[int, int]
    file: str
    index: str | None  # entry k is the test row that row k of the file is about
    digest: str  # sha256 of the float32 probabilities in the order of the test rows

    def files(self) -> FileSet:
        return FileSet("hmc-reference", ("hmc-reference",), (KnownFile(self.file),), _PROVIDE)


HMC_REFERENCES = {
    "cifar10": _Published(
        "ResNet-20 with filter response norm and swish",
        1 / 5,
        (10000, 10),
        "hmc_cifar10_resnet20frn.npz",
        "canonical_index",
        "f3a6eb5aec1967ec9c91f0f6c10c8cac8052c9b69fb9473c80db8a92e1ce5042",
    ),
    "imdb": _Published(
        "CNN-LSTM",
        1 / 40,
        (25000, 2),
        "hmc_imdb_cnnlstm.npz",
        None,
        "87482d2c92804bda1fee42e92e6a9032ba26d8cab05977d8f9a841ec71b7b0ba",
    ),
}
"""The published runs, by the name of their data set."""


def load_hmc_reference(name: str) -> HMCReference:
    """The predictive of long-run HMC on ``cifar10`` or ``imdb``, in the order of the test rows of that data set.

    The files are looked for in ``hmc-reference/`` of the folders of ``TEMPERANCE_DATA``, then of the cache; they are
    not fetched. The CIFAR-10 file is shuffled and says by which index; the rows of the IMDB file are in Keras's order
    already (its index array belongs to the raw reviews, and is not needed). A digest of the ordered rows is checked.

    >>> load_hmc_reference("mnist")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `name` must be one of cifar10, imdb; got 'mnist'.
    """
    if not isinstance(name, str) or name not in HMC_REFERENCES:
        raise ArgumentError(f"`name` must be one of {', '.join(HMC_REFERENCES)}; got {shown(name)}.")
    published = HMC_REFERENCES[name]
    content = published.files().read(published.file)
    arrays = _arrays(content, published.file)
    if "probs" not in arrays:
        raise DataError(f"{published.file}: must hold an array `probs`; got {', '.join(arrays) or 'nothing'}.")
    probs = arrays["probs"]
    if probs.shape != published.shape:
        raise DataError(f"{published.file}: `probs` must have shape {published.shape}; got {probs.shape}.")
    probs = probs.astype(np.float32)
    if published.index in arrays:
        order = arrays[published.index].astype(np.int64)
        if not np.array_equal(np.sort(order), np.arange(len(probs))):
            raise DataError(f"{published.file}: `{published.index}` must name each of {len(probs)} rows once.")
        ordered = np.empty_like(probs)
        ordered[order] = probs
        probs = ordered
    check_digest(np.ascontiguousarray(probs, dtype="<f4").tobytes(), published.digest, published.file)
    rows = torch.from_numpy(probs.astype(np.float64))
    return HMCReference(name, published.network, published.prior_variance, rows)


def _arrays(content: bytes, file: str) -> dict[str, np.ndarray]:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: must be a NumPy archive (.npz) of plain arrays; got {error}.") from error
