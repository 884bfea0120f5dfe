from __future__ import annotations

import pytest
import torch

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
    for posterior, count in ((gaussian, 30), (mixture, 15 + 7 + 1)):
        nodes = posterior.nodes()
        assert len(nodes) == count
        assert float(nodes.weights.sum()) == pytest.approx(1.0)
        whole = nodes.fetch(0, count)[0]
        pieces = torch.cat([nodes.fetch(k, min(k + 4, count))[0] for k in range(0, count, 4)])
        assert torch.equal(whole, pieces)
    assert float(mixture.nodes().weights[-1]) == pytest.approx(1 / 3)
