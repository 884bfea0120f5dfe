"""Methods: one a file."""

from temperance.inference.base import Cost, Exactness, Facts, Inference, Info, Starts, Wrapper
from temperance.inference.card import Card, MethodFamily, Recipe
from temperance.inference.curvature import (
    EKFAC,
    KFAC,
    BlockDiagonal,
    Dense,
    Diagonal,
    Lanczos,
    LargestMagnitude,
    LargestVariance,
)
from temperance.inference.curvature.evidence import Tune
from temperance.inference.curvature.functional import FunctionalLaplace
from temperance.inference.curvature.laplace import Laplace
from temperance.inference.curvature.width import Width
from temperance.inference.hamiltonian.elliptical import EllipticalSlice
from temperance.inference.hamiltonian.hmc import HMC
from temperance.inference.hamiltonian.kernel import HamiltonianSampler
from temperance.inference.hamiltonian.mclmc import MCLMC
from temperance.inference.hamiltonian.nuts import NUTS
from temperance.inference.hamiltonian.tempered import Tempered, ladder
from temperance.inference.hamiltonian.warmup import Warmup
from temperance.inference.langevin.baoab import BAOAB
from temperance.inference.langevin.ggmc import GGMC
from temperance.inference.langevin.leimkuhler_matthews import LeimkuhlerMatthews
from temperance.inference.langevin.psgld import PSGLD
from temperance.inference.langevin.sampler import LangevinSampler, Layerwise, Sampler
from temperance.inference.langevin.sghmc import SGHMC
from temperance.inference.langevin.sgld import SGLD
from temperance.inference.langevin.sgnht import SGNHT
from temperance.inference.langevin.thermal import Thermal
from temperance.inference.particles.kernels import IMQ, RBF, LinearKernel
from temperance.inference.particles.repulsive import RepulsiveEnsemble
from temperance.inference.particles.svgd import SVGD
from temperance.inference.points.anchored import Anchored
from temperance.inference.points.map import MAP
from temperance.inference.points.mc_dropout import MCDropout
from temperance.inference.points.swag import SWAG
from temperance.inference.schedules import cosine, flat, glide, rise_and_fall
from temperance.inference.variational.families import FullRank, LowRank, MatrixNormal, MeanField, Radial, TiedScale
from temperance.inference.variational.ivon import IVON
from temperance.inference.variational.variational import Variational
from temperance.inference.variational.vogn import VOGN
from temperance.inference.wrappers.bases import PCA, CurveBasis, GivenBasis, RandomBasis
from temperance.inference.wrappers.collect import Collect
from temperance.inference.wrappers.curve import Curve
from temperance.inference.wrappers.cyclical import Cyclical
from temperance.inference.wrappers.ensemble import Ensemble
from temperance.inference.wrappers.gibbs import Gibbs
from temperance.inference.wrappers.on import On
from temperance.inference.wrappers.refit import Refit
from temperance.inference.wrappers.subspace import Subspace
from temperance.inference.wrappers.tuned_decay import TunedDecay
from temperance.inference.wrappers.warm_start import WarmStart

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
    "BlockDiagonal",
    "Card",
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
    "Facts",
    "FullRank",
    "FunctionalLaplace",
    "Gibbs",
    "GivenBasis",
    "HamiltonianSampler",
    "Inference",
    "Info",
    "Lanczos",
    "LangevinSampler",
    "Laplace",
    "LargestMagnitude",
    "LargestVariance",
    "Layerwise",
    "LeimkuhlerMatthews",
    "LinearKernel",
    "LowRank",
    "MCDropout",
    "MatrixNormal",
    "MeanField",
    "MethodFamily",
    "On",
    "Radial",
    "RandomBasis",
    "Recipe",
    "Refit",
    "RepulsiveEnsemble",
    "Sampler",
    "Starts",
    "Subspace",
    "Tempered",
    "Thermal",
    "TiedScale",
    "Tune",
    "TunedDecay",
    "Variational",
    "WarmStart",
    "Warmup",
    "Width",
    "Wrapper",
    "cosine",
    "flat",
    "glide",
    "ladder",
    "rise_and_fall",
]
