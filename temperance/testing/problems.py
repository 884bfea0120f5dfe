"""Problems with known answers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from temperance.core.seeds import generator
from temperance.data.data import Data
from temperance.model.likelihoods import Normal, Poisson
from temperance.model.priors import FanIn, GaussianPrior, Prior
from temperance.model.target import Target


@dataclass(frozen=True)
class ClosedForm:
    """A target and data with posterior N(mean, covariance) at temperature one, and log evidence."""

    target: Target
    data: Data
    mean: Tensor
    covariance: Tensor
    log_evidence: float

    @property
    def precision(self) -> Tensor:
        """Λ."""
        return torch.linalg.inv(self.covariance)


@dataclass(frozen=True)
class Quadrature:
    """A target of one parameter whose posterior is known by numerical integration."""

    target: Target
    data: Data
    mean: float
    variance: float
    third_moment: float
    mode: float


class LinearLeaves(nn.Module):
    """A network that is linear in its parameters, which have every shape that trips people: (), (d,), (m, n) and a
    convolution kernel."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.scalar = nn.Parameter(torch.empty((), dtype=dtype))
        self.vector = nn.Parameter(torch.empty(3, dtype=dtype))
        self.matrix = nn.Parameter(torch.empty(2, 3, dtype=dtype))
        self.kernel = nn.Parameter(torch.empty(2, 1, 3, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small random values."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Two outputs for five inputs."""
        local = nn.functional.conv1d(x.unsqueeze(1), self.kernel).mean(-1)
        common = (x[:, :3] * self.vector).sum(-1, keepdim=True) + self.scalar
        return x[:, :3] @ self.matrix.T + common + local


def solve_linear_gaussian(network: nn.Module, x: Tensor, y: Tensor, noise: float, prior: Prior) -> ClosedForm:
    """The exact posterior of a network that is linear in its parameters, with Gaussian noise and a Gaussian prior.

    With f(θ) = J θ + c and prior N(m, S): Λ = JᵀJ/σ² + S⁻¹, μ = Λ⁻¹ (Jᵀ(y − c)/σ² + S⁻¹ m).
    """
    target = Target(network, Normal(scale=noise), prior)
    layout = target.layout
    zero = torch.zeros(layout.size, dtype=layout.dtype)

    def outputs(theta: Tensor) -> Tensor:
        return functional_call(target.network, dict(layout.unflatten(theta)), (x,)).reshape(-1)

    jacobian, offset = jacrev(outputs)(zero).double(), outputs(zero).detach().double()
    centre, scale = zero.double().clone(), zero.double() + 1
    for piece, density in target.bound_prior.pieces:
        centre[piece], scale[piece] = density.mean, density.scale  # type: ignore[attr-defined]
    prior_precision = torch.diag(scale.pow(-2))
    precision = jacobian.T @ jacobian / noise**2 + prior_precision
    residual = y.reshape(-1).double() - offset
    mean = torch.linalg.solve(precision, jacobian.T @ residual / noise**2 + prior_precision @ centre)
    marginal = noise**2 * torch.eye(len(residual), dtype=torch.float64) + jacobian @ torch.diag(scale**2) @ jacobian.T
    log_evidence = torch.distributions.MultivariateNormal(jacobian @ centre, marginal).log_prob(residual)
    return ClosedForm(target, Data(x, y), mean, torch.linalg.inv(precision), float(log_evidence))


def linear_gaussian(
    rows: int = 40, noise: float = 0.5, seed: int = 0, dtype: torch.dtype = torch.float64
) -> ClosedForm:
    """Multi-output regression with parameters of shapes (), (3,), (2, 3) and (2, 1, 3), correlated a posteriori.

    The prior's scales differ between tensors (fan-in) and its mean is not zero, so that nothing cancels by symmetry.

    >>> linear_gaussian().covariance.shape
    torch.Size([16, 16])
    """
    rng = generator(seed, "linear-gaussian")
    x = torch.randn(rows, 5, generator=rng, dtype=torch.float64) + 0.5
    y = torch.randn(rows, 2, generator=rng, dtype=torch.float64) + x[:, :2]
    prior = GaussianPrior(scale=FanIn(gain=1.5, bias=0.7), mean=0.3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = LinearLeaves(dtype)
    return solve_linear_gaussian(network, x.to(dtype), y.to(dtype), noise, prior)


def conjugate_regression(dtype: torch.dtype = torch.float64) -> ClosedForm:
    """Quadratic regression of sin(3x) on ten points, noise 0.1, prior N(0, I): log evidence −108.7043827878.

    >>> problem = conjugate_regression()
    >>> round(problem.log_evidence, 8), round(float(problem.mean[1]), 9)
    (-108.70438279, 0.770490361)
    """
    x = torch.linspace(-1, 1, 10, dtype=torch.float64)
    features = torch.stack([torch.ones_like(x), x, x**2], dim=1)
    network = nn.Linear(3, 1, bias=False, dtype=dtype)
    y = torch.sin(3 * x).unsqueeze(1)
    return solve_linear_gaussian(network, features.to(dtype), y.to(dtype), 0.1, GaussianPrior(scale=1.0))


def skewed_counts(dtype: torch.dtype = torch.float64) -> Quadrature:
    """Three small counts with a Poisson likelihood and one log-rate: an asymmetric posterior, which sees sign errors
    that a symmetric one hides. Its moments are integrated numerically.

    >>> problem = skewed_counts()
    >>> problem.third_moment < -0.01
    True
    """
    counts = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    grid = torch.linspace(-12, 6, 200_001, dtype=torch.float64)
    log_p = counts.sum() * grid - len(counts) * grid.exp() - grid.square() / (2 * 1.5**2)
    p = (log_p - log_p.max()).exp()
    p = p / p.sum()
    mean = float((p * grid).sum())
    variance = float((p * (grid - mean).square()).sum())
    third = float((p * (grid - mean) ** 3).sum()) / math.pow(variance, 1.5)
    network = nn.Linear(1, 1, bias=False, dtype=dtype)
    target = Target(network, Poisson(), GaussianPrior(scale=1.5))
    data = Data(torch.ones(3, 1, dtype=dtype), counts.unsqueeze(1).to(dtype))
    return Quadrature(target, data, mean, variance, third, mode=float(grid[p.argmax()]))
