"""Posteriors and priors in an affine subspace of weight space, θ = c + B z.

Only the network's numbers lie in the subspace; what a likelihood learns follows z as coordinates of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from temperance.core.checks import check_finite
from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.engine.outputs import arguments, call_with
from temperance.linalg.assembled import PosteriorCovariance
from temperance.linalg.blocks import DenseBlock
from temperance.model.priors import BoundPrior, GaussianDensity
from temperance.model.priors.base import Density, RestrictedPrior
from temperance.model.target import Target
from temperance.model.theta import Layout
from temperance.posteriors.base import Nodes, Posterior, WrappedPosterior, centre_of
from temperance.posteriors.draws import Draws
from temperance.posteriors.gaussian import Gaussian
from temperance.posteriors.laplace import CorrelatedDensity, CorrelatedGaussian
from temperance.posteriors.mixture import Mixture
from temperance.posteriors.point import Point


def place(rows: Tensor, centre: Tensor, basis: Tensor) -> Tensor:
    """θ (... × P) of coordinates (z, what the likelihood learns) (... × (k + L)), for c of P numbers and B of shape
    (P − L) × k. What c says of the last L numbers is not used."""
    size, rank = basis.shape
    network = centre[:size].to(rows) + rows[..., :rank] @ basis.to(rows).T
    return torch.cat([network, rows[..., rank:]], dim=-1)


@dataclass(frozen=True, eq=False, repr=False)
class Affine(WrappedPosterior):
    """θ = c + B z with (z, what the likelihood learns) distributed as ``inner`` says.

    Args:
        inner: a posterior of k + L numbers.
        centre: c, P numbers.
        basis: B, (P − L) × k.

    >>> from temperance.linalg import DiagonalCovariance
    >>> inner = Gaussian(torch.tensor([2.0]), DiagonalCovariance(torch.tensor([4.0])))
    >>> posterior = Affine(inner, torch.ones(2), torch.tensor([[1.0], [-1.0]]))
    >>> posterior.mean, posterior.covariance()
    (tensor([ 3., -1.]), tensor([[ 4., -4.],
            [-4.,  4.]]))
    """

    inner: Posterior
    centre: Tensor
    basis: Tensor

    def __post_init__(self) -> None:
        check_fields(self)
        check_finite(self.centre, "the centre of a subspace")
        check_finite(self.basis, "the basis of a subspace")
        if self.basis.dim() != 2 or len(self.basis) > len(self.centre):
            raise ArgumentError(
                f"`basis` must be a matrix of at most {len(self.centre)} rows, as `centre` has; got shape "
                f"{tuple(self.basis.shape)}."
            )
        wanted = self.basis.shape[1] + len(self.centre) - len(self.basis)
        if self.inner.size != wanted:
            raise ArgumentError(f"`inner` must be over {wanted} coordinates, by its `basis`; got {self.inner.size}.")

    @property
    def size(self) -> int:
        """P."""
        return len(self.centre)

    def rewrap(self, part: Posterior) -> Posterior:
        """The same subspace for another part."""
        return Affine(part, self.centre, self.basis)

    def inside(self, target: Target) -> tuple[Target, Posterior]:
        """The target over coordinates."""
        return self.inner.inside(subspace_target(target, self.centre.to(target.device), self.basis.to(target.device)))

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """c + B E[z]."""
        return self.place(centre_of(self.inner).mean)

    def covariance(self) -> Tensor:
        """B Σ Bᵀ, padded for what the likelihood learns, of a Gaussian: P × P, of the inner rank; for small P."""
        if not isinstance(self.inner, Gaussian):
            raise ArgumentError(f"only a Gaussian has a covariance in closed form; got {type(self.inner).__name__}.")
        inner = self.inner.covariance()
        unit = torch.eye(len(inner), dtype=inner.dtype, device=inner.device)
        columns = place(unit, torch.zeros_like(self.centre), self.basis)
        return columns.T @ inner @ columns

    def place(self, rows: Tensor) -> Tensor:
        """θ of coordinates."""
        return place(rows, self.centre, self.basis)

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """Those of the inner posterior, put into place."""
        return self.inner.nodes(n, seed).map(self.place)

    def growing(self, n: int, seed: int = 0) -> Nodes:
        """Those of the inner posterior, put into place."""
        return self.inner.growing(n, seed).map(self.place)

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        return self.place(self.inner._sample(n, rng))


class _Frame:
    """c and B of a subspace. Copies of a network that holds one look at the same: B is large, and nobody changes it."""

    def __init__(self, centre: Tensor, basis: Tensor) -> None:
        self.centre, self.basis = centre, basis

    def __deepcopy__(self, memo: dict[int, object]) -> _Frame:
        return self


class SubspaceNetwork(nn.Module):
    """A network at θ = c + B z; z is its parameter. Fresh ones, z ~ N(0, I), start the members of an ensemble."""

    def __init__(self, network: nn.Module, layout: Layout, centre: Tensor, basis: Tensor) -> None:
        super().__init__()
        self.network, self.entries = network, layout.network_entries
        self.z = nn.Parameter(torch.zeros(basis.shape[1], dtype=layout.dtype, device=basis.device))
        self._frame = _Frame(centre, basis)

    def reset_parameters(self) -> None:
        """z ~ N(0, I)."""
        nn.init.normal_(self.z)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's answer at c + B z."""
        theta = self._frame.centre + self._frame.basis @ self.z
        values = {e.name: theta[e.start : e.stop].reshape(e.shape) for e in self.entries}
        if kwargs and not args:
            args, kwargs = arguments(self.network, kwargs)
        return call_with(self.network, values, args, kwargs)


def subspace_target(target: Target, centre: Tensor, basis: Tensor) -> Target:
    """The problem over z (and what the likelihood learns, which starts as c has it), with the prior p(c + B z). c and B
    are looked at, not copied."""
    target.refuse_learned_scales("a subspace", "its coordinates mix weights of different scales")
    layout, size = target.layout, target.layout.network_size
    made = Target(
        SubspaceNetwork(target.network, layout, centre[:size], basis),
        target.likelihood,
        restricted(target.bound_prior, layout, centre, basis),
        target.temperature,
        likelihood_temperature=target.likelihood_temperature,
        subset=["z"],
        freeze_batch_norm=target.freeze_batch_norm,
    )
    return made.starting({e.name: centre[e.start : e.stop] for e in layout.entries_of("likelihood")})


def lifted(inner: Posterior, centre: Tensor, basis: Tensor) -> Posterior:
    """A posterior over coordinates as one over θ: points, draws and mixtures stay what they are, so that diagnostics
    see chains; the rest becomes :class:`Affine`. Draws lose their trace, whose temperatures are those of z."""
    if isinstance(inner, Point):
        return Point(place(inner.theta, centre, basis))
    if isinstance(inner, Draws):
        return Draws(place(inner.theta, centre, basis))
    if isinstance(inner, Mixture):
        return Mixture(tuple(lifted(part, centre, basis) for part in inner.components), inner.weights)
    return Affine(inner, centre, basis)


def lifted_kind(kind: type[Posterior]) -> type[Posterior]:
    """The class of what :func:`lifted` makes of a posterior of class ``kind``."""
    return kind if issubclass(kind, Point | Draws | Mixture) else Affine


# ---------------------------------------------------------------------- priors


class AffineDensity(Density):
    """p(z) ∝ p(c + B z) for a prior that is not Gaussian: one number for all of z; its score is Bᵀ ∇ log p(c + B z)."""

    def __init__(self, pieces: Sequence[tuple[slice, Density]], centre: Tensor, basis: Tensor) -> None:
        self.pieces, self.centre, self.basis = list(pieces), centre, basis

    def _place(self, z: Tensor) -> Tensor:
        return self.centre + z @ self.basis.T

    def log_density(self, theta: Tensor) -> Tensor:
        """log p(c + B z), ... × 1: not normalised over z."""
        return BoundPrior(self.pieces).log_prob(self._place(theta)).unsqueeze(-1)

    def score(self, theta: Tensor) -> Tensor:
        """Bᵀ ∇ log p(c + B z)."""
        if theta.requires_grad and torch.is_grad_enabled():
            raise ArgumentError("`prior` must be Gaussian for the curvature of a Laplace approximation in a subspace.")
        placed = self._place(theta)
        slope = torch.cat([density.score(placed[..., piece]) for piece, density in self.pieces], dim=-1)
        return slope @ self.basis

    def sample(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """Not known."""
        raise ArgumentError("`prior` must be Gaussian for draws from its restriction to a subspace.")

    def part(self, places: Tensor, size: int) -> Density:
        """Not known."""
        raise ArgumentError("a prior in a subspace is over all of its coordinates; it has no part for some.")

    def to(self, device: torch.device, dtype: torch.dtype) -> AffineDensity:
        """See :class:`Density`."""
        pieces = [(piece, density.to(device, dtype)) for piece, density in self.pieces]
        return AffineDensity(pieces, self.centre.to(device, dtype), self.basis.to(device, dtype))


class AffineGaussian(CorrelatedDensity):
    """The Gaussian that a Gaussian prior is in a subspace, with its precision as one small matrix."""

    def __init__(self, mean: Tensor, operator: PosteriorCovariance, precision: Tensor) -> None:
        super().__init__(mean, operator)
        self.precision = precision
        self.log_norm = 0.5 * float(torch.linalg.slogdet(precision.double() / (2 * math.pi))[1])

    def log_density(self, theta: Tensor) -> Tensor:
        """−½ (z − m)ᵀ A (z − m) + ½ log |A / 2π|, ... × 1."""
        delta = theta - self.mean
        return self.log_norm - 0.5 * ((delta @ self.precision) * delta).sum(-1, keepdim=True)

    def score(self, theta: Tensor) -> Tensor:
        """−A (z − m)."""
        return (self.mean - theta) @ self.precision

    def to(self, device: torch.device, dtype: torch.dtype) -> AffineGaussian:
        """See :class:`Density`."""
        moved_there = super().to(device, dtype)
        return AffineGaussian(moved_there.mean, moved_there.operator, self.precision.to(device=device, dtype=dtype))


def restricted(bound: BoundPrior, layout: Layout, centre: Tensor, basis: Tensor) -> RestrictedPrior:
    """The prior over coordinates, p(z) ∝ p(c + B z), for a ``bound`` prior over the θ of ``layout``.

    A Gaussian N(μ, Λ⁻¹) stays one, with precision A = Bᵀ Λ B and mean A⁻¹ Bᵀ Λ (μ − c): independent numbers where A is
    diagonal (an isotropic prior and orthogonal columns), a correlated Gaussian otherwise.
    """
    size, rank = basis.shape
    independent = all(density.gaussian is not None for _, density in bound.pieces)
    if not independent and not all(
        isinstance(density, CorrelatedGaussian) or density.gaussian is not None for _, density in bound.pieces
    ):
        inside = [(piece, density) for piece, density in bound.pieces if piece.stop <= size]
        return RestrictedPrior(((slice(0, rank), AffineDensity(inside, centre[:size], basis)),))
    precision, mean = _coordinates(bound, layout, centre, basis)
    own = precision[:rank, :rank]
    scale = own.diagonal().rsqrt()
    uneven = (own * scale * scale.unsqueeze(1) - torch.eye(rank).to(own)).abs().max()
    if independent and float(uneven) <= 32 * torch.finfo(layout.dtype).eps:
        return RestrictedPrior(((slice(0, rank), GaussianDensity(mean[:rank], scale)),))
    learned = [(e.start - size + rank, e.stop - size + rank) for e in layout.entries if e.role == "likelihood"]
    groups = [((0, rank),), tuple(learned)] if learned else [((0, rank),)]
    if bool(precision[:rank, rank:].any()):
        groups = [((0, len(mean)),)]
    blocks, floor = [], torch.empty_like(mean)
    for spans in groups:
        here = slice(spans[0][0], spans[-1][1])
        inside_block = precision[here, here]
        floor[here] = 0.5 * torch.linalg.eigvalsh(inside_block)[0]
        blocks.append(DenseBlock(spans, inside_block - torch.diag(floor[here])))
    density = AffineGaussian(mean, PosteriorCovariance(tuple(blocks), floor), precision)
    return RestrictedPrior(((slice(0, len(mean)), density),))


def _coordinates(bound: BoundPrior, layout: Layout, centre: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Precision and mean of a Gaussian prior over (z, what the likelihood learns), in float64."""
    size, rank = basis.shape
    learned = layout.size - size
    rows = torch.zeros(rank + learned, layout.size, dtype=torch.float64, device=basis.device)
    rows[:rank, :size] = basis.T
    rows[rank:, size:] = torch.eye(learned)
    away = -centre.double()
    away[size:] = 0.0
    weighted = torch.zeros_like(rows)
    for piece, density in bound.pieces:
        here = rows[:, piece]
        if isinstance(density, CorrelatedGaussian):
            weighted[:, piece] = density.operator.solve(here.to(density.mean.dtype)).double()
            away[piece] += density.mean.double()
        else:
            assert density.gaussian is not None
            prior_mean, scale = density.gaussian
            weighted[:, piece] = here / torch.as_tensor(scale, dtype=here.dtype, device=here.device) ** 2
            away[piece] += torch.as_tensor(prior_mean, dtype=away.dtype, device=away.device)
    precision = weighted @ rows.T
    precision = 0.5 * (precision + precision.T)
    return precision, torch.linalg.solve(precision, weighted @ away)
