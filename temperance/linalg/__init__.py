"""Covariance operators."""

from temperance.linalg.blocks import Block, DenseBlock, DiagonalBlock, LowRankBlock
from temperance.linalg.covariance import (
    BlockCovariance,
    CholeskyCovariance,
    Covariance,
    DenseCovariance,
    DiagonalCovariance,
    KroneckerCovariance,
    LowRankCovariance,
)
from temperance.linalg.kronecker import KroneckerBlock
from temperance.linalg.precision import PosteriorCovariance

__all__ = [
    "Block",
    "BlockCovariance",
    "CholeskyCovariance",
    "Covariance",
    "DenseBlock",
    "DenseCovariance",
    "DiagonalBlock",
    "DiagonalCovariance",
    "KroneckerBlock",
    "KroneckerCovariance",
    "LowRankBlock",
    "LowRankCovariance",
    "PosteriorCovariance",
]
