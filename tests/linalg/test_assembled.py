"""Covariances of pieces: in their places, at a temperature, with coordinates that are known."""

import math

import pytest
import torch

from temperance.core.errors import ArgumentError
from temperance.linalg import BlockCovariance, DiagonalBlock, DiagonalCovariance, LowRankBlock, PosteriorCovariance

from .zoo import F64, block_covariance, gram, low_rank_covariance, positive, posterior_covariance, random, spans


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("temperature", [1.0, 0.3, 4.0])
def test_temperature_scales_the_covariance(temperature):
    operator, matrix = posterior_covariance(temperature=temperature)
    cold, cold_matrix = posterior_covariance(temperature=1.0)
    same(matrix, temperature * cold_matrix)
    same(operator.dense(), matrix)
    same(operator.log_det(), cold.log_det() + operator.size * math.log(temperature))
    for part, other in zip(operator.parts, cold.parts, strict=True):
        assert torch.equal(part.dense(), other.dense())  # the pieces are those of temperature 1


def test_known_coordinates():
    """They have no variance, no draw moves them, and to move them has no density."""
    operator, matrix = posterior_covariance(known=True)
    assert operator.rank == operator.size - 2
    random_ones = torch.arange(2, operator.size)
    inner = matrix[2:, 2:]
    v = random(3, operator.size)
    solved = operator.solve(v)
    assert not bool(solved[:, :2].any())
    same(solved[:, 2:], v[:, random_ones] @ torch.linalg.inv(inner))
    same(operator.log_det(), torch.logdet(inner))
    assert operator.inverse_quadratic(v).tolist() == [math.inf] * 3
    v[1, :2] = 0.0
    found = operator.inverse_quadratic(v)
    assert found.isfinite().tolist() == [False, True, False]
    same(found[1], v[1, 2:] @ torch.linalg.inv(inner) @ v[1, 2:])


def test_precision_is_applied_without_factorising():
    """A score needs Σ⁻¹ v at each step; the matrix need not even be definite for it."""
    tau = torch.tensor([1.0, 1.0], dtype=F64)
    operator = PosteriorCovariance((DiagonalBlock(spans((0, 2)), torch.tensor([1.0, -5.0], dtype=F64)),), tau, 0.5)
    same(operator.solve(torch.ones(2, dtype=F64)), torch.tensor([4.0, -8.0], dtype=F64))
    assert "parts" not in vars(operator)


def test_blocks_are_factorised_once():
    operator, _ = posterior_covariance()
    assert operator.parts is operator.parts


def test_merged_adds_block_by_block():
    operator, _ = posterior_covariance()
    merged = operator.merged(tuple(block.times(2.0) for block in operator.blocks[:2]) + operator.blocks[2:])
    same(merged[0].dense(), 3 * gram(4, 2))
    same(merged[1].dense(), 4.5 * random(3, 1) @ random(3, 1).mT)
    with pytest.raises(ArgumentError, match="has 1 curvature blocks, this one 3"):
        operator.merged(operator.blocks[:1])


def test_pieces_one_after_the_other():
    operator, _ = block_covariance()
    assert [places for places, _ in operator.pieces()] == [((0, 12),), ((12, 18),), ((18, 24),)]
    assert operator.noise_sizes == (12, 6, 3, 6)


def test_noise_goes_to_its_own_piece():
    low, _ = low_rank_covariance()
    operator = BlockCovariance((DiagonalCovariance(positive(2)), low))
    z = random(2 + 6 + 3)
    same(operator.root(z), torch.cat([positive(2).sqrt() * z[:2], low.root(z[2:])]))


def test_gradients_in_the_prior():
    tau = positive(5, 2).requires_grad_()
    block = LowRankBlock(spans((0, 5)), random(5, 2), torch.ones(2, dtype=F64))
    operator = PosteriorCovariance((block,), tau, 0.5)
    (slope,) = torch.autograd.grad(operator.log_det(), tau)
    same(slope, -operator.diagonal().detach() / 0.5)
