"""``Laplace``: train as always, one pass over the data for the curvature, done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError
from temperance.data.data import Batch, Data
from temperance.data.sources import map_tensors
from temperance.engine.engine import Engine
from temperance.inference.base import Exactness, Facts, Inference, Info, NeedsData, Starts, WrapperState
from temperance.inference.card import Card, MethodFamily, Recipe
from temperance.inference.curvature import KFAC, Curvature, Dense, Diagonal
from temperance.inference.curvature.approximate import approximate, prior_curvature
from temperance.inference.curvature.evidence import (
    Tune,
    as_tune,
    check_tune,
    choose,
    groups_of,
    tuned_posterior,
    tuned_target,
)
from temperance.inference.curvature.structures import check_curvature
from temperance.inference.curvature.subsets import Subnetwork, chosen_names
from temperance.inference.curvature.width import Width, widened
from temperance.inference.points.around_point import AroundPoint
from temperance.model.theta import Subset, check_subset
from temperance.posteriors import LaplacePosterior, Point, Posterior


@dataclass
class LaplaceState(WrapperState):
    """The base's, and what evidence has chosen so far: log factors on the prior's precision and on the noise."""

    log_factors: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    log_noise: float = 0.0
    engine: Engine | None = field(default=None, metadata=SCRATCH)


@dataclass(frozen=True, eq=False)
class Laplace(AroundPoint):
    """A Gaussian at a mode θ*, with the inverse curvature for covariance:

        p(θ | D) ≈ N(θ*, T Λ⁻¹),   Λ = Σ_n J_nᵀ H_n J_n + (prior precision),

    J_n the Jacobian of the network's outputs for example n, H_n the Hessian of −log p(y_n | outputs). Predictions use
    the network linearised at θ*, for which this posterior is made; ``predict(x, by="network")`` puts draws through the
    network itself.

    Args:
        base: how θ* is found, e.g. ``MAP(lr=1e-3)``; ``None`` takes ``start``, or the target's network as it is: one
            pass over the data, no training.
        curvature: how much of Λ is kept: ``KFAC()``, ``EKFAC()``, ``Diagonal()``, ``Dense()``, ``BlockDiagonal()`` or
            ``Lanczos(k)``.
        on: the part that is random: a name, pattern, ``last_layer``, ``biases``, or single weights
            (``LargestVariance(k)``, ``LargestMagnitude(k)``). ``base`` still trains everything; the rest stays at θ*.
        tune: what chooses the spread. ``Width()``: rows that the network has not seen (a tenth of the data is kept
            apart for it, unless ``held_out`` says which). Evidence, which chooses the prior's precision: ``"scalar"``,
            ``"layer"``, ``"parameter"``, or a ``Tune(...)`` that also chooses the noise, or does so again and again
            while training. ``None``: the prior is taken at its word, and all rows are learned from.

    It is exact where the posterior is Gaussian: with ``Dense()`` and ``tune=None``, on a linear-Gaussian model, mean,
    covariance and evidence.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 10, dtype=torch.float64)
    >>> features = torch.stack([torch.ones_like(x), x, x**2], dim=1)
    >>> net = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
    >>> target = tp.Target(net, tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> method = tp.Laplace(tp.MAP(lr=1.0, optimizer=torch.optim.LBFGS), curvature=tp.Dense(), tune=None)
    >>> fitted = tp.fit(target, method, (features, torch.sin(3 * x)), steps=5)
    >>> round(fitted.log_evidence(), 4)
    -108.7044
    """

    card: ClassVar[Card] = Card(
        "a Gaussian at the mode, with the inverse curvature of loss and prior for covariance",
        MethodFamily.CURVATURE,
        papers=(
            "MacKay, A practical Bayesian framework for backpropagation networks, Neural Computation 1992",
            "Daxberger et al., Laplace redux: effortless Bayesian deep learning, NeurIPS 2021",
        ),
        exact="as its curvature, below",
        cost="as its base while it trains, then a pass over the data; `Laplace()` trains nothing",
        shown=("Laplace(MAP())", "On(last_layer, Laplace(MAP()))"),
        recipes=(
            Recipe(
                "laplace", "Laplace(TunedDecay(MAP(lr=5e-3, patience=0.1)))", "a Gaussian around one trained network"
            ),
            Recipe(
                "last-layer",
                "On(last_layer, Laplace(TunedDecay(MAP(lr=5e-3, patience=0.1))))",
                "a Gaussian over the last layer of a trained network",
            ),
        ),
        demo=(
            Recipe("Laplace", "Laplace(MAP(lr=1e-3))"),
            Recipe("Laplace, last layer", "On(last_layer, Laplace(MAP(lr=1e-3)))"),
        ),
    )

    without_base: ClassVar[str] = "it takes one pass over the data"

    curvature: Curvature = field(default_factory=KFAC)
    on: Subset | Subnetwork = None
    tune: Tune | Width | str | None = field(default_factory=Width)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.on, Subnetwork):
            check_subset(self.on, "on")
        check_curvature(self.curvature)
        if not isinstance(self.tune, Width):
            object.__setattr__(self, "tune", as_tune(self.tune))
        if self._tune is not None and self._tune.every is not None and not self.trains:
            raise ArgumentError("`tune` with `every` chooses while training, but `base` is None: nothing is trained.")

    @property
    def _tune(self) -> Tune | None:
        return self.tune if isinstance(self.tune, Tune) else None

    @property
    def _online(self) -> bool:
        return self._tune is not None and self._tune.every is not None

    def facts(self) -> Facts:
        """The base's, but for what is put around its point."""
        chooses = self._tune is not None and self._tune.noise
        made = replace(super().facts(), gives=LaplacePosterior, exact=self._exact(), own_likelihood=chooses)
        if isinstance(self.tune, Width):
            return replace(made, held_out=True, sets_aside=self.tune.rows if self.trains else 0)
        return made

    def _exact(self) -> Exactness:
        """By the structure that is kept."""
        if self.on is not None or self.tune is not None:
            return Exactness.APPROXIMATE
        if isinstance(self.curvature, Dense) and self.curvature.kind in ("ggn", "hessian"):
            return Exactness.POSTERIOR
        if isinstance(self.curvature, Diagonal) and self.curvature.kind == "ggn":
            return Exactness.DIAGONAL
        return Exactness.APPROXIMATE

    def on_part(self, subset: Any) -> Inference[Any]:
        """Train everything, spread the part."""
        if self.on is not None:
            raise ArgumentError("On cannot wrap a Laplace that has its own `on`: give one of the two.")
        return replace(self, on=subset)

    def check_target(self, engine: Engine) -> None:
        """See :class:`AroundPoint`."""
        names = chosen_names(engine, self.on)
        prior_curvature(engine, engine.target.initial_theta())
        self.curvature.check(engine, names, self.on)
        if self._tune is not None:
            check_tune(engine, self._tune, self.curvature)

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> LaplaceState:
        """See :class:`Inference`."""
        found = super().init(engine, starts, rngs)
        return LaplaceState(found.base, log_factors=self._no_factors(engine))

    def _no_factors(self, engine: Engine) -> Tensor:
        if self._tune is None or not self._online:
            return torch.zeros(0, dtype=torch.float64)
        return torch.zeros(groups_of(engine, self._tune)[1], dtype=torch.float64)

    def _present(self, engine: Engine, state: LaplaceState) -> Engine:
        """The target under the prior and noise that were chosen so far."""
        if not self._online:
            return engine
        if state.engine is None:
            assert self._tune is not None
            state.engine = tuned_target(engine, self._tune, state.log_factors, state.log_noise)
        return state.engine

    def step(self, engine: Engine, state: LaplaceState, batch: Batch) -> tuple[LaplaceState, Info]:
        """A step of the base; after some epochs, also a new choice of prior and noise."""
        if batch.step == 0:
            self._check_earlier(engine, state, batch)
        state.base, info = self.base.step(self._present(engine, state), state.base, batch)
        tune = self._tune
        if tune is not None and tune.every is not None and batch.last and info.status.ok and not info.done:
            done = batch.epoch + 1
            due = done > tune.burn and (done - tune.burn) % tune.every == 0
            if due and batch.progress < tune.until:
                self._choose(engine, state, batch, tune)
        return state, info

    def _check_earlier(self, engine: Engine, state: LaplaceState, batch: Batch) -> None:
        """Before anything is trained: where the prior is an earlier posterior, its curvature and this one must merge,
        which is tried on two rows."""
        theta = engine.target.initial_theta()
        if prior_curvature(engine, theta).earlier is not None:
            first = batch if batch.streams is None else batch.stream(0)
            few = Data(map_tensors(lambda t: t[:2], first.x), first.y[:2])
            self._curved(engine, Point(theta, engine.target.running_buffers()), few)

    def _choose(self, engine: Engine, state: LaplaceState, batch: Batch, tune: Tune) -> None:
        assert batch.whole is not None
        here = self._present(engine, state)
        (point,) = self.points(here, state, batch.whole)
        found = self._curved(here, point, batch.whole)
        choice = choose(here, found, tune, tune.reach)
        state.log_factors = state.log_factors + choice.log_factors
        state.log_noise += choice.log_noise
        state.engine = None

    def posteriors(self, engine: Engine, state: LaplaceState, data: Data | None) -> tuple[Posterior, ...]:
        """A :class:`LaplacePosterior` for each member."""
        data = self.rows(data)
        if data is None:
            raise NeedsData("the curvature pass of Laplace needs the data.")
        here = self._present(engine, state)
        points = self.points(here, state, data)
        return tuple(self._finished(engine, here, self._curved(here, point, data), data) for point in points)

    def around(self, engine: Engine, point: Point, data: Data | None) -> Posterior:
        """The curvature around a point, under the target's own prior."""
        if data is None:
            raise NeedsData("the curvature pass of Laplace needs the data.")
        return self._finished(engine, engine, self._curved(engine, point, data), data)

    def _curved(self, engine: Engine, point: Point, data: Data) -> LaplacePosterior:
        return approximate(engine, point.theta, point.buffers, data, self.curvature, self.on)

    def _finished(self, engine: Engine, here: Engine, found: LaplacePosterior, data: Data) -> LaplacePosterior:
        if isinstance(self.tune, Width):
            earlier = prior_curvature(engine, found.mean).earlier
            return found if earlier is not None else widened(engine, found, data, self.tune)
        tune = self._tune
        if tune is None:
            return found
        if self._online:
            chosen = here.target.prior if here.target.prior is not engine.target.prior else None
            noise = here.likelihood if here.likelihood is not engine.likelihood else None
            return LaplacePosterior(found.mean, found.operator, found.terms, found.buffers, chosen, noise)
        return tuned_posterior(here, found, tune)

    def at_once(self, engine: Engine, starts: Starts) -> bool:
        """As the base can, unless members come to have priors of their own."""
        return not self._online and super().at_once(engine, starts)
