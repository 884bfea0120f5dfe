"""``temperance fit``, ``predict``, ``evaluate``, ``compare`` and ``report``: from a CSV to a decision."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from temperance.apps.tables.run import TableRun


def add_commands(subparsers: Any) -> None:
    """Add the commands for tables. What they need is imported when they run."""
    _add_fit(subparsers)
    predict = subparsers.add_parser("predict", help="predictions of a run for the rows of a file")
    predict.add_argument("run_folder", metavar="RUN", help="a folder that `temperance fit` made")
    predict.add_argument("data", help="a .csv, .csv.gz or .parquet with the columns of the training table")
    predict.add_argument("-o", "--out", required=True, help="the file to write: .csv, .csv.gz, .tsv or .parquet")
    predict.add_argument("--overwrite", action="store_true", help="replace a file that exists")
    _promises(predict, None, None)
    _dialect(predict)
    predict.set_defaults(run=_predict)
    evaluate = subparsers.add_parser("evaluate", help="scores of a run on rows with known answers")
    evaluate.add_argument("run_folder", metavar="RUN", help="a folder that `temperance fit` made")
    evaluate.add_argument("data", nargs="?", default=None, help="a file with the target (default: the run's test rows)")
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    _promises(evaluate, None, None)
    _dialect(evaluate)
    evaluate.set_defaults(run=_evaluate)
    _add_compare(subparsers)
    report = subparsers.add_parser("report", help="a page that says how far to trust a run")
    report.add_argument("run_folder", metavar="RUN", help="a folder that `temperance fit` made")
    report.add_argument("--test", default=None, help="a file with the target (default: the run's test rows)")
    report.add_argument("-o", "--out", default=None, help="folder for the page (default: RUN-report)")
    report.add_argument("--overwrite", action="store_true", help="write into a folder that holds other things")
    _dialect(report)
    report.set_defaults(run=_report)


def _text(argument: str) -> str:
    """An argument that is compared with text of a file. Under the C locale Python takes the bytes of the command line
    for ASCII, and those that are not for stand-ins: the name of a column is UTF-8 like the table. (Paths stay as they
    came: the system wants its own bytes back.)"""
    return os.fsencode(argument).decode("utf-8", "surrogateescape")


def _add_fit(subparsers: Any) -> None:
    fit = subparsers.add_parser("fit", help="learn to predict a column of a CSV, with calibrated uncertainty")
    _table(fit)
    fit.add_argument(
        "--method", default=None, help="a name (map, ensemble, laplace, …) or an expression (default: by the table)"
    )
    fit.add_argument("--out", default="run", help="folder for the run (default: run)")
    _promises(fit, 0.9, 0.05)
    fit.add_argument("--folds", type=int, default=None, help="of a small table, to promise with (default: by its size)")
    fit.add_argument(
        "--log", action=argparse.BooleanOptionalAction, default=None,
        help="learn the logarithm of a positive number (default: what gives unseen rows the higher density)",
    )  # fmt: skip
    fit.add_argument("--overwrite", action="store_true", help="replace a run that exists")
    fit.add_argument("--resume", action="store_true", help="go on with a fit that was interrupted")
    fit.set_defaults(run=_fit)


def _add_compare(subparsers: Any) -> None:
    compare = subparsers.add_parser("compare", help="several methods on one CSV, side by side")
    _table(compare)
    compare.add_argument(
        "--methods", default=None, help="names with commas between (default: common ones, and what suits the table)"
    )
    compare.add_argument("--seeds", type=int, default=1, help="average over so many fits (default: 1)")
    compare.add_argument(
        "--folds", type=int, default=None, help="as in `temperance fit` (default: by the table's size)"
    )
    compare.add_argument("--level", type=float, default=0.9, help="of intervals and sets (default: 0.9)")
    compare.add_argument("--out", default=None, help="folder for compare.json and compare.csv")
    compare.add_argument("--overwrite", action="store_true", help="replace a comparison that exists")
    compare.set_defaults(run=_compare)


def _table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", help="a .csv, .csv.gz or .parquet file")
    parser.add_argument("--target", type=_text, required=True, help="the column to predict")
    parser.add_argument("--task", default=None, help="classification, regression or counts (default: recognised)")
    parser.add_argument("--seed", type=int, default=0, help="decides everything random (default: 0)")
    parser.add_argument("--epochs", type=int, default=None, help="how long to train (default: by the number of rows)")
    parser.add_argument("--test", type=float, default=0.2, help="fraction of rows for the test (default: 0.2)")
    parser.add_argument("--validation", type=float, default=0.2, help="fraction to calibrate on (default: 0.2)")
    parser.add_argument("--drop", type=_text, default="", help="columns to leave out, with commas between")
    parser.add_argument(
        "--group", type=_text, default=None, help="a column whose values are never divided by the split"
    )
    parser.add_argument(
        "--missing", type=_text, default=None,
        help="words that mean that a class is not known, with commas between; '' for none (default: NA, None and the "
        "like, where they are few)",
    )  # fmt: skip
    parser.add_argument("--weights", type=_text, default=None, help="a column that says how often each row counts")
    parser.add_argument("--id", type=_text, default=None, help="a column that names the rows: not an input")
    parser.add_argument("--max-rows", type=int, default=None, help="use a random sample of so many (default: 500000)")
    _dialect(parser)


def _promises(parser: argparse.ArgumentParser, level: float | None, error_rate: float | None) -> None:
    words = "that of the fit" if level is None else level
    parser.add_argument("--level", type=float, default=level, help=f"of intervals and sets (default: {words})")
    words = "that of the fit" if error_rate is None else error_rate
    parser.add_argument(
        "--error-rate",
        type=float,
        default=error_rate,
        help=f"wrong answers tolerated without a human (default: {words})",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=None,
        help="a number off by more is wrong (default: half the target's spread)",
    )
    parser.add_argument(
        "--per-class", action=argparse.BooleanOptionalAction, default=None,
        help="keep the level within each class, rare ones too",
    )  # fmt: skip


def _dialect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--encoding", default=None, help="of a CSV (default: recognised)")
    parser.add_argument("--separator", default=None, help="of a CSV: one character, or tab (default: recognised)")
    parser.add_argument("--decimal", default=None, help="the decimal mark of a CSV, . or , (default: recognised)")


def _reading(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("encoding", "separator", "decimal")}


def _table_arguments(options: argparse.Namespace) -> dict[str, Any]:
    drop = [name.strip() for name in options.drop.split(",") if name.strip()]
    limit = {} if options.max_rows is None else {"max_rows": options.max_rows}
    names = ("task", "group", "id", "test", "validation", "weights")
    missing = None if options.missing is None else [w.strip() for w in options.missing.split(",") if w.strip()]
    made = {name: getattr(options, name) for name in names}
    return {**made, **_reading(options), **limit, "drop": drop, "missing": missing}


def _say(words: str) -> None:
    print(words, flush=True)


def _fit(options: argparse.Namespace) -> int:
    from temperance.apps.tables.fitting import fit_table
    from temperance.apps.tables.show import show_evaluation

    try:
        run = fit_table(
            options.data, options.target, method=options.method, out=options.out, seed=options.seed,
            epochs=options.epochs, level=options.level, error_rate=options.error_rate, tolerance=options.tolerance,
            per_class=bool(options.per_class), folds=options.folds, log=options.log,
            overwrite=options.overwrite, resume=options.resume, say=_say, **_table_arguments(options),
        )  # fmt: skip
    except KeyboardInterrupt:
        if (Path(options.out) / "checkpoint").is_dir():
            print("temperance: interrupted; the same command with --resume goes on where it stopped.", file=sys.stderr)
            return 130
        raise
    if len(run.test_frame):
        show_evaluation(run.evaluate(), run)
    out = _quoted(options.out)
    print(f"\nThe run is in {options.out}. What to do next:")
    print(f"  temperance predict {out} new.csv -o predictions.csv")
    print(f"  temperance report {out} -o {_quoted(options.out.rstrip('/') + '-report')}")
    return 0


def _predict(options: argparse.Namespace) -> int:
    from temperance.apps.tables.folder import load_table_run
    from temperance.apps.tables.predictions import predict_file
    from temperance.apps.tables.reading import open_table

    run = _with_promises(load_table_run(options.run_folder), options)
    table = open_table(options.data, **_reading(options))
    for words in table.notices:
        _say(words)
    used = {column.name for column in run.schema.columns} | {run.schema.target, *run.schema.dropped}
    extra = [name for name in table.columns if name not in used]
    if extra:
        listed = ", ".join(f"`{name}`" for name in extra[:8]) + (" …" if len(extra) > 8 else "")
        _say(f"columns that the training table did not have: {listed}: not used.")
    began, total = time.perf_counter(), 0

    def advance(rows: int) -> None:
        nonlocal total
        total = rows
        if sys.stderr.isatty():
            print(f"\r{rows:,} rows", end="", file=sys.stderr, flush=True)

    asked = predict_file(run, table, options.out, overwrite=options.overwrite, advance=advance)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    seconds = time.perf_counter() - began
    print(
        f"{options.out}: {total:,} rows in {seconds:.1f} s ({total / seconds:,.0f} a second); ask_a_human is yes on "
        f"{asked:,} of them ({asked / total:.1%})."
    )
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from temperance.apps.tables.folder import load_table_run
    from temperance.apps.tables.reading import open_table
    from temperance.apps.tables.show import show_evaluation

    run = _with_promises(load_table_run(options.run_folder), options)
    found = run.evaluate(None if options.data is None else open_table(options.data, **_reading(options)))
    if options.json:
        print(json.dumps(found.as_dict(), indent=1, ensure_ascii=False))
    else:
        show_evaluation(found, run)
    return 0


def _compare(options: argparse.Namespace) -> int:
    from temperance.apps.tables.compare import compare_table
    from temperance.apps.tables.show import show_comparison

    methods = split_methods(options.methods) if options.methods else None
    found = compare_table(
        options.data, options.target, methods, seeds=options.seeds, seed=options.seed, epochs=options.epochs,
        level=options.level, out=options.out, overwrite=options.overwrite, say=_say, folds=options.folds,
        **_table_arguments(options),
    )  # fmt: skip
    show_comparison(found)
    if options.out:
        print(f"written to {options.out}: compare.json, compare.csv")
    return 0 if any(line.ok for line in found.lines) else 1


def _report(options: argparse.Namespace) -> int:
    from temperance.apps.tables.folder import load_table_run
    from temperance.apps.tables.reading import open_table
    from temperance.core.errors import ArgumentError

    run = load_table_run(options.run_folder)
    out = options.out or options.run_folder.rstrip("/") + "-report"
    data = None if options.test is None else open_table(options.test, **_reading(options))
    try:
        page = run.report(out, data, overwrite=options.overwrite)
    except ArgumentError as error:  # in the words of the command line
        raise ArgumentError(
            str(error).replace("`path`", "`--out`").replace("pass overwrite=True", "--overwrite")
        ) from None
    print(f"the page is {page}")
    return 0


def _with_promises(run: TableRun, options: argparse.Namespace) -> TableRun:
    made = run.with_guard(options.level, options.error_rate, options.tolerance, options.per_class)
    for words in made.notices[len(run.notices) :]:
        print(words, flush=True, file=sys.stderr if getattr(options, "json", False) else sys.stdout)
    return made


def split_methods(text: str) -> list[str]:
    """Names and expressions with commas between; commas inside brackets do not count.

    >>> split_methods("map, Ensemble(MAP(), 3),swag")
    ['map', 'Ensemble(MAP(), 3)', 'swag']
    """
    made, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            made.append("")
        else:
            made[-1] += letter
    return [part.strip() for part in made if part.strip()]


def _quoted(text: str) -> str:
    return f"'{text}'" if any(c.isspace() for c in text) else text
