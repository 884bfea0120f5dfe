"""``Subspace``: any method in a few directions of weight space."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_level, shown
from temperance.core.encoding import SCRATCH, encode, restore
from temperance.core.errors import ArgumentError, NumericalError
from temperance.core.seeds import generator, spawn
from temperance.core.status import Status
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.inference.base import Cost, Exactness, Facts, Inference, Info, Starts, Wrapper, WrapperState, refuse
from temperance.inference.card import Card, MethodFamily
from temperance.inference.curvature import Dense
from temperance.inference.curvature.functional import FunctionalLaplace
from temperance.inference.curvature.laplace import Laplace
from temperance.inference.points.mc_dropout import MCDropout
from temperance.inference.wrappers.bases import PCA, Basis, orthonormal
from temperance.inference.wrappers.curve import refuse_moving_buffers
from temperance.inference.wrappers.on import On
from temperance.inference.wrappers.parts import (
    check_same_length,
    first_part,
    second_part,
    some_rows,
    split_run,
    streams_of,
)
from temperance.posteriors import Point, Posterior
from temperance.posteriors.affine import lifted, lifted_kind, subspace_target


@dataclass
class SubspaceState(WrapperState):
    """The method's own state (before the basis is there, one of the right shapes); the state of what is trained first,
    while that lasts; c (P numbers) and B once they are ``ready``; the seed of all that is random here, a generator of
    rows."""

    first: Any
    centre: Tensor
    basis: Tensor
    seed: int
    rows: torch.Generator
    ready: bool = False
    total_steps: int | None = None
    engine: Engine | None = field(default=None, metadata=SCRATCH)
    folder: Path | None = field(default=None, metadata=SCRATCH)


@dataclass(frozen=True, eq=False)
class Subspace(Wrapper):
    """``base`` over the coordinates z of an affine subspace of weight space (Izmailov et al., 2019),

        θ = c + B z,     p(z | D) ∝ p(D | c + B z) p(c + B z):

    the prior is that of θ restricted to the subspace, so that a full basis gives the posterior of θ itself. What the
    likelihood learns stays a coordinate of its own beside z.

    The first part of the run trains what the basis is made of; the rest is a run of its own for ``base``, which
    begins at z = 0 (members of an ensemble at z ~ N(0, I)).

    Args:
        base: any method: ``MAP``, ``Variational``, ``Laplace(..., curvature=Dense(), tune=None)``,
            ``Collect(GGMC(...))``, or an ``Ensemble`` of one.
        basis: ``PCA(rank, SWAG(...))``, ``RandomBasis(rank, base)``, ``CurveBasis(Curve(...))`` or
            ``GivenBasis(matrix)``.
        share: the part of the run that trains the basis, where there is something to train. A ``base`` that takes no
            steps, ``Laplace(curvature=Dense(), tune=None)``, leaves it all of them.
        batch_size: rows a step of that part where ``base`` reads all data at every step.

    >>> import temperance as tp
    >>> train, test = tp.data.load("iris")
    >>> target = tp.Target(tp.nn.MLP(4, [16], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> basis = PCA(rank=3, base=tp.SWAG(rank=5))
    >>> fitted = tp.fit(target, Subspace(tp.Variational(lr=0.05), basis), train, epochs=40)
    >>> fitted.posterior.inner.size, fitted.posterior.size
    (3, 131)
    """

    card: ClassVar[Card] = Card(
        "a method over the coordinates z of θ = c + B z",
        MethodFamily.WRAPPERS,
        papers=PCA.card.papers,
        exact="a full basis: as its method",
        cost="the method's gradients, k numbers in each of its copies",
        shown=("Subspace(Warmup(NUTS()), PCA())",),
    )

    base: Inference[Any]
    basis: Basis = field(default_factory=PCA)
    share: float = 0.5
    batch_size: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.basis, Basis):
            raise ArgumentError(f"`basis` must be a basis such as PCA(rank=20, base=SWAG()); got {shown(self.basis)}.")
        check_level(self.share, "share")
        check_count(self.batch_size, "batch_size")

    def check_base(self, base: Inference[Any]) -> None:
        """Everything inside must work on any vector of parameters."""
        inside: Inference[Any] | None = base
        while inside is not None:
            _check_inside(base, inside)
            inside = inside.base if isinstance(inside, Wrapper) else None

    def facts(self) -> Facts:
        """The base's; what is trained first, c, B, and at most what the base keeps of θ."""
        base, trainer = self.base.facts(), self.basis.trainer()
        first = Facts(Point, cost=Cost(0, 0)) if trainer is None else trainer.facts()
        gradients = max(base.cost.gradients_per_step, first.cost.gradients_per_step)
        copies = first.cost.copies_of_theta + 1 + self.basis.columns() + base.cost.copies_of_theta
        return replace(
            base,
            gives=lifted_kind(base.gives),
            exact=Exactness.APPROXIMATE,
            cost=Cost(gradients, copies),
            default_steps=base.default_steps if trainer is None else None,
            streams=max(base.streams, first.streams),
        )

    def at_once(self, engine: Engine, starts: Starts) -> bool:
        """One subspace at a time: each member makes its own."""
        return False

    def check_run(self, steps: int) -> None:
        """As both parts do."""
        trainer, first = self.basis.trainer(), self._first(steps)
        if trainer is not None:
            with self._about(f"the {first} of {steps} steps that train the basis by {type(trainer).__name__}"):
                trainer.check_run(first)
        with self._about(f"the {steps - first} of {steps} steps that are {type(self.base).__name__}'s"):
            self.base.check_run(steps - first)

    @contextlib.contextmanager
    def _about(self, part: str) -> Iterator[None]:
        """An error about a part of the run says which: its steps are not those that the user gave."""
        try:
            yield
        except ArgumentError as error:
            raise ArgumentError(f"Subspace, in {part} (see `share`): {error}") from error

    def keep_in(self, state: SubspaceState, folder: Path) -> None:
        """As both parts do."""
        state.folder = folder
        trainer = self.basis.trainer()
        if trainer is not None and state.first is not None:
            trainer.keep_in(state.first, folder)
        self.base.keep_in(state.base, folder)

    def remarks(self, state: SubspaceState) -> list[str]:
        """As the method does."""
        return self.base.remarks(state.base) if state.ready else []

    def _first(self, steps: int | None) -> int:
        """How many steps train the basis."""
        if self.basis.trainer() is None:
            return 0
        if self.base.facts().default_steps == 0 and steps is not None:
            return steps
        return split_run(steps, self.share)

    # ------------------------------------------------------------------ the start

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> SubspaceState:
        """See :class:`Inference`. The start is where the first part starts; without one, it is the centre."""
        (rng,) = rngs
        refuse_moving_buffers(engine, "Subspace")
        pair = f"Subspace({type(self.base).__name__})"
        engine.target.refuse_learned_scales(pair, "its coordinates mix weights of different scales")
        self.basis.check(engine)
        seed, trainer = spawn(rng), self.basis.trainer()
        start = engine.target.initial_theta() if trainer is not None else starts.one(engine)
        rows = torch.Generator()
        rows.manual_seed(spawn(rng))
        size, rank, like = engine.layout.network_size, self.basis.columns(), start.new_zeros(())
        state = SubspaceState(
            first=None if trainer is None else trainer.init(engine, starts, rngs),
            base=None,
            centre=like.new_zeros(engine.layout.size),
            basis=like.new_zeros(size, rank),
            seed=seed,
            rows=rows,
        )
        if trainer is None:
            self._settle(engine, state, start)
        else:  # any basis of that size: what the method refuses, and the shapes of its state, are known now
            state.centre.copy_(engine.target.initial_theta())
            state.basis.copy_(orthonormal(size, rank, generator(seed, "any-basis")))
            state.base = self._begin(_in_subspace(engine, state), state)
        return state

    def _settle(self, engine: Engine, state: SubspaceState, start: Tensor) -> None:
        """Make c and B, and begin the second part."""
        made = self.basis.make(engine, start, state.first, generator(state.seed, "basis"))
        with torch.no_grad():
            state.centre.copy_(made[0])
            state.basis.copy_(made[1])
        state.first, state.ready = None, True
        state.engine = _in_subspace(engine, state)
        state.base = self._begin(state.engine, state)
        if state.folder is not None:
            self.base.keep_in(state.base, state.folder)

    def _begin(self, inside: Engine, state: SubspaceState) -> Any:
        return self.base.init(inside, Starts(), [generator(state.seed, "method")])

    def _inside(self, engine: Engine, state: SubspaceState) -> Engine:
        """The target of the second part. In a run that was resumed the method's state was put into one that belongs to
        any basis; here it moves into one that ``init`` makes for the right one."""
        if state.engine is None:
            state.engine = _in_subspace(engine, state)
            tensors: dict[str, Tensor] = {}
            form = encode(state.base, tensors)
            state.base = restore(self._begin(state.engine, state), form, tensors, engine.device)
            if state.folder is not None:
                self.base.keep_in(state.base, state.folder)
        return state.engine

    # ------------------------------------------------------------------ the run

    def step(self, engine: Engine, state: SubspaceState, batch: Batch) -> tuple[SubspaceState, Info]:
        """A step of what the basis is made of, or of the method."""
        trainer, first = self.basis.trainer(), self._first(batch.total_steps)
        if trainer is not None:
            check_same_length(state.total_steps, batch.total_steps)
            state.total_steps = batch.total_steps
        if trainer is not None and batch.step < first:
            here = first_part(batch, first)
            if self.base.facts().reads == "full":
                here = some_rows(here, self.batch_size, trainer.facts().streams, state.rows)
            else:
                here = streams_of(here, trainer.facts().streams)
            if batch.step == 0:
                self.basis.check_plan(here)
            state.first, info = trainer.step(engine, state.first, here)
            if info.status.ok and batch.step + 1 == first:
                try:
                    self._settle(engine, state, state.centre)
                except NumericalError as error:
                    return state, Info(info.loss, Status("no-basis", str(error), ok=False))
            return state, info
        inside = self._inside(engine, state)
        here = streams_of(second_part(batch, first), self.base.facts().streams)
        state.base, info = self.base.step(inside, state.base, here)
        return state, info

    def posteriors(self, engine: Engine, state: SubspaceState, data: Data | None) -> tuple[Posterior, ...]:
        """An :class:`~temperance.posteriors.affine.Affine`; points, draws and mixtures stay what they are."""
        if not state.ready:
            raise NumericalError(
                "there is no subspace yet: the run ended while its basis was trained. After an interruption, call fit "
                "again with the same checkpoint."
            )
        found = self.base.posteriors(self._inside(engine, state), state.base, data)
        return tuple(lifted(part, state.centre.clone(), state.basis.clone()) for part in found)


def _check_inside(base: Inference[Any], method: Inference[Any]) -> None:
    """Refuse methods that look at the layers of a network, which z has none of."""
    name = type(method).__name__ if method is base else f"the {type(method).__name__} in it"
    if isinstance(method, On | MCDropout | FunctionalLaplace | Subspace):
        refuse(
            "Subspace",
            base,
            f"coordinates of a subspace are a vector without layers, and {name} looks at a network's own parts",
            f"Subspace(Laplace(curvature=Dense(), tune=None)), or {type(base).__name__} without a subspace",
        )
    if isinstance(method, Laplace):
        if not isinstance(method.curvature, Dense) or method.on is not None:
            refuse(
                "Subspace",
                base,
                f"coordinates of a subspace are no layers, by which {name} keeps its curvature",
                "Subspace(Laplace(base, curvature=Dense(), tune=None))",
            )
        if method.tune is not None:
            refuse(
                "Subspace",
                base,
                f"{name} must not `tune` its spread, for in a subspace the prior is that of θ",
                "Subspace(Laplace(base, curvature=Dense(), tune=None)) under the prior that you want",
            )


def _in_subspace(engine: Engine, state: SubspaceState) -> Engine:
    return engine.on(subspace_target(engine.target, state.centre, state.basis))
