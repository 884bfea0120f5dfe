"""``torch.compile`` where there is a compiler, and the same function as it is where there is none."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import torch

from temperance.core.errors import TemperanceWarning


def has_compiler() -> bool:
    """Whether there is a C++ compiler, which ``torch.compile`` needs on a CPU."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++", "c++"))


class Compiled:
    """A function that is compiled at its first call; if that fails it runs as it is, and says so once.

    ``in_use`` tells which: ``"compiled"``, ``"eager"``, or ``"not called yet"``.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._compiled: Callable[..., Any] | None = torch.compile(function, dynamic=False)
        self.in_use = "not called yet"

    def __call__(self, *args: Any) -> Any:
        """The function's value."""
        if self._compiled is not None:
            try:
                result = self._compiled(*args)
                self.in_use = "compiled"
                return result
            except Exception as error:  # any failure of the compiler; a true error comes again from the eager call
                if self.in_use == "compiled":
                    raise
                result = self.function(*args)
                self._compiled, self.in_use = None, "eager"
                reason = str(error).strip().splitlines() or [type(error).__name__]
                warnings.warn(
                    f"torch.compile did not work here ({reason[0][:200]}); going on without it, with the same results.",
                    TemperanceWarning,
                    stacklevel=3,
                )
                return result
        return self.function(*args)
