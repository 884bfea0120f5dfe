from __future__ import annotations

import pytest
import torch

from temperance.linalg import DenseCovariance
from temperance.posteriors import (
    Affine,
    CurvePosterior,
    Draws,
    Gaussian,
    Mixture,
    Point,
    Pushforward,
    RadialPosterior,
    Stratum,
    WithStatistics,
)
from temperance.testing import assert_moments

ROOT = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MEAN = torch.arange(4.0, dtype=torch.float64)
GAUSSIAN = Gaussian(MEAN, DenseCovariance(ROOT @ ROOT.T + 0.1 * torch.eye(4, dtype=torch.float64)))
RADIAL = RadialPosterior(MEAN, torch.full((4,), 0.5, dtype=torch.float64), (3, 1))
CURVE = CurvePosterior(torch.stack([MEAN, MEAN + 1]))
MIXTURE = Mixture((GAUSSIAN, Point(MEAN), Draws(torch.randn(40, 4, dtype=torch.float64)), RADIAL), (0.4, 0.1, 0.2, 0.3))


@pytest.mark.parametrize("posterior", [GAUSSIAN, RADIAL], ids=["gaussian", "radial"])
def test_pairs_lie_opposite_one_another_about_the_mean(posterior):
    theta, _ = posterior.nodes(8, seed=3).fetch(0, 8)
    assert torch.allclose(theta[0::2] + theta[1::2], 2 * MEAN.expand(4, -1))
    assert not torch.allclose(theta[0], theta[2])
    assert torch.equal(theta, posterior.nodes(8, seed=3).fetch(0, 8)[0])
    assert not torch.equal(theta, posterior.nodes(8, seed=4).fetch(0, 8)[0])


def test_one_of_each_pair_has_the_posterior_s_mean_and_covariance():
    """Both signs, so that neither half is shifted."""
    theta, _ = GAUSSIAN.nodes(20_000).fetch(0, 20_000)
    for side in (0, 1):
        assert_moments(theta[side::2], MEAN, GAUSSIAN.covariance())


@pytest.mark.parametrize("posterior", [GAUSSIAN, RADIAL, MIXTURE], ids=["gaussian", "radial", "mixture"])
def test_a_node_depends_neither_on_the_range_nor_on_how_many_there_are(posterior):
    nodes = posterior.growing(31, seed=1)
    whole = nodes.fetch(0, len(nodes))[0]
    for step in (1, 3, 4):
        ends = [(k, min(k + step, len(nodes))) for k in range(0, len(nodes), step)]
        assert torch.equal(whole, torch.cat([nodes.fetch(*end)[0] for end in ends]))
    more = posterior.growing(64, seed=1)
    wide, old, new = more.fetch(0, len(more))[0], 0, 0
    for few, many in zip(nodes.strata, more.strata, strict=True):
        assert torch.equal(whole[old : old + few.count], wide[new : new + few.count])
        old, new = old + few.count, new + many.count


def test_strata_say_how_nodes_were_drawn():
    assert GAUSSIAN.nodes(7).strata == (Stratum(7, block=2),)
    assert Point(MEAN).nodes().strata == (Stratum(1, drawn=False),)
    assert CURVE.nodes(5).strata == (Stratum(5, drawn=False),)
    assert len(CURVE.growing(64)) == 30
    draws = Draws(torch.randn(9, 4, dtype=torch.float64))
    assert draws.nodes().strata == (Stratum(9, chain=True),)
    assert draws.nodes(1).strata == (Stratum(1, chain=True),)  # of nine: what the others say is not known
    assert Draws(MEAN.unsqueeze(0)).nodes().strata == (Stratum(1, chain=True, drawn=False),)
    assert len(draws.growing(3)) == 9
    counts = [stratum.count for stratum in MIXTURE.growing(64).strata]
    assert counts == [22, 1, 40, 22]
    assert len(MIXTURE.growing(64)) == 85
    assert float(MIXTURE.growing(64).weights[:22].sum()) == pytest.approx(0.4)


def test_wrapped_posteriors_keep_the_strata_of_what_they_wrap():
    basis = torch.eye(6, 4, dtype=torch.float64)
    affine = Affine(GAUSSIAN, torch.zeros(6, dtype=torch.float64), basis)
    part = Pushforward(MIXTURE, torch.arange(4), torch.zeros(6, dtype=torch.float64))
    assert affine.nodes(6).strata == GAUSSIAN.nodes(6).strata
    assert part.growing(32).strata == MIXTURE.growing(32).strata
    assert torch.equal(part.growing(32).fetch(3, 5)[0][:, :4], MIXTURE.growing(32).fetch(3, 5)[0])
    kept = WithStatistics(GAUSSIAN, {"running_mean": torch.zeros(6, 2)})
    assert kept.nodes(3).strata == (Stratum(3, block=2),)
    assert len(kept.growing(64)) == 6
