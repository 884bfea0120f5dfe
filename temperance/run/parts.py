"""What a run is made of on disk: the words of its manifest and its parts, written and read in one place."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from temperance.core.checks import is_whole
from temperance.core.encoding import Tensors, Value, encode
from temperance.core.errors import CorruptRunError
from temperance.core.fields import check_fields
from temperance.core.seeds import check_seed
from temperance.core.status import OK, Status
from temperance.model.target import Target
from temperance.model.theta import Layout
from temperance.run.manifest import is_dtype
from temperance.run.store import Run

Parts = dict[str, tuple[Any, Tensors]]
HISTORIES = ("losses", "held_out_scores", "elbos")
"""What of a :class:`RunInfo` grows with the epochs, and is kept in a part of its own."""


@dataclass
class RunInfo:
    """How a run went: steps, seconds, the mean loss of each epoch (where it stops early, also the mean held-out
    log-likelihood; where the method has one, the ELBO), how it ended, what the method remarked on it (transitions that
    diverged, say), and why it was chosen, where ``auto`` did that."""

    steps: int = 0
    total_steps: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    held_out_scores: list[float] = field(default_factory=list)
    elbos: list[float] = field(default_factory=list)
    status: Status = OK
    data: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    chosen: str = ""


def describe(
    target: Target, info: RunInfo, method: Value | None, seed: int, run: dict[str, Any]
) -> tuple[dict[str, Any], Parts]:
    """A run, finished or not, as a manifest and the parts target, method and history; the posterior comes beside."""
    numbers = asdict(info)
    history = {name: numbers.pop(name) for name in HISTORIES}
    manifest = {
        "layout": target.layout.describe(),
        "frozen": target.frozen_fingerprint(),
        "moving": sorted(target.moving),
        "seed": seed,
        "info": numbers,
        "run": run,
    }
    parts = {**value_part("target", target_settings(target)), **value_part("history", history)}
    if method is not None:
        parts |= value_part("method", method)
    return manifest, parts


def target_settings(target: Target) -> dict[str, Any]:
    """What a target is made of beside the network; ``compute`` only where it is told, as older runs have it."""
    return {
        **({} if target.compute is None else {"compute": target.compute}),
        "likelihood": target.likelihood,
        "prior": target.prior,
        "temperature": target.temperature,
        "likelihood_temperature": target.likelihood_temperature,
        "subset": target.subset,
        "freeze_batch_norm": target.freeze_batch_norm,
    }


def value_part(name: str, value: Any) -> Parts:
    """Anything that can be written down, as a part of a run."""
    tensors: Tensors = {}
    form = encode(value, tensors)
    return {name: (form, tensors)}


def info_in(run: Run) -> RunInfo:
    """How the run went, as its manifest and its history say."""
    numbers, history = run.entry("info", dict), run.value("history")
    if not isinstance(history, dict) or set(history) != set(HISTORIES):
        raise CorruptRunError(f"the run {str(run.path)!r} is damaged: its history must be {', '.join(HISTORIES)}.")
    status = run.read(lambda: Status(**numbers["status"]), "the status")
    info = run.read(lambda: RunInfo(**{**numbers, **history, "status": status}), "the info")
    run.read(lambda: check_fields(info), "the info")
    run.read(lambda: check_fields(status), "the status")
    if not is_whole(info.steps) or not is_whole(info.total_steps) or not 0 <= info.seconds < math.inf:
        raise CorruptRunError(f"the run {str(run.path)!r} is damaged: its info has values that no run has.")
    return info


def seed_in(run: Run) -> int:
    """What everything random came from."""
    return run.read(lambda: check_seed(run.manifest.get("seed")), "the seed")


def layout_in(run: Run) -> Layout:
    """The layout of θ that the run was made with."""
    about = run.entry("layout", dict)
    if set(about) != {"dtype", "entries"} or not is_dtype(about["dtype"]):
        raise CorruptRunError(
            f"the run {str(run.path)!r} is damaged: its layout must have a dtype of torch and entries."
        )
    return run.read(lambda: Layout.from_description(about), "the layout")
