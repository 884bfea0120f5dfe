"""``Subspace``: any method in a few directions of weight space."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from temperance.core.checks import check_count, check_level
from temperance.core.encoding import SCRATCH, encode, restore
from temperance.core.errors import ArgumentError, NumericalError
from temperance.core.seeds import generator, spawn
from temperance.core.status import Status
from temperance.data.data import Batch, Data
from temperance.data.sources import map_tensors
from temperance.inference.base import Cost, Inference, Info
from temperance.inference.curvature import Dense
from temperance.inference.curvature.functional import FunctionalLaplace
from temperance.inference.curvature.laplace import Laplace
from temperance.inference.points.curve import (
    check_same_length,
    first_part,
    refuse_moving_buffers,
    second_part,
    split_run,
)
from temperance.inference.points.mc_dropout import MCDropout
from temperance.inference.wrappers.bases import PCA, Basis, orthonormal
from temperance.inference.wrappers.on import On
from temperance.model.target import Target
from temperance.model.theta import Layout
from temperance.posteriors import Posterior
from temperance.posteriors.affine import lifted, restricted


class SubspaceNetwork(nn.Module):
    """A network at θ = c + B z; z is its parameter. Fresh ones, z ~ N(0, I), start the members of an ensemble."""

    centre: Tensor
    basis: Tensor

    def __init__(self, network: nn.Module, layout: Layout, rank: int) -> None:
        super().__init__()
        self.network, self.entries = network, layout.network_entries
        self.z = nn.Parameter(torch.zeros(rank, dtype=layout.dtype, device=next(network.parameters()).device))
        self.register_buffer("centre", None)
        self.register_buffer("basis", None)

    def reset_parameters(self) -> None:
        """z ~ N(0, I)."""
        nn.init.normal_(self.z)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's answer at c + B z."""
        theta = self.centre + self.basis @ self.z
        values = {e.name: theta[e.start : e.stop].reshape(e.shape) for e in self.entries}
        return functional_call(self.network, values, args, kwargs)


@dataclass
class SubspaceState:
    """The state of what is trained first, while that lasts; c (P numbers) and B once they are ``ready``; the method's
    own state, before that one of the right shapes; the seed of all that is random here, a generator of rows."""

    first: Any
    inner: Any
    centre: Tensor
    basis: Tensor
    seed: int
    rows: torch.Generator
    ready: bool = False
    total_steps: int | None = None
    target: Target | None = field(default=None, metadata=SCRATCH)
    folder: Path | None = field(default=None, metadata=SCRATCH)


@dataclass(frozen=True, eq=False)
class Subspace(Inference[SubspaceState]):
    """``method`` over the coordinates z of an affine subspace of weight space (Izmailov et al., 2019),

        θ = c + B z,     p(z | D) ∝ p(D | c + B z) p(c + B z):

    the prior is that of θ restricted to the subspace, so that a full basis gives the posterior of θ itself. What the
    likelihood learns stays a coordinate of its own beside z.

    The first part of the run trains what the basis is made of; the rest is a run of its own for ``method``, which
    begins at z = 0 (members of an ensemble at z ~ N(0, I)).

    Args:
        method: any method: ``MAP``, ``Variational``, ``Laplace(..., curvature=Dense())``, ``Collect(GGMC(...))``, or an
            ``Ensemble`` of one.
        basis: ``PCA(rank, SWAG(...))``, ``RandomBasis(rank, base)``, ``CurveBasis(Curve(...))`` or
            ``GivenBasis(matrix)``.
        share: the part of the run that trains the basis, where there is something to train. A ``method`` that takes no
            steps, ``Laplace(curvature=Dense())``, leaves it all of them.
        batch_size: rows a step of that part where ``method`` reads all data at every step.

    >>> import temperance as tp
    >>> train, test = tp.data.load("iris")
    >>> target = tp.Target(tp.nn.MLP(4, [16], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> basis = PCA(rank=3, base=tp.SWAG(rank=5))
    >>> fitted = tp.fit(target, Subspace(tp.Variational(lr=0.05), basis), train, epochs=40)
    >>> fitted.posterior.inner.size, fitted.posterior.size
    (3, 131)
    """

    method: Inference[Any]
    basis: Basis = field(default_factory=PCA)
    share: float = 0.5
    batch_size: int = 128

    def __post_init__(self) -> None:
        if not isinstance(self.method, Inference):
            raise ArgumentError(f"`method` must be a method such as MAP(lr=1e-3); got {self.method!r}.")
        if not isinstance(self.basis, Basis):
            raise ArgumentError(f"`basis` must be a basis such as PCA(rank=20, base=SWAG()); got {self.basis!r}.")
        check_level(self.share, "share")
        check_count(self.batch_size, "batch_size")
        inside: Any = self.method
        while isinstance(inside, Inference):
            _check_inside(inside)
            inside = getattr(inside, "base", None) or getattr(inside, "method", None)

    @property
    def reads(self) -> Any:  # type: ignore[override]
        """As the method does."""
        return self.method.reads

    @property
    def default_steps(self) -> int | None:  # type: ignore[override]
        """As the method has it, where nothing is trained before."""
        return self.method.default_steps if self.basis.trainer() is None else None

    @property
    def streams(self) -> int:
        """As many as the part that wants more of them."""
        trainer = self.basis.trainer()
        return max(self.method.streams, 1 if trainer is None else trainer.streams)

    @property
    def needs_held_out(self) -> bool:
        """As the method does."""
        return self.method.needs_held_out

    def check_run(self, steps: int) -> None:
        """As both parts do."""
        trainer, first = self.basis.trainer(), self._first(steps)
        if trainer is not None:
            trainer.check_run(first)
        self.method.check_run(steps - first)

    def keep_in(self, state: SubspaceState, folder: Path) -> None:
        """As both parts do."""
        state.folder = folder
        trainer = self.basis.trainer()
        if trainer is not None and state.first is not None:
            trainer.keep_in(state.first, folder)
        self.method.keep_in(state.inner, folder)

    def remarks(self, state: SubspaceState) -> list[str]:
        """As the method does."""
        return self.method.remarks(state.inner) if state.ready else []

    def cost(self) -> Cost:
        """The larger number of gradients; what is trained first, c, B, and at most what the method keeps of θ."""
        inner, trainer = self.method.cost(), self.basis.trainer()
        first = Cost(0, 0) if trainer is None else trainer.cost()
        gradients = max(inner.gradients_per_step, first.gradients_per_step)
        return Cost(gradients, first.copies_of_theta + 1 + self.basis.columns() + inner.copies_of_theta)

    def _first(self, steps: int | None) -> int:
        """How many steps train the basis."""
        if self.basis.trainer() is None:
            return 0
        if self.method.default_steps == 0 and steps is not None:
            return steps
        return split_run(steps, self.share)

    # ------------------------------------------------------------------ the start

    def init(self, target: Target, theta: Tensor | None, rng: torch.Generator) -> SubspaceState:
        """See :class:`Inference`. ``theta`` is where the first part starts; without one, the centre."""
        refuse_moving_buffers(target, "Subspace")
        self.basis.check(target)
        seed, trainer = spawn(rng), self.basis.trainer()
        start = target.initial_theta() if theta is None else theta
        if trainer is None and start.dim() != 1:
            raise ArgumentError(f"`start` must be a vector for Subspace; got a matrix of shape {tuple(start.shape)}.")
        rows = torch.Generator()
        rows.manual_seed(spawn(rng))
        size, rank, like = target.layout.network_size, self.basis.columns(), start.new_zeros(())
        state = SubspaceState(
            first=None if trainer is None else trainer.init(target, theta, rng),
            inner=None,
            centre=like.new_zeros(target.layout.size),
            basis=like.new_zeros(size, rank),
            seed=seed,
            rows=rows,
        )
        if trainer is None:
            self._settle(target, state, start)
        else:  # any basis of that size: what the method refuses, and the shapes of its state, are known now
            state.centre.copy_(target.initial_theta())
            state.basis.copy_(orthonormal(size, rank, generator(seed, "any-basis")))
            state.inner = self._begin(self._target(target, state), state)
        return state

    def _settle(self, target: Target, state: SubspaceState, start: Tensor) -> None:
        """Make c and B, and begin the second part."""
        made = self.basis.make(target, start, state.first, generator(state.seed, "basis"))
        with torch.no_grad():
            state.centre.copy_(made[0])
            state.basis.copy_(made[1])
        state.first, state.ready = None, True
        state.target = self._target(target, state)
        state.inner = self._begin(state.target, state)
        if state.folder is not None:
            self.method.keep_in(state.inner, state.folder)

    def _begin(self, inside: Target, state: SubspaceState) -> Any:
        return self.method.init(inside, None, generator(state.seed, "method"))

    def _target(self, target: Target, state: SubspaceState) -> Target:
        """The problem over z (and what the likelihood learns)."""
        layout, size = target.layout, target.layout.network_size
        made = Target(
            SubspaceNetwork(target.network, layout, self.basis.columns()),
            target.likelihood,
            restricted(target.bound_prior, layout, state.centre, state.basis),
            target.temperature,
            likelihood_temperature=target.likelihood_temperature,
            subset=["z"],
            freeze_batch_norm=target.workspace.freeze_batch_norm,
        )
        network = made.network
        assert isinstance(network, SubspaceNetwork)
        network.centre, network.basis = state.centre[:size], state.basis
        made.workspace.example = target.workspace.example
        made.workspace.learned_start = {
            e.name: state.centre[e.start : e.stop].clone() for e in layout.entries if e.role == "likelihood"
        }
        return made.compile() if target.is_compiled else made

    def _inside(self, target: Target, state: SubspaceState) -> Target:
        """The target of the second part. In a run that was resumed the method's state was put into one that belongs to
        any basis; here it moves into one that ``init`` makes for the right one."""
        if state.target is None:
            state.target = self._target(target, state)
            tensors: dict[str, Tensor] = {}
            form = encode(state.inner, tensors)
            state.inner = restore(self._begin(state.target, state), form, tensors, target.device)
            if state.folder is not None:
                self.method.keep_in(state.inner, state.folder)
        return state.target

    # ------------------------------------------------------------------ the run

    def step(self, target: Target, state: SubspaceState, batch: Batch) -> tuple[SubspaceState, Info]:
        """A step of what the basis is made of, or of the method."""
        trainer, first = self.basis.trainer(), self._first(batch.total_steps)
        if trainer is not None:
            check_same_length(state.total_steps, batch.total_steps)
            state.total_steps = batch.total_steps
        if trainer is not None and batch.step < first:
            here = self._rows_of(state, first_part(batch, first), trainer.streams)
            if batch.step == 0:
                self.basis.check_plan(here)
            state.first, info = trainer.step(target, state.first, here)
            if info.status.ok and batch.step + 1 == first:
                try:
                    self._settle(target, state, state.centre)
                except NumericalError as error:
                    return state, Info(info.loss, Status("no-basis", str(error), ok=False))
            return state, info
        inside = self._inside(target, state)
        here = _streams_of(second_part(batch, first), self.method.streams)
        state.inner, info = self.method.step(inside, state.inner, here)
        return state, info

    def _rows_of(self, state: SubspaceState, batch: Batch, streams: int) -> Batch:
        """The batch itself; where it holds all data, some rows at random, with epochs of as many steps as cover all."""
        if self.reads != "full":
            return _streams_of(batch, streams)
        size = min(self.batch_size, batch.size)
        every = -(-batch.size // size)
        drawn = [torch.randperm(batch.size, generator=state.rows)[:size] for _ in range(streams)]
        rows = torch.stack(drawn) if streams > 1 else drawn[0]
        return replace(
            batch,
            x=map_tensors(lambda t: t[rows.to(t.device)], batch.x),
            y=batch.y[rows.to(batch.y.device)],
            index=None if batch.index is None else batch.index[rows.to(batch.index.device)],
            epoch=batch.step // every,
            last=(batch.step + 1) % every == 0,
            steps_per_epoch=every,
            streams=streams if streams > 1 else None,
        )

    def posterior(self, target: Target, state: SubspaceState, data: Data | None) -> Posterior:
        """An :class:`~temperance.posteriors.affine.Affine`; points, draws and mixtures stay what they are."""
        if not state.ready:
            raise NumericalError(
                "there is no subspace yet: the run ended while its basis was trained. After an interruption, call fit "
                "again with the same checkpoint."
            )
        inside = self._inside(target, state)
        found = self.method.posterior(inside, state.inner, data)
        return lifted(found, state.centre.clone(), state.basis.clone())


def _streams_of(batch: Batch, streams: int) -> Batch:
    """The first so many of a batch's streams."""
    if batch.streams is None or batch.streams == streams:
        return batch
    return batch.stream(0) if streams == 1 else batch.stream_range(0, streams)


def _check_inside(method: Inference[Any]) -> None:
    """Refuse methods that look at the layers of a network, which z has none of."""
    if isinstance(method, On | MCDropout | FunctionalLaplace | Subspace):
        raise ArgumentError(
            f"`method` must work on any vector of parameters; {type(method).__name__} looks at a network's own parts."
        )
    if isinstance(method, Laplace):
        if not isinstance(method.curvature, Dense) or method.on is not None:
            raise ArgumentError(
                "`method`: coordinates of a subspace are no layers; use Laplace(base, curvature=Dense())."
            )
        if method.tune is not None:
            raise ArgumentError("`method` must not `tune` the prior by evidence: in a subspace it is that of θ.")
