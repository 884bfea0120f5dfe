"""Plain values to JSON and tensors, and back: how problems, methods and states are written down. Never pickle.

A *value* (a prior, a likelihood, a method) is a frozen dataclass that derives from :class:`Value`; it can be printed,
compared and rebuilt by :func:`decode`. A *state* is a mutable dataclass: :func:`encode` writes it down, and
:func:`restore` puts it back into a state of the same kind that ``init`` has just made, so objects that only PyTorch can
build (optimisers, generators) need no recipe here.

Fields marked ``field(metadata=SCRATCH)`` are workspace and are not written.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import importlib
import json
from collections.abc import Mapping
from types import FunctionType, MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from temperance.core.errors import CorruptRunError, MismatchError

SCRATCH: Mapping[str, Any] = MappingProxyType({"save": False})
Tensors = dict[str, Tensor]


class Value:
    """A frozen dataclass of settings: printable, comparable, and rebuilt by name from a manifest.

    Subclasses are known by their class name, those of users too once their module is imported.
    """

    _registry: ClassVar[dict[str, type[Value]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Value._registry[type_name(cls)] = cls

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and fingerprint(self) == fingerprint(other)

    def __hash__(self) -> int:
        return hash(fingerprint(self))

    def __repr__(self) -> str:
        """For those that hold tensors (and say ``repr=False``): large tensors are shown by their shapes."""
        shown = (f"{field.name}={_shown(getattr(self, field.name))}" for field in saved_fields(self))
        return f"{type(self).__name__}({', '.join(shown)})"


def _shown(value: Any) -> str:
    if isinstance(value, Tensor) and value.numel() > 4:
        return f"{'×'.join(map(str, value.shape))} tensor"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        parts = [_shown(part) for part in value[:6]] + (["…"] if len(value) > 6 else [])
        return f"[{', '.join(parts)}]" if isinstance(value, list) else f"({', '.join(parts)})"
    return repr(value)


def type_name(kind: type) -> str:
    """How a class is named in a manifest: our own by name alone, those of users with their module."""
    ours = kind.__module__.partition(".")[0] == "temperance"
    return kind.__name__ if ours else f"{kind.__module__}:{kind.__qualname__}"


def saved_fields(value: Any) -> list[dataclasses.Field[Any]]:
    """The fields of a dataclass that are written down."""
    return [f for f in dataclasses.fields(value) if f.metadata.get("save", True)]


def encode(value: Any, tensors: Tensors, path: str = "") -> Any:
    """A JSON form of ``value``; tensors go into ``tensors`` under their path."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, enum.Enum):
        return {"$enum": type(value).__name__, "name": value.name}
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, Tensor):
        tensors[path] = value.detach() if value.requires_grad else value
        return {"$tensor": path}
    if isinstance(value, torch.Generator):
        tensors[path] = value.get_state()
        return {"$generator": path}
    if isinstance(value, list | tuple):
        items = [encode(v, tensors, f"{path}/{k}") for k, v in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, Mapping):
        pairs = [[encode(k, tensors, path), encode(v, tensors, f"{path}/{k}")] for k, v in value.items()]
        return {"$dict": pairs}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: encode(getattr(value, f.name), tensors, f"{path}/{f.name}") for f in saved_fields(value)}
        return {"$type": type_name(type(value)), "fields": fields}
    if isinstance(value, Value):
        raise TypeError(
            f"cannot write down {type(value).__name__}: make it a frozen dataclass, so its settings are seen"
        )
    if isinstance(value, FunctionType) and "<" in value.__qualname__:  # a lambda, or made inside another function
        code = repr((value.__code__.co_code, value.__code__.co_consts, value.__defaults__)).encode()
        cells = [encode(c.cell_contents, tensors, path) for c in value.__closure__ or ()]
        return {
            "$name": f"{value.__module__}:{value.__qualname__}",
            "code": hashlib.sha256(code).hexdigest(),
            "uses": cells,
        }
    if isinstance(value, type | FunctionType):
        return {"$name": f"{value.__module__}:{value.__qualname__}"}
    if hasattr(value, "state_dict"):
        return {"$state_dict": encode(value.state_dict(), tensors, path)}
    if isinstance(value, torch.dtype | torch.device):
        return {"$torch": str(value)}
    raise TypeError(f"cannot write down {type(value).__name__} at {path or 'the top'}")


def fingerprint(value: Any) -> str:
    """A digest of a value's settings and tensors, by which values are compared."""
    tensors: Tensors = {}
    text = json.dumps(encode(value, tensors), sort_keys=True)
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name}{tuple(tensors[name].shape)}{tensors[name].dtype}".encode())
        digest.update(tensor_bytes(tensors[name]))
    return digest.hexdigest()


def tensor_bytes(tensor: Tensor) -> bytes:
    """The numbers of a tensor of any dtype and shape, as bytes."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


# Classes and functions are named in a manifest only as settings of a method; no other module is ever imported for one.
_ALLOWED = ("temperance.", "torch.optim.", "torch.nn.")


def decode(form: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that :func:`encode` wrote. Only registered :class:`Value` classes are built."""
    if isinstance(form, list):
        return [decode(v, tensors) for v in form]
    if not isinstance(form, dict):
        return form
    if "$tensor" in form:
        return _tensor(form["$tensor"], tensors)
    if "$tuple" in form:
        return tuple(decode(v, tensors) for v in form["$tuple"])
    if "$dict" in form:
        return {decode(k, tensors): decode(v, tensors) for k, v in form["$dict"]}
    if "$type" in form:
        made = Value._registry.get(form["$type"])
        if made is None:
            raise MismatchError(
                f"the run uses {form['$type']!r}, which is not known here: import the module that defines it first."
            )
        return made(**{k: decode(v, tensors) for k, v in form["fields"].items()})
    if "$torch" in form:
        text = form["$torch"]
        return getattr(torch, text.removeprefix("torch.")) if text.startswith("torch.") else torch.device(text)
    if "$name" in form:
        module, _, name = form["$name"].partition(":")
        if not (module + ".").startswith(_ALLOWED):
            raise MismatchError(f"the run refers to {form['$name']!r}, a function of yours: give the object itself.")
        return getattr(importlib.import_module(module), name)
    raise CorruptRunError(f"the manifest holds a value of unknown form: {sorted(form)}.")


def moved(value: Any, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Any:
    """A value with all its tensors on ``device``, and floating ones in ``dtype``."""
    tensors: Tensors = {}
    form = encode(value, tensors)
    made = {}
    for name, tensor in tensors.items():
        kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        made[name] = tensor.to(device=device or tensor.device, dtype=kind)
    return decode(form, made)


def restore(template: Any, form: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """Put an encoded state back into ``template``, a state of the same kind, and return it."""
    if isinstance(form, dict):
        if "$generator" in form:
            template.set_state(_tensor(form["$generator"], tensors).cpu())
            return template
        if "$tensor" in form:
            value = _tensor(form["$tensor"], tensors)
            if isinstance(template, Tensor) and template.shape == value.shape and template.dtype == value.dtype:
                with torch.no_grad():
                    return template.copy_(value)  # in place: others (an optimiser, a network) hold the same memory
            return value.to(template.device if isinstance(template, Tensor) else device)
        if "$state_dict" in form:
            template.load_state_dict(decode(form["$state_dict"], tensors))
            return template
        if "$type" in form and type_name(type(template)) == form["$type"] and not isinstance(template, Value):
            for name, inner in form["fields"].items():
                object.__setattr__(template, name, restore(getattr(template, name), inner, tensors, device))
            return template
        if "$tuple" in form:
            items = form["$tuple"]
            given = template if isinstance(template, tuple) and len(template) == len(items) else [None] * len(items)
            return tuple(restore(t, v, tensors, device) for t, v in zip(given, items, strict=True))
        if "$dict" in form:
            old = template if isinstance(template, dict) else {}
            pairs = [(decode(k, tensors), v) for k, v in form["$dict"]]
            return {k: restore(old.get(k), v, tensors, device) for k, v in pairs}
    if isinstance(form, list):
        given = template if isinstance(template, list) and len(template) == len(form) else [None] * len(form)
        return [restore(t, v, tensors, device) for t, v in zip(given, form, strict=True)]
    return decode(form, tensors)


def _tensor(path: str, tensors: Mapping[str, Tensor]) -> Tensor:
    if path not in tensors:
        raise CorruptRunError(f"the run's tensors lack {path!r}.")
    return tensors[path]
