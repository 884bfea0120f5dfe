"""How wide a Laplace posterior is, chosen by rows that the network has not seen.

Curvature of a network is a poor judge of it. Under N(0, 1) on every weight Kronecker factors are far too wide, and so
is what evidence chooses (on digits a log-loss of .35, where the network alone has .07); rows that the network has
learned by heart say that no width at all is best. Rows kept apart know: the prior's standard deviation is multiplied
by the width under which they are most likely. A width of next to nothing is among the choices, so that the posterior
is never worse than its centre by more than these rows can tell.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from temperance.core.checks import check_count, check_flag, shown
from temperance.core.encoding import Value
from temperance.core.errors import ArgumentError, TemperanceWarning
from temperance.core.seeds import generator
from temperance.data.data import Data
from temperance.data.sources import map_tensors
from temperance.engine.engine import Engine
from temperance.inference.card import Card, MethodFamily
from temperance.inference.curvature.linear import Displacements, LinearisedOutputs
from temperance.inference.noise import level_under, outliers
from temperance.linalg.points import root_of, standard_points
from temperance.model.likelihoods import Likelihood
from temperance.model.likelihoods.base import LearnedValues
from temperance.model.likelihoods.real import RealLikelihood
from temperance.posteriors import LaplacePosterior

_WIDTHS = tuple(10.0 ** (-k / 2) for k in range(-2, 11))  # decades of the prior's variance, from a hundred times it on
_FINER = (10.0**0.25, 10.0**0.125, 10.0**0.0625)  # where the best is looked for then, on both sides of what was best
_NOISES = tuple(0.1 * k for k in range(-3, 31))  # log factors on a learned noise scale
_WORTH = (
    2.0  # nats that the rows must gain by another noise: of a right one they gain that by chance one time in twenty
)
_NUMBERS = 2**22  # of a covariance held at once
_SLOPES = 20_000  # gradients of single outputs that the rows may cost: a thousand rows of twenty classes
_ENTRIES, _FEWEST = 2**30, 200  # of their Jacobians, too: four hundred rows of a ResNet-20; but no fewer rows than this
_HELD, _COPIES = 2**29, 4  # numbers of posteriors of several widths held at once, each so many copies of θ
_COARSE, _FINE = 64, 256  # points of a Gaussian in several outputs, and in one or two
_MANY_OUTPUTS = 200  # from which their covariance is not made
_LEAST = 1e-3  # of what a row leaves to others, where a factored curvature says that it leaves nothing


@dataclass(frozen=True, eq=False)
class Width(Value):
    """The spread of a Laplace posterior, chosen by rows n that the network has not seen. With Λ_w = H + diag τ / w²,

        w = argmax Σ_n log ∫ p(y_n | f) N(f; f(x_n; θ*), J_n Λ_w⁻¹ J_nᵀ) df,     w from 10⁻⁵ to 10,

    so that directions the data determine stay as they are, and those that only the prior holds are drawn in. It takes
    no further pass over the training data, and asks the network once about ``rows`` of the others.

    They are ``fit(..., held_out=...)``. Where the method trains and none are given, a tenth of the data, and ``rows``
    at most, is kept apart for it. Where it only looks at a network that is trained already, none are known: then the
    training rows are asked, each left out of the linearised network (f moved by the Newton step that its going would
    cause, J Λ⁻¹ Jᵀ without it), which is safe and says too little, and a warning tells so.

    At a temperature other than one, and where the prior is an earlier posterior, nothing is chosen.

    Args:
        rows: how many are asked, at most; fewer of networks with more than twenty outputs, or of large ones.
        slack: nats that width may cost: of widths whose loss is within ``slack`` of the least, the widest is taken.
        noise: whether a noise scale that was learned with the network (``Normal()``) is chosen again on these rows,
            where they want another one clearly: on those it was learned on, residuals are smaller. They also say how
            heavy the tails of a ``Normal()`` are, as in :class:`~temperance.inference.Refit`: predictions are then
            under ``ContaminatedNormal``, and Gaussian with ``Width(noise=False)``.

    >>> Width(slack=0.0).rows
    1000
    """

    card: ClassVar[Card] = Card(
        "chooses how wide a Laplace posterior is, by rows that the network has not seen",
        MethodFamily.CURVATURE,
        papers=("Ritter et al., A scalable Laplace approximation for neural networks, ICLR 2018",),
    )

    rows: int = 1000
    slack: float = 0.002
    noise: bool = True

    def __post_init__(self) -> None:
        check_count(self.rows, "rows")
        check_flag(self.noise, "noise")
        if not isinstance(self.slack, int | float) or isinstance(self.slack, bool) or not 0 <= self.slack <= 100:
            raise ArgumentError(f"`slack` must be a number of nats from 0 to 100; got {shown(self.slack)}.")


def widened(engine: Engine, posterior: LaplacePosterior, data: Data, width: Width) -> LaplacePosterior:
    """``posterior`` as wide as the rows held out from ``data`` want it."""
    if posterior.terms.tempered:
        return posterior
    others = data.held_out
    choice = _Choice(engine, posterior, data if others is None else others, others is None, width.rows)
    if choice.seen and choice.many:
        warnings.warn(_UNKNOWN, TemperanceWarning, stacklevel=2)
        return posterior
    factor, shift = choice.best(width)
    law = None
    if choice.seen:
        warnings.warn(_UNSEEN.format(factor), TemperanceWarning, stacklevel=2)
    elif width.noise and choice.noises and not choice.many:
        shift, law = _with_tails(_AtWidth(choice, factor), shift)
    found = choice.shifted(shift).at_width(factor)
    return found if law is None else replace(found, likelihood=law)


_UNSEEN = (
    "Laplace knows no rows that the network has not learned from, so its width ({:.1e} of the prior's) was chosen by "
    "leaving each row out of the linearised network, which is safe and often too narrow. Give it others, "
    "fit(..., held_out=validation), or keep the prior's own width with tune=None."
)


_UNKNOWN = (
    "Laplace knows no rows that the network has not learned from, and there are too many outputs to leave rows out one "
    "by one: its width is the prior's own, which is often far too wide. Give fit(..., held_out=validation)."
)


@dataclass(frozen=True)
class _Rows:
    """Some rows whose outputs are points, S × B × C; how often each row counts."""

    y: Tensor
    weights: Tensor
    outputs: Tensor

    def log_densities(self, law: Likelihood, learned: LearnedValues) -> Tensor:
        """log ∫ p(y_n | f) N(f) df, by these points."""
        found = law.log_prob(self.outputs, self.y, learned).double()
        return torch.logsumexp(found, 0) - math.log(len(self.outputs))

    def total(self, law: Likelihood, learned: LearnedValues) -> float:
        """The sum over rows, as often as they count."""
        found, own = self.log_densities(law, learned), self.weights.double()
        return float((own * torch.where(own > 0, found, 0.0)).sum())


@dataclass(frozen=True)
class _GaussianRows(_Rows):
    """Rows that have Gaussians N(centre, root rootᵀ), for which these points stand where there is no closed form."""

    centre: Tensor
    root: Tensor

    def log_densities(self, law: Likelihood, learned: LearnedValues) -> Tensor:
        """In closed form under Gaussian noise, log N(y; f, S + σ²), and of one output under a mixture of such."""
        if not (isinstance(law, RealLikelihood) and law.keeps_gaussian(self.centre.shape[-1])):
            return super().log_densities(law, learned)
        noise = law.noise_scale(self.centre, learned).square().expand_as(self.centre)
        spread, mean = self.root @ self.root.mT, law.location(self.centre)
        found = [
            math.log(share) + MultivariateNormal(mean, spread + width**2 * torch.diag_embed(noise)).log_prob(self.y)
            for share, width in law.normals
        ]
        return torch.stack(found).double().logsumexp(0)


class _AtWidth:
    """The rows of a choice at one width, asked about the noise again and again."""

    def __init__(self, choice: _Choice, width: float) -> None:
        self.choice, self.law = choice, choice.scored
        self.rows = [rows for _, rows in choice.rows_under([choice.posterior.at_width(width)])]

    def totals(self, law: Likelihood, shifts: Tensor) -> Tensor:
        """See :class:`~temperance.inference.noise.Asked`."""
        moved = self.choice.learned(tuple(shifts.tolist()))
        found = [sum(rows.total(law, values) for rows in self.rows) for values in moved]
        totals = torch.tensor(found, dtype=torch.float64)
        return torch.where(totals.isfinite(), totals, -torch.inf)


def _with_tails(rows: _AtWidth, shift: float) -> tuple[float, Likelihood | None]:
    """The level of the noise and its law, where ``shift`` is the level that was chosen without tails. As there, another
    level than the network's own must be worth it."""
    law = outliers(rows, shift)
    if law is None:
        return shift, None
    moved = level_under(rows, law, shift)
    kept, found = rows.totals(law, torch.tensor([0.0, moved], dtype=torch.float64)).tolist()
    return moved if found - kept >= _WORTH else 0.0, law


class _Choice:
    """The mean loss of some rows, as a function of the width and of a factor on the noise."""

    def __init__(self, engine: Engine, posterior: LaplacePosterior, data: Data, seen: bool, rows: int) -> None:
        self.engine, self.posterior, self.seen = engine, posterior, seen
        first = next(data.full_pass(2)).x
        self.law = LinearisedOutputs(engine, posterior, map_tensors(lambda t: t[:2], first))
        outputs = self.law.num_outputs
        self.many = outputs > _MANY_OUTPUTS
        self.points = standard_points(
            _FINE if outputs <= 2 else _COARSE, outputs if not self.many else 0, posterior.mean
        )
        self.batch_size = 512 if self.many else max(1, min(512, _NUMBERS // outputs**2))
        if not self.many:
            most = max(_FEWEST, _ENTRIES // (outputs * engine.layout.network_size))
            rows = min(rows, most, max(1, _SLOPES // outputs))
        order = torch.randperm(len(data), generator=generator(0, "width"))
        self.data = data if rows >= len(data) else data.subset(order[:rows].sort().values)
        learns = engine.likelihood
        self.scored = learns if learns.normalised else learns.for_new_rows  # as rows are predicted
        names = learns.log_noise_names()
        self.noises = [entry for entry in engine.layout.entries_of("likelihood") if entry.name in names]

    def shifted(self, shift: float) -> LaplacePosterior:
        """The posterior with every learned log noise moved."""
        if not shift:
            return self.posterior
        mean = self.posterior.mean.clone()
        for entry in self.noises:
            mean[entry.start : entry.stop] += shift
        return replace(self.posterior, mean=mean)

    def best(self, width: Width) -> tuple[float, float]:
        """The width, and the log factor on the noise."""
        shifts = _NOISES if width.noise and self.noises and not self.seen else (0.0,)
        tried: dict[float, Tensor] = {}
        wanted = list(_WIDTHS)
        for gap in (*_FINER, 1.0):
            tried |= self._losses(wanted, shifts)
            known = {w: float(losses.min()) for w, losses in tried.items() if bool(torch.isfinite(losses).any())}
            if not known:
                return 1.0, 0.0
            top = min(known, key=lambda w: known[w])
            wanted = [w for w in (top * gap, top / gap) if _WIDTHS[-1] <= w <= _WIDTHS[0] and w not in tried]
        kept = shifts.index(0.0)
        gain = self._total_weight() * (self._least(tried, kept) - min(known.values()))
        if len(shifts) > 1 and gain < _WORTH:
            shifts = (0.0,)
            tried = {w: losses[[kept]] for w, losses in tried.items()}
            known = {w: float(losses.min()) for w, losses in tried.items() if bool(torch.isfinite(losses).any())}
        least = min(known.values())
        chosen = max(w for w, loss in known.items() if loss <= least + width.slack)
        return chosen, shifts[int(tried[chosen].argmin())]

    @staticmethod
    def _least(tried: dict[float, Tensor], column: int) -> float:
        """The least loss of all widths at one shift of the noise."""
        return min(float(losses[column]) for losses in tried.values())

    def _total_weight(self) -> float:
        return float(len(self.data) if self.data.weights is None else self.data.weights.sum())

    def learned(self, shifts: tuple[float, ...]) -> list[dict[str, Tensor]]:
        """What is learned beside the network, with these shifts of log noise scales."""
        found = self.engine.layout.unflatten(self.posterior.mean, "likelihood")
        names = {entry.name for entry in self.noises}
        return [{name: v + shift if name in names else v for name, v in found.items()} for shift in shifts]

    def _losses(self, widths: list[float], shifts: tuple[float, ...]) -> dict[float, Tensor]:
        """For each width the mean loss of the rows, by shift of the noise."""
        if not widths:
            return {}
        at_once = max(1, _HELD // (_COPIES * self.engine.layout.size))
        if len(widths) > at_once:  # of a large network not all posteriors at once, and so many passes more
            parts = [self._losses(widths[k : k + at_once], shifts) for k in range(0, len(widths), at_once)]
            return {width: losses for part in parts for width, losses in part.items()}
        moved = self.learned(shifts)
        totals = torch.zeros(len(widths), len(shifts), dtype=torch.float64)
        for k, rows in self.rows_under([self.posterior.at_width(w) for w in widths]):
            totals[k] -= torch.tensor([rows.total(self.scored, values) for values in moved], dtype=torch.float64)
        # what cannot be predicted with is no choice
        losses = torch.where(totals.isfinite(), totals / self._total_weight(), torch.inf)
        return dict(zip(widths, losses, strict=True))

    def rows_under(self, found: list[LaplacePosterior]) -> Iterator[tuple[int, _Rows]]:
        """(number of the posterior, rows): each row's own Gaussian; or, where there are thousands of outputs, draws of
        functions, the same for every posterior."""
        learned = self.engine.layout.unflatten(self.posterior.mean, "likelihood")
        for batch in self.data.full_pass(self.batch_size):
            here = batch.to(self.engine.device)
            weights = torch.ones(here.size, device=here.y.device) if here.weights is None else here.weights
            if self.many:
                for k, posterior in enumerate(found):
                    moves = Displacements(posterior, _COARSE // 4, 0)
                    for at, outputs in self.law.functions(here.x, moves, self.batch_size):
                        yield k, _Rows(here.y[at], weights[at], outputs)
                continue
            operators = [posterior.operator for posterior in found]
            for at, part in self.law.chunks(here.x, self.batch_size):
                y, own = here.y[at], weights[at]
                for k, (mean, covariance) in enumerate(self.law.under(operators, part)):
                    centre, root = mean, root_of(covariance)
                    if self.seen:
                        centre, root = self._without(mean, root, y, learned, own)
                    points = centre + torch.einsum("bij,sj->sbi", root, self.points.to(mean))
                    yield k, _GaussianRows(y, own, points, centre, root)

    def _without(
        self, mean: Tensor, root: Tensor, y: Tensor, learned: LearnedValues, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Each row's Gaussian as the other rows have it: S (I − w H S)⁻¹ for a row of weight w, around the place that a
        Newton step goes to."""
        likelihood = self.engine.likelihood
        eye = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        each = weights.to(mean).unsqueeze(-1)
        told = each.unsqueeze(-1) * likelihood.fisher(mean, learned)
        left, vectors = torch.linalg.eigh(eye - root.mT @ told @ root)
        root = root @ (vectors / left.clamp(min=_LEAST).sqrt().unsqueeze(-2))
        slope = (each * likelihood.score(mean, y, learned)).unsqueeze(-1)
        return mean - (root @ (root.mT @ slope)).squeeze(-1), root


__all__ = ["Width", "widened"]
