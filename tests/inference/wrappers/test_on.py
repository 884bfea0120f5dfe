"""A method on a part of the network: the rest is the start's, each member's its own, and the temperatures stay."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.core.seeds import generator
from temperance.engine import Engine

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randn(12, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
DOWN = tp.MAP(lr=0.05, optimizer=torch.optim.SGD)
REST = slice(0, 8)  # the first layer; the second has three numbers


def small(**options) -> tp.Target:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    return tp.Target(network, tp.Normal(0.5), tp.GaussianPrior(tp.FanIn(1.5, 0.7), mean=0.3), **options)


def settings(count: int) -> torch.Tensor:
    """θ of several trained networks, say."""
    return torch.randn(count, 11, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def fit(target, method, steps, **options):
    return tp.fit(target, method, (X, Y), steps=steps, batch_size=12, progress=False, **options).posterior


@pytest.mark.parametrize(("temperature", "likelihood_temperature"), [(1.0, 1.0), (0.4, 2.5)])
def test_draws_of_a_part_are_those_of_a_target_of_the_part(temperature, likelihood_temperature):
    """The rest as ``start`` has it, at any T and λ."""
    options = {"temperature": temperature, "likelihood_temperature": likelihood_temperature}
    whole, (start,) = small(**options), settings(1)
    trained = copy.deepcopy(whole.network)
    nn.utils.vector_to_parameters(start, trained.parameters())
    part = tp.Target(trained, whole.likelihood, whole.prior, subset="2", **options)
    method = tp.Collect(tp.HMC(step_size=0.1, length=5), burn=2, every=1)
    inside, alone = fit(whole, tp.On("2", method), 12, start=start), fit(part, method, 12)
    assert torch.allclose(inside.inner.theta, alone.theta, rtol=1e-9, atol=1e-12)
    assert len(alone.theta.unique(dim=0)) > 5
    rows = inside.nodes().fetch(0, 10)[0]
    assert torch.equal(rows[:, REST], start[REST].expand(10, -1))


def test_each_member_of_an_ensemble_keeps_its_own_rest():
    rows = settings(3)
    method = tp.On("2", DOWN)
    together = fit(small(), tp.Ensemble(method, 3), 4, start=rows).components
    for row, member in zip(rows, together, strict=True):
        assert torch.equal(member.theta[REST], row[REST])
        assert torch.allclose(member.theta, fit(small(), method, 4, start=row).theta)
    alike = rows.clone()
    alike[:, REST] = rows[0, REST]
    engine = Engine(small(), tp.data.Data(X, Y))
    assert [method.at_once(engine, tp.Starts.at(given)) for given in (rows, alike, rows[:1])] == [False, True, True]


def test_a_state_without_its_workspace_goes_on_at_the_rest_of_its_start():
    """What a state says of the rest is in θ; the target over the part is made anew where it is not there."""
    method, (start,) = tp.On("2", DOWN), settings(1)
    data = small().prepare(tp.data.Data(X, Y))
    engine, batch = Engine(small(), data), next(iter(data.full_pass()))
    found = []
    for forgets in (False, True):
        state = method.init(engine, tp.Starts.of(start), [generator(0, "test")])
        for _ in range(3):
            state.engine = None if forgets else state.engine
            state, _ = method.step(engine, state, batch)
        found += method.posteriors(engine, state, data)
    assert torch.equal(found[0].theta, found[1].theta)
    assert torch.equal(found[1].theta[REST], start[REST])


@pytest.mark.parametrize(
    "method",
    [tp.Ensemble(tp.MAP(), 3), tp.SVGD(3), tp.RepulsiveEnsemble(3), tp.Ensemble(tp.Collect(tp.SGHMC(lr=0.01)), 3)],
    ids=lambda m: type(m).__name__,
)
def test_rows_that_differ_outside_of_the_part_are_refused(method):
    """On keeps one rest; that of the other rows would be dropped without a word."""
    x = torch.randn(12, 3)
    target = tp.Target(
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), tp.Normal(0.1), tp.GaussianPrior(1.0)
    )
    rows = torch.stack([target.fresh_theta(k) for k in range(3)])
    with pytest.raises(ArgumentError, match=r"agree outside of the subset '2'.*Ensemble\(On\('2'"):
        tp.fit(target, tp.On("2", method), (x, x[:, :1]), steps=2, start=rows)
    rows[:, :16] = rows[0, :16]
    found = tp.fit(target, tp.On("2", method), (x, x[:, :1]), steps=2, start=rows, progress=False)
    assert found.posterior.size == target.num_parameters
