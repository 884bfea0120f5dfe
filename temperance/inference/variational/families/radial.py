"""The radial family."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from temperance.inference.card import Card, MethodFamily
from temperance.inference.variational.families.base import BoundFamily, Buffers, Family
from temperance.model.theta import Layout
from temperance.posteriors import Posterior
from temperance.posteriors.radial import RadialPosterior, radial_entropy


@dataclass(frozen=True, eq=False)
class Radial(Family):
    """θ = μ + σ ⊙ (ε / ‖ε‖) |r|, tensor by tensor, with r ~ N(0, 1) (Farquhar et al., 2020): as many numbers as the
    mean field, but draws at a distance of about one (in units of σ) from the mean, however many weights there are.

    The variance of a weight is σ² / d in a tensor of d numbers; the start is chosen so that it is that of the mean
    field.

    >>> Radial().bind(Layout.of(torch.nn.Linear(3, 2))).num_parameters
    16
    """

    card: ClassVar[Card] = Card(
        "a direction and a radius of one number, tensor by tensor",
        MethodFamily.VARIATIONAL,
        papers=("Farquhar et al., Radial Bayesian neural networks, AISTATS 2020",),
        shown=("Variational(Radial())",),
    )

    def bind(self, layout: Layout) -> BoundFamily:
        """See :class:`Family`."""
        return BoundRadial(layout, {"log_scale": (layout.size,)}, layout.size + len(layout.entries))


class BoundRadial(BoundFamily):
    """φ = (μ, log σ); noise: directions, then a radius for each tensor."""

    normal = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of each tensor."""
        return tuple(entry.size for entry in self.layout.entries)

    def start(self, theta: Tensor, scale: float, rng: torch.Generator) -> Tensor:
        """See :class:`BoundFamily`."""
        each = [torch.full((d,), math.log(scale * math.sqrt(d))) for d in self.sizes]
        return torch.cat([theta, torch.cat(each).to(theta)])

    def _standard(self, noise: Tensor) -> Tensor:
        """u r, S × P."""
        radii = noise[..., self.size :].abs()
        pieces = noise[..., : self.size].split(self.sizes, dim=-1)
        return torch.cat(
            [
                piece * (radii[..., k : k + 1] / torch.linalg.vector_norm(piece, dim=-1, keepdim=True))
                for k, piece in enumerate(pieces)
            ],
            dim=-1,
        )

    def draw(self, phi: Tensor, noise: Tensor) -> Tensor:
        """μ + σ ⊙ u r."""
        return self.mean(phi) + self.parts(phi)["log_scale"].exp() * self._standard(noise)

    def variances(self, phi: Tensor) -> Tensor:
        """σ² / d."""
        counts = torch.cat([torch.full((d,), float(d)) for d in self.sizes]).to(phi)
        return (2 * self.parts(phi)["log_scale"]).exp() / counts

    def entropy(self, phi: Tensor) -> Tensor:
        """Σ log σ and a constant of the dimensions."""
        return self.parts(phi)["log_scale"].sum() + sum(radial_entropy(d) for d in self.sizes)

    def score(self, phi: Tensor, noise: Tensor) -> Tensor:
        """−(w / σ)(1 + (d − 1) / r²) with w = u r."""
        standard = self._standard(noise)
        radii = noise[..., self.size :]
        pieces = [
            piece * (1 + (d - 1) / radii[..., k : k + 1].square())
            for k, (piece, d) in enumerate(zip(standard.split(self.sizes, dim=-1), self.sizes, strict=True))
        ]
        return -torch.cat(pieces, dim=-1) / self.parts(phi)["log_scale"].exp()

    def posterior(self, phi: Tensor, buffers: Buffers) -> Posterior:
        """A :class:`RadialPosterior`."""
        scale = self.parts(phi.detach())["log_scale"].exp()
        return RadialPosterior(self.mean(phi).clone(), scale, self.sizes, buffers)
