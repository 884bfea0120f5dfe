"""IVON and VOGN: one step by hand, fixed points in closed form, curvature against brute force, resuming."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch
from torch import nn
from torch.func import functional_call, hessian, jacrev

import temperance as tp
from temperance.core.errors import ArgumentError, NetworkError, NumericalError
from temperance.data import Data
from temperance.engine.engine import Engine
from temperance.engine.native import NormalStream
from temperance.inference.curvature.stochastic import BatchCurvature
from temperance.testing import conjugate_regression, critical_value, linear_gaussian
from temperance.testing.problems import solve_linear_gaussian

F64 = torch.float64
slow = pytest.mark.slow


@pytest.fixture
def exact_averages(monkeypatch):
    """Noise with mean zero and covariance one exactly (columns of a Hadamard matrix): on a quadratic, averages of
    gradients and of ĥ = g ε / σ over the rows are exact, and what is left of the method is deterministic."""

    def fill(noise, stream, antithetic):
        stream.count += 1
        rows, columns = noise.shape
        assert columns < rows
        noise.copy_(torch.from_numpy(scipy.linalg.hadamard(rows)[:, 1 : columns + 1]))

    monkeypatch.setattr("temperance.inference.variational.natural.fill_noise_", fill)


def close(posterior, problem, temperature, tolerance):
    """Mean μ in standard deviations, variances relative to T/Λᵢᵢ; nothing off the diagonal."""
    wanted = temperature / problem.precision.diagonal()
    covariance = posterior.covariance()
    assert torch.equal(covariance, torch.diag(covariance.diagonal()))
    assert float(((posterior.mean - problem.mean) / wanted.sqrt()).abs().max()) < tolerance
    assert float((covariance.diagonal() / wanted - 1).abs().max()) < tolerance


# ---------------------------------------------------------------------- the update rules


def test_three_steps_of_ivon_by_hand():
    """Linear regression with batches of 4 of 10 rows, two draws, T = 0.7, λ = 1.5, a prior with mean and scales."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(10, 3, generator=rng, dtype=F64), torch.randn(10, 1, generator=rng, dtype=F64)
    scales, centre = torch.tensor([0.5, 1.0, 2.0], dtype=F64), torch.tensor([0.1, -0.3, 0.2], dtype=F64)
    prior = tp.GaussianPrior(scales, mean=centre)
    net = nn.Linear(3, 1, bias=False, dtype=F64)
    target = tp.Target(net, tp.Normal(scale=0.5), prior, 0.7, likelihood_temperature=1.5)
    method = tp.IVON(lr=0.2, betas=(0.8, 0.95), initial_hessian=3.0, samples=2, schedule=tp.cosine, clip=0.05)
    data = target.prepare(Data(x, y))
    engine = Engine(target, data)
    state = method.init(engine, tp.Starts(), [torch.Generator().manual_seed(1)])
    stream = NormalStream(state.noise_seed)

    n, m = 10, target.initial_theta().numpy().copy()
    h, average = np.full(3, 3.0), np.zeros(3)
    delta = 1 / (n * scales.numpy() ** 2)
    clipped = False
    for t, batch in enumerate(list(data.full_pass(4)), start=1):
        progress = (t - 1) / 3
        placed = tp.data.Batch(batch.x, batch.y, n, step=t - 1, progress=progress, total_steps=3)
        state, info = method.step(engine, state, placed)
        assert info.status.ok
        a, b = batch.x.numpy(), batch.y.numpy()[:, 0]
        eps = stream.fill_(torch.empty(2, 3, dtype=F64)).numpy()
        sigma = np.sqrt(0.7 / (n * (h + delta)))
        theta = m + sigma * eps
        g = np.stack([a.T @ (a @ row - b) / (len(b) * 0.25 * 1.5) for row in theta])
        estimate = (g * eps / sigma).mean(0)
        average = 0.8 * average + 0.2 * g.mean(0)
        new = 0.95 * h + 0.05 * estimate + 0.5 * 0.05**2 * (h - estimate) ** 2 / (h + delta)
        rate = 0.2 * tp.cosine(progress) * (3.0 + delta)
        step = rate * (average / (1 - 0.8**t) + delta * (m - centre.numpy())) / (new + delta)
        clipped = clipped or bool((np.abs(step) > 0.05).any())
        h, m = new, m - np.clip(step, -0.05, 0.05)
        np.testing.assert_allclose(state.hessian.numpy(), h, rtol=1e-10)
        np.testing.assert_allclose(state.mean.numpy(), m, rtol=1e-10)
    assert clipped
    posterior = method.posteriors(engine, state, None)[0]
    np.testing.assert_allclose(posterior.covariance().diagonal().numpy(), 0.7 / (n * (h + delta)), rtol=1e-10)


def test_ivon_keeps_the_curvature_positive():
    """h + δ stays positive whatever the estimate: (1 − s) h + s ĥ + ½ s² (h − ĥ)²/(h + δ) ≥ (h + δ)/2 − δ."""
    method = tp.IVON(betas=(0.9, 0.5))
    for delta in (0.0, 0.3):
        for estimate in np.linspace(-50, 50, 201):
            h = torch.ones(1, dtype=F64)
            method.learn_curvature(h, torch.full((1,), float(estimate), dtype=F64), h + delta)
            assert float(h) + delta >= 0.5 * (1 + delta) - 1e-12


def test_two_steps_of_vogn_by_hand():
    problem = conjugate_regression()
    target, data = problem.target, problem.target.prepare(problem.data)
    method = tp.VOGN(lr=0.3, betas=(0.5, 0.8), initial_hessian=50.0, curvature="gradients")
    engine = Engine(target)
    state = method.init(engine, tp.Starts(), [torch.Generator().manual_seed(1)])
    stream = NormalStream(state.noise_seed)
    m, h, average = target.initial_theta().clone(), torch.full((3,), 50.0, dtype=F64), torch.zeros(3, dtype=F64)
    batch = next(iter(data.full_pass(10)))
    for t in (1, 2):
        state, info = method.step(engine, state, batch)
        assert info.status.ok
        theta = m + stream.fill_(torch.empty(1, 3, dtype=F64))[0] / (10 * (h + 0.1)).sqrt()
        each = (batch.x @ theta - batch.y[:, 0]).unsqueeze(1) * batch.x / 0.01
        average = 0.5 * average + 0.5 * each.mean(0)
        h = 0.8 * h + 0.2 * each.square().mean(0)
        m = m - 0.3 * (average / (1 - 0.5**t) + 0.1 * m) / (h + 0.1)
        torch.testing.assert_close(state.hessian, h, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(state.mean, m, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------- fixed points


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_ivon_settles_at_the_mean_field_optimum(temperature, exact_averages):
    problem = conjugate_regression()
    target = problem.target.with_temperature(temperature)
    method = tp.IVON(lr=0.01, betas=(0.5, 0.95), initial_hessian=30.0, samples=4)
    fitted = tp.fit(target, method, problem.data, steps=500, batch_size=1000)
    close(fitted.posterior, problem, temperature, 1e-6)


def test_ivon_with_bare_parameters_and_a_prior_of_several_scales(exact_averages):
    problem = linear_gaussian(noise=5.0)
    method = tp.IVON(lr=0.3, betas=(0.5, 0.9), initial_hessian=0.2, samples=32, schedule=tp.flat)
    fitted = tp.fit(problem.target.with_temperature(0.3), method, problem.data, steps=500, batch_size=1000)
    close(fitted.posterior, problem, 0.3, 1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_vogn_settles_at_the_mean_field_optimum(temperature, exact_averages):
    problem = conjugate_regression()
    target = problem.target.with_temperature(temperature)
    method = tp.VOGN(lr=0.3, betas=(0.5, 0.9), samples=4, curvature="ggn")
    fitted = tp.fit(target, method, problem.data, steps=150, batch_size=1000)
    close(fitted.posterior, problem, temperature, 1e-5)


@slow
def test_vogn_with_bare_parameters_and_a_prior_of_several_scales(monkeypatch):
    """On a linear model neither E g nor the Gauss–Newton matrix depends on the spread of the draws: none is needed."""
    monkeypatch.setattr(
        "temperance.inference.variational.natural.fill_noise_", lambda noise, stream, antithetic: noise.zero_()
    )
    problem = linear_gaussian(noise=5.0)
    method = tp.VOGN(lr=0.4, betas=(0.5, 0.5), curvature="ggn", initial_hessian=0.1)
    fitted = tp.fit(problem.target, method, problem.data, steps=80, batch_size=1000)
    close(fitted.posterior, problem, 1.0, 1e-3)


def round_problem():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=rng, dtype=F64)
    y = x.sum(1, keepdim=True) + 0.5 * torch.randn(30, 1, generator=rng, dtype=F64)
    prior = tp.GaussianPrior(torch.tensor([0.2, 1.0, 3.0], dtype=F64), mean=0.4)
    return solve_linear_gaussian(nn.Linear(3, 1, bias=False, dtype=F64), x, y, 0.5, prior)


NOISY = {
    "IVON": (tp.IVON(lr=0.05, betas=(0.9, 0.999), initial_hessian=4.0, schedule=tp.cosine), 4000),
    "VOGN, ggn": (tp.VOGN(lr=0.05, betas=(0.9, 0.995), schedule=tp.cosine, curvature="ggn"), 800),
    "VOGN, sampled": (tp.VOGN(lr=0.05, betas=(0.9, 0.998), schedule=tp.cosine), 1500),
}


@slow
@pytest.mark.parametrize("name", NOISY)
def test_fixed_points_with_batches_and_single_draws(name):
    """ĥ has a relative variance v ≲ 6 (draws, batches of 7, sampled labels), so h of √(v (1 − β₂)/2) ≲ 0.06, and a bias
    of v (1 − β₂)/2 under IVON's rule; five of these."""
    method, steps = NOISY[name]
    problem = round_problem()
    fitted = tp.fit(problem.target, method, problem.data, steps=steps, batch_size=7)
    close(fitted.posterior, problem, 1.0, 0.3)


def test_ivon_under_a_prior_that_is_not_gaussian():
    """One weight, Laplace prior: the mean-field optimum by quadrature."""
    x = torch.tensor([[0.5], [1.0], [-0.7]], dtype=F64)
    y = torch.tensor([[0.9], [1.2], [-0.2]], dtype=F64)
    net = nn.Linear(1, 1, bias=False, dtype=F64)
    target = tp.Target(net, tp.Normal(scale=0.8), tp.StudentTPrior(0.8, df=4.0, mean=-0.5))
    grid = torch.linspace(-8, 8, 20_001, dtype=F64)
    log_joint = Engine(target).log_density(grid.unsqueeze(1), Data(x, y))

    def minus_elbo(phi):
        q = torch.exp(-0.5 * ((grid - phi[0]) / np.exp(phi[1])) ** 2)
        return -float((q * log_joint).sum() / q.sum()) - phi[1]

    best = scipy.optimize.minimize(minus_elbo, [0.5, -1.0], method="Nelder-Mead", options={"xatol": 1e-7}).x
    method = tp.IVON(lr=0.1, betas=(0.9, 0.995), samples=32, antithetic=True, schedule=tp.cosine)
    fitted = tp.fit(target, method, (x, y), steps=1000)
    # ĥ of 16 pairs: relative sd about √(4/32), averaged over 2/(1 − β₂) steps: 0.02
    assert float(fitted.posterior.mean) == pytest.approx(best[0], abs=0.1 * np.exp(best[1]))
    assert float(fitted.posterior.covariance()) == pytest.approx(np.exp(2 * best[1]), rel=0.1)


# ---------------------------------------------------------------------- curvature


def networks():
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    cnn = nn.Sequential(nn.Conv2d(1, 2, 2, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)).double()
    rng = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (6,), generator=rng)
    return {
        "MLP": (mlp, torch.randn(6, 4, generator=rng, dtype=F64), labels),
        "CNN": (cnn, torch.randn(6, 1, 4, 4, generator=rng, dtype=F64), labels),
    }


def brute_force(target, theta, batch):
    """Gradients of single examples (B × P), and the diagonal of the Gauss–Newton matrix, averaged over the batch."""
    log_prob = target.likelihood.log_prob
    grads, ggn = [], torch.zeros_like(theta)
    for k in range(batch.size):
        x, y = batch.x[k : k + 1], batch.y[k : k + 1]

        def outputs(at, x=x):
            return functional_call(target.network, dict(target.layout.unflatten(at)), (x,))

        f, jacobian = outputs(theta).detach(), jacrev(outputs)(theta).reshape(-1, len(theta))
        curved = hessian(lambda o, y=y: -log_prob(o, y, {}).sum())(f).reshape(len(jacobian), -1)
        slope = jacrev(lambda o, y=y: -log_prob(o, y, {}).sum())(f).reshape(-1)
        grads.append(slope @ jacobian)
        ggn += torch.einsum("ip,ij,jp->p", jacobian, curved, jacobian) / batch.size
    return torch.stack(grads), ggn


@pytest.mark.parametrize("name", ["MLP", "CNN"])
def test_vogn_curvature_is_that_of_brute_force(name):
    net, x, y = networks()[name]
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0), likelihood_temperature=0.6)
    data = target.prepare(Data(x, y))
    batch = next(iter(data.full_pass(6)))
    theta = target.initial_theta() + 0.3
    grads, ggn = brute_force(target, theta, batch)
    rng = torch.Generator().manual_seed(0)

    def curvature(kind):
        return BatchCurvature(Engine(target, data), target.initial_theta(), {}, data, kind)

    _, slope, exact = curvature("ggn").at(theta, batch, rng)
    torch.testing.assert_close(slope, grads.mean(0) / 0.6, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(exact, ggn / 0.6, rtol=1e-9, atol=1e-12)
    _, _, squares = curvature("empirical").at(theta, batch, rng)
    torch.testing.assert_close(squares, grads.square().mean(0) / 0.6, rtol=1e-9, atol=1e-12)
    work = curvature("monte-carlo")
    found = torch.stack([work.at(theta, batch, rng)[2] for _ in range(200)])
    spread = found.std(0) / len(found) ** 0.5
    z = (found.mean(0) - ggn / 0.6).abs() / spread.clamp(min=1e-12)
    assert float(z.max()) < critical_value(len(z)) + 1  # squares are skew


# ---------------------------------------------------------------------- what is refused, and runs that are stopped


def test_what_vogn_refuses():
    problem = conjugate_regression()
    with pytest.raises(ArgumentError, match="`prior`"):
        tp.fit(problem.target.with_prior(tp.LaplacePrior(1.0)), tp.VOGN(), problem.data, steps=1)
    normed = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    target = tp.Target(normed, tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    with pytest.raises(NetworkError, match=r"VOGN.*batch norm"):
        tp.fit(target, tp.VOGN(), problem.data, steps=1)


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("lr", {"lr": 0}),
        ("betas", {"betas": (0.9, 1.0)}),
        ("betas", {"betas": 0.9}),
        ("initial_hessian", {"initial_hessian": 0.0}),
        ("samples", {"samples": 3, "antithetic": True}),
        ("clip", {"clip": -1.0}),
        ("schedule", {"schedule": 0.1}),
    ],
)
def test_arguments_that_make_no_sense_are_named(argument, options):
    for kind in (tp.IVON, tp.VOGN):
        with pytest.raises(ArgumentError, match=f"`{argument}`"):
            kind(**options)
    with pytest.raises(ArgumentError, match="`curvature`"):
        tp.VOGN(curvature="hessian")


class Stopped(Exception):
    """Stands for a process that ends."""


METHODS = {
    "IVON": tp.IVON(lr=0.05, initial_hessian=5.0, schedule=tp.cosine),
    "IVON, pairs": tp.IVON(lr=0.05, betas=(0.9, 0.99), samples=2, antithetic=True),
    "VOGN, sampled": tp.VOGN(lr=0.05),
    "VOGN, ggn": tp.VOGN(lr=0.05, curvature="ggn", samples=2),
    "VOGN, gradients": tp.VOGN(lr=0.05, curvature="gradients", schedule=tp.cosine),
}


@pytest.mark.parametrize("name", METHODS)
def test_resumed_run_is_the_uninterrupted_one(name, tmp_path, monkeypatch):
    net, x, y = networks()["MLP"]
    method = METHODS[name]

    def run(**more):
        target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
        return tp.fit(target, method, (x, y), steps=9, batch_size=4, seed=3, **more)

    whole, original, count = run(), type(method).step, 0

    def step(self, engine, state, batch):
        nonlocal count
        count += 1
        if count > 6:
            raise Stopped
        return original(self, engine, state, batch)

    with monkeypatch.context() as patched:
        patched.setattr(type(method), "step", step)
        with pytest.raises(Stopped):
            run(checkpoint=tmp_path / "run", every=3)
    resumed = run(checkpoint=tmp_path / "run", every=3)
    assert torch.equal(whole.posterior.mean, resumed.posterior.mean)
    assert torch.equal(whole.posterior.covariance(), resumed.posterior.covariance())
    assert torch.equal(tp.load(tmp_path / "run", net).predict(x).probs, whole.predict(x).probs)


def test_the_elbo_of_an_epoch_goes_up_and_stays_below_the_evidence():
    problem = conjugate_regression()
    method = tp.IVON(lr=0.05, betas=(0.9, 0.99), initial_hessian=10.0, samples=8, antithetic=True, schedule=tp.cosine)
    elbos = tp.fit(problem.target, method, problem.data, steps=800, batch_size=10).info.elbos
    assert len(elbos) == 800
    assert sum(elbos[:20]) / 20 < sum(elbos[-200:]) / 200 - 1
    assert sum(elbos[-200:]) / 200 < problem.log_evidence


@pytest.mark.parametrize("method", [tp.IVON(lr=100.0), tp.Variational(lr=10.0)], ids=["IVON", "Variational"])
def test_divergence_is_no_success(method):
    train, _ = tp.data.load("diabetes")
    target = tp.Target(tp.nn.MLP(10, [20, 20], 1), tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    with pytest.raises(NumericalError):
        tp.fit(target, method, train, epochs=50)
