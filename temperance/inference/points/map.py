"""``MAP``: ordinary training, with the prior in the loss."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_flag, check_positive, shown
from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.core.status import DIVERGED, EARLY_STOPPED, NON_FINITE_GRADIENT, NON_FINITE_LOSS, OK, Status
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference import optimisers
from temperance.inference.base import Cost, Exactness, Facts, Inference, Info, Starts
from temperance.inference.card import Card, MethodFamily, Recipe
from temperance.posteriors import Point, Posterior

_DIVERGENCE = 1e4  # how many times the first loss counts as divergence
_ASIDE = 1000  # rows, at most, that are kept apart to say when to stop
_LEAST_PATIENCE = 5  # epochs


@dataclass
class MAPState:
    """θ (members × P), the optimiser's memory, running statistics, and the best θ so far when stopping early."""

    theta: Tensor
    grad: Tensor = field(metadata=SCRATCH)
    optimizer: torch.optim.Optimizer
    scheduler: Any
    buffers: dict[str, Tensor]
    first_loss: float | None = None
    best_theta: Tensor | None = None
    best_buffers: dict[str, Tensor] = field(default_factory=dict)
    best_score: list[float] = field(default_factory=list)
    stale: list[int] = field(default_factory=list)
    unserved: bool = False  # an epoch ended, and there were no held-out rows to look at


@dataclass(frozen=True, eq=False)
class MAP(Inference[MAPState]):
    """The single most probable θ, by stochastic gradient descent on

        G̃(θ) = −(1/B) Σ log p(y_i | x_i, θ) − (1/N) log p(θ).

    Args:
        lr: learning rate.
        optimizer: any ``torch.optim`` optimiser class; ``optimizer_args`` are its other arguments.
        scheduler: any ``torch.optim.lr_scheduler`` class, with ``scheduler_args``; stepped once an epoch, or every
            step with ``schedule_steps=True``.
        clip: largest Euclidean norm of the gradient; larger ones are scaled down to it.
        patience: stop after so many epochs without a better score on held-out data, and keep the best θ. A fraction is
            one of the run's epochs, five at least: ``patience=0.1``, where nothing else is known. Without
            ``fit(..., held_out=...)`` a tenth of the data is kept apart for it.

    It is exact where the posterior mean is the mode: on a linear-Gaussian model it finds μ.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, tp.MAP(lr=0.1), (x, 2 * x + 1), epochs=200)
    >>> fitted.predict(torch.tensor([[0.5]])).mean().round(decimals=1)
    tensor([[2.]])
    """

    card: ClassVar[Card] = Card(
        "ordinary training with the prior in the loss: the single most probable θ",
        MethodFamily.POINTS,
        recipes=(Recipe("map", "MAP(lr=5e-3)", "ordinary training: one network, no spread"),),
        demo=(Recipe("MAP", "MAP(lr=1e-3)"),),
    )

    lr: float = 1e-3
    optimizer: type[torch.optim.Optimizer] = torch.optim.Adam
    optimizer_args: Mapping[str, Any] = field(default_factory=dict)
    scheduler: type[torch.optim.lr_scheduler.LRScheduler] | None = None
    scheduler_args: Mapping[str, Any] = field(default_factory=dict)
    schedule_steps: bool = False
    clip: float | None = None
    patience: int | float | None = None

    def __post_init__(self) -> None:
        check_positive(self.lr, "lr")
        if not (isinstance(self.optimizer, type) and issubclass(self.optimizer, torch.optim.Optimizer)):
            raise ArgumentError(f"`optimizer` must be a torch.optim.Optimizer class; got {shown(self.optimizer)}.")
        if self.clip is not None:
            check_positive(self.clip, "clip")
        self._check_patience()
        optimisers.check_settings(self.optimizer_args, self.scheduler, self.scheduler_args)
        check_flag(self.schedule_steps, "schedule_steps")
        decay = dict(self.optimizer_args).get("weight_decay")
        if decay:
            warnings.warn(
                f"weight_decay={decay} comes on top of the prior, which is weight decay already: the result is not the "
                "MAP of this target.",
                TemperanceWarning,
                stacklevel=3,
            )

    def _check_patience(self) -> None:
        if self.patience is None:
            return
        if isinstance(self.patience, float) and not 0 < self.patience < 1:
            raise ArgumentError(
                f"`patience` must be a number of epochs, or a fraction of the run's strictly between 0 and 1; got "
                f"{self.patience}."
            )
        if not isinstance(self.patience, float):
            check_count(self.patience, "patience")

    def facts(self) -> Facts:
        """A point, which is μ where the posterior is Gaussian."""
        stops = self.patience is not None
        return Facts(
            gives=Point, exact=Exactness.MEAN, cost=self._cost(), held_out=stops, sets_aside=_ASIDE if stops else None
        )

    def _cost(self) -> Cost:
        """θ and gradient, and two moments for Adam and its kin (less for SGD). L-BFGS takes many gradients a step."""
        args = dict(self.optimizer_args)
        if optimisers.needs_closure(self.optimizer):
            inner = args.get("max_eval") or args.get("max_iter", 20) * 5 // 4
            return Cost(inner, 2 * args.get("history_size", 100) + 6)
        moments = {"SGD": 1 if args.get("momentum") else 0}.get(self.optimizer.__name__, 2)
        return Cost(1, 2 + moments + (1 if self.patience else 0))

    # ------------------------------------------------------------------ the contract

    def at_once(self, engine: Engine, starts: Starts) -> bool:
        """Optimisers that treat each number alone, networks that can be batched and keep no running statistics."""
        return optimisers.is_elementwise(self.optimizer) and not engine.target.moving and engine.can_batch_training()

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> MAPState:
        """See :class:`Inference`."""
        return self.begin(engine, starts.rows(engine))

    def begin(self, engine: Engine, theta: Tensor) -> MAPState:
        """The state that starts at the rows of θ."""
        engine.target.refuse_learned_scales("MAP")
        grad = torch.zeros_like(theta)
        optimizer = optimisers.build_optimizer(self.optimizer, self.lr, self.optimizer_args, engine.layout, theta, grad)
        scheduler = optimisers.build_scheduler(self.scheduler, self.scheduler_args, optimizer)
        buffers = engine.target.running_buffers() if len(theta) == 1 else {}
        return MAPState(theta, grad, optimizer, scheduler, buffers)

    def step(self, engine: Engine, state: MAPState, batch: Batch) -> tuple[MAPState, Info]:
        """See :class:`Inference`."""
        if optimisers.needs_closure(self.optimizer):

            def closure() -> float:
                found = engine.gradients(state.theta, batch, state.grad, state.buffers)
                prior = engine.bound_prior.log_prob(state.theta) / batch.num_data
                return float(found / engine.likelihood_temperature - prior)

            loss = float(state.optimizer.step(closure))
            status = self.judge(state, loss, state.theta)
        else:
            loss = float(engine.gradients(state.theta, batch, state.grad, state.buffers).mean())
            status = self.judge(state, loss, state.grad)
            if status.ok:
                optimisers.clip_(state.grad, self.clip)
                state.optimizer.step()
        done = False
        metrics: dict[str, float] = {}
        if status.ok:
            self.schedule(state, batch)
            done, metrics = self._look_at_held_out(engine, state, batch)
        return state, Info(loss, EARLY_STOPPED if done and status.ok else status, done, metrics)

    def posteriors(self, engine: Engine, state: MAPState, data: Data | None) -> tuple[Posterior, ...]:
        """A :class:`Point` for each member."""
        kept = state.best_theta is not None
        buffers = state.best_buffers if kept else state.buffers
        theta = state.best_theta if state.best_theta is not None else state.theta
        return tuple(
            Point(row.detach().clone(), {name: value.clone() for name, value in buffers.items()}) for row in theta
        )

    # ------------------------------------------------------------------ shared

    def judge(self, state: MAPState, loss: float, moving: Tensor) -> Status:
        """Look at the loss, and at the gradient before it is used: a finite loss can have a gradient that is not."""
        if not math.isfinite(loss):
            return NON_FINITE_LOSS
        if not math.isfinite(float(moving.sum())):
            return NON_FINITE_GRADIENT
        if state.first_loss is None:
            state.first_loss = loss
        return DIVERGED if loss > _DIVERGENCE * (abs(state.first_loss) + 1.0) else OK

    def schedule(self, state: MAPState, batch: Batch) -> None:
        """Step the scheduler where it is due."""
        if state.scheduler is not None and (self.schedule_steps or batch.last):
            optimisers.advance(state.scheduler)

    def remarks(self, state: MAPState) -> list[str]:
        """That nobody said when to stop, where somebody was asked to."""
        if not state.unserved:
            return []
        return [
            "`patience` did nothing: there were no held-out rows to look at. Fewer than 20 rows are not divided; name "
            "some, fit(..., held_out=...), or say how long to train by `epochs`."
        ]

    def _epochs_of_patience(self, batch: Batch) -> int:
        """How many epochs it waits for, in this run."""
        if not isinstance(self.patience, float):
            return self.patience or 0
        if batch.total_steps is None or batch.steps_per_epoch is None:
            raise ArgumentError(
                f"`patience` must be a number of epochs where the length of the run is not known; got {self.patience}."
            )
        return max(_LEAST_PATIENCE, round(self.patience * batch.total_steps / batch.steps_per_epoch))

    def _look_at_held_out(self, engine: Engine, state: MAPState, batch: Batch) -> tuple[bool, dict[str, float]]:
        """After each epoch: score held-out data, and keep the best θ of each member that has not stopped. Whether all
        have; of too few rows to keep any apart, none does."""
        if self.patience is None or not batch.last:
            return False, {}
        if batch.held_out is None:
            state.unserved = True
            return False, {}
        patience = self._epochs_of_patience(batch)
        scores = [engine.held_out_score(row, batch.held_out, state.buffers) for row in state.theta]
        if state.best_theta is None:
            state.best_theta = state.theta.detach().clone()
            state.best_score = [-math.inf] * len(scores)
            state.stale = [0] * len(scores)
        for k, score in enumerate(scores):
            if state.stale[k] >= patience:
                continue  # this member has stopped, though the others still train
            state.stale[k] += 1
            if score > state.best_score[k]:
                state.stale[k] = 0
                state.best_score[k] = score
                state.best_theta[k] = state.theta[k].detach()
                state.best_buffers = {name: value.clone() for name, value in state.buffers.items()}
        return min(state.stale) >= patience, {"held_out_score": sum(scores) / len(scores)}
