"""Factorisations of small matrices in machine code, with their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import LKJCholesky, MultivariateNormal

import temperance as tp
from temperance.engine.native.build import compiled_fill
from temperance.engine.native.density import NativeDensity

pytestmark = pytest.mark.skipif(compiled_fill() is None, reason="needs a C compiler")

N = 12
X = torch.linspace(-2, 2, N, dtype=torch.float64)
Y = torch.sin(2 * X)
EYE = torch.eye(N, dtype=torch.float64)


def kernel(theta: Tensor) -> Tensor:
    size, length, noise = theta.exp()
    return size**2 * torch.exp(-0.5 * (X[:, None] - X) ** 2 / length**2) + (noise**2 + 1e-4) * EYE


def prior(theta: Tensor) -> Tensor:
    return -0.5 * theta.square().sum()


def by_triangle(theta):
    root = torch.linalg.cholesky(kernel(theta))
    white = torch.linalg.solve_triangular(root, Y[:, None], upper=False)
    return prior(theta) - 0.5 * white.square().sum() - root.diagonal().log().sum()


def by_upper_triangle_from_the_right(theta):
    root = torch.linalg.cholesky(kernel(theta), upper=True)
    white = torch.linalg.solve_triangular(root, Y[None], upper=True, left=False)
    return prior(theta) - 0.5 * white.square().sum() - root.diagonal().log().sum()


def by_cholesky_solve(theta):
    root = torch.linalg.cholesky(kernel(theta))
    return prior(theta) - 0.5 * Y @ torch.cholesky_solve(Y[:, None], root)[:, 0] - root.diagonal().log().sum()


def by_cholesky_inverse(theta):
    root = torch.linalg.cholesky(kernel(theta))
    return prior(theta) - 0.5 * Y @ torch.cholesky_inverse(root) @ Y - root.diagonal().log().sum()


def by_solve_and_logdet(theta):
    return prior(theta) - 0.5 * Y @ torch.linalg.solve(kernel(theta), Y) - 0.5 * torch.logdet(kernel(theta))


def by_inverse_and_slogdet(theta):
    found = torch.linalg.slogdet(kernel(theta)).logabsdet
    return prior(theta) - 0.5 * Y @ torch.linalg.inv(kernel(theta)) @ Y - 0.5 * found


def rows_that_change_places(theta):
    """Pivots away from the diagonal, from both sides, and a determinant below zero."""
    turned = kernel(theta).flip(0) + 0.3 * torch.outer(Y, X)
    sides = torch.linalg.solve(turned, torch.stack([Y, X], 1)), torch.linalg.solve(turned, Y[None], left=False)
    return prior(theta) - 0.01 * sum(side.square().sum() for side in sides) - torch.linalg.slogdet(turned).logabsdet


def by_covariance(theta):
    return prior(theta) + MultivariateNormal(torch.zeros(N, dtype=Y.dtype), covariance_matrix=kernel(theta)).log_prob(Y)


def by_precision(theta):
    return prior(theta) + MultivariateNormal(0.1 * Y, precision_matrix=kernel(theta)).log_prob(Y)


def by_scale_tril(theta):
    root = torch.diag_embed(theta[:2].exp()) + torch.tril(theta[2].expand(2, 2), -1)
    return prior(theta) + MultivariateNormal(theta[:2], scale_tril=root).log_prob(Y.reshape(-1, 2)).sum()


def batches(theta):
    """Three matrices at once, and one matrix for three right-hand sides."""
    many = torch.stack([kernel(theta)[:4, :4] + k * EYE[:4, :4] for k in range(3)])
    root = torch.linalg.cholesky(many)
    white = torch.linalg.solve_triangular(root, Y.view(3, 4, 1), upper=False)
    other = torch.linalg.solve_triangular(root[0], Y.view(3, 4, 1), upper=False)
    total = white.square().sum() + other.square().sum() + torch.linalg.solve(many, Y.view(3, 4, 1)).sum()
    return prior(theta) - 0.5 * total - torch.logdet(many).sum() - root.diagonal(dim1=-2, dim2=-1).log().sum()


def one_row(theta):
    single = theta.square().sum().reshape(1, 1) + 1.0
    return prior(theta) - torch.linalg.cholesky(single).sum() - torch.linalg.solve(single, theta[:1]).sum()


def correlations(theta):
    corner = torch.tanh(theta[0])
    root = torch.stack(
        [torch.stack([torch.ones_like(corner), 0 * corner]), torch.stack([corner, (1 - corner**2) ** 0.5])]
    )
    return prior(theta) + LKJCholesky(2, 2.0).log_prob(root)


DENSITIES = [
    by_triangle, by_upper_triangle_from_the_right, by_cholesky_solve, by_cholesky_inverse, by_solve_and_logdet,
    by_inverse_and_slogdet, rows_that_change_places, by_covariance, by_precision, by_scale_tril, batches, one_row,
    correlations,
]  # fmt: skip


@pytest.mark.parametrize("density", DENSITIES, ids=lambda f: f.__name__)
def test_values_and_slopes_are_those_of_pytorch(density):
    starts = torch.zeros(1, 3, dtype=torch.float64)
    native = NativeDensity.of(density, starts)
    places = 0.5 * torch.randn(20, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    energy, slope = torch.empty(20, dtype=torch.float64), torch.empty_like(places)
    native.energies(places, slope, energy)
    for k, place in enumerate(places):
        leaf = place.clone().requires_grad_()
        value = density(leaf)
        (wanted,) = torch.autograd.grad(value, leaf)
        assert float(energy[k]) == pytest.approx(-float(value.detach()), rel=1e-10, abs=1e-10)
        assert torch.allclose(slope[k], -wanted, rtol=1e-10, atol=1e-10 * (1 + float(wanted.abs().max())))


def test_numbers_of_one_precision_are_worked_on_in_two():
    def density(theta):
        root = torch.linalg.cholesky(kernel(theta.tanh().double()).float() + torch.eye(N))
        white = torch.linalg.solve_triangular(root, Y.float()[:, None], upper=False)
        return prior(theta) - 0.5 * white.square().sum() - root.diagonal().log().sum()

    native = NativeDensity.of(density, torch.zeros(1, 3))
    theta, energy = torch.full((1, 3), 0.1), torch.empty(1, dtype=torch.float64)
    native.energies(theta, torch.empty_like(theta), energy)
    assert float(energy) == pytest.approx(-float(density(theta[0])), rel=1e-5)


@pytest.mark.parametrize(
    "density",
    [
        lambda t: prior(t) + 0.0 * torch.linalg.cholesky(EYE * (1 + t[0])).sum(),
        lambda t: prior(t) + 0.0 * torch.linalg.inv(EYE * torch.relu(1 + t[0])).sum(),
        lambda t: prior(t) + 0.0 * MultivariateNormal(Y, covariance_matrix=EYE * (1 + t[0])).log_prob(Y),
    ],
)
def test_a_matrix_without_a_factor_is_an_impossible_place(density):
    native = NativeDensity.of(density, torch.zeros(1, 3, dtype=torch.float64))
    theta = torch.tensor([[0.5, 0.0, 0.0], [-1.5, 0.0, 0.0]], dtype=torch.float64)
    energy, slope = torch.empty(2, dtype=torch.float64), torch.full_like(theta, torch.nan)
    native.energies(theta, slope, energy)
    assert float(energy[0]) == pytest.approx(0.125)
    assert float(energy[1]) == torch.inf
    native.potentials(theta, energy)
    assert float(energy[1]) == torch.inf


def test_a_factor_that_is_asked_for_without_a_check_is_no_number():
    """``cholesky_ex`` raises nothing; what it leaves behind must not pass for a density."""

    def density(theta):
        found = torch.linalg.cholesky_ex(EYE * (1 + theta[0]))
        return prior(theta) + torch.where(found.info == 0, 0.0 * found.L.sum(), -torch.inf)

    native = NativeDensity.of(density, torch.zeros(1, 3, dtype=torch.float64))
    theta, energy = torch.tensor([[-1.5, 0.0, 0.0]], dtype=torch.float64), torch.empty(1, dtype=torch.float64)
    native.potentials(theta, energy)
    assert float(energy) == torch.inf


@pytest.mark.filterwarnings("ignore:.*diverged")
def test_draws_with_matrices_that_fail_are_those_of_pytorch():
    def density(theta):
        root = torch.linalg.cholesky(torch.eye(2, dtype=theta.dtype) * (1 + theta[0]))
        return prior(theta) - root.diagonal().log().sum()

    options = {"draws": 40, "chains": 2, "warmup": 0, "progress": False}
    start, method = torch.full((2,), 0.5, dtype=torch.float64), tp.HMC(step_size=0.6, length=4)
    plain = pytest.warns(tp.errors.TemperanceWarning, match="raised at")
    with plain:
        wanted = tp.sample(density, start, method, compile=False, **options)
    found = tp.sample(density, start, method, compile=True, **options)
    assert torch.allclose(found.theta, wanted.theta)
    assert found.divergences == wanted.divergences > 0
