"""Have chains mixed, and what are their draws worth? Arrays in, numbers out; the estimators are those of ArviZ.

Shapes, everywhere: a series of draws, chains × draws, or chains × draws × quantities. What comes back has the shape of
one draw: a single number, or one for each quantity.

References: Vehtari, Gelman, Simpson, Carpenter and Bürkner, "Rank-normalization, folding, and localization: an improved
R-hat", 2021.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError

_LEAST = 4  # ArviZ needs four draws a chain
_TAILS = (0.05, 0.95)


def _arviz() -> Any:
    """ArviZ's statistics of arrays, imported when they are first asked for: it may bring matplotlib along."""
    return importlib.import_module("arviz_stats.base").array_stats


def autocorrelation(x: Any, max_lag: int | None = None) -> Tensor:
    """ρ_k = Cov(x_t, x_{t+k}) / Var(x_t) for k = 0 … ``max_lag``, along the last dimension.

    >>> autocorrelation(torch.tensor([1.0, -1.0, 1.0, -1.0]), max_lag=1)
    tensor([ 1.0000, -0.7500], dtype=torch.float64)
    """
    values = _numbers(x)
    if values.shape[-1] < 2:
        raise ArgumentError(f"`x` must have at least two draws in its last dimension; got {values.shape[-1]}.")
    lags = values.shape[-1] - 1 if max_lag is None else min(check_count(max_lag, "max_lag"), values.shape[-1] - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return torch.from_numpy(np.array(_arviz().autocorr(values, axis=-1)[..., : lags + 1]))


def ess(x: Any) -> Tensor:
    """How many independent draws would estimate the mean as well: S / (1 + 2 Σ_k ρ_k), chains that disagree counted
    as less. For a first-order autoregression of rate ρ it tends to S (1 − ρ) / (1 + ρ).

    >>> x = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
    >>> 3000 < ess(x) < 5000
    tensor(True)
    """
    return _by_arviz(_arviz().ess, x, method="mean")


def bulk_ess(x: Any) -> Tensor:
    """Effective number of draws for the middle of the distribution: that of the ranks, as normal scores."""
    return _by_arviz(_arviz().ess, x, method="bulk")


def tail_ess(x: Any) -> Tensor:
    """Effective number of draws for the tails: the smaller one of those for the 5 % and the 95 % quantile."""
    return _by_arviz(_arviz().ess, x, method="tail", prob=_TAILS)


def mcse(x: Any) -> Tensor:
    """The standard error of the mean of the draws: their standard deviation over the root of :func:`ess`."""
    return _by_arviz(_arviz().mcse, x, method="mean")


def rhat(x: Any) -> Tensor:
    """Rank-normalised, folded, split R-hat: about 1 where all (half) chains have drawn from one distribution, more
    where they have not. A single chain is cut into two halves, which are then treated as chains.

    >>> x = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
    >>> rhat(x) < 1.01, rhat(x + torch.arange(4.0).view(4, 1)) > 1.1
    (tensor(True), tensor(True))
    """
    values = _chains(x)
    if len(values) == 1:
        half = values.shape[1] // 2
        values = np.concatenate([values[:, :half], values[:, values.shape[1] - half :]])
    return _by_arviz(_arviz().rhat, values, method="rank")


def _by_arviz(function: Any, x: Any, **options: Any) -> Tensor:
    values = _chains(x)
    if values.shape[1] < _LEAST:
        return torch.full(values.shape[2:], torch.nan, dtype=torch.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        made = function(values, chain_axis=0, draw_axis=1, **options)
    return torch.as_tensor(np.asarray(made, dtype=np.float64))


def _chains(x: Any) -> np.ndarray:
    values = _numbers(x)
    if values.ndim == 1:
        values = values[None]
    if values.ndim not in (2, 3):
        raise ArgumentError(
            f"`x` must be a series, chains × draws, or chains × draws × quantities; got shape {tuple(values.shape)}."
        )
    return values


def _numbers(x: Any) -> np.ndarray:
    values = x.detach().double().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x, dtype=np.float64)
    if values.size == 0 or not np.isfinite(values).all():
        raise ArgumentError(f"`x` must be finite and not empty; got shape {tuple(values.shape)}.")
    return values
