"""Molecules of MoleculeNet with a measured property, as counts of what their SMILES are spelled with.

A token is an atom (``Cl`` and ``Br`` are one; an atom in brackets with all that stands in them is one), a bond, a
branch's bracket or a ring's digit. Columns are the 100 tokens and pairs of neighbouring tokens that are most frequent
in the training rows, standardised there as the UCI tables are; so is the target.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from temperance.core.checks import check_count
from temperance.core.outcomes import Reals
from temperance.core.seeds import generator
from temperance.data.bags import count_matrix, most_frequent
from temperance.data.data import Data, DataInfo
from temperance.data.embedded import split_rows
from temperance.data.files import FileSet, KnownFile
from temperance.data.tables import standardise

_TOKEN = re.compile(r"\[[^\]]*\]|Br|Cl|%\d\d|\S")
_PROVIDE = "`{file}` of MoleculeNet, https://moleculenet.org/datasets-1."


@dataclass(frozen=True)
class Molecules:
    """One set: its file, the column of the property and what that is."""

    name: str
    file: str
    sha256: str
    rows: int
    column: str
    target: str
    licence: str = "no licence stated; cite Wu et al. 2018 (MoleculeNet)"

    @property
    def files(self) -> FileSet:
        """The one file."""
        known = KnownFile(self.file, (f"sha256:{self.sha256}",), ("", ".xz"))
        return FileSet(self.name, ("molecules",), (known,), _PROVIDE.format(file=self.file))


_ALL = (
    Molecules(
        "esol",
        "delaney-processed.csv",
        "8c06a76f0c6487d29ab0f903e6a7a7139f189ab3c1178f159c8be8964602f189",
        1128,
        "measured log solubility in mols per litre",
        "log solubility (mol/l)",
    ),
    Molecules(
        "freesolv",
        "freesolv.csv",
        "2bfd85e03c790f40ca511efbde8d6095d2e40bf5a70450e29450cd68aecbef01",
        642,
        "expt",
        "hydration free energy (kcal/mol)",
    ),
    Molecules(
        "lipophilicity",
        "Lipophilicity.csv",
        "53f4d75dad1ff26224df1fe0523de4af1ecf867855f18c1794a1a20de44d42da",
        4200,
        "exp",
        "octanol/water distribution (logD at pH 7.4)",
    ),
)

MOLECULES: dict[str, Molecules] = {entry.name: entry for entry in _ALL}
"""The sets by name."""


def spell(smiles: str) -> Counter[str]:
    """Tokens and pairs of neighbours, counted.

    >>> sorted(spell("C[nH]Cl").items())
    [('C', 1), ('C[nH]', 1), ('Cl', 1), ('[nH]', 1), ('[nH]Cl', 1)]
    """
    tokens = _TOKEN.findall(smiles)
    # No pair is spelled like a token ("l" and "r" never stand alone), so one Counter can hold both.
    return Counter([*tokens, *(a + b for a, b in itertools.pairwise(tokens))])


def read_molecules(name: str) -> tuple[list[str], NDArray[np.float64]]:
    """SMILES and the property (N × 1), as they are in the file."""
    entry = MOLECULES[name]
    content = entry.files.read(entry.file).decode("utf-8")
    rows = list(csv.DictReader(io.StringIO(content)))
    return [row["smiles"].strip() for row in rows], np.array([[float(row[entry.column])] for row in rows])


def load_molecules(name: str, split: int, seed: int, features: int = 100) -> tuple[Data, Data]:
    """A random nine tenths to train on; ``split`` chooses another division, ``seed`` another family of them."""
    entry = MOLECULES[name]
    check_count(features, "features")
    smiles, y = read_molecules(name)
    train, test = (part.numpy() for part in split_rows(None, len(y), generator(seed, name, split), held_out=0.1))
    counts = [spell(line) for line in smiles]
    chosen = most_frequent([counts[k] for k in train], features)
    x = count_matrix(counts, chosen)
    (x_train, x_test), x_mean, x_scale = standardise(x[train], x[test])
    (y_train, y_test), y_mean, y_scale = standardise(y[train], y[test])
    info = DataInfo(
        name=name,
        outcome=Reals(),
        features=chosen,
        x_mean=x_mean,
        x_scale=x_scale,
        y_mean=y_mean,
        y_scale=y_scale,
        note=f"split {split}; counts of tokens of SMILES and of pairs; y is {entry.target}, standardised",
    )
    return Data(x_train, y_train, info=info), Data(x_test, y_test, info=info)
