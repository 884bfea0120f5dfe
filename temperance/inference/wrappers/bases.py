"""Where a subspace lies: a centre c and a basis B, from training, at random, along a curve, or given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_positive, shown
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, NumericalError
from temperance.data.data import Batch
from temperance.engine.engine import Engine
from temperance.inference.base import Inference
from temperance.inference.card import Card, MethodFamily
from temperance.inference.points.map import MAP
from temperance.inference.points.swag import SWAG
from temperance.inference.wrappers.curve import Curve
from temperance.posteriors.base import centre_of


class Basis(Value, ABC):
    """A rule for the subspace θ = c + B z: the method that is trained first, if any, and what is made of it."""

    @abstractmethod
    def columns(self) -> int:
        """k, the number of coordinates."""

    def trainer(self) -> Inference[Any] | None:
        """The method that the first part of the run trains."""
        return None

    def check(self, engine: Engine) -> None:
        """Raise :class:`ArgumentError` where the target's network has no such subspace."""
        size = engine.layout.network_size
        if self.columns() > size:
            raise ArgumentError(
                f"`rank` must be at most the {size} parameters of the network; {type(self).__name__} has "
                f"{self.columns()} columns."
            )

    def check_plan(self, batch: Batch) -> None:
        """Look at the first batch of the first part: raise where the run is sure to be too short."""

    @abstractmethod
    def make(self, engine: Engine, start: Tensor, trained: Any, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """c (P numbers, what the likelihood learns included) and B (network's numbers × k, of full rank), from where
        the run started or from the state of the trainer."""


@dataclass(frozen=True, eq=False)
class PCA(Basis):
    """The principal directions of a trajectory of SGD (Izmailov et al., 2019). With θ̄ the mean of the iterates that
    ``base`` collected, D its K deviations and D = U S Vᵀ,

        c = θ̄,     B = V_k S_k / √(K − 1),

    so that z ~ N(0, I) spreads as the iterates did.

    >>> PCA(rank=5).base.rank
    30
    """

    card: ClassVar[Card] = Card(
        "a basis: the principal directions of a trajectory of SGD",
        MethodFamily.WRAPPERS,
        papers=("Izmailov et al., Subspace inference for Bayesian deep learning, UAI 2019",),
    )

    rank: int = 20
    base: SWAG = field(default_factory=lambda: SWAG(rank=30))

    def __post_init__(self) -> None:
        check_count(self.rank, "rank")
        if not isinstance(self.base, SWAG):
            raise ArgumentError(f"`base` must be a SWAG, whose deviations are looked at; got {shown(self.base)}.")
        if self.rank > self.base.most:
            raise ArgumentError(
                f"`rank` must be at most the {self.base.most} deviations that `base` keeps; got {self.rank}. Raise the "
                "rank of the SWAG."
            )

    def columns(self) -> int:
        """See :class:`Basis`."""
        return self.rank

    def trainer(self) -> Inference[Any] | None:
        """See :class:`Basis`."""
        return self.base

    def check_plan(self, batch: Batch) -> None:
        """The first deviation from a running mean is zero, so ``rank`` directions take one iterate more."""
        total, per_epoch = batch.total_steps, batch.steps_per_epoch
        if total is None or (self.base.every is None and per_epoch is None):
            return
        planned = self.base.planned(total, per_epoch)
        if planned <= self.rank:
            raise ArgumentError(
                f"`rank` must be below the number of iterates collected; rank={self.rank}, but the {total} steps of "
                f"the first part collect {planned}. Run longer, or let the SWAG begin earlier (`start`) or collect "
                "more often (`every`)."
            )

    def make(self, engine: Engine, start: Tensor, trained: Any, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """See :class:`Basis`."""
        kept = trained.deviations[: min(self.base.most, trained.collected), 0]
        if len(kept) <= self.rank and trained.collected <= self.rank:
            raise NumericalError(
                f"{trained.collected} iterates were collected, too few for {self.rank} principal directions."
            )
        rows = kept[:, : engine.layout.network_size].double()
        _, values, directions = torch.linalg.svd(rows, full_matrices=False)
        if not float(values[self.rank - 1]) > float(values[0]) * max(rows.shape) * torch.finfo(kept.dtype).eps:
            raise NumericalError(
                f"the iterates moved in fewer than {self.rank} directions; lower `rank`, or let SGD move more (`lr`)."
            )
        spread = values[: self.rank] / (len(kept) - 1) ** 0.5
        return trained.mean[0].clone(), _facing(directions[: self.rank].T) * spread


@dataclass(frozen=True, eq=False)
class RandomBasis(Basis):
    """``rank`` random orthonormal directions times ``scale``, around the θ that ``base`` ends at; around the start of
    the run where ``base`` is ``None``.

    >>> RandomBasis(10).scale
    1.0
    """

    card: ClassVar[Card] = Card(
        "a basis: random directions around a point", MethodFamily.WRAPPERS, papers=PCA.card.papers
    )

    rank: int
    base: MAP | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_count(self.rank, "rank")
        check_positive(self.scale, "scale")
        if self.base is not None and not isinstance(self.base, MAP):
            raise ArgumentError(f"`base` must be a MAP, or None; got {shown(self.base)}.")
        if self.base is not None and self.base.patience is not None:
            raise ArgumentError("`base` must not stop early (`patience`): it has a part of the run to itself.")

    def columns(self) -> int:
        """See :class:`Basis`."""
        return self.rank

    def trainer(self) -> Inference[Any] | None:
        """See :class:`Basis`."""
        return self.base

    def make(self, engine: Engine, start: Tensor, trained: Any, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """See :class:`Basis`."""
        centre = start
        if self.base is not None:
            (found,) = self.base.posteriors(engine, trained, None)
            centre = centre_of(found).mean
        return centre.clone(), self.scale * orthonormal(engine.layout.network_size, self.rank, rng).to(centre.device)


@dataclass(frozen=True, eq=False)
class CurveBasis(Basis):
    """The plane of a curve between two modes: c the middle of the ends, the first direction to an end, the others to
    the bends, orthogonalised, each as long as half the distance between the ends.

    >>> CurveBasis(Curve(MAP(lr=1e-2))).columns()
    2
    """

    card: ClassVar[Card] = Card(
        "a basis: the plane of a curve between two modes",
        MethodFamily.WRAPPERS,
        papers=(*Curve.card.papers, *PCA.card.papers),
    )

    curve: Curve = field(default_factory=Curve)

    def __post_init__(self) -> None:
        if not isinstance(self.curve, Curve):
            raise ArgumentError(f"`curve` must be a Curve; got {shown(self.curve)}.")

    def columns(self) -> int:
        """See :class:`Basis`."""
        return 1 + self.curve.bends

    def trainer(self) -> Inference[Any] | None:
        """See :class:`Basis`."""
        return self.curve

    def make(self, engine: Engine, start: Tensor, trained: Any, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """See :class:`Basis`."""
        (found,) = self.curve.posteriors(engine, trained, None)
        points = found.points
        centre = 0.5 * (points[0] + points[-1])
        away = (points[1:] - centre)[:, : engine.layout.network_size].double()
        columns = torch.cat([away[-1:], away[:-1]]).T
        frame, triangle = torch.linalg.qr(columns)
        lengths = triangle.diagonal()
        radius = float(lengths[0].abs())
        if not float(lengths.abs().min()) > 1e-6 * radius:
            raise NumericalError("the bends of the curve lie on the straight line between its ends; train it longer.")
        return centre, frame * lengths.sign() * radius


@dataclass(frozen=True, eq=False)
class GivenBasis(Basis):
    """A basis of one's own: ``matrix`` has a row for each parameter of the network and a column for each coordinate;
    ``centre`` has as many numbers, and is the start of the run where it is ``None``.

    >>> GivenBasis(torch.eye(3)[:, :2]).columns()
    2
    """

    card: ClassVar[Card] = Card("a basis of one's own", MethodFamily.WRAPPERS)

    matrix: Tensor
    centre: Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.matrix, Tensor) or self.matrix.dim() != 2 or self.matrix.shape[1] < 1:
            got = tuple(self.matrix.shape) if isinstance(self.matrix, Tensor) else shown(self.matrix)
            raise ArgumentError(f"`matrix` must be a tensor, parameters × coordinates; got {got}.")
        if self.centre is not None and (not isinstance(self.centre, Tensor) or self.centre.dim() != 1):
            raise ArgumentError(f"`centre` must be a vector, or None; got {shown(self.centre)}.")
        for name, value in (("matrix", self.matrix), ("centre", self.centre)):
            if value is not None and not value.is_floating_point():
                raise ArgumentError(f"`{name}` must hold floating-point numbers; got {value.dtype}. Write .float().")
            if value is not None and not bool(torch.isfinite(value).all()):
                raise ArgumentError(f"`{name}` must be finite; got NaN or infinity.")
        rows, columns = self.matrix.shape
        values = torch.linalg.svdvals(self.matrix.double())
        if columns > rows or not float(values[-1]) > float(values[0]) * rows * torch.finfo(torch.float32).eps * 1e-2:
            raise ArgumentError(
                f"`matrix` must have independent columns, at most one for each of its {rows} rows; its {columns} "
                f"columns have singular values from {float(values[0]):.3g} down to {float(values[-1]):.3g}."
            )

    def columns(self) -> int:
        """See :class:`Basis`."""
        return self.matrix.shape[1]

    def check(self, engine: Engine) -> None:
        """One row for each number of the network."""
        size = engine.layout.network_size
        if len(self.matrix) != size:
            raise ArgumentError(
                f"`matrix` must have a row for each of the network's {size} parameters; got shape "
                f"{tuple(self.matrix.shape)}."
            )
        if self.centre is not None and len(self.centre) != size:
            raise ArgumentError(f"`centre` must have the network's {size} numbers; got {len(self.centre)}.")

    def make(self, engine: Engine, start: Tensor, trained: Any, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """See :class:`Basis`."""
        centre = start.clone()
        if self.centre is not None:
            centre[: len(self.centre)] = self.centre.to(centre)
        return centre, self.matrix.to(centre)


def orthonormal(size: int, rank: int, rng: torch.Generator) -> Tensor:
    """``rank`` random orthonormal columns of ``size`` numbers, in float64."""
    frame, triangle = torch.linalg.qr(torch.randn(size, rank, generator=rng, dtype=torch.float64))
    return frame * triangle.diagonal().sign()


def _facing(columns: Tensor) -> Tensor:
    """Columns whose largest number is positive: a singular vector's sign is arbitrary."""
    largest = columns.gather(0, columns.abs().argmax(0, keepdim=True))
    return columns * largest.sign()
