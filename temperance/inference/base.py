"""The contract: ``facts``, ``init``, ``step``, ``posteriors``.

A method is a frozen dataclass of hyperparameters; it holds no data, no weights and no target. It runs E members at
once: θ is E × P, and one member is E = 1. ``State`` holds exactly what the next step needs, random generators
included, and can be written down: a killed run resumes bit for bit. ``Info`` holds everything else and is never read
back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NoReturn, TypeVar

import torch
from torch import Tensor

from temperance.core.checks import check_count, shown
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.core.status import OK, Status
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.card import Card
from temperance.posteriors.base import Posterior

State = TypeVar("State")


class NeedsData(ArgumentError):
    """Raised by ``posteriors`` when it is asked without the data that its second phase needs."""


class Exactness(Enum):
    """What a method gets exactly right on a linear-Gaussian model with posterior N(μ, Λ⁻¹); measured by
    :func:`temperance.testing.check_inference`."""

    MEAN = "a point at μ"
    POSTERIOR = "mean μ, covariance T Λ⁻¹"
    DIAGONAL = "mean μ, variances T / Λᵢᵢ"
    OWN_LAW = "mean μ; T Λ⁻¹ as the step vanishes"
    APPROXIMATE = "–"


@dataclass(frozen=True)
class Cost:
    """What a method costs: gradients a step, and how many vectors of the size of θ its state holds."""

    gradients_per_step: float
    copies_of_theta: float

    def times(self, count: float) -> Cost:
        """That of so many members."""
        return Cost(count * self.gradients_per_step, count * self.copies_of_theta)

    def plus(self, copies: float) -> Cost:
        """With so many more vectors of the size of θ."""
        return Cost(self.gradients_per_step, self.copies_of_theta + copies)


@dataclass(frozen=True)
class Facts:
    """What is true of a method with its settings, before it has seen a problem. A wrapper's are made of its base's.

    Attributes:
        gives: the type of posterior that each member ends with; a wrapper refuses a base by it.
        reads: minibatches, or all data at each step.
        exact: what is exact on a linear-Gaussian model; declared here, measured by
            :func:`temperance.testing.check_inference`.
        cost: declared here, measured there too.
        default_steps: how many steps to take when the caller names neither epochs nor steps; ``None``: he must.
        streams: how many independent orders of the data a step takes.
        held_out: whether it looks at held-out data.
        sets_aside: how many rows, a tenth of them at most, ``fit`` holds out for it where the caller names none;
            ``None``: he must.
        learns_held_out: whether these rows are learned from in the end, so that nobody may choose or judge by them any
            more.
        own_likelihood: whether a posterior chooses a likelihood of its own, so that it cannot be one of several in a
            mixture.
        own_dropout: whether it may train with other probabilities of dropout than the network's, so that masks put
            around its point would be those of another network.
        settling: steps whose places are no draws because a sampler still tunes itself; ``None`` if it never does.
        longer: how many times as long as one network's training a run should be that holds a training as a part, so
            that this part is as long; whoever chooses a length for a user goes by it.
    """

    gives: type[Posterior]
    reads: Literal["minibatch", "full"] = "minibatch"
    exact: Exactness = Exactness.APPROXIMATE
    cost: Cost = field(default_factory=lambda: Cost(1, 1))
    default_steps: int | None = None
    streams: int = 1
    held_out: bool = False
    sets_aside: int | None = None
    learns_held_out: bool = False
    own_likelihood: bool = False
    own_dropout: bool = False
    settling: int | None = None
    longer: float = 1.0


@dataclass
class Info:
    """What happened in a step: for progress bars and diagnostics, never for the next step."""

    loss: float
    status: Status = OK
    done: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Starts:
    """Where E members begin: at rows that were given, at fresh weights made from a seed each, or at the network as it
    is. A method asks for :meth:`rows` of the target that it works on, which may be one of a part of the network: so a
    start means the same inside any wrapper.

    >>> Starts.of(None).count, Starts.of(torch.zeros(3, 7)).count
    (1, 1)
    """

    count: int = 1
    given: Tensor | None = None
    seeds: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_count(self.count, "count")

    @classmethod
    def of(cls, theta: Tensor | None) -> Starts:
        """One member, which starts at ``theta`` (P, or a matrix for methods of several settings) or as the network
        is."""
        return cls(1, None if theta is None else theta.reshape(-1, theta.shape[-1]))

    @classmethod
    def at(cls, theta: Tensor) -> Starts:
        """A member for each row."""
        return cls(len(theta), theta)

    def spread(self, seeds: Sequence[int]) -> Starts:
        """As many members as there are ``seeds``, which start at what was given, or else afresh."""
        return Starts(len(seeds), self.given, None if self.given is not None else tuple(seeds))

    def rows(self, engine: Engine, each: int = 1) -> Tensor:
        """E·``each`` × P, in memory of its own: one row for each member, or ``each`` of them."""
        wanted = self.count * each
        if self.given is not None:
            have = len(self.given)
            if have not in (1, self.count, wanted):
                raise ArgumentError(
                    f"`start` must be one setting of θ, or have a row for each of the {wanted} members; got a matrix "
                    f"of {have} rows."
                )
            once = self.given.repeat_interleave(wanted // have, dim=0) if have < wanted else self.given.clone()
            return once.contiguous()
        if self.seeds is not None:
            made = torch.stack([engine.target.fresh_theta(seed) for seed in self.seeds])
        else:
            made = engine.target.initial_theta().expand(self.count, -1)
        return made.repeat_interleave(each, dim=0).contiguous()

    def one(self, engine: Engine) -> Tensor:
        """The start of a method that runs one member at a time: P numbers."""
        found = self.rows(engine)
        assert len(found) == 1, "several members were given to a method that takes one"
        return found[0]

    def member(self, k: int) -> Starts:
        """That of member ``k`` alone."""
        given = self.given if self.given is None or len(self.given) == 1 else self._share(k)
        return Starts(1, given, None if self.seeds is None else (self.seeds[k],))

    def _share(self, k: int) -> Tensor:
        assert self.given is not None
        each, left = divmod(len(self.given), self.count)
        if left:
            raise ArgumentError(
                f"`start` must be one setting of θ, or have as many rows for each of the {self.count} members; got a "
                f"matrix of {len(self.given)} rows."
            )
        return self.given[k * each : (k + 1) * each]

    def of_part(self, index: Tensor) -> Starts:
        """The same for some coordinates of θ."""
        return replace(self, given=None if self.given is None else self.given[:, index.to(self.given.device)])


class Inference(Value, ABC, Generic[State]):
    """A way to approximate the posterior of a :class:`~temperance.Target`."""

    card: ClassVar[Card]
    """What lists, pages and reports say of it; :func:`~temperance.inference.card.card_of` makes one where it lacks."""

    @abstractmethod
    def facts(self) -> Facts:
        """What is true of the method with these settings."""

    def law(self, precision: Tensor, num_data: int, temperature: float) -> Tensor:
        """The covariance that a method of :attr:`Exactness.OWN_LAW` has at its step on N(μ, Λ⁻¹)."""
        raise NotImplementedError(f"{type(self).__name__} declares no law of its own.")

    # ------------------------------------------------------------------ before the first step

    def check_run(self, steps: int) -> None:
        """Raise :class:`ArgumentError` if a run of so many steps makes no sense."""

    def at_once(self, engine: Engine, starts: Starts) -> bool:
        """Whether several members can be the rows of one state; if not, they are run one after the other."""
        return False

    def on_part(self, subset: Any) -> Inference[Any] | None:
        """The method that does for a part of the network what this one does for all of it, where that is more than to
        run on a target of the part alone: the Laplace family trains everything and spreads the part."""
        return None

    # ------------------------------------------------------------------ the run

    @abstractmethod
    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> State:
        """The state of E members before the first step, with a generator for each."""

    @abstractmethod
    def step(self, engine: Engine, state: State, batch: Batch) -> tuple[State, Info]:
        """One step of all members, each on its own stream of the batch. It may write into the tensors of ``state``."""

    @abstractmethod
    def posteriors(self, engine: Engine, state: State, data: Data | None) -> tuple[Posterior, ...]:
        """What each member has learned. Methods of two phases use ``data`` for the second."""

    def keep_in(self, state: State, folder: Path) -> None:
        """From now on keep in ``folder`` what grows with the run: it is that of the run's checkpoint."""

    def remarks(self, state: State) -> list[str]:
        """What a user has to know of a run that ended well: said as warnings, and kept in ``fitted.info.remarks``."""
        return []


@dataclass
class WrapperState:
    """The state of the method inside."""

    base: Any


class Wrapper(Inference[Any]):
    """A method around a method: everything is the base's, but for what a subclass says. What it keeps of its own is in
    a state that derives from :class:`WrapperState`.

    A subclass refuses a base that it has no meaning for in :meth:`check_base`, before anything runs.
    """

    base: Inference[Any]
    base_rule: ClassVar[str] = "`base` must be a method such as MAP(lr=1e-3)"

    def __post_init__(self) -> None:
        if not isinstance(self.base, Inference):
            raise ArgumentError(f"{self.base_rule}; got {shown(self.base)}.")
        self.check_base(self.base)

    def check_base(self, base: Inference[Any]) -> None:
        """Raise by :func:`refuse` unless the two go together."""

    def facts(self) -> Facts:
        """The base's."""
        return self.base.facts()

    def check_run(self, steps: int) -> None:
        """As the base does."""
        self.base.check_run(steps)

    def at_once(self, engine: Engine, starts: Starts) -> bool:
        """As the base can."""
        return self.base.at_once(engine, starts)

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> Any:
        """The base's state."""
        return WrapperState(self.base.init(engine, starts, rngs))

    def step(self, engine: Engine, state: Any, batch: Batch) -> tuple[Any, Info]:
        """A step of the base."""
        state.base, info = self.base.step(engine, state.base, batch)
        return state, info

    def posteriors(self, engine: Engine, state: Any, data: Data | None) -> tuple[Posterior, ...]:
        """The base's."""
        return self.base.posteriors(engine, state.base, data)

    def keep_in(self, state: Any, folder: Path) -> None:
        """As the base does."""
        self.base.keep_in(state.base, folder)

    def remarks(self, state: Any) -> list[str]:
        """As the base does."""
        return self.base.remarks(state.base)


def refuse(outer: object, inner: object, why: str, instead: str) -> NoReturn:
    """Say that two methods do not go together: the pair, the reason, and what to write."""
    names = [part if isinstance(part, str) else type(part).__name__ for part in (outer, inner)]
    raise ArgumentError(f"`base`: {names[0]} cannot wrap {names[1]}: {why}. Write {instead}.")


__all__ = [
    "Cost",
    "Exactness",
    "Facts",
    "Inference",
    "Info",
    "NeedsData",
    "Starts",
    "State",
    "Wrapper",
    "WrapperState",
    "refuse",
]
