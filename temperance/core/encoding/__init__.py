"""Plain values to JSON and tensors, and back: how problems, methods and states are written down. Never pickle.

A *value* (a prior, a likelihood, a method) is a frozen dataclass that derives from :class:`Value`; it can be printed,
compared and rebuilt by :func:`decode`. A *state* is a mutable dataclass: :func:`encode` writes it down, and
:func:`restore` puts it back into a state of the same kind that ``init`` has just made, so objects that only PyTorch can
build (optimisers, generators) need no recipe here.

Fields marked ``field(metadata=SCRATCH)`` are workspace and are not written. ``names`` says how classes and functions
are called in a manifest, ``writing`` has one small encoder a kind, ``reading`` one small decoder a form.
"""

from temperance.core.encoding.names import setting, type_name
from temperance.core.encoding.reading import decode, moved, restore
from temperance.core.encoding.values import Value
from temperance.core.encoding.writing import SCRATCH, Tensors, encode, fingerprint, saved_fields, tensor_bytes

__all__ = [
    "SCRATCH",
    "Tensors",
    "Value",
    "decode",
    "encode",
    "fingerprint",
    "moved",
    "restore",
    "saved_fields",
    "setting",
    "tensor_bytes",
    "type_name",
]
