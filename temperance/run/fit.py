"""``fit``: the only loop in the library."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.checks import check_count, check_flag, check_level, shown
from temperance.core.encoding import fingerprint
from temperance.core.errors import ArgumentError, DataError, MethodWarning, TemperanceWarning
from temperance.core.progress import say
from temperance.core.seeds import check_seed, derive_seed
from temperance.data.data import Data
from temperance.engine.energy import OwnEnergies
from temperance.engine.engine import Engine
from temperance.inference.base import Facts, Inference
from temperance.inference.choice import Choice, Chosen
from temperance.model.target import Target, first_rows
from temperance.posteriors import centre_of
from temperance.predict.prior_outputs import absurdity
from temperance.run import store
from temperance.run.fitted import Fitted
from temperance.run.loop import Loop
from temperance.run.parts import target_settings

_STEPS_BETWEEN_SAVES = 100
_WORTH_DIVIDING = 20  # rows from which a tenth of them can tell anything


def fit(
    target: Target,
    method: Inference[Any] | Choice,
    data: Any,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    start: nn.Module | Tensor | Any = None,
    seed: int = 0,
    held_out: Any = None,
    checkpoint: str | Path | None = None,
    every: int | None = None,
    compile: bool = False,
    accumulate: int = 1,
    progress: bool | None = None,
    throw: bool = True,
) -> Fitted:
    """Approximate the posterior of ``target`` given ``data`` by ``method``.

    Args:
        target: the problem: network, likelihood, prior, temperature.
        method: how to approximate its posterior, e.g. ``Ensemble(MAP(lr=1e-3), 5)``; or ``auto()``, which chooses one.
        data: a :class:`~temperance.data.Data`, a pair ``(x, y)``, a ``Dataset`` or a ``DataLoader``.
        epochs, steps: how long; one of the two.
        batch_size: rows a step; that of the ``DataLoader`` where one is given, else 128.
        start: what to start from: an earlier fit (with the noise that it has learned), a trained module, or a vector
            θ; otherwise the network's own weights (an ensemble: fresh ones for each member).
        seed: decides everything random; the same seed gives the same result, whatever the global random state.
        held_out: data (or a fraction of ``data``) kept apart, for early stopping and for choosing how wide a posterior
            is. Methods that choose by them (``Laplace``) keep a tenth of ``data`` apart where none are given.
        checkpoint: a folder. The run is saved there as it goes, and if there is one already it goes on from there, bit
            for bit as if it had never stopped.
        every: steps between checkpoints; an epoch unless told (100 steps where an epoch is one step).
        compile: compile gradients with ``torch.compile``: worth its minute for long runs of small networks. Without a
            compiler on the machine, a warning says so and everything works as before.
        accumulate: take the gradient of a batch in so many pieces, one after the other, for batches whose activations
            do not fit into memory at once. The result is that of the whole batch, to rounding, but for what a network
            does with a batch as such: dropout draws other masks, a batch norm sees a piece.
        progress: show a progress bar; ``None`` shows it on a terminal.
        throw: raise :class:`NumericalError` when the run fails; otherwise look at ``fitted.info.status``.

    Ctrl-C stops after the step under way: what was learned so far is saved and returned; where there is no posterior
    yet it is saved, and ``KeyboardInterrupt`` raised. A second one stops at once; the last checkpoint is then the one
    to go on from. For the length of a run torch's global generator is seeded from ``seed`` and put back afterwards
    (dropout uses it), so two runs in threads of one process would share it: use processes.
    """
    if not isinstance(target, Target):
        raise ArgumentError(
            f"`target` must be a temperance Target: Target(network, likelihood, prior); got {type(target).__name__}."
        )
    chosen: Chosen | None = None
    if isinstance(method, Choice):
        trains = epochs is not None or steps is not None
        if not trains and start is None:
            raise ArgumentError(
                "`epochs` must say how long one network would be trained; got none. Of a network that is trained "
                "already say start=network."
            )
        chosen = method.choose(target, Data.of(data), trains)
        method = chosen.method
        epochs, steps = (None if n is None else math.ceil(check_count(n, name) * method.facts().longer - 1e-9)
                         for name, n in (("epochs", epochs), ("steps", steps)))  # fmt: skip
        say(f"temperance: {chosen.why}", progress)
    if not isinstance(method, Inference):
        raise ArgumentError(f"`method` must be a temperance method such as MAP(lr=1e-3); got {shown(method)}.")
    seed = check_seed(seed)
    check_flag(compile, "compile")
    check_count(accumulate, "accumulate")
    check_flag(throw, "throw")
    check_flag(progress, "progress", optional=True)
    if every is not None:
        check_count(every, "every")
    settings = _fingerprints(target, method)
    facts = method.facts()
    known = Data.of(data)
    batch_size = check_count(batch_size if batch_size is not None else known.batch_size or 128, "batch_size")
    whole, held = given = _divided(known, held_out, method, facts, seed)
    if isinstance(start, Fitted):  # its noise too, which a module does not know
        centre = centre_of(start.posterior).mean
        target, start = target.adopting(start.network()), centre
    elif isinstance(start, nn.Module):
        target = target.adopting(start)
    prepared = target.prepare(whole).to(target.device)
    target = target.beginning(prepared)
    held = None if held is None else target.prepare(held, "held_out").to(target.device)
    rows = len(prepared) if facts.reads == "full" else batch_size
    per_epoch = prepared.steps_per_epoch(rows)
    total = _total_steps(method, facts, epochs, steps, per_epoch)
    if total:
        _check_batch_norm(target, len(prepared), batch_size)
    method.check_run(total)
    if target.likelihood.learned_parameters() and (isinstance(start, nn.Module) or (start is None and not total)):
        target = _after_training(target, start, prepared, tell=not total)
    theta = None if start is None else target.theta_of(start)
    engine = Engine(target, prepared, compile=compile, accumulate=accumulate)
    run = {
        **settings,
        "seed": seed,
        "batch_size": batch_size,
        "compile": compile,
        **({} if accumulate == 1 else {"accumulate": accumulate}),
        "data": whole.fingerprint(),
        "num_data": len(whole),
        "held_out": None if held is None else held.fingerprint(),
        "start": None if theta is None else fingerprint(theta),
    }
    if every is None:
        every = per_epoch if per_epoch > 1 else _STEPS_BETWEEN_SAVES
    loop = Loop(engine, method, prepared, held, rows, per_epoch, total, seed, run, checkpoint, every)
    loop.given = (known, None) if facts.learns_held_out and whole.in_memory else given
    loop.info.chosen = "" if chosen is None else chosen.why
    with (
        store.held(checkpoint, "checkpoint"),
        torch.random.fork_rng(devices=range(torch.cuda.device_count())),
        loop.saving(),
    ):
        torch.manual_seed(derive_seed(seed, "global"))
        loop.prepare(theta)
        if loop.finished is not None:
            loop.finished.data, loop.finished.held_out = loop.given
            for remark in loop.finished.info.remarks:  # as when it ended: whoever asks now has perhaps not heard it
                warnings.warn(remark, TemperanceWarning, stacklevel=2)
            return loop.finished
        _warn_of_absurd_prior(engine, prepared, seed)
        status = loop.run(progress)
        with warnings.catch_warnings():
            if chosen is not None:  # whoever left the choice to us has no learning rate to change
                warnings.simplefilter("ignore", MethodWarning)
            return loop.finish(status, throw)


def _divided(data: Data, held_out: Any, method: Inference[Any], facts: Facts, seed: int) -> tuple[Data, Data | None]:
    """The rows to train on, and those kept apart."""
    held: Data | None = None
    if isinstance(held_out, float):
        check_level(held_out, "held_out")
        data, held = data.hold_out(held_out, seed=seed)
    elif held_out is not None:
        held = Data.of(held_out, "held_out")
    if facts.held_out and held is None and facts.sets_aside is not None:
        if facts.sets_aside and len(data) >= _WORTH_DIVIDING:
            return data.hold_out(min(0.1, facts.sets_aside / len(data)), seed=seed)
        return data, None
    if facts.held_out and held is None:
        raise DataError("`patience` needs held-out data: pass held_out=0.1 (or a Data) to fit.")
    if held is not None and not facts.held_out:
        warnings.warn(
            f"{type(method).__name__} does not look at `held_out`: these rows are only left out. MAP(patience=...) "
            "stops by them.",
            TemperanceWarning,
            stacklevel=3,
        )
    return data, held


def _warn_of_absurd_prior(engine: Engine, data: Data, seed: int) -> None:
    """Inputs that nobody standardised, a scale of 100: told before the run, for the run may look well."""
    if isinstance(engine.network, OwnEnergies):  # a density has no outputs
        return
    told = absurdity(engine, first_rows(data, 16).x, seed)
    if told is not None:
        warnings.warn(told, TemperanceWarning, stacklevel=3)


def _after_training(target: Target, start: nn.Module | None, data: Data, tell: bool) -> Target:
    """Of a network that comes trained: with the noise that its residuals have, not that of targets never looked at."""
    theta = target.initial_theta() if start is None else target.theta_of(start)
    engine, outputs, targets = Engine(target, data), [], []  # in the order in which the data have weights
    with torch.no_grad():
        for batch in data.full_pass():
            outputs.append(engine.outputs(theta.unsqueeze(0), batch.to(target.device).x)[0])
            targets.append(batch.y.to(target.device))
    found, y = torch.cat(outputs), torch.cat(targets)
    settled = target.settled(found, y, data.weights)
    if tell and settled is not target:
        warnings.warn(
            f"{target.likelihood!r} learns its noise{_of_noise(settled, found)}, what the network's residuals on these "
            f"{len(data)} rows say. New rows may be farther off: give the fit itself where there is one, start=fitted, "
            "rows that it has not seen, held_out=..., or the scale where you know it.",
            TemperanceWarning,
            stacklevel=3,
        )
    return settled


def _of_noise(settled: Target, outputs: Tensor) -> str:
    """What it was set to: a scale in the units of y; where there are none the learned numbers themselves, by name."""
    if settled.likelihood.outcome.has_units:
        noise = settled.likelihood.variance(outputs, settled.learned_start).mean(0).sqrt()
        which, values = "", noise.tolist()
    else:
        names = [p.name for p in settled.likelihood.learned_parameters()]
        values = [value for name in names for value in settled.learned_start[name].tolist()]
        which = f" ({', '.join(name.removeprefix('likelihood.') for name in names)})"
    shown_values = ", ".join(f"{value:.3g}" for value in values[:5])
    return f"{which}, and no training was asked for: it was set to {shown_values}"


def _fingerprints(target: Target, method: Inference[Any]) -> dict[str, str]:
    """Digests of method and target, which also shows now, and not after the run, whether they can be written down."""
    found = {}
    for name, value in (("method", lambda: method), ("target", lambda: target_settings(target))):
        try:
            found[name] = fingerprint(value())
        except TypeError as error:
            raise ArgumentError(
                f"`{name}` must be made of numbers, tensors, classes and functions, so that it can be saved: {error}."
            ) from error
    return found


def _check_batch_norm(target: Target, rows: int, batch_size: int) -> None:
    """Batch norm cannot train on a single row."""
    last = rows % min(batch_size, rows) or min(batch_size, rows)
    if last == 1 and target.batch_norm_names():
        raise ArgumentError(
            f"`batch_size` {batch_size} leaves a last batch of one row out of {rows}, and batch norm cannot train on "
            "that; choose another."
        )


def _total_steps(method: Inference[Any], facts: Facts, epochs: int | None, steps: int | None, per_epoch: int) -> int:
    if epochs is not None and steps is not None:
        raise ArgumentError("give `epochs` or `steps`, not both.")
    if epochs is None and steps is None:
        if facts.default_steps is None:
            raise ArgumentError(
                f"`epochs` or `steps` must say how long {type(method).__name__} shall run; got neither."
            )
        return facts.default_steps
    name, count = ("epochs", epochs) if epochs is not None else ("steps", steps)
    return check_count(count, name) * (per_epoch if name == "epochs" else 1)
