"""The largest directions of the curvature, by Lanczos iterations."""

from __future__ import annotations

import numpy as np
import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from temperance.core.errors import ArgumentError, NumericalError
from temperance.inference.curvature.products import gauss_newton_product
from temperance.inference.curvature.sweep import Sweep
from temperance.linalg.blocks import LowRankBlock
from temperance.linalg.places import take


def check_rank(rank: int, size: int) -> None:
    """A rank that Lanczos iterations can find."""
    if rank >= size:
        raise ArgumentError(f"`rank` must be below the number of parameters, {size}; got {rank}. Use Dense().")


def largest_directions(sweep: Sweep, prior_precision: Tensor, rank: int, tolerance: float) -> LowRankBlock:
    """H ≈ V diag(s) Vᵀ, from the ``rank`` largest eigenpairs of τ^-½ H τ^-½."""
    places = tuple((e.start, e.stop) for e in sweep.capture.entries)
    tau = take(prior_precision, places)
    size = len(tau)
    check_rank(rank, size)
    if not bool((tau > 0).all()):
        raise ArgumentError("`prior`: Lanczos needs a prior whose curvature is positive everywhere, a Gaussian.")
    white = tau.rsqrt()

    def product(v: np.ndarray) -> np.ndarray:
        vector = torch.as_tensor(np.ascontiguousarray(v).reshape(-1), dtype=tau.dtype, device=tau.device)
        made = white * gauss_newton_product(sweep, white * vector)
        if not bool(torch.isfinite(made).all()):
            raise NumericalError("a product with the curvature is not finite: look at the data and the network.")
        return made.cpu().numpy()

    kind = np.float64 if tau.dtype == torch.float64 else np.float32
    operator = scipy.sparse.linalg.LinearOperator((size, size), matvec=product, dtype=kind)
    start = torch.randn(size, generator=torch.Generator().manual_seed(sweep.seed), dtype=torch.float64).numpy()
    values, vectors = scipy.sparse.linalg.eigsh(
        operator, k=rank, which="LA", tol=tolerance, v0=start.astype(kind), ncv=min(size, max(2 * rank, rank + 8))
    )
    order = np.argsort(-values)
    found = torch.as_tensor(np.maximum(values[order], 0.0).copy(), dtype=tau.dtype, device=tau.device)
    basis = torch.as_tensor(vectors[:, order].copy(), dtype=tau.dtype, device=tau.device)
    return LowRankBlock(places, basis * tau.sqrt().unsqueeze(-1), found)
