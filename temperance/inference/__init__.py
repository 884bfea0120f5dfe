"""Methods: one a file."""

from temperance.inference.anchored import Anchored
from temperance.inference.baoab import BAOAB
from temperance.inference.base import Cost, Exactness, Inference, Info, Stackable
from temperance.inference.bases import PCA, CurveBasis, GivenBasis, RandomBasis
from temperance.inference.collect import Collect
from temperance.inference.curve import Curve
from temperance.inference.cyclical import Cyclical, cosine, flat, glide
from temperance.inference.elliptical import EllipticalSlice
from temperance.inference.ensemble import Ensemble
from temperance.inference.evidence import Tune
from temperance.inference.functional import FunctionalLaplace
from temperance.inference.ggmc import GGMC
from temperance.inference.hamiltonian import HamiltonianSampler
from temperance.inference.hmc import HMC
from temperance.inference.ivon import IVON
from temperance.inference.kernels import IMQ, RBF, Linear
from temperance.inference.laplace import Laplace
from temperance.inference.leimkuhler_matthews import LeimkuhlerMatthews
from temperance.inference.map import MAP
from temperance.inference.mc_dropout import MCDropout
from temperance.inference.mclmc import MCLMC
from temperance.inference.nuts import NUTS
from temperance.inference.on import On
from temperance.inference.psgld import PSGLD
from temperance.inference.repulsive import RepulsiveEnsemble
from temperance.inference.sampler import LangevinSampler, Layerwise, Sampler
from temperance.inference.sghmc import SGHMC
from temperance.inference.sgld import SGLD
from temperance.inference.sgnht import SGNHT
from temperance.inference.subspace import Subspace
from temperance.inference.svgd import SVGD
from temperance.inference.swag import SWAG
from temperance.inference.tempered import Tempered, ladder
from temperance.inference.variational import Variational
from temperance.inference.vogn import VOGN
from temperance.inference.warmup import Warmup

__all__ = [
    "BAOAB",
    "GGMC",
    "HMC",
    "IMQ",
    "IVON",
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
    "Collect",
    "Cost",
    "Curve",
    "CurveBasis",
    "Cyclical",
    "EllipticalSlice",
    "Ensemble",
    "Exactness",
    "FunctionalLaplace",
    "GivenBasis",
    "HamiltonianSampler",
    "Inference",
    "Info",
    "LangevinSampler",
    "Laplace",
    "Layerwise",
    "LeimkuhlerMatthews",
    "Linear",
    "MCDropout",
    "On",
    "RandomBasis",
    "RepulsiveEnsemble",
    "Sampler",
    "Stackable",
    "Subspace",
    "Tempered",
    "Tune",
    "Variational",
    "Warmup",
    "cosine",
    "flat",
    "glide",
    "ladder",
]
