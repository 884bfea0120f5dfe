"""Weight space: which weights go together, and what lies between two modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.judge.diagnose import PathLoss
from temperance.judge.diagnose.chains import evenly
from temperance.model.theta import Layout
from temperance.posteriors import Chain, Posterior, Spread
from temperance.predict.scores.classification import Array, as_float64, check_count
from temperance.run.fitted import Fitted
from temperance.show.plot.style import BLUE, INK, MUTED, Numbers, axes, legend, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LARGEST = 4000  # parameters whose dense covariance is still made
_DRAWS = 1000  # for posteriors without a covariance of their own


def covariance(
    posterior: Fitted | Posterior | Array,
    ax: Axes | None = None,
    layout: Layout | None = None,
    max_parameters: int = 300,
    seed: int = 0,
) -> Axes:
    """Correlations of the weights as a heat map: blue for weights that rise together, red for one up, one down.

    Blocks are parted and named by the layout, which a ``Fitted`` brings along. Of more than ``max_parameters`` weights
    so many are shown, evenly spaced in θ. A Gaussian's own covariance is used; of draws that of the draws (with few
    draws correlations of up to about 2/√draws are noise); of other posteriors that of 1,000 draws.

    Args:
        posterior: what ``fit`` returned, a posterior, or a covariance matrix P × P.
        ax: where to draw.
        layout: names of the tensors in θ.
        max_parameters: at most so many rows and columns.
        seed: of the draws.
    """
    check_count(max_parameters, "max_parameters")
    if isinstance(posterior, Fitted):
        layout = posterior.target.layout if layout is None else layout
        posterior = posterior.posterior
    size = posterior.size if isinstance(posterior, Posterior) else len(as_float64("posterior", posterior, dims=2))
    if layout is not None and layout.size != size:
        raise ArgumentError(f"`layout` must be of the {size} parameters; got one of {layout.size}.")
    picked = evenly(size, max_parameters)
    matrix = _correlations(posterior, picked, seed)
    ax = axes(ax, "Correlations of the weights", "", "", grid=False)
    image = ax.imshow(matrix, cmap="RdBu", vmin=-1, vmax=1, interpolation="nearest")
    bar = ax.figure.colorbar(image, ax=ax)
    bar.set_label("correlation", fontsize=9, color=INK)
    bar.ax.tick_params(colors=MUTED, labelsize=8)
    if layout is not None:
        places = picked.numpy()
        ticks: list[float] = []
        names: list[str] = []
        for entry in layout.entries:
            inside = np.nonzero((places >= entry.start) & (places < entry.stop))[0]
            if len(inside):
                centre = float(inside.mean())
                if not ticks or centre - ticks[-1] > len(places) / 25:  # names of tiny blocks would overlap
                    ticks.append(centre)
                    names.append(plain(entry.name, 24))
                if inside[0] > 0:
                    ax.axhline(inside[0] - 0.5, color=INK, linewidth=0.6)
                    ax.axvline(inside[0] - 0.5, color=INK, linewidth=0.6)
        ax.set_yticks(ticks, names, fontsize=8)
        ax.set_xticks(ticks, names, fontsize=8, rotation=90)
    return ax


def _correlations(posterior: Posterior | Array, picked: Tensor, seed: int) -> Numbers:
    if isinstance(posterior, Posterior):
        if isinstance(posterior, Spread) and posterior.size <= _LARGEST:
            matrix = posterior.operator.dense().double().cpu()[picked][:, picked]
        else:
            drawn = posterior.theta if isinstance(posterior, Chain) else posterior.sample(_DRAWS, seed)
            if len(drawn) < 2:
                raise ArgumentError("`posterior` must have at least two draws for a covariance; got one.")
            matrix = torch.cov(drawn[:, picked.to(drawn.device)].double().cpu().T).reshape(len(picked), len(picked))
    else:
        matrix = as_float64("posterior", posterior, dims=2)
        if matrix.shape[0] != matrix.shape[1] or not torch.allclose(matrix, matrix.T, rtol=1e-4, atol=1e-8):
            raise ArgumentError(
                f"`posterior` must be a symmetric covariance matrix; got shape {tuple(matrix.shape)}"
                + (", not symmetric." if matrix.shape[0] == matrix.shape[1] else ".")
            )
        if bool((matrix.diagonal() < 0).any()):
            raise ArgumentError("`posterior` must have variances on its diagonal; got a negative number there.")
        matrix = matrix[picked][:, picked]
    scale = matrix.diagonal().clamp(min=0).sqrt()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))  # a weight that does not vary goes with nothing
    return np.asarray((matrix / scale / scale.unsqueeze(-1)).clamp(-1, 1).numpy())


def loss_along(found: PathLoss | Any, ax: Axes | None = None) -> Axes:
    """The loss along a path between two modes, and along the straight line: what ``diagnose.loss_along`` returned.

    >>> t = torch.tensor([0.0, 0.5, 1.0])
    >>> ax = loss_along(PathLoss(t, torch.zeros(3), torch.tensor([0.0, 1.0, 0.0]), t, t))
    >>> ax.get_legend().get_texts()[1].get_text()
    'straight line (barrier 1)'
    """
    if not isinstance(found, PathLoss):
        raise ArgumentError(f"`found` must be what `diagnose.loss_along` returned; got {type(found).__name__}.")
    ax = axes(ax, "Loss between two modes", "place on the path", "mean loss (nats)")
    t = found.t.double().cpu().numpy()
    ax.plot(t, found.loss.double().cpu().numpy(), color=BLUE, label=f"path (barrier {found.barrier:.3g})")
    ax.plot(
        t,
        found.straight.double().cpu().numpy(),
        color=MUTED,
        linestyle="--",
        label=f"straight line (barrier {found.straight_barrier:.3g})",
    )
    legend(ax, loc="best")
    return ax
