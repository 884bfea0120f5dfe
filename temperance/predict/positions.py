"""Predictives of rows that have positions: every statistic at each position, the joint density of each row.

Positions of a row share θ, so they go together under the predictive: log p(y | x, D) of a row is
log Σ_s w_s Π_p p(y_p | x, θ_s), which is not the sum over positions of their own log p(y_p | x, D).
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from temperance.core.errors import ArgumentError, DataError
from temperance.core.outcomes import CategoriesByPosition, QuantitiesByPosition
from temperance.data.sources import Inputs, row_uniforms
from temperance.model.likelihoods import Likelihood
from temperance.model.likelihoods.positions import PerPosition
from temperance.predict.classes import CategoryPredictive
from temperance.predict.linearised import LINEARISED, LinearisedMixin
from temperance.predict.predictive import PREDICTIVES, SCORES, Predictive, evaluate
from temperance.predict.quantities import ValuePredictive
from temperance.predict.source import MappedOutputs, OutputBlock, Outputs


class PositionOutputs(MappedOutputs):
    """The members of ``base`` with every position a row of its own; those of ``places`` alone (numbers from 0 to
    rows × positions − 1, in order), where it is given."""

    def __init__(self, base: Outputs, positions: int, places: Tensor | None = None) -> None:
        self.base, self.positions = base, positions
        self.places = None if places is None else places.to(base.weights.device)
        self.engine, self.weights = base.engine, base.weights
        self.rows = base.rows * positions if places is None else len(places)
        self.num_outputs = base.num_outputs // positions

    def blocks(self) -> Iterator[OutputBlock]:
        """Those of the base, cut up."""
        at = 0
        for rows, outputs, learned in self.base.blocks():
            made = outputs.unflatten(-1, (self.positions, -1)).flatten(1, 2)
            if self.places is not None:
                first = rows.start * self.positions
                own = self.places[(self.places >= first) & (self.places < rows.stop * self.positions)]
                made = made[:, own - first]
            if made.shape[1]:
                yield slice(at, at + made.shape[1]), made, learned
            at += made.shape[1]

    def row_inputs(self) -> Inputs:
        """The row, by a number of its own, and the position."""
        row = row_uniforms(self.base.row_inputs(), 0).repeat_interleave(self.positions)
        position = torch.arange(self.positions, dtype=torch.float64).repeat(self.base.rows)
        made = torch.stack([row, position], dim=1)
        return made if self.places is None else made[self.places.cpu()]


class PositionPredictive(Predictive, ABC):
    """For :class:`~temperance.PerPosition`. Statistics are rows × positions (× classes, labels or numbers), those of
    ``flat``, in which every position is a row; ``log_prob`` is that of a row, ``position_log_prob`` has the positions.
    """

    def __init__(self, source: Outputs, likelihood: Likelihood) -> None:
        super().__init__(source, likelihood)
        self.by_position = cast(PerPosition, likelihood)
        self.positions = self.by_position.positions
        """The shape of a row's positions: (T,), (H, W)."""

    @cached_property
    def flat(self) -> Any:
        """The predictive of each position as a row of its own, in the order of ``positions``, the last fastest."""
        return self.at(None)

    def at(self, places: Tensor | None) -> Any:
        """:attr:`flat` at some ``places`` alone: numbers of its rows, in order."""
        each = self.by_position.each
        source = PositionOutputs(self.source, math.prod(self.positions), places)
        return PREDICTIVES.of(each.outcome)(source, each)

    def place(self, values: Tensor, dim: int = 0) -> Tensor:
        """Rows of :attr:`flat`, dimension ``dim``, as rows × positions."""
        return values.unflatten(dim, (len(self), *self.positions))

    def counting(self, y: Any) -> Tensor:
        """Which positions of the targets ``y`` count: rows × positions."""
        return self.by_position.counting(self._targets(y)).reshape(len(self), *self.positions)

    def known(self, y: Any) -> tuple[Any, Tensor, Tensor]:
        """The positions that count as a predictive of their own rows, their targets, and the row of each."""
        prepared = self._targets(y)
        counts = self.by_position.counting(prepared)
        if not bool(counts.any()):
            raise DataError(f"`y` must have a position that counts; all of them are {self.by_position.ignored}.")
        split = prepared if self.by_position.single else prepared.unflatten(-1, (counts.shape[-1], -1))
        return self.at(counts.flatten().nonzero().flatten()), split[counts], counts.nonzero()[:, 0]

    def position_log_prob(self, y: Any) -> Tensor:
        """log p(y_p | x, D) of each position, rows × positions; zero where it is ignored."""
        flat, targets, _ = self.known(y)
        counts = self.counting(y)
        made = torch.zeros(counts.shape, dtype=self.weights.dtype, device=counts.device)
        made[counts] = flat.log_prob(targets)
        return made

    def mean(self) -> Tensor:
        """E[y_p | x, D]: rows × positions × numbers."""
        return self.place(self.flat.mean())

    def aleatoric_variance(self) -> Tensor:
        """See :class:`Predictive`: rows × positions × numbers."""
        return self.place(self.flat.aleatoric_variance())

    def epistemic_variance(self) -> Tensor:
        """See :class:`Predictive`: rows × positions × numbers."""
        return self.place(self.flat.epistemic_variance())

    def aleatoric(self) -> Tensor:
        """E_θ H[y_p | x, θ] in nats: rows × positions."""
        return self.place(self.flat.aleatoric())

    def entropy(self) -> Tensor:
        """H[y_p | x, D] in nats: rows × positions."""
        return self.place(self.flat.entropy())

    def mutual_information(self) -> Tensor:
        """I[y_p; θ | x, D] in nats: rows × positions."""
        return self.place(self.flat.mutual_information())

    def monte_carlo_error(self) -> Tensor:
        """See :class:`Predictive`: rows × positions × numbers."""
        return self.place(self.flat.monte_carlo_error())

    def imprecision(self) -> Tensor:
        """That of :attr:`flat`: rows × positions × numbers."""
        return self.place(self.flat.imprecision())

    def std(self) -> Tensor:
        """That of :attr:`flat`: rows × positions × numbers."""
        return self.place(self.flat.std())

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """That of :attr:`flat`: (low, high), rows × positions × numbers."""
        low, high = self.flat.interval(level)
        return self.place(low), self.place(high)

    def sample(self, n: int = 1, seed: int = 0) -> Tensor:
        """n draws of all rows together, n × rows × positions (× numbers): each has one θ for all its positions."""
        return self._placed_draws(super().sample(n, seed))

    def _placed_draws(self, draws: Tensor) -> Tensor:
        shape = (*draws.shape[:2], *self.positions)
        return draws.reshape(shape if self.by_position.single else (*shape, -1))


class CategoryPositionPredictive(PositionPredictive):
    """A class, or yes/no labels, at each position.

    >>> import temperance as tp
    >>> logits = torch.tensor([[[[0.0, 2.0], [2.0, 0.0], [0.0, 0.0]]]])  # one member, one row, three positions
    >>> found = tp.predict.from_outputs(logits, tp.PerPosition(tp.Categorical()))
    >>> found.probs.shape, found.predict()
    (torch.Size([1, 3, 2]), tensor([[1, 0, 0]]))
    >>> found.log_prob(torch.tensor([[1, 0, -100]])), found.position_log_prob(torch.tensor([[1, 0, -100]]))
    (tensor([-0.2539]), tensor([[-0.1269, -0.1269,  0.0000]]))
    """

    @cached_property
    def probs(self) -> Tensor:
        """Averaged probabilities: rows × positions × classes (or labels)."""
        return self.place(cast(CategoryPredictive, self.flat).probs)

    def predict(self) -> Tensor:
        """The most probable class at each position, rows × positions; for ``Bernoulli``, each label's more probable
        answer."""
        return self.place(cast(CategoryPredictive, self.flat).predict())


class ValuePositionPredictive(PositionPredictive):
    """Numbers at each position."""

    def quantile(self, level: float) -> Tensor:
        """The value below which y falls with probability ``level``: rows × positions × numbers."""
        return self.place(cast(ValuePredictive, self.flat).quantile(level))

    def epistemic_std(self) -> Tensor:
        """The standard deviation of the members' means: rows × positions × numbers."""
        return self.place(cast(ValuePredictive, self.flat).epistemic_std())


class _LinearisedPositions(LinearisedMixin):
    """Of a linearised network. A row's outputs at all positions are one Gaussian, of which points, or draws of
    functions where it is large, stand for every position's own."""

    positions: tuple[int, ...]

    @classmethod
    def check_form(cls, by: str, likelihood: Likelihood) -> None:
        """See :class:`LinearisedMixin`."""
        if by not in ("linearised", "functions"):
            raise ArgumentError(f'`by` must be "linearised", "functions" or "network" under PerPosition; got {by!r}.')

    def sample(self, n: int = 1, seed: int = 0) -> Tensor:
        """n draws of all rows together, each with a function of its own: n × rows × positions (× numbers)."""
        return cast(PositionPredictive, self)._placed_draws(super().sample(n, seed))


class LinearisedCategoryPositions(_LinearisedPositions, CategoryPositionPredictive):
    """See :class:`CategoryPositionPredictive`."""

    plain: ClassVar[type[Predictive]] = CategoryPositionPredictive


class LinearisedValuePositions(_LinearisedPositions, ValuePositionPredictive):
    """See :class:`ValuePositionPredictive`."""

    plain: ClassVar[type[Predictive]] = ValuePositionPredictive


def position_scores(predictive: PositionPredictive, y: Tensor) -> dict[str, float]:
    """The scores of positions that count, each like a row of its own (``log_loss`` among them), and ``row_log_loss``,
    −log p of whole rows on average."""
    flat, targets, _ = predictive.known(y)
    return {**evaluate(flat, targets), "row_log_loss": -float(predictive.log_prob(y).double().mean())}


PREDICTIVES.register(CategoriesByPosition, CategoryPositionPredictive)
PREDICTIVES.register(QuantitiesByPosition, ValuePositionPredictive)
LINEARISED[CategoryPositionPredictive] = LinearisedCategoryPositions
LINEARISED[ValuePositionPredictive] = LinearisedValuePositions
SCORES.register(CategoriesByPosition, position_scores)
SCORES.register(QuantitiesByPosition, position_scores)
