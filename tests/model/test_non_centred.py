"""The same model in coordinates without a funnel: its law, its posterior by quadrature, and every kind of method."""

from __future__ import annotations

import warnings

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import ArgumentError, CorruptRunError, MismatchError, NetworkError, TemperanceError
from temperance.core.seeds import generator
from temperance.engine import Engine
from temperance.testing import assert_moments
from tests.model.hierarchy import GROUP, SCALE, X, Y, as_weights, centred, exact, network, non_centred

HYPERS = [tp.LogNormal(0.7), tp.HalfCauchy(0.8), tp.InverseGamma(2.0, 1.0)]
each_hyper = pytest.mark.parametrize("hyper", HYPERS, ids=lambda h: type(h).__name__)


def slope_of(hyper, v: Tensor) -> Tensor:
    leaf = v.clone().requires_grad_()
    (slope,) = torch.autograd.grad(hyper.of_normal(leaf).sum(), leaf)
    return slope


@each_hyper
def test_the_prior_of_weights_and_scales_is_the_centred_one(hyper):
    """log p(w, u) = log p(z, v) − Σ log (scale e^u) − Σ log du/dv, to rounding; draws of one are draws of the other."""
    one, two = non_centred(hyper), centred(hyper)
    theta = one.sample_prior(4000, generator(0, "draws"))
    rows = as_weights(one, theta)
    base = torch.tensor([SCALE["weight"]] * 4 + [SCALE["bias"]] * 2, dtype=torch.float64)
    jacobian = (rows[:, 6:][:, GROUP] + base.log()).sum(1) + slope_of(hyper, theta[:, :2]).log().sum(1)
    assert torch.allclose(two.log_prior(rows), one.log_prior(theta) - jacobian, rtol=1e-9, atol=1e-8)
    other = two.sample_prior(4000, generator(1, "draws"))
    for k in range(8):
        assert stats.ks_2samp(rows[:, k].numpy(), other[:, k].numpy()).pvalue > 1e-3
    assert stats.ks_2samp(rows[:, 0].numpy(), 1.6 * other[:, 0].numpy()).pvalue < 1e-3  # it would tell


@each_hyper
def test_it_starts_as_the_network_is_and_its_energy_is_the_centred_one(hyper):
    target = non_centred(hyper)
    assert torch.allclose(target.network(X), network()(X))
    assert torch.allclose(target.network.plain()(X), network()(X))
    theta = target.sample_prior(3, generator(0, "draws"))
    data = target.prepare(tp.data.Data(X, Y))
    twin = centred(hyper)
    given = Engine(twin).energy(as_weights(target, theta), data) + twin.log_prior(as_weights(target, theta))
    assert torch.allclose(Engine(target).energy(theta, data) + target.log_prior(theta), given)
    fresh = target.fresh_theta(3)
    drawn = as_weights(target, fresh[None])[0, :6]
    assert float(fresh[:2].abs().max()) == 0.0
    assert 0.05 < float(drawn.abs().max()) < 2**-0.5  # nn.Linear's own beginning, whatever the scales
    assert not torch.equal(fresh, target.fresh_theta(4))


@pytest.mark.parametrize(
    ("form", "hyper", "temperature"),
    [
        (centred, tp.InverseGamma(2.0, 1.0), 1.0),
        (centred, tp.InverseGamma(2.0, 1.0), 0.5),
        (non_centred, tp.LogNormal(0.8), 0.5),
        pytest.param(non_centred, tp.InverseGamma(2.0, 1.0), 1.0, marks=pytest.mark.slow),
        pytest.param(non_centred, tp.HalfCauchy(1.0), 0.5, marks=pytest.mark.slow),
        pytest.param(centred, tp.HalfCauchy(1.0), 1.0, marks=pytest.mark.slow),
        pytest.param(centred, tp.InverseGamma(2.0, 1.0), 2.0, marks=pytest.mark.slow),
        pytest.param(non_centred, tp.HalfCauchy(1.0), 1.0, marks=pytest.mark.slow),
        pytest.param(non_centred, tp.InverseGamma(2.0, 1.0), 0.5, marks=pytest.mark.slow),
        pytest.param(non_centred, tp.InverseGamma(2.0, 1.0), 2.0, marks=pytest.mark.slow),
    ],
    ids=lambda v: getattr(v, "__name__", type(v).__name__ if not isinstance(v, float) else v),
)
def test_the_posterior_of_weights_and_scales_is_the_exact_one(form, hyper, temperature):
    """By NUTS, mean and covariance of (w, u), against quadrature over both u. At T ≠ 1 each form has a law of its own,
    and the other's is told apart from it."""
    target = form(hyper, temperature)
    method = tp.Ensemble(tp.Collect(tp.Warmup(tp.NUTS(), 200, accept=0.9), every=2, last=60), 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a step or two of thousands may diverge
        fitted = tp.fit(target, method, (X, Y), steps=320, progress=False)
    rows = as_weights(target, torch.cat([c.theta for c in fitted.posterior.components]))
    assert_moments(rows[::2], *exact(hyper, temperature, in_u=form is centred))
    if temperature != 1.0 and not (isinstance(hyper, tp.HalfCauchy) and temperature < 1):
        with pytest.raises(AssertionError):
            assert_moments(rows[::2], *exact(hyper, temperature, in_u=form is not centred))


def funnel(form: str) -> tuple[Tensor, int]:
    """u of NUTS on Neal's funnel: nine weights, one scale of spread 3, a datum that says nothing; and divergences."""
    torch.manual_seed(0)
    given = nn.Linear(9, 1, bias=False).double()
    hyper = tp.LogNormal(3.0)
    if form == "centred":
        target = tp.Target(given, tp.Normal(scale=1e9), tp.GaussianPrior(tp.Learned(1.0, hyper, "network")))
    else:
        made = tp.NonCentred(given, hyper, 1.0, "network")
        target = tp.Target(made, tp.Normal(scale=1e9), tp.GaussianPrior(1.0))
    method = tp.Ensemble(tp.Collect(tp.Warmup(tp.NUTS(max_depth=6), 200), every=1, last=100), 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = tp.fit(target, method, (torch.ones(1, 9).double(), torch.zeros(1, 1).double()), steps=300)
    theta = torch.cat([c.theta for c in fitted.posterior.components])
    told = [c.trace.transitions.divergent.sum() for c in fitted.posterior.components]
    return theta[:, -1] if form == "centred" else 3.0 * theta[:, 0], int(sum(told))


def test_a_funnel_is_walked_in_these_coordinates():
    """u ~ N(0, 3²), so one in six lies below −3. Measured with four chains of 500 draws each: here none of 2,000
    transitions diverges, u has mean −0.01 and standard deviation 3.01, and 16 % lie below −3; in the centred form 11
    diverge, u has mean 1.91 and standard deviation 1.96, and none lies below −1.75."""
    u, divergences = funnel("non-centred")
    assert divergences == 0
    assert_moments(u[::2, None], torch.zeros(1).double(), torch.full((1, 1), 9.0).double())
    assert float((u < -3).double().mean()) == pytest.approx(0.159, abs=0.04)


@pytest.mark.slow
def test_and_not_in_the_others():
    """For the numbers see above."""
    u, divergences = funnel("centred")
    assert divergences > 0
    assert float((u < -3).double().mean()) < 0.08


# ---------------------------------------------------------------------- other methods, other networks

INPUTS = torch.randn(24, 3, generator=torch.Generator().manual_seed(5))
LABELS = (INPUTS[:, 0] > 0).long()


def classifier(*between: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 6), *(between or (nn.Tanh(),)), nn.Linear(6, 2))


@pytest.mark.filterwarnings("ignore:KFAC has no Kronecker rule")  # it says so, and is exact for these layers
@pytest.mark.parametrize(
    "method",
    [
        tp.MAP(lr=0.02),
        tp.Ensemble(tp.MAP(lr=0.02), 2),
        tp.Variational(tp.MeanField(), lr=0.02),
        tp.Collect(tp.SGHMC(lr=0.01)),
        tp.Laplace(tp.MAP(lr=0.02), tp.KFAC(), tune=None),
        tp.Laplace(tp.MAP(lr=0.02), tp.Dense(), tune=None),
    ],
    ids=lambda m: f"{type(m).__name__}-{type(getattr(m, 'curvature', None)).__name__}",
)
def test_every_kind_of_method_learns_predicts_and_is_loaded(method, tmp_path):
    made = tp.NonCentred(classifier(), tp.HalfCauchy(), tp.FanIn())
    target = tp.Target(made, tp.Categorical(), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, method, (INPUTS, LABELS), steps=150, batch_size=24, progress=False)
    assert float((fitted.predict(INPUTS).probs.argmax(1) == LABELS).double().mean()) > 0.85
    fitted.save(tmp_path)
    again = tp.load(tmp_path, tp.NonCentred(classifier(), tp.HalfCauchy(), tp.FanIn()))
    assert torch.equal(again.predict(INPUTS).probs, fitted.predict(INPUTS).probs)


def test_a_run_is_not_loaded_into_a_network_of_other_scales(tmp_path):
    target = tp.Target(tp.NonCentred(classifier(), tp.HalfCauchy()), tp.Categorical(), tp.GaussianPrior(1.0))
    tp.fit(target, tp.MAP(lr=0.02), (INPUTS, LABELS), steps=2, progress=False).save(tmp_path)
    for other in (tp.NonCentred(classifier(), tp.HalfCauchy(2.0)), tp.NonCentred(classifier(), tp.HalfCauchy(), 0.5)):
        with pytest.raises((MismatchError, CorruptRunError, TemperanceError)):
            tp.load(tmp_path, other)


def test_dropout_batch_norm_frozen_and_tied_weights_stay_what_they_are():
    inner = classifier(nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3))
    inner[0].bias.requires_grad_(False)
    before = inner[0].bias.clone()
    made = tp.NonCentred(inner)
    assert "0.bias" not in made.names
    made.eval()
    assert torch.allclose(made(INPUTS), inner.eval()(INPUTS))
    made.train()
    torch.manual_seed(0)
    one = made(INPUTS)
    assert not torch.equal(one, made(INPUTS))  # it drops
    assert float(made.network[1].running_mean.abs().max()) > 0
    assert float(inner[1].running_mean.abs().max()) == 0.0  # the given network is not touched
    target = tp.Target(tp.NonCentred(inner), tp.Categorical(), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.MAP(lr=0.02), (INPUTS, LABELS), steps=20, progress=False)
    trained = fitted.network()
    assert torch.equal(trained.network[0].bias, before)
    assert torch.allclose(trained.eval()(INPUTS).softmax(1), fitted.predict(INPUTS).probs, atol=1e-6)
    assert torch.allclose(trained.plain().eval()(INPUTS), trained(INPUTS), atol=1e-6)
    twice = nn.Linear(3, 3)
    tied = tp.NonCentred(nn.Sequential(twice, nn.Tanh(), twice), tp.LogNormal(), 0.5)
    assert torch.allclose(tied(INPUTS), nn.Sequential(twice, nn.Tanh(), twice)(INPUTS), atol=1e-6)


def test_gradients_of_members_at_once_are_those_of_each():
    target = tp.Target(tp.NonCentred(classifier(), tp.InverseGamma(2.0, 1.0)), tp.Categorical(), tp.GaussianPrior(1.0))
    data = target.prepare(tp.data.Data(INPUTS, LABELS))
    engine, batch = Engine(target, data), next(iter(data.full_pass()))
    theta = target.sample_prior(3, generator(0, "x"))
    at_once, alone = torch.zeros_like(theta), torch.zeros_like(theta)
    engine.gradients(theta, batch, at_once)
    for row, into in zip(theta, alone, strict=True):
        engine.gradient(row.clone(), batch, into)
    assert torch.allclose(at_once, alone, atol=1e-6)
    assert float(at_once[:, :2].abs().min()) > 0  # the data pull the scales


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: tp.NonCentred(3), NetworkError, "`network` must"),
        (lambda: tp.NonCentred(network(), 1.0), ArgumentError, "`hyper` must"),
        (lambda: tp.NonCentred(network(), scale=-1.0), ArgumentError, "`scale` must"),
        (lambda: tp.NonCentred(network(), scale=torch.ones(6)), ArgumentError, "one number a tensor"),
        (lambda: tp.NonCentred(network(), each="weight"), ArgumentError, "`each` must"),
        (lambda: tp.NonCentred(nn.Tanh()), TemperanceError, "parameter"),
    ],
)
def test_bad_settings(make, error, message):
    with pytest.raises(error, match=message):
        make()
