"""Energies and gradients in C, against autograd in double precision."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from temperance.core.errors import ArgumentError
from temperance.data.data import Data
from temperance.engine.engine import Engine
from temperance.engine.native import build as native
from temperance.engine.native import mlp
from temperance.engine.native.mlp import NativeMLP
from temperance.model.likelihoods import (
    Bernoulli,
    Categorical,
    ContaminatedNormal,
    HeteroscedasticNormal,
    Likelihood,
    Normal,
    StudentT,
)
from temperance.model.priors import FanIn, GaussianPrior, LaplacePrior, Learned, PerLayer, Prior
from temperance.model.target import Target
from temperance.nn import MLP

ACTIVATIONS = {
    "identity": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "leaky": lambda: nn.LeakyReLU(0.1),
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "softplus": nn.Softplus,
}
LIKELIHOODS: dict[str, Likelihood] = {
    "categorical": Categorical(),
    "bernoulli": Bernoulli(),
    "normal": Normal(0.3),
    "heteroscedastic": HeteroscedasticNormal(),
    "learned noise": Normal(),
    "learned noises": Normal(num_outputs=2),
}
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14}  # 16 to 40 roundings of the largest number in a sum

compiler = pytest.mark.skipif(
    native.c_function("temperance_energies_float", (), "mlp.c") is None, reason="no C compiler here"
)
native.forget()


def targets(likelihood: Likelihood, rows: int, outputs: int, dtype: torch.dtype) -> Tensor:
    rng = torch.Generator().manual_seed(5)
    if isinstance(likelihood, Categorical):
        return torch.randint(outputs, (rows,), generator=rng)
    if isinstance(likelihood, Bernoulli):
        return torch.randint(2, (rows, outputs), generator=rng).to(dtype)
    if isinstance(likelihood, HeteroscedasticNormal):
        outputs //= 2
    return torch.randn(rows, outputs, generator=rng, dtype=torch.float64).to(dtype)


class Problem:
    """A network, data, and both ways to its energy."""

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        x: Tensor,
        y: Tensor,
        prior: Prior | None = None,
        likelihood_temperature: float = 1.0,
    ) -> None:
        prior = GaussianPrior(0.7, mean=0.2) if prior is None else prior
        options = {"likelihood_temperature": likelihood_temperature}
        self.target = Target(network, likelihood, prior, **options)
        self.exact = Target(copy.deepcopy(network).double(), likelihood, prior, **options)
        self.data = Data(x.double(), y.double() if y.is_floating_point() else y)
        self.x, self.y = x, y

    def native(self) -> NativeMLP | None:
        t = self.target
        return NativeMLP.of(t.network, t.layout, t.likelihood, t.bound_prior, t.likelihood_temperature, self.x, self.y)

    def theta(self, chains: int, scale: float = 1.0) -> Tensor:
        rng = torch.Generator().manual_seed(3)
        made = torch.randn(chains, self.target.num_parameters, generator=rng, dtype=torch.float64)
        wide = torch.cat([torch.full((e.size,), max(e.fan_in, 1) ** -0.5) for e in self.target.layout.entries])
        return (scale * made * wide).to(self.target.layout.dtype)

    def reference(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        leaf = theta.detach().double().requires_grad_()
        energy = Engine(self.exact).energy(leaf, self.data)
        (grad,) = torch.autograd.grad(energy.sum(), leaf)
        return energy.detach(), grad


def problem(
    widths: Sequence[int] = (3, 5, 33, 2),
    activation: str = "tanh",
    likelihood: str = "categorical",
    rows: int = 50,
    dtype: torch.dtype = torch.float32,
    *,
    bias: bool = True,
    prior: Prior | None = None,
    likelihood_temperature: float = 1.0,
) -> Problem:
    network = MLP(widths[0], widths[1:-1], widths[-1], ACTIVATIONS[activation], bias).to(dtype)
    x = torch.randn(rows, widths[0], generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    law = LIKELIHOODS[likelihood]
    return Problem(network, law, x, targets(law, rows, widths[-1], dtype), prior, likelihood_temperature)


def made(of: Problem) -> NativeMLP:
    found = of.native()
    assert found is not None
    return found


def evaluate(of: NativeMLP, theta: Tensor, threads: int | None = None) -> tuple[Tensor, Tensor]:
    grad, energy = torch.full_like(theta, math.nan), torch.full((len(theta),), math.nan, dtype=torch.float64)
    of.energies(theta, grad, energy, threads)
    return energy, grad


def compare(of: Problem, chains: int, scale: float = 1.0) -> None:
    theta = of.theta(chains, scale)
    energy, grad = evaluate(made(of), theta)
    exact_energy, exact_grad = of.reference(theta)
    steep = isinstance(
        of.target.likelihood, HeteroscedasticNormal
    )  # e^{−2s}: rounding of s = −30 is thirty times as much
    within = TOLERANCE[theta.dtype] * (10 if steep else 1)
    assert float(((energy - exact_energy) / exact_energy.abs().clamp(min=1.0)).abs().max()) < within
    for row, exact in zip(grad.double(), exact_grad, strict=True):
        assert float((row - exact).abs().max()) < within * float(exact.abs().max())


@compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_and_likelihood(activation, likelihood, bias, dtype):
    compare(problem(activation=activation, likelihood=likelihood, dtype=dtype, bias=bias), 1, 2.0)


@compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("rows", [1, 7, 500])
@pytest.mark.parametrize(
    "widths",
    [(1, 2), (4, 3), (2, 20, 20, 20, 2), (3, 1, 3, 20, 33, 5), (33, 33, 1, 4), (64, 3, 2), (101, 20, 7), (72, 4, 2)],
)
def test_sizes_that_fill_no_vector(widths, rows, chains, dtype):
    compare(problem(widths, "tanh", "categorical", rows, dtype), chains)


@compiler
@pytest.mark.parametrize("scale", [8.0, 40.0])
def test_noise_beyond_both_ends(scale):
    """log s of ±hundreds: the noise stays between e⁻²⁰ and e⁴⁰, and has no slope outside."""
    of = problem((3, 8, 2), "relu", "heteroscedastic", dtype=torch.float64)
    outputs = Engine(of.exact).outputs(of.theta(4, scale).double(), of.data.x.double())[..., 1]
    assert bool((outputs < -20).any())
    assert bool((outputs > 40).any())
    compare(of, 4, scale)


@compiler
@pytest.mark.parametrize("scale", [1e-4, 10.0, 100.0])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_small_and_saturated(activation, scale):
    compare(problem((3, 8, 2), activation, dtype=torch.float64), 1, scale)


@compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_functions_to_the_last_places(activation, dtype):
    """One unit f(w) u with u = 1 and square loss against zero: the gradient in u is f(w)²."""
    w = torch.logspace(-6, 1.4, 300, dtype=dtype)
    w = torch.cat([w, -w])
    network = MLP(1, [1], 1, ACTIVATIONS[activation], bias=False).to(dtype)
    one, zero = torch.ones(1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype)
    _, grad = evaluate(made(Problem(network, Normal(1.0), one, zero, GaussianPrior(1e30))), torch.stack([w, w**0], 1))
    exact = ACTIVATIONS[activation]()(w.double()).square()
    some = exact > 1e-25
    errors = (grad[some, 1].double() / exact[some] - 1).abs()
    assert float(errors.max()) < 2 * 5 * torch.finfo(dtype).eps / 2  # a square of a value with five half-places off


@compiler
def test_every_kind_of_place_in_a_sequential():
    inner = nn.Sequential(nn.Linear(12, 6, bias=False), nn.Identity(), nn.SiLU())
    network = nn.Sequential(nn.Flatten(), inner, nn.Dropout(0.0), nn.Linear(6, 5), MLP(5, [4], 3, nn.ReLU), nn.Tanh())
    x = torch.randn(31, 3, 4, generator=torch.Generator().manual_seed(0))
    compare(Problem(network, Categorical(), x, targets(Categorical(), 31, 3, torch.float32)), 2)
    flattening = MLP(12, [4], 3)
    compare(Problem(flattening, Categorical(), x, targets(Categorical(), 31, 3, torch.float32)), 2)


@compiler
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize(
    "prior", [GaussianPrior(FanIn()), LaplacePrior(0.5), PerLayer({"0": GaussianPrior(0.1), "*": LaplacePrior(2.0)})]
)
def test_priors_and_the_temperature_of_the_likelihood(prior, likelihood):
    compare(problem(likelihood=likelihood, prior=prior, likelihood_temperature=0.3), 2)


@compiler
def test_gradient_by_finite_differences():
    of = problem((2, 4, 3), "softplus", "categorical", 11, torch.float64)
    found, theta = made(of), of.theta(1)
    _, grad = evaluate(found, theta)
    h = 1e-5
    moves = h * torch.eye(theta.shape[1], dtype=torch.float64)
    energy = torch.empty(2 * len(moves), dtype=torch.float64)
    found.potentials(torch.cat([theta + moves, theta - moves]), energy)
    slopes = (energy[: len(moves)] - energy[len(moves) :]) / (2 * h)
    assert torch.allclose(grad[0], slopes, atol=1e-8)  # h² and rounding / h


@compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_potentials_are_the_energies_to_the_bit(dtype):
    of = problem((2, 20, 20, 2), rows=500, dtype=dtype)
    theta, found = of.theta(3), made(of)
    alone = torch.empty(3, dtype=torch.float64)
    found.potentials(theta, alone)
    assert torch.equal(alone, evaluate(found, theta)[0])


def steps_by_hand(of: Problem, theta, p, step, inverse_mass, inverse_temperature, steps):
    """In double precision."""
    theta, p, inverse_mass = theta.double(), p.double(), inverse_mass.double()
    kick, move = (step * inverse_temperature).unsqueeze(-1), step.unsqueeze(-1)
    _, grad = of.reference(theta)
    for _ in range(steps):
        p = p - 0.5 * kick * grad
        theta = theta + move * inverse_mass * p
        energy, grad = of.reference(theta)
        p = p - 0.5 * kick * grad
    return theta, p, grad, energy, 0.5 * (p * inverse_mass * p).sum(-1)


@compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mass", ["shared", "each"])
@pytest.mark.parametrize("prior", [GaussianPrior(1.0), LaplacePrior(1.0)])
@pytest.mark.parametrize("steps", [1, 5])
def test_leapfrog(steps, prior, mass, dtype):
    of = problem((2, 6, 2), rows=30, dtype=dtype, prior=prior)
    found, theta, rng = made(of), of.theta(3), torch.Generator().manual_seed(9)
    p = torch.randn(theta.shape, generator=rng, dtype=torch.float64).to(dtype)
    shape = theta.shape if mass == "each" else theta.shape[1:]
    inverse_mass = torch.rand(shape, generator=rng, dtype=torch.float64).add(0.5).to(dtype)
    step = torch.tensor([0.02, -0.03, 0.01], dtype=torch.float64)
    inverse_temperature = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    expected = steps_by_hand(of, theta, p, step, inverse_mass, inverse_temperature, steps)
    energy, kinetic = torch.empty(3, dtype=torch.float64), torch.empty(3, dtype=torch.float64)
    _, grad = evaluate(found, theta)
    found.leapfrog(theta, p, grad, step, inverse_mass, inverse_temperature, steps, energy, kinetic)
    for value, exact in zip((theta, p, grad, energy, kinetic), expected, strict=True):
        assert torch.allclose(value.double(), exact, rtol=0, atol=5 * TOLERANCE[dtype] * float(exact.abs().max()))


@compiler
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_chain_that_is_not_finite_harms_no_other(activation, likelihood, bad):
    of = problem(activation=activation, likelihood=likelihood, rows=7)
    found, theta = made(of), of.theta(3)
    good_energy, good_grad = evaluate(found, theta)
    theta[1] *= bad
    energy, grad = evaluate(found, theta)
    assert not energy[1] < 1e30
    for chain in (0, 2):
        assert energy[chain] == good_energy[chain]
        assert torch.equal(grad[chain], good_grad[chain])
    kinetic, ones = torch.empty(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    momentum = torch.zeros_like(theta)
    found.leapfrog(theta, momentum, grad, 1e-4 * ones, torch.ones_like(theta), ones, 2, energy, kinetic)
    assert not energy[1] < 1e30
    assert energy[[0, 2]].isfinite().all()


@compiler
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_weight_that_is_nan_makes_the_data_term_nan(activation, likelihood):
    of = problem(activation=activation, likelihood=likelihood, rows=7, prior=LaplacePrior(1.0))
    found, theta = made(of), of.theta(1)
    found._bound_prior = None  # its NaN would hide a finite one here
    for place in (0, 12, theta.shape[1] - 1):
        worse = theta.clone()
        worse[0, place] = math.nan
        assert evaluate(found, worse)[0].isnan().all()


@compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_and_neighbours_do_not_matter(dtype):
    of = problem((2, 20, 20, 2), rows=500, dtype=dtype)
    found, theta = made(of), of.theta(5)
    alone, together = evaluate(found, theta, 1), evaluate(found, theta, 2)
    single = evaluate(found, theta[3:4], 1)
    for a, b, c in zip(alone, together, single, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a[3:4], c)
    inputs = [theta.clone(), torch.ones_like(theta), alone[1].clone()]
    results = []
    for threads in (1, 2):
        mine = [t.clone() for t in inputs]
        ones = torch.ones(5, dtype=torch.float64)
        out = [torch.empty_like(ones), torch.empty_like(ones)]
        found.leapfrog(*mine, 1e-3 * ones, torch.ones(theta.shape[1], dtype=dtype), ones, 3, *out, threads)
        results.append([*mine, *out])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@compiler
def test_rows_beyond_the_last_do_not_count():
    """Padding stands for the last row; it must add nothing for any count of rows."""
    for rows in range(1, 60, 7):
        compare(problem((2, 3, 2), "relu", "normal", rows, torch.float64), 1)


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def tied() -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2))
    network[2].weight = network[0].weight
    return network


def repeated() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(3, 2))


def hooked() -> nn.Module:
    network = MLP(3, [4], 2)
    network[0].register_forward_hook(lambda module, inputs, output: output + 1)
    return network


def parametrised() -> nn.Module:
    network = MLP(3, [4], 2)
    nn.utils.parametrizations.weight_norm(network[0])
    return network


def frozen() -> nn.Module:
    network = MLP(3, [4], 2)
    network[0].bias.requires_grad_(False)
    return network


UNSUPPORTED = {
    "dropout": lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 2)),
    "another activation": lambda: MLP(3, [4], 2, nn.GELU),
    "elu of another alpha": lambda: MLP(3, [4], 2, lambda: nn.ELU(0.5)),
    "softplus of another beta": lambda: MLP(3, [4], 2, lambda: nn.Softplus(2.0)),
    "a slope below zero": lambda: MLP(3, [4], 2, lambda: nn.LeakyReLU(-0.1)),
    "two activations": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.ReLU(), nn.Linear(4, 2)),
    "an activation first": lambda: nn.Sequential(nn.Tanh(), nn.Linear(3, 2)),
    "a norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
    "a subclass": lambda: nn.Sequential(Doubled(3, 2)),
    "tied weights": tied,
    "a repeated layer": repeated,
    "a hook": hooked,
    "a parametrisation": parametrised,
    "a frozen parameter": frozen,
    "large layers": lambda: MLP(3, [700, 700], 2),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_networks_that_are_left_to_autograd(name):
    x, y = torch.randn(10, 3), torch.zeros(10, dtype=torch.int64)
    assert Problem(UNSUPPORTED[name](), Categorical(), x, y).native() is None


@pytest.mark.parametrize("likelihood", [StudentT(4.0, 1.0), StudentT(4.0), ContaminatedNormal()])
def test_likelihoods_that_are_left_to_autograd(likelihood):
    of = Problem(MLP(3, [4], 1), likelihood, torch.randn(10, 3), torch.randn(10, 1))
    assert of.native() is None


@compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_beyond_all_measure_grows_no_more(dtype):
    """Where log s exceeds 40 it counts as 40, and has no slope."""
    of = problem((2, 3, 4), likelihood="heteroscedastic", rows=30, dtype=dtype)
    theta = of.theta(3)
    theta[:, -1] = 45.0  # the bias of the last log scale
    energy, grad = evaluate(made(of), theta)
    exact_energy, exact_grad = of.reference(theta)
    assert float(((energy - exact_energy) / exact_energy).abs().max()) < TOLERANCE[dtype]
    assert torch.allclose(
        grad.double(), exact_grad, rtol=1e-4, atol=10 * TOLERANCE[dtype] * float(exact_grad.abs().max())
    )


@compiler
def test_scales_that_a_prior_learns_are_left_to_autograd():
    network, x, y = MLP(3, [4], 2), torch.randn(10, 3), torch.zeros(10, dtype=torch.int64)
    assert Problem(network, Categorical(), x, y, GaussianPrior(Learned())).native() is None


def test_data_that_are_left_to_autograd():
    good = problem()
    t = good.target
    rest = (t.network, t.layout, t.likelihood, t.bound_prior, 1.0)
    assert NativeMLP.of(*rest, good.x.double(), good.y) is None
    assert NativeMLP.of(*rest, (good.x,), good.y) is None
    assert NativeMLP.of(*rest, good.x[:, :2], good.y) is None
    assert NativeMLP.of(*rest, good.x, good.y.float()) is None
    assert NativeMLP.of(*rest, good.x.to("meta"), good.y) is None
    half = Target(t.network, Categorical(), GaussianPrior(1.0), compute=torch.bfloat16)
    assert NativeMLP.of(half.network, half.layout, *rest[2:], good.x, good.y) is None


def test_a_subset_of_the_weights_is_left_to_autograd():
    of = problem()
    target = Target(of.target.network, Categorical(), GaussianPrior(1.0), subset="2")
    arguments = (target.network, target.layout, target.likelihood, target.bound_prior, 1.0, of.x, of.y)
    assert NativeMLP.of(*arguments) is None


def test_without_a_compiler_there_is_none(monkeypatch):
    monkeypatch.setenv("TEMPERANCE_NO_COMPILER", "1")
    native.forget()
    try:
        assert problem().native() is None
    finally:
        native.forget()


@compiler
def test_arguments_are_checked():
    of = problem()
    found, theta = made(of), of.theta(2)
    energy, other = torch.empty(2, dtype=torch.float64), torch.empty(2, dtype=torch.float64)
    grad, ones = torch.empty_like(theta), torch.ones(2, dtype=torch.float64)
    with pytest.raises(ArgumentError, match="`theta`"):
        found.energies(theta[:, 1:], grad, energy)
    with pytest.raises(ArgumentError, match="`theta`"):
        found.energies(theta.double(), grad, energy)
    with pytest.raises(ArgumentError, match="`grad`"):
        found.energies(theta, grad[:1], energy)
    with pytest.raises(ArgumentError, match="`energy`"):
        found.energies(theta, grad, energy.float())
    for mass, steps, name in ((theta[:1], 1, "inverse_mass"), (theta, 0, "steps")):
        with pytest.raises(ArgumentError, match=f"`{name}`"):
            found.leapfrog(theta, theta.clone(), grad, ones, mass, ones, steps, energy, other)


def test_copies_share_it():
    found = problem().native()
    assert copy.deepcopy(found) is found


@compiler
def test_the_layout_of_blocks_does_not_matter(monkeypatch):
    results = []
    for strips, wide in itertools.product((1, 3, 7), (1, 1000)):
        monkeypatch.setattr(mlp, "_MOST_STRIPS", strips)
        monkeypatch.setattr(mlp, "_WIDE_INPUT", wide)
        of = problem((30, 4, 3), rows=200, dtype=torch.float64)
        results.append(evaluate(made(of), of.theta(1)))
    for energy, grad in results[1:]:
        assert torch.allclose(energy, results[0][0], rtol=1e-14)
        assert torch.allclose(grad, results[0][1], rtol=0, atol=1e-14 * float(grad.abs().max()))
