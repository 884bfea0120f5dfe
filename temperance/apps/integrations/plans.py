"""When to look at a training loop of somebody else's, and what has to hold of it for a posterior to come out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.inference.points.swag import SWAG
from temperance.model.target import Target
from temperance.run.optim.base import ChainOptimizer, weight_decay_of

Kind = Literal["swag", "draws"]
Unit = Literal["epochs", "steps"]


@dataclass(frozen=True, eq=False)
class CollectionPlan(Value):
    """What is collected, and when.

    Args:
        kind: ``"swag"``, a Gaussian from the moments of the iterates (:class:`temperance.SWAG`); ``"draws"``, copies of
            the weights, which are draws from the posterior where the optimiser is a sampler of ``tp.optim``.
        start: how much of the run passes before the first one: epochs or steps, or a fraction of the run below 1.
        every: epochs or steps from one to the next.
        unit: what ``start`` and ``every`` count: ``"epochs"`` or (optimiser) ``"steps"``.
        rank: deviations that SWAG keeps (0 for a diagonal).
        last: of ``"draws"``, keep only the last so many.

    >>> plan = CollectionPlan("draws", start=0.5, every=2, unit="steps")
    >>> [done for done in range(1, 11) if plan.due(done, 10, steps_per_epoch=5)]
    [7, 9]
    """

    kind: Kind = "swag"
    start: int | float = 0.5
    every: int = 1
    unit: Unit = "epochs"
    rank: int = 20
    last: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("swag", "draws"):
            raise ArgumentError(f'`kind` must be "swag" or "draws"; got {self.kind!r}.')
        if self.unit not in ("epochs", "steps"):
            raise ArgumentError(f'`unit` must be "epochs" or "steps"; got {self.unit!r}.')
        number = isinstance(self.start, int | float) and not isinstance(self.start, bool)
        if not (number and self.start >= 0 and (isinstance(self.start, int) or self.start < 1)):
            raise ArgumentError(
                f"`start` must be a number of {self.unit}, or a fraction in [0, 1); got {self.start!r}."
            )
        check_count(self.every, "every")
        if self.last is not None:
            check_count(self.last, "last")
        SWAG(rank=self.rank)

    def due(self, done: int, total: int | None, steps_per_epoch: int | None) -> bool:
        """Whether the place after ``done`` optimiser steps, of ``total``, is collected."""
        each = 1
        if self.unit == "epochs":
            if steps_per_epoch is None:
                raise ArgumentError('`unit` must be "steps" where the length of an epoch is not known; got "epochs".')
            each = steps_per_epoch
        burn = self.start * each
        if isinstance(self.start, float):
            if total is None:
                raise ArgumentError(
                    f"`start` must be a number of {self.unit} in a run of unknown length; got a fraction."
                )
            burn = math.ceil(self.start * total / each) * each
        return done > burn and (done - burn) % (self.every * each) == 0


def check_samplers(
    target: Target, num_data: int, optimizers: Sequence[Any], clipping: float | None, *, stacklevel: int = 3
) -> None:
    """Before training that shall give draws: the optimiser must be a sampler that knows N and the prior, gradients must
    not be clipped, and the likelihood must factorise over rows."""
    samplers = [optimizer for optimizer in optimizers if isinstance(optimizer, ChainOptimizer)]
    remarks = []
    if samplers:
        target.refuse_batch_norm("a sampler")
    else:
        remarks.append(
            "the optimiser is no sampler, so its iterates are not draws from the posterior: use one of "
            'temperance.run.optim, such as SGHMC, or kind="swag"'
        )
    if clipping:
        remarks.append(f"gradients are clipped at {clipping}, which changes what a sampler samples")
    for group in (group for sampler in samplers for group in sampler.param_groups):
        if group["num_data"] != num_data:
            raise ArgumentError(
                f"`num_data` of the sampler must be the number of training rows, {num_data} (not of a batch); got "
                f"{group['num_data']}."
            )
        remarks += _prior_remarks(target, group, num_data)
    for remark in dict.fromkeys(remarks):
        warnings.warn(remark + ".", TemperanceWarning, stacklevel=stacklevel)


def check_temperature(temperature: float, optimizers: Sequence[Any]) -> None:
    """When a draw is taken, the chain must be at the target's temperature (before, it may be cold)."""
    for optimizer in optimizers:
        for group in optimizer.param_groups if isinstance(optimizer, ChainOptimizer) else ():
            if group["temperature"] != temperature:
                raise ArgumentError(
                    f"`temperature` of the sampler must be the target's, {temperature}, when draws are taken; got "
                    f"{group['temperature']}. Start later, or change one of the two."
                )


def _prior_remarks(target: Target, group: Mapping[str, Any], num_data: int) -> list[str]:
    prior, layout = target.prior, target.layout
    pieces = [density.gaussian for _, density in prior.densities(layout, layout.network_entries)]
    if len(pieces) > 1 or pieces[0] is None or isinstance(pieces[0][1], Tensor):
        return []
    wanted = weight_decay_of(pieces[0][1], num_data)
    if math.isclose(group["weight_decay"], wanted, rel_tol=1e-4):
        return []
    return [
        f"{prior!r} is weight_decay={wanted:.4g} for {num_data} rows (`weight_decay_of`), but the sampler has "
        f"{group['weight_decay']:.4g}: right only where the loss adds the rest of the prior"
    ]
