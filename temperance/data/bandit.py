"""The UCI mushrooms: 8124 of them, 22 nominal attributes, edible or poisonous (Schlimmer 1987)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from temperance.core.errors import DataError
from temperance.core.outcomes import Classes
from temperance.core.seeds import generator
from temperance.data.data import Data, DataInfo
from temperance.data.embedded import split_rows
from temperance.data.files import FileSet, KnownFile

_FILE = "agaricus-lepiota.data"
_SHA256 = "e65d082030501a3ebcbcd7c9f7c71aa9d28fdfff463bf4cf4716a3fe13ac360e"
_PROVIDE = f"`{_FILE}` (plain or as .xz) from https://archive.ics.uci.edu/dataset/73/mushroom."
MUSHROOM_FILES = FileSet(
    "mushroom",
    ("bandit", "mushroom"),
    (KnownFile(_FILE, (f"sha256:{_SHA256}",), (".xz", "", ".gz")),),
    _PROVIDE,
)


@dataclass(frozen=True)
class Mushrooms:
    """``x``: 8124 × 117 zeros and ones, a column for each value that an attribute takes ("?" is one); ``edible``."""

    x: Tensor
    edible: Tensor
    features: tuple[str, ...]


def load_mushrooms() -> Mushrooms:
    """The mushrooms, one-hot, looked for in ``bandit/`` of the folders of ``TEMPERANCE_DATA``, then of the cache."""
    lines = MUSHROOM_FILES.read(_FILE).decode("ascii").split()
    table = np.array([line.split(",") for line in lines])
    if table.ndim != 2 or table.shape[1] != 23:
        raise DataError(f"{_FILE}: must have 23 columns; got shape {table.shape}.")
    columns, names = [], []
    for attribute in range(1, 23):
        for value in np.unique(table[:, attribute]):
            columns.append(table[:, attribute] == value)
            names.append(f"attribute {attribute} = {value}")
    x = torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))
    return Mushrooms(x, torch.from_numpy(table[:, 0] == "e"), tuple(names))


def load_mushroom_classes(split: int, seed: int) -> tuple[Data, Data]:
    """Edible (1) or poisonous (0) as classes, nine tenths of each to train on; ``x`` is zeros and ones as it is."""
    mushrooms = load_mushrooms()
    labels = mushrooms.edible.long()
    train, test = split_rows(labels, len(labels), generator(seed, "mushroom", split), held_out=0.1)
    info = DataInfo(
        name="mushroom",
        outcome=Classes(),
        num_classes=2,
        classes=("poisonous", "edible"),
        features=mushrooms.features,
        note=f"split {split}; a column of zeros and ones for each value of each attribute",
    )
    return Data(mushrooms.x[train], labels[train], info=info), Data(mushrooms.x[test], labels[test], info=info)
