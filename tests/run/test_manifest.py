"""What is damaged, or was never a manifest, is found out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import temperance as tp
from temperance.core.errors import CorruptRunError, StoreError
from temperance.run import store
from tests.run.saved import X, Y, fitted_run, network, resealed, target_of

# ---------------------------------------------------------------------- one bit


def _every_bit_is_found_out(file: Path, read, step: int = 1) -> None:
    data = file.read_bytes()
    for place in range(0, len(data), step):
        for bit in range(8) if place < 200 else (place % 8,):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            file.write_bytes(bytes(changed))
            with pytest.raises(CorruptRunError):
                read()
    file.write_bytes(data)
    read()


def test_one_flipped_bit_anywhere_in_a_run_is_found_out(tmp_path):
    path = tmp_path / "run"
    fitted_run(epochs=100).save(path)
    names = sorted(f.name.split("-")[0] for f in path.iterdir())
    assert names == ["history", "manifest.json", "posterior", "target"]
    _every_bit_is_found_out(path / "manifest.json", lambda: store.open_run(path), step=7)
    for file in path.glob("*.safetensors"):
        _every_bit_is_found_out(file, lambda: tp.load(path, network()), step=37)


def test_one_flipped_bit_in_a_calibrated_run_or_in_active_learning_is_found_out(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] + 0.5 * x[:, 1].cos() > 0.4).long()
    fitted = tp.fit(target_of(), tp.MAP(lr=0.05), (x[:30], y[:30]), epochs=50)
    made = tp.calibrate.calibrated(fitted, (x[30:], y[30:]), tp.calibrate.Temperature())
    made.save(tmp_path / "run")
    _every_bit_is_found_out(tmp_path / "run" / "manifest.json", lambda: tp.load(tmp_path / "run", network()), step=29)

    def learn():
        return tp.decide.learn_actively(
            target_of, tp.MAP(), (X, Y), start=4, batch=2, rounds=1, epochs=1, folder=tmp_path / "active"
        )

    learn()
    for name in ("manifest", "active"):  # learning that goes on writes under new names
        _every_bit_is_found_out(next((tmp_path / "active").glob(f"{name}*")), learn, step=101)


# ---------------------------------------------------------------------- histories


def test_long_histories_are_not_in_the_manifest(tmp_path):
    fitted = fitted_run()
    fitted.save(tmp_path / "short")
    fitted.info.losses = torch.rand(50_000, dtype=torch.float64).tolist()
    fitted.info.elbos = [0.1 * k for k in range(50_000)]
    fitted.save(tmp_path / "long")
    sizes = [(tmp_path / name / "manifest.json").stat().st_size for name in ("short", "long")]
    assert sizes[1] < sizes[0] + 200
    loaded = tp.load(tmp_path / "long", network())
    assert loaded.info == fitted.info


# ---------------------------------------------------------------------- manifests of others


def _deep(depth: int = 5000):
    made: list = []
    for _ in range(depth):
        made = [made]
    return made


def _set(*path_and_value):
    *path, last, value = path_and_value

    def change(manifest):
        place = manifest
        for key in path:
            place = place[key]
        place[last] = value

    return change


def _without(*path):
    def change(manifest):
        place = manifest
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return change


_POSTERIOR = ("parts", "posterior")
_PRIOR = ("parts", "target", "form", "$dict", 1, 1)
MALFORMED = {
    "no parts": _without("parts"),
    "parts a list": _set("parts", []),
    "a part a number": _set("parts", "posterior", 3),
    "no target": _without("parts", "target"),
    "no history": _without("parts", "history"),
    "no layout": _without("layout"),
    "layout a list": _set("layout", []),
    "a dtype that is a function": _set("layout", "dtype", "load"),
    "an entry without a name": _without("layout", "entries", 0, "name"),
    "a shape that is no list": _set("layout", "entries", 0, "shape", 3),
    "no seed": _without("seed"),
    "seed a text": _set("seed", "0"),
    "seed a truth": _set("seed", True),
    "no info": _without("info"),
    "info with an unknown entry": _set("info", "mood", "good"),
    "steps a text": _set("info", "steps", "many"),
    "steps negative": _set("info", "steps", -1),
    "no status": _without("info", "status"),
    "status a text": _set("info", "status", "ok"),
    "no run": _without("run"),
    "moving a number": _set("moving", 3),
    "no digest": _without(*_POSTERIOR, "sha256"),
    "digest a number": _set(*_POSTERIOR, "sha256", 3),
    "digest without a file": _set(*_POSTERIOR, "file", None),
    "an unknown entry": _set(*_POSTERIOR, "compression", "zip"),
    "a path": _set(*_POSTERIOR, "file", "../../etc/passwd"),
    "an absolute path": _set(*_POSTERIOR, "file", "/etc/passwd"),
    "a file name of another kind": _set(*_POSTERIOR, "file", "manifest.json"),
    "rows outside": _set(
        *_POSTERIOR, "rows",
        {"": {"file": "../draws-0123456789ab.run.rows", "rows": 1, "width": 1, "dtype": "float32", "checksum": 0}},
    ),
    "rows beyond any disk": _set(
        *_POSTERIOR, "rows",
        {"": {"file": "draws-0123456789ab.run.rows", "rows": 10**30, "width": 1, "dtype": "float32", "checksum": 0}},
    ),
    "rows of a dtype that is none": _set(
        *_POSTERIOR, "rows",
        {"": {"file": "draws-0123456789ab.run.rows", "rows": 1, "width": 1, "dtype": "load", "checksum": 0}},
    ),
    "rows a list": _set(*_POSTERIOR, "rows", []),
    "an unknown form": _set(*_POSTERIOR, "form", {"$pickle": "gANYYQ=="}),
    "two forms at once": _set(*_POSTERIOR, "form", {"$tuple": [], "$dict": []}),
    "an object without a form": _set(*_POSTERIOR, "form", {"theta": 3}),
    "no posterior but a text": _set(*_POSTERIOR, "form", "point"),
    "a posterior of numbers": _set(*_POSTERIOR, "form", "fields", "theta", 3),
    "a posterior without fields": _without(*_POSTERIOR, "form", "fields"),
    "a posterior with more fields": _set(*_POSTERIOR, "form", "fields", "more", 3),
    "a tensor that is not there": _set(*_POSTERIOR, "form", "fields", "theta", {"$tensor": "/elsewhere"}),
    "a tensor named by a number": _set(*_POSTERIOR, "form", "fields", "theta", {"$tensor": 3}),
    "pairs that are none": _set("parts", "target", "form", {"$dict": [[1]]}),
    "pairs that are a number": _set("parts", "target", "form", {"$dict": 3}),
    "keys that are lists": _set("parts", "target", "form", {"$dict": [[[1], 2]]}),
    "a tuple that is a number": _set("parts", "target", "form", {"$tuple": 3}),
    "a dtype from elsewhere": _set("parts", "target", "form", {"$torch": "torch.load"}),
    "a device that is none": _set("parts", "target", "form", {"$torch": "moon"}),
    "nesting too deep to read": _set("parts", "target", "form", _deep(900)),
    "no prior": _without("parts", "target", "form", "$dict", 1),
    "a prior that is a number": _set(*_PRIOR, 3),
    "a prior that refuses its scale": _set(*_PRIOR, "fields", "scale", -1.0),
    "a temperature that is a text": _set("parts", "target", "form", "$dict", 2, 1, "cold"),
    "a temperature below zero": _set("parts", "target", "form", "$dict", 2, 1, -1.0),
    "a method of unknown form": _set("parts", "method", "form", {"$lambda": 1}),
    "a method that refuses its settings": _set("parts", "method", "form", "fields", "lr", -1.0),
    "a history that is a number": _set("parts", "history", "form", 3),
    "a history without losses": _without("parts", "history", "form", "$dict", 0),
}  # fmt: skip


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    path = tmp_path_factory.mktemp("malformed") / "run"
    fitted_run().save(path)
    return path


@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_manifest_is_a_corrupt_run(saved_once, change):
    before = (saved_once / "manifest.json").read_bytes()
    try:
        with resealed(saved_once) as manifest:
            change(manifest)
        with pytest.raises(CorruptRunError):
            tp.load(saved_once, network())
    finally:
        (saved_once / "manifest.json").write_bytes(before)
    tp.load(saved_once, network())


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", "null", "{", "\xff", '{"format": ' + "9" * 5000 + "}", "[" * 100_000, '{"format": true}'],
    ids=["empty", "list", "number", "null", "half", "bytes", "giant", "deep", "truth"],
)
def test_text_that_is_no_manifest_is_a_corrupt_run(saved_once, text):
    before = (saved_once / "manifest.json").read_bytes()
    try:
        (saved_once / "manifest.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(CorruptRunError):
            tp.load(saved_once, network())
        with pytest.raises(StoreError, match="holds other files"):
            fitted_run().save(saved_once)
    finally:
        (saved_once / "manifest.json").write_bytes(before)


def test_a_checkpoint_cannot_point_outside_its_folder(tmp_path):
    net = network()
    options = {"steps": 40, "batch_size": 5, "checkpoint": tmp_path / "run"}
    method = tp.Collect(tp.SGLD(lr=1e-4), burn=0.5, every=2)
    tp.fit(target_of(net), method, (X, Y), **options)
    outside = tmp_path / "draws-0123456789ab.run.rows"
    outside.write_bytes(b"precious" * 1000)
    text = (tmp_path / "run" / "manifest.json").read_text()
    names = re.findall(r'"name": "(draws-[0-9a-f]{12}\.run\.rows)"', text)
    assert names
    with resealed(tmp_path / "run") as manifest:
        state = json.dumps(manifest["parts"]["state"]).replace(names[0], f"../{outside.name}")
        manifest["parts"]["state"] = json.loads(state)
    with pytest.raises(CorruptRunError):
        tp.fit(target_of(net), method, (X, Y), **{**options, "steps": 60})
    assert outside.read_bytes() == b"precious" * 1000


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize("name", [[], {}, 3, None])
def test_an_entry_of_the_layout_without_a_name_is_found_out(name, tmp_path):
    fitted_run().save(tmp_path)
    with resealed(tmp_path) as manifest:
        manifest["layout"]["entries"][0]["name"] = name
    with pytest.raises(CorruptRunError, match="damaged"):
        tp.load(tmp_path, network())
