"""What a variational family is: distributions q(θ; φ) of one form, with parameters φ in one vector.

A draw is a differentiable function of φ and of noise that does not depend on φ, so gradients in θ can be carried back
to φ. The mean comes first in φ; what follows is the family's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError
from temperance.model.theta import Layout
from temperance.posteriors import Posterior

Buffers = dict[str, Tensor]


class Family(Value, ABC):
    """A form of posterior, e.g. ``MeanField()``; :meth:`bind` makes it one over the θ of a layout."""

    @abstractmethod
    def bind(self, layout: Layout) -> BoundFamily:
        """The family over the θ of ``layout``, or an error if it cannot hold as much."""


@dataclass
class Pull:
    """What an objective says about q, to be carried back to φ: its derivatives in the draws (S × P), in the mean and
    in the variances of q, and the weight of the entropy of q, which is subtracted.

    ``scale`` is the derivative in the standard deviations, where an estimator gives it in place of noise.
    """

    draws: Tensor | None
    mean: Tensor | None = None
    variance: Tensor | float = 0.0
    entropy: float = 0.0
    scale: Tensor | None = None


class BoundFamily(ABC):
    """Distributions q(θ; φ) over the θ of a layout."""

    normal: ClassVar[bool] = True
    """Whether every θᵢ is normal under q."""
    factorised: ClassVar[bool] = False
    """Whether the θᵢ are independent normals, which local reparametrisation and Flipout need."""

    def __init__(self, layout: Layout, own: Mapping[str, tuple[int, ...]], noise: int) -> None:
        self.layout = layout
        self.size = layout.size
        self.num_noise = noise
        self._own = dict(own)
        self.num_parameters = self.size + sum(torch.Size(shape).numel() for shape in self._own.values())

    def parts(self, phi: Tensor) -> dict[str, Tensor]:
        """Named views of φ beyond the mean."""
        found, place = {}, self.size
        for name, shape in self._own.items():
            count = torch.Size(shape).numel()
            found[name] = phi[place : place + count].view(shape)
            place += count
        return found

    def mean(self, phi: Tensor) -> Tensor:
        """E θ."""
        return phi[: self.size]

    @abstractmethod
    def start(self, theta: Tensor, scale: float, rng: torch.Generator) -> Tensor:
        """φ with mean ``theta`` and standard deviations of about ``scale``."""

    @abstractmethod
    def draw(self, phi: Tensor, noise: Tensor) -> Tensor:
        """θ, S × P, from standard normal ``noise`` S × :attr:`num_noise`; differentiable in φ."""

    def draw_(self, phi: Tensor, noise: Tensor, theta: Tensor) -> None:
        """:meth:`draw` into ``theta``, with no gradient."""
        with torch.no_grad():
            theta.copy_(self.draw(phi, noise))

    @abstractmethod
    def variances(self, phi: Tensor) -> Tensor:
        """Var θᵢ, differentiable."""

    @abstractmethod
    def entropy(self, phi: Tensor) -> Tensor:
        """−E log q(θ), differentiable."""

    @abstractmethod
    def score(self, phi: Tensor, noise: Tensor) -> Tensor:
        """∇_θ log q(θ; φ) at the draws of ``noise``, S × P."""

    @abstractmethod
    def posterior(self, phi: Tensor, buffers: Buffers) -> Posterior:
        """q as a posterior of the library."""

    def pull_back(self, phi: Tensor, noise: Tensor | None, pull: Pull, grad: Tensor) -> None:
        """Write the gradient in φ into ``grad``; ``noise`` may be used up."""
        with torch.enable_grad():
            leaf = phi.detach().requires_grad_()
            total = -pull.entropy * self.entropy(leaf)
            if pull.draws is not None and noise is not None:
                total = total + (self.draw(leaf, noise) * pull.draws).sum()
            if pull.mean is not None:
                total = total + (self.mean(leaf) * pull.mean).sum()
            if isinstance(pull.variance, Tensor) or pull.variance:
                total = total + (self.variances(leaf) * pull.variance).sum()
            (found,) = torch.autograd.grad(total, leaf)
        grad.copy_(found)


def too_large(family: str, layout: Layout, numbers: int, limit: int, advice: str) -> ArgumentError:
    """An error that says how much memory it would take."""
    size = 4 * numbers * layout.dtype.itemsize / 2**30  # the parameters, their gradient, and two moments of Adam
    return ArgumentError(
        f"`family`: {family} over {layout.size:,} parameters needs {numbers:,} numbers, {size:,.1f} GB with gradient "
        f"and optimiser; the limit is {limit:,} (`limit=`). {advice}"
    )
