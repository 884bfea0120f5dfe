"""The page's part on the chains of a sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.data.data import Data, _as_inputs
from temperance.data.sources import Inputs, first_tensor, map_tensors
from temperance.judge import diagnose
from temperance.judge.diagnose.chains import evenly, unpack
from temperance.posteriors import Chain
from temperance.run.fitted import Fitted
from temperance.show import plot
from temperance.show.plot.chains import measured_temperatures, predicted_series
from temperance.show.report.figures import figure
from temperance.show.report.html import Markup, Section, table, tag
from temperance.show.report.words import count, number

_LARGEST = 2_000_000  # rows × draws up to which temperatures are computed anew from the data
_ROWS = 50
_TRACED = 3
_MARKS = {True: ("passed", "good"), False: ("failed", "bad"), None: ("not judged", "unsure")}


def chains_with_traces(fitted: Fitted) -> tuple[Chain, ...]:
    """The chains of a sampler's run; none for other methods."""
    try:
        _, chains = unpack(fitted)
    except ArgumentError:
        return ()
    return chains if all(chain.trace is not None for chain in chains) else ()


@dataclass(frozen=True)
class Sampled:
    """What is said of the chains: in the summary, and in a section of its own."""

    sentence: str
    section: Section


def examine(fitted: Fitted, x: Any, rows: Sequence[int]) -> Sampled | None:
    """Verdict, temperatures, traces at ``rows`` of x; ``None`` where there are no chains."""
    chains = chains_with_traces(fitted)
    if not chains:
        return None
    draws = sum(len(chain.theta) for chain in chains)
    body: list[object] = [
        tag(
            "p",
            f"The posterior was sampled: {count(draws, 'draw')} in {count(len(chains), 'chain')}. A sampler can be "
            "wrong in ways that test scores do not show, so its temperature (is it as hot as the posterior it should "
            "draw from?) and the agreement of its chains are measured.",
        )
    ]
    if x is None and fitted.data is not None:
        x, rows = fitted.data.x, evenly(len(fitted.data), _TRACED).tolist()
    inputs = None if x is None else _as_inputs(x, "x")
    some = None if inputs is None else _picked(inputs, evenly(len(first_tensor(inputs)), _ROWS))
    traced = None if inputs is None else _picked(inputs, torch.tensor(list(rows)[:_TRACED]))
    verdict = diagnose.sampling(fitted, _data(fitted, draws), x=some)
    body += [tag("p", tag("strong", str(verdict).splitlines()[0])), _checks(verdict)]
    divergent = sum(
        int(chain.trace.transitions.divergent.sum())
        for chain in chains
        if chain.trace is not None and chain.trace.transitions is not None
    )
    if any(chain.trace is not None and chain.trace.transitions is not None for chain in chains):
        body.append(tag("p", f"Divergent transitions: {divergent:,}."))
    body += [tag("p", f"The method remarked: {remark}", class_="caution") for remark in fitted.info.remarks]
    figures = [
        made for made in (_temperatures(fitted), _traces(fitted, chains, traced), _energy(fitted, chains)) if made
    ]
    body.append(tag("div", *figures, class_="figures"))
    return Sampled(_sentence(verdict), Section("sampler", "Is the sampling right?", tuple(body)))


def _sentence(verdict: diagnose.Verdict) -> str:
    judged = f"{len(verdict.checks) - len(verdict.unknown)} checks of the sampler"
    if verdict.failed:
        names = ", ".join(check.name for check in verdict.failed)
        return f"Do not trust its sampling yet: of {judged} {len(verdict.failed)} failed ({names}); see below."
    if verdict.passed:
        return f"Its sampling looks right: all {judged} passed."
    return "Whether its sampling is right could not be judged; see below."


def _data(fitted: Fitted, draws: int) -> Data | None:
    data = fitted.data
    return data if data is not None and len(data) * draws <= _LARGEST else None


def _picked(inputs: Inputs, rows: Tensor) -> Inputs:
    return map_tensors(lambda t: t[rows.to(t.device)], inputs)


def _checks(verdict: diagnose.Verdict) -> Markup:
    rows = []
    for check in verdict.checks:
        words, class_ = _MARKS[check.passed]
        remedy = check.remedy if check.passed is not True else ""
        rows.append((check.name, tag("span", words, class_=class_), check.measured, remedy))
    made = table("Checks of the sampler", ("check", "verdict", "measured", "what to do"), rows, hidden=True)
    return tag("div", made, class_="stack")


def _temperatures(fitted: Fitted) -> Markup | None:
    try:
        found = measured_temperatures(fitted)
    except ArgumentError:
        return None
    words = ", ".join(f"{part.what} {number(part.network_mean)} ± {number(part.network_error, 2)}" for part in found)
    rows = [
        (
            name,
            f"{found[0].sizes[k]:,}",
            *(f"{number(float(p.mean[k]))} ± {number(float(p.error[k]), 2)}" for p in found),
        )
        for k, name in enumerate(found[0].names)
    ]
    tall = 1.3 + 0.3 * min(len(rows) + 1, 25)
    return figure(
        "temperatures",
        lambda ax: plot.temperatures(fitted, ax),
        label=f"Temperatures of each tensor over the one in force, which should be one. Whole network: {words}.",
        caption=f"Temperatures of each tensor, in units of the right one. Whole network: {words}.",
        head=("tensor", "numbers", *(part.what for part in found)),
        rows=rows,
        height=max(2.8, tall),
    )


def _traces(fitted: Fitted, chains: tuple[Chain, ...], x: Any) -> Markup | None:
    if x is None:
        return None
    series = predicted_series(fitted.target, chains, x, _TRACED)
    rows = [
        (f"chain {k + 1}, row {row + 1}", number(float(np.mean(part[:, row]))), number(float(np.std(part[:, row]))))
        for k, part in enumerate(series)
        for row in range(part.shape[1])
    ]
    return figure(
        "traces",
        lambda ax: plot.traces(fitted, x, ax, rows=_TRACED),
        label="Line plot: what each draw of each chain predicts at a few of the most uncertain rows.",
        caption="Chains in function space: what each draw predicts at some of the most uncertain rows. Lines of one "
        "colour, whatever their dashes, should come together and not drift; bold lines are running means.",
        head=("line", "mean", "standard deviation"),
        rows=rows,
    )


def _energy(fitted: Fitted, chains: tuple[Chain, ...]) -> Markup:
    told = [chain.trace for chain in chains if chain.trace is not None]
    exact = all(trace.transitions is not None for trace in told)
    what = "energy" if exact else "loss of the batches"
    rows = []
    for k, trace in enumerate(told):
        values = trace.transitions.energy if trace.transitions is not None and exact else trace.loss
        half = max(1, len(values) // 2)
        early, late = (float(part.double().mean()) for part in (values[:half], values[-half:]))
        rows.append((f"chain {k + 1}", number(early, 4), number(late, 4)))
    return figure(
        "energy",
        lambda ax: plot.traces(fitted, ax=ax, what="energy"),
        label=f"Line plot: the {what} along the chains.",
        caption=f"The {what} along the chains; a lasting drift means that they have not settled.",
        head=("chain", "mean of the first half", "of the second"),
        rows=rows,
        height=3.2,
    )
