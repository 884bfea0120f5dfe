"""Errors derive from what a Python programmer expects."""

from __future__ import annotations

import pytest

from temperance.core import errors

EXPECTED = {
    "ArgumentError": ValueError,
    "DataError": errors.ArgumentError,
    "NetworkError": errors.ArgumentError,
    "MissingDataSetError": FileNotFoundError,
    "StoreError": OSError,
    "CorruptRunError": errors.StoreError,
    "MismatchError": errors.StoreError,
    "NumericalError": ArithmeticError,
}


def test_all_are_listed_here():
    found = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert found == {*EXPECTED, "TemperanceError", "TemperanceWarning", "MethodWarning"}
    assert issubclass(errors.MethodWarning, errors.TemperanceWarning)


@pytest.mark.parametrize(("name", "kind"), EXPECTED.items())
def test_derivation(name, kind):
    error = getattr(errors, name)
    assert issubclass(error, kind)
    assert issubclass(error, errors.TemperanceError)


def test_what_was_learned_is_kept():
    error = errors.NumericalError("no", fitted="all that was learned")
    assert (str(error), error.fitted) == ("no", "all that was learned")
    assert errors.NumericalError("no").fitted is None
    assert errors.StoreError("no").fitted is None
