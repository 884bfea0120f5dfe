"""Curvature of the data term: structures, passes over the data, products."""

from temperance.curvature.structures import EKFAC, KFAC, BlockDiagonal, Curvature, Dense, Diagonal, LowRank
from temperance.curvature.subsets import LargestMagnitude, LargestVariance, Subnetwork

__all__ = [
    "EKFAC",
    "KFAC",
    "BlockDiagonal",
    "Curvature",
    "Dense",
    "Diagonal",
    "LargestMagnitude",
    "LargestVariance",
    "LowRank",
    "Subnetwork",
]
