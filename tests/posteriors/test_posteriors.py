from __future__ import annotations

import pytest
import torch

from temperance.core.errors import ArgumentError, NumericalError
from temperance.linalg import DenseCovariance, DiagonalCovariance, LowRankCovariance
from temperance.posteriors import Draws, Gaussian, Mixture, Point
from temperance.testing import assert_moments


def covariances() -> dict[str, object]:
    rng = torch.Generator().manual_seed(0)
    factor = torch.randn(5, 2, generator=rng, dtype=torch.float64)
    variance = torch.rand(5, generator=rng, dtype=torch.float64) + 0.2
    root = torch.randn(5, 5, generator=rng, dtype=torch.float64)
    return {
        "diagonal": DiagonalCovariance(variance),
        "low rank": LowRankCovariance(variance, factor),
        "dense": DenseCovariance(root @ root.T + 0.1 * torch.eye(5, dtype=torch.float64)),
    }


@pytest.mark.parametrize("name", list(covariances()))
def test_covariance_operators_against_dense_algebra(name):
    operator = covariances()[name]
    dense = operator.dense()
    delta = torch.randn(3, 5, dtype=torch.float64)
    assert torch.allclose(operator.diagonal(), dense.diagonal())
    assert torch.allclose(operator.log_det(), torch.logdet(dense))
    expected = torch.einsum("ni,ij,nj->n", delta, torch.linalg.inv(dense), delta)
    assert torch.allclose(operator.inverse_quadratic(delta), expected)


@pytest.mark.parametrize("name", list(covariances()))
def test_gaussian_draws_have_its_mean_and_covariance(name):
    mean = torch.arange(5.0, dtype=torch.float64)
    posterior = Gaussian(mean, covariances()[name])
    draws = posterior.sample(20_000, seed=1)
    assert_moments(draws, mean, posterior.covariance())
    with pytest.raises(AssertionError, match="covariance"):
        assert_moments(draws, mean, 1.1 * posterior.covariance())
    reference = torch.distributions.MultivariateNormal(mean, posterior.covariance())
    assert torch.allclose(posterior.log_prob(draws[:7]), reference.log_prob(draws[:7]))


def test_seeds():
    posterior = Gaussian(torch.zeros(5, dtype=torch.float64), covariances()["dense"])
    assert torch.equal(posterior.sample(3, seed=1), posterior.sample(3, seed=1))
    assert not torch.equal(posterior.sample(3, seed=1), posterior.sample(3, seed=2))
    assert not torch.equal(posterior.sample(3), posterior.sample(3))


def test_nodes_do_not_depend_on_the_range_in_which_they_are_fetched():
    gaussian = Gaussian(torch.zeros(5, dtype=torch.float64), covariances()["dense"])
    mixture = Mixture((gaussian, Draws(torch.randn(7, 5, dtype=torch.float64)), Point(torch.ones(5).double())))
    for posterior, count in ((gaussian, 30), (mixture, 10 + 7 + 1)):
        nodes = posterior.nodes()
        assert len(nodes) == count
        assert float(nodes.weights.sum()) == pytest.approx(1.0)
        whole = nodes.fetch(0, count)[0]
        pieces = torch.cat([nodes.fetch(k, min(k + 4, count))[0] for k in range(0, count, 4)])
        assert torch.equal(whole, pieces)
    assert float(mixture.nodes().weights[-1]) == pytest.approx(1 / 3)


def test_draws_thin_evenly():
    draws = Draws(torch.arange(10.0).unsqueeze(1))
    nodes = draws.nodes(4)
    assert nodes.fetch(0, 4)[0].flatten().tolist() == [0, 3, 6, 9]
    assert len(draws.nodes(50)) == 10


def test_a_mixture_samples_its_components_by_weight():
    mixture = Mixture((Point(torch.zeros(1)), Point(torch.ones(1))), weights=(0.2, 0.8))
    share = float(mixture.sample(20_000, seed=0).mean())
    assert abs(share - 0.8) < 5 * (0.16 / 20_000) ** 0.5
    assert mixture.nodes().weights.tolist() == pytest.approx([0.2, 0.8])
    spread = Mixture((Gaussian(torch.zeros(1), DiagonalCovariance(torch.ones(1))), Point(torch.full((1,), 5.0))))
    draws = spread.sample(20_000, seed=1)
    assert abs(float(draws.mean()) - 2.5) < 5 * (6.75 / 20_000) ** 0.5


def test_a_nan_never_becomes_a_posterior():
    bad = torch.tensor([0.0, float("nan")])
    for make in (
        lambda: Point(bad),
        lambda: Draws(bad.unsqueeze(0)),
        lambda: Gaussian(bad, DiagonalCovariance(torch.ones(2))),
        lambda: DiagonalCovariance(torch.tensor([1.0, 0.0])),
        lambda: DiagonalCovariance(bad + 1),
        lambda: DenseCovariance(torch.tensor([[1.0, 2.0], [2.0, 1.0]])).cholesky,
    ):
        with pytest.raises(NumericalError):
            make()


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="`n` must be a positive integer"):
        Point(torch.zeros(2)).sample(0)
    with pytest.raises(ArgumentError, match="`seed`"):
        Point(torch.zeros(2)).sample(1, seed=1.5)
    with pytest.raises(ArgumentError, match="share one size"):
        Mixture((Point(torch.zeros(2)), Point(torch.zeros(3))))
    with pytest.raises(ArgumentError, match="`weights`"):
        Mixture((Point(torch.zeros(2)), Point(torch.zeros(2))), weights=(0.5, 0.4))
    with pytest.raises(ArgumentError, match="`operator`"):
        Gaussian(torch.zeros(2), DiagonalCovariance(torch.ones(3)))
    with pytest.raises(ArgumentError, match="draws × P"):
        Draws(torch.zeros(3))
