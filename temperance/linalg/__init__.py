"""Covariance operators."""

from temperance.linalg.blocks import Block, DenseBlock, DiagonalBlock, LowRankBlock
from temperance.linalg.covariance import Covariance, DenseCovariance, DiagonalCovariance, LowRankCovariance
from temperance.linalg.kronecker import KroneckerBlock
from temperance.linalg.precision import PosteriorCovariance

__all__ = [
    "Block",
    "Covariance",
    "DenseBlock",
    "DenseCovariance",
    "DiagonalBlock",
    "DiagonalCovariance",
    "KroneckerBlock",
    "LowRankBlock",
    "LowRankCovariance",
    "PosteriorCovariance",
]
