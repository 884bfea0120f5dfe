"""How data come from the outputs of a network."""

from temperance.model.likelihoods.base import LearnedParameter, LearnedValues, Likelihood, QuantityLikelihood
from temperance.model.likelihoods.categorical import Bernoulli, Categorical
from temperance.model.likelihoods.contaminated import ContaminatedNormal
from temperance.model.likelihoods.counts import CountLikelihood
from temperance.model.likelihoods.curated import CuratedLabels
from temperance.model.likelihoods.dirichlet import NoisyDirichlet
from temperance.model.likelihoods.negative_binomial import NegativeBinomial
from temperance.model.likelihoods.noisy import NoisyLabels
from temperance.model.likelihoods.normal import HeteroscedasticNormal, Normal
from temperance.model.likelihoods.poisson import Poisson
from temperance.model.likelihoods.positions import PerPosition
from temperance.model.likelihoods.real import AdditiveGaussianNoise, GaussianNoise, RealLikelihood
from temperance.model.likelihoods.student import StudentT
from temperance.model.likelihoods.zero_inflated import ZeroInflated

__all__ = [
    "AdditiveGaussianNoise",
    "Bernoulli",
    "Categorical",
    "ContaminatedNormal",
    "CountLikelihood",
    "CuratedLabels",
    "GaussianNoise",
    "HeteroscedasticNormal",
    "LearnedParameter",
    "LearnedValues",
    "Likelihood",
    "NegativeBinomial",
    "NoisyDirichlet",
    "NoisyLabels",
    "Normal",
    "PerPosition",
    "Poisson",
    "QuantityLikelihood",
    "RealLikelihood",
    "StudentT",
    "ZeroInflated",
]
