"""The loss along a curve through weight space, and along the straight line between its ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_whole
from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Categories
from temperance.data.data import Data
from temperance.engine.engine import Engine
from temperance.model.target import Target
from temperance.posteriors import WeightCurve
from temperance.run.fitted import Fitted

_AT_ONCE = 8  # settings of θ evaluated together


@dataclass(frozen=True)
class PathLoss:
    """Losses at places t of a path and of the straight line between its ends.

    Attributes:
        t: where, from 0 to 1.
        loss, straight: mean negative log-likelihood along the path and along the straight line, in nats.
        disagreement, straight_disagreement: how far predictions are from those of the first end: the fraction of
            labels that changed, or the root mean square change of the predicted mean.
    """

    t: Tensor
    loss: Tensor
    straight: Tensor
    disagreement: Tensor
    straight_disagreement: Tensor

    @property
    def barrier(self) -> float:
        """How far the loss on the path rises above that of the worse end."""
        return _barrier(self.loss)

    @property
    def straight_barrier(self) -> float:
        """The same for the straight line."""
        return _barrier(self.straight)

    def __str__(self) -> str:
        ends = f"ends {float(self.loss[0]):.4g} and {float(self.loss[-1]):.4g}"
        return f"{ends}; barrier {self.barrier:.4g} on the path, {self.straight_barrier:.4g} on the straight line"


def _barrier(loss: Tensor) -> float:
    return float(loss.max() - torch.maximum(loss[0], loss[-1]))


def loss_along(run: Fitted | WeightCurve, data: Any, points: int = 61, target: Target | None = None) -> PathLoss:
    """The mean negative log-likelihood of ``data`` at ``points`` evenly spaced places of a path, both ends included.

    ``run`` is what ``fit`` returned for a ``Curve``, or a :class:`CurvePosterior` with its ``target``.

    >>> import temperance as tp
    >>> from temperance.posteriors.curve import CurvePosterior
    >>> target = tp.Target(torch.nn.Linear(1, 1, bias=False), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    >>> path, ones = CurvePosterior(torch.tensor([[0.0], [2.0]])), torch.ones(4, 1)
    >>> found = loss_along(path, (ones, ones), 3, target)
    >>> found.loss - found.loss.min(), found.disagreement
    (tensor([0.5000, 0.0000, 0.5000], dtype=torch.float64), tensor([0., 1., 2.], dtype=torch.float64))
    """
    path = run.posterior if isinstance(run, Fitted) else run
    if isinstance(run, Fitted) and target is None:
        target = run.target
    if not isinstance(path, WeightCurve):
        raise ArgumentError(
            f"`run` must be a CurvePosterior, or what fit returned for a Curve; got {type(path).__name__}."
        )
    if target is None:
        raise ArgumentError("`target` must be given where `run` is not what `fit` returned; got None.")
    if path.size != target.layout.size:
        raise ArgumentError(f"`run` must be over the target's {target.layout.size} parameters; got {path.size}.")
    check_whole(points, "points", "an integer, with the ends", least=2)
    known, engine = target.prepare(Data.of(data)).to(target.device), Engine(target)
    t = torch.linspace(0, 1, points, dtype=torch.float64)
    curve = _measure(path, t, known, engine)
    line = curve if path.straight is path else _measure(path.straight, t, known, engine)
    return PathLoss(t, curve[0], line[0], curve[1], line[1])


def _measure(path: WeightCurve, t: Tensor, data: Data, engine: Engine) -> tuple[Tensor, Tensor]:
    """Mean loss, and disagreement with the first end, at each t."""
    target = engine.target
    loss, change, numbers = torch.zeros_like(t), torch.zeros_like(t), 0
    classes = isinstance(target.likelihood.outcome, Categories)
    with torch.no_grad():
        for batch in data.full_pass():
            moved = batch.to(target.device)
            first: Tensor | None = None
            for low in range(0, len(t), _AT_ONCE):
                places = slice(low, min(low + _AT_ONCE, len(t)))
                theta = path.at(t[places]).to(target.device)
                outputs = engine.outputs(theta, moved.x)
                learned = target.layout.unflatten(theta, "likelihood")
                log_prob = target.likelihood.log_prob(outputs, moved.y, learned)
                weights = 1.0 if moved.weights is None else moved.weights
                loss[places] -= (log_prob.double() * weights).sum(-1).cpu()
                told = _predictions(target, target.likelihood.for_new_rows.mean(outputs, learned))
                if first is None:
                    first, numbers = told[0], numbers + told[0].numel()
                apart = (told != first).double() if classes else (told - first).double().square()
                change[places] += apart.flatten(1).sum(1).cpu()
    change /= numbers
    return loss / len(data), change if classes else change.sqrt()


def _predictions(target: Target, mean: Tensor) -> Tensor:
    """Labels of classes, the mean of anything else."""
    outcome = target.likelihood.outcome
    return outcome.answers(mean) if isinstance(outcome, Categories) else mean
