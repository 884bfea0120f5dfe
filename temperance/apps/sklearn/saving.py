"""Estimators as bytes and as folders: tensors in safetensors, the rest in JSON, no module and no hook.

A folder is a run like any other, with one part more: ``temperance.load(path, network)`` reads the posterior in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from temperance.apps.sklearn.blueprint import Blueprint
from temperance.core.encoding import encode
from temperance.core.errors import ArgumentError, CorruptRunError
from temperance.run import store
from temperance.run.fitted import Fitted
from temperance.run.loading import fitted_of
from temperance.run.manifest import reading
from temperance.run.parts import Parts, value_part
from temperance.run.store import Run

PART = "estimator"
_PICKLED = "the pickled estimator"
_MANIFEST, _LEARNED = "the manifest", "what it learned of the columns"
EXTRAS = ("class", "params", "blueprint", "own_network", "learned", "calibrator")


def parts_of(fitted: Fitted, extras: dict[str, Any]) -> tuple[dict[str, Any], Parts]:
    """A manifest, and the parts that go with it."""
    manifest, parts = fitted.written()
    return manifest, {**parts, **value_part(PART, extras)}


def pack(fitted: Fitted, extras: dict[str, Any], learned: Mapping[str, Any]) -> dict[str, Any]:
    """A fit as plain dictionaries, numbers and bytes, with a digest of each part and of what the estimator ``learned``
    beside it, for a pickle has none of its own."""
    manifest, parts = parts_of(fitted, extras)
    packed = {}
    for name, (form, tensors) in parts.items():
        plain = {key: value.detach().cpu().clone().contiguous() for key, value in tensors.items()}
        packed[name] = {"form": form, "tensors": safetensors.torch.save(plain)}
    digests = {name: _digest(part["form"], part["tensors"]) for name, part in packed.items()}
    digests |= {_MANIFEST: _digest(manifest), _LEARNED: _digest(_numbers(learned))}
    return {"manifest": manifest, "parts": packed, "sha256": digests}


def unpack(packed: Any, learned: Mapping[str, Any]) -> Run:
    """What :func:`pack` made, as if it had been read from a folder; :class:`CorruptRunError` where a bit of it, or of
    what was ``learned`` beside it, is not what it was."""
    parts, cache = {}, {}
    with reading(_PICKLED):
        found = {name: _digest(part["form"], part["tensors"]) for name, part in packed["parts"].items()}
        found |= {_MANIFEST: _digest(packed["manifest"]), _LEARNED: _digest(_numbers(learned))}
        noted = packed["sha256"]
        changed = [str(name) for name in {**noted, **found} if noted.get(name) != found.get(name)]
        if changed:
            raise CorruptRunError(
                f"{_PICKLED} is damaged: {', '.join(changed[:3])} does not have its sha256. Read another copy of the "
                "file, or fit again."
            )
        for name, part in packed["parts"].items():
            parts[name] = {"form": part["form"]}
            # Copies, because the memory of bytes is not aligned as torch aligns its own; sums would round otherwise.
            cache[name] = {key: value.clone() for key, value in safetensors.torch.load(part["tensors"]).items()}
    return Run(Path(), {**packed["manifest"], "parts": parts}, cache)


def _digest(form: Any, data: bytes = b"") -> str:
    """sha256 of plain values and bytes."""
    return hashlib.sha256(json.dumps(form, sort_keys=True).encode() + data).hexdigest()


def _numbers(learned: Mapping[str, Any]) -> dict[str, Any]:
    """What was learned, as plain values; labels that are objects of the user's own are left out."""
    return {name: _plain(value) for name, value in learned.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.shape, "" if value.dtype.hasobject else value.tobytes().hex()]
    return value if isinstance(value, bool | int | float | str | None) else None


def save_run(path: str | Path, fitted: Fitted, extras: dict[str, Any]) -> None:
    """Write a fit and what the estimator adds to a folder."""
    manifest, parts = parts_of(fitted, extras)
    with store.held(path):
        store.check_loses_nothing(path, parts)
        store.write_run(path, manifest, parts)


def extras_in(run: Run, names: Sequence[str]) -> dict[str, Any]:
    """What the estimator added to a run: these entries."""
    found = run.value(PART)
    lacking = [name for name in names if not isinstance(found, dict) or name not in found]
    if lacking:
        raise CorruptRunError(f"the estimator in {str(run.path)!r} is damaged: it lacks {', '.join(lacking)}.")
    return dict(found)


def fitted_in(run: Run, blueprint: Blueprint, device: torch.device) -> Fitted:
    """The fit in a run, around a network made anew from its blueprint."""
    return fitted_of(run, lambda settings: blueprint.network(settings["likelihood"]).to(device))


def setting(name: str, value: Any) -> Any:
    """A setting of an estimator as it is written to a folder."""
    if name == "network" or (name == "random_state" and isinstance(value, np.random.RandomState)):
        return None
    if name == "device" and value is not None:
        return str(value)
    try:
        encode(value, {})
    except TypeError as error:
        raise ArgumentError(f"`{name}` must be made of plain values to be saved: {error}.") from error
    return value


def to_plain(value: Any) -> Any:
    """Arrays of numbers or text as lists, exactly; a tuple entry by entry; anything else as it is."""
    if isinstance(value, tuple):
        return tuple(to_plain(entry) for entry in value)
    if not isinstance(value, np.ndarray):
        return value
    entries = value.tolist()
    if not all(isinstance(entry, str | int | float) for entry in entries):
        raise ArgumentError(f"class labels must be text or numbers to be saved; got {entries[:5]!r}.")
    return {"dtype": value.dtype.str, "values": entries}


def from_plain(value: Any) -> Any:
    """The inverse of :func:`to_plain`."""
    if isinstance(value, tuple):
        return tuple(from_plain(entry) for entry in value)
    return np.array(value["values"], dtype=value["dtype"]) if isinstance(value, dict) else value
