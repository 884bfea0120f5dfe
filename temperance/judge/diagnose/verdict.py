"""One call that says whether a sampler's run can be trusted, and what to change if not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from temperance.core.checks import shown
from temperance.core.errors import ArgumentError
from temperance.data.data import Data
from temperance.judge.diagnose import checks
from temperance.judge.diagnose.chains import Run, evenly, stack_chains, unpack
from temperance.judge.diagnose.checks import Finding
from temperance.judge.diagnose.convergence import predictions
from temperance.judge.diagnose.modes import away_from, check_weights
from temperance.judge.diagnose.temperature import configurational, kinetic
from temperance.judge.diagnose.virial import Evaluated, curvature_of, evaluate_draws, temperatures_of
from temperance.model.target import Target
from temperance.posteriors import Chain, Trace
from temperance.run.fitted import Fitted

_ROWS = 200
_QUANTITIES = 400  # of predictions: ArviZ takes about 2.5 ms for each
_SIGNS = {True: "ok  ", False: "FAIL", None: "?   "}
_EVIDENCE = ("kinetic temperature", "configurational temperature", "temperature by curvature", "R-hat of predictions")


@dataclass(frozen=True)
class Verdict:
    """What :func:`sampling` found; ``print`` it."""

    checks: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def unknown(self) -> tuple[Finding, ...]:
        """The checks that could not be judged."""
        return tuple(check for check in self.checks if check.passed is None)

    @property
    def passed(self) -> bool:
        """Nothing failed, and something that tells of the distribution was judged: a temperature; or, where there is no
        thermometer at all, R-hat. Thermometers that are there and could not be read, all of them, are no pass."""
        passed = [check.name for check in self.checks if check.passed and check.name.startswith(_EVIDENCE)]
        if any(check.inconclusive for check in self.checks):
            passed = [name for name in passed if "temperature" in name]
        return bool(passed) and not self.failed

    def __getitem__(self, name: str) -> Finding:
        for check in self.checks:
            if check.name == name:
                return check
        raise ArgumentError(f"`name` must be one of {[check.name for check in self.checks]}; got {shown(name)}.")

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines, seen = [self._headline()], set[str]()
        for check in self.checks:
            lines.append(f"  {_SIGNS[check.passed]}  {check.name:<{width}}  {check.measured}")
            if check.remedy and check.passed is not True:
                told = "as above" if check.remedy in seen else check.remedy
                lines.append(f"        {'':<{width}}  → {told}")
                seen.add(check.remedy)
        return "\n".join(lines)

    __repr__ = __str__

    def _headline(self) -> str:
        told = f"{len(self.checks)} checks: {sum(c.passed is True for c in self.checks)} passed"
        told += f", {len(self.failed)} failed, {len(self.unknown)} could not be judged"
        if self.failed:
            return f"Do not trust this run yet. {told}."
        return f"The run looks right. {told}." if self.passed else f"Too little to judge by. {told}."


def sampling(run: Run, data: Any = None, *, x: Any = None, target: Target | None = None) -> Verdict:
    """Finding a sampler's run: what passed, what failed, what to change.

    ``run`` is what ``fit`` returned; or, from a loop of your own, :class:`~temperance.posteriors.Draws` (one chain) or
    a :class:`~temperance.posteriors.Mixture` of them (several), with their ``target``. With ``data``, the training set,
    the temperature is computed anew from the draws, which sees an N or a temperature that the sampler got wrong; ``x``
    are the inputs at which predictions are compared (200 rows of the data unless given; those of several chains are
    then compared away from the data, too, where chains in different modes part).

    >>> import torch
    >>> import temperance as tp
    >>> from temperance.posteriors import Draws, Mixture
    >>> problem = tp.testing.linear_gaussian()
    >>> rng = torch.Generator().manual_seed(0)
    >>> noise = torch.randn(4, 100, 16, generator=rng, dtype=torch.float64)
    >>> exact = problem.mean + noise @ torch.linalg.cholesky(problem.covariance).T
    >>> verdict = sampling(Mixture(tuple(map(Draws, exact))), problem.data, target=problem.target)
    >>> verdict.passed
    True
    >>> cold = Mixture(tuple(Draws(problem.mean + 0.3 * (chain - problem.mean)) for chain in exact))
    >>> [check.name for check in sampling(cold, problem.data, target=problem.target).failed]
    ['configurational temperature of the draws', 'temperature by curvature']
    """
    target, chains = unpack(run, target)
    known = None if data is None else Data.of(data)
    return Verdict(tuple(_checks(run, target, chains, known, x)))


def _checks(run: Run, target: Target, chains: tuple[Chain, ...], data: Data | None, x: Any) -> Iterator[Finding]:
    if isinstance(run, Fitted):
        yield checks.check_status(run.info)
        rows = run.info.data.get("rows")
        if data is not None and rows is not None and rows != len(data):
            told = f"the run learned from {rows} rows, `data` has {len(data)}"
            yield Finding("data", None, told, "Give the training data, without what was held out.")
    yield checks.check_draws(chains)
    traces = [chain.trace for chain in chains if chain.trace is not None]
    accepted = [t.acceptance for t in traces if t.acceptance is not None and bool(t.acceptance.isfinite().any())]
    if accepted:
        yield checks.check_acceptance(torch.cat([a[-1:] for a in accepted]).mean().reshape(1))
    diverged = checks.check_divergences(chains)
    if diverged is not None:
        yield diverged
    yield from _from_traces(run, target, traces if len(traces) == len(chains) else [])
    evaluated: list[Evaluated] = []
    if data is None:
        told = "needs the data"
        yield Finding("configurational temperature of the draws", None, told, "Give `data`, the training set.")
    elif min(len(chain.theta) for chain in chains) < 2:
        yield Finding("configurational temperature of the draws", None, "needs two draws in each chain")
    else:
        evaluated = evaluate_draws(target, run, data, curvature=True)
        again = temperatures_of(target, evaluated, centred=True)
        yield checks.check_configurational(again, "configurational temperature of the draws")
        yield checks.check_curvature(curvature_of(target, evaluated))
    yield from _of_predictions(run, target, chains, data, x)
    yield _loss(run, target, traces, evaluated, data)


def _from_traces(run: Run, target: Target, traces: list[Trace]) -> Iterator[Finding]:
    names = ("kinetic temperature", "configurational temperature")
    if not traces:
        for name in names:
            yield Finding(name, None, "the draws have no trace", "Sample with tp.Collect to have one.")
        return
    after, max_pace = _window(traces)
    measured = bool(torch.isfinite(traces[0].kinetic).any())
    note = "" if max_pace is None else f" (cyclical: at up to half the pace, {max_pace:.2g})"
    measures: tuple[Callable[[], Finding], ...] = (
        lambda: (
            checks.check_kinetic(kinetic(run, target=target, corrected=True, after=after, max_pace=max_pace), note)
            if measured
            else Finding(names[0], None, "the sampler has no momenta")
        ),
        lambda: checks.check_configurational(
            configurational(run, target=target, after=after, max_pace=max_pace), names[1], note
        ),
    )
    for name, measure in zip(names, measures, strict=True):
        try:
            yield measure()
        except ArgumentError as reason:
            yield Finding(name, None, str(reason))


def _window(traces: list[Trace]) -> tuple[int, float | None]:
    """From which step on, and up to which pace, readings count. In a cycle draws are taken at the slow end; at full
    pace the kinetic temperature is off by the step, as it is in the runs of Wenzel et al. (2020) too."""
    after = max((int(trace.draw_step.min()) for trace in traces if len(trace.draw_step)), default=0)
    pace = traces[0].pace[traces[0].temperature > 0].double()
    if len(pace) and float(pace.max()) > 1.5 * float(pace.min()):
        return after, float(pace.max()) / 2
    return after, None


def _of_predictions(
    run: Run, target: Target, chains: tuple[Chain, ...], data: Data | None, x: Any
) -> Iterator[Finding]:
    names = ("R-hat of predictions", "effective draws")
    elsewhere = None
    if x is None and data is not None:
        x = data.subset(evenly(len(data), _ROWS)).x
        elsewhere = away_from(x) if len(chains) > 1 else None
    needed = 8 if len(chains) == 1 else 4
    fewest = min(len(chain.theta) for chain in chains)
    if x is None:
        for name in names:
            yield Finding(name, None, "needs inputs", "Give `data`, the training set, or `x`, some inputs.")
    elif fewest < needed:
        for name in names:
            yield Finding(
                name, None, f"{fewest} draws in a chain, fewer than {needed}", "Run longer, or draw more often."
            )
    else:
        found = predictions(run, x, target=target, max_quantities=_QUANTITIES)
        yield checks.check_rhat(found)
        yield checks.check_ess(found)
        if elsewhere is not None:
            there = predictions(run, elsewhere, target=target, max_quantities=_QUANTITIES // 2)
            yield checks.check_rhat(there, elsewhere=True)
        weights = check_weights(target, chains) if len(chains) > 1 else None
        if weights is not None:
            yield weights


def _loss(run: Run, target: Target, traces: list[Trace], evaluated: list[Evaluated], data: Data | None) -> Finding:
    rows = len(data) if data is not None else run.info.data.get("rows") if isinstance(run, Fitted) else None
    if evaluated:
        loss = stack_chains([part.loss for part in evaluated])
    elif traces:
        after, max_pace = _window(traces)
        kept = [
            trace.loss[(trace.step >= after) & (trace.pace <= (max_pace or float("inf")))].double().cpu()
            for trace in traces
        ]
        loss = stack_chains(kept)
    else:
        return Finding("loss settled", None, "needs a trace or the data", "Give `data`, the training set.")
    if rows is None:
        return Finding("loss settled", None, "the number of data is not known", "Give `data`, the training set.")
    return checks.check_loss(loss, rows, target.layout.size, target.temperature)
