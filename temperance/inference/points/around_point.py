"""What methods share that find a point first, by another method, and then put something around it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import shown
from temperance.core.errors import ArgumentError
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.base import Cost, Facts, Inference, Info, Starts, Wrapper, WrapperState, refuse
from temperance.inference.card import Card, MethodFamily
from temperance.posteriors import Point, Posterior, centre_of


@dataclass
class AsItIsState:
    """θ, members × P, and the running statistics that belong to it."""

    theta: Tensor
    buffers: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AsItIs(Inference[AsItIsState]):
    """Trains nothing: the point is ``start``, or the target's network as it is. What a method around a point has for a
    base when it was given none."""

    card: ClassVar[Card] = Card("trains nothing: the point is the network as it is", MethodFamily.POINTS)

    def facts(self) -> Facts:
        """No steps."""
        return Facts(gives=Point, cost=Cost(0, 1), default_steps=0)

    def at_once(self, engine: Engine, starts: Starts) -> bool:
        """Rows are rows, where there are no statistics beside them."""
        return not engine.target.moving

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> AsItIsState:
        """See :class:`Inference`. The network as it is means the given one, also for one of several members."""
        return AsItIsState(replace(starts, seeds=None).rows(engine), engine.target.running_buffers())

    def step(self, engine: Engine, state: AsItIsState, batch: Batch) -> tuple[AsItIsState, Info]:
        """Never called: a run of no steps."""
        raise ArgumentError("there is nothing to train.")

    def posteriors(self, engine: Engine, state: AsItIsState, data: Data | None) -> tuple[Posterior, ...]:
        """A :class:`Point` for each member."""
        return tuple(Point(row, state.buffers) for row in state.theta)


@dataclass(frozen=True, eq=False)
class AroundPoint(Wrapper):
    """A method whose steps are those of ``base``, and whose posterior is made around the point that base finds. With
    ``base=None`` the point is ``start``, or the target's network as it is: nothing is trained.

    A subclass says what it puts there (:meth:`around`) and what it refuses before anything is trained
    (:meth:`check_target`).
    """

    without_base: ClassVar[str] = "it takes the network as it is"

    base: Inference[Any] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.base is None:
            object.__setattr__(self, "base", AsItIs())
        elif not isinstance(self.base, Inference):
            raise ArgumentError(f"`base` must be a method such as MAP(lr=1e-3), or None; got {shown(self.base)}.")
        self.check_base(self.base)

    @property
    def trains(self) -> bool:
        """Whether there is something to train."""
        return not isinstance(self.base, AsItIs)

    def check_base(self, base: Inference[Any]) -> None:
        """It must find a point."""
        name = type(self).__name__
        gives = base.facts().gives
        if not gives.single:
            refuse(
                self,
                base,
                f"{name} is put around a point, and {type(base).__name__} gives a {gives.__name__}",
                f"{name}(MAP(lr=1e-3)), or put the {name} inside: Ensemble({name}(MAP(lr=1e-3)), 5)",
            )

    @abstractmethod
    def around(self, engine: Engine, point: Point, data: Data | None) -> Posterior:
        """The posterior around a point."""

    def check_target(self, engine: Engine) -> None:
        """Refuse what is known to fail after training before it."""

    def check_run(self, steps: int) -> None:
        """As the base does; without one there is nothing to run."""
        name = type(self).__name__
        if steps and not self.trains:
            raise ArgumentError(
                f"`epochs` or `steps`: {name}() without a base trains nothing, {self.without_base}; leave both out, or "
                f"give a base: {name}(MAP(lr=1e-3))."
            )
        self.base.check_run(steps)

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> Any:
        """See :class:`Inference`."""
        self.check_target(engine)
        return WrapperState(self.base.init(engine, starts, rngs))

    def rows(self, data: Data | None) -> Data | None:
        """The data; rows that the base has learned from choose nothing, though they were held out before."""
        return data.with_held_out() if data is not None and self.base.facts().learns_held_out else data

    def points(self, engine: Engine, state: Any, data: Data | None) -> list[Point]:
        """θ* of each member, and the running statistics that belong to it."""
        found = self.base.posteriors(engine, state.base, data)
        assert all(point.single for point in found)
        return [Point(centre.mean, centre.buffers) for centre in map(centre_of, found)]

    def posteriors(self, engine: Engine, state: Any, data: Data | None) -> tuple[Posterior, ...]:
        """See :meth:`around`."""
        data = self.rows(data)
        return tuple(self.around(engine, point, data) for point in self.points(engine, state, data))
