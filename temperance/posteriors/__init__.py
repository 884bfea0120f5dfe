"""Distributions over θ, all of which can be sampled and predicted with in the same way."""

from temperance.posteriors.affine import Affine
from temperance.posteriors.base import (
    Centred,
    Chain,
    Density,
    Posterior,
    Settings,
    Spread,
    WeightCurve,
    WeightPosterior,
    centre_of,
)
from temperance.posteriors.curve import CurvePosterior
from temperance.posteriors.draws import Draws
from temperance.posteriors.dropout import DropoutPosterior
from temperance.posteriors.gaussian import Gaussian
from temperance.posteriors.laplace import CurvatureGaussian, EvidenceTerms, LaplacePosterior, PosteriorPrior
from temperance.posteriors.mixture import Mixture
from temperance.posteriors.nodes import Nodes, Stratum
from temperance.posteriors.point import Point
from temperance.posteriors.process import Process
from temperance.posteriors.pushforward import Pushforward
from temperance.posteriors.radial import RadialPosterior
from temperance.posteriors.shifted import Shifted
from temperance.posteriors.trace import Trace
from temperance.posteriors.with_outliers import WithOutliers
from temperance.posteriors.with_statistics import WithStatistics

__all__ = [
    "Affine",
    "Centred",
    "Chain",
    "CurvatureGaussian",
    "CurvePosterior",
    "Density",
    "Draws",
    "DropoutPosterior",
    "EvidenceTerms",
    "Gaussian",
    "LaplacePosterior",
    "Mixture",
    "Nodes",
    "Point",
    "Posterior",
    "PosteriorPrior",
    "Process",
    "Pushforward",
    "RadialPosterior",
    "Settings",
    "Shifted",
    "Spread",
    "Stratum",
    "Trace",
    "WeightCurve",
    "WeightPosterior",
    "WithOutliers",
    "WithStatistics",
    "centre_of",
]
