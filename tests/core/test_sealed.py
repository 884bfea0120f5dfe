"""JSON with its own digest."""

from __future__ import annotations

import hashlib
import json

import pytest

from temperance.core import sealed
from temperance.core.errors import CorruptRunError, MismatchError

CONTENT = {"format": 2, "name": "größe", "values": [1, 2.5, None, {"a": []}]}


def test_what_is_written_is_read_and_is_ordinary_json(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(sealed.render(CONTENT))
    assert sealed.read(file, 2) == {k: v for k, v in CONTENT.items() if k != "format"}
    first, second, rest = file.read_bytes().split(b"\n", 2)
    assert first == b"{"
    assert json.loads(file.read_bytes())["sha256"] == hashlib.sha256(rest).hexdigest()
    assert second == f' "sha256": "{hashlib.sha256(rest).hexdigest()}",'.encode()


def test_every_bit_counts(tmp_path):
    file = tmp_path / "a.json"
    data = sealed.render(CONTENT)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bytes(changed))
        with pytest.raises(CorruptRunError):
            sealed.read(file, 2)
    for cut in (0, 1, 40, 90, len(data) - 1):
        file.write_bytes(data[:cut])
        with pytest.raises(CorruptRunError):
            sealed.read(file, 2)


def test_another_format_is_no_damage(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(sealed.render(CONTENT))
    with pytest.raises(MismatchError, match="has format 2; this version of temperance reads format 3"):
        sealed.read(file, 3)
    file.write_text('{"format": 1}')  # from before there were seals
    with pytest.raises(MismatchError, match="has format 1"):
        sealed.read(file, 2)


def test_without_a_seal_or_a_format_it_is_damaged(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"format": 2}')
    with pytest.raises(CorruptRunError, match="it has no sha256"):
        sealed.read(file, 2)
    for content in ({"name": 1}, {"format": True}, {"format": "2"}):
        file.write_bytes(sealed.render(content))
        with pytest.raises(CorruptRunError, match="it has no format"):
            sealed.read(file, 1)
    with pytest.raises(CorruptRunError, match="cannot be read"):
        sealed.read(tmp_path / "none.json", 2)


@pytest.mark.parametrize("content", [{}, {"sha256": "0"}, {"format": 1, "sha256": "0"}])
def test_what_cannot_be_sealed(content):
    with pytest.raises(ValueError, match="must have entries, and none named sha256"):
        sealed.render(content)
