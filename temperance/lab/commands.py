"""``temperance lab list``, ``run``, ``show`` and ``pack``."""

from __future__ import annotations

import argparse
from typing import Any


def add_commands(subparsers: Any) -> None:
    """Add ``lab`` to the command line. The experiments are imported when they are asked for."""
    lab = subparsers.add_parser("lab", help="the laboratory: experiments on the Bayes posterior of networks")
    kinds = lab.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = kinds.add_parser("list", help="the experiments, what they ask and how long they take")
    listing.set_defaults(run=_list)
    run = kinds.add_parser("run", help="run an experiment, or go on with one")
    run.add_argument("name", help="see `temperance lab list`")
    run.add_argument("--preset", default="quick", help="quick, standard or paper (default: quick)")
    run.add_argument("--out", default=None, help="folder for the results (default: out/lab/NAME-PRESET)")
    run.add_argument("--seed", type=int, default=None, help="the first seed (default: that of the preset)")
    run.add_argument("--seeds", type=int, default=None, help="how many seeds (default: those of the preset)")
    run.add_argument("--workers", type=int, default=2, help="processes, one core each (default: 2; 1: this process)")
    run.set_defaults(run=_run)
    show = kinds.add_parser("show", help="judge and draw again what a folder holds")
    show.add_argument("out", help="a folder that `temperance lab run` wrote")
    show.set_defaults(run=_show)
    pack = kinds.add_parser("pack", help="put the cells of a folder into one file, to be kept or sent")
    pack.add_argument("out", help="a folder that `temperance lab run` wrote")
    pack.set_defaults(run=_pack)


def _list(options: argparse.Namespace) -> int:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from temperance.lab.experiments import all_experiments

    table = Table(title="Experiments", caption="minutes on two cores; paper: rough, on a GPU", box=box.SIMPLE_HEAD)
    table.add_column("name", no_wrap=True)
    for heading in ("asks", "paper"):
        table.add_column(heading, overflow="fold")
    table.add_column("minutes", no_wrap=True)
    for experiment in all_experiments():
        minutes = "\n".join(f"{name} {preset.minutes:g}" for name, preset in experiment.presets.items())
        table.add_row(experiment.name, experiment.question, experiment.paper, minutes)
    Console().print(table)
    return 0


def _run(options: argparse.Namespace) -> int:
    from temperance.lab.experiments import find_experiment
    from temperance.lab.runner import run_experiment

    experiment = find_experiment(options.name)
    experiment.preset(options.preset)  # an unknown one is said before a folder is made
    out = options.out or f"out/lab/{options.name}-{options.preset}"
    outcome = run_experiment(
        experiment, options.preset, out, seed=options.seed, seeds=options.seeds, workers=options.workers
    )
    return 0 if outcome.ok else 1


def _show(options: argparse.Namespace) -> int:
    from temperance.lab.experiments import find_experiment
    from temperance.lab.folder import Folder
    from temperance.lab.runner import show_experiment

    experiment = find_experiment(Folder(options.out).describe()["experiment"])
    return 0 if show_experiment(experiment, options.out).ok else 1


def _pack(options: argparse.Namespace) -> int:
    from temperance.core import files
    from temperance.lab.folder import Folder

    folder = Folder(options.out)
    folder.describe()  # before a lock is put beside what is no run
    with files.holding(folder.path, "out"):
        print(f"{folder.pack()} cells are in {folder.packed}.")
    if folder.damaged.exists():
        print(f"{folder.damaged} has lines of it that could not be read; their cells will be run again.")
    return 0
