"""What a posterior is. By its type it says what it can do: every one can be predicted with; a :class:`WeightPosterior`
can be sampled in θ; one that is :class:`Centred` has a setting of θ that stands for it, and one that is
:class:`Spread` a covariance about it; a :class:`Density` has a density; :class:`Settings` are there one by one, and
those of a :class:`Chain` in the order of a sampler; on a :class:`WeightCurve` every place is as good as any other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.core.seeds import check_seed
from temperance.linalg.operator import Covariance
from temperance.model.target import Target
from temperance.posteriors.nodes import Buffers, Nodes
from temperance.posteriors.trace import Trace

__all__ = [
    "Buffers",
    "Centred",
    "Chain",
    "Density",
    "Nodes",
    "Posterior",
    "Settings",
    "Spread",
    "WeightCurve",
    "WeightPosterior",
    "WrappedPosterior",
    "centre_of",
    "density_of",
]


class Posterior(Value, ABC):
    """What has been learned of a target: a distribution over θ, or over functions alone."""

    predicts: ClassVar[str] = "network"
    """How predictions are made unless told: through the network at each draw, or through its linearisation."""
    finite: ClassVar[bool] = False
    """Whether there are finitely many settings of θ, all of which prediction uses."""
    single: ClassVar[bool] = False
    """Whether there is one setting of θ alone."""
    over_functions: ClassVar[bool] = False
    """Whether functions alone have a distribution: then there are no draws of θ."""

    @property
    @abstractmethod
    def size(self) -> int:
        """P, the length of θ."""

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """What prediction averages over: all there is, or about ``n`` draws where there is a choice."""
        raise self._no_weights()

    def growing(self, n: int, seed: int = 0) -> Nodes:
        """What prediction averages over while it takes more draws until these suffice: all there is of what is finite,
        ``n`` draws of the rest. Those of a larger ``n`` begin, stratum by stratum, with those of a smaller one."""
        return self.nodes(None if self.finite else n, seed)

    def sample(self, n: int, seed: int | None = None) -> Tensor:
        """n independent draws of θ, n × P. Without a seed they differ from call to call."""
        check_count(n, "n")
        rng = torch.Generator()
        rng.manual_seed(int(torch.randint(0, 2**62, ())) if seed is None else check_seed(seed))
        return self._sample(n, rng)

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        """n independent draws, n × P."""
        raise self._no_weights()

    def _no_weights(self) -> ArgumentError:
        return ArgumentError(
            f"a posterior over functions has no draws of weights ({type(self).__name__}); `predict(x).sample(n)` draws "
            "functions. For weights use Laplace(curvature=...)."
        )

    @property
    def most_nodes(self) -> int | None:
        """How many nodes there can be at most; ``None``: as many as are asked for."""
        return None

    def parts(self) -> list[tuple[float, Posterior]]:
        """The posteriors that this one is a mixture of, to the last, with their weights; itself where it is none."""
        return [(1.0, self)]

    def map_parts(self, function: Callable[[Posterior], Posterior]) -> Posterior:
        """``function`` of each posterior that this one is a mixture of, mixed as they were."""
        return function(self)

    def inside(self, target: Target) -> tuple[Target, Posterior]:
        """The problem and the posterior in whose own coordinates this one is known: a part of θ, or a subspace."""
        return target, self

    def retarget(self, target: Target) -> Target:
        """The target that this posterior belongs to: the one given, unless a prior or a noise level was chosen, or its
        draws need another network."""
        return target


class WeightPosterior(Posterior):
    """A distribution over θ."""

    @abstractmethod
    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """See :class:`Posterior`."""

    @abstractmethod
    def _sample(self, n: int, rng: torch.Generator) -> Tensor: ...


class Centred(ABC):
    """A posterior with one θ that stands for it, and the running statistics that belong to that."""

    mean: Tensor
    buffers: Buffers


class Spread(Centred, ABC):
    """A posterior with a covariance about its mean, Σ = ``operator``."""

    operator: Covariance


class Settings(ABC):
    """A posterior that holds settings of θ, P numbers or S × P."""

    theta: Tensor

    @abstractmethod
    def with_theta(self, theta: Tensor) -> Posterior:
        """The same with others in their place."""


class Chain(WeightPosterior, Settings):
    """S equally weighted settings of θ in the order in which they were drawn, with what their sampler told."""

    buffers: Buffers
    trace: Trace | None


class WeightCurve(WeightPosterior):
    """A curve through weight space, t from 0 to 1."""

    @abstractmethod
    def at(self, t: Tensor | float) -> Tensor:
        """θ(t), a row for each t."""

    @property
    @abstractmethod
    def straight(self) -> WeightCurve:
        """The straight line between the same ends; itself where it is one."""


class Density(ABC):
    """A posterior with a density."""

    @abstractmethod
    def log_prob(self, theta: Tensor) -> Tensor:
        """log q(θ) of each row."""


def centre_of(posterior: Posterior) -> Centred:
    """``posterior``, which must have a θ that stands for it."""
    if not isinstance(posterior, Centred):
        raise ArgumentError(
            f"a {type(posterior).__name__} has no one setting of θ that stands for it; look at its components, or draw "
            "from it: posterior.sample(n)."
        )
    return posterior


def density_of(posterior: Posterior) -> Density:
    """``posterior``, which must have a density."""
    if not isinstance(posterior, Density):
        raise ArgumentError(f"`inner` must have a density; {type(posterior).__name__} has none.")
    return posterior


class WrappedPosterior(Posterior, Centred):
    """A posterior made of another one, ``inner``: all that is known of that holds for this, the changes that it makes
    to the network included."""

    inner: Posterior

    def rewrap(self, part: Posterior) -> Posterior:
        """The same around a part of the inner posterior."""
        raise NotImplementedError

    @property
    def predicts(self) -> str:  # type: ignore[override]
        """As the inner posterior does."""
        return self.inner.predicts

    @property
    def finite(self) -> bool:  # type: ignore[override]
        """As the inner posterior is."""
        return self.inner.finite

    @property
    def over_functions(self) -> bool:  # type: ignore[override]
        """As the inner posterior is."""
        return self.inner.over_functions

    @property
    def most_nodes(self) -> int | None:
        """As the inner posterior has it."""
        return self.inner.most_nodes

    @property
    def buffers(self) -> Buffers:  # type: ignore[override]
        """Those that belong to the inner posterior's mean."""
        return self.inner.buffers if isinstance(self.inner, Centred) else {}

    def retarget(self, target: Target) -> Target:
        """As the inner posterior does."""
        return self.inner.retarget(target)

    def parts(self) -> list[tuple[float, Posterior]]:
        """Those of the inner posterior, each wrapped."""
        found = self.inner.parts()
        return [(1.0, self)] if len(found) == 1 else [(weight, self.rewrap(part)) for weight, part in found]
