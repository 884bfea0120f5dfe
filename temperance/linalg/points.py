"""Points that stand for a Gaussian."""

from __future__ import annotations

import torch
from torch import Tensor


def standard_points(count: int, dimensions: int, like: Tensor, seed: int = 0) -> Tensor:
    """``count`` quasi-random normal points whose mean is zero and whose covariance is the identity: exactly, where
    there are more points than dimensions."""
    if dimensions == 0:
        return like.new_zeros(count, 0)
    uniform = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=seed).draw(count, dtype=torch.float64)
    points = torch.special.ndtri(uniform.clamp(1e-7, 1 - 1e-7))
    if count > dimensions + 1:
        points = points - points.mean(0)
        root = torch.linalg.cholesky(points.mT @ points / count)
        points = torch.linalg.solve_triangular(root, points.mT, upper=False).mT
    return points.to(like)


def root_of(covariance: Tensor) -> Tensor:
    """A square root R with R Rᵀ = covariance (... × C × C), which may be singular."""
    lower, info = torch.linalg.cholesky_ex(covariance)
    bad = info != 0
    if bool(bad.any()):
        values, vectors = torch.linalg.eigh(covariance[bad])
        lower[bad] = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    return lower
