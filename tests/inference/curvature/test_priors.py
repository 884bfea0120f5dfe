"""The prior's part of the precision; which structures can take which priors; a posterior as the next prior."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, distributions, nn

import temperance as tp

from .twin import assert_same, assert_same_curvature, categorical, curvature_of, fit, make_twin, normal, only

CLASSES = 3
STRUCTURES = {
    "KFAC": tp.KFAC(),
    "EKFAC": tp.EKFAC(),
    "Diagonal": tp.Diagonal(),
    "BlockDiagonal": tp.BlockDiagonal(),
    "Dense": tp.Dense(),
    "LowRank": tp.Lanczos(5, tolerance=1e-12),
}
structures = pytest.mark.parametrize("structure", STRUCTURES)


@pytest.fixture
def problem() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double()
    return network, torch.randn(9, 3, dtype=torch.float64), torch.randint(CLASSES, (9,))


def scales(*values: float) -> Tensor:
    """A number for each parameter: of 0.weight, 0.bias, 2.weight, 2.bias."""
    return torch.repeat_interleave(torch.tensor(values, dtype=torch.float64), torch.tensor([12, 4, 12, 3]))


def separable(seed: int = 0) -> Tensor:
    """Scales that are a number for each input times one for each output; the bias counts as an input."""
    rng = torch.Generator().manual_seed(seed)
    parts = []
    for rows, columns in ((4, 4), (CLASSES, 5)):
        out = torch.rand(rows, generator=rng, dtype=torch.float64) + 0.5
        into = torch.rand(columns, generator=rng, dtype=torch.float64) + 0.5
        matrix = torch.outer(out, into)
        parts += [matrix[:, :-1].flatten(), matrix[:, -1]]
    return torch.cat(parts)


PRIORS = {
    "one scale": (0.4, scales(0.4, 0.4, 0.4, 0.4)),
    "fan-in, another for biases": (tp.FanIn(gain=2**0.5, bias=0.3), scales((2 / 3) ** 0.5, 0.3, 0.5**0.5, 0.3)),
    "by layer": ({"0.weight": 0.3, "0": 1.5, "2.*": 0.8}, scales(0.3, 1.5, 0.8, 0.8)),
    "by parameter": (separable(), separable()),
}


@structures
@pytest.mark.parametrize("name", PRIORS)
def test_precision_is_curvature_plus_prior(structure, name, problem):
    """Σ⁻¹ = H + diag(scale⁻²). H is that of the structure, and does not depend on the prior where it is exact."""
    network, x, y = problem
    scale, expected = PRIORS[name]
    for mean in (0.0, torch.linspace(-1, 1, 31, dtype=torch.float64)):
        target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(scale, mean))
        posterior = fit(target, STRUCTURES[structure], x, y, network)
        curvature = curvature_of(posterior)
        assert_same(posterior.operator.dense(), torch.linalg.inv(curvature + torch.diag(expected.pow(-2))))
        ggn = make_twin(network, categorical(), x, y).ggn()
        if structure == "Dense":
            assert_same_curvature(curvature, ggn)
        elif structure == "LowRank":
            white = expected.unsqueeze(-1) * ggn * expected
            values, vectors = torch.linalg.eigh(white)
            best = (vectors[:, -5:] * values[-5:]) @ vectors[:, -5:].mT
            assert_same(expected.unsqueeze(-1) * curvature * expected, best)


def test_kfac_itself_does_not_depend_on_the_prior(problem):
    network, x, y = problem
    first, *others = (
        curvature_of(fit(tp.Target(network, tp.Categorical(), tp.GaussianPrior(scale)), tp.KFAC(), x, y, network))
        for scale, _ in PRIORS.values()
    )
    for other in others:
        assert_same_curvature(other, first)


@structures
def test_scales_that_no_product_gives(structure, problem):
    network, x, y = problem
    scale = torch.rand(31, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 0.5
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(scale))
    if structure in ("KFAC", "EKFAC"):
        with pytest.raises(tp.errors.ArgumentError, match=r"`prior`.*each input times one for each output.*layer '0'"):
            fit(target, STRUCTURES[structure], x, y, network)
        return
    posterior = fit(target, STRUCTURES[structure], x, y, network)
    assert_same(posterior.operator.dense(), torch.linalg.inv(curvature_of(posterior) + torch.diag(scale.pow(-2))))


def test_one_odd_weight_is_enough_to_refuse(problem):
    network, x, y = problem
    scale = separable()
    scale[17] *= 1.05
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(scale))
    with pytest.raises(tp.errors.ArgumentError, match="layer '2'"):
        fit(target, tp.KFAC(), x, y, network)


def student_precision(theta: Tensor) -> Tensor:
    law = distributions.StudentT(torch.tensor(3.0, dtype=torch.float64), 0.0, 0.5)
    return -torch.autograd.functional.hessian(lambda t: law.log_prob(t).sum(), theta).diagonal()


def test_student_prior_by_its_curvature_at_the_mode(problem):
    network, x, y = problem
    with torch.no_grad():
        for p in network.parameters():
            p.clamp_(-0.5, 0.5)
    posterior = fit(tp.Target(network, tp.Categorical(), tp.StudentTPrior(0.5, df=3.0)), tp.Dense(), x, y, network)
    tau = student_precision(posterior.mean)
    assert tau.min() > 0
    assert tau.max() > 1.5 * tau.min()
    assert_same(posterior.operator.prior_precision, tau)
    expected = torch.linalg.inv(make_twin(network, categorical(), x, y).ggn() + torch.diag(tau))
    assert_same(posterior.operator.dense(), expected)
    with pytest.raises(tp.errors.ArgumentError, match="each input times one for each output"):
        fit(tp.Target(network, tp.Categorical(), tp.StudentTPrior(0.5, df=3.0)), tp.KFAC(), x, y, network)


def test_student_prior_beyond_its_shoulder(problem):
    """Far out its curvature is negative: Dense may still be positive definite, Kronecker factors and LowRank refuse."""
    network, x, y = problem
    with torch.no_grad():
        network[0].weight[0, 0] = 3.0
    target = tp.Target(network, tp.Categorical(), tp.StudentTPrior(0.5, df=3.0))
    theta = torch.cat([p.detach().flatten() for p in network.parameters()])
    tau = student_precision(theta)
    assert tau[0] < 0
    for curvature in (tp.KFAC(), tp.Lanczos(4)):
        with pytest.raises(tp.errors.ArgumentError, match=r"`prior`.*positive everywhere, a Gaussian"):
            fit(target, curvature, x, y, network)
    total = make_twin(network, categorical(), x, y).ggn() + torch.diag(tau)
    if torch.linalg.eigvalsh(total)[0] > 0:
        assert_same(fit(target, tp.Dense(), x, y, network).operator.dense(), torch.linalg.inv(total))
    else:
        with pytest.raises(tp.errors.NumericalError, match="positive definite"):
            fit(target, tp.Dense(), x, y, network)


@structures
def test_laplace_prior_is_refused(structure, problem):
    network, x, y = problem
    target = tp.Target(network, tp.Categorical(), tp.LaplacePrior(0.5))
    with pytest.raises(tp.errors.ArgumentError, match=r"`prior` must be smooth.*kink"):
        fit(target, STRUCTURES[structure], x, y, network)


# ---------------------------------------------------------------------- a posterior as the prior of more data


def regression(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, 3, generator=rng, dtype=torch.float64),
        torch.randn(rows, 2, generator=rng, dtype=torch.float64),
    )


@pytest.fixture
def regressor() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


@pytest.mark.parametrize(
    "curvature", [tp.Dense(), tp.Diagonal(), tp.BlockDiagonal(), tp.KFAC(factor_limit=4), tp.KFAC()]
)
@pytest.mark.filterwarnings("ignore:layer '.' has . inputs")
def test_two_data_sets_one_after_the_other(curvature, regressor):
    """At one θ the curvature of both is that of all data at once; so are Kronecker factors, by rows."""
    (x1, y1), (x2, y2) = regression(9, 1), regression(5, 2)
    target = tp.Target(regressor, tp.Normal(scale=0.5), tp.GaussianPrior({"*weight": 0.6, "*": 1.5}))
    first = fit(target, curvature, x1, y1, regressor)
    second = fit(target.with_prior(first.as_prior()), curvature, x2, y2, regressor)
    together = fit(target, curvature, torch.cat([x1, x2]), torch.cat([y1, y2]), regressor)
    assert_same_curvature(curvature_of(second), curvature_of(together))
    assert_same(second.operator.dense(), together.operator.dense())
    assert_same(second.operator.diagonal(), together.operator.diagonal())


def test_low_rank_one_after_the_other(regressor):
    (x1, y1), (x2, y2) = regression(9, 1), regression(5, 2)
    target = tp.Target(regressor, tp.Normal(scale=0.5), tp.GaussianPrior(0.8))
    curvature = tp.Lanczos(4, tolerance=1e-12)
    first = fit(target, curvature, x1, y1, regressor)
    second = fit(target.with_prior(first.as_prior()), curvature, x2, y2, regressor)
    alone = fit(target, curvature, x2, y2, regressor)
    total = curvature_of(first) + curvature_of(alone)
    assert_same(curvature_of(second), total)
    assert_same(second.operator.dense(), torch.linalg.inv(total + torch.eye(26, dtype=torch.float64) / 0.64))


@pytest.mark.filterwarnings("ignore:layer '.' has . (in|out)puts")
def test_wide_factors_stay_diagonal_when_they_are_merged(regressor):
    """An embedding's words, or a side beyond ``factor_limit``: a matrix of that size must never be built."""
    (x1, y1), (x2, y2) = regression(9, 1), regression(5, 2)
    target = tp.Target(regressor, tp.Normal(scale=0.5), tp.GaussianPrior(0.8))
    curvature = tp.KFAC(factor_limit=3)
    first = fit(target, curvature, x1, y1, regressor)
    second = fit(target.with_prior(first.as_prior()), curvature, x2, y2, regressor)
    assert [b.basis_in for b in first.operator.blocks] == [None, None]
    assert [b.basis_in for b in second.operator.blocks] == [None, None]
    # A factor that is diagonal in one fit and not in the other makes one that is not.
    third = fit(target.with_prior(first.as_prior()), tp.KFAC(), x2, y2, regressor)
    (a1, g1), (a2, g2) = (
        first.operator.blocks[1].factors(),
        fit(target, tp.KFAC(), x2, y2, regressor).operator.blocks[1].factors(),
    )
    a, g = third.operator.blocks[1].factors()
    assert_same(a, (9 * torch.diag(a1) + 5 * a2) / 14)
    assert_same(g, g1 + g2)


@pytest.mark.parametrize("curvature", [tp.Dense(), tp.Diagonal(), tp.KFAC(), tp.Lanczos(4, tolerance=1e-12)])
def test_after_the_noise_was_chosen(curvature, regressor):
    """The earlier curvature counts by the noise that was chosen, not by the one it was computed with."""
    (x1, y1), (x2, y2) = regression(9, 1), regression(5, 2)
    target = tp.Target(regressor, tp.Normal(scale=0.5), tp.GaussianPrior(0.8))
    method = tp.Laplace(curvature=curvature, tune=tp.Tune(prior=None, noise=True))
    first = tp.fit(target, method, (x1, y1), start=regressor, progress=False).posterior
    assert abs(first.operator.data_factor - 1) > 0.2
    later = first.retarget(target)
    second = fit(later.with_prior(first.as_prior()), curvature, x2, y2, regressor)
    alone = fit(later, curvature, x2, y2, regressor)
    if isinstance(curvature, tp.KFAC):  # a sum of Kronecker products is none: by the factors of both, then
        blocks = [
            torch.kron(
                (one.factors()[1] * first.operator.data_factor + two.factors()[1]),
                (9 * one.factors()[0] + 5 * two.factors()[0]) / 14,
            )
            for one, two in zip(first.operator.blocks, alone.operator.blocks, strict=True)
        ]
        total = torch.block_diag(
            *(_weights_then_bias(m, b.shape) for m, b in zip(blocks, first.operator.blocks, strict=True))
        )
    else:
        total = first.operator.data_factor * curvature_of(first) + curvature_of(alone)
    assert_same(second.operator.dense(), torch.linalg.inv(total + torch.eye(26, dtype=torch.float64) / 0.64))
    # By the definition: what was known before, and the data since.
    if not isinstance(curvature, tp.KFAC):
        before = torch.linalg.inv(first.operator.dense())
        assert_same(torch.linalg.inv(second.operator.dense()), before + curvature_of(alone), 1e-7)


def _weights_then_bias(matrix: Tensor, shape: tuple[int, int]) -> Tensor:
    numbers = torch.arange(shape[0] * shape[1]).view(shape)
    return only(matrix, torch.cat([numbers[:, :-1].flatten(), numbers[:, -1]]))


def test_curvatures_that_cannot_be_added_are_refused(regressor):
    (x1, y1), (x2, y2) = regression(9, 1), regression(5, 2)
    target = tp.Target(regressor, tp.Normal(scale=0.5), tp.GaussianPrior(0.8))
    for old, new, message in (
        (tp.EKFAC(), tp.EKFAC(), "own basis"),
        (tp.KFAC(), tp.BlockDiagonal(), "same structure"),
        (tp.KFAC(), tp.Dense(), "use the same curvature"),
    ):
        first = fit(target, old, x1, y1, regressor)
        with pytest.raises(tp.errors.ArgumentError, match=message):
            fit(target.with_prior(first.as_prior()), new, x2, y2, regressor)


def test_learned_noise_goes_into_the_next_prior(regressor):
    (x1, y1), (x2, y2) = regression(9, 1), regression(5, 2)
    target = tp.Target(regressor, tp.Normal(), tp.GaussianPrior(0.8))
    first = fit(target, tp.Dense(), x1, y1, regressor)
    theta = first.mean
    later = target.with_prior(first.as_prior())
    second = tp.fit(later, tp.Laplace(curvature=tp.Dense(), tune=None), (x2, y2), start=theta, progress=False).posterior
    noise = float(theta[-1].exp())
    total = torch.zeros(27, 27, dtype=torch.float64)
    for x, y in ((x1, y1), (x2, y2)):
        total[:26, :26] += make_twin(regressor, normal(noise), x, y).ggn()
    total[26, 26] = 2 * (9 + 5) * 2
    assert_same_curvature(curvature_of(second), total)
