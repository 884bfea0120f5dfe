"""Families of distributions over θ, and estimators of gradients of averages over them."""

from temperance.inference.variational.families.base import BoundFamily, Family, Pull
from temperance.inference.variational.families.correlated import FullRank, LowRank, MatrixNormal
from temperance.inference.variational.families.factorised import MeanField, TiedScale
from temperance.inference.variational.families.radial import Radial

__all__ = [
    "BoundFamily",
    "Family",
    "FullRank",
    "LowRank",
    "MatrixNormal",
    "MeanField",
    "Pull",
    "Radial",
    "TiedScale",
]
