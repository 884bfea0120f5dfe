"""A target at each position of a row: shapes, targets that do not count, and what must come out the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import ArgumentError, DataError, NetworkError
from temperance.engine import Engine

ROWS, PLACES, IN, CLASSES = 7, 5, 3, 4


class Pointwise(nn.Module):
    """One linear map at each position; ``first`` gives the classes before the positions."""

    def __init__(self, first: bool = False) -> None:
        super().__init__()
        self.map, self.first = nn.Linear(IN, CLASSES), first

    def forward(self, x: Tensor) -> Tensor:
        made = self.map(x)
        return made.movedim(-1, 1) if self.first else made


def problem(*places: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    shape = places or (PLACES,)
    x = torch.randn(ROWS, *shape, IN, generator=rng, dtype=torch.float64)
    return x, torch.randint(CLASSES, (ROWS, *shape), generator=rng)


def target(likelihood: Any, network: nn.Module, scale: float = 1.0) -> tp.Target:
    return tp.Target(network.double(), likelihood, tp.GaussianPrior(scale))


def both() -> tuple[Engine, Engine, tp.data.Data, tp.data.Data]:
    """The same map with rows of five positions, and with five times as many rows."""
    x, y = problem()
    torch.manual_seed(0)
    network = Pointwise()
    ours = target(tp.PerPosition(tp.Categorical()), network)
    theirs = target(tp.Categorical(), network)
    a, b = ours.prepare(tp.data.Data(x, y)), theirs.prepare(tp.data.Data(x.flatten(0, 1), y.flatten()))
    return Engine(ours, a), Engine(theirs, b), a, b


def test_a_linear_map_at_each_position_is_one_of_more_rows() -> None:
    ours, theirs, a, b = both()
    theta = torch.stack([ours.target.fresh_theta(k) for k in range(3)])
    (batch,), (wide,) = a.full_pass(), b.full_pass()
    assert (batch.num_data, wide.num_data) == (ROWS, ROWS * PLACES)
    per_row = theirs.log_likelihood(theta, wide).view(3, ROWS, PLACES).sum(-1)
    torch.testing.assert_close(ours.log_likelihood(theta, batch), per_row)
    torch.testing.assert_close(ours.energy(theta, a), theirs.energy(theta, b))
    grads = [torch.zeros_like(theta) for _ in range(4)]
    ours.gradients(theta, batch, grads[0])
    theirs.gradients(theta, wide, grads[1])
    torch.testing.assert_close(grads[0] * ROWS, grads[1] * ROWS * PLACES)
    ours.energies(theta, batch, grads[2])
    theirs.energies(theta, wide, grads[3])
    torch.testing.assert_close(grads[2], grads[3])
    alone = torch.zeros(1, theta.shape[1], dtype=theta.dtype)
    ours.gradients(theta[:1], batch, alone)
    torch.testing.assert_close(alone[0], grads[0][0])


def test_one_position_is_the_plain_likelihood_to_the_bit() -> None:
    x, y = problem(1)
    torch.manual_seed(0)
    network = Pointwise()
    ours = target(tp.PerPosition(tp.Categorical()), network)
    theirs = target(tp.Categorical(), nn.Sequential(nn.Flatten(), network.map))
    a, b = ours.prepare(tp.data.Data(x, y)), theirs.prepare(tp.data.Data(x, y[:, 0]))
    engines = Engine(ours, a), Engine(theirs, b)
    for rows in (1, 3):
        theta = torch.stack([ours.fresh_theta(k) for k in range(rows)])
        made = []
        for engine, data in zip(engines, (a, b), strict=True):
            grad = torch.zeros_like(theta)
            (batch,) = data.full_pass()
            made.append((engine.gradients(theta, batch, grad), grad, engine.log_likelihood(theta, batch)))
        assert all(torch.equal(p, q) for p, q in zip(*made, strict=True))


def test_targets_that_do_not_count_change_nothing() -> None:
    x, y = problem()
    torch.manual_seed(0)
    network = nn.Linear(IN, CLASSES)
    given = target(tp.PerPosition(tp.Categorical()), network)
    short = given.prepare(tp.data.Data(x, y))
    rubbish = 9 * torch.randn(ROWS, 3, IN, dtype=torch.float64)
    long = given.prepare(
        tp.data.Data(torch.cat([x, rubbish], 1), torch.cat([y, torch.full((ROWS, 3), -100, dtype=y.dtype)], 1))
    )
    engines = Engine(given, short), Engine(given, long)
    theta = torch.stack([given.fresh_theta(k) for k in range(2)])
    energies = [engine.energy(theta, data) for engine, data in zip(engines, (short, long), strict=True)]
    torch.testing.assert_close(*energies)
    for rows in (theta, theta[:1]):
        grads = [torch.zeros_like(rows) for _ in range(2)]
        for engine, data, grad in zip(engines, (short, long), grads, strict=True):
            engine.gradients(rows, next(iter(data.full_pass())), grad)
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("places", [(5,), (2, 3)])
def test_channels_first_and_last_are_the_same_problem(places: tuple[int, ...]) -> None:
    x, y = problem(*places)
    torch.manual_seed(0)
    last, first = Pointwise(), Pointwise(first=True)
    first.load_state_dict(last.state_dict())
    energies = []
    for network, channels in ((last, "last"), (first, "first")):
        given = target(tp.PerPosition(tp.Categorical(), channels=channels), network)  # type: ignore[arg-type]
        data = given.prepare(tp.data.Data(x, y))
        engine = Engine(given, data)
        assert engine.likelihood.shape == (*places, CLASSES)  # type: ignore[attr-defined]
        energies.append(engine.energy(given.initial_theta(), data))
    torch.testing.assert_close(*energies, rtol=0, atol=0)


@pytest.mark.parametrize("channels", ["last", "first"])
@pytest.mark.parametrize("each", [tp.Bernoulli(), tp.Normal(0.3)])
def test_labels_and_numbers_at_each_position(each: Any, channels: Any) -> None:
    x, _ = problem(2, 3)
    rng = torch.Generator().manual_seed(1)
    y = torch.randint(2, (ROWS, 2, 3, CLASSES), generator=rng).double()
    torch.manual_seed(0)
    network = Pointwise(first=channels == "first")
    ours = target(tp.PerPosition(each, ignore=7, channels=channels), network)
    theirs = target(each, network.map)
    held = y.clone()
    held[0, 0, 0] = 7  # a position that does not count, by any of its numbers
    held[1, 1, 2, 0] = 7
    wide = tp.data.Data(x.flatten(0, 2), y.flatten(0, 2))
    counts = (held != 7).all(-1).flatten()
    a = ours.prepare(tp.data.Data(x, held.movedim(-1, 1) if channels == "first" else held))
    engine = Engine(ours, a)
    theta = torch.stack([ours.fresh_theta(k) for k in range(2)])
    told = Engine(theirs, theirs.prepare(wide)).log_likelihood(theta, next(iter(theirs.prepare(wide).full_pass())))
    expected = torch.where(counts, told, 0.0).view(2, ROWS, -1).sum(-1)
    torch.testing.assert_close(engine.log_likelihood(theta, next(iter(a.full_pass()))), expected)
    again = engine.target.prepare(a)  # what is prepared stays as it is
    assert torch.equal(again.y, a.y)


def test_wrong_shapes_are_refused_in_words() -> None:
    x, y = problem()
    network = Pointwise()
    given = target(tp.PerPosition(tp.Categorical()), network)
    with pytest.raises(DataError, match=r"one target for each position.*\(5,\).*got \(7, 4\)"):
        given.prepare(tp.data.Data(x, y[:, :4]))
    with pytest.raises(DataError, match="classes from 0 to 3"):
        given.prepare(tp.data.Data(x, y + 1))
    with pytest.raises(NetworkError, match=r"rows × positions × numbers.*Categorical itself"):
        given.prepare(tp.data.Data(x[:, 0], y[:, 0]))
    with pytest.raises(ArgumentError, match=r"`each` must learn nothing.*Normal\(scale=...\)"):
        tp.PerPosition(tp.Normal())
    with pytest.raises(ArgumentError, match=r"`channels` must be 'last' or 'first'"):
        tp.PerPosition(tp.Categorical(), channels="middle")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="`ignore` must be a finite number"):
        tp.PerPosition(tp.Categorical(), ignore=float("nan"))
    with pytest.raises(ArgumentError, match=r"`shape` of .* is not known yet"):
        tp.PerPosition(tp.Categorical()).mean(torch.zeros(1, 6), {})
    with pytest.raises(DataError, match="a position that counts"):
        tp.fit(given, tp.MAP(), (x, torch.full_like(y, -100)), steps=1, progress=False)


def test_the_curvature_and_the_noise_of_positions_that_do_not_count() -> None:
    rng = torch.Generator().manual_seed(0)
    each = tp.PerPosition(tp.Categorical(), shape=(3, 2))
    outputs, y = torch.randn(4, 6, generator=rng), torch.tensor([[0, 1, -100]] * 4)
    found = each.hessian(outputs, y, {})
    alone = tp.PerPosition(tp.Categorical(), shape=(2, 2)).hessian(outputs[:, :4], y[:, :2], {})
    torch.testing.assert_close(found[:, :4, :4], alone)
    assert not found[:, 4:].any()
    assert not found[:, :, 4:].any()
    values = torch.zeros(4, 3)
    known = tp.PerPosition(tp.Normal(scale=0.1), shape=(3, 1))
    assert known.perturb(values, {}, 1.0, rng) is not None
    some = tp.PerPosition(tp.Normal(scale=0.1), ignore=-1.0, shape=(3, 1))
    assert some.perturb(values, {}, 1.0, rng) is None  # noise would hide which targets are ignored
