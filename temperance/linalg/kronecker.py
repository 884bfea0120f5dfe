"""Curvature of a weight matrix as a Kronecker product in the eigenbasis of its factors, and its inverse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from temperance.core.checks import check_shape
from temperance.core.errors import ArgumentError, NumericalError
from temperance.core.fields import check_fields
from temperance.linalg.blocks import Block
from temperance.linalg.inverse import HELP
from temperance.linalg.operator import Covariance, MatrixCovariance
from temperance.linalg.places import Places


@dataclass(frozen=True, eq=False, repr=False)
class KroneckerBlock(Block):
    """H = S (Q_G ⊗ Q_A) diag(values) (Q_G ⊗ Q_A)ᵀ S over a weight matrix W (out × in) and, as its last column, a bias.

    Q_A and Q_G are eigenvectors of the two factors *after* they were divided by S = out_scale ⊗ in_scale, the roots of
    the prior's precision. So a prior whose precision is a product of a number per input (the bias may have its own) and
    one per output keeps the basis: Λ = S Q diag(ρ·values + c) Qᵀ S, for any strength c of that prior, exactly.

    Attributes:
        places: the weight's range in θ, then the bias's if there is one.
        basis_in, basis_out: Q_A (in × in), Q_G (out × out); ``None`` is the identity.
        values_in, values_out: eigenvalues of the factors A and G.
        corrected: second moments in this basis (out × in) that replace the products of eigenvalues (EKFAC).
        rows: how many rows A is the average of.
    """

    places: Places
    basis_in: Tensor | None
    basis_out: Tensor | None
    values_in: Tensor
    values_out: Tensor
    in_scale: Tensor
    out_scale: Tensor
    corrected: Tensor | None = None
    has_bias: bool = False
    rows: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "basis_in", "basis_out", "values_in", "values_out", "in_scale", "out_scale", "corrected")
        if self.values_in.dim() < 1 or self.values_out.dim() < 1:
            raise ArgumentError("`values_in` and `values_out` must be vectors of eigenvalues; got a single number.")
        columns, rows, dtype = self.values_in.shape[-1], self.values_out.shape[-1], self.values_in.dtype
        self._check_places(columns * rows, "values_in", "values_out")
        check_shape(self.values_out, "values_out", rows, dtype=dtype)
        for name, size in (("in", columns), ("out", rows)):
            check_shape(getattr(self, f"basis_{name}"), f"basis_{name}", size, size, dtype=dtype)
            check_shape(getattr(self, f"{name}_scale"), f"{name}_scale", size, dtype=dtype)
        check_shape(self.corrected, "corrected", rows, columns, dtype=dtype)

    def _like(self) -> Tensor:
        return self.values_in

    @property
    def shape(self) -> tuple[int, int]:
        """out × in, the bias counted as an input."""
        return len(self.values_out), len(self.values_in)

    def values(self) -> Tensor:
        """The curvature in the basis, out × in."""
        return torch.outer(self.values_out, self.values_in) if self.corrected is None else self.corrected

    def to_matrix(self, v: Tensor) -> Tensor:
        """... × p to ... × out × in."""
        rows, columns = self.shape
        if not self.has_bias:
            return v.view(*v.shape[:-1], rows, columns)
        weight = v[..., : rows * (columns - 1)].view(*v.shape[:-1], rows, columns - 1)
        return torch.cat([weight, v[..., rows * (columns - 1) :].unsqueeze(-1)], dim=-1)

    def to_vector(self, matrix: Tensor) -> Tensor:
        """... × out × in to ... × p."""
        if not self.has_bias:
            return matrix.flatten(-2)
        return torch.cat([matrix[..., :-1].flatten(-2), matrix[..., -1]], dim=-1)

    def into_basis(self, matrix: Tensor) -> Tensor:
        """Q_Gᵀ M Q_A."""
        return _right(_left(self.basis_out, matrix, transpose=True), self.basis_in, transpose=False)

    def out_of_basis(self, matrix: Tensor) -> Tensor:
        """Q_G M Q_Aᵀ."""
        return _right(_left(self.basis_out, matrix, transpose=False), self.basis_in, transpose=True)

    def scale(self) -> Tensor:
        """S as a matrix, out × in."""
        return torch.outer(self.out_scale, self.in_scale)

    def strength(self, tau: Tensor) -> Tensor:
        """c, by how much ``tau`` exceeds the precision S² that the basis was made for."""
        ratio = self.to_matrix(tau) / self.scale().square()
        spread = ratio.detach()
        if float(spread.max() - spread.min()) > 1e-3 * float(spread.max()):
            raise ArgumentError(
                "a Kronecker-factored curvature needs a prior precision that changes by one factor for the whole "
                "layer; this one changes within it. Use Diagonal(), BlockDiagonal() or Dense()."
            )
        return ratio.mean()

    def factorise(self, tau: Tensor, rho: float | Tensor = 1.0) -> KroneckerInverse:
        """See :class:`Block`."""
        return KroneckerInverse(self, rho * self.values() + self.strength(tau))

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Operator`."""
        scale = self.scale()
        inside = self.into_basis(self.to_matrix(v) * scale) * self.values()
        return self.to_vector(self.out_of_basis(inside) * scale)

    def factors(self) -> tuple[Tensor, Tensor]:
        """A and G themselves, without the prior's scales; vectors where they are diagonal."""
        found = []
        for basis, values, scale in (
            (self.basis_in, self.values_in, self.in_scale),
            (self.basis_out, self.values_out, self.out_scale),
        ):
            if basis is None:
                found.append(values * scale.square())
            else:
                found.append(scale.unsqueeze(-1) * (basis * values @ basis.mT) * scale)
        return found[0], found[1]

    def merge(self, other: Block) -> Block:
        """The factors of both data sets: G₁ + G₂, and the average of A₁ and A₂ by rows."""
        self._check_merge(other)
        assert isinstance(other, KroneckerBlock)
        if self.corrected is not None or other.corrected is not None or self.has_bias != other.has_bias:
            raise ArgumentError(
                "`prior`: EKFAC curvatures of two data sets cannot be added, for each has its own basis; use KFAC()."
            )
        (a1, g1), (a2, g2) = self.factors(), other.factors()
        rows = self.rows + other.rows
        a = _sum(self.rows * a1, other.rows * a2) / rows
        return kronecker_block(self.places, a, _sum(g1, g2), self.in_scale, self.out_scale, self.has_bias, rows)

    def times(self, factor: float) -> Block:
        """See :class:`Block`."""
        corrected = None if self.corrected is None else factor * self.corrected
        return replace(self, values_out=factor * self.values_out, corrected=corrected)


def kronecker_block(
    places: Places, a: Tensor, g: Tensor, in_scale: Tensor, out_scale: Tensor, has_bias: bool, rows: float
) -> KroneckerBlock:
    """The eigenbasis of the factors A (a vector if it is diagonal) and G, seen from the prior's scales."""
    values_in, basis_in = _eigen(a, in_scale, "inputs")
    values_out, basis_out = _eigen(g, out_scale, "output gradients")
    return KroneckerBlock(
        places,
        basis_in,
        basis_out,
        values_in,
        values_out,
        in_scale.to(values_in),
        out_scale.to(values_in),
        None,
        has_bias,
        rows,
    )


def _eigen(matrix: Tensor, scale: Tensor, what: str) -> tuple[Tensor, Tensor | None]:
    """Eigenvalues and vectors of S⁻¹ M S⁻¹."""
    inverse = 1.0 / scale.to(matrix)
    if matrix.dim() == 1:
        return matrix * inverse.square(), None
    scaled = inverse.unsqueeze(-1) * matrix * inverse
    wide = len(matrix) <= 1024  # where it is cheap, rounding is not worth a thought
    values, vectors = torch.linalg.eigh(scaled.double() if wide else scaled)
    largest = float(values[-1])
    if not torch.isfinite(values).all():
        raise NumericalError(f"the second moment of a layer's {what} is not finite.")
    if float(values[0]) < -1e-4 * max(largest, 1e-30):
        raise NumericalError(
            f"the second moment of a layer's {what} must not be negative; its eigenvalues go from "
            f"{float(values[0]):.3g} to {largest:.3g}."
        )
    # Contiguous, as they will be after saving and loading: products then round alike.
    return values.clamp(min=0.0).to(matrix.dtype), vectors.to(matrix.dtype).contiguous()


def _sum(first: Tensor, second: Tensor) -> Tensor:
    """Of two factors, either of which may be the vector of a diagonal."""
    if first.dim() == second.dim():
        return first + second
    return sum(torch.diag(f) if f.dim() == 1 else f for f in (first, second))  # type: ignore[return-value]


def _left(basis: Tensor | None, matrix: Tensor, transpose: bool) -> Tensor:
    if basis is None:
        return matrix
    return (basis.mT if transpose else basis) @ matrix


def _right(matrix: Tensor, basis: Tensor | None, transpose: bool) -> Tensor:
    if basis is None:
        return matrix
    return matrix @ (basis.mT if transpose else basis)


@dataclass(frozen=True, eq=False, repr=False)
class KroneckerInverse(MatrixCovariance):
    """Σ = (S Q diag(precision) Qᵀ S)⁻¹, with the scales S and the basis Q = Q_G ⊗ Q_A of ``block``.

    Attributes:
        block: whose basis it is.
        precision: out × in numbers, in that basis.
    """

    block: KroneckerBlock
    precision: Tensor

    def __post_init__(self) -> None:
        check_fields(self, "precision")
        if not bool((self.precision.detach() > 0).all()):
            raise NumericalError(f"the posterior precision must be positive definite; a layer's is not. {HELP}")

    def _like(self) -> Tensor:
        return self.precision

    @property
    def size(self) -> int:
        """p."""
        return self.precision.numel()

    def product(self, v: Tensor) -> Tensor:
        """See :class:`Operator`."""
        scale = self.block.scale()
        inside = self.block.into_basis(self.block.to_matrix(v) / scale) / self.precision
        return self.block.to_vector(self.block.out_of_basis(inside) / scale)

    def solve(self, v: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        scale = self.block.scale()
        inside = self.block.into_basis(self.block.to_matrix(v) * scale) * self.precision
        return self.block.to_vector(self.block.out_of_basis(inside) * scale)

    def root(self, z: Tensor) -> Tensor:
        """See :class:`Covariance`."""
        inside = self.block.to_matrix(z) * self.precision.rsqrt()
        return self.block.to_vector(self.block.out_of_basis(inside) / self.block.scale())

    def half(self, v: Tensor) -> Tensor:
        """In the basis, row by row."""
        inside = self.block.into_basis(self.block.to_matrix(v) / self.block.scale()) * self.precision.rsqrt()
        return inside.flatten(-2)

    def diagonal(self) -> Tensor:
        """See :class:`Operator`."""
        block = self.block
        out_squares = None if block.basis_out is None else block.basis_out.square()
        in_squares = None if block.basis_in is None else block.basis_in.square()
        inside = _right(_left(out_squares, self.precision.reciprocal(), False), in_squares, True)
        return block.to_vector(inside / block.scale().square())

    def log_det(self) -> Tensor:
        """See :class:`Covariance`."""
        block = self.block
        rows, columns = block.shape
        return -(
            self.precision.log().sum()
            + 2 * columns * block.out_scale.log().sum()
            + 2 * rows * block.in_scale.log().sum()
        )

    def output_covariance(self, inputs: Tensor, gradients: Tensor) -> Tensor:
        """J Λ⁻¹ Jᵀ for Jacobians J_c = Σ_r g_cr a_rᵀ that are never built.

        ``inputs`` B × R × in, ``gradients`` C × B × R × out; B × C × C. With one row each (R = 1) it is
        Σ_i g̃_ci g̃_c'i w_i, w = precision⁻¹ ã², in the basis: three small products.
        """
        return matrix_output_covariance(*self._in_basis(inputs, gradients), self.precision.reciprocal())

    def output_covariances(self, several: Sequence[Covariance], inputs: Tensor, gradients: Tensor) -> list[Tensor]:
        """Those that have this one's basis go into it once."""
        own = [one for one in several if isinstance(one, KroneckerInverse) and one.block is self.block]
        if len(own) < len(several):
            return super().output_covariances(several, inputs, gradients)
        a, g = self._in_basis(inputs, gradients)
        if a.shape[1] == 1:
            return [matrix_output_covariance(a, g, one.precision.reciprocal()) for one in own]
        jacobian = torch.einsum("cbro,bri->bcoi", g, a).flatten(2)
        return [(jacobian / one.precision.flatten()) @ jacobian.mT for one in own]

    def _in_basis(self, inputs: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        block = self.block
        a = _right(inputs / block.in_scale, block.basis_in, transpose=False)
        return a, _right(gradients / block.out_scale, block.basis_out, transpose=False)

    def lookup_covariance(self, words: Tensor, gradients: Tensor) -> Tensor:
        """See :class:`MatrixCovariance`: rows of one word are summed first, for they share a vector."""
        block = self.block
        g = _right(gradients / block.in_scale, block.basis_in, transpose=False)
        same = (words.unsqueeze(-1) == words.unsqueeze(-2)).to(g.dtype)  # B × R × R
        summed = same @ g
        weight = 1.0 / (self.precision[words] * block.out_scale[words].square().unsqueeze(-1))
        weight = weight / same.sum(-1, keepdim=True)
        return torch.einsum("cbrd,brd,ebrd->bce", summed, weight, summed)


def matrix_output_covariance(a: Tensor, g: Tensor, variance: Tensor) -> Tensor:
    """Σ_ij J_cij J_c'ij variance_ij for J_c = Σ_r g_cr a_rᵀ: a is B × R × in, g is C × B × R × out; B × C × C."""
    if a.shape[1] == 1:
        weights = a[:, 0].square() @ variance.mT  # B × out
        flat = g[:, :, 0].transpose(0, 1)  # B × C × out
        return (flat * weights.unsqueeze(1)) @ flat.mT
    flat = (torch.einsum("cbro,bri->bcoi", g, a) * variance.sqrt()).flatten(2)
    return flat @ flat.mT
