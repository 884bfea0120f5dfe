"""Several methods on one table: the same rows, the same network, scores side by side with what they cost."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.apps.recipes import method_named, training
from temperance.apps.tables.claim import COMPARISON, Claim
from temperance.apps.tables.fitting import baseline_of, check_epochs, fit_prepared, usual_method
from temperance.apps.tables.kinds import KINDS, kind_of
from temperance.apps.tables.predictions import escaped
from temperance.apps.tables.prepare import Prepared, Say, prepare_table
from temperance.apps.tables.safeguards import check_promises
from temperance.apps.tables.scores import finite, plain_fields, row_scores, summary
from temperance.apps.tables.worth import HARDLY
from temperance.core import files
from temperance.core.errors import ArgumentError, StoreError, TemperanceError
from temperance.core.outcomes import Outcome
from temperance.inference.base import Inference
from temperance.judge.diagnose.dead import ENDED

REFERENCE = "map"
DEFAULT_METHODS = ("map", "ensemble", "laplace", "swag", "vi", "sghmc")
"""And :func:`~temperance.apps.tables.fitting.usual_method`, where that is another."""
HIGHER = frozenset({"accuracy"})
"""Scores of which more is better."""
_REMARKS = ("noise of one size", "not calibrated", ENDED, *HARDLY)


@dataclass
class MethodScores:
    """One line of a comparison. ``versus_map`` is the mean difference to MAP over the test rows and its standard error,
    from paired differences row by row; ``gradients`` and ``time`` are multiples of MAP's."""

    method: str
    error: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    versus_map: dict[str, tuple[float, float]] = field(default_factory=dict)
    coverage: float = math.nan
    gradients: float = math.nan
    time: float = math.nan
    seconds: float = math.nan
    remarks: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether it worked."""
        return not self.error


@dataclass
class Comparison:
    """What :func:`compare_table` found: a line for each method, and the baseline's scores."""

    target: str
    outcome: Outcome
    test_rows: int
    seeds: int
    level: float
    lines: list[MethodScores]
    baseline: dict[str, float]
    notices: list[str] = field(default_factory=list)

    def best(self, score: str) -> float:
        """The best value of a score among the methods that worked; NaN if none did."""
        values = [line.scores[score] for line in self.lines if line.ok and math.isfinite(line.scores[score])]
        if not values:
            return math.nan
        return max(values) if score in HIGHER else min(values)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write ``compare.json`` and ``compare.csv`` to a folder that is new, empty or one of ours: what somebody else
        put there is never replaced, and an earlier comparison only with ``overwrite``."""
        path = check_comparison(folder, overwrite)
        try:
            Claim.of(path).add(*COMPARISON)
            text = json.dumps(finite(plain_fields(self)), indent=1, ensure_ascii=False)
            files.write_text(path / "compare.json", text)
            with (
                files.replacing(path / "compare.csv") as draft,
                draft.open("w", encoding="utf-8", newline="") as stream,
            ):
                names, paired = list(self.baseline), KINDS.of(self.outcome).paired
                writer = csv.writer(stream)
                versus = [f"{name}_versus_map{part}" for name in paired for part in ("", "_standard_error")]
                writer.writerow(["method", *names, "coverage", *versus, "gradients", "time", "seconds", "error"])
                for line in self.lines:
                    pairs = [v for name in paired for v in line.versus_map.get(name, ("", ""))]
                    own = [line.scores.get(name, "") for name in names]
                    rest = [line.gradients, line.time, line.seconds] if line.ok else ["", "", ""]
                    coverage = line.coverage if line.ok else ""
                    writer.writerow([escaped(line.method), *own, coverage, *pairs, *rest, escaped(line.error)])
                writer.writerow(["(baseline)", *(self.baseline[name] for name in names)])
        except OSError as error:
            raise StoreError(f"the comparison could not be written to {str(path)!r}: {error}.") from error


def compare_table(
    data: Any,
    target: str,
    methods: Sequence[str | Inference[Any]] | None = None,
    *,
    seeds: int = 1,
    seed: int = 0,
    epochs: int | None = None,
    level: float = 0.9,
    error_rate: float = 0.05,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
    say: Say | None = None,
    **reading: Any,
) -> Comparison:
    """Fit each method on the same rows and score it on the same test rows.

    A method that fails has its error in its line and does not stop the others. MAP is added where it is not named, for
    the differences and the cost are relative to it. With several ``seeds`` the fits differ, the split does not, and the
    scores of a row are averaged over them: the standard errors are over test rows. ``reading`` are further arguments of
    :func:`fit_table` about the table. What is measured is what :func:`fit_table` does: of a small table the model of
    all rows but the test's, with the intervals and the calibration of folds (``folds=0`` holds rows back instead).
    Unless told, ``methods`` are :data:`DEFAULT_METHODS` and that of a fit where nobody asks for one. A method that
    falls back to simpler noise, or cannot be calibrated, or ends no better than the baseline or with dead units, has
    that in its line's ``remarks``.
    """
    if not isinstance(seeds, int) or seeds < 1:
        raise ArgumentError(f"`seeds` must be a positive whole number; got {seeds!r}.")
    check_promises(level, error_rate, None)
    check_epochs(epochs)
    named: dict[str, Inference[Any]] = {}
    for method in DEFAULT_METHODS if methods is None else methods:
        named[method if isinstance(method, str) else repr(method)] = method_named(method)
    if not named:
        raise ArgumentError("`methods` must name at least one method.")
    if REFERENCE not in named:
        named = {REFERENCE: method_named(REFERENCE), **named}
    if out is not None:
        check_comparison(out, overwrite)
    prepared = prepare_table(data, target, seed=seed, say=say, **reading)
    if not len(prepared.test):
        raise ArgumentError("`test` must be above 0: methods are compared on test rows.")
    if methods is None:
        named |= {usual: method_named(usual) for usual in [usual_method(prepared, epochs)]}
    order = sorted(named, key=lambda name: name != REFERENCE)
    made: dict[str, MethodScores] = {}
    rows: dict[str, dict[str, NDArray[np.float64]]] = {}
    for name in order:
        if say is not None:
            say(f"{name}: {type(named[name]).__name__}")
        made[name], found = _one(name, named[name], prepared, seed, seeds, epochs, level, error_rate, progress, say)
        if found is not None:
            rows[name] = found
        if not made[name].ok and say is not None:
            say(f"{name} failed: {made[name].error}")
    base, kind = made[REFERENCE], kind_of(prepared.schema)
    gradients, seconds = base.gradients, max(base.seconds, 1e-9)
    for name, line in made.items():
        if line.ok and base.ok:
            line.versus_map = {score: _paired(rows[name][score], rows[REFERENCE][score]) for score in kind.paired}
            line.gradients, line.time = line.gradients / gradients, line.seconds / seconds
        else:
            line.gradients = line.time = math.nan
    comparison = Comparison(
        target, prepared.schema.outcome, len(prepared.test), seeds, level, [made[name] for name in named],
        kind.baseline_scores(baseline_of(prepared).numpy(), prepared.test.y), prepared.notices,
    )  # fmt: skip
    if out is not None:
        comparison.save(out, overwrite=True)
    return comparison


def check_comparison(out: str | Path, overwrite: bool) -> Path:
    """The folder, if a comparison may be written there."""
    claim = Claim.of(out)
    if any(claim.holds(name) for name in COMPARISON) and not overwrite:
        raise StoreError(f"`out` {str(out)!r} holds a comparison; choose another folder, or --overwrite it.")
    foreign = [name for name in COMPARISON if name not in claim.names and (claim.folder / name).exists()]
    if foreign:
        raise StoreError(
            f"`out` {str(out)!r} holds {foreign[0]}, which is none of ours; choose another folder. Nothing was changed."
        )
    return claim.folder


def _one(
    name: str,
    method: Inference[Any],
    prepared: Prepared,
    seed: int,
    seeds: int,
    epochs: int | None,
    level: float,
    error_rate: float,
    progress: bool | None,
    say: Say | None,
) -> tuple[MethodScores, dict[str, NDArray[np.float64]] | None]:
    line, found = MethodScores(name, gradients=0.0, seconds=0.0), []
    try:
        for k in range(seeds):
            run = fit_prepared(
                prepared, method, seed=seed + k, epochs=epochs, level=level, error_rate=error_rate, progress=progress,
                say=say,
            )  # fmt: skip
            line.remarks += [w for w in run.notices if w.startswith(_REMARKS) and w not in line.remarks]
            part = row_scores(run, prepared.test.encoded, prepared.test.y)
            found.append((summary(run, part, []), kind_of(run.schema).by_row(run.schema, part)))
            batch = (
                len(prepared.train)
                if method.facts().reads == "full"
                else training(len(prepared.train), prepared.schema.outcome)[1]
            )
            line.gradients += method.facts().cost.gradients_per_step * run.fitted.info.steps * batch / seeds
            line.seconds += run.fitted.info.seconds / seeds
    except (TemperanceError, RuntimeError, ArithmeticError) as error:
        return MethodScores(name, error=str(error).splitlines()[0] if str(error) else type(error).__name__), None
    line.scores = {key: float(np.mean([e.scores[key] for e, _ in found])) for key in found[0][0].scores}
    line.coverage = float(np.mean([e.coverage for e, _ in found]))
    return line, {key: np.mean([rows[key] for _, rows in found], axis=0) for key in found[0][1]}


def _paired(own: NDArray[np.float64], reference: NDArray[np.float64]) -> tuple[float, float]:
    gap = own - reference
    return float(gap.mean()), float(gap.std(ddof=1) / math.sqrt(len(gap))) if len(gap) > 1 else math.nan
