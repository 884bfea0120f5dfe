"""The command line: fit, predict, evaluate, compare, report; demo, methods, data, lab.

Arguments are read first; what a command needs, PyTorch among it, is imported when it runs.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from types import ModuleType

import temperance as tp
from temperance.apps.tables.commands import add_commands as add_table_commands
from temperance.core.errors import TemperanceError
from temperance.lab.commands import add_commands as add_lab_commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows no ü gets \\xfc, not a traceback
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")
    parser = _parser()
    options = parser.parse_args(arguments)
    if not hasattr(options, "run"):
        parser.print_help()
        return 2
    try:
        return int(options.run(options))
    except TemperanceError as error:
        print(f"temperance: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read our words has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("temperance: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="temperance", description="Bayesian deep learning as easy and nearly as cheap as ordinary training."
    )
    parser.add_argument("--version", action="version", version=f"temperance {tp.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    add_table_commands(commands)
    demo = commands.add_parser("demo", help="every method on digits: a table, plots and a page")
    demo.add_argument("--out", default="out/demo", help="folder for the results (default: out/demo)")
    demo.add_argument("--seed", type=int, default=0, help="decides everything random (default: 0)")
    demo.add_argument("--seeds", type=int, default=1, help="average over so many seeds (default: 1)")
    demo.add_argument("--epochs", type=int, default=None, help="epochs on digits (default: 100)")
    demo.set_defaults(run=_demo)
    methods = commands.add_parser("methods", help="the methods, what they get exactly right and what they cost")
    methods.add_argument("module", nargs="*", help="also list the methods that these modules of yours define")
    methods.set_defaults(run=_methods)
    data = commands.add_parser("data", help="the data sets")
    kinds = data.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = kinds.add_parser("list", help="names, sizes and where they are")
    listing.set_defaults(run=_data_list)
    verify = kinds.add_parser("verify", help="check the files of a data set, or of all, against their checksums")
    verify.add_argument("name", nargs="?", default=None)
    verify.set_defaults(run=_data_verify)
    add_lab_commands(commands)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from temperance.apps.demo import run_demo
    from temperance.apps.demo.run import EPOCHS

    for name in ("seeds", "epochs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise tp.errors.ArgumentError(f"`--{name}` must be a positive integer; got {value}.")
    run_demo(options.out, seed=options.seed, seeds=options.seeds, epochs=options.epochs or EPOCHS)
    return 0


def _methods(options: argparse.Namespace) -> int:
    from rich.console import Console

    from temperance.apps.methods import print_methods

    print_methods(Console(), *[_module_named(name) for name in options.module])
    return 0


def _module_named(name: str) -> ModuleType:
    """A module of the user's own, from the folder where the command runs or from what is installed."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise tp.errors.ArgumentError(
            f"`module` must be a Python module that can be imported from here, such as my_methods; got {name!r}: "
            f"{error}."
        ) from None


def _data_list(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Data sets")
    for heading in ("name", "task", "rows", "where", "licence"):
        table.add_column(heading, overflow="fold")
    for entry in tp.data.list_data_sets():
        table.add_row(entry.name, str(entry.outcome), str(entry.rows), entry.where, entry.licence)
    Console().print(table)
    return 0


def _data_verify(options: argparse.Namespace) -> int:
    results = tp.data.verify(options.name)
    for result in results:
        print(f"{result.status:8} {result.name}: {result.message}")
    wanted = [r for r in results if r.status == "corrupt" or (options.name and r.status != "ok")]
    return 1 if wanted else 0


if __name__ == "__main__":
    sys.exit(main())
