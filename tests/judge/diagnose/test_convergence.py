"""Weights and predictions of a network whose hidden units can change places."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.engine.engine import Engine
from temperance.judge import diagnose
from temperance.posteriors import Draws, Mixture
from temperance.run.fitted import Fitted, RunInfo

HIDDEN = 12


def network_target(likelihood: tp.Likelihood, outputs: int) -> tp.Target:
    torch.manual_seed(0)
    return tp.Target(tp.nn.MLP(2, [HIDDEN], outputs, activation=nn.Tanh), likelihood, tp.GaussianPrior(1.0))


def permuted(target: tp.Target, theta: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """The same functions, with the hidden units in another order."""
    parts = {name: value.clone() for name, value in target.layout.unflatten(theta).items()}
    parts["0.weight"], parts["0.bias"] = parts["0.weight"][:, order], parts["0.bias"][:, order]
    parts["2.weight"] = parts["2.weight"][:, :, order]
    return torch.cat([part.flatten(1) for part in parts.values()], 1)


def symmetric_chains(target: tp.Target, draws: int = 100, shift: float = 0.0) -> Mixture:
    """Four chains around one function, each with its own order of hidden units; ``shift`` moves the last bias of the
    last chain, which is a change of function."""
    rng = torch.Generator().manual_seed(1)
    centre = torch.randn(target.num_parameters, generator=rng)
    made = []
    for k in range(4):
        theta = centre + 0.1 * torch.randn(draws, target.num_parameters, generator=rng)
        theta = permuted(target, theta, torch.randperm(HIDDEN, generator=rng) if k else torch.arange(HIDDEN))
        if k == 3:
            theta[:, -1] += shift
        made.append(Draws(theta))
    return Mixture(tuple(made))


LIKELIHOODS = [
    (tp.Categorical(), 3, "predicted probabilities"),
    (tp.Normal(scale=0.1), 1, "predicted means"),
    (tp.Poisson(), 1, "predicted rates"),
]


@pytest.mark.parametrize(("likelihood", "outputs", "what"), LIKELIHOODS)
def test_permuted_units_part_the_weights_but_not_the_predictions(likelihood, outputs, what):
    target = network_target(likelihood, outputs)
    x = torch.randn(20, 2)
    run = symmetric_chains(target)
    by_weight = diagnose.weights(run, target=target)
    by_function = diagnose.predictions(run, x, target=target)
    assert by_weight.median_rhat > 1.1
    assert by_weight.share_below(1.1) < 0.2
    assert by_function.worst[1] < 1.05
    assert by_function.what == what
    assert (by_function.chains, by_function.draws, len(by_function.names)) == (4, 100, 20 * outputs)
    apart = diagnose.predictions(symmetric_chains(target, shift=2.0), x, target=target)
    assert apart.median_rhat > 1.1


def test_predictions_are_those_of_the_network():
    target = network_target(tp.Categorical(), 3)
    run = symmetric_chains(target, draws=10)
    x = torch.randn(6, 2)
    probs = torch.stack([Engine(target).outputs(c.theta, x).softmax(-1).flatten(1) for c in run.components])
    found = diagnose.predictions(run, x, target=target, batch_size=4)
    assert torch.allclose(found.rhat, diagnose.rhat(probs.detach()))
    some = diagnose.predictions(run, x, target=target, max_quantities=4)
    assert some.names == ("row 0, class 0", "row 2, class 0", "row 3, class 2", "row 5, class 2")
    assert torch.allclose(some.rhat, found.rhat[[0, 6, 11, 17]])


def test_names_of_weights():
    target = network_target(tp.Categorical(), 3)
    run = symmetric_chains(target, draws=10)
    every = diagnose.weights(run, target=target)
    assert every.names[:3] == ("0.weight[0,0]", "0.weight[0,1]", "0.weight[1,0]")
    assert every.names[-1] == "2.bias[2]"
    few = diagnose.weights(run, max_parameters=2, target=target)
    assert few.names == ("0.weight[0,0]", "2.bias[2]")
    assert torch.allclose(few.rhat, every.rhat[[0, -1]])


def test_of_chains_of_unequal_length_the_last_draws_count():
    target = network_target(tp.Normal(scale=0.1), 1)
    chains = [chain.theta for chain in symmetric_chains(target).components[:2]]
    longer = torch.cat([chains[1] + 50.0, chains[1]])
    found = diagnose.weights(Mixture((Draws(chains[0]), Draws(longer))), target=target)
    same = diagnose.weights(Mixture((Draws(chains[0]), Draws(chains[1]))), target=target)
    assert found.draws == 100
    assert torch.equal(found.rhat, same.rhat)


def test_one_chain_is_judged_by_its_halves():
    target = network_target(tp.Normal(scale=0.1), 1)
    chain = symmetric_chains(target).components[0]
    fitted = Fitted(target, chain, RunInfo())
    x = torch.randn(5, 2)
    assert diagnose.predictions(fitted, x).worst[1] < 1.1
    drifting = Draws(chain.theta + torch.linspace(0, 1, 100).unsqueeze(1))
    assert diagnose.predictions(Fitted(target, drifting, RunInfo()), x).median_rhat > 1.1


def test_quantities_that_never_change_are_counted_and_left_out():
    target = network_target(tp.Categorical(), 3)
    theta = [chain.theta.clone() for chain in symmetric_chains(target).components]
    for part in theta:
        part[:, :4] = 1.0
    found = diagnose.weights(Mixture(tuple(map(Draws, theta))), target=target)
    assert found.constant == 4
    assert math.isfinite(found.worst[1])
    assert "(4 of them constant)" in str(found)
    stuck = [part[:1].expand(10, -1).clone() for part in theta]  # each chain stands still, in a place of its own
    found = diagnose.weights(Mixture(tuple(map(Draws, stuck))), target=target)
    assert found.worst[1] == math.inf
    assert found.share_below(1.05) == 0


def test_printing_and_errors():
    target = network_target(tp.Categorical(), 3)
    text = str(diagnose.weights(symmetric_chains(target), target=target))
    assert "weights: 75 quantities, 4 chains × 100 draws" in text
    assert "below 1.01" in text
    with pytest.raises(ArgumentError, match="at least 4 draws in each chain; got 3"):
        diagnose.weights(symmetric_chains(target, draws=3), target=target)
    with pytest.raises(ArgumentError, match="at least 8 draws in its one chain; got 7"):
        diagnose.weights(Draws(torch.randn(7, 75)), target=target)
    with pytest.raises(ArgumentError, match="`target` must be given"):
        diagnose.weights(symmetric_chains(target))
