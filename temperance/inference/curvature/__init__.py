"""Curvature of the data term: structures, passes over the data, products."""

from temperance.inference.curvature.structures import EKFAC, KFAC, BlockDiagonal, Curvature, Dense, Diagonal, Lanczos
from temperance.inference.curvature.subsets import LargestMagnitude, LargestVariance, Subnetwork

__all__ = [
    "EKFAC",
    "KFAC",
    "BlockDiagonal",
    "Curvature",
    "Dense",
    "Diagonal",
    "Lanczos",
    "LargestMagnitude",
    "LargestVariance",
    "Subnetwork",
]
