"""What a table gets where nobody asks for a method."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from temperance.apps.recipes import SAMPLED, method_named, table_method
from temperance.apps.tables import compare_table, fit_table, fitting, load_table_run
from temperance.apps.tables.fitting import usual_method
from temperance.apps.tables.learner import Learner
from temperance.apps.tables.prepare import prepare_table
from temperance.core.errors import MismatchError
from temperance.core.outcomes import Reals
from temperance.engine import native


def numbers(rows: int, columns: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns))
    frame = pd.DataFrame(x, columns=[f"c{k}" for k in range(columns)])
    return frame.assign(y=np.sin(2 * x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=rows), w=rng.integers(1, 3, rows))


@pytest.mark.parametrize(
    ("frame", "options", "method"),
    [
        (numbers(300), {}, "mile"),
        (numbers(1500), {}, "mile"),
        (numbers(3000), {"max_rows": 1000}, "mile"),
        (numbers(9000), {}, "ensemble"),
        (numbers(1000, 200), {}, "ensemble"),  # as many weights as take too long
        (numbers(300).assign(y=lambda f: f["y"] > 0), {}, "ensemble"),
        (numbers(300).assign(y=lambda f: (5 + 3 * f["y"]).clip(0).round().astype(int)), {"task": "counts"}, "ensemble"),
        (pd.concat([numbers(100)] * 4), {}, "ensemble"),  # copies are no evidence
        (pd.concat([numbers(300), numbers(300).head(40)]), {}, "mile"),
        (numbers(1500).drop(columns="w").assign(v=1.0 + np.arange(1500) % 2), {"weights": "v"}, "ensemble"),
    ],
)
def test_small_tables_of_numbers_are_sampled(frame: pd.DataFrame, options: dict[str, object], method: str) -> None:
    prepared = prepare_table(frame, "y", **options)  # type: ignore[arg-type]
    if native.in_use() != "compiled":
        method = "ensemble"
    assert usual_method(prepared, None) == method
    assert usual_method(prepared, 20) == "ensemble"  # chains know of no epochs


def test_folds_cost_their_fits() -> None:
    assert table_method(1200, Reals(), 8) == "mile"
    assert table_method(1200, Reals(), 8, fits=6) == "ensemble"
    assert table_method(3605, Reals(), 10) == "mile"
    assert table_method(3606, Reals(), 10) == "ensemble"


@pytest.mark.parametrize(("folds", "fits"), [(4, 5), (0, 1)])
def test_rows_of_the_test_are_not_counted_and_folds_are(monkeypatch: pytest.MonkeyPatch, folds: int, fits: int) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(fitting, "table_method", lambda *given: asked.append(given) or "ensemble")
    monkeypatch.setattr(native, "in_use", lambda: "compiled")
    prepared = prepare_table(numbers(300).drop(columns="w"), "y", folds=folds)
    usual_method(prepared, None)
    assert len(prepared.test) > 0
    assert asked == [(300 - len(prepared.test), prepared.schema.outcome, 3, fits)]


def test_chains_walk_over_a_narrow_network() -> None:
    prepared = prepare_table(numbers(300), "y", folds=0)
    widths = [Learner(prepared, method_named(name), None, 16, 0, None, False).hidden for name in (SAMPLED, "ensemble")]
    assert widths == [(16, 16), (32, 32)]


def test_a_run_that_another_method_began_says_what_to_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The machine that goes on may have no compiler."""

    def interrupted(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    frame = numbers(60).drop(columns="w")
    monkeypatch.setattr(fitting, "usual_method", lambda prepared, epochs: "MAP(lr=5e-3)")
    monkeypatch.setattr(fitting, "save_table_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit_table(frame, "y", out=tmp_path / "run", folds=0, progress=False)
    monkeypatch.setattr(fitting, "usual_method", lambda prepared, epochs: "Ensemble(MAP(lr=5e-3), 2)")
    with pytest.raises(MismatchError, match=r"Nobody named a method.*Ensemble.*`--method`"):
        fit_table(frame, "y", out=tmp_path / "run", folds=0, resume=True, progress=False)


def test_without_a_compiler_nothing_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "in_use", lambda: "eager")
    assert usual_method(prepare_table(numbers(300), "y"), None) == "ensemble"


@pytest.mark.skipif(native.in_use() != "compiled", reason="chains are slow without a compiler")
def test_a_small_table_is_dealt_into_folds_sampled_saved_and_loaded(tmp_path: Path) -> None:
    frame, said = numbers(70).drop(columns="w"), []
    run = fit_table(frame, "y", out=tmp_path / "run", folds=2, say=said.append, progress=False)
    assert run.fitted.method == method_named(SAMPLED)
    assert any("method: mile" in words and "--method ensemble" in words for words in said)
    assert not any("method:" in words for words in run.notices)
    assert len(run.state.folds) == 2
    assert all(len(model.posterior.nodes()) == 8 * 40 for model in run.state.folds)
    again = load_table_run(tmp_path / "run")
    assert again.predict(frame).equals(run.predict(frame))
    assert run.evaluate(numbers(500)).scores["rmse"] < 0.5


def test_a_comparison_has_what_would_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("temperance.apps.tables.compare.usual_method", lambda prepared, epochs: "anchored")
    monkeypatch.setattr("temperance.apps.tables.compare.DEFAULT_METHODS", ("map",))
    found = compare_table(numbers(120), "y", epochs=2, folds=2, progress=False)
    assert [line.method for line in found.lines] == ["map", "anchored"]
