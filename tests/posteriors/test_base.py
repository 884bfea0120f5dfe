"""What every posterior refuses."""

from __future__ import annotations

import pytest
import torch

from temperance.core.errors import ArgumentError, NumericalError
from temperance.linalg import DenseCovariance, DiagonalCovariance
from temperance.posteriors import Draws, Gaussian, Mixture, Point


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
