"""Which files of a folder are ours: ``files.json`` lists them before they are made, and nothing else is ever removed.

A name alone does not make a file ours: people have a ``test.csv``, a ``model-card.md`` and a folder ``checkpoint`` of
their own. So a run begins in a folder that is new or empty, lists there what it is going to write, and removes only
what is listed; of a folder in the list, only the files of a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from temperance.core import files, sealed
from temperance.core.errors import ArgumentError, CorruptRunError, StoreError
from temperance.run import store

LIST = "files.json"
_FORMAT = 1
_ABOUT = "What temperance wrote here, and may replace."
COMPARISON = ("compare.json", "compare.csv")
_NAMES = re.compile(r"table\.json|compare\.(?:json|csv)|checkpoint(-again)*|model-[0-9a-f]{12}|test-[0-9a-f]{12}\.csv")


@dataclass
class Claim:
    """A folder, and the names in it that are ours."""

    folder: Path
    names: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, path: str | Path) -> Claim:
        """The claim to a folder. Raises :class:`StoreError` for a folder that holds things and no list of ours,
        :class:`CorruptRunError` for one whose list is damaged: then nobody knows what is whose."""
        if not isinstance(path, str | Path) or not str(path):
            raise ArgumentError(f"`out` must be the name of a folder; got {path!r}.")
        folder = Path(path)
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"`out` must be a folder; {str(folder)!r} is a file.")
        if files.is_file(folder / LIST) and (names := _listed(folder)) is not None:
            return cls(folder, names)
        there = sorted(f.name for f in folder.iterdir()) if folder.is_dir() else []
        if all(files.is_temporary_of(name, LIST) for name in there):
            return cls(folder)
        shown = ", ".join(there[:5]) + (f" and {len(there) - 5} more" if len(there) > 5 else "")
        raise StoreError(
            f"`out` must be a new or empty folder, or one of ours; {str(folder)!r} holds other files, which no "
            f"run of ours lists: {shown}. Choose another folder; nothing was changed there."
        )

    @staticmethod
    def may_name(name: str) -> bool:
        """Whether a run of a table can have a file of this name.

        >>> Claim.may_name("table.json"), Claim.may_name("model-card.md"), Claim.may_name("../table.json")
        (True, False, False)
        """
        return _NAMES.fullmatch(name) is not None

    @staticmethod
    def owns(path: Path) -> Path | None:
        """The folder of ours in which ``path`` is a file of ours, or inside one; ``None`` where there is none."""
        real = path.resolve()
        for folder in real.parents:
            if files.is_file(folder / LIST):
                name = real.relative_to(folder).parts[0]
                try:
                    names = _listed(folder)
                except CorruptRunError:
                    names = [name]
                if name == LIST or name in (names or []):
                    return folder
        return None

    def holds(self, name: str) -> bool:
        """Whether a file or folder of ours with this name is there."""
        return name in self.names and (self.folder / name).exists()

    def add(self, *names: str) -> None:
        """Say that these names will be ours; one that is somebody's already is refused."""
        foreign = [name for name in names if name not in self.names and (self.folder / name).exists()]
        if foreign:
            raise StoreError(f"`out` {str(self.folder)!r} holds {', '.join(foreign)}, which no run of ours made.")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write([*self.names, *(name for name in names if name not in self.names)])
        except OSError as error:
            raise StoreError(f"the run could not be written to {str(self.folder)!r}: {error}.") from error

    def remove(self, names: Iterable[str]) -> None:
        """Remove what is listed under these names: files, and of folders the files of a run."""
        gone = [name for name in names if name in self.names and _remove(self.folder / name)]
        if gone:
            self._write([name for name in self.names if name not in gone])

    def tidy(self) -> None:
        """Remove what a process killed in the middle of writing one of our files left beside it."""
        for file in self.folder.iterdir():
            if any(files.is_temporary_of(file.name, name) for name in (*self.names, LIST)):
                _remove(file)

    def _write(self, names: list[str]) -> None:
        content = {"format": _FORMAT, "about": _ABOUT, "files": names}
        files.write_bytes(self.folder / LIST, sealed.render(content))
        self.names = names


def _listed(folder: Path) -> list[str] | None:
    """The names in the list; ``None`` where it is no list of ours, nor ever was."""
    try:
        content = sealed.read(folder / LIST, _FORMAT)
    except StoreError as error:
        if not _was_ours(folder):
            return None
        begun = any((folder / name / store.MANIFEST).is_file() for name in ("checkpoint", "checkpoint-again"))
        alike = begun and not (folder / "table.json").exists()  # an earlier run, to be replaced, would be listed too
        raise CorruptRunError(f"{error} {_GO_ON if alike else _LEAVE} Nothing was changed there.") from error
    names = content.get("files")
    if not isinstance(names, list) or not all(isinstance(n, str) and Claim.may_name(n) for n in names):
        raise CorruptRunError(f"{str(folder / LIST)!r} is damaged: it lists what no run of a table writes.")
    return names


_LEAVE = (
    "It lists what temperance may replace and remove in this folder, so nothing more is written here: choose another "
    "folder. A finished run can still be read."
)
_GO_ON = (
    "It lists what temperance may replace and remove in this folder, so nothing more is written here; the checkpoint "
    "is a file of its own and may well be whole. To go on from it, put the list of another unfinished run in the "
    "damaged one's place, for all such lists are the same: begin this fit in an empty folder, stop it with Ctrl-C, "
    f"copy its {LIST} here, and --resume. Or choose another folder and begin anew."
)


def _was_ours(folder: Path) -> bool:
    """Whether a list that cannot be read was one of ours: by what is left of it, or by what is beside it. People have a
    ``files.json`` of their own, of which nothing is said."""
    beside = {file.name for file in folder.iterdir()} - {LIST}
    if any((folder / name / store.MANIFEST).is_file() for name in beside if Claim.may_name(name)):
        return True
    try:
        return _ABOUT.encode() in (folder / LIST).read_bytes()
    except OSError:
        return False


def _remove(path: Path) -> bool:
    """Remove a file, or the run in a folder; whether nothing is left of it."""
    try:
        if path.is_dir() and not path.is_symlink():
            store.remove_run(path)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        return False
    return not path.exists()
