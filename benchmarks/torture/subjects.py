"""What is struck: fits, samples, saves and tables, each of which can be begun, gone on with, and looked at."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import temperance as tp
from benchmarks.torture.forking import in_child
from temperance.apps.cli import main as command_line
from temperance.apps.tables.folder import load_table_run
from temperance.core.encoding import encode, tensor_bytes
from temperance.run import store
from temperance.testing.composition import table
from temperance.testing.composition.runs import Runs, says, small_problem
from temperance.testing.inference import load_any

FINISHED = 10**9
"""Progress of a run that has nothing left to do."""
_TOKENS = re.compile(r"(draws|model|test)-[0-9a-f]{12}")


def digest(value: Any) -> str:
    """Of everything that a value is made of, to the bit; names that are drawn afresh for each file left out."""
    tensors: dict[str, Tensor] = {}
    return digest_form(encode(value, tensors), tensors)


def digest_form(form: Any, tensors: dict[str, Tensor]) -> str:
    """The same of a value that is written down already."""
    made = hashlib.sha256(_TOKENS.sub(r"\1", json.dumps(form, sort_keys=True)).encode())
    for name in sorted(tensors):
        made.update(f"{name}{tuple(tensors[name].shape)}{tensors[name].dtype}".encode() + tensor_bytes(tensors[name]))
    return made.hexdigest()[:16]


class Subject:
    """Something that writes to a folder, can be begun again, and is to end as if nothing had been."""

    name: str
    weight: int = 1
    """How often it is drawn in each round of all subjects."""

    def begin(self, folder: Path) -> None:
        """What is there before the first run."""

    def ready(self, folder: Path | None) -> Callable[[], Any]:
        """Prepare in peace; the function given back is what is struck. ``None``: a run that keeps no checkpoint."""
        raise NotImplementedError

    def outcome(self, result: Any) -> str:
        """``"ended"`` or, of a run that was interrupted and has said so, ``"interrupted"``."""
        return "interrupted" if result.info.status.code == "interrupted" else "ended"

    def steps(self, result: Any) -> int | None:
        """How far an interrupted run says it has come; its folder must have come as far."""
        return None

    def learned(self, folder: Path | None, result: Any) -> dict[str, str]:
        """Digests of the end result."""
        raise NotImplementedError

    def look(self, folder: Path) -> int:
        """How far the run in the folder is, -1 where there is none; raises where it cannot be read."""
        raise NotImplementedError

    def after(self, published: int) -> int:
        """How far the run must be once a manifest that tells of so many steps was published."""
        return published

    def expected(self, folder: Path) -> set[str]:
        """The files, as paths within the folder, that may be there at the end."""
        raise NotImplementedError


def named_in(folder: Path) -> set[str]:
    """The manifest of a run and the files that it names."""
    run = store.open_run(folder)
    return {store.MANIFEST} | set(re.findall(r"[a-z]+-[0-9a-f]{12}\.run\.[a-z]+", json.dumps(run.manifest["parts"])))


def look_into(folder: Path, network: nn.Module | None) -> int:
    """Read all of a run, as a user would and as a resumed run does."""
    if not (folder / store.MANIFEST).is_file():
        return -1
    run = store.open_run(folder)
    for part in run.manifest["parts"]:
        run.tensors(part)
    if network is not None and run.has("posterior"):
        load_any(folder, network)
    return int(run.entry("info", dict)["steps"])


def history_of(info: Any) -> dict[str, Any]:
    """What is known of how a run went, but for the clock."""
    return {k: v for k, v in dataclasses.asdict(info).items() if k != "seconds"}


@dataclass
class Fit(Subject):
    """``tp.fit(..., checkpoint=folder)`` of one method of the composition table."""

    name: str
    make: Callable[[], Any]
    problem: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    weight: int = 1

    def ready(self, folder: Path | None) -> Callable[[], Any]:
        runs = Runs(small_problem(**self.problem), steps=12, batch_size=10)
        method = self.make()
        every = 1 + zlib.crc32(self.name.encode()) % 3
        kept = {} if folder is None else {"checkpoint": folder, "every": every}
        return lambda: runs.new(method, **kept, **self.options)

    def steps(self, result: Any) -> int | None:
        return int(result.info.steps)

    def learned(self, folder: Path | None, result: Any) -> dict[str, str]:
        problem = small_problem(**self.problem)
        found = {
            "posterior": digest(result.posterior),
            "history": digest(history_of(result.info)),
            "predictions": digest(dataclasses.asdict(says(result, problem.queries))),
        }
        if folder is not None:
            run, loaded = store.open_run(folder), load_any(folder, problem.network)
            found["state"] = digest_form(run.form("state"), run.tensors("state"))
            found["posterior on disk"] = digest(loaded.posterior)
            found["history on disk"] = digest(history_of(loaded.info))
            found["predictions of the folder"] = digest(dataclasses.asdict(says(loaded, problem.queries)))
        return found

    def look(self, folder: Path) -> int:
        return look_into(folder, small_problem(**self.problem).network)

    def expected(self, folder: Path) -> set[str]:
        return named_in(folder)


def _valley(theta: Tensor) -> Tensor:
    return -0.5 * theta[0].square() - 2.0 * (theta[1] - theta[0].square()).square()


@dataclass
class Sample(Subject):
    """``tp.sample(..., checkpoint=folder)``, which saves every 100 transitions."""

    name: str
    method: Any
    weight: int = 6

    def ready(self, folder: Path | None) -> Callable[[], Any]:
        return lambda: tp.sample(
            _valley, torch.zeros(2), self.method, draws=160, chains=2, warmup=80, checkpoint=folder, progress=False
        )

    def outcome(self, result: Any) -> str:
        return super().outcome(result.fitted)

    def steps(self, result: Any) -> int | None:
        return int(result.fitted.info.steps)

    def learned(self, folder: Path | None, result: Any) -> dict[str, str]:
        found = {
            "draws": digest({"theta": result.theta}),
            "posterior": digest(result.fitted.posterior),
            "history": digest(history_of(result.fitted.info)),
        }
        if folder is not None:
            run = store.open_run(folder)
            found["state"] = digest_form(run.form("state"), run.tensors("state"))
            found["posterior on disk"] = digest(run.value("posterior"))
        return found

    def look(self, folder: Path) -> int:
        return look_into(folder, None)

    def expected(self, folder: Path) -> set[str]:
        return named_in(folder)


@dataclass
class Save(Subject):
    """``fitted.save`` onto a run: what is there is the old one or the new one, and afterwards the new one."""

    name: str
    templates: Path
    method: Any
    other: Any = None
    """The method of the run that is there before; ``None``: the run itself, which is saved onto itself."""
    checkpointed: bool = False
    weight: int = 8

    def _made(self, method: Any, which: str, checkpointed: bool = False) -> Path:
        """A run that is made once, in a child, because it trains."""
        place = self.templates / f"{zlib.crc32(self.name.encode()):08x}-{which}"
        if not place.is_dir():
            draft = place.with_name(place.name + "-draft")

            def make() -> None:
                runs = Runs(small_problem(), steps=12, batch_size=10)
                if checkpointed:
                    runs.new(method, checkpoint=draft)
                else:
                    runs.new(method).save(draft)

            in_child(make)
            draft.rename(place)
        return place

    def begin(self, folder: Path) -> None:
        new = self._made(self.method, "new")
        old = new if self.other is None else self._made(self.other, "old", self.checkpointed)
        shutil.copytree(old, folder)

    def ready(self, folder: Path | None) -> Callable[[], Any]:
        source = self._made(self.method, "new") if self.other is not None or folder is None else folder
        loaded = load_any(source, small_problem().network)
        return (lambda: loaded) if folder is None else (lambda: loaded.save(folder) or loaded)

    def outcome(self, result: Any) -> str:
        return "ended"

    def learned(self, folder: Path | None, result: Any) -> dict[str, str]:
        problem = small_problem()
        read = result if folder is None else load_any(folder, problem.network)
        return {
            "posterior": digest(read.posterior),
            "history": digest(history_of(read.info)),
            "predictions": digest(dataclasses.asdict(says(read, problem.queries))),
        }

    def look(self, folder: Path) -> int:
        network = small_problem().network
        look_into(folder, network)
        found = digest(load_any(folder, network).posterior)
        ends = [digest(load_any(self._made(self.method, "new"), network).posterior)]
        if self.other is not None:
            ends.insert(0, digest(load_any(self._made(self.other, "old", self.checkpointed), network).posterior))
        return ends.index(found)  # raises for what is neither

    def after(self, published: int) -> int:
        return -1 if published < 0 else int(self.other is not None)

    def expected(self, folder: Path) -> set[str]:
        return named_in(folder)


@dataclass
class TableFit(Subject):
    """The command ``temperance fit --out folder``, gone on with by ``--resume``."""

    name: str
    templates: Path
    arguments: tuple[str, ...]
    rows: int = 120
    overwrite: bool = False
    weight: int = 10

    def _table(self) -> Path:
        place = self.templates / f"{zlib.crc32(self.name.encode()):08x}.csv"
        if not place.is_file():
            rng = np.random.default_rng(0)
            frame = pd.DataFrame({"a": rng.normal(size=self.rows), "b": rng.choice(list("xyz"), size=self.rows)})
            score = frame.a + (frame.b == "x") + 0.3 * rng.normal(size=self.rows)
            frame["kind"], frame["size"] = np.where(score > 0, "up", "down"), score
            frame.to_csv(place, index=False)
        return place

    def _command(self, folder: Path, *more: str) -> list[str]:
        return ["fit", str(self._table()), "--out", str(folder), *self.arguments, *more]

    def _old(self) -> Path:
        place = self.templates / f"{zlib.crc32(self.name.encode()):08x}-old"
        if not place.is_dir():
            draft = place.with_name(place.name + "-draft")
            in_child(lambda: command_line(self._command(draft, "--seed", "7")))
            draft.rename(place)
        return place

    def begin(self, folder: Path) -> None:
        if self.overwrite:
            shutil.copytree(self._old(), folder)

    def ready(self, folder: Path | None) -> Callable[[], Any]:
        again = ["--resume", *(["--overwrite"] if self.overwrite else [])]
        if folder is None:
            folder = Path(tempfile.mkdtemp(dir=self.templates)) / "whole"

        def run() -> Any:
            finished = (folder / "table.json").is_file() and not (folder / "checkpoint" / store.MANIFEST).is_file()
            code = command_line(self._command(folder, *again))
            if code == 130:
                raise KeyboardInterrupt
            if code != 0 and not (code == 1 and finished):  # of a finished run the command says that it is one
                raise RuntimeError(f"the command ended with {code}")
            return folder

        return run

    def outcome(self, result: Any) -> str:
        return "ended"

    def learned(self, folder: Path | None, result: Any) -> dict[str, str]:
        read = load_table_run(result)
        scores = json.dumps(read.evaluate().as_dict(), sort_keys=True, default=str)
        return {
            "posterior": digest(read.fitted.posterior),
            "table": digest(read.state),
            "history": digest(history_of(read.fitted.info)),
            "predictions": hashlib.sha256(read.predict(self._table()).to_csv().encode()).hexdigest()[:16],
            "scores": hashlib.sha256(scores.encode()).hexdigest()[:16],
        }

    def look(self, folder: Path) -> int:
        done = load_table_run(folder).state.seed == 0 if (folder / "table.json").is_file() else None
        if done:
            return FINISHED
        if self.overwrite and done is None:
            raise RuntimeError("the run that was there is gone before the new one is")
        return look_into(folder / "checkpoint", None)

    def expected(self, folder: Path) -> set[str]:
        about = json.loads((folder / "table.json").read_text())
        model = {f"{about['model']}/{name}" for name in named_in(folder / about["model"])}
        return {"table.json", "files.json", about["test"], *model}


def subjects(templates: Path) -> list[Subject]:
    """Every method of the composition table by itself and in every wrapper, and everything else that writes a run."""
    found: list[Subject] = [
        Fit(name, lambda inner=inner: inner, {"dropout": True} if "MCDropout" in name else {}, weight=2)
        for name, inner in table.INNERS.items()
    ]
    found += [Fit(c.name, lambda c=c: c.outer(c.inner), c.problem) for c in table.cells()]
    stopping = tp.MAP(lr=0.1, patience=2)
    found += [
        Fit("MAP, stopped early", lambda: stopping, options={"held_out": 0.3}, weight=6),
        Fit("Ensemble of MAP, stopped early", lambda: tp.Ensemble(stopping, 2), options={"held_out": 0.3}, weight=6),
        Sample("sample, NUTS", tp.NUTS(max_depth=4)),
        Sample("sample, SGHMC", tp.SGHMC(lr=0.01)),
        Sample("sample, Warmup(HMC)", tp.Warmup(tp.HMC(length=3), 20, mass="none")),
    ]
    point, chain = tp.MAP(lr=0.05), tp.Collect(tp.SGHMC(lr=0.03))
    found += [
        Save("save onto another run", templates, point, tp.Laplace(point, tune=None)),
        Save("save draws onto draws", templates, tp.Ensemble(chain, 2), chain),
        Save("save onto a checkpoint", templates, tp.Laplace(point, tune=None), chain, checkpointed=True),
        Save("save draws onto themselves", templates, chain),
    ]
    classes = ("--target", "kind", "--epochs", "4", "--drop", "size", "--method")
    reals = ("--target", "size", "--epochs", "4", "--drop", "kind", "--method")
    found += [
        TableFit("table, map", templates, (*classes, "map", "--folds", "0")),
        TableFit("table, folds", templates, (*reals, "ensemble", "--folds", "2")),
        TableFit("table, sghmc", templates, (*reals, "sghmc", "--folds", "0")),
        TableFit("table, overwritten", templates, (*classes, "laplace", "--folds", "0"), overwrite=True),
    ]
    return found
