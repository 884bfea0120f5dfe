"""A covariance that is the inverse of curvature plus prior precision, Σ = T (ρ H + diag τ)⁻¹."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from temperance.core.encoding import SCRATCH
from temperance.core.errors import ArgumentError
from temperance.linalg.blocks import Block, Factor, put, take
from temperance.linalg.covariance import Covariance, standard_normal


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorCovariance(Covariance):
    """Σ = T (ρ H + diag τ)⁻¹ with H in blocks. Coordinates that no block covers are known: their variance is zero.

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
    _factors: list[Factor] = field(default_factory=list, repr=False, metadata=SCRATCH)

    @property
    def size(self) -> int:
        """P."""
        return len(self.prior_precision)

    @property
    def rank(self) -> int:
        """How many coordinates are random."""
        return sum(block.size for block in self.blocks)

    def factors(self) -> list[Factor]:
        """Each block's precision, factorised once."""
        if not self._factors:
            made = [b.factorise(take(self.prior_precision, b.places), self.data_factor) for b in self.blocks]
            self._factors.extend(made)
        return self._factors

    def _assemble(self, parts: list[Tensor]) -> Tensor:
        made = parts[0].new_zeros((*parts[0].shape[:-1], self.size))
        for block, part in zip(self.blocks, parts, strict=True):
            put(made, block.places, part)
        return made

    def draw(self, rng: torch.Generator) -> Tensor:
        """√T Λ^-½ z."""
        z = standard_normal(self.size, self.prior_precision, rng) * math.sqrt(self.temperature)
        pairs = zip(self.blocks, self.factors(), strict=True)
        return self._assemble([factor.colour(take(z, block.places)) for block, factor in pairs])

    def solve(self, v: Tensor) -> Tensor:
        """Σ v for v of shape ... × P."""
        pairs = zip(self.blocks, self.factors(), strict=True)
        return self.temperature * self._assemble([f.solve(take(v, b.places)) for b, f in pairs])

    def dense(self) -> Tensor:
        """See :class:`Covariance`."""
        like = self.prior_precision
        return self.solve(torch.eye(self.size, dtype=like.dtype, device=like.device))

    def diagonal(self) -> Tensor:
        """See :class:`Covariance`."""
        return self.temperature * self._assemble([factor.variance() for factor in self.factors()])

    def log_det(self) -> Tensor:
        """log |Σ| over the coordinates that are random."""
        logs = torch.stack([factor.log_det() for factor in self.factors()]).sum()
        return self.rank * math.log(self.temperature) - logs

    def curvature_product(self, v: Tensor) -> Tensor:
        """H v for v of shape ... × P, without the prior."""
        return self._assemble([block.product(take(v, block.places)) for block in self.blocks])

    def inverse_quadratic(self, delta: Tensor) -> Tensor:
        """δᵀ Σ⁻¹ δ; infinite where δ moves what is known."""
        inside = self._assemble([take(delta, b.places) for b in self.blocks])
        product = self.data_factor * self.curvature_product(inside) + self.prior_precision * inside
        value = (inside * product).sum(-1) / self.temperature
        moved = (inside != delta).any(-1)
        return torch.where(moved, torch.full_like(value, math.inf), value)

    def merged(self, earlier: tuple[Block, ...]) -> tuple[Block, ...]:
        """This curvature and that of an ``earlier`` data set together."""
        if len(earlier) != len(self.blocks):
            raise ArgumentError(
                f"`prior`: the earlier posterior has {len(earlier)} curvature blocks, this one {len(self.blocks)}; use "
                "the same curvature for both."
            )
        return tuple(old.merge(new) for old, new in zip(earlier, self.blocks, strict=True))
