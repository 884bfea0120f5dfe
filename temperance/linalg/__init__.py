"""Symmetric operators over θ: covariances, and the curvature that they are made of."""

from temperance.linalg.assembled import AssembledCovariance, BlockCovariance, PosteriorCovariance
from temperance.linalg.blocks import Block, DenseBlock, DiagonalBlock, LowRankBlock
from temperance.linalg.covariance import (
    CholeskyCovariance,
    DenseCovariance,
    DiagonalCovariance,
    KroneckerCovariance,
    LowRankCovariance,
)
from temperance.linalg.inverse import CholeskyInverse, DiagonalInverse, LowRankInverse
from temperance.linalg.kronecker import KroneckerBlock, KroneckerInverse
from temperance.linalg.operator import Covariance, MatrixCovariance, Operator

__all__ = [
    "AssembledCovariance",
    "Block",
    "BlockCovariance",
    "CholeskyCovariance",
    "CholeskyInverse",
    "Covariance",
    "DenseBlock",
    "DenseCovariance",
    "DiagonalBlock",
    "DiagonalCovariance",
    "DiagonalInverse",
    "KroneckerBlock",
    "KroneckerCovariance",
    "KroneckerInverse",
    "LowRankBlock",
    "LowRankCovariance",
    "LowRankInverse",
    "MatrixCovariance",
    "Operator",
    "PosteriorCovariance",
]
