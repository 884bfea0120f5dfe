"""Predictions of the linearised network: closed forms, golden numbers, draws of functions, the view as a process."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.linalg.points import root_of, standard_points
from temperance.predict.links import bridge_concentration, bridge_probabilities, probit_probabilities
from temperance.testing import assert_moments

F64 = torch.float64
NEWTON = tp.MAP(
    lr=1.0,
    optimizer=torch.optim.LBFGS,
    optimizer_args={
        "line_search_fn": "strong_wolfe",
        "max_iter": 50,
        "tolerance_grad": 1e-12,
        "tolerance_change": 1e-16,
    },
)


class Bent(nn.Module):
    """5 tanh(w x + b), the two-parameter classifier of protocols D.2."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, dtype=F64)
        nn.init.constant_(self.layer.weight, 0.5)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        return 5 * torch.tanh(self.layer(x))


@pytest.fixture(scope="module")
def bent():
    x = torch.tensor([-6.0, -4, -2, 2, 4, 6], dtype=F64).unsqueeze(1)
    target = tp.Target(Bent(), tp.Bernoulli(), tp.GaussianPrior(1.0))
    return tp.fit(target, tp.Laplace(NEWTON, tp.Dense(), tune=None), (x, (x > 0).double()), steps=10)


AT = torch.tensor([0.5, 1, 2, 4, 10], dtype=F64).unsqueeze(1)


def test_golden_numbers_of_the_bent_classifier(bent):
    assert bent.posterior.mean.tolist() == pytest.approx([0.4135662271, 0], abs=1e-7)
    assert bent.posterior.covariance().diagonal().tolist() == pytest.approx([0.336185180, 0.682445871], rel=1e-6)
    assert bent.log_evidence() == pytest.approx(-0.92108198, abs=1e-7)
    x = torch.tensor([-6.0, -4, -2, 2, 4, 6], dtype=F64).unsqueeze(1)
    full = tp.fit(bent.target, tp.Laplace(NEWTON, tp.Dense(kind="hessian"), tune=None), (x, (x > 0).double()), steps=10)
    assert full.posterior.covariance().diagonal().tolist() == pytest.approx([0.224718887, 0.577745459], rel=1e-6)
    assert full.log_evidence() == pytest.approx(-1.20576285, abs=1e-6)


def test_golden_probabilities_of_every_link(bent):
    glm = [0.588530, 0.663829, 0.788900, 0.969610, 0.993287]
    probit = [0.589624, 0.664819, 0.786411, 0.961009, 0.993284]
    network = [0.584338, 0.646695, 0.709035, 0.742919, 0.755996]
    assert bent.predict(AT, by="probit").probs.flatten().tolist() == pytest.approx(probit, abs=1e-6)
    assert bent.predict(AT).probs.flatten().tolist() == pytest.approx(glm, abs=2e-3)
    assert bent.predict(AT, draws=4096).probs.flatten().tolist() == pytest.approx(glm, abs=1e-4)
    sampled = bent.predict(AT, by="network", draws=4000).probs.flatten().tolist()
    assert sampled == pytest.approx(network, abs=4 * 0.5 / 4000**0.5)
    functions = bent.predict(AT, by="functions", draws=4000).probs.flatten().tolist()
    assert functions == pytest.approx(glm, abs=4 * 0.5 / 4000**0.5)


def test_links_in_closed_form():
    assert float(probit_probabilities(torch.ones(1, 1, dtype=F64), torch.ones(1, 1, dtype=F64), True)) == pytest.approx(
        0.7000144407, abs=1e-9
    )
    alpha = bridge_concentration(torch.tensor([[1.0, 0, -1]], dtype=F64), torch.ones(1, 3, dtype=F64))
    assert alpha[0].tolist() == pytest.approx([1.5674819919, 0.7873512522, 0.5003571916], abs=1e-9)
    share = alpha / alpha.sum()
    assert share[0].tolist() == pytest.approx([0.5489938508, 0.2757613791, 0.1752447701], abs=1e-9)
    # outputs that sum to zero with equal variances: conditioning on the sum changes the spread, not the mean
    same = bridge_probabilities(torch.tensor([[1.0, 0, -1]], dtype=F64), torch.eye(3, dtype=F64).unsqueeze(0))
    assert torch.allclose(same, share)


def test_points_have_exactly_the_moments_of_the_gaussian():
    like = torch.zeros((), dtype=F64)
    points = standard_points(128, 10, like)
    assert torch.allclose(points.mean(0), torch.zeros(10, dtype=F64), atol=1e-12)
    assert torch.allclose(points.mT @ points / 128, torch.eye(10, dtype=F64), atol=1e-12)
    covariance = torch.tensor([[[2.0, 1.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]], dtype=F64)  # the second is singular
    root = root_of(covariance)
    assert torch.allclose(root @ root.mT, covariance, atol=1e-7)


# ---------------------------------------------------------------------- regression


@pytest.fixture(scope="module")
def polynomial():
    x = torch.linspace(-1, 1, 10, dtype=F64)
    features = torch.stack([torch.ones_like(x), x, x**2], dim=1)
    target = tp.Target(nn.Linear(3, 1, bias=False, dtype=F64), tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Laplace(NEWTON, tp.Dense(), tune=None), (features, torch.sin(3 * x)), steps=5)
    return fitted, features, torch.sin(3 * x)


def test_gaussian_regression_is_closed(polynomial):
    fitted, _, _ = polynomial
    found = fitted.predict(torch.tensor([[1, 0.5, 0.25]], dtype=F64))
    assert float(found.mean()) == pytest.approx(0.3852451805, abs=1e-8)
    assert float(found.epistemic_variance()) == pytest.approx(1.8008505352e-3, rel=1e-7)
    assert float(found.variance()) == pytest.approx(1.1800850535e-2, rel=1e-7)
    assert float(found.aleatoric_variance()) == pytest.approx(0.01, rel=1e-9)
    std = math.sqrt(1.1800850535e-2)
    low, high = found.interval(0.9)
    assert float(high - low) == pytest.approx(2 * 1.6448536269514722 * std, rel=1e-6)
    total, noise = 0.5 * math.log(2 * math.pi * math.e * std**2), 0.5 * math.log(2 * math.pi * math.e * 0.01)
    assert float(found.entropy()) == pytest.approx(total, abs=1e-7)
    assert float(found.aleatoric()) == pytest.approx(noise, abs=1e-9)
    assert float(found.mutual_information()) == pytest.approx(total - noise, abs=1e-7)
    exact = torch.distributions.Normal(found.mean(), torch.tensor(std, dtype=F64))
    value = torch.tensor([[0.3]], dtype=F64)
    assert float(found.log_prob(value)) == pytest.approx(float(exact.log_prob(value)), abs=1e-7)
    assert float(found.cdf(value)) == pytest.approx(float(exact.cdf(value)), abs=1e-7)


def test_joint_log_prob_and_draws_see_how_rows_go_together(polynomial):
    fitted, features, y = polynomial
    found = fitted.predict(features)
    joint = features @ fitted.posterior.covariance() @ features.mT
    assert torch.allclose(found.output_covariance(), joint, atol=1e-10)
    exact = torch.distributions.MultivariateNormal(found.mean().flatten(), joint + 0.01 * torch.eye(10, dtype=F64))
    assert float(found.joint_log_prob(y)) == pytest.approx(float(exact.log_prob(y)), abs=1e-6)
    draws = fitted.predict(features, draws=6000).output_functions().flatten(1)
    # functions are of rank three: their covariance is judged on three of the rows
    assert_moments(draws[:, [0, 4, 9]], found.mean().flatten()[[0, 4, 9]], joint[[0, 4, 9]][:, [0, 4, 9]])
    noisy = fitted.predict(features, draws=6000).sample(6000, seed=1).flatten(1)
    assert_moments(noisy, exact.mean, exact.covariance_matrix, ess=2000)


def test_a_learned_noise_is_averaged_over():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(12, 2, generator=rng, dtype=F64)
    y = x.sum(1, keepdim=True) + 0.5 * torch.randn(12, 1, generator=rng, dtype=F64)
    target = tp.Target(nn.Linear(2, 1, dtype=F64), tp.Normal(), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Laplace(NEWTON, tp.Dense(), tune=None), (x, y), steps=20)
    found = fitted.predict(x[:3])
    log_scale, spread = float(fitted.posterior.mean[-1]), float(fitted.posterior.covariance()[-1, -1])
    # the Fisher information of log σ: 2 for each of twelve numbers, and its prior N(0, 1)
    assert spread == pytest.approx(1 / (2 * 12 + 1), rel=1e-6)
    assert float(found.aleatoric_variance()[0]) == pytest.approx(math.exp(2 * log_scale + 2 * spread), rel=0.02)
    points = np.random.default_rng(0).normal(size=200_000)
    scales = np.exp(2 * (log_scale + math.sqrt(spread) * points)) + float(found.epistemic_variance()[0])
    delta = float(y[0] - found.mean()[0])
    density = np.mean(np.exp(-0.5 * delta**2 / scales) / np.sqrt(2 * np.pi * scales))
    assert float(found.log_prob(y[:3])[0]) == pytest.approx(math.log(density), abs=0.02)


def test_several_outputs_are_correlated_in_the_log_score():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(15, 2, generator=rng, dtype=F64)
    y = torch.randn(15, 2, generator=rng, dtype=F64)
    net = nn.Sequential(nn.Linear(2, 3, dtype=F64), nn.Tanh(), nn.Linear(3, 2, dtype=F64))
    target = tp.Target(net, tp.Normal(scale=0.5), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Laplace(NEWTON, tp.Dense(), tune=None), (x, y), steps=20)
    found = fitted.predict(x[:4])
    joint = found.output_covariance().view(4, 2, 4, 2)
    for n in range(4):
        exact = torch.distributions.MultivariateNormal(found.mean()[n], joint[n, :, n] + 0.25 * torch.eye(2, dtype=F64))
        assert float(found.log_prob(y[:4])[n]) == pytest.approx(float(exact.log_prob(y[n])), abs=1e-8)
        assert float(found.entropy()[n]) == pytest.approx(float(exact.entropy()), abs=1e-6)


@pytest.mark.parametrize(
    "likelihood", [tp.HeteroscedasticNormal(), tp.StudentT(4.0, 0.5), tp.Poisson(), tp.Bernoulli()]
)
def test_other_likelihoods_average_over_the_gaussian_of_the_outputs(likelihood):
    """Against a brute-force average over exact draws of J θ."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(20, 2, generator=rng, dtype=F64)
    y = torch.rand(20, 1, generator=rng, dtype=F64).round()
    width = 2 if isinstance(likelihood, tp.HeteroscedasticNormal) else 1
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4, dtype=F64), nn.Tanh(), nn.Linear(4, width, dtype=F64))
    target = tp.Target(net, likelihood, tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Laplace(NEWTON, tp.Dense(), tune=None), (x, y), steps=30)
    found = fitted.predict(x[:3], draws=2048)
    joint = found.output_covariance().view(3, width, 3, width)
    for n in range(3):
        law = torch.distributions.MultivariateNormal(found.output_mean()[n], joint[n, :, n] + 1e-12 * torch.eye(width))
        torch.manual_seed(1)
        outputs = law.sample((100_000,)).unsqueeze(1)
        mean = likelihood.mean(outputs, {}).mean((0, 1))
        spread = likelihood.mean(outputs, {}).std() / 100_000**0.5
        assert float(found.mean()[n]) == pytest.approx(float(mean), abs=5 * float(spread) + 2e-3 * abs(float(mean)))
        log_score = likelihood.log_prob(outputs, y[n : n + 1], {}).logsumexp(0) - math.log(100_000)
        assert float(found.log_prob(y[:3])[n]) == pytest.approx(float(log_score), abs=0.02)


# ---------------------------------------------------------------------- structures against the dense sum


NETS = {
    "mlp": (nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,)),
    "conv": (
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
        ),
        (2, 3, 3),
    ),
}


class Words(nn.Module):
    """Repeated words share a vector."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4, padding_idx=0)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.mix(torch.tanh(self.table(x)))).mean(1))


class Recurrent(nn.Module):
    """A layer without a rule."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(3, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.cell(x)[1][0])


class Sentence(nn.Module):
    """Words first; the sentence to itself, then to its end, with rows of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 5)
        self.across = nn.MultiheadAttention(4, 2, kdim=3, add_bias_kv=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = x.transpose(0, 1)
        made = self.layer(x)
        return self.head(self.across(made, x[1:, :, :3], made[1:])[0].tanh().mean(0))


def _case(name):
    torch.manual_seed(0)
    if name == "words":
        return Words().double(), torch.randint(0, 7, (9, 5))
    if name == "sentence":
        return Sentence().double().eval(), torch.randn(9, 3, 4, dtype=F64)
    if name == "recurrent":
        return Recurrent().double(), torch.randn(9, 4, 3, dtype=F64)
    net, shape = NETS[name]
    return net.double(), torch.randn(9, *shape, dtype=F64)


@pytest.mark.filterwarnings("ignore:E?KFAC has no Kronecker rule")
@pytest.mark.parametrize("name", ["mlp", "conv", "words", "recurrent", "sentence"])
@pytest.mark.parametrize(
    "curvature",
    [tp.Dense(), tp.Diagonal(), tp.KFAC(), tp.EKFAC(), tp.BlockDiagonal(), tp.Lanczos(4)],
    ids=lambda c: type(c).__name__,
)
def test_output_covariance_is_that_of_the_dense_sum(name, curvature):
    net, x = _case(name)
    y = torch.arange(9) % 3
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(0.7), temperature=0.8)
    fitted = tp.fit(target, tp.Laplace(curvature=curvature, tune=None), (x, y))
    found = fitted.predict(x[:4])
    params = list(net.parameters())
    outputs = net(x[:4])
    rows = []
    for n in range(4):
        for c in range(3):
            grads = torch.autograd.grad(outputs[n, c], params, retain_graph=True)
            rows.append(torch.cat([g.flatten() for g in grads]))
    jacobian = torch.stack(rows)
    wanted = jacobian @ fitted.posterior.covariance() @ jacobian.mT
    assert torch.allclose(found.output_covariance(), wanted, rtol=1e-7, atol=1e-10)
    diagonal = wanted.view(4, 3, 4, 3)
    for n in range(4):
        assert torch.allclose(found.output_variance()[n], diagonal[n, :, n].diagonal(), rtol=1e-7, atol=1e-10)
        _, _, covariances = next(iter(found.source.moments()))
        assert torch.allclose(covariances[0][n], diagonal[n, :, n], rtol=1e-7, atol=1e-10)
    law = found.source.laws[0]
    deltas = torch.stack(list(law.displacements(3, 5)))
    moved = torch.cat([part for _, part in law.functions(x[:4], list(deltas), 2)], dim=1)
    assert torch.allclose(moved - outputs, (deltas @ jacobian.mT).view(3, 4, 3), rtol=1e-7, atol=1e-9)


def test_attention_is_written_down_in_plain_operations():
    """A fused kernel of this machine's in a file would run on no other."""
    net, x = _case("sentence")
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Laplace(curvature=tp.KFAC(), tune=None), (x, torch.arange(9) % 3))
    law = fitted.predict(x).source.laws[0]
    graph = law.traced(x)
    assert "scaled_dot_product" not in str(graph.graph)
    for found, known in zip(graph(x[:4]), next(iter(law.moments(x[:4], 4))), strict=True):
        assert torch.allclose(found, known, rtol=1e-9, atol=1e-12)


def test_rows_are_streamed_and_chunks_do_not_matter():
    net, x = _case("conv")
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Laplace(curvature=tp.KFAC(), tune=None), (x, torch.arange(9) % 3))
    assert torch.allclose(fitted.predict(x).probs, fitted.predict(x, batch_size=2).probs, atol=1e-12)


# ---------------------------------------------------------------------- the view as a process


@pytest.mark.parametrize("likelihood", [tp.Categorical(), tp.Normal(scale=0.3)])
def test_process_of_all_data_is_the_dense_predictive(likelihood):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(30, 3, generator=rng, dtype=F64)
    y = torch.randint(0, 3, (30,), generator=rng) if likelihood.outcome == tp.outcomes.Classes() else x.sin()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    target = tp.Target(net, likelihood, tp.GaussianPrior(tp.FanIn(bias=0.5)), temperature=0.7)
    dense = tp.fit(target, tp.Laplace(NEWTON, tp.Dense(), tune=None), (x, y), steps=20)
    process = tp.fit(target, tp.FunctionalLaplace(NEWTON), (x, y), steps=20)
    new = torch.randn(6, 3, generator=rng, dtype=F64)
    one, two = dense.predict(new), process.predict(new)
    assert torch.allclose(one.output_covariance(), two.output_covariance(), rtol=1e-8, atol=1e-10)
    assert torch.allclose(one.output_variance(), two.output_variance(), rtol=1e-8, atol=1e-10)
    assert torch.allclose(one.mean(), two.mean(), atol=1e-10)
    draws = process.predict(new[:2], draws=8000, by="functions").output_functions().flatten(1)
    assert_moments(draws, one.output_mean()[:2].flatten(), one.output_covariance()[:6, :6])
    some = tp.fit(target, tp.FunctionalLaplace(NEWTON, size=10), (x, y), steps=20).predict(new)
    assert bool((some.output_variance() > two.output_variance()).all())  # fewer rows seen, more left open


# ---------------------------------------------------------------------- functions that are smooth, and many outputs


def test_drawn_functions_are_smooth():
    """Draws share their noise across inputs: neighbours get nearly the same value; independent noise would not."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(30, 1, generator=rng)
    torch.manual_seed(0)
    target = tp.Target(tp.nn.MLP(1, [20], 1, activation=nn.Tanh), tp.Normal(scale=0.1), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, tp.Laplace(tp.MAP(lr=1e-2), tp.KFAC(), tune=None), (x, torch.sin(6 * x)), steps=300)
    grid = torch.linspace(-1, 2, 400).unsqueeze(1)
    functions = fitted.predict(grid).output_functions()[..., 0]
    steps = (functions[:, 1:] - functions[:, :-1]).abs().mean()
    assert float(steps) < 0.1 * float(functions.std(0).mean())  # independent noise: above one
    assert functions.shape == (64, 400)


_MANY = """
import resource, sys
import torch, temperance as tp
outputs = int(sys.argv[1])
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, outputs))
x, y = torch.randn(512, 16), torch.randint(0, outputs, (512,))
target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
import warnings; warnings.simplefilter("ignore")
apart = (torch.randn(64, 16), torch.randint(0, outputs, (64,)))
fitted = tp.fit(target, tp.Laplace(curvature=tp.KFAC(kind="monte-carlo"), on=tp.last_layer), (x, y), held_out=apart)
found = fitted.predict(x[:100], draws=16)
assert torch.isfinite(found.probs).all() and found.probs.shape == (100, outputs)
assert float((found.probs.sum(-1) - 1).abs().max()) < 1e-3
try:  # the peak of this process alone: Linux carries ru_maxrss over from a large parent
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(peak / 2**20)
"""


@pytest.mark.parametrize("outputs", [3_100, pytest.param(32_000, marks=pytest.mark.slow)])
def test_thousands_of_outputs_fit_in_two_gibibytes(outputs):
    made = subprocess.run(
        [sys.executable, "-c", _MANY, str(outputs)], capture_output=True, text=True, timeout=400, check=False
    )
    assert made.returncode == 0, made.stderr
    assert float(made.stdout) < 2.0


def test_what_by_refuses():
    net, x = _case("mlp")
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
    point = tp.fit(target, tp.MAP(), (x, torch.arange(9) % 3), steps=1)
    with pytest.raises(ArgumentError, match="`by` must be one of"):
        point.predict(x, by="glm")
    with pytest.raises(ArgumentError, match="need a Laplace posterior"):
        point.predict(x, by="linearised")
    real = tp.Target(net, tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    fitted = tp.fit(real, tp.Laplace(tune=None), (x, torch.zeros(9, 3, dtype=F64)))
    with pytest.raises(ArgumentError, match="for class probabilities"):
        fitted.predict(x, by="probit")
    process = tp.fit(target, tp.FunctionalLaplace(), (x, torch.arange(9) % 3))
    with pytest.raises(ArgumentError, match="no draws of weights"):
        process.predict(x, by="network")
