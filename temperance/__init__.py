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

from temperance import data, diagnose, errors, linalg, nn, optim, posteriors, scores, status
from temperance.curvature import EKFAC, KFAC, BlockDiagonal, Dense, Diagonal, LargestMagnitude, LargestVariance, LowRank
from temperance.fit import fit
from temperance.fitted import Fitted, load
from temperance.inference import (
    BAOAB,
    GGMC,
    IVON,
    MAP,
    PSGLD,
    SGHMC,
    SGLD,
    SGNHT,
    SWAG,
    VOGN,
    Anchored,
    Collect,
    Cost,
    Cyclical,
    Ensemble,
    Exactness,
    FunctionalLaplace,
    Inference,
    Info,
    Laplace,
    Layerwise,
    LeimkuhlerMatthews,
    MCDropout,
    On,
    Tune,
    Variational,
    cosine,
    flat,
    glide,
)
from temperance.likelihoods import Bernoulli, Categorical, HeteroscedasticNormal, Likelihood, Normal, Poisson, StudentT
from temperance.priors import FanIn, GaussianPrior, LaplacePrior, MixturePrior, PerLayer, Prior, StudentTPrior
from temperance.target import Target
from temperance.theta import Layout, biases, last_layer
from temperance.variational import FullRank, MatrixNormal, MeanField, Radial, TiedScale
from temperance.version import __version__


def __getattr__(name: str) -> _Any:
    """``temperance.testing`` is for writers of methods; it is imported when it is asked for."""
    if name == "testing":
        return _importlib.import_module("temperance.testing")
    raise AttributeError(f"module 'temperance' has no attribute {name!r}")


__all__ = [
    "BAOAB",
    "EKFAC",
    "GGMC",
    "IVON",
    "KFAC",
    "MAP",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SWAG",
    "VOGN",
    "Anchored",
    "Bernoulli",
    "BlockDiagonal",
    "Categorical",
    "Collect",
    "Cost",
    "Cyclical",
    "Dense",
    "Diagonal",
    "Ensemble",
    "Exactness",
    "FanIn",
    "Fitted",
    "FullRank",
    "FunctionalLaplace",
    "GaussianPrior",
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
    "StudentT",
    "StudentTPrior",
    "Target",
    "TiedScale",
    "Tune",
    "Variational",
    "__version__",
    "biases",
    "cosine",
    "data",
    "diagnose",
    "errors",
    "fit",
    "flat",
    "glide",
    "last_layer",
    "linalg",
    "load",
    "nn",
    "optim",
    "posteriors",
    "scores",
    "status",
]
