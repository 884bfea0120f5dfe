"""The table: every wrapper with every method works, or is refused before the first step; and the page says which."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import temperance as tp
from temperance.testing.composition.page import outcomes, page
from temperance.testing.composition.rules import levels
from temperance.testing.composition.runs import Runs, small_problem
from temperance.testing.composition.table import INNERS, WRAPPERS, cells

PAGE = Path(__file__).resolve().parents[2] / "docs" / "composition.md"
SAID = outcomes(PAGE.read_text(encoding="utf-8"))
CELLS = cells()


@pytest.mark.parametrize(
    "cell", [pytest.param(c, id=c.name, marks=[pytest.mark.slow] if c.slow else []) for c in CELLS]
)
def test_cell(cell):
    report = cell.examine()
    said = SAID.get(cell.name)
    agree = said == report.outcome
    report.add("docs/composition.md says so", agree, "" if agree else f"it says {said!r}, this is {report.outcome!r}")
    report.raise_if_failed()


def test_the_page_has_these_cells_and_no_others():
    assert set(SAID) == {cell.name for cell in CELLS}


def test_every_number_on_the_page_has_its_reason():
    text = PAGE.read_text(encoding="utf-8")
    used = {int(number) for number in re.findall(r"\| refused (\d+) ", text)}
    listed = {int(number) for number in re.findall(r"^(\d+)\. ", text, re.M)}
    assert used == listed


def test_a_page_is_read_as_it_was_written():
    few = [c for c in CELLS if c.row == "MAP" and c.column in ("Anchored", "Collect")] + [CELLS[-1]]
    found = {cell.name: cell.examine() for cell in few}
    assert outcomes(page(found, few)) == {name: report.outcome for name, report in found.items()}


def _methods():
    """Those that can be made: bases of methods are no methods."""
    public = (getattr(tp, name) for name in tp.inference.__all__)  # vars(tp) has only what was used so far
    found = {v for v in public if isinstance(v, type) and issubclass(v, tp.Inference)}
    return {kind for kind in found if dataclasses.is_dataclass(kind)}


def test_every_exported_method_has_a_row():
    assert _methods() <= {type(method) for method in INNERS.values()}


def test_every_exported_wrapper_has_a_column():
    wrappers = {m for m in _methods() if issubclass(m, tp.Wrapper)}
    probes = (tp.MAP(), tp.MAP(patience=5), tp.SGHMC(), tp.HMC(step_size=0.1, length=2))
    shown = set()
    for outer in WRAPPERS.values():
        for probe in probes:
            try:
                shown.add(type(outer(probe)))
            except tp.errors.ArgumentError:
                continue
    assert wrappers == shown


def test_every_curvature_and_family_has_a_row():
    inside = {type(v) for m in INNERS.values() for part in levels(m) for v in vars(part).values()}
    assert {tp.Dense, tp.KFAC, tp.EKFAC, tp.Diagonal, tp.BlockDiagonal, tp.Lanczos} <= inside
    assert {tp.MeanField, tp.FullRank, tp.MatrixNormal, tp.TiedScale, tp.Radial, tp.LowRank} <= inside


@pytest.mark.parametrize("classes", [False, True])
def test_a_part_of_an_ensemble_and_an_ensemble_of_parts_predict_by_one_rule(classes):
    runs = Runs(small_problem(classes=classes), steps=12, batch_size=10)
    laplace = tp.Laplace(tp.MAP(lr=0.05), tp.KFAC(), tune=None)
    one = runs.new(tp.On(tp.last_layer, tp.Ensemble(laplace, 2)))
    two = runs.new(tp.Ensemble(tp.On(tp.last_layer, laplace), 2))
    assert one.posterior.predicts == two.posterior.predicts == "linearised"
    assert type(one.predict(runs.problem.queries)) is type(two.predict(runs.problem.queries))
