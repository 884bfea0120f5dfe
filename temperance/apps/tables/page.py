"""The page of a run: :func:`temperance.show.report.write_report` with what a table knows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from temperance.apps.tables.encode import Encoded
from temperance.apps.tables.kinds import TableKind, kind_of
from temperance.apps.tables.predictions import prediction_columns
from temperance.apps.tables.reading import TableFile
from temperance.apps.tables.run import TableRun
from temperance.apps.tables.scores import Evaluation, evaluate_table
from temperance.apps.tables.words import describe
from temperance.core.errors import DataError

_ROWS = 10_000


def report_table(run: TableRun, path: str | Path, table: TableFile, *, overwrite: bool = False) -> Path:
    """Write the page of a run on rows with known answers (at most 10,000); returns the path of its ``index.html``."""
    from temperance.show.report import write_report

    chunks = table.chunks(_ROWS, text=run.schema.text_columns, verbatim=run.schema.verbatim)
    frame = next((chunk.frame for chunk in chunks), pd.DataFrame())
    if not len(frame):
        raise DataError(f"{table.name} has a header and no rows.")
    y, _ = run.truth(frame)
    known = ~np.isnan(y)
    if not known.any():
        raise DataError(f"{table.name} has no row with a value of `{run.schema.target}`.")
    frame, y = frame[known].reset_index(drop=True), y[known]
    schema, kind = run.schema, kind_of(run.schema)
    encoded = run.encode(frame)
    added = prediction_columns(run, frame)
    inputs = frame.drop(columns=schema.target)  # each card says what was true already
    examples = inputs.assign(**{name: added[name] for name in ("ask_a_human", "flags")})
    evaluation = evaluate_table(run, TableFile(table.name, tuple(frame.columns), frame=frame))
    return write_report(
        path,
        predictive=run.predictive_of(encoded),
        y=kind.known_targets(y),
        x=torch.from_numpy(encoded.x),
        ood=run.predictive_of(shuffled(encoded)),
        ood_words="the same rows with each column shuffled by itself and pushed three standard deviations out",
        examples=examples,
        fitted=run.fitted,
        title=f"How far to trust predictions of {schema.target}",
        rows_words=f"rows of {table.name} that it had not seen" if table.frame is None else "rows that it had not seen",
        settings={**run.state.settings, "columns used": len(schema.columns), "features": schema.inputs},
        class_names=schema.classes or None,
        target_name=schema.target,
        notes=[_grouped(text) for text in describe(evaluation, run)],
        calibration_words=_whose(evaluation, kind),
        advise=False,
        extra={**_classes(evaluation), "The table": run.notices or ["Nothing to remark."]},
        overwrite=overwrite,
    )


def _classes(found: Evaluation) -> dict[str, object]:
    """A section with what the averages hide: each class by itself."""
    if not found.classes:
        return {}
    return {
        "Each class, the rarest first": {
            own.name: f"{own.rows:,} rows; answered so: {own.recall:.1%} of them (recall); in the set of plausible "
            f"classes: {own.coverage:.1%}; wrong without a human asked: {own.wrong_unasked:,}"
            for own in found.classes
        }
    }


def _whose(found: Evaluation, kind: TableKind) -> str:
    """That the page draws the model's own intervals, and ``predict`` writes others."""
    from temperance.show.report.words import percent

    return (
        f"Numbers, plots and rows from here on are of the model's own {kind.own_words}. `temperance predict` writes "
        f"conformal {kind.promised} instead, which held the truth in {percent(found.coverage)} of these rows "
        f"(promised: {percent(found.level)}), and marks in ask_a_human the rows to pass on."
    )


def _grouped(text: str) -> str:
    """Numbers such as 4.188e+04 as the rest of the page has them.

    >>> _grouped("off by 4.188e+04 (root mean square)")
    'off by 41,880 (root mean square)'
    """
    return re.sub(r"-?\d(?:\.\d+)?e\+\d+", lambda found: f"{float(found[0]):,.0f}", text)


def shuffled(encoded: Encoded) -> Encoded:
    """Rows that are surely strange: every feature permuted by itself, then moved out by three."""
    rng = np.random.default_rng(0)
    x = np.stack([rng.permutation(column) for column in encoded.x.T], axis=1)
    return Encoded(x + 3.0 * np.sign(rng.standard_normal(x.shape)).astype(np.float32))
