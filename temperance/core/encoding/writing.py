"""Values and states as JSON and named tensors: one small encoder for each kind of thing."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.core.encoding.names import is_registered, type_name

SCRATCH: Mapping[str, Any] = MappingProxyType({"save": False})
Tensors = dict[str, Tensor]
Encoder = Callable[[Any, Tensors, str], Any]

SERIES = "#series"
"""Ends the names of tensors that stand for lists of Python's own numbers, which keep their dtype."""
_LONG = 64  # lists of numbers longer than this go to a tensor: histories grow with the epochs, a manifest must not


def saved_fields(value: Any) -> list[dataclasses.Field[Any]]:
    """The fields of a dataclass that are written down; of a frozen one, which is made anew when it is read, not those
    that it makes of the others."""
    frozen = type(value).__dataclass_params__.frozen
    return [f for f in dataclasses.fields(value) if f.metadata.get("save", True) and (f.init or not frozen)]


def encode(value: Any, tensors: Tensors, path: str = "") -> Any:
    """A JSON form of ``value``; tensors go into ``tensors`` under their path.

    >>> encode({"lr": 0.1, "sizes": (3, 4)}, {})
    {'$dict': [['lr', 0.1], ['sizes', {'$tuple': [3, 4]}]]}
    """
    if value is None or isinstance(value, bool | str):
        return value
    for belongs, encoder in _ENCODERS:
        if belongs(value):
            return encoder(value, tensors, path)
    raise TypeError(f"cannot write down {type(value).__name__} at {path or 'the top'}")


def _tensor(value: Tensor, tensors: Tensors, path: str) -> Any:
    tensors[path] = value.detach() if value.requires_grad else value
    return {"$tensor": path}


def _array(value: np.ndarray, tensors: Tensors, path: str) -> Any:
    return _tensor(torch.from_numpy(value), tensors, path)


def _generator(value: torch.Generator, tensors: Tensors, path: str) -> Any:
    tensors[path] = value.get_state()
    return {"$generator": path}


def _list(value: list[Any], tensors: Tensors, path: str) -> Any:
    kind = _kind_of_series(value)
    if kind is not None:
        tensors[path + SERIES] = torch.tensor(value, dtype=kind)
        return {"$series": path + SERIES}
    return [encode(v, tensors, f"{path}/{k}") for k, v in enumerate(value)]


def _kind_of_series(value: list[Any]) -> torch.dtype | None:
    """The dtype of a long list of numbers, all floats or all integers of 64 bits; else ``None``."""
    if len(value) <= _LONG:
        return None
    if all(type(v) is float for v in value):
        return torch.float64
    if all(type(v) is int and -(2**63) <= v < 2**63 for v in value):
        return torch.int64
    return None


def _tuple(value: tuple[Any, ...], tensors: Tensors, path: str) -> Any:
    return {"$tuple": [encode(v, tensors, f"{path}/{k}") for k, v in enumerate(value)]}


def _mapping(value: Mapping[Any, Any], tensors: Tensors, path: str) -> Any:
    return {"$dict": [[encode(k, tensors, path), encode(v, tensors, f"{path}/{k}")] for k, v in value.items()]}


def _dataclass(value: Any, tensors: Tensors, path: str) -> Any:
    fields = {f.name: encode(getattr(value, f.name), tensors, f"{path}/{f.name}") for f in saved_fields(value)}
    edition = getattr(type(value), "EDITION", 1)
    return {"$type": type_name(type(value)), "fields": fields, **({"edition": edition} if edition != 1 else {})}


def _no_dataclass(value: Any, tensors: Tensors, path: str) -> Any:
    raise TypeError(f"cannot write down {type(value).__name__}: make it a frozen dataclass, so its settings are seen")


def _local_function(value: FunctionType, tensors: Tensors, path: str) -> Any:
    """A lambda, or a function made inside another: told from others by its code and what it closes over."""
    code = repr((value.__code__.co_code, value.__code__.co_consts, value.__defaults__)).encode()
    cells = [encode(c.cell_contents, tensors, path) for c in value.__closure__ or ()]
    return {"$name": type_name(value), "code": hashlib.sha256(code).hexdigest(), "uses": cells}


_ENCODERS: tuple[tuple[Callable[[Any], bool], Encoder], ...] = (
    (lambda v: isinstance(v, enum.Enum), lambda v, t, p: {"$enum": type_name(type(v)), "name": v.name}),
    (lambda v: isinstance(v, int | np.integer), lambda v, t, p: int(v)),
    (lambda v: isinstance(v, float | np.floating), lambda v, t, p: float(v)),
    (lambda v: isinstance(v, np.ndarray), _array),
    (lambda v: isinstance(v, Tensor), _tensor),
    (lambda v: isinstance(v, torch.Generator), _generator),
    (lambda v: isinstance(v, list), _list),
    (lambda v: isinstance(v, tuple), _tuple),
    (lambda v: isinstance(v, Mapping), _mapping),
    (lambda v: dataclasses.is_dataclass(v) and not isinstance(v, type), _dataclass),
    (lambda v: is_registered(type(v)), _no_dataclass),
    (lambda v: isinstance(v, FunctionType) and "<" in v.__qualname__, _local_function),
    (lambda v: isinstance(v, type | FunctionType), lambda v, t, p: {"$name": type_name(v)}),
    (lambda v: hasattr(v, "state_dict"), lambda v, t, p: {"$state_dict": encode(v.state_dict(), t, p)}),
    (lambda v: isinstance(v, torch.dtype | torch.device), lambda v, t, p: {"$torch": str(v)}),
)
"""What a thing is, and how it is written; the first that fits."""


def fingerprint(value: Any) -> str:
    """A digest of a value's settings and tensors, by which values are compared."""
    tensors: Tensors = {}
    text = json.dumps(encode(value, tensors), sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name}{tuple(tensors[name].shape)}{tensors[name].dtype}".encode())
        digest.update(tensor_bytes(tensors[name]))
    return digest.hexdigest()


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The numbers of a tensor of any dtype and shape, as bytes: its own memory where that is of one piece on a CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    # One number of a longer tensor counts as contiguous whatever its stride, and is no bytes until that is 1.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy().data
