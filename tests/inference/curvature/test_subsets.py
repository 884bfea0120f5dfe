"""Parts of a network that are random: the rest stays where it is."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import temperance as tp

from .twin import Twin, assert_same, categorical, curvature_of, fit, make_twin, only, restricted_covariance

TAU = 0.7**-2


@pytest.fixture(scope="module")
def twin() -> Twin:
    torch.manual_seed(8)
    network = nn.Sequential(
        nn.Conv1d(2, 3, 2), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 3)
    ).double()
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.3 * torch.randn_like(p))
    x, y = torch.randn(8, 2, 4, dtype=torch.float64), torch.randint(3, (8,))
    return make_twin(network, categorical(), x, y)


def run(twin: Twin, curvature, on, temperature: float = 1.0):
    target = tp.Target(twin.network, tp.Categorical(), tp.GaussianPrior(0.7), temperature)
    return fit(target, curvature, twin.x, twin.y, twin.network, on=on)


NAMED = {
    "last layer": (tp.last_layer, ("6.weight", "6.bias")),
    "first layer by name": ("0", ("0.weight", "0.bias")),
    "two by name": (["1", "4.weight"], ("1.weight", "1.bias", "4.weight")),
    "by pattern": ("*.weight", ("0.weight", "1.weight", "4.weight", "6.weight")),
    "biases": (tp.biases, ("0.bias", "1.bias", "4.bias", "6.bias")),
    "one bias": ("4.bias", ("4.bias",)),
    "predicate": (lambda name, p: p.dim() > 1, ("0.weight", "4.weight", "6.weight")),
}
named = pytest.mark.parametrize("name", NAMED)


def check(posterior, expected: Tensor, size: int) -> None:
    """The covariance is as expected, zero elsewhere included, and everything agrees with it."""
    operator = posterior.operator
    assert_same(operator.dense(), expected)
    assert_same(operator.diagonal(), expected.diagonal())
    assert operator.rank == size
    known = expected.diagonal() == 0
    assert int(known.sum()) == len(expected) - size
    assert float(operator.draw(torch.Generator().manual_seed(0))[known].abs().max()) == 0.0


@named
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_dense(name, temperature, twin):
    on, names = NAMED[name]
    index = twin.place(*names)
    expected = restricted_covariance(twin.ggn(), torch.full((len(twin.ggn()),), TAU), index, temperature)
    check(run(twin, tp.Dense(batch_size=3), on, temperature), expected, len(index))


@named
def test_diagonal(name, twin):
    on, names = NAMED[name]
    index = twin.place(*names)
    ggn = torch.diag(twin.ggn().diagonal())
    expected = restricted_covariance(ggn, torch.full((len(ggn),), TAU), index)
    check(run(twin, tp.Diagonal(), on), expected, len(index))


@named
def test_block_diagonal(name, twin):
    on, names = NAMED[name]
    ggn, expected = twin.ggn(), 0
    modules = {name.rpartition(".")[0] for name in names}
    for module in modules:
        own = twin.place(*(n for n in names if n.startswith(module + ".")))
        expected = expected + restricted_covariance(ggn, torch.full((len(ggn),), TAU), own)
    check(run(twin, tp.BlockDiagonal(), on), expected, len(twin.place(*names)))


@named
@pytest.mark.parametrize("curvature", [tp.KFAC(), tp.EKFAC()])
def test_kronecker_blocks_of_a_part(name, curvature, twin):
    """Where only biases are random there is nothing to factor and the block is exact; a weight alone has a factor
    without a column of ones, which is the block of the whole without that column only for KFAC."""
    on, names = NAMED[name]
    index = twin.place(*names)
    posterior = run(twin, curvature, on)
    assert posterior.operator.rank == len(index)
    found, ggn = curvature_of(posterior), twin.ggn()
    whole = curvature_of(run(twin, curvature, None))
    for module in {n.rpartition(".")[0] for n in names}:
        own = [n for n in names if n.startswith(module + ".")]
        part = twin.place(*own)
        if own == [f"{module}.bias"] or module == "1":
            assert_same(only(found, part), only(ggn, part))
        elif isinstance(curvature, tp.EKFAC):
            assert_same(only(found, part).trace(), only(ggn, part).trace())
        else:
            assert_same(only(found, part), only(whole, part))


def test_low_rank_of_a_part(twin):
    index = twin.place("4.weight", "6.weight", "6.bias")
    posterior = run(twin, tp.Lanczos(4, tolerance=1e-12), ["4.weight", "6"])
    values, vectors = torch.linalg.eigh(only(twin.ggn(), index))
    best = (vectors[:, -4:] * values[-4:]) @ vectors[:, -4:].mT
    whole = torch.zeros_like(twin.ggn())
    whole[index.unsqueeze(1), index] = best
    check(posterior, restricted_covariance(whole, torch.full((len(whole),), TAU), index), len(index))


def test_hessian_of_a_part(twin):
    index = twin.place("6.weight", "6.bias")
    posterior = run(twin, tp.Dense(kind="hessian"), tp.last_layer)
    assert_same(only(curvature_of(posterior), index), only(twin.hessian(), index))
    assert posterior.operator.rank == len(index)


@pytest.mark.parametrize("structure", [tp.Dense, tp.Diagonal])
@pytest.mark.parametrize("size", [1, 5, 40])
def test_largest_magnitude(structure, size, twin):
    theta = torch.cat([p.detach().flatten() for p in twin.network.parameters()])
    index = theta.abs().argsort(descending=True)[:size].sort().values
    ggn = twin.ggn() if structure is tp.Dense else torch.diag(twin.ggn().diagonal())
    expected = restricted_covariance(ggn, torch.full((len(ggn),), TAU), index)
    check(run(twin, structure(batch_size=3), tp.LargestMagnitude(size)), expected, size)


@pytest.mark.parametrize("structure", [tp.Dense, tp.Diagonal])
@pytest.mark.parametrize("size", [1, 5, 40])
def test_largest_variance(structure, size, twin):
    """By the variances of a diagonal approximation, not by those of the structure asked for; under a prior whose scales
    differ, or else the order would be that of the curvature alone."""
    scale = torch.linspace(0.3, 2.0, len(twin.ggn()), dtype=torch.float64)
    scale = scale[torch.randperm(len(scale), generator=torch.Generator().manual_seed(0))]
    variance = 1 / (twin.ggn().diagonal() + scale.pow(-2))
    index = variance.argsort(descending=True)[:size].sort().values
    target = tp.Target(twin.network, tp.Categorical(), tp.GaussianPrior(scale))
    posterior = fit(target, structure(), twin.x, twin.y, twin.network, on=tp.LargestVariance(size))
    ggn = twin.ggn() if structure is tp.Dense else torch.diag(twin.ggn().diagonal())
    check(posterior, restricted_covariance(ggn, scale.pow(-2), index), size)


def test_single_weights_with_the_hessian(twin):
    index = torch.cat([p.detach().flatten() for p in twin.network.parameters()]).abs().argsort(descending=True)[:6]
    posterior = run(twin, tp.Dense(kind="hessian"), tp.LargestMagnitude(6))
    index = index.sort().values
    assert_same(only(curvature_of(posterior), index), only(twin.hessian(), index))


def test_single_weights_need_a_structure_that_can_hold_them(twin):
    for curvature in (tp.KFAC(), tp.EKFAC(), tp.BlockDiagonal(), tp.Lanczos(3)):
        with pytest.raises(tp.errors.ArgumentError, match=r"`on`.*need Dense\(\) or Diagonal\(\)"):
            run(twin, curvature, tp.LargestMagnitude(5))
    with pytest.raises(tp.errors.ArgumentError, match="`size` must be at most"):
        run(twin, tp.Dense(), tp.LargestMagnitude(1000))


def test_what_the_user_has_frozen(twin):
    """A parameter that asks for no gradient is not in θ; its layer is none the worse."""
    network = copy.deepcopy(twin.network)
    network[0].bias.requires_grad_(False)
    network[4].weight.requires_grad_(False)
    frozen = make_twin(network, categorical(), twin.x, twin.y)
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(0.7))
    assert_same(curvature_of(fit(target, tp.Dense(), twin.x, twin.y, network)), frozen.ggn())
    blocks = fit(target, tp.KFAC(), twin.x, twin.y, network).operator.blocks
    assert sorted(block.size for block in blocks) == [4, 6, 12, 15]


def test_a_part_of_a_part(twin):
    """``subset`` of the target and ``on`` of the method: what both name is random; the rest is not even in θ."""
    target = tp.Target(twin.network, tp.Categorical(), tp.GaussianPrior(0.7), subset=["4", "6"])
    posterior = fit(target, tp.Dense(), twin.x, twin.y, twin.network, on=tp.biases)
    inside = twin.place("4.weight", "4.bias", "6.weight", "6.bias")
    ggn = only(twin.ggn(), inside)
    index = torch.cat([torch.arange(36, 40), torch.arange(52, 55)])
    check(posterior, restricted_covariance(ggn, torch.full((len(ggn),), TAU), index), 7)
    with pytest.raises(tp.errors.ArgumentError, match="`on` must name parameters that are random"):
        fit(target, tp.Dense(), twin.x, twin.y, twin.network, on="0")
