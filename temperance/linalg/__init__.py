"""Covariance operators."""

from temperance.linalg.covariance import Covariance, DenseCovariance, DiagonalCovariance, LowRankCovariance

__all__ = ["Covariance", "DenseCovariance", "DiagonalCovariance", "LowRankCovariance"]
