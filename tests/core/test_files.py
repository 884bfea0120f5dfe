"""One writer of files."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

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
