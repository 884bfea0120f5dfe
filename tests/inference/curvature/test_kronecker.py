"""KFAC and EKFAC: their definition, where they are exact, and what happens at their limits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import temperance as tp

from .twin import (
    assert_same,
    assert_same_curvature,
    categorical,
    curvature_of,
    fisher,
    fit,
    make_twin,
    normal,
    only,
    separable_scales,
)
from .zoo import CLASSES, ROWS, Mean, Text, Twice, targets


def seeded(make) -> nn.Module:
    torch.manual_seed(11)
    network = make().double()
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return network


def target_of(network: nn.Module, likelihood=None, **settings) -> tp.Target:
    """Under a prior that is another one for each weight: the basis of the factors sees it, the factors must not."""
    prior = tp.GaussianPrior(scale=separable_scales(network))
    return tp.Target(network, likelihood or tp.Categorical(), prior, **settings)


def output_gradients(f: Tensor, z: Tensor) -> Tensor:
    """∂ f_nc / ∂ z_n for outputs f (N × C) and an inner value z (N × ...): N × C × ...."""
    found = [torch.autograd.grad(f[:, c].sum(), z, retain_graph=True)[0] for c in range(f.shape[1])]
    return torch.stack(found, dim=1)


def kronecker(a: Tensor, g: Tensor, f: Tensor, bias: bool, reduce: bool) -> Tensor:
    """The definition: a is N × R × in, g is N × C × R × out. The matrix over (weight by rows, bias)."""
    if bias:
        a = torch.cat([a, torch.ones_like(a[..., :1])], dim=-1)
    information = torch.stack([fisher(categorical(), row) for row in f.detach()])
    if reduce:
        a, g = a.mean(1, keepdim=True), g.sum(2, keepdim=True)
    left = torch.einsum("ncro,ncd,ndrp->op", g, information, g)
    right = torch.einsum("nri,nrj->ij", a, a) / (a.shape[0] * a.shape[1])
    return to_theta(torch.kron(left, right), g.shape[-1], a.shape[-1], bias)


def to_theta(matrix: Tensor, rows: int, columns: int, bias: bool) -> Tensor:
    """From the order of a matrix with the bias as last column to the order of θ: weight, then bias."""
    numbers = torch.arange(rows * columns).view(rows, columns)
    order = torch.cat([numbers[:, :-1].flatten(), numbers[:, -1]]) if bias else numbers.flatten()
    return only(matrix, order)


@pytest.mark.parametrize("sharing", ["expand", "reduce"])  # with one place an example they are the same
def test_linear_layers_without_sharing(sharing):
    network = seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4, bias=False), nn.Tanh()))
    head = seeded(lambda: nn.Linear(4, CLASSES))
    whole = nn.Sequential(network, head)
    x, y = torch.randn(ROWS, 3, dtype=torch.float64), targets()
    first = network[0](x)
    second = network[2](first.tanh())
    f = head(second.tanh())
    inputs = [x, first.tanh().detach(), second.tanh().detach()]
    expected = [
        kronecker(a.unsqueeze(1), output_gradients(f, z).unsqueeze(2), f, bias, reduce=False)
        for a, z, bias in zip(inputs, [first, second, f], [True, False, True], strict=True)
    ]
    posterior = fit(target_of(whole), tp.KFAC(sharing=sharing, batch_size=3), x, y, whole)
    assert_same_curvature(curvature_of(posterior), torch.block_diag(*expected))


CONVOLUTIONS = {
    "plain": {"kernel_size": (2, 3)},
    "strided, padded": {"kernel_size": 3, "stride": (2, 1), "padding": (1, 2)},
    "dilated, no bias": {"kernel_size": 2, "dilation": (1, 2), "bias": False},
    "grouped": {"kernel_size": 2, "groups": 2},
}


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, sharing):
    """Against ``F.unfold``; each group of a grouped convolution has factors of its own."""
    settings = CONVOLUTIONS[name]
    conv = seeded(lambda: nn.Conv2d(2, 4, **settings))
    tail = seeded(lambda: nn.Sequential(nn.Tanh(), Mean(2, 3), nn.Linear(4, CLASSES)))
    network = nn.Sequential(conv, *tail)
    x, y = torch.randn(ROWS, 2, 5, 4, dtype=torch.float64), targets()
    z = conv(x)
    f = tail(z)
    patches = F.unfold(x, conv.kernel_size, conv.dilation, conv.padding, conv.stride).mT
    g = output_gradients(f, z).flatten(3).mT
    parts = [
        kronecker(a, b, f, conv.bias is not None, sharing == "reduce")
        for a, b in zip(patches.chunk(conv.groups, -1), g.chunk(conv.groups, -1), strict=True)
    ]
    posterior = fit(target_of(network), tp.KFAC(sharing=sharing, batch_size=4), x, y, network)
    found = posterior.operator.blocks[: conv.groups]
    for block, expected in zip(found, parts, strict=True):
        assert_same_curvature(block.dense(), expected)
    size = conv.weight.numel() // conv.groups
    assert [block.places[0] for block in found] == [(k * size, (k + 1) * size) for k in range(conv.groups)]


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_sequences_and_repeated_calls(sharing):
    """A layer called on four places and once more on their mean: five rows an example."""
    network = seeded(Twice)
    x, y = torch.randn(ROWS, 4, 3, dtype=torch.float64), targets()
    places = network.shared(x)
    pooled = places.tanh().mean(1)
    again = network.shared(pooled)
    f = network.head(again.tanh())
    a = torch.cat([x, pooled.detach().unsqueeze(1)], dim=1)
    g = torch.cat([output_gradients(f, places), output_gradients(f, again).unsqueeze(2)], dim=2)
    posterior = fit(target_of(network), tp.KFAC(sharing=sharing, batch_size=4), x, y, network)
    assert_same_curvature(posterior.operator.blocks[0].dense(), kronecker(a, g, f, True, sharing == "reduce"))


@pytest.mark.parametrize("padding", [None, 2])
def test_embedding(padding):
    """One-hot words are inputs: diag(how often) ⊗ mean of g gᵀ, words of padding left out."""
    network = seeded(lambda: Text(padding))
    x, y = torch.randint(6, (ROWS, 5)), targets()
    assert bool((x[:, 1:] == x[:, :-1]).any())
    z = network.words(x)
    f = network.head(z.tanh().mean(1))
    rows = F.one_hot(x, 6).double() if padding is None else F.one_hot(x, 6).double() * (x != padding).unsqueeze(-1)
    information = torch.stack([fisher(categorical(), row) for row in f.detach()])
    g = output_gradients(f, z) * rows.sum(-1)[:, None, :, None]
    moment = torch.einsum("ncro,ncd,ndrp->op", g, information, g)
    expected = torch.kron(torch.einsum("nri,nrj->ij", rows, rows) / rows.sum(), moment)
    posterior = fit(target_of(network), tp.KFAC(batch_size=4), x, y, network)
    assert_same_curvature(posterior.operator.blocks[0].dense(), expected)


def linear_problem(network: nn.Module, x: Tensor, scale: float = 0.5) -> tuple[tp.Target, Tensor, Tensor, dict]:
    """A network that is linear in x under square loss, with the twin's blocks."""
    with torch.no_grad():
        outputs = network(x).shape[1]
    y = torch.randn(len(x), outputs, dtype=torch.float64)
    twin = make_twin(network, normal(scale), x, y)
    return target_of(network, tp.Normal(scale=scale)), y, twin.ggn(), twin.modules()


def assert_exact(network: nn.Module, x: Tensor, curvature) -> None:
    target, y, ggn, modules = linear_problem(network, x)
    found = curvature_of(fit(target, curvature, x, y, network))
    for index in modules.values():
        assert_same_curvature(only(found, index), only(ggn, index))


@pytest.mark.parametrize("curvature", [tp.KFAC(), tp.EKFAC(), tp.KFAC(sharing="reduce")])
def test_exact_on_deep_linear_networks(curvature):
    network = seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2, bias=False), nn.Linear(2, 4)))
    assert_exact(network, torch.randn(9, 3, dtype=torch.float64), curvature)


def test_reduce_is_exact_on_linear_convolutions_with_pooling():
    def make() -> nn.Module:
        circular = {"padding": 1, "padding_mode": "circular"}
        return nn.Sequential(
            nn.Conv2d(2, 3, 3, **circular), nn.Conv2d(3, 2, 3, **circular), Mean(2, 3), nn.Linear(2, 2)
        )

    x = torch.randn(8, 2, 4, 3, dtype=torch.float64)
    assert_exact(seeded(make), x, tp.KFAC(sharing="reduce"))
    with pytest.raises(AssertionError, match="off by"):
        assert_exact(seeded(make), x, tp.KFAC(sharing="expand"))


def test_expand_is_exact_where_each_place_has_a_loss_of_its_own():
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Flatten())

    x = torch.randn(8, 5, 3, dtype=torch.float64)
    assert_exact(seeded(make), x, tp.KFAC(sharing="expand"))
    with pytest.raises(AssertionError, match="off by"):
        assert_exact(seeded(make), x, tp.KFAC(sharing="reduce"))


CORRECTED = {
    "linear": (lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, CLASSES)), (3,)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), Mean(2, 3), nn.Linear(3, CLASSES)), (2, 3, 4)),
    "grouped conv": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 2, groups=2), nn.Tanh(), Mean(2, 3), nn.Linear(6, CLASSES)),
        (4, 3, 3),
    ),
    "sequence, called twice": (Twice, (4, 3)),
    "embedding": (lambda: Text(padding=2), (5,)),
}


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("name", CORRECTED)
def test_ekfac_is_the_diagonal_in_the_basis_of_kfac(name, sharing):
    """Λ = S Q diag(values) Qᵀ S with Q from KFAC: then the best diagonal is that of Qᵀ S⁻¹ H S⁻¹ Q, and it is taken."""
    make, shape = CORRECTED[name]
    network = seeded(make)
    x = torch.randint(6, (ROWS, *shape)) if name == "embedding" else torch.randn(ROWS, *shape, dtype=torch.float64)
    twin = make_twin(network, categorical(), x, targets())
    ggn = twin.ggn()
    target = target_of(network)
    plain = fit(target, tp.KFAC(sharing=sharing), x, twin.y, network)
    posterior = fit(target, tp.EKFAC(sharing=sharing, batch_size=4), x, twin.y, network)
    white = posterior.operator.prior_precision.rsqrt()
    scaled = white.unsqueeze(-1) * ggn * white
    for old, block in zip(plain.operator.blocks, posterior.operator.blocks, strict=True):
        index = torch.cat([torch.arange(a, b) for a, b in block.places])
        # Q as a matrix over θ, column by column, from the block's two small bases
        rows, columns = block.shape
        left = torch.eye(rows, dtype=torch.float64) if block.basis_out is None else block.basis_out
        basis = torch.kron(left.contiguous(), block.basis_in.contiguous())
        numbers = torch.arange(rows * columns).view(rows, columns)
        order = torch.cat([numbers[:, :-1].flatten(), numbers[:, -1]]) if block.has_bias else numbers.flatten()
        basis = basis[order]
        assert_same(basis.mT @ basis, torch.eye(rows * columns, dtype=torch.float64))
        inside = basis.mT @ only(scaled, index) @ basis
        assert_same(block.corrected.flatten(), inside.diagonal())
        # It is the basis of KFAC, where KFAC is diagonal,
        kfac = white[index].unsqueeze(-1) * old.dense() * white[index]
        rotated = basis.mT @ kfac @ basis
        assert_same(rotated, torch.diag(rotated.diagonal()))
        # and nearer to the truth than KFAC, by the norm in which a diagonal is best.
        errors = [
            torch.linalg.matrix_norm(white[index].unsqueeze(-1) * b.dense() * white[index] - only(scaled, index))
            for b in (block, old)
        ]
        assert errors[0] <= errors[1] * (1 + 1e-9)


def test_a_wide_side_keeps_its_diagonal_and_says_so():
    network = seeded(lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, CLASSES)))
    x, y = torch.randn(ROWS, 6, dtype=torch.float64), targets()
    exact = fit(target_of(network), tp.KFAC(), x, y, network).operator.blocks[0]
    a, g = exact.factors()
    for corrected in (tp.KFAC(factor_limit=5), tp.EKFAC(factor_limit=5)):
        with pytest.warns(tp.errors.TemperanceWarning, match="layer '0' has 7 inputs.*`factor_limit` decides"):
            posterior = fit(target_of(network), corrected, x, y, network)
        block = posterior.operator.blocks[0]
        assert block.basis_in is None
        if isinstance(corrected, tp.EKFAC):
            ggn = make_twin(network, categorical(), x, y).ggn()
            white = posterior.operator.prior_precision.rsqrt()
            scaled = only(white.unsqueeze(-1) * ggn * white, torch.arange(28))
            assert_same(block.corrected.sum(), scaled.trace())
        else:
            assert_same_curvature(block.dense(), to_theta(torch.kron(g, torch.diag(a.diagonal())), 4, 7, True))


def test_a_large_layer_without_a_rule_keeps_its_diagonal_and_says_so():
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cell(x)[0][:, -1])

    network = seeded(Network)
    x, y = torch.randn(ROWS, 4, 2, dtype=torch.float64), targets()
    ggn = make_twin(network, categorical(), x, y).ggn()
    with pytest.warns(tp.errors.TemperanceWarning, match=r"cell \(63 parameters: diagonal\).*`dense_limit` \(62\)"):
        posterior = fit(target_of(network), tp.KFAC(dense_limit=62), x, y, network)
    found = only(curvature_of(posterior), torch.arange(63))
    assert_same_curvature(found, torch.diag(ggn.diagonal()[:63]))
