"""A posterior over functions: a Gaussian process whose kernel is that of the linearised network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from temperance.core.checks import check_finite, check_positive, check_vector
from temperance.core.fields import check_fields
from temperance.posteriors.base import Buffers, Centred, Posterior


@dataclass(frozen=True, eq=False, repr=False)
class Process(Posterior, Centred):
    """f(x) ~ GP(f(x; θ*), k) conditioned on M rows of the data, k(x, x') = J(x) Λ_prior⁻¹ J(x')ᵀ.

    Attributes:
        theta: θ*, where the network is linearised.
        prior_precision: the diagonal of Λ_prior.
        inputs: the M inputs that it is conditioned on.
        roots: M × C × K, roots of the Hessians of −log p in the outputs there.
        temperature: T.
    """

    predicts: ClassVar[str] = "linearised"
    over_functions: ClassVar[bool] = True

    theta: Tensor
    prior_precision: Tensor
    inputs: Tensor | tuple[Tensor, ...] | dict[str, Tensor]
    roots: Tensor
    temperature: float = 1.0
    buffers: Buffers = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, "prior_precision", "roots")
        check_positive(self.temperature, "temperature")
        check_vector(self.theta, "theta")
        check_finite(self.theta, "the weights of a Process")
        check_finite(self.roots, "the output Hessians of a Process")

    @property
    def size(self) -> int:
        """P."""
        return len(self.theta)

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """θ*."""
        return self.theta
