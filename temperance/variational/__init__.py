"""Families of distributions over θ, and estimators of gradients of averages over them."""

from temperance.variational.base import BoundFamily, Family, Pull
from temperance.variational.correlated import FullRank, LowRankFamily, MatrixNormal
from temperance.variational.factorised import MeanField, TiedScale
from temperance.variational.radial import Radial

__all__ = [
    "BoundFamily",
    "Family",
    "FullRank",
    "LowRankFamily",
    "MatrixNormal",
    "MeanField",
    "Pull",
    "Radial",
    "TiedScale",
]
