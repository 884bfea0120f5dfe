"""Mixtures."""

from __future__ import annotations

import pytest
import torch

from temperance.linalg import DiagonalCovariance
from temperance.posteriors import Gaussian, Mixture, Point


def test_a_mixture_samples_its_components_by_weight():
    mixture = Mixture((Point(torch.zeros(1)), Point(torch.ones(1))), weights=(0.2, 0.8))
    share = float(mixture.sample(20_000, seed=0).mean())
    assert abs(share - 0.8) < 5 * (0.16 / 20_000) ** 0.5
    assert mixture.nodes().weights.tolist() == pytest.approx([0.2, 0.8])
    spread = Mixture((Gaussian(torch.zeros(1), DiagonalCovariance(torch.ones(1))), Point(torch.full((1,), 5.0))))
    draws = spread.sample(20_000, seed=1)
    assert abs(float(draws.mean()) - 2.5) < 5 * (6.75 / 20_000) ** 0.5


def test_parts_of_mixtures_of_mixtures_have_the_products_of_their_weights():
    points = [Point(torch.full((2,), float(k))) for k in range(4)]
    inner = Mixture((points[1], points[2]), weights=(0.25, 0.75))
    outer = Mixture((points[0], inner, Mixture((points[3],))), weights=(0.7, 0.2, 0.1))
    weights, parts = zip(*outer.parts(), strict=True)
    assert list(parts) == points
    assert list(weights) == pytest.approx([0.7, 0.05, 0.15, 0.1])
    assert list(weights) == pytest.approx(outer.nodes().weights.tolist())
