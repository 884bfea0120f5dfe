"""Every method with its card, in the order of lists: by family, plain methods before wrappers, parts last, each by the
year of its first paper."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from temperance.inference.base import Inference, Wrapper
from temperance.inference.card import Card, MethodFamily, card_of


@dataclass(frozen=True)
class Listed:
    """A method, or a part of one, with its card."""

    kind: type
    card: Card

    @property
    def is_method(self) -> bool:
        """Whether it is a method; if not, a part of one."""
        return issubclass(self.kind, Inference)

    @property
    def shown(self) -> tuple[str, ...]:
        """How it is written in lists, the main way first."""
        return self.card.shown or ((f"{self.kind.__name__}()",) if self.is_method else ())

    def place(self) -> tuple[Any, ...]:
        """Where it stands in a list."""
        rank = 2 if not self.is_method else int(issubclass(self.kind, Wrapper))
        return list(MethodFamily).index(self.card.family), rank, self.card.year, self.kind.__name__


def listing(*modules: ModuleType) -> list[Listed]:
    """The methods of the library and those that ``modules`` of the user's own define.

    >>> [entry.kind.__name__ for entry in listing()][:4]
    ['MAP', 'MCDropout', 'SWAG', 'Anchored']
    """
    from temperance import inference  # the room itself: every file of it is imported by then

    ours = [getattr(inference, name) for name in inference.__all__]
    cards = [Listed(kind, card_of(kind)) for kind in [*ours, *_defined_in(modules)] if _has_a_place(kind)]
    return sorted(cards, key=Listed.place)


def _has_a_place(kind: Any) -> bool:
    if not isinstance(kind, type) or inspect.isabstract(kind):
        return False
    return isinstance(vars(kind).get("card"), Card) or (issubclass(kind, Inference) and kind is not Wrapper)


def _defined_in(modules: tuple[ModuleType, ...]) -> Iterator[type]:
    for module in modules:
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith("_"):
                yield value


__all__ = ["Listed", "listing"]
