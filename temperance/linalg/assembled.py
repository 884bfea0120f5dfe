"""Covariances of θ that are made of independent pieces, each over coordinates of its own."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from temperance.core.checks import check_positive
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.linalg.blocks import Block
from temperance.linalg.operator import Covariance
from temperance.linalg.places import Places, put, take

Pieces = list[tuple[Places, Covariance]]


class AssembledCovariance(Covariance):
    """Independent pieces of θ. Coordinates that no piece covers are known: their variance is zero."""

    @abstractmethod
    def pieces(self) -> Pieces:
        """Where each piece is, and its covariance."""

    @property
    def rank(self) -> int:
        """How many coordinates are random."""
        return sum(part.rank for _, part in self.pieces())

    def _assemble(self, parts: list[Tensor]) -> Tensor:
        """One vector (... × P) of the pieces' vectors, zero elsewhere."""
        made = parts[0].new_zeros((*parts[0].shape[:-1], self.size))
        for (places, _), part in zip(self.pieces(), parts, strict=True):
            put(made, places, part)
        return made

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Operator`."""
        return self._assemble([part.product(take(v, places)) for places, part in self.pieces()])

    def solve(self, v: Tensor) -> Tensor:
        """Σ⁻¹ v where θ is random, zero where it is known."""
        return self._assemble([part.solve(take(v, places)) for places, part in self.pieces()])

    def half(self, v: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        return torch.cat([part.half(take(v, places)) for places, part in self.pieces()], dim=-1)

    def diagonal(self) -> Tensor:
        """See :class:`Operator`."""
        return self._assemble([part.diagonal() for _, part in self.pieces()])

    def log_det(self) -> Tensor:
        """log |Σ| over the coordinates that are random."""
        return torch.stack([part.log_det() for _, part in self.pieces()]).sum()


@dataclass(frozen=True, eq=False, repr=False)
class BlockCovariance(AssembledCovariance):
    """Pieces one after the other."""

    parts: tuple[Covariance, ...]

    def __post_init__(self) -> None:
        check_fields(self)

    def _like(self) -> Tensor:
        return self.parts[0]._like()

    @property
    def size(self) -> int:
        """P."""
        return sum(part.size for part in self.parts)

    @property
    def noise_sizes(self) -> tuple[int, ...]:
        """Those of the pieces."""
        return tuple(size for part in self.parts for size in part.noise_sizes)

    def pieces(self) -> Pieces:
        """See :class:`AssembledCovariance`."""
        ends = accumulate((part.size for part in self.parts), initial=0)
        return [((span,), part) for span, part in zip(pairwise(ends), self.parts, strict=True)]

    def root(self, z: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        noises = z.split([sum(part.noise_sizes) for part in self.parts], dim=-1)
        return torch.cat([part.root(noise) for part, noise in zip(self.parts, noises, strict=True)], dim=-1)

    def dense(self) -> Tensor:
        """See :class:`Operator`."""
        return torch.block_diag(*[part.dense() for part in self.parts])

    def inverse_quadratic(self, delta: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        return torch.stack([part.inverse_quadratic(take(delta, places)) for places, part in self.pieces()]).sum(0)


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorCovariance(AssembledCovariance):
    """Σ = T (ρ H + diag τ)⁻¹ with H in blocks: curvature and prior are kept apart, so that either may change.

    Attributes:
        blocks: the curvature of the data.
        prior_precision: τ, P numbers.
        temperature: T.
        data_factor: ρ; other than one after a noise level was chosen by evidence.
    """

    blocks: tuple[Block, ...]
    prior_precision: Tensor
    temperature: float = 1.0
    data_factor: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "prior_precision")
        check_positive(self.temperature, "temperature")
        check_positive(self.data_factor, "data_factor")
        if not self.blocks or sum(block.size for block in self.blocks) > len(self.prior_precision):
            raise ArgumentError(
                f"`blocks` must be over some of the {len(self.prior_precision)} numbers of `prior_precision`; got "
                f"{[block.size for block in self.blocks][:5]}."
            )

    def _like(self) -> Tensor:
        return self.prior_precision

    @property
    def size(self) -> int:
        """P."""
        return len(self.prior_precision)

    @property
    def rank(self) -> int:
        """How many coordinates are random."""
        return sum(block.size for block in self.blocks)  # known before anything is factorised

    @cached_property
    def parts(self) -> tuple[Covariance, ...]:
        """Each block's covariance (ρ H + diag τ)⁻¹ at temperature 1, factorised once."""
        return tuple(b.factorise(take(self.prior_precision, b.places), self.data_factor) for b in self.blocks)

    def pieces(self) -> Pieces:
        """At temperature 1."""
        return [(block.places, part) for block, part in zip(self.blocks, self.parts, strict=True)]

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Operator`."""
        return self.temperature * super().product(v)

    def solve(self, v: Tensor) -> Tensor:
        """(ρ H + diag τ) v / T where θ is random, zero where it is known; nothing is factorised for it."""
        return self._precision_product(self._inside(v)) / self.temperature

    def _inside(self, v: Tensor) -> Tensor:
        """v, zero where θ is known."""
        if self.rank == self.size:
            return v
        made = torch.zeros_like(v)
        for block in self.blocks:
            put(made, block.places, take(v, block.places))
        return made

    def _precision_product(self, inside: Tensor) -> Tensor:
        curvature = torch.zeros_like(inside)
        for block in self.blocks:
            put(curvature, block.places, block.product(take(inside, block.places)))
        return self.data_factor * curvature + self.prior_precision * inside

    def root(self, z: Tensor) -> Tensor:
        """√T Λ^-½ z."""
        scaled = z * math.sqrt(self.temperature)
        return self._assemble([part.root(take(scaled, places)) for places, part in self.pieces()])

    def half(self, v: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        return super().half(v) * math.sqrt(self.temperature)

    def diagonal(self) -> Tensor:
        """See :class:`Operator`."""
        return self.temperature * super().diagonal()

    def log_det(self) -> Tensor:
        """log |Σ| over the coordinates that are random."""
        return self.rank * math.log(self.temperature) + super().log_det()

    def inverse_quadratic(self, delta: Tensor) -> Tensor:
        """δᵀ Σ⁻¹ δ; infinite where δ moves what is known."""
        inside = self._inside(delta)
        value = (inside * self._precision_product(inside)).sum(-1) / self.temperature
        moved = (inside != delta).any(-1)
        return torch.where(moved, torch.full_like(value, math.inf), value)

    def merged(self, earlier: tuple[Block, ...]) -> tuple[Block, ...]:
        """This curvature and that of an ``earlier`` data set together."""
        if len(earlier) != len(self.blocks):
            raise ArgumentError(
                f"`prior`: the earlier posterior has {len(earlier)} curvature blocks, this one {len(self.blocks)}; use "
                "the same curvature of the same part of the network for both (On(...), `on`)."
            )
        return tuple(old.merge(new) for old, new in zip(earlier, self.blocks, strict=True))
