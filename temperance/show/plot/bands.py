"""Predictions over their inputs, and against what came true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from temperance.core.checks import check_level, is_whole, shown
from temperance.core.errors import ArgumentError
from temperance.core.seeds import check_seed
from temperance.data.data import Data
from temperance.predict import CategoryPredictive, Predictive, ValuePredictive
from temperance.predict.scores.classification import Array, as_float64, check_count, check_length
from temperance.run.fitted import Fitted
from temperance.show.plot.calibration import values_of
from temperance.show.plot.style import (
    BAND,
    BLUE,
    COLOURS,
    INK,
    MARKERS,
    MUTED,
    ORANGE,
    Numbers,
    axes,
    few_ticks,
    legend,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = ("entropy", "mutual_information", "class")
_WORDS = {"entropy": "entropy (nats)", "mutual_information": "mutual information (nats)", "class": "probability"}


def regression_band(
    x: Array,
    predictive: ValuePredictive,
    data: Any = None,
    ax: Axes | None = None,
    level: float = 0.9,
    output: int = 0,
) -> Axes:
    """A regression on one input: the mean, what the model is unsure of, and the noise on top.

    The inner band is mean ± z √epistemic variance, with z that of a normal at ``level``: it shrinks with more data. The
    outer one is the predictive interval of y at ``level``, noise included.

    Args:
        x: N inputs, one number each, at which ``predictive`` was made.
        predictive: of real values or counts.
        data: observations to draw as points: ``Data`` or a pair (x, y).
        ax: where to draw.
        level: of both bands.
        output: which of several outputs.
    """
    if not isinstance(predictive, ValuePredictive):
        raise ArgumentError(f"`predictive` must be of real values or counts; got {type(predictive).__name__}.")
    place = _one_column("x", x)
    check_length("x", place, len(predictive))
    z = float(stats.norm.ppf((1 + check_level(level)) / 2))
    order = place.argsort().numpy()
    mean, spread, (low, high) = predictive.mean(), predictive.epistemic_std(), predictive.interval(level)
    if not is_whole(output) or output >= mean.shape[1]:
        raise ArgumentError(f"`output` must be from 0 to {mean.shape[1] - 1}; got {shown(output)}.")
    at = place.numpy()[order]
    centre, unsure, bottom, top = (_numpy(part)[order, output] for part in (mean, spread, low, high))
    percent = f"{level * 100:g} %"
    ax = axes(ax, "Prediction and its uncertainty", "x", "y")
    ax.fill_between(at, bottom, top, color=BAND, alpha=0.35, linewidth=0, label=f"{percent} of y: noise included")
    ax.fill_between(
        at,
        centre - z * unsure,
        centre + z * unsure,
        color=BLUE,
        alpha=0.4,
        linewidth=0,
        label=f"{percent} of the model's own doubt",
    )
    ax.plot(at, centre, color=BLUE, linewidth=1.8, label="mean")
    if data is not None:
        seen = Data.of(data)
        given = _one_column("data", seen.x if isinstance(seen.x, Tensor) else torch.empty(0))
        ys = seen.y.reshape(len(seen), -1)[:, min(output, seen.y.reshape(len(seen), -1).shape[1] - 1)]
        ax.plot(given.numpy(), _numpy(ys), "o", color=INK, markersize=2.5, alpha=0.6, linewidth=0, label="data")
    legend(ax)
    return ax


def predicted_observed(
    predictive: ValuePredictive,
    y: Any,
    ax: Axes | None = None,
    level: float = 0.9,
    output: int = 0,
    most: int = 150,
    seed: int = 0,
    interval: tuple[Tensor, Tensor] | None = None,
) -> Axes:
    """What came true against what was predicted, each row with its predictive interval; on the diagonal the prediction
    was right. Rows whose interval missed are marked apart. Of more than ``most`` rows so many are drawn at random.
    Give ``interval`` where it has been computed already.
    """
    check_seed(seed)
    truth = values_of(predictive, y)
    check_count(most, "most")
    low, high = predictive.interval(level) if interval is None else interval
    chosen = np.arange(len(truth))
    if len(chosen) > most:
        chosen = np.sort(np.random.default_rng(seed).choice(len(chosen), most, replace=False))
    if not is_whole(output) or output >= truth.shape[1]:
        raise ArgumentError(f"`output` must be from 0 to {truth.shape[1] - 1}; got {shown(output)}.")
    mean, bottom, top, seen = (_numpy(part)[chosen, output] for part in (predictive.mean(), low, high, truth))
    inside = (bottom <= seen) & (seen <= top)
    ax = axes(ax, "Predicted and observed", "predicted", "observed")
    ends = [float(min(mean.min(), seen.min())), float(max(mean.max(), seen.max()))]
    ax.plot(ends, ends, color=MUTED, linestyle="--", linewidth=1, label="prediction was right")
    ax.vlines(mean, bottom, top, color=BAND, alpha=0.5, linewidth=1.1, label=f"{level * 100:g} % interval")
    ax.plot(mean[inside], seen[inside], "o", color=BLUE, markersize=3.5, alpha=0.8, label="inside its interval")
    ax.plot(mean[~inside], seen[~inside], "s", color=ORANGE, markersize=4, label="outside")
    bottom_edge, top_edge = ax.get_ylim()
    ax.set_ylim(bottom_edge, top_edge + 0.35 * (top_edge - bottom_edge))  # room for the legend
    few_ticks(ax.xaxis, ax.yaxis)
    legend(ax, loc="upper left")
    return ax


def decision_regions(
    model: Fitted | Callable[[Tensor], Predictive],
    x: Array,
    y: Array,
    show: str = "entropy",
    ax: Axes | None = None,
    resolution: int = 80,
    margin: float = 0.3,
    class_names: Sequence[str] | None = None,
) -> Axes:
    """Classes over a plane of two inputs, and the doubt about them, with the data on top.

    Args:
        model: a fitted classifier, or a function from N × 2 inputs to its predictive.
        x: N × 2 inputs, which are drawn and whose range, widened by ``margin`` of it, is the picture.
        y: N labels.
        show: ``"entropy"``, all doubt; ``"mutual_information"``, the part that more data would remove; ``"class"``, the
            most probable class, paler where it is less so.
        ax: where to draw.
        resolution: points of the grid along each axis.
        margin: how far to look beyond the data, as a share of their range.
        class_names: for the legend.
    """
    if show not in SHOWN:
        raise ArgumentError(f"`show` must be one of {SHOWN}; got {shown(show)}.")
    points = as_float64("x", x, dims=2)
    if points.shape[1] != 2:
        raise ArgumentError(f"`x` must have two columns; got shape {tuple(points.shape)}.")
    labels = as_float64("y", y).reshape(-1)
    check_length("y", labels, len(points))
    check_count(resolution, "resolution")
    low, high = points.amin(0), points.amax(0)
    reach = (high - low).clamp(min=1e-6) * margin
    across, up = (
        torch.linspace(float(low[k] - reach[k]), float(high[k] + reach[k]), resolution, dtype=torch.float64)
        for k in (0, 1)
    )
    grid = torch.cartesian_prod(across, up)
    found = model.predict(grid.float()) if isinstance(model, Fitted) else model(grid.float())
    if not isinstance(found, CategoryPredictive):
        raise ArgumentError(f"`model` must predict classes; got a {type(found).__name__}.")
    ax = axes(ax, {"class": "Most probable class"}.get(show, "Where it is unsure"), "$x_1$", "$x_2$", grid=False)
    shape = (resolution, resolution)
    if show == "class":
        probs = _numpy(found.probs)
        probs = np.concatenate([1 - probs, probs], axis=1) if probs.shape[1] == 1 else probs
        ax.imshow(
            _tinted(probs).reshape(*shape, 3).transpose(1, 0, 2),
            extent=(float(across[0]), float(across[-1]), float(up[0]), float(up[-1])),
            origin="lower",
            aspect="auto",
            interpolation="nearest",
        )
    else:
        values = _numpy(found.entropy() if show == "entropy" else found.mutual_information())
        mesh = ax.pcolormesh(
            across.numpy(), up.numpy(), values.reshape(shape).T, cmap="cividis", shading="nearest", rasterized=True
        )
        bar = ax.figure.colorbar(mesh, ax=ax)
        bar.set_label(_WORDS[show], fontsize=9, color=INK)
        bar.ax.tick_params(colors=MUTED, labelsize=8)
    for label in np.unique(labels.numpy()).astype(int):
        name = class_names[label] if class_names is not None and label < len(class_names) else str(label)
        at = points[(labels == label)].numpy()
        ax.plot(
            at[:, 0],
            at[:, 1],
            MARKERS[label % len(MARKERS)],
            color=COLOURS[label % len(COLOURS)],
            markeredgecolor="white",
            markeredgewidth=0.6,
            markersize=4.5,
            label=plain(name),
        )
    ax.set_xlim(float(across[0]), float(across[-1]))
    ax.set_ylim(float(up[0]), float(up[-1]))
    made = ax.legend(fontsize=8, framealpha=0.85, loc="upper right")
    made.get_frame().set_linewidth(0)
    return ax


def _tinted(probs: Numbers) -> Numbers:
    """Each class's colour, mixed with white as its probability falls to that of a guess."""
    from matplotlib.colors import to_rgb

    best = probs.argmax(1)
    guess = 1 / probs.shape[1]
    strength = 0.15 + 0.45 * ((probs.max(1) - guess) / (1 - guess)).clip(0, 1)
    colours = np.array([to_rgb(COLOURS[k % len(COLOURS)]) for k in range(probs.shape[1])])[best]
    return np.asarray(1 - strength[:, None] * (1 - colours))


def _one_column(name: str, value: Array) -> Tensor:
    tensor = as_float64(name, value)
    if tensor.dim() == 2 and tensor.shape[1] == 1:
        tensor = tensor[:, 0]
    if tensor.dim() != 1:
        raise ArgumentError(f"`{name}` must hold one number a row; got shape {tuple(tensor.shape)}.")
    return tensor


def _numpy(value: Tensor) -> Numbers:
    return np.asarray(value.detach().double().cpu().numpy())
