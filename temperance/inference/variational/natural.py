"""What natural-gradient VI methods share: a diagonal Gaussian N(m, T / (N (h + δ))) whose precision is learned from
curvature, h per datum, and a step that is preconditioned by it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_function, check_positive, real, shown
from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError
from temperance.core.status import INFINITE_ELBO, OK, Status
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.engine.native import NormalStream
from temperance.inference.base import Cost, Exactness, Facts, Inference, Info, NeedsData, Starts
from temperance.inference.batch_statistics import with_statistics
from temperance.inference.schedules import flat
from temperance.inference.variational.expectations import (
    EpochLoss,
    Sampled,
    check_samples,
    fill_noise_,
    gaussian_precision,
    judge,
)
from temperance.linalg.covariance import DiagonalCovariance
from temperance.posteriors import Gaussian, Posterior


@dataclass
class NaturalState:
    """The mean m, the curvature h and the averaged gradient, each like θ; how many steps were made; where the noise
    has got to. The number of data comes with the first batch."""

    mean: Tensor
    hessian: Tensor
    momentum: Tensor
    buffers: dict[str, Tensor]
    noise_seed: int
    noise: Tensor = field(metadata=SCRATCH)
    sampled: Sampled = field(metadata=SCRATCH)
    prior_precision: Tensor | float = field(metadata=SCRATCH)
    noise_count: int = 0
    clock: int = 0
    epoch_loss: EpochLoss = field(default_factory=EpochLoss)
    num_data: int = 0
    work: object = field(default=None, metadata=SCRATCH)
    fused: bool = field(default=False, metadata=SCRATCH)


@dataclass(frozen=True, eq=False)
class NaturalGradient(Inference[NaturalState]):
    """Base of :class:`IVON` and :class:`VOGN`; see there."""

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.9995)
    initial_hessian: float = 1.0
    samples: int = 1
    antithetic: bool = False
    clip: float | None = None
    schedule: Callable[[float], float] = flat
    draws: int = 30

    def __post_init__(self) -> None:
        check_positive(self.lr, "lr")
        check_positive(self.initial_hessian, "initial_hessian")
        check_betas(self.betas)
        check_samples(self.samples, self.antithetic)
        check_count(self.draws, "draws")
        if self.clip is not None:
            check_positive(self.clip, "clip")
        check_function(self.schedule, "schedule", "a function of the run's fraction, such as tp.cosine")

    def facts(self) -> Facts:
        """Mean, curvature, averaged gradient; for every sample a draw, its gradient and its noise."""
        return Facts(gives=Gaussian, exact=Exactness.DIAGONAL, cost=Cost(self.samples, 3 + 3 * self.samples))

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> NaturalState:
        """See :class:`Inference`."""
        (rng,), start = rngs, starts.one(engine)
        precision = gaussian_precision(engine.bound_prior, start)
        fused = self.can_fuse(engine, start, precision)
        rows = 0 if fused else self.samples
        return NaturalState(
            mean=start.contiguous(),
            hessian=torch.full_like(start, self.initial_hessian),
            momentum=torch.zeros_like(start),
            buffers=engine.target.running_buffers(),
            noise_seed=int(torch.randint(0, 2**62, (), generator=rng, device=rng.device)),
            noise=torch.zeros(rows, len(start), dtype=start.dtype, device=start.device),
            sampled=Sampled(engine, self.samples),
            prior_precision=0.0 if precision is None else precision,
            fused=fused,
        )

    def step(self, engine: Engine, state: NaturalState, batch: Batch) -> tuple[NaturalState, Info]:
        """See :class:`Inference`."""
        state.num_data = batch.num_data
        stream = NormalStream(state.noise_seed, state.noise_count)
        if state.fused:
            return self.step_at_once(engine, state, batch, stream)
        fill_noise_(state.noise, stream, self.antithetic)
        state.noise_count = stream.count
        delta = _scaled(state.prior_precision, 1.0 / batch.num_data)
        with torch.no_grad():
            total = state.hessian + delta
            root = (total * (batch.num_data / engine.temperature)).sqrt_()  # 1/σ
            torch.div(state.noise, root, out=state.sampled.theta).add_(state.mean)
        loss, gradient, curvature = self.look(engine, state, batch, root)
        status = judge(loss, gradient, state.epoch_loss.first)
        if status.ok:
            with torch.no_grad():
                self._move(engine, state, batch, gradient, curvature, total, delta)
        return self.account(engine, state, batch, loss, status)

    @torch.no_grad()
    def account(
        self, engine: Engine, state: NaturalState, batch: Batch, loss: float, status: Status
    ) -> tuple[NaturalState, Info]:
        """The end of a step; at the end of an epoch, with its ELBO."""
        if not status.ok:
            return state, Info(loss, status)
        state.epoch_loss.add(loss, batch.size)
        if not batch.last:
            return state, Info(loss)
        variance = self._variance(engine, state)
        entropy = 0.5 * float(variance.log().double().sum()) + len(variance) * 0.5 * math.log(2 * math.pi * math.e)
        elbo = state.epoch_loss.elbo(
            engine, batch.num_data, state.mean, variance, entropy, state.sampled.theta, normal=True
        )
        return state, Info(loss, OK if math.isfinite(elbo) else INFINITE_ELBO, metrics={"elbo": elbo})

    @staticmethod
    def _variance(engine: Engine, state: NaturalState) -> Tensor:
        """T / (N (h + δ))."""
        precision = state.hessian * (state.num_data / engine.temperature)
        return 1.0 / (precision + _scaled(state.prior_precision, 1.0 / engine.temperature))

    def step_at_once(
        self, engine: Engine, state: NaturalState, batch: Batch, stream: NormalStream
    ) -> tuple[NaturalState, Info]:
        """A step whose noise is never kept, where the method has one."""
        raise NotImplementedError

    def can_fuse(self, engine: Engine, theta: Tensor, precision: Tensor | float | None) -> bool:
        """Whether :meth:`step_at_once` is to be used."""
        return False

    @abstractmethod
    def look(self, engine: Engine, state: NaturalState, batch: Batch, root: Tensor) -> tuple[float, Tensor, Tensor]:
        """The batch's loss, the average gradient of G̃ at the draws (of its data term, under a Gaussian prior), and
        an estimate of its curvature; ``root`` is 1/σ."""

    @abstractmethod
    def learn_curvature(self, hessian: Tensor, estimate: Tensor, total: Tensor) -> None:
        """Take an estimate in, in place; ``total`` is h + δ before."""

    def rate(self, delta: Tensor | float) -> Tensor | float:
        """The learning rate on the preconditioned gradient."""
        return self.lr

    def _move(
        self,
        engine: Engine,
        state: NaturalState,
        batch: Batch,
        gradient: Tensor,
        curvature: Tensor,
        total: Tensor,
        delta: Tensor | float,
    ) -> None:
        state.clock += 1
        beta = self.betas[0]
        state.momentum.lerp_(gradient, 1 - beta)
        self.learn_curvature(state.hessian, curvature, total)
        total = torch.add(state.hessian, delta, out=curvature)
        step = torch.mul(state.momentum, 1.0 / (1 - beta**state.clock), out=gradient)
        if isinstance(state.prior_precision, Tensor) or state.prior_precision:
            engine.bound_prior.add_gradient(state.mean, step, -1.0 / batch.num_data)
        rate, pace = self.rate(delta), self.schedule(batch.progress)
        if isinstance(rate, Tensor) or self.clip is not None:
            step.div_(total).mul_(rate * pace)
            if self.clip is not None:
                step.clamp_(-self.clip, self.clip)
            state.mean.sub_(step)
        else:
            state.mean.addcdiv_(step, total, value=-rate * pace)

    def posteriors(self, engine: Engine, state: NaturalState, data: Data | None) -> tuple[Posterior, ...]:
        """A :class:`Gaussian` with variances T / (N (h + δ))."""
        if not state.num_data:
            raise NeedsData("no step was made yet, so the number of data is not known.")
        buffers = {name: value.clone() for name, value in state.buffers.items()}
        found = Gaussian(state.mean.clone(), DiagonalCovariance(self._variance(engine, state)), buffers)
        return (with_statistics(engine, found, data, self.draws),)


def _scaled(value: Tensor | float, factor: float) -> Tensor | float:
    return value * factor


def check_betas(betas: Sequence[float]) -> None:
    """Two decay rates in [0, 1)."""
    good = isinstance(betas, tuple | list) and len(betas) == 2
    if not good or not all(0 <= real(b) < 1 for b in betas):
        raise ArgumentError(f"`betas` must be two numbers from 0 up to 1; got {shown(betas)}.")
