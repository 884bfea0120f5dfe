"""The folder of a run: ``run.json`` says what it is, ``cells/`` holds each finished cell from the moment it is done.
Many small files may be put into one, ``cells.jsonl``, from which a run goes on as well.

A file is written beside its place and then moved there, so a file that can be seen is whole. In cells a null stands
for a number that is not finite (JSON has no NaN); reading turns it back.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch

from temperance.core import files
from temperance.core.errors import ArgumentError, MismatchError, StoreError
from temperance.core.version import __version__
from temperance.lab.experiment import Cell, Experiment, Finished, Settings

GROWS = "seeds"
"""The one setting that may change between two runs into the same folder: more seeds only add cells."""


class Folder:
    """The files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def cells(self) -> Path:
        """Where finished cells are."""
        return self.path / "cells"

    @property
    def figures(self) -> Path:
        """Where figures are."""
        return self.path / "figures"

    def begin(self, experiment: Experiment, preset: str, settings: Settings) -> None:
        """Make the folder, or check that what is in it belongs to the same experiment and settings."""
        mark = fingerprint(experiment.name, settings)
        if (self.path / "run.json").exists():
            before = self.describe()
            if before["fingerprint"] != mark:
                changed = _differences(before, experiment, settings)
                raise MismatchError(
                    f"`out` {str(self.path)!r} holds a run of other settings ({changed}); choose another folder, or "
                    "remove this one."
                )
        elif self.path.exists() and not self.path.is_dir():
            raise StoreError(f"`out` must be a folder; {str(self.path)!r} is a file.")
        try:
            self.cells.mkdir(parents=True, exist_ok=True)
            description = {
                "experiment": experiment.name,
                "preset": preset,
                "settings": dataclasses.asdict(settings),
                "fingerprint": mark,
                "versions": versions(),
            }
            write_json(self.path / "run.json", description)
        except OSError as error:
            raise StoreError(f"`out` must be a folder that can be written; got {error}.") from error

    def describe(self) -> dict[str, Any]:
        """What ``run.json`` says."""
        try:
            return dict(json.loads((self.path / "run.json").read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise StoreError(f"{str(self.path)!r} holds no run of the laboratory: it has no run.json.") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise StoreError(f"run.json of {str(self.path)!r} is damaged: {error}.") from error

    def write(self, finished: Finished) -> None:
        """Keep a finished cell."""
        content = {
            "params": dict(finished.cell.params),
            "seconds": round(finished.seconds, 3),
            "error": finished.error,
            "result": to_json(finished.result),
        }
        write_json(self.cells / f"{finished.cell.key}.json", content)

    @property
    def packed(self) -> Path:
        """Where :meth:`pack` puts cells, a line each."""
        return self.path / "cells.jsonl"

    def read(self, cells: Sequence[Cell]) -> dict[str, Finished]:
        """Those of ``cells`` that are done (or have failed), by key. What is damaged counts as not done; a file in
        ``cells/`` is newer than a line."""
        found: dict[str, Finished] = {}
        newer = {cell.key: _whole(self.cells / f"{cell.key}.json") for cell in cells}  # first: packing removes these
        lines = self._lines()[0]
        for cell in cells:
            content = newer[cell.key] or lines.get(cell.key)
            if content is not None and content["params"] == json.loads(json.dumps(dict(cell.params))):
                result = from_json(content["result"])
                found[cell.key] = Finished(cell, result, float(content["seconds"]), content["error"])
        return found

    def pack(self) -> int:
        """Put all finished cells into ``cells.jsonl``, and remove their files once it is there. How many it holds.
        Lines of it that cannot be read are moved to ``cells-damaged.txt``."""
        self.describe()
        files = {path.stem: path for path in sorted(self.cells.glob("*.json"))}
        read = {key: _whole(path) for key, path in files.items()}
        lines, damaged = self._lines()
        lines |= {key: content for key, content in read.items() if content is not None}
        text = "".join(json.dumps({**lines[key], "cell": key}, allow_nan=False) + "\n" for key in sorted(lines))
        try:
            if damaged:
                kept = self.damaged.read_text(encoding="utf-8") if self.damaged.exists() else ""
                write_text(self.damaged, kept + "".join(f"{line}\n" for line in damaged))
            write_text(self.packed, text)
            for key, path in files.items():
                if read[key] is not None:
                    path.unlink()
        except OSError as error:
            raise StoreError(f"`out` must be a folder that can be written; got {error}.") from error
        return len(lines)

    @property
    def damaged(self) -> Path:
        """Where lines go that cannot be read."""
        return self.path / "cells-damaged.txt"

    def _lines(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """What the lines of ``cells.jsonl`` say, by cell; and those that cannot be read."""
        found: dict[str, dict[str, Any]] = {}
        damaged: list[str] = []
        try:
            text = self.packed.read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return found, damaged
        except OSError as error:
            raise StoreError(f"{str(self.packed)!r} cannot be read: {error}.") from error
        for line in filter(None, text.split("\n")):  # splitlines() would end lines within strings too
            content = _content(line)
            if content is not None and isinstance(content.get("cell"), str):
                found[content.pop("cell")] = content
            else:
                damaged.append(line)
        return found, damaged


def _whole(path: Path) -> dict[str, Any] | None:
    """What a cell's file says; ``None`` where it is not there, or damaged."""
    try:
        return _content(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def _content(text: str) -> dict[str, Any] | None:
    """A cell; ``None`` where it is none, or has what no cell has."""
    try:
        content = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):  # no JSON, NaN, numbers without end
        return None
    if not isinstance(content, dict):
        return None
    wanted: dict[str, Any] = {"params": dict, "seconds": int | float, "error": str | None, "result": dict}
    whole = all(name in content and isinstance(content[name], kind) for name, kind in wanted.items())
    return content if whole else None


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def fingerprint(name: str, settings: Settings) -> str:
    """A digest of everything that decides the numbers of a cell."""
    values = {k: v for k, v in dataclasses.asdict(settings).items() if k != GROWS}
    text = json.dumps([name, type(settings).__name__, values], sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _differences(before: Mapping[str, Any], experiment: Experiment, settings: Settings) -> str:
    if before["experiment"] != experiment.name:
        return f"experiment {before['experiment']}, not {experiment.name}"
    old, new = before["settings"], json.loads(json.dumps(dataclasses.asdict(settings)))
    names = [k for k in {**old, **new} if k != GROWS and old.get(k) != new.get(k)]
    return "; ".join(f"{k}: {old.get(k)} there, {new.get(k)} now" for k in names[:4]) or "made by another version"


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    return {
        "temperance": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def settings_from(kind: Any, values: Mapping[str, Any]) -> Any:
    """A settings dataclass from what :func:`dataclasses.asdict` and JSON made of it."""
    hints = get_type_hints(kind)
    names = {f.name for f in dataclasses.fields(kind)}
    unknown = sorted(set(values) - names)
    if unknown:
        raise ArgumentError(f"`settings` must be those of {kind.__name__}; it has no {unknown}.")
    return kind(**{name: _typed(hints[name], value) for name, value in values.items()})


def _typed(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if get_origin(hint) in (Union, UnionType):
        return _typed(next(a for a in get_args(hint) if a is not type(None)), value)
    if dataclasses.is_dataclass(hint):
        return settings_from(hint, value)
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        if len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(_typed(inner[0], v) for v in value)
        return tuple(_typed(part, v) for part, v in zip(inner, value, strict=True))
    return float(value) if hint is float else value


def write_json(path: Path, content: Any) -> None:
    """All of the file or nothing."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """The same for any text."""
    files.write_text(path, text)


def to_json(value: Any) -> Any:
    """Numbers, strings, lists and dicts (also tensors and arrays) as JSON knows them."""
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if value is None or isinstance(value, str | bool | int):
        return value
    if hasattr(value, "tolist"):  # tensors and arrays
        return to_json(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    raise TypeError(f"a cell must give numbers, strings, and lists and dicts of them; got {type(value).__name__}")


def from_json(value: Any) -> Any:
    """What a cell gave, with NaN for null."""
    if value is None:
        return math.nan
    if isinstance(value, dict):
        return {k: from_json(v) for k, v in value.items()}
    return [from_json(v) for v in value] if isinstance(value, list) else value
