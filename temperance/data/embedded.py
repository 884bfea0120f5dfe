"""Data sets that need no files: those bundled with scikit-learn, and toys made from a seed.

All are split at random, 80 % to train on; ``split`` chooses another division of the same rows, ``seed`` another
family of divisions (and, for the toys, other rows).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import shown
from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Classes, Reals
from temperance.core.seeds import derive_seed, generator
from temperance.data.data import Data, DataInfo
from temperance.data.tables import standardise

_HELD_OUT = 0.2


def _sklearn() -> Any:
    """scikit-learn's data sets, imported when they are first asked for: it takes a second."""
    return importlib.import_module("sklearn.datasets")


def split_rows(
    labels: Tensor | None, rows: int, rng: torch.Generator, held_out: float = _HELD_OUT
) -> tuple[Tensor, Tensor]:
    """Training and test rows, of which ``held_out`` is the share. With ``labels``, each class keeps its share in both
    parts (a stratified split)."""
    groups = [torch.arange(rows)] if labels is None else [(labels == k).nonzero().flatten() for k in labels.unique()]
    train, test = [], []
    for group in groups:
        shuffled = group[torch.randperm(len(group), generator=rng)]
        held = max(1, round(held_out * len(group)))
        test.append(shuffled[:held])
        train.append(shuffled[held:])
    parts = [torch.cat(train), torch.cat(test)]
    # Classes are mixed again, so that a reader who takes the first rows does not get one class only.
    mixed = [part[torch.randperm(len(part), generator=rng)] for part in parts]
    return mixed[0], mixed[1]


def load_digits(split: int, seed: int) -> tuple[Data, Data]:
    """1797 handwritten digits of 8 × 8 pixels, flattened, scaled to [0, 1]."""
    bunch = _sklearn().load_digits()
    x = torch.from_numpy((bunch.data / 16.0).astype(np.float32))
    y = torch.from_numpy(bunch.target.astype(np.int64))
    info = DataInfo(
        name="digits",
        outcome=Classes(),
        num_classes=10,
        classes=tuple(str(digit) for digit in range(10)),
        features=tuple(bunch.feature_names),
        image_shape=(1, 8, 8),
    )
    train, test = split_rows(y, len(y), generator(seed, "digits", split))
    return Data(x[train], y[train], info=info), Data(x[test], y[test], info=info)


def _classes(
    name: str, x: Any, y: Any, classes: Sequence[str], features: Sequence[str], split: int, seed: int, note: str = ""
) -> tuple[Data, Data]:
    """A classification table, standardised on its training part."""
    labels = torch.from_numpy(np.asarray(y, dtype=np.int64))
    train, test = split_rows(labels, len(labels), generator(seed, name, split))
    (x_train, x_test), mean, scale = standardise(x[train.numpy()], x[test.numpy()])
    info = DataInfo(
        name=name,
        outcome=Classes(),
        num_classes=len(classes),
        classes=tuple(str(label) for label in classes),
        features=tuple(str(feature) for feature in features),
        x_mean=mean,
        x_scale=scale,
        note=note,
    )
    return Data(x_train, labels[train], info=info), Data(x_test, labels[test], info=info)


def load_iris(split: int, seed: int) -> tuple[Data, Data]:
    """150 irises of three species, four lengths each."""
    bunch = _sklearn().load_iris()
    return _classes("iris", bunch.data, bunch.target, bunch.target_names, bunch.feature_names, split, seed)


def load_wine(split: int, seed: int) -> tuple[Data, Data]:
    """178 wines of three growers, 13 chemical measurements each."""
    bunch = _sklearn().load_wine()
    return _classes("wine", bunch.data, bunch.target, bunch.target_names, bunch.feature_names, split, seed)


def load_breast_cancer(split: int, seed: int) -> tuple[Data, Data]:
    """569 tumours, malignant (0) or benign (1), 30 measurements each."""
    bunch = _sklearn().load_breast_cancer()
    return _classes("breast-cancer", bunch.data, bunch.target, bunch.target_names, bunch.feature_names, split, seed)


def load_diabetes(split: int, seed: int) -> tuple[Data, Data]:
    """442 patients, ten measurements each; the target is disease progression after a year, standardised."""
    bunch = _sklearn().load_diabetes(scaled=False)
    x, y = bunch.data, bunch.target[:, None]
    train, test = (part.numpy() for part in split_rows(None, len(y), generator(seed, "diabetes", split)))
    (x_train, x_test), x_mean, x_scale = standardise(x[train], x[test])
    (y_train, y_test), y_mean, y_scale = standardise(y[train], y[test])
    info = DataInfo(
        name="diabetes",
        outcome=Reals(),
        features=tuple(bunch.feature_names),
        x_mean=x_mean,
        x_scale=x_scale,
        y_mean=y_mean,
        y_scale=y_scale,
        note="y is disease progression after one year, standardised",
    )
    return Data(x_train, y_train, info=info), Data(x_test, y_test, info=info)


def load_two_moons(split: int, seed: int, n: int = 1000, noise: float = 0.1) -> tuple[Data, Data]:
    """Two interleaved half circles in the plane."""
    _check_count("n", n, 10)
    _check_spread("noise", noise)
    x, y = _sklearn().make_moons(n, noise=noise, random_state=_sklearn_seed(seed, "two-moons"))
    labels = torch.from_numpy(y.astype(np.int64))
    inputs = torch.from_numpy(x.astype(np.float32))
    train, test = split_rows(labels, n, generator(seed, "two-moons", split))
    info = DataInfo(
        name="two-moons",
        outcome=Classes(),
        num_classes=2,
        classes=("upper", "lower"),
        features=("x1", "x2"),
        note=f"{n} points, noise {noise}",
    )
    return Data(inputs[train], labels[train], info=info), Data(inputs[test], labels[test], info=info)


def load_blobs(
    split: int, seed: int, n: int = 1000, classes: int = 3, features: int = 2, spread: float = 1.0
) -> tuple[Data, Data]:
    """Gaussian clouds around centres drawn uniformly from [-10, 10], standardised; one class a cloud."""
    _check_count("classes", classes, 2)
    _check_count("features", features, 1)
    _check_count("n", n, 5 * classes)
    _check_spread("spread", spread)
    x, y = _sklearn().make_blobs(
        n, features, centers=classes, cluster_std=spread, random_state=_sklearn_seed(seed, "blobs")
    )[:2]
    names = [f"blob {k}" for k in range(classes)]
    columns = [f"x{k + 1}" for k in range(features)]
    return _classes("blobs", x, y, names, columns, split, seed, note=f"{n} points, spread {spread}")


def load_sine(split: int, seed: int, n: int = 200, noise: float = 0.1) -> tuple[Data, Data]:
    """A noisy sine over [-3, 3] whose training inputs leave out the gap (-1, 1).

    The test inputs cover the gap as well: a model that is honest about what it has not seen is unsure there.
    """
    _check_count("n", n, 10)
    _check_spread("noise", noise)
    rng = generator(seed, "sine", split)
    held = max(1, round(_HELD_OUT * n))
    sides = torch.where(torch.rand(n - held, 1, generator=rng) < 0.5, -1.0, 1.0)
    x_train = sides * (1.0 + 2.0 * torch.rand(n - held, 1, generator=rng))
    x_test = 6.0 * torch.rand(held, 1, generator=rng) - 3.0
    info = DataInfo(
        name="sine",
        outcome=Reals(),
        features=("x",),
        note=f"y = sin(2x) + {noise} ε; training inputs in [-3, -1] and [1, 3], test inputs in [-3, 3]",
    )
    y_train, y_test = (torch.sin(2.0 * x) + noise * torch.randn(x.shape, generator=rng) for x in (x_train, x_test))
    return Data(x_train, y_train, info=info), Data(x_test, y_test, info=info)


def _sklearn_seed(seed: int, name: str) -> int:
    return derive_seed(seed, name, "points") % 2**32


def _check_count(argument: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ArgumentError(f"`{argument}` must be an integer of at least {least}; got {shown(value)}.")


def _check_spread(argument: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < float("inf"):
        raise ArgumentError(f"`{argument}` must be a finite number of at least 0; got {shown(value)}.")
