"""Outputs of the linearised network, Gaussian for every row: as points of each row's own Gaussian, or as draws of whole
functions."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property, singledispatch
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from temperance.core.errors import ArgumentError
from temperance.core.seeds import derive_seed
from temperance.data.sources import Inputs, first_tensor
from temperance.engine.engine import Engine
from temperance.linalg.points import root_of, standard_points
from temperance.posteriors import CurvatureGaussian, Posterior, Process, Stratum
from temperance.predict.kernel import KernelLaw
from temperance.predict.linear import LinearLaw
from temperance.predict.source import OutputBlock, Outputs

_BLOCK_BYTES = 2**25
_KEEP_BYTES = 2**28
_NOISE_POINTS = 16


class Law(Protocol):
    """A Gaussian law of the outputs."""

    num_outputs: int

    def moments(self, x: Inputs, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Mean and covariance of each row."""

    def joint(self, x: Inputs, batch_size: int) -> tuple[Tensor, Tensor]:
        """Outputs, and the joint covariance of all of them."""

    def functions(self, x: Inputs, deltas: Any, batch_size: int) -> Iterator[tuple[slice, Tensor]]:
        """Displaced outputs."""

    def displacements(self, draws: int, seed: int) -> Sequence[Tensor]:
        """θ_s − θ* for draws of the law's own θ."""

    def learned_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and covariance of what the likelihood learns."""

    def traced(self, x: Inputs) -> nn.Module:
        """From inputs to mean and covariance of each row, as a graph of operations."""


def law_of(engine: Engine, posterior: Posterior, x: Inputs) -> Law:
    """The law of a posterior's linearised outputs, in the coordinates in which it is known."""
    here, known = posterior.inside(engine.target)
    return _law(known, engine.on(here), x)


@singledispatch
def _law(posterior: Posterior, engine: Engine, x: Inputs) -> Law:
    raise ArgumentError(
        f"`by`: linearised predictions need a Laplace posterior; this is a {type(posterior).__name__}. "
        'Use by="network".'
    )


@_law.register
def _(posterior: CurvatureGaussian, engine: Engine, x: Inputs) -> Law:
    return LinearLaw(engine, posterior, x)


@_law.register
def _(posterior: Process, engine: Engine, x: Inputs) -> Law:
    return KernelLaw(engine, posterior, x)


class Linearised:
    """A posterior's network linearised, for inputs x: a law for each component of a mixture."""

    def __init__(self, engine: Engine, posterior: Posterior, x: Inputs, batch_size: int) -> None:
        self.engine, self.x, self.batch_size = engine, x, batch_size
        parts = posterior.parts()
        self.shares = tuple(share for share, _ in parts)
        self.laws = [law_of(engine, part, x) for _, part in parts]
        self.rows = first_tensor(x).shape[0]
        self.num_outputs = self.laws[0].num_outputs


class LinearisedSource(Outputs):
    """Shared by the sources here: rows, outputs, and ``each`` weighted members for every component."""

    by_row: ClassVar[bool] = True
    """Whether members are of each row's own law, rather than functions of all rows."""
    scramble: int = 0
    """Which quasi-random points."""

    def __init__(self, linear: Linearised, each: int, seed: int) -> None:
        self.linear, self.seed, self.each = linear, seed, each
        self.engine, self.x, self.batch_size = linear.engine, linear.x, linear.batch_size
        self.shares, self.laws = linear.shares, linear.laws
        self.rows, self.num_outputs = linear.rows, linear.num_outputs
        self.weights = self._weights(torch.full((each,), 1.0 / each, dtype=torch.float64))

    def _weights(self, members: Tensor) -> Tensor:
        """Weights of all members, from those within a component."""
        made = torch.cat([share * members for share in self.shares])
        return (made / made.sum()).to(device=self.engine.device, dtype=self.engine.layout.dtype)

    def __len__(self) -> int:
        return len(self.weights)

    def row_inputs(self) -> Inputs:
        """x."""
        return self.x

    def points_of_rows(self) -> list[Tensor]:
        """For each component, the standard normal points that stand for a row's outputs, S × C: each has its own, so
        that what they miss averages out."""
        return [z[:, : self.num_outputs] for z in self._points]

    @cached_property
    def _points(self) -> list[Tensor]:
        """Those, and for what the likelihood learns."""
        width = self.num_outputs + self.engine.layout.size - self.engine.layout.network_size
        seeds = [k + len(self.laws) * self.scramble for k in range(len(self.laws))]
        return [standard_points(self.each, width, self.weights, seed=own) for own in seeds]

    @abstractmethod
    def blocks(self) -> Iterator[OutputBlock]:
        """See :class:`~temperance.predict.source.Source`."""

    def _unflatten(self, learned: Tensor) -> dict[str, Tensor]:
        """What the likelihood learns, S × L, by name."""
        return self.engine.layout.unflatten_learned(learned, "likelihood")


class MarginalSource(LinearisedSource):
    """Points of each row's own Gaussian; the moments are kept where they are small, and made anew where not."""

    def __init__(self, linear: Linearised, each: int, seed: int) -> None:
        super().__init__(linear, each, seed)
        width = self.num_outputs * (self.num_outputs + 1) * self.engine.layout.dtype.itemsize
        self._kept: list[tuple[list[Tensor], list[Tensor]]] | None = None
        if len(self.laws) * self.rows * width <= _KEEP_BYTES:
            self._kept = list(self._moments())

    def of(self, each: int) -> MarginalSource:
        """The same Gaussians, ``each`` of so many points."""
        made = self.again(0)
        LinearisedSource.__init__(made, self.linear, each, self.seed)
        return made

    @property
    def scrambled(self) -> bool:
        """Points of a Sobol sequence."""
        return True

    def again(self, scramble: int) -> MarginalSource:
        """Other points of the same Gaussians."""
        made = copy.copy(self)
        made.__dict__.pop("_points", None)
        made.scramble = self.scramble + scramble
        return made

    def _moments(self) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Means and covariances for chunks of rows, one each for every component."""
        walks = [law.moments(self.x, self.batch_size) for law in self.laws]
        if len(walks) == 1:
            for mean, covariance in walks[0]:
                yield [mean], [covariance]
            return
        whole = [tuple(torch.cat(parts) for parts in zip(*walk, strict=True)) for walk in walks]
        yield [mean for mean, _ in whole], [covariance for _, covariance in whole]

    def moments(self) -> Iterator[tuple[slice, list[Tensor], list[Tensor]]]:
        """Rows, then mean b × C and covariance b × C × C of each component."""
        at = 0
        size = self.engine.layout.dtype.itemsize * len(self) * self.num_outputs
        step = max(1, _BLOCK_BYTES // size)
        for means, covariances in self._moments() if self._kept is None else self._kept:
            for low in range(0, len(means[0]), step):
                high = min(low + step, len(means[0]))
                yield slice(at + low, at + high), [m[low:high] for m in means], [c[low:high] for c in covariances]
            at += len(means[0])

    def blocks(self) -> Iterator[OutputBlock]:
        """f + R z, for each point z."""
        drawn = []
        for law, z in zip(self.laws, self._points, strict=True):
            centre, spread = law.learned_moments()
            drawn.append(centre + z[:, self.num_outputs :] @ root_of(spread).mT)
        learned = self._unflatten(torch.cat(drawn))
        for rows, means, covariances in self.moments():
            made = [
                mean + torch.einsum("bij,sj->sbi", root_of(covariance), z)
                for mean, covariance, z in zip(means, covariances, self.points_of_rows(), strict=True)
            ]
            yield rows, torch.cat(made), learned


class GaussianSource(LinearisedSource):
    """For noise that is Gaussian, or a mixture of normals: the mean of each row with its epistemic variance, for some
    values of a learned noise, and for each of the ``normals``, (share, width)."""

    def __init__(self, inner: MarginalSource, normals: Sequence[tuple[float, float]] = ((1.0, 1.0),)) -> None:
        self.inner, self.normals = inner, normals
        centre, spread = inner.laws[0].learned_moments()
        points, shares = _noise_points(len(centre), centre) if bool((spread > 0).any()) else (None, torch.ones(1))
        parts = torch.tensor([share for share, _ in normals], dtype=torch.float64)
        super().__init__(inner.linear, len(shares) * len(normals), inner.seed)
        self.weights = self._weights(torch.outer(shares.double(), parts).flatten())
        self.points = centre.new_zeros(1, len(centre)) if points is None else points

    @property
    def strata(self) -> tuple[Stratum, ...]:
        """Nothing is left to chance."""
        return (Stratum(len(self), drawn=False),)

    def blocks(self) -> Iterator[OutputBlock]:
        """Outputs are the means; ``learned`` also has the variance, for several outputs the covariance, and the
        ``width``, how many times as wide as its scale says the noise of a member is, where there are several."""
        for rows, means, covariances in self.inner.moments():
            outputs, variances, matrices, drawn = [], [], [], []
            for law, mean, covariance in zip(self.laws, means, covariances, strict=True):
                centre, spread = law.learned_moments()
                levels = centre + self.points @ root_of(spread).mT if len(centre) else self.points
                drawn.append(levels.repeat_interleave(len(self.normals), 0))
                outputs.append(mean.expand(self.each, *mean.shape))
                variance = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0.0)
                variances.append(variance.expand(self.each, *variance.shape))
                matrices.append(covariance.expand(self.each, *covariance.shape))
            learned = self._unflatten(torch.cat(drawn))
            learned["epistemic"] = torch.cat(variances)
            if self.num_outputs > 1:
                learned["covariance"] = torch.cat(matrices)
            if len(self.normals) > 1:
                widths = learned["epistemic"].new_tensor([width for _, width in self.normals])
                learned["width"] = widths.repeat(len(self) // len(widths)).view(-1, 1, 1)
            yield rows, torch.cat(outputs), learned


def _noise_points(dimensions: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the average over log noise: Gauss–Hermite for one scale, quasi-random points for several."""
    if dimensions == 1:
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NOISE_POINTS)
        return torch.as_tensor(nodes).to(like).unsqueeze(1), torch.as_tensor(weights / weights.sum())
    count = max(_NOISE_POINTS, 2 * dimensions + 2)
    return standard_points(count, dimensions, like), torch.full((count,), 1.0 / count, dtype=torch.float64)


class FunctionSource(LinearisedSource):
    """Draws of functions: f(x) + J(x) δ_s, one δ_s for all rows."""

    by_row = False
    _kept: list[OutputBlock] | None = None

    @property
    def strata(self) -> tuple[Stratum, ...]:
        """Independent functions of each component."""
        return tuple(Stratum(self.each) for _ in self.laws)

    @cached_property
    def _deltas(self) -> list[Sequence[Tensor]]:
        """For each component, displacements of θ."""
        seeds = [derive_seed(self.seed, "component", k) for k in range(len(self.laws))]
        return [law.displacements(self.each, seed) for law, seed in zip(self.laws, seeds, strict=True)]

    @cached_property
    def _learned(self) -> dict[str, Tensor]:
        size = self.engine.layout.size - self.engine.layout.network_size
        if not size:
            return {}
        rows: list[Tensor] = []
        for law, deltas in zip(self.laws, self._deltas, strict=True):
            centre, _ = law.learned_moments()
            rows.extend(centre + delta[-size:] for delta in deltas)
        return self._unflatten(torch.stack(rows))

    def same_draws(self, other: Outputs) -> bool:
        """By the first displacement of θ of each component."""
        if not isinstance(other, FunctionSource) or len(self) != len(other):
            return False
        pairs = zip(self._deltas, other._deltas, strict=False)
        return all(d[0].shape == e[0].shape and torch.equal(d[0], e[0]) for d, e in pairs)

    def blocks(self) -> Iterator[OutputBlock]:
        """See :class:`~temperance.predict.source.Source`. Outputs are kept where they are small."""
        if self._kept is not None:
            yield from self._kept
            return
        size = self.engine.layout.dtype.itemsize * len(self) * self.num_outputs
        step = max(1, min(self.batch_size, _BLOCK_BYTES // size))
        walks = [law.functions(self.x, deltas, step) for law, deltas in zip(self.laws, self._deltas, strict=True)]
        made: list[OutputBlock] | None = [] if size * self.rows <= _KEEP_BYTES else None
        for pieces in zip(*walks, strict=True):
            block = pieces[0][0], torch.cat([outputs for _, outputs in pieces]), self._learned
            if made is not None:
                made.append(block)
            yield block
        self._kept = made
