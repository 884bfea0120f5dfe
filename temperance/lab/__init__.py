"""The laboratory: experiments that ask how good the Bayes posterior of a network really is.

An :class:`Experiment` is a question, settings as data, independent cells that run in worker processes and are kept as
they finish, figures, and claims of a paper that are judged by a rule. ``temperance lab list`` shows what there is.
"""

from typing import TYPE_CHECKING

from temperance.core.demand import on_demand

if TYPE_CHECKING:
    from temperance.lab.experiment import Cell, Cells, Claim, Experiment, Picture, Preset, Settings
    from temperance.lab.runner import Outcome, run_experiment, show_experiment

_RUNNER = ("Outcome", "run_experiment", "show_experiment")
_EXPERIMENT = ("Cell", "Cells", "Claim", "Experiment", "Picture", "Preset", "Settings")
__getattr__ = on_demand(__name__, {**dict.fromkeys(_RUNNER, "runner"), **dict.fromkeys(_EXPERIMENT, "experiment")})

__all__ = [
    "Cell",
    "Cells",
    "Claim",
    "Experiment",
    "Outcome",
    "Picture",
    "Preset",
    "Settings",
    "run_experiment",
    "show_experiment",
]
