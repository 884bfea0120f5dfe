from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, DataError, NetworkError
from temperance.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.testing import linear_gaussian
from tests.small import X, Y, real


def problem(**options) -> tuple[tp.Target, Data]:
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    target = tp.Target(network, tp.Normal(None, num_outputs=2), tp.GaussianPrior(tp.FanIn(), mean=0.1), **options)
    data = Data(torch.randn(17, 3, dtype=torch.float64), torch.randn(17, 2, dtype=torch.float64))
    return target, target.prepare(data)


def by_hand(target: tp.Target, theta: torch.Tensor, data: Data) -> torch.Tensor:
    """log density, written out: the slow and obviously right twin."""
    values = target.layout.unflatten(theta)
    out = torch.func.functional_call(target.network, {k: v for k, v in values.items() if "likelihood" not in k}, data.x)
    noise = values["likelihood.log_scale"]
    log_lik = torch.distributions.Normal(out, noise.exp()).log_prob(data.y).sum()
    normal = lambda mean, scale: torch.distributions.Normal(*torch.tensor([mean, scale], dtype=torch.float64))  # noqa: E731
    log_prior = normal(0.0, 1.0).log_prob(noise).sum()
    for entry in target.layout.network_entries:
        scale = entry.fan_in**-0.5 if entry.fan_in else 1.0
        log_prior = log_prior + normal(0.1, scale).log_prob(values[entry.name]).sum()
    return (log_lik / target.likelihood_temperature + log_prior) / target.temperature


@pytest.mark.parametrize(("temperature", "likelihood_temperature"), [(1.0, 1.0), (0.1, 1.0), (1.0, 3.0), (0.5, 0.2)])
def test_log_density_and_gradient_against_a_twin(temperature, likelihood_temperature):
    target, data = problem(temperature=temperature, likelihood_temperature=likelihood_temperature)
    theta = target.initial_theta() + 0.3 * torch.randn(target.num_parameters, dtype=torch.float64)
    expected = by_hand(target, theta, data)
    assert float(Engine(target).log_density(theta, data, batch_size=5)) == pytest.approx(float(expected), rel=1e-12)
    leaf = theta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(by_hand(target, leaf, data), leaf)
    batch = next(iter(data.full_pass(17)))
    grad = torch.full_like(theta, 99.0)
    loss = Engine(target).gradient(theta.clone(), batch, grad)
    assert torch.allclose(-17 * grad / temperature, slope, atol=1e-10)
    (again,) = torch.autograd.grad(Engine(target).loss(leaf, batch), leaf)
    assert torch.allclose(grad, again, atol=1e-12)
    log_lik = Engine(target).log_likelihood(theta.unsqueeze(0), batch).mean()
    assert float(loss) == pytest.approx(-float(log_lik), rel=1e-12)


def test_stacked_gradient_equals_one_gradient_each():
    target, data = problem(likelihood_temperature=2.0)
    theta = torch.stack([target.fresh_theta(k) for k in range(4)])
    batch = next(iter(data.batches(6, seed=0, streams=4)))
    grad = torch.full_like(theta, 7.0)
    losses = Engine(target).gradients(theta, batch, grad)
    for k in range(4):
        alone = torch.zeros(target.num_parameters, dtype=torch.float64)
        loss = Engine(target).gradient(theta[k].clone(), batch.stream(k), alone)
        assert torch.allclose(grad[k], alone, atol=1e-12)
        assert torch.allclose(losses[k], loss)


def test_average_over_minibatches_is_the_full_gradient():
    """The per-datum loss is unbiased over batch sizes, ragged ones weighted by their size."""
    target, data = problem()
    theta = target.initial_theta()
    whole = torch.zeros_like(theta)
    Engine(target).gradient(theta, next(iter(data.full_pass(17))), whole)
    for size in (1, 4, 5, 17):
        total = torch.zeros_like(theta)
        for batch in data.batches(size, seed=3):
            grad = torch.zeros_like(theta)
            Engine(target).gradient(theta, batch, grad)
            total += grad * batch.size / 17
        assert torch.allclose(total, whole, atol=1e-12)


def test_n_comes_from_the_data_and_weighs_the_prior():
    target, data = problem()
    theta = target.initial_theta()
    batch = next(iter(data.full_pass(17)))
    doubled = Batch(batch.x, batch.y, num_data=34)
    prior, engine = target.log_prior(theta), Engine(target)
    assert torch.allclose(engine.loss(theta, batch) - engine.loss(theta, doubled), -prior / 17 + prior / 34)


def test_temperatures_are_different_things():
    exact = linear_gaussian()
    theta = exact.mean + 0.1
    base = exact.target
    cold = base.with_temperature(0.25)
    log_density = Engine(base).log_density(theta, exact.data)
    assert torch.allclose(Engine(cold).log_density(theta, exact.data), 4 * log_density)
    tempered = tp.Target(base.network, base.likelihood, base.prior, likelihood_temperature=0.25)
    expected = 4 * (log_density - base.log_prior(theta)) + base.log_prior(theta)
    assert torch.allclose(Engine(tempered).log_density(theta, exact.data), expected)


def test_the_closed_form_is_the_mode_and_curvature_of_the_density():
    """The problem that all methods are judged by, judged itself: by autograd."""
    exact = linear_gaussian()
    density = lambda theta: Engine(exact.target).log_density(theta, exact.data)  # noqa: E731
    leaf = exact.mean.clone().requires_grad_()
    (slope,) = torch.autograd.grad(density(leaf), leaf)
    assert slope.abs().max() < 1e-9
    curvature = torch.autograd.functional.hessian(density, exact.mean)
    assert torch.allclose(-curvature, exact.precision, atol=1e-8)
    at_mean = density(exact.mean)
    half_log_det = 0.5 * torch.logdet(exact.precision)
    evidence = at_mean + 0.5 * len(exact.mean) * torch.log(torch.tensor(2 * torch.pi)) - half_log_det
    assert float(evidence) == pytest.approx(exact.log_evidence, rel=1e-8)


def test_target_leaves_the_given_network_alone():
    network = nn.Linear(2, 1)
    before = network.weight.detach().clone()
    target = tp.Target(network, tp.Normal(0.1), tp.GaussianPrior(1.0))
    tp.fit(target, tp.MAP(lr=0.1), (torch.randn(9, 2), torch.randn(9)), epochs=3)
    assert torch.equal(network.weight, before)
    assert network.weight.grad is None


def test_bad_targets():
    network = nn.Linear(2, 3)
    with pytest.raises(ArgumentError, match="`likelihood`"):
        tp.Target(network, "categorical", tp.GaussianPrior())
    with pytest.raises(ArgumentError, match="`prior`"):
        tp.Target(network, tp.Categorical(), 1.0)
    with pytest.raises(NetworkError, match="`network`"):
        tp.Target(lambda x: x, tp.Categorical(), tp.GaussianPrior())
    for bad in (0.0, -1.0, float("nan"), "1"):
        with pytest.raises(ArgumentError, match="`temperature`"):
            tp.Target(network, tp.Categorical(), tp.GaussianPrior(), temperature=bad)
    with pytest.raises(ArgumentError, match="`likelihood_temperature`"):
        tp.Target(network, tp.Categorical(), tp.GaussianPrior(), likelihood_temperature=0.0)
    with pytest.raises(ArgumentError, match="`subset`"):
        tp.Target(network, tp.Categorical(), tp.GaussianPrior(), subset="head")


def test_data_are_checked_against_network_and_likelihood():
    target = tp.Target(nn.Linear(2, 3), tp.Categorical(), tp.GaussianPrior())
    x, y = torch.randn(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    with pytest.raises(NetworkError, match=r"cannot take inputs of shape.*\(2, 5\)"):
        target.prepare(Data(torch.randn(6, 5), y))
    with pytest.raises(DataError, match="classes from 0 to 2"):
        target.prepare(Data(x, y + 1))
    with pytest.raises(DataError, match="NaN or infinity in x"):
        target.prepare(Data(torch.full((6, 2), float("inf")), y))
    flat = tp.Target(nn.Sequential(nn.Linear(2, 3), nn.Flatten(0)), tp.Categorical(), tp.GaussianPrior())
    with pytest.raises(NetworkError, match="one row of outputs per input"):
        flat.prepare(Data(x, y))
    assert target.prepare(Data(x.double(), y)).x.dtype == torch.float32


def test_starts():
    target = tp.Target(nn.Linear(2, 3), tp.Categorical(), tp.GaussianPrior())
    other = nn.Linear(2, 3)
    assert torch.equal(target.theta_of(other)[:6], other.weight.flatten())
    with pytest.raises(ArgumentError, match="vector of 9 numbers"):
        target.theta_of(torch.zeros(4))
    with pytest.raises(ArgumentError, match="`start` must be finite"):
        target.theta_of(torch.full((9,), float("nan")))
    with pytest.raises(ArgumentError, match="it lacks"):
        target.theta_of(nn.Sequential(nn.Linear(2, 3)))
    assert torch.equal(target.fresh_theta(3), target.fresh_theta(3))
    assert not torch.equal(target.fresh_theta(3), target.fresh_theta(4))


def test_a_deep_copy_of_a_target_trains():
    import copy

    target = real()
    method = tp.MAP(lr=0.1)
    data = target.prepare(tp.data.Data(X, Y))
    engine = Engine(target, data)
    state = method.init(engine, tp.Starts(), [torch.Generator()])
    batch = next(iter(data.full_pass()))
    method.step(engine, state, batch)
    other, theirs = copy.deepcopy((target, state.theta[0]))
    grad = torch.zeros_like(theirs)
    first = Engine(other).gradient(theirs, batch, grad)
    theirs -= 0.1 * grad
    assert Engine(other).gradient(theirs, batch, grad) < first


class Norms(nn.Module):
    """A batch norm, and a buffer of its own that training moves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.passes += 1
        return self.last(torch.tanh(self.norm(self.first(x))))


@pytest.mark.parametrize("frozen", [True, False])
def test_the_problem_over_a_part_is_that_of_a_subset(frozen):
    """Both temperatures, what becomes of batch norms, and the buffers that are known to move."""
    torch.manual_seed(2)
    network = Norms().double()
    options = {"temperature": 0.4, "likelihood_temperature": 2.5, "freeze_batch_norm": frozen}
    whole, part = real(network, **options), real(network, subset="last", **options)
    data = whole.prepare(Data(X.double() + 1, Y.double()))
    batch = next(iter(data.full_pass()))
    whole = Engine(whole, data).target
    smaller = whole.restrict(whole.names("last"), whole.initial_theta())
    engines = [Engine(smaller), Engine(part)]
    theta = torch.randn(5, dtype=torch.float64)
    one, two = (engine.log_density(theta, data) for engine in engines)
    assert float(one) == pytest.approx(float(two), rel=1e-12)
    slopes = [torch.empty_like(theta) for _ in engines]
    losses = [engine.gradient(theta, batch, slope) for engine, slope in zip(engines, slopes, strict=True)]
    assert torch.allclose(*slopes, rtol=1e-12)
    assert torch.allclose(*losses, rtol=1e-12)
    assert smaller.batch_norm_names() == part.batch_norm_names() == ([] if frozen else ["norm"])
    assert "passes" in smaller.moving
    assert ("norm.running_mean" in smaller.moving) is not frozen
    assert set(smaller.moving) == set(whole.moving)
