"""The contract: ``init``, ``step``, ``posterior``, and nothing else.

A method is a frozen dataclass of hyperparameters; it holds no data, no weights and no target. ``State`` holds exactly
what the next step needs, random generators included, and can be written down: a killed run resumes bit for bit.
``Info`` holds everything else and is never read back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.core.status import OK, Status
from temperance.data.data import Batch, Data
from temperance.model.target import Target
from temperance.posteriors.base import Posterior

State = TypeVar("State")


class NeedsData(ArgumentError):
    """Raised by ``posterior`` when it is asked without the data that its second phase needs."""


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


@dataclass
class Info:
    """What happened in a step: for progress bars and diagnostics, never for the next step."""

    loss: float
    status: Status = OK
    done: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


class Inference(Value, ABC, Generic[State]):
    """A way to approximate the posterior of a :class:`~temperance.Target`."""

    reads: ClassVar[Literal["minibatch", "full"]] = "minibatch"
    exact: ClassVar[Exactness] = Exactness.APPROXIMATE
    default_steps: ClassVar[int | None] = None
    """How many steps to take when the caller names neither epochs nor steps; ``None``: the caller must say."""

    @property
    def streams(self) -> int:
        """How many independent orders of the data a step takes; an ensemble's members each have one."""
        return 1

    @property
    def needs_held_out(self) -> bool:
        """Whether a step looks at held-out data."""
        return False

    @property
    def alone(self) -> bool:
        """Whether its posterior chooses a likelihood of its own, so that it cannot be one of several in a mixture."""
        return False

    def check_run(self, steps: int) -> None:
        """Raise :class:`ArgumentError` if a run of so many steps makes no sense; called before the first one."""

    def keep_in(self, state: State, folder: Path) -> None:
        """From now on keep in ``folder`` what grows with the run: it is that of the run's checkpoint."""

    def remarks(self, state: State) -> list[str]:
        """What a user has to know of a run that ended well: said as warnings, and kept in ``fitted.info.remarks``."""
        return []

    def law(self, precision: Tensor, num_data: int, temperature: float) -> Tensor:
        """The covariance that a method of :attr:`Exactness.OWN_LAW` has at its step on N(μ, Λ⁻¹)."""
        raise NotImplementedError(f"{type(self).__name__} declares no law of its own.")

    def cost(self) -> Cost:
        """Declared here, measured by :func:`temperance.testing.check_inference`."""
        return Cost(gradients_per_step=1, copies_of_theta=1)

    @abstractmethod
    def init(self, target: Target, theta: Tensor | None, rng: torch.Generator) -> State:
        """The state before the first step. ``theta`` is where to start; ``None`` leaves it to the method."""

    @abstractmethod
    def step(self, target: Target, state: State, batch: Batch) -> tuple[State, Info]:
        """One step. It may write into the tensors of ``state``."""

    @abstractmethod
    def posterior(self, target: Target, state: State, data: Data | None) -> Posterior:
        """What has been learned. Methods of two phases use ``data`` for the second."""


class Stackable(ABC):
    """What a method adds to be run for all members of an ensemble at once, with states of shape members × P."""

    @abstractmethod
    def init_stack(self, target: Target, theta: Tensor, rngs: Sequence[torch.Generator]) -> Any:
        """States of all members, from a start E × P and a generator each."""

    @abstractmethod
    def step_stack(self, target: Target, state: Any, batch: Batch) -> tuple[Any, Info]:
        """One step of all members, each on its own stream of the batch."""

    @abstractmethod
    def posteriors_stack(self, target: Target, state: Any, data: Data | None) -> tuple[Posterior, ...]:
        """The members' posteriors."""

    @abstractmethod
    def can_stack(self, target: Target) -> bool:
        """Whether these settings allow it."""
