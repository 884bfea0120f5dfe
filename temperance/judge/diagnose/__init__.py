"""Is a run right? Temperatures of a sampler, mixing of its chains, the noise of its gradients, and one verdict.

    print(tp.diagnose.sampling(fitted, train))

``kinetic``, ``configurational``, ``configurational_of`` and ``curvature_temperature`` measure how hot a sampler is;
``weights`` and ``predictions`` whether its chains agree, in weights and in functions; ``gradient_noise`` what
minibatches add; ``prior_predictive`` and ``prior_outputs`` what the prior believes before any data;
``product_matrix`` and ``local_products`` what independent weights become when layers are multiplied; ``loss_along``
what lies between two modes; ``dead_units`` whether training has left units, or a whole network, that answer nothing.
"""

from temperance.judge.diagnose.checks import Finding
from temperance.judge.diagnose.convergence import Convergence, predictions, weights
from temperance.judge.diagnose.dead import DeadUnits, dead_units
from temperance.judge.diagnose.loss_along import PathLoss, loss_along
from temperance.judge.diagnose.mixing import autocorrelation, bulk_ess, ess, mcse, rhat, tail_ess
from temperance.judge.diagnose.noise import GradientNoise, gradient_noise, tail_index
from temperance.judge.diagnose.prior import PriorPredictive, prior_predictive, relu_variance_growth
from temperance.judge.diagnose.product import (
    ProductMoments,
    local_product,
    local_products,
    matrix_normal_as_product,
    product_matrix,
)
from temperance.judge.diagnose.temperature import Temperatures, configurational, kinetic, kinetic_interval
from temperance.judge.diagnose.verdict import Verdict, sampling
from temperance.judge.diagnose.virial import configurational_of, curvature_temperature
from temperance.predict.prior_outputs import PriorOutputs, prior_outputs

__all__ = [
    "Convergence",
    "DeadUnits",
    "Finding",
    "GradientNoise",
    "PathLoss",
    "PriorOutputs",
    "PriorPredictive",
    "ProductMoments",
    "Temperatures",
    "Verdict",
    "autocorrelation",
    "bulk_ess",
    "configurational",
    "configurational_of",
    "curvature_temperature",
    "dead_units",
    "ess",
    "gradient_noise",
    "kinetic",
    "kinetic_interval",
    "local_product",
    "local_products",
    "loss_along",
    "matrix_normal_as_product",
    "mcse",
    "predictions",
    "prior_outputs",
    "prior_predictive",
    "product_matrix",
    "relu_variance_growth",
    "rhat",
    "sampling",
    "tail_ess",
    "tail_index",
    "weights",
]
