"""What a room has for each kind of outcome."""

from __future__ import annotations

import pytest

from temperance.core.errors import ArgumentError
from temperance.core.outcomes import Categories, Classes, Labels, Reals
from temperance.core.registry import ByOutcome


def test_the_nearest_entry_counts_and_a_missing_one_says_how_to_add_it() -> None:
    rooms: ByOutcome[str] = ByOutcome("rooms", "house.ROOMS")
    rooms.register(Categories, "parlour")
    rooms.register(Labels, "attic")
    assert (rooms.of(Classes()), rooms.of(Labels()), rooms.find(Reals())) == ("parlour", "attic", None)
    assert rooms.outcomes == (Categories, Labels)
    words = r"no rooms for the outcome Reals \(regression\), only for Categories, Labels.*house.ROOMS.register\(Reals, "
    with pytest.raises(ArgumentError, match=words):
        rooms.of(Reals())
    with pytest.raises(ArgumentError, match="`outcome` must be a class"):
        rooms.register(Reals(), "kitchen")  # type: ignore[arg-type]


def test_a_later_entry_replaces_an_earlier_one_and_an_empty_registry_says_none() -> None:
    rooms: ByOutcome[str] = ByOutcome("rooms", "house.ROOMS")
    with pytest.raises(ArgumentError, match="only for none"):
        rooms.of(Reals())
    rooms.register(Reals, "cellar")
    rooms.register(Reals, "study")
    assert rooms.of(Reals()) == "study"
    assert repr(rooms) == "ByOutcome(rooms: Reals)"
