"""What methods share that find a point first, by another method, and then put something around it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.data.data import Batch, Data
from temperance.inference.base import Cost, Inference, Info, Stackable
from temperance.inference.wrappers.collect import Collect
from temperance.inference.wrappers.ensemble import Ensemble
from temperance.model.target import Target
from temperance.posteriors import Point, Posterior


@dataclass
class PointState:
    """The base's state; without a base, the θ that was trained elsewhere, with its running statistics."""

    base: Any = None
    theta: Tensor | None = None
    buffers: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AroundPoint(Inference[Any], Stackable):
    """A method whose steps are those of ``base``, and whose posterior is made around the point that base finds. With
    ``base=None`` the point is ``start``, or the target's network as it is: nothing is trained.

    A subclass says what it puts there (:meth:`around`) and what it refuses before anything is trained
    (:meth:`check_target`).
    """

    without_base: ClassVar[str] = "it takes the network as it is"

    base: Inference[Any] | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.base is not None and not isinstance(self.base, Inference):
            raise ArgumentError(f"`base` must be a method such as MAP(lr=1e-3), or None; got {self.base!r}.")
        if isinstance(self.base, AroundPoint):
            raise ArgumentError(
                f"`base` must find a point; a {name} around a {type(self.base).__name__} has no meaning."
            )
        if isinstance(self.base, Ensemble | Collect):
            raise ArgumentError(
                f"`base` must find a point for {name}; {type(self.base).__name__} finds several. Put the {name} "
                f"inside: Ensemble({name}(MAP()), 5)."
            )

    @abstractmethod
    def around(self, target: Target, point: Point, data: Data | None) -> Posterior:
        """The posterior around a point."""

    def check_target(self, target: Target) -> None:
        """Refuse what is known to fail after training before it."""

    # ------------------------------------------------------------------ as the base has it

    @property
    def reads(self) -> Any:  # type: ignore[override]
        """As the base does."""
        return "minibatch" if self.base is None else self.base.reads

    @property
    def default_steps(self) -> int | None:  # type: ignore[override]
        """None to train: no steps."""
        return 0 if self.base is None else self.base.default_steps

    @property
    def streams(self) -> int:
        """As the base has it."""
        return 1 if self.base is None else self.base.streams

    @property
    def needs_held_out(self) -> bool:
        """As the base does."""
        return self.base is not None and self.base.needs_held_out

    def check_run(self, steps: int) -> None:
        """As the base does; without one there is nothing to run."""
        if self.base is not None:
            self.base.check_run(steps)
        elif steps:
            name = type(self).__name__
            raise ArgumentError(
                f"`epochs` or `steps`: {name}() without a base trains nothing, {self.without_base}; leave both out, or "
                f"give a base: {name}(MAP(lr=1e-3))."
            )

    def keep_in(self, state: Any, folder: Path) -> None:
        """As the base does; the state of all members at once is the base's own."""
        if self.base is not None:
            self.base.keep_in(state.base if isinstance(state, PointState) else state, folder)

    def remarks(self, state: Any) -> list[str]:
        """As the base does."""
        if self.base is None:
            return []
        return self.base.remarks(state.base if isinstance(state, PointState) else state)

    def cost(self) -> Cost:
        """A step is the base's; what comes after the last is not counted."""
        return Cost(0, 1) if self.base is None else self.base.cost()

    # ------------------------------------------------------------------ the contract

    def init(self, target: Target, theta: Tensor | None, rng: torch.Generator) -> Any:
        """See :class:`Inference`."""
        self.check_target(target)
        if self.base is not None:
            return PointState(self.base.init(target, theta, rng))
        start = target.initial_theta() if theta is None else theta
        if start.dim() != 1:
            raise ArgumentError(
                f"`start` must be a vector for {type(self).__name__}; got a matrix of shape {tuple(start.shape)}."
            )
        return PointState(None, start.clone(), target.workspace.running_buffers())

    def step(self, target: Target, state: Any, batch: Batch) -> tuple[Any, Info]:
        """A step of the base."""
        assert self.base is not None
        state.base, info = self.base.step(target, state.base, batch)
        return state, info

    def point(self, target: Target, state: PointState, data: Data | None) -> Point:
        """θ* and the running statistics that belong to it."""
        if self.base is None:
            assert state.theta is not None
            return Point(state.theta, state.buffers)
        return self._as_point(self.base.posterior(target, state.base, data))

    def _as_point(self, found: Posterior) -> Point:
        if not isinstance(found, Point):
            raise ArgumentError(
                f"`base` must find a point for {type(self).__name__}; {type(self.base).__name__} gives a "
                f"{type(found).__name__}."
            )
        return found

    def posterior(self, target: Target, state: Any, data: Data | None) -> Posterior:
        """See :meth:`around`."""
        return self.around(target, self.point(target, state, data), data)

    # ------------------------------------------------------------------ all members of an ensemble at once

    def can_stack(self, target: Target) -> bool:
        """As the base can."""
        return isinstance(self.base, Stackable) and self.base.can_stack(target)

    def init_stack(self, target: Target, theta: Tensor, rngs: Sequence[torch.Generator]) -> Any:
        """See :class:`Stackable`; the state is the base's own."""
        self.check_target(target)
        assert isinstance(self.base, Stackable)
        return self.base.init_stack(target, theta, rngs)

    def step_stack(self, target: Target, state: Any, batch: Batch) -> tuple[Any, Info]:
        """See :class:`Stackable`."""
        assert isinstance(self.base, Stackable)
        return self.base.step_stack(target, state, batch)

    def posteriors_stack(self, target: Target, state: Any, data: Data | None) -> tuple[Posterior, ...]:
        """One around each member."""
        assert isinstance(self.base, Stackable)
        found = self.base.posteriors_stack(target, state, data)
        return tuple(self.around(target, self._as_point(point), data) for point in found)
