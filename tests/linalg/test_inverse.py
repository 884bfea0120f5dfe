"""Covariances kept as a precision: what they refuse, and what they do without."""

import pytest
import torch

from temperance.core.errors import NumericalError
from temperance.linalg import CholeskyInverse, DiagonalInverse, LowRankInverse

from .zoo import F64, positive, random

NAN = float("nan")


@pytest.mark.parametrize(("precision", "count"), [([1.0, 0.0, -2.0], 2), ([0.0, 1.0, 1.0], 1), ([NAN, 1.0, 1.0], 0)])
def test_a_precision_that_is_not_positive(precision, count):
    with pytest.raises(NumericalError, match=f"positive; {count} of 3 diagonal entries are not. Train to a mode"):
        DiagonalInverse(torch.tensor(precision))


def test_a_factor_that_is_not_proper():
    with pytest.raises(NumericalError, match="positive diagonal"):
        CholeskyInverse(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))


def test_a_low_rank_precision_needs_a_floor():
    with pytest.raises(NumericalError, match="a positive prior precision for every parameter"):
        LowRankInverse(torch.tensor([1.0, 0.0]), torch.ones(2, 1))


def test_low_rank_never_makes_a_matrix():
    """200,000 parameters: a P × P matrix would be 298 GiB."""
    size = 200_000
    operator = LowRankInverse(positive(size), 0.01 * random(size, 2))
    v = random(size, seed=1)
    torch.testing.assert_close(operator.solve(operator.product(v)), v)
    found = operator.half(v).square().sum()
    torch.testing.assert_close(found, (v * operator.product(v)).sum())
    assert operator.diagonal().shape == operator.root(v).shape == (size,)
    assert operator.log_det().dtype == F64
