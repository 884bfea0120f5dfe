"""Chains of a sampler: how hot they were, and whether they agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from temperance.core.checks import check_level, shown
from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Categories
from temperance.data.data import _as_inputs
from temperance.data.sources import first_tensor, map_tensors
from temperance.engine.engine import Engine
from temperance.judge.diagnose import Temperatures, configurational, kinetic, kinetic_interval
from temperance.judge.diagnose.chains import Run, evenly, unpack
from temperance.judge.diagnose.verdict import _window
from temperance.model.target import Target
from temperance.posteriors import Chain
from temperance.predict.scores.classification import check_count
from temperance.run.fitted import Fitted
from temperance.show.plot.style import BAND, BLUE, COLOURS, INK, ORANGE, Numbers, axes, legend, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AT_ONCE = 32  # settings of θ through the network together
_DRAWS = 200  # of a chain, at most, in a trace
_MOST_TENSORS = 24
_DASHES = ("-", "--", "-.", ":")


def measured_temperatures(run: Run, target: Target | None = None) -> list[Temperatures]:
    """Kinetic (corrected for the integrator's factor) and configurational temperatures since the first draw, those
    that the sampler has; see :mod:`temperance.judge.diagnose.temperature`."""
    target, chains = unpack(run, target)
    traces = [chain.trace for chain in chains if chain.trace is not None]
    if len(traces) < len(chains):
        raise ArgumentError("`run` must hold draws with a trace: sample with tp.Collect to have one.")
    after, max_pace = _window(traces)
    found = []
    if bool(torch.isfinite(traces[0].kinetic).any()):
        found.append(kinetic(run, target=target, corrected=True, after=after, max_pace=max_pace))
    if bool(torch.isfinite(traces[0].configurational).any()):
        found.append(configurational(run, target=target, after=after, max_pace=max_pace))
    if not found:
        raise ArgumentError("`run` must come from a sampler with a thermometer; its trace has no temperatures.")
    return found


def temperatures(run: Run, ax: Axes | None = None, level: float = 0.95, target: Target | None = None) -> Axes:
    """Temperatures of each tensor and of the whole network over the one in force: one is right.

    Points are means over time and chains with an interval of ``level`` from their Monte-Carlo error, which counts
    correlated readings as less. Grey bars are where a *single* kinetic reading lies with probability ``level`` (χ²):
    they are wide for small tensors. Of more than 24 tensors those farthest from one are shown.
    """
    z = float(stats.norm.ppf((1 + check_level(level)) / 2))
    found = measured_temperatures(run, target)
    names, sizes = found[0].names, found[0].sizes
    far = torch.stack([(part.mean - 1).abs().nan_to_num(0.0) for part in found]).amax(0)
    kept = sorted(far.argsort(descending=True)[:_MOST_TENSORS].tolist())
    places = np.arange(len(kept), dtype=np.float64)
    ax = axes(ax, "Temperatures of the sampler", "temperature / the one in force", "")
    for place, k in zip([*places, float(len(kept))], [*kept, -1], strict=True):
        low, high = kinetic_interval(sizes[k] if k >= 0 else sum(sizes), 1.0, level)
        ax.barh(place, high - low, 0.62, low, color=BAND, alpha=0.3, linewidth=0)
    ax.axvline(1.0, color=INK, linewidth=1, linestyle=":")
    looks = {"kinetic": (BLUE, "o", -0.14), "configurational": (ORANGE, "s", 0.14)}
    for part in found:
        colour, marker, shift = looks[part.what]
        mean = np.array([*part.mean[kept].tolist(), part.network_mean])
        error = np.nan_to_num(np.array([*part.error[kept].tolist(), part.network_error]))
        where = np.append(places, len(kept)) + shift
        ax.errorbar(mean, where, xerr=z * error, fmt=marker, color=colour, markersize=4.5, capsize=2, label=part.what)
    ax.set_yticks(range(len(kept) + 1), [plain(names[k], 24) for k in kept] + ["whole network"], fontsize=8)
    ax.invert_yaxis()
    legend(ax, loc="best")
    return ax


def traces(
    run: Run,
    x: Any = None,
    ax: Axes | None = None,
    what: str = "predictions",
    rows: int = 3,
    target: Target | None = None,
) -> Axes:
    """Chains along their draws, in function space: what each draw predicts at a few rows of ``x``.

    Weights can change places without any change of the function, so it is predictions that chains must agree on: the
    bold lines of one colour (one row; dashes tell chains apart), running means over the draws, should come together;
    the draws themselves are drawn faintly. Of classes the probability is drawn that a draw gives to
    the class that the average finds most probable there; of real values and counts the mean of the first output.

    ``what="energy"`` draws the energy U after each transition where the sampler tells it, otherwise the loss of the
    batches; it should not drift. ``x`` is by default the training data, where ``fit`` was called in this session.
    """
    if what not in ("predictions", "energy"):
        raise ArgumentError(f"`what` must be 'predictions' or 'energy'; got {shown(what)}.")
    target, chains = unpack(run, target)
    if what == "energy":
        return _energies(chains, ax)
    if x is None and isinstance(run, Fitted) and run.data is not None:
        x = run.data.x
    if x is None:
        raise ArgumentError("`x` must hold some inputs at which to predict; got None, and the run has no data.")
    series = predicted_series(target, chains, x, rows)
    ax = axes(ax, "Chains in function space", "draw", target.likelihood.outcome.prediction)
    for k, chain in enumerate(series):
        steps = evenly(len(chain), _DRAWS).numpy()
        for row in range(chain.shape[1]):
            colour, values = COLOURS[row % len(COLOURS)], chain[:, row]
            running = values.cumsum() / np.arange(1, len(values) + 1)
            ax.plot(steps, values[steps], color=colour, linewidth=0.6, alpha=0.25)
            ax.plot(
                steps,
                running[steps],
                color=colour,
                linestyle=_DASHES[k % len(_DASHES)],
                linewidth=1.8,
                label=f"row {row + 1}" if k == 0 else None,
            )
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom, top + 0.18 * (top - bottom))  # room for the legend
    legend(ax, loc="upper right", ncols=rows)
    return ax


def predicted_series(target: Target, chains: tuple[Chain, ...], x: Any, rows: int = 3) -> list[Numbers]:
    """What each draw of each chain predicts at ``rows`` rows of ``x``, evenly spaced: draws × rows for each chain."""
    check_count(rows, "rows")
    inputs = target.cast(_as_inputs(x, "x"))
    picked = evenly(len(first_tensor(inputs)), rows)
    inputs = map_tensors(lambda t: t[picked.to(t.device)].to(target.device), inputs)
    found: list[Tensor] = []
    engine = Engine(target)
    with torch.no_grad():
        for chain in chains:
            parts = []
            for low in range(0, len(chain.theta), _AT_ONCE):
                theta = chain.theta[low : low + _AT_ONCE].to(target.device)
                buffers = {n: v[low : low + _AT_ONCE].to(target.device) for n, v in chain.buffers.items()}
                outputs = engine.outputs(theta, inputs, buffers)
                learned = target.layout.unflatten(theta, "likelihood")
                parts.append(target.likelihood.for_new_rows.mean(outputs, learned).cpu())
            found.append(torch.cat(parts).double())
    average = torch.cat(found).mean(0)  # rows × outputs
    classes = isinstance(target.likelihood.outcome, Categories)
    best = average.argmax(-1) if classes else torch.zeros(len(average)).long()
    return [chain[:, torch.arange(len(average)), best].numpy() for chain in found]


def _energies(chains: tuple[Chain, ...], ax: Axes | None) -> Axes:
    told = [chain.trace for chain in chains if chain.trace is not None]
    if not told:
        raise ArgumentError("`run` must hold draws with a trace: sample with tp.Collect to have one.")
    exact = all(trace.transitions is not None for trace in told)
    if exact:
        ax = axes(ax, "Energy along the chains", "transition", "energy U (nats)")
    else:
        ax = axes(ax, "Loss along the chains", "step of the run", "loss of the batch (nats)")
    for k, trace in enumerate(told):
        if exact:
            assert trace.transitions is not None
            values = trace.transitions.energy.double().cpu()
            steps = torch.arange(len(values))
        else:
            values, steps = trace.loss.double().cpu(), trace.step.cpu()
        kept = evenly(len(values), _DRAWS)
        ax.plot(
            steps[kept].numpy(),
            values[kept].numpy(),
            color=COLOURS[k % len(COLOURS)],
            linestyle=_DASHES[k % len(_DASHES)],
            linewidth=1.1,
            label=f"chain {k + 1}",
        )
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom, top + 0.18 * (top - bottom))
    legend(ax, loc="upper right", ncols=min(len(told), 4), columnspacing=1.0, handlelength=1.5)
    return ax
