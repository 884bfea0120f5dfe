"""Class probabilities of a Gaussian over the outputs, in closed form."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def probit_logits(mean: Tensor, variance: Tensor) -> Tensor:
    """mean / √(1 + π/8 · variance): outputs moderated by their own uncertainty (MacKay 1992)."""
    return mean / torch.sqrt(1 + math.pi / 8 * variance)


def probit_probabilities(mean: Tensor, variance: Tensor, binary: bool) -> Tensor:
    """E softmax(f) ≈ softmax of :func:`probit_logits`; a sigmoid for yes/no labels.

    >>> probit_probabilities(torch.ones(1, 1), torch.ones(1, 1), binary=True)
    tensor([[0.7000]])
    """
    scaled = probit_logits(mean, variance)
    return scaled.sigmoid() if binary else scaled.softmax(-1)


def bridge_concentration(mean: Tensor, variance: Tensor) -> Tensor:
    """The Dirichlet whose Laplace approximation in the softmax basis is N(mean, diag variance) (Hobbhahn et al. 2022):
    α_k = (1 − 2/K + e^{μ_k} K⁻² Σ_l e^{−μ_l}) / Σ_kk.

    >>> bridge_concentration(torch.tensor([[1.0, 0.0, -1.0]]), torch.ones(1, 3))
    tensor([[1.5675, 0.7874, 0.5004]])
    """
    classes = mean.shape[-1]
    total = torch.exp(mean + torch.logsumexp(-mean, -1, keepdim=True)) / classes**2
    return (1 - 2 / classes + total) / variance


def bridge_probabilities(mean: Tensor, covariance: Tensor) -> Tensor:
    """The mean of the bridge's Dirichlet, after the Gaussian is conditioned on outputs that sum to zero (a softmax does
    not see their sum). Where nothing is uncertain it is the softmax."""
    ones = covariance.sum(-1)
    total = ones.sum(-1, keepdim=True)
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    tiny = torch.finfo(mean.dtype).eps * diagonal.amax(-1, keepdim=True) + torch.finfo(mean.dtype).tiny
    safe = torch.where(total > tiny, total, torch.ones_like(total))
    shift = torch.where(total > tiny, ones / safe, torch.zeros_like(ones))
    centred = mean - shift * mean.sum(-1, keepdim=True)
    variance = diagonal - shift * ones
    known = (variance <= tiny).any(-1, keepdim=True)
    alpha = bridge_concentration(centred, torch.where(known, torch.ones_like(variance), variance))
    share = alpha / alpha.sum(-1, keepdim=True)
    return torch.where(known | ~torch.isfinite(share).all(-1, keepdim=True), mean.softmax(-1), share)
