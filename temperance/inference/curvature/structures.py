"""How much of the curvature is kept: all of it, its diagonal, Kronecker factors, blocks, or its largest directions."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from temperance.core.checks import check_count, check_positive, shown
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.core.seeds import check_seed
from temperance.engine.engine import Engine
from temperance.inference.card import Card, MethodFamily
from temperance.inference.curvature.accumulate import (
    Accumulator,
    DenseAccumulator,
    DiagonalAccumulator,
    LayerSource,
    by_matrix,
    sources_of,
    visitor,
)
from temperance.inference.curvature.capture import RuleBroken
from temperance.inference.curvature.kronecker import KroneckerAccumulator, WordAccumulator
from temperance.inference.curvature.lanczos import check_rank, largest_directions
from temperance.inference.curvature.layers import EmbeddingLayer, Layer, Matrix
from temperance.inference.curvature.products import full_hessian
from temperance.inference.curvature.subsets import Subnetwork
from temperance.inference.curvature.sweep import Kind, Sums, Sweep
from temperance.linalg.blocks import Block, DenseBlock, DiagonalBlock


@dataclass(frozen=True)
class Problem:
    """What a structure is computed from: a sweep over the data, and the prior's precision τ."""

    sweep: Sweep
    prior_precision: Tensor
    index: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Curvature(Value, ABC):
    """The curvature of the data term, Σ_n J_nᵀ H_n J_n, in some structure.

    Args:
        kind: ``"ggn"`` (exact generalised Gauss–Newton: one backward pass for each output), ``"monte-carlo"``
            (the Fisher information from ``samples`` draws of y: one pass each), ``"empirical"`` (gradients of the data
            themselves; cheap, but another matrix), or, for ``Dense``, ``"hessian"``.
        samples: draws of y for each example, for ``"monte-carlo"``.
        batch_size: rows at a time.
        seed: for ``"monte-carlo"``.
    """

    kind: Literal["ggn", "monte-carlo", "empirical", "hessian"] = "ggn"
    samples: int = 1
    batch_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        kinds = ("ggn", "monte-carlo", "empirical", "hessian")
        if self.kind not in kinds:
            raise ArgumentError(f"`kind` must be one of {kinds}; got {shown(self.kind)}.")
        if self.kind == "hessian" and not isinstance(self, Dense):
            raise ArgumentError(f'`kind` "hessian" is for Dense() only; {type(self).__name__} takes {kinds[:-1]}.')
        check_count(self.samples, "samples")
        check_count(self.batch_size, "batch_size")
        check_seed(self.seed)
        for name in ("limit", "dense_limit", "factor_limit"):
            if hasattr(self, name):
                check_count(getattr(self, name), name)

    @property
    def sweep_kind(self) -> Kind:
        """The kind of columns that the pass takes."""
        return "ggn" if self.kind == "hessian" else self.kind

    @abstractmethod
    def blocks(self, problem: Problem) -> tuple[list[Block], Sums]:
        """The blocks over the network's random parameters, and what the pass added up besides."""

    def compute(self, problem: Problem) -> tuple[tuple[Block, ...], Sums]:
        """All blocks, one for what the likelihood learns included."""
        sweep = problem.sweep
        while True:
            try:
                blocks, sums = self.blocks(problem)
                break
            except RuleBroken as broken:  # found out in the middle of the data: begin again without that rule
                sweep.leave(broken.layer)
        if sums.learned_fisher is not None and self.kind != "hessian":
            entries = [e for e in sweep.engine.layout.entries if e.role == "likelihood"]
            blocks.append(DenseBlock(tuple((e.start, e.stop) for e in entries), sums.learned_fisher))
        return tuple(blocks), sums

    def check(self, engine: Engine, names: list[str] | None, on: Any) -> None:
        """Refuse, before a network is trained, what is sure to be refused after it. ``names``: what is random."""
        if isinstance(on, Subnetwork):
            if on.size > engine.layout.network_size:
                on.index(engine, engine.target.initial_theta(), engine.target.initial_theta())  # raises
            if not isinstance(self, Dense | Diagonal):
                raise ArgumentError(self._single_weights())

    def _single_weights(self) -> str:
        name = type(self).__name__
        return f"`on`: single weights out of a layer need Dense() or Diagonal(); {name} treats whole layers."

    def _refuse_index(self, problem: Problem) -> None:
        if problem.index is not None:
            raise ArgumentError(self._single_weights())


def _size(engine: Engine, names: list[str] | None) -> int:
    """How many parameters of the network are random."""
    return sum(e.size for e in engine.layout.network_entries if names is None or e.name in names)


def _memory(size: int, itemsize: int) -> str:
    return f"{size:,}² numbers, {size * size * itemsize / 2**30:.1f} GiB"


def _check_dense(size: int, limit: int, what: str, itemsize: int) -> None:
    if size > limit:
        raise ArgumentError(
            f"`limit`: {what} has {size:,} parameters, whose dense curvature needs {_memory(size, itemsize)}; the "
            f"limit is {limit:,}. Use KFAC(), Diagonal() or Lanczos(), a smaller subset, or raise `limit`."
        )


@dataclass(frozen=True, eq=False)
class Dense(Curvature):
    """All of H, P × P: exact, for up to some thousands of parameters (``limit``).

    ``kind="hessian"`` takes the full Hessian of −log p(D | θ) in place of the Gauss–Newton matrix; it need not be
    positive definite, and an error says so where it is not.

    >>> Dense().kind
    'ggn'
    """

    card: ClassVar[Card] = Card(
        "all of the Gauss–Newton matrix (or of the Hessian)",
        MethodFamily.CURVATURE,
        exact="the evidence too",
        cost="the curvature is P² numbers",
        shown=("Laplace(MAP(), Dense(), tune=None)",),
    )

    limit: int = 12_000

    def check(self, engine: Engine, names: list[str] | None, on: Any) -> None:
        """See :class:`Curvature`."""
        super().check(engine, names, on)
        size = on.size if isinstance(on, Subnetwork) else _size(engine, names)
        _check_dense(size, self.limit, "the network", engine.layout.dtype.itemsize)

    def blocks(self, problem: Problem) -> tuple[list[Block], Sums]:
        """See :class:`Curvature`."""
        sweep = problem.sweep
        layout = sweep.engine.layout
        size = sum(e.size for e in sweep.capture.entries) if problem.index is None else len(problem.index)
        _check_dense(size, self.limit, "the network", layout.dtype.itemsize)
        if self.kind == "hessian":
            return full_hessian(sweep, problem.index)
        accumulator = DenseAccumulator(sources_of(sweep), problem.index, problem.prior_precision)
        sums = sweep.add_up(visitor(sweep, [accumulator]))
        return accumulator.blocks(), sums


@dataclass(frozen=True, eq=False)
class Diagonal(Curvature):
    """diag(H): one number for each parameter, correlations left out.

    >>> Diagonal(kind="monte-carlo").samples
    1
    """

    card: ClassVar[Card] = Card(
        "the diagonal of the curvature",
        MethodFamily.CURVATURE,
        exact="all of it with independent features",
        cost="the curvature is P numbers",
        shown=("Laplace(MAP(), Diagonal(), tune=None)",),
    )

    def blocks(self, problem: Problem) -> tuple[list[Block], Sums]:
        """See :class:`Curvature`."""
        sweep = problem.sweep
        accumulators = [DiagonalAccumulator(source) for source in sources_of(sweep)]
        sums = sweep.add_up(visitor(sweep, list(accumulators)))
        whole = torch.zeros_like(problem.prior_precision)
        for block in [accumulator.block() for accumulator in accumulators]:
            assert not isinstance(block.places, Tensor)
            at = 0
            for start, stop in block.places:
                whole[start:stop] = block.values[at : at + stop - start]
                at += stop - start
        if problem.index is not None:
            return [DiagonalBlock(problem.index, whole[problem.index])], sums
        entries = sweep.capture.entries
        places = _joined([(e.start, e.stop) for e in entries])
        return [DiagonalBlock(places, torch.cat([whole[start:stop] for start, stop in places]))], sums


def _joined(places: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Neighbouring ranges made one."""
    made: list[tuple[int, int]] = []
    for start, stop in places:
        if made and made[-1][1] == start:
            made[-1] = (made[-1][0], stop)
        else:
            made.append((start, stop))
    return tuple(made)


@dataclass(frozen=True, eq=False)
class BlockDiagonal(Curvature):
    """The exact curvature of each layer, without that between layers. A layer of more than ``limit`` parameters is
    refused, with the memory that it would need.

    >>> BlockDiagonal(limit=5000).limit
    5000
    """

    card: ClassVar[Card] = Card(
        "the curvature of each layer, all of it",
        MethodFamily.CURVATURE,
        exact="all of it for one layer",
        cost="the curvature is Σ p² numbers, over layers of p weights",
        shown=("Laplace(MAP(), BlockDiagonal())",),
    )

    limit: int = 12_000

    def blocks(self, problem: Problem) -> tuple[list[Block], Sums]:
        """See :class:`Curvature`."""
        self._refuse_index(problem)
        sweep = problem.sweep
        sources = sources_of(sweep)
        for source in sources:
            _check_dense(source.size, self.limit, f"layer {source.name!r}", sweep.engine.layout.dtype.itemsize)
        accumulators: list[Accumulator] = [DenseAccumulator([s], None, problem.prior_precision) for s in sources]
        sums = sweep.add_up(visitor(sweep, accumulators))
        return [block for a in accumulators for block in a.blocks()], sums


@dataclass(frozen=True, eq=False)
class KFAC(Curvature):
    """Kronecker factors: for a layer with inputs a and output gradients g, H ≈ (Σ g gᵀ) ⊗ (mean of a aᵀ), with the bias
    as one more input.

    Where a weight is used at several places r of an example (convolution, attention), ``sharing="expand"`` treats
    places like examples, and ``"reduce"`` first sums g and averages a over them (Eschenhagen et al. 2023); embeddings
    always expand. Query, key, value and the way out of an attention have factors each. Scales and shifts of norms, and
    parameters that no rule speaks for (recurrent layers, tied weights), get an exact dense block up to ``dense_limit``
    parameters and a diagonal one beyond, with a warning that names them. The factor of a side with more than
    ``factor_limit`` units is kept diagonal, with a warning.

    The curvature of one linear layer under square loss, and of each layer of a deep linear network, is exact.

    >>> KFAC(kind="monte-carlo", sharing="reduce").sharing
    'reduce'
    """

    card: ClassVar[Card] = Card(
        "Kronecker factors of each layer, bias included",
        MethodFamily.CURVATURE,
        papers=(
            "Martens & Grosse, Optimizing neural networks with Kronecker-factored approximate curvature, ICML 2015",
        ),
        exact="each layer of a deep linear network, square loss",
        cost="the curvature is in² + out² numbers a layer",
        shown=("Laplace(MAP(), KFAC())",),
    )

    sharing: Literal["expand", "reduce"] = "expand"
    dense_limit: int = 2_000
    factor_limit: int = 12_000
    corrected = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sharing not in ("expand", "reduce"):
            raise ArgumentError(f'`sharing` must be "expand" or "reduce"; got {shown(self.sharing)}.')

    def _accumulators(self, problem: Problem) -> tuple[list[Accumulator], list[str]]:
        made: list[Accumulator] = []
        fallen: list[str] = []
        for source in by_matrix(sources_of(problem.sweep)):
            layer: Layer | None = source.layer if isinstance(source, LayerSource) else None
            if isinstance(layer, EmbeddingLayer):
                assert isinstance(source, LayerSource)
                made.append(WordAccumulator(source, problem.prior_precision))
            elif isinstance(layer, Matrix) and layer.has_weight:
                assert isinstance(source, LayerSource)
                made.append(
                    KroneckerAccumulator(source, problem.prior_precision, self.sharing == "reduce", self.factor_limit)
                )
            elif source.size <= self.dense_limit:
                made.append(DenseAccumulator([source], None, problem.prior_precision))
                if layer is None:
                    fallen.append(f"{source.name} ({source.size:,} parameters: exact)")
            else:
                made.append(DiagonalAccumulator(source))
                fallen.append(f"{source.name} ({source.size:,} parameters: diagonal)")
        return made, fallen

    def gather(self, problem: Problem) -> tuple[list[Accumulator], Sums]:
        """The pass over the data, without factorising what it adds up: the moments of every layer."""
        self._refuse_index(problem)
        sweep = problem.sweep
        accumulators, fallen = self._accumulators(problem)
        sums = sweep.add_up(visitor(sweep, accumulators))
        if fallen:  # said after the pass, which may have found out more of them
            warnings.warn(
                f"{type(self).__name__} has no Kronecker rule for {', '.join(fallen)}; these get the treatment named, "
                f"by gradients of single examples. `dense_limit` ({self.dense_limit:,}) decides which.",
                TemperanceWarning,
                stacklevel=2,
            )
        return accumulators, sums

    def blocks(self, problem: Problem) -> tuple[list[Block], Sums]:
        """See :class:`Curvature`."""
        accumulators, sums = self.gather(problem)
        sweep = problem.sweep
        if self.corrected:
            corrections = [a.correction() for a in accumulators]
            for batch in sweep.batches("eigenvalues"):
                visitor(sweep, [c for c in corrections if c is not None])(batch)
            made: list[Block] = []
            for accumulator, correction in zip(accumulators, corrections, strict=True):
                made.extend(accumulator.blocks() if correction is None else correction.blocks())
            return made, sums
        return [block for a in accumulators for block in a.blocks()], sums


@dataclass(frozen=True, eq=False)
class EKFAC(KFAC):
    """Kronecker factors whose eigenvalues are corrected: in the eigenbasis of KFAC, the true second moments of the
    gradients replace the products of eigenvalues (George et al. 2018). A second pass over the data.

    >>> EKFAC().corrected
    True
    """

    card: ClassVar[Card] = Card(
        "Kronecker factors with corrected eigenvalues",
        MethodFamily.CURVATURE,
        papers=(
            "George et al., Fast approximate natural gradient descent in a Kronecker-factored eigenbasis, NeurIPS 2018",
        ),
        exact="each layer of a deep linear network, square loss",
        cost="the curvature is in² + out² numbers a layer; a second pass over the data",
        shown=("Laplace(MAP(), EKFAC())",),
    )

    corrected = True


@dataclass(frozen=True, eq=False)
class Lanczos(Curvature):
    """The ``rank`` largest directions of the curvature, measured in the prior's units (eigenvectors of
    τ^-½ H τ^-½), by Lanczos iterations (ARPACK) with products H v. Everything else is as the prior has it.

    Each product is a pass over the data; there are about two for each direction.

    >>> Lanczos(20).rank
    20
    """

    card: ClassVar[Card] = Card(
        "the `rank` largest directions of the curvature, in the prior's units",
        MethodFamily.CURVATURE,
        exact="all of it where at most `rank` directions matter",
        cost="the curvature is `rank` P numbers",
        shown=("Laplace(MAP(), Lanczos())",),
    )

    rank: int = 20
    tolerance: float = 1e-3

    def __init__(
        self,
        rank: int = 20,
        kind: Literal["ggn", "monte-carlo", "empirical"] = "ggn",
        samples: int = 1,
        batch_size: int = 256,
        seed: int = 0,
        tolerance: float = 1e-3,
    ) -> None:
        for name, value in (
            ("rank", check_count(rank, "rank")),
            ("kind", kind),
            ("samples", samples),
            ("batch_size", batch_size),
            ("seed", seed),
            ("tolerance", tolerance),
        ):
            object.__setattr__(self, name, value)
        check_positive(tolerance, "tolerance")
        self.__post_init__()

    def check(self, engine: Engine, names: list[str] | None, on: Any) -> None:
        """See :class:`Curvature`."""
        super().check(engine, names, on)
        check_rank(self.rank, _size(engine, names))

    def blocks(self, problem: Problem) -> tuple[list[Block], Sums]:
        """See :class:`Curvature`."""
        self._refuse_index(problem)

        sums = problem.sweep.add_up()
        return [largest_directions(problem.sweep, problem.prior_precision, self.rank, self.tolerance)], sums


def check_curvature(value: Any) -> None:
    """A :class:`Curvature`, or an error."""
    if not isinstance(value, Curvature):
        raise ArgumentError(f"`curvature` must be a structure such as KFAC() or Diagonal(); got {shown(value)}.")
