"""Temperance: Bayesian deep learning as easy and nearly as cheap as ordinary training.

import temperance as tp

train, test = tp.data.load("digits")
net = tp.nn.MLP(64, [128, 128], 10)
target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(scale=1.0))
fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=1e-3), 5), train, epochs=20)
fitted.predict(test.x).probs
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from temperance.core.demand import on_demand as _on_demand
from temperance.core.version import __version__

# Every name is imported when it is first used: ``temperance --help`` needs no PyTorch, and a program that predicts no
# optimiser. Type checkers, and people, read the list that follows.
if _TYPE_CHECKING:
    from temperance import data, decide, inference, linalg, nn, posteriors, testing
    from temperance.apps import integrations, recipes, sklearn, tables
    from temperance.apps.auto import auto
    from temperance.core import errors, outcomes, status
    from temperance.inference import *  # noqa: F403  the methods: one list, kept there
    from temperance.judge import calibrate, diagnose, symmetry
    from temperance.model.likelihoods import (
        Bernoulli,
        Categorical,
        ContaminatedNormal,
        CuratedLabels,
        HeteroscedasticNormal,
        Likelihood,
        NegativeBinomial,
        NoisyDirichlet,
        NoisyLabels,
        Normal,
        PerPosition,
        Poisson,
        StudentT,
        ZeroInflated,
    )
    from temperance.model.non_centred import NonCentred
    from temperance.model.priors import (
        FanIn,
        GaussianPrior,
        HalfCauchy,
        InverseGamma,
        LaplacePrior,
        Learned,
        LogNormal,
        MixturePrior,
        PerLayer,
        Prior,
        StudentTPrior,
    )
    from temperance.model.target import Target
    from temperance.model.theta import Layout, biases, last_layer
    from temperance.predict import scores
    from temperance.run import optim
    from temperance.run.fit import fit
    from temperance.run.fitted import Fitted
    from temperance.run.loading import load
    from temperance.run.sample import sample
    from temperance.show import plot, report

    __all__ = [
        *inference.__all__,
        "Bernoulli",
        "Categorical",
        "ContaminatedNormal",
        "CuratedLabels",
        "FanIn",
        "Fitted",
        "GaussianPrior",
        "HalfCauchy",
        "HeteroscedasticNormal",
        "InverseGamma",
        "LaplacePrior",
        "Layout",
        "Learned",
        "Likelihood",
        "LogNormal",
        "MixturePrior",
        "NegativeBinomial",
        "NoisyDirichlet",
        "NoisyLabels",
        "NonCentred",
        "Normal",
        "PerLayer",
        "PerPosition",
        "Poisson",
        "Prior",
        "StudentT",
        "StudentTPrior",
        "Target",
        "ZeroInflated",
        "__version__",
        "auto",
        "biases",
        "calibrate",
        "data",
        "decide",
        "diagnose",
        "errors",
        "fit",
        "inference",
        "integrations",
        "last_layer",
        "linalg",
        "load",
        "nn",
        "optim",
        "outcomes",
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

_LIKELIHOODS = (
    *("Bernoulli", "Categorical", "ContaminatedNormal", "CuratedLabels", "HeteroscedasticNormal", "Likelihood"),
    *("NegativeBinomial", "NoisyDirichlet", "NoisyLabels", "Normal", "PerPosition", "Poisson", "StudentT"),
    "ZeroInflated",
)
_PRIORS = (
    *("FanIn", "GaussianPrior", "HalfCauchy", "InverseGamma", "LaplacePrior", "Learned", "LogNormal", "MixturePrior"),
    *("PerLayer", "Prior", "StudentTPrior"),
)
_PUBLIC = {
    **dict.fromkeys(_LIKELIHOODS, "model.likelihoods"),
    **dict.fromkeys(_PRIORS, "model.priors"),
    **dict.fromkeys(("Layout", "biases", "last_layer"), "model.theta"),
    **{room: f"{room}." for room in ("data", "decide", "inference", "linalg", "nn", "posteriors", "testing")},
    "Fitted": "run.fitted",
    "auto": "apps.auto",
    "NonCentred": "model.non_centred",
    "Target": "model.target",
    "calibrate": "judge.calibrate.",
    "diagnose": "judge.diagnose.",
    "errors": "core.errors.",
    "outcomes": "core.outcomes.",
    "fit": "run.fit",
    "integrations": "apps.integrations.",
    "load": "run.loading",
    "optim": "run.optim.",
    "plot": "show.plot.",
    "recipes": "apps.recipes.",
    "report": "show.report.",
    "sample": "run.sample",
    "scores": "predict.scores.",
    "sklearn": "apps.sklearn.",
    "status": "core.status.",
    "symmetry": "judge.symmetry.",
    "tables": "apps.tables.",
}
_ROOMS = ("apps", "core", "engine", "judge", "lab", "model", "predict", "run", "show")
_find = _on_demand(__name__, {**_PUBLIC, **{room: f"{room}." for room in _ROOMS}})


def __getattr__(name: str) -> _Any:
    if name == "__all__":
        return sorted([*_find("inference").__all__, *_PUBLIC, "__version__"])
    if name in _PUBLIC or name in _ROOMS:
        return _find(name)
    if not name.startswith("_") and name in _find("inference").__all__:
        found = globals()[name] = getattr(_find("inference"), name)
        return found
    raise AttributeError(f"module 'temperance' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
