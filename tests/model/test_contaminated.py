"""Gaussian noise with outliers."""

from __future__ import annotations

import itertools
import math

import pytest
import scipy.integrate
import scipy.stats
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.predict import from_outputs

LAWS = [tp.ContaminatedNormal(0.1, 5.0, 1.0), tp.ContaminatedNormal(0.001, 100.0, 1.0)]


def density(law: tp.ContaminatedNormal, z: float) -> float:
    rho, k = law.share, law.factor
    return (1 - rho) * scipy.stats.norm.pdf(z) + rho * scipy.stats.norm.pdf(z, scale=k)


def integral(law: tp.ContaminatedNormal, function) -> float:
    """∫ over the line, in pieces on which neither part changes much."""
    edges = [0.0, 1.0, 3.0, 6.0, 10.0, 3 * law.factor, 10 * law.factor, 14 * law.factor]
    edges = sorted(set(edges))
    halves = [scipy.integrate.quad(function, a, b, epsabs=1e-13)[0] for a, b in itertools.pairwise(edges)]
    return 2 * sum(halves)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_log_prob_and_expectations_against_scipy(law: tp.ContaminatedNormal) -> None:
    y = torch.tensor([[0.0], [3.0], [-7.0], [40.0]], dtype=torch.float64)
    f = torch.full_like(y, 0.5)
    expected = [math.log(density(law, float(v) - 0.5)) for v in y]
    torch.testing.assert_close(law.log_prob(f, y, {}), torch.tensor(expected, dtype=torch.float64))
    narrower = tp.ContaminatedNormal(law.share, law.factor, 0.5)
    torch.testing.assert_close(narrower.log_prob(0.5 * f, 0.5 * y, {}), torch.tensor(expected).double() + math.log(2))
    assert law.standard_entropy() == pytest.approx(
        integral(law, lambda z: -density(law, z) * math.log(density(law, z)))
    )
    assert law.standard_variance() == pytest.approx(integral(law, lambda z: z * z * density(law, z)))

    def slope(z: float) -> float:  # −d log density / dz
        narrow = (1 - law.share) * scipy.stats.norm.pdf(z) / density(law, z)
        return z * (narrow + (1 - narrow) / law.factor**2)

    location = integral(law, lambda z: density(law, z) * slope(z) ** 2)
    scale = integral(law, lambda z: density(law, z) * (z * slope(z) - 1) ** 2)
    assert float(law.fisher(f[:1], {})) == pytest.approx(location)
    assert law.scale_information() == pytest.approx(scale)
    learned = tp.ContaminatedNormal(law.share, law.factor)
    assert float(learned.learned_fisher(f, {})) == pytest.approx(4 * scale)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_quantiles_invert_the_distribution_function(law: tp.ContaminatedNormal) -> None:
    level = torch.tensor([1e-200, 1e-12, 1e-4, 0.04, 0.3, 0.5, 0.9, 1 - 1e-9], dtype=torch.float64)
    z = law.standard_quantile(level)
    theirs = (1 - law.share) * scipy.stats.norm.cdf(z) + law.share * scipy.stats.norm.cdf(z, scale=law.factor)
    torch.testing.assert_close(torch.as_tensor(theirs), level, rtol=1e-10, atol=0)
    torch.testing.assert_close(law.standard_quantile(1 - level[2:]), -z[2:], rtol=1e-6, atol=1e-12)
    assert float(law.standard_quantile(torch.tensor(0.5))) == 0.0
    pred = from_outputs(torch.tensor([[[0.0]], [[6.0]]], dtype=torch.float64), law)
    for alpha in (0.01, 0.4, 0.99):
        assert float(pred.cdf(pred.quantile(alpha))) == pytest.approx(alpha, abs=1e-9)


def test_exponential_moments_are_those_of_the_mixture() -> None:
    law = LAWS[0]
    found = law.log_exponential_moment(torch.full((1, 1), 0.3, dtype=torch.float64), {}, 0.4)
    assert found is not None
    expected = 2 * integral(law, lambda z: math.cosh(0.4 * z) * density(law, z)) / 2
    assert float(found) == pytest.approx(0.4 * 0.3 + math.log(expected))


def test_what_contaminated_refuses() -> None:
    with pytest.raises(ArgumentError, match="`share` must lie strictly between 0 and 1; got 0"):
        tp.ContaminatedNormal(share=0)
    with pytest.raises(ArgumentError, match="`factor` must be a finite number above 1, how much wider"):
        tp.ContaminatedNormal(factor=1.0)
    with pytest.raises(ArgumentError, match="`scale`"):
        tp.ContaminatedNormal(scale=-1.0)


def outliers(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """A line with noise 0.2, one row in twenty ten times as far off."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 1, generator=rng)
    noise = 0.2 * torch.randn(rows, 1, generator=rng)
    far = torch.rand(rows, 1, generator=rng) < 0.05
    return x, 1.5 * x + torch.where(far, 10 * noise, noise)


GAUSSIAN = tp.Width(noise=False)


@pytest.mark.parametrize(
    "method", [tp.MAP(lr=0.05), tp.Laplace(tp.MAP(lr=0.05), tune=GAUSSIAN)], ids=["point", "laplace"]
)
def test_the_right_noise_beats_the_plain_one_on_rows_with_outliers(method: tp.inference.Inference) -> None:
    """Held-out log-loss: the noise that made the data, its neighbour with heavy tails, and a single Gaussian."""
    train, test = outliers(400, 0), outliers(2000, 1)
    score, scale = {}, {}
    for law in (tp.ContaminatedNormal(), tp.StudentT(3.0), tp.Normal()):
        target = tp.Target(nn.Linear(1, 1), law, tp.GaussianPrior(3.0))
        fitted = tp.fit(target, method, train, epochs=60, seed=0, progress=False)
        score[type(law)] = fitted.evaluate(test)["log_loss"]
        scale[type(law)] = float(fitted.posterior.mean[-1].exp()) if method != tp.MAP(lr=0.05) else 0.2
    assert score[tp.ContaminatedNormal] < score[tp.Normal] - 0.5
    assert score[tp.ContaminatedNormal] < score[tp.StudentT] - 0.02
    assert scale[tp.ContaminatedNormal] == pytest.approx(0.2, rel=0.15)


def test_held_out_rows_make_up_for_most_of_a_noise_that_is_too_plain() -> None:
    """A tenth of the rows find the tails, though not which share of rows is in them: a fifth of the loss is left."""
    train, test = outliers(400, 0), outliers(2000, 1)
    target = tp.Target(nn.Linear(1, 1), tp.Normal(), tp.GaussianPrior(3.0))
    score = {}
    for noise in (True, False):
        method = tp.Laplace(tp.MAP(lr=0.05), tune=tp.Width(noise=noise))
        score[noise] = tp.fit(target, method, train, epochs=60, seed=0, progress=False).evaluate(test)["log_loss"]
    right = tp.Target(nn.Linear(1, 1), tp.ContaminatedNormal(), tp.GaussianPrior(3.0))
    best = tp.fit(right, method, train, epochs=60, seed=0, progress=False).evaluate(test)["log_loss"]
    assert best < score[True] < best + 0.2 * (score[False] - best)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_the_scale_may_be_that_of_all_the_noise(scale):
    """Gaussian noise with this law in its place keeps its variance, learned or given, of each output."""
    size = 1 if scale else 2
    learned = {} if scale else {"likelihood.log_scale": torch.tensor([[-1.0, 0.5]], dtype=torch.float64)}
    plain = tp.Normal(scale=scale, num_outputs=size)
    wide = plain.with_outliers(0.2, 4.0)
    assert wide == tp.ContaminatedNormal(0.2, 4.0, scale=scale, num_outputs=size, of_all=True)
    assert wide.learned_parameters() == plain.learned_parameters()
    outputs = torch.zeros(1, 5, size, dtype=torch.float64)
    torch.testing.assert_close(wide.variance(outputs, learned), plain.variance(outputs, learned))
    bulk = tp.ContaminatedNormal(0.2, 4.0, scale=scale, num_outputs=size)
    torch.testing.assert_close(bulk.variance(outputs, learned), 4.0 * plain.variance(outputs, learned))
    y = torch.linspace(-3, 3, 5, dtype=torch.float64).unsqueeze(1).expand(5, size)
    half = {name: value - math.log(2.0) for name, value in learned.items()}
    other = bulk if not scale else tp.ContaminatedNormal(0.2, 4.0, scale=scale / 2.0)
    torch.testing.assert_close(wide.log_prob(outputs, y, learned), other.log_prob(outputs, y, half))
    torch.testing.assert_close(wide.fisher(outputs, learned), other.fisher(outputs, half))
    torch.testing.assert_close(wide.hessian(outputs, y, learned), other.hessian(outputs, y, half))
    torch.testing.assert_close(wide.cdf(outputs, y, learned), other.cdf(outputs, y, half))


def test_whether_the_scale_is_of_all_is_true_or_false():
    with pytest.raises(ArgumentError, match="`of_all` must be True or False"):
        tp.ContaminatedNormal(of_all=1.0)
