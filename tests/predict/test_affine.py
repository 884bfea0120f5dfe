from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, DataError
from temperance.engine.engine import Engine
from temperance.posteriors import Draws
from temperance.predict import RealPredictive, predict
from temperance.predict.affine import AffinePredictive, Rescaled

ROWS = 7
X = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
KINDS = {
    "normal": (tp.Normal(scale=0.7), 1),
    "two outputs": (tp.Normal(num_outputs=2), 2),
    "heteroscedastic": (tp.HeteroscedasticNormal(), 2),
    "student": (tp.StudentT(df=5.0, scale=0.5), 1),
}


def base_of(name: str) -> RealPredictive:
    likelihood, outputs = KINDS[name]
    target = tp.Target(nn.Linear(3, outputs).double(), likelihood, tp.GaussianPrior(1.0))
    rng = torch.Generator().manual_seed(0)
    theta = 0.5 * torch.randn(5, target.num_parameters, generator=rng, dtype=torch.float64)
    made = predict(Engine(target), Draws(theta), X)
    assert isinstance(made, RealPredictive)
    return made


def moved(base: RealPredictive) -> AffinePredictive:
    rng = torch.Generator().manual_seed(5)
    width = base.mean().shape[-1]
    shift = 3 * torch.randn(ROWS, width, generator=rng, dtype=torch.float64)
    return AffinePredictive(base, shift, torch.rand(ROWS, width, generator=rng, dtype=torch.float64) + 0.5)


@pytest.mark.parametrize("name", KINDS)
def test_every_method_equals_the_twin_made_of_its_own_members(name):
    """``source`` and ``likelihood`` in the new units, put into a plain predictive, say the same by another way."""
    made = moved(base_of(name))
    twin = RealPredictive(made.source, made.likelihood)
    y = made.mean() + 0.3
    for method in ("mean", "std", "variance", "aleatoric_variance", "epistemic_variance", "epistemic_std", "aleatoric"):
        assert torch.allclose(getattr(made, method)(), getattr(twin, method)(), atol=1e-12), method
    for method in ("log_prob", "joint_log_prob", "cdf"):
        assert torch.allclose(getattr(made, method)(y), getattr(twin, method)(y), atol=1e-10), method
    for level in (0.03, 0.5, 0.9):
        assert torch.allclose(made.quantile(level), twin.quantile(level), atol=1e-10)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(made.interval(0.8), twin.interval(0.8), strict=True))
    assert torch.allclose(made.mutual_information(), twin.mutual_information(), atol=1e-6)
    assert torch.allclose(made.entropy(), twin.entropy(), atol=1e-6)
    assert torch.allclose(made.entropy(), made.aleatoric() + made.mutual_information(), atol=1e-12)
    assert torch.allclose(made.variance(), made.aleatoric_variance() + made.epistemic_variance(), atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_draws_have_the_distribution_that_is_claimed(name):
    made = moved(base_of(name))
    n = 1000
    draws = made.sample(n, seed=1)
    assert draws.shape == (n, *made.mean().shape)
    error = made.std() / math.sqrt(n)
    assert ((draws.mean(0) - made.mean()).abs() < 5 * error).all()
    for u in torch.stack([made.cdf(d)[:, 0] for d in draws[:300]], dim=1):
        assert scipy.stats.kstest(u.numpy(), "uniform").pvalue > 1e-4
    negative_log = -torch.stack([made.log_prob(d) for d in draws[:n]])
    assert ((negative_log.mean(0) - made.entropy()).abs() < 5 * negative_log.std(0) / math.sqrt(n)).all()


def test_of_one_gaussian_everything_is_known():
    target = tp.Target(nn.Linear(1, 1, bias=False).double(), tp.Normal(scale=2.0), tp.GaussianPrior(1.0))
    base = predict(
        Engine(target), Draws(torch.ones(1, 1, dtype=torch.float64)), torch.tensor([[3.0]], dtype=torch.float64)
    )
    made = AffinePredictive(base, 10.0, 5.0)
    law = scipy.stats.norm(25.0, 10.0)
    assert float(made.mean()) == pytest.approx(25.0)
    assert float(made.std()) == pytest.approx(10.0)
    assert float(made.log_prob([[31.0]])) == pytest.approx(law.logpdf(31.0))
    assert float(made.cdf([[31.0]])) == pytest.approx(law.cdf(31.0))
    assert float(made.quantile(0.2)) == pytest.approx(law.ppf(0.2))
    assert float(made.entropy()) == pytest.approx(law.entropy())
    assert float(made.joint_log_prob([[31.0]])) == pytest.approx(law.logpdf(31.0))
    again = AffinePredictive(made, -25.0, 1.0)  # of one moved already
    assert float(again.mean()) == pytest.approx(0.0)
    assert float(again.std()) == pytest.approx(10.0)
    assert float(again.log_prob([[6.0]])) == pytest.approx(law.logpdf(31.0))


def test_the_linearised_predictive_keeps_what_it_knows_in_closed_form():
    x = torch.linspace(-1, 1, 20).double().unsqueeze(1)
    target = tp.Target(nn.Linear(1, 2).double(), tp.Normal(scale=0.3), tp.GaussianPrior(1.0))
    y = torch.cat([x, -x], 1)
    fitted = tp.fit(target, tp.Laplace(tp.MAP(lr=0.05), tune=None), (x, y), epochs=20, seed=0, progress=False)
    base = fitted.predict(x[:4])
    made = AffinePredictive(base, torch.tensor([1.0, 2.0]), torch.tensor([10.0, 0.1]))
    y = made.mean() + torch.tensor([1.0, 0.01])
    assert torch.allclose(made.mutual_information(), base.mutual_information())
    assert torch.allclose(made.entropy(), base.entropy())  # 10 · 0.1 = 1
    # The joint over the two outputs is correlated, so the members' independent form would be wrong here.
    assert torch.allclose(made.log_prob(y), base.log_prob((y - made.shift) / made.scale))
    assert torch.allclose(made.epistemic_variance(), base.epistemic_variance() * torch.tensor([100.0, 0.01]).double())
    assert made.sample(3).shape == (3, 4, 2)


def test_members_are_in_the_new_units():
    made = moved(base_of("normal"))
    assert isinstance(made.likelihood, Rescaled)
    means = torch.cat([made.likelihood.mean(out, learned) for _, out, learned in made.source.blocks()], dim=1)
    assert torch.allclose(means.mean(0), made.mean())
    assert len(made) == ROWS
    assert made.num_draws == 5


def test_float64_units_keep_far_targets_sharp():
    target = tp.Target(nn.Linear(1, 1, bias=False), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    base = predict(Engine(target), Draws(torch.zeros(1, 1)), torch.ones(1, 1))
    far = AffinePredictive(base, torch.tensor([1e9], dtype=torch.float64), torch.tensor([0.1], dtype=torch.float64))
    assert far.mean().dtype == torch.float64
    y = torch.tensor([[1e9 + 0.1]], dtype=torch.float64)
    assert float(far.log_prob(y)) == pytest.approx(scipy.stats.norm(0, 0.1).logpdf(0.1), abs=1e-5)
    assert AffinePredictive(base, 1.0, 2.0).mean().dtype == torch.float32


def test_bad_input():
    base = base_of("two outputs")
    for shift, scale, said in (
        (0.0, 0.0, "`scale` must be positive"),
        (0.0, -1.0, "`scale` must be positive"),
        (0.0, float("nan"), "`scale` must be finite"),
        (torch.zeros(3), 1.0, "`shift` must be a number, one for each of the 2 outputs"),
        ("a", 1.0, "`shift` must be a number"),
    ):
        with pytest.raises(ArgumentError, match=said):
            AffinePredictive(base, shift, scale)
    with pytest.raises(ArgumentError, match="`y` must have one entry"):
        AffinePredictive(base, 0.0, 1.0).log_prob(torch.zeros(3, 2))
    with pytest.raises(DataError, match="`y` must have shape"):
        AffinePredictive(base, 0.0, 1.0).cdf(torch.zeros(ROWS, 3))
    for likelihood, outputs in ((tp.Poisson(), 1), (tp.Categorical(), 3)):
        target = tp.Target(nn.Linear(3, outputs).double(), likelihood, tp.GaussianPrior(1.0))
        other = predict(Engine(target), Draws(torch.zeros(1, target.num_parameters, dtype=torch.float64)), X)
        with pytest.raises(ArgumentError, match="`base` must be the predictive of real targets"):
            AffinePredictive(other, 0.0, 1.0)  # type: ignore[arg-type]
