"""A posterior whose draws each have running statistics of their own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.core.seeds import check_seed
from temperance.posteriors.base import Buffers, Density, Nodes, Posterior, WrappedPosterior, centre_of, density_of
from temperance.posteriors.gaussian import Gaussian
from temperance.posteriors.nodes import first_strata


@dataclass(frozen=True, eq=False, repr=False)
class WithStatistics(WrappedPosterior, Density):
    """``inner``, of which prediction uses the first draws of ``seed``, each with the batch statistics (``statistics``,
    draws × ...) that the training data have under it.

    The averages that a batch norm keeps belong to one setting of the weights. Under another draw they are wrong, so
    they are estimated anew for as many draws as will be used; the draws themselves are not kept, a seed brings them
    back.
    """

    inner: Posterior
    statistics: Buffers
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        check_seed(self.seed)
        if not self.statistics:
            raise ArgumentError("`statistics` must hold the running statistics of at least one draw; got none.")

    @property
    def count(self) -> int:
        """How many draws have statistics."""
        return len(next(iter(self.statistics.values())))

    @property
    def most_nodes(self) -> int | None:
        """See :class:`Posterior`."""
        return self.count

    @property
    def size(self) -> int:
        """P."""
        return self.inner.size

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """Of the inner posterior."""
        return centre_of(self.inner).mean

    def parts(self) -> list[tuple[float, Posterior]]:
        """Itself: the statistics are of the draws of all parts."""
        return [(1.0, self)]

    def covariance(self) -> Tensor:
        """Of the inner posterior."""
        if not isinstance(self.inner, Gaussian):
            raise ArgumentError(f"only a Gaussian has a covariance in closed form; got {type(self.inner).__name__}.")
        return self.inner.covariance()

    def log_prob(self, theta: Tensor) -> Tensor:
        """Of the inner posterior."""
        return density_of(self.inner).log_prob(theta)

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """The first ``n`` of the draws that have statistics; ``seed`` changes nothing."""
        wanted = self.count if n is None else n
        if wanted > self.count:
            raise ArgumentError(
                f"`draws` must be at most {self.count}: batch statistics were estimated for so many draws; got "
                f"{wanted}. Ask for more where the method is made (`draws=`)."
            )
        inner = self.inner.nodes(self.count, self.seed)

        def fetch(start: int, stop: int) -> tuple[Tensor, Buffers]:
            theta, buffers = inner.fetch(start, stop)
            return theta, {**buffers, **{name: v[start:stop] for name, v in self.statistics.items()}}

        weights = torch.full((wanted,), 1.0 / wanted, dtype=torch.float64)
        return Nodes(weights, fetch, first_strata(inner.strata, wanted))

    def growing(self, n: int, seed: int = 0) -> Nodes:
        """All draws that have statistics."""
        return self.nodes(None, seed)

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        return self.inner._sample(n, rng)
