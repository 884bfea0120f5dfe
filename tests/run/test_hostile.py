"""Runs that were put together by someone who means harm: every node of every JSON file of a run, replaced by hostile
values or left out, and sealed again. Only errors of ours come out, nothing hangs, nothing foreign is imported."""

from __future__ import annotations

import copy
import json
import shutil
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import temperance as tp
from temperance.core import sealed
from temperance.core.errors import StoreError, TemperanceError
from temperance.run import loop
from tests.run.saved import X, Y, network

pytestmark = pytest.mark.filterwarnings("ignore")
_SECONDS = 20  # more than any of these takes


def _deep(depth: int = 400) -> list:
    made: list = []
    for _ in range(depth):
        made = [made]
    return made


HOSTILE: tuple[Any, ...] = (
    None, True, -1, 2**63, 10**30, 1.5, float("nan"), float("inf"), "banana", "", "../../etc/passwd", "/etc/passwd",
    [], {}, [None], {"a": 1}, _deep(),
    {"$type": "builtins:eval", "fields": {}}, {"$type": "priors.GaussianPrior", "fields": {}},
    {"$type": "subprocess:Popen", "fields": {"args": "true"}}, {"$name": "os:system"}, {"$name": "torch.hub:load"},
    {"$name": "antigravity:fly"}, {"$tensor": "/nowhere"}, {"$series": "/nowhere"}, {"$state_dict": {}},
    {"$generator": "x"}, {"$torch": "torch.load"}, {"$enum": "os:PathLike", "name": "x"}, {"$dict": [[1]]},
)  # fmt: skip
_LEFT_OUT = object()

Opened = tuple[Path, Callable[[], Any]]


def target() -> tp.Target:
    return tp.Target(network(), tp.Categorical(), tp.GaussianPrior())


def _saved(path: Path, method: Any) -> Opened:
    tp.fit(target(), method, (X, Y), steps=3).save(path)
    return path / "manifest.json", lambda: tp.load(path, network()).predict(X[:2])


def ensemble(path: Path) -> Opened:
    return _saved(path, tp.Ensemble(tp.MAP(), 2))


def laplace(path: Path) -> Opened:
    return _saved(path, tp.Laplace(tp.MAP(), tp.KFAC(), tune=None))


def chain(path: Path) -> Opened:
    method = tp.Collect(tp.SGHMC(lr=1e-4), burn=0.5, every=2)
    tp.fit(target(), method, (X, Y), steps=12, batch_size=5, checkpoint=path, every=4, progress=False)
    return path / "manifest.json", lambda: tp.load(path, network()).predict(X[:2])


def resumed(path: Path) -> Opened:
    """A checkpoint that was left in the middle, and goes on."""
    method = tp.Collect(tp.SGHMC(lr=1e-4), burn=0.5, every=2)

    class Stopped(Exception):
        pass

    def go_on() -> Any:
        return tp.fit(target(), method, (X, Y), steps=12, batch_size=5, checkpoint=path, every=4, progress=False)

    def stop(*_: Any) -> None:
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Loop, "finish", stop)
        with pytest.raises(Stopped):
            go_on()
    kept = path.with_name("kept")
    shutil.copytree(path, kept)

    def again() -> Any:
        try:
            return go_on()
        finally:
            manifest = (path / "manifest.json").read_bytes()
            shutil.rmtree(path)
            shutil.copytree(kept, path)
            (path / "manifest.json").write_bytes(manifest)

    return path / "manifest.json", again


def calibrated(path: Path) -> Opened:
    fitted = tp.fit(target(), tp.MAP(), (X, Y), steps=3)
    held_out = (X.repeat(3, 1) + 1, Y.repeat(3))
    tp.calibrate.calibrated(fitted, held_out, tp.calibrate.Temperature()).save(path)
    return path / "manifest.json", lambda: tp.load(path, network()).predict(X[:2])


def _table(path: Path, name: str) -> Opened:
    rng = torch.Generator().manual_seed(0)
    frame = pd.DataFrame(torch.randn(120, 2, generator=rng).numpy(), columns=["a", "b"])
    frame["kind"], frame["y"] = ["u", "v", "w"] * 40, ["yes", "no"] * 60
    tp.tables.fit_table(frame, "y", out=path, method="map", epochs=1, progress=False)
    return path / name, lambda: tp.tables.load_table_run(path).predict(frame.head(2))


def table(path: Path) -> Opened:
    return _table(path, "table.json")


def files(path: Path) -> Opened:
    return _table(path, "files.json")


def estimator(path: Path) -> Opened:
    x, y = X.numpy(), Y.numpy()
    tp.sklearn.BayesianClassifier("map", hidden=(4,), epochs=1).fit(x, y).save(path)
    return path / "manifest.json", lambda: tp.sklearn.BayesianClassifier.load(path).predict_proba(x[:2])


def _nodes(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield from _nodes(tree[key], (*at, key))


def _changed(tree: Any, at: tuple[Any, ...], value: Any) -> Any:
    made = copy.deepcopy(tree)
    place = made
    for key in at[:-1]:
        place = place[key]
    if value is _LEFT_OUT:
        del place[at[-1]]
    else:
        place[at[-1]] = value
    return made


def _mutants(tree: Any, each: int) -> Iterator[tuple[str, Any]]:
    """At every node ``each`` of the hostile values, others at the next, and the tree without the node."""
    turn = 0
    for at in _nodes(tree):
        if not at:
            continue
        chosen = [HOSTILE[(turn + k) % len(HOSTILE)] for k in range(each)]
        turn += each
        for value in (*chosen, _LEFT_OUT):
            made = _changed(tree, at, value)
            if made != tree:
                yield f"{'/'.join(map(str, at))} = {'nothing' if value is _LEFT_OUT else repr(value)[:60]}", made


def _hang(*_: Any) -> None:
    raise TimeoutError("it hangs")


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs an alarm clock")
@pytest.mark.parametrize(
    ("kind", "each"),
    [(ensemble, 3), (laplace, 1), (chain, 1), (resumed, 1), (calibrated, 1), (table, 2), (files, 30), (estimator, 1)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_no_mutant_of_a_run_gets_past_the_reader(kind, each, tmp_path):
    file, read = kind(tmp_path / "run")
    data = file.read_bytes()
    tree = json.loads(data)
    has_seal = tree.pop("sha256", None) is not None
    read()
    if kind is resumed:
        file.write_bytes(data)
    before, count, wrong = set(sys.modules), 0, []
    clock = signal.signal(signal.SIGALRM, _hang)
    try:
        for what, mutant in _mutants(tree, each):
            file.write_bytes(sealed.render(mutant) if has_seal else json.dumps(mutant).encode())
            count += 1
            signal.alarm(_SECONDS)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    read()
            except TemperanceError:
                pass
            except Exception as error:
                wrong.append(f"{what}: {type(error).__name__}: {error}"[:300])
            finally:
                signal.alarm(0)
            file.write_bytes(data)
    finally:
        signal.signal(signal.SIGALRM, clock)
    foreign = {name for name in set(sys.modules) - before if name.split(".")[0] in ("antigravity", "this")}
    assert not foreign
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:20])
    assert count > 10


_HEADERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda header: [],
    "a number": lambda header: 3,
    "nothing": lambda header: {},
    "offsets beyond the file": lambda header: {k: {**v, "data_offsets": [0, 10**15]} for k, v in header.items()},
    "offsets that go back": lambda header: {k: {**v, "data_offsets": [8, 0]} for k, v in header.items()},
    "a dtype that is none": lambda header: {k: {**v, "dtype": "load"} for k, v in header.items()},
    "another dtype": lambda header: {k: {**v, "dtype": "I32"} for k, v in header.items()},
    "complex numbers": lambda header: {
        k: {**v, "dtype": "C64", "shape": [v["shape"][0] // 2]} for k, v in header.items()
    },
    "a shape that is a text": lambda header: {k: {**v, "shape": "banana"} for k, v in header.items()},
    "a giant shape": lambda header: {k: {**v, "shape": [2**62, 4]} for k, v in header.items()},
    "a shape below zero": lambda header: {k: {**v, "shape": [-1]} for k, v in header.items()},
    "other names": lambda header: {f"{k}x": v for k, v in header.items()},
    "no dtype": lambda header: {k: {"shape": v["shape"], "data_offsets": v["data_offsets"]} for k, v in header.items()},
}


@pytest.mark.parametrize("harm", _HEADERS)
def test_a_tensor_file_with_a_hostile_header_is_a_corrupt_run(harm, tmp_path):
    """Its digest is made good in the manifest: only the header can tell."""
    path = tmp_path / "run"
    tp.fit(target(), tp.MAP(), (X, Y), steps=3).save(path)
    file = next(path.glob("posterior-*.safetensors"))
    content = file.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = {k: v for k, v in json.loads(content[8 : 8 + size]).items() if k != "__metadata__"}
    made = json.dumps(_HEADERS[harm](header)).encode()
    file.write_bytes(struct.pack("<Q", len(made)) + made + content[8 + size :])
    tree = json.loads((path / "manifest.json").read_bytes())
    del tree["sha256"]
    tree["parts"]["posterior"]["sha256"] = tp.core.files.digest(file)
    (path / "manifest.json").write_bytes(sealed.render(tree))
    with pytest.raises(StoreError):
        tp.load(path, network()).predict(X)
