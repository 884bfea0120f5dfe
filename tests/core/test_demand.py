"""Names that are imported when they are first used."""

from __future__ import annotations

import sys
import types

import pytest

from temperance.core import errors
from temperance.core.demand import on_demand


@pytest.fixture
def package(monkeypatch):
    """A package whose one module is that of errors."""
    made = types.ModuleType("made_up")
    monkeypatch.setitem(sys.modules, "made_up", made)
    monkeypatch.setitem(sys.modules, "made_up.faults", errors)
    made.__getattr__ = on_demand("made_up", {"DataError": "faults", "faults": "faults."})
    return made


def test_names_and_modules(package):
    assert "DataError" not in vars(package)
    assert package.DataError is errors.DataError
    assert package.faults is errors
    assert vars(package)["DataError"] is errors.DataError  # asked for once


def test_other_names(package):
    with pytest.raises(AttributeError, match="module 'made_up' has no attribute 'NetworkError'"):
        _ = package.NetworkError
