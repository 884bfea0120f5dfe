"""JSON that knows its own digest: one bit changed anywhere in such a file is found out when it is read.

The first line holds the sha256 of everything after it, byte for byte; the whole is ordinary JSON. So a file that was
damaged, or changed by hand, is an error, and never other numbers.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from temperance.core import files
from temperance.core.errors import CorruptRunError, MismatchError

_SEAL = re.compile(rb'\{\n "sha256": "([0-9a-f]{64})",\n')


def render(content: dict[str, Any]) -> bytes:
    """``content`` as JSON with its seal.

    >>> print(render({"format": 2}).decode())  # doctest: +ELLIPSIS
    {
     "sha256": "...",
     "format": 2
    }
    """
    if not content or "sha256" in content:
        raise ValueError("sealed content must have entries, and none named sha256")
    body = json.dumps(content, indent=1).encode()[2:]
    return b'{\n "sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'",\n' + body


def read(path: Path, form: int) -> dict[str, Any]:
    """What :func:`render` made and was written to ``path``, whose entry ``format`` must be ``form``.

    Raises :class:`CorruptRunError` for a damaged file, :class:`MismatchError` for one of another format.
    """
    with files.telling(path):
        data = path.read_bytes()
    seal = _SEAL.match(data)
    if seal is not None and hashlib.sha256(data[seal.end() :]).hexdigest().encode() != seal[1]:
        raise CorruptRunError(
            f"{str(path)!r} is damaged, or was changed by hand: its content does not have its sha256."
        )
    content = _parsed(data, path)
    version = content.pop("format", None)
    if type(version) is int and version != form:
        raise MismatchError(f"{str(path)!r} has format {version}; this version of temperance reads format {form}.")
    if seal is None or type(version) is not int:  # true is no 1
        raise CorruptRunError(f"{str(path)!r} is damaged: it has no {'sha256' if seal is None else 'format'}.")
    del content["sha256"]
    return content


def _parsed(data: bytes, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:  # of text, of JSON, of integers too long, of nesting too deep
        why = "its nesting is too deep" if isinstance(error, RecursionError) else str(error)
        raise CorruptRunError(f"{str(path)!r} is damaged: {why}.") from error
    if not isinstance(content, dict):
        raise CorruptRunError(f"{str(path)!r} is damaged: it must hold an object; got {type(content).__name__}.")
    return content
