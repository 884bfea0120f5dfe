"""How far an average over draws lies from the average over all: Monte-Carlo standard errors.

A prediction is p̄ = Σ_h W_h p̄_h over strata h (a posterior's components), p̄_h = Σ_b v_b p_b over blocks b of nodes that
were drawn together, v summing to one within a stratum. Strata are drawn independently of one another, so

    se² = Σ_h W_h² se_h²,      se_h² = Σ_b v_b² (p_b − p̄_h)² / (1 − Σ_b v_b²)

for independent blocks: s² / n where all n weigh the same, and what importance weights make of it where not. Blocks of
one node are plain draws; an antithetic pair is one block, for its two nodes are anything but independent.

Draws of a Markov chain resemble their neighbours: se_h² = γ₀ τ / n, with τ = −1 + 2 Σ_t Γ_t / γ₀ the integrated
autocorrelation time and Γ_t = γ_2t + γ_2t+1 sums of neighbouring autocovariances, taken as long as they are positive
and no larger than those before (Geyer, "Practical Markov chain Monte Carlo", 1992). ``diagnose.mcse`` is ArviZ's form
of it, for one quantity after the other at half a millisecond each; this one is for all rows and classes of a block at
once, and ``tests/predict/test_monte_carlo.py`` holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from temperance.posteriors.nodes import Stratum

_SERIES = 2**20  # numbers of a chain's spectrum at once
_LEAST = 4  # draws of a chain, below which nothing is known of its autocorrelation


def standard_error(values: Tensor, weights: Tensor, strata: Sequence[Stratum]) -> Tensor:
    """The standard error of Σ_s w_s ``values``_s (S × ...), for nodes drawn as ``strata`` say; in float64.

    Infinite where a stratum was drawn only once: nobody can tell then.

    >>> values = torch.tensor([[0.0], [2.0], [5.0]])
    >>> standard_error(values, torch.tensor([0.25, 0.25, 0.5]), (Stratum(2), Stratum(1, drawn=False)))
    tensor([0.5000], dtype=torch.float64)
    """
    total = torch.zeros(values.shape[1:], dtype=torch.float64, device=values.device)
    begin = 0
    for stratum in strata:
        here = slice(begin, begin + stratum.count)
        begin += stratum.count
        share = weights[here].double()
        whole = float(share.sum())
        if not stratum.drawn or whole <= 0:
            continue
        means, share = _blocks(values[here].double(), share / whole, stratum.block)
        variance = chain_variance(means) if stratum.chain else _independent_variance(means, share)
        total = total + whole**2 * variance
    return total.sqrt()


def _blocks(values: Tensor, share: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """The weighted mean of each block of consecutive nodes, and its share; the last block may be smaller."""
    if block == 1:
        return values, share
    number = torch.arange(len(values), device=values.device) // block
    count = int(number[-1]) + 1
    mass = share.new_zeros(count).index_add(0, number, share)
    weighted = values * share.view(-1, *[1] * (values.dim() - 1))
    summed = values.new_zeros(count, *values.shape[1:]).index_add(0, number, weighted)
    return summed / mass.clamp(min=1e-300).view(-1, *[1] * (values.dim() - 1)), mass


def _independent_variance(means: Tensor, share: Tensor) -> Tensor:
    """Of Σ_b v_b p_b, for independent p_b."""
    left = 1.0 - float(share.square().sum())
    if left < 1e-9:
        return torch.full(means.shape[1:], math.inf, dtype=means.dtype, device=means.device)
    centre = torch.tensordot(share, means, dims=1)
    return torch.tensordot(share.square(), (means - centre).square(), dims=1) / left


def chain_variance(series: Tensor) -> Tensor:
    """The variance of the mean of a chain of draws (S × ...), by the autocovariances of each quantity.

    A first-order autoregression of rate ρ has that of independent draws times (1 + ρ) / (1 − ρ). Chains that swing
    about their mean may do better than independent draws, at most by log₁₀ S. A chain that is short beside τ has not
    seen how far it wanders: of ρ = 0.8, where τ = 9, the standard error comes out at 0.69 of the true one by 30 draws,
    0.90 by 100, 0.96 by 300. Fewer than four draws are taken for independent ones.

    >>> noise = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> walk = [noise[0]]
    >>> for step in noise[1:]:
    ...     walk.append(0.8 * walk[-1] + 0.6 * step)
    >>> 7 < 4000 * chain_variance(torch.stack(walk)) < 11  # (1 + 0.8) / (1 − 0.8) = 9
    tensor(True)
    """
    count = len(series)
    if count < _LEAST:
        return _independent_variance(series, series.new_full((count,), 1.0 / count))
    flat = series.reshape(count, -1)
    found = [_geyer(part) for part in flat.split(max(1, _SERIES // (2 * count)), dim=1)]
    return torch.cat(found).reshape(series.shape[1:])


def _geyer(series: Tensor) -> Tensor:
    count = len(series)
    spectrum = torch.fft.rfft(series - series.mean(0), n=2 * count, dim=0).abs().square()
    covariances = torch.fft.irfft(spectrum, n=2 * count, dim=0)[:count] / count
    variance = covariances[0]
    even = count - count % 2
    pairs = covariances[:even].reshape(even // 2, 2, -1).sum(1)
    positive = (pairs > 0).cumprod(0).to(pairs.dtype)
    time_sum = 2 * (pairs.clamp(min=0.0).cummin(0).values * positive).sum(0) - variance
    floor = variance / max(1.0, math.log10(count))
    return torch.maximum(time_sum, floor) / (count - 1)
