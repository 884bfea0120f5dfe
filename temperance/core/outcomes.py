"""What is predicted: one of several classes, yes/no labels, real numbers, counts.

A likelihood names its outcome by type (``Categorical.outcome`` is ``Classes()``). What differs between outcomes is
asked of the outcome itself (a word, whether numbers are whole) or of a room's registry
(:class:`~temperance.core.registry.ByOutcome`: its predictive, its scores, its chapter of the report). No room asks
which task it is, so a new kind of outcome is one new file:

    class Durations(Quantities):
        name, prediction, predictions, least = "durations", "predicted duration", "predicted durations", 0.0

    class Exponential(QuantityLikelihood):
        outcome = Durations()
        ...

    PREDICTIVES.register(Durations, DurationPredictive)

Outcomes are looked up along their classes: what is registered for ``Quantities`` serves ``Durations`` unless it has an
entry of its own. Here is also the one place where a string of a user or of a file becomes an outcome:
``Outcome.named``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from temperance.core.encoding import Value, type_name
from temperance.core.errors import ArgumentError


@dataclass(frozen=True)
class Outcome(Value):
    """A kind of thing that is predicted. A subclass says how people call it.

    >>> Outcome.named("counts")
    Counts()
    >>> Outcome.named("rankings")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `task` must be one of classification, labels, regression, counts...
    """

    name: ClassVar[str]
    """For users' arguments and for files."""
    prediction: ClassVar[str] = "prediction"
    """What E[y | x, θ] is called, on the axis of a plot."""
    predictions: ClassVar[str] = "predictions"
    """Several of these, in a sentence."""
    part: ClassVar[str] = "output"
    """What one column of a prediction is called."""
    has_units: ClassVar[bool] = False
    """Whether shift + scale · y is as good a target as y, so that targets may be standardised and spreads widened."""

    _named: ClassVar[dict[str, type[Outcome]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):  # a variety of what it derives from: found under its own type, not by a name
            return
        taken = Outcome._named.get(cls.name)
        if taken is not None and type_name(taken) != type_name(cls):
            raise ArgumentError(f"`name` of an outcome must be its own; {cls.name!r} is that of {type_name(taken)}.")
        Outcome._named[cls.name] = cls

    def __str__(self) -> str:
        return getattr(self, "name", type(self).__name__)

    @staticmethod
    def named(given: str | Outcome, argument: str = "task", among: Iterable[type[Outcome]] | None = None) -> Outcome:
        """The outcome that a user or a file calls ``given``; one that is an outcome already is returned as it is.

        ``among`` are those that the caller can deal with (all that are known, unless told).
        """
        known = {name: kind for name, kind in Outcome._named.items() if among is None or issubclass(kind, tuple(among))}
        if isinstance(given, Outcome) and (among is None or isinstance(given, tuple(among))):
            return given
        if not isinstance(given, str) or given not in known:
            raise ArgumentError(f"`{argument}` must be one of {', '.join(known)}; got {given!r}.")
        return known[given]()


class Categories(Outcome):
    """Yes or no for each of several things; a prediction is a probability for each."""

    prediction = "probability"
    predictions = "predicted probabilities"
    part = "class"
    exclusive: ClassVar[bool]
    """Whether exactly one of them is true, or each on its own."""

    def answers(self, probs: Tensor) -> Tensor:
        """The most probable class of each row; of labels, each one's more probable answer."""
        return probs.argmax(-1) if self.exclusive else (probs > 0.5).long()


class Classes(Categories):
    """One of several classes.

    >>> Classes().exclusive, Classes().prediction
    (True, 'probability')
    """

    name = "classification"
    exclusive = True


class Labels(Categories):
    """Independent yes/no labels, one or several.

    >>> Labels().exclusive
    False
    """

    name = "labels"
    exclusive = False


class Quantities(Outcome):
    """Numbers with an order: they have a mean, a spread and a distribution function."""

    prediction = "predicted mean"
    predictions = "predicted means"
    whole: ClassVar[bool] = False
    """Whether only whole numbers occur."""
    least: ClassVar[float] = -math.inf
    """The smallest number that may occur."""


class Reals(Quantities):
    """Real numbers or vectors.

    >>> Reals().has_units, Reals().least
    (True, -inf)
    """

    name = "regression"
    has_units = True


class Counts(Quantities):
    """Whole numbers from 0 on: how often something happened.

    >>> Counts().whole, Counts().least, Counts().predictions
    (True, 0.0, 'predicted rates')
    """

    name = "counts"
    predictions = "predicted rates"
    whole = True
    least = 0.0


@dataclass(frozen=True)
class ByPosition(Outcome):
    """The same outcome at each position of a row: a tag for each word, a class for each pixel. What serves one outcome
    a row does not serve it unasked, for the positions of a row are not independent rows.

    >>> ByPosition.each(Classes())
    CategoriesByPosition(of=Classes())
    """

    of: Outcome

    def __post_init__(self) -> None:
        if not isinstance(self.of, Outcome):
            raise ArgumentError(f"`of` must be an outcome such as Classes(); got {type(self.of).__name__}.")

    @staticmethod
    def each(outcome: Outcome) -> ByPosition:
        """``outcome`` at each position."""
        if isinstance(outcome, Categories):
            return CategoriesByPosition(outcome)
        if isinstance(outcome, Quantities):
            return QuantitiesByPosition(outcome)
        raise ArgumentError(f"`outcome` must be that of categories or of numbers to have positions; got {outcome!r}.")


@dataclass(frozen=True)
class CategoriesByPosition(ByPosition):
    """A class, or yes/no labels, at each position."""

    prediction = Categories.prediction
    predictions = Categories.predictions


@dataclass(frozen=True)
class QuantitiesByPosition(ByPosition):
    """Numbers at each position."""

    prediction = Quantities.prediction
    predictions = Quantities.predictions


__all__ = [
    "ByPosition",
    "Categories",
    "CategoriesByPosition",
    "Classes",
    "Counts",
    "Labels",
    "Outcome",
    "Quantities",
    "QuantitiesByPosition",
    "Reals",
]
