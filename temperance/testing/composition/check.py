"""The battery behind "a wrapper takes a method and is a method": a pair works, or is refused before the first step.

There is no third outcome. A pair that trains and then fails, that loses its spread, or that cannot be resumed is found
out here; so is a refusal that does not say which two do not go together, why, and what to write instead.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from temperance.core.errors import TemperanceError
from temperance.inference import HMC, MAP, SGHMC, Inference
from temperance.run.fitted import Fitted
from temperance.testing.checks import Report
from temperance.testing.composition.rules import below, check_rules
from temperance.testing.composition.runs import (
    Runs,
    Says,
    SmallProblem,
    says,
    small_problem,
    steps_counted,
    warnings_heard,
)
from temperance.testing.inference import load_any

Wrapper = Callable[[Inference[Any]], Inference[Any]]

_SHORTEST_REFUSAL = 60
_REMEDIES = re.compile(
    r"(?:^|[.;:,] (?:or |and )?)(?:use|put|give|write|choose|take|wrap|name|let|leave|set|make|train|fit|run|try|"
    r"drop|add|pass|call|collect|move|keep)\b|\binstead\b|\bin place of\b",
    re.I,
)
"""Something to do: an imperative at the head of a clause, or what stands in the place of what."""
_MEMBER = re.compile(r"member \d+ of \d+: ")


@dataclass
class Composition(Report):
    """What was found out of one pair: its lawful outcome, or what it did instead."""

    outcome: str = "fails"
    reason: str = ""

    @property
    def short(self) -> str:
        """What went wrong, in a line."""
        wrong = [f"{c.name}: {c.detail}" if c.detail else c.name for c in self.checks if not c.passed]
        return "; ".join(wrong)


def check_composition(
    outer: Wrapper,
    inner: Inference[Any],
    *,
    problem: SmallProblem | None = None,
    steps: int = 12,
    batch_size: int = 10,
    allowed_warnings: str | None = None,
) -> Composition:
    """Whether ``outer(inner)`` works, or is refused before its first step; anything else is a :class:`CheckFailure`.

    ``outer`` makes a method of a method, ``lambda m: tp.Ensemble(m, 3)``; of several levels, it is several wrappers at
    once. It *works* when it fits, predicts, is the same by the same seed, is the same when saved and loaded, and when
    killed and resumed (all bit for bit); when it has the spread that it has said another way; and when its parts are
    what they are by themselves. ``allowed_warnings`` is a pattern of what may be warned of.

    >>> import temperance as tp
    >>> check_composition(lambda m: tp.Ensemble(m, 2), tp.MAP(lr=0.05)).outcome
    'works'
    """
    return examine_composition(
        outer, inner, problem=problem, steps=steps, batch_size=batch_size, allowed_warnings=allowed_warnings
    ).raise_if_failed()  # type: ignore[return-value]


def examine_composition(
    outer: Wrapper,
    inner: Inference[Any],
    *,
    problem: SmallProblem | None = None,
    steps: int = 12,
    batch_size: int = 10,
    allowed_warnings: str | None = None,
) -> Composition:
    """As :func:`check_composition`, but a failure is returned, not raised."""
    runs = Runs(problem or small_problem(), steps, batch_size)
    report = Composition(f"{'('.join(_wrappers(outer))}({inner!r})")
    method: Inference[Any] | None = None
    fitted: Fitted | None = None
    stage = "construction"
    before, state = runs.problem.weights(), torch.get_rng_state()
    with warnings_heard() as heard, steps_counted() as made:
        try:
            method = outer(inner)
            report.subject = repr(method)
            stage = "fit"
            fitted = runs.new(method)
            stage = "predict"
            first = says(fitted, runs.problem.queries)
        except Exception as error:
            _check_refusal(report, error, stage, made[0], outer, inner, method)
            return report
    assert method is not None
    assert fitted is not None
    report.outcome = "works"
    report.add("predictions are finite", first.finite)
    report.add("the given network is untouched", torch.equal(before, runs.problem.weights()))
    report.add("the global random state is untouched", torch.equal(state, torch.get_rng_state()))
    _check_warnings(report, heard, runs, inner, allowed_warnings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # heard once is enough
        _guarded(report, "same seed, same result", _check_seed, runs, method, first)
        _guarded(report, "save → load", _check_load, runs, fitted, first)
        if method.facts().default_steps != 0:
            _guarded(report, "kill → resume", _check_resume, runs, method, first)
        check_rules(report, runs, method, inner, fitted, first)
    if not report.passed:
        report.outcome = "fails"
    return report


# ---------------------------------------------------------------------- (b) refused


def _check_refusal(
    report: Composition,
    error: Exception,
    stage: str,
    steps: int,
    outer: Wrapper,
    inner: Inference[Any],
    method: Inference[Any] | None,
) -> None:
    message = str(error)
    said = f"{type(error).__name__}: {message}"
    report.reason = message
    if stage == "predict":
        report.add("predicts after training", False, f"trained, then failed in predict: {said}")
        return
    if steps:
        report.add("refused before the first step", False, f"failed only after {steps} steps: {said}")
        return
    own = isinstance(error, TemperanceError)
    report.add("refused by an error of temperance.core.errors", own, "" if own else f"a raw error in {stage}: {said}")
    if not own:
        return
    above = classes_of(method) if method is not None else []
    above = above[: len(above) - len(classes_of(inner))] or _wrappers(outer)
    chain = [*above, type(inner).__name__]
    told = {name: len(re.findall(rf"\b{re.escape(name)}\b", message)) for name in chain}
    enough = sum(map(bool, told.values())) >= 2 or any(chain.count(name) > 1 < count for name, count in told.items())
    missing = ", ".join(name for name, count in told.items() if not count) or f"a second {chain[0]}"
    report.add("the refusal names the pair", enough, "" if enough else f"{missing} not named in: {said}")
    long = len(message) >= _SHORTEST_REFUSAL
    report.add("the refusal gives a reason", long, "" if long else f"no more than a stub: {said}")
    remedy = _REMEDIES.search(message) is not None
    report.add("the refusal names a remedy", remedy, "" if remedy else f"nothing to write instead in: {said}")
    start = "`start`" in message
    report.add("the refusal is about what was given", not start, f"no `start` was given: {said}" if start else "")
    if report.passed:
        report.outcome = "refused"


def classes_of(method: Inference[Any] | None) -> list[str]:
    """Names of the classes from a wrapper inwards.

    >>> import temperance as tp
    >>> classes_of(tp.Ensemble(tp.Laplace(tp.MAP()), 3))
    ['Ensemble', 'Laplace', 'MAP']
    """
    found = []
    while method is not None:
        found.append(type(method).__name__)
        method = below(method)
    return found


def _wrappers(outer: Wrapper) -> list[str]:
    """The wrappers that a function puts around a method, found out with methods that it takes."""
    for probe in (MAP(), SGHMC(), HMC(step_size=0.1, length=2)):
        try:
            return classes_of(outer(probe))[:-1]
        except TemperanceError:
            continue
    return [getattr(outer, "__name__", type(outer).__name__)]


# ---------------------------------------------------------------------- (a) works


def _guarded(report: Report, name: str, check: Callable[..., str], *args: Any) -> None:
    """A check that gives what is wrong, or raises."""
    try:
        wrong = check(*args)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    report.add(name, not wrong, wrong)


def _check_seed(runs: Runs, method: Inference[Any], first: Says) -> str:
    torch.randn(7)  # the global random state must not matter
    differs = first.differs(says(runs.new(method), runs.problem.queries))
    return f"two runs of one seed differ in {differs}" if differs else ""


def _check_load(runs: Runs, fitted: Fitted, first: Says) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved"
        fitted.save(path)
        loaded = load_any(path, runs.problem.network)
        differs = first.differs(says(loaded, runs.problem.queries))
    return f"the loaded run differs in {differs}" if differs else ""


def _check_resume(runs: Runs, method: Inference[Any], first: Says) -> str:
    with tempfile.TemporaryDirectory() as folder:
        resumed, ends = runs.killed_twice(method, Path(folder) / "run")
        differs = first.differs(says(resumed, runs.problem.queries))
    if ends < 2:
        return f"the run was to be killed twice, and was {ends} times: nothing was found out"
    return f"the resumed run differs in {differs}" if differs else ""


def _check_warnings(report: Report, heard: list[str], runs: Runs, inner: Inference[Any], allowed: str | None) -> None:
    """A wrapper may pass on what its method warns of by itself; what is new must be about something."""
    usual: list[str] = []
    if heard:
        with warnings_heard() as usual:
            try:
                runs.new(inner)
            except Exception:
                usual = []
    known = {_MEMBER.sub("", text) for text in usual}
    strange = [
        text
        for text in heard
        if _MEMBER.sub("", text) not in known and not (allowed is not None and re.search(allowed, text))
    ]
    report.add("no warnings about nothing", not strange, "; ".join(strange))
