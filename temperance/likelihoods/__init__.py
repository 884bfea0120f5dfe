"""How data come from the outputs of a network."""

from temperance.likelihoods.base import Learned, LearnedParameter, Likelihood
from temperance.likelihoods.categorical import Bernoulli, Categorical
from temperance.likelihoods.poisson import Poisson
from temperance.likelihoods.real import HeteroscedasticNormal, Normal, RealLikelihood, StudentT

__all__ = [
    "Bernoulli",
    "Categorical",
    "HeteroscedasticNormal",
    "Learned",
    "LearnedParameter",
    "Likelihood",
    "Normal",
    "Poisson",
    "RealLikelihood",
    "StudentT",
]
