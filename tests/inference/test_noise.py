"""Learned noise, corrected by rows that were not learned from."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.engine.engine import Engine
from temperance.inference.noise import Noise, best_shift, noise_entries, wanted_noise, with_noise
from temperance.posteriors import Draws, Mixture, Point, WithOutliers

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
    shift = best_shift(engine, Point(theta), data)
    assert shift == pytest.approx(0.5 * math.log(square), abs=0.026)  # the grid has steps of .05


def test_weights_count_as_repetitions():
    engine, theta = problem()
    heavy = torch.zeros(400, dtype=F64)
    heavy[:200] = 2.0
    data, z = rows(engine, theta, 2.0, weights=heavy)
    once = best_shift(engine, Point(theta), data.subset(slice(0, 200)).weighing(None))
    assert best_shift(engine, Point(theta), data) == once
    assert best_shift(engine, Point(theta), data) == pytest.approx(
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
        found = best_shift(engine, Point(theta), tp.data.Data(data.x, y, weights=weights))
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
    assert best_shift(engine, Draws(draws), data) == pytest.approx(wanted)
    many, _ = rows(engine, theta, 1.0, count=5000)
    f = engine.outputs(theta.unsqueeze(0), many.x)[0]
    late = torch.arange(5000).unsqueeze(1) >= 2500
    mixed = tp.data.Data(many.x, torch.where(late, f + 3.0 * (many.y - f), many.y))
    assert best_shift(engine, Point(theta), mixed) == pytest.approx(0.5 * math.log(5.0), abs=0.1)


def test_rows_that_no_noise_makes_possible_say_nothing():
    engine, theta = problem()
    data, _ = rows(engine, theta, 2.0)
    y, weights = data.y.clone(), torch.ones(400, dtype=F64)
    y[7], weights[7] = torch.inf, 0.0
    assert best_shift(engine, Point(theta), tp.data.Data(data.x, y)) == 0.0
    assert wanted_noise(engine, Point(theta), tp.data.Data(data.x, y)) is None
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
    assert best_shift(engine, far, data) > 0.4  # as the first alone, which is 1.8 σ off
    assert best_shift(engine, Mixture(far.components, (0.001, 0.999)), data) < 0.3
    grid = torch.arange(-80, 81, dtype=F64) * 0.05
    f = engine.outputs(theta.unsqueeze(0), data.x)[0]
    both = torch.stack([math.log(w) + torch.distributions.Normal(f + d * sigma, sigma * s.exp()).log_prob(data.y).sum(1)
                        for s in grid for w, d in ((0.25, -1.8), (0.75, 0.6))]).view(len(grid), 2, -1)  # fmt: skip
    wanted = float(grid[int(both.logsumexp(1).sum(1).argmax())])
    assert wanted < -0.1
    assert best_shift(engine, mixture, data) == pytest.approx(wanted)


@dataclass(frozen=True, eq=False)
class Plain(tp.Normal):
    """Gaussian noise that has no form with outliers."""

    def with_outliers(self, share, factor):
        return None


def test_a_noise_that_is_right_stays():
    engine, theta = problem(likelihood=Plain())
    for data in (rows(engine, theta, 0.97)[0], rows(engine, theta, 0.6, count=6)[0]):  # six are too few to be sure
        found = wanted_noise(engine, Point(theta), data)
        assert (found.shift, found.likelihood) == (0.0, None)


@pytest.mark.parametrize(("outputs", "weight"), [(1, None), (2, None), (1, 0.25)])
def test_it_is_moved_by_what_is_sure(outputs, weight):
    engine, theta = problem(outputs, Plain(num_outputs=outputs))
    weights = None if weight is None else torch.full((800,), weight, dtype=F64)
    for spread in (1.5, 0.5):
        data, _ = rows(engine, theta, spread, count=800, outputs=outputs, weights=weights)
        best = best_shift(engine, Point(theta), data)
        error = 1 / math.sqrt(2 * 800 * outputs * (weight or 1))
        kept = best - error if spread > 1 else best + 2 * error
        assert wanted_noise(engine, Point(theta), data).shift == pytest.approx(kept)


def test_a_wild_row_does_not_make_everything_uncertain():
    engine, theta = problem(likelihood=Plain())
    data, _ = rows(engine, theta, 1.0, count=30)
    wild = data.y.clone()
    wild[3] += 60 * float(theta[noise_entries(engine)].exp())
    assert best_shift(engine, Point(theta), tp.data.Data(data.x, wild)) > 2.0
    assert wanted_noise(engine, Point(theta), tp.data.Data(data.x, wild)).shift == 0.5


def test_it_does_not_fall_below_that_of_rows_that_were_learned_from():
    engine, theta = problem()
    data, _ = rows(engine, theta, 0.5, count=2000)
    places = noise_entries(engine)
    before = theta[places]
    least = with_noise(engine, Point(theta), data, Noise(-3.0, before)).theta[places] - theta[places]
    assert float(least) == pytest.approx(math.log(0.5), abs=0.05)
    more = with_noise(engine, Point(theta), data, Noise(0.4, before)).theta[places] - theta[places]
    assert float(more) == pytest.approx(0.4)


def test_half_of_what_a_noise_fell_by_is_given_back():
    """Scales of two numbers, members with weights that differ; one that rose is let be."""
    engine, theta = problem(2)
    places = noise_entries(engine)
    data, _ = rows(engine, theta, 0.01, outputs=2)
    other = theta.clone()
    other[places] += torch.tensor([0.8, -0.4], dtype=F64)
    mixture = Mixture((Point(theta), Point(other)), (0.25, 0.75))
    looked_at = theta[places] + 1.0
    made = with_noise(engine, mixture, data, Noise(0.1, looked_at))
    fallen = torch.tensor([1.0 - 0.75 * 0.8, 1.0 + 0.75 * 0.4], dtype=F64)
    for before, part in zip((theta, other), made.components, strict=True):
        torch.testing.assert_close(part.theta[places], before[places] + 0.1 + 0.5 * fallen)
    risen = with_noise(engine, Point(theta), data, Noise(0.1, theta[places] - 1.0))
    torch.testing.assert_close(risen.theta[places], theta[places] + 0.1)


def test_places_are_those_of_noise_alone():
    for likelihood in (tp.Normal(scale=0.3), tp.Poisson()):
        assert len(noise_entries(problem(likelihood=likelihood)[0])) == 0
    engine, theta = problem(likelihood=tp.StudentT())
    data, _ = rows(engine, theta, 1.0)
    moved = with_noise(engine, Point(theta), data, Noise(0.7, theta[noise_entries(engine)]))
    difference = moved.theta - theta
    places = noise_entries(engine)
    assert difference[places].tolist() == pytest.approx([0.7] * len(places))
    difference[places] = 0.0
    assert not difference.any()


def with_tails(engine, theta, share, factor, count, outputs=1, level=1.0, seed=0):
    """Each number is ``factor`` times as far off with probability ``share``, by itself."""
    data, z = rows(engine, theta, level, count=count, outputs=outputs)
    wide = torch.rand(z.shape, generator=torch.Generator().manual_seed(seed + 100), dtype=F64) < share
    sigma = theta[noise_entries(engine)].exp()
    return tp.data.Data(data.x, data.y + torch.where(wide, (factor - 1) * level * sigma * z, 0.0))


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize(("factor", "level"), [(2.0, 1.0), (4.0, 1.0), (4.0, 0.5), (4.0, 1.6)])
def test_tails_and_level_are_those_that_rows_were_drawn_with(outputs, factor, level):
    engine, theta = problem(outputs)
    data = with_tails(engine, theta, 0.2, factor, 1500, outputs, level)
    found = wanted_noise(engine, Point(theta), data)
    k = found.likelihood.factor
    assert found.likelihood == tp.ContaminatedNormal(0.2, k, num_outputs=outputs, of_all=True)
    assert k == pytest.approx(factor, rel=0.2)
    assert found.shift == pytest.approx(min(math.log(level), 0.5) + 0.5 * math.log(1 + 0.2 * (k * k - 1)), abs=0.1)


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize(("count", "spread", "wide"), [(9, 0.5, 1.0), (30, 1.0, 5.0), (120, 2.5, 2.0), (900, 0.8, 1.0)])
def test_it_is_what_its_formula_says(count, spread, wide, weighed):
    """Against SciPy: two numbers in a row, two members with weights that differ, weights of rows, one of them 0."""
    engine, theta = problem(2)
    other = theta + 0.05
    posterior = Mixture((Point(theta), Point(other)), (0.3, 0.7))
    data = with_tails(engine, theta, 0.2, wide, count, 2, spread)
    weights = np.where(np.arange(count) % 4 == 1, 0.0, 0.5 + np.arange(count) / count) if weighed else np.ones(count)
    if weighed:
        data = data.weighing(torch.from_numpy(weights))
    found = wanted_noise(engine, posterior, data)
    off = [(data.y - engine.outputs(each.unsqueeze(0), data.x)[0]).numpy() for each in (theta, other)]
    sigma = [each[noise_entries(engine)].exp().numpy() for each in (theta, other)]

    def total(shift, factor):
        members = []
        for weight, r, s in zip((0.3, 0.7), off, sigma, strict=True):
            bulk = s * math.exp(shift) / math.sqrt(1 + 0.2 * (factor**2 - 1))
            inside, outside = (stats.norm.logpdf(r, scale=scale) for scale in (bulk, factor * bulk))
            members.append(math.log(weight) + np.logaddexp(math.log(0.8) + inside, math.log(0.2) + outside).sum(1))
        return float(weights @ np.where(weights > 0, np.logaddexp(*members), 0.0))

    def widening(factor):
        return 0.5 * math.log(1 + 0.2 * (factor**2 - 1))

    plain = max(np.arange(-80, 81) * 0.05, key=lambda shift: total(shift, 1.0))
    logs = []
    for kappa in np.arange(21) * 0.1:
        around = plain + np.arange(-0.3, widening(math.exp(kappa)) + 0.3 + 0.05, 0.1)
        logs.append(special.logsumexp([total(shift, math.exp(kappa)) for shift in around]) - kappa)
    factor = math.exp(float(special.softmax(logs) @ (np.arange(21) * 0.1)))
    around = plain + np.arange(-0.3, widening(factor) + 0.3 + 0.025, 0.05)
    best = max(around, key=lambda shift: total(shift, factor))
    error = 1 / math.sqrt(2 * 2 * weights.sum())
    kept = max(min(best - error, 0.5 + widening(factor)), 0.0) if best > 0 else min(best + 2 * error, 0.0)
    assert found.likelihood.factor == pytest.approx(factor, rel=1e-6)
    assert found.shift == pytest.approx(kept, abs=1e-6)
    torch.testing.assert_close(found.level, theta[noise_entries(engine)] + 0.7 * 0.05)


def test_a_constant_factor_for_both_numbers_of_a_row_is_another_law():
    """Outliers come number by number: a row whose two numbers are wide together counts as two."""
    engine, theta = problem(2)
    data = with_tails(engine, theta, 0.2, 4.0, 1500, 2)
    own, exact = wanted_noise(engine, Point(theta), data), tp.ContaminatedNormal(0.2, 4.0, num_outputs=2)
    f, learned = engine.outputs(theta.unsqueeze(0), data.x), engine.layout.unflatten(theta.unsqueeze(0), "likelihood")
    gains = [
        float(law.log_prob(f, data.y, {k: v + s for k, v in learned.items()}).sum())
        for law, s in ((exact, 0.0), (own.likelihood, own.shift), (tp.Normal(num_outputs=2), 0.7))
    ]
    assert gains[1] > gains[0] - 6.0
    assert gains[1] > gains[2] + 100.0


def test_many_rows_without_outliers_leave_no_tail():
    engine, theta = problem()
    found = wanted_noise(engine, Point(theta), rows(engine, theta, 1.0, count=2000)[0])
    z = torch.linspace(-6, 6, 2001, dtype=F64).unsqueeze(1)
    normal = torch.distributions.Normal(0.0, 1.0).log_prob(z)[:, 0]
    law = found.likelihood or tp.Normal()
    other = law.log_prob(torch.zeros_like(z), z, {"likelihood.log_scale": torch.full((1,), found.shift, dtype=F64)})
    lost = normal.exp() * (normal - other)
    assert float(torch.trapezoid(lost, z[:, 0])) < 0.003  # nats a row


def test_few_rows_leave_some_tail_and_no_more_spread():
    engine, theta = problem()
    data, z = rows(engine, theta, 1.0, count=8)
    data, _ = rows(engine, theta, float(z.square().mean()) ** -0.5, count=8)
    found = wanted_noise(engine, Point(theta), data)
    assert 1.3 < found.likelihood.factor < 4.5
    assert found.shift == 0.0
    sigma = float(theta[noise_entries(engine)].exp())
    learned = engine.layout.unflatten(theta.unsqueeze(0), "likelihood")
    assert float(found.likelihood.variance(torch.zeros(1, 1, 1, dtype=F64), learned)) == pytest.approx(sigma**2)


def test_weights_of_rows_make_the_tails():
    """Rows that are far off, and weigh nothing, or twice as much as others."""
    engine, theta = problem()
    data = with_tails(engine, theta, 0.2, 5.0, 800)
    far = ((data.y - engine.outputs(theta.unsqueeze(0), data.x)[0]) / theta[noise_entries(engine)].exp()).abs() > 3.0
    without = wanted_noise(engine, Point(theta), data.weighing(torch.where(far[:, 0], 0.0, 1.0).double()))
    left_out = wanted_noise(engine, Point(theta), data.subset((~far[:, 0]).nonzero()[:, 0]))
    assert without.likelihood.factor == pytest.approx(left_out.likelihood.factor, rel=0.01)
    twice = wanted_noise(engine, Point(theta), data.weighing(torch.where(far[:, 0], 2.0, 1.0).double()))
    assert twice.likelihood.factor > wanted_noise(engine, Point(theta), data).likelihood.factor
    assert left_out.likelihood.factor < 2.0


def test_noise_that_is_heavy_already_has_its_level_moved_alone():
    engine, theta = problem(likelihood=tp.StudentT())
    data = with_tails(engine, theta, 0.2, 5.0, 800, level=2.0)
    found = wanted_noise(engine, Point(theta), data)
    assert found.likelihood is None
    assert found.shift > 0.3


def test_predictions_are_under_the_law_with_outliers():
    """A mixture of two members with weights that differ, in closed form; at any seed of the draws."""
    engine, theta = problem()
    data = with_tails(engine, theta, 0.2, 4.0, 600)
    other = theta + 0.1
    mixture = Mixture((Point(theta), Point(other)), (0.3, 0.7))
    law = tp.Normal().with_outliers(0.2, 4.0)
    made = with_noise(engine, mixture, data, Noise(0.75, theta[noise_entries(engine)] - 9.0, law))
    fitted = tp.Fitted(made.retarget(engine.target), made, None, None, 0)
    assert fitted.target.likelihood == law
    exact = torch.zeros(len(data.y), dtype=F64)
    for weight, each in ((0.3, theta), (0.7, other)):
        off = data.y - engine.outputs(each.unsqueeze(0), data.x)[0]
        sigma = (each[noise_entries(engine)] + 0.75).exp() / 2.0  # of what is no outlier: √(1 + 0.2 · 15) = 2
        for share, scale in ((0.8, sigma), (0.2, 4 * sigma)):
            exact += weight * share * torch.distributions.Normal(0.0, scale).log_prob(off).exp()[:, 0]
    torch.testing.assert_close(fitted.predict(data.x).log_prob(data.y), exact.log())


@pytest.mark.parametrize("factors", [(2.0, 5.0), (5.0, 2.0), (None, 3.0)])
def test_members_that_chose_other_outliers_have_the_widest(factors):
    engine, theta = problem()
    laws = [None if f is None else tp.ContaminatedNormal(0.2, f) for f in factors]
    parts = tuple(Point(theta) if law is None else WithOutliers(Point(theta), law) for law in laws)
    widest = max(factor or 1.0 for factor in factors)
    assert Mixture(parts, (0.9, 0.1)).retarget(engine.target).likelihood == tp.ContaminatedNormal(0.2, widest)
    mixed = Mixture(parts, (0.9, 0.1))
    again = mixed.retarget(mixed.retarget(engine.target))  # from a target that has the law already
    assert again.likelihood == tp.ContaminatedNormal(0.2, widest)
    noisy = WithOutliers(Point(theta), tp.Normal(scale=0.3))
    with pytest.raises(ArgumentError, match="`likelihood` must learn the same parameters"):
        Mixture((parts[1], noisy)).retarget(engine.target)


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
    assert len(moved.posterior.parts()) == len(plain.posterior.parts())
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
    assert bool((b[:, -1] > a[:, -1] + 0.49).all())
    assert bool((b[:, -1] < a[:, -1] + 1.5).all())


def heavy(base, seed=0, **options):
    """Noise with outliers."""
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(400, 3, generator=rng)
    wide = torch.where(torch.rand(400, 1, generator=rng) < 0.2, 5.0, 1.0)
    y = x @ torch.tensor([[1.0], [-0.5], [0.3]]) + 0.1 * wide * torch.randn(400, 1, generator=rng)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Linear(3, 1)
    made = tp.Target(net, tp.Normal(), tp.GaussianPrior(1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = tp.fit(made, base, (x[:300], y[:300]), epochs=200, batch_size=50, seed=seed, **options)
    return fitted, tp.data.Data(x[300:], y[300:])


@pytest.mark.parametrize(
    "base",
    [
        tp.MAP(lr=0.01),
        tp.Ensemble(tp.MAP(lr=0.01), 2),
        tp.SWAG(tp.MAP(lr=0.01)),
        tp.Variational(lr=0.01),
        tp.Ensemble(tp.SWAG(tp.MAP(lr=0.01)), 2),
    ],
)
def test_refit_ends_with_the_tails_that_held_out_rows_want(base, tmp_path):
    pilot = tp.MAP(lr=0.01, patience=0.2)
    fitted, test = heavy(tp.Refit(base, pilot), checkpoint=tmp_path / "run")
    assert 3.0 < fitted.target.likelihood.factor < 7.5
    plain, _ = heavy(tp.Refit(base, pilot, noise=False))
    assert fitted.evaluate(test)["log_loss"] < plain.evaluate(test)["log_loss"] - 0.05
    back = tp.load(tmp_path / "run", nn.Linear(3, 1))
    assert back.target.likelihood == fitted.target.likelihood
    for here in (back, fitted):
        assert torch.equal(here.predict(test.x).log_prob(test.y), fitted.predict(test.x).log_prob(test.y))
    uncertain = fitted.predict(test.x)
    gap = uncertain.entropy() - uncertain.aleatoric() - uncertain.mutual_information()
    assert float(gap.abs().max()) < 1e-4
    assert float(uncertain.mutual_information().mean()) < 0.05  # tails are of the rows, not of θ
    network = fitted.network() if len(fitted.posterior.parts()) == 1 else None
    assert network is None or bool(torch.isfinite(network(test.x)).all())


def refit(base=None, **options):
    return tp.Refit(base or tp.MAP(lr=0.01), tp.MAP(lr=0.01, patience=0.2), **options)


def test_members_of_an_ensemble_of_refits_have_one_law():
    fitted, test = heavy(tp.Ensemble(refit(), 3))
    factors = [part.likelihood.factor for _, part in fitted.posterior.parts()]
    assert fitted.target.likelihood.factor == max(factors)
    assert math.isfinite(fitted.evaluate(test)["log_loss"])


@pytest.mark.parametrize(
    "around",
    [
        lambda r: tp.Laplace(r, tune=None),
        lambda r: tp.Ensemble(tp.Laplace(r, tune=None), 2),
        lambda r: tp.On(["bias"], r),
        lambda r: tp.WarmStart(tp.Variational(lr=0.01), r),
    ],
)
def test_who_takes_the_point_alone_has_a_gaussian_noise_of_the_right_size(around):
    """The law with outliers is dropped there; a noise of what is no outlier would be far too small."""
    (with_tails, test), (without, _) = (heavy(around(refit(noise=noise))) for noise in (True, False))
    after, before = (fitted.evaluate(test) for fitted in (with_tails, without))
    assert after["log_loss"] < before["log_loss"] + 0.03
    assert after["coverage_90"] > 0.85


def test_an_earlier_refit_is_a_start_under_either_law():
    earlier, test = heavy(refit())
    target = tp.Target(nn.Linear(3, 1), tp.Normal(), tp.GaussianPrior(1.0))
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(400, 3, generator=rng)[:300]
    data = tp.data.Data(x, earlier.predict(x).mean())
    gaussian = tp.fit(target, tp.Laplace(tune=None), data, start=earlier).predict(test.x).std()
    torch.testing.assert_close(gaussian, earlier.predict(test.x).std(), rtol=0.05, atol=0.0)
    assert earlier.posterior.theta.shape == (5,)
    with pytest.raises(AttributeError, match="has no `theta`"):
        WithOutliers(tp.posteriors.Mixture((Point(torch.zeros(2)),)), tp.Normal()).theta  # noqa: B018


def test_the_elbo_is_of_the_law_that_predicts():
    fitted, test = heavy(refit(tp.Variational(lr=0.01)))
    found = fitted.elbo(test, draws=200, seed=1)
    inner = fitted.posterior.inner
    theta = inner.sample(200, 1)
    exact = fitted.engine.log_density(theta, tp.data.Data(test.x, test.y)) - inner.log_prob(theta)
    assert found.value == pytest.approx(float(exact.double().mean()), rel=1e-5)
    assert fitted.predict(test.x, precision=0.05).mean().shape == (100, 1)
    assert torch.equal(fitted.posterior.growing(7, 3).fetch(0, 7)[0], inner.growing(7, 3).fetch(0, 7)[0])


def test_dropout_keeps_its_masks_and_has_tails():
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(1))
    wide = torch.where(torch.rand(300, 1, generator=torch.Generator().manual_seed(2)) < 0.2, 6.0, 1.0)
    y = x[:, :1] + 0.1 * wide * torch.randn(300, 1, generator=torch.Generator().manual_seed(3))
    for base in (tp.MCDropout(tp.MAP(lr=0.01)), tp.Ensemble(tp.MCDropout(tp.MAP(lr=0.01)), 2)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
        target = tp.Target(net, tp.Normal(), tp.GaussianPrior(1.0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = tp.fit(target, refit(base), (x, y), epochs=100, batch_size=50)
        assert fitted.target.likelihood.factor > 2.0
        assert float(fitted.predict(x).epistemic_variance().mean()) > 1e-4


def test_the_noise_of_all_rows_is_the_least_not_that_of_the_pilots():
    """Rows held out have thirty times the noise; it is learned from them in the end, whatever the shift is."""
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(300, 3, generator=rng)
    y = x @ torch.tensor([[1.0], [-0.5], [0.3]]) + 0.1 * torch.randn(300, 1, generator=rng)
    y, x = y.double(), x.double()
    state_rows = []

    class Looks(tp.MAP):
        def posteriors(self, engine, state, data):
            state_rows.append(len(data))
            return super().posteriors(engine, state, data)

    target = tp.Target(nn.Linear(3, 1, dtype=F64), tp.Normal(), tp.GaussianPrior(1.0))
    off = (x[200:], y[200:] + 30.0 * (torch.arange(100) % 2).double().unsqueeze(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = tp.fit(target, refit(Looks(lr=0.01)), (x[:200], y[:200]), held_out=off, epochs=60, batch_size=50)
    assert state_rows == [300]
    assert float(fitted.predict(x).std().mean()) > 3.0  # half of the held-out rows are 30 off: all rows know it


def test_the_shift_is_saved(tmp_path):
    whole, test = short()
    halted, _ = short(checkpoint=tmp_path / "run")
    back = tp.load(tmp_path / "run", nn.Linear(3, 1))
    for fitted in (halted, back):
        assert torch.equal(fitted.predict(test.x).std(), whole.predict(test.x).std())


@pytest.mark.parametrize("made_of", [-300.0, -21.0, -19.0, -0.5, 0.0, 0.5, 39.0, 300.0, 1e16])
def test_noise_that_depends_on_the_input_stays_a_number(made_of):
    likelihood = tp.HeteroscedasticNormal()
    outputs = torch.tensor([[1.0, made_of]], requires_grad=True)
    y = torch.tensor([[1.5]])
    (slope,) = torch.autograd.grad(likelihood.log_prob(outputs, y, {}).sum(), outputs)
    energy, slopes, _ = likelihood.row_slopes(outputs.detach(), y, {})
    assert math.isfinite(float(energy))
    torch.testing.assert_close(slopes, -slope)
    assert float(likelihood.noise_scale(outputs.detach(), {})) >= 2e-9
