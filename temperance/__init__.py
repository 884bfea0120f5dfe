"""Temperance: Bayesian deep learning as easy and nearly as cheap as ordinary training.

import temperance as tp

train, test = tp.data.load("digits")
net = tp.nn.MLP(64, [128, 128], 10)
target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(scale=1.0))
fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=1e-3), 5), train, epochs=20)
fitted.predict(test.x).probs
"""

import importlib as _importlib
from typing import Any as _Any

from temperance import data, diagnose, errors, linalg, nn, optim, posteriors, report, scores, status, symmetry
from temperance.curvature import EKFAC, KFAC, BlockDiagonal, Dense, Diagonal, LargestMagnitude, LargestVariance, LowRank
from temperance.fit import fit
from temperance.fitted import Fitted, load
from temperance.inference import (
    BAOAB,
    GGMC,
    HMC,
    IMQ,
    IVON,
    MAP,
    MCLMC,
    NUTS,
    PCA,
    PSGLD,
    RBF,
    SGHMC,
    SGLD,
    SGNHT,
    SVGD,
    SWAG,
    VOGN,
    Anchored,
    Collect,
    Cost,
    Curve,
    CurveBasis,
    Cyclical,
    EllipticalSlice,
    Ensemble,
    Exactness,
    FunctionalLaplace,
    GivenBasis,
    Inference,
    Info,
    Laplace,
    Layerwise,
    LeimkuhlerMatthews,
    Linear,
    MCDropout,
    On,
    RandomBasis,
    RepulsiveEnsemble,
    Subspace,
    Tempered,
    Tune,
    Variational,
    Warmup,
    cosine,
    flat,
    glide,
    ladder,
)
from temperance.likelihoods import Bernoulli, Categorical, HeteroscedasticNormal, Likelihood, Normal, Poisson, StudentT
from temperance.priors import FanIn, GaussianPrior, LaplacePrior, MixturePrior, PerLayer, Prior, StudentTPrior
from temperance.sample import sample
from temperance.target import Target
from temperance.theta import Layout, biases, last_layer
from temperance.variational import FullRank, MatrixNormal, MeanField, Radial, TiedScale
from temperance.version import __version__

_ON_DEMAND = ("calibrate", "decide", "integrations", "plot", "recipes", "sklearn", "tables", "testing")


def __getattr__(name: str) -> _Any:
    """Rooms that not everybody needs are imported when they are asked for."""
    if name in _ON_DEMAND:
        return _importlib.import_module(f"temperance.{name}")
    raise AttributeError(f"module 'temperance' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ON_DEMAND])


__all__ = [
    "BAOAB",
    "EKFAC",
    "GGMC",
    "HMC",
    "IMQ",
    "IVON",
    "KFAC",
    "MAP",
    "MCLMC",
    "NUTS",
    "PCA",
    "PSGLD",
    "RBF",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SVGD",
    "SWAG",
    "VOGN",
    "Anchored",
    "Bernoulli",
    "BlockDiagonal",
    "Categorical",
    "Collect",
    "Cost",
    "Curve",
    "CurveBasis",
    "Cyclical",
    "Dense",
    "Diagonal",
    "EllipticalSlice",
    "Ensemble",
    "Exactness",
    "FanIn",
    "Fitted",
    "FullRank",
    "FunctionalLaplace",
    "GaussianPrior",
    "GivenBasis",
    "HeteroscedasticNormal",
    "Inference",
    "Info",
    "Laplace",
    "LaplacePrior",
    "LargestMagnitude",
    "LargestVariance",
    "Layerwise",
    "Layout",
    "LeimkuhlerMatthews",
    "Likelihood",
    "Linear",
    "LowRank",
    "MCDropout",
    "MatrixNormal",
    "MeanField",
    "MixturePrior",
    "Normal",
    "On",
    "PerLayer",
    "Poisson",
    "Prior",
    "Radial",
    "RandomBasis",
    "RepulsiveEnsemble",
    "StudentT",
    "StudentTPrior",
    "Subspace",
    "Target",
    "Tempered",
    "TiedScale",
    "Tune",
    "Variational",
    "Warmup",
    "__version__",
    "biases",
    "cosine",
    "data",
    "diagnose",
    "errors",
    "fit",
    "flat",
    "glide",
    "ladder",
    "last_layer",
    "linalg",
    "load",
    "nn",
    "optim",
    "posteriors",
    "report",
    "sample",
    "scores",
    "status",
    "symmetry",
]
