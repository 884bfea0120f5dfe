"""Variational families against what their covariance, density and entropy must be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import temperance as tp
from temperance.inference.variational.families import (
    FullRank,
    LowRank,
    MatrixNormal,
    MeanField,
    Pull,
    Radial,
    TiedScale,
)
from temperance.linalg import BlockCovariance, DiagonalCovariance, KroneckerCovariance
from temperance.posteriors.radial import RadialPosterior, radial_entropy
from temperance.testing import assert_moments, critical_value

F64 = torch.float64


class Shapes(nn.Module):
    """Parameters (), (3,), (5, 4) and a convolution kernel (4, 2, 3)."""

    def __init__(self):
        super().__init__()
        self.scalar = nn.Parameter(torch.tensor(0.3, dtype=F64))
        self.vector = nn.Parameter(torch.tensor([0.1, -0.2, 0.4], dtype=F64))
        self.matrix = nn.Parameter(torch.linspace(-1, 1, 20, dtype=F64).view(5, 4))
        self.kernel = nn.Parameter(torch.linspace(-0.5, 0.8, 24, dtype=F64).view(4, 2, 3))

    def forward(self, x):
        return x[:, :1] * self.scalar + self.vector.sum() + self.matrix.sum() + self.kernel.sum()


FAMILIES = {
    "MeanField": MeanField(),
    "FullRank": FullRank(),
    "LowRank": LowRank(3),
    "MatrixNormal": MatrixNormal(),
    "TiedScale": TiedScale(2),
    "Radial": Radial(),
}
each_family = pytest.mark.parametrize("name", FAMILIES)


def bound_at_random(name, seed=0):
    """The family over 1 + 3 + 20 + 24 numbers and a learned noise, at a φ without symmetries."""
    target = tp.Target(Shapes(), tp.Normal(), tp.GaussianPrior(1.0))
    bound = FAMILIES[name].bind(target.layout)
    rng = torch.Generator().manual_seed(seed)
    phi = bound.start(target.initial_theta(), 0.5, rng)
    assert phi.shape == (bound.num_parameters,)
    assert target.layout.size == 49
    return bound, phi + 0.2 * torch.randn(phi.shape, generator=rng, dtype=F64)


def noise_for(bound, n, seed=1):
    return torch.randn(n, bound.num_noise, generator=torch.Generator().manual_seed(seed), dtype=F64)


def assert_averages(samples, expected, comparisons=None):
    """Each column's mean is as expected, by its own standard error."""
    error = (samples.mean(0) - expected) / (samples.std(0) / len(samples) ** 0.5)
    count = samples[0].numel() if comparisons is None else comparisons
    assert float(error.abs().max()) < critical_value(count), float(error.abs().max())


def assert_second_moments(draws, mean, covariance):
    """For laws that need not be normal: the products' own standard errors."""
    assert_averages(draws, mean)
    centred = draws - mean
    i, j = torch.triu_indices(len(mean), len(mean))
    assert_averages(centred[:, i] * centred[:, j], covariance[i, j])


# ---------------------------------------------------------------------- moments


@each_family
def test_start_has_the_asked_mean_and_about_the_asked_spread(name):
    target = tp.Target(Shapes(), tp.Normal(), tp.GaussianPrior(1.0))
    bound = FAMILIES[name].bind(target.layout)
    theta = target.initial_theta()
    phi = bound.start(theta, 0.07, torch.Generator().manual_seed(0))
    assert torch.equal(bound.mean(phi), theta)
    ratio = bound.variances(phi).sqrt() / 0.07
    assert float(ratio.min()) > 0.9
    assert float(ratio.max()) < 1.35  # LowRank: 0.9 + a tenth of a χ²₃ / 3
    assert float(ratio.mean()) == pytest.approx(1.0, abs=0.05)


@each_family
def test_draws_have_the_moments_of_the_posterior(name):
    bound, phi = bound_at_random(name)
    posterior = bound.posterior(phi, {})
    mean, covariance = posterior.mean, posterior.covariance()
    own, theirs = bound.draw(phi, noise_for(bound, 30_000)), posterior.sample(5_000, seed=3)
    check = assert_second_moments if name == "Radial" else assert_moments
    check(own, mean, covariance)
    check(theirs, mean, covariance)
    assert torch.equal(mean, bound.mean(phi))
    into = torch.empty(9, bound.size, dtype=F64)
    bound.draw_(phi, noise_for(bound, 9), into)
    torch.testing.assert_close(into, bound.draw(phi, noise_for(bound, 9)))


@each_family
def test_variances_are_the_diagonal(name):
    bound, phi = bound_at_random(name)
    torch.testing.assert_close(
        bound.variances(phi), bound.posterior(phi, {}).covariance().diagonal(), rtol=1e-12, atol=0
    )


def test_what_the_covariances_look_like():
    off = {}
    for name in FAMILIES:
        bound, phi = bound_at_random(name)
        covariance = bound.posterior(phi, {}).covariance()
        off[name] = (covariance - torch.diag(covariance.diagonal())).abs()
    for name in ("MeanField", "TiedScale", "Radial"):
        assert float(off[name].max()) == 0
    for name in ("FullRank", "LowRank"):
        assert int((off[name] == 0).sum()) == 49  # the diagonal alone
    matrix, kernel = slice(4, 24), slice(24, 48)
    assert int((off["MatrixNormal"][matrix, matrix] > 0).sum()) == 20 * 19
    assert int((off["MatrixNormal"][kernel, kernel] > 0).sum()) == 24 * 23
    assert int((off["MatrixNormal"] > 0).sum()) == 20 * 19 + 24 * 23


def test_tied_scales_have_the_rank_asked_for():
    bound, phi = bound_at_random("TiedScale")
    for piece, shape in ((slice(4, 24), (5, 4)), (slice(24, 48), (4, 6))):
        values = torch.linalg.svdvals(bound.variances(phi).sqrt()[piece].view(shape))
        assert float(values[1]) > 1e-3
        assert float(values[2]) < 1e-12


# ---------------------------------------------------------------------- density


@each_family
def test_entropy_is_minus_the_average_of_the_log_density(name):
    bound, phi = bound_at_random(name)
    posterior, entropy = bound.posterior(phi, {}), bound.entropy(phi)
    assert_averages(-posterior.log_prob(bound.draw(phi, noise_for(bound, 20_000))).unsqueeze(1), entropy)
    assert_averages(-posterior.log_prob(posterior.sample(3_000, seed=5)).unsqueeze(1), entropy)
    if name != "Radial":
        wanted = 0.5 * torch.logdet(2 * math.pi * math.e * posterior.covariance())
        assert float(entropy) == pytest.approx(float(wanted), rel=1e-12)


@each_family
def test_score_is_the_gradient_of_the_log_density(name):
    bound, phi = bound_at_random(name)
    noise = noise_for(bound, 20)
    theta = bound.draw(phi, noise).requires_grad_()
    (wanted,) = torch.autograd.grad(bound.posterior(phi, {}).log_prob(theta).sum(), theta)
    torch.testing.assert_close(bound.score(phi, noise), wanted, rtol=1e-8, atol=1e-8)


PARTS = ("all", "draws", "mean", "variance", "one variance", "scale", "entropy")
PULLS = [(n, p) for n in FAMILIES for p in PARTS if p != "scale" or n in ("MeanField", "TiedScale")]


@pytest.mark.parametrize(("name", "part"), PULLS)
def test_pull_back_is_the_slope_of_the_surrogate(name, part):
    """Central differences along random directions of φ; variance and entropy from the dense covariance."""
    bound, phi = bound_at_random(name)
    rng = torch.Generator().manual_seed(7)
    noise = noise_for(bound, 3)
    slopes = torch.randn(6, bound.size, generator=rng, dtype=F64)
    use = {key: part in (key, "all") for key in ("draws", "mean", "variance", "scale", "entropy")}
    use["scale"] = use["scale"] and bound.factorised
    pull = Pull(
        slopes[:3] if use["draws"] else None,
        mean=slopes[3] if use["mean"] else None,
        variance=slopes[4] if use["variance"] else 0.7 if part == "one variance" else 0.0,
        entropy=1.3 if use["entropy"] else 0.0,
        scale=slopes[5] if use["scale"] else None,
    )

    def surrogate(at):
        posterior = bound.posterior(at, {})
        variance = posterior.covariance().diagonal()
        if name == "Radial":  # −log q(θ(φ, ε); φ) differs from the entropy by a number without φ
            entropy = -posterior.log_prob(bound.draw(at, noise)).mean()
        else:
            entropy = 0.5 * torch.logdet(posterior.covariance())
        total = -pull.entropy * entropy + (pull.variance * variance).sum()
        if pull.draws is not None:
            total = total + (bound.draw(at, noise) * pull.draws).sum()
        if pull.mean is not None:
            total = total + (posterior.mean * pull.mean).sum()
        if pull.scale is not None:
            total = total + (variance.sqrt() * pull.scale).sum()
        return float(total)

    grad = torch.full_like(phi, torch.nan)
    bound.pull_back(phi, noise.clone() if pull.draws is not None else None, pull, grad)  # may use the noise up
    for direction in torch.randn(8, len(phi), generator=rng, dtype=F64):
        step = 1e-5 * direction / direction.norm()
        numeric = (surrogate(phi + step) - surrogate(phi - step)) / 2e-5
        assert numeric == pytest.approx(float(grad @ direction / direction.norm()), rel=1e-5, abs=1e-7)


# ---------------------------------------------------------------------- the radial density


def radial(d, rng):
    scale = torch.rand(d, generator=rng, dtype=F64) + 0.3
    return RadialPosterior(torch.randn(d, generator=rng, dtype=F64), scale, (d,))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_radial_density_integrates_to_one_and_has_the_entropy(d):
    """Gauss–Legendre over radius and angles of an ellipsoid; the volume element is ∏σ · r^(d−1) · (angles)."""
    posterior = radial(d, torch.Generator().manual_seed(d))
    nodes, weights = np.polynomial.legendre.leggauss(80)
    t = (nodes + 1) / 2
    r, wr = 10 * t**3, 15 * t**2 * weights  # |z| < 10, cubed so that log r is no trouble at zero
    if d == 1:
        points, w = np.concatenate([r, -r])[:, None], np.concatenate([wr, wr])
    elif d == 2:
        angle = np.arange(40) * 2 * np.pi / 40
        points = r[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
        w = np.outer(wr * r, np.full(40, 2 * np.pi / 40))
    else:
        angle, height = np.arange(20) * 2 * np.pi / 20, nodes
        flat = np.sqrt(1 - height**2)[:, None]
        third = np.broadcast_to(height[:, None], (80, 20))
        units = np.stack([flat * np.cos(angle), flat * np.sin(angle), third], -1)
        points = r[:, None, None, None] * units
        w = (wr * r**2)[:, None, None] * weights[:, None] * np.full(20, 2 * np.pi / 20)
    theta = posterior.mean + posterior.scale * torch.from_numpy(points.reshape(-1, d))
    log_q = posterior.log_prob(theta)
    volume = torch.from_numpy(w.reshape(-1)) * posterior.scale.prod()
    assert float((log_q.exp() * volume).sum()) == pytest.approx(1.0, abs=1e-9)
    entropy = -(log_q.exp() * log_q * volume).sum()
    assert float(entropy) == pytest.approx(radial_entropy(d) + float(posterior.scale.log().sum()), abs=1e-6)


def test_radial_in_one_dimension_is_the_normal():
    posterior = RadialPosterior(torch.tensor([0.4], dtype=F64), torch.tensor([0.7], dtype=F64), (1,))
    x = torch.linspace(-3, 3, 12, dtype=F64).unsqueeze(1)
    wanted = torch.distributions.Normal(0.4, 0.7).log_prob(x).squeeze(1)
    torch.testing.assert_close(posterior.log_prob(x), wanted)


def test_radial_pieces_are_independent_with_one_radius_each():
    bound, phi = bound_at_random("Radial")
    theta = bound.draw(phi, noise_for(bound, 20_000))
    standard = (theta - bound.mean(phi)) / bound.parts(phi)["log_scale"].exp()
    radii = torch.stack([piece.norm(dim=1) for piece in standard.split(bound.sizes, dim=1)], dim=1)
    assert radii.shape[1] == 5
    assert_averages(radii, math.sqrt(2 / math.pi))
    assert_averages(radii.square(), 1.0)
    # r² of independent |N(0, 1)|: variance 2, no covariance
    assert_second_moments(radii.square(), torch.ones(5, dtype=F64), 2 * torch.eye(5, dtype=F64))


# ---------------------------------------------------------------------- covariance operators


def triangle(size, seed):
    raw = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return raw.tril(-1) + torch.diag(raw.diagonal().exp())


def test_kronecker_and_block_covariances():
    left, right = triangle(3, 0), triangle(4, 1)
    kronecker = KroneckerCovariance(left, right)
    u, v = left @ left.T, right @ right.T
    dense = kronecker.dense()
    for a, b, c, d in ((0, 0, 0, 0), (0, 1, 2, 3), (2, 1, 0, 1), (1, 3, 1, 0)):
        assert float(dense[4 * a + b, 4 * c + d]) == pytest.approx(float(u[a, c] * v[b, d]))
    block = BlockCovariance((DiagonalCovariance(torch.tensor([0.5, 2.0], dtype=F64)), kronecker))
    assert float(block.dense()[:2, 2:].abs().max()) == 0
    for made in (kronecker, block):
        matrix = made.dense()
        assert made.size == len(matrix)
        rng = torch.Generator().manual_seed(2)
        draws = torch.stack([made.draw(rng) for _ in range(8_000)])
        assert_moments(draws, torch.zeros(made.size, dtype=F64), matrix)
        torch.testing.assert_close(made.diagonal(), matrix.diagonal())
        torch.testing.assert_close(made.log_det(), torch.logdet(matrix))
        delta = torch.randn(2, 5, made.size, generator=rng, dtype=F64)
        wanted = (delta @ torch.linalg.inv(matrix) * delta).sum(-1)
        torch.testing.assert_close(made.inverse_quadratic(delta), wanted)
        torch.testing.assert_close(made.inverse_quadratic(delta[0, 0]), wanted[0, 0])
