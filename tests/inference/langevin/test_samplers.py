"""The samplers where theory says what they must give."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import NumericalError, TemperanceWarning
from temperance.core.seeds import generator
from temperance.data.data import Batch
from temperance.engine.engine import Engine
from temperance.inference.langevin.sampler import take_reading
from temperance.testing import critical_value, linear_gaussian

SIZE = 20_000


class Blind(nn.Module):
    """Outputs that do not depend on θ: the energy is the prior's alone."""

    def __init__(self, *sizes: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.theta = nn.ParameterList([nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + sum(0.0 * t.sum() for t in self.theta)


def quadratic(k: float, temperature: float = 1.0, rows: int = 1, size: int = SIZE) -> tuple[tp.Target, Batch]:
    """U = ½ k ‖θ‖² over many independent coordinates: one run gives the variance with a small error."""
    target = tp.Target(Blind(size), tp.Normal(scale=1.0), tp.GaussianPrior(scale=k**-0.5), temperature=temperature)
    x = torch.zeros(rows, 1, dtype=torch.float64)
    return target, Batch(x, x, num_data=rows)


def run(method, target, batch, steps, heat=1.0):
    engine = Engine(target)
    state = method.init(engine, tp.Starts(), [generator(0, "test")])
    method.chain(state).heat = heat
    for _ in range(steps):
        state, info = method.step(engine, state, batch)
        assert info.status.ok
    return state


def assert_variance(values: torch.Tensor, wanted: float) -> None:
    """Of independent Gaussian numbers."""
    found = float(values.double().square().mean())
    error = (found - wanted) / (wanted * math.sqrt(2 / values.numel()))
    assert abs(error) < critical_value(1), f"{found:.5f}, should be {wanted:.5f} ({error:.1f} standard errors)"


# ℓ, β, n, k, T, and the variances of protocols A.2
EULER = [
    (0.05, 0.8, 1, 1.0, 1.0, 1.01408451, 0.12597566, 1.12676056, 1.02564103),
    (0.1, 0.98, 1, 1.0, 1.0, 1.02590674, 0.16384858, 1.03626943, 1.05263158),
    (0.01, 0.9, 1, 1.0, 1.0, 1.00263852, 0.05277045, 1.05540897, 1.00502513),
    (0.25, 0.5, 1, 1.0, 0.5, 0.54545455, 0.18181818, 0.72727273, 0.57142857),
]


@pytest.mark.parametrize("row", EULER)
def test_symplectic_euler_has_its_own_moments(row):
    lr, beta, n, k, temperature, position, cross, momentum, _ = row
    target, batch = quadratic(k, temperature, n)
    state = run(tp.SGHMC(lr=lr, momentum=beta), target, batch, 700)
    theta, m = state.theta, state.slots["velocity"]
    assert_variance(theta, position)
    assert_variance(m, momentum)
    error = float((theta * m).mean()) - cross
    assert abs(error) < critical_value(1) * math.sqrt((position * momentum + cross**2) / SIZE)


@pytest.mark.parametrize("row", EULER)
def test_langevin_is_too_wide_by_the_known_factor(row):
    lr, _, n, k, temperature, *_, variance = row
    target, batch = quadratic(k, temperature, n)
    assert_variance(run(tp.SGLD(lr=lr), target, batch, int(8 / lr)).theta, variance)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
@pytest.mark.parametrize(
    ("method", "steps"),
    [
        (tp.BAOAB(lr=0.5, momentum=0.8), 300),
        (tp.BAOAB(lr=2.0, momentum=0.3), 100),
        (tp.LeimkuhlerMatthews(lr=0.3), 100),
        (tp.LeimkuhlerMatthews(lr=1.0), 100),
    ],
)
def test_position_variance_is_exact_at_any_stable_step(method, steps, temperature):
    k, n = 2.0, 3
    target, batch = quadratic(k, temperature, n)
    assert_variance(run(method, target, batch, steps).theta, temperature / k)


def test_baoab_momentum_is_exact_after_the_fluctuation():
    target, batch = quadratic(1.5, temperature=0.5)
    assert_variance(run(tp.BAOAB(lr=0.5, momentum=0.8), target, batch, 300).slots["velocity"], 0.5)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_gradient_noise_widens_langevin_as_computed(temperature):
    eta, k, s = 0.1, 1.0, 2.0
    method = tp.SGLD(lr=eta)
    chain = noisy(method, k, s, temperature, 200)
    assert_variance(chain.theta, (2 * temperature * eta + eta**2 * s**2) / (1 - (1 - eta * k) ** 2))


def test_a_thermostat_takes_out_the_heat_of_noisy_gradients():
    k, s, lr = 1.0, 10.0, 4e-4
    hot = noisy(tp.SGHMC(lr=lr, momentum=0.98), k, s, 1.0, 4000).theta.var().item()
    kept = noisy(tp.SGNHT(lr=lr, momentum=0.98), k, s, 1.0, 6000)
    assert hot > 1.8  # the noise of the gradient is heat
    assert abs(float(kept.slots["velocity"].square().mean()) - 1.0) < 0.12
    assert abs(kept.theta.var().item() - 1.0) < 0.12


def noisy(method, k, s, temperature, steps):
    """Moves with gradient k θ + s ε, N = 1."""
    from temperance.inference.langevin.sampler import Tempo

    target, _ = quadratic(k, temperature, size=4000)
    engine = Engine(target)
    chain = method.init(engine, tp.Starts(), [generator(0, "test")])
    rng = torch.Generator().manual_seed(1)
    for _ in range(steps):
        torch.mul(chain.theta, k, out=chain.grad)
        chain.grad.add_(torch.randn(chain.grad.shape, generator=rng, dtype=chain.grad.dtype), alpha=s)
        chain.streams[0].fill_(chain.noise)
        method.move(chain, Tempo(1, temperature, 1.0))
    return chain


def test_frozen_psgld_is_langevin_with_a_step_for_each_weight():
    method = tp.PSGLD(lr=0.01, adapt=1, epsilon=1e-2)
    lr, k = 0.01, 4.0
    target, batch = quadratic(k)
    engine = Engine(target)
    state = method.init(engine, tp.Starts(), [generator(0, "test")])
    state.theta.fill_(0.05)  # gradients k θ = 0.2 in the first step, which stay as V
    for _ in range(900):
        state, _ = method.step(engine, state, batch)
    step = lr / (0.2 + 1e-2)
    assert_variance(state.theta, (1 / k) / (1 - step * k / 2))


def test_a_pace_scales_h_and_not_the_learning_rate():
    lr, beta, k, c = 0.2, 0.8, 1.0, 0.3
    target, batch = quadratic(k)
    paced = tp.SGHMC(lr=lr, momentum=beta)
    slow = tp.SGHMC(lr=c * c * lr, momentum=1 - c * (1 - beta))
    engine = Engine(target)
    states = [m.init(engine, tp.Starts(), [generator(0, "test")]) for m in (paced, slow)]
    states[0].pace = c
    for _ in range(50):
        for m, state in zip((paced, slow), states, strict=True):
            m.step(engine, state, batch)
    assert torch.allclose(states[0].theta, states[1].theta, rtol=1e-9, atol=1e-12)
    assert paced.kinetic_bias(c) == pytest.approx(2 / (2 - c * (1 - beta)))


def test_baoab_pace_is_that_of_the_protocol():
    lr, beta, c = 0.2, 0.8, 0.3
    target, batch = quadratic(1.0)
    slow = tp.BAOAB(lr=c * c * (beta**c + 1) / (beta + 1) * lr, momentum=beta**c)
    paced = tp.BAOAB(lr=lr, momentum=beta)
    engine = Engine(target)
    states = [m.init(engine, tp.Starts(), [generator(0, "test")]) for m in (paced, slow)]
    states[0].pace = c
    for _ in range(50):
        for m, state in zip((paced, slow), states, strict=True):
            m.step(engine, state, batch)
    assert torch.allclose(states[0].theta, states[1].theta, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("cold", ["heat", "temperature"])
def test_without_heat_it_is_sgd_with_momentum_step_for_step(cold):
    problem = linear_gaussian()
    target = problem.target.with_temperature(1e-40 if cold == "temperature" else 1.0)
    method = tp.SGHMC(lr=0.01, momentum=0.9)
    engine = Engine(target)
    state = method.init(engine, tp.Starts(), [generator(0, "test")])
    state.heat = 0.0 if cold == "heat" else 1.0
    theta = target.initial_theta().requires_grad_()
    sgd = torch.optim.SGD([theta], lr=0.01, momentum=0.9)
    for epoch in range(5):
        for batch in problem.data.batches(8, seed=0, epoch=epoch):
            method.step(engine, state, batch)
            sgd.zero_grad()
            Engine(target).loss(theta, batch).backward()
            sgd.step()
            assert torch.allclose(state.theta, theta.detach(), rtol=1e-9, atol=1e-10)


def test_new_masses_keep_the_kinetic_temperature_of_every_tensor():
    problem = linear_gaussian()
    method = tp.SGHMC(lr=0.01, preconditioner=tp.Layerwise(batches=3))
    target = problem.target
    engine = Engine(target)
    state = method.init(engine, tp.Starts(), [generator(0, "test")])
    batches = [b for epoch in range(9) for b in problem.data.batches(8, seed=0, epoch=epoch)]
    for batch in batches[:20]:
        state, _ = method.step(engine, state, batch)
    assert state.scale is not None
    assert float(state.scale.max()) == 1.0
    assert float(state.scale.min()) < 0.9
    take_reading(state, 40, torch.zeros(()), 1.0)
    before, masses = state.reading.kinetic.clone(), state.scale.clone()
    velocity = state.slots["velocity"].clone()
    state.to_estimate = 3
    for batch in batches[20:23]:
        state, _ = method.step(engine, state, batch)
        assert not state.moved
    take_reading(state, 40, torch.zeros(()), 1.0)
    assert not torch.equal(masses, state.scale)
    assert not torch.equal(velocity, state.slots["velocity"])
    assert torch.allclose(before, state.reading.kinetic, rtol=1e-12)


def test_masses_are_those_of_the_protocol():
    problem = linear_gaussian()
    target, method = problem.target, tp.SGHMC(lr=0.01, preconditioner=tp.Layerwise(batches=5))
    engine = Engine(target)
    state = method.init(engine, tp.Starts(), [generator(0, "test")])
    grad, theta = torch.zeros_like(state.theta), state.theta.clone()
    total = torch.zeros_like(theta)
    for batch in list(problem.data.batches(8, seed=0))[:5]:
        Engine(target).gradients(theta, batch, grad)
        total += grad.square() / 5
        state, _ = method.step(engine, state, batch)
    mass = torch.stack([(total[:, e.start : e.stop].mean() + 1e-7).sqrt() for e in target.layout.entries])
    assert torch.allclose(state.scale, (mass / mass.min()).rsqrt(), rtol=1e-9)
    assert torch.equal(state.theta, theta)


@pytest.mark.parametrize(
    "method",
    [
        tp.SGHMC(lr=0.1, momentum=0.9, preconditioner=tp.Layerwise(batches=2)),
        tp.SGNHT(lr=0.01, momentum=0.9, preconditioner=tp.Layerwise(batches=2)),
        tp.BAOAB(lr=0.1, momentum=0.9, preconditioner=tp.Layerwise(batches=2)),
        tp.SGLD(lr=0.1, preconditioner=tp.Layerwise(batches=2)),
        tp.LeimkuhlerMatthews(lr=0.1, preconditioner=tp.Layerwise(batches=2)),
    ],
)
def test_masses_do_not_change_what_is_sampled(method):
    """Two tensors of curvatures 1 and 25, the second with the larger gradients and so with the larger mass."""
    sizes, k = (6000, 6000), torch.tensor([1.0, 25.0])
    prior = tp.PerLayer({"theta.0": tp.GaussianPrior(1.0), "theta.1": tp.GaussianPrior(0.2)})
    target = tp.Target(Blind(*sizes), tp.Normal(scale=1.0), prior)
    x = torch.zeros(1, 1, dtype=torch.float64)
    batch = Batch(x, x, num_data=1)
    engine = Engine(target)
    state = method.init(engine, tp.Starts.of(torch.full((12000,), 0.3, dtype=torch.float64)), [generator(0, "test")])
    for _ in range(600):
        state, _ = method.step(engine, state, batch)
    assert float(state.scale[0, 1]) == pytest.approx(25**-0.5, rel=1e-3)
    for entry, curvature in zip(target.layout.entries, k, strict=True):
        found = float(state.theta[:, entry.start : entry.stop].square().mean()) * float(curvature)
        assert abs(found - 1.0) < 0.25 * method.lr * 10 + 0.1  # the known bias of the step, with masses at most ℓ k / 4


def test_batch_size_does_not_change_what_is_sampled():
    problem = linear_gaussian()
    spreads = []
    for batch_size, lr in ((40, 2e-3), (4, 2e-4)):  # gradient noise of small batches is heat of order ℓ
        method = tp.Ensemble(tp.SGHMC(lr=lr, momentum=0.9 if batch_size == 40 else 0.97), 100)
        root = torch.linalg.cholesky(problem.covariance)
        noise = torch.randn(100, len(root), generator=generator(0, "start"), dtype=torch.float64)
        start = problem.mean + noise @ root.T
        fitted = tp.fit(problem.target, method, problem.data, steps=300, batch_size=batch_size, start=start)
        draws = torch.cat([c.theta for c in fitted.posterior.components])
        energy = Engine(problem.target).energy(draws, problem.data)
        spreads.append((float(energy.mean()), float(energy.std()) / 10))
    (a, sa), (b, sb) = spreads
    assert abs(a - b) < critical_value(1, 1e-4) * math.hypot(sa, sb)


def test_metropolis_keeps_the_law_where_the_step_is_coarse():
    """A quartic well with a step at which the uncorrected sampler is visibly wrong."""
    target = tp.Target(Blind(1), tp.Normal(scale=1.0), tp.StudentTPrior(df=5.0, scale=0.3))
    x = torch.zeros(1, 1, dtype=torch.float64)
    batch = Batch(x, x, num_data=1)
    method = tp.GGMC(lr=0.08, momentum=0.5, length=1)
    engine = Engine(target)
    state = method.init(engine, tp.Starts(), [generator(0, "test")])
    draws = []
    for _ in range(8_000):
        state, _ = method.step(engine, state, batch)
        draws.append(float(state.chain.theta))
    z = torch.tensor(draws)
    rate = state.accepted / state.proposed
    assert 0.3 < rate < 0.97
    inside = (z.abs() < 0.3).double()
    wanted = 0.6367825323508774  # of Student's t with 5 degrees of freedom within one scale
    error = float(tp.diagnose.mcse(inside))
    assert abs(float(inside.mean()) - wanted) < critical_value(1, 1e-4) * error


def ggmc_draws(method, target, batch, steps, start=None):
    engine = Engine(target)
    state = method.init(engine, tp.Starts() if start is None else tp.Starts.at(start), [generator(3, "test")])
    draws = []
    for _ in range(steps):
        state, info = method.step(engine, state, batch)
        assert info.status.ok
        draws.append(state.chain.theta[0].clone())
    return torch.stack(draws), state


@pytest.mark.parametrize("temperature", [pytest.param(1.0, marks=pytest.mark.slow), 0.4])
def test_a_rejected_trajectory_turns_its_momentum_round(temperature):
    """Without it the law is another: a variance of 1.2 to 2.8 where it is 1."""
    target, batch = quadratic(1.0, temperature, size=1)
    draws, state = ggmc_draws(tp.GGMC(lr=3.5, momentum=0.9, length=2), target, batch, 7_000)
    assert 0.2 < state.accepted / state.proposed < 0.8
    squares = draws.square()
    error = float(tp.diagnose.mcse(squares.T))
    assert error < 0.06 * temperature
    assert abs(float(squares.mean()) - temperature) < critical_value(1, 1e-4) * error


def test_the_energy_of_many_weights_is_summed_in_double_precision():
    """Differences of a tenth decide, of sums of 10⁶ terms."""
    size = 10**6
    target = tp.Target(Blind(size, dtype=torch.float32), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    x = torch.zeros(1, 1)
    start = torch.randn(1, size, generator=torch.Generator().manual_seed(0))
    method = tp.GGMC(lr=1e-6, momentum=0.5, length=1)
    engine = Engine(target)
    state = method.init(engine, tp.Starts.at(start), [generator(0, "test")])
    constants = []
    for _ in range(4):
        state, _ = method.step(engine, state, Batch(x, x, num_data=1))
        constants.append(state.energy - 0.5 * float(state.chain.theta.double().square().sum()))
    assert state.accepted > 1
    assert max(constants) - min(constants) < 0.01  # in float32: 0.15


def test_a_chain_that_never_moves_says_so_and_a_slope_that_is_not_finite_is_no_start():
    problem = linear_gaussian()
    method = tp.Collect(tp.GGMC(lr=1e3), every=1)
    with pytest.warns(TemperanceWarning, match="GGMC accepted 0 of 60 proposals"):
        fitted = tp.fit(problem.target, method, problem.data, steps=60)
    assert any("accepted 0" in remark for remark in fitted.info.remarks)
    calm = tp.fit(problem.target, tp.Collect(tp.GGMC(lr=1e-3), every=1), problem.data, steps=60)
    assert not calm.info.remarks

    class Kinked(nn.Module):
        """Finite at its start, with a slope that is not."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x + self.weight.abs().sqrt()

    target = tp.Target(Kinked(), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    with pytest.raises(NumericalError, match="gradient"):
        tp.fit(target, tp.Collect(tp.GGMC(lr=1e-3)), (torch.ones(4, 1), torch.zeros(4, 1)), steps=30)


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_the_thermostat_has_the_inertia_that_is_declared(temperature):
    """With dz = (m² − T) dt the friction itself is Gaussian with variance T."""
    target, batch = quadratic(1.0, temperature, size=4000)
    lr, momentum = 1e-3, 0.98
    method = tp.SGNHT(lr=lr, momentum=momentum)
    state = run(method, target, batch, 6000)
    z = method.chain(state).slots["friction"].double() * (1 - momentum) / math.sqrt(lr)
    assert float(z.var()) == pytest.approx(temperature, rel=0.1)
