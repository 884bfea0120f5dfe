"""The experiments, one a file, over public names alone."""

from __future__ import annotations

import difflib
import importlib

from temperance.core.errors import ArgumentError
from temperance.lab.experiment import Experiment

NAMES = (
    "cold-imdb",
    "cold-posterior",
    "well-specified",
    "diagnostics",
    "prior-predictive",
    "function-prior",
    "prior-scale",
    "capacity",
    "dirty-likelihood",
    "batch-size",
    "data-size",
    "liberty-hmc",
    "in-between",
    "liberty-iris",
    "liberty-heatmaps",
    "liberty-swag",
    "universality",
    "basins",
    "epistemic",
    "valley",
    "hmc-agreement",
    "ood",
    "shift",
    "deferral",
    "table-defaults",
    "defaults",
    "active-learning",
    "bandit",
)
"""Each is a module of this folder (dashes become underscores) with an ``EXPERIMENT``."""


def find_experiment(name: str) -> Experiment:
    """An experiment by name, or an error that lists them."""
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise ArgumentError(f"`name` must be one of {', '.join(NAMES)}; got {name!r}.{hint}")
    module = importlib.import_module(f"temperance.lab.experiments.{name.replace('-', '_')}")
    experiment: Experiment = module.EXPERIMENT
    return experiment


def all_experiments() -> list[Experiment]:
    """All of them, in the order of the list."""
    return [find_experiment(name) for name in NAMES]
