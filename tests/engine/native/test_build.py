"""The cache of built libraries: what is in it is run, so it is used only where it is whole and nobody else's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from temperance.engine.native import build

SOURCE = Path(build.__file__).with_name("normal.c")
pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))) or os.name != "posix", reason="needs a C compiler"
)

_RUN = "import temperance.engine.native.build as b; assert b.compiled_fill() is not None; print(b.in_use())"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "temperance" / "native"


def _built() -> Path:
    return build._build(SOURCE, build._FLAGS)


def _in_another_process(cache: Path) -> subprocess.Popen:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache.parent.parent)}
    return subprocess.Popen([sys.executable, "-c", _RUN], env=environment, stdout=subprocess.PIPE, text=True)


def test_a_library_is_built_once_and_is_for_the_user_alone(cache):
    made = _built()
    assert made.parent == cache
    assert made.stat().st_mode & 0o077 == 0
    assert cache.stat().st_mode & 0o077 == 0
    before = made.stat().st_mtime_ns
    assert _built() == made
    assert made.stat().st_mtime_ns == before
    assert {path.suffix for path in cache.iterdir()} == {".so", ".sha256"}  # nothing half-made is left


def _cut(made: Path) -> None:
    made.write_bytes(made.read_bytes()[: made.stat().st_size // 2])


def _other(made: Path) -> None:
    made.write_bytes(made.read_bytes() + b"\0")


def _undigested(made: Path) -> None:
    made.with_suffix(".sha256").unlink()


def _open_to_all(made: Path) -> None:
    made.chmod(0o777)


def _linked(made: Path) -> None:
    elsewhere = made.with_name("elsewhere")
    shutil.copy(made, elsewhere)
    made.unlink()
    made.symlink_to(elsewhere)


@pytest.mark.parametrize("harm", [_cut, _other, _undigested, _open_to_all, _linked])
def test_a_library_that_is_not_what_was_built_is_built_anew(cache, harm):
    """The broken twin, a cache trusted by name, dies of SIGBUS in the process that loads the first of these."""
    made = _built()
    harm(made)
    assert not build._is_whole(made)
    process = _in_another_process(cache)
    assert process.communicate(timeout=120)[0].strip() == "compiled"
    assert process.returncode == 0
    _built()
    assert build._is_whole(made)


def test_a_folder_that_others_can_write_to_is_not_used(cache):
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert build._cache() != cache


def test_two_processes_that_build_at_once_both_get_a_whole_library(cache):
    both = [_in_another_process(cache) for _ in range(2)]
    assert [process.communicate(timeout=120)[0].strip() for process in both] == ["compiled", "compiled"]
    assert [process.returncode for process in both] == [0, 0]
