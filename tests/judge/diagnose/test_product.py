from __future__ import annotations

import itertools
import time
from fractions import Fraction

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, NetworkError
from temperance.judge import diagnose
from temperance.judge.diagnose import local_product, local_products, matrix_normal_as_product, product_matrix
from temperance.testing import assert_moments

A = ([["1", "-0.5"], ["0.3", "2"]], [["0.1", "0.2"], ["0.3", "0.4"]])
B = ([["0.7", "0.2"], ["-1.1", "0.4"]], [["0.5", "0.1"], ["0.2", "0.3"]])
C = ([["0.5", "1.5"], ["-0.8", "0.6"]], [["0.25", "0.15"], ["0.35", "0.05"]])

TWO = (
    [1.25, 0, -1.99, 0.86],
    [[0.931, -0.074, -0.05, 0], [-0.074, 0.281, 0, -0.27], [-0.05, 0, 1.706, -0.134], [0, -0.27, -0.134, 1.435]],
)
THREE = (
    [0.625, 1.875, -1.683, -2.469],
    [
        [1.193515, 0.62997, -0.914175, 0.0921],
        [0.62997, 2.450785, 0.0921, -0.603825],
        [-0.914175, 0.0921, 3.629735, 0.7113],
        [0.0921, -0.603825, 0.7113, 5.072545],
    ],
)


def numbers(factors):
    means = [[[float(v) for v in row] for row in mean] for mean, _ in factors]
    variances = [[[float(v) for v in row] for row in variance] for _, variance in factors]
    return means, variances


def by_paths(factors):
    """Mean and covariance as sums over pairs of paths through the factors, in rational numbers: E[w w'] is mean² plus
    the variance where a pair uses one entry twice, and the product of the means elsewhere."""
    exact = [[[[Fraction(v) for v in row] for row in part] for part in factor] for factor in factors]
    rows, columns = len(exact[0][0]), len(exact[-1][0][0])
    inner = [range(len(mean)) for mean, _ in exact[1:]]
    entries = list(itertools.product(range(rows), range(columns)))

    def steps(a, path, b):
        return list(itertools.pairwise((a, *path, b)))

    def expected(a, b, c=None, d=None):
        total = Fraction(0)
        for first in itertools.product(*inner):
            for second in itertools.product(*inner) if c is not None else [None]:
                value = Fraction(1)
                for k, (i, j) in enumerate(steps(a, first, b)):
                    mean, variance = exact[k]
                    value *= mean[i][j]
                    if second is not None:
                        p, q = steps(c, second, d)[k]
                        value = (
                            value * mean[p][q]
                            if (p, q) != (i, j)
                            else value / mean[i][j] * (mean[i][j] ** 2 + variance[i][j])
                        )
                total += value
        return total

    mean = [expected(*entry) for entry in entries]
    covariance = [
        [expected(*one, *two) - mean[i] * mean[j] for j, two in enumerate(entries)] for i, one in enumerate(entries)
    ]
    return torch.tensor([float(v) for v in mean], dtype=torch.float64), torch.tensor(
        [[float(v) for v in row] for row in covariance], dtype=torch.float64
    )


@pytest.mark.parametrize(("factors", "golden"), [((A, B), TWO), ((A, B, C), THREE)])
def test_golden_products(factors, golden):
    moments = product_matrix(*numbers(factors))
    for found, known in ((moments.mean.flatten(), golden[0]), (moments.covariance, golden[1])):
        assert found.dtype == torch.float64
        assert torch.allclose(found, torch.tensor(known, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("factors", [(A,), (A, B), (A, B, C), (B, C, A, B)])
def test_products_agree_with_a_sum_over_paths_in_rational_numbers(factors):
    moments = product_matrix(*numbers(factors))
    mean, covariance = by_paths(factors)
    assert torch.allclose(moments.mean.flatten(), mean, rtol=1e-13, atol=1e-13)
    assert torch.allclose(moments.covariance, covariance, rtol=1e-13, atol=1e-13)


def test_entries_that_share_neither_row_nor_column_correlate_from_three_factors_on():
    two = product_matrix(*numbers((A, B)))
    three = product_matrix(*numbers((A, B, C)))
    assert two.covariance_of((0, 0), (1, 1)) == 0.0
    assert two.covariance_of((0, 1), (1, 0)) == 0.0
    (a, c, b), v = (
        (torch.tensor(m, dtype=torch.float64) for m in numbers((A, C, B))[0]),
        torch.tensor(numbers((B,))[1][0], dtype=torch.float64),
    )
    assert b.shape == v.shape
    proposition = torch.einsum("ki,k,k,i,i->", v, a[0], a[1], c[:, 0], c[:, 1])
    assert three.covariance_of((0, 0), (1, 1)) == pytest.approx(float(proposition), abs=1e-12)
    assert abs(float(proposition)) > 0.05


def rectangular(shapes, seed=0):
    rng = torch.Generator().manual_seed(seed)
    means = [torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in shapes]
    return means, [torch.rand(*shape, generator=rng, dtype=torch.float64) * 0.02 for shape in shapes]


def test_depth_four_by_monte_carlo():
    means, variances = rectangular([(3, 4), (4, 2), (2, 5), (5, 2)])
    moments = product_matrix(means, variances)
    rng = torch.Generator().manual_seed(1)
    draws = torch.eye(3, dtype=torch.float64)
    for mean, variance in zip(means, variances, strict=True):
        noise = torch.randn(40_000, *mean.shape, generator=rng, dtype=torch.float64)
        draws = draws @ (mean + variance.sqrt() * noise)
    # products are a little heavier in the tails than the Gaussian of assert_moments: fewer draws are claimed
    assert_moments(draws.flatten(1), moments.mean.flatten(), moments.covariance, ess=20_000)
    broken = moments.covariance - 0.1 * moments.covariance.diagonal().diag()
    with pytest.raises(AssertionError, match="covariance"):
        assert_moments(draws.flatten(1), moments.mean.flatten(), broken, ess=20_000)


def test_any_distribution_with_these_second_moments_gives_the_same():
    means, variances = rectangular([(2, 3), (3, 2), (2, 2)], seed=3)
    signs = torch.Generator().manual_seed(0)
    draws = torch.eye(2, dtype=torch.float64)
    for mean, variance in zip(means, variances, strict=True):
        coin = torch.randint(0, 2, (40_000, *mean.shape), generator=signs).double() * 2 - 1
        draws = draws @ (mean + variance.sqrt() * coin)
    moments = product_matrix(means, variances)
    assert_moments(draws.flatten(1), moments.mean.flatten(), moments.covariance, ess=20_000)


def test_associativity_and_known_factors():
    means, variances = rectangular([(3, 2), (2, 4), (4, 3)])
    known = [torch.zeros_like(v) if k != 1 else v for k, v in enumerate(variances)]
    moments = product_matrix(means, known)  # A B C with A and C known: a linear map of B
    linear = torch.kron(means[0], means[2].T.contiguous())
    assert torch.allclose(moments.covariance, linear @ torch.diag(variances[1].flatten()) @ linear.T, atol=1e-12)
    transposed = product_matrix([m.T for m in reversed(means)], [v.T for v in reversed(variances)])
    forwards = product_matrix(means, variances)
    order = torch.arange(9).view(3, 3).T.flatten()
    assert torch.allclose(forwards.covariance, transposed.covariance[order][:, order], atol=1e-12)
    assert torch.linalg.eigvalsh(forwards.covariance).min() > -1e-12


def test_correlation():
    means, variances = rectangular([(2, 2), (2, 2), (2, 2)])
    moments = product_matrix(means, variances)
    assert torch.allclose(moments.correlation().diagonal(), torch.ones(4, dtype=torch.float64))
    assert moments.off_diagonal() > 0.05
    single = product_matrix(means[:1], [torch.tensor([[1.0, 0.0], [2.0, 3.0]])])
    assert single.off_diagonal() == 0.0
    assert single.correlation().diagonal().tolist() == [1.0, 0.0, 1.0, 1.0]


def test_a_matrix_normal_is_a_product_of_three():
    rng = torch.Generator().manual_seed(0)
    mean = torch.randn(3, 4, generator=rng, dtype=torch.float64)
    root_u, root_v = (torch.randn(n, n, generator=rng, dtype=torch.float64) for n in (3, 4))
    u, v = root_u @ root_u.T, root_v @ root_v.T
    moments = product_matrix(*matrix_normal_as_product(mean, u, v))
    assert torch.allclose(moments.mean, mean, atol=1e-10)
    assert torch.allclose(moments.covariance, torch.kron(u, v), atol=1e-10)


# ---------------------------------------------------------------------- local products

NETWORKS = {
    "relu": lambda: tp.nn.MLP(6, [7, 5, 4], 3),
    "leaky": lambda: tp.nn.MLP(6, [7, 5, 4], 3, lambda: nn.LeakyReLU(0.1)),
    "linear": lambda: tp.nn.MLP(6, [5] * 9, 2, nn.Identity),
    "no biases": lambda: tp.nn.MLP(6, [5, 5], 2, bias=False),
    "prelu": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(6, 4), nn.PReLU(4), nn.Dropout(), nn.Linear(4, 4), nn.PReLU()
    ),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), nn.Identity(), nn.Linear(4, 2)),
    "one layer": lambda: nn.Linear(6, 2),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_local_product_is_the_jacobian(name):
    torch.manual_seed(0)
    network = NETWORKS[name]().double().eval()
    x = torch.randn(6, dtype=torch.float64)
    product = local_product(network, x)
    jacobian = torch.func.jacrev(lambda v: network(v.unsqueeze(0)).squeeze(0))(x)
    assert torch.allclose(product[:, :-1], jacobian, rtol=1e-13, atol=1e-14)
    output = network(x.unsqueeze(0)).squeeze(0)
    assert torch.allclose(product @ torch.cat([x, torch.ones(1).double()]), output, rtol=1e-13, atol=1e-14)
    assert not product.requires_grad


@pytest.mark.parametrize("name", ["leaky", "prelu", "no biases"])
def test_local_products_are_those_of_each_draw(name, monkeypatch):
    monkeypatch.setattr("temperance.judge.diagnose.product._BLOCK_BYTES", 5000)  # several blocks
    network = NETWORKS[name]().double().eval()
    target = tp.Target(network, tp.Normal(), tp.GaussianPrior(1.0))  # the noise scale is a part of θ too
    target.network.eval()
    theta = target.sample_prior(23, torch.Generator().manual_seed(0))
    x = torch.randn(1, 2, 3).double()
    products = local_products(target, theta, x)
    assert len(products) == 23
    for row, product in zip(theta, products, strict=True):
        values = target.layout.unflatten(row, "network")
        same = NETWORKS[name]().double().eval()
        same.load_state_dict(values)
        assert torch.allclose(local_product(same, x), product, rtol=1e-12, atol=1e-13)


def test_local_products_of_a_subset_keep_the_rest():
    network = tp.nn.MLP(4, [5, 5], 2).double()
    target = tp.Target(network, tp.Normal(scale=1.0), tp.GaussianPrior(1.0), subset=tp.last_layer)
    x = torch.randn(4, dtype=torch.float64)
    products = local_products(target, target.layout.flatten(network).expand(3, -1), x)
    assert torch.allclose(products, local_product(network, x).expand(3, -1, -1))


def test_a_linear_mean_field_network_has_the_covariance_of_its_product():
    """Weights of three layers without biases: what draws show is what the recursion says."""
    target = tp.Target(
        tp.nn.MLP(3, [4, 4], 2, nn.Identity, bias=False).double(), tp.Normal(scale=1.0), tp.GaussianPrior(1)
    )
    rng = torch.Generator().manual_seed(0)
    mean = torch.randn(target.layout.size, generator=rng, dtype=torch.float64)
    theta = mean + 0.15 * torch.randn(40_000, len(mean), generator=rng, dtype=torch.float64)
    products = local_products(target, theta, [1.0, 2.0, 3.0])[..., :-1]
    factors = list(reversed(target.layout.unflatten(mean).values()))
    moments = product_matrix(factors, [torch.full_like(f, 0.15**2) for f in factors])
    assert_moments(products.flatten(1), moments.mean.flatten(), moments.covariance, ess=20_000)


@pytest.mark.slow
def test_ten_thousand_draws_of_the_papers_network():
    target = tp.Target(tp.nn.MLP(784, [16] * 9, 10), tp.Categorical(), tp.GaussianPrior(0.3))
    theta = target.sample_prior(1, torch.Generator().manual_seed(0)).expand(10_000, -1)
    began = time.perf_counter()
    assert local_products(target, theta, torch.rand(1, 28, 28)).shape == (10_000, 10, 785)
    assert time.perf_counter() - began < 60


# ---------------------------------------------------------------------- bad input


def test_what_is_not_piecewise_linear_is_refused():
    class Twice(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * 2

    with pytest.raises(NetworkError, match="got Tanh at '1'"):
        local_product(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), torch.zeros(2))
    with pytest.raises(NetworkError, match="got Twice"):
        local_product(Twice(nn.Linear(2, 2)), torch.zeros(2))
    with pytest.raises(NetworkError, match="got Dropout"):
        local_product(nn.Sequential(nn.Linear(2, 2), nn.Dropout()), torch.zeros(2))
    with pytest.raises(NetworkError, match="at least one linear layer"):
        local_product(nn.Sequential(nn.ReLU()), torch.zeros(2))
    target = tp.Target(tp.nn.MLP(2, [3], 1, nn.Tanh), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    with pytest.raises(NetworkError, match="Tanh"):
        local_products(target, target.sample_prior(2, torch.Generator()), torch.zeros(2))


def test_bad_arguments():
    eye = torch.eye(2)
    cases = [
        (lambda: product_matrix([], []), "`means` must hold at least one"),
        (lambda: product_matrix([eye], []), "`variances` must hold a matrix for each of the 1 means; got 0"),
        (lambda: product_matrix([eye, torch.ones(3, 2)], [eye, torch.ones(3, 2)]), r"`means\[1\]` must have 2 rows"),
        (lambda: product_matrix([eye], [torch.ones(2, 3)]), r"`variances\[0\]` must have the shape"),
        (lambda: product_matrix([eye], [-eye]), r"`variances\[0\]` must not be negative; got -1"),
        (lambda: product_matrix([eye / 0], [eye]), r"`means\[0\]` must be finite"),
        (lambda: product_matrix([torch.ones(3)], [torch.ones(3)]), r"`means\[0\]` must be a matrix"),
        (lambda: product_matrix([torch.ones(200, 60)] * 1, [torch.ones(200, 60)]), "would need 144,000,000"),
        (lambda: matrix_normal_as_product(eye, -eye, eye), "`row_covariance` must be positive definite"),
        (lambda: matrix_normal_as_product(eye, eye, torch.eye(3)), "`column_covariance` must be 2 × 2"),
        (lambda: matrix_normal_as_product(eye, [[1.0, 0.5], [0.2, 1.0]], eye), "`row_covariance` must be symmetric"),
        (lambda: local_product(nn.Linear(2, 2), torch.zeros(3)), "`x` must be one input of 2 numbers"),
        (lambda: local_product(nn.Linear(2, 2), [0.0, float("nan")]), "`x` must be finite"),
        (lambda: local_product("net", torch.zeros(3)), "`network` must be a torch module; got str"),
        (lambda: product_matrix([eye], [eye]).covariance_of((0, 2), (0, 0)), "`first` must be a place in a 2 × 2"),
    ]
    for call, message in cases:
        with pytest.raises(ArgumentError, match=message):
            call()
    target = tp.Target(nn.Linear(2, 1), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    for draws in (torch.zeros(3), torch.zeros(2, 4), torch.zeros(0, 3), "draws"):
        with pytest.raises(ArgumentError, match="`draws` must be a tensor of draws × 3 numbers"):
            local_products(target, draws, torch.zeros(2))


def test_exported():
    assert diagnose.ProductMoments is type(product_matrix([[[1.0]]], [[[1.0]]]))
