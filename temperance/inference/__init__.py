"""Methods: one a file."""

from temperance.inference.anchored import Anchored
from temperance.inference.baoab import BAOAB
from temperance.inference.base import Cost, Exactness, Inference, Info, Stackable
from temperance.inference.collect import Collect
from temperance.inference.cyclical import Cyclical, cosine, flat, glide
from temperance.inference.ensemble import Ensemble
from temperance.inference.evidence import Tune
from temperance.inference.functional import FunctionalLaplace
from temperance.inference.ggmc import GGMC
from temperance.inference.laplace import Laplace
from temperance.inference.leimkuhler_matthews import LeimkuhlerMatthews
from temperance.inference.map import MAP
from temperance.inference.on import On
from temperance.inference.psgld import PSGLD
from temperance.inference.sampler import LangevinSampler, Layerwise, Sampler
from temperance.inference.sghmc import SGHMC
from temperance.inference.sgld import SGLD
from temperance.inference.sgnht import SGNHT

__all__ = [
    "BAOAB",
    "GGMC",
    "MAP",
    "PSGLD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "Anchored",
    "Collect",
    "Cost",
    "Cyclical",
    "Ensemble",
    "Exactness",
    "FunctionalLaplace",
    "Inference",
    "Info",
    "LangevinSampler",
    "Laplace",
    "Layerwise",
    "LeimkuhlerMatthews",
    "On",
    "Sampler",
    "Stackable",
    "Tune",
    "cosine",
    "flat",
    "glide",
]
