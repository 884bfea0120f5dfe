"""What a manifest must look like, said once: everything else is a :class:`CorruptRunError` that names what is wrong.

The digests find accidents; these checks are for files that were put together by other programs, or by someone who means
harm. Nothing in a manifest can name a file outside the run's folder.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from temperance.core.errors import CorruptRunError, StoreError, TemperanceError

_SHA256 = re.compile(r"[0-9a-f]{64}")
_LARGEST = 2**48  # numbers of one matrix: more than any disk holds


def check_manifest(manifest: Mapping[str, Any], names: re.Pattern[str], where: str) -> None:
    """Raise unless ``versions`` and ``parts`` are as a run's are; ``names`` is what files are called."""
    _be(isinstance(manifest.get("versions"), dict), where, "`versions` must be an object")
    parts = manifest.get("parts")
    _be(isinstance(parts, dict), where, "`parts` must be an object")
    assert isinstance(parts, dict)
    for name, entry in parts.items():
        about = f"the part {name!r}"
        _be(isinstance(entry, dict), where, f"{about} must be an object")
        _keys(entry, {"file", "sha256", "form"}, {"rows"}, where, about)
        if entry["file"] is None:
            _be(entry["sha256"] is None, where, f"{about} has a digest and no file")
        else:
            _file(entry["file"], names, where, about)
            known = isinstance(entry["sha256"], str) and _SHA256.fullmatch(entry["sha256"]) is not None
            _be(known, where, f"the sha256 of {about} must be 64 hexadecimal digits")
        rows = entry.get("rows", {})
        _be(isinstance(rows, dict), where, f"the rows of {about} must be an object")
        for key, matrix in rows.items():
            _check_rows(matrix, names, where, f"the rows {key!r} of {about}")


def _check_rows(matrix: Any, names: re.Pattern[str], where: str, about: str) -> None:
    _be(isinstance(matrix, dict), where, f"{about} must be an object")
    _keys(matrix, {"file", "rows", "width", "dtype", "checksum"}, set(), where, about)
    _file(matrix["file"], names, where, about)
    for name, largest in (("rows", _LARGEST), ("width", _LARGEST), ("checksum", 2**32 - 1)):
        value = matrix[name]
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= largest
        _be(fits, where, f"`{name}` of {about} must be a whole number up to {largest}")
    _be(is_dtype(matrix["dtype"]), where, f"`dtype` of {about} must name a dtype of torch")


def is_dtype(name: Any) -> bool:
    """Whether ``name`` is that of a dtype, such as ``"float32"``, and of nothing else in torch.

    >>> is_dtype("float32"), is_dtype("load")
    (True, False)
    """
    return isinstance(name, str) and isinstance(getattr(torch, name, None), torch.dtype)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Whatever the block raises because what it reads has the wrong shape, or cannot be read at all, becomes a
    :class:`CorruptRunError`."""
    try:
        yield
    except (StoreError, torch.cuda.OutOfMemoryError):
        raise
    except OSError as error:
        raise CorruptRunError(f"{what} cannot be read: {error}.") from error
    except RecursionError as error:
        raise CorruptRunError(f"{what} is damaged: its nesting is too deep.") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RuntimeError) as error:
        kind = "" if isinstance(error, TemperanceError) else f"{type(error).__name__}: "
        raise CorruptRunError(f"{what} is damaged: {kind}{str(error).rstrip('.')}.") from error


def _file(name: Any, names: re.Pattern[str], where: str, about: str) -> None:
    fits = isinstance(name, str) and names.fullmatch(name) is not None
    _be(fits, where, f"{about} must name a file of the run's own folder; got {str(name)[:80]!r}")


def _keys(entry: Mapping[str, Any], needed: set[str], allowed: set[str], where: str, about: str) -> None:
    lacking, unknown = sorted(needed - set(entry)), sorted(set(entry) - needed - allowed)
    _be(not lacking, where, f"{about} lacks {lacking}")
    _be(not unknown, where, f"{about} has entries that are not known here: {unknown[:5]}")


def _be(holds: bool, where: str, rule: str) -> None:
    if not holds:
        raise CorruptRunError(f"{where} is damaged: {rule}.")
