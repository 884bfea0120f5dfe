"""What ``encode`` wrote, back: as new values (:func:`decode`), or into a state that is there (:func:`restore`).

One small function for each ``$`` form. What cannot be what ``encode`` wrote is a :class:`CorruptRunError`; what can be,
but needs code or objects of the user's, a :class:`MismatchError`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from temperance.core.encoding.names import find_class, find_named, room_of, type_name
from temperance.core.encoding.values import Value
from temperance.core.encoding.writing import SERIES, Tensors, encode, saved_fields
from temperance.core.errors import ArgumentError, CorruptRunError, MismatchError
from temperance.core.fields import check_fields

Given = Mapping[str, Tensor]


def decode(form: Any, tensors: Given) -> Any:
    """The value that :func:`encode` wrote. Only registered :class:`Value` classes are built.

    >>> decode({"$dict": [["lr", 0.1], ["sizes", {"$tuple": [3, 4]}]]}, {})
    {'lr': 0.1, 'sizes': (3, 4)}
    """
    if isinstance(form, list):
        return [decode(v, tensors) for v in form]
    if not isinstance(form, dict):
        return form
    return _DECODERS[kind_of(form)](form, tensors)


def kind_of(form: dict[str, Any]) -> str:
    """Which ``$`` form this is."""
    marks = [key for key in form if isinstance(key, str) and key.startswith("$")]
    if len(marks) != 1 or marks[0] not in _DECODERS:
        raise CorruptRunError(f"the manifest holds a value of unknown form: {sorted(map(str, form))[:5]}.")
    unknown = set(form) - {marks[0]} - _BESIDE.get(marks[0], set())
    if unknown:
        raise CorruptRunError(f"the manifest holds a {marks[0]} with unknown entries: {sorted(unknown)[:5]}.")
    return marks[0]


_BESIDE = {"$type": {"fields", "edition"}, "$name": {"code", "uses"}, "$enum": {"name"}}


def _tensor(form: dict[str, Any], tensors: Given) -> Tensor:
    return _named(form["$tensor"], tensors)


def _named(path: Any, tensors: Given) -> Tensor:
    if not isinstance(path, str) or path not in tensors:
        raise CorruptRunError(f"the run's tensors lack {str(path)[:80]!r}.")
    return tensors[path]


def _series(form: dict[str, Any], tensors: Given) -> list[Any]:
    found = _named(form["$series"], tensors)
    if found.dim() != 1 or found.dtype not in (torch.float64, torch.int64):
        raise CorruptRunError(f"the series {form['$series']!r} must be a vector of float64 or int64.")
    return list(found.tolist())


def _items(form: dict[str, Any], mark: str) -> list[Any]:
    items = form[mark]
    if not isinstance(items, list):
        raise CorruptRunError(f"the manifest holds a {mark} that is no list: {type(items).__name__}.")
    return items


def _pairs(form: dict[str, Any], tensors: Given) -> list[tuple[Any, Any]]:
    """Keys, decoded, and the forms of their values."""
    items = _items(form, "$dict")
    if not all(isinstance(item, list) and len(item) == 2 for item in items):
        raise CorruptRunError("the manifest holds a $dict whose entries are not pairs.")
    made = [(decode(key, tensors), value) for key, value in items]
    if not all(isinstance(key, str | int | float | bool | tuple | None) for key, _ in made):
        raise CorruptRunError("the manifest holds a $dict whose keys are not plain values.")
    return made


def _value(form: dict[str, Any], tensors: Given) -> Any:
    fields = form.get("fields")
    if not isinstance(fields, dict):
        raise CorruptRunError(f"the manifest holds {str(form['$type'])[:80]!r} without fields.")
    made, given = find_class(form["$type"]), {name: decode(value, tensors) for name, value in fields.items()}
    edition, here = form.get("edition", 1), getattr(made, "EDITION", 1)
    if type(edition) is not int:
        raise CorruptRunError(f"the manifest holds a {form['$type']!r} whose edition is no integer.")
    if edition != here:
        raise MismatchError(
            f"the run was made with edition {edition} of {made.__name__}; this version of temperance has edition "
            f"{here}, which means something else by the same settings. Fit again, or load it with temperance "
            f"{'as it was then' if edition < here else 'of a later version'}."
        )
    ours = room_of(made.__module__) is not None
    try:
        if ours:
            _check_kinds(made, given)
        return made(**given)
    except (TypeError, ValueError) as error:  # fields it does not have, settings that it refuses
        kind = CorruptRunError if ours else MismatchError  # a class of the user's may have changed since
        raise kind(f"the run holds a {form['$type']!r} that cannot be made: {error}") from error


_KINDS: dict[str, type | tuple[type, ...]] = {
    "Tensor": Tensor, "str": str, "bool": bool, "tuple": tuple, "list": list, "dict": dict, "None": type(None),
    "int": (int, float, Tensor), "float": (int, float, Tensor),
}  # fmt: skip


def _check_kinds(made: type, given: dict[str, Any]) -> None:
    """Raise where a field says plainly what it must be, and is something else."""
    for field in dataclasses.fields(made):
        if field.name in given and isinstance(field.type, str):
            heads = [part.strip().partition("[")[0] for part in field.type.split("|")]
            if all(head in _KINDS for head in heads) and not any(
                isinstance(given[field.name], _KINDS[head]) for head in heads
            ):
                raise TypeError(f"`{field.name}` must be {field.type}; got {type(given[field.name]).__name__}.")
            if type(given[field.name]) is int and abs(given[field.name]) > 2**63:
                raise TypeError(f"`{field.name}` must be {field.type}; got an integer that none of ours can be.")


def _torch(form: dict[str, Any], tensors: Given) -> torch.dtype | torch.device:
    text = form["$torch"]
    if isinstance(text, str):
        found = getattr(torch, text.removeprefix("torch."), None) if text.startswith("torch.") else None
        if isinstance(found, torch.dtype):
            return found
        if not text.startswith("torch."):
            try:
                return torch.device(text)
            except RuntimeError:
                pass
    raise CorruptRunError(f"the manifest names {str(text)[:80]!r}, which is neither a dtype nor a device of torch.")


def _name(form: dict[str, Any], tensors: Given) -> Any:
    if "code" in form:
        raise MismatchError(f"the run refers to {form['$name']!r}, a function of yours: give the object itself.")
    return find_named(form["$name"])


def _unbuildable(form: dict[str, Any], tensors: Given) -> Any:
    raise MismatchError(f"the run holds an object that only your code can build ({next(iter(form))}): give it itself.")


_DECODERS: dict[str, Callable[[dict[str, Any], Given], Any]] = {
    "$tensor": _tensor,
    "$series": _series,
    "$tuple": lambda form, tensors: tuple(decode(v, tensors) for v in _items(form, "$tuple")),
    "$dict": lambda form, tensors: {key: decode(value, tensors) for key, value in _pairs(form, tensors)},
    "$type": _value,
    "$torch": _torch,
    "$name": _name,
    "$enum": _unbuildable,
    "$generator": _unbuildable,
    "$state_dict": _unbuildable,
}


def moved(value: Any, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Any:
    """A value with all its tensors on ``device``, and floating ones in ``dtype``."""
    tensors: Tensors = {}
    form = encode(value, tensors)
    made = {}
    for name, tensor in tensors.items():
        if name.endswith(SERIES):
            made[name] = tensor
            continue
        kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        made[name] = tensor.to(device=device or tensor.device, dtype=kind)
    return decode(form, made)


def restore(template: Any, form: Any, tensors: Given, device: torch.device) -> Any:
    """Put an encoded state back into ``template``, a state of the same kind, and return it."""
    if isinstance(form, list):
        if isinstance(template, list) and len(template) != len(form) and any(map(dataclasses.is_dataclass, template)):
            raise CorruptRunError(f"the run's state has {len(form)} parts where this one has {len(template)}.")
        given = template if isinstance(template, list) and len(template) == len(form) else [None] * len(form)
        return [restore(t, v, tensors, device) for t, v in zip(given, form, strict=True)]
    if not isinstance(form, dict):
        return form
    return _RESTORERS.get(kind_of(form), _as_decoded)(template, form, tensors, device)


def _as_decoded(template: Any, form: dict[str, Any], tensors: Given, device: torch.device) -> Any:
    return decode(form, tensors)


def _into_generator(template: Any, form: dict[str, Any], tensors: Given, device: torch.device) -> Any:
    template.set_state(_named(form["$generator"], tensors).cpu())
    return template


def _into_tensor(template: Any, form: dict[str, Any], tensors: Given, device: torch.device) -> Any:
    value = _tensor(form, tensors)
    if not isinstance(template, Tensor):
        return value.to(device)
    if template.dtype != value.dtype or template.shape != value.shape:
        raise CorruptRunError(
            f"the tensor {form['$tensor']!r} of the run's state must have shape {tuple(template.shape)} and "
            f"{template.dtype}; got {tuple(value.shape)} and {value.dtype}."
        )
    with torch.no_grad():
        return template.copy_(value)  # in place: others (an optimiser, a network) hold the same memory


def _into_owner(template: Any, form: dict[str, Any], tensors: Given, device: torch.device) -> Any:
    template.load_state_dict(decode(form["$state_dict"], tensors))
    return template


def _into_state(template: Any, form: dict[str, Any], tensors: Given, device: torch.device) -> Any:
    if type_name(type(template)) != form["$type"] or isinstance(template, Value):
        if dataclasses.is_dataclass(template) and not isinstance(template, Value):
            raise CorruptRunError(f"the run holds a {str(form['$type'])[:80]!r} where a state has another part.")
        return decode(form, tensors)
    fields = form.get("fields")
    if not isinstance(fields, dict) or set(fields) != {field.name for field in saved_fields(template)}:
        raise CorruptRunError(f"the run holds a {form['$type']!r} whose fields are not those it has here.")
    for name, inner in fields.items():
        object.__setattr__(template, name, restore(getattr(template, name), inner, tensors, device))
    try:
        check_fields(template)
    except ArgumentError as error:
        raise CorruptRunError(f"the run holds a {form['$type']!r} that cannot be: {error}") from error
    return template


def _into_tuple(template: Any, form: dict[str, Any], tensors: Given, device: torch.device) -> Any:
    items = _items(form, "$tuple")
    given = template if isinstance(template, tuple) and len(template) == len(items) else [None] * len(items)
    return tuple(restore(t, v, tensors, device) for t, v in zip(given, items, strict=True))


def _into_dict(template: Any, form: dict[str, Any], tensors: Given, device: torch.device) -> Any:
    old = template if isinstance(template, dict) else {}
    pairs = _pairs(form, tensors)
    lacking = set(old) - {key for key, _ in pairs}
    if lacking:
        raise CorruptRunError(f"the run's state lacks {sorted(map(str, lacking))[:5]}.")
    return {key: restore(old.get(key), value, tensors, device) for key, value in pairs}


_RESTORERS: dict[str, Callable[[Any, dict[str, Any], Given, torch.device], Any]] = {
    "$generator": _into_generator,
    "$tensor": _into_tensor,
    "$state_dict": _into_owner,
    "$type": _into_state,
    "$tuple": _into_tuple,
    "$dict": _into_dict,
}
