"""Names of a package that are imported when they are first used, so that importing the package costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def on_demand(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """A ``__getattr__`` for ``package``: ``places`` says in which of its modules each name is; a place that ends with a
    dot is the module itself.

    >>> find = on_demand("temperance.core", {"Status": "status", "errors": "errors."})
    >>> find("Status").__name__, find("errors").__name__
    ('Status', 'temperance.core.errors')
    """

    def find(name: str) -> Any:
        place = places.get(name)
        if place is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{place.rstrip('.')}")
        found = module if place.endswith(".") else getattr(module, name)
        vars(sys.modules[package])[name] = found  # asked for once
        return found

    return find
