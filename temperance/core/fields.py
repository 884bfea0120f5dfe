"""``check_fields``: what a value holds must be of the types that its class declares.

Values that are mostly tensors (posteriors, operators, calibrators) are made by the library as a rule, read from files
now and then, and put together by hand sometimes. What is wrong with one is said when it is made, by the field's name,
and not by PyTorch when it is used.
"""

from __future__ import annotations

import dataclasses
import functools
import numbers
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from temperance.core.checks import LARGEST, is_whole, shown
from temperance.core.errors import ArgumentError


def check_fields(value: Any, *floating: str) -> None:
    """Raise :class:`ArgumentError` for the first field of a dataclass that is not of its declared type; the fields
    ``floating``, where they are tensors, must hold floating-point numbers.

    >>> @dataclasses.dataclass
    ... class Pair:
    ...     left: Tensor
    ...     right: float | None = None
    ...     def __post_init__(self):
    ...         check_fields(self)
    >>> Pair("banana")
    Traceback (most recent call last):
    temperance.core.errors.ArgumentError: `left` must be of type Tensor; got 'banana'.
    """
    for name, kind, said in _declared(type(value)):  # type: ignore[arg-type]
        found = getattr(value, name)
        if not _fits(found, kind):
            raise ArgumentError(f"`{name}` must be of type {said}; got {shown(found)}.")
    for name in floating:
        found = getattr(value, name)
        if isinstance(found, Tensor) and not found.is_floating_point():
            raise ArgumentError(f"`{name}` must hold floating-point numbers; got a tensor of {found.dtype}.")


@functools.cache
def _declared(kind: type) -> tuple[tuple[str, Any, str], ...]:
    """Name, type and spelling of each field whose type can be told: one that is imported for type checkers alone is
    left to them."""
    made = []
    for base in kind.__mro__:
        for name, said in vars(base).get("__annotations__", {}).items():
            spelling = said if isinstance(said, str) else getattr(said, "__name__", str(said))
            made.append((name, said, spelling, vars(sys.modules[base.__module__])))
    names = {field.name for field in dataclasses.fields(kind) if field.init}
    found: dict[str, tuple[str, Any, str]] = {}
    for name, said, spelling, scope in made:
        if name in names and name not in found:
            try:
                found[name] = (name, eval(said, scope) if isinstance(said, str) else said, spelling)
            except (NameError, TypeError):
                found[name] = (name, Any, spelling)
    return tuple(found.values())


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, str | typing.TypeVar) or kind in (Any, object):
        return True
    if kind is None or kind is type(None):
        return value is None
    inside, of = typing.get_origin(kind), typing.get_args(kind)
    if inside in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in of)
    if inside is typing.Literal:
        return isinstance(value, str) and value in of
    if inside is not None:
        return _fits_inside(value, inside, of)
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain(value)
    return isinstance(value, kind) if isinstance(kind, type) else True


def _fits_inside(value: Any, kind: Any, of: tuple[Any, ...]) -> bool:
    """Of tuples, lists and mappings also what is in them."""
    if kind is tuple and len(of) == 2 and of[1] is Ellipsis:
        return isinstance(value, tuple | list) and all(_fits(entry, of[0]) for entry in value)
    if kind is tuple:
        good = isinstance(value, tuple | list) and len(value) == len(of)
        return good and all(_fits(entry, part) for entry, part in zip(value, of, strict=True))
    if kind is list:
        return isinstance(value, list) and all(_fits(entry, of[0]) for entry in value)
    if kind in (dict, Mapping):
        good = isinstance(value, Mapping)
        return good and all(_fits(k, of[0]) and _fits(entry, of[1]) for k, entry in value.items())
    if kind is Callable:
        return callable(value)
    return isinstance(value, kind)


_PLAIN: dict[Any, Callable[[Any], bool]] = {
    bool: lambda value: isinstance(value, bool | np.bool_),
    int: lambda value: is_whole(value, -LARGEST),
    float: lambda value: isinstance(value, numbers.Real) and not isinstance(value, bool) and _finite_size(value),
    Tensor: lambda value: isinstance(value, Tensor),
}


def _finite_size(value: Any) -> bool:
    """Whether there is a float for it: an integer may be too large."""
    try:
        float(value)
    except OverflowError:
        return False
    return True
