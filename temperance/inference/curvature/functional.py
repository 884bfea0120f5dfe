"""``FunctionalLaplace``: the Laplace approximation seen as a Gaussian process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError
from temperance.core.seeds import check_seed, generator
from temperance.data.data import Data, joined
from temperance.data.sources import map_tensors
from temperance.engine.engine import Engine
from temperance.inference.base import Exactness, Facts, Inference, NeedsData
from temperance.inference.card import Card, MethodFamily
from temperance.inference.curvature.approximate import PriorCurvature, prior_curvature
from temperance.inference.curvature.subsets import chosen_names
from temperance.inference.curvature.sweep import Sweep
from temperance.inference.points.around_point import AroundPoint
from temperance.model.theta import Subset, check_subset
from temperance.posteriors import Point, Posterior, Process, Pushforward


@dataclass(frozen=True, eq=False)
class FunctionalLaplace(AroundPoint):
    """A Gaussian process over functions, with the kernel of the network linearised at its mode,

        k(x, x') = J(x) Λ_prior⁻¹ J(x')ᵀ,

    conditioned on ``size`` rows of the data (all of them for ``None``): then it is the predictive of ``Laplace`` with
    ``Dense()``, at a cost that grows with rows times outputs and not with parameters squared.

    Args:
        base: how the mode is found; ``None`` takes ``start``, or the target's network as it is.
        size: how many rows, chosen at random by ``seed``.
        on: the part that is random, as for ``Laplace``: ``base`` trains everything, the rest stays at θ*.

    >>> import temperance as tp
    >>> FunctionalLaplace(tp.MAP(lr=1e-2), size=100).size
    100
    """

    card: ClassVar[Card] = Card(
        "the same posterior as a Gaussian process, conditioned on `size` rows of the data",
        MethodFamily.CURVATURE,
        papers=("Immer et al., Improving predictions of Bayesian neural nets via local linearization, AISTATS 2021",),
        exact="with all rows it equals `Dense()`",
        cost="grows with rows times outputs, not with parameters squared",
        shown=("FunctionalLaplace(MAP())",),
    )

    without_base: ClassVar[str] = "it takes one pass over the data"

    size: int | None = None
    seed: int = 0
    on: Subset = None

    def __post_init__(self) -> None:
        check_subset(self.on, "on")
        if self.size is not None:
            check_count(self.size, "size")
        check_seed(self.seed)
        super().__post_init__()

    def facts(self) -> Facts:
        """The base's, but for what is put around its point."""
        return replace(super().facts(), gives=Process if self.on is None else Pushforward, exact=Exactness.APPROXIMATE)

    def on_part(self, subset: Any) -> Inference[Any]:
        """Train everything, spread the part."""
        if self.on is not None:
            raise ArgumentError("On cannot wrap a FunctionalLaplace that has its own `on`: give one of the two.")
        return replace(self, on=subset)

    def check_target(self, engine: Engine) -> None:
        """A Gaussian prior."""
        chosen_names(engine, self.on)
        _check_independent(prior_curvature(engine, engine.target.initial_theta()))

    def around(self, engine: Engine, point: Point, data: Data | None) -> Posterior:
        """A :class:`Process`; of a part, in its place."""
        if data is None:
            raise NeedsData("a functional Laplace approximation needs the data.")
        if self.on is None:
            return self._process(engine, point.theta, point.buffers, data)
        names = chosen_names(engine, self.on)
        assert names is not None
        index = engine.target.places(names)
        smaller = engine.on(engine.target.restrict(names, point.theta))
        made = self._process(smaller, point.theta[index.to(point.theta.device)], point.buffers, data)
        return Pushforward(made, index, point.theta.clone())

    def _process(self, engine: Engine, theta: Tensor, buffers: dict[str, Tensor], data: Data) -> Process:
        prior = prior_curvature(engine, theta)
        _check_independent(prior)
        chosen = data
        if self.size is not None and self.size < len(data):
            order = torch.randperm(len(data), generator=generator(self.seed, "functional"))
            chosen = data.subset(order[: self.size].sort().values)
        sweep = Sweep(engine, theta, buffers, chosen)
        roots, inputs = [], []
        for batch in sweep.batches("kernel"):
            roots.append(torch.stack(list(batch.cotangents), dim=-1))
            inputs.append(map_tensors(lambda t: t.clone(), batch.x))
        return Process(
            theta.clone(),
            prior.precision,
            joined(inputs),
            torch.cat(roots),
            engine.temperature,
            {name: value.clone() for name, value in buffers.items()},
        )


def _check_independent(prior: PriorCurvature) -> None:
    if prior.mean is None or not bool((prior.precision > 0).all()):
        raise ArgumentError(
            "`prior` must be Gaussian with independent weights for FunctionalLaplace: a GaussianPrior, and no earlier "
            "posterior. Use Laplace(), which takes both."
        )
