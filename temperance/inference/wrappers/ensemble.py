"""``Ensemble``: several runs of any method, from different starts and in different orders of the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError
from temperance.core.seeds import generator, spawn
from temperance.core.status import EARLY_STOPPED, OK
from temperance.data.data import Batch, Data
from temperance.inference.base import Cost, Exactness, Inference, Info, Stackable
from temperance.model.target import Target
from temperance.posteriors import Mixture, Posterior


@dataclass
class EnsembleState:
    """One state for all members at once, or one each; and which members have finished."""

    stack: Any = None
    members: list[Any] = field(default_factory=list)
    done: list[bool] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Ensemble(Inference[EnsembleState]):
    """``size`` independent runs of ``base``; their posteriors become the components of a mixture.

    Each member has its own initialisation (unless ``start`` is given to ``fit``) and its own order of the data. Small
    networks are trained all at once, as one batched network; ``batched`` forces (``True``) or forbids (``False``) it.
    Both ways give the same members up to rounding.

    >>> import temperance as tp
    >>> Ensemble(tp.MAP(lr=1e-3), 5).size
    5
    """

    base: Inference[Any]
    size: int = 5
    batched: bool | None = None

    exact: ClassVar[Exactness] = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        if not isinstance(self.base, Inference):
            raise ArgumentError(f"`base` must be a method; got {type(self.base).__name__}.")
        check_count(self.size, "size")
        if self.base.alone:
            raise ArgumentError(
                "`base` chooses a noise level by evidence, and members of an ensemble would choose different ones; let "
                "the noise be learned, Normal(), in place of Tune(noise=True)."
            )

    @property
    def reads(self) -> Any:  # type: ignore[override]
        """As the base does."""
        return self.base.reads

    @property
    def default_steps(self) -> Any:  # type: ignore[override]
        """As the base has it."""
        return self.base.default_steps

    @property
    def streams(self) -> int:
        """One order of the data for each member."""
        return self.size * self.base.streams

    @property
    def needs_held_out(self) -> bool:
        """As the base does."""
        return self.base.needs_held_out

    def check_run(self, steps: int) -> None:
        """As the base does."""
        self.base.check_run(steps)

    def keep_in(self, state: EnsembleState, folder: Path) -> None:
        """Each member for itself."""
        for member in state.members:
            self.base.keep_in(member, folder)
        if state.stack is not None:
            self.base.keep_in(state.stack, folder)

    def remarks(self, state: EnsembleState) -> list[str]:
        """Those of all members at once, or of each."""
        if state.stack is not None:
            return self.base.remarks(state.stack)
        told = [(k, remark) for k, member in enumerate(state.members) for remark in self.base.remarks(member)]
        return [f"member {k + 1} of {self.size}: {remark}" for k, remark in told]

    def cost(self) -> Cost:
        """``size`` times the base."""
        each = self.base.cost()
        return Cost(self.size * each.gradients_per_step, self.size * each.copies_of_theta)

    def init(self, target: Target, theta: Tensor | None, rng: torch.Generator) -> EnsembleState:
        """See :class:`Inference`. ``theta``: one start for all, or a row for each member."""
        seeds = [spawn(rng) for _ in range(self.size)]
        starts = self._starts(target, theta, seeds)
        rngs = [generator(seed, "member") for seed in seeds]
        if self._stacks(target):
            assert isinstance(self.base, Stackable)
            return EnsembleState(stack=self.base.init_stack(target, torch.stack(starts), rngs), done=[False])
        members = [self.base.init(target, start, r) for start, r in zip(starts, rngs, strict=True)]
        return EnsembleState(members=members, done=[False] * self.size)

    def _starts(self, target: Target, theta: Tensor | None, seeds: list[int]) -> list[Tensor]:
        if theta is None:
            return [target.fresh_theta(seed) for seed in seeds]
        if theta.dim() == 1:
            return [theta.clone() for _ in seeds]
        if len(theta) != self.size:
            raise ArgumentError(f"`start` must have one row for each of the {self.size} members; got {len(theta)}.")
        return [row.clone() for row in theta]

    def _stacks(self, target: Target) -> bool:
        able = isinstance(self.base, Stackable) and self.base.can_stack(target)
        if self.batched is None:
            return able and self.size > 1 and target.prefers_batched_training()
        if self.batched and not able:
            raise ArgumentError(
                "`batched=True` needs a method and a network that can be batched over members (an elementwise "
                "optimiser, no batch norm, no operation that torch.func.vmap refuses); use batched=None."
            )
        return self.batched

    def step(self, target: Target, state: EnsembleState, batch: Batch) -> tuple[EnsembleState, Info]:
        """See :class:`Inference`."""
        if state.stack is not None:
            assert isinstance(self.base, Stackable)
            state.stack, info = self.base.step_stack(target, state.stack, batch)
            return state, info
        losses, status, info = [], OK, Info(0.0, EARLY_STOPPED)
        metrics: dict[str, list[float]] = {}
        for k, member in enumerate(state.members):
            if state.done[k]:
                continue
            state.members[k], info = self.base.step(target, member, self._share(batch, k))
            losses.append(info.loss)
            for name, value in info.metrics.items():
                metrics.setdefault(name, []).append(value)
            state.done[k] = info.done
            if not info.status.ok:
                status = info.status.about(f"member {k + 1} of {self.size}")
                break
        done = all(state.done)
        means = {name: sum(values) / len(values) for name, values in metrics.items()}
        return state, Info(sum(losses) / max(1, len(losses)), info.status if done else status, done, means)

    def _share(self, batch: Batch, k: int) -> Batch:
        if batch.streams is None:
            return batch
        if self.base.streams == 1:
            return batch.stream(k)
        return batch.stream_range(k * self.base.streams, (k + 1) * self.base.streams)

    def posterior(self, target: Target, state: EnsembleState, data: Data | None) -> Posterior:
        """A :class:`Mixture` with one component for each member."""
        if state.stack is not None:
            assert isinstance(self.base, Stackable)
            return Mixture(self.base.posteriors_stack(target, state.stack, data))
        return Mixture(tuple(self.base.posterior(target, member, data) for member in state.members))
