"""A posterior of a network whose noise, as rows that were held out tell, has outliers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.fields import check_fields
from temperance.model.likelihoods import Likelihood
from temperance.model.target import Target
from temperance.posteriors.base import Density, Nodes, Posterior, Settings, WrappedPosterior, centre_of, density_of


@dataclass(frozen=True, eq=False, repr=False)
class WithOutliers(WrappedPosterior, Density):
    """θ as ``inner`` says; predictions are under ``likelihood``, which reads the same θ as the one that was learned
    with (:meth:`~temperance.model.likelihoods.Likelihood.with_outliers`).

    >>> import temperance as tp
    >>> net = torch.nn.Linear(1, 1)
    >>> target = tp.Target(net, tp.Normal(), tp.GaussianPrior(scale=1.0))
    >>> heavier = tp.Normal().with_outliers(0.2, 3.0)
    >>> WithOutliers(tp.posteriors.Point(torch.zeros(3)), heavier).retarget(target).likelihood
    ContaminatedNormal(scale=None, num_outputs=1, share=0.2, factor=3.0, of_all=True)
    """

    inner: Posterior
    likelihood: Likelihood

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def size(self) -> int:
        """P."""
        return self.inner.size

    @property
    def single(self) -> bool:  # type: ignore[override]
        """As the inner posterior is."""
        return self.inner.single

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """That of the inner posterior."""
        return centre_of(self.inner).mean

    @property
    def theta(self) -> Tensor:
        """The settings of the inner posterior, where it consists of such."""
        if not isinstance(self.inner, Settings):
            raise AttributeError(f"a posterior of the kind {type(self.inner).__name__} has no `theta`")
        return self.inner.theta

    def rewrap(self, part: Posterior) -> Posterior:
        """The same noise of another part."""
        return WithOutliers(part, self.likelihood)

    def retarget(self, target: Target) -> Target:
        """The target of the inner posterior, with the likelihood that was chosen."""
        return self.inner.retarget(target).with_likelihood(self.likelihood)

    def inside(self, target: Target) -> tuple[Target, Posterior]:
        """Where the inner posterior is known."""
        return self.inner.inside(target)

    def log_prob(self, theta: Tensor) -> Tensor:
        """Of the inner posterior."""
        return density_of(self.inner).log_prob(theta)

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """Those of the inner posterior."""
        return self.inner.nodes(n, seed)

    def growing(self, n: int, seed: int = 0) -> Nodes:
        """Those of the inner posterior."""
        return self.inner.growing(n, seed)

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        return self.inner._sample(n, rng)


def with_outliers(posterior: Posterior, likelihood: Likelihood) -> Posterior:
    """``posterior`` under another likelihood: each of those that it is a mixture of is wrapped."""
    return posterior.map_parts(lambda part: WithOutliers(part, likelihood))
