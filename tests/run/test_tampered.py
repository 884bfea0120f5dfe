"""Tensors of a saved run changed by someone who makes the digests good again: other dtypes, other shapes, NaN. Loading
it, or going on from it, is an error of ours that says so; nothing of PyTorch's comes out later, in a prediction."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import safetensors.torch
import torch
from torch import Tensor

import temperance as tp
from temperance.core import sealed
from temperance.core.errors import CorruptRunError, NumericalError
from temperance.run import loop
from tests.run.saved import X, Y, network, resealed

pytestmark = pytest.mark.filterwarnings("ignore")

HARM: dict[str, Callable[[Tensor], Tensor]] = {
    "float64": lambda t: t.double(),
    "half": lambda t: t.half(),
    "int64": lambda t: t.long(),
    "empty": lambda t: t.reshape(-1)[:0],
    "shorter": lambda t: t.reshape(-1)[:-1],
    "doubled": lambda t: torch.cat([t.reshape(-1), t.reshape(-1)]),
    "a number": lambda t: t.reshape(-1)[0],
    "NaN": lambda t: torch.full_like(t, float("nan")),
}


def target() -> tp.Target:
    return tp.Target(network(), tp.Categorical(), tp.GaussianPrior())


def tampered(path: Path, part: str, name: str, harm: str) -> bool:
    """Change one tensor of a part, and all digests with it; whether that changed its shape or dtype."""
    with resealed(path) as manifest:
        entry = manifest["parts"][part]
        file = path / entry["file"]
        tensors = safetensors.torch.load_file(file)
        (found,) = [key for key in tensors if key.endswith(name)]
        before, tensors[found] = tensors[found], HARM[harm](tensors[found]).contiguous().clone()
        data = safetensors.torch.save(tensors)
        file.write_bytes(data)
        entry["sha256"] = hashlib.sha256(data).hexdigest()
    return (before.shape, before.dtype) != (tensors[found].shape, tensors[found].dtype)


_POSTERIORS = {
    "point": (tp.MAP(), ["/theta"]),
    "mixture": (tp.Ensemble(tp.MAP(), 2), ["components/1/theta"]),
    "swag": (tp.SWAG(tp.MAP(lr=0.01, optimizer=torch.optim.SGD), rank=2, start=0.2), ["/mean", "/variance", "/factor"]),
    "kfac": (
        tp.Laplace(tp.MAP(), tp.KFAC(), tune=None),
        [f"blocks/{k}/{name}" for k in (0, 1) for name in ("in_scale", "out_scale", "basis_in", "basis_out")],
    ),
    "dense": (tp.Laplace(tp.MAP(), tp.Dense(), tune=None), ["/matrix", "/prior_precision"]),
    "process": (tp.FunctionalLaplace(tp.MAP()), ["/theta"]),
}


_HARMLESS = {("/prior_precision", "float64"), ("/prior_precision", "half")}  # it is added in the matrix's own dtype


@pytest.mark.parametrize("kind", _POSTERIORS)
def test_tensors_that_no_posterior_has_are_found_out_by_load(kind: str, tmp_path: Path) -> None:
    method, names = _POSTERIORS[kind]
    path = tmp_path / "run"
    fitted = tp.fit(target(), method, (X, Y), steps=8, progress=False)
    for name in names:
        for harm in HARM:
            fitted.save(path)
            tampered(path, "posterior", name, harm)
            if harm == "NaN" and kind in ("kfac", "dense"):  # no covariance: for the prediction to say
                with pytest.raises((CorruptRunError, NumericalError)):
                    tp.load(path, network()).predict(X)
                continue
            if (name, harm) in _HARMLESS:
                tp.load(path, network()).predict(X)
                continue
            with pytest.raises(CorruptRunError):
                tp.load(path, network())
    fitted.save(path)
    made, state = network(), torch.get_rng_state()
    again = tp.load(path, made)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(again.predict(X).probs, fitted.predict(X).probs)


@pytest.mark.parametrize("harm", ["empty", "shorter", "doubled", "a number", "int64"])
@pytest.mark.parametrize("name", ["knots/1", "values/0"])
def test_curves_of_unequal_lengths_are_found_out(name: str, harm: str, tmp_path: Path) -> None:
    fitted = tp.fit(target(), tp.MAP(), (X, Y), steps=3, progress=False)
    tp.calibrate.calibrated(fitted, (X.repeat(3, 1) + 1, Y.repeat(3)), tp.calibrate.Isotonic()).save(tmp_path / "run")
    tampered(tmp_path / "run", "calibrator", name, harm)
    with pytest.raises(CorruptRunError):
        tp.load(tmp_path / "run", network())


class Stopped(Exception):
    pass


_NUTS = tp.Ensemble(tp.Collect(tp.Warmup(tp.NUTS(max_depth=3), 6, mass="none"), last=10), 2)
_STATES = {
    "sghmc": (tp.Collect(tp.SGHMC(lr=1e-4), burn=0.25, every=2), ["/velocity", "/theta"]),
    "nuts": (_NUTS, ["/inverse_mass", "/energy", "/edges", "/step_size"]),
}


@pytest.mark.parametrize("kind", _STATES)
def test_tensors_that_no_state_has_are_found_out_when_a_run_goes_on(kind: str, tmp_path: Path) -> None:
    method, names = _STATES[kind]

    def go_on(path: Path) -> Any:
        return tp.fit(target(), method, (X, Y), steps=12, checkpoint=path, every=4, progress=False)

    def stop(*_: Any) -> None:
        raise Stopped

    for k, (name, harm) in enumerate((name, harm) for name in names for harm in HARM if harm != "NaN"):
        path = tmp_path / str(k)
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Stopped):
            patch.setattr(loop.Loop, "finish", stop)
            go_on(path)
        if not tampered(path, "state", name, harm):
            continue
        with pytest.raises(CorruptRunError, match="of the run's state must have shape"):
            go_on(path)


# ---------------------------------------------------------------------- estimators and tables


def _entries(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what an estimator keeps, as a dictionary of forms."""
    with resealed(path) as manifest:
        form = manifest["parts"]["estimator"]["form"]
        entries = dict(form["$dict"])
        change(entries)
        form["$dict"] = [[key, value] for key, value in entries.items()]


def _learned(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(entries: dict[str, Any]) -> None:
        kept = [pair for pair in entries["learned"]["$dict"] if pair[0] != name]
        entries["learned"]["$dict"] = kept if value is None else [*kept, [name, value]]

    return change


@pytest.mark.parametrize(
    "change",
    [
        _learned("classes_", None),
        _learned("classes_", 3),
        _learned("n_features_in_", True),
        _learned("n_features_in_", ""),
        _learned("n_features_in_", 7),
        _learned("n_features_in_", None),
        lambda entries: entries.update(calibrator=1.5),
    ],
)
def test_what_no_estimator_learns_is_found_out(change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    path = tmp_path / "run"
    tp.sklearn.BayesianClassifier("map", hidden=(4,), epochs=1).fit(X.numpy(), Y.numpy()).save(path)
    _entries(path, change)
    with pytest.raises(CorruptRunError, match="the estimator"):
        tp.sklearn.BayesianClassifier.load(path)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "run"
    frame = pd.DataFrame({"a": X[:, 0].repeat(6).numpy() + range(120), "y": ["yes", "no"] * 60})
    tp.tables.fit_table(frame, "y", out=path, method="map", epochs=1, progress=False)
    return path


def _reseal_table(path: Path) -> None:
    """``table.json`` has the digest of the model's manifest."""
    about = json.loads((path / "table.json").read_text())
    del about["sha256"]
    manifest = path / about["model"] / "manifest.json"
    about["sha256 of its manifest"] = hashlib.sha256(manifest.read_bytes()).hexdigest()
    (path / "table.json").write_bytes(sealed.render(about))


@pytest.mark.parametrize("harm", ["empty", "shorter", "a number"])
@pytest.mark.parametrize(
    "name",
    ["guard_y", "guard_x", "strangeness/whitening", "strangeness/centre", "/baseline", "folds/0/posterior/theta"],
)
def test_tensors_that_no_table_has_are_found_out(name: str, harm: str, table: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(table, path)
    (model,) = path.glob("model-*")
    tampered(model, "table", name, harm)
    _reseal_table(path)
    with pytest.raises(CorruptRunError):
        tp.tables.load_table_run(path)


@pytest.mark.parametrize(
    "field", ["baseline", "schema/transform", "schema/classes", "calibrator", "guard/deferral", "guard/conformal"]
)
def test_fields_that_no_table_has_are_found_out(field: str, table: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(table, path)
    (model,) = path.glob("model-*")
    with resealed(model) as manifest:
        place = manifest["parts"]["table"]["form"]
        *outer, last = field.split("/")
        for key in outer:
            place = place["fields"][key]
        place["fields"][last] = "x"
    _reseal_table(path)
    with pytest.raises(CorruptRunError):
        tp.tables.load_table_run(path)


@pytest.mark.parametrize("harm", ["int64", "a number"])
def test_scores_that_no_rule_has_are_found_out(harm: str, table: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(table, path)
    (model,) = path.glob("model-*")
    tampered(model, "table", "guard/conformal/scores/0", harm)
    _reseal_table(path)
    with pytest.raises(CorruptRunError, match="scores"):
        tp.tables.load_table_run(path)
