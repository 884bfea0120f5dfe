"""The loop of ``fit``: what ends it, what it keeps, how it goes on."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import MismatchError, NumericalError, StoreError, TemperanceWarning
from temperance.inference.base import NeedsData
from temperance.run.loop import Loop
from tests.small import X, Y, real


def test_a_result_that_cannot_be_saved_is_not_lost(tmp_path, monkeypatch):
    from temperance.run import store

    real_write = store.write_run
    count = 0

    def fails_later(*args):
        nonlocal count
        count += 1
        if count > 1:
            raise StoreError("No space left on device")
        real_write(*args)

    monkeypatch.setattr(store, "write_run", fails_later)
    with pytest.raises(StoreError) as caught:
        tp.fit(real(), tp.MAP(), (X, Y), epochs=1, checkpoint=tmp_path / "run")
    assert caught.value.fitted.predict(X).mean().shape == (20, 1)


class InfiniteSlope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + (self.layer(x) * x[:, 2:]).abs().sqrt()


def test_a_gradient_that_is_not_finite_is_not_used(tmp_path):
    x = X.clone()
    x[7, 2] = 0.0
    with pytest.raises(NumericalError, match="infinite slope") as caught:
        tp.fit(real(InfiniteSlope()), tp.MAP(), (x, Y), epochs=5, batch_size=5, checkpoint=tmp_path / "run", every=1)
    assert torch.isfinite(caught.value.fitted.posterior.theta).all()
    assert torch.isfinite(tp.load(tmp_path / "run", InfiniteSlope()).posterior.theta).all()


@dataclass(frozen=True, eq=False)
class _TornStep(tp.MAP):
    at: int = 7

    def step(self, engine, state, batch):
        state, info = super().step(engine, state, batch)
        if batch.step == self.at:
            raise KeyboardInterrupt
        return state, info


@dataclass(frozen=True, eq=False)
class _StruckAtTheEnd(tp.MAP):
    def step(self, engine, state, batch):
        state, info = super().step(engine, state, batch)
        if batch.step == 7:
            os.kill(os.getpid(), signal.SIGINT)
            info = replace(info, done=True)
        return state, info


def test_an_interrupt_in_the_step_that_ends_a_run_is_heard(capsys):
    made = tp.fit(real(), _StruckAtTheEnd(), (X, Y), epochs=5, batch_size=5)
    assert made.info.steps == 8
    assert made.info.status.code == "ok"
    assert "interrupted in the last step of the run, which is whole" in capsys.readouterr().out


def test_an_interrupt_in_the_middle_of_a_step_leaves_the_last_checkpoint(tmp_path):
    net = nn.Linear(3, 1)
    whole = tp.fit(real(net), _TornStep(at=10**6), (X, Y), epochs=5, batch_size=5)
    torn = tp.fit(real(net), _TornStep(), (X, Y), epochs=5, batch_size=5, checkpoint=tmp_path / "run", every=1)
    assert torn.info.status.code == "interrupted"
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["info"]["steps"] == 7
    original = _TornStep.step
    _TornStep.step = tp.MAP.step
    try:
        resumed = tp.fit(real(net), _TornStep(), (X, Y), epochs=5, batch_size=5, checkpoint=tmp_path / "run", every=1)
    finally:
        _TornStep.step = original
    assert torch.equal(resumed.posterior.theta, whole.posterior.theta)


@dataclass(frozen=True, eq=False)
class _TooEarly(tp.MAP):
    twice: bool = False

    def step(self, engine, state, batch):
        if batch.step == 3:
            for _ in range(1 + self.twice):
                os.kill(os.getpid(), signal.SIGINT)
        return super().step(engine, state, batch)

    def posteriors(self, engine, state, data):
        if self.twice and data is not None:
            raise RuntimeError("half a step")
        raise NeedsData("no step of the second part was made yet.")


@pytest.mark.parametrize("twice", [False, True])
def test_ctrl_c_where_there_is_no_posterior_stays_one_and_says_how_to_go_on(tmp_path, twice):
    """Whatever a method raises then: a broken step may leave anything, a whole one is kept."""
    options = {"epochs": 5, "batch_size": 5, "checkpoint": tmp_path / "run", "every": 100}
    with pytest.raises(KeyboardInterrupt, match="of 20 steps; call fit again with the same checkpoint"):
        tp.fit(real(), _TooEarly(twice=twice), (X, Y), **options)
    saved = json.loads((tmp_path / "run" / "manifest.json").read_text())["info"]["steps"]
    assert saved == (0 if twice else 4)


def test_ctrl_c_after_the_last_step_is_heard_before_a_second_phase(tmp_path, monkeypatch, capsys):
    net, method, options = nn.Linear(3, 1), tp.Laplace(tp.MAP(), tune=None), {"epochs": 2, "batch_size": 5}
    whole = tp.fit(real(net), method, (X, Y), **options)
    batches = Loop._batches

    def late(self):
        yield from batches(self)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Loop, "_batches", late)
    stopped = tp.fit(real(net), method, (X, Y), checkpoint=tmp_path / "run", **options)
    monkeypatch.undo()
    assert stopped.info.status.code == "interrupted"
    assert "interrupted" in capsys.readouterr().out
    again = tp.fit(real(net), method, (X, Y), checkpoint=tmp_path / "run", **options)
    assert again.info.status.code == "ok"
    assert torch.equal(again.predict(X).mean(), whole.predict(X).mean())


def test_tensors_and_functions_inside_settings_count_when_resuming(tmp_path):
    net = nn.Linear(3, 1)

    def run(scale: float, epochs: int) -> tp.Fitted:
        prior = tp.GaussianPrior(torch.full((4,), scale))
        target = tp.Target(net, tp.Normal(0.5), prior)
        return tp.fit(target, tp.MAP(), (X, Y), epochs=epochs, checkpoint=tmp_path / "run")

    run(1.0, 1)
    run(1.0, 2)
    with pytest.raises(MismatchError, match="the target"):
        run(1e-3, 3)
    schedulers = torch.optim.lr_scheduler.LambdaLR
    one, two = (tp.MAP(scheduler=schedulers, scheduler_args={"lr_lambda": f}) for f in (lambda e: 1.0, lambda e: 1e-6))
    assert one != two


def test_early_stopped_runs_stay_stopped(tmp_path):
    held = (X + 5, Y + 3)
    for method in (tp.Ensemble(tp.MAP(lr=0.5, patience=1), 2, batched=False), tp.MAP(lr=0.5, patience=1)):
        path = tmp_path / type(method).__name__
        net = tp.nn.MLP(3, [4], 1)
        first = tp.fit(real(net), method, (X, Y), epochs=60, held_out=held, checkpoint=path)
        assert first.info.status.code == "early-stopped"
        again = tp.fit(real(net), method, (X, Y), epochs=90, held_out=held, checkpoint=path)
        assert again.info.steps == first.info.steps


def test_augmenting_data_sets_resume_and_leave_the_global_state_alone(tmp_path):
    class Noisy(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, k: int):
            return X[k] + 0.1 * torch.randn(3), Y[k]

    net = nn.Linear(3, 1)
    state = torch.get_rng_state()
    first = tp.fit(real(net), tp.MAP(), Noisy(), epochs=1, batch_size=5, checkpoint=tmp_path / "run")
    assert torch.equal(state, torch.get_rng_state())
    torch.randn(3)
    longer = tp.fit(real(net), tp.MAP(), Noisy(), epochs=2, batch_size=5, checkpoint=tmp_path / "run")
    whole = tp.fit(real(net), tp.MAP(), Noisy(), epochs=2, batch_size=5)
    assert first.info.steps == 4
    assert torch.equal(longer.posterior.theta, whole.posterior.theta)


@dataclass(frozen=True, eq=False)
class _Remarking(tp.MAP):
    def remarks(self, state):
        return ["look here"]


def test_what_a_run_had_to_say_is_said_again_when_it_is_asked_for_again(tmp_path):
    net = nn.Linear(3, 1)
    for _ in range(2):
        with pytest.warns(TemperanceWarning, match="look here"):
            tp.fit(real(net), _Remarking(), (X, Y), epochs=1, checkpoint=tmp_path / "run")
