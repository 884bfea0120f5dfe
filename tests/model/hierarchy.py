"""A hierarchical model with a known answer: linear regression whose weights and biases have a learned scale each."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import temperance as tp
from temperance.model.priors import HyperPrior

ROWS, NOISE, GROUP = 10, 0.7, torch.tensor([0, 0, 0, 0, 1, 1])
X = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
Y = (X @ torch.tensor([[0.5, -0.3], [1.2, 0.2]], dtype=torch.float64) + torch.tensor([0.1, -0.6])).round(decimals=2)
SCALE = {"weight": 0.8, "bias": 1.3}


def network() -> nn.Module:
    """Four weights and two biases."""
    torch.manual_seed(0)
    return nn.Linear(2, 2).double()


def centred(hyper: HyperPrior, temperature: float = 1.0) -> tp.Target:
    prior = tp.GaussianPrior(tp.Learned(SCALE, hyper, each="tensor"))
    return tp.Target(network(), tp.Normal(scale=NOISE), prior, temperature)


def non_centred(hyper: HyperPrior, temperature: float = 1.0) -> tp.Target:
    made = tp.NonCentred(network(), hyper, SCALE, each="tensor")
    return tp.Target(made, tp.Normal(scale=NOISE), tp.GaussianPrior(1.0), temperature)


def as_weights(target: tp.Target, theta: Tensor) -> Tensor:
    """Rows of (w, u), whatever the coordinates of ``theta``."""
    if not isinstance(target.network, tp.NonCentred):
        return theta
    v, z = theta[:, :2], theta[:, 2:]
    u = target.network.hyper.of_normal(v)
    return torch.cat([z * torch.exp(u[:, GROUP]) * _base(), u], dim=1)


def _base() -> Tensor:
    return torch.tensor([SCALE["weight"]] * 4 + [SCALE["bias"]] * 2, dtype=torch.float64)


def exact(hyper: HyperPrior, temperature: float, in_u: bool, points: int = 161) -> tuple[Tensor, Tensor]:
    """Mean and covariance of (w, u) given the data, by sums over a grid of v, u = F⁻¹(Φ(v)): given u, w is Gaussian.

    With s the scales, in (w, u) the density is p(y|w)^{1/T} [N(w; 0, s²) h(u)]^{1/T} dw du, du = u'(v) dv; in (z, v) it
    is p(y|w)^{1/T} [N(z) N(v)]^{1/T} dz dv, dz = dw / Πs. Temperature divides what is a density in θ, and no Jacobian.
    """
    ends = 9.0 * max(1.0, math.sqrt(temperature))
    line = torch.linspace(-ends, ends, points, dtype=torch.float64)
    v = torch.cartesian_prod(line, line)
    leaf = v.clone().requires_grad_()
    u = hyper.of_normal(leaf)
    (slope,) = torch.autograd.grad(u.sum(), leaf)
    u = u.detach()
    log_s = u[:, GROUP] + _base().log()
    if in_u:
        log_weight = (hyper.log_density(u).sum(1) - log_s.sum(1)) / temperature + slope.log().sum(1)
    else:
        log_weight = -0.5 * v.square().sum(1) / temperature - log_s.sum(1)
    design = torch.kron(torch.eye(2, dtype=torch.float64), X)  # rows of the weight belong to outputs
    ones = torch.kron(torch.eye(2, dtype=torch.float64), torch.ones(ROWS, 1, dtype=torch.float64))
    features = torch.cat([design, ones], dim=1)
    targets = torch.cat([Y[:, 0], Y[:, 1]])
    gram, pull = features.T @ features / NOISE**2, features.T @ targets / NOISE**2
    precision = (gram + torch.diag_embed(torch.exp(-2 * log_s))) / temperature
    root = torch.linalg.cholesky(precision)
    mean = torch.cholesky_solve((pull / temperature).expand(len(v), 6).unsqueeze(-1), root).squeeze(-1)
    log_weight = log_weight + 0.5 * (mean @ pull) / temperature - root.diagonal(dim1=-2, dim2=-1).log().sum(1)
    weight = log_weight.softmax(0)
    edge = weight.view(points, points)
    assert float(edge[[0, -1]].sum() + edge[:, [0, -1]].sum()) < 1e-6, "the grid ends too early"
    centres = torch.cat([mean, u], dim=1)
    middle = weight @ centres
    away = centres - middle
    covariance = away.T @ (weight[:, None] * away)
    covariance[:6, :6] += torch.einsum("g,gij->ij", weight, torch.cholesky_inverse(root))
    return middle, covariance
