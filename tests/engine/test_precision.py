"""Networks that compute in half precision while θ stays in single."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import ArgumentError, CorruptRunError, MismatchError, NetworkError
from temperance.engine.precision import compute_in, full_precision, plain_copy
from temperance.testing import ClosedForm, linear_gaussian
from temperance.testing.tolerance import assert_moments
from tests.run.saved import resealed

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
NOISE = 5.0


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))


def target_of(net: nn.Module | None = None, **options: Any) -> tp.Target:
    options = {"compute": torch.bfloat16, **options}
    return tp.Target(net or network(), tp.Categorical(), tp.GaussianPrior(1.0), **options)


def under_autocast(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        return net(x)


# ---------------------------------------------------------------------- what is computed


def test_the_network_computes_as_torch_would_and_answers_in_float32():
    fitted = tp.fit(target_of(), tp.MAP(), (X, Y), epochs=1)
    theta = fitted.posterior.theta
    assert theta.dtype == torch.float32
    found = fitted.engine.outputs(theta.unsqueeze(0), X, batched=False)[0]
    plain = fitted.network()
    assert found.dtype == torch.float32
    assert torch.equal(found, under_autocast(plain, X).float())
    with torch.no_grad():
        exact = plain(X)
    off = float((found - exact).abs().max() / exact.abs().max())
    assert 1e-4 < off < 2e-2
    assert float((fitted.predict(X).probs.sum(1) - 1).abs().max()) < 1e-6
    assert fitted.evaluate((X, Y))["log_loss"] > 0


def test_the_users_network_is_not_changed():
    mine = network()
    before = mine(X)
    target = target_of(mine)
    assert torch.equal(mine(X), before)
    assert target.network(X).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")
    assert torch.equal(plain_copy(target.network)(X), before)
    assert torch.equal(tp.Target(plain_copy(target.network), tp.Categorical(), tp.GaussianPrior()).network(X), before)


def test_an_error_in_the_network_leaves_no_autocast_behind():
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 13:
                raise RuntimeError("mine")
            return self.layer(x)

    made = Failing()
    compute_in(made, torch.bfloat16)
    with pytest.raises(RuntimeError, match="mine"):
        made(X[:13])
    assert not torch.is_autocast_enabled("cpu")
    assert made(X).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def test_an_interrupt_in_the_network_leaves_no_autocast_behind():
    class Struck(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    made = nn.Sequential(Struck(4, 2))
    compute_in(made, torch.bfloat16)
    with pytest.raises(KeyboardInterrupt):
        made(X)
    assert not torch.is_autocast_enabled("cpu")
    assert (X @ X.T).dtype == torch.float32


def test_a_copy_is_told_for_itself():
    made = network()
    compute_in(made, torch.bfloat16)
    compute_in(made, torch.bfloat16)  # once is enough
    with full_precision(made):
        other = copy.deepcopy(made)
        assert made(X).dtype == torch.float32
    assert other.forward.network is other
    read = pickle.loads(pickle.dumps(made))
    assert torch.equal(read(X), made(X))
    assert read.forward.network is read
    assert plain_copy(made).__dict__.get("forward") is None


def test_a_network_whose_forward_was_replaced_keeps_that():
    made = nn.Linear(4, 2)
    made.forward = lambda x: nn.functional.linear(x, made.weight) + 7
    before = made(X)
    compute_in(made, torch.bfloat16)
    assert made(X).dtype == torch.bfloat16
    assert float((made(X).float() - before).detach().abs().max()) < 0.1
    assert torch.equal(plain_copy(made)(X), before)


def test_a_dict_of_inputs_goes_where_it_went():
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return self.layer(batch["features"])

    made = tp.fit(target_of(Whole()), tp.MAP(), ({"features": X}, Y), epochs=1)
    assert made.predict({"features": X}).probs.shape == (60, 2)


def test_outputs_in_float64_stay_so():
    target = tp.Target(network().double(), tp.Categorical(), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.MAP(), (X.double(), Y), epochs=1)
    assert fitted.predict(X.double()).probs.dtype == torch.float64


def test_threads_and_passes_within_passes_do_not_mix():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            first = self.inner(x).dtype
            assert torch.is_autocast_enabled("cpu") == (first == torch.bfloat16)
            return self.inner(x)

    made = Outer()
    compute_in(made, torch.bfloat16)
    compute_in(made.inner, torch.bfloat16)
    wanted, wrong = made(X), []

    def again() -> None:
        wrong.extend(1 for _ in range(50) if not torch.equal(made(X), wanted) or torch.is_autocast_enabled("cpu"))

    threads = [threading.Thread(target=again) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    with full_precision(made):
        assert made(X).dtype == torch.float32
        assert made(X[:0]).dtype == torch.float32
    assert made(X).dtype == torch.bfloat16


def test_small_steps_are_not_rounded_away():
    """θ in bfloat16 would take a handful of values."""
    fitted = tp.fit(target_of(), tp.Collect(tp.SGHMC(lr=1e-3), burn=10, every=1), (X, Y), steps=300, batch_size=20)
    values = fitted.posterior.theta[:, 0]
    assert len(values.unique()) > 250


# ---------------------------------------------------------------------- exactness


def narrow(noise: float = NOISE) -> tuple[ClosedForm, float]:
    """The linear-Gaussian problem computed in bfloat16, and by how many posterior standard deviations its posterior may
    move. Products of inputs and weights that are both rounded to eight bits, and a sum that is, are off by
    δ ≤ 3 · 2⁻⁹ Σ |x| |w|; in standard deviations the mean moves by |Σ^½ Jᵀδ / σ²| ≤ |δ| / σ, for
    Σ^½ JᵀJ Σ^½ / σ² ≤ 1."""
    problem = linear_gaussian(noise=noise, dtype=torch.float32)
    given = problem.target
    target = tp.Target(given.network, given.likelihood, given.prior, compute=torch.bfloat16)
    x = problem.data.x.double().abs()
    largest = problem.mean.abs() + 3 * problem.covariance.diagonal().sqrt()
    delta = 3 * 2.0**-9 * x.sum(1).clamp(min=1.0) * float(largest.max())
    return dataclasses.replace(problem, target=target), float((2 * delta.square()).sum().sqrt()) / noise


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_a_mode_is_where_it_should_be(temperature):
    problem, tolerance = narrow()
    method = tp.MAP(lr=0.1, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
    target = problem.target.with_temperature(temperature)
    fitted = tp.fit(target, method, problem.data, steps=800, batch_size=40)
    spread = problem.covariance.diagonal().sqrt()
    off = float(((fitted.posterior.theta.double() - problem.mean) / spread).abs().max())
    assert 1e-5 < off < tolerance < 0.4  # it is computed in half precision, and no worse than that must be


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("method", [tp.BAOAB(lr=0.2, momentum=0.7), tp.SGHMC(lr=0.02)], ids=lambda m: type(m).__name__)
def test_samplers_have_the_moments_of_the_posterior(method, temperature):
    problem, tolerance = narrow()
    target = problem.target.with_temperature(temperature)
    covariance = temperature * problem.covariance
    rng = torch.Generator().manual_seed(1)
    start = problem.mean + torch.randn(800, 16, generator=rng).double() @ torch.linalg.cholesky(covariance).T
    fitted = tp.fit(
        target, tp.Ensemble(method, 800), problem.data, steps=150, batch_size=40, start=start.float(), progress=False
    )
    nodes = fitted.posterior.nodes()
    draws = nodes.fetch(0, len(nodes))[0].double()
    assert len(draws) == 800
    moved = float(((draws.mean(0) - problem.mean) / covariance.diagonal().sqrt()).abs().max())
    assert moved < tolerance / temperature**0.5 + 4.5 / 800**0.5
    assert_moments(draws - draws.mean(0) + problem.mean, problem.mean, covariance)


def test_laplace_has_the_curvature_of_the_network_in_full():
    """Curvature and linearised predictions are measured in float32: half of it would be noise."""
    trained = tp.fit(target_of(compute=None), tp.MAP(lr=1e-2), (X, Y), epochs=5).network()
    method = tp.Laplace(curvature=tp.KFAC(), tune=None)
    made = [tp.fit(target_of(trained, compute=c), method, (X, Y), start=trained) for c in (None, torch.bfloat16)]
    plain, half = made
    assert torch.equal(plain.posterior.covariance(), half.posterior.covariance())
    assert torch.equal(plain.predict(X).probs, half.predict(X).probs)
    assert not torch.equal(plain.predict(X, by="network").probs, half.predict(X, by="network").probs)


# ---------------------------------------------------------------------- what is kept, and what is refused


def test_a_run_knows_how_it_computes(tmp_path: Path):
    net = network()
    options: dict[str, Any] = {"batch_size": 20, "checkpoint": tmp_path / "run"}
    whole = tp.fit(target_of(net), tp.SGHMC(lr=0.02), (X, Y), epochs=4, batch_size=20)
    tp.fit(target_of(net), tp.SGHMC(lr=0.02), (X, Y), epochs=2, **options)
    with pytest.raises(MismatchError, match="the target"):
        tp.fit(target_of(net, compute=None), tp.SGHMC(lr=0.02), (X, Y), epochs=4, **options)
    resumed = tp.fit(target_of(net), tp.SGHMC(lr=0.02), (X, Y), epochs=4, **options)
    assert torch.equal(resumed.posterior.theta, whole.posterior.theta)
    loaded = tp.load(tmp_path / "run", network())
    assert loaded.target.compute is torch.bfloat16
    assert torch.equal(loaded.predict(X).probs, whole.predict(X).probs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_are_refused_with_what_to_do(dtype):
    with pytest.raises(NetworkError, match=r"must be float32 or float64; got torch\.\w*float16.*network.float\(\)"):
        target_of(network().to(dtype), compute=None)


def test_a_frozen_part_may_be_in_half_precision():
    """As a foundation model comes, with a head on top of it in float32."""
    base = network()
    mixed = nn.Sequential(base[0].bfloat16(), nn.Tanh(), base[3])
    target = target_of(mixed, subset="2.*")
    fitted = tp.fit(target, tp.MAP(lr=1e-2), (X, Y), epochs=3)
    assert fitted.posterior.theta.dtype == torch.float32
    laplace = tp.fit(target, tp.Laplace(tp.MAP(lr=1e-2)), (X, Y), epochs=3)
    assert laplace.evaluate((X, Y))["log_loss"] < 1.0
    assert fitted.evaluate((X, Y))["log_loss"] < 1.0


def test_other_types_are_refused():
    for wrong in (torch.float16, torch.float32, "bfloat16", True):
        with pytest.raises(ArgumentError, match=r"`compute` must be torch\.bfloat16"):
            target_of(compute=wrong)
    with pytest.raises(ArgumentError, match=r"needs random parameters in float32; got torch\.float64"):
        target_of(network().double())


@pytest.mark.parametrize(
    "method",
    [tp.HMC(step_size=0.1), tp.NUTS(step_size=0.1), tp.GGMC(lr=0.1), tp.EllipticalSlice()],
    ids=lambda m: type(m).__name__,
)
def test_methods_that_decide_by_energies_are_refused(method):
    for wrapped in (tp.On("3.*", method), tp.Collect(method)):
        with pytest.raises(ArgumentError, match=r"`compute` of the target must be None for \w+, which decides"):
            tp.fit(target_of(), wrapped, (X, Y), steps=5)
    with pytest.raises(ArgumentError, match=r"`compute` of the target must be None for \w+, which decides"):
        tp.fit(target_of(), method, (X, Y), steps=5)


def test_a_run_whose_compute_was_damaged_says_so(tmp_path: Path):
    tp.fit(target_of(), tp.MAP(), (X, Y), epochs=1).save(tmp_path)
    with resealed(tmp_path) as manifest:
        text = json.dumps(manifest)
        assert text.count("torch.bfloat16") == 1
        manifest.update(json.loads(text.replace("torch.bfloat16", "torch.float16")))
    with pytest.raises(CorruptRunError, match="its compute cannot be"):
        tp.load(tmp_path, network())
