"""How data come from the outputs of a network."""

from temperance.model.likelihoods.base import Learned, LearnedParameter, Likelihood
from temperance.model.likelihoods.categorical import Bernoulli, Categorical
from temperance.model.likelihoods.poisson import Poisson
from temperance.model.likelihoods.real import HeteroscedasticNormal, Normal, RealLikelihood, StudentT

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
