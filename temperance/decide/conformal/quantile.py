"""The finite-sample quantile of conformal prediction, plain and weighted.

Of n calibration scores and one of a new row, exchangeable, the new one is at most the k-th smallest with probability at
least k / (n + 1). So with k = ⌈(n + 1) · level⌉ the threshold covers with probability from ``level`` to ``level`` +
1/(n + 1) (the upper bound where scores have no ties). Given the calibration rows, coverage itself is random: it has
the law Beta(k, n + 1 − k) (Vovk 2012), for scores without ties.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from temperance.core.checks import check_level, check_whole, is_whole, real, shown
from temperance.core.errors import ArgumentError, DataError

_ROUNDING = 1e-9  # 0.7 · 10 is 7, not 7.000000000000001


def conformal_rank(n: int, level: float) -> int:
    """k = ⌈(n + 1) · level⌉; more than n where n rows are too few for the level.

    >>> conformal_rank(100, 0.9), conformal_rank(8, 0.9)
    (91, 9)
    """
    check_whole(n, "n", "a number of rows")
    if not math.isfinite(real(level)):
        raise ArgumentError(f"`level` must be a finite number; got {shown(level)}.")
    return max(0, math.ceil((n + 1) * level - _ROUNDING))


def conformal_quantile(scores: Tensor, level: float) -> Tensor:
    """The k-th smallest score, over the first dimension; infinite where there are fewer than k.

    >>> conformal_quantile(torch.arange(1.0, 20.0), 0.9), conformal_quantile(torch.arange(1.0, 4.0), 0.9)
    (tensor(18.), tensor(inf))
    """
    if not isinstance(scores, Tensor) or not scores.dim():
        raise ArgumentError(f"`scores` must be a tensor with a row for each calibration row; got {shown(scores)}.")
    k, shape = conformal_rank(len(scores), level), scores.shape[1:]
    if k > len(scores):
        return scores.new_full(shape, math.inf)
    if k < 1:
        return scores.new_full(shape, -math.inf)
    return scores.kthvalue(k, dim=0).values


def weighted_quantile(scores: Tensor, weights: Tensor, new: Tensor, level: float) -> Tensor:
    """For each new row, of weight ``new``, the least t with Σ_{i: s_i ≤ t} w_i ≥ level · (Σ w + new) (Tibshirani et al.
    2019): infinite where the new row weighs too much.

    ``scores`` are n or n × outputs, ``new`` rows; rows (× outputs) come back. With equal weights it is
    :func:`conformal_quantile`.
    """
    columns = scores if scores.dim() == 2 else scores.unsqueeze(-1)
    needed = level * (weights.sum() + new) - _ROUNDING * weights.mean()
    made = []
    for column in columns.unbind(-1):
        ordered, order = column.sort()
        at = torch.searchsorted(weights[order].cumsum(0), needed)
        padded = torch.cat([ordered, ordered.new_full((1,), math.inf)])
        made.append(padded[at.clamp(max=len(ordered))])
    found = torch.stack(made, dim=-1)
    return found if scores.dim() == 2 else found.squeeze(-1)


def coverage_law(n: int, level: float = 0.9) -> tuple[float, float]:
    """Mean and standard deviation of the coverage that a calibration set of n rows gives: of Beta(k, n + 1 − k).

    >>> print("{:.6f} {:.6f}".format(*coverage_law(100, 0.9)))
    0.900990 0.029573
    """
    if not is_whole(n, 1):
        raise ArgumentError(f"`n` must be a positive number of rows; got {shown(n)}.")
    k = conformal_rank(n, check_level(level))
    if k > n:
        return 1.0, 0.0
    a, b = k, n + 1 - k
    return a / (a + b), math.sqrt(a * b / (a + b + 1)) / (a + b)


def check_weights(weights: object, rows: int, like: Tensor, argument: str = "weights") -> Tensor:
    """Likelihood ratios, one a row: finite, from 0 on."""
    made = torch.as_tensor(weights, dtype=torch.float64, device=like.device)
    if made.shape != (rows,):
        raise ArgumentError(f"`{argument}` must be one number for each of {rows} rows; got {tuple(made.shape)}.")
    if not bool(((made >= 0) & torch.isfinite(made)).all()):
        raise DataError(f"`{argument}` must be finite numbers from 0 on.")
    return made
