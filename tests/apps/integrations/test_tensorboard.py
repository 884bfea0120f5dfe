"""What is written is what TensorBoard reads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError
from temperance.engine.engine import Engine
from temperance.judge import diagnose

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from temperance.apps.integrations.tensorboard import TensorBoardLogger, write_tensorboard

X = torch.linspace(-1, 1, 12).unsqueeze(1)
Y = 2 * X + 0.1 * torch.sin(20 * X)


def target() -> tp.Target:
    return tp.Target(nn.Linear(1, 1), tp.Normal(scale=0.3), tp.GaussianPrior(scale=1.0))


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    found.Reload()
    return found


def scalars(events: EventAccumulator, tag: str) -> tuple[list[int], list[float]]:
    points = events.Scalars(tag)
    return [p.step for p in points], [p.value for p in points]


def test_losses_scores_and_figures(tmp_path: Path) -> None:
    fitted = tp.fit(target(), tp.Variational(lr=1e-2), (X, Y), epochs=5, batch_size=4)
    write_tensorboard(fitted, tmp_path, test=(X, Y))
    events = read(tmp_path)
    steps, values = scalars(events, "train/loss")
    assert steps == [1, 2, 3, 4, 5]
    assert values == pytest.approx(fitted.info.losses)
    assert scalars(events, "train/elbo")[1] == pytest.approx(fitted.info.elbos)
    scores = fitted.evaluate((X, Y))
    for name, value in scores.items():
        assert scalars(events, f"test/{name}") == ([15], [pytest.approx(value)])
    assert events.Tags()["images"] == ["calibration"]
    assert "target/text_summary" in events.Tags()["tensors"]
    assert not [tag for tag in events.Tags()["scalars"] if tag.startswith("sampler")]


def test_classes_and_early_stopping(tmp_path: Path) -> None:
    labels = (Y[:, 0] > 0).long()
    problem = tp.Target(nn.Linear(1, 2), tp.Categorical(), tp.GaussianPrior(scale=1.0))
    fitted = tp.fit(problem, tp.MAP(lr=1e-2, patience=3), (X, labels), epochs=4, held_out=(X[:4], labels[:4]))
    from matplotlib.figure import Figure

    write_tensorboard(fitted, tmp_path, test=(X, labels), figures={"mine": Figure()})
    events = read(tmp_path)
    assert scalars(events, "train/held_out_score")[1] == pytest.approx(fitted.info.held_out_scores)
    assert sorted(events.Tags()["images"]) == ["calibration", "mine"]


def test_a_sampler_tells_of_temperatures_and_transitions(tmp_path: Path) -> None:
    fitted = tp.fit(target(), tp.Ensemble(tp.Collect(tp.SGHMC(lr=1e-3), burn=20, every=5), 2), (X, Y), steps=100)
    write_tensorboard(fitted, tmp_path / "sghmc")
    events = read(tmp_path / "sghmc")
    trace = diagnose.chains.chains_of(fitted.posterior)[1].trace
    steps, values = scalars(events, "sampler/chain_2/kinetic_temperature")
    assert steps == trace.step.tolist()
    assert values == pytest.approx((trace.kinetic.double().sum(1) / 2).tolist())  # two tensors of one number each
    exact = tp.fit(target(), tp.Collect(tp.HMC(step_size=0.05, length=4), burn=0, every=1), (X, Y), steps=40)
    write_tensorboard(exact, tmp_path / "hmc", most=10)
    events = read(tmp_path / "hmc")
    steps, values = scalars(events, "sampler/energy")
    assert len(steps) == 10
    assert (steps[0], steps[-1]) == (1, 40)
    energy = Engine(exact.target).energy(exact.posterior.theta, tp.data.Data(X, Y))
    assert values[-1] == pytest.approx(float(energy[-1]), rel=1e-4)


def test_a_run_is_followed_while_it_runs(tmp_path: Path) -> None:
    with TensorBoardLogger(tmp_path / "log", tmp_path / "run", seconds=60) as logger:
        assert logger.look() == 0
        tp.fit(target(), tp.MAP(lr=1e-2), (X, Y), epochs=3, batch_size=4, checkpoint=tmp_path / "run")
        assert logger.look() == 3
        assert logger.look() == 3  # nothing is written twice
    steps, values = scalars(read(tmp_path / "log"), "train/loss")
    assert steps == [1, 2, 3]
    saved = tp.load(tmp_path / "run", nn.Linear(1, 1))
    assert values == pytest.approx(saved.info.losses)


def test_the_thread_looks_by_itself(tmp_path: Path) -> None:
    with TensorBoardLogger(tmp_path / "log", tmp_path / "run", seconds=0.01):
        tp.fit(target(), tp.MAP(lr=1e-2), (X, Y), epochs=20, batch_size=4, checkpoint=tmp_path / "run")
    assert scalars(read(tmp_path / "log"), "train/loss")[0] == list(range(1, 21))


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="`fitted`"):
        write_tensorboard("run", tmp_path)
    with pytest.raises(ArgumentError, match="`seconds`"):
        TensorBoardLogger(tmp_path, tmp_path, seconds=0)
    fitted = tp.fit(target(), tp.MAP(lr=1e-2), (X, Y), epochs=1)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"temperance\[tensorboard\]"):
        write_tensorboard(fitted, tmp_path)
