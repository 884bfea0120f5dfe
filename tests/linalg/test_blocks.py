"""Curvature blocks: factorising, its slopes, adding, scaling, refusing."""

import pytest
import torch

from temperance.core.errors import ArgumentError, NumericalError
from temperance.linalg import DenseBlock, DiagonalBlock, KroneckerBlock, LowRankBlock

from .zoo import BLOCKS, F64, gram, positive, prior_for, random, spans

blocks = pytest.mark.parametrize("name", BLOCKS)


def same(found, wanted, tolerance=1e-9):
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@blocks
@pytest.mark.parametrize("rho", [1.0, 0.25, torch.tensor(3.0, dtype=F64)])
def test_factorise(name, rho):
    block, dense = BLOCKS[name]()
    tau = prior_for(block)
    same(block.factorise(tau, rho).dense(), torch.linalg.inv(rho * dense + torch.diag(tau)))
    if rho == 1.0:
        assert torch.equal(block.factorise(tau).dense(), block.factorise(tau, rho).dense())


@blocks
@pytest.mark.parametrize("question", ["log_det", "product", "diagonal"])
def test_slopes_in_the_prior_and_the_noise(name, question):
    """How hyperparameters are chosen: by a factor on τ, and by ρ."""
    block, dense = BLOCKS[name]()
    tau, v = prior_for(block), random(block.size, seed=4)
    slopes = []
    for brute in (False, True):
        factor = torch.tensor(1.3, dtype=F64, requires_grad=True)
        rho = torch.tensor(0.7, dtype=F64, requires_grad=True)
        if brute:
            covariance = torch.linalg.inv(rho * dense + torch.diag(factor * tau))
            answers = {"log_det": torch.logdet(covariance), "product": v @ covariance @ v}
            answers["diagonal"] = v @ covariance.diagonal()
        else:
            made = block.factorise(factor * tau, rho)
            answers = {"log_det": made.log_det(), "product": v @ made.product(v), "diagonal": v @ made.diagonal()}
        slopes.append(torch.stack(torch.autograd.grad(answers[question], [factor, rho])))
    assert float(slopes[1].abs().min()) > 1e-3  # there is something to be wrong about
    same(slopes[0], slopes[1])


@pytest.mark.parametrize("name", [n for n in BLOCKS if not n.startswith("Kronecker")])
def test_slopes_in_each_precision(name):
    block, dense = BLOCKS[name]()
    tau = prior_for(block).requires_grad_()
    (slope,) = torch.autograd.grad(block.factorise(tau).log_det(), tau)
    same(slope, -torch.linalg.inv(dense + torch.diag(tau.detach())).diagonal())  # ∂ log |Λ⁻¹| / ∂τ = −diag Λ⁻¹


@blocks
def test_times(name):
    block, dense = BLOCKS[name]()
    scaled = block.times(0.4)
    assert type(scaled) is type(block)
    same(scaled.dense(), 0.4 * dense)
    same(block.dense(), dense)


@pytest.mark.parametrize("name", ["DiagonalBlock", "DenseBlock", "DenseBlock of rank 1", "LowRankBlock"])
def test_merge_adds(name):
    block, dense = BLOCKS[name]()
    same(block.merge(block.times(2.0)).dense(), 3.0 * dense)


def test_merging_others_is_refused():
    diagonal = DiagonalBlock(spans((0, 3)), positive(3))
    with pytest.raises(ArgumentError, match="got DenseBlock after DiagonalBlock"):
        diagonal.merge(DenseBlock(spans((0, 3)), gram(3, 3)))
    with pytest.raises(ArgumentError, match="over the same parameters"):
        diagonal.merge(DiagonalBlock(spans((1, 4)), positive(3)))
    by_index = DiagonalBlock(torch.tensor([0, 1, 2]), positive(3))
    with pytest.raises(ArgumentError, match="over the same parameters"):
        by_index.merge(DiagonalBlock(torch.tensor([0, 2, 1]), positive(3)))
    same(by_index.merge(by_index).dense(), 2 * torch.diag(positive(3)))


def test_not_positive_definite():
    indefinite = torch.diag(torch.tensor([2.0, -3.0, 1.0], dtype=F64))
    tau = torch.ones(3, dtype=F64)
    with pytest.raises(NumericalError, match=r"leading minor of order 2 of 3 is not\. Train to a mode"):
        DenseBlock(spans((0, 3)), indefinite).factorise(tau)
    with pytest.raises(NumericalError, match="1 of 3 diagonal entries"):
        DiagonalBlock(spans((0, 3)), indefinite.diagonal()).factorise(tau)
    with pytest.raises(NumericalError, match="a positive prior precision"):
        LowRankBlock(spans((0, 3)), random(3, 1), torch.ones(1, dtype=F64)).factorise(0 * tau)
    eye = torch.ones(1, dtype=F64)
    block = KroneckerBlock(spans((0, 3)), None, None, indefinite.diagonal(), eye, torch.ones(3, dtype=F64), eye)
    with pytest.raises(NumericalError, match="a layer's is not"):
        block.factorise(tau)
    # A stronger prior makes all of them definite.
    for made in (DenseBlock(spans((0, 3)), indefinite), DiagonalBlock(spans((0, 3)), indefinite.diagonal()), block):
        same(made.factorise(4 * tau).dense(), torch.diag(1 / torch.tensor([6.0, 1.0, 5.0], dtype=F64)))


def test_size_counts_ranges_and_indices():
    assert DiagonalBlock(spans((0, 2), (5, 8)), positive(5)).size == 5
    assert DiagonalBlock(torch.tensor([4, 1]), positive(2)).size == 2


@blocks
def test_diagonal_by_form(name):
    block, _ = BLOCKS[name]()
    factor = block.factorise(prior_for(block), 0.6)
    assert block.is_diagonal == factor.is_diagonal == name.startswith("Diagonal")
    assert not block.is_diagonal or torch.equal(factor.dense(), torch.diag(factor.diagonal()))


@blocks
def test_only_a_matrix_that_is_added_to_drowns_a_small_prior(name):
    block, _ = BLOCKS[name]()
    floor = block.rounding()
    assert (floor > 0) == isinstance(block, DenseBlock)
    if floor:
        largest = block.matrix.diagonal().max()
        assert largest + 0.001 * floor == largest
        assert largest + floor > largest
