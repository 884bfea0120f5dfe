"""Wrappers made wrong on purpose: the battery has to find each of them out, by the right check."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from dataclasses import dataclass, field

import pytest
import torch

import temperance as tp
from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError
from temperance.inference.base import WrapperState
from temperance.posteriors import Draws, Mixture, Point
from temperance.posteriors.base import Nodes, Posterior
from temperance.testing import CheckFailure, check_composition, small_problem

POINT = tp.MAP(lr=0.05)
LAPLACE = tp.Laplace(POINT, tp.Dense(), tune=None)
SWAG = tp.SWAG(tp.MAP(lr=0.03, optimizer=torch.optim.SGD), rank=2, start=0.25, every=1)
PROBLEM = small_problem()
CHAIN = tp.Collect(tp.SGHMC(lr=0.03))


@dataclass
class ThroughState(WrapperState):
    age: int = field(default=0, metadata=SCRATCH)


@dataclass(frozen=True, eq=False)
class Through(tp.Wrapper):
    """An honest wrapper that does nothing; the twins break one thing each."""

    base: tp.Inference

    def init(self, engine, starts, rngs):
        return ThroughState(self.base.init(engine, starts, rngs))


def all_settings(posterior):
    nodes = posterior.nodes()
    return nodes.fetch(0, len(nodes))[0]


@dataclass(frozen=True, eq=False, repr=False)
class Veiled(Posterior):
    """Another posterior, of which only the draws are seen."""

    inner: Posterior

    @property
    def size(self):
        return self.inner.size

    def nodes(self, n=None, seed=0):
        return self.inner.nodes(n, seed)

    def _sample(self, n, rng):
        return self.inner._sample(n, rng)


@dataclass(frozen=True, eq=False, repr=False)
class Broken(Veiled):
    def nodes(self, n=None, seed=0):
        raise ArgumentError("there are no draws.")


@dataclass(frozen=True, eq=False, repr=False)
class Unsaved(Veiled):
    """Holds something that is not written down."""

    def nodes(self, n=None, seed=0):
        rows = all_settings(self.inner) + self.__dict__.get("hidden", 0.0)
        return Nodes(torch.full((len(rows),), 1 / len(rows)), lambda a, b: (rows[a:b], {}))


class LosesSpread(Through):
    def posteriors(self, engine, state, data):
        return (Point(all_settings(super().posteriors(engine, state, data)[0]).mean(0)),)


class ShrinksSpread(Through):
    def posteriors(self, engine, state, data):
        rows = all_settings(super().posteriors(engine, state, data)[0])
        return (Draws(rows.mean(0) + 0.01 * (rows - rows.mean(0))),)


class OneStart(tp.Ensemble):
    def init(self, engine, starts, rngs):
        return super().init(engine, tp.Starts.of(engine.target.initial_theta()), rngs)


class ForgetsItsAge(Through):
    """Steps by a counter that the checkpoint does not hold."""

    def step(self, engine, state, batch):
        state, info = super().step(engine, state, batch)
        state.age += 1
        if state.age % 4 == 0:
            state.base, info = self.base.step(engine, state.base, batch)
        return state, info


class ThroughTheNetwork(Through):
    def posteriors(self, engine, state, data):
        return (Veiled(super().posteriors(engine, state, data)[0]),)


class RefusesOverStart(Through):
    def init(self, engine, starts, rngs):
        raise ArgumentError(
            "RefusesOverStart of MAP: `start` must have a row for each of the 3 particles; use a matrix of three rows."
        )


class FailsInPredict(Through):
    def posteriors(self, engine, state, data):
        return (Broken(super().posteriors(engine, state, data)[0]),)


class RawError(Through):
    def init(self, engine, starts, rngs):
        return ThroughState(starts.given.clone())


class RefusesLate(Through):
    def posteriors(self, engine, state, data):
        raise ArgumentError("RefusesLate cannot hold what a MAP finds, for it has no spread; use a Laplace instead.")


class Mute(Through):
    def init(self, engine, starts, rngs):
        raise ArgumentError("these two methods have no common meaning whatever; use others in place of them, please.")


class Curt(Through):
    def init(self, engine, starts, rngs):
        raise ArgumentError("Curt: use no MAP.")


class Helpless(Through):
    def init(self, engine, starts, rngs):
        raise ArgumentError("Helpless and MAP have no common meaning, for one wants a spread that the other has not.")


class WarnsOfNothing(Through):
    def posteriors(self, engine, state, data):
        warnings.warn("something may be the matter.", tp.errors.TemperanceWarning, stacklevel=1)
        return (super().posteriors(engine, state, data)[0],)


class Unseeded(Through):
    calls = itertools.count()

    def posteriors(self, engine, state, data):
        return (Point(super().posteriors(engine, state, data)[0].theta + 0.01 * next(self.calls)),)


class LoadsOtherwise(Through):
    def posteriors(self, engine, state, data):
        made = Unsaved(super().posteriors(engine, state, data)[0])
        object.__setattr__(made, "hidden", 0.1)
        return (made,)


class OneTooFew(tp.Ensemble):
    def posteriors(self, engine, state, data):
        return (Mixture(super().posteriors(engine, state, data)[0].components[1:]),)


class OneIsSure(tp.Ensemble):
    """A member of the right kind that has no spread of its own."""

    def posteriors(self, engine, state, data):
        first, *others = super().posteriors(engine, state, data)[0].components
        sure = dataclasses.replace(first, theta=first.theta[:1].expand(len(first.theta), -1).clone())
        return (Mixture((sure, *others)),)


class OneIsAPoint(tp.Ensemble):
    def posteriors(self, engine, state, data):
        first, *others = super().posteriors(engine, state, data)[0].components
        return (Mixture((Point(all_settings(first).mean(0)), *others)),)


class OnlyWithin(tp.Ensemble):
    """All weight on one member: what the members disagree about is lost."""

    def posteriors(self, engine, state, data):
        found = super().posteriors(engine, state, data)[0].components
        return (Mixture(found, (1.0,) + (0.0,) * (len(found) - 1)),)


class OneTwice(tp.Ensemble):
    """As many members as promised, all of them the first."""

    def posteriors(self, engine, state, data):
        found = super().posteriors(engine, state, data)[0].components
        return (Mixture(found[:1] * len(found)),)


class WritesIntoTheNetwork(Through):
    def posteriors(self, engine, state, data):
        found = super().posteriors(engine, state, data)[0]
        with torch.no_grad():
            PROBLEM.network[0].bias += 0.1
        return (found,)


class MovesTheRest(tp.On):
    def posteriors(self, engine, state, data):
        return (Point(all_settings(super().posteriors(engine, state, data)[0])[0] + 1e-6),)


class StartsElsewhere(tp.On):
    def init(self, engine, starts, rngs):
        return super().init(engine, tp.Starts.of(engine.target.initial_theta() + 0.1), rngs)


TWINS = {
    "loses its spread": (LosesSpread, SWAG, "there is a spread"),
    "shrinks its spread a hundredfold": (ShrinksSpread, CHAIN, "the spread is not lost"),
    "one start for all members": (lambda m: OneStart(m, 2), POINT, "distinct with full batches"),
    "ignores resume state": (ForgetsItsAge, POINT, "kill → resume"),
    "predicts through the network": (ThroughTheNetwork, LAPLACE, "linearised stays linearised"),
    "refuses over start": (RefusesOverStart, POINT, "no `start` was given"),
    "trains, then fails in predict": (FailsInPredict, POINT, "failed in predict"),
    "a raw error": (RawError, POINT, "a raw error in fit"),
    "refuses after training": (RefusesLate, POINT, "failed only after 12 steps"),
    "a refusal that names nobody": (Mute, POINT, "names the pair: Mute, MAP"),
    "a refusal of a few words": (Curt, POINT, "gives a reason"),
    "a refusal without a remedy": (Helpless, POINT, "names a remedy"),
    "a warning about nothing": (WarnsOfNothing, POINT, "something may be the matter"),
    "another result each time": (Unseeded, POINT, "same seed, same result"),
    "another result once loaded": (LoadsOtherwise, POINT, "save → load"),
    "a member too few": (lambda m: OneTooFew(m, 3), POINT, "as many components as promised: 2 of 3"),
    "a member without a spread": (lambda m: OneIsSure(m, 2), CHAIN, "each member has the base's spread: member 0"),
    "a member of another kind": (lambda m: OneIsAPoint(m, 2), SWAG, "of the base's kind"),
    "all weight on one member": (lambda m: OnlyWithin(m, 2), CHAIN, "members weigh the same"),
    "no spread between members": (lambda m: OneTwice(m, 2), CHAIN, "members are distinct"),
    "writes into the user's network": (WritesIntoTheNetwork, POINT, "the given network is untouched"),
    "moves what is outside": (lambda m: MovesTheRest("0", m), POINT, "weights outside the subset stay"),
    "a part that starts elsewhere": (lambda m: StartsElsewhere("0", m), POINT, "On is the subset's target"),
}


@pytest.mark.parametrize("name", TWINS)
def test_the_battery_finds_what_is_wrong(name):
    outer, inner, word = TWINS[name]
    with pytest.raises(CheckFailure, match=f"FAIL [^\n]*{word}"):
        check_composition(outer, inner, problem=PROBLEM)


@pytest.mark.parametrize("inner", [POINT, LAPLACE, SWAG, CHAIN, tp.SVGD(3, lr=0.05)], ids=lambda m: type(m).__name__)
def test_an_honest_wrapper_passes(inner):
    assert check_composition(Through, inner).outcome == "works"


@pytest.mark.parametrize("problem", [{"classes": True}, {"learned_noise": True}], ids=str)
def test_an_honest_wrapper_passes_on_other_data(problem):
    assert check_composition(Through, LAPLACE, problem=small_problem(**problem)).outcome == "works"


class Polite(Through):
    def init(self, engine, starts, rngs):
        raise ArgumentError(
            "Polite cannot hold a MAP: it has no spread of its own to be polite about. Use Polite(Laplace(MAP()))."
        )


def test_a_refusal_that_says_it_all_is_lawful():
    report = check_composition(Polite, POINT)
    assert report.outcome == "refused"
    assert "Use Polite(Laplace(MAP()))" in report.reason
