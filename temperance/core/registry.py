"""What a room has for each kind of outcome."""

from __future__ import annotations

from typing import Generic, TypeVar

from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Outcome

Entry = TypeVar("Entry")


class ByOutcome(Generic[Entry]):
    """Entries by type of outcome, looked up along its classes: the nearest one counts.

    ``what`` (in the plural) and ``variable``, how the registry is spelled, are for the error that names what is missing
    and how to add it.

    >>> from temperance.core.outcomes import Classes, Counts, Quantities, Reals
    >>> letters: ByOutcome[str] = ByOutcome("letters", "temperance.letters.LETTERS")
    >>> letters.register(Quantities, "q")
    >>> letters.register(Counts, "c")
    >>> letters.of(Reals()), letters.of(Counts())
    ('q', 'c')
    >>> letters.of(Classes())
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: there are no letters for the outcome Classes (classification), only for
        Quantities, Counts. To add them: temperance.letters.LETTERS.register(Classes, ...).
    """

    def __init__(self, what: str, variable: str) -> None:
        self.what, self.variable = what, variable
        self._entries: dict[type[Outcome], Entry] = {}

    def __repr__(self) -> str:
        return f"ByOutcome({self.what}: {', '.join(kind.__name__ for kind in self._entries)})"

    @property
    def outcomes(self) -> tuple[type[Outcome], ...]:
        """The kinds that have an entry."""
        return tuple(self._entries)

    def register(self, outcome: type[Outcome], entry: Entry) -> None:
        """Use ``entry`` for this kind of outcome and those that derive from it; an earlier entry is replaced."""
        if not (isinstance(outcome, type) and issubclass(outcome, Outcome)):
            raise ArgumentError(f"`outcome` must be a class that derives from Outcome, such as Reals; got {outcome!r}.")
        self._entries[outcome] = entry

    def find(self, outcome: Outcome) -> Entry | None:
        """The entry, or ``None`` where there is none."""
        return next((self._entries[kind] for kind in type(outcome).__mro__ if kind in self._entries), None)

    def of(self, outcome: Outcome) -> Entry:
        """The entry; an error that says how to add one where there is none."""
        found = self.find(outcome)
        if found is None:
            kind, known = type(outcome).__name__, ", ".join(k.__name__ for k in self._entries) or "none"
            called = f" ({outcome.name})" if hasattr(outcome, "name") else ""
            raise ArgumentError(
                f"there are no {self.what} for the outcome {kind}{called}, only for {known}. To add them: "
                f"{self.variable}.register({kind}, ...)."
            )
        return found
