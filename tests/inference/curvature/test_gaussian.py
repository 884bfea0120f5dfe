"""Everything that can be asked of the Gaussian, against its covariance as a matrix; and its draws."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, distributions, nn

import temperance as tp
from temperance.testing import assert_moments

from .twin import assert_same, fit, separable_scales

STRUCTURES = {
    "KFAC": tp.KFAC(),
    "EKFAC": tp.EKFAC(),
    "Diagonal": tp.Diagonal(),
    "BlockDiagonal": tp.BlockDiagonal(),
    "Dense": tp.Dense(),
    "LowRank": tp.Lanczos(6, tolerance=1e-10),
}
structures = pytest.mark.parametrize("structure", STRUCTURES)
temperatures = pytest.mark.parametrize("temperature", [1.0, 0.3])


class Words(nn.Module):
    """Weights of all shapes: 4 × 2 words, 3 × 2, 2 × 3 with bias."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 2)
        self.inner, self.head = nn.Linear(2, 3, bias=False), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(self.words(x).sum(1)).tanh())


def posterior_of(structure: str, temperature: float = 1.0, kind: str = "mlp", likelihood=None):
    """Data that say much about some directions and little about others, and a prior of many scales."""
    torch.manual_seed(5)
    if kind == "mlp":
        network: nn.Module = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 4)).double()
        x = torch.randn(12, 3, dtype=torch.float64) @ torch.randn(3, 3, dtype=torch.float64)
        y = torch.randn(12, 4, dtype=torch.float64)
    else:
        network, x = Words().double(), torch.randint(4, (12, 5))
        y = torch.randn(12, 2, dtype=torch.float64)
    target = tp.Target(
        network, likelihood or tp.Normal(scale=0.5), tp.GaussianPrior(separable_scales(network)), temperature
    )
    return fit(target, STRUCTURES[structure], x, y, network)


@pytest.mark.parametrize(
    ("structure", "temperature", "kind"),
    [
        *((s, t, "mlp") for s in STRUCTURES if s != "BlockDiagonal" for t in (1.0, 0.3)),
        *((s, 0.3, "words") for s in ("KFAC", "EKFAC")),
    ],
)
def test_draws_have_the_covariance(structure, temperature, kind):
    posterior = posterior_of(structure, temperature, kind)
    covariance = posterior.operator.dense()
    rng = torch.Generator().manual_seed(1)
    draws = torch.stack([posterior.mean + posterior.operator.draw(rng) for _ in range(2000)])
    assert_moments(draws, posterior.mean, covariance)
    # What is compared is not a diagonal, in every structure but the diagonal one.
    deviation = covariance.diagonal().sqrt()
    correlations = covariance / torch.outer(deviation, deviation)
    strongest = float((correlations - torch.eye(len(covariance), dtype=torch.float64)).abs().max())
    assert strongest < 1e-12 if structure == "Diagonal" else strongest > 0.6


@structures
@temperatures
@pytest.mark.parametrize("kind", ["mlp", "words"])
def test_operator_against_its_matrix(structure, temperature, kind):
    operator = posterior_of(structure, temperature, kind).operator
    size = operator.size
    precision = torch.diag(operator.prior_precision)
    for block in operator.blocks:
        at = torch.cat([torch.arange(a, b) for a, b in block.places])
        precision[at.unsqueeze(1), at] += block.dense()
    covariance = temperature * torch.linalg.inv(precision)
    v = torch.randn(2, 3, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert operator.rank == size
    assert_same(operator.dense(), covariance)
    assert_same(operator.diagonal(), covariance.diagonal())
    assert_same(operator.log_det(), torch.logdet(covariance))
    assert_same(operator.product(v), v @ covariance)
    assert_same(operator.product(v[0, 0]), covariance @ v[0, 0])
    assert_same(operator.inverse_quadratic(v), torch.einsum("abi,ij,abj->ab", v, precision, v) / temperature)
    for block, factor in zip(operator.blocks, operator.parts, strict=True):
        at = torch.cat([torch.arange(a, b) for a, b in block.places])
        inverse = torch.linalg.inv(precision[at.unsqueeze(1), at])
        half = factor.half(v[..., at])
        assert_same(half @ half.mT, v[..., at] @ inverse @ v[..., at].mT)


@structures
@temperatures
def test_log_prob(structure, temperature):
    posterior = posterior_of(structure, temperature)
    theta = posterior.mean + 0.3 * torch.randn(5, posterior.size, dtype=torch.float64)
    covariance = posterior.operator.dense()
    law = distributions.MultivariateNormal(posterior.mean, 0.5 * (covariance + covariance.mT))
    assert_same(posterior.log_prob(theta), law.log_prob(theta))
    assert_same(posterior.log_prob(theta[0]), law.log_prob(theta[0]))


def test_log_prob_and_draws_of_a_part():
    """What is known does not move, and to move it has no density."""
    torch.manual_seed(5)
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 4)).double()
    x, y = torch.randn(12, 3, dtype=torch.float64), torch.randn(12, 4, dtype=torch.float64)
    target = tp.Target(network, tp.Normal(), tp.GaussianPrior(1.0), 0.5)
    posterior = fit(target, tp.KFAC(), x, y, network, on="2")
    inside = torch.arange(8, 20)
    assert posterior.operator.rank == 12
    law = distributions.MultivariateNormal(posterior.mean[8:20], posterior.operator.dense()[8:20, 8:20])
    theta = posterior.mean.repeat(3, 1)
    theta[:, inside] += torch.randn(3, 12, dtype=torch.float64)
    assert_same(posterior.log_prob(theta), law.log_prob(theta[:, inside]))
    assert_same(posterior.operator.log_det(), torch.logdet(law.covariance_matrix))
    theta[1, 20] += 1e-3  # the noise, known here
    assert posterior.log_prob(theta).isfinite().tolist() == [True, False, True]
    rng = torch.Generator().manual_seed(1)
    draws = torch.stack([posterior.operator.draw(rng) for _ in range(2000)])
    outside = torch.tensor([*range(8), 20])
    assert float(draws[:, outside].abs().max()) == 0.0
    assert_moments(draws[:, inside], torch.zeros(12, dtype=torch.float64), law.covariance_matrix)


def test_learned_noise_is_drawn_too():
    posterior = posterior_of("KFAC", 0.3, likelihood=tp.Normal())
    covariance = posterior.operator.dense()
    assert_same(covariance[-1, -1], torch.tensor(0.3 / (2 * 12 * 4 + 1), dtype=torch.float64))
    rng = torch.Generator().manual_seed(1)
    draws = torch.stack([posterior.mean + posterior.operator.draw(rng) for _ in range(2000)])
    assert_moments(draws, posterior.mean, covariance)


@pytest.mark.parametrize("trained", [True, False])
def test_evidence_of_a_linear_model_is_the_integral(trained):
    """log N(y; 0, σ² I + X S Xᵀ): at the mode, and with all of the curvature away from it too."""
    torch.manual_seed(0)
    network = nn.Linear(3, 1).double()
    x, y = torch.randn(10, 3, dtype=torch.float64), torch.randn(10, 1, dtype=torch.float64)
    features = torch.cat([x, torch.ones(10, 1, dtype=torch.float64)], dim=1)
    variances = torch.tensor([0.36, 0.36, 0.36, 2.25], dtype=torch.float64)
    law = distributions.MultivariateNormal(
        torch.zeros(10, dtype=torch.float64), 0.25 * torch.eye(10) + features * variances @ features.mT
    )
    exact: list[tp.inference.curvature.Curvature] = [tp.Dense(), tp.Dense(kind="hessian")]
    if trained:
        precision = features.mT @ features / 0.25 + torch.diag(1 / variances)
        mode = torch.linalg.solve(precision, features.mT @ y / 0.25)[:, 0]
        with torch.no_grad():
            network.weight.copy_(mode[:3])
            network.bias.copy_(mode[3:])
        exact += [tp.KFAC(), tp.EKFAC(), tp.BlockDiagonal()]
    target = tp.Target(network, tp.Normal(scale=0.5), tp.GaussianPrior({"weight": 0.6, "bias": 1.5}))
    for curvature in exact:
        posterior = fit(target, curvature, x, y, network)
        tolerance = None if trained else 1e9
        assert math.isclose(posterior.log_evidence(tolerance), float(law.log_prob(y[:, 0])), rel_tol=1e-9)
