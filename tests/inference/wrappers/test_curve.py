"""Curves between modes: the path, its gradient, the loss along it, resuming, bad input."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, MismatchError, NetworkError, NumericalError
from temperance.core.seeds import generator
from temperance.data.data import Data
from temperance.engine.engine import Engine
from temperance.inference.wrappers.curve import Curve
from temperance.judge.diagnose.loss_along import loss_along
from temperance.posteriors.curve import CurvePosterior, bernstein
from temperance.run.loading import load
from temperance.testing import check_inference, linear_gaussian

SGD = torch.optim.SGD
FAST = tp.MAP(lr=0.1, optimizer=SGD, optimizer_args={"momentum": 0.9})


class Stopped(Exception):
    """Stands for a process that is killed."""


def stop_after(monkeypatch, kind, steps):
    """Let ``kind.step`` be called so many times."""
    original, calls = kind.step, []

    def step(self, engine, state, batch):
        if len(calls) == steps:
            raise Stopped
        calls.append(batch.step)
        return original(self, engine, state, batch)

    monkeypatch.setattr(kind, "step", step)


def iris_target(seed=0, **options):
    torch.manual_seed(seed)
    return tp.Target(tp.nn.MLP(4, [8], 3), tp.Categorical(), tp.GaussianPrior(1.0), **options)


def nodes_of(posterior):
    nodes = posterior.nodes()
    return nodes.fetch(0, len(nodes))[0]


# ---------------------------------------------------------------------- the path


@pytest.mark.parametrize("points", [2, 3, 5])
def test_path_has_its_ends_and_agrees_with_de_casteljau(points):
    control = torch.randn(points, 7, generator=generator(0, "points"), dtype=torch.float64)
    path = CurvePosterior(control)
    assert torch.equal(path.at(torch.tensor([0.0, 1.0])), control[[0, -1]])
    for t in (0.2, 0.7):
        level = control
        while len(level) > 1:
            level = (1 - t) * level[:-1] + t * level[1:]
        assert torch.allclose(path.at(t), level, atol=1e-12)


def test_path_is_uniform_in_t():
    path = CurvePosterior(
        torch.tensor([[0.0], [0.0], [4.0]], dtype=torch.float64)
    )  # θ(t) = 4 t²: mean 4/3, variance 16·4/45
    nodes = path.nodes()
    rows = nodes.fetch(0, len(nodes))[0]
    assert len(nodes) == 30
    assert torch.equal(torch.cat([nodes.fetch(0, 11)[0], nodes.fetch(11, 30)[0]]), rows)
    assert float((nodes.weights @ rows)[0]) == pytest.approx(4 / 3, abs=4 / 30**2)  # the midpoint rule's error
    drawn = path.sample(4000, seed=0).flatten()
    error = math.sqrt(16 * 4 / 45 / 4000)
    assert abs(float(drawn.mean()) - 4 / 3) < 5 * error
    assert float(path.mean[0]) == pytest.approx(4 / 3)
    assert len(path.nodes(7)) == 7
    assert torch.equal(path.straight.points, path.points[[0, -1]])


def test_path_refuses_what_is_no_path():
    with pytest.raises(ArgumentError, match="`points`"):
        CurvePosterior(torch.zeros(1, 3))
    with pytest.raises(ArgumentError, match="`points`"):
        CurvePosterior(torch.zeros(3))
    with pytest.raises(NumericalError, match="finite"):
        CurvePosterior(torch.tensor([[0.0], [math.nan]]))
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ArgumentError, match="`t`"):
            CurvePosterior(torch.zeros(2, 3)).at(bad)


# ---------------------------------------------------------------------- the curve


@pytest.mark.parametrize("bends", [1, 2])
def test_gradient_of_the_control_points(bends):
    """One step of SGD with learning rate 1 moves each point by minus its gradient, which autograd knows."""
    problem = linear_gaussian()
    data = problem.target.prepare(problem.data)
    ends = torch.randn(2, 16, generator=generator(1, "ends"), dtype=torch.float64)
    method = Curve(tp.MAP(lr=1.0, optimizer=SGD), bends=bends)
    engine = Engine(problem.target, data)
    state = method.init(engine, tp.Starts.of(ends), [generator(0, "method")])
    line = torch.stack([ends[0] + k / (bends + 1) * (ends[1] - ends[0]) for k in range(1, bends + 1)])
    assert torch.allclose(state.bends.theta, line, atol=1e-12)
    batch = next(iter(data.full_pass(9)))
    rng = torch.Generator()
    rng.set_state(state.rng.get_state())
    weights = bernstein(torch.rand((), generator=rng, dtype=torch.float64), bends + 1)
    leaf = line.clone().requires_grad_()
    loss = Engine(problem.target).loss(weights @ torch.cat([ends[:1], leaf, ends[1:]]), batch)
    (slope,) = torch.autograd.grad(loss, leaf)
    state, info = method.step(engine, state, batch)
    assert info.status.ok
    assert torch.allclose(state.bends.theta - line, -slope, atol=1e-10)
    assert torch.equal(state.ends, ends)


@pytest.mark.parametrize("seed", [0, 1])
def test_barrier_is_lower_along_the_curve(seed):
    train, test = tp.data.load("digits")
    torch.manual_seed(seed)
    target = tp.Target(tp.nn.MLP(64, [32], 10), tp.Categorical(), tp.GaussianPrior(1.0))
    fitted = tp.fit(target, Curve(tp.MAP(lr=1e-2)), train, steps=400, seed=seed, progress=False)
    found = loss_along(fitted, train, points=21)
    assert found.straight_barrier > 0.1, "the two modes are not apart, the test says nothing"
    assert found.barrier < 0.25 * found.straight_barrier
    assert torch.equal(found.loss[[0, -1]], found.straight[[0, -1]])
    assert float(found.disagreement[0]) == 0
    assert float(found.disagreement[-1]) > 0
    assert float(found.disagreement.max()) < float(found.straight_disagreement.max())
    assert "barrier" in str(found)
    scores = [
        1 - float((fitted.engine.outputs(e[None], test.x)[0].argmax(-1) == test.y).float().mean())
        for e in fitted.posterior.points[[0, -1]]
    ]
    assert max(scores) < 0.1, "both ends are trained"
    assert fitted.predict(test.x).num_draws == 30


def test_given_ends_stay_and_the_whole_run_trains_the_curve():
    train, _ = tp.data.load("iris")
    pair = tp.fit(iris_target(), tp.Ensemble(tp.MAP(lr=0.05), 2), train, steps=60, progress=False).posterior
    ends = torch.stack([component.theta for component in pair.components])
    fitted = tp.fit(iris_target(), Curve(FAST), train, steps=50, start=ends, progress=False)
    points = fitted.posterior.points
    assert torch.equal(points[[0, -1]], ends)
    assert not torch.allclose(points[1], ends.mean(0), atol=1e-3)


def test_ends_are_those_of_an_ensemble_and_stay():
    """The first part of the run is two independent runs of the base, each on batches of its own."""
    train, _ = tp.data.load("iris")
    target = iris_target()
    fitted = tp.fit(target, Curve(FAST), train, steps=20, batch_size=20, progress=False)
    rng = generator(0, "method")
    torch.randint(0, 2**62, (), generator=rng)  # the seed of t
    data = target.prepare(train)
    pair = tp.Ensemble(FAST, 2)
    engine = Engine(target, data)
    state = pair.init(engine, tp.Starts(), [rng])
    steps = 0
    while steps < 10:
        for batch in data.batches(20, seed=0, epoch=steps // data.steps_per_epoch(20), streams=2):
            if steps < 10:
                state, _ = pair.step(engine, state, batch)
                steps += 1
    wanted = torch.stack([c.theta for c in pair.posteriors(engine, state, None)[0].components])
    assert torch.allclose(fitted.posterior.points[[0, -1]], wanted, atol=1e-6)
    assert Curve().facts().streams == 2


@pytest.mark.parametrize("killed", [2, 4, 5, 7])
@pytest.mark.parametrize("every", [1, 3])
def test_resumed_curve_is_the_same_to_the_bit(tmp_path, monkeypatch, killed, every):
    train, _ = tp.data.load("iris")
    method = Curve(tp.MAP(lr=0.01, clip=1.0), bends=2)
    options = {"steps": 9, "batch_size": 20, "progress": False}
    whole = tp.fit(iris_target(), method, train, **options)
    with monkeypatch.context() as patch:
        stop_after(patch, Curve, killed)
        with pytest.raises(Stopped):
            tp.fit(iris_target(), method, train, checkpoint=tmp_path / "run", every=every, **options)
    resumed = tp.fit(iris_target(), method, train, checkpoint=tmp_path / "run", every=every, **options)
    assert torch.equal(resumed.posterior.points, whole.posterior.points)
    assert torch.equal(load(tmp_path / "run", iris_target().network).posterior.points, whole.posterior.points)


def test_interrupted_before_there_is_a_curve(tmp_path):
    train, _ = tp.data.load("iris")
    target = iris_target()
    target.prepare(train)
    method = Curve(FAST)
    engine = Engine(target)
    state = method.init(engine, tp.Starts(), [generator(0, "method")])
    with pytest.raises(NumericalError, match="no curve yet"):
        method.posteriors(engine, state, None)[0]
    options = {"batch_size": 20, "progress": False, "checkpoint": tmp_path / "run"}
    tp.fit(iris_target(), method, train, steps=8, **options)
    with pytest.raises(MismatchError, match="8 steps"):
        tp.fit(iris_target(), method, train, steps=12, **options)


def test_battery():
    check_inference(Curve(FAST), steps=4)
    check_inference(Curve(tp.MAP(lr=0.01), bends=3, ends=0.3), steps=4)


# ---------------------------------------------------------------------- the loss along it


def test_loss_along_a_line_of_regression_is_known():
    """−log N(1; 2t, 1) at each t, the predicted mean changes by 2t, and looking changes nothing."""
    target = tp.Target(nn.Linear(1, 1, bias=False), tp.Normal(), tp.GaussianPrior(1.0))
    before = copy.deepcopy(target.learned_start)
    path = CurvePosterior(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))  # the weight, and log σ = 0
    assert target.layout.size == 2
    found = loss_along(path, (torch.ones(4, 1), torch.tensor([[0.0], [2.0], [0.0], [2.0]])), 5, target)
    scale = target.likelihood.variance(torch.zeros(1, 1, 1), target.layout.unflatten(path.points[:1], "likelihood"))
    sigma = float(scale.sqrt().flatten()[0])
    t = found.t
    wanted = 0.5 * ((2 * t).square() + (2 - 2 * t).square()) / 2 / sigma**2 + math.log(sigma * math.sqrt(2 * math.pi))
    assert torch.allclose(found.loss, wanted, atol=1e-5)
    assert torch.allclose(found.disagreement, 2 * t, atol=1e-6)
    assert torch.equal(found.loss, found.straight)
    assert found.barrier == 0
    assert target.learned_start == before


def test_loss_along_counts_changed_labels():
    """A linear classifier whose weight changes sign at t = ½: labels of all rows but those at zero change there."""
    target = tp.Target(nn.Linear(1, 1, bias=False), tp.Bernoulli(), tp.GaussianPrior(1.0))
    data = Data(torch.tensor([[1.0], [2.0], [-1.0], [0.0]]), torch.tensor([1, 1, 0, 1]))
    found = loss_along(CurvePosterior(torch.tensor([[1.0], [-1.0]])), data, 5, target)
    assert found.disagreement.tolist() == [0.0, 0.0, 0.5, 0.75, 0.75]  # at ½ the output is 0, label 0, everywhere
    assert found.barrier == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run": tp.posteriors.Point(torch.zeros(67))}, "`run`"),
        ({"target": None}, "`target`"),
        ({"run": CurvePosterior(torch.zeros(2, 5))}, "`run`"),
        ({"points": 1}, "`points`"),
        ({"points": 2.5}, "`points`"),
    ],
)
def test_loss_along_refuses(change, message):
    train, _ = tp.data.load("iris")
    given = {"run": CurvePosterior(torch.zeros(2, 67)), "data": train, "target": iris_target(), **change}
    with pytest.raises(ArgumentError, match=message):
        loss_along(**given)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": tp.SGLD(lr=0.1)}, "`base`"),
        ({"base": tp.MAP(patience=3)}, "patience"),
        ({"base": tp.MAP(optimizer=torch.optim.LBFGS)}, "LBFGS"),
        ({"bends": 0}, "`bends`"),
        ({"bends": 1.5}, "`bends`"),
        ({"ends": 0.0}, "`ends`"),
        ({"ends": 1.0}, "`ends`"),
        ({"ends": math.nan}, "`ends`"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ArgumentError, match=message):
        Curve(**options)


def test_bad_starts_and_networks():
    train, _ = tp.data.load("iris")
    for start in (torch.zeros(67), torch.zeros(3, 67), torch.ones(2, 67)):
        with pytest.raises(ArgumentError, match="`start`"):
            tp.fit(iris_target(), Curve(FAST), train, steps=4, start=start)
    with pytest.raises(ArgumentError, match="at least 2"):
        tp.fit(iris_target(), Curve(FAST), train, steps=1)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    target = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0))
    with pytest.raises(NetworkError, match="batch norm"):
        tp.fit(target, Curve(FAST), train, steps=4)
    frozen = tp.Target(network, tp.Categorical(), tp.GaussianPrior(1.0), freeze_batch_norm=True)
    assert isinstance(tp.fit(frozen, Curve(FAST), train, steps=4, progress=False).posterior, CurvePosterior)
