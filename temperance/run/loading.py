"""``load``: the one reader of runs. It opens, checks and rebuilds; rooms above add what they keep beside it."""

from __future__ import annotations

import contextlib
import importlib
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from temperance.core.checks import check_instance, shown
from temperance.core.encoding import Value, moved
from temperance.core.errors import (
    ArgumentError,
    CorruptRunError,
    MismatchError,
    NumericalError,
    StoreError,
    TemperanceWarning,
)
from temperance.core.growing import rows_file
from temperance.model.likelihoods import Likelihood
from temperance.model.priors import Prior
from temperance.model.target import Target
from temperance.model.theta import Layout, check_subset
from temperance.posteriors import Chain, Posterior, Spread, centre_of
from temperance.run import store
from temperance.run.fitted import Fitted
from temperance.run.parts import info_in, layout_in, seed_in

Finisher = Callable[[store.Run, Fitted], Fitted]
_finishers: dict[str, Finisher] = {}
_ROOMS = {"calibrator": "temperance.judge.calibrate"}  # where a part is understood, imported when one is met
_ATTEMPTS = 5  # to read a run that another process goes on saving: its files are replaced under our eyes

_TARGET: dict[str, type] = {
    "likelihood": Likelihood,
    "prior": Prior,
    "temperature": float,
    "likelihood_temperature": float,
    "subset": object,
    "freeze_batch_norm": bool,
}


def register_part(name: str, finish: Finisher) -> None:
    """Let ``finish(run, fitted)`` make what :func:`load` gives back of runs that have a part ``name``."""
    _finishers[name] = finish


def load(path: str | Path, network: nn.Module, *, target: Target | None = None) -> Fitted:
    """A saved run, ready to predict; of a calibrated run, a :class:`~temperance.calibrate.CalibratedFitted`.

    ``network`` must have the architecture the run was made with, and where a part was frozen, the same weights there;
    the weights that were learned come from the run. Give ``target``
    where the run's prior, likelihood or subset is a function or class of your own that cannot be rebuilt by name.

    Every byte is checked while it is loaded. Draws that a run keeps in files of rows (``draws-….run.rows``) are mapped
    into memory and read when they are used, so leave those files alone while a process uses them: who cuts one short
    then ends that process with a bus error, which no library can turn into an exception.

    >>> import tempfile, temperance as tp
    >>> network, folder = tp.nn.MLP(4, [16], 3), tempfile.mkdtemp()
    >>> train, test = tp.data.load("iris")
    >>> target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, tp.MAP(lr=1e-2), train, epochs=2)
    >>> fitted.save(folder)
    >>> again = tp.load(folder, tp.nn.MLP(4, [16], 3))
    >>> bool((again.predict(test.x).probs == fitted.predict(test.x).probs).all())
    True
    """
    check_instance(network, "network", nn.Module, "a torch.nn.Module of the architecture that the run was made with")
    check_instance(target, "target", Target, "a temperance Target", optional=True)
    for _ in range(_ATTEMPTS):
        run = store.open_run(path)
        try:
            return fitted_of(run, network, target=target)
        except CorruptRunError:
            if not run.superseded():
                raise
    return fitted_of(store.open_run(path), network, target=target)


def fitted_of(
    run: store.Run, network: nn.Module | Callable[[dict[str, Any]], nn.Module], *, target: Target | None = None
) -> Fitted:
    """The fit in an open run. ``network`` may be a function that makes it from the target's settings."""
    if target is None:
        settings = _settings_in(run)
        made = network if isinstance(network, nn.Module) else network(settings)
        target = Target(made, **settings)
    target = target.expecting(str(name) for name in run.entry("moving", list))
    check_same_network(run, target)
    if not run.has("posterior"):
        raise StoreError(
            f"the run {str(run.path)!r} is not finished and its method needs the data to finish: call fit again with "
            f"checkpoint={str(run.path)!r}."
        )
    posterior = run.value("posterior")
    if not isinstance(posterior, Posterior):
        raise CorruptRunError(f"the run {str(run.path)!r} holds no posterior.")
    posterior = _to_device(posterior, target.device)
    target = run.read(lambda: posterior.retarget(target), "the posterior")
    run.read(lambda: check_posterior(posterior, target.layout), "the posterior")
    fitted = Fitted(target, posterior, info_in(run), _method_in(run), seed_in(run), dict(run.entry("run", dict)))
    for part, room in _ROOMS.items():
        if run.has(part):
            importlib.import_module(room)
            fitted = _finishers[part](run, fitted)
    return fitted


def check_posterior(posterior: Posterior, layout: Layout) -> None:
    """Raise unless one θ can be had of each part of a posterior that was read, as a prediction will ask for it: what
    does not fit together inside it shows here, and not in the user's next call. Nothing random is touched, and what is
    factorised for it is kept for the prediction. A covariance that is not proper is left to that, which says so."""
    for _, part in posterior.parts():
        with contextlib.suppress(NumericalError):
            theta = centre_of(part).mean.unsqueeze(0) if part.over_functions else part.nodes(1).fetch(0, 1)[0]
            dtype = part.mean.dtype if isinstance(part, Spread) else theta.dtype  # a draw about a mean hides its dtype
            if theta.shape != (1, layout.size) or {theta.dtype, dtype} != {layout.dtype}:
                raise ArgumentError(
                    f"its θ must be {layout.size} numbers of {layout.dtype}; got {tuple(theta.shape[1:])} of {dtype}"
                )
            if not bool(torch.isfinite(theta).all()):
                raise ArgumentError("its θ must be finite; it has NaN or infinite numbers")


def _settings_in(run: store.Run) -> dict[str, Any]:
    """What the target was made of; checked here, so that what ``Target`` refuses is about the user's network."""
    settings = run.value("target")
    if not isinstance(settings, dict) or set(settings) - {"compute"} != set(_TARGET):
        raise CorruptRunError(f"the run {str(run.path)!r} holds no target.")
    for name, kind in _TARGET.items():
        value = settings[name]
        if not isinstance(value, kind) or (isinstance(value, float) and not 0 < value < math.inf):
            raise CorruptRunError(
                f"the target of the run {str(run.path)!r} is damaged: its {name} cannot be {value!r}."
            )
    if "compute" in settings and settings["compute"] is not torch.bfloat16:
        raise CorruptRunError(
            f"the target of the run {str(run.path)!r} is damaged: its compute cannot be {settings['compute']!r}."
        )
    try:
        check_subset(settings["subset"], "subset")
    except ArgumentError as error:
        raise CorruptRunError(f"the target of the run {str(run.path)!r} is damaged: {error}") from error
    return settings


def _method_in(run: store.Run) -> Any:
    if not run.has("method"):
        return None
    try:
        method = run.value("method")
        if not isinstance(method, Value):
            raise CorruptRunError(f"the method of the run {str(run.path)!r} is damaged: got {shown(method)}.")
        return method
    except MismatchError as error:
        warnings.warn(
            f"the method of the run {str(run.path)!r} cannot be rebuilt, so `fitted.method` is None (predictions do "
            f"not need it): {error} Lambdas and functions of your own are not kept in a run: to fit again, or to go on "
            "from a checkpoint, write the method as you did.",
            TemperanceWarning,
            stacklevel=4,
        )
        return None


def check_same_network(run: store.Run, target: Target) -> None:
    """Raise :class:`MismatchError` unless the run was made with a network like the target's."""
    then, now = layout_in(run), target.layout
    if then != now:
        old, new = {e.name: e.shape for e in then.entries}, {e.name: e.shape for e in now.entries}
        differences = [
            f"{name}: {old.get(name, 'absent')} in the run, {new.get(name, 'absent')} now"
            for name in {**old, **new}
            if old.get(name) != new.get(name)
        ] or [f"dtype {then.dtype} in the run, {now.dtype} now"]
        raise MismatchError("the network differs from the one the run was made with: " + "; ".join(differences[:5]))
    if run.manifest.get("frozen") != target.frozen_fingerprint():
        raise MismatchError(
            "the frozen parameters or buffers of the network differ from those the run was made with: load the same "
            "pretrained weights first."
        )


def _draws_in(posterior: Posterior) -> list[Chain]:
    return [part for _, part in posterior.parts() if isinstance(part, Chain)]


def _to_device(value: Any, device: torch.device) -> Any:
    """Move the tensors inside a posterior."""
    if device.type == "cpu" or any(rows_file(c.theta) for c in _draws_in(value)):
        return value  # draws on disk stay there; predictions move those that they need
    return moved(value, device)
