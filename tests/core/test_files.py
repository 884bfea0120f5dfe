"""One writer of files."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

import temperance as tp
from temperance.core import files


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    place = tmp_path / "a.txt"
    files.write_text(place, "old\n")
    with contextlib.suppress(RuntimeError), files.replacing(place) as draft:
        draft.write_text("ne")
        raise RuntimeError("in the middle")
    assert [f.name for f in tmp_path.iterdir()] == ["a.txt"]
    assert place.read_bytes() == b"old\n"
    with files.replacing(place) as draft:
        draft.write_text("new")
    assert place.read_text() == "new"


def test_only_one_place_replaces_files():
    house = Path(tp.__file__).parent
    found = [path for path in house.rglob("*.py") if re.search(r"os\.(replace|rename)\(", path.read_text())]
    assert found == [house / "core" / "files.py"]


def test_a_new_file_never_replaces_another(tmp_path):
    files.write_new(tmp_path / "a", b"first")
    with pytest.raises(FileExistsError):
        files.write_new(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"


def test_temporary_names_are_known_again():
    name = files.temporary_name("a+b.json")
    assert files.is_temporary_of(name, "a+b.json")
    assert name != files.temporary_name("a+b.json")
    for other in ("aab.json", "b.json", "a+b.jso"):
        assert not files.is_temporary_of(name, other)
    for candidate in (name + "0", name[1:], name.upper(), ".a+b.json-backup"):
        assert not files.is_temporary_of(candidate, "a+b.json")


def test_text_keeps_its_line_ends_and_letters(tmp_path):
    files.write_text(tmp_path / "a", "θ\r\nσ\n")
    assert (tmp_path / "a").read_bytes() == "θ\r\nσ\n".encode()


def test_the_digest_is_that_of_the_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert files.digest(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
