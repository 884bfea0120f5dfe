"""``SWAG``: a Gaussian from the places that ordinary training passes through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_fraction, check_positive, is_whole, shown
from temperance.core.errors import ArgumentError, NumericalError
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.base import (
    Exactness,
    Facts,
    Inference,
    Info,
    NeedsData,
    Starts,
    Wrapper,
    WrapperState,
    refuse,
)
from temperance.inference.batch_statistics import batch_statistics, with_statistics
from temperance.inference.card import Card, MethodFamily, Recipe
from temperance.inference.points.map import MAP
from temperance.linalg.covariance import DiagonalCovariance, LowRankCovariance
from temperance.linalg.operator import Covariance
from temperance.posteriors import Gaussian, Posterior

_SMALLEST = 1e-30  # a weight that never moved still needs a variance
_RANK = 20  # deviations kept unless asked for otherwise


@dataclass
class SWAGState(WrapperState):
    """The base's state; the running mean of the weights collected and the sum of squared distances from it (both
    members × P); the last deviations from the running mean (K × members × P) and how many were collected."""

    mean: Tensor
    squares: Tensor
    deviations: Tensor
    collected: int = 0


@dataclass(frozen=True, eq=False)
class SWAG(Wrapper):
    """Stochastic weight averaging, Gaussian (Maddox et al., 2019). While SGD runs on with a constant learning rate, its
    iterates θ₁ … θ_n are collected; with θ̄ their mean, s² their variances (over n) and D the last K deviations of an
    iterate from the running mean at its time,

        θ ~ N(θ̄, ½ diag(s²) + D Dᵀ / (2 (K − 1))),      a draw: θ̄ + s z₁ / √2 + D z₂ / √(2 (K − 1)),

    z₂ of K numbers being the same for all layers. With ``rank=0`` only the diagonal is used, N(θ̄, diag(s²)).

    Args:
        base: ``MAP`` with the optimiser that does the walking, as a rule SGD with momentum. Where noise is learned and
            becomes small, gradients grow as one over its square, and SGD at a constant rate leaps until its ReLUs are
            dead (on UCI energy: RMSE 8.0 at lr=0.02, 1.4 by Adam): Adam, whose steps have a size of their own, walks
            on. The recipes for tables use it.
        rank: K, deviations kept (0, or at least 2). ``None``: 20, and where the run has fewer epochs to collect from,
            iterates are taken more often, so that there are so many (or one at each step, of a very short run).
        start: the fraction of the run after which iterates are collected.
        every: steps between two of them; ``None``: one at the end of each epoch.
        lr: constant learning rate while collecting; ``None`` leaves it to ``base`` and its schedule.
        draws: for networks with batch norm, the number of draws that get batch statistics of their own.

    Its spread depends on the learning rate and on the noise of the batches, not on a posterior: it approximates a
    basin, and is exact nowhere. The target's temperature scales the covariance. ``Ensemble(SWAG(...), 5)`` is
    MultiSWAG.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> base = tp.MAP(lr=1e-3, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
    >>> fitted = tp.fit(target, tp.SWAG(base, rank=5), (x, 2 * x + 1), epochs=40, batch_size=5)
    >>> fitted.posterior.covariance().shape
    torch.Size([2, 2])
    """

    card: ClassVar[Card] = Card(
        "a Gaussian through the iterates of SGD: their diagonal and the last `rank` deviations",
        MethodFamily.POINTS,
        papers=("Maddox et al., A simple baseline for Bayesian uncertainty in deep learning, NeurIPS 2019",),
        cost="base + 2 + `rank` copies",
        recipes=(
            Recipe(
                "swag",
                "Refit(SWAG(MAP(lr=5e-3), start=0.75), TunedDecay(MAP(lr=5e-3, patience=0.1)), stretch=1.33)",
                "a Gaussian through the last places that ordinary training passes",
            ),
            Recipe(
                "multiswag",
                "Refit(Ensemble(SWAG(MAP(lr=5e-3), start=0.75), 5), TunedDecay(MAP(lr=5e-3, patience=0.1)), "
                "stretch=1.33)",
                "five Gaussians, each through the last places of its own training",
            ),
        ),
        demo=(Recipe("SWAG", "SWAG(MAP(lr=0.03, optimizer=SGD, optimizer_args={'momentum': 0.9}))"),),
    )

    base: Inference[Any] = field(
        default_factory=lambda: MAP(lr=0.01, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.9})
    )
    rank: int | None = None
    start: float = 0.5
    every: int | None = None
    lr: float | None = None
    draws: int = 30

    @property
    def most(self) -> int:
        """How many deviations are kept at most."""
        return _RANK if self.rank is None else self.rank

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_whole(self.most) or self.most == 1:
            raise ArgumentError(
                f"`rank` must be 0 (a diagonal) or at least 2, for K − 1 divides; got {shown(self.rank)}."
            )
        check_fraction(self.start, "start")
        if self.every is not None:
            check_count(self.every, "every")
        if self.lr is not None:
            check_positive(self.lr, "lr")
        check_count(self.draws, "draws")

    def check_base(self, base: Inference[Any]) -> None:
        """It must walk about a mode."""
        name = type(base).__name__
        if not isinstance(base, MAP):
            refuse(
                self,
                base,
                f"the iterates of SGD around a mode are collected, and {name} has none",
                f"SWAG(MAP(lr=0.01, optimizer=torch.optim.SGD)), or {name} without SWAG",
            )
        if base.patience is not None:
            raise ArgumentError("`base` must not stop early (`patience`): SWAG averages what comes at the end.")

    def facts(self) -> Facts:
        """The base's; mean, squares and K deviations."""
        base = super().facts()
        return replace(base, gives=Gaussian, exact=Exactness.APPROXIMATE, cost=base.cost.plus(2 + self.most))

    # ------------------------------------------------------------------ the walk

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> SWAGState:
        """See :class:`Inference`."""
        base = self.base.init(engine, starts, rngs)
        theta = base.theta
        deviations = torch.zeros(self.most, *theta.shape, dtype=theta.dtype, device=theta.device)
        return SWAGState(base, torch.zeros_like(theta), torch.zeros_like(theta), deviations)

    def step(self, engine: Engine, state: SWAGState, batch: Batch) -> tuple[SWAGState, Info]:
        """A step of the base, and now and then one more iterate."""
        self._before(state, batch)
        state.base, info = self.base.step(engine, state.base, batch)
        return self._after(state, batch, info)

    def _before(self, state: SWAGState, batch: Batch) -> None:
        if batch.step == 0:
            self._check_plan(batch)
        if self.lr is not None and batch.progress >= self.start:
            for group in state.base.optimizer.param_groups:
                group["lr"] = self.lr

    def _check_plan(self, batch: Batch) -> None:
        """Refuse, before the first step, a run that will collect too few iterates."""
        total, per_epoch = batch.total_steps, batch.steps_per_epoch
        if total is None or (self.every is None and per_epoch is None):
            return
        planned = self.planned(total, per_epoch)
        if planned < (2 if self.rank is None else max(2, self.rank)):
            raise ArgumentError(
                f"`rank` must be at most the number of iterates collected; rank={self.most}, but a run of {total} "
                f"steps collects {planned} from {self.start:g} of the way on"
                + ("" if self.every is None else f", every {self.every} steps")
                + ". Run longer, start earlier, collect more often (`every`), or lower the rank."
            )

    def planned(self, total: int, per_epoch: int | None) -> int:
        """How many iterates a run of so many steps will collect."""
        return sum(
            self._due(step, step / total, per_epoch and (step + 1) % per_epoch == 0, total, per_epoch)
            for step in range(total)
        )

    def _due(self, step: int, progress: float, last: object, total: int | None, per_epoch: int | None) -> bool:
        """Whether the iterate after this step is collected."""
        if progress < self.start:
            return False
        every = self.every
        if every is None and self.rank is None and total and per_epoch:
            collecting = total - int(self.start * total)
            if collecting // per_epoch < _RANK:
                every = max(1, collecting // _RANK)
        return bool(last) if every is None else (step + 1) % every == 0

    @torch.no_grad()
    def _after(self, state: SWAGState, batch: Batch, info: Info) -> tuple[SWAGState, Info]:
        if info.status.ok and self._due(
            batch.step, batch.progress, batch.last, batch.total_steps, batch.steps_per_epoch
        ):
            theta = state.base.theta
            before = theta - state.mean
            state.mean.add_(before, alpha=1.0 / (state.collected + 1))
            after = theta - state.mean
            state.squares.addcmul_(before, after)  # Welford: no difference of large squares
            if self.most:
                state.deviations[state.collected % self.most] = after
            state.collected += 1
        return state, info

    # ------------------------------------------------------------------ the Gaussian

    def posteriors(self, engine: Engine, state: SWAGState, data: Data | None) -> tuple[Posterior, ...]:
        """A :class:`Gaussian` for each member; with batch statistics for ``draws`` draws where the network has batch
        norm."""
        rows = zip(state.mean, state.squares, state.deviations.unbind(1), strict=True)
        return tuple(self.gaussian(engine, m, s, d, state.collected, data) for m, s, d in rows)

    def gaussian(
        self, engine: Engine, mean: Tensor, squares: Tensor, deviations: Tensor, collected: int, data: Data | None
    ) -> Posterior:
        """That of one member: mean and squares P, deviations K × P."""
        if collected < 2:
            raise NumericalError(
                f"SWAG needs at least two iterates for a spread; the run has collected {collected} by now (it begins "
                f"at {self.start:g} of the run). After an interruption, call fit again with the same checkpoint."
            )
        buffers: dict[str, Tensor] = {}
        if engine.target.moving:
            if data is None:
                raise NeedsData("the network keeps batch statistics, which need a pass over the data for each draw.")
            buffers = batch_statistics(engine, mean, data)
        found = Gaussian(mean.detach().clone(), self._covariance(engine, squares, deviations, collected), buffers)
        return with_statistics(engine, found, data, self.draws)

    def _covariance(self, engine: Engine, squares: Tensor, deviations: Tensor, collected: int) -> Covariance:
        temperature = engine.temperature
        variance = (squares / collected).clamp_(min=_SMALLEST)
        if not self.most:
            return DiagonalCovariance(temperature * variance)
        kept = deviations[: min(self.most, collected)]
        factor = kept.T * (0.5 * temperature / (len(kept) - 1)) ** 0.5
        return LowRankCovariance((0.5 * temperature * variance).clamp_(min=_SMALLEST), factor.contiguous())
