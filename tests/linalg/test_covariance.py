"""Covariances kept as Σ or its root: gradients, near singularity, errors."""

import pytest
import torch

from temperance.core.errors import NumericalError
from temperance.linalg import (
    CholeskyCovariance,
    DenseCovariance,
    DiagonalCovariance,
    KroneckerCovariance,
    LowRankCovariance,
)

from .zoo import F64, lower, positive, random

MADE = {
    "diagonal": (DiagonalCovariance, (positive(5),), torch.diag),
    "low rank": (LowRankCovariance, (positive(5), random(5, 2)), lambda d, f: torch.diag(d) + f @ f.mT),
    "dense": (DenseCovariance, (lower(5) @ lower(5).mT,), lambda m: m),
    "cholesky": (CholeskyCovariance, (lower(5),), lambda t: t @ t.mT),
    "kronecker": (
        KroneckerCovariance,
        (lower(2, 1), lower(3, 2)),
        lambda a, b: torch.kron(a @ a.mT, b @ b.mT),
    ),
}


@pytest.mark.parametrize("question", ["log_det", "inverse_quadratic", "solve"])
@pytest.mark.parametrize("name", MADE)
def test_gradients_in_what_it_is_made_of(name, question):
    """Variational families differentiate through these."""
    kind, given, dense = MADE[name]
    delta, weight = random(kind(*given).size, seed=1), random(kind(*given).size, seed=2)
    leaves = [t.clone().requires_grad_() for t in given]
    others = [t.clone().requires_grad_() for t in given]
    operator, matrix = kind(*leaves), dense(*others)
    solved = torch.linalg.solve(matrix, delta)
    if question == "log_det":
        found, wanted = operator.log_det(), torch.logdet(matrix)
    elif question == "inverse_quadratic":
        found, wanted = operator.inverse_quadratic(delta), delta @ solved
    else:
        found, wanted = operator.solve(delta) @ weight, solved @ weight
    slopes, expected = torch.autograd.grad(found, leaves), torch.autograd.grad(wanted, others)
    for slope, want in zip(slopes, expected, strict=True):
        if name == "dense":  # autograd shares a symmetric matrix's slope between its halves as it likes
            slope, want = slope + slope.mT, want + want.mT
        elif name in ("cholesky", "kronecker"):  # above the diagonal there is nothing to move
            slope, want = slope.tril(), want.tril()
        torch.testing.assert_close(slope, want, rtol=1e-9, atol=1e-9)


def test_a_cholesky_factor_keeps_what_its_matrix_would_lose():
    """1 + 1e-20 is 1: the product of the factor is singular in float64, the factor is not."""
    factor = torch.tensor([[1.0, 0.0], [1.0, 1e-10]], dtype=F64)
    operator = CholeskyCovariance(factor)
    assert float(operator.inverse_quadratic(torch.tensor([0.0, 1e-10], dtype=F64))) == pytest.approx(1.0, rel=1e-9)
    with pytest.raises(NumericalError, match="leading minor of order 2"):
        DenseCovariance(operator.dense()).log_det()


def test_a_dense_covariance_is_factorised_once():
    operator = DenseCovariance(lower(4) @ lower(4).mT)
    assert operator.cholesky is operator.cholesky
    torch.testing.assert_close(operator.cholesky, lower(4))


BAD = torch.tensor([1.0, float("nan")], dtype=F64)


@pytest.mark.parametrize("variance", [BAD, torch.tensor([1.0, 0.0]), torch.tensor([1.0, float("inf")]), -torch.ones(2)])
def test_improper_variances(variance):
    for make in (lambda: DiagonalCovariance(variance), lambda: LowRankCovariance(variance, torch.ones(2, 1))):
        with pytest.raises(NumericalError, match="positive and finite"):
            make()


@pytest.mark.parametrize(
    "factor",
    [
        torch.diag(BAD),
        torch.diag(torch.tensor([1.0, 0.0])),
        torch.diag(torch.tensor([1.0, -1.0])),
        torch.tensor([[1.0, 0.0], [-float("inf"), 1.0]]),
    ],
)
def test_improper_factors(factor):
    good = torch.eye(2)
    for make in (
        lambda: CholeskyCovariance(factor),
        lambda: KroneckerCovariance(factor, good),
        lambda: KroneckerCovariance(good, factor),
    ):
        with pytest.raises(NumericalError, match="finite with a positive diagonal"):
            make()


def test_numbers_whose_sum_overflows_are_finite():
    factor = torch.tensor([[3e38, 0.0], [3e38, 1.0]])
    assert not bool(torch.isfinite(factor.sum()))
    assert CholeskyCovariance(factor).size == 2


def test_an_indefinite_matrix():
    with pytest.raises(NumericalError, match="the leading minor of order 2 is not"):
        DenseCovariance(torch.tensor([[1.0, 2.0], [2.0, 1.0]])).draw(torch.Generator())
