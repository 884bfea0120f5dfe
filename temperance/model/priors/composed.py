"""Priors made of priors: mixtures, and one prior per layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.core.checks import real, shown
from temperance.core.errors import ArgumentError
from temperance.model.priors.base import Density, Prior, span
from temperance.model.theta import Entry, Layout, matches


@dataclass(frozen=True, eq=False)
class MixturePrior(Prior):
    """Each weight from one of several priors: p(θᵢ) = Σₖ wₖ pₖ(θᵢ).

    The spike-like scale mixture of Blundell et al. (2015) is

    >>> from temperance.model.priors import GaussianPrior
    >>> prior = MixturePrior((GaussianPrior(1.0), GaussianPrior(0.0025)), weights=(0.5, 0.5))
    """

    components: tuple[Prior, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.components, tuple | list) or len(self.components) < 1:
            raise ArgumentError(f"`components` must be a tuple of at least one prior; got {shown(self.components)}.")
        check_priors(self.components, "components")
        if self.weights is not None:
            if not isinstance(self.weights, tuple | list) or len(self.weights) != len(self.components):
                raise ArgumentError(
                    f"`weights` must have one entry for each of the {len(self.components)} components; got "
                    f"{shown(self.weights)}."
                )
            numbers = [real(weight) for weight in self.weights]
            if not all(weight > 0 for weight in numbers) or abs(sum(numbers) - 1) > 1e-6:
                raise ArgumentError(f"`weights` must be positive and sum to one; got {shown(self.weights)}.")

    def densities(self, layout: Layout, entries: Sequence[Entry]) -> list[tuple[slice, Density]]:
        """See :class:`Prior`."""
        weights = self.weights or tuple(1 / len(self.components) for _ in self.components)
        parts: list[Density] = []
        for component in self.components:
            pieces = component.densities(layout, entries)
            if len(pieces) != 1:
                raise ArgumentError("`components` must be elementwise priors; put PerLayer around the mixture instead.")
            parts.append(pieces[0][1])
        return [(span(entries), MixtureDensity(parts, weights))]


def check_priors(values: Iterable[object], argument: str) -> None:
    """Each must be a :class:`Prior`."""
    for value in values:
        if not isinstance(value, Prior):
            raise ArgumentError(f"`{argument}` must hold temperance priors; got {shown(value)}.")
        if value.learns:
            raise ArgumentError(
                f"`{argument}` must hold priors of given scales; got {shown(value)}. A prior that learns its scales "
                'stands alone: GaussianPrior(scale=Learned(each="layer")) has one for each layer.'
            )


class MixtureDensity(Density):
    """Elementwise mixture."""

    def __init__(self, parts: Sequence[Density], weights: Sequence[float]) -> None:
        self.parts, self.weights = list(parts), list(weights)

    def _log_terms(self, theta: Tensor) -> Tensor:
        log_weights = torch.tensor(self.weights, dtype=theta.dtype, device=theta.device).log()
        return torch.stack([part.log_density(theta) + w for part, w in zip(self.parts, log_weights, strict=True)])

    def log_density(self, theta: Tensor) -> Tensor:
        """See :class:`Density`."""
        return self._log_terms(theta).logsumexp(0)

    def score(self, theta: Tensor) -> Tensor:
        """Scores averaged by the responsibilities."""
        share = self._log_terms(theta).softmax(0)
        return (share * torch.stack([part.score(theta) for part in self.parts])).sum(0)

    def sample(self, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """See :class:`Density`."""
        draws = torch.stack([part.sample(shape, rng) for part in self.parts])
        weights = torch.tensor(self.weights, device=rng.device)
        pick = torch.multinomial(weights, draws[0].numel(), replacement=True, generator=rng).view(1, *draws[0].shape)
        return draws.gather(0, pick)[0]

    def moments(self) -> tuple[float | Tensor, float | Tensor] | None:
        """Σ w m and Σ w (v + m²) − (Σ w m)², of the parts' means m and variances v."""
        known = [part.moments() for part in self.parts]
        parts = [(w, *found) for w, found in zip(self.weights, known, strict=True) if found is not None]
        if len(parts) < len(known):
            return None
        mean = sum(w * m for w, m, _ in parts)
        return mean, sum(w * (v + (m - mean) ** 2) for w, m, v in parts)

    def part(self, places: Tensor, size: int) -> MixtureDensity:
        """See :class:`Density`."""
        return MixtureDensity([part.part(places, size) for part in self.parts], self.weights)

    def to(self, device: torch.device, dtype: torch.dtype) -> MixtureDensity:
        """See :class:`Density`."""
        return MixtureDensity([part.to(device, dtype) for part in self.parts], self.weights)


@dataclass(frozen=True, eq=False)
class PerLayer(Prior):
    """A prior for each part of the network, by name, prefix or pattern; the first match counts.

    >>> from temperance.model.priors import GaussianPrior, LaplacePrior
    >>> prior = PerLayer({"head": LaplacePrior(0.1), "*": GaussianPrior(1.0)})
    """

    priors: Mapping[str, Prior]

    def __post_init__(self) -> None:
        named = isinstance(self.priors, Mapping) and all(isinstance(name, str) for name in self.priors)
        if not named or not self.priors:
            raise ArgumentError(f"`priors` must be a mapping from names to priors; got {shown(self.priors)}.")
        check_priors(self.priors.values(), "priors")

    def densities(self, layout: Layout, entries: Sequence[Entry]) -> list[tuple[slice, Density]]:
        """See :class:`Prior`. Neighbours with the same prior share a piece."""
        names = [e.name for e in entries]
        unused = [p for p in self.priors if not any(matches(name, p) for name in names)]
        if unused:
            raise ArgumentError(f"`priors` must name parameters of the network; nothing matches {unused}: {names}.")
        groups: list[tuple[str, list[Entry]]] = []
        for entry in entries:
            found = [pattern for pattern in self.priors if matches(entry.name, pattern)]
            if not found:
                raise ArgumentError(
                    f"`priors` must cover every parameter; none matches {entry.name!r}. "
                    f'Add it, or "*" for the rest. Given: {list(self.priors)}.'
                )
            if groups and groups[-1][0] == found[0]:
                groups[-1][1].append(entry)
            else:
                groups.append((found[0], [entry]))
        return [piece for pattern, group in groups for piece in self.priors[pattern].densities(layout, group)]
