"""Optimise, then sample: where chains begin, which rows they see, resuming, what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, NumericalError
from temperance.judge import diagnose
from temperance.testing import assert_moments
from tests.small import killed_at

F64 = torch.float64
SGD = torch.optim.SGD
STOPS = tp.MAP(lr=0.05, patience=3)
CHAIN = tp.Collect(tp.Warmup(tp.NUTS(), 150), last=400)


def line(count=60, seed=0):
    """Two outputs of three inputs: weights are a matrix."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=rng, dtype=F64)
    slopes = torch.tensor([[1.0, -0.5], [0.3, 0.8], [-1.2, 0.1]], dtype=F64)
    return tp.data.Data(x, x @ slopes + 0.7 * torch.randn(count, 2, generator=rng, dtype=F64))


def target(temperature=1.0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Linear(3, 2, bias=False, dtype=F64)
    return tp.Target(net, tp.Normal(scale=0.7), tp.GaussianPrior(0.8), temperature=temperature)


def exact(data, temperature=1.0):
    """Mean and covariance of the weights, out × in row by row."""
    precision = data.x.T @ data.x / 0.7**2 + torch.eye(3, dtype=F64) / 0.8**2
    mean = torch.linalg.solve(precision, data.x.T @ data.y / 0.7**2).T.flatten()
    return mean, temperature * torch.kron(torch.eye(2, dtype=F64), torch.linalg.inv(precision).contiguous())


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_chains_have_the_law_of_all_rows(temperature):
    """Rows held out say when to stop, and are learned from afterwards: 60 rows, not 54."""
    data = line()
    fitted = tp.fit(target(temperature), tp.Ensemble(tp.WarmStart(CHAIN, STOPS, steps=60), 4), data, seed=2)
    assert (len(fitted.data), fitted.held_out) == (60, None)  # nobody is to judge by rows that were learned from
    draws = torch.cat([part.theta for _, part in fitted.posterior.parts()])
    worth = min(float(diagnose.ess(column)) for column in draws.T)
    assert worth > 400
    assert_moments(draws, *exact(data, temperature), ess=worth)
    fewer = exact(data.hold_out(0.1, seed=2)[0], temperature)
    with pytest.raises(AssertionError):  # the test tells 54 rows from 60
        assert_moments(draws, *fewer, ess=worth)


def test_only_the_rows_of_training_where_asked():
    data = line(200)
    method = tp.WarmStart(CHAIN, STOPS, steps=60, all_rows=False, weigh=False)
    fitted = tp.fit(target(), tp.Ensemble(method, 2), data, seed=2)
    draws = torch.cat([part.theta for _, part in fitted.posterior.parts()])
    worth = min(float(diagnose.ess(column)) for column in draws.T)
    assert_moments(draws, *exact(fitted.data), ess=worth)


def test_weights_of_rows_are_kept():
    data = line(40)
    weights = torch.linspace(0.2, 3.0, 40, dtype=F64)
    weighed = data.weighing(weights)
    fitted = tp.fit(target(), tp.Ensemble(tp.WarmStart(CHAIN, STOPS, steps=60), 3), weighed, seed=2)
    root = weights.sqrt().unsqueeze(1)
    draws = torch.cat([part.theta for _, part in fitted.posterior.parts()])
    worth = min(float(diagnose.ess(column)) for column in draws.T)
    assert_moments(draws, *exact(tp.data.Data(root * data.x, root * data.y)), ess=worth)


def classifier(seed=0):
    train, test = tp.data.load("iris")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = tp.nn.MLP(4, [8], 3)
    return tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0)), train, test


def test_a_chain_begins_where_the_optimiser_ended():
    problem, train, _ = classifier()
    kernel = tp.Collect(tp.HMC(step_size=1e-9, length=1), burn=0, every=1)  # stays where it begins
    by = tp.MAP(lr=0.02)
    for batched in (True, False):
        ensemble = tp.Ensemble(tp.WarmStart(kernel, by, steps=80, batch_size=20), 3, batched=batched)
        fitted = tp.fit(problem, ensemble, train, steps=82, seed=4)
        places = torch.stack([part.theta[-1] for _, part in fitted.posterior.parts()])
        points = [tp.Fitted(problem, tp.posteriors.Point(row), fitted.info) for row in places]
        losses = [-float(point.predict(train.x).log_prob(train.y).mean()) for point in points]
        assert max(losses) < 0.2, batched  # fresh weights have 1.1
        assert float(torch.pdist(places).min()) > 1.0  # each member in its own place


def test_minibatch_samplers_too():
    problem, train, test = classifier()
    method = tp.WarmStart(tp.Collect(tp.SGHMC(lr=0.01), burn=20, every=5), tp.MAP(lr=0.02), steps=80)
    fitted = tp.fit(problem, method, train, steps=200, batch_size=20, seed=0)
    assert len(fitted.posterior.theta) == 20
    assert -float(fitted.predict(test.x).log_prob(test.y).mean()) < 0.4


@pytest.mark.parametrize("stop", [25, 60, 75])
@pytest.mark.parametrize("by", [tp.MAP(lr=0.02), tp.MAP(lr=0.02, patience=2)], ids=["plain", "stops early"])
def test_resuming_in_either_part_is_exact(tmp_path, stop, by):
    problem, train, test = classifier()
    method = tp.Ensemble(tp.WarmStart(tp.Collect(tp.HMC(step_size=0.02, length=3), burn=5, every=1), by, steps=60), 2)
    whole = tp.fit(problem, method, train, steps=80, seed=3)

    with killed_at(stop):
        tp.fit(problem, method, train, steps=80, seed=3, checkpoint=tmp_path / "run")
    again = tp.fit(problem, method, train, steps=80, seed=3, checkpoint=tmp_path / "run")
    assert torch.equal(again.predict(test.x).probs, whole.predict(test.x).probs)
    loaded = tp.load(tmp_path / "run", problem.network)
    assert torch.equal(loaded.predict(test.x).probs, whole.predict(test.x).probs)


def test_what_a_method_keeps_fixed_is_the_optimum_after_resuming_too(tmp_path):
    """``On`` leaves the rest of the network where it began, which is where the optimiser ended."""
    problem, train, test = classifier()
    part = tp.On("0", tp.Collect(tp.SGHMC(lr=0.01), burn=2, every=1))
    method = tp.WarmStart(part, tp.MAP(lr=0.02), steps=8)
    whole = tp.fit(problem, method, train, steps=16, batch_size=40, seed=3)

    with killed_at(12):
        tp.fit(problem, method, train, steps=16, batch_size=40, seed=3, checkpoint=tmp_path)
    again = tp.fit(problem, method, train, steps=16, batch_size=40, seed=3, checkpoint=tmp_path)
    assert torch.equal(again.predict(test.x).probs, whole.predict(test.x).probs)


def test_how_long_it_is():
    method = tp.WarmStart(tp.Collect(tp.Warmup(tp.NUTS(), 200), last=50), STOPS, steps=300)
    facts = method.facts()
    assert (facts.default_steps, facts.settling, facts.held_out) == (550, 500, True)
    problem, train, _ = classifier()
    with pytest.raises(ArgumentError, match="must exceed the 300"):
        tp.fit(problem, method, train, steps=300)


def test_an_end_before_the_chain_is_no_posterior():
    problem, train, _ = classifier()
    method = tp.WarmStart(tp.Collect(tp.HMC(step_size=0.01), burn=0, every=1), tp.MAP(lr=1e12, optimizer=SGD), steps=20)
    with pytest.raises(NumericalError):
        tp.fit(problem, method, train, steps=30)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tp.WarmStart(CHAIN, tp.Variational()), "the start is a point"),
        (lambda: tp.WarmStart(tp.Ensemble(CHAIN, 3)), "with the WarmStart inside"),
        (lambda: tp.WarmStart(tp.Laplace()), "no steps of its own"),
        (lambda: tp.WarmStart(CHAIN, "MAP"), "`by` must be a method"),
        (lambda: tp.WarmStart(CHAIN, steps=0), "`steps`"),
        (lambda: tp.WarmStart(CHAIN, all_rows="yes"), "`all_rows`"),
        (lambda: tp.WarmStart("NUTS"), "`base` must be a method"),
    ],
)
def test_bad_input(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()
