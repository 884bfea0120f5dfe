"""Variational inference against closed forms: optima, bounds, temperatures, expected gradients, refusals, resuming."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, NumericalError
from temperance.data import Data
from temperance.engine.engine import Engine
from temperance.testing import conjugate_regression, critical_value, linear_gaussian
from temperance.testing.problems import solve_linear_gaussian

F64 = torch.float64
LONG = (0.9, 0.999)
slow = pytest.mark.slow
DECAY = torch.optim.lr_scheduler.ExponentialLR


def variational(family, steps, lr=0.1, last=1e-6, betas=(0.8, 0.9), **options):
    """Adam whose learning rate falls by the factor ``last`` over the run; its short memory is for exact gradients."""
    decay = {"scheduler": DECAY, "scheduler_args": {"gamma": last ** (1 / steps)}, "schedule_steps": True}
    return tp.Variational(family, lr, optimizer_args={"betas": betas}, **decay, **options)


def fit(problem, family, steps, target=None, batch_size=1000, **options):
    method = variational(family, steps, **options)
    return tp.fit(target or problem.target, method, problem.data, steps=steps, batch_size=batch_size)


def close(found, wanted, atol):
    """In units of the wanted standard deviations."""
    size = wanted.covariance.diagonal().sqrt()
    assert float(((found.mean - wanted.mean) / size).abs().max()) < atol
    relative = (found.covariance() - wanted.covariance) / torch.outer(size, size)
    assert float(relative.abs().max()) < atol


def with_likelihood_temperature(problem, value, temperature=1.0):
    """The target at λ and T, and the posterior N(μ, T Λ⁻¹) with Λ = JᵀJ/(λ s²) + S⁻¹ by the prior's share taken out."""
    old = problem.target
    target = tp.Target(old.network, old.likelihood, old.prior, temperature, likelihood_temperature=value)
    density = target.bound_prior.pieces[0][1]
    prior = torch.diag((torch.zeros_like(problem.mean) + density.scale) ** -2)
    centre = torch.zeros_like(problem.mean) + density.mean
    data = problem.precision - prior
    precision = data / value + prior
    mean = torch.linalg.solve(precision, (problem.precision @ problem.mean - prior @ centre) / value + prior @ centre)
    return target, tp.testing.ClosedForm(target, problem.data, mean, temperature * torch.linalg.inv(precision), 0.0)


def mean_field_of(problem, temperature=1.0):
    spread = torch.diag(temperature / problem.precision.diagonal())
    return tp.testing.ClosedForm(problem.target, problem.data, problem.mean, spread, 0.0)


@pytest.fixture
def exact_averages(monkeypatch):
    """Noise whose rows have mean zero and covariance one exactly (a Hadamard matrix): averages of quadratics are exact,
    so a method that estimates them without bias becomes deterministic."""

    def fill(noise, stream, antithetic):
        stream.count += 1
        rows, columns = noise.shape
        assert rows & (rows - 1) == 0
        assert columns < rows
        noise.copy_(torch.from_numpy(scipy.linalg.hadamard(rows)[:, 1 : columns + 1]))

    monkeypatch.setattr("temperance.inference.variational.variational.fill_noise_", fill)


# ---------------------------------------------------------------------- optima


def test_full_rank_finds_the_posterior_and_its_evidence():
    problem = conjugate_regression()
    fitted = fit(problem, tp.FullRank(), 2000, samples=8, sticking_the_landing=True, last=1e-4, betas=LONG)
    close(fitted.posterior, problem, 1e-6)
    bound = fitted.elbo(problem.data)
    assert bound.value == pytest.approx(problem.log_evidence, abs=1e-6)
    assert bound.standard_error < 1e-6
    # Of eight draws an epoch: E = log evidence, and a spread that is that of the log-likelihood alone.
    last = np.array(fitted.info.elbos[-400:])
    assert abs(last.mean() - problem.log_evidence) < 5 * last.std() / len(last) ** 0.5
    assert np.mean(fitted.info.elbos[:20]) < np.mean(fitted.info.elbos[40:60]) - 10


@pytest.mark.parametrize(
    ("temperature", "tempered", "landing"),
    [(0.3, 1.0, True), (1.0, 2.5, False), (0.4, 0.5, False), pytest.param(0.4, 0.5, True, marks=slow)],
)
def test_temperatures(temperature, tempered, landing, exact_averages):
    problem = conjugate_regression()
    target, wanted = with_likelihood_temperature(problem, tempered, temperature)
    fitted = fit(problem, tp.FullRank(), 500, target, samples=4, sticking_the_landing=landing)
    close(fitted.posterior, wanted, 1e-5)
    # The ELBO is the log of ∫ exp(−U/T): −U(μ)/T + ½ log |2π T Λ⁻¹|.
    log_z = -float(Engine(target).energy(wanted.mean, problem.data)) / temperature
    log_z += 0.5 * float(torch.logdet(2 * math.pi * wanted.covariance))
    assert fitted.elbo(problem.data).value == pytest.approx(log_z, abs=1e-5)
    assert fitted.info.elbos[-1] == pytest.approx(log_z, abs=1e-5)


@slow
@pytest.mark.parametrize("family", [tp.MatrixNormal(), tp.LowRank(2)], ids=["MatrixNormal", "LowRank"])
def test_other_families_that_hold_the_posterior_find_it(family, exact_averages):
    """A 1 × 3 matrix normal has every covariance; so has a low rank of 2 with a diagonal in three dimensions."""
    problem = conjugate_regression()
    close(fit(problem, family, 1500, samples=8, last=1e-5).posterior, problem, 1e-4)


MEAN_FIELD = [
    {"kl": "sampled"},
    {"warmup": 0.3},
    {"family": tp.Radial(), "samples": 8},
    pytest.param({"samples": 8}, marks=slow),
    pytest.param({"kl": "sampled", "sticking_the_landing": True}, marks=slow),
    pytest.param({"family": tp.Radial(), "samples": 8, "kl": "sampled"}, marks=slow),
]


@pytest.mark.parametrize("options", MEAN_FIELD, ids=str)
def test_mean_field_has_the_mean_and_conditional_variances(options, exact_averages):
    """Radial too: E_q of a quadratic needs its variances σ²/d alone, and the entropy is Σ log σ."""
    problem = conjugate_regression()
    fitted = fit(problem, steps=500, **{"family": tp.MeanField(), "samples": 4, **options})
    close(fitted.posterior, mean_field_of(problem), 1e-5)


@pytest.mark.parametrize("temperature", [0.3, pytest.param(1.0, marks=slow)])
def test_mean_field_with_parameters_of_all_shapes(temperature, exact_averages):
    problem = linear_gaussian()
    target = problem.target.with_temperature(temperature)
    fitted = fit(problem, tp.MeanField(), 700, target, samples=32)
    close(fitted.posterior, mean_field_of(problem, temperature), 1e-4)


def test_tied_scales_where_the_optimum_is_tied(exact_averages):
    """The rows of a 2 × 5 weight see the same inputs: σ_ij does not depend on i."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 5, generator=rng, dtype=F64), torch.randn(30, 2, generator=rng, dtype=F64)
    problem = solve_linear_gaussian(nn.Linear(5, 2, bias=False, dtype=F64), x, y, 0.3, tp.GaussianPrior(1.0))
    fitted = fit(problem, tp.TiedScale(1), 500, samples=16)
    close(fitted.posterior, mean_field_of(problem), 1e-5)


def test_mean_field_bound_is_short_of_the_evidence_by_the_divergence(exact_averages):
    """KL(q ‖ p) = ½ (Σ log Λᵢᵢ − log |Λ|): the means agree and the traces cancel."""
    problem = conjugate_regression()
    fitted = fit(problem, tp.MeanField(), 500, samples=4)
    gap = 0.5 * float(problem.precision.diagonal().log().sum() - torch.logdet(problem.precision))
    assert fitted.info.elbos[-1] == pytest.approx(problem.log_evidence - gap, abs=1e-6)
    found = fitted.elbo(problem.data, draws=2000)
    assert abs(found.value - problem.log_evidence + gap) < 5 * found.standard_error
    elbos = fitted.info.elbos
    assert len(elbos) == 500
    assert elbos[0] < elbos[10] < elbos[-1] + 1e-9
    assert max(elbos) < elbos[-1] + 0.01  # an epoch's losses with the KL at its end: not quite a bound on the way


NOISY = [
    {"batch_size": 3},
    {"batch_size": 3, "samples": 4, "antithetic": True},
    {"estimator": "local"},
    {"estimator": "flipout", "batch_size": 4},
]


@slow
@pytest.mark.parametrize("options", NOISY, ids=str)
def test_batches_draws_and_estimators_do_not_move_the_optimum(options):
    """Ragged batches, single draws: the same mean field, up to what the falling learning rate leaves of the noise
    (measured over seeds: some 3 % of a variance and of a standard deviation)."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, generator=rng, dtype=F64)
    y = x.sum(1, keepdim=True) + 0.5 * torch.randn(20, 1, generator=rng, dtype=F64)
    problem = solve_linear_gaussian(nn.Linear(3, 1, bias=False, dtype=F64), x, y, 0.5, tp.GaussianPrior(1.0))
    fitted = fit(problem, tp.MeanField(), 5000, lr=0.02, last=1e-3, betas=LONG, **options)
    close(fitted.posterior, mean_field_of(problem), 0.15)


def one_number(prior):
    """y = θ x with Gaussian noise: two numbers (μ, σ) whose ELBO is an integral over a line."""
    x = torch.tensor([[0.5], [1.0], [-0.7]], dtype=F64)
    y = torch.tensor([[0.9], [1.2], [-0.2]], dtype=F64)
    return tp.Target(nn.Linear(1, 1, bias=False, dtype=F64), tp.Normal(scale=0.8), prior), Data(x, y)


PRIORS = {
    "Laplace": tp.LaplacePrior(0.3, mean=-0.5),
    "Student": tp.StudentTPrior(0.2, df=2.0),
    "mixture": tp.MixturePrior([tp.GaussianPrior(0.1), tp.GaussianPrior(1.5, mean=0.4)], [0.6, 0.4]),
}


@pytest.mark.parametrize("name", ["Student", *(pytest.param(n, marks=slow) for n in ("Laplace", "mixture"))])
def test_priors_that_are_not_gaussian(name):
    target, data = one_number(PRIORS[name])
    grid = torch.linspace(-8, 8, 40_001, dtype=F64)
    log_joint = Engine(target).log_density(grid.unsqueeze(1), data)

    def minus_elbo(phi):
        q = torch.exp(-0.5 * ((grid - phi[0]) / math.exp(phi[1])) ** 2)
        return -float((q * log_joint).sum() / q.sum()) - phi[1] - 0.5 * math.log(2 * math.pi * math.e)

    best = scipy.optimize.minimize(
        minus_elbo, [0.5, -1.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10}
    )
    method = variational(tp.MeanField(), 800, lr=0.03, last=1e-3, betas=LONG, samples=16, antithetic=True)
    method = replace(method, initial_scale=0.05)
    fitted = tp.fit(target, method, data, steps=800, start=torch.tensor([0.5]))  # a mixture has two optima
    mean, scale = float(fitted.posterior.mean), float(fitted.posterior.covariance()) ** 0.5
    loose = 0.1 if name == "mixture" else 0.03  # a flat optimum, and noisy scores of a narrow component
    assert mean == pytest.approx(best.x[0], abs=loose * math.exp(best.x[1]))
    assert scale == pytest.approx(math.exp(best.x[1]), rel=loose)
    found = fitted.elbo(data, draws=2000)
    assert abs(found.value + best.fun) < 5 * found.standard_error + 3e-3


# ---------------------------------------------------------------------- expected gradients


def gradients(target, data, count, seed=0, **options):
    """Estimates of the gradient in φ at one φ: the learning rate is too small to move it."""
    method = tp.Variational(lr=1e-40, optimizer=torch.optim.SGD, initial_scale=0.4, **options)
    engine = Engine(target)
    state = method.init(engine, tp.Starts(), [torch.Generator().manual_seed(seed)])
    batch = next(iter(data.full_pass(len(data))))
    rows = []
    for _ in range(count):
        state, info = method.step(engine, state, batch)
        assert info.status.ok
        rows.append(state.grad.clone())
    return torch.stack(rows)


def shaped_problem(prior):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    rng = torch.Generator().manual_seed(0)
    target = tp.Target(net, tp.Normal(), prior, temperature=0.8)
    return target, target.prepare(Data(torch.randn(7, 2, generator=rng), torch.randn(7, 1, generator=rng)))


BOTH = tp.PerLayer({"0": tp.LaplacePrior(0.3, mean=0.1), "*": tp.GaussianPrior(tp.FanIn(bias=0.4), mean=-0.2)})


@pytest.mark.parametrize(
    ("family", "prior", "one", "two"),
    [
        (tp.MeanField(), BOTH, {"kl": "closed"}, {"kl": "sampled"}),
        (tp.FullRank(), tp.GaussianPrior(0.3, mean=0.2), {"kl": "closed"}, {"sticking_the_landing": True}),
        (tp.Radial(), tp.GaussianPrior(tp.FanIn()), {"kl": "closed"}, {"kl": "sampled", "samples": 4}),
        (tp.MatrixNormal(), BOTH, {}, {"sticking_the_landing": True, "samples": 2, "antithetic": True}),
    ],
    ids=["MeanField", "FullRank", "Radial", "MatrixNormal"],
)
def test_closed_sampled_and_landing_gradients_agree_on_average(family, prior, one, two):
    target, data = shaped_problem(prior)
    first = gradients(target, data, 250, 1, family=family, **one)
    second = gradients(target, data, 250, 2, family=family, **two)
    difference = first.mean(0) - second.mean(0)
    error = (first.var(0) / len(first) + second.var(0) / len(second)).sqrt()
    used = error > 0  # the upper triangles of factors have no gradient
    assert float(difference[~used].abs().max() if bool((~used).any()) else 0.0) == 0
    assert float((difference[used] / error[used]).abs().max()) < critical_value(int(used.sum()))


def test_antithetic_pairs_take_the_noise_out_of_the_mean_of_a_quadratic():
    problem = conjugate_regression()
    data = problem.target.prepare(problem.data)
    plain = gradients(problem.target, data, 50, samples=2)[:, :3].std(0)
    pairs = gradients(problem.target, data, 50, samples=2, antithetic=True)[:, :3].std(0)
    assert float((pairs / plain).max()) < 1e-10


# In single precision L may be known to every digit and Σ = L Lᵀ not be positive definite: here 1 + 1e-8 is 1. Such are
# posteriors of networks: loose along some directions, tight across them.
def test_full_rank_posterior_in_single_precision_is_as_good_as_its_factor():
    layout = tp.Target(nn.Linear(6, 1, bias=False), tp.Normal(scale=1.0), tp.GaussianPrior(1.0)).layout
    bound = tp.FullRank().bind(layout)
    phi = bound.start(torch.zeros(6), 1e-4, torch.Generator())
    factor = bound.parts(phi)["factor"]
    factor[1:, 0], factor[0, 0] = 1e4, 0.0  # θᵢ = ε₀ + 1e-4 εᵢ
    posterior, noise = bound.posterior(phi, {}), torch.ones(1, 6)
    draws = posterior.sample(1000, seed=0)
    assert float((draws[:, 1:] - draws[:, :1]).std()) == pytest.approx(1e-4, rel=0.1)
    wanted = -0.5 * 6 - float(factor.diagonal().sum()) - 3 * math.log(2 * math.pi)
    assert float(posterior.log_prob(bound.draw(phi, noise))) == pytest.approx(wanted, abs=0.05)


# The radial score in d dimensions grows like (d − 1)/r with r ~ |N(0, 1)|, so P(|∇ log q| > t) ~ 1/t: it has no mean
# (∫ dr/r diverges at 0), and a gradient built on it does not converge.
def test_sticking_the_landing_has_no_expectation_for_the_radial_family():
    problem = conjugate_regression()
    with pytest.raises(ArgumentError, match="sticking_the_landing"):
        tp.fit(problem.target, tp.Variational(tp.Radial(), sticking_the_landing=True), problem.data, steps=1)


def test_tied_scales_without_a_matrix_are_the_mean_field():
    layout = conjugate_regression().target.layout
    assert tp.TiedScale(1).bind(layout).num_parameters == tp.MeanField().bind(layout).num_parameters


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("family", {"family": 3}),
        ("lr", {"lr": 0.0}),
        ("initial_scale", {"initial_scale": -1.0}),
        ("samples", {"samples": 0}),
        ("samples", {"samples": 3, "antithetic": True}),
        ("warmup", {"warmup": 1.0}),
        ("warmup", {"warmup": -0.1}),
        ("warmup", {"warmup": "half"}),
        ("estimator", {"estimator": "own"}),
        ("estimator", {"estimator": "local", "samples": 2}),
        ("kl", {"kl": "open"}),
        ("kl", {"kl": "closed", "sticking_the_landing": True}),
        ("optimizer", {"optimizer": torch.optim.LBFGS}),
        ("optimizer", {"optimizer": "Adam"}),
        ("clip", {"clip": 0.0}),
        ("draws", {"draws": 0}),
    ],
)
def test_arguments_that_make_no_sense_are_named(argument, options):
    with pytest.raises(ArgumentError, match=f"`{argument}`"):
        tp.Variational(**options)


def test_what_does_not_go_together_is_refused_before_the_first_step():
    problem = conjugate_regression()

    def run(family, prior=None, **options):
        target = problem.target if prior is None else problem.target.with_prior(prior)
        tp.fit(target, tp.Variational(family, **options), problem.data, steps=1)

    with pytest.raises(ArgumentError, match=r"`family`.* 9 numbers"):
        run(tp.FullRank(limit=8))
    with pytest.raises(ArgumentError, match=r"`family`.*LowRank\(4\).* 3"):
        run(tp.LowRank(4))
    with pytest.raises(ArgumentError, match=r"`family`.* 10 numbers"):
        run(tp.MatrixNormal(limit=2))
    with pytest.raises(ArgumentError, match="`estimator`"):
        run(tp.FullRank(), estimator="local")
    for prior, options in (
        (tp.StudentTPrior(1.0), {"kl": "closed"}),
        (tp.StudentTPrior(1.0), {"estimator": "flipout"}),
    ):
        with pytest.raises(ArgumentError, match=r"`kl`.*StudentT"):
            run(tp.MeanField(), prior, **options)
    with pytest.raises(ArgumentError, match=r"`kl`.*Radial"):
        run(tp.Radial(), tp.LaplacePrior(1.0), kl="closed")


@pytest.mark.parametrize("lr", [1e3, 1e200])
def test_an_elbo_that_is_not_finite_fails_loud(lr):
    problem = conjugate_regression()
    with pytest.raises(NumericalError):
        tp.fit(problem.target, tp.Variational(lr=lr), problem.data, steps=50)


# ---------------------------------------------------------------------- runs that are stopped


class Stopped(Exception):
    """Stands for a process that ends."""


RUNS = [(family, "shared") for family in (tp.FullRank(), tp.LowRank(2), tp.MatrixNormal(), tp.Radial())]
RUNS += [(family, kind) for family in (tp.MeanField(), tp.TiedScale(1)) for kind in ("shared", "local", "flipout")]


@pytest.mark.parametrize(("family", "estimator"), RUNS, ids=str)
def test_resumed_run_is_the_uninterrupted_one(family, estimator, tmp_path, monkeypatch):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(11, 3, generator=torch.Generator().manual_seed(1))
    options = {"samples": 2, "antithetic": True} if estimator == "shared" else {}
    method = variational(family, 14, lr=0.003, last=0.5, warmup=0.4, estimator=estimator, **options)

    def run(**more):
        target = tp.Target(net, tp.Normal(), tp.GaussianPrior(1.0))
        return tp.fit(target, method, (x, x[:, :1].sin()), steps=14, batch_size=4, seed=3, **more)

    whole, original, count = run(), tp.Variational.step, 0

    def step(self, engine, state, batch):
        nonlocal count
        count += 1
        if count > 8:
            raise Stopped
        return original(self, engine, state, batch)

    with monkeypatch.context() as patched:
        patched.setattr(tp.Variational, "step", step)
        with pytest.raises(Stopped):
            run(checkpoint=tmp_path / "run", every=5)  # in the middle of the second epoch
    resumed = run(checkpoint=tmp_path / "run", every=5)
    assert torch.equal(whole.posterior.mean, resumed.posterior.mean)
    assert torch.equal(whole.posterior.covariance(), resumed.posterior.covariance())
    assert whole.info.elbos == resumed.info.elbos
    assert len(whole.info.elbos) == 4
    loaded = tp.load(tmp_path / "run", net)
    assert torch.equal(loaded.predict(x).mean(), whole.predict(x).mean())
