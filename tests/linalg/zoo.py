"""Every operator of the room beside its matrix, which is built here by other means, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from temperance.linalg import (
    BlockCovariance,
    CholeskyCovariance,
    CholeskyInverse,
    DenseBlock,
    DenseCovariance,
    DiagonalBlock,
    DiagonalCovariance,
    DiagonalInverse,
    KroneckerBlock,
    KroneckerCovariance,
    LowRankBlock,
    LowRankCovariance,
    LowRankInverse,
    Operator,
    PosteriorCovariance,
)
from temperance.linalg.kronecker import kronecker_block

F64 = torch.float64
Case = tuple[Any, Tensor]


def random(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def positive(size: int, seed: int = 0) -> Tensor:
    """Numbers in (0.3, 1.3)."""
    return torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=F64) + 0.3


def lower(size: int, seed: int = 0) -> Tensor:
    """A lower triangular matrix with a positive diagonal."""
    return 0.5 * torch.tril(random(size, size, seed=seed), -1) + torch.diag(positive(size, seed))


def gram(size: int, rank: int, seed: int = 0) -> Tensor:
    """A positive semi-definite matrix of a rank."""
    root = random(size, rank, seed=seed)
    return root @ root.mT


def inverse(matrix: Tensor) -> Tensor:
    """M⁻¹, symmetric to the last bit."""
    made = torch.linalg.inv(matrix)
    return 0.5 * (made + made.mT)


def spans(*pairs: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Half-open ranges."""
    return pairs


# ---------------------------------------------------------------------- curvature


def kronecker_case(bias: bool, diagonal_inputs: bool = False, rank: int = 9, corrected: bool = False) -> Case:
    """A weight 3 × 4, with a bias or without: H = (G ⊗ A) with its last inputs' column moved to the end."""
    rows, columns = 3, 4 + bias
    a = positive(columns, 1) if diagonal_inputs else gram(columns, min(rank, columns), 1)
    g = gram(rows, min(rank, rows), 2)
    in_scale, out_scale = positive(columns, 3), positive(rows, 4)
    block = kronecker_block(spans((0, rows * columns)), a, g, in_scale, out_scale, bias, 5.0)
    full = torch.diag(a) if a.dim() == 1 else a
    dense = torch.kron(g, full)
    if corrected:
        values = positive(rows * columns, 5).view(rows, columns)
        block = KroneckerBlock(
            block.places, block.basis_in, block.basis_out, block.values_in, block.values_out, block.in_scale,
            block.out_scale, values, bias, 5.0,
        )  # fmt: skip
        eye_in = torch.eye(columns, dtype=F64) if block.basis_in is None else block.basis_in
        basis = torch.kron(block.basis_out, eye_in)
        scale = torch.kron(out_scale, in_scale)
        dense = scale.unsqueeze(-1) * (basis @ torch.diag(values.flatten()) @ basis.mT) * scale
    order = vector_order(rows, columns, bias)
    return block, dense[order][:, order]


def vector_order(rows: int, columns: int, bias: bool) -> Tensor:
    """Which entries of a matrix read row by row are the weight's, then the bias's."""
    places = torch.arange(rows * columns).view(rows, columns)
    return torch.cat([places[:, :-1].flatten(), places[:, -1]]) if bias else places.flatten()


def low_rank_block() -> Case:
    vectors, values = random(7, 3), torch.tensor([2.0, 0.7, 0.0], dtype=F64)
    return LowRankBlock(spans((0, 7)), vectors, values), vectors @ torch.diag(values) @ vectors.mT


BLOCKS: dict[str, Callable[[], Case]] = {
    "DiagonalBlock": lambda: (DiagonalBlock(spans((0, 6)), positive(6)), torch.diag(positive(6))),
    "DiagonalBlock with zeros": lambda: (
        DiagonalBlock(spans((0, 3)), torch.tensor([0.0, 2.0, 0.0], dtype=F64)),
        torch.diag(torch.tensor([0.0, 2.0, 0.0], dtype=F64)),
    ),
    "DenseBlock": lambda: (DenseBlock(spans((0, 6)), gram(6, 6)), gram(6, 6)),
    "DenseBlock of rank 1": lambda: (DenseBlock(spans((0, 6)), gram(6, 1)), gram(6, 1)),
    "LowRankBlock": low_rank_block,
    "KroneckerBlock": lambda: kronecker_case(bias=False),
    "KroneckerBlock with a bias": lambda: kronecker_case(bias=True),
    "KroneckerBlock of rank 1": lambda: kronecker_case(bias=True, rank=1),
    "KroneckerBlock of words": lambda: kronecker_case(bias=False, diagonal_inputs=True),
    "KroneckerBlock corrected": lambda: kronecker_case(bias=True, corrected=True),
}


def prior_for(block: Any, strength: float = 1.7) -> Tensor:
    """A prior precision that the block takes: any, or for a Kronecker block a multiple of the one it was made for."""
    if isinstance(block, KroneckerBlock):
        return strength * block.to_vector(block.scale().square())
    return strength * positive(block.size, 8)


# ---------------------------------------------------------------------- covariances


def factorised(name: str) -> Case:
    """What a block gives at ρ = 0.6."""
    block, dense = BLOCKS[name]()
    tau = prior_for(block)
    return block.factorise(tau, 0.6), inverse(0.6 * dense + torch.diag(tau))


def low_rank_covariance() -> Case:
    factor = random(6, 3)
    factor[:, 2] = factor[:, 0] - factor[:, 1]  # its columns are dependent
    return LowRankCovariance(positive(6), factor), torch.diag(positive(6)) + factor @ factor.mT


def low_rank_inverse() -> Case:
    precision, factor = positive(6), random(6, 2)
    root = torch.diag(precision.sqrt())
    middle = torch.eye(6, dtype=F64) + factor @ factor.mT
    return LowRankInverse(precision, factor), inverse(root @ middle @ root)


def kronecker_covariance() -> Case:
    left, right = lower(3, 1), lower(4, 2)
    return KroneckerCovariance(left, right), torch.kron(left @ left.mT, right @ right.mT)


def block_covariance() -> Case:
    cases = [kronecker_covariance(), low_rank_covariance(), factorised("DenseBlock")]
    return BlockCovariance(tuple(case[0] for case in cases)), torch.block_diag(*[case[1] for case in cases])


def posterior_covariance(known: bool = False, temperature: float = 0.3) -> Case:
    """Blocks in three places, one of them in two ranges and one by index; with ``known`` coordinates between them."""
    size = 24 if known else 22
    shift = 2 if known else 0  # coordinates 0 and 1 are known
    tau = torch.empty(size, dtype=F64)
    tau[:] = positive(size, 6)
    dense_at = torch.tensor([0, 1, 4, 5], dtype=torch.int64) + shift
    index = torch.tensor([3, 2, 6], dtype=torch.int64) + shift
    kron, h = kronecker_case(bias=True)
    kron_spans = spans((7 + shift, 19 + shift), (19 + shift, 22 + shift))
    kron = KroneckerBlock(
        kron_spans, kron.basis_in, kron.basis_out, kron.values_in, kron.values_out, kron.in_scale, kron.out_scale,
        None, True, 5.0,
    )  # fmt: skip
    kron_at = torch.arange(7 + shift, 22 + shift)
    tau[kron_at] = prior_for(kron)
    blocks = (
        DenseBlock(spans((shift, shift + 2), (shift + 4, shift + 6)), gram(4, 2)),
        LowRankBlock(index, random(3, 1), torch.tensor([1.5], dtype=F64)),
        kron,
    )
    parts = [
        (dense_at, gram(4, 2)),
        (index, 1.5 * random(3, 1) @ random(3, 1).mT),
        (kron_at, h),
    ]
    dense = torch.zeros(size, size, dtype=F64)
    for at, matrix in parts:
        dense[at.unsqueeze(-1), at] = temperature * inverse(0.8 * matrix + torch.diag(tau[at]))
    return PosteriorCovariance(blocks, tau, temperature, 0.8), dense


COVARIANCES: dict[str, Callable[[], Case]] = {
    "DiagonalCovariance": lambda: (DiagonalCovariance(positive(6)), torch.diag(positive(6))),
    "LowRankCovariance": low_rank_covariance,
    "LowRankCovariance of rank 0": lambda: (
        LowRankCovariance(positive(6), torch.empty(6, 0, dtype=F64)),
        torch.diag(positive(6)),
    ),
    "DenseCovariance": lambda: (DenseCovariance(lower(6) @ lower(6).mT), lower(6) @ lower(6).mT),
    "CholeskyCovariance": lambda: (CholeskyCovariance(lower(6)), lower(6) @ lower(6).mT),
    "KroneckerCovariance": kronecker_covariance,
    "DiagonalInverse": lambda: (DiagonalInverse(positive(6)), torch.diag(1 / positive(6))),
    "CholeskyInverse": lambda: (CholeskyInverse(lower(6)), inverse(lower(6) @ lower(6).mT)),
    "LowRankInverse": low_rank_inverse,
    **{f"{name}, factorised": (lambda name=name: factorised(name)) for name in BLOCKS},
    "BlockCovariance": block_covariance,
    "PosteriorCovariance": posterior_covariance,
}
DEFICIENT: dict[str, Callable[[], Case]] = {"PosteriorCovariance of a part": lambda: posterior_covariance(known=True)}
OPERATORS = {**BLOCKS, **COVARIANCES, **DEFICIENT}


def concrete_classes() -> set[type[Operator]]:
    """All operators of the library that can be made."""
    found: set[type[Operator]] = set()
    todo: list[Any] = [Operator]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        if not kind.__abstractmethods__ and kind.__module__.startswith("temperance."):
            found.add(kind)
    return found
