"""Draws made comparable in weight space: same functions, one representative of each orbit."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import ArgumentError, NetworkError
from temperance.engine import outputs as forward
from temperance.engine.engine import Engine
from temperance.judge.diagnose import weights
from temperance.judge.symmetry import HiddenLayer, Order, align, canonical, symmetries
from temperance.linalg import DiagonalCovariance
from temperance.model.theta import Layout, last_layer
from temperance.posteriors import Draws, Gaussian, Mixture, Point

ACTIVATIONS = [nn.Tanh, nn.Softsign, nn.ReLU, nn.LeakyReLU, nn.Identity, nn.Sigmoid, nn.SiLU, nn.GELU]
ORDERS: list[Order] = ["bias", "weight", "norm"]


def mlp(activation: type[nn.Module] = nn.Tanh, bias: bool = True) -> nn.Module:
    return tp.nn.MLP(3, [5, 4], 2, activation, bias=bias).double()


def small_cnn() -> nn.Module:
    return tp.nn.CNN(1, 3, channels=(4, 5), hidden=6, image_size=8).double()


def tanh_cnn() -> nn.Module:
    """Signs pass through mean pooling and a flattening; one ReLU layer follows."""
    shared = nn.Tanh()
    features = nn.Sequential(nn.Conv2d(1, 4, 3), shared, nn.AvgPool2d(2), nn.Conv2d(4, 3, 2), shared)
    return nn.Sequential(features, nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 2)).double()


def max_pooled_tanh() -> nn.Module:
    """The largest of values is not an odd function: no signs here."""
    layers = (nn.Conv1d(1, 4, 3), nn.Tanh(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(12, 2))
    return nn.Sequential(*layers).double()


def sequence() -> nn.Module:
    """A linear layer along time, flattened: the units run fastest in what the next layer reads."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)).double()


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{kind.__name__: (partial(mlp, kind), (3,)) for kind in ACTIVATIONS},
    "no bias": (lambda: mlp(nn.Tanh, bias=False), (3,)),
    "cnn": (small_cnn, (1, 8, 8)),
    "tanh cnn": (tanh_cnn, (1, 8, 8)),
    "max pooled tanh": (max_pooled_tanh, (1, 8)),
    "sequence": (sequence, (2, 3)),
    "linear": (lambda: nn.Linear(3, 2).double(), (3,)),
}


def outputs(network: nn.Module, theta: Tensor, shape: tuple[int, ...], seed: int = 5) -> Tensor:
    x = torch.randn(7, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return forward.outputs(network.eval(), Layout.of(network), theta, x, batched=False)


def scrambled(network: nn.Module, theta: Tensor, copies: int, seed: int = 0) -> Tensor:
    """Copies of θ with units permuted, flipped and rescaled at random, written out unit by unit."""
    rng = torch.Generator().manual_seed(seed)
    layout, made = Layout.of(network), []
    for _ in range(copies):
        values = {name: value.clone() for name, value in layout.unflatten(theta).items()}
        for hidden in symmetries(network).layers:
            order = torch.randperm(hidden.width, generator=rng)
            factor = torch.ones(hidden.width, dtype=theta.dtype)
            if hidden.signs:
                factor *= 1 - 2 * torch.randint(0, 2, (hidden.width,), generator=rng)
            if hidden.scales:
                factor *= torch.exp(torch.randn(hidden.width, generator=rng, dtype=theta.dtype))
            weight, out = values[hidden.weight], values[hidden.outgoing]
            values[hidden.weight] = torch.stack([weight[j] * factor[j] for j in order])
            if hidden.bias:
                values[hidden.bias] = torch.stack([values[hidden.bias][j] * factor[j] for j in order])
            per_unit = out.shape[1] // hidden.width
            columns = [
                out[:, j :: hidden.width] if hidden.units_last else out[:, j * per_unit : (j + 1) * per_unit]
                for j in range(hidden.width)
            ]
            moved = torch.stack([columns[j] / factor[j] for j in order], 2 if hidden.units_last else 1)
            values[hidden.outgoing] = moved.reshape(out.shape)
        made.append(layout.flatten(values))
    return torch.stack(made)


def draws(network: nn.Module, count: int, seed: int = 1) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, Layout.of(network).size, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_function_is_unchanged(name: str, order: Order) -> None:
    make, shape = NETWORKS[name]
    network = make()
    theta = draws(network, 6)
    before = outputs(network, theta, shape)
    for mapped in (canonical(network, theta, order=order), align(network, theta, draws(network, 1, seed=9)[0])):
        after = outputs(network, mapped, shape)
        assert float((after - before).abs().max()) <= 1e-12 * max(1.0, float(before.abs().max()))
        if symmetries(network).layers:
            assert not mapped.equal(theta)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_an_orbit_has_one_representative(name: str, order: Order) -> None:
    make, shape = NETWORKS[name]
    network = make()
    theta = draws(network, 1)[0]
    copies = scrambled(network, theta, 20)
    before = outputs(network, theta.unsqueeze(0), shape)
    assert torch.allclose(outputs(network, copies, shape), before.expand(20, -1, -1), rtol=1e-10, atol=1e-10)
    mapped = canonical(network, copies, order=order)
    assert torch.allclose(mapped, canonical(network, theta, order=order).expand_as(mapped), rtol=1e-10, atol=1e-10)
    assert torch.allclose(align(network, copies, theta), theta.expand_as(copies), rtol=1e-10, atol=1e-10)
    again = canonical(network, mapped, order=order)
    assert torch.allclose(again, mapped, rtol=1e-12, atol=1e-12)


def test_what_is_switched_off_is_left_alone() -> None:
    network = mlp(nn.ReLU)
    values = Layout.of(network).unflatten(canonical(network, draws(network, 3), scales=False))
    assert float((values["0.weight"].norm(dim=-1) - 1).abs().min()) > 1e-3
    network = mlp(nn.Tanh)
    theta = draws(network, 3)
    values = Layout.of(network).unflatten(canonical(network, theta, signs=False))
    assert values["0.bias"].equal(Layout.of(network).unflatten(theta)["0.bias"].sort(-1).values)


def test_the_rules_of_the_representative() -> None:
    network = mlp(nn.Tanh)
    values = Layout.of(network).unflatten(canonical(network, draws(network, 9)))
    assert bool((values["0.bias"] >= 0).all())
    assert bool((values["2.bias"].diff() >= 0).all())
    network = mlp(nn.ReLU)
    values = Layout.of(network).unflatten(canonical(network, draws(network, 9)))
    length = torch.cat([values["2.weight"], values["2.bias"].unsqueeze(-1)], -1).norm(dim=-1)
    assert torch.allclose(length, torch.ones_like(length), atol=1e-14)


def test_zero_biases_and_dead_units_are_no_obstacle() -> None:
    for activation in (nn.Tanh, nn.ReLU):
        network = mlp(activation)
        theta = draws(network, 1)[0]
        values = Layout.of(network).unflatten(theta)
        values["0.bias"].zero_()
        values["2.weight"][1] = 0.0
        values["2.bias"][1] = 0.0
        copies = scrambled(network, theta, 10)
        mapped = canonical(network, copies)
        assert bool(torch.isfinite(mapped).all())
        entry = Layout.of(network)["4.weight"]  # what a dead unit says to the outputs is free, for it says nothing
        keep = torch.ones_like(theta, dtype=torch.bool)
        keep[entry.start : entry.stop] = False
        assert torch.allclose(mapped[:, keep], mapped[:1, keep].expand(10, -1), atol=1e-12)
        assert torch.allclose(outputs(network, mapped, (3,)), outputs(network, copies, (3,)), atol=1e-12)


def test_align_never_moves_away() -> None:
    for activation in (nn.Tanh, nn.Sigmoid):
        network = mlp(activation)
        theta, reference = draws(network, 50), draws(network, 1, seed=3)[0]
        before, after = (theta - reference).norm(dim=-1), (align(network, theta, reference) - reference).norm(dim=-1)
        assert bool((after <= before + 1e-12).all())
        assert float(after.mean()) < 0.95 * float(before.mean())


def test_align_undoes_a_scramble_of_a_neighbour() -> None:
    network = mlp(nn.Tanh)
    theta = draws(network, 1)[0]
    near = theta + 0.02 * draws(network, 1, seed=4)[0]
    assert torch.allclose(align(network, scrambled(network, near, 10), theta), near.expand(10, -1), atol=1e-12)


def test_kinds_and_sizes_of_symmetries() -> None:
    found = symmetries(tp.nn.MLP(2, [3, 4], 1, nn.Tanh))
    assert found.layers[0] == HiddenLayer("0", 3, True, False, "0.weight", "0.bias", "2.weight", True)
    assert found.log_size == pytest.approx(math.log(6 * 2**3 * 24 * 2**4))
    assert found.dimensions == 0
    found = symmetries(small_cnn())
    assert [(h.name, h.width, h.signs, h.scales) for h in found.layers] == [
        ("features.0", 4, False, True),
        ("features.3", 5, False, True),
        ("head.0", 6, False, True),
    ]
    assert found.log_size == pytest.approx(math.log(24 * 120 * 720))
    assert found.dimensions == 15
    assert "15 free scales" in str(found)
    assert [h.signs for h in symmetries(tanh_cnn()).layers] == [True, True, False]
    assert not symmetries(max_pooled_tanh()).layers[0].signs
    assert symmetries(nn.Linear(3, 1)).layers == ()
    plain = symmetries(mlp(nn.GELU)).layers[0]
    assert not plain.signs
    assert not plain.scales
    both = symmetries(mlp(nn.Identity)).layers[0]
    assert both.signs
    assert both.scales


def test_only_layers_that_are_random_throughout() -> None:
    network = mlp()
    target = tp.Target(network, tp.Normal(), tp.GaussianPrior(1.0))
    assert len(symmetries(target).layers) == 2
    theta = torch.cat([draws(network, 4), torch.zeros(4, target.layout.size - Layout.of(network).size)], 1)
    theta[:, Layout.of(network).size :] = 0.7
    assert canonical(target, theta)[:, -1].tolist() == [0.7] * 4
    part = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0), subset=last_layer)
    assert symmetries(part).layers == ()
    kept = torch.randn(3, part.layout.size, dtype=torch.float64)
    assert canonical(part, kept).equal(kept)
    network.get_parameter("0.bias").requires_grad_(False)
    assert [h.name for h in symmetries(network).layers] == ["2"]


def test_posteriors_keep_their_kind() -> None:
    network = mlp()
    theta = draws(network, 6)
    mixture = Mixture((Draws(theta[:4]), Point(theta[4])), (0.25, 0.75))
    made = canonical(network, mixture)
    assert isinstance(made, Mixture)
    assert made.weights == mixture.weights
    assert isinstance(made.components[0], Draws)
    assert isinstance(made.components[1], Point)
    assert made.components[0].theta.equal(canonical(network, theta[:4]))
    assert isinstance(align(network, Draws(theta), theta[0]), Draws)
    assert canonical(network, theta[0]).shape == theta[0].shape
    assert theta.equal(draws(network, 6))


def test_weight_space_r_hat_falls() -> None:
    """Four chains of one law, the units of each permuted and flipped once: R-hat sees four laws, until they are mapped.

    The draws lie close to one θ, so their units are told apart. With 200 independent draws in each of 4 chains R-hat
    stays within a few thousandths of one.
    """
    network = mlp()
    centre = draws(network, 1)[0]
    rng = torch.Generator().manual_seed(2)
    chains = []
    for seed in range(4):
        rows = centre + 0.02 * torch.randn(200, len(centre), generator=rng, dtype=torch.float64)
        chains.append(Draws(torch.cat([scrambled(network, row, 1, seed=seed) for row in rows])))
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    run = Mixture(tuple(chains))
    assert weights(run, target=target).median_rhat > 1.5
    assert weights(canonical(target, run), target=target).share_below(1.05) > 0.95
    assert weights(align(target, run, chains[0].theta[0]), target=target).share_below(1.05) == 1.0


def test_single_precision() -> None:
    network = tp.nn.MLP(3, [5, 4], 2, nn.ReLU)
    theta = draws(network, 3).float()
    mapped = canonical(network, theta)
    assert mapped.dtype == torch.float32
    x = torch.randn(7, 3)
    layout = Layout.of(network)
    after, before = (forward.outputs(network, layout, t, x) for t in (mapped, theta))
    assert torch.allclose(after, before, rtol=1e-4, atol=1e-4)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.layer(x))


def tied() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer)


UNSUPPORTED: dict[str, Callable[[], nn.Module]] = {
    "weights of its own": Residual,
    "tied": tied,
    "at least one parameter": nn.Tanh,
    "LayerNorm": lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 1)),
    "Softmax": lambda: nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1), nn.Linear(3, 1)),
    "pooling must not mix units": lambda: nn.Sequential(nn.Linear(3, 4), nn.MaxPool1d(2), nn.Linear(2, 1)),
    "one group": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2)),
    "without nn.Flatten": lambda: nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Linear(4, 1)),
    "keep rows": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(2), nn.Linear(4, 1)),
    "at '0'": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 1)),
}


@pytest.mark.parametrize("message", UNSUPPORTED)
def test_networks_whose_symmetries_are_not_known(message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        symmetries(UNSUPPORTED[message]())


def test_bad_arguments() -> None:
    network = mlp()
    theta = draws(network, 2)
    with pytest.raises(ArgumentError, match="`order`"):
        canonical(network, theta, order="alphabetical")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`theta` must be P or S × P"):
        canonical(network, theta[:, :-1])
    with pytest.raises(ArgumentError, match="`theta` must be finite"):
        canonical(network, theta * torch.nan)
    with pytest.raises(ArgumentError, match="`theta` must be of a floating dtype"):
        canonical(network, theta.long())
    with pytest.raises(ArgumentError, match="`theta` must be a tensor"):
        canonical(network, Gaussian(theta[0], DiagonalCovariance(torch.ones_like(theta[0]))))  # type: ignore[type-var]
    with pytest.raises(ArgumentError, match="`network`"):
        canonical("mlp", theta)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`reference` must be a vector"):
        align(network, theta, theta)
    with pytest.raises(ArgumentError, match="`reference` must be finite"):
        align(network, theta, theta[0] * torch.inf)
    with pytest.raises(ArgumentError, match="`sweeps`"):
        align(network, theta, theta[0], sweeps=0)


def test_chains_of_a_sampler_agree_better_once_their_units_are_matched():
    """Four chains of NUTS, each of which has found its own order of the hidden units: predictions stay the same, and
    the weights' R-hat falls, whether units are sorted or matched to a draw."""
    x = torch.linspace(-2, 2, 60).unsqueeze(1).double()
    data = tp.data.Data(x, torch.sin(2 * x))
    target = tp.Target(tp.nn.MLP(1, [3], 1, nn.Tanh).double(), tp.Normal(scale=0.1), tp.GaussianPrior(2.0))
    method = tp.Ensemble(tp.Collect(tp.Warmup(tp.NUTS(max_depth=7), 200), last=100), 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tp.errors.TemperanceWarning)
        posterior = tp.fit(target, method, data, seed=1, progress=False).posterior
    before = tp.diagnose.weights(posterior, target=target).rhat
    reference = posterior.components[0].theta[-1]
    for mapped in (tp.symmetry.canonical(target, posterior), tp.symmetry.align(target, posterior, reference)):
        for one, two in zip(posterior.components, mapped.components, strict=True):
            shown = [Engine(target).outputs(c.theta[:5], x) for c in (one, two)]
            assert torch.allclose(*shown, atol=1e-10)
        after = tp.diagnose.weights(mapped, target=target).rhat
        assert float(after.median()) < float(before.median()) - 0.1
