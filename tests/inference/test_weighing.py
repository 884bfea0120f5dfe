"""A start and what came of it, weighed by rows that neither has learned from."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import pytest
import torch

import temperance as tp
from temperance.core.errors import MethodWarning, TemperanceWarning
from temperance.engine.engine import Engine
from temperance.inference.choice import Choice, Chosen
from temperance.inference.weighing import log_densities, weight_of_first
from temperance.judge import diagnose
from temperance.posteriors import Gaussian, Mixture, Point

START = tp.MAP(lr=0.02, patience=0.1)


def problem(seed=0):
    train, test = tp.data.load("wine")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = tp.nn.MLP(13, [8], 3)
    return tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0)), train, test


def by_hand(first, second, weights=None):
    """E[w] by Gauss–Jacobi-free brute force: a fine grid in w with the density of Beta(2, ½)."""
    w = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    rows = torch.logaddexp(w.log()[:, None] + first, (1 - w).log()[:, None] + second)
    total = rows.sum(1) if weights is None else rows @ weights
    total = total + w.log() - 0.5 * (1 - w).log()
    share = torch.softmax(total, 0)
    return float(share @ w)


def test_the_weight_is_the_mean_of_its_law():
    rng = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 7, generator=rng, dtype=torch.float64)
    weights = torch.tensor([0.0, 1.0, 2.0, 0.5, 3.0, 1.0, 1.0], dtype=torch.float64)
    assert weight_of_first(first, second) == pytest.approx(by_hand(first, second), abs=2e-3)
    assert weight_of_first(first, second, weights) == pytest.approx(by_hand(first, second, weights), abs=2e-3)
    assert weight_of_first(first, second, weights) != pytest.approx(weight_of_first(first, second), abs=1e-2)
    assert weight_of_first(first, second) > 1 - weight_of_first(second, first) + 0.1  # the first is known to do


def test_the_impossible_has_next_to_nothing():
    good, never = torch.zeros(99), torch.full((99,), -math.inf)
    assert weight_of_first(good, never) == pytest.approx(1 - 0.5 / 101.5, abs=1e-4)
    assert weight_of_first(never, good) == pytest.approx(2 / 101.5, abs=1e-4)


def test_a_row_that_neither_allows_tells_nothing(monkeypatch):
    first, second = torch.full((51,), -1.0), torch.full((51,), -9.0)
    wanted = weight_of_first(first[1:], second[1:])
    first[0] = second[0] = -math.inf
    assert weight_of_first(first, second) == pytest.approx(wanted, abs=1e-9)
    assert weight_of_first(torch.tensor([-1e18]), torch.tensor([-1e18])) == pytest.approx(0.8, abs=1e-3)
    monkeypatch.setattr("temperance.inference.weighing._ROWS", 7)  # in blocks it is the same
    weights = torch.linspace(0, 2, 51)
    assert weight_of_first(first, second) == pytest.approx(wanted, abs=1e-9)
    assert weight_of_first(first, second, weights) == pytest.approx(
        by_hand(first[1:].double(), second[1:].double(), weights[1:].double()), abs=2e-3
    )


def test_densities_are_those_that_prediction_has():
    target, train, test = problem()
    fitted = tp.fit(target, tp.Variational(lr=0.01), train, steps=60)
    held = target.prepare(test)
    found = log_densities(Engine(target, held), fitted.posterior, held)
    assert torch.allclose(found, fitted.predict(test.x, draws=30).log_prob(test.y).double(), atol=1e-5)


@pytest.mark.parametrize(
    "base",
    [
        tp.Variational(lr=0.02),
        tp.IVON(lr=0.1, clip=0.01),
        tp.SWAG(tp.MAP(lr=0.02), start=0.0),
        tp.Collect(tp.SGHMC(lr=tp.Thermal())),
    ],
    ids=lambda base: type(base).__name__,
)
def test_what_came_of_a_start_is_mixed_with_it(base, tmp_path):
    target, train, test = problem()
    method = tp.WarmStart(base, START)
    assert method.facts().gives is Mixture
    fitted = tp.fit(target, method, train, epochs=60, batch_size=16, seed=1, checkpoint=tmp_path)
    start, found = fitted.posterior.components
    assert isinstance(start, Point)
    w = fitted.posterior.weights
    held = target.prepare(fitted.held_out)
    engine = Engine(target, held)
    assert w[0] == pytest.approx(
        weight_of_first(log_densities(engine, start, held), log_densities(engine, found, held))
    )
    again = tp.load(tmp_path, target.network)
    assert torch.equal(again.predict(test.x).probs, fitted.predict(test.x).probs)
    p, q = (tp.Fitted(target, part, fitted.info).predict(test.x).probs for part in (start, found))
    assert float((fitted.predict(test.x).probs - (w[0] * p + w[1] * q)).abs().mean()) < 0.01
    alone = tp.fit(target, tp.WarmStart(base, START, weigh=False), train, epochs=60, batch_size=16, seed=1)
    assert type(alone.posterior) is type(found)


def test_a_method_that_goes_wrong_hardly_counts_and_says_so():
    target, train, test = problem()
    method = tp.WarmStart(tp.Variational(lr=1e-6, initial_scale=3.0), START)
    with pytest.warns(TemperanceWarning, match="predicted better by the network that Variational began with"):
        fitted = tp.fit(target, method, train, epochs=200, batch_size=16, seed=1)
    assert fitted.posterior.weights[0] > 0.9
    start = tp.Fitted(target, fitted.posterior.components[0], fitted.info)
    losses = [-float(each.predict(test.x).log_prob(test.y).mean()) for each in (fitted, start)]
    assert losses[0] < losses[1] + 0.12


@dataclass(frozen=True, eq=False)
class Fixed(Choice):
    """A choice that is always the same."""

    method: tp.Inference

    def choose(self, target, data, trains):
        return Chosen(self.method, "because")


class Worse(tp.MAP):
    """It forgets what it has learned."""

    def posteriors(self, engine, state, data):
        return tuple(Point(0.0 * each.theta) for each in super().posteriors(engine, state, data))


def test_members_are_told_of_once_and_who_left_the_choice_to_us_is_not():
    target, train, _ = problem()
    poor = tp.Ensemble(tp.WarmStart(Worse(lr=1e-3), START), 3, batched=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tp.fit(target, poor, train, epochs=200, batch_size=16, seed=1)
    found = [each for each in told if issubclass(each.category, MethodWarning)]
    assert len(found) == 1
    assert "(in 3 of 3 members)" in str(found[0].message)
    tp.fit(target, Fixed(poor), train, epochs=200, batch_size=16, seed=1)  # a warning would be an error


def test_rows_that_the_method_learns_from_weigh_nothing():
    chain = tp.Collect(tp.Warmup(tp.HMC(step_size=0.01, length=3), 200), last=10)
    assert tp.WarmStart(chain, START).facts().gives is tp.posteriors.Draws
    assert tp.WarmStart(chain, START, all_rows=False).facts().gives is Mixture
    assert tp.WarmStart(tp.Variational(), tp.MAP(lr=0.02)).facts().gives is Gaussian  # none are held out
    assert tp.WarmStart(tp.Laplace(tp.MAP(lr=0.01)), START).facts().gives is tp.posteriors.LaplacePosterior


def test_too_few_rows_to_keep_any_apart():
    target, train, _ = problem()
    fitted = tp.fit(target, tp.WarmStart(tp.Variational(), START), train.subset(torch.arange(12)), epochs=8)
    assert fitted.held_out is None
    assert isinstance(fitted.posterior, Gaussian)


def test_chains_are_diagnosed_without_their_start():
    target, train, _ = problem()
    method = tp.Ensemble(tp.WarmStart(tp.Collect(tp.SGHMC(lr=0.01), burn=10, every=2), START, steps=0.5), 2)
    fitted = tp.fit(target, method, train, epochs=40, batch_size=16)
    assert len(fitted.posterior.parts()) == 4
    assert len(diagnose.chains.unpack(fitted)[1]) == 2


def test_the_draws_of_a_mixture_go_to_what_has_any():
    mixture = Mixture((Point(torch.zeros(2)), Gaussian(torch.zeros(2), tp.linalg.DiagonalCovariance(torch.ones(2)))))
    assert len(mixture.nodes()) == 31
    assert len(mixture.nodes(10)) == 11
