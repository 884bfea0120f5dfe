"""``Variational``: the member of a family that comes closest to the posterior, by gradient ascent on the ELBO."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from temperance.core.checks import check_choice, check_count, check_flag, check_fraction, check_positive, shown
from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError
from temperance.core.status import INFINITE_ELBO, NON_FINITE_LOSS, OK, Status
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.engine.native import NormalStream
from temperance.engine.native.gaussian import Keys, can_fuse, draw_by_log_scale_, pull_to_log_scale_
from temperance.inference import optimisers
from temperance.inference.base import Cost, Exactness, Facts, Inference, Info, Starts
from temperance.inference.batch_statistics import with_statistics
from temperance.inference.card import Card, MethodFamily, Recipe
from temperance.inference.variational.expectations import (
    EpochLoss,
    Sampled,
    average_scores,
    check_samples,
    closed_form,
    fill_noise_,
    gaussian_precision,
    has_closed_form,
    judge,
)
from temperance.inference.variational.families import (
    BoundFamily,
    Family,
    FullRank,
    LowRank,
    MeanField,
    Pull,
    Radial,
)
from temperance.inference.variational.families.factorised import BoundFactorised, BoundMeanField
from temperance.inference.variational.layers import NoisyLayers
from temperance.posteriors import Gaussian, Posterior, RadialPosterior


@dataclass
class VariationalState:
    """φ, the optimiser's memory, where the noise has got to, and the losses of the epoch under way."""

    phi: Tensor
    grad: Tensor = field(metadata=SCRATCH)
    optimizer: torch.optim.Optimizer
    scheduler: Any
    buffers: dict[str, Tensor]
    noise_seed: int
    bound: BoundFamily = field(metadata=SCRATCH)
    sampled: Sampled = field(metadata=SCRATCH)
    noise: Tensor = field(metadata=SCRATCH)
    layers: NoisyLayers | None = field(metadata=SCRATCH)
    closed: bool = field(metadata=SCRATCH)
    precision: Tensor | float | None = field(metadata=SCRATCH)
    fused: bool = field(metadata=SCRATCH)
    noise_count: int = 0
    epoch_loss: EpochLoss = field(default_factory=EpochLoss)


@dataclass(frozen=True, eq=False)
class Variational(Inference[VariationalState]):
    """The q(θ; φ) of a family that maximises

        ELBO(φ) = E_q[log p(D | θ)] − KL(q ‖ p) ≤ log p(D),

    estimated from draws θ = f(φ, ε) and batches; per datum, and at temperature T, the loss is

        E_q[G̃(θ)] − (T/N) H[q],       G̃ = −(1/B) Σ log p(y_i | x_i, θ) / λ − (1/N) log p(θ),

    with H the entropy of q. (T tempers the whole posterior; λ, the target's ``likelihood_temperature``, the likelihood
    alone, which is what weighing the KL by λ does.) At T = 1 its negative times N is the ELBO; ``fitted.info.elbos``
    has it for every epoch and ``fitted.elbo(data)`` to any precision.

    Args:
        family: the form of q: ``MeanField()``, ``FullRank()``, ``LowRank(k)``, ``MatrixNormal()``, ``TiedScale(k)`` or
            ``Radial()``.
        lr, optimizer, optimizer_args, scheduler, scheduler_args, schedule_steps, clip: as for ``MAP``, on φ. The
            optimiser must treat each number alone (Adam, SGD, ...).
        samples: draws of θ a step, one gradient each; batched for small networks.
        antithetic: draws in pairs ±ε, which takes the noise out of the gradient of the mean where U is quadratic.
        estimator: ``"shared"``: one ε for all rows of a batch; ``"local"`` (local reparametrisation) or ``"flipout"``:
            noise of their own for each row at linear and convolution layers, for ``MeanField`` and ``TiedScale``. Both
            need ``samples=1``.
        sticking_the_landing: leave out the part of the gradient of log q that is zero on average, so that the noise
            vanishes as q comes to equal the posterior (Roeder et al., 2017).
        kl: ``"closed"`` form, ``"sampled"``, or ``"auto"``: closed where there is one (Gaussian and Laplace priors).
        warmup: raise the weight of the KL from 0 to 1 over this fraction of the run. 0: the ELBO from the first step.
        settle: let the step fall to 0 over this last fraction of the run, for φ to come to rest at the optimum: at a
            step that stays as it is, it wanders about it by some posterior standard deviations · √``lr``. Without a
            ``scheduler`` alone, which says itself what becomes of the step.
        initial_scale: standard deviation of each weight at the start, around the network's weights (or ``start``).
        draws: for networks with batch norm, the number of draws that get batch statistics of their own.

    It is exact where the family holds the posterior: ``FullRank`` on a linear-Gaussian model has its mean, covariance
    and evidence; ``MeanField`` there has the mean, and variances 1/Λᵢᵢ.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, tp.Variational(tp.MeanField(), lr=0.05), (x, 2 * x + 1), steps=500)
    >>> fitted.predict(torch.tensor([[0.5]])).mean().round(decimals=1)
    tensor([[2.]])
    """

    card: ClassVar[Card] = Card(
        "the distribution of a family that is nearest to the posterior, by the ELBO",
        MethodFamily.VARIATIONAL,
        papers=(
            "Graves, Practical variational inference for neural networks, NeurIPS 2011",
            "Blundell et al., Weight uncertainty in neural networks, ICML 2015",
        ),
        exact="where the family holds the posterior",
        recipes=(
            Recipe(
                "vi",
                "WarmStart(Variational(MeanField(), lr=5e-3, initial_scale=1e-3), "
                "TunedDecay(MAP(lr=5e-3, patience=0.1)))",
                "the best Gaussian without correlations, around a trained network",
            ),
        ),
        demo=(Recipe("Mean field", "Variational(MeanField(), lr=1e-3)"),),
    )

    family: Family = field(default_factory=MeanField)
    lr: float = 1e-3
    optimizer: type[torch.optim.Optimizer] = torch.optim.Adam
    optimizer_args: Mapping[str, Any] = field(default_factory=dict)
    scheduler: type[torch.optim.lr_scheduler.LRScheduler] | None = None
    scheduler_args: Mapping[str, Any] = field(default_factory=dict)
    schedule_steps: bool = False
    clip: float | None = None
    samples: int = 1
    antithetic: bool = False
    estimator: Literal["shared", "local", "flipout"] = "shared"
    sticking_the_landing: bool = False
    kl: Literal["auto", "closed", "sampled"] = "auto"
    warmup: float = 0.0
    settle: float = 0.5
    initial_scale: float = 0.01
    draws: int = 30

    def __post_init__(self) -> None:
        if not isinstance(self.family, Family):
            raise ArgumentError(f"`family` must be a family such as MeanField(); got {shown(self.family)}.")
        for name in ("lr", "initial_scale"):
            check_positive(getattr(self, name), name)
        if self.clip is not None:
            check_positive(self.clip, "clip")
        optimisers.check_settings(self.optimizer_args, self.scheduler, self.scheduler_args)
        for name in ("schedule_steps", "sticking_the_landing"):
            check_flag(getattr(self, name), name)
        check_samples(self.samples, self.antithetic)
        check_fraction(self.warmup, "warmup")
        check_fraction(self.settle, "settle")
        check_count(self.draws, "draws")
        check_choice(self.estimator, "estimator", ("shared", "local", "flipout"))
        check_choice(self.kl, "kl", ("auto", "closed", "sampled"))
        good = isinstance(self.optimizer, type) and issubclass(self.optimizer, torch.optim.Optimizer)
        if not good or not optimisers.is_elementwise(self.optimizer):
            raise ArgumentError(
                f"`optimizer` must be one of torch.optim's that treat each number alone; got {shown(self.optimizer)}."
            )
        if self.estimator != "shared" and (self.samples > 1 or self.sticking_the_landing or self.kl == "sampled"):
            raise ArgumentError(
                f"`estimator` {self.estimator!r} draws no θ for the batch: it needs samples=1, a KL in closed form, "
                "and no sticking_the_landing."
            )
        if self.sticking_the_landing and isinstance(self.family, Radial):
            raise ArgumentError(
                "`sticking_the_landing` has no average with Radial(), whose density is infinite at its mean; leave it "
                "out."
            )
        if self.sticking_the_landing and self.kl == "closed":
            raise ArgumentError('`kl` must not be "closed" with sticking_the_landing, which needs log q at the draws.')

    def facts(self) -> Facts:
        """By the family."""
        exact = Exactness.APPROXIMATE
        if isinstance(self.family, FullRank | MeanField):
            exact = Exactness.POSTERIOR if isinstance(self.family, FullRank) else Exactness.DIAGONAL
        return Facts(
            gives=RadialPosterior if isinstance(self.family, Radial) else Gaussian, exact=exact, cost=self._cost()
        )

    def _cost(self) -> Cost:
        """Mean field: φ, its gradient and Adam's moments, each twice θ; a draw, its gradient and its noise for every
        sample (one sample leaves its gradient in that of φ). Where the number grows with the layers' sizes it is not a
        number of copies: see ``num_parameters`` of the bound family."""
        per_sample = 2 if self.samples == 1 else 3 * self.samples
        moments = {"SGD": 1 if dict(self.optimizer_args).get("momentum") else 0}.get(self.optimizer.__name__, 2)
        sizes = {"MeanField": 2.0, "Radial": 2.0, "TiedScale": 2.0}
        if isinstance(self.family, LowRank):
            return Cost(self.samples, (2 + moments) * (2 + self.family.rank) + per_sample)
        if type(self.family).__name__ not in sizes:
            return Cost(self.samples, math.inf)
        return Cost(self.samples, (2 + moments) * sizes[type(self.family).__name__] + per_sample)

    # ------------------------------------------------------------------ the start

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> VariationalState:
        """See :class:`Inference`."""
        (rng,), start = rngs, starts.one(engine)
        bound = self.family.bind(engine.layout)
        self._check(engine, bound)
        phi = bound.start(start, self.initial_scale, rng).contiguous()
        grad = torch.zeros_like(phi)
        closed, precision = self._closed(engine, bound), gaussian_precision(engine.bound_prior, start)
        sampled = Sampled(engine, self.samples, grad[: bound.size] if self.samples == 1 else None)
        fused = (
            isinstance(bound, BoundMeanField)
            and self.samples == 1
            and self.estimator == "shared"
            and not self.sticking_the_landing
            and (precision is not None or not closed)
            and can_fuse((phi, grad))
        )
        rows = 0 if fused else self.samples
        optimizer = optimisers.build_optimizer(self.optimizer, self.lr, self.optimizer_args, engine.layout, phi, grad)
        return VariationalState(
            phi=phi,
            grad=grad,
            optimizer=optimizer,
            scheduler=optimisers.build_scheduler(self.scheduler, self.scheduler_args, optimizer),
            buffers=engine.target.running_buffers(),
            noise_seed=int(torch.randint(0, 2**62, (), generator=rng, device=rng.device)),
            bound=bound,
            sampled=sampled,
            noise=torch.zeros(rows, bound.num_noise, dtype=phi.dtype, device=phi.device),
            layers=None if self.estimator == "shared" else NoisyLayers(engine, self.estimator),
            closed=closed,
            precision=precision,
            fused=fused,
        )

    def _check(self, engine: Engine, bound: BoundFamily) -> None:
        if self.estimator != "shared" and not bound.factorised:
            raise ArgumentError(
                f"`estimator` {self.estimator!r} needs independent normals: MeanField() or TiedScale(k); got "
                f"{self.family!r}."
            )
        without = [
            type(d).__name__ for _, d in engine.bound_prior.pieces if not has_closed_form(d, normal=bound.normal)
        ]
        if without and (self.kl == "closed" or self.estimator != "shared"):
            raise ArgumentError(
                f"`kl` in closed form does not exist between {type(self.family).__name__} and the prior "
                f'({without[0]}): use kl="sampled" with estimator="shared".'
            )

    def _closed(self, engine: Engine, bound: BoundFamily) -> bool:
        """Whether the prior's part of the KL is taken in closed form."""
        if self.kl != "auto" or self.sticking_the_landing:
            return self.kl == "closed"
        return closed_form(engine.bound_prior, bound.normal)

    # ------------------------------------------------------------------ a step

    def step(self, engine: Engine, state: VariationalState, batch: Batch) -> tuple[VariationalState, Info]:
        """See :class:`Inference`."""
        weight = 1.0 if batch.progress >= self.warmup else batch.progress / self.warmup
        stream = NormalStream(state.noise_seed, state.noise_count)
        keys = stream.keys() if state.fused else None
        if state.layers is None:
            loss, pull = self._shared(engine, state, batch, stream, weight, keys)
        else:
            loss, pull = self._by_layers(engine, state, batch, stream, state.layers)
        state.noise_count = stream.count
        if not math.isfinite(loss):
            return state, Info(loss, NON_FINITE_LOSS)
        share = weight / batch.num_data
        if not self.sticking_the_landing:
            pull.entropy = share * engine.temperature
        closed, mean = state.closed, state.bound.mean(state.phi)
        if closed and state.precision is not None:
            pull.variance = 0.5 * share * state.precision
        elif closed:
            with torch.no_grad():
                by_mean, by_variance = average_scores(engine.bound_prior, mean, state.bound.variances(state.phi))
            pull.mean = by_mean.mul_(-share) if pull.mean is None else pull.mean.sub_(by_mean, alpha=share)
            pull.variance = by_variance.mul_(-share)
        if keys is not None:
            _pull_at_once(state, pull, keys)
        else:
            state.bound.pull_back(state.phi, state.noise, pull, state.grad)
        if closed and state.precision is not None:  # Gaussian: the part of the mean is the prior's own gradient there
            engine.bound_prior.add_gradient(mean, state.grad[: state.bound.size], -share)
        status = judge(loss, state.grad, state.epoch_loss.first)
        if not status.ok:
            return state, Info(loss, status)
        optimisers.clip_(state.grad, self.clip)
        if state.scheduler is None:
            self._settle(state, batch)
        state.optimizer.step()
        if state.scheduler is not None and (self.schedule_steps or batch.last):
            optimisers.advance(state.scheduler)
        status, metrics = self._account(engine, state, batch, loss)
        return state, Info(loss, status, metrics=metrics)

    def _settle(self, state: VariationalState, batch: Batch) -> None:
        """The step for this place in the run."""
        left = 1.0 - batch.progress
        for group in state.optimizer.param_groups:
            group["lr"] = self.lr if left >= self.settle else self.lr * left / self.settle

    def _shared(
        self,
        engine: Engine,
        state: VariationalState,
        batch: Batch,
        stream: NormalStream,
        weight: float,
        keys: Keys | None,
    ) -> tuple[float, Pull]:
        """One draw (or several) for all rows of the batch."""
        sampled, bound = state.sampled, state.bound
        if keys is not None:
            draw_by_log_scale_(sampled.theta[0], state.phi[: bound.size], state.phi[bound.size :], keys)
        else:
            fill_noise_(state.noise, stream, self.antithetic)
            bound.draw_(state.phi, state.noise, sampled.theta)
        loss = sampled.gradients(engine, batch, state.buffers)
        if not state.closed:
            engine.bound_prior.add_gradient(sampled.theta, sampled.grad, -weight / batch.num_data)
        if self.sticking_the_landing:
            with torch.no_grad():
                score = bound.score(state.phi, state.noise)
            sampled.grad.add_(score, alpha=weight * engine.temperature / batch.num_data)
        if self.samples > 1:
            sampled.grad.mul_(1.0 / self.samples)
        return loss, Pull(sampled.grad)

    def _by_layers(
        self, engine: Engine, state: VariationalState, batch: Batch, stream: NormalStream, layers: NoisyLayers
    ) -> tuple[float, Pull]:
        """Means in the layers that add their own noise, a draw in all other parameters."""
        bound, sampled = state.bound, state.sampled
        assert isinstance(bound, BoundFactorised)
        noise = stream.fill_(state.noise)[0].mul_(layers.shared)
        theta, grad = sampled.rows[0]
        with torch.no_grad():
            scale = bound.scale(state.phi)
            torch.addcmul(bound.mean(state.phi), scale, noise, out=theta)
        leaf = scale.requires_grad_()
        with layers.installed(leaf, stream):
            loss = float(engine.gradient(theta, batch, grad, state.buffers, prior=False))
        by_scale = leaf.grad if leaf.grad is not None else torch.zeros_like(grad)
        return loss, Pull(None, mean=grad.clone(), scale=by_scale.addcmul_(grad, noise))

    def _account(
        self, engine: Engine, state: VariationalState, batch: Batch, loss: float
    ) -> tuple[Status, dict[str, float]]:
        """The ELBO of an epoch: its losses, and the KL at its end."""
        state.epoch_loss.add(loss, batch.size)
        if not batch.last:
            return OK, {}
        with torch.no_grad():
            bound, phi = state.bound, state.phi
            mean, variance, entropy = bound.mean(phi), bound.variances(phi), float(bound.entropy(phi))
            elbo = state.epoch_loss.elbo(
                engine, batch.num_data, mean, variance, entropy, state.sampled.theta, normal=bound.normal
            )
        return (OK if math.isfinite(elbo) else INFINITE_ELBO), {"elbo": elbo}

    # ------------------------------------------------------------------ the result

    def posteriors(self, engine: Engine, state: VariationalState, data: Data | None) -> tuple[Posterior, ...]:
        """q; with batch statistics for ``draws`` draws where the network has batch norm."""
        buffers = {name: value.clone() for name, value in state.buffers.items()}
        return (with_statistics(engine, state.bound.posterior(state.phi.detach(), buffers), data, self.draws),)


def _pull_at_once(state: VariationalState, pull: Pull, keys: Keys) -> None:
    """The mean field's gradient in log σ in one pass; that in the mean is where the network left it."""
    size = state.bound.size
    by_mean, by_scale = state.grad[:size], state.grad[size:]
    factor, each = (1.0, pull.variance) if isinstance(pull.variance, Tensor) else (pull.variance, None)
    pull_to_log_scale_(by_scale, by_mean, state.phi[size:], keys, factor, each, pull.entropy)
