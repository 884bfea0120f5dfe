"""The base of everything that can be printed, compared and rebuilt from a manifest."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from temperance.core.encoding.names import register
from temperance.core.encoding.writing import fingerprint, saved_fields


class Value:
    """A frozen dataclass of settings: printable, comparable, and rebuilt by name from a manifest.

    Subclasses are known by name (see :mod:`temperance.core.encoding.names`), those of users too once their module is
    imported.

    ``EDITION`` is raised when the same settings come to mean something else, another law or another rule: what was
    saved under an earlier meaning is then refused, rather than read as what it was not.
    """

    EDITION: ClassVar[int] = 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if type(cls.EDITION) is not int or cls.EDITION < 1:
            raise TypeError(f"EDITION of {cls.__name__} must be a whole number from 1 on; got {cls.EDITION!r}.")
        register(cls)

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
