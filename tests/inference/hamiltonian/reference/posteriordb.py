"""Models of posteriordb in torch: log densities on an unconstrained scale, with the logarithms of Jacobians.

Reference draws, data and descriptions are read from the folder ``posteriordb`` of ``TEMPERANCE_DATA``. ``rotated``
regressions have coordinates γ with β = √N R⁻¹ γ, X = QR: the same posterior in coordinates of about one scale.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DATA = Path(os.environ.get("TEMPERANCE_DATA") or Path(__file__).parents[5] / "shared" / "data") / "posteriordb"


@dataclass(frozen=True)
class Model:
    """``log_density`` takes θ (P) to a number; ``constrain`` takes … × P to … × the model's own parameters, and
    ``unconstrain`` back."""

    names: tuple[str, ...]
    log_density: Callable[[Tensor], Tensor]
    constrain: Callable[[Tensor], Tensor]
    unconstrain: Callable[[Tensor], Tensor]

    @property
    def size(self) -> int:
        """P: all models here have as many parameters on both scales."""
        return len(self.names)


def read(folder: str, name: str) -> Any:
    """A zipped JSON file of the database."""
    with zipfile.ZipFile(DATA / folder / f"{name}.json.zip") as archive:
        return json.loads(archive.read(f"{name}.json"))


def reference(posterior: str, names: tuple[str, ...]) -> Tensor:
    """Reference draws, chains × draws × parameters."""
    chains = read("draws", posterior)
    return torch.tensor([[chain[name] for name in names] for chain in chains], dtype=torch.float64).mT.contiguous()


def _column(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _half_cauchy(x: Tensor, scale: float) -> Tensor:
    return -torch.log1p((x / scale).square())


def eight_schools() -> Model:
    """y_j ~ N(θ_j, σ_j), θ_j = μ + τ z_j, z ~ N(0, 1), μ ~ N(0, 5), τ ~ half-Cauchy(5); coordinates (z, μ, log τ)."""
    data = read("data", "eight_schools")
    y, sigma = _column(data["y"]), _column(data["sigma"])

    def constrain(x: Tensor) -> Tensor:
        z, mu, tau = x[..., :8], x[..., 8:9], x[..., 9:10].exp()
        return torch.cat([mu + tau * z, mu, tau], -1)

    def unconstrain(p: Tensor) -> Tensor:
        return torch.cat([(p[..., :8] - p[..., 8:9]) / p[..., 9:10], p[..., 8:9], p[..., 9:10].log()], -1)

    def log_density(x: Tensor) -> Tensor:
        z, mu, tau = x[:8], x[8], x[9].exp()
        away = (y - mu - tau * z) / sigma
        return -0.5 * (z @ z + away @ away + (mu / 5).square()) - torch.log1p((tau / 5).square()) + x[9]

    return Model((*(f"theta[{j}]" for j in range(1, 9)), "mu", "tau"), log_density, constrain, unconstrain)


def _regression(
    x: Tensor, y: Tensor, prior: Callable[[Tensor, Tensor], Tensor], names: tuple[str, ...], rotated: bool
) -> Model:
    """y ~ N(X β, σ); coordinates (γ, log σ) with β = A γ. The data enter by least squares: ‖y − Xβ‖² is that of the
    best γ̂ and (γ − γ̂)ᵀ (XA)ᵀ XA (γ − γ̂)."""
    size = x.shape[1]
    forth = torch.eye(size, dtype=torch.float64)
    if rotated:
        forth = math.sqrt(len(y)) * torch.linalg.inv(torch.linalg.qr(x).R)
    back = torch.linalg.inv(forth)
    best = torch.linalg.lstsq(x @ forth, y.unsqueeze(1)).solution.squeeze(1)
    squares, least = (x @ forth).T @ (x @ forth), (y - x @ forth @ best).square().sum()

    def constrain(theta: Tensor) -> Tensor:
        return torch.cat([theta[..., :size] @ forth.T, theta[..., size:].exp()], -1)

    def unconstrain(p: Tensor) -> Tensor:
        return torch.cat([p[..., :size] @ back.T, p[..., size:].log()], -1)

    def log_density(theta: Tensor) -> Tensor:
        away, log_sigma = theta[:size] - best, theta[size]
        misfit = away @ squares @ away + least
        likelihood = -0.5 * misfit * torch.exp(-2 * log_sigma) - (len(y) - 1) * log_sigma
        return likelihood + prior(forth @ theta[:size], log_sigma.exp())

    return Model(names, log_density, constrain, unconstrain)


def kidscore_interaction(rotated: bool = True) -> Model:
    """Test scores on a mother's schooling, her IQ and their product; β flat, σ ~ half-Cauchy(2.5)."""
    data = read("data", "kidiq")
    school, iq, y = _column(data["mom_hs"]), _column(data["mom_iq"]), _column(data["kid_score"])
    x = torch.stack([torch.ones_like(iq), school, iq, school * iq], 1)
    names = (*(f"beta[{k}]" for k in range(1, 5)), "sigma")
    return _regression(x, y, lambda beta, sigma: _half_cauchy(sigma, 2.5), names, rotated)


def blr(rotated: bool = True) -> Model:
    """Linear regression, β ~ N(0, 10), σ ~ half-N(10)."""
    data = read("data", "sblrc")
    names = (*(f"beta[{k}]" for k in range(1, 6)), "sigma")

    def prior(beta: Tensor, sigma: Tensor) -> Tensor:
        return -0.005 * (beta.square().sum() + sigma.square())

    return _regression(_column(data["X"]), _column(data["y"]), prior, names, rotated)


def autoregression(rotated: bool = False) -> Model:
    """y_t ~ N(α + Σ_k β_k y_{t−k}, σ), five lags; α, β ~ N(0, 10), σ ~ half-Cauchy(2.5)."""
    data = read("data", "arK")
    y, lags = _column(data["y"]), int(data["K"])
    past = [y[lags - k : len(y) - k] for k in range(1, lags + 1)]
    x = torch.stack([torch.ones_like(past[0]), *past], 1)

    def prior(beta: Tensor, sigma: Tensor) -> Tensor:
        return -0.005 * beta.square().sum() + _half_cauchy(sigma, 2.5)

    names = ("alpha", *(f"beta[{k}]" for k in range(1, lags + 1)), "sigma")
    return _regression(x, y[lags:], prior, names, rotated)


def mixture() -> Model:
    """y ~ θ N(μ₁, σ₁) + (1 − θ) N(μ₂, σ₂), μ₁ < μ₂; μ, σ ~ N(0, 2), θ ~ Beta(5, 5).

    Coordinates (μ₁, log(μ₂ − μ₁), log σ₁, log σ₂, logit θ)."""
    y = _column(read("data", "low_dim_gauss_mix")["y"])

    def constrain(x: Tensor) -> Tensor:
        first, gap = x[..., :1], x[..., 1:2].exp()
        return torch.cat([first, first + gap, x[..., 2:4].exp(), x[..., 4:].sigmoid()], -1)

    def unconstrain(p: Tensor) -> Tensor:
        gap = (p[..., 1:2] - p[..., :1]).log()
        return torch.cat([p[..., :1], gap, p[..., 2:4].log(), p[..., 4:].logit()], -1)

    def log_density(x: Tensor) -> Tensor:
        p = constrain(x)
        log_share = torch.nn.functional.logsigmoid(torch.stack([x[4], -x[4]]))
        each = -0.5 * ((y.unsqueeze(1) - p[:2]) / p[2:4]).square() - x[2:4] + log_share
        prior = 4.0 * log_share.sum() - p[:4].square().sum() / 8
        jacobian = x[1:4].sum() + log_share.sum()
        return torch.logsumexp(each, 1).sum() + prior + jacobian

    return Model(("mu[1]", "mu[2]", "sigma[1]", "sigma[2]", "theta"), log_density, constrain, unconstrain)
