"""What every posterior refuses, and what each says of itself."""

from __future__ import annotations

import pytest
import torch

from temperance.core.errors import ArgumentError, NumericalError
from temperance.linalg import DenseCovariance, DiagonalCovariance
from temperance.posteriors import Chain, CurvePosterior, Draws, Gaussian, Mixture, Point, Settings, Spread, WeightCurve
from temperance.posteriors.affine import Affine, lifted, lifted_kind


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


def test_a_map_of_settings_keeps_the_mixture_and_what_belongs_to_them():
    statistics = {"bn.running_mean": torch.ones(3, 2)}
    mixture = Mixture((Draws(torch.zeros(3, 2), statistics), Mixture((Point(torch.zeros(2)),))), (0.2, 0.8))
    found = mixture.map_parts(lambda part: part.with_theta(part.theta + 1))
    assert found.weights == (0.2, 0.8)
    assert [type(part) for _, part in found.parts()] == [Draws, Point]
    assert all(bool((part.theta == 1).all()) for _, part in found.parts())
    assert found.components[0].buffers is statistics


def test_posteriors_say_by_type_what_they_can_do():
    gaussian = Gaussian(torch.zeros(2), DiagonalCovariance(torch.ones(2)))
    line = CurvePosterior(torch.tensor([[0.0, 0.0], [2.0, 4.0]]))
    every = {"point": Point(torch.zeros(2)), "draws": Draws(torch.zeros(3, 2)), "gaussian": gaussian, "line": line}
    able = {
        kind: {n for n, p in every.items() if isinstance(p, kind)} for kind in (Settings, Chain, Spread, WeightCurve)
    }
    assert able == {Settings: {"point", "draws"}, Chain: {"draws"}, Spread: {"gaussian"}, WeightCurve: {"line"}}
    assert [name for name, posterior in every.items() if posterior.single] == ["point"]
    assert line.straight is line
    bent = CurvePosterior(torch.tensor([[0.0, 0.0], [9.0, 9.0], [2.0, 4.0]]))
    assert torch.equal(bent.straight.points, line.points)


def test_what_a_subspace_gives_is_known_beforehand():
    centre, basis = torch.zeros(3), torch.ones(3, 2)
    inner = (
        Point(torch.zeros(2)),
        Draws(torch.zeros(3, 2)),
        Mixture((Point(torch.zeros(2)),)),
        Gaussian(torch.zeros(2), DiagonalCovariance(torch.ones(2))),
    )
    assert all(lifted_kind(type(part)) is type(lifted(part, centre, basis)) for part in inner)


def test_a_mixture_over_coordinates_keeps_its_weights():
    spread = Gaussian(torch.tensor([2.0]), DiagonalCovariance(torch.ones(1)))
    mixture = Mixture((Mixture((Point(torch.ones(1)), spread), (0.3, 0.7)), Draws(torch.zeros(2, 1))), (0.9, 0.1))
    centre, basis = torch.tensor([1.0, 2.0]), torch.tensor([[3.0], [4.0]])
    found = lifted(mixture, centre, basis)
    assert [weight for weight, _ in found.parts()] == [weight for weight, _ in mixture.parts()]
    assert [type(part) for _, part in found.parts()] == [Point, Affine, Draws]
    assert found.parts()[0][1].theta.tolist() == [4.0, 6.0]
