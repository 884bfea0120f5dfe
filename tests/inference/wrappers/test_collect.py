"""Draws: which are kept, where they are kept, and what happens to them when a run is stopped."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.growing import rows_file
from temperance.core.seeds import generator
from temperance.core.status import NON_FINITE_THETA
from temperance.data.data import Batch
from temperance.engine.engine import Engine
from temperance.testing import linear_gaussian
from temperance.testing.inference import _Stopped, _stopped_after

SGHMC = tp.SGHMC(lr=0.01)


def fit(method, steps, **options):
    problem = linear_gaussian()
    return tp.fit(problem.target, method, problem.data, steps=steps, batch_size=9, progress=False, **options)


@pytest.mark.parametrize(
    ("options", "steps", "wanted"),
    [
        ({"burn": 4, "every": 3}, 16, [7, 10, 13, 16]),
        ({"burn": 0.5, "every": 2}, 8, [6, 8]),
        ({"burn": 4, "every": 3, "last": 2}, 17, [13, 16]),
        ({"burn": 0, "last": 4}, 10, [4, 6, 8, 10]),
        ({"burn": 0.9}, 20, [19, 20]),
        ({"burn": 3, "last": 1}, 9, [9]),
    ],
)
def test_which_draws_are_kept(options, steps, wanted):
    fitted = fit(tp.Collect(SGHMC, **options), steps)
    assert fitted.posterior.trace.draw_step.tolist() == wanted
    alone = fit(tp.Collect(SGHMC, burn=0, every=1), steps).posterior.theta
    assert torch.equal(fitted.posterior.theta, alone[[w - 1 for w in wanted]])


def test_draws_at_the_ends_of_cycles():
    cyclical = tp.Cyclical(SGHMC, cycle=4, start=3)
    fitted = fit(tp.Collect(cyclical), 17)
    assert fitted.posterior.trace.draw_step.tolist() == [7, 11, 15]
    late = fit(tp.Collect(cyclical, burn=8, last=1), 17)
    assert late.posterior.trace.draw_step.tolist() == [15]
    assert fit(tp.Collect(cyclical, burn=0, every=8), 17).posterior.trace.draw_step.tolist() == [8, 16]


def test_the_last_draws_at_the_ends_of_cycles_are_the_last():
    cyclical = tp.Cyclical(SGHMC, cycle=4, start=3)
    every, late = (fit(tp.Collect(cyclical, last=last), 17).posterior for last in (None, 2))
    assert torch.equal(late.theta, every.theta[1:])
    assert late.trace.draw_step.tolist() == [11, 15]


def test_the_trace_tells_the_temperature_of_each_step():
    """T times the heat of the cycle, not T."""
    cyclical = tp.Cyclical(SGHMC, cycle=8, start=6, ramp=4, explore=0.25)
    problem = linear_gaussian()
    method, target = tp.Collect(cyclical, read_every=1), problem.target.with_temperature(0.5)
    trace = tp.fit(target, method, problem.data, steps=14, batch_size=9, progress=False).posterior.trace
    assert trace.temperature.tolist() == [0, 0, 0, 0.125, 0.25, 0.375, 0, 0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]


def test_cycles_wait_for_the_preconditioner():
    base = tp.SGHMC(lr=0.01, preconditioner=tp.Layerwise(batches=2))
    fitted = fit(tp.Collect(tp.Cyclical(base, cycle=4, start=3)), 20)
    assert fitted.posterior.trace.draw_step.tolist() == [11, 17]  # 2 + 3, 2 + 4, 2 + 4


def test_the_tempo_of_a_cycle():
    method = tp.Cyclical(tp.SGHMC(lr=0.01), cycle=8, start=6, ramp=4, explore=0.25, floor=0.1)
    problem = linear_gaussian()
    engine = Engine(problem.target, problem.target.prepare(problem.data))
    state = method.init(engine, tp.Starts(), [generator(0, "test")])
    batch = next(iter(problem.data.full_pass(40)))
    heats, paces = [], []
    for _ in range(14):
        state, _ = method.step(engine, state, batch)
        heats.append(state.base.heat)
        paces.append(state.base.pace)
    assert heats == [0, 0, 0, 0.25, 0.5, 0.75, 0, 0, 1, 1, 1, 1, 1, 1]
    assert paces[:7] == [1.0] * 7
    assert paces[10] == pytest.approx(0.1 + 0.9 * 0.5)
    assert state.ended


@pytest.mark.parametrize("kill_after", [5, 11, 13, 18])
def test_resume_in_the_middle_of_a_cycle(tmp_path, kill_after):
    base = tp.SGHMC(lr=0.01, preconditioner=tp.Layerwise(batches=2))
    method = tp.Collect(tp.Cyclical(base, cycle=5, start=2, ramp=1, explore=0.3), read_every=3)
    whole = fit(method, 30)
    with pytest.raises(_Stopped), _stopped_after(tp.Collect, kill_after):
        fit(method, 30, checkpoint=tmp_path / "run", every=4)
    resumed = fit(method, 30, checkpoint=tmp_path / "run", every=4)
    assert torch.equal(whole.posterior.theta, resumed.posterior.theta)
    for name in ("step", "pace", "temperature", "kinetic", "configurational", "loss", "draw_step"):
        a, b = getattr(whole.posterior.trace, name), getattr(resumed.posterior.trace, name)
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.parametrize("batched", [True, False])
def test_several_chains_resume(tmp_path, batched):
    method = tp.Ensemble(tp.Collect(SGHMC, burn=2, every=2), 3, batched=batched)
    whole = fit(method, 12)
    with pytest.raises(_Stopped), _stopped_after(tp.Ensemble, 7):
        fit(method, 12, checkpoint=tmp_path / "run", every=3)
    resumed = fit(method, 12, checkpoint=tmp_path / "run", every=3)
    for a, b in zip(whole.posterior.components, resumed.posterior.components, strict=True):
        assert torch.equal(a.theta, b.theta)
        assert torch.equal(a.trace.kinetic, b.trace.kinetic)


def test_batched_chains_are_the_same_as_one_after_another():
    method = tp.Collect(tp.SGHMC(lr=0.01, preconditioner=tp.Layerwise(batches=2)), burn=2, every=2)
    a, b = (fit(tp.Ensemble(method, 3, batched=batched), 12) for batched in (True, False))
    for one, two in zip(a.posterior.components, b.posterior.components, strict=True):
        assert torch.allclose(one.theta, two.theta, rtol=1e-8, atol=1e-10)
        assert torch.allclose(one.trace.kinetic, two.trace.kinetic, rtol=1e-6)
        assert torch.allclose(one.trace.configurational, two.trace.configurational, rtol=1e-6)


def test_draws_go_to_disk_and_not_to_memory(tmp_path):
    fitted = fit(tp.Collect(SGHMC, burn=0, every=1), 40, checkpoint=tmp_path / "run", every=7)
    file = rows_file(fitted.posterior.theta)
    assert file is not None
    assert file.path.parent == tmp_path / "run"
    assert file.path.stat().st_size == fitted.posterior.theta.numel() * 8
    parts = [f for f in (tmp_path / "run").iterdir() if f.suffix == ".safetensors"]
    assert max(f.stat().st_size for f in parts) < file.path.stat().st_size * 8  # none holds the draws
    loaded = tp.load(tmp_path / "run", linear_gaussian().target.network)
    assert torch.equal(loaded.posterior.theta, fitted.posterior.theta)
    fitted.save(tmp_path / "copy")
    copied = tp.load(tmp_path / "copy", linear_gaussian().target.network)
    assert torch.equal(copied.posterior.theta, fitted.posterior.theta)
    assert rows_file(copied.posterior.theta).path.parent == tmp_path / "copy"
    x = linear_gaussian().data.x
    assert torch.equal(copied.predict(x).mean(), fitted.predict(x).mean())


def test_damaged_draws_are_noticed(tmp_path):
    fitted = fit(tp.Collect(SGHMC, burn=0, every=1), 10, checkpoint=tmp_path / "run")
    file = rows_file(fitted.posterior.theta).path
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(tp.errors.CorruptRunError, match="damaged"):
        tp.load(tmp_path / "run", linear_gaussian().target.network)
    file.unlink()
    with pytest.raises(tp.errors.CorruptRunError, match="missing"):
        tp.load(tmp_path / "run", linear_gaussian().target.network)


def test_draws_can_be_saved_after_their_folder_is_gone_or_they_were_changed(tmp_path):
    network = linear_gaussian().target.network
    fitted = fit(tp.Collect(SGHMC, burn=0, every=1), 6, checkpoint=tmp_path / "run")
    theta = fitted.posterior.theta.clone()
    (tmp_path / "run").rename(tmp_path / "moved")
    fitted.save(tmp_path / "copy")
    assert torch.equal(tp.load(tmp_path / "copy", network).posterior.theta, theta)
    loaded = tp.load(tmp_path / "moved", network)
    loaded.posterior.theta.mul_(2.0)
    loaded.save(tmp_path / "changed")
    assert torch.equal(tp.load(tmp_path / "changed", network).posterior.theta, 2 * theta)
    assert torch.equal(tp.load(tmp_path / "moved", network).posterior.theta, theta)


def test_a_longer_run_must_not_mix_two_schedules(tmp_path):
    fit(tp.Collect(SGHMC), 10, checkpoint=tmp_path / "run")
    with pytest.raises(tp.errors.MismatchError, match="begun with 10 steps"):
        fit(tp.Collect(SGHMC), 20, checkpoint=tmp_path / "run")
    by_steps = tp.Collect(SGHMC, burn=2, every=2)
    fit(by_steps, 10, checkpoint=tmp_path / "steps")
    longer = fit(by_steps, 20, checkpoint=tmp_path / "steps")
    assert torch.equal(longer.posterior.theta, fit(by_steps, 20).posterior.theta)


def test_the_metropolis_sampler_tells_its_acceptance_and_refuses_random_energies():
    fitted = fit(tp.Collect(tp.GGMC(lr=0.001, length=1), burn=0, every=1), 60)
    acceptance = fitted.posterior.trace.acceptance
    assert 0.0 < float(acceptance[-1]) <= 1.0
    assert fit(tp.Collect(SGHMC, burn=0, every=1), 20).posterior.trace.acceptance.isnan().all()
    verdict = tp.diagnose.sampling(fitted)
    assert verdict["acceptance"].passed
    target = tp.Target(nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 1)), tp.Normal(1.0), tp.GaussianPrior(1.0))
    with pytest.raises(tp.errors.NetworkError, match="drops at random"):
        tp.fit(target, tp.GGMC(), (torch.randn(4, 2), torch.randn(4, 1)), steps=2)


def test_weights_that_are_not_finite_are_a_status():
    target = tp.Target(nn.Linear(2, 1), tp.Normal(1.0), tp.GaussianPrior(1.0), temperature=1e30)
    data = (torch.randn(9, 2), torch.randn(9, 1))
    with pytest.raises(tp.errors.NumericalError):
        tp.fit(target, tp.Collect(tp.SGLD(lr=1e30), burn=0, every=1), data, steps=50)


def test_a_place_that_is_not_finite_is_no_draw():
    """The loss, of the place before, is still a number."""
    target = tp.Target(nn.Linear(2, 1), tp.Normal(1.0), tp.GaussianPrior(1.0))
    data = target.prepare(tp.data.Data(torch.randn(9, 2), torch.full((9, 1), 1e10)))
    engine, method = Engine(target, data), tp.Collect(tp.SGLD(lr=1e30), burn=0, every=1)
    state = method.init(engine, tp.Starts(), [generator(0, "test")])
    state, info = method.step(engine, state, next(iter(data.full_pass())))
    assert math.isfinite(info.loss)
    assert info.status is NON_FINITE_THETA
    assert state.draw_step == []
    assert len(state.draws[0]) == 0


class Breaks(nn.Module):
    """Gives NaN from a certain call on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.calls, self.after = itertools.count(), after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.layer(x)
        return made * float("nan") if self.training and next(self.calls) >= self.after else made


def test_a_nan_in_mid_run_keeps_the_draws(tmp_path):
    data = (torch.randn(20, 2), torch.randn(20, 1))
    target = tp.Target(Breaks(31), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    method = tp.Collect(tp.SGHMC(lr=0.01), burn=0, every=5)
    with pytest.raises(tp.errors.NumericalError, match="NaN") as caught:
        tp.fit(target, method, data, steps=100, batch_size=20, checkpoint=tmp_path / "run")
    kept = caught.value.fitted
    assert not kept.info.status.ok
    assert 5 <= len(kept.posterior.theta) <= 6
    assert torch.isfinite(kept.posterior.theta).all()
    loaded = tp.load(tmp_path / "run", nn.Sequential(nn.Linear(2, 1)), target=target)
    assert torch.equal(loaded.posterior.theta, kept.posterior.theta)
    assert loaded.info.status.code == "non-finite-loss"


def test_a_nan_before_the_first_draw_gives_no_posterior():
    target = tp.Target(Breaks(4), tp.Normal(scale=1.0), tp.GaussianPrior(1.0))
    with pytest.raises(tp.errors.NumericalError) as caught:
        tp.fit(
            target, tp.Collect(tp.SGHMC(lr=0.01), burn=50, every=1), (torch.randn(9, 2), torch.randn(9, 1)), steps=99
        )
    assert caught.value.fitted is None


WRONG = [
    (lambda: tp.SGLD(lr=0.0), "`lr` must be"),
    (lambda: tp.SGHMC(lr=-1.0), "`lr` must be"),
    (lambda: tp.SGHMC(momentum=1.0), r"`momentum` must lie in \[0, 1\); got 1.0"),
    (lambda: tp.BAOAB(momentum=-0.1), "`momentum` must lie"),
    (lambda: tp.SGNHT(momentum=float("nan")), "`momentum` must lie"),
    (lambda: tp.SGHMC(preconditioner=3), "`preconditioner` must be Layerwise"),
    (lambda: tp.Layerwise(batches=0), "`batches` must be"),
    (lambda: tp.PSGLD(decay=1.5), "`decay` must lie"),
    (lambda: tp.GGMC(length=0), "`length` must be"),
    (lambda: tp.Cyclical(tp.MAP()), "it takes a sampler"),
    (lambda: tp.Cyclical(SGHMC, cycle=0), "`cycle` must be"),
    (lambda: tp.Cyclical(SGHMC, start=2, ramp=3), "`ramp` must not be longer"),
    (lambda: tp.Cyclical(SGHMC, explore=1.0), "`explore` must lie"),
    (lambda: tp.Collect(tp.MAP()), "it takes a sampler"),
    (lambda: tp.Collect(SGHMC, burn=-1), "`burn` must be"),
    (lambda: tp.Collect(SGHMC, burn=1.5), "`burn` must be"),
    (lambda: tp.Collect(SGHMC, every=0), "`every` must be"),
    (lambda: tp.Target(nn.Linear(1, 1), tp.Normal(1.0), tp.GaussianPrior(1.0), temperature=-1.0), "`temperature`"),
    (lambda: fit(tp.Collect(tp.Cyclical(SGHMC, cycle=50)), 20), "`cycle` must fit into the run"),
    (lambda: fit(tp.Collect(tp.Cyclical(SGHMC, cycle=10), burn=12), 19), "`burn` must leave the end of a cycle"),
    (lambda: fit(tp.Collect(SGHMC, burn=20), 20), "`burn` must be shorter"),
    (lambda: fit(tp.Collect(SGHMC, burn=10, every=11), 20), "`every` must leave"),
    (lambda: fit(tp.SGHMC(preconditioner=tp.Layerwise()), 20), "`steps` must exceed the 32 batches"),
    (lambda: fit(tp.Cyclical(tp.GGMC(), cycle=5, explore=0.5), 20), "`ramp` and `explore` must be 0 for GGMC"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_bad_input(call, message):
    with pytest.raises(tp.errors.ArgumentError, match=message):
        call()


@pytest.mark.parametrize("method", [tp.SGLD(), tp.SGHMC(), tp.GGMC()])
def test_n_must_match_the_data(method):
    problem = linear_gaussian()
    batch = next(iter(problem.data.full_pass(40)))
    engine = Engine(problem.target, problem.target.prepare(problem.data))
    state = method.init(engine, tp.Starts(), [generator(0, "test")])
    with pytest.raises(tp.errors.ArgumentError, match="`num_data` must be"):
        method.step(engine, state, dataclasses.replace(batch, num_data=4))


@pytest.mark.parametrize("method", [tp.SGLD(), tp.SGHMC(), tp.BAOAB(), tp.GGMC(), tp.Collect(tp.SGNHT())])
def test_batch_norm_is_refused(method):
    network = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    target = tp.Target(network, tp.Normal(1.0), tp.GaussianPrior(1.0))
    data = (torch.randn(8, 2), torch.randn(8, 1))
    with pytest.raises(tp.errors.NetworkError, match="batch norm"):
        tp.fit(target, method, data, steps=4)


def test_batch_norm_on_demand_keeps_its_statistics_with_each_draw():
    network = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    target = tp.Target(network, tp.Normal(1.0), tp.GaussianPrior(1.0))
    data = (torch.randn(8, 2), torch.randn(8, 1))
    method = tp.Collect(tp.SGHMC(lr=0.03, allow_batch_norm=True), burn=2, every=2)
    draws = tp.fit(target, method, data, steps=6).posterior
    means = draws.buffers["1.running_mean"]
    assert means.shape == (2, 4)
    assert not torch.equal(means[0], means[1])


class Blind(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.0 * self.theta.sum()


def modes_found(method, steps, seed, at_least):
    """Of a 5 × 5 grid of Gaussians (a product of two mixtures), those with enough draws within 0.25."""
    places = (-4.0, -2.0, 0.0, 2.0, 4.0)
    prior = tp.MixturePrior(tuple(tp.GaussianPrior(0.03**0.5, mean=m) for m in places))
    target = tp.Target(Blind(), tp.Normal(scale=1.0), prior)
    x = torch.zeros(1, 1, dtype=torch.float64)
    engine = Engine(target)
    state = method.init(engine, tp.Starts(), [generator(seed, "grid")])
    chain, rows = method.chain(state), []
    batch = Batch(x, x, num_data=1)
    for _ in range(steps):
        state, _ = method.step(engine, state, batch)
        if chain.heat > 0:
            rows.append(chain.theta.clone())
    grid = torch.cartesian_prod(*[torch.tensor(places, dtype=torch.float64)] * 2)
    hits = (torch.cdist(torch.stack(rows), grid) < 0.25).sum(0)
    return int((hits >= at_least).sum())


def root_of_cosine(fraction: float) -> float:
    """The published schedule, which is of the learning rate; a pace is its root."""
    return tp.cosine(fraction) ** 0.5


@pytest.mark.parametrize(
    ("steps", "cycles", "found"), [(4000, 10, 6), pytest.param(50_000, 30, 20, marks=pytest.mark.slow)]
)
def test_cyclical_finds_the_modes_where_a_single_run_does_not(steps, cycles, found):
    cyclical = tp.Cyclical(tp.SGLD(lr=0.07), cycle=steps // cycles, shape=root_of_cosine)
    assert modes_found(tp.SGLD(lr=0.01), steps, 0, 10) <= 3
    assert modes_found(cyclical, steps, 0, 10) >= found
