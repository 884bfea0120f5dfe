"""``On``: a method for a part of the network; the rest stays where it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.base import Exactness, Facts, Inference, Info, Starts, Wrapper, WrapperState
from temperance.inference.card import Card, MethodFamily
from temperance.inference.curvature.subsets import Subnetwork
from temperance.model.theta import Subset, check_subset
from temperance.posteriors import Point, Posterior, Pushforward


@dataclass
class OnState(WrapperState):
    """The method's own state, θ as it was at the start, and the smaller target that the method works on."""

    rest: Tensor
    engine: Engine | None = field(default=None, metadata=SCRATCH)


@dataclass(frozen=True, eq=False)
class On(Wrapper):
    """``base`` over the parameters that ``subset`` names; all others stay as ``start`` has them, or as the network was
    given: the same as ``base`` on ``Target(..., subset=subset)``. So bring a network that is trained.

    The Laplace family is an exception that saves a second fit: its base trains the whole network, and only the
    curvature is that of the subset. An ``Ensemble`` of such a method is an ensemble of it on the subset.

    Args:
        subset: ``last_layer``, ``biases``, a name, prefix or pattern, several of them, or a predicate; for a
            ``Laplace`` also ``LargestVariance(k)`` or ``LargestMagnitude(k)``.
        base: any method.

    >>> import temperance as tp
    >>> train, test = tp.data.load("iris")
    >>> target = tp.Target(tp.nn.MLP(4, [16], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> method = tp.On(tp.last_layer, tp.Laplace(tp.MAP(lr=1e-2), tp.Dense()))
    >>> tp.fit(target, method, train, epochs=20).posterior.operator.rank
    51
    """

    card: ClassVar[Card] = Card(
        "a method on a part of the network; the rest stays as it is",
        MethodFamily.WRAPPERS,
        cost="as its base, for the part",
        shown=("On(last_layer, Variational())",),
    )

    subset: Subset | Subnetwork
    base: Inference[Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.subset is None or not isinstance(self.subset, Subnetwork):
            if self.subset is None:
                raise ArgumentError("`subset` must name parameters, e.g. last_layer or 'head'; got None.")
            check_subset(self.subset, "subset")
        if self._whole is None and isinstance(self.subset, Subnetwork):
            raise ArgumentError(
                f"On cannot wrap {type(self.base).__name__} with single weights (`subset`={self.subset!r}): they are "
                "for the Laplace family only. Name parameters, e.g. On(last_layer, ...)."
            )

    @cached_property
    def _whole(self) -> Inference[Any] | None:
        """The method that trains everything and spreads the part, where the base is of that kind."""
        return self.base.on_part(self.subset)

    def facts(self) -> Facts:
        """The base's, of a shorter θ, and the θ that the rest stays at."""
        whole = self._whole
        if whole is not None:
            return whole.facts()
        base = self.base.facts()
        gives = Point if base.gives.single else Pushforward
        return replace(base, gives=gives, exact=Exactness.APPROXIMATE, cost=base.cost.plus(1))

    def on_part(self, subset: Any) -> Inference[Any] | None:
        """The part of a part is not told to the Laplace family."""
        if self._whole is not None:
            raise ArgumentError(
                f"On cannot wrap an On of {type(self.base).__name__}: there are two subsets. Name one: "
                f"On({self.subset!r}, ...)."
            )
        return None

    def at_once(self, engine: Engine, starts: Starts) -> bool:
        """As the base can on the part, where all members have the same rest."""
        whole = self._whole
        if whole is not None:
            return whole.at_once(engine, starts)
        if not self._rests_agree(engine, starts):
            return False
        index, smaller = self._part(engine, self._rest(engine, starts))
        return self.base.at_once(smaller, starts.of_part(index))

    def _names(self, engine: Engine) -> list[str]:
        assert not isinstance(self.subset, Subnetwork)
        inside = isinstance(self.base, On) and not isinstance(self.base.subset, Subnetwork)
        names = engine.target.names(self.subset)
        if inside:
            assert isinstance(self.base, On)
            common = set(names) & set(engine.target.names(self.base.subset))  # type: ignore[arg-type]
            if not common:
                raise ArgumentError(
                    f"`base`: On cannot wrap On where their subsets have nothing in common; {self.subset!r} and "
                    f"{self.base.subset!r} share no parameter. Write one On(subset, method)."
                )
        return names

    def _rests_agree(self, engine: Engine, starts: Starts) -> bool:
        if starts.given is None or len(starts.given) == 1:
            return True
        known = torch.ones(engine.layout.size, dtype=torch.bool)
        known[engine.target.places(self._names(engine))] = False
        rest = starts.given[:, known.to(starts.given.device)]
        return bool((rest == rest[0]).all())

    def _rest(self, engine: Engine, starts: Starts) -> Tensor:
        """θ of the start: its part outside of the subset is what stays."""
        return engine.target.initial_theta() if starts.given is None else starts.given[0].clone()

    def _part(self, engine: Engine, rest: Tensor) -> tuple[Tensor, Engine]:
        names = self._names(engine)
        return engine.target.places(names), engine.on(engine.target.restrict(names, rest))

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> OnState:
        """See :class:`Inference`."""
        whole = self._whole
        if whole is not None:
            return OnState(whole.init(engine, starts, rngs), torch.zeros(0))
        if not self._rests_agree(engine, starts):
            raise ArgumentError(
                f"`start` must have rows that agree outside of the subset {self.subset!r}, for On keeps one such rest; "
                f"these differ. Write Ensemble(On({self.subset!r}, ...), n) for members with rests of their own."
            )
        rest = self._rest(engine, starts)
        index, smaller = self._part(engine, rest)
        return OnState(self.base.init(smaller, starts.of_part(index), rngs), rest, smaller)

    def _here(self, engine: Engine, state: OnState) -> tuple[Inference[Any], Engine]:
        """Who works, and on which target."""
        whole = self._whole
        if whole is not None:
            return whole, engine
        if state.engine is None:
            state.engine = self._part(engine, state.rest)[1]
        return self.base, state.engine

    def step(self, engine: Engine, state: OnState, batch: Batch) -> tuple[OnState, Info]:
        """A step of the method."""
        method, here = self._here(engine, state)
        state.base, info = method.step(here, state.base, batch)
        return state, info

    def posteriors(self, engine: Engine, state: OnState, data: Data | None) -> tuple[Posterior, ...]:
        """A :class:`Pushforward` for each member (points stay points); of the Laplace family, its own."""
        method, here = self._here(engine, state)
        found = method.posteriors(here, state.base, data)
        if method is not self.base:
            return found
        index = engine.target.places(self._names(engine))
        return tuple(_in_place(part, index, state.rest) for part in found)

    def keep_in(self, state: OnState, folder: Path) -> None:
        """As the method does."""
        (self._whole or self.base).keep_in(state.base, folder)

    def remarks(self, state: OnState) -> list[str]:
        """As the method does."""
        return (self._whole or self.base).remarks(state.base)


def _in_place(part: Posterior, index: Tensor, rest: Tensor) -> Posterior:
    made = Pushforward(part, index, rest.clone())
    return Point(made.mean, made.buffers) if part.single else made
