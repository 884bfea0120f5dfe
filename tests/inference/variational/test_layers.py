"""Noise at the outputs of layers: the law of the outputs, and gradients that agree with those of shared draws."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

import temperance as tp
from temperance.core.errors import NetworkError
from temperance.data import Data
from temperance.engine.engine import Engine
from temperance.engine.native import NormalStream
from temperance.inference.variational.layers import NoisyLayers
from temperance.testing import assert_moments, critical_value

F64 = torch.float64


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def prepared(network, x, outputs=2, likelihood=None):
    """A target that has seen data of the right shapes, and these data."""
    torch.manual_seed(0)
    target = tp.Target(network.double(), likelihood or tp.Normal(scale=0.5), tp.GaussianPrior(1.0))
    return target, target.prepare(Data(x, random(len(x), outputs, seed=9)))


# ---------------------------------------------------------------------- the law of one layer's outputs

ONE_LAYER = {
    "linear": (nn.Linear(3, 2), (3,)),
    "linear without bias": (nn.Linear(3, 2, bias=False), (3,)),
    "linear at several places": (nn.Linear(3, 2), (4, 3)),
    "convolution": (nn.Conv2d(2, 2, 3, stride=2, padding=1), (2, 5, 4)),
    "grouped convolution": (nn.Conv2d(4, 2, 2, groups=2, dilation=2, bias=False), (4, 4, 4)),
    "depthwise": (nn.Conv2d(2, 4, 3, groups=2, padding="same"), (2, 3, 3)),
    "padded by reflection": (nn.Conv1d(2, 3, 3, padding=2, padding_mode="reflect"), (2, 4)),
}


class Flat(nn.Module):
    """One layer and its outputs in a row."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x).flatten(1)


@pytest.mark.parametrize("kind", ["local", "flipout"])
@pytest.mark.parametrize("name", ONE_LAYER)
def test_outputs_have_the_mean_and_variance_of_shared_draws(name, kind):
    """With y = J θ in the weights, y ~ N(J μ, J diag(σ²) Jᵀ), J from automatic differentiation."""
    layer, shape = ONE_LAYER[name]
    example = random(1, *shape, seed=1)
    network = Flat(layer).double()
    target, data = prepared(network, example.expand(4, *shape), outputs=network(example).shape[1])
    theta = random(target.layout.size, seed=2)
    scale = 0.3 + 0.5 * random(target.layout.size, seed=3).abs()

    def outputs(at):
        return torch.func.functional_call(target.network, dict(target.layout.unflatten(at)), (example,))[0]

    jacobian = torch.func.jacrev(outputs)(theta)
    mean, covariance = jacobian @ theta, jacobian @ torch.diag(scale.square()) @ jacobian.T
    engine = Engine(target, data)
    layers = NoisyLayers(engine, kind)
    assert not bool(layers.shared.any())
    stream, draws = NormalStream(5), []
    engine.workspace.attach(theta, None, {})
    with layers.installed(scale, stream), torch.no_grad():
        for _ in range(1_200):  # pairs of rows: those of one call are uncorrelated
            draws.append(engine.network(example.expand(2, *shape)))
    rows = torch.stack(draws)
    at_places = name not in ("linear", "linear without bias")
    if kind == "local" and at_places:  # every place by itself: marginals are right, correlations left out
        covariance = torch.diag(covariance.diagonal())
    if kind == "local":
        assert_moments(rows.flatten(0, 1), mean, covariance)
    else:  # rows of one call share |ΔW|, so their squares are not independent
        assert_moments(rows[:, 0], mean, covariance)
        assert_moments(rows[:, 1], mean, covariance)
    one, two = rows[:, 0] - mean, rows[:, 1] - mean
    cross = (one * two).mean(0) / ((one * two).std(0) / len(rows) ** 0.5)
    assert float(cross.abs().max()) < critical_value(len(mean))
    with torch.no_grad():
        assert torch.allclose(engine.network(example)[0], mean)  # the hooks are gone


def test_a_row_of_zeros_has_a_finite_gradient():
    target, data = prepared(nn.Linear(3, 2, bias=False), torch.zeros(5, 3, dtype=F64))
    method = tp.Variational(estimator="local", lr=0.1, initial_scale=0.1)
    fitted = tp.fit(target, method, data, steps=3)
    assert bool(torch.isfinite(fitted.posterior.mean).all())


# ---------------------------------------------------------------------- gradients


def gradients(target, data, estimator, count, family=None, seed=0):
    """``count`` independent estimates of the gradient in φ at one φ: the learning rate moves nothing."""
    method = tp.Variational(
        family or tp.MeanField(), 1e-40, torch.optim.SGD, estimator=estimator, initial_scale=0.4, kl="closed"
    )
    engine = Engine(target, data)
    state = method.init(engine, tp.Starts(), [torch.Generator().manual_seed(seed)])
    batch = next(iter(data.full_pass(len(data))))
    before, found = state.phi.clone(), []
    for _ in range(count):
        state, info = method.step(engine, state, batch)
        assert info.status.ok
        found.append(state.grad.clone())
    torch.testing.assert_close(state.phi, before, rtol=0, atol=1e-30)
    return torch.stack(found)


def assert_same_average(one, two):
    difference = one.mean(0) - two.mean(0)
    error = (one.var(0) / len(one) + two.var(0) / len(two)).sqrt()
    z = (difference / error.clamp(min=1e-14)).abs()
    assert float(z.max()) < critical_value(len(z)), (int(z.argmax()), float(z.max()))


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(1, 2, 2, padding=1)
        self.two = nn.Conv2d(2, 4, 2, stride=2, groups=2, bias=False)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.two(torch.tanh(self.one(x)))).mean((2, 3)))


class Twice(nn.Module):
    """A layer that is used twice, one that is used once."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Tied(Twice):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(3, 3)
        self.other.weight = self.inner.weight

    def forward(self, x):
        return self.head(torch.tanh(self.other(torch.tanh(self.inner(x)))))


class Functional(Twice):
    """The weight is used once more, without the module."""

    def forward(self, x):
        return self.head(torch.tanh(self.inner(x)) + F.linear(x, self.inner.weight))


class Parametrised(Twice):
    def __init__(self):
        super().__init__()
        self.inner = weight_norm(self.inner)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(x)))


class Scaled(Twice):
    """A bare parameter beside the layers."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return self.gain * self.head(torch.tanh(self.inner(x)))


class Attending(nn.Module):
    """Three words look at one another."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=False)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        words = x.transpose(0, 1)
        return self.head(self.attention(words, words, words)[0].mean(0))


def test_the_maps_of_an_attention_have_noise_of_their_own():
    """With noise in value and the way out alone, of which one is fixed, the output is linear in what is drawn."""
    x = random(1, 3, 4, seed=1)
    target, data = prepared(Attending(), x.expand(4, 3, 4))
    engine = Engine(target, data)
    layers = NoisyLayers(engine, "flipout")
    names = ["attention.query", "attention.key", "attention.value", "attention.out_proj", "head"]
    assert [layer.name for layer in layers.layers] == names
    assert not bool(layers.shared.any())
    theta, places = random(target.layout.size, seed=2), {e.name: e for e in target.layout.entries}

    def outputs(at):
        return torch.func.functional_call(target.network, dict(target.layout.unflatten(at)), (x,))[0]

    jacobian = torch.func.jacrev(outputs)(theta)
    packed, way_out = places["attention.in_proj_weight"], places["attention.out_proj.weight"]
    for start, stop in ((packed.stop - 16, packed.stop), (way_out.start, way_out.stop)):
        scale = torch.zeros_like(theta)
        scale[start:stop] = 0.3 + random(16, seed=3).abs()
        engine.workspace.attach(theta, None, {})
        stream = NormalStream(5)
        with layers.installed(scale, stream), torch.no_grad():
            rows = torch.stack([engine.network(x)[0] for _ in range(1_200)])
        assert_moments(rows, outputs(theta), jacobian @ torch.diag(scale.square()) @ jacobian.T)
    with torch.no_grad():
        assert torch.allclose(engine.network(x)[0], outputs(theta))  # all as before


def test_flipout_leaves_out_layers_whose_rows_come_second():
    """Signs go with the first dimension, which are words there."""
    network = nn.TransformerEncoderLayer(4, 2, 5, batch_first=False)

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network

        def forward(self, x):
            return self.inner(x.transpose(0, 1))[0, :, :2]

    target, data = prepared(Words(), random(5, 3, 4))
    names = [layer.name for layer in NoisyLayers(Engine(target, data), "flipout").layers]
    inside = "inner.self_attn."
    assert names == [inside + role for role in ("query", "key", "value", "out_proj")]


FALL_BACK = {"twice": Twice, "tied": Tied, "functional": Functional, "parametrised": Parametrised}


@pytest.mark.parametrize("kind", ["local", "flipout"])
@pytest.mark.parametrize("name", FALL_BACK)
def test_layers_that_are_not_alone_fall_back_to_the_shared_draw(name, kind):
    target, data = prepared(FALL_BACK[name](), random(5, 3))
    engine = Engine(target, data)
    layers = NoisyLayers(engine, kind)
    assert [layer.name for layer in layers.layers if layer.name != "other"] == ["head"]
    by_name = {e.name: bool(layers.shared[e.start : e.stop].all()) for e in target.layout.entries}
    none = {e.name: not bool(layers.shared[e.start : e.stop].any()) for e in target.layout.entries}
    assert none["head.weight"]
    assert none["head.bias"]
    assert all(by_name[key] for key in by_name if key.startswith("inner") and "weight" in key)


# A head of zeros (a usual initialisation) hides every gradient below it: were the rules tried at the initial θ, each
# would agree with 0 = 0, and the weight that is used twice would get noise in one of its two uses.
def test_a_head_of_zeros_does_not_hide_a_second_use():
    network = Functional()
    nn.init.zeros_(network.head.weight)
    target, data = prepared(network, random(6, 3))
    assert [layer.name for layer in NoisyLayers(Engine(target, data), "local").layers] == ["head"]
    shared, own = gradients(target, data, "shared", 800, seed=1), gradients(target, data, "local", 800, seed=2)
    assert_same_average(shared, own)


def test_a_network_without_such_layers_is_refused():
    target, data = prepared(nn.Sequential(nn.LayerNorm(2)), random(5, 2))
    with pytest.raises(NetworkError, match="estimator"):
        tp.fit(target, tp.Variational(estimator="local"), data, steps=1)


slow = pytest.mark.slow
CASES = [
    ("MLP", "local", tp.MeanField()),
    ("Conv", "flipout", tp.MeanField()),
    ("Functional", "local", tp.MeanField()),
    ("Attending", "flipout", tp.MeanField()),
    pytest.param("MLP", "flipout", tp.TiedScale(1), marks=slow),
    pytest.param("Scaled", "local", tp.MeanField(), marks=slow),
    pytest.param("Twice", "local", tp.MeanField(), marks=slow),
    pytest.param("Tied", "flipout", tp.TiedScale(1), marks=slow),
    pytest.param("Parametrised", "flipout", tp.MeanField(), marks=slow),
]


def make(name):
    torch.manual_seed(0)
    if name == "MLP":
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), random(6, 3)
    if name == "Attending":
        return Attending(), random(6, 3, 4)
    kinds = {"Conv": Conv, "Scaled": Scaled, "Twice": Twice, "Functional": Functional, "Tied": Tied}
    made = {**kinds, "Parametrised": Parametrised}[name]()
    return made, random(6, 1, 3, 3) if name == "Conv" else random(6, 3)


@pytest.mark.parametrize(("name", "kind", "family"), CASES)
def test_average_gradient_is_that_of_shared_draws(name, kind, family, request):
    network, x = make(name)
    target, data = prepared(network, x, likelihood=tp.Normal())
    count = 2_000 if request.node.get_closest_marker("slow") else 400
    shared = gradients(target, data, "shared", count, family, seed=1)
    assert_same_average(shared, gradients(target, data, kind, count, family, seed=2))


@pytest.mark.parametrize("kind", ["shared", "local", "flipout"])
def test_average_gradient_of_a_linear_model_is_the_closed_form(kind):
    """E_q of Σ_r (y − xμ)²/2s² /B − KL terms, in μ and log σ, at T = 1 and λ = 0.7."""
    x, y = random(12, 3), random(12, 1, seed=9)
    network = nn.Linear(3, 1, bias=False).double()
    target = tp.Target(network, tp.Normal(scale=0.5), tp.GaussianPrior(0.8, mean=0.2), 0.6, likelihood_temperature=0.7)
    data = target.prepare(Data(x, y))
    found = gradients(target, data, kind, 500)
    mu = target.initial_theta()
    by_mean = -(x.T @ (y[:, 0] - x @ mu)) / (12 * 0.25 * 0.7) + (mu - 0.2) / 0.64 / 12
    by_log = 0.16 * (x.square().sum(0) / (12 * 0.25 * 0.7) + 1 / 0.64 / 12) - 0.6 / 12
    z = (found.mean(0) - torch.cat([by_mean, by_log])) / (found.std(0) / len(found) ** 0.5)
    assert float(z.abs().max()) < critical_value(6)


@pytest.mark.parametrize("kind", ["local", "flipout"])
def test_noise_of_their_own_makes_gradients_less_noisy(kind):
    target, data = prepared(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), random(100, 3))
    shared = gradients(target, data, "shared", 150).var(0).sum()
    own = gradients(target, data, kind, 150).var(0).sum()
    assert float(own) < 0.5 * float(shared)
