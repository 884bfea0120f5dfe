"""The command line: fit, predict, evaluate, compare, report; demo, methods, data, lab.

Arguments are read first; what a command needs, PyTorch among it, is imported when it runs.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

import temperance as tp
from temperance.apps.tables.commands import add_commands as add_table_commands
from temperance.core.errors import TemperanceError
from temperance.lab.commands import add_commands as add_lab_commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
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


def _shown_methods() -> dict[str, tp.Inference[Any]]:
    alone = (
        tp.MAP, tp.Anchored, tp.SGLD, tp.SGHMC, tp.PSGLD, tp.SGNHT, tp.BAOAB, tp.LeimkuhlerMatthews, tp.GGMC
    )  # fmt: skip
    found: dict[str, tp.Inference[Any]] = {f"{kind.__name__}()": kind() for kind in alone}
    found["Ensemble(MAP(), 5)"] = tp.Ensemble(tp.MAP(), 5)
    for curvature in (tp.KFAC(), tp.EKFAC(), tp.Diagonal(), tp.BlockDiagonal(), tp.Lanczos(), tp.Dense()):
        found[f"Laplace(MAP(), {type(curvature).__name__}())"] = tp.Laplace(tp.MAP(), curvature)
    found["On(last_layer, Laplace(MAP()))"] = tp.On(tp.last_layer, tp.Laplace(tp.MAP()))
    found["FunctionalLaplace(MAP())"] = tp.FunctionalLaplace(tp.MAP())
    found["Ensemble(Laplace(MAP()), 5)"] = tp.Ensemble(tp.Laplace(tp.MAP()), 5)
    for family in (tp.MeanField(), tp.TiedScale(), tp.Radial(), tp.LowRank(5), tp.MatrixNormal(), tp.FullRank()):
        found[f"Variational({type(family).__name__}())"] = tp.Variational(family)
    found["IVON()"], found["VOGN()"] = tp.IVON(), tp.VOGN()
    found["SWAG()"], found["Ensemble(SWAG(), 5)"] = tp.SWAG(), tp.Ensemble(tp.SWAG(), 5)
    found["MCDropout(MAP())"] = tp.MCDropout(tp.MAP())
    found["Collect(SGHMC())"] = tp.Collect(tp.SGHMC())
    found["Cyclical(SGHMC())"] = tp.Cyclical(tp.SGHMC())
    found["Ensemble(Collect(SGHMC()), 4)"] = tp.Ensemble(tp.Collect(tp.SGHMC()), 4)
    for kernel in (tp.HMC(), tp.NUTS(), tp.MCLMC()):
        found[f"Warmup({type(kernel).__name__}())"] = tp.Warmup(kernel)
    found["EllipticalSlice()"] = tp.EllipticalSlice()
    found["Tempered(Warmup(NUTS()))"] = tp.Tempered(tp.Warmup(tp.NUTS()))
    found["Ensemble(Warmup(NUTS()), 4)"] = tp.Ensemble(tp.Warmup(tp.NUTS()), 4)
    found["SVGD()"], found["RepulsiveEnsemble()"] = tp.SVGD(), tp.RepulsiveEnsemble()
    found["Subspace(Warmup(NUTS()), PCA())"] = tp.Subspace(tp.Warmup(tp.NUTS()), tp.PCA())
    found["Curve(MAP())"] = tp.Curve(tp.MAP())
    return found


def _methods(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Methods")
    table.add_column("method", no_wrap=True)
    for heading in ("exact on a linear-Gaussian model", "gradients a step", "copies of θ", "reads"):
        table.add_column(heading)
    for name, method in _shown_methods().items():
        facts = method.facts()
        cost = facts.cost
        table.add_row(
            name,
            facts.exact.value,
            f"{cost.gradients_per_step:.4g}",
            f"{cost.copies_of_theta:g}" if math.isfinite(cost.copies_of_theta) else "by layer size",
            facts.reads,
        )
    Console().print(table)
    return 0


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
