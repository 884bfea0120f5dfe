"""The data sets by name: load them, list them, verify them.

Some come with scikit-learn or are made from a seed and are always there. The others are files that the user has to
provide, because most of them may not be passed on: they are looked for in the folders of ``TEMPERANCE_DATA``, then in
``TEMPERANCE_CACHE`` or ``~/.cache/temperance/data``.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from temperance.core.checks import shown
from temperance.core.errors import ArgumentError, DataError, MissingDataSetError
from temperance.core.outcomes import Classes, Outcome, Reals
from temperance.core.seeds import check_seed
from temperance.data import bags, bandit, embedded, images, molecules, tables, text
from temperance.data.data import Data, first_tensor
from temperance.data.files import data_folders


@dataclass(frozen=True)
class DataSetEntry:
    """One line of the list: what a data set is, and where it was found.

    ``rows`` counts training and test rows together; ``where`` is ``"embedded"``, a folder, or ``"not found"``.
    """

    name: str
    outcome: Outcome
    rows: int
    where: str
    licence: str


@dataclass(frozen=True)
class Verification:
    """What became of checking one data set."""

    name: str
    status: Literal["ok", "missing", "corrupt"]
    message: str


@dataclass(frozen=True)
class _Recipe:
    """How a data set is loaded; ``place`` and ``check`` are for those that come from files."""

    name: str
    outcome: Outcome
    rows: int
    licence: str
    load: Callable[..., tuple[Data, Data]]
    splits: int | None = None
    place: Callable[[], Path | None] | None = None
    check: Callable[[], object] | None = None

    def where(self) -> str:
        if self.place is None:
            return "embedded"
        found = self.place()
        return "not found" if found is None else str(found)

    def options(self) -> list[str]:
        return [name for name in inspect.signature(self.load).parameters if name not in ("name", "split", "seed")]


_CLASSES, _REGRESSION = Classes(), Reals()
_BUNDLED = "bundled with scikit-learn; from the UCI repository, CC BY 4.0"
_MADE = "made from a seed"


def _idx_recipe(name: str, rows: int, licence: str) -> _Recipe:
    return _Recipe(
        name,
        _CLASSES,
        rows,
        licence,
        functools.partial(images.load_idx, name),
        splits=1,
        place=images.IDX_FILES[name].where,
        check=functools.partial(images.read_idx, name),
    )


def _table_recipe(table: tables.Table) -> _Recipe:
    return _Recipe(
        table.name,
        _REGRESSION,
        table.rows,
        "UCI repository, CC BY 4.0",
        functools.partial(tables.load_table, table.name),
        splits=table.splits,
        place=table.files.where,
        check=functools.partial(tables.read_table, table.name),
    )


def _sentences_recipe(entry: bags.Sentences) -> _Recipe:
    return _Recipe(
        entry.name,
        _CLASSES,
        entry.rows,
        entry.licence,
        functools.partial(bags.load_sentences, entry.name),
        splits=None if entry.test is None else 1,
        place=entry.files.where,
        check=functools.partial(bags.read_sentences, entry.name),
    )


def _molecules_recipe(entry: molecules.Molecules) -> _Recipe:
    return _Recipe(
        entry.name,
        _REGRESSION,
        entry.rows,
        entry.licence,
        functools.partial(molecules.load_molecules, entry.name),
        place=entry.files.where,
        check=functools.partial(molecules.read_molecules, entry.name),
    )


def _imdb_place() -> Path | None:
    return next((place for place in (files.where() for files in text.IMDB_FILES) if place is not None), None)


_ALL = (
    _Recipe("digits", _CLASSES, 1797, _BUNDLED, embedded.load_digits),
    _Recipe("iris", _CLASSES, 150, _BUNDLED, embedded.load_iris),
    _Recipe("wine", _CLASSES, 178, _BUNDLED, embedded.load_wine),
    _Recipe("breast-cancer", _CLASSES, 569, _BUNDLED, embedded.load_breast_cancer),
    _Recipe(
        "diabetes",
        _REGRESSION,
        442,
        "bundled with scikit-learn; Efron et al. 2004, no licence stated",
        embedded.load_diabetes,
    ),
    _Recipe("two-moons", _CLASSES, 1000, _MADE, embedded.load_two_moons),
    _Recipe("blobs", _CLASSES, 1000, _MADE, embedded.load_blobs),
    _Recipe("sine", _REGRESSION, 200, _MADE, embedded.load_sine),
    _idx_recipe("mnist", 70000, "CC BY-SA 3.0"),
    _idx_recipe("fashion-mnist", 70000, "MIT"),
    _idx_recipe("notmnist", 10000, "files MIT; the glyphs are from fonts of many owners"),
    _Recipe(
        "cifar10",
        _CLASSES,
        60000,
        "no licence stated; cite Krizhevsky 2009",
        images.load_cifar10,
        splits=1,
        place=images.cifar10_place,
        check=functools.partial(images.read_cifar10),
    ),
    _Recipe(
        "cifar100",
        _CLASSES,
        60000,
        "no licence stated; cite Krizhevsky 2009",
        images.load_cifar100,
        splits=1,
        place=images.cifar100_place,
        check=functools.partial(images.read_cifar100),
    ),
    _Recipe(
        "imdb",
        _CLASSES,
        50000,
        "no licence stated; cite Maas et al. 2011",
        text.load_imdb,
        splits=1,
        place=_imdb_place,
        check=functools.partial(text.read_imdb),
    ),
    _Recipe(
        "imdb-bag",
        _CLASSES,
        50000,
        "no licence stated; cite Maas et al. 2011",
        bags.load_imdb_bag,
        splits=1,
        place=_imdb_place,
        check=functools.partial(text.read_imdb),
    ),
    *(_sentences_recipe(entry) for entry in bags.SENTENCES.values()),
    *(_table_recipe(table) for table in tables.TABLES.values()),
    *(_molecules_recipe(entry) for entry in molecules.MOLECULES.values()),
    _Recipe(
        "mushroom",
        _CLASSES,
        8124,
        "UCI repository, CC BY 4.0",
        bandit.load_mushroom_classes,
        place=bandit.MUSHROOM_FILES.where,
        check=bandit.load_mushrooms,
    ),
)
_RECIPES = {recipe.name: recipe for recipe in _ALL}


def _plain(name: str) -> str:
    """A name without what people spell differently: case, dashes, underscores, spaces."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _recipe(name: object) -> _Recipe:
    known = {_plain(recipe): recipe for recipe in _RECIPES}
    plain = _plain(name) if isinstance(name, str) else ""
    if plain in known:
        return _RECIPES[known[plain]]
    near = difflib.get_close_matches(plain, known, n=1)
    hint = f" Did you mean {known[near[0]]!r}?" if near else ""
    raise ArgumentError(f"`name` must be one of {', '.join(_RECIPES)}; got {shown(name)}.{hint}")


def data_home() -> Path:
    """The first folder that is searched for data sets: the place to put files.

    ``temperance.data.files.data_folders`` gives all of them.
    """
    return data_folders()[0]


def load(name: str, *, split: int = 0, seed: int = 0, **options: Any) -> tuple[Data, Data]:
    """Load a data set as ``(train, test)``.

    ``split`` picks another division in training and test rows where there are several: any number for the embedded
    sets, mr, mushroom and the molecules, 0 to 19 for the UCI tables (protein 0 to 4), only 0 where the test set is
    given. ``seed`` makes other divisions and other toys; published splits do not depend on it. ``options`` are those of
    the data set: two-moons ``n``, ``noise``; blobs ``n``, ``classes``, ``features``, ``spread``; sine ``n``, ``noise``;
    cifar100 ``coarse`` (20 groups in place of 100 classes); imdb ``vocabulary``, ``length``; the bags of words
    (imdb-bag, trec, sst2, mr, agnews) ``vocabulary``; the molecules (esol, freesolv, lipophilicity) ``features``.

    Classes are ``int64``, real targets ``float32`` of shape (N, 1); both sides of a regression are standardised on the
    training rows (``info`` holds the means and scales). Images are N × C × H × W in [0, 1]; the 8 × 8 digits are flat.
    notMNIST has only 10000 letters: the first 8000 are called train, the last 2000 test, and
    :func:`load_all` gives them in one piece.

    >>> train, test = load("digits")
    >>> train.x.shape, test.x.shape
    (torch.Size([1438, 64]), torch.Size([359, 64]))
    """
    recipe = _recipe(name)
    check_seed(seed)
    number = check_seed(split, "split")
    if recipe.splits == 1 and number != 0:
        raise ArgumentError(f"`split` must be 0: {recipe.name!r} has one given test set; got {split}.")
    unknown = sorted(set(options) - set(recipe.options()))
    if unknown:
        raise ArgumentError(
            f"`options` of {recipe.name!r} must be among {recipe.options() or 'none'}; got {', '.join(unknown)}."
        )
    return recipe.load(split=number, seed=int(seed), **options)


def load_all(name: str, *, split: int = 0, seed: int = 0, **options: Any) -> Data:
    """All rows of a data set as one ``Data``, the training rows of :func:`load` first, scaled as there.

    Meant for data that are only looked at, such as letters shown to a model of digits.
    """
    train, test = load(name, split=split, seed=seed, **options)
    x = torch.cat([first_tensor(train.x), first_tensor(test.x)])
    return Data(x, torch.cat([train.y, test.y]), info=train.info)


def list_data_sets() -> list[DataSetEntry]:
    """All data sets, and where each was found. Nothing is read."""
    return [
        DataSetEntry(recipe.name, recipe.outcome, recipe.rows, recipe.where(), recipe.licence)
        for recipe in _RECIPES.values()
    ]


def verify(name: str | None = None) -> list[Verification]:
    """Check the files of one data set, or of all, against their checksums, reading every byte again."""
    recipes = list(_RECIPES.values()) if name is None else [_recipe(name)]
    return [_verify(recipe) for recipe in recipes]


def _verify(recipe: _Recipe) -> Verification:
    if recipe.check is None:
        return Verification(recipe.name, "ok", "embedded")
    try:
        recipe.check()
    except MissingDataSetError as error:
        return Verification(recipe.name, "missing", str(error))
    except DataError as error:
        return Verification(recipe.name, "corrupt", str(error))
    return Verification(recipe.name, "ok", f"found in {recipe.where()}; checksums agree")
