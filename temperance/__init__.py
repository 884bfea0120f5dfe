"""Temperance: Bayesian deep learning as easy and nearly as cheap as ordinary training.

import temperance as tp

train, test = tp.data.load("digits")
net = tp.nn.MLP(64, [128, 128], 10)
target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(scale=1.0))
fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=1e-3), 5), train, epochs=20)
fitted.predict(test.x).probs
"""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from temperance import data, inference, linalg, nn, posteriors
from temperance.core import errors, status
from temperance.core.version import __version__
from temperance.inference import *  # noqa: F403  the methods: one list, kept there
from temperance.model.likelihoods import (
    Bernoulli,
    Categorical,
    HeteroscedasticNormal,
    Likelihood,
    Normal,
    Poisson,
    StudentT,
)
from temperance.model.priors import FanIn, GaussianPrior, LaplacePrior, MixturePrior, PerLayer, Prior, StudentTPrior
from temperance.model.target import Target
from temperance.model.theta import Layout, biases, last_layer
from temperance.run.fit import fit
from temperance.run.fitted import Fitted
from temperance.run.loading import load
from temperance.run.sample import sample

if _TYPE_CHECKING:
    from temperance import decide, testing
    from temperance.apps import integrations, recipes, sklearn, tables
    from temperance.judge import calibrate, diagnose, symmetry
    from temperance.predict import scores
    from temperance.run import optim
    from temperance.show import plot, report

# Short spellings of rooms that not everybody needs: imported when they are asked for.
_ON_DEMAND = {
    "calibrate": "judge.calibrate",
    "decide": "decide",
    "diagnose": "judge.diagnose",
    "integrations": "apps.integrations",
    "optim": "run.optim",
    "plot": "show.plot",
    "recipes": "apps.recipes",
    "report": "show.report",
    "scores": "predict.scores",
    "sklearn": "apps.sklearn",
    "symmetry": "judge.symmetry",
    "tables": "apps.tables",
    "testing": "testing",
}


def __getattr__(name: str) -> _Any:
    if name in _ON_DEMAND:
        return _importlib.import_module(f"temperance.{_ON_DEMAND[name]}")
    raise AttributeError(f"module 'temperance' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ON_DEMAND])


__all__ = [
    *inference.__all__,
    "Bernoulli",
    "Categorical",
    "FanIn",
    "Fitted",
    "GaussianPrior",
    "HeteroscedasticNormal",
    "LaplacePrior",
    "Layout",
    "Likelihood",
    "MixturePrior",
    "Normal",
    "PerLayer",
    "Poisson",
    "Prior",
    "StudentT",
    "StudentTPrior",
    "Target",
    "__version__",
    "biases",
    "calibrate",
    "data",
    "decide",
    "diagnose",
    "errors",
    "fit",
    "integrations",
    "last_layer",
    "linalg",
    "load",
    "nn",
    "optim",
    "plot",
    "posteriors",
    "recipes",
    "report",
    "sample",
    "scores",
    "sklearn",
    "status",
    "symmetry",
    "tables",
    "testing",
]
