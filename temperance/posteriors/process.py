"""A posterior over functions: a Gaussian process whose kernel is that of the linearised network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from temperance.core.checks import check_finite
from temperance.core.errors import ArgumentError
from temperance.posteriors.base import Buffers, Nodes, Posterior


@dataclass(frozen=True, eq=False, repr=False)
class Process(Posterior):
    """f(x) ~ GP(f(x; θ*), k) conditioned on M rows of the data, k(x, x') = J(x) Λ_prior⁻¹ J(x')ᵀ.

    Attributes:
        theta: θ*, where the network is linearised.
        prior_precision: the diagonal of Λ_prior.
        inputs: the M inputs that it is conditioned on.
        roots: M × C × K, roots of the Hessians of −log p in the outputs there.
        temperature: T.
    """

    predicts: ClassVar[str] = "linearised"

    theta: Tensor
    prior_precision: Tensor
    inputs: Any
    roots: Tensor
    temperature: float = 1.0
    buffers: Buffers = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_finite(self.theta, "the weights of a Process")
        check_finite(self.roots, "the output Hessians of a Process")

    @property
    def size(self) -> int:
        """P."""
        return len(self.theta)

    @property
    def mean(self) -> Tensor:
        """θ*."""
        return self.theta

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """See :meth:`_sample`."""
        self._refuse()

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        """A process has functions, not weights."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ArgumentError(
            "a posterior over functions has no draws of weights; `predict(x).sample(n)` draws functions. For weights "
            "use Laplace(curvature=...)."
        )
