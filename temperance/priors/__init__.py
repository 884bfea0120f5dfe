"""Densities over weights."""

from temperance.priors.base import BoundPrior, Density, FanIn, Prior
from temperance.priors.composed import MixturePrior, PerLayer
from temperance.priors.location_scale import GaussianDensity, GaussianPrior, LaplacePrior, StudentTPrior

__all__ = [
    "BoundPrior",
    "Density",
    "FanIn",
    "GaussianDensity",
    "GaussianPrior",
    "LaplacePrior",
    "MixturePrior",
    "PerLayer",
    "Prior",
    "StudentTPrior",
]
