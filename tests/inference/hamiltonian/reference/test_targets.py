"""Samplers on densities whose moments are known exactly: means, covariances, skewness, tails, edges, and two modes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from torch import Tensor

import temperance as tp
from temperance.core.errors import TemperanceWarning
from temperance.core.seeds import generator
from temperance.engine.engine import Engine
from temperance.inference.hamiltonian.motion import Metric, Motion, Phase
from temperance.testing import critical_value

from . import advance, check_expectations, density_target, gaussian_claims, least_probability

WIDE = torch.float64
KERNELS: dict[str, Callable[[float], Any]] = {
    "NUTS": lambda step: tp.NUTS(step_size=step),
    "HMC": lambda step: tp.HMC(step_size=step, length=3),
    "HMC by time": lambda step: tp.HMC(step_size=step, time=3.0 * step, jitter=0.4),
    "MCLMC": lambda step: tp.MCLMC(step_size=step, length=3),
}
COARSE = 0.8  # for the valley at T = 1: more than a third of HMC's trajectories are rejected


# ---------------------------------------------------------------------- Gaussians, from rough starts


def _gaussian(mean: Tensor, covariance: Tensor) -> Callable[[Tensor], Tensor]:
    precision = torch.linalg.inv(covariance)
    return lambda theta: -0.5 * (theta - mean) @ precision @ (theta - mean)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(tp.Warmup(tp.NUTS(max_depth=6), 160), marks=pytest.mark.slow),
        tp.Warmup(tp.NUTS(max_depth=6), 160, mass="dense"),
        tp.Warmup(tp.HMC(length=4), 160, mass="dense"),
        pytest.param(tp.Warmup(tp.HMC(length=15), 160), marks=pytest.mark.slow),
        pytest.param(tp.Warmup(tp.MCLMC(length=12), 160), marks=pytest.mark.slow),
    ],
    ids=["NUTS", "NUTS dense", "HMC dense", "HMC", "MCLMC"],
)
def test_correlated_gaussian(method: Any) -> None:
    mean = torch.tensor([1.0, -2.0], dtype=WIDE)
    covariance = torch.tensor([[1.0, 1.98], [1.98, 4.0]], dtype=WIDE)  # ρ = 0.99
    begin = torch.randn(12, 2, generator=generator(0, "rough"), dtype=WIDE) * 3
    draws = 100 if method.mass == "dense" else 400  # along the narrow valley they are worth a tenth of independent ones
    found = tp.sample(_gaussian(mean, covariance), begin, method, draws=draws, chains=12, seed=2, progress=False)
    check_expectations(gaussian_claims(found.theta, mean, covariance))


@pytest.mark.slow
@pytest.mark.parametrize("mass", ["diagonal", "dense"])
def test_gaussian_of_many_scales(mass: Any) -> None:
    """Twenty scales from 0.01 to 10: masses are found, and given for the second run by hand."""
    scales = torch.logspace(-2, 1, 20, dtype=WIDE)
    mean = torch.linspace(-1, 1, 20, dtype=WIDE) * scales

    def log_density(theta: Tensor) -> Tensor:
        return -0.5 * ((theta - mean) / scales).square().sum()

    method = tp.Warmup(tp.NUTS(max_depth=7), 200, mass=mass)
    found = tp.sample(log_density, torch.zeros(8, 20, dtype=WIDE), method, draws=80, chains=8, progress=False)
    claims = gaussian_claims(found.theta, mean, torch.diag(scales**2))
    picked = [c for c in claims if c[0].startswith("mean")] + [claims[20 + i * (i + 3) // 2] for i in range(20)]
    picked += claims[-6:-1]
    check_expectations(picked)
    steps = torch.stack([t.step_size[-1] for t in found.transitions])
    assert bool((steps > 0.15).all()), "the masses have not taken the scales away"


def test_mass_that_is_given_changes_nothing_but_the_speed() -> None:
    """M of the wrong scale and a dense M that is not the precision: the moments stay."""
    mean, covariance = torch.tensor([0.5, -1.0], dtype=WIDE), torch.tensor([[1.0, 0.6], [0.6, 2.0]], dtype=WIDE)
    exact = torch.randn(1500, 2, generator=generator(1, "exact"), dtype=WIDE) @ torch.linalg.cholesky(covariance).T
    target, batch = density_target(_gaussian(mean, covariance), 2)
    masses = [torch.tensor([3.0, 0.4], dtype=WIDE), torch.tensor([[2.0, -0.7], [-0.7, 0.5]], dtype=WIDE)]
    for kernel in (tp.NUTS(0.7, mass=masses[0]), tp.NUTS(0.5, mass=masses[1]), tp.HMC(0.5, 3, mass=masses[1])):
        theta = advance(kernel, target, batch, exact + mean, 4)
        white = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (theta - mean).T, upper=False).T
        assert least_probability(white, scipy.stats.norm.cdf) > 1e-4
        radius = white.square().sum(1, keepdim=True)
        assert least_probability(radius, scipy.stats.chi2(2).cdf) > 1e-4


# ---------------------------------------------------------------------- exact draws stay exact, at a coarse step


def _valley(theta: Tensor) -> Tensor:
    """x of a Gumbel law, y given x Gaussian around sin x: skewed and bent, with exact draws at every temperature."""
    x, y = theta[0], theta[1]
    return -x - torch.exp(-x) - 0.5 * ((y - torch.sin(x)) / 0.7).square()


def _valley_draws(count: int, temperature: float, seed: int) -> Tensor:
    """With z = exp(−x): z ~ Gamma(1/T, T)."""
    rng = np.random.default_rng(seed)
    x = -np.log(rng.gamma(1 / temperature, temperature, count))
    y = np.sin(x) + 0.7 * math.sqrt(temperature) * rng.standard_normal(count)
    return torch.from_numpy(np.stack([x, y], 1))


def _valley_probability(theta: Tensor, temperature: float) -> float:
    """How likely θ is as exact draws: x, y given x, and both together."""
    x, y = theta[:, :1], theta[:, 1:]
    one = scipy.stats.gamma(1 / temperature, scale=temperature).sf((-x).exp().numpy())
    two = scipy.stats.norm.cdf(((y - torch.sin(x)) / (0.7 * math.sqrt(temperature))).numpy())
    both = (one + two) % 1.0  # uniform, if they are uniform and independent
    folded = [abs(2 * one - 1), abs(2 * two - 1)]  # sees a spread that is wrong around a middle that is right
    return least_probability(torch.from_numpy(np.concatenate([one, two, both, *folded], 1)), scipy.stats.uniform.cdf)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("name", KERNELS)
def test_exact_draws_stay_exact(name: str, temperature: float) -> None:
    target, batch = density_target(_valley, 2, temperature)
    theta = _valley_draws(2000, temperature, seed=3)
    kernel = KERNELS[name](COARSE * math.sqrt(temperature))
    for transitions in (1, 5):
        moved = advance(kernel, target, batch, theta, transitions, seed=4)
        assert float((moved != theta).any(1).double().mean()) > 0.3
        assert _valley_probability(moved, temperature) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("name", KERNELS)
def test_many_exact_draws_stay_exact(name: str, temperature: float) -> None:
    target, batch = density_target(_valley, 2, temperature)
    kernel = KERNELS[name](COARSE * math.sqrt(temperature))
    moved = advance(kernel, target, batch, _valley_draws(30_000, temperature, seed=5), 10, seed=6)
    assert _valley_probability(moved, temperature) > 1e-4


def test_the_test_sees_a_kernel_that_is_not_exact() -> None:
    """The same with nothing rejected, and at another temperature than the draws'."""
    target, batch = density_target(_valley, 2)
    kernel = tp.MCLMC(step_size=COARSE, length=3, adjusted=False)
    moved = advance(kernel, target, batch, _valley_draws(2000, 1.0, 3), 5)
    assert _valley_probability(moved, 1.0) < 1e-6
    moved = advance(KERNELS["HMC"](COARSE), target.with_temperature(0.7), batch, _valley_draws(2000, 1.0, 3), 5)
    assert _valley_probability(moved, 1.0) < 1e-6


@pytest.mark.parametrize("name", ["HMC", "HMC by time", "MCLMC"])
def test_detailed_balance(name: str) -> None:
    """From exact draws, (θ, θ′) and (θ′, θ) have one law: E f(θ) g(θ′) = E g(θ) f(θ′)."""
    target, batch = density_target(_valley, 2)
    before = _valley_draws(3000, 1.0, seed=7)
    after = advance(KERNELS[name](COARSE), target, batch, before, 1, seed=8)
    features: list[Callable[[Tensor], Tensor]] = [
        lambda t: t[:, 0],
        lambda t: t[:, 1],
        lambda t: (t[:, 0] > 1.0).double(),
        lambda t: t[:, 1].square(),
        lambda t: torch.tanh(t[:, 0] * t[:, 1]),
    ]
    pairs = [(f, g) for i, f in enumerate(features) for g in features[:i]]
    for f, g in pairs:
        difference = f(before) * g(after) - g(before) * f(after)
        off = float(difference.mean() / (difference.std() / math.sqrt(len(difference))))
        assert abs(off) < critical_value(len(pairs), 1e-3)


# ---------------------------------------------------------------------- the leapfrog itself


@pytest.mark.parametrize("dense", [False, True])
def test_leapfrog_is_its_own_reverse(dense: bool) -> None:
    target, batch = density_target(_valley, 2)
    theta = _valley_draws(6, 1.0, seed=9)
    variances = torch.tensor([[0.5, 0.2], [0.2, 1.5]], dtype=WIDE) if dense else torch.tensor([0.5, 1.5], dtype=WIDE)
    metric = Metric(variances.expand(6, *variances.shape).contiguous())
    flow = Motion(Engine(target).energies_on(batch), metric, torch.linspace(0.5, 2.0, 6, dtype=WIDE))
    momentum = metric.momenta(torch.randn(6, 2, generator=generator(2, "noise"), dtype=WIDE))
    gradient = torch.zeros_like(theta)
    Engine(target).energies(theta, batch, gradient)
    start = Phase(theta, momentum, gradient)
    phase, step = start.clone(), torch.linspace(0.05, 0.3, 6, dtype=WIDE)
    flow.leap(phase, step, 25)
    assert float((phase.theta - theta).abs().min()) > 1e-3
    flow.leap(phase, -step, 25)
    for found, expected in zip(phase, start, strict=True):
        assert torch.allclose(found, expected, rtol=0, atol=1e-10)


def test_leapfrog_is_symplectic() -> None:
    """Jᵀ Ω J = Ω for the derivative J of a trajectory, by differences: volumes are kept, direction by direction."""
    target, batch = density_target(_valley, 2)
    metric = Metric(torch.tensor([0.5, 1.5], dtype=WIDE).expand(8, 2).contiguous())
    flow = Motion(Engine(target).energies_on(batch), metric, torch.full((8,), 1.3, dtype=WIDE))
    small = 1e-5
    places = torch.tensor([0.4, -0.3, 0.8, 0.5], dtype=WIDE) + small * torch.cat([torch.eye(4), -torch.eye(4)]).to(WIDE)
    gradient = torch.zeros(8, 2, dtype=WIDE)
    Engine(target).energies(places[:, :2].contiguous(), batch, gradient)
    phase = Phase(places[:, :2].clone(), places[:, 2:].clone(), gradient)
    flow.leap(phase, torch.full((8,), 0.3, dtype=WIDE), 10)
    ends = torch.cat([phase.theta, phase.momentum], 1)
    jacobian = ((ends[:4] - ends[4:]) / (2 * small)).T
    omega = torch.zeros(4, 4, dtype=WIDE)
    omega[:2, 2:], omega[2:, :2] = torch.eye(2), -torch.eye(2)
    assert float((jacobian - torch.eye(4)).abs().max()) > 0.1
    assert torch.allclose(jacobian.T @ omega @ jacobian, omega, atol=1e-6)


# ---------------------------------------------------------------------- skewness, tails, edges


@pytest.mark.parametrize(
    "method", [tp.NUTS(max_depth=5), tp.HMC(length=5), tp.MCLMC(length=5)], ids=["NUTS", "HMC", "MCLMC"]
)
def test_skewed_density_has_its_mean_variance_and_third_moment(method: Any) -> None:
    """θ = log of a Gamma(a) variable: cumulants are ψ(a), ψ′(a), ψ″(a). One coordinate is turned round."""
    shapes = (0.7, 3.0)

    def log_density(theta: Tensor) -> Tensor:
        one, two = theta[0], -theta[1]
        return shapes[0] * one - one.exp() + shapes[1] * two - two.exp()

    begin = torch.zeros(24, 2, dtype=WIDE)
    found = tp.sample(log_density, begin, tp.Warmup(method, 160), draws=120, chains=24, seed=3, progress=False)
    claims = []
    for k, (shape, sign) in enumerate(zip(shapes, (1, -1), strict=True)):
        mean, variance, third = (float(scipy.special.polygamma(n, shape)) for n in range(3))
        away = found.theta[..., k] - sign * mean
        claims += [(f"mean {k}", found.theta[..., k], sign * mean), (f"variance {k}", away**2, variance)]
        claims += [(f"third moment {k}", away**3, sign * third)]
    check_expectations(claims)


def test_student_t_tails() -> None:
    """Five degrees of freedom in two dimensions: mean, E|x|, and the share beyond the 90 % and 98 % quantiles."""
    law = scipy.stats.t(5)

    def log_density(theta: Tensor) -> Tensor:
        return -3.5 * torch.log1p((theta - 1.0).square().sum() / 5)

    begin = torch.zeros(24, 2, dtype=WIDE)
    found = tp.sample(
        log_density, begin, tp.NUTS(max_depth=5), draws=120, chains=24, warmup=160, seed=4, progress=False
    )
    claims = []
    for k in range(2):
        away = found.theta[..., k] - 1.0
        claims += [(f"mean {k}", away, 0.0), (f"size {k}", away.abs(), float(law.expect(abs)))]
        claims += [(f"tail {k}", (away.abs() > law.ppf(1 - q / 2)).double(), q) for q in (0.1, 0.02)]
    check_expectations(claims)


@pytest.mark.filterwarnings("ignore:.*(R-hat|are worth)")  # many short chains; what they say together is right
@pytest.mark.filterwarnings("ignore:.*transitions diverged")
@pytest.mark.parametrize(
    "method",
    [tp.Warmup(tp.NUTS(max_depth=5), 160), tp.HMC(step_size=0.4, length=4)],
    ids=["NUTS", "HMC"],
)
def test_density_with_an_edge(method: Any) -> None:
    """x > 0 and −∞ elsewhere: a half-normal x, and y around x. What lies beyond the edge is never drawn."""

    def log_density(theta: Tensor) -> Tensor:
        inside = -0.5 * theta[0].square() - 0.5 * ((theta[1] - theta[0]) / 0.5).square()
        return torch.where(theta[0] > 0, inside, -math.inf)

    begin = torch.ones(24, 2, dtype=WIDE)
    found = tp.sample(log_density, begin, method, draws=120, chains=24, warmup=50, seed=5, progress=False)
    x, y = found.theta[..., 0], found.theta[..., 1]
    assert float(x.min()) > 0
    mean = math.sqrt(2 / math.pi)
    check_expectations(
        [
            ("mean x", x, mean),
            ("square x", x**2, 1.0),
            ("near the edge", (x < 0.1).double(), 2 * scipy.stats.norm.cdf(0.1) - 1),
            ("mean y", y, mean),
            ("variance y given x", (y - x) ** 2, 0.25),
            ("product", x * y, 1.0),
        ]
    )


# ---------------------------------------------------------------------- the funnel


def _funnel(theta: Tensor) -> Tensor:
    """v ~ N(0, 3), x | v ~ N(0, e^{v/2}), nine of them: the neck is too steep for any step that suits the rest."""
    v, x = theta[0], theta[1:]
    return -v.square() / 18 - 0.5 * x.square().sum() * torch.exp(-v) - 0.5 * len(x) * v


def test_funnel_tells_of_its_divergences_and_keeps_exact_draws() -> None:
    rng = generator(3, "funnel")
    v = 3.0 * torch.randn(400, 1, generator=rng, dtype=WIDE)
    begin = torch.cat([v, torch.exp(0.5 * v) * torch.randn(400, 9, generator=rng, dtype=WIDE)], 1)
    method = tp.NUTS(step_size=0.5, max_depth=5)
    with pytest.warns(TemperanceWarning, match=r"transitions diverged.*other coordinates"):
        found = tp.sample(_funnel, begin, method, draws=4, chains=400, warmup=0, progress=False)
    divergent = torch.stack([t.divergent for t in found.transitions])
    assert found.divergences == int(divergent.sum()) > 0
    assert float(v[divergent[:, 0]].mean()) < -2.0, "it is in the neck that they diverge"
    assert least_probability(found.theta[:, -1, :1] / 3, scipy.stats.norm.cdf) > 1e-4
    white = found.theta[:, -1, 1:] * torch.exp(-0.5 * found.theta[:, -1, :1])
    assert least_probability(white, scipy.stats.norm.cdf) > 1e-4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*(transitions diverged|R-hat|are worth)")
def test_funnel_that_is_not_explored_does_not_look_explored() -> None:
    found = tp.sample(_funnel, torch.zeros(8, 10, dtype=WIDE), tp.NUTS(max_depth=8), draws=500, chains=8, warmup=300)
    assert found.divergences > 0 or float(found.rhat()[0]) > 1.01 or float(found.ess()[0]) < 400


def test_funnel_in_other_coordinates_is_right() -> None:
    """x = e^{v/2} z: E log|x| = E v/2 − (γ + log 2)/2, and the neck is visited as often as it should be."""
    begin = torch.zeros(24, 4, dtype=WIDE)

    def log_density(theta: Tensor) -> Tensor:
        return -theta[0].square() / 18 - 0.5 * theta[1:].square().sum()

    found = tp.sample(
        log_density, begin, tp.NUTS(max_depth=5), draws=100, chains=24, warmup=160, seed=6, progress=False
    )
    v, x = found.theta[..., 0], torch.exp(0.5 * found.theta[..., :1]) * found.theta[..., 1:]
    claims = [("v", v, 0.0), ("v²", v**2, 9.0), ("neck", (v < -4.5).double(), float(scipy.stats.norm.cdf(-1.5)))]
    claims += [(f"log |x{k}|", x[..., k].abs().log(), -0.5 * (np.euler_gamma + math.log(2))) for k in range(3)]
    check_expectations(claims)
    assert found.divergences == 0


# ---------------------------------------------------------------------- two modes

SHARE = 0.3


def _two_modes(theta: Tensor) -> Tensor:
    """0.3 of N((−5, 0), 0.6²) and 0.7 of N((5, 1), 1.2²)."""
    one = math.log(SHARE) - 2 * math.log(0.6) - 0.5 * ((theta[0] + 5) ** 2 + theta[1] ** 2) / 0.6**2
    two = math.log(1 - SHARE) - 2 * math.log(1.2) - 0.5 * ((theta[0] - 5) ** 2 + (theta[1] - 1) ** 2) / 1.2**2
    return torch.logaddexp(one, two)


@pytest.mark.filterwarnings("ignore:.*(R-hat|are worth)")  # many short chains; what they say together is right
def test_tempering_weighs_two_modes_where_nuts_stays_in_one() -> None:
    begin = torch.tensor([-5.0, 0.0], dtype=WIDE)
    alone = tp.sample(_two_modes, begin, tp.NUTS(max_depth=5), draws=20, chains=8, warmup=150, progress=False)
    assert bool((alone.theta[..., 0] < 0).all())
    base = tp.HMC(step_size=0.5, time=1.5, jitter=0.3)
    method = tp.Tempered(base, temperatures=tp.ladder(30.0, 7))
    found = tp.sample(_two_modes, begin, method, draws=250, chains=16, warmup=60, seed=7, progress=False)
    left = (found.theta[..., 0] < 0).double()
    claims = [("share", left, SHARE), ("x", found.theta[..., 0], -5 * SHARE + 5 * (1 - SHARE))]
    claims += [
        ("y", found.theta[..., 1], 1 - SHARE),
        ("xy", found.theta[..., 0] * found.theta[..., 1], 5 * (1 - SHARE)),
    ]
    claims += [("y²", found.theta[..., 1] ** 2, SHARE * 0.36 + (1 - SHARE) * (1.44 + 1))]
    check_expectations(claims, least_ess=60)


def test_tempered_chains_keep_exact_draws_exact() -> None:
    """Every rung begins with exact draws of its own temperature; after swaps the cold ones are exact still."""
    temperatures = (1.0, 1.7, 3.0)
    count = 1000
    method = tp.Tempered(KERNELS["HMC"](COARSE), temperatures=temperatures)
    target, batch = density_target(_valley, 2)
    rngs = [generator(9, "chain", k) for k in range(count)]
    engine = Engine(target)
    state = method.init(engine, tp.Starts.at(torch.zeros(count, 2, dtype=WIDE)), rngs)
    begin = torch.stack([_valley_draws(count, t, seed=11 + k) for k, t in enumerate(temperatures)], 1)
    method.hamiltonian(state).chain.theta.copy_(begin.flatten(0, 1))
    for _ in range(4):
        state, _ = method.step(engine, state, batch)
    assert float(method.swap_rates(state).min()) > 0.1
    rungs = method.hamiltonian(state).chain.theta.view(count, 3, 2)
    for k, temperature in enumerate(temperatures):
        assert _valley_probability(rungs[:, k], temperature) > 1e-4
    assert torch.equal(method.chain(state).theta, rungs[:, 0])


@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_swaps_know_the_temperature_of_the_target(temperature: float) -> None:
    """Exact draws of every rung of a tempered target stay exact: exp((1/Tᵢ − 1/Tⱼ)(Uᵢ − Uⱼ)) with T · factor."""
    factors, count = (1.0, 1.7, 3.0), 1000
    method = tp.Tempered(KERNELS["HMC"](0.3 * temperature**0.5), temperatures=factors)
    target, batch = density_target(_valley, 2, temperature)
    engine = Engine(target)
    rngs = [generator(9, "chain", k) for k in range(count)]
    state = method.init(engine, tp.Starts.at(torch.zeros(count, 2, dtype=WIDE)), rngs)
    begin = torch.stack([_valley_draws(count, t * temperature, seed=11 + k) for k, t in enumerate(factors)], 1)
    method.hamiltonian(state).chain.theta.copy_(begin.flatten(0, 1))
    for _ in range(6):
        state, _ = method.step(engine, state, batch)
    rungs = method.hamiltonian(state).chain.theta.view(count, 3, 2)
    for k, factor in enumerate(factors):
        assert _valley_probability(rungs[:, k], factor * temperature) > 1e-4
