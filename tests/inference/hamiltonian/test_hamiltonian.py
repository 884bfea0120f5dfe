"""HMC, NUTS and their kin: mechanics, warm-up, what they tell, resuming, bad input. Statistics: reference/."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, NetworkError, NumericalError, TemperanceWarning
from temperance.data.data import Batch, Data
from temperance.engine.engine import Engine
from temperance.engine.native.mlp import NativeMLP
from temperance.inference.base import Starts
from temperance.inference.hamiltonian import mclmc, nuts
from temperance.inference.hamiltonian.motion import Metric, Motion, Phase
from temperance.inference.hamiltonian.warmup import Averaging, Moments
from temperance.judge import diagnose
from temperance.testing.inference import _Stopped, _stopped_after

RNGS = [torch.Generator().manual_seed(k) for k in range(3)]


def moons(rows=60, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, generator=rng)
    return Data(x, (x[:, 0] * x[:, 1] > 0).long())


def classifier(width=5, dtype=torch.float32, activation=nn.Tanh):
    torch.manual_seed(0)
    network = tp.nn.MLP(2, [width], 2, activation=activation).to(dtype)
    return tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))


def whole(target, data):
    prepared = target.prepare(data)
    return next(iter(prepared.full_pass(len(prepared))))


def flow_of(target, data, chains, dense=False):
    theta = 0.3 * torch.randn(chains, target.num_parameters, generator=torch.Generator().manual_seed(1))
    theta = theta.to(target.layout.dtype)
    gradient = torch.zeros_like(theta)
    energies = Engine(target).energies_on(whole(target, data))
    energies(theta, gradient)
    spread = torch.rand(theta.shape, generator=torch.Generator().manual_seed(2)).to(theta) + 0.5
    metric = Metric(torch.diag_embed(spread) if dense else spread)
    return Motion(energies, metric, torch.full((chains,), 0.7, dtype=torch.float64)), theta, gradient


def walk_in_python(monkeypatch):
    """Energies in C, trajectories not."""
    of = NativeMLP.of

    def without_trajectories(*arguments):
        made = of(*arguments)
        made.complete = False
        return made

    monkeypatch.setattr(NativeMLP, "of", without_trajectories)


class Swish(nn.Module):
    """Keeps a network out of the compiled path."""

    def forward(self, x):
        return x * torch.sigmoid(x)


# ---------------------------------------------------------------------- the flow


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("activation", [nn.Tanh, Swish])
def test_leapfrog_is_its_own_reverse(dense, activation):
    flow, theta, gradient = flow_of(classifier(dtype=torch.float64, activation=activation), moons(), 3, dense)
    momentum = torch.randn(theta.shape, generator=torch.Generator().manual_seed(3)).double()
    phase = Phase(theta.clone(), momentum.clone(), gradient.clone())
    step = torch.tensor([0.01, 0.03, 0.05], dtype=torch.float64)
    flow.leap(phase, step, 20)
    assert (phase.theta - theta).abs().max() > 0.1
    flow.leap(phase, -step, 20)
    assert torch.allclose(phase.theta, theta, atol=1e-11)
    assert torch.allclose(phase.momentum, momentum, atol=1e-11)


def test_leapfrog_error_is_of_second_order():
    flow, theta, gradient = flow_of(classifier(dtype=torch.float64), moons(), 2)
    momentum = torch.randn(theta.shape, generator=torch.Generator().manual_seed(3)).double()
    before = flow.inverse_temperature * flow.energies(theta) + flow.kinetic(momentum)
    errors = []
    for count in (50, 100):
        phase = Phase(theta.clone(), momentum.clone(), gradient.clone())
        energy, kinetic = flow.leap(phase, torch.full((2,), 1.0 / count, dtype=torch.float64), count)
        errors.append((flow.inverse_temperature * energy + kinetic - before).abs())
    ratio = errors[0] / errors[1]
    assert bool(((ratio > 3.5) & (ratio < 4.5)).all())


def test_momenta_have_the_masses_for_covariance():
    rng = torch.Generator().manual_seed(0)
    root = torch.randn(4, 4, generator=rng).double()
    inverse = (root @ root.T + torch.eye(4)).unsqueeze(0)
    noise = torch.randn(200_000, 4, generator=rng).double()
    momenta = torch.cat([Metric(inverse).momenta(row.unsqueeze(0)) for row in noise[:1]])
    assert momenta.shape == (1, 4)
    many = Metric(inverse.expand(200_000, 4, 4)).momenta(noise)
    wanted = torch.linalg.inv(inverse[0])
    assert torch.allclose(torch.cov(many.T), wanted, atol=0.03 * float(wanted.abs().max()))


# ---------------------------------------------------------------------- trees


def test_trajectories_in_c_are_those_in_python(monkeypatch):
    target, data = classifier(width=7, dtype=torch.float64), moons()
    if Engine(target).energies_on(whole(target, data)).native is None:
        pytest.skip("no C compiler")
    method = tp.Ensemble(tp.Collect(tp.NUTS(step_size=0.15, max_depth=6), burn=1, every=1), 4)
    found = tp.fit(target, method, data, steps=30, progress=False).posterior
    walk_in_python(monkeypatch)
    again = tp.fit(target, method, data, steps=30, progress=False).posterior
    counts = torch.stack([c.trace.transitions.leapfrogs for c in found.components])
    assert torch.equal(counts, torch.stack([c.trace.transitions.leapfrogs for c in again.components]))
    assert len(counts.unique()) > 3
    for one, two in zip(found.components, again.components, strict=True):
        assert torch.allclose(one.theta[:10], two.theta[:10], atol=1e-6)


@pytest.mark.parametrize("adjusted", [True, False])
@pytest.mark.parametrize("at_once", [2**20, 100])
def test_microcanonical_trajectories_in_c_are_those_in_python(monkeypatch, adjusted, at_once):
    target, data = classifier(width=7, dtype=torch.float64).with_temperature(0.4), moons()
    if Engine(target).energies_on(whole(target, data)).native is None:
        pytest.skip("no C compiler")
    monkeypatch.setattr(mclmc, "_AT_ONCE", at_once)  # of 37 numbers: seven steps at once, or two
    mass = 0.5 + torch.rand(37, generator=torch.Generator().manual_seed(4)).double()
    kernel = tp.MCLMC(step_size=0.1, length=7, adjusted=adjusted, mass=mass)
    method = tp.Ensemble(tp.Collect(kernel, burn=0, every=1), 4)
    found = tp.fit(target, method, data, steps=12, progress=False).posterior
    walk_in_python(monkeypatch)
    again = tp.fit(target, method, data, steps=12, progress=False).posterior
    for one, two in zip(found.components, again.components, strict=True):
        assert torch.allclose(one.theta, two.theta, atol=1e-9)
        assert torch.allclose(one.trace.transitions.energy, two.trace.transitions.energy, rtol=1e-9)
        assert torch.allclose(one.trace.transitions.acceptance, two.trace.transitions.acceptance, atol=1e-8)
        assert 0.2 < float(one.trace.transitions.acceptance.mean()) < 0.999


@pytest.mark.parametrize(
    "method",
    [
        tp.Ensemble(tp.Collect(tp.Warmup(tp.MCLMC(length=4), 12, first=4, window=4, last=4), last=6), 3),
        tp.Collect(tp.Tempered(tp.MCLMC(step_size=0.1, length=4, adjusted=False), (1.0, 1.7, 3.0)), burn=0, every=1),
    ],
    ids=["masses of their own", "temperatures of their own"],
)
def test_chains_that_differ_walk_in_c_as_in_python(monkeypatch, method):
    target, data = classifier(width=7, dtype=torch.float64), moons()
    if Engine(target).energies_on(whole(target, data)).native is None:
        pytest.skip("no C compiler")
    found = []
    for patched in (False, True):
        if patched:
            walk_in_python(monkeypatch)
        options = {"steps": 18} if isinstance(method, tp.Ensemble) else {"steps": 10}
        made = tp.fit(target, method, data, progress=False, **options).posterior
        found.append(torch.stack([p.theta for p in getattr(made, "components", [made])]))
    assert torch.allclose(*found, atol=1e-7)


@pytest.mark.filterwarnings("ignore:R-hat")  # level ground has no end
@pytest.mark.filterwarnings("ignore:.*log density")
def test_microcanonical_steps_are_as_long_as_asked():
    """On level ground: ε √d times what the jitter makes of it, with unit masses; and as many gradients as steps."""
    flat = tp.sample(lambda t: 0.0 * t.sum(), torch.zeros(4).double(), tp.MCLMC(step_size=0.5, length=1, jitter=0.4),
                     draws=200, warmup=0, chains=1, progress=False)  # fmt: skip
    theta = flat.theta.reshape(-1, 4)
    sizes = (theta[1:] - theta[:-1]).norm(dim=1) / (0.5 * 2.0)
    assert 0.6 <= float(sizes.min()) < 0.65
    assert 1.35 < float(sizes.max()) <= 1.4
    assert tp.MCLMC(length=7).gradients() == 7


def test_microcanonical_chains_need_two_directions_and_as_many_random_rows_as_steps():
    with pytest.raises(ArgumentError, match="at least two parameters"):
        tp.sample(lambda t: -0.5 * t.square().sum(), torch.zeros(1).double(), tp.MCLMC(step_size=0.1), draws=2,
                  warmup=0, progress=False)  # fmt: skip
    flow, theta, gradient = flow_of(classifier(dtype=torch.float64), moons(), 2)
    native = flow.energies.native
    if native is None:
        pytest.skip("no C compiler")
    noise = torch.zeros(2, 4, theta.shape[1], dtype=torch.float64)
    unit = torch.ones_like(theta) / theta.shape[1] ** 0.5
    given = np.array([[0.01, 1.0]] * 2)
    with pytest.raises(ArgumentError, match="`noise` must have a row for each of `length` = 3 steps at most; got 4"):
        native.microcanonical(theta, unit, gradient, torch.ones_like(theta), noise, 0.1, given, 3)


def test_a_direction_is_forgotten_between_pieces_of_a_trajectory(monkeypatch):
    """Of one number of noise at a time, or of all of them: as many are drawn, and the direction is lost as fast."""
    flow, theta, _ = flow_of(classifier(dtype=torch.float64), moons(), 3)
    state = tp.MCLMC(step_size=1e-9).init(Engine(classifier(dtype=torch.float64)), Starts.at(theta), RNGS)
    overlap = []
    for at_once in (2**20, 1):
        monkeypatch.setattr(mclmc, "_AT_ONCE", at_once)
        cosines = []
        for k in range(300):
            state.chain.noise.copy_(torch.randn(theta.shape, generator=torch.Generator().manual_seed(k)).double())
            walk = mclmc._Walk(flow, state, torch.full((3,), 1e-9, dtype=torch.float64))
            before = walk.direction.clone()
            walk.go(10, forgetful=True)
            cosines.append((before * walk.direction).sum(1))
        overlap.append(torch.cat(cosines))
    wanted = math.exp(-9 / 10)  # each of nine times cos = exp(−1 / length), on average and to first order
    for found in overlap:
        assert float(found.mean()) == pytest.approx(wanted, abs=0.03)
    assert abs(float(overlap[0].mean() - overlap[1].mean())) < 0.02


def test_trees_stop_at_the_greatest_depth_and_at_u_turns():
    found = tp.sample(
        lambda t: -0.5 * t.square().sum(), torch.zeros(3).double(), tp.NUTS(step_size=0.01, max_depth=4), draws=20,
        warmup=0, progress=False,
    )  # fmt: skip
    assert all(int(t.leapfrogs.min()) == int(t.leapfrogs.max()) == 15 for t in found.transitions)
    found = tp.sample(
        lambda t: -0.5 * t.square().sum(), torch.zeros(3).double(), tp.NUTS(step_size=0.5), draws=50, warmup=0,
        progress=False,
    )  # fmt: skip
    longest = max(int(t.leapfrogs.max()) for t in found.transitions)
    assert longest <= 31  # half a period is π/0.5 ≈ 6 steps: a doubling or two beyond it


def test_halves_are_those_of_a_recursive_tree():
    """The walk's checks are the recursion's: each balanced half of the leaves, ends and sum, once."""
    seen = []

    class Recorder(nuts._Stretch):
        def __init__(self):
            self.begun, self.walking = {}, np.ones(1, dtype=bool)
            self.sum = torch.zeros(1, 1).double()

    stretch = Recorder()
    leaves = 16

    def note(metric, first, last, total):
        seen.append((int(first), int(last), int(total)))
        return np.zeros(1, dtype=bool)

    keep, nuts.turning = nuts.turning, note
    try:
        stretch.group = type("G", (), {"flow": type("F", (), {"metric": None})})
        for leaf in range(leaves):
            stretch.end = Phase(None, torch.full((1, 1), float(leaf + 1)).double(), None)
            stretch.sum = stretch.sum + stretch.end.momentum
            stretch._look_back(leaf)
    finally:
        nuts.turning = keep

    def halves(low, high):
        if high - low < 2:
            return []
        middle = (low + high) // 2
        return [*halves(low, middle), *halves(middle, high), (low + 1, high, sum(range(low + 1, high + 1)))]

    assert sorted(seen) == sorted(halves(0, leaves))


# ---------------------------------------------------------------------- chains


@pytest.mark.parametrize(
    "kernel", [tp.HMC(step_size=0.05, length=5), tp.NUTS(step_size=0.05), tp.MCLMC(step_size=0.05, length=5)]
)
@pytest.mark.parametrize("activation", [nn.Tanh, Swish])
def test_chains_at_once_equal_chains_alone(kernel, activation):
    target, data = classifier(dtype=torch.float64, activation=activation), moons()
    method = tp.Collect(kernel, burn=1, every=1)
    runs = [
        tp.fit(target, tp.Ensemble(method, 3, batched=batched), data, steps=8, progress=False).posterior
        for batched in (True, False)
    ]
    for one, two in zip(runs[0].components, runs[1].components, strict=True):
        assert torch.allclose(one.theta, two.theta, atol=1e-8)
    assert not torch.allclose(runs[0].components[0].theta, runs[0].components[1].theta, atol=1e-2)


def test_hmc_takes_as_many_steps_as_it_was_told():
    target, data = classifier(), moons()
    told = tp.fit(target, tp.Collect(tp.HMC(step_size=0.05, length=7), every=1), data, steps=10, progress=False)
    assert told.posterior.trace.transitions.leapfrogs.unique().tolist() == [7]
    by_time = tp.Ensemble(tp.Collect(tp.HMC(step_size=0.05, time=0.5, jitter=0.5), every=1), 3)
    found = tp.fit(target, by_time, data, steps=20, progress=False).posterior
    counts = torch.cat([c.trace.transitions.leapfrogs for c in found.components])
    assert counts.min() >= 6
    assert counts.max() <= 20
    assert len(counts.unique()) > 3


# ---------------------------------------------------------------------- warm-up


def test_windows_double_and_end_before_the_last():
    assert tp.Warmup(tp.NUTS(), 500).window_ends() == [100, 150, 250, 450]
    assert tp.Warmup(tp.NUTS(), 150).window_ends() == [100]
    assert tp.Warmup(tp.NUTS(), 300, first=50, window=50, last=100).window_ends() == [100, 200]
    assert tp.Warmup(tp.NUTS(), 290, first=50, window=50, last=100).window_ends() == [190]
    assert tp.Warmup(tp.NUTS(), 10, mass="none").window_ends() == []


def test_moments_are_those_of_the_draws():
    rows = torch.randn(40, 2, 3, generator=torch.Generator().manual_seed(0)).double() * 5 + 100
    for dense in (False, True):
        moments = Moments.of(rows[0], dense)
        for row in rows:
            moments.add(row)
        for k in range(2):
            wanted = torch.cov(rows[:, k].T) * 40 / 45
            wanted = wanted + 1e-3 * 5 / 40 * torch.diag(wanted.diagonal())
            found = moments.covariance()[k]
            assert torch.allclose(found, wanted if dense else wanted.diagonal(), rtol=1e-10)


@pytest.mark.parametrize("dense", [False, True])
def test_masses_follow_the_units_and_a_coordinate_that_never_moved_has_one(dense):
    """Also of a coordinate that is known to 10⁻⁶: nothing absolute is mixed in."""
    units = torch.tensor([1.0, 1e-6, 1e4]).double()
    rows = torch.randn(30, 1, 3, generator=torch.Generator().manual_seed(0)).double()
    rows[:, :, 1] += rows[:, :, 0]
    plain, scaled, stuck = (Moments.of(rows[0], dense) for _ in range(3))
    for row in rows:
        plain.add(row)
        scaled.add(row * units)
        stuck.add(row * torch.tensor([1.0, 0.0, 1.0]))
    both = units.outer(units) if dense else units**2
    assert torch.allclose(scaled.covariance() / both, plain.covariance(), rtol=1e-9)
    found = stuck.covariance()[0]
    assert float(found[1, 1] if dense else found[1]) == pytest.approx(1e-3 * 5 / 35)
    if dense:
        assert bool((torch.linalg.eigvalsh(found) > 0.0).all())


def test_dual_averaging_finds_the_step_with_the_acceptance_wanted():
    """Of an acceptance that is exp(−ε): ε = −log 0.8."""
    averaging = Averaging.around(torch.tensor([5.0, 0.01], dtype=torch.float64))
    step = torch.tensor([5.0, 0.01], dtype=torch.float64)
    for _ in range(2000):
        step = averaging.update((-step).exp(), 0.8)
    assert torch.allclose(averaging.mean.exp(), torch.full((2,), 0.2231).double(), rtol=0.02)


def test_warmup_finds_scales_correlations_and_acceptance():
    scales = torch.tensor([0.01, 1.0, 30.0], dtype=torch.float64)
    found = tp.sample(
        lambda t: -0.5 * (t / scales).square().sum(), torch.zeros(3).double(), tp.NUTS(), draws=200, warmup=400,
        chains=2, progress=False,
    )  # fmt: skip
    steps = [float(t.step_size[0]) for t in found.transitions]
    assert min(steps) > 0.3  # in units of the scales; without masses it would be below 0.02
    acceptance = torch.cat([t.acceptance for t in found.transitions]).mean()
    assert 0.7 < float(acceptance) < 0.97
    assert all(len(t.energy) == 200 for t in found.transitions)  # what came before the draws is not counted


def test_warmup_is_no_draw_and_tells_the_run_its_length():
    target, data = classifier(), moons()
    method = tp.Collect(tp.Warmup(tp.NUTS(max_depth=3), 20, mass="none"), last=15)
    assert method.facts().default_steps == 35
    fitted = tp.fit(target, method, data, progress=False)
    assert fitted.info.steps == 35
    assert len(fitted.posterior.theta) == 15
    assert fitted.posterior.trace.draw_step.tolist() == list(range(21, 36))
    with pytest.raises(ArgumentError, match="`burn` must cover the 20 steps of warm-up"):
        tp.fit(target, tp.Collect(method.base, burn=10, every=1), data, steps=40)
    with pytest.raises(ArgumentError, match="must be shorter than the run of 15 steps; got 20"):
        tp.fit(target, tp.Collect(method.base, every=1), data, steps=15)


# ---------------------------------------------------------------------- resuming


RESUMED = {
    "NUTS": tp.Warmup(tp.NUTS(max_depth=4), 12, first=2, window=3, last=2),
    "dense HMC": tp.Warmup(tp.HMC(length=3), 12, mass="dense", first=2, window=3, last=2),
    "MCLMC": tp.Warmup(tp.MCLMC(length=3), 12, first=2, window=3, last=2),
    "tempered": tp.Tempered(tp.Warmup(tp.HMC(length=3), 12, first=2, window=3, last=2), tp.ladder(4.0, 3)),
    "elliptical": tp.EllipticalSlice(),
}


@pytest.mark.parametrize(
    ("name", "activation"), [*((name, nn.Tanh) for name in RESUMED), ("NUTS", Swish), ("tempered", Swish)]
)
def test_a_killed_run_goes_on_bit_for_bit(name, activation, tmp_path):
    target, data = classifier(activation=activation), moons(30)
    method = tp.Ensemble(tp.Collect(RESUMED[name], burn=12, every=1), 2)
    options = {"steps": 20, "progress": False}
    with warnings_allowed():
        straight = tp.fit(target, method, data, **options)
        for stop in (4, 11, 15):
            folder = tmp_path / f"{stop}"
            with contextlib.suppress(_Stopped), _stopped_after(tp.Ensemble, stop):
                tp.fit(target, method, data, checkpoint=folder, every=1, **options)
            resumed = tp.fit(target, method, data, checkpoint=folder, every=1, **options)
            for one, two in zip(straight.posterior.components, resumed.posterior.components, strict=True):
                assert torch.equal(one.theta, two.theta)
                assert torch.equal(one.trace.transitions.energy, two.trace.transitions.energy)
    again = tp.load(folder, target.network).posterior.components[0].trace.transitions
    assert torch.equal(again.leapfrogs, straight.posterior.components[0].trace.transitions.leapfrogs)


@contextlib.contextmanager
def warnings_allowed():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TemperanceWarning)
        yield


# ---------------------------------------------------------------------- a chain that diverges says so


def steep(theta):
    return -0.5 * (theta / torch.tensor([1.0, 1e-3], dtype=theta.dtype)).square().sum()


@pytest.mark.parametrize("kernel", [tp.NUTS(step_size=0.3), tp.HMC(step_size=0.3, length=5), tp.MCLMC(step_size=0.5)])
def test_divergences_are_counted_and_said(kernel):
    with pytest.warns(TemperanceWarning, match=r"of 60 transitions diverged, in chains 1 \(\d+\), 2 \(\d+\)"):
        found = tp.sample(
            steep, torch.tensor([0.5, 1e-3]).double(), kernel, draws=30, chains=2, warmup=0, progress=False
        )
    assert found.divergences > 30
    assert "diverged" in found.fitted.info.remarks[0]
    check = next(c for c in tp.diagnose.sampling(found.fitted).checks if c.name == "divergences")
    assert check.passed is False
    assert "of 60" in check.measured


@pytest.mark.parametrize(
    ("kernel", "stray", "told"),
    [
        (tp.MCLMC(), 1, True),
        (tp.MCLMC(adjusted=False), 10, False),
        (tp.MCLMC(adjusted=False), 11, True),
        (tp.Warmup(tp.MCLMC(adjusted=False), 150), 10, False),
        (tp.Warmup(tp.MCLMC(), 150), 1, True),
    ],
)
def test_stray_trajectories_are_no_news_where_none_is_judged(kernel, stray, told):
    """One in ten of a chain's hundred, however many chains there are beside it."""
    for others in (0, 7):
        state = kernel.init(Engine(classifier()), tp.Starts(), [torch.Generator() for _ in range(1 + others)])
        chains = kernel.hamiltonian(state)
        chains.transitions, chains.divergences = 100, torch.tensor([stray] + [0] * others)
        assert bool(kernel.remarks(state)) is told


def test_one_member_after_another_says_which_diverged():
    target, data = classifier(activation=Swish), moons()
    method = tp.Ensemble(tp.Collect(tp.HMC(step_size=5.0, length=3), every=1), 2, batched=False)
    with warnings_allowed():
        fitted = tp.fit(target, method, data, steps=4, progress=False)
    assert [remark[:15] for remark in fitted.info.remarks] == ["member 1 of 2: ", "member 2 of 2: "]


def test_temperatures_too_far_apart_are_remarked_on():
    method = tp.Tempered(tp.HMC(step_size=0.02, length=3), (1.0, 2.0, 1e6))
    state = method.init(Engine(classifier()), tp.Starts(), [torch.Generator()])
    state.done, state.offered, state.swapped = 100, torch.tensor([50, 50]), torch.tensor([30, 0])
    (remark,) = method.remarks(state)
    assert "2 and 1e+06 hardly ever change places (0.0% of offers)" in remark


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tp.HMC(step_size=0.0), "`step_size` must be a positive finite number"),
        (lambda: tp.HMC(length=0), "`length` must be a positive integer"),
        (lambda: tp.HMC(length=3, time=1.0), "not both"),
        (lambda: tp.HMC(jitter=1.0), r"`jitter` must lie in \[0, 1\)"),
        (lambda: tp.NUTS(max_depth=0), "`max_depth` must be an integer from 1 to 20"),
        (lambda: tp.NUTS(mass=torch.tensor([1.0, -1.0])), "`mass` must be positive and finite"),
        (lambda: tp.NUTS(mass=torch.tensor([[1.0, 2.0], [2.0, 1.0]])), "positive definite.*least eigenvalue is -1"),
        (lambda: tp.NUTS(mass=torch.tensor([[1.0, 2.0], [0.0, 1.0]])), "symmetric"),
        (lambda: tp.NUTS(mass=torch.zeros(2, 3)), r"P × P matrix; got \(2, 3\)"),
        (lambda: tp.MCLMC(mass=torch.eye(2)), "`mass` must be a vector for MCLMC"),
        (lambda: tp.Warmup(tp.NUTS(), 100), "at least 150, the sum of the warm-up's windows"),
        (lambda: tp.Warmup(tp.NUTS(), 500, mass="full"), "'diagonal', 'dense' or 'none'"),
        (lambda: tp.Warmup(tp.NUTS(), 500, accept=1.2), "`accept` must lie strictly between 0 and 1"),
        (lambda: tp.Warmup(tp.SGHMC(lr=0.1), 500), "Warmup cannot wrap SGHMC: it tunes NUTS, HMC or MCLMC"),
        (lambda: tp.Warmup(tp.EllipticalSlice(), 500), "Warmup cannot wrap EllipticalSlice"),
        (lambda: tp.Tempered(tp.SGHMC(lr=0.1)), "Tempered cannot wrap SGHMC"),
        (lambda: tp.Tempered(tp.NUTS(), (2.0, 4.0)), "must begin with 1.0 and rise"),
        (lambda: tp.Tempered(tp.NUTS(), (1.0,)), "at least two numbers"),
        (lambda: tp.ladder(0.5, 3), "`highest` must exceed 1"),
        (lambda: tp.Cyclical(tp.NUTS(step_size=0.1)), "Cyclical cannot wrap NUTS: it changes a pace"),
    ],
)
def test_settings_that_make_no_sense(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_runs_that_make_no_sense():
    target, data = classifier(), moons()
    with pytest.raises(ArgumentError, match=r"`step_size` must be given, or found by Warmup\(NUTS"):
        tp.fit(target, tp.Collect(tp.NUTS(), every=1), data, steps=5)
    with pytest.raises(ArgumentError, match="`mass` must be for 27 parameters"):
        tp.fit(target, tp.Collect(tp.NUTS(step_size=0.1, mass=torch.ones(3)), every=1), data, steps=5)
    heavy = tp.Target(target.network, tp.Categorical(), tp.LaplacePrior(1.0))
    with pytest.raises(ArgumentError, match=r"Gaussian with independent weights for EllipticalSlice.*Laplace"):
        tp.fit(heavy, tp.Collect(tp.EllipticalSlice(), every=1), data, steps=5)
    dense = tp.Warmup(tp.MCLMC(), 20, mass="dense", first=2, window=3, last=2)
    with pytest.raises(ArgumentError, match="'diagonal' or 'none' for MCLMC"):
        tp.fit(target, tp.Collect(dense, every=1), data, steps=25)


def test_energies_must_be_functions_of_theta():
    data = moons()
    normed = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    dropped = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    method = tp.Collect(tp.NUTS(step_size=0.1), every=1)
    with pytest.raises(NetworkError, match=r"NUTS needs a likelihood that factorises.*batch norm"):
        tp.fit(tp.Target(normed, tp.Categorical(), tp.GaussianPrior(1.0)), method, data, steps=5)
    with pytest.raises(NetworkError, match="NUTS needs an energy that is a function of θ; '1' drops at random"):
        tp.fit(tp.Target(dropped, tp.Categorical(), tp.GaussianPrior(1.0)), method, data, steps=5)


def test_a_start_of_infinite_energy_names_its_chain():
    target, data = classifier(dtype=torch.float64), moons()
    start = torch.zeros(2, target.num_parameters).double()
    start[1] = 1e200
    method = tp.Ensemble(tp.Collect(tp.NUTS(step_size=0.1), every=1), 2)
    with pytest.raises(NumericalError, match=r"at the start of chain 2 of 2.*Start elsewhere"):
        tp.fit(target, method, data, steps=5, start=start)


def test_elliptical_keeps_energies_and_readings_right():
    target, data = classifier(dtype=torch.float64), moons()
    fitted = tp.fit(target, tp.Collect(tp.EllipticalSlice(), burn=1, every=1), data, steps=30, progress=False)
    batch = whole(target, data)
    wanted = Engine(target).energies(fitted.posterior.theta, batch)
    assert torch.allclose(fitted.posterior.trace.transitions.energy[1:], wanted, rtol=1e-10)
    gradient = torch.empty_like(fitted.posterior.theta[9:10])
    Engine(target).energies(
        fitted.posterior.theta[8:9], batch, gradient
    )  # the place before step 10, where a reading is taken
    entry = target.layout.entries[0]
    part = slice(entry.start, entry.stop)
    virial = float((fitted.posterior.theta[8, part] * gradient[0, part]).sum() / entry.size)
    assert float(fitted.posterior.trace.configurational[0, 0]) == pytest.approx(virial)


# ---------------------------------------------------------------------- thermometers of tempered chains


@pytest.mark.parametrize(
    "base", [tp.EllipticalSlice(), tp.HMC(step_size=0.05, length=8)], ids=lambda base: type(base).__name__
)
def test_the_thermometer_of_the_cold_chain_is_read_where_it_is(base):
    """⟨θ, ∇U⟩/d at each draw, from the slope at that place, and the loss there: not those of hot chains."""
    torch.manual_seed(0)
    x = torch.randn(30, 2, dtype=torch.float64)
    target = tp.Target(
        nn.Linear(2, 1, dtype=torch.float64), tp.Normal(scale=1.0), tp.GaussianPrior(1.0), temperature=0.5
    )
    method = tp.Collect(tp.Tempered(base, (1.0, 2.0, 4.0)), burn=50, every=2, read_every=1)
    fitted = tp.fit(target, method, (x, x[:, :1]), steps=2050)
    found = diagnose.configurational(fitted)
    assert abs(found.network_mean - 1.0) < 5 * found.network_error
    assert found.network_error < 0.1
    trace = fitted.posterior.trace
    last = fitted.posterior.theta[-4:-1]  # where the step after each began, at whose begin it is read
    losses = -fitted.engine.log_likelihood(last, Batch(x, x[:, :1], 30)).mean(-1)
    assert bool(torch.isclose(trace.loss.unsqueeze(0), losses.unsqueeze(1), rtol=1e-9).any(1).all())


def test_after_the_warm_up_the_step_is_the_average_of_what_was_tried():
    method = tp.Warmup(tp.NUTS(), 40, mass="none")
    target = classifier()
    batch = whole(target, Data(torch.randn(40, 2, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 2))
    engine = Engine(target)
    state = method.init(engine, tp.Starts(), [torch.Generator()])
    tried = []
    for _ in range(40):
        state, _ = method.step(engine, state, batch)
        tried.append(float(state.base.step_size))
    assert tried[-1] == pytest.approx(float(state.averaging.mean.exp()))
    assert tried[-1] != tried[-2]
    state, _ = method.step(engine, state, batch)
    assert float(state.base.step_size) == tried[-1]
