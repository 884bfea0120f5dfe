"""Where the page goes: never over anything that is not a report, and never half written."""

from __future__ import annotations

from pathlib import Path

from temperance.core import files
from temperance.core.checks import shown
from temperance.core.errors import ArgumentError, StoreError

MARK = '<meta name="generator" content="Temperance report">'
PAGE = "index.html"


def check_folder(path: str | Path, overwrite: bool = False) -> Path:
    """The folder, if a report may be written there; looked at before anything is computed."""
    if not isinstance(path, str | Path) or not str(path):
        raise ArgumentError(f"`path` must be the name of a folder; got {shown(path)}.")
    folder = Path(path)
    if folder.is_symlink() and not folder.exists():
        raise ArgumentError(f"`path` must be a folder; {str(folder)!r} is a link to nowhere.")
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"`path` must be a folder, in which index.html is written; {str(folder)!r} is a file.")
    if folder.is_dir() and not overwrite and any(folder.iterdir()) and not is_report(folder):
        raise ArgumentError(
            f"`path` must be a new or empty folder, or one that holds a report; {str(folder)!r} holds other things. "
            "Choose another, or pass overwrite=True to put index.html beside them."
        )
    return folder


def is_report(folder: Path) -> bool:
    """Whether the folder holds a page of ours."""
    try:
        with (folder / PAGE).open(encoding="utf-8", errors="replace") as page:
            return MARK in page.read(2000)
    except OSError:
        return False


def write_page(folder: Path, text: str) -> Path:
    """Write ``index.html`` beside its place, then move it there: readers see the old page or the new one."""
    place = folder / PAGE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.write_text(place, text)
    except OSError as error:
        raise StoreError(f"`path` must be a folder that can be written; got {error}.") from error
    return place
