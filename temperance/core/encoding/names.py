"""How classes and functions are called in a manifest, and which of them a manifest can reach.

Ours are called by their room and name (``posteriors.Gaussian``, ``priors.GaussianPrior``), which survives moving a file
within its room; those of users by module and qualified name. A manifest reaches classes that derive from ``Value``,
functions that are marked as :func:`setting`, and the classes of ``torch.optim`` and ``torch.nn``: nothing else, and no
module is imported for a name except a room of ours.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from temperance.core.errors import MismatchError

_INNER = {  # rooms inside a larger one that have a public spelling of their own
    "model.priors": "priors",
    "model.likelihoods": "likelihoods",
    "judge.calibrate": "calibrate",
    "apps.tables": "tables",
    "apps.sklearn": "sklearn",
    "apps.integrations": "integrations",
}
_ON_DEMAND = {  # rooms whose values may be met in a manifest before anybody has imported them
    "calibrate": "temperance.judge.calibrate",
    "decide": "temperance.decide",
    "run": "temperance.run.sample",
    "tables": "temperance.apps.tables.run",
}
_TORCH = ("torch.optim.", "torch.nn.")

_classes: dict[str, type] = {}
_functions: dict[str, FunctionType] = {}
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def room_of(module: str) -> str | None:
    """The room in which a module of ours is; ``None`` for modules of others.

    >>> room_of("temperance.model.priors.gaussian"), room_of("temperance.posteriors.point"), room_of("mine.priors")
    ('priors', 'posteriors', None)
    """
    first, *rest = module.split(".")
    if first != "temperance" or not rest:
        return None
    return _INNER.get(".".join(rest[:2]), rest[0])


def type_name(kind: type | FunctionType) -> str:
    """How a class or function is called in a manifest: ours by room and name, those of users by module and name.

    >>> type_name(int), type_name(MismatchError)
    ('builtins:int', 'core.MismatchError')
    """
    room = room_of(kind.__module__)
    return f"{kind.__module__}:{kind.__qualname__}" if room is None else f"{room}.{kind.__qualname__}"


def register(kind: type) -> None:
    """Let manifests name a class. A second class of ours with the name of another one is refused: one of the two would
    be rebuilt as the other. (Abstract classes are never written down, and share names freely.)"""
    name = type_name(kind)
    before = _classes.get(name)
    if before is not None and before.__module__ != kind.__module__ and not _is_abstract(before):
        if _is_abstract(kind):
            return
        raise TypeError(
            f"the name {name!r} must be that of one class, for runs are saved by it; got one in {before.__module__} "
            f"and one in {kind.__module__}. Rename one."
        )
    _classes[name] = kind


def _is_abstract(kind: type) -> bool:
    """Also while the class is being made, when Python has not looked yet."""
    return any(getattr(getattr(kind, name, None), "__isabstractmethod__", False) for name in dir(kind))


def is_registered(kind: type) -> bool:
    """Whether a manifest can name this very class."""
    return _classes.get(type_name(kind)) is kind


def setting(function: AnyFunction) -> AnyFunction:
    """Mark a function of ours as one that may be the setting of a value, so that a saved run can name it.

    >>> @setting
    ... def halved(fraction: float) -> float:
    ...     return fraction / 2
    >>> find_named(type_name(halved)) is halved
    True
    """
    assert isinstance(function, FunctionType)
    _functions[type_name(function)] = function
    return function


def find_class(name: Any) -> type:
    """The registered class of this name."""
    if isinstance(name, str) and name not in _classes and name.partition(".")[0] in _ON_DEMAND:
        importlib.import_module(_ON_DEMAND[name.partition(".")[0]])
    if not isinstance(name, str) or name not in _classes:
        raise MismatchError(f"the run uses {name!r}, which is not known here: import the module that defines it first.")
    return _classes[name]


def find_named(name: Any) -> Any:
    """The class or function that a setting names."""
    if isinstance(name, str):
        found = _functions.get(name) or _classes.get(name) or _of_torch(name)
        if found is not None:
            return found
    raise MismatchError(f"the run refers to {name!r}, a function of yours: give the object itself.")


def _of_torch(name: str) -> type | None:
    """An optimiser, a scheduler, a module of PyTorch: a class that is defined where the name says."""
    module, _, qualname = name.partition(":")
    if not (module + ".").startswith(_TORCH) or module not in sys.modules:
        return None
    found = vars(sys.modules[module]).get(qualname)
    return found if isinstance(found, type) and found.__module__ == module else None
