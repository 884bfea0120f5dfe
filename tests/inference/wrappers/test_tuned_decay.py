"""Which strength of the prior is kept, what comes out of it, trouble in some of the trainings, what is refused."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, NumericalError
from temperance.model.priors.powered import PoweredPrior
from temperance.posteriors import centre_of
from temperance.posteriors.dropout import at_rates
from tests.small import killed_at

F64 = torch.float64
POINT = tp.MAP(lr=0.02, patience=200)


def rows(seed, signal, count=300):
    """Two numbers of twenty inputs, much noise: 40 rows to learn from, 260 held out."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 20, generator=rng, dtype=F64)
    slopes = signal * torch.randn(20, 2, generator=rng, dtype=F64)
    y = x @ slopes + torch.randn(count, 2, generator=rng, dtype=F64)
    return tp.data.Data(x[:40], y[:40]), tp.data.Data(x[40:], y[40:])


def linear(prior=None):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Linear(20, 2, bias=False, dtype=F64)
    return tp.Target(net, tp.Normal(scale=1.0), prior or tp.GaussianPrior(1.0))


def mode(data, precision):
    gram = data.x.T @ data.x + precision * torch.eye(20, dtype=F64)
    return torch.linalg.solve(gram, data.x.T @ data.y).T.flatten()


def fit(target, method, seed=0, signal=0.1, **options):
    train, held_out = rows(seed, signal)
    options = {"held_out": held_out, "epochs": 150, "batch_size": 40, "progress": False} | options
    return tp.fit(target, method, train, **options)


@pytest.mark.parametrize(("signal", "wanted"), [(0.1, 30.0), (3.0, 0.05)])
def test_the_strength_that_held_out_rows_want(signal, wanted):
    """Weak signals want a strong prior, strong ones a weak one; what comes out is that of the prior so strong."""
    train, held_out = rows(0, signal)
    method = tp.TunedDecay(POINT, (0.05, 1.0, 30.0))
    found = fit(linear(), method, signal=signal).posterior.theta
    alone = fit(linear(tp.GaussianPrior(wanted**-0.5)), POINT, signal=signal).posterior.theta
    assert torch.allclose(found, alone, atol=1e-12)
    losses = {c: float((held_out.y - held_out.x @ mode(train, c).view(2, 20).T).square().mean()) for c in (0.05, 1, 30)}
    assert min(losses, key=losses.__getitem__) == wanted


def test_the_prior_stays_where_little_is_gained():
    near = fit(linear(), tp.TunedDecay(POINT, (1.0, 0.98)))
    plain = fit(linear(), POINT)
    other = fit(linear(tp.GaussianPrior(0.98**-0.5)), POINT)
    assert max(other.info.held_out_scores) > max(plain.info.held_out_scores)
    assert torch.equal(near.posterior.theta, plain.posterior.theta)


def test_weights_of_held_out_rows_count():
    """Rows with no weight are made to want the other strength."""
    train, held_out = rows(0, 0.1)
    lies = tp.data.Data(held_out.x, held_out.x @ (mode(train, 1e-6).view(2, 20).T) * 1.2)
    both = tp.data.Data(torch.cat([held_out.x, lies.x]), torch.cat([held_out.y, lies.y]))
    some = torch.cat([torch.ones(260), torch.zeros(260)])
    method = tp.TunedDecay(POINT, (0.01, 1.0, 30.0))
    found = fit(linear(), method, held_out=tp.data.Data(both.x, both.y, weights=some)).posterior.theta
    assert torch.allclose(found, fit(linear(), method).posterior.theta)
    misled = fit(linear(), method, held_out=tp.data.Data(both.x, both.y, weights=1 - some)).posterior.theta
    assert misled.norm() > 1.5 * found.norm()


@pytest.mark.parametrize(
    "prior", [tp.StudentTPrior(0.7, df=3.0), tp.LaplacePrior(0.4), tp.GaussianPrior(0.6, mean=0.2)]
)
def test_a_power_of_any_prior(prior):
    theta = torch.linspace(-2, 2, 40, dtype=F64)
    plain, powered = linear(prior).bound_prior, linear(PoweredPrior(prior, 3.5)).bound_prior
    for at in (theta, theta + 0.3):
        gain = powered.log_prob(at) - powered.log_prob(theta)
        assert torch.allclose(gain, 3.5 * (plain.log_prob(at) - plain.log_prob(theta)))
    one, two = torch.zeros(40, dtype=F64), torch.zeros(40, dtype=F64)
    plain.add_gradient(theta, one, -3.5)
    powered.add_gradient(theta, two, -1.0)
    assert torch.allclose(one, two)
    if plain.pieces[0][1].gaussian is None:
        with pytest.raises(NotImplementedError, match="cannot be drawn from"):
            powered.pieces[0][1].sample((3,), torch.Generator())


def test_a_training_that_breaks_is_left_out():
    wild = tp.MAP(lr=0.02, patience=200, optimizer=torch.optim.SGD)
    found = fit(linear(), tp.TunedDecay(wild, (1.0, 1e9)))
    assert torch.allclose(found.posterior.theta, fit(linear(), wild).posterior.theta)
    worse = fit(linear(tp.GaussianPrior(1e-5)), tp.TunedDecay(wild, (1.0, 1e-9)))  # what was asked for breaks
    assert bool(torch.isfinite(worse.posterior.theta).all())
    with pytest.raises(NumericalError):
        fit(linear(tp.GaussianPrior(1e-5)), tp.TunedDecay(wild, (1.0, 2.0)))


def test_members_choose_for_themselves_and_it_goes_inside_others():
    point = tp.TunedDecay(tp.MAP(lr=0.02, patience=20))
    for method in (
        tp.Ensemble(point, 2),
        tp.Laplace(point, tp.KFAC()),
        tp.WarmStart(tp.Collect(tp.SGHMC(lr=0.01)), point),
        tp.Refit(tp.Ensemble(tp.MAP(lr=0.02), 2), point),
    ):
        found = fit(linear(), method, epochs=60)
        assert bool(torch.isfinite(found.predict(torch.zeros(2, 20, dtype=F64)).mean()).all())


def test_it_stops_when_all_have():
    found = fit(linear(), tp.TunedDecay(tp.MAP(lr=0.1, patience=3)), epochs=2000)
    assert found.info.steps < 1900
    assert found.info.status.ok


@pytest.mark.parametrize("factors", [(), (0.1, 10.0), (1.0, 1.0), (1.0, -2.0), (1.0, float("nan")), 1.0, ("1", 1.0)])
def test_factors_that_cannot_be(factors):
    with pytest.raises(ArgumentError, match="`factors` must be different positive numbers with 1 among them"):
        tp.TunedDecay(POINT, factors)


def test_what_asks_no_held_out_rows_is_refused():
    with pytest.raises(ArgumentError, match="TunedDecay cannot wrap MAP: held-out rows choose"):
        tp.TunedDecay(tp.MAP())
    with pytest.raises(ArgumentError, match="TunedDecay cannot wrap Ensemble"):
        tp.TunedDecay(tp.Ensemble(POINT, 2))


@pytest.mark.parametrize("kill", [2, 9, 13])
def test_killed_it_goes_on_to_the_bit(kill, tmp_path):
    """While all train, and when some have ended: what each has scored is kept."""
    method = tp.Laplace(tp.TunedDecay(tp.MAP(lr=0.05, patience=4), (0.05, 1.0, 30.0)), tp.KFAC())
    options = {"epochs": 60, "batch_size": 20, "seed": 1}
    whole = fit(linear(), method, **options)
    assert kill < whole.info.steps < 120
    with killed_at(kill):
        fit(linear(), method, checkpoint=tmp_path / "run", **options)
    again = fit(linear(), method, checkpoint=tmp_path / "run", **options)
    assert again.info.steps == whole.info.steps
    assert torch.equal(again.posterior.mean, whole.posterior.mean)
    assert again.posterior.width == whole.posterior.width


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_refit_goes_on_with_the_strength_that_its_pilot_chose(temperature):
    """Mean and covariance of the posterior of *all* rows under p(θ)^c, weights a matrix."""
    train, held_out = rows(0, 0.1)
    pilot = tp.TunedDecay(POINT, (0.05, 1.0, 30.0))
    method = tp.Refit(tp.Laplace(tp.MAP(lr=0.02), tp.Dense(), tune=None), pilot, stretch=10)
    found = fit(linear().with_temperature(temperature), method, epochs=3000).posterior
    x, y = torch.cat([train.x, held_out.x]), torch.cat([train.y, held_out.y])
    assert torch.allclose(found.mean, mode(tp.data.Data(x, y), 30.0), atol=1e-3)
    block = torch.linalg.inv(x.T @ x + 30.0 * torch.eye(20, dtype=F64)).contiguous()
    assert torch.allclose(found.covariance(), temperature * torch.kron(torch.eye(2, dtype=F64), block), atol=1e-8)


class Spy(tp.MAP):
    """Notes the priors that it begins under and counts its steps."""

    priors: ClassVar[list] = []
    steps = 0

    def init(self, engine, starts, rngs):
        Spy.priors.append(engine.target.prior)
        return super().init(engine, starts, rngs)

    def step(self, engine, state, batch):
        Spy.steps += 1
        assert repr(engine.target.prior) == repr(Spy.priors[-1])
        return super().step(engine, state, batch)


def test_refit_goes_on_for_as_long_as_the_kept_training_was_good():
    """Though one that is not kept was a little better, after more epochs. All sixty rows are six batches of ten."""
    Spy.priors, Spy.steps, slow = [], 0, tp.MAP(lr=0.003, patience=200)
    few = rows(0, 0.05)[1].subset(slice(0, 20))
    options = {"signal": 0.05, "epochs": 400, "batch_size": 10, "held_out": few}
    alone = [fit(linear(prior), slow, **options) for prior in (None, tp.GaussianPrior(5**-0.5))]
    (plain, first), (other, later) = (
        max((score, -k) for k, score in enumerate(each.info.held_out_scores, 1)) for each in alone
    )
    assert plain < other < plain + 0.06
    assert first != later
    fit(linear(), tp.Refit(Spy(lr=0.003), tp.TunedDecay(slow, (1.0, 5.0))), **options)
    assert Spy.steps == -first * 6
    assert len(Spy.priors) == 1


def test_refit_begins_anew_under_the_strength_that_its_pilot_chose():
    """What is drawn from the prior (anchors, say) is drawn from that one."""
    Spy.priors = []
    fit(linear(), tp.Refit(Spy(lr=0.02), tp.TunedDecay(POINT, (1.0, 30.0))), epochs=400)
    first, last = (prior.bind(linear().layout) for prior in Spy.priors)
    at = torch.ones(40, dtype=F64)
    here, there = (each.log_prob(at) - each.log_prob(0 * at) for each in (first, last))
    assert torch.allclose(there, 30.0 * here)


@pytest.mark.parametrize("kill", [2, 60, 130])
@pytest.mark.parametrize("base", [tp.Ensemble(tp.Anchored(tp.MAP(lr=0.05)), 2), tp.SWAG(tp.MAP(lr=0.05), rank=3)])
def test_refit_that_took_a_strength_is_killed_and_goes_on_to_the_bit(kill, base, tmp_path):
    """While the pilot runs and after it."""
    method = tp.Refit(base, tp.TunedDecay(tp.MAP(lr=0.05, patience=4), (1.0, 30.0)), stretch=3)
    options = {"epochs": 150, "batch_size": 20, "seed": 1}
    whole = fit(linear(), method, **options)
    assert whole.info.steps > 140
    with killed_at(kill):
        fit(linear(), method, checkpoint=tmp_path / "run", **options)
    again = fit(linear(), method, checkpoint=tmp_path / "run", **options)
    assert again.info.steps == whole.info.steps
    one, two = (f.posterior.sample(5, seed=0) for f in (whole, again))
    assert torch.equal(one, two)


def test_a_dozen_rows_are_no_reason_to_choose():
    """The same gain a row decides where there are many of them and not where there are few."""
    _, held_out = rows(0, 0.1)
    method, priors = tp.TunedDecay(POINT, (1.0, 10.0)), (None, tp.GaussianPrior(10**-0.5))
    kept = []
    for few in (held_out, *(held_out.subset(slice(k, k + 6)) for k in range(0, 48, 6))):
        each = [fit(linear(prior), POINT, held_out=few) for prior in priors]
        gain = max(each[1].info.held_out_scores) - max(each[0].info.held_out_scores)
        found = fit(linear(), method, held_out=few).posterior.theta
        assert torch.allclose(found, each[gain > 0.01 + 1 / len(few)].posterior.theta, atol=1e-12)
        kept.append((len(few), gain > 0.03, torch.allclose(found, each[0].posterior.theta)))
    assert kept[0] == (260, True, False)
    assert (6, True, True) in kept


def test_rows_count_by_their_weights_when_it_is_decided_whether_they_are_enough():
    _, held_out = rows(0, 0.1)
    method = tp.TunedDecay(POINT, (1.0, 10.0))
    for k in range(0, 48, 6):
        few = held_out.subset(slice(k, k + 6))
        weights = torch.zeros(260, dtype=F64)
        weights[k : k + 6] = 1.0
        one, two = (fit(linear(), method, held_out=each) for each in (few, held_out.weighing(weights)))
        assert torch.allclose(one.posterior.theta, two.posterior.theta, atol=1e-9)


def test_anchors_under_a_strength_that_was_chosen_differ_from_seed_to_seed():
    pilot = tp.TunedDecay(POINT, (1.0, 30.0))
    method = tp.Refit(tp.Anchored(tp.MAP(lr=0.02)), pilot)
    one, two = (fit(linear(), method, epochs=300, seed=seed).posterior for seed in (0, 1))
    same = fit(linear(), tp.Refit(tp.MAP(lr=0.02), pilot), epochs=300, seed=1).posterior
    assert float((centre_of(one).mean - centre_of(two).mean).abs().max()) > 0.01
    assert float((centre_of(same).mean - centre_of(two).mean).abs().max()) > 0.01


def dropping(p=0.4):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Dropout(p), nn.Linear(30, 2)).double()
    return tp.Target(net, tp.Normal(scale=1.0), tp.GaussianPrior(1.0))


TOLD = pytest.mark.filterwarnings("ignore:the network was trained with")


@TOLD
@pytest.mark.parametrize(("given", "factor", "other"), [(0.4, 0.0, 2.5), (0.7, 0.3, 2.0)])
def test_the_dropout_that_held_out_rows_want(given, factor, other):
    """What comes out is the network that is trained with so much; a probability ends at one."""
    point = tp.MAP(lr=0.02, patience=25)
    each = {p: fit(dropping(p), point, signal=1.0) for p in (given, factor * given, min(other * given, 1.0))}
    assert max(each, key=lambda p: max(each[p].info.held_out_scores)) == factor * given
    found = fit(dropping(given), tp.TunedDecay(point, (1.0,), dropout=(factor, other)), signal=1.0)
    if factor == 0.0:  # masks are drawn one after another, for all trainings
        assert torch.equal(found.posterior.theta, each[0.0].posterior.theta)
    assert max(found.info.held_out_scores) > max(each[given].info.held_out_scores) + 0.1
    assert f"trained with {factor or 'none of'}" in found.info.remarks[-1].replace(" times its", "")


@TOLD
def test_dropout_is_tried_under_every_strength():
    point = tp.MAP(lr=0.02, patience=25)
    method = tp.TunedDecay(point, (1.0, 30.0), dropout=(0.0,))
    assert method.variants == ((1.0, 1.0), (30.0, 1.0), (1.0, 0.0), (30.0, 0.0))
    assert method.facts().cost.gradients_per_step == 4 * point.facts().cost.gradients_per_step
    each = {}
    for p in (0.4, 0.0):
        for scale in (1.0, 30**-0.5):
            target = dropping(p).with_prior(tp.GaussianPrior(scale))
            each[p, scale] = fit(target, point, signal=0.1)
    best = max(each, key=lambda k: max(each[k].info.held_out_scores))
    assert best != (0.4, 1.0)
    found = fit(dropping(), method, signal=0.1).posterior.theta
    assert torch.allclose(found, each[best].posterior.theta, atol=1e-12)


@TOLD
def test_refit_predicts_with_the_dropout_that_its_pilot_chose():
    """Masks are drawn as often as in training, or never, whatever the network that was given says."""
    train, _ = rows(0, 1.0)
    x = train.x[:6]
    point = tp.MAP(lr=0.02, patience=25)
    for given, factor in ((0.4, 0.0), (0.7, 0.3)):
        pilot = tp.TunedDecay(point, (1.0,), dropout=(factor,))
        found = fit(dropping(given), tp.Refit(tp.MCDropout(tp.MAP(lr=0.02)), pilot), signal=1.0)
        assert found.posterior.rates == (given * factor,)
        wanted = at_rates(dropping(given).network, {"2": given * factor})
        by_hand = tp.Target(wanted, tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
        if factor:
            masks = tp.fit(by_hand, tp.MCDropout(), train, start=found.posterior.theta)
            assert torch.allclose(found.predict(x).mean(), masks.predict(x).mean(), atol=1e-6)
            assert torch.allclose(found.predict(x).epistemic_std(), masks.predict(x).epistemic_std(), rtol=1e-5)
        else:
            assert float(found.predict(x).epistemic_std().max()) == 0.0
            assert len(found.posterior.nodes(30)) == 1
            outputs = found.engine.outputs(found.posterior.theta.unsqueeze(0), x)[0]
            assert torch.allclose(found.predict(x).mean(), outputs)


@TOLD
@pytest.mark.parametrize("kill", [2, 30, 48])
def test_refit_that_took_a_dropout_is_killed_and_goes_on_to_the_bit(kill, tmp_path):
    pilot = tp.TunedDecay(tp.MAP(lr=0.05, patience=4), (1.0, 30.0), dropout=(0.0, 2.0))
    method = tp.Refit(tp.MCDropout(tp.MAP(lr=0.05)), pilot, stretch=3)
    options = {"epochs": 120, "batch_size": 20, "seed": 1, "signal": 0.02}
    whole = fit(dropping(), method, **options)
    assert whole.info.steps > 50
    assert whole.posterior.rates != (0.4,)
    with killed_at(kill):
        fit(dropping(), method, checkpoint=tmp_path / "run", **options)
    again = fit(dropping(), method, checkpoint=tmp_path / "run", **options)
    assert torch.equal(again.posterior.theta, whole.posterior.theta)
    assert again.posterior.rates == whole.posterior.rates
    whole.save(tmp_path / "kept")
    x = rows(1, 0.1)[0].x
    assert torch.equal(tp.load(tmp_path / "kept", dropping().network).predict(x).mean(), whole.predict(x).mean())


@pytest.mark.parametrize("dropout", [(1.0,), (0.0, 0.0), (-0.5,), (float("inf"),), 0.0, ("0",)])
def test_dropouts_that_cannot_be(dropout):
    with pytest.raises(ArgumentError, match="`dropout` must be different factors from 0 on, without 1"):
        tp.TunedDecay(POINT, dropout=dropout)


@pytest.mark.parametrize("net", [nn.Linear(20, 2), nn.Sequential(nn.Dropout(0.0), nn.Linear(20, 2))])
def test_dropout_that_is_not_there_is_not_chosen(net):
    target = tp.Target(net.double(), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    with pytest.raises(ArgumentError, match="`dropout` of TunedDecay needs a network with dropout"):
        fit(target, tp.TunedDecay(POINT, dropout=(0.0,)))
