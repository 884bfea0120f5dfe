"""How a run went, for programs and for people."""

from __future__ import annotations

import pytest

from temperance.core import status
from temperance.core.status import Status

ALL = [value for value in vars(status).values() if isinstance(value, Status)]


def test_codes_are_their_own():
    codes = [value.code for value in ALL]
    assert len(set(codes)) == len(codes) >= 9


@pytest.mark.parametrize("value", ALL, ids=lambda s: s.code)
def test_a_failure_says_what_to_do(value):
    assert value.ok or (value.message and value.remedy)


def test_words():
    assert str(Status("ok")) == "ok"
    assert str(Status("a", "It broke.", "Mend it.")) == "It broke. Mend it."
    assert str(Status("a", remedy="Mend it.")) == "Mend it."
    about = Status("a", "it broke.", "Mend it.", ok=False).about("member 2")
    assert about == Status("a", "member 2: it broke.", "Mend it.", ok=False)
