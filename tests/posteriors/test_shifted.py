"""Posteriors with some numbers moved: what they are, draws, buffers, files."""

from __future__ import annotations

import pytest
import torch

import temperance as tp
from temperance.core.encoding import decode, encode
from temperance.core.errors import ArgumentError
from temperance.linalg.covariance import DiagonalCovariance
from temperance.posteriors import Draws, Gaussian, Mixture, Point, Shifted, WithStatistics
from temperance.posteriors.shifted import shifted

INDEX, SHIFT = torch.tensor([2, 0]), torch.tensor([0.5, -1.0])
OFFSET = torch.tensor([-1.0, 0.0, 0.5, 0.0])


def gaussian():
    return Gaussian(torch.arange(4.0), DiagonalCovariance(torch.tensor([1.0, 4.0, 9.0, 0.25])))


def test_settings_and_gaussians_stay_what_they_are():
    point = shifted(Point(torch.arange(4.0), {"m": torch.ones(2)}), INDEX, SHIFT)
    assert isinstance(point, Point)
    assert point.theta.tolist() == [-1.0, 1.0, 2.5, 3.0]
    assert point.buffers["m"].tolist() == [1.0, 1.0]
    draws = shifted(Draws(torch.zeros(3, 4)), INDEX, SHIFT)
    assert isinstance(draws, Draws)
    assert torch.equal(draws.theta, OFFSET.expand(3, 4))
    moved = shifted(gaussian(), INDEX, SHIFT)
    assert isinstance(moved, Gaussian)
    assert torch.equal(moved.mean, torch.arange(4.0) + OFFSET)
    assert torch.equal(moved.covariance(), gaussian().covariance())


def test_a_mixture_keeps_its_weights():
    mixture = Mixture((Point(torch.zeros(4)), gaussian()), (0.3, 0.7))
    moved = shifted(mixture, INDEX, SHIFT)
    assert moved.weights == (0.3, 0.7)
    before, after = (each.nodes(10, seed=3).fetch(0, 11)[0] for each in (mixture, moved))
    torch.testing.assert_close(after, before + OFFSET)
    assert torch.equal(moved.nodes(10).weights, mixture.nodes(10).weights)


def test_what_has_statistics_of_its_draws_keeps_them():
    inner = WithStatistics(gaussian(), {"mean": torch.arange(12.0).view(6, 2)})
    moved = shifted(inner, INDEX, SHIFT)
    assert isinstance(moved, Shifted)
    assert (moved.size, moved.most_nodes, moved.predicts, moved.finite) == (4, 6, "network", False)
    theta, buffers = moved.nodes().fetch(1, 4)
    known, same = inner.nodes().fetch(1, 4)
    torch.testing.assert_close(theta, known + OFFSET)
    assert torch.equal(buffers["mean"], same["mean"])
    torch.testing.assert_close(moved.mean, inner.mean + OFFSET)
    torch.testing.assert_close(moved.sample(5, seed=1), inner.sample(5, seed=1) + OFFSET)
    torch.testing.assert_close(moved.growing(6).fetch(0, 6)[0], inner.growing(6).fetch(0, 6)[0] + OFFSET)


def test_it_survives_a_file():
    tensors = {}
    form = encode(Shifted(gaussian(), INDEX, SHIFT), tensors)
    back = decode(form, tensors)
    assert isinstance(back, Shifted)
    assert torch.equal(back.sample(3, seed=0), Shifted(gaussian(), INDEX, SHIFT).sample(3, seed=0))


@pytest.mark.parametrize(
    ("index", "shift", "words"),
    [
        (torch.tensor([0]), torch.tensor([1.0, 2.0]), "`shift` must be a number for each of the 1 places"),
        (torch.tensor([4]), torch.tensor([1.0]), "`index` must lie between 0 and 3; got \\[4\\]"),
        (torch.tensor([-1]), torch.tensor([1.0]), "`index` must lie between 0 and 3"),
    ],
)
def test_refused(index, shift, words):
    with pytest.raises(ArgumentError, match=words):
        Shifted(gaussian(), index, shift)


def test_a_shift_that_is_no_number_is_refused():
    with pytest.raises(tp.errors.TemperanceError, match="shift"):
        Shifted(gaussian(), INDEX, torch.tensor([0.0, float("nan")]))
