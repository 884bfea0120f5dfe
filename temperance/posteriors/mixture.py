"""Several posteriors, weighted: ensembles of anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from temperance.core.errors import ArgumentError
from temperance.core.fields import check_fields
from temperance.core.seeds import derive_seed
from temperance.model.target import Target
from temperance.posteriors.base import Buffers, Nodes, Posterior, WeightPosterior
from temperance.posteriors.gaussian import DEFAULT_DRAWS


@dataclass(frozen=True, eq=False, repr=False)
class Mixture(WeightPosterior):
    """p(θ) = Σₖ wₖ pₖ(θ): equal weights unless given.

    >>> from temperance.posteriors import Point
    >>> mixture = Mixture((Point(torch.zeros(2)), Point(torch.ones(2))))
    >>> len(mixture.nodes()), mixture.nodes().weights.tolist()
    (2, [0.5, 0.5])
    """

    components: tuple[Posterior, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.components:
            raise ArgumentError("`components` must hold at least one posterior; got none.")
        if len({c.size for c in self.components}) > 1:
            raise ArgumentError(f"`components` must share one size; got {[c.size for c in self.components]}.")
        if self.weights is not None and (
            len(self.weights) != len(self.components) or min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-6
        ):
            raise ArgumentError(f"`weights` must be one per component, sum to one, not negative; got {self.weights}.")

    @property
    def size(self) -> int:
        """P."""
        return self.components[0].size

    @property
    def finite(self) -> bool:  # type: ignore[override]
        """Whether every component is."""
        return all(c.finite for c in self.components)

    @property
    def predicts(self) -> str:  # type: ignore[override]
        """As all components do; through the network where they differ."""
        found = {c.predicts for c in self.components}
        return found.pop() if len(found) == 1 else "network"

    def retarget(self, target: Target) -> Target:
        """The target itself, or that with the noise which components chose. Where they chose outliers that are wider or
        less wide, all have the widest; where they chose noise levels, they have no likelihood in common."""
        chosen = [c.retarget(target) for c in self.components]
        laws = [other.likelihood for other in chosen]
        if any(law.outlier_factor == 1.0 and law != target.likelihood for law in laws):
            raise ArgumentError(
                "the members of an ensemble chose different noise levels by evidence, so there is no one likelihood; "
                "let the noise be learned, Normal(), in place of Tune(noise=True)."
            )
        # A posterior that needs another module for its draws (dropout masks) needs it as a component too.
        found = next((other for other in chosen if other.network is not target.network), target)
        widest = max(laws, key=lambda law: law.outlier_factor)
        return found if widest == found.likelihood else found.with_likelihood(widest)

    def parts(self) -> list[tuple[float, Posterior]]:
        """Those of all components."""
        return [
            (share * weight, part)
            for share, component in zip(self.shares(), self.components, strict=True)
            for weight, part in component.parts()
        ]

    def map_parts(self, function: Callable[[Posterior], Posterior]) -> Mixture:
        """See :class:`Posterior`."""
        return replace(self, components=tuple(component.map_parts(function) for component in self.components))

    def shares(self) -> tuple[float, ...]:
        """The weights, equal ones made explicit."""
        return self.weights or tuple(1.0 / len(self.components) for _ in self.components)

    def nodes(self, n: int | None = None, seed: int = 0) -> Nodes:
        """The nodes of all components, about ``n`` (30 unless told, where they can be chosen) shared equally by those
        that are more than a point."""
        each = max(1, -(-(DEFAULT_DRAWS if n is None else n) // self._sharing()))
        parts = []
        for k, c in enumerate(self.components):
            wanted = None if n is None and c.finite else each
            if n is None and wanted is not None and c.most_nodes is not None:
                wanted = min(wanted, c.most_nodes)
            parts.append(c.nodes(wanted, derive_seed(seed, "component", k)))
        return self._joined(parts)

    def growing(self, n: int, seed: int = 0) -> Nodes:
        """Those of all components, ``n`` shared equally by those that are more than a point."""
        each = -(-n // self._sharing())
        seeds = [derive_seed(seed, "component", k) for k in range(len(self.components))]
        return self._joined([c.growing(each, own) for c, own in zip(self.components, seeds, strict=True)])

    def _sharing(self) -> int:
        return max(1, sum(not component.single for component in self.components))

    def _joined(self, parts: list[Nodes]) -> Nodes:
        weights = torch.cat([share * part.weights for share, part in zip(self.shares(), parts, strict=True)])
        ends = torch.tensor([len(part) for part in parts]).cumsum(0).tolist()

        def fetch(start: int, stop: int) -> tuple[Tensor, Buffers]:
            found = []
            for part, end in zip(parts, ends, strict=True):
                begin = end - len(part)
                low, high = max(start, begin), min(stop, end)
                if low < high:
                    found.append(part.fetch(low - begin, high - begin))
            if any(set(b) != set(found[0][1]) for _, b in found):
                raise ArgumentError(
                    "`components` must have the same buffers: these are of different kinds, or of runs by different "
                    "versions; fit them again."
                )
            buffers = {name: torch.cat([b[name] for _, b in found]) for name in found[0][1]}
            return torch.cat([theta for theta, _ in found]), buffers

        return Nodes(weights, fetch, tuple(stratum for part in parts for stratum in part.strata))

    def _sample(self, n: int, rng: torch.Generator) -> Tensor:
        pick = torch.multinomial(torch.tensor(self.shares()), n, replacement=True, generator=rng)
        drawn = [self.components[k]._sample(int((pick == k).sum()), rng) for k in pick.unique().tolist()]
        made = torch.empty(n, self.size, dtype=drawn[0].dtype, device=drawn[0].device)
        for rows, k in zip(drawn, pick.unique().tolist(), strict=True):
            made[pick == k] = rows
        return made
