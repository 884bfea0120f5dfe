"""Members of a small network are stepped by hand: their gradients are those of each network alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.data import Data
from temperance.engine import Engine
from temperance.engine.stacked import StackedChain
from temperance.model.likelihoods import Likelihood
from temperance.model.priors import Learned
from temperance.nn.chain import ELEMENTWISE

MEMBERS, ROWS = 3, 7
LIKELIHOODS: dict[str, Likelihood] = {
    "classes": tp.Categorical(),
    "shares": tp.Categorical(),
    "labels": tp.Bernoulli(),
    "noise": tp.Normal(scale=0.3),
    "learned": tp.Normal(),
    "learned twice": tp.Normal(num_outputs=2),
    "depends": tp.HeteroscedasticNormal(),
    "heavy": tp.StudentT(),
    "counts": tp.Poisson(),
}


def targets_of(name: str, rng: torch.Generator) -> Tensor:
    if name == "classes":
        return torch.randint(2, (ROWS,), generator=rng)
    y = torch.rand(ROWS, 1 if name == "depends" else 2, generator=rng, dtype=torch.float64)
    if name == "shares":
        return y / y.sum(-1, keepdim=True)
    return y.round() if name in ("labels", "counts") else y


def chain(*activations: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    first, second = activations or (nn.ReLU(), nn.ReLU())
    return nn.Sequential(nn.Linear(4, 5), first, nn.Linear(5, 6, bias=False), second, nn.Linear(6, 2)).double()


def problem(name: str = "learned", network: nn.Module | None = None, **options: Any) -> tuple[tp.Target, Data]:
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(ROWS, 4, generator=rng, dtype=torch.float64), targets_of(name, rng)
    target = tp.Target(network or chain(), LIKELIHOODS[name], tp.GaussianPrior(1.0), **options)
    weights = torch.arange(ROWS, dtype=torch.float64) if options.pop("weighted", False) else None
    return target, target.prepare(Data(x, y, weights=weights))


def compared(target: tp.Target, data: Data, streams: int | None = MEMBERS) -> tuple[Engine, Tensor]:
    """The gradients of members together are those of each alone, whatever was in their place before."""
    engine = Engine(target, data)
    theta = torch.stack([target.fresh_theta(k) for k in range(MEMBERS)])
    batch = next(iter(data.batches(4, streams=streams)))
    grad = torch.full_like(theta, torch.nan)
    losses = engine.gradients(theta, batch, grad)
    for k in range(MEMBERS):
        alone = torch.zeros_like(theta[k])
        loss = engine.gradient(theta[k].clone(), batch.stream(k), alone)
        torch.testing.assert_close(losses[k], loss)
        torch.testing.assert_close(grad[k], alone)
    return engine, theta


def by_hand(engine: Engine, theta: Tensor) -> bool:
    return engine.workspace.chain(theta, torch.zeros_like(theta)) is not None


@pytest.mark.parametrize("streams", [MEMBERS, None])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_gradients_are_those_of_each_member_alone(name: str, streams: int | None) -> None:
    target, data = problem(name, likelihood_temperature=0.7)
    assert by_hand(*compared(target, data, streams))


@pytest.mark.parametrize("name", ["classes", "shares", "learned", "noise", "heavy"])
def test_rows_count_as_their_weights_say(name: str) -> None:
    target, data = problem(name)
    assert by_hand(*compared(target, data.weighing(torch.arange(ROWS))))


@pytest.mark.parametrize("activation", ELEMENTWISE)
def test_every_activation_of_a_chain(activation: type[nn.Module]) -> None:
    target, data = problem(network=chain(activation(), activation()))
    assert by_hand(*compared(target, data))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU])
def test_activations_in_place(activation: type[nn.Module]) -> None:
    network = chain(activation(inplace=True), activation(inplace=True))
    assert by_hand(*compared(*problem("classes", network)))
    assert network[1].inplace  # the user's own stays as it is


def test_at_the_kink_and_with_a_row_of_zeros() -> None:
    network = chain()
    with torch.no_grad():
        network[0].bias.zero_()
        network[0].weight[:2] = 0.0
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    data = target.prepare(Data(torch.zeros(4, 4).double(), torch.tensor([0, 1, 0, 1])))
    engine, theta = Engine(target, data), torch.stack([target.initial_theta()] * 2)
    batch, grad = next(iter(data.full_pass(4))), torch.zeros_like(theta)
    alone = torch.zeros_like(theta[0])
    engine.gradients(theta, batch, grad)
    engine.gradient(theta[0].clone(), batch, alone)
    torch.testing.assert_close(grad[0], alone)


def test_somebody_who_begins_to_listen_between_two_steps() -> None:
    target, data = problem("classes")
    engine = Engine(target, data)
    theta = torch.stack([target.fresh_theta(k) for k in range(2)])
    batch, grad = next(iter(data.full_pass(ROWS))), torch.zeros(2, theta.shape[1]).double()
    engine.gradients(theta, batch, grad)
    before = grad.clone()
    handle = engine.workspace.network[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    engine.gradients(theta, batch, grad)
    assert not torch.allclose(grad, before)
    handle.remove()
    engine.gradients(theta, batch, grad)
    torch.testing.assert_close(grad, before)


def test_a_layer_that_is_replaced_between_two_steps() -> None:
    target, data = problem("classes")
    engine = Engine(target, data)
    theta = torch.stack([target.fresh_theta(k) for k in range(2)])
    batch, grad = next(iter(data.full_pass(ROWS))), torch.zeros(2, theta.shape[1]).double()
    engine.gradients(theta, batch, grad)
    engine.workspace.network[1] = nn.Tanh()
    engine.gradients(theta, batch, grad)
    other, rows = problem("classes", chain(nn.Tanh(), nn.ReLU()))
    wanted = torch.zeros_like(grad)
    Engine(other, rows).gradients(theta, next(iter(rows.full_pass(ROWS))), wanted)
    torch.testing.assert_close(grad, wanted)


def test_somebody_who_listens_to_all_modules_there_are() -> None:
    target, data = problem("classes")
    engine = Engine(target, data)
    theta = torch.stack([target.fresh_theta(k) for k in range(2)])
    batch, grad = next(iter(data.full_pass(ROWS))), torch.zeros(2, theta.shape[1]).double()
    engine.gradients(theta, batch, grad)
    before, seen = grad.clone(), []

    def doubled(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        seen.append(type(module))
        return 2 * output if isinstance(module, nn.Linear) else None

    handle = nn.modules.module.register_module_forward_hook(doubled)
    try:
        engine.gradients(theta, batch, grad)
        engine.outputs(theta, data.x)
    finally:
        handle.remove()
    assert not torch.allclose(grad, before)
    assert nn.Linear in seen
    engine.gradients(theta, batch, grad)
    torch.testing.assert_close(grad, before)


def test_a_part_of_the_weights() -> None:
    network = chain()
    network[2].weight.requires_grad_(False)
    target, data = problem(network=network)
    assert by_hand(*compared(target, data))


def test_scales_that_the_prior_learns() -> None:
    _, data = problem("classes")
    target = tp.Target(chain(), tp.Categorical(), tp.GaussianPrior(scale=Learned()))
    assert by_hand(*compared(target, data))


def test_images_that_an_mlp_flattens() -> None:
    torch.manual_seed(0)
    target = tp.Target(tp.nn.MLP(4, [5], 2).double(), tp.Categorical(), tp.GaussianPrior(1.0))
    _, flat = problem("classes")
    assert by_hand(*compared(target, Data(flat.x.reshape(ROWS, 2, 2), flat.y)))


def test_rows_that_are_no_vectors_go_the_other_way() -> None:
    """A linear layer takes B × 1 × 4 as it is, and only an MLP of ours flattens it; numbers of another precision are
    for PyTorch to refuse."""
    target, data = problem("classes", chain())
    stacked = StackedChain.of(target.network, target.layout, *torch.zeros(2, MEMBERS, target.layout.size).double())
    assert stacked is not None
    assert stacked.rows(data.x, streams=False) is not None
    assert stacked.rows(data.x.unsqueeze(1), streams=False) is None
    assert stacked.rows(data.x.float(), streams=False) is None
    assert stacked.rows(data.x[:, :3], streams=False) is None


def test_a_network_that_somebody_listens_to_is_called() -> None:
    target, data = problem("classes")
    engine, theta = compared(target, data)
    handle = engine.network[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    assert not by_hand(engine, theta)
    batch, grads = next(iter(data.full_pass())), [torch.zeros_like(theta) for _ in range(2)]
    doubled = engine.gradients(theta, batch, grads[0])
    handle.remove()
    assert by_hand(engine, theta)
    assert not torch.allclose(doubled, engine.gradients(theta, batch, grads[1]))


@pytest.mark.parametrize(
    "network", [nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2)), nn.Sequential(nn.Linear(4, 2), nn.Dropout())]
)
def test_other_networks_go_the_other_way(network: nn.Module) -> None:
    target, data = problem("classes", network=network.double())
    engine = Engine(target, data)
    engine.workspace.set_training(True)
    assert not by_hand(engine, torch.stack([target.fresh_theta(k) for k in range(MEMBERS)]))


def test_outputs_of_positions_are_arranged_by_their_likelihood() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 4, generator=rng, dtype=torch.float64), torch.randint(4, (5,), generator=rng)
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    compared(target, target.prepare(Data(x, y)))


@pytest.mark.parametrize("name", ["classes", "shares", "labels", "learned", "learned twice", "noise", "depends"])
def test_closed_slopes_are_those_of_autograd(name: str) -> None:
    rng = torch.Generator().manual_seed(3)
    likelihood, y = LIKELIHOODS[name], targets_of(name, rng).expand(MEMBERS, *targets_of(name, rng).shape)
    outputs = torch.randn(MEMBERS, ROWS, 2, generator=rng, dtype=torch.float64)
    outputs[:, 0, 1] = 50.0  # beyond what noise that depends on x may be
    learned = {p.name: torch.randn(MEMBERS, *p.shape, generator=rng).double() for p in likelihood.learned_parameters()}
    for weights in (None, torch.rand(ROWS, generator=rng), torch.rand(MEMBERS, ROWS, generator=rng)):
        ours = likelihood.slopes(outputs, y, learned, weights)
        assert likelihood.row_slopes(outputs, y, learned) is not None
        torch.testing.assert_close(ours, likelihood._traced_slopes(outputs, y, learned, weights))
