from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import temperance as tp
from temperance.core import files
from temperance.core.errors import CorruptRunError, MismatchError, StoreError
from temperance.linalg import DenseCovariance, DiagonalCovariance, LowRankCovariance
from temperance.posteriors import Draws, Gaussian, Mixture, Point
from temperance.run import store
from tests.run.saved import resealed

X, Y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 4


def network() -> nn.Module:
    return tp.nn.MLP(3, [8], 4)


def target_of(net: nn.Module | None = None, **options) -> tp.Target:
    return tp.Target(net or network(), tp.Categorical(), tp.GaussianPrior(1.0), **options)


def fitted_run(method=None) -> tp.Fitted:
    return tp.fit(target_of(), method or tp.Ensemble(tp.MAP(lr=0.01), 3), (X, Y), epochs=2, batch_size=16)


def test_saved_and_loaded_predictions_are_the_same_bit_for_bit(tmp_path):
    fitted = fitted_run()
    fitted.save(tmp_path / "run")
    loaded = tp.load(tmp_path / "run", network())
    assert torch.equal(loaded.predict(X).probs, fitted.predict(X).probs)
    assert loaded.method == fitted.method
    assert loaded.info == fitted.info
    assert loaded.target.prior == fitted.target.prior
    assert loaded.target.likelihood == fitted.target.likelihood


@pytest.mark.parametrize(
    "prior",
    [
        tp.GaussianPrior(tp.FanIn(2.0)),
        tp.GaussianPrior(torch.linspace(0.5, 2, 68)),
        tp.PerLayer(
            {"*.bias": tp.LaplacePrior(0.5), "*": tp.MixturePrior((tp.GaussianPrior(1.0), tp.StudentTPrior()))}
        ),
    ],
    ids=["fan-in", "tensor", "composed"],
)
def test_targets_come_back_as_they_were(tmp_path, prior):
    target = tp.Target(network(), tp.Categorical(), prior, temperature=0.3, likelihood_temperature=2.0)
    tp.fit(target, tp.MAP(), (X, Y), epochs=1).save(tmp_path / "run")
    loaded = tp.load(tmp_path / "run", network()).target
    assert loaded.prior == prior
    assert (loaded.temperature, loaded.likelihood_temperature) == (0.3, 2.0)
    theta = loaded.initial_theta()
    assert torch.equal(loaded.log_prior(theta), target.log_prior(theta))


def test_every_posterior_can_be_saved(tmp_path):
    target = target_of()
    size = target.num_parameters
    covariances = [
        DiagonalCovariance(torch.rand(size) + 0.1),
        LowRankCovariance(torch.rand(size) + 0.1, torch.randn(size, 3)),
        DenseCovariance(torch.eye(size)),
    ]
    posteriors = [Point(torch.randn(size)), Draws(torch.randn(5, size))]
    posteriors += [Gaussian(torch.randn(size), c) for c in covariances]
    posteriors.append(Mixture(tuple(posteriors), tuple([0.2] * 5)))
    for k, posterior in enumerate(posteriors):
        fitted = tp.Fitted(target, posterior, tp.run.fitted.RunInfo())
        fitted.save(tmp_path / str(k))
        loaded = tp.load(tmp_path / str(k), network())
        assert type(loaded.posterior) is type(posterior)
        assert torch.equal(loaded.predict(X).probs, fitted.predict(X).probs)


def test_subsets_and_frozen_weights_are_checked(tmp_path):
    net = network()
    fitted = tp.fit(target_of(net, subset=tp.last_layer), tp.MAP(lr=0.1), (X, Y), epochs=2)
    fitted.save(tmp_path / "run")
    assert torch.equal(tp.load(tmp_path / "run", net).predict(X).probs, fitted.predict(X).probs)
    with pytest.raises(MismatchError, match="frozen parameters"):
        tp.load(tmp_path / "run", network())
    chosen = tp.fit(target_of(net, subset=lambda name, p: "bias" in name), tp.MAP(lr=0.1), (X, Y), epochs=2)
    chosen.save(tmp_path / "own")
    with pytest.raises(MismatchError, match="function of yours"):
        tp.load(tmp_path / "own", net)
    again = tp.load(tmp_path / "own", net, target=target_of(net, subset=lambda name, p: "bias" in name))
    assert torch.equal(again.predict(X).probs, chosen.predict(X).probs)


def test_another_network_is_refused_by_name(tmp_path):
    fitted_run().save(tmp_path / "run")
    with pytest.raises(MismatchError, match=r"network differs.*\(8, 3\).*\(9, 3\)"):
        tp.load(tmp_path / "run", tp.nn.MLP(3, [9], 4))
    with pytest.raises(MismatchError, match=r"dtype torch.float32 in the run, torch.float64 now"):
        tp.load(tmp_path / "run", network().double())


def test_damaged_files_are_found_out(tmp_path):
    path = tmp_path / "run"
    fitted_run().save(path)
    file = next(path.glob("posterior-*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptRunError, match=r"damaged.*sha256"):
        tp.load(path, network())
    file.unlink()
    with pytest.raises(CorruptRunError, match="is missing"):
        tp.load(path, network())
    (path / "manifest.json").write_text("{")
    with pytest.raises(CorruptRunError, match="manifest"):
        tp.load(path, network())
    (path / "manifest.json").write_text('{"format": 99, "parts": {}}')
    with pytest.raises(MismatchError, match="format 99"):
        tp.load(path, network())
    with pytest.raises(StoreError, match="no manifest"):
        tp.load(tmp_path / "nothing", network())


def test_a_manifest_cannot_name_foreign_code(tmp_path):
    path = tmp_path / "run"
    fitted_run().save(path)
    for name in ("os:system", "torch.nn.modules.linear:torch", "temperance.run.store:remove_run", "torch.nn:Linear"):
        with resealed(path) as manifest:
            manifest["parts"]["target"]["form"]["$dict"][4][1] = {"$name": name}
        with pytest.raises(MismatchError, match=name):
            tp.load(path, network())


def test_a_run_whose_likelihood_had_another_law_is_refused(tmp_path):
    """The noise of HeteroscedasticNormal was e^r everywhere once: predictions would silently be others."""
    target = tp.Target(tp.nn.MLP(3, [4], 2), tp.HeteroscedasticNormal(), tp.GaussianPrior())
    tp.fit(target, tp.MAP(), (X, torch.linspace(-1.5, 1.5, 40)), epochs=1).save(tmp_path)
    assert tp.load(tmp_path, tp.nn.MLP(3, [4], 2)).predict(X).mean().isfinite().all()
    with resealed(tmp_path) as manifest:
        text = json.dumps(manifest)
        assert text.count(', "edition": 2') == 1
        manifest.update(json.loads(text.replace(', "edition": 2', "")))
    with pytest.raises(MismatchError, match="edition 1 of HeteroscedasticNormal"):
        tp.load(tmp_path, tp.nn.MLP(3, [4], 2))


def test_nothing_is_pickled(tmp_path):
    fitted_run().save(tmp_path / "run")
    names = sorted(f.suffix for f in (tmp_path / "run").iterdir())
    assert names == [".json", ".safetensors"]
    for file in (tmp_path / "run").glob("*.safetensors"):
        with pytest.raises(Exception):  # noqa: B017, PT011
            pickle.loads(file.read_bytes())


# ---------------------------------------------------------------------- disks that fail


def test_unwritable_places(tmp_path):
    fitted = fitted_run()
    with pytest.raises(StoreError, match=r"could not be written to '/proc/temperance/run'"):
        fitted.save("/proc/temperance/run")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="is a file"):
        fitted.save(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match="holds other files"):
        fitted.save(tmp_path / "folder")
    assert (tmp_path / "folder" / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_full_disk_leaves_the_old_run_as_it_was(tmp_path, monkeypatch, fails_at):
    path = tmp_path / "run"
    old = fitted_run()
    old.save(path)
    before = sorted(f.name for f in path.iterdir())
    new = fitted_run(tp.MAP(lr=0.5))
    count = 0
    real = os.fsync

    def full(handle: int) -> None:
        nonlocal count
        count += 1
        if count == fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StoreError, match=r"No space left on device.*Nothing was changed"):
        new.save(path)
    monkeypatch.setattr(files.os, "fsync", real)
    assert sorted(f.name for f in path.iterdir()) == before
    assert torch.equal(tp.load(path, network()).predict(X).probs, old.predict(X).probs)
    fresh = tmp_path / "fresh"
    count = 0
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StoreError):
        new.save(fresh)
    assert not fresh.exists()


def test_saving_again_replaces_the_run_and_leaves_no_litter(tmp_path):
    path = tmp_path / "run"
    fitted_run().save(path)
    second = fitted_run(tp.MAP(lr=0.5))
    second.save(path)
    assert len(list(path.iterdir())) == 2
    assert torch.equal(tp.load(path, network()).predict(X).probs, second.predict(X).probs)


# ---------------------------------------------------------------------- resuming


def test_a_finished_checkpoint_is_loaded_and_a_longer_run_goes_on(tmp_path):
    options = {"batch_size": 16, "checkpoint": tmp_path / "run"}
    first = tp.fit(target_of(network()), tp.MAP(lr=0.01), (X, Y), epochs=3, **options)
    net = first.target.network
    again = tp.fit(target_of(net), tp.MAP(lr=0.01), (X, Y), epochs=3, **options)
    assert torch.equal(first.posterior.theta, again.posterior.theta)
    longer = tp.fit(target_of(net), tp.MAP(lr=0.01), (X, Y), epochs=5, **options)
    assert longer.info.steps == 15
    assert longer.info.losses[:3] == first.info.losses


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed"),
        ({"batch_size": 8}, "batch_size"),
        ({"data": (X + 1e-3, Y)}, "the data"),
        ({"method": tp.MAP(lr=0.02)}, "the method"),
        ({"start": torch.zeros(68)}, "the start"),
        ({"prior": tp.GaussianPrior(2.0)}, "the target"),
        ({"network": tp.nn.MLP(3, [9], 4)}, "network differs"),
        ({"steps": 2}, "more than the 2 wanted"),
    ],
    ids=lambda v: str(v)[:20] if isinstance(v, str) else next(iter(v)),
)
def test_another_run_does_not_resume_here(tmp_path, change, message):
    net = network()

    def run(**options):
        net_, prior = options.pop("network", net), options.pop("prior", tp.GaussianPrior(1.0))
        target = tp.Target(net_, tp.Categorical(), prior)
        method, data = options.pop("method", tp.MAP(lr=0.01)), options.pop("data", (X, Y))
        settings = {"steps": 6, "batch_size": 16, "checkpoint": tmp_path / "run", **options}
        return tp.fit(target, method, data, **settings)

    run()
    with pytest.raises(MismatchError, match=message):
        run(**change)


def test_a_checkpoint_that_cannot_be_written_is_found_out_before_training(tmp_path):
    steps = []

    class Counting(tp.MAP):
        def step(self, engine, state, batch):
            steps.append(1)
            return super().step(engine, state, batch)

    with pytest.raises(StoreError, match="could not be written"):
        tp.fit(target_of(), Counting(), (X, Y), epochs=1, checkpoint="/proc/temperance/run")
    assert not steps


def test_a_saved_result_is_no_checkpoint(tmp_path):
    fitted_run().save(tmp_path / "run")
    with pytest.raises(MismatchError, match="written by `save`"):
        tp.fit(target_of(), tp.MAP(), (X, Y), epochs=1, checkpoint=tmp_path / "run")


_SCRIPT = """
import sys, time, torch
import temperance as tp
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(16, 4))
x, y = torch.randn(60, 3), torch.arange(60) % 4
target = tp.Target(net, tp.Categorical(), tp.GaussianPrior(1.0))
method = tp.Ensemble(tp.MAP(lr=0.01), 3)
fitted = tp.fit(target, method, (x, y), steps=STEPS, batch_size=16, checkpoint=CHECKPOINT, every=1)
torch.save(torch.stack([c.theta for c in fitted.posterior.components]), sys.argv[1])
"""


def _start(folder: Path, name: str, checkpoint: Path | None, steps: int) -> subprocess.Popen[bytes]:
    text = _SCRIPT.replace("CHECKPOINT", repr(str(checkpoint)) if checkpoint else "None").replace("STEPS", str(steps))
    script = folder / f"{name}.py"
    script.write_text(text)
    return subprocess.Popen([sys.executable, str(script), str(folder / f"{name}.pt")])


def test_a_process_killed_at_any_instant_leaves_a_loadable_run_that_resumes_exactly(tmp_path):
    steps = 150
    reference = _start(tmp_path, "reference", None, steps)
    assert reference.wait(120) == 0
    run = tmp_path / "run"
    net = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 4))
    kills = 0
    for attempt in range(4):
        process = _start(tmp_path, "killed", run, steps)
        deadline = time.monotonic() + 60
        while not (run / "manifest.json").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.05 + 0.13 * attempt if attempt == 0 else 2.0 + 0.11 * attempt)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        loaded = tp.load(run, net)  # whatever happened, this is a run
        assert loaded.info.status.code in ("unfinished", "ok")
        assert torch.isfinite(loaded.predict(torch.randn(2, 3)).probs).all()
        if loaded.info.steps == steps:
            break
    assert kills >= 1
    final = _start(tmp_path, "killed", run, steps)
    assert final.wait(120) == 0
    one, two = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("reference", "killed"))
    assert torch.equal(one, two)


# ---------------------------------------------------------------------- saving while the run goes on


def parts_of(value: torch.Tensor) -> dict:
    return {"state": ({"$tensor": "x"}, {"x": value, "again": value})}


def saving() -> bool:
    return any(thread.name == "temperance-save" for thread in threading.enumerate())


def test_what_is_written_later_is_what_was_given(tmp_path, monkeypatch):
    begin, real = threading.Event(), store.write_run

    def patient(*args, **options):
        assert begin.wait(30)
        real(*args, **options)

    monkeypatch.setattr(store, "write_run", patient)
    writer, value = store.Background(), torch.arange(6.0)
    writer.write(tmp_path / "run", {}, parts_of(value[2:]))
    value.zero_()
    begin.set()
    writer.wait()
    writer.wait()  # there is nothing to wait for
    assert store.open_run(tmp_path / "run").tensors("state")["x"].tolist() == [2.0, 3.0, 4.0, 5.0]


def test_what_comes_into_the_folder_while_a_run_is_written_stays(tmp_path, monkeypatch):
    """Draws of a sampler that began in between: the manifest that is being written knows nothing of them."""
    begin, real = threading.Event(), store.write_run

    def patient(*args, **options):
        assert begin.wait(30)
        real(*args, **options)

    store.write_run(tmp_path, {}, parts_of(torch.zeros(3)))
    (before,) = tmp_path.glob("*.safetensors")
    monkeypatch.setattr(store, "write_run", patient)
    writer = store.Background()
    writer.write(tmp_path, {}, parts_of(torch.ones(3)))
    (tmp_path / "draws-0123456789ab.run.rows").write_bytes(b"precious")
    begin.set()
    writer.wait()
    assert (tmp_path / "draws-0123456789ab.run.rows").read_bytes() == b"precious"
    assert not before.exists()
    store.write_run(tmp_path, {}, parts_of(torch.ones(3)))
    assert not (tmp_path / "draws-0123456789ab.run.rows").exists()  # nobody ever named it


def test_a_run_goes_on_while_it_is_saved_and_ends_when_it_is_saved(tmp_path, monkeypatch):
    steps, seen, real = [], [], store.write_run

    class Counting(tp.MAP):
        def step(self, engine, state, batch):
            steps.append(batch.step)
            return super().step(engine, state, batch)

    def slow(*args, **options):
        count = len(steps)
        if count == 2:  # the first save of the loop
            while len(steps) < 4 and len(seen) < 1000:
                time.sleep(0.01)
                seen.append(count)
        real(*args, **options)

    monkeypatch.setattr(store, "write_run", slow)
    tp.fit(target_of(), Counting(), (X, Y), steps=5, batch_size=16, checkpoint=tmp_path / "run", every=2)
    assert 0 < len(seen) < 1000
    assert not saving()
    assert tp.load(tmp_path / "run", network()).info.steps == 5


@pytest.mark.parametrize("torn", [False, True])
def test_a_save_that_fails_while_the_run_goes_on_loses_no_result(tmp_path, monkeypatch, torn):
    real, count = store.write_run, 0

    class Torn(tp.MAP):
        def step(self, engine, state, batch):
            state, info = super().step(engine, state, batch)
            if torn and batch.step == 5:
                raise KeyboardInterrupt
            return state, info

    def full(*args, **options):
        nonlocal count
        count += 1
        if count >= 2:
            raise StoreError("No space left on device")
        real(*args, **options)

    monkeypatch.setattr(store, "write_run", full)
    with pytest.raises(StoreError, match="No space") as caught:
        tp.fit(target_of(), Torn(), (X, Y), steps=6, batch_size=16, checkpoint=tmp_path / "run", every=4)
    assert caught.value.fitted.predict(X).probs.shape == (40, 4)
    assert not saving()


def test_a_run_that_fails_waits_for_its_save(tmp_path, monkeypatch):
    real = store.write_run

    class Failing(tp.MAP):
        def step(self, engine, state, batch):
            if batch.step == 3:
                raise ZeroDivisionError("mine")
            return super().step(engine, state, batch)

    def slow(*args, **options):
        time.sleep(0.3)
        real(*args, **options)

    monkeypatch.setattr(store, "write_run", slow)
    with pytest.raises(ZeroDivisionError, match="mine"):
        tp.fit(target_of(), Failing(), (X, Y), steps=5, batch_size=16, checkpoint=tmp_path / "run", every=3)
    assert not saving()
    assert store.open_run(tmp_path / "run").manifest["info"]["steps"] == 3


def test_files_of_tensors_are_those_that_safetensors_would_write(tmp_path):
    shared = torch.arange(12.0)
    tensors = {
        'π "q"\n': torch.randn(3, 2).t(),
        "b": torch.tensor(2, dtype=torch.int64),
        "a": torch.empty(0, 3),
        "c": torch.tensor([True, False, True]),
        "half": torch.randn(3).bfloat16(),
        "view": shared[2:5],
        "whole": shared,
        "row": torch.ones(1, 4, dtype=torch.float64).expand(3, -1),
        "byte": torch.arange(5, dtype=torch.uint8),
        "f16": torch.randn(2, 2).half(),
        "i32": torch.arange(3, dtype=torch.int32),
        "f64": torch.ones((), dtype=torch.float64),
        "i16": torch.ones(2, dtype=torch.int16),
        "i8": torch.ones(3, dtype=torch.int8),
    }
    digest = store._write_tensors(tmp_path / "mine", tensors)
    theirs = safetensors.torch.save({name: value.clone().contiguous() for name, value in tensors.items()})
    assert (tmp_path / "mine").read_bytes() == theirs
    assert digest == hashlib.sha256(theirs).hexdigest()
    with pytest.raises(FileExistsError):
        store._write_tensors(tmp_path / "mine", tensors)
    rare = {
        "z": torch.tensor([1 + 2j], dtype=torch.complex64),
        "u": torch.tensor([1, 2, 3], dtype=torch.uint16),
        "x": shared,
    }
    digest = store._write_tensors(tmp_path / "rare", rare)
    assert digest == files.digest(tmp_path / "rare")
    found = safetensors.torch.load_file(tmp_path / "rare")
    assert all(torch.equal(found[name], value) for name, value in rare.items())


def test_a_save_leaves_no_file_of_another_name_at_any_instant(tmp_path, monkeypatch):
    """A process that is killed while it writes must leave nothing that makes the folder somebody else's."""
    seen, real = set(), os.fsync

    def look(handle: int) -> None:
        seen.update(f.name for f in tmp_path.iterdir())
        real(handle)

    monkeypatch.setattr(files.os, "fsync", look)
    fitted_run().save(tmp_path)
    assert len(seen) >= 3
    assert all(store.is_file_of_run(name) or name == "manifest.json" for name in seen)


class _Slow:
    """A disk that takes its time, told when to go on."""

    def __init__(self, monkeypatch) -> None:
        self.go, self.real = threading.Event(), store.write_run
        monkeypatch.setattr(store, "write_run", self)

    def __call__(self, *args, **options) -> None:
        assert self.go.wait(30)
        self.real(*args, **options)


def _strike_soon() -> None:
    threading.Timer(0.3, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)).start()


def test_a_wait_that_is_interrupted_goes_on_waiting(tmp_path, monkeypatch):
    """`Thread.join` of Python 3.11 takes a thread for ended once a Ctrl-C has interrupted it."""
    slow, writer = _Slow(monkeypatch), store.Background()
    writer.write(tmp_path / "run", {}, parts_of(torch.ones(2)))
    _strike_soon()
    with pytest.raises(KeyboardInterrupt):
        writer.wait()
    assert saving()
    threading.Timer(0.3, slow.go.set).start()
    writer.wait()
    assert store.open_run(tmp_path / "run").tensors("state")["x"].tolist() == [1.0, 1.0]


def test_an_interrupt_does_not_let_go_of_a_folder_that_is_written_to(tmp_path, monkeypatch):
    slow, writer = _Slow(monkeypatch), store.Background()
    writer.write(tmp_path / "run", {}, parts_of(torch.ones(2)))
    _strike_soon()
    threading.Timer(0.8, slow.go.set).start()
    with pytest.raises(KeyboardInterrupt):
        writer.settle()
    assert (tmp_path / "run" / "manifest.json").is_file()


def test_writes_come_one_after_the_other_and_a_failure_is_raised_once(tmp_path, monkeypatch):
    real, order = store.write_run, []

    def late(path, manifest, parts, **options):
        if not order:
            time.sleep(0.3)
        order.append(float(parts["state"][1]["x"][0]))
        if len(order) == 3:
            raise StoreError("full")
        real(path, manifest, parts, **options)

    monkeypatch.setattr(store, "write_run", late)
    writer = store.Background()
    for value in (1.0, 2.0, 3.0):
        writer.write(tmp_path, {}, parts_of(torch.tensor([value])))
    with pytest.raises(StoreError, match="full"):
        writer.wait()
    writer.wait()
    assert order == [1.0, 2.0, 3.0]
    assert store.open_run(tmp_path).tensors("state")["x"].tolist() == [2.0]


def test_a_run_is_saved_at_its_end_where_the_save_before_failed(tmp_path, monkeypatch):
    real, count = store.write_run, 0

    def hiccup(*args, **options):
        nonlocal count
        count += 1
        if count == 2:
            raise StoreError("No space left on device")
        real(*args, **options)

    monkeypatch.setattr(store, "write_run", hiccup)
    tp.fit(target_of(), tp.MAP(), (X, Y), steps=8, batch_size=16, checkpoint=tmp_path / "run", every=4)
    assert count == 3  # the first, that of step 4, and the last; none at step 8 beside it
    assert tp.load(tmp_path / "run", network()).info.steps == 8


def test_draws_in_a_file_are_not_copied_by_a_save(tmp_path):
    names = set()

    class Watching(tp.Collect):
        def step(self, engine, state, batch):
            names.update(f.name for f in (tmp_path / "run").glob("*.rows"))
            return super().step(engine, state, batch)

    method = Watching(tp.SGHMC(lr=0.01), burn=0, every=1)
    tp.fit(target_of(), method, (X, Y), steps=9, batch_size=16, checkpoint=tmp_path / "run", every=3)
    assert len(names) == 2  # of draws, and of what was told of them
