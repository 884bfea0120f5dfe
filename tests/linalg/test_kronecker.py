"""Kronecker blocks: the order of weight and bias, the prior's units, merging, predictions without Jacobians."""

from dataclasses import replace

import pytest
import torch

from temperance.core.errors import ArgumentError, NumericalError
from temperance.linalg.kronecker import kronecker_block, matrix_output_covariance

from .zoo import BLOCKS, F64, gram, kronecker_case, positive, prior_for, random, spans, vector_order

KRONECKER = [name for name in BLOCKS if name.startswith("Kronecker")]
UNCORRECTED = [name for name in KRONECKER if "corrected" not in name]


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bias", [False, True])
def test_weight_then_bias(bias):
    block, _ = kronecker_case(bias)
    rows, columns = block.shape
    assert (rows, columns) == (3, 4 + bias)
    matrix = random(2, rows, columns)
    vector = block.to_vector(matrix)
    assert torch.equal(vector, matrix.flatten(1)[:, vector_order(rows, columns, bias)])
    assert torch.equal(block.to_matrix(vector), matrix)


@pytest.mark.parametrize("name", KRONECKER)
def test_bases_are_undone(name):
    block, _ = BLOCKS[name]()
    matrix = random(2, *block.shape)
    same(block.out_of_basis(block.into_basis(matrix)), matrix)


@pytest.mark.parametrize("name", UNCORRECTED)
def test_factors_are_the_ones_given(name):
    block, _ = BLOCKS[name]()
    rank = 1 if "rank 1" in name else 9
    columns = block.shape[1]
    a, g = block.factors()
    same(a, positive(columns, 1) if "words" in name else gram(columns, min(rank, columns), 1))
    same(g, gram(3, min(rank, 3), 2))


@pytest.mark.parametrize("name", KRONECKER)
def test_one_strength_for_a_layer(name):
    block, _ = BLOCKS[name]()
    assert float(block.strength(prior_for(block, 2.5))) == pytest.approx(2.5)
    uneven = prior_for(block)
    uneven[0] *= 1.1
    with pytest.raises(ArgumentError, match="changes within it"):
        block.factorise(uneven)


@pytest.mark.parametrize("name", UNCORRECTED)
def test_merge_adds_gradients_and_averages_inputs(name):
    block, _ = BLOCKS[name]()
    columns = block.shape[1]
    a2, g2 = gram(columns, columns, 11), gram(3, 3, 12)
    other = kronecker_block(block.places, a2, g2, block.in_scale, block.out_scale, block.has_bias, 15.0)
    a1, g1 = block.factors()
    both = block.merge(other)
    assert both.rows == 20.0
    a, g = both.factors()
    a1 = torch.diag(a1) if a1.dim() == 1 else a1
    same(a, (5 * a1 + 15 * a2) / 20)
    same(g, g1 + g2)


def test_two_diagonal_factors_stay_diagonal():
    block, _ = BLOCKS["KroneckerBlock of words"]()
    both = block.merge(block)
    assert both.basis_in is None
    same(both.dense(), 2 * block.dense())


def test_corrected_ones_cannot_be_merged():
    block, _ = BLOCKS["KroneckerBlock corrected"]()
    with pytest.raises(ArgumentError, match="EKFAC"):
        block.merge(block)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", KRONECKER)
def test_output_covariance_without_a_jacobian(name, rows):
    block, _ = BLOCKS[name]()
    out, inputs = block.shape
    covariance = block.factorise(prior_for(block), 0.6)
    a, g = random(4, rows, inputs, seed=5), random(2, 4, rows, out, seed=6)
    jacobian = block.to_vector(torch.einsum("cbro,bri->bcoi", g, a))
    wanted = jacobian @ covariance.dense() @ jacobian.mT
    same(covariance.output_covariance(a, g), wanted)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", KRONECKER)
def test_output_covariances_of_several(name, rows):
    block, _ = BLOCKS[name]()
    prior = prior_for(block)
    out, inputs = block.shape
    a, g = random(4, rows, inputs, seed=5), random(2, 4, rows, out, seed=6)
    several = [block.factorise(c * prior, 0.6) for c in (1.0, 7.0, 0.1)]
    other = [*several, replace(several[1], block=replace(block, out_scale=2.0 * block.out_scale))]
    for group in (several, other):
        for one, found in zip(group, several[0].output_covariances(group, a, g), strict=True):
            same(found, one.output_covariance(a, g))


@pytest.mark.parametrize("rows", [1, 3])
def test_matrix_output_covariance(rows):
    a, g, variance = random(4, rows, 5), random(2, 4, rows, 3, seed=1), positive(15).view(3, 5)
    jacobian = torch.einsum("cbro,bri->bcoi", g, a)
    wanted = torch.einsum("bcoi,oi,bdoi->bcd", jacobian, variance, jacobian)
    same(matrix_output_covariance(a, g, variance), wanted)


def test_moments_that_cannot_be():
    ones = torch.ones(2, dtype=F64)
    bad = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=F64)
    good = torch.eye(2, dtype=F64)
    with pytest.raises(NumericalError, match="inputs must not be negative; its eigenvalues go from -1 to 3"):
        kronecker_block(spans((0, 4)), bad, good, ones, ones, False, 1.0)
    with pytest.raises(NumericalError, match="output gradients must not be negative"):
        kronecker_block(spans((0, 4)), good, bad, ones, ones, False, 1.0)


def test_rounding_below_zero_is_zero():
    ones = torch.ones(2, dtype=F64)
    nearly = torch.diag(torch.tensor([1.0, -1e-6], dtype=F64))
    block = kronecker_block(spans((0, 4)), nearly, torch.eye(2, dtype=F64), ones, ones, False, 1.0)
    assert float(block.values_in.min()) == 0.0


@pytest.mark.parametrize("rows", [1, 5])
def test_lookup_covariance_without_a_jacobian(rows):
    """Vectors of 4 words in 3 dimensions; some words come twice in an example."""
    block = kronecker_block(spans((0, 12)), gram(3, 3), positive(4), positive(3), positive(4, seed=1), False, 7.0)
    covariance = block.factorise(prior_for(block), 0.6)
    words, g = torch.arange(2 * rows).view(2, rows) % 4 % 3, random(2, 2, rows, 3, seed=6)
    picked = torch.nn.functional.one_hot(words, 4).to(F64)
    jacobian = torch.einsum("brw,cbrd->bcwd", picked, g).flatten(2)
    same(covariance.lookup_covariance(words, g), jacobian @ covariance.dense() @ jacobian.mT)
