"""Learned noise, corrected by rows that were not learned from."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.engine.engine import Engine
from temperance.inference.noise import best_shift, noise_entries, wanted_shift, with_noise
from temperance.posteriors import Draws, Mixture, Point

F64 = torch.float64


def problem(outputs=1, likelihood=None):
    net = nn.Linear(3, outputs, dtype=F64)
    target = tp.Target(net, likelihood or tp.Normal(num_outputs=outputs), tp.GaussianPrior(1.0))
    return Engine(target), target.initial_theta()


def rows(engine, theta, spread, count=400, outputs=1, weights=None):
    """Targets that lie ``spread`` times the learned noise around the network's outputs."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, generator=rng, dtype=F64)
    f = engine.outputs(theta.unsqueeze(0), x)[0]
    z = torch.randn(count, outputs, generator=rng, dtype=F64)
    sigma = theta[noise_entries(engine)].exp()
    return tp.data.Data(x, f + spread * sigma * z, weights=weights), z


@pytest.mark.parametrize("spread", [0.2, 0.7, 1.5, 6.0])
@pytest.mark.parametrize("outputs", [1, 2])
def test_it_is_the_root_mean_square_of_standardised_residuals(spread, outputs):
    engine, theta = problem(outputs)
    data, z = rows(engine, theta, spread, outputs=outputs)
    square = float((spread * z).square().mean())
    shift, gain = best_shift(engine, Point(theta), data)
    assert shift == pytest.approx(0.5 * math.log(square), abs=0.026)  # the grid has steps of .05
    exact = 400 * outputs * (0.5 * square - 0.5 - 0.5 * math.log(square))
    assert gain == pytest.approx(exact, abs=400 * outputs * 0.026**2)


def test_weights_count_as_repetitions():
    engine, theta = problem()
    heavy = torch.zeros(400, dtype=F64)
    heavy[:200] = 2.0
    data, z = rows(engine, theta, 2.0, weights=heavy)
    once, _ = best_shift(engine, Point(theta), data.subset(slice(0, 200)).weighing(None))
    assert best_shift(engine, Point(theta), data)[0] == once
    assert best_shift(engine, Point(theta), data)[0] == pytest.approx(
        0.5 * math.log(float((2.0 * z[:200]).square().mean())), abs=0.026
    )


def test_a_row_counts_by_its_weight():
    """Half of the rows have a tenth of the noise, and next to no weight, or nearly all of it."""
    engine, theta = problem()
    data, z = rows(engine, theta, 1.0)
    f = engine.outputs(theta.unsqueeze(0), data.x)[0]
    near = torch.arange(400) < 200
    y = torch.where(near.unsqueeze(1), f + 0.1 * (data.y - f), data.y)
    for heavy in (near, ~near):
        weights = torch.where(heavy, 2.0, 0.002).double()
        square = (torch.where(near, 0.1, 1.0) * z[:, 0]).square()
        wanted = 0.5 * math.log(float((weights * square).sum() / weights.sum()))
        found, _ = best_shift(engine, Point(theta), tp.data.Data(data.x, y, weights=weights))
        assert found == pytest.approx(wanted, abs=0.026)


def test_many_draws_and_many_rows_are_all_asked():
    """Draws beyond those that are taken at once; of more than two thousand rows some of every kind."""
    engine, theta = problem()
    bias = engine.layout["bias"].start
    sigma = float(theta[noise_entries(engine)].exp())
    draws = theta.repeat(24, 1)
    draws[:, bias] += 2.0 * sigma
    draws[7::8, bias] = theta[bias]  # every eighth is right, so that it decides
    data, _ = rows(engine, theta, 0.5)
    off = (data.y - engine.outputs(theta.unsqueeze(0), data.x)[0]) / sigma
    exact = []
    for scale in (torch.arange(-80, 81, dtype=F64) * 0.05).exp():
        wrong, right = (torch.distributions.Normal(centre, scale).log_prob(off) for centre in (2.0, 0.0))
        exact.append(float(torch.logaddexp(math.log(7 / 8) + wrong, math.log(1 / 8) + right).sum()))
    wanted = (torch.tensor(exact).argmax().item() - 80) * 0.05
    assert best_shift(engine, Draws(draws), data)[0] == pytest.approx(wanted)
    many, _ = rows(engine, theta, 1.0, count=5000)
    f = engine.outputs(theta.unsqueeze(0), many.x)[0]
    late = torch.arange(5000).unsqueeze(1) >= 2500
    mixed = tp.data.Data(many.x, torch.where(late, f + 3.0 * (many.y - f), many.y))
    assert best_shift(engine, Point(theta), mixed)[0] == pytest.approx(0.5 * math.log(5.0), abs=0.1)


def test_rows_that_no_noise_makes_possible_say_nothing():
    engine, theta = problem()
    data, _ = rows(engine, theta, 2.0)
    y, weights = data.y.clone(), torch.ones(400, dtype=F64)
    y[7], weights[7] = torch.inf, 0.0
    assert best_shift(engine, Point(theta), tp.data.Data(data.x, y)) == (0.0, 0.0)
    assert wanted_shift(engine, Point(theta), tp.data.Data(data.x, y)) is None
    kept = [k for k in range(400) if k != 7]
    found = best_shift(engine, Point(theta), tp.data.Data(data.x, y, weights=weights))
    assert found == pytest.approx(best_shift(engine, Point(theta), data.subset(kept)))


def test_the_spread_of_a_posterior_takes_the_place_of_noise():
    """Members with weights that differ: what is asked is the noise of their mixture, here in closed form."""
    engine, theta = problem()
    bias = engine.layout["bias"].start
    data, _ = rows(engine, theta, 1.0, count=2000)
    low, high = theta.clone(), theta.clone()
    sigma = float(theta[noise_entries(engine)].exp())
    low[bias] -= 0.6 * sigma * 3
    high[bias] += 0.6 * sigma
    mixture = Mixture((Point(low), Point(high)), (0.25, 0.75))  # of the same mean, and a variance of 1.08 σ²
    far = Mixture((Point(low), Point(high)), (0.999, 0.001))
    assert best_shift(engine, far, data)[0] > 0.4  # as the first alone, which is 1.8 σ off
    assert best_shift(engine, Mixture(far.components, (0.001, 0.999)), data)[0] < 0.3
    grid = torch.arange(-80, 81, dtype=F64) * 0.05
    f = engine.outputs(theta.unsqueeze(0), data.x)[0]
    both = torch.stack([math.log(w) + torch.distributions.Normal(f + d * sigma, sigma * s.exp()).log_prob(data.y).sum(1)
                        for s in grid for w, d in ((0.25, -1.8), (0.75, 0.6))]).view(len(grid), 2, -1)  # fmt: skip
    wanted = float(grid[int(both.logsumexp(1).sum(1).argmax())])
    assert wanted < -0.1
    assert best_shift(engine, mixture, data)[0] == pytest.approx(wanted)


def test_a_noise_that_is_right_stays():
    engine, theta = problem()
    assert wanted_shift(engine, Point(theta), rows(engine, theta, 0.97)[0]) is None
    assert wanted_shift(engine, Point(theta), rows(engine, theta, 0.6, count=6)[0]) is None  # too few to be sure


@pytest.mark.parametrize(("outputs", "weight"), [(1, None), (2, None), (1, 0.25)])
def test_it_is_moved_by_what_is_sure(outputs, weight):
    engine, theta = problem(outputs)
    weights = None if weight is None else torch.full((800,), weight, dtype=F64)
    for spread in (1.5, 0.5):
        data, _ = rows(engine, theta, spread, count=800, outputs=outputs, weights=weights)
        best, _ = best_shift(engine, Point(theta), data)
        error = 1 / math.sqrt(2 * 800 * outputs * (weight or 1))
        kept = best - error if spread > 1 else best + 2 * error
        assert wanted_shift(engine, Point(theta), data) == pytest.approx(kept)


def test_a_wild_row_does_not_make_everything_uncertain():
    engine, theta = problem()
    data, _ = rows(engine, theta, 1.0, count=30)
    wild = data.y.clone()
    wild[3] += 60 * float(theta[noise_entries(engine)].exp())
    assert best_shift(engine, Point(theta), tp.data.Data(data.x, wild))[0] > 2.0
    assert wanted_shift(engine, Point(theta), tp.data.Data(data.x, wild)) == 0.5


def test_it_does_not_fall_below_that_of_rows_that_were_learned_from():
    engine, theta = problem()
    data, _ = rows(engine, theta, 0.5, count=2000)
    places = noise_entries(engine)
    least = with_noise(engine, Point(theta), data, -3.0).theta[places] - theta[places]
    assert float(least) == pytest.approx(math.log(0.5), abs=0.05)
    more = with_noise(engine, Point(theta), data, 0.4).theta[places] - theta[places]
    assert float(more) == pytest.approx(0.4)


def test_places_are_those_of_noise_alone():
    for likelihood in (tp.Normal(scale=0.3), tp.Poisson()):
        assert len(noise_entries(problem(likelihood=likelihood)[0])) == 0
    engine, theta = problem(likelihood=tp.StudentT())
    data, _ = rows(engine, theta, 1.0)
    moved = with_noise(engine, Point(theta), data, 0.7)
    difference = moved.theta - theta
    places = noise_entries(engine)
    assert difference[places].tolist() == pytest.approx([0.7] * len(places))
    difference[places] = 0.0
    assert not difference.any()


def short(noise=True, target=None, base=None, **options):
    """A training that ends long before the noise has come down from the targets' spread."""
    rng = torch.Generator().manual_seed(2)
    x = torch.randn(300, 3, generator=rng)
    y = x @ torch.tensor([[1.0], [-0.5], [0.3]]) + 0.05 * torch.randn(300, 1, generator=rng)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Linear(3, 1)
    made = tp.Target(net, tp.Normal(), tp.GaussianPrior(1.0), **(target or {}))
    base = base or tp.Ensemble(tp.MAP(lr=0.01), 2)
    method = tp.Refit(base, tp.MAP(lr=0.01, patience=0.1), noise=noise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a longer run would predict better
        fitted = tp.fit(made, method, (x[:200], y[:200]), epochs=60, batch_size=50, **options)
    return fitted, tp.data.Data(x[200:], y[200:])


@pytest.mark.parametrize("base", [None, tp.SWAG(tp.MAP(lr=0.01), start=0.9)])
def test_refit_ends_with_the_noise_that_held_out_rows_want(base):
    plain, test = short(noise=False, base=base)
    moved, _ = short(base=base)
    before, after = (fitted.evaluate(test) for fitted in (plain, moved))
    assert after["log_loss"] < before["log_loss"] - 0.2
    assert abs(after["coverage_90"] - 0.9) <= abs(before["coverage_90"] - 0.9)
    assert type(moved.posterior) is type(plain.posterior)
    a, b = (fitted.posterior.nodes().fetch(0, 2)[0] for fitted in (plain, moved))
    torch.testing.assert_close(a[:, :-1], b[:, :-1])  # the weights are as they were
    assert bool((b[:, -1] < a[:, -1] - 0.1).all())


def test_a_method_whose_noise_goes_its_own_way_is_not_harmed():
    (plain, test), (moved, _) = (short(noise=noise, base=tp.Variational(lr=0.01)) for noise in (False, True))
    assert moved.evaluate(test)["log_loss"] < plain.evaluate(test)["log_loss"] + 0.01


def test_a_linearised_posterior_is_left_alone():
    pair = [
        short(noise=noise, base=tp.Laplace(tp.MAP(lr=0.01), tune=None))[0].posterior.mean for noise in (False, True)
    ]
    assert torch.equal(*pair)


@pytest.mark.parametrize("temperatures", [{"temperature": 0.5}, {"likelihood_temperature": 0.5}])
def test_at_other_temperatures_nothing_is_chosen(temperatures):
    a, b = (short(noise=noise, target=temperatures)[0].posterior.nodes().fetch(0, 2)[0] for noise in (True, False))
    assert torch.equal(a, b)


def test_it_is_the_held_out_rows_that_are_asked():
    """They have thirty times the noise, so that it is raised by as much as it ever is."""
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(5))
    held_out = (x[200:], x[200:] @ torch.tensor([[1.0], [-0.5], [0.3]]) + 3.0 * torch.randn(100, 1))
    (plain, _), (moved, _) = (short(noise=noise, held_out=held_out) for noise in (False, True))
    a, b = (fitted.posterior.nodes().fetch(0, 2)[0] for fitted in (plain, moved))
    torch.testing.assert_close(b[:, -1], a[:, -1] + 0.5)


def test_the_shift_is_saved(tmp_path):
    whole, test = short()
    halted, _ = short(checkpoint=tmp_path / "run")
    back = tp.load(tmp_path / "run", nn.Linear(3, 1))
    for fitted in (halted, back):
        assert torch.equal(fitted.predict(test.x).std(), whole.predict(test.x).std())


@pytest.mark.parametrize("log_scale", [-300.0, -21.0, -19.0, 0.0, 39.0, 300.0])
def test_noise_that_depends_on_the_input_stays_a_number(log_scale):
    likelihood = tp.HeteroscedasticNormal()
    outputs = torch.tensor([[1.0, log_scale]], requires_grad=True)
    y = torch.tensor([[1.5]])
    (slope,) = torch.autograd.grad(likelihood.log_prob(outputs, y, {}).sum(), outputs)
    energy, slopes, _ = likelihood.row_slopes(outputs.detach(), y, {})
    assert math.isfinite(float(energy))
    torch.testing.assert_close(slopes, -slope)
    assert float(likelihood.noise_scale(outputs.detach(), {})) >= 2e-9
