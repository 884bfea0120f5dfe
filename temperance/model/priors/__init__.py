"""Densities over weights."""

from temperance.model.priors.base import BoundPrior, Density, FanIn, Prior
from temperance.model.priors.composed import MixturePrior, PerLayer
from temperance.model.priors.hyper import HalfCauchy, HyperPrior, InverseGamma, LogNormal
from temperance.model.priors.learned import Learned
from temperance.model.priors.location_scale import GaussianDensity, GaussianPrior, LaplacePrior, StudentTPrior

__all__ = [
    "BoundPrior",
    "Density",
    "FanIn",
    "GaussianDensity",
    "GaussianPrior",
    "HalfCauchy",
    "HyperPrior",
    "InverseGamma",
    "LaplacePrior",
    "Learned",
    "LogNormal",
    "MixturePrior",
    "PerLayer",
    "Prior",
    "StudentTPrior",
]
