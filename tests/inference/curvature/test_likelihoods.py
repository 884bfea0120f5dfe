"""Every likelihood and every kind of curvature against the dense twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.testing import critical_value

from .twin import (
    Twin,
    TwinLikelihood,
    assert_same,
    assert_same_curvature,
    bernoulli,
    categorical,
    contaminated,
    curated_labels,
    curvature_of,
    fisher,
    fit,
    heteroscedastic,
    learned_negative_binomial,
    learned_normal,
    learned_student,
    make_twin,
    negative_binomial,
    noisy_labels,
    normal,
    poisson,
    student,
    zero_inflated_poisson,
)

ROWS = 9


def real(rng: torch.Generator) -> Tensor:
    return torch.randn(ROWS, 2, generator=rng, dtype=torch.float64)


def counts(rng: torch.Generator) -> Tensor:
    return torch.randint(0, 5, (ROWS, 2), generator=rng).double()


def labels(rng: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (ROWS, 2), generator=rng).double()


def classes(rng: torch.Generator) -> Tensor:
    return torch.randint(0, 4, (ROWS,), generator=rng)


@dataclass(frozen=True)
class Case:
    ours: tp.model.likelihoods.Likelihood
    theirs: TwinLikelihood
    outputs: int
    targets: Callable[[torch.Generator], Tensor]
    learned: int = 0


CASES = {
    "categorical": Case(tp.Categorical(), categorical(), 4, classes),
    "bernoulli, two labels": Case(tp.Bernoulli(), bernoulli(), 2, labels),
    "normal": Case(tp.Normal(scale=0.4), normal(0.4), 2, real),
    "normal, noise learned": Case(tp.Normal(), learned_normal(2), 2, real, 1),
    "normal, two noises learned": Case(tp.Normal(num_outputs=2), learned_normal(2, 2), 2, real, 2),
    "heteroscedastic": Case(tp.HeteroscedasticNormal(), heteroscedastic(2), 4, real),
    "poisson": Case(tp.Poisson(), poisson(), 2, counts),
    "student": Case(tp.StudentT(df=4.0, scale=0.6), student(4.0, 0.6), 2, real),
    "student, scale learned": Case(tp.StudentT(df=4.0), learned_student(4.0, 2), 2, real, 1),
    "contaminated": Case(tp.ContaminatedNormal(0.2, 3.0, scale=0.6), contaminated(0.2, 3.0, 0.6), 2, real),
    "negative binomial": Case(tp.NegativeBinomial(0.5), negative_binomial(0.5), 2, counts),
    "negative binomial, dispersion learned": Case(tp.NegativeBinomial(), learned_negative_binomial(2), 2, counts, 1),
    "zero-inflated": Case(tp.ZeroInflated(tp.Poisson()), zero_inflated_poisson(2), 4, counts),
    "noisy labels": Case(tp.NoisyLabels(0.3), noisy_labels(0.3), 4, classes),
    "curated, with undecided rows": Case(tp.CuratedLabels(2, undecided=True), curated_labels(2), 3, classes),
}
DOES_NOT_DEPEND_ON_Y = ("categorical", "bernoulli, two labels", "normal", "poisson")
names = pytest.mark.parametrize("name", CASES)


def network_of(outputs: int) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def run(
    name: str, curvature, likelihood_temperature: float = 1.0, prior_scale: float = 0.7
) -> tuple[tp.posteriors.LaplacePosterior, Twin]:
    case = CASES[name]
    network = network_of(case.outputs)
    rng = torch.Generator().manual_seed(4)
    x, y = torch.randn(ROWS, 3, generator=rng, dtype=torch.float64), case.targets(rng)
    prior = tp.GaussianPrior(scale=prior_scale)
    target = tp.Target(network, case.ours, prior, likelihood_temperature=likelihood_temperature)
    posterior = fit(target, curvature, x, y, network)
    learned = posterior.mean[len(posterior.mean) - case.learned :]
    twin = make_twin(network, case.theirs, x, y, learned=learned, likelihood_temperature=likelihood_temperature)
    return posterior, twin


@names
def test_the_twin_knows_the_fisher_information(name):
    """Where the Hessian of −log p does not depend on y, it is the Fisher information; elsewhere its mean over y is."""
    case = CASES[name]
    u = torch.randn(case.outputs + case.learned, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rng = torch.Generator().manual_seed(4)
    y = case.targets(rng)
    found = fisher(case.theirs, u)

    def hessian(row: Tensor) -> Tensor:
        target = row.reshape(1, -1)
        return torch.autograd.functional.hessian(lambda v: -case.theirs.log_prob(v.unsqueeze(0), target).sum(), u)

    if name in DOES_NOT_DEPEND_ON_Y:
        assert_same(hessian(y[0]), found)
        assert_same(hessian(y[1]), found)
        return
    points, weights = case.theirs.support(u)
    assert_same(weights.sum(0), torch.ones(weights.shape[1], dtype=torch.float64))
    # Both targets at once: each at its own points, the other fixed, whose own Hessian is counted once too often.
    total = torch.zeros_like(found)
    for d in range(weights.shape[1]):

        def of_one(v: Tensor, d: int = d) -> Tensor:
            values = case.theirs.log_prob(v.expand(len(points), -1), points)[:, d]
            return -(weights[:, d] * values).sum()

        total += torch.autograd.functional.hessian(of_one, u)
    assert_same(total, found, 1e-6)


@names
@pytest.mark.parametrize("likelihood_temperature", [1.0, 0.3])
def test_dense(name, likelihood_temperature):
    posterior, twin = run(name, tp.Dense(batch_size=4), likelihood_temperature)
    ggn = twin.ggn()
    assert_same_curvature(curvature_of(posterior), ggn)
    tau = torch.full((len(ggn),), 0.7**-2, dtype=torch.float64)
    for parameter in CASES[name].ours.learned_parameters():  # one, if any
        tau[-CASES[name].learned :] = parameter.prior_scale**-2
        assert ggn[-1, -1] > 0.4
    assert_same(posterior.operator.dense(), torch.linalg.inv(ggn + torch.diag(tau)))


@names
def test_diagonal(name):
    posterior, twin = run(name, tp.Diagonal(batch_size=4), 0.3)
    assert_same_curvature(curvature_of(posterior), torch.diag(twin.ggn().diagonal()))


@names
def test_low_rank_is_the_twin_seen_from_the_prior(name):
    """The largest eigenpairs of τ^-½ H τ^-½, and nothing else; what is learned keeps a block of its own."""
    rank = 6
    posterior, twin = run(name, tp.Lanczos(rank, tolerance=1e-12, batch_size=4), 0.3)
    ggn = twin.ggn()
    size = len(ggn) - CASES[name].learned
    white = 0.7 * ggn[:size, :size] * 0.7
    values, vectors = torch.linalg.eigh(white)
    assert values[-rank - 1] < 0.99 * values[-rank]  # the cut is no tie
    assert values[-rank - 1] > 1e-6
    expected = torch.zeros_like(ggn)
    expected[:size, :size] = (vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].mT / 0.7**2
    expected[size:, size:] = ggn[size:, size:]
    assert_same(curvature_of(posterior), expected)


@names
@pytest.mark.parametrize("structure", [tp.Dense, tp.Diagonal, tp.Lanczos])
def test_empirical(name, structure):
    """The network's part; what the likelihood learns has its expected information in every kind but the Hessian."""
    settings = {"rank": 7, "tolerance": 1e-12} if structure is tp.Lanczos else {}
    posterior, twin = run(name, structure(kind="empirical", batch_size=4, **settings), 0.3)
    learned = CASES[name].learned
    expected, ggn = twin.empirical(), twin.ggn()
    size = len(ggn) - learned
    expected[size:], expected[:, size:] = 0, 0
    if structure is tp.Diagonal:
        expected = torch.diag(expected.diagonal())
    elif structure is tp.Lanczos:  # one prior scale: whitening changes nothing
        values, vectors = torch.linalg.eigh(expected)
        expected = (vectors[:, -7:] * values[-7:]) @ vectors[:, -7:].mT
    expected[size:, size:] = ggn[size:, size:]
    assert_same(curvature_of(posterior), expected)


@names
def test_hessian(name):
    """All of −∇² log p(D | θ), what the likelihood learns included."""
    posterior, twin = run(name, tp.Dense(kind="hessian", batch_size=4), 2.5, prior_scale=0.1)
    expected = twin.hessian()
    assert torch.linalg.eigvalsh(expected)[0] < 0  # away from a mode it is no Gauss–Newton matrix
    assert_same(curvature_of(posterior), expected)


@names
def test_monte_carlo_converges_to_the_gauss_newton_matrix(name):
    """Each entry of Σ_n mean_m s sᵀ has a variance that the twin knows: Σ_n Var(s_i s_j) / m."""
    samples = 400
    posterior, twin = run(name, tp.Dense(kind="monte-carlo", samples=samples, seed=7))
    learned = CASES[name].learned
    size = len(posterior.mean) - learned
    ggn = twin.ggn()[:size, :size]
    variance = torch.zeros_like(ggn)
    for u, jacobian in zip(twin.outputs, twin.jacobian[:, :, :size], strict=True):
        points, weights = joint_support(twin.likelihood, u)
        leaf = u.expand(len(points), -1).clone().requires_grad_()
        (score,) = torch.autograd.grad(twin.likelihood.log_prob(leaf, points).sum(), leaf)
        squares = (score @ jacobian).square()
        variance += squares.mT @ (weights.unsqueeze(-1) * squares)
        variance -= (jacobian.mT @ fisher(twin.likelihood, u) @ jacobian).square()
    error = (curvature_of(posterior)[:size, :size] - ggn) / (variance / samples).sqrt()
    assert float(error.abs().max()) < critical_value(size * (size + 1) // 2)
    assert float(error.abs().max()) > 0.5  # it is random at all
    spread = (variance.diagonal() / samples).sqrt() / ggn.diagonal()
    assert float(spread.max()) < 0.2  # and the bound is narrow


def joint_support(likelihood: TwinLikelihood, u: Tensor) -> tuple[Tensor, Tensor]:
    """Places and weights of all targets together: a coarser product grid."""
    y, weights = likelihood.support(u)
    if y.shape[1] == 1:
        return y, weights[:, 0]
    step = 20 if len(y) > 500 else 1
    y, weights = y[step // 2 :: step], weights[step // 2 :: step] * step
    a, b = torch.meshgrid(torch.arange(len(y)), torch.arange(len(y)), indexing="ij")
    points = torch.stack([y[a.flatten(), 0], y[b.flatten(), 1]], dim=1)
    return points, weights[a.flatten(), 0] * weights[b.flatten(), 1]


def test_monte_carlo_is_reproducible_and_its_seed_matters():
    first, second, other = (
        curvature_of(run("categorical", tp.Dense(kind="monte-carlo", samples=2, seed=seed))[0]) for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.allclose(first, other, rtol=0.01)


@pytest.mark.parametrize("kind", ["monte-carlo", "empirical"])
def test_ekfac_takes_the_same_columns_in_its_second_pass(kind):
    """Trace of the corrected block against the diagonal structure with the same seed."""
    ekfac, _ = run("categorical", tp.EKFAC(kind=kind, samples=2, seed=3, batch_size=4))
    diagonal, _ = run("categorical", tp.Diagonal(kind=kind, samples=2, seed=3, batch_size=4))
    assert_same(curvature_of(ekfac).trace(), curvature_of(diagonal).trace())


def test_a_vector_of_outputs():
    """One output without a dimension for it."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.gain = nn.Linear(3, 4), nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).tanh() @ self.gain

    torch.manual_seed(0)
    network = Flat().double()
    x, y = torch.randn(ROWS, 3, dtype=torch.float64), torch.randn(ROWS, dtype=torch.float64)
    target = tp.Target(network, tp.Normal(scale=0.5), tp.GaussianPrior(1.0))
    twin = make_twin(network, normal(0.5), x, y)
    assert_same_curvature(curvature_of(fit(target, tp.Dense(), x, y, network)), twin.ggn())
    posterior = fit(target, tp.Lanczos(9, tolerance=1e-12), x, y, network)
    assert_same(curvature_of(posterior), twin.ggn())  # nine rows of one output: rank nine
