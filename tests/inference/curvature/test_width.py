"""The width of a Laplace posterior, chosen by rows that the network has not seen: exact where it can be computed."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

import temperance as tp
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.engine.engine import Engine
from temperance.inference.curvature import width as room
from temperance.inference.curvature.approximate import approximate
from temperance.inference.curvature.linear import LinearisedOutputs
from temperance.inference.curvature.width import Width, _Choice, widened

F64 = torch.float64
NOISE = 0.4
NEWTON = tp.MAP(lr=1.0, optimizer=torch.optim.LBFGS, optimizer_args={"line_search_fn": "strong_wolfe", "max_iter": 60})


def rows(count: int, seed: int, weights: bool = False) -> tp.data.Data:
    """A line in four inputs with two outputs, so that weights are a matrix."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=rng, dtype=F64)
    slopes = torch.randn(4, 2, generator=torch.Generator().manual_seed(9), dtype=F64)
    y = x @ slopes + NOISE * torch.randn(count, 2, generator=rng, dtype=F64)
    return tp.data.Data(x, y, weights=torch.rand(count, generator=rng, dtype=F64) + 0.2 if weights else None)


def line(scale: float = 1.0, likelihood: tp.Likelihood | None = None) -> tp.Target:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Linear(4, 2, bias=False, dtype=F64)
    return tp.Target(net, likelihood or tp.Normal(scale=NOISE), tp.GaussianPrior(scale))


def posterior_of(train: tp.data.Data, target: tp.Target, theta: Tensor | None = None):
    """The exact posterior by Dense(), around the mode or around ``theta``."""
    prepared = target.prepare(train)
    engine = Engine(target.beginning(prepared), prepared)
    if theta is None:
        fitted = tp.fit(target, tp.Laplace(NEWTON, tp.Dense(), tune=None), train, steps=8)
        return engine, fitted.posterior, prepared
    return engine, approximate(engine, theta, {}, prepared, tp.Dense()), prepared


def exact_loss(posterior, data: tp.data.Data, width: float, noise: float = NOISE) -> float:
    """−Σ w log N(y; f, S + σ²) / Σ w with Λ = H + τ / width², written out."""
    tau = posterior.operator.prior_precision
    (block,) = posterior.operator.blocks
    covariance = torch.linalg.inv(block.dense() + torch.diag(tau) / width**2)
    total, count = 0.0, 0.0
    for k, (x, y) in enumerate(zip(data.x, data.y, strict=True)):
        jacobian = torch.kron(torch.eye(2, dtype=F64), x)  # weights are out × in, row by row
        law = torch.distributions.MultivariateNormal(
            jacobian @ posterior.mean, jacobian @ covariance @ jacobian.T + noise**2 * torch.eye(2, dtype=F64)
        )
        weight = 1.0 if data.weights is None else float(data.weights[k])
        total -= weight * float(law.log_prob(y))
        count += weight
    return total / count


@pytest.mark.parametrize("weights", [False, True])
def test_the_loss_of_a_width_is_the_exact_predictive_density(weights):
    engine, posterior, _ = posterior_of(rows(4, 0), line())
    other = rows(15, 1, weights)
    choice = _Choice(engine, posterior, other, False, 1000)
    found = choice._losses([3.0, 1.0, 0.1], (0.0,))
    for width, loss in found.items():
        assert float(loss) == pytest.approx(exact_loss(posterior, other, width), abs=2e-3), width
    assert float(found[3.0]) != pytest.approx(float(found[0.1]), abs=0.02)  # the test can tell widths apart


def test_the_width_is_the_best_of_all():
    """A mode that is off makes held-out rows want more spread than the prior gives; one that is right and a prior that
    is far too wide, less."""
    other = rows(40, 1)
    engine, exact, _ = posterior_of(rows(3, 0), line(scale=5.0))
    off = exact.mean + 0.15 * torch.randn(8, generator=torch.Generator().manual_seed(3), dtype=F64)
    for theta in (exact.mean, off):
        _, posterior, prepared = posterior_of(rows(3, 0), line(scale=5.0), theta)
        made = widened(engine, posterior, prepared.keeping_apart(other), Width(slack=0.0))
        grid = {w: exact_loss(posterior, other, w) for w in torch.logspace(-5, 1, 61).tolist()}
        assert exact_loss(posterior, other, made.width) <= min(grid.values()) + 2e-3
        assert made.width != 1.0
    wide = widened(engine, posterior, prepared.keeping_apart(other), Width(slack=0.05))
    assert wide.width > made.width  # width that costs little is taken
    assert exact_loss(posterior, other, wide.width) <= min(grid.values()) + 0.05 + 2e-3


@pytest.mark.parametrize("weights", [False, True])
def test_leaving_a_row_out_is_a_fit_without_it(weights):
    """On a linear model the Newton step and the covariance without a row are those of all other rows, exactly."""
    train = rows(9, 0, weights)
    target = line(scale=0.7)
    engine, posterior, prepared = posterior_of(train, target)
    choice = _Choice(engine, posterior, prepared, True, 1000)
    found = float(choice._losses([1.0], (0.0,))[1.0])
    total = 0.0
    for k in range(len(train)):
        kept = [j for j in range(len(train)) if j != k]
        _, without, _ = posterior_of(train.subset(kept), target)
        weight = 1.0 if train.weights is None else float(train.weights[k])
        total += weight * exact_loss(without, train.subset([k]), 1.0)
    total /= len(train) if train.weights is None else float(train.weights.sum())
    assert found == pytest.approx(total, abs=3e-3)
    seen = float(_Choice(engine, posterior, prepared, False, 1000)._losses([1.0], (0.0,))[1.0])
    assert found > seen + 0.02  # rows that were learned from flatter


@pytest.mark.parametrize("chunk", [4, 2**22])
def test_weights_go_with_their_rows_in_every_chunk(monkeypatch, chunk):
    monkeypatch.setattr(room, "_NUMBERS", 4 * chunk)
    engine, posterior, _ = posterior_of(rows(4, 0), line())
    other = rows(15, 1, True)
    found = _Choice(engine, posterior, other, False, 1000)._losses([1.0], (0.0,))[1.0]
    assert float(found) == pytest.approx(exact_loss(posterior, other, 1.0), abs=2e-3)


def test_a_row_of_no_weight_says_nothing_even_where_it_is_impossible():
    engine, posterior, _ = posterior_of(rows(4, 0), line())
    other = rows(15, 1, True)
    y, weights = other.y.clone(), other.weights.clone()
    y[3], weights[3] = torch.inf, 0.0
    choice = _Choice(engine, posterior, tp.data.Data(other.x, y, weights=weights), False, 1000)
    kept = other.subset([k for k in range(15) if k != 3])
    assert float(choice._losses([1.0], (0.0,))[1.0]) == pytest.approx(exact_loss(posterior, kept, 1.0), abs=2e-3)
    ones = tp.data.Data(other.x, y)
    assert _Choice(engine, posterior, ones, False, 1000).best(Width()) == (1.0, 0.0)  # nothing can be told


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("curvature", [tp.KFAC(), tp.Diagonal()], ids=lambda c: type(c).__name__)
def test_widths_that_are_tried_one_by_one_give_the_same_choice(monkeypatch, curvature, learns):
    """Of a large network; and no more posteriors than that are held at once."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(120, 3, generator=rng)
    y = (x[:, :1] * 0.7 + 0.3 * torch.randn(120, 1, generator=rng)).contiguous()
    target = tp.Target(tp.nn.MLP(3, [8], 1), tp.Normal() if learns else tp.Normal(0.3), tp.GaussianPrior(1.0))
    held, real = [], _Choice.rows_under

    def watched(self, found):
        held.append(len(found))
        yield from real(self, found)

    monkeypatch.setattr(_Choice, "rows_under", watched)
    made = []
    for limit in (room._HELD, 1):
        monkeypatch.setattr(room, "_HELD", limit)
        held.clear()
        fitted = tp.fit(target, tp.Laplace(tp.MAP(lr=1e-2), curvature=curvature), (x, y), epochs=10, seed=0)
        made.append((fitted.predict(x).mean(), fitted.predict(x).std(), max(held)))
    assert torch.equal(made[0][0], made[1][0])
    assert torch.equal(made[0][1], made[1][1])
    assert made[0][2] > 5
    assert made[1][2] == 1


def test_a_width_is_not_mistaken_for_one_that_was_tried_before():
    """Covariances come and go while widths are tried: an address that is used again is another covariance."""
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    target = tp.Target(tp.nn.MLP(3, [8], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    data = target.prepare(tp.data.Data(x, torch.arange(30) % 3))
    engine = Engine(target, data)
    posterior = approximate(engine, target.initial_theta(), {}, data, tp.Diagonal())
    law = LinearisedOutputs(engine, posterior, x[:2])
    for k in range(40):
        width = 10.0 ** (-k / 20)
        ((_, found),) = law.under([posterior.at_width(width).operator], x[:4])
        ((_, wanted),) = LinearisedOutputs(engine, posterior.at_width(width), x[:2]).moments(x[:4], 4)
        torch.testing.assert_close(found, wanted)


def test_several_widths_are_asked_of_a_grouped_convolution():
    """As each by itself: rotations that they share are those of each group."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(4, 4, 2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)).double()
    x = torch.randn(20, 4, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0), temperature=0.6)
    data = target.prepare(tp.data.Data(x, torch.arange(20) % 2))
    engine = Engine(target, data)
    posterior = approximate(engine, target.initial_theta(), {}, data, tp.KFAC())
    law = LinearisedOutputs(engine, posterior, x[:2])
    widths = [1.0, 0.2, 3.0]
    for width, (_, found) in zip(
        widths, law.under([posterior.at_width(w).operator for w in widths], x[:5]), strict=True
    ):
        ((_, wanted),) = LinearisedOutputs(engine, posterior.at_width(width), x[:2]).moments(x[:5], 5)
        torch.testing.assert_close(found, wanted)


def test_few_rows_do_not_change_a_learned_noise():
    """They gain less by another than chance gives; and with weights of a hundredth many rows are few."""
    target = line(likelihood=tp.Normal(num_outputs=1))
    train, other = rows(40, 0), rows(200, 1)
    prepared = target.prepare(train)
    engine = Engine(target.beginning(prepared), prepared)
    theta = torch.linalg.lstsq(train.x, train.y).solution.T.flatten()
    off = torch.cat([theta, torch.tensor([math.log(NOISE) - 0.3], dtype=F64)])
    posterior = approximate(engine, off, {}, prepared, tp.Dense())
    light = tp.data.Data(other.x, other.y, weights=torch.full((200,), 0.01, dtype=F64))
    for held_out, moves in ((other, True), (other.subset(slice(0, 2)), False), (light, False)):
        made = widened(engine, posterior, prepared.keeping_apart(held_out), Width())
        assert (float(made.mean[-1]) != float(off[-1])) == moves
    with pytest.warns(TemperanceWarning, match="knows no rows"):  # those that were learned from do not know
        assert float(widened(engine, posterior, prepared, Width()).mean[-1]) == float(off[-1])


def test_a_noise_that_was_learned_is_chosen_again():
    target = line(likelihood=tp.Normal(num_outputs=1))
    train, other = rows(40, 0), rows(200, 1)
    prepared = target.prepare(train)
    engine = Engine(target.beginning(prepared), prepared)
    theta = torch.linalg.lstsq(train.x, train.y).solution.T.flatten()
    small = torch.cat([theta, torch.tensor([math.log(NOISE) - 1.5], dtype=F64)])  # as a network that fits noise has it
    posterior = approximate(engine, small, {}, prepared, tp.Dense())
    made = widened(engine, posterior, prepared.keeping_apart(other), Width())
    assert float(made.mean[-1].exp()) == pytest.approx(NOISE, rel=0.12)
    assert torch.equal(made.mean[:-1], posterior.mean[:-1])
    kept = widened(engine, posterior, prepared.keeping_apart(other), Width(noise=False))
    assert float(kept.mean[-1]) == pytest.approx(math.log(NOISE) - 1.5)
    fixed = line()  # a noise that was given is the user's word
    engine, given, prepared = posterior_of(train, fixed)
    assert torch.equal(widened(engine, given, prepared.keeping_apart(other), Width()).mean, given.mean)


def heavy(count: int, seed: int, factor: float) -> tp.data.Data:
    """Of the rows of :func:`rows`, a fifth are ``factor`` times as far off."""
    made = rows(count, seed)
    rng = torch.Generator().manual_seed(seed + 100)
    clean = made.x @ torch.randn(4, 2, generator=torch.Generator().manual_seed(9), dtype=F64)
    wide = torch.where(torch.rand(count, 2, generator=rng) < 0.2, factor, 1.0)
    return tp.data.Data(made.x, clean + wide * (made.y - clean))


def around_least_squares(data: tp.data.Data, log_noise: float, others: tp.data.Data):
    """With a noise that is learned."""
    target = line(likelihood=tp.Normal(num_outputs=1))
    prepared = target.prepare(data)
    engine = Engine(target.beginning(prepared), prepared)
    theta = torch.linalg.lstsq(data.x, data.y).solution.T.flatten()
    theta = torch.cat([theta, torch.tensor([log_noise], dtype=F64)])
    return engine, approximate(engine, theta, {}, prepared, tp.Dense()), prepared.keeping_apart(others)


def mixture_loss(posterior, data: tp.data.Data, factor: float) -> float:
    """The mean of −log ∫ Π_d [.8 N(y_d; f_d, σ₀²) + .2 N(y_d; f_d, k² σ₀²)] N(f) df, term by term."""
    noise = float(posterior.mean[-1].exp()) / math.sqrt(0.8 + 0.2 * factor**2)
    covariance = posterior.covariance()[:8, :8]
    total = 0.0
    for x, y in zip(data.x, data.y, strict=True):
        jacobian = torch.kron(torch.eye(2, dtype=F64), x)
        mean, spread = jacobian @ posterior.mean[:8], jacobian @ covariance @ jacobian.T
        terms = []
        for one, two in ((1.0, 1.0), (1.0, factor), (factor, 1.0), (factor, factor)):
            share = math.prod(0.8 if k == 1.0 else 0.2 for k in (one, two))
            noises = torch.tensor([one, two], dtype=F64).mul(noise).square()
            law = torch.distributions.MultivariateNormal(mean, spread + torch.diag(noises))
            terms.append(law.log_prob(y) + math.log(share))
        total -= float(torch.logsumexp(torch.stack(terms), 0))
    return total / len(data)


def test_rows_say_how_heavy_the_tails_of_a_learned_noise_are():
    """Predictions are under the law with outliers, which other rows find more likely, and as likely as by hand."""
    engine, posterior, prepared = around_least_squares(rows(40, 0), math.log(NOISE), heavy(300, 1, 5.0))
    made = widened(engine, posterior, prepared, Width())
    plain = widened(engine, posterior, prepared, Width(noise=False))
    assert plain.likelihood is None
    law = made.likelihood
    assert isinstance(law, tp.ContaminatedNormal)
    assert law.of_all
    assert 3.0 < law.factor < 7.5
    assert float(made.mean[-1].exp()) == pytest.approx(NOISE * math.sqrt(0.8 + 0.2 * 25), rel=0.2)
    new = heavy(400, 2, 5.0)
    fitted = tp.fit(line(likelihood=tp.Normal(num_outputs=1)), tp.Laplace(curvature=tp.Dense()), rows(40, 0),
                    start=posterior.mean, held_out=heavy(300, 1, 5.0))  # fmt: skip
    assert fitted.posterior.likelihood == law
    by_hand = mixture_loss(made, new, law.factor)
    assert -float(fitted.predict(new.x).log_prob(new.y).mean()) == pytest.approx(by_hand, abs=5e-3)
    assert by_hand < mixture_loss(made, new, 1.0001) - 0.3
    assert by_hand < mixture_loss(made, new, 2 * law.factor) - 0.05


def test_rows_without_outliers_leave_the_noise_gaussian_and_few_leave_some_tail():
    engine, posterior, prepared = around_least_squares(rows(40, 0), math.log(NOISE), rows(600, 1))
    law = widened(engine, posterior, prepared, Width()).likelihood
    assert law is None or law.factor < 1.4
    few = widened(engine, posterior, prepared.keeping_apart(rows(6, 1)), Width()).likelihood
    assert 1.2 < few.factor < 2.5
    with pytest.warns(TemperanceWarning, match="knows no rows"):  # rows that were learned from know no tails
        assert widened(engine, posterior, prepared.keeping_apart(None), Width()).likelihood is None


def test_weights_of_rows_count_for_the_tails():
    engine, posterior, prepared = around_least_squares(rows(40, 0), math.log(NOISE), rows(1, 1))
    wild, tame = heavy(150, 1, 6.0), rows(150, 2)
    both = tp.data.Data(torch.cat([wild.x, tame.x]), torch.cat([wild.y, tame.y]))
    found = []
    for some in (torch.ones(150), torch.zeros(150)):
        weights = torch.cat([some, 1 - some]).double()
        other = tp.data.Data(both.x, both.y, weights=weights)
        found.append(widened(engine, posterior, prepared.keeping_apart(other), Width()).likelihood)
    alone = widened(engine, posterior, prepared.keeping_apart(wild), Width()).likelihood
    assert found[0].factor == pytest.approx(alone.factor, rel=1e-6)
    assert found[1] is None or found[1].factor < 0.5 * found[0].factor


def test_a_width_changes_neither_evidence_nor_what_is_passed_on():
    _, posterior, _ = posterior_of(rows(12, 0), line())
    narrow = posterior.at_width(0.01)
    assert narrow.width == 0.01
    assert narrow.log_evidence() == pytest.approx(posterior.log_evidence(), abs=1e-9)
    assert torch.allclose(narrow.as_prior().operator.dense(), posterior.as_prior().operator.dense())
    assert torch.allclose(narrow.at_width(1.0).covariance(), posterior.covariance())
    tau, (block,) = posterior.operator.prior_precision, posterior.operator.blocks
    wanted = torch.linalg.inv(block.dense() + torch.diag(tau) / 0.01**2)
    assert torch.allclose(narrow.covariance(), wanted, rtol=1e-9)


def test_temperatures_and_earlier_posteriors_are_left_alone():
    train, other = rows(30, 0), rows(30, 1)
    cold = line().with_temperature(0.5)
    fitted = tp.fit(cold, tp.Laplace(NEWTON, tp.Dense()), train, steps=8, held_out=other)
    assert fitted.posterior.width == 1.0
    earlier = tp.fit(line(), tp.Laplace(NEWTON, tp.Dense(), tune=None), train, steps=8)
    after = line().with_prior(earlier.posterior.as_prior())
    later = tp.fit(after, tp.Laplace(NEWTON, tp.Dense()), other, steps=8, held_out=rows(20, 2))
    both = tp.data.Data(torch.cat([train.x, other.x]), torch.cat([train.y, other.y]))
    whole = tp.fit(line(), tp.Laplace(NEWTON, tp.Dense(), tune=None), both, steps=8)
    assert torch.allclose(later.posterior.covariance(), whole.posterior.covariance(), rtol=1e-6)


# ---------------------------------------------------------------------- in a fit


def test_a_tenth_is_kept_apart_and_not_learned_from():
    data = rows(60, 0)
    fitted = tp.fit(line(), tp.Laplace(NEWTON, tp.Dense()), data, steps=8, seed=3)
    kept, apart = data.hold_out(0.1, seed=3)
    assert (len(fitted.data), len(fitted.held_out)) == (54, 6)
    assert torch.equal(fitted.held_out.x, apart.x)
    alone = tp.fit(line(), tp.Laplace(NEWTON, tp.Dense(), tune=None), kept, steps=8, seed=3)
    assert torch.equal(alone.posterior.mean, fitted.posterior.mean)
    assert torch.allclose(alone.posterior.at_width(fitted.posterior.width).covariance(), fitted.posterior.covariance())
    given = tp.fit(line(), tp.Laplace(NEWTON, tp.Dense()), data, steps=8, held_out=rows(25, 1))
    assert (len(given.data), len(given.held_out)) == (60, 25)
    few = tp.fit(line(), tp.Laplace(NEWTON, tp.Dense(), tune=Width(rows=5)), rows(80, 0), steps=8)
    assert len(few.held_out) == 5
    none = tp.fit(line(), tp.Laplace(NEWTON, tp.Dense(), tune=None), data, steps=8)
    assert len(none.data) == 60
    assert none.held_out is None


def test_a_trained_network_without_other_rows_is_told_of():
    train, other = rows(60, 0), rows(60, 1)
    trained = tp.fit(line(), NEWTON, train, steps=8).network()
    with pytest.warns(TemperanceWarning, match="held_out=validation"):
        safe = tp.fit(line(), tp.Laplace(curvature=tp.Dense()), train, start=trained)
    assert len(safe.data) == 60  # nothing is taken away from what the network has learned from
    assert 0 < safe.posterior.width <= 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked = tp.fit(line(), tp.Laplace(curvature=tp.Dense()), train, start=trained, held_out=other)
    assert asked.predict(other.x).log_prob(other.y).mean() > -1.5
    with pytest.warns(TemperanceWarning, match="held_out=validation"):  # too few to divide
        tp.fit(line(), tp.Laplace(NEWTON, tp.Dense()), rows(15, 0), steps=8)


def digits(seed: int) -> tuple[tp.Target, tp.data.Data, tp.data.Data]:
    train, test = tp.data.load("digits", split=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = tp.nn.MLP(64, [32], 10)
    return tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0)), train.subset(slice(0, 600)), test


@pytest.mark.parametrize("method", [tp.Laplace(tp.MAP(lr=5e-3)), tp.On(tp.last_layer, tp.Laplace(tp.MAP(lr=5e-3)))])
def test_under_a_wide_prior_it_is_as_good_as_its_centre(method):
    """N(0, 1) on every weight of a classifier: taken at its word the posterior is several times worse than MAP."""
    target, train, test = digits(0)
    kept, apart = train.hold_out(0.1, seed=0)

    def loss(made: tp.Inference, data: tp.data.Data, **options) -> float:
        fitted = tp.fit(target, made, data, epochs=40, batch_size=64, seed=0, **options)
        return -float(fitted.predict(test.x).log_prob(test.y).mean())

    point = loss(tp.MAP(lr=5e-3), kept)
    assert loss(method, kept, held_out=apart) < point + 0.01
    naive = tp.Laplace(tp.MAP(lr=5e-3), tune=None)
    assert loss(naive, kept) > 2 * point


def test_members_of_an_ensemble_have_widths_of_their_own():
    target, train, test = digits(1)
    method = tp.Ensemble(tp.Laplace(tp.MAP(lr=5e-3)), 2)
    fitted = tp.fit(target, method, train, epochs=15, batch_size=64)
    widths = [part.width for _, part in fitted.posterior.parts()]
    assert len(widths) == 2
    assert all(width < 1.0 for width in widths)
    assert len(fitted.held_out) == 60
    assert fitted.predict(test.x).probs.isfinite().all()


def test_it_is_kept_in_a_run_and_found_again_on_the_way(tmp_path):
    target, train, test = digits(2)
    method = tp.Laplace(tp.MAP(lr=5e-3))
    whole = tp.fit(target, method, train, epochs=6, batch_size=64, seed=1, checkpoint=tmp_path / "whole")
    loaded = tp.load(tmp_path / "whole", target.network)
    assert loaded.posterior.width == whole.posterior.width != 1.0
    assert torch.equal(loaded.predict(test.x).probs, whole.predict(test.x).probs)
    tp.fit(target, method, train, steps=30, batch_size=64, seed=1, checkpoint=tmp_path / "parts")
    parts = tp.fit(target, method, train, epochs=6, batch_size=64, seed=1, checkpoint=tmp_path / "parts")
    assert torch.equal(parts.predict(test.x).probs, whole.predict(test.x).probs)


def test_thousands_of_outputs_are_asked_by_functions(monkeypatch):
    """Draws of functions, where covariances of the outputs would be too large, come to the same width but for noise."""
    target, train, test = digits(3)
    options = {"epochs": 20, "batch_size": 64, "held_out": test.subset(slice(0, 200))}
    few = tp.fit(target, tp.Laplace(tp.MAP(lr=5e-3)), train, **options).posterior.width
    monkeypatch.setattr(room, "_MANY_OUTPUTS", 5)
    many = tp.fit(target, tp.Laplace(tp.MAP(lr=5e-3)), train, **options).posterior.width
    assert 1 / 4 < many / few < 4
    trained = tp.fit(target, tp.MAP(lr=5e-3), train, epochs=5, batch_size=64).network()
    with pytest.warns(TemperanceWarning, match="too many outputs"):
        kept = tp.fit(target, tp.Laplace(), train, start=trained)
    assert kept.posterior.width == 1.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"rows": 0}, "rows"), ({"slack": -1.0}, "slack"), ({"slack": math.nan}, "slack"), ({"noise": 2}, "noise")],
)
def test_arguments(settings, words):
    with pytest.raises(ArgumentError, match=f"`{words}`"):
        Width(**settings)


class Told:
    """Rows that want tails, and no other level under them."""

    law = tp.Normal()

    def totals(self, law, shifts):
        return -100.0 - shifts.square() if law.outlier_factor == 1.0 else -0.1 * shifts.square()


def test_under_tails_a_level_that_is_not_worth_it_is_the_networks_own():
    shift, law = room._with_tails(Told(), 0.5)  # type: ignore[arg-type]
    assert law is not None
    assert shift == 0.0


def test_rows_without_weight_say_nothing_where_outputs_are_many(monkeypatch):
    monkeypatch.setattr(room, "_MANY_OUTPUTS", 2)
    rng = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    target = tp.Target(nn.Linear(3, 4).double(), tp.Categorical(), tp.GaussianPrior(1.0))
    x = torch.randn(260, 3, generator=rng, dtype=F64)
    right = (x @ torch.randn(3, 4, generator=rng, dtype=F64)).argmax(1)
    y = torch.cat([right[:60], torch.randint(4, (200,), generator=rng)])
    weights = torch.cat([torch.ones(30), torch.zeros(200)]).double()
    start = tp.fit(target, tp.MAP(lr=0.05), (x[:30], y[:30]), epochs=60, batch_size=30).posterior.theta
    asked = ((x[30:60], y[30:60]), tp.data.Data(x[30:], y[30:], weights=weights), (x[30:], y[30:]))
    widths = [
        tp.fit(target, tp.Laplace(), (x[:30], y[:30]), start=start, held_out=rows).posterior.width for rows in asked
    ]
    assert widths[1] == pytest.approx(widths[0])
    assert widths[2] != pytest.approx(widths[0])
