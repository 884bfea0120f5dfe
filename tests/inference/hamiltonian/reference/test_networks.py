"""Samplers on networks: exact posteriors by algebra and by quadrature, energies in float32, chains at once or alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.seeds import generator
from temperance.data.data import Data
from temperance.engine.engine import Engine
from temperance.inference.hamiltonian.motion import Metric, Motion, Phase
from temperance.judge import diagnose
from temperance.judge.diagnose.chains import chains_of
from temperance.run.fitted import Fitted
from temperance.testing import conjugate_regression, linear_gaussian
from temperance.testing.problems import solve_linear_gaussian

from . import advance, check_expectations, gaussian_claims, least_probability, whole

WIDE = torch.float64


def _theta(fitted: Fitted) -> Tensor:
    """Chains × draws × P."""
    return torch.stack([chain.theta for chain in chains_of(fitted.posterior)])


def _run(target: tp.Target, method: Any, data: Any, draws: int, chains: int, seed: int = 0, **options: Any) -> Fitted:
    run = tp.Ensemble(tp.Collect(method, burn=method.facts().settling or 100, every=1), chains, batched=True)
    steps = (method.facts().settling or 100) + draws
    return tp.fit(target, run, data, steps=steps, seed=seed, progress=False, **options)


# ---------------------------------------------------------------------- two parameters, by quadrature


class _TwoParameters(nn.Module):
    """f = 5 tanh(w x + b)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.5, dtype=WIDE))
        self.b = nn.Parameter(torch.tensor(0.0, dtype=WIDE))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.w)
        nn.init.normal_(self.b)

    def forward(self, x: Tensor) -> Tensor:
        return 5 * torch.tanh(self.w * x + self.b)


X = torch.tensor([-6.0, -4.0, -2.0, 2.0, 4.0, 6.0], dtype=WIDE).unsqueeze(1)
Y = (X > 0).to(WIDE)
AT = torch.tensor([0.5, 1.0, 2.0, 4.0, 10.0], dtype=WIDE)
PRINTED = {"w": 1.03890970, "var w": 0.33086652, "var b": 0.66932838}
PRINTED_PROBABILITY = (0.694610, 0.830682, 0.951569, 0.987659, 0.992844)


def _quadrature(temperature: float = 1.0) -> dict[str, Any]:
    """Moments of exp(−U/T) on a grid of w and b."""
    w, b = torch.linspace(-9, 9, 1001, dtype=WIDE), torch.linspace(-9, 9, 1001, dtype=WIDE)
    grid_w, grid_b = torch.meshgrid(w, b, indexing="ij")
    log_p = -0.5 * (grid_w.square() + grid_b.square())
    for x, y in zip(X.flatten(), Y.flatten(), strict=True):
        log_p = log_p + nn.functional.logsigmoid((2 * y - 1) * 5 * torch.tanh(grid_w * x + grid_b))
    p = torch.softmax(log_p.flatten() / temperature, 0).view_as(log_p)
    mean = float((p * grid_w).sum())
    outputs = [(5 * torch.tanh(grid_w * x + grid_b)).sigmoid() for x in AT]
    chance = [float((p * q).sum()) for q in outputs]
    return {
        "w": mean,
        "var w": float((p * (grid_w - mean).square()).sum()),
        "var b": float((p * grid_b.square()).sum()),
        "w third": float((p * (grid_w - mean) ** 3).sum()),
        "p": chance,
        "std p": [float((p * (q - c).square()).sum().sqrt()) for q, c in zip(outputs, chance, strict=True)],
    }


def test_quadrature_is_that_of_the_printed_table() -> None:
    exact = _quadrature()
    for name, value in PRINTED.items():
        assert exact[name] == pytest.approx(value, abs=2e-8)
    assert exact["p"] == pytest.approx(PRINTED_PROBABILITY, abs=6e-7)


GOLD = {
    "NUTS": tp.Warmup(tp.NUTS(max_depth=5), 160),
    "HMC": tp.Warmup(tp.HMC(length=5), 160),
    "MCLMC": tp.Warmup(tp.MCLMC(length=5), 160),
    "EllipticalSlice": tp.EllipticalSlice(),
    "EllipticalSlice at T = 0.4": tp.EllipticalSlice(),
}


@pytest.mark.parametrize("name", GOLD)
def test_two_parameter_classifier(name: str) -> None:
    temperature = 0.4 if "T" in name.split() else 1.0
    target = tp.Target(_TwoParameters(), tp.Bernoulli(), tp.GaussianPrior(scale=1.0), temperature=temperature)
    fitted = _run(target, GOLD[name], (X, Y), draws=100, chains=40, seed=1)
    theta, exact = _theta(fitted), _quadrature(temperature)
    w, b = theta[..., 0], theta[..., 1]
    claims = [("w", w, exact["w"]), ("b", b, 0.0), ("var b", b**2, exact["var b"])]
    claims += [("var w", (w - exact["w"]) ** 2, exact["var w"]), ("third", (w - exact["w"]) ** 3, exact["w third"])]
    check_expectations(claims)
    chances = (5 * torch.tanh(w.unsqueeze(-1) * AT + b.unsqueeze(-1))).sigmoid()
    for k, (expected, spread) in enumerate(zip(exact["p"], exact["std p"], strict=True)):
        error = spread / math.sqrt(float(diagnose.ess(chances[..., k])))  # rare draws decide: the sample's own is small
        assert abs(float(chances[..., k].mean()) - expected) < 4.5 * error
    predicted = fitted.predict(AT.unsqueeze(1)).mean().flatten().double()
    assert torch.allclose(predicted, chances.flatten(0, 1).mean(0), atol=1e-8), "the predictive averages all draws"


# ---------------------------------------------------------------------- conjugate regression


@pytest.mark.parametrize("temperature", [1.0, 0.25, 3.0])
def test_conjugate_regression_by_nuts(temperature: float) -> None:
    problem = conjugate_regression()
    printed = torch.tensor([0.0022739457, 0.0024485354, 0.0076966489], dtype=WIDE)
    assert torch.allclose(problem.covariance.diagonal(), printed, atol=1e-10)
    assert torch.allclose(problem.mean, torch.tensor([0.0, 0.770490361, 0.0], dtype=WIDE), atol=1e-9)
    target = problem.target.with_temperature(temperature)
    fitted = _run(target, tp.Warmup(tp.NUTS(max_depth=5), 160), problem.data, draws=100, chains=24, seed=2)
    theta = _theta(fitted)
    claims = gaussian_claims(theta, problem.mean, temperature * problem.covariance)
    f = theta @ torch.tensor([1.0, 0.5, 0.25], dtype=WIDE)
    claims += [("f(0.5)", f, 0.3852451805), ("Var f(0.5)", (f - 0.3852451805) ** 2, temperature * 1.8008505352e-3)]
    check_expectations(claims)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("in_c", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_matrix_of_weights_by_microcanonical_chains_that_reject_nothing(in_c: bool, temperature: float) -> None:
    """In sixteen dimensions and with a small step the bias is far below what these draws can tell."""
    problem = linear_gaussian()
    if in_c:
        x, y = problem.data.x[:, :3], torch.cat([problem.data.y, problem.data.y.flip(0)], 1)
        network = nn.Sequential(nn.Linear(3, 4, dtype=WIDE))
        problem = solve_linear_gaussian(network, x, y, 0.5, tp.GaussianPrior(scale=0.7, mean=0.3))
    target = problem.target.with_temperature(temperature)
    native = Engine(target).energies_on(whole(target, problem.data)).native
    if in_c and native is None:
        pytest.skip("no C compiler")
    assert in_c == (native is not None)
    method = tp.Warmup(tp.MCLMC(length=80, adjusted=False), 160, accept=0.95)
    theta = _theta(_run(target, method, problem.data, draws=100, chains=24, seed=2))
    check_expectations(gaussian_claims(theta, problem.mean, temperature * problem.covariance))


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_conjugate_regression_by_elliptical_slices(temperature: float) -> None:
    """From exact posterior draws, which must stay exact; and from the prior, which must become the posterior."""
    problem = conjugate_regression()
    target = problem.target.with_temperature(temperature)
    batch = whole(target, problem.data)
    root = math.sqrt(temperature) * torch.linalg.cholesky(problem.covariance)
    noise = torch.randn(600, 3, generator=generator(3, "exact"), dtype=WIDE)
    prior = torch.randn(200, 3, generator=generator(4, "prior"), dtype=WIDE)
    for starts, transitions in ((problem.mean + noise @ root.T, 3), (prior, 100))[: 1 + (temperature == 1.0)]:
        theta = advance(tp.EllipticalSlice(), target, batch, starts, transitions, seed=5)
        white = torch.linalg.solve_triangular(root, (theta - problem.mean).T, upper=False).T
        assert least_probability(white, scipy.stats.norm.cdf) > 1e-4
        assert least_probability(white.square().sum(1, keepdim=True), scipy.stats.chi2(3).cdf) > 1e-4


def test_prior_alone_is_drawn_where_data_say_nothing() -> None:
    """A prior with a mean and two scales; x = 0 makes the weights free."""
    network = nn.Linear(2, 1, dtype=WIDE)
    prior = tp.GaussianPrior(scale=0.5, mean=0.3)
    target = tp.Target(network, tp.Normal(scale=1.0), prior)
    data = Data(torch.zeros(3, 2, dtype=WIDE), torch.ones(3, 1, dtype=WIDE))
    mean, precision = torch.tensor([0.3, 0.3, 0.0], dtype=WIDE), 3.0 + 1 / 0.25
    mean[2] = (3.0 + 0.3 / 0.25) / precision
    covariance = torch.diag(torch.tensor([0.25, 0.25, 1 / precision], dtype=WIDE))
    for method in (tp.Warmup(tp.NUTS(), 160), tp.EllipticalSlice()):
        theta = _theta(_run(target, method, data, draws=100, chains=16, seed=3))
        check_expectations(gaussian_claims(theta, mean, covariance))


# ---------------------------------------------------------------------- energies


def _classifier(activation: type[nn.Module], dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 16), activation(), nn.Linear(16, 3)).to(dtype)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU], ids=["compiled C", "PyTorch"])
def test_energies_of_float32_networks_do_not_cancel(activation: type[nn.Module]) -> None:
    """U of 30 000 rows is about 30 000; a Metropolis decision needs differences of it to about 0.01. A sum in float32
    would have steps of 0.002 at each of 30 000 additions."""
    rng = generator(5, "rows")
    x = torch.randn(30_000, 4, generator=rng)
    y = torch.randint(3, (30_000,), generator=rng)
    theta = torch.randn(6, 4 * 16 + 16 + 16 * 3 + 3, generator=rng, dtype=WIDE) * 0.3
    theta[3:] = theta[:3] + 0.003 * torch.randn(3, theta.shape[1], generator=rng, dtype=WIDE)
    theta = theta.float().double()
    found = {}
    for dtype in (torch.float32, WIDE):
        target = tp.Target(_classifier(activation, dtype), tp.Categorical(), tp.GaussianPrior(scale=1.0))
        batch = whole(target, Data(x.to(dtype), y))
        rows = theta.to(dtype)
        gradient = torch.empty_like(rows)
        energy = Engine(target).energies(rows, batch, gradient)
        assert energy.dtype == WIDE
        alone = torch.cat([Engine(target).energies(row.unsqueeze(0), batch) for row in rows])
        assert torch.allclose(alone, energy, rtol=0, atol=2e-3 if dtype == torch.float32 else 1e-8)
        found[dtype] = (energy, gradient.double())
    (short, rough), (long, fine) = found[torch.float32], found[WIDE]
    assert float(long.min()) > 20_000
    assert float((short[3:] - short[:3] - (long[3:] - long[:3])).abs().max()) < 0.01
    assert float((rough - fine).norm() / fine.norm()) < 1e-5


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU], ids=["compiled C", "PyTorch"])
def test_slope_is_that_of_the_energy(activation: type[nn.Module]) -> None:
    """∇U by differences of U, prior and temperature of the likelihood included."""
    rng = generator(6, "rows")
    data = Data(torch.randn(40, 4, generator=rng, dtype=WIDE), torch.randint(3, (40,), generator=rng))
    network = _classifier(activation, WIDE)
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(scale=0.7, mean=0.1), likelihood_temperature=0.6)
    batch = whole(target, data)
    theta = torch.randn(2, target.layout.size, generator=rng, dtype=WIDE)
    gradient = torch.empty_like(theta)
    energy = Engine(target).energies(theta, batch, gradient)
    assert torch.allclose(energy, torch.stack([Engine(target).energy(row, batch).double() for row in theta]))
    direction = torch.randn(theta.shape, generator=rng, dtype=WIDE)
    ahead, behind = (Engine(target).energies(theta + s * 1e-5 * direction, batch) for s in (1, -1))
    assert torch.allclose((ahead - behind) / 2e-5, (gradient * direction).sum(1), rtol=1e-6)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU], ids=["compiled C", "PyTorch"])
def test_leapfrog_of_a_network_is_its_own_reverse(activation: type[nn.Module]) -> None:
    rng = generator(7, "rows")
    data = Data(torch.randn(40, 4, generator=rng, dtype=WIDE), torch.randint(3, (40,), generator=rng))
    target = tp.Target(_classifier(activation, WIDE), tp.Categorical(), tp.GaussianPrior(scale=1.0))
    batch = whole(target, data)
    theta = torch.randn(3, target.layout.size, generator=rng, dtype=WIDE)
    metric = Metric(torch.rand(theta.shape, generator=rng, dtype=WIDE) + 0.5)
    flow = Motion(Engine(target).energies_on(batch), metric, torch.tensor([1.0, 0.5, 2.0], dtype=WIDE))
    gradient = torch.empty_like(theta)
    before = Engine(target).energies(theta, batch, gradient)
    start = Phase(theta, metric.momenta(torch.randn(theta.shape, generator=rng, dtype=WIDE)), gradient)
    phase, step = start.clone(), torch.tensor([0.02, 0.05, -0.03], dtype=WIDE)
    flow.leap(phase, step, 15)
    assert float((phase.theta - theta).norm(dim=1).min()) > 1.0
    after, _ = flow.leap(phase, -step, 15)
    assert torch.allclose(after, before, atol=1e-9)
    for found, expected in zip(phase, start, strict=True):
        assert torch.allclose(found, expected, rtol=0, atol=1e-9)


# ---------------------------------------------------------------------- chains at once, chains alone


def _small_regression(activation: type[nn.Module] = nn.Tanh, width: int = 5) -> tuple[tp.Target, Data]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = nn.Sequential(nn.Linear(1, width), activation(), nn.Linear(width, 1)).to(WIDE)
    x = torch.linspace(-2, 2, 12, dtype=WIDE).unsqueeze(1)
    y = torch.sin(1.5 * x) + 0.2 * torch.cos(17 * x)
    return tp.Target(network, tp.Normal(scale=0.3), tp.GaussianPrior(scale=1.0)), Data(x, y)


ALIKE = {
    "HMC": tp.HMC(step_size=0.05, length=4),
    "HMC by time": tp.HMC(step_size=0.05, time=0.2),
    "NUTS": tp.NUTS(step_size=0.1),
    "MCLMC": tp.MCLMC(step_size=0.05, length=4),
    "EllipticalSlice": tp.EllipticalSlice(),
    "Warmup": tp.Warmup(tp.NUTS(max_depth=3), 6, first=2, window=2, last=2),
    "Tempered": tp.Tempered(tp.HMC(step_size=0.05, length=3), temperatures=(1.0, 1.5)),
}


@pytest.mark.filterwarnings("ignore:.*transitions diverged")
@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU], ids=["compiled C", "PyTorch"])
@pytest.mark.parametrize("name", ALIKE)
def test_chains_at_once_equal_chains_alone(name: str, activation: type[nn.Module]) -> None:
    target, data = _small_regression(activation)
    found = []
    for batched in (True, False):
        run = tp.Ensemble(tp.Collect(ALIKE[name], burn=ALIKE[name].facts().settling or 0, every=1), 3, batched=batched)
        found.append(_theta(tp.fit(target, run, data, steps=12, seed=4, progress=False)))
    assert torch.allclose(found[0], found[1], rtol=1e-7, atol=1e-9)
    assert not torch.allclose(found[0][0], found[0][1])


# ---------------------------------------------------------------------- samplers agree on a network


@pytest.mark.slow
def test_samplers_agree_on_the_predictions_of_a_network() -> None:
    """Exact kernels, and the two of stochastic gradients with all data at a small step: f(x) and its square."""
    target, data = _small_regression()
    at = torch.tensor([[-2.5], [-1.0], [0.0], [0.7], [2.5]], dtype=WIDE)
    methods: dict[str, tuple[Any, int, int, int]] = {  # method, burn, draws, every
        "NUTS": (tp.Warmup(tp.NUTS(max_depth=7), 400, accept=0.95), 400, 300, 1),
        "HMC": (tp.Warmup(tp.HMC(length=20), 200), 200, 400, 1),
        "MCLMC": (tp.Warmup(tp.MCLMC(length=20), 200), 200, 400, 1),
        "EllipticalSlice": (tp.EllipticalSlice(), 500, 300, 10),
        "BAOAB": (tp.BAOAB(lr=0.003, momentum=0.9), 2000, 400, 20),
        "SGHMC": (tp.SGHMC(lr=0.001, momentum=0.9), 3000, 400, 40),
    }
    moments: dict[str, list[tuple[float, float]]] = {}
    for name, (method, burn, draws, every) in methods.items():
        run = tp.Ensemble(tp.Collect(method, burn=burn, every=every), 16, batched=True)
        fitted = tp.fit(target, run, data, steps=burn + draws * every, batch_size=12, seed=6, progress=False)
        f = torch.stack([_outputs(chain, at) for chain in _theta(fitted)])
        quantities = [f[..., k] ** power for k in range(len(at)) for power in (1, 2)]
        assert max(float(diagnose.rhat(q)) for q in quantities) < 1.05, name
        moments[name] = [(float(q.mean()), float(diagnose.mcse(q))) for q in quantities]
    for name, found in moments.items():
        for k, ((mean, error), (truth, other)) in enumerate(zip(found, moments["NUTS"], strict=True)):
            assert abs(mean - truth) < 4.5 * math.hypot(error, other), (name, k, mean, truth)


def _outputs(theta: Tensor, x: Tensor, width: int = 5) -> Tensor:
    """f of :func:`_small_regression`, by hand: draws × rows."""
    w1, b1, w2, b2 = theta.split([width, width, width, 1], 1)
    hidden = torch.tanh(x.T.unsqueeze(2) * w1.unsqueeze(1) + b1.unsqueeze(1))
    return (hidden * w2.unsqueeze(1)).sum(2) + b2
