"""Is doubt where the errors and the strange inputs are?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from temperance.core.checks import check_instance
from temperance.core.errors import ArgumentError
from temperance.predict import CategoryPredictive, scores
from temperance.predict.scores.classification import Array, as_float64, check_count
from temperance.show.plot.calibration import labels_of
from temperance.show.plot.style import BLUE, COLOURS, GREEN, MUTED, axes, few_ticks, legend, plain, short, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHES = ("-", "--", "-.", ":")


def risk_coverage(score: Array | CategoryPredictive, error: Any, ax: Axes | None = None) -> Axes:
    """The mean error among the rows that are answered, as the most doubtful ones are passed on.

    Between the line of a score that knows nothing (flat, in the mean) and the oracle that passes on the errors first.
    Lines of more than 2,000 points are thinned.

    Args:
        score: N numbers, higher where there is more doubt; or a predictive of classes, whose entropy it then is.
        error: N losses: 0 or 1 for right or wrong, or absolute errors. With a predictive the N labels: an error is a
            most probable class that differs (of several yes/no labels, the share of them that do).
        ax: where to draw.

    >>> ax = risk_coverage([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1])
    >>> [line.get_label().split(" (")[0] for line in ax.lines]
    ['at random', 'oracle', 'by its own doubt']
    """
    if isinstance(score, CategoryPredictive):
        said = score.predict().detach().cpu().reshape(len(score), -1)
        error = (said != labels_of(score, error)).double().mean(1)
        score = score.entropy().detach().double().cpu()
    curve = scores.risk_coverage(score, error)
    loss = as_float64("error", error, dims=1)
    kept = np.arange(1, len(loss) + 1)
    best = loss.sort().values.numpy().cumsum() / kept
    whole = float(loss.mean())
    share, best_shown, risk = thinned(curve.coverage.numpy(), best, curve.risk.numpy())
    ax = axes(ax, "Error if doubtful rows are passed on", "share of rows answered", "mean error among the answered")
    ax.plot([0, 1], [whole, whole], color=MUTED, linestyle="--", linewidth=1.2, label=f"at random ({short(whole)})")
    ax.plot(share, best_shown, color=GREEN, linestyle=":", linewidth=1.8, label=f"oracle ({short(curve.oracle_aurc)})")
    ax.plot(share, risk, color=BLUE, linewidth=1.8, label=f"by its own doubt ({short(curve.aurc)})")
    ax.set_xlim(0, 1.02)
    ax.set_ylim(0, max(float(risk.max()), whole, 0.01 * (whole == 0)) * 1.55)
    few_ticks(ax.yaxis)
    legend(ax, loc="upper left", title="mean over all shares", title_fontsize=9)
    ax.get_legend().get_title().set_color(MUTED)  # type: ignore[union-attr]
    return ax


def uncertainty_histogram(
    groups: Mapping[str, Array], ax: Axes | None = None, bins: int = 30, xlabel: str = "uncertainty"
) -> Axes:
    """How uncertainty is distributed in several groups of rows, each scaled to shares of its own rows.

    Of two groups, the area under the ROC curve says how well the uncertainty tells them apart: the probability that a
    row of the second has more of it than a row of the first.

    >>> ax = uncertainty_histogram({"in": [0.1, 0.2, 0.3], "out": [0.2, 0.9]})
    >>> ax.get_title()
    'AUROC 0.75'
    """
    if not isinstance(groups, Mapping) or not groups:
        raise ArgumentError(f"`groups` must map at least one name to its numbers; got {groups!r:.80}.")
    check_count(bins, "bins")
    values = {name: as_float64(f"groups[{name!r}]", part, dims=1).numpy() for name, part in groups.items()}
    low = min(float(part.min()) for part in values.values())
    high = max(float(part.max()) for part in values.values())
    if high - low < 1e-12:  # all alike: one bar, wide enough to be seen
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, bins + 1)
    title = "Uncertainty"
    if len(values) == 2:
        title = f"AUROC {scores.auroc(*values.values()):.3g}"
    check_instance(xlabel, "xlabel", str, "a text")
    ax = axes(ax, title, xlabel, "share of the group's rows")
    for k, (name, part) in enumerate(values.items()):
        share, _ = np.histogram(part, edges)
        colour = COLOURS[k % len(COLOURS)]
        ax.stairs(share / len(part), edges, fill=True, color=colour, alpha=0.25, linewidth=0)
        ax.stairs(
            share / len(part),
            edges,
            color=colour,
            linewidth=1.6,
            linestyle=_DASHES[k % len(_DASHES)],
            label=f"{plain(name)} ({len(part):,})",
        )
    ax.set_ylim(bottom=0)
    few_ticks(ax.xaxis)
    legend(ax)
    return ax
