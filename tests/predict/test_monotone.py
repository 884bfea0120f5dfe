"""A predictive in bent units says what draws of it say."""

from __future__ import annotations

import math

import pytest
import torch

import temperance as tp
from temperance.core.encoding import decode, encode
from temperance.core.errors import ArgumentError
from temperance.decide.conformal import NormalisedResidual
from temperance.posteriors import Draws
from temperance.predict import AffinePredictive, Log, MonotonePredictive, ValuePredictive

DRAWS = 400_000


class Cube(tp.predict.Monotone):
    """A map without closed forms: y = z³ + z."""

    def inverse(self, z: torch.Tensor) -> torch.Tensor:
        return z**3 + z

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        z = torch.zeros_like(y)
        for _ in range(200):
            z = z - (z**3 + z - y) / (3 * z**2 + 1)
        return z

    def log_slope(self, y: torch.Tensor) -> torch.Tensor:
        return -(3 * self.forward(y).square() + 1).log()

    def mean_log_slope(self, base: ValuePredictive) -> torch.Tensor:
        return self.log_slope(self.inverse(base.sample(2000).double())).sum(-1).mean(0)


@pytest.fixture
def base() -> ValuePredictive:
    target = tp.Target(torch.nn.Linear(1, 2, bias=False), tp.HeteroscedasticNormal(), tp.GaussianPrior(1.0))
    theta = torch.tensor([[0.5, -1.0], [1.2, -0.4], [-0.3, -0.8]])
    made = tp.Fitted(target, Draws(theta), None).predict(torch.tensor([[0.5], [1.0], [1.5]]))  # type: ignore[arg-type]
    assert isinstance(made, ValuePredictive)
    return made


@pytest.mark.parametrize("transform", [Log(), Cube()])
def test_statistics_are_those_of_draws(base: ValuePredictive, transform: tp.predict.Monotone) -> None:
    inner = AffinePredictive(base, torch.tensor([2.0], dtype=torch.float64), torch.tensor([0.6], dtype=torch.float64))
    made = MonotonePredictive(inner, transform)
    z = inner.sample(DRAWS, seed=3).double()
    y = transform.inverse(z)[..., 0]
    error = y.std(0) / math.sqrt(DRAWS)
    assert bool(((made.mean()[:, 0] - y.mean(0)).abs() < 5 * error).all())
    kurtosis = ((y - y.mean(0)) / y.std(0)).pow(4).mean(0)
    spread = y.var(0) * ((kurtosis - 1) / DRAWS).sqrt()
    assert bool(((made.variance()[:, 0] - y.var(0)).abs() < 6 * spread).all())
    torch.testing.assert_close(made.std().square(), made.aleatoric_variance() + made.epistemic_variance())
    for level in (0.05, 0.5, 0.9):
        torch.testing.assert_close(made.quantile(level), transform.inverse(inner.quantile(level).double()))
        share = (y <= made.quantile(level)[:, 0]).double().mean(0)
        assert bool(((share - level).abs() < 5 * math.sqrt(level * (1 - level) / DRAWS)).all())
        torch.testing.assert_close(made.cdf(made.quantile(level))[:, 0], torch.full((3,), level, dtype=torch.float64))
    torch.testing.assert_close(made.sample(5, seed=3), transform.inverse(inner.sample(5, seed=3).double()))


@pytest.mark.parametrize("transform", [Log(), Cube()])
def test_the_density_integrates_to_one_and_has_the_entropy(
    base: ValuePredictive, transform: tp.predict.Monotone
) -> None:
    made = MonotonePredictive(base, transform)
    cuts = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    grid = transform.inverse(cuts)
    density = torch.stack([made.log_prob(grid[k].expand(3, 1)) for k in range(len(grid))]).exp()
    total = torch.trapezoid(density, grid, dim=0)
    torch.testing.assert_close(total, torch.ones(3, dtype=torch.float64), atol=2e-3, rtol=0.0)
    logs = torch.where(density > 0, density.clamp(min=1e-300).log(), torch.zeros_like(density))
    entropy = -torch.trapezoid(density * logs, grid, dim=0)
    tolerance = 0.01 if isinstance(transform, Log) else 0.1
    torch.testing.assert_close(made.entropy(), entropy, atol=tolerance, rtol=0.0)
    torch.testing.assert_close(made.entropy() - made.aleatoric(), base.mutual_information().double(), atol=1e-4, rtol=0)


def test_what_the_units_cannot_be_has_no_density(base: ValuePredictive) -> None:
    made = MonotonePredictive(base, Log())
    assert made.log_prob([[-1.0], [0.0], [1.0]]).isinf().tolist() == [True, True, False]
    assert made.cdf([[-1.0], [0.0], [1.0]])[:2, 0].tolist() == [0.0, 0.0]
    assert made.joint_log_prob([[-1.0], [0.0], [1.0]]) == -math.inf


def test_nothing_overflows() -> None:
    far = tp.predict.from_outputs(torch.tensor([[1e6], [-1e6]]), tp.Normal(scale=20.0))
    made = MonotonePredictive(far, Log())
    for found in (made.mean(), made.variance(), made.std(), made.quantile(0.9), made.epistemic_variance()):
        assert bool(torch.isfinite(found).all())


def test_conformal_intervals_stay_inside_the_support(base: ValuePredictive) -> None:
    made = MonotonePredictive(base, Log())
    known = NormalisedResidual().calibrate(made, [[0.01], [1.0], [40.0]], level=0.5)
    low, high = known.interval(made)
    assert bool((low > 0).all())
    inner = NormalisedResidual().calibrate(base, torch.tensor([[0.01], [1.0], [40.0]]).log(), level=0.5)
    torch.testing.assert_close(high.log(), inner.interval(base)[1].double(), atol=1e-5, rtol=1e-5)
    short = NormalisedResidual().calibrate(made, [[0.01], [1.0], [40.0]], level=0.9)
    assert short.interval(made)[0].tolist() == [[0.0]] * 3
    assert short.interval(made)[1].isinf().all()


def test_refusals_and_writing_down(base: ValuePredictive) -> None:
    with pytest.raises(ArgumentError, match="`transform`"):
        MonotonePredictive(base, math.log)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="StudentT has none"):
        MonotonePredictive(tp.predict.from_outputs(torch.zeros(2, 1), tp.StudentT(scale=1.0)), Log())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`base`"):
        MonotonePredictive(tp.predict.from_outputs(torch.zeros(2, 1), tp.Poisson()), Log())  # type: ignore[arg-type]
    assert isinstance(decode(encode(Log(), {}), {}), Log)
