"""Methods in a subspace: exact where the answer is known, bases, prior, two parts of one run, resuming, bad input."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import temperance as tp
from temperance.core.errors import ArgumentError, MismatchError, NetworkError, NumericalError
from temperance.core.seeds import generator
from temperance.engine.engine import Engine
from temperance.inference.wrappers.bases import PCA, CurveBasis, GivenBasis, RandomBasis, orthonormal
from temperance.inference.wrappers.curve import Curve
from temperance.inference.wrappers.subspace import Subspace
from temperance.judge import diagnose
from temperance.posteriors import Draws, Gaussian, Mixture, Point
from temperance.posteriors.affine import Affine, place
from temperance.posteriors.curve import CurvePosterior
from temperance.run.loading import load
from temperance.testing import assert_moments, check_inference, linear_gaussian

SGD = torch.optim.SGD
FAST = tp.MAP(lr=0.1, optimizer=SGD, optimizer_args={"momentum": 0.9})
NEWTON = tp.MAP(lr=1.0, optimizer=torch.optim.LBFGS, optimizer_args={"line_search_fn": "strong_wolfe"})
WALK = tp.SWAG(FAST, rank=4, start=0.0, every=1)


def rotation(size=16):
    return orthonormal(size, size, generator(3, "rotation"))


def skewed(size=16, rank=16):
    """Columns that are neither orthogonal nor of one length."""
    mix = torch.randn(rank, rank, generator=generator(4, "mix"), dtype=torch.float64)
    return orthonormal(size, rank, generator(3, "rotation")) @ (torch.eye(rank) + 0.3 * mix)


FULL = {"identity": torch.eye(16, dtype=torch.float64), "rotation": rotation(), "any": skewed()}


def iris_target(prior=None, network=None, **options):
    torch.manual_seed(0)
    made = tp.nn.MLP(4, [8], 3) if network is None else network
    return tp.Target(made, tp.Categorical(), prior or tp.GaussianPrior(1.0), **options)


def nodes_of(posterior):
    nodes = posterior.nodes()
    return nodes.fetch(0, len(nodes))[0]


def effective(rows):
    series = torch.cat([rows, (rows - rows.mean(0)).square()], dim=1)
    return min(float(diagnose.ess(column)) for column in series.T)


# ---------------------------------------------------------------------- a full basis is no restriction


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_laplace_in_a_full_basis_is_the_posterior(name, temperature):
    problem = linear_gaussian()
    method = Subspace(tp.Laplace(NEWTON, tp.Dense(), tune=None), GivenBasis(FULL[name]))
    target = problem.target.with_temperature(temperature)
    fitted = tp.fit(target, method, problem.data, steps=20, batch_size=40, progress=False)
    assert isinstance(fitted.posterior, Affine)
    assert torch.allclose(fitted.posterior.mean, problem.mean, atol=1e-4)
    assert torch.allclose(fitted.posterior.covariance(), temperature * problem.covariance, atol=1e-4, rtol=0)
    if temperature == 1.0:  # the prior over z is normalised, so the evidence is that of θ
        assert fitted.posterior.inner.log_evidence() == pytest.approx(problem.log_evidence, abs=1e-4)
    assert_moments(fitted.posterior.sample(2000, seed=0), problem.mean, temperature * problem.covariance)


@pytest.mark.parametrize("name", FULL)
def test_map_in_a_full_basis_finds_the_mean(name):
    problem = linear_gaussian()
    found = tp.fit(
        problem.target, Subspace(NEWTON, GivenBasis(FULL[name])), problem.data, steps=20, batch_size=40, progress=False
    ).posterior
    assert isinstance(found, Point)
    assert torch.allclose(found.theta, problem.mean, atol=1e-4)


@pytest.mark.parametrize("name", ["identity", "rotation"])
def test_draws_in_a_full_basis_are_those_of_the_posterior(name):
    problem = linear_gaussian(noise=5.0)  # round, for draws that are worth enough
    chain = tp.Collect(tp.GGMC(lr=2.0, momentum=0.8, length=8), burn=0.05, every=1)
    method = Subspace(chain, GivenBasis(FULL[name], centre=problem.mean))
    found = tp.fit(problem.target, method, problem.data, steps=800, progress=False).posterior
    assert isinstance(found, Draws)
    assert_moments(found.theta, problem.mean, problem.covariance, ess=effective(found.theta))


def test_draws_in_the_identity_are_those_of_the_method_on_the_whole():
    """Step by step, at a temperature of the posterior and one of the likelihood."""
    problem = linear_gaussian()
    given = problem.target
    target = tp.Target(given.network, given.likelihood, given.prior, 0.4, likelihood_temperature=2.5)
    data = target.prepare(problem.data)
    engine, batch = Engine(target, data), next(iter(data.full_pass()))
    base = tp.Collect(tp.HMC(step_size=0.05, length=5), burn=0, every=1)
    method, start = Subspace(base, GivenBasis(FULL["identity"])), tp.Starts.of(0.1 * target.initial_theta())
    inside = method.init(engine, start, [generator(0, "test")])
    alone = base.init(engine, start, [generator(inside.seed, "method")])
    for _ in range(8):
        inside, _ = method.step(engine, inside, batch)
        alone, _ = base.step(engine, alone, batch)
    (found,), (wanted,) = method.posteriors(engine, inside, data), base.posteriors(engine, alone, data)
    assert torch.allclose(found.theta, wanted.theta, rtol=0, atol=1e-12)
    assert len(wanted.theta.unique(dim=0)) > 4


def test_what_the_likelihood_learns_stays_beside_z():
    problem = linear_gaussian()

    def gaussian(method):
        target = tp.Target(problem.target.network, tp.Normal(), problem.target.prior)
        return tp.fit(target, method, problem.data, steps=60, batch_size=40, progress=False).posterior

    laplace = tp.Laplace(NEWTON, tp.Dense(), tune=None)
    whole, inside = gaussian(laplace), gaussian(Subspace(laplace, GivenBasis(skewed())))
    assert inside.size == whole.size == 17
    assert torch.allclose(inside.mean, whole.mean, atol=1e-4)
    assert torch.allclose(inside.covariance(), whole.covariance(), atol=1e-5)


def test_an_earlier_posterior_as_the_prior():
    """Its correlations are seen from the subspace too."""
    problem = linear_gaussian()
    laplace = tp.Laplace(NEWTON, tp.Dense(), tune=None)
    options = {"steps": 20, "batch_size": 40, "progress": False}
    first = tp.fit(problem.target, laplace, problem.data, **options)
    again = problem.target.with_prior(first.posterior.as_prior())
    whole = tp.fit(again, laplace, problem.data, **options).posterior
    inside = tp.fit(again, Subspace(laplace, GivenBasis(skewed())), problem.data, **options).posterior
    assert torch.allclose(inside.mean, whole.mean, atol=1e-4)
    assert torch.allclose(inside.covariance(), whole.covariance(), atol=1e-6)


# ---------------------------------------------------------------------- a true subspace


@pytest.mark.parametrize("rank", [1, 2])
def test_subspace_of_linear_regression_has_a_closed_form(rank):
    """exp(−½ (c + Bz − μ)ᵀ Λ (c + Bz − μ)) is Gaussian in z, with precision BᵀΛB."""
    problem = linear_gaussian()
    basis, centre = skewed(16, rank), torch.randn(16, generator=generator(5, "centre"), dtype=torch.float64)
    inner = basis.T @ problem.precision @ basis
    away = torch.linalg.solve(inner, basis.T @ problem.precision @ (problem.mean - centre))
    centre = centre + basis @ (away - 0.1)  # the same subspace; chains start one or two standard deviations off
    z = torch.linalg.solve(inner, basis.T @ problem.precision @ (problem.mean - centre))
    mean, covariance = centre + basis @ z, basis @ torch.linalg.inv(inner) @ basis.T

    def run(method, **options):
        method = Subspace(method, GivenBasis(basis, centre))
        return tp.fit(problem.target, method, problem.data, batch_size=40, progress=False, **options).posterior

    laplace = run(tp.Laplace(NEWTON, tp.Dense(), tune=None), steps=10)
    assert torch.allclose(laplace.mean, mean, atol=1e-5)
    assert torch.allclose(laplace.covariance(), covariance, atol=1e-12)
    drawn = run(tp.Collect(tp.GGMC(lr=0.03, momentum=0.9, length=3), burn=0.1, every=1), steps=600).theta
    coordinates = torch.linalg.lstsq(basis, (drawn - centre).T).solution.T
    assert torch.allclose(place(coordinates, centre, basis), drawn, atol=1e-9), "draws lie in the subspace"
    assert_moments(coordinates, z, torch.linalg.inv(inner), ess=effective(coordinates))


# ---------------------------------------------------------------------- the restricted prior


PRIORS = {
    "isotropic": tp.GaussianPrior(1.3, mean=0.2),
    "by fan-in": tp.GaussianPrior(tp.FanIn(gain=1.5, bias=0.7), mean=0.3),
    "Laplace": tp.LaplacePrior(0.8),
    "Student-t": tp.StudentTPrior(df=4, scale=0.9),
    "by layer": tp.PerLayer({"0": tp.GaussianPrior(1.0), "*": tp.LaplacePrior(0.5)}),
}


def inner_target(prior, basis, likelihood=None):
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    target = tp.Target(network, likelihood or tp.Normal(scale=0.5), prior)
    size = target.layout.network_size
    data = target.prepare(tp.data.Data(torch.randn(12, 3).double(), torch.randn(12, 2).double()))
    centre = torch.randn(size, generator=generator(6, "centre"), dtype=torch.float64)
    engine = Engine(target, data)
    state = Subspace(tp.MAP(), GivenBasis(basis(size), centre)).init(engine, tp.Starts(), [generator(0, "method")])
    return target, state, next(iter(data.full_pass()))


@pytest.mark.parametrize("prior", PRIORS)
def test_restricted_prior(prior):
    """log p(z) is log p(c + B z) up to a constant, and its score what autograd says, for rows of z at once too."""
    target, state, _ = inner_target(PRIORS[prior], lambda size: skewed(size, 4), tp.Normal())
    inside = state.engine.target
    rows = torch.randn(5, 5, generator=generator(7, "z"), dtype=torch.float64)  # four coordinates and log σ
    found = inside.log_prior(rows)
    leaf = rows.clone().requires_grad_()
    wanted = target.log_prior(place(leaf, state.centre, state.basis))
    assert torch.allclose(found - found[0], (wanted - wanted[0]).detach(), atol=1e-9)
    (slope,) = torch.autograd.grad(wanted.sum(), leaf)
    grad = torch.ones_like(rows)
    inside.bound_prior.add_gradient(rows, grad, 2.0)
    assert torch.allclose(grad - 1.0, 2 * slope, atol=1e-9)


@pytest.mark.parametrize("prior", ["isotropic", "by fan-in"])
@pytest.mark.parametrize("basis", [skewed, lambda size, rank: orthonormal(size, rank, generator(0, "b"))])
def test_draws_of_a_restricted_gaussian_prior(prior, basis):
    target, state, _ = inner_target(PRIORS[prior], lambda size: basis(size, 3))
    density = target.bound_prior.pieces[0][1]
    tau = torch.as_tensor(density.scale, dtype=torch.float64).expand(len(state.basis)) ** -2
    precision = state.basis.T @ (tau.unsqueeze(1) * state.basis)
    mean = torch.linalg.solve(precision, state.basis.T @ (tau * (density.mean - state.centre)))
    assert_moments(state.engine.target.sample_prior(3000, generator(1, "draws")), mean, torch.linalg.inv(precision))


def test_other_restricted_priors_have_no_draws():
    _, state, _ = inner_target(PRIORS["Laplace"], lambda size: skewed(size, 3))
    with pytest.raises(ArgumentError, match="Gaussian"):
        state.engine.target.sample_prior(2, generator(0, "draws"))
    method = Subspace(tp.Laplace(FAST, tp.Dense(), tune=None), RandomBasis(3, FAST))
    with pytest.raises(ArgumentError, match="must be Gaussian"):
        tp.fit(iris_target(tp.StudentTPrior(df=4, scale=1.0)), method, tp.data.load("iris")[0], steps=4)


# ---------------------------------------------------------------------- the network at c + B z


def test_network_in_a_subspace():
    """Outputs one by one and batched, gradients one by one and stacked: all as those of the network at c + B z."""
    target, state, batch = inner_target(PRIORS["by fan-in"], lambda size: skewed(size, 3), tp.Normal())
    inside = state.engine
    z = torch.randn(4, 4, generator=generator(8, "z"), dtype=torch.float64)
    theta = place(z, state.centre, state.basis)
    wanted = Engine(target).outputs(theta, batch.x)
    for batched in (True, False):
        assert torch.allclose(inside.outputs(z, batch.x, batched=batched), wanted, atol=1e-12)
    assert inside.can_batch_training()
    slope, stacked = torch.zeros_like(z), torch.zeros_like(z)
    spread = tp.data.Batch(batch.x.expand(4, -1, -1), batch.y.expand(4, -1, -1), batch.num_data, streams=4)
    inside.gradients(z, spread, stacked)
    for row, into, at in zip(z, slope, theta, strict=True):
        inside.gradient(row, batch, into)
        outer = torch.zeros_like(at)
        Engine(target).gradient(at, batch, outer)
        pulled = torch.cat([state.basis.T @ outer[: len(state.basis)], outer[len(state.basis) :]])
        assert torch.allclose(into, pulled, atol=1e-12)
    assert torch.allclose(stacked, slope, atol=1e-12)


def test_frozen_parts_stay():
    """A subspace of the last layer: a full basis is that layer's own posterior; frozen batch norm is no obstacle."""
    train, _ = tp.data.load("iris")
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    network[1].running_mean += 0.3
    options = {"steps": 40, "batch_size": 150, "progress": False}
    found = []
    for wrap in (lambda m: m, lambda m: Subspace(m, GivenBasis(orthonormal(18, 18, generator(0, "b"))))):
        target = iris_target(tp.GaussianPrior(1.0), network, subset=tp.last_layer, freeze_batch_norm=True)
        found.append(tp.fit(target, wrap(tp.Laplace(NEWTON, tp.Dense(), tune=None)), train, **options))
    assert torch.allclose(found[0].posterior.mean, found[1].posterior.mean, atol=1e-4)
    assert torch.allclose(found[0].posterior.covariance(), found[1].posterior.covariance(), atol=1e-3)


# ---------------------------------------------------------------------- bases


def test_pca_is_the_svd_of_the_trajectory(monkeypatch):
    iterates = []
    original = tp.SWAG.step

    def step(self, engine, state, batch):
        state, info = original(self, engine, state, batch)
        iterates.append(state.base.theta[0].detach().double().numpy().copy())
        return state, info

    monkeypatch.setattr(tp.SWAG, "step", step)
    train, _ = tp.data.load("iris")
    swag = tp.SWAG(tp.MAP(lr=0.05, optimizer=SGD), rank=6, start=0.5, every=2)
    method = Subspace(tp.Variational(), PCA(3, swag), share=0.6)
    found = tp.fit(iris_target(), method, train, steps=40, batch_size=30, progress=False).posterior
    assert len(iterates) == 24
    kept = np.stack([row for k, row in enumerate(iterates) if k >= 12 and (k + 1) % 2 == 0])
    means = np.cumsum(kept, axis=0) / np.arange(1, len(kept) + 1)[:, None]
    deviations = (kept - means)[-6:]
    _, values, directions = np.linalg.svd(deviations, full_matrices=False)
    basis = found.basis.double().numpy()
    assert np.allclose(found.centre.numpy(), means[-1], atol=1e-5)
    assert np.allclose(np.linalg.norm(basis, axis=0), values[:3] / math.sqrt(5), rtol=1e-3)
    units = basis / np.linalg.norm(basis, axis=0)
    assert np.allclose(units.T @ units, np.eye(3), atol=1e-5)
    assert np.allclose(np.abs(np.sum(units * directions[:3].T, axis=0)), 1.0, atol=1e-3)


def test_random_basis_is_orthonormal_and_around_the_base():
    train, _ = tp.data.load("iris")
    options = {"batch_size": 30, "progress": False}
    ended = tp.fit(iris_target(), FAST, train, steps=8, **options).posterior.theta
    method = Subspace(tp.Variational(), RandomBasis(4, FAST, scale=0.3))
    found = tp.fit(iris_target(), method, train, steps=16, **options).posterior
    assert torch.equal(found.centre, ended)
    assert torch.allclose(found.basis.T @ found.basis, 0.09 * torch.eye(4), atol=1e-6)
    start = torch.randn(67)
    alone = Subspace(tp.Variational(), RandomBasis(4))
    around = [tp.fit(iris_target(), alone, train, steps=2, start=start, seed=s, **options).posterior for s in (0, 1)]
    assert torch.equal(around[0].centre, start)
    assert not torch.allclose(around[0].basis, around[1].basis)


@pytest.mark.parametrize("bends", [1, 2])
def test_curve_basis_holds_the_curve(bends):
    train, _ = tp.data.load("iris")
    options = {"batch_size": 30, "progress": False}
    curve = Curve(tp.MAP(lr=0.05), bends=bends)
    method = Subspace(tp.Variational(), CurveBasis(curve))
    found = tp.fit(iris_target(), method, train, steps=80, **options).posterior
    assert found.basis.shape == (67, 1 + bends)
    gram = found.basis.T @ found.basis
    radius = float(gram[0, 0])
    assert torch.allclose(gram, radius * torch.eye(1 + bends), atol=1e-4 * radius)
    state_ends = place(torch.tensor([[1.0], [-1.0]]) * torch.eye(1 + bends)[0], found.centre, found.basis)
    data, engine = iris_target().prepare(train), Engine(iris_target())
    losses = [float(-engine.log_likelihood(end[None], next(iter(data.full_pass()))).mean()) for end in state_ends]
    assert max(losses) < 0.6, "z = ±1 on the first axis are the two trained ends"


def test_curve_basis_of_given_ends():
    train, _ = tp.data.load("iris")
    ends = torch.randn(2, 67, generator=generator(0, "ends"))
    method = Subspace(tp.MAP(), CurveBasis(Curve(tp.MAP(lr=0.05))))
    target = iris_target()
    target.prepare(train)
    found = tp.fit(target, Subspace(tp.Variational(), method.basis), train, steps=20, start=ends, progress=False)
    found = found.posterior
    assert torch.allclose(found.centre, ends.mean(0), atol=1e-6)
    assert torch.allclose(found.basis[:, 0], 0.5 * (ends[1] - ends[0]), atol=1e-5)


# ---------------------------------------------------------------------- two parts of one run

SEEN = []


@dataclass(frozen=True, eq=False)
class Watched(tp.MAP):
    """Tells what batches it was given."""

    name: str = ""

    def step(self, engine, state, batch):
        SEEN.append((self.name, batch))
        return super().step(engine, state, batch)


@dataclass(frozen=True, eq=False)
class WatchedFull(Watched):
    def facts(self):
        return replace(super().facts(), reads="full")


def test_each_part_sees_a_run_of_its_own():
    train, _ = tp.data.load("iris")
    SEEN.clear()
    method = Subspace(Watched(name="second"), RandomBasis(2, Watched(name="first")), share=0.4)
    tp.fit(iris_target(), method, train, steps=10, batch_size=40, progress=False)
    for name, total in (("first", 4), ("second", 6)):
        batches = [b for n, b in SEEN if n == name]
        assert [b.step for b in batches] == list(range(total))
        assert {b.total_steps for b in batches} == {total}
        assert [b.progress for b in batches] == [k / total for k in range(total)]
    assert [b.size for _, b in SEEN[:3]] == [40, 40, 40]


def test_first_part_reads_batches_where_the_method_reads_everything():
    train, _ = tp.data.load("iris")
    SEEN.clear()
    basis = RandomBasis(2, Watched(name="first"))
    tp.fit(iris_target(), Subspace(WatchedFull(name="second"), basis, batch_size=50), train, steps=12, progress=False)
    first, second = ([b for n, b in SEEN if n == name] for name in ("first", "second"))
    rows = len(train)
    assert [b.size for b in first] == [50] * 6
    assert [b.size for b in second] == [rows] * 6
    assert [b.last for b in first] == [False, False, True] * 2  # 120 rows: an epoch is three steps of 50
    assert [b.epoch for b in first] == [0, 0, 0, 1, 1, 1]
    assert all(b.num_data == rows for b in first)
    for batch in first:
        assert len(batch.index.unique()) == 50
        assert torch.equal(batch.x, train.x[batch.index])
    assert not torch.equal(first[0].index, first[1].index)


def test_chains_in_one_subspace_are_seen_by_diagnostics():
    train, test = tp.data.load("iris")
    method = Subspace(tp.Ensemble(tp.Collect(tp.SGHMC(lr=1e-3), burn=10, every=2), 3), CurveBasis(Curve(FAST)))
    fitted = tp.fit(iris_target(), method, train, steps=80, batch_size=40, progress=False)
    assert isinstance(fitted.posterior, Mixture)
    assert [type(c) for c in fitted.posterior.components] == [Draws] * 3
    assert fitted.posterior.components[0].theta.shape == (15, 67)
    assert diagnose.weights(fitted) is not None
    assert fitted.predict(test.x).num_draws == 45
    assert method.facts().streams == 3


def test_laplace_without_training_leaves_the_run_to_the_basis():
    train, test = tp.data.load("iris")
    method = Subspace(tp.Laplace(curvature=tp.Dense(), tune=None), PCA(3, WALK))
    fitted = tp.fit(iris_target(), method, train, steps=20, batch_size=30, progress=False)
    assert torch.equal(fitted.posterior.inner.mean, torch.zeros(3))
    assert method.facts().default_steps is None
    given = Subspace(tp.Laplace(curvature=tp.Dense(), tune=None), RandomBasis(2))
    assert given.facts().default_steps == 0
    assert tp.fit(iris_target(), given, train, progress=False).predict(test.x).probs.shape == (30, 3)


# ---------------------------------------------------------------------- resuming


class Stopped(Exception):
    """Stands for a process that is killed."""


def stop_after(monkeypatch, steps):
    """Let ``Subspace.step`` be called so many times."""
    original, calls = Subspace.step, []

    def step(self, engine, state, batch):
        if len(calls) == steps:
            raise Stopped
        calls.append(batch.step)
        return original(self, engine, state, batch)

    monkeypatch.setattr(Subspace, "step", step)


RESUMED = {
    "draws on disk": Subspace(tp.Collect(tp.SGHMC(lr=1e-3), burn=1, every=1), PCA(2, WALK)),
    "mean field": Subspace(tp.Variational(lr=0.05), PCA(2, WALK)),
    "all data": Subspace(tp.Collect(tp.GGMC(lr=1e-3), burn=1, every=1), CurveBasis(Curve(FAST)), batch_size=30),
    "chains": Subspace(tp.Ensemble(tp.Collect(tp.SGHMC(lr=1e-3), burn=1, every=1), 2), PCA(2, WALK)),
    "Laplace": Subspace(tp.Laplace(FAST, tp.Dense(), tune=None), PCA(2, WALK)),
    "IVON": Subspace(tp.IVON(), RandomBasis(3, FAST)),
    "nothing to train": Subspace(tp.Variational(lr=0.05), RandomBasis(3)),
}


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize(("killed", "every"), [(3, 1), (6, 1), (7, 2), (9, 1)])
def test_resumed_run_is_the_same_to_the_bit(tmp_path, monkeypatch, name, killed, every):
    """In the first part, at the border, and in the second, where the prior over z is not that of any other basis."""
    train, test = tp.data.load("iris")
    prior = tp.GaussianPrior(1.0 if name == "mean field" else tp.FanIn())
    options = {"steps": 12, "batch_size": 30, "progress": False}
    saving = {**options, "checkpoint": tmp_path / "run", "every": every}
    whole = tp.fit(iris_target(prior), RESUMED[name], train, **options)
    with monkeypatch.context() as patch:
        stop_after(patch, killed)
        with pytest.raises(Stopped):
            tp.fit(iris_target(prior), RESUMED[name], train, **saving)
    resumed = tp.fit(iris_target(prior), RESUMED[name], train, **saving)
    assert torch.equal(nodes_of(resumed.posterior), nodes_of(whole.posterior))
    loaded = load(tmp_path / "run", iris_target(prior).network)
    assert torch.equal(loaded.predict(test.x).probs, whole.predict(test.x).probs)


def test_length_of_a_run_cannot_change(tmp_path):
    train, _ = tp.data.load("iris")
    options = {"batch_size": 30, "progress": False, "checkpoint": tmp_path / "run"}
    tp.fit(iris_target(), Subspace(FAST, RandomBasis(2, FAST)), train, steps=4, **options)
    with pytest.raises(MismatchError, match="4 steps"):
        tp.fit(iris_target(), Subspace(FAST, RandomBasis(2, FAST)), train, steps=6, **options)


@pytest.mark.parametrize(
    "method",
    [
        Subspace(tp.Collect(tp.SGHMC(lr=0.1), burn=0, every=1), RandomBasis(2, FAST)),
        Subspace(tp.Variational(), RandomBasis(2)),
        Subspace(tp.Collect(tp.GGMC(lr=0.01), burn=0, every=1), RandomBasis(2, FAST), batch_size=9),
        tp.Ensemble(Subspace(FAST, RandomBasis(2, FAST)), 2),
    ],
    ids=lambda method: type(method).__name__,
)
def test_battery(method):
    check_inference(method, steps=4)


# ---------------------------------------------------------------------- posterior


def test_affine_posterior():
    inner = Gaussian(torch.tensor([1.0, 5.0]), tp.linalg.DenseCovariance(torch.tensor([[2.0, 0.5], [0.5, 1.0]])))
    centre, basis = torch.tensor([1.0, 2.0, 9.0]), torch.tensor([[1.0], [3.0]])
    found = Affine(inner, centre, basis)  # z and one learned number
    assert torch.equal(found.mean, torch.tensor([2.0, 5.0, 5.0]))
    map_ = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]])
    assert torch.allclose(found.covariance(), map_ @ inner.covariance() @ map_.T)
    assert torch.equal(found.sample(3, seed=0), place(inner.sample(3, seed=0), centre, basis))
    nodes = found.nodes(5)
    assert torch.equal(torch.cat([nodes.fetch(0, 2)[0], nodes.fetch(2, 5)[0]]), nodes.fetch(0, 5)[0])
    for change in ({"basis": torch.ones(4, 1)}, {"inner": Point(torch.zeros(3))}):
        with pytest.raises(ArgumentError, match=next(iter(change))):
            Affine(**{"inner": inner, "centre": centre, "basis": basis, **change})
    with pytest.raises(NumericalError, match="finite"):
        Affine(inner, centre, basis * math.nan)
    with pytest.raises(ArgumentError, match="Gaussian"):
        Affine(CurvePosterior(torch.zeros(2, 2)), centre, basis).covariance()


# ---------------------------------------------------------------------- bad input


EYE = torch.eye(67)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Subspace("MAP", RandomBasis(2)), "`base`"),
        (lambda: Subspace(tp.MAP(), torch.eye(3)), "`basis`"),
        (lambda: Subspace(tp.MAP(), RandomBasis(2), share=0.0), "`share`"),
        (lambda: Subspace(tp.MAP(), RandomBasis(2), share=1.0), "`share`"),
        (lambda: Subspace(tp.MAP(), RandomBasis(2), batch_size=0), "`batch_size`"),
        (lambda: Subspace(tp.On(tp.last_layer, tp.MAP()), RandomBasis(2)), "On"),
        (lambda: Subspace(tp.MCDropout(tp.MAP()), RandomBasis(2)), "MCDropout"),
        (lambda: Subspace(Subspace(tp.MAP(), RandomBasis(2)), RandomBasis(2)), "Subspace"),
        (lambda: Subspace(tp.Laplace(tp.MAP(), tune=None), RandomBasis(2)), "Dense"),
        (lambda: Subspace(tp.Ensemble(tp.Laplace(tp.MAP(), tune=None), 2), RandomBasis(2)), "Dense"),
        (lambda: Subspace(tp.Laplace(tp.MAP(), tp.Dense(), tune="scalar"), RandomBasis(2)), "tune"),
        (lambda: PCA(0), "`rank`"),
        (lambda: PCA(5, tp.SWAG(rank=4)), "`rank`"),
        (lambda: PCA(5, tp.MAP()), "`base`"),
        (lambda: RandomBasis(0), "`rank`"),
        (lambda: RandomBasis(2, tp.SGLD(lr=0.1)), "`base`"),
        (lambda: RandomBasis(2, tp.MAP(patience=2)), "patience"),
        (lambda: RandomBasis(2, scale=-1.0), "`scale`"),
        (lambda: CurveBasis(tp.MAP()), "`curve`"),
        (lambda: GivenBasis([[1.0]]), "`matrix`"),
        (lambda: GivenBasis(torch.ones(5)), "`matrix`"),
        (lambda: GivenBasis(torch.ones(5, 2)), "independent"),
        (lambda: GivenBasis(torch.eye(3, 5)), "independent"),
        (lambda: GivenBasis(torch.zeros(5, 1)), "independent"),
        (lambda: GivenBasis(torch.full((5, 1), math.nan)), "`matrix`"),
        (lambda: GivenBasis(torch.ones(5, 1), torch.full((5,), math.inf)), "`centre`"),
        (lambda: GivenBasis(torch.ones(5, 1), torch.ones(5, 1)), "`centre`"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    ("method", "steps", "message"),
    [
        (Subspace(FAST, RandomBasis(68, FAST)), 4, "`rank`"),
        (Subspace(FAST, GivenBasis(torch.ones(66, 1))), 4, "`matrix`"),
        (Subspace(FAST, GivenBasis(torch.ones(67, 1), torch.ones(66))), 4, "`centre`"),
        (Subspace(FAST, PCA(4, WALK)), 8, "collect 4"),
        (Subspace(FAST, RandomBasis(2, FAST)), 1, "at least 2"),
        (Subspace(tp.Collect(tp.SGHMC(lr=0.1), burn=5, every=1), RandomBasis(2, FAST)), 10, "`burn`"),
        (Subspace(tp.Laplace(curvature=tp.Dense(), tune=None), RandomBasis(2)), 5, "trains nothing"),
    ],
)
def test_bad_runs(method, steps, message):
    train, _ = tp.data.load("iris")
    with pytest.raises(ArgumentError, match=message):
        tp.fit(iris_target(), method, train, steps=steps, batch_size=30, progress=False)


def test_bad_networks_starts_and_trajectories():
    train, _ = tp.data.load("iris")
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with pytest.raises(NetworkError, match="batch norm"):
        tp.fit(iris_target(network=network), Subspace(FAST, RandomBasis(2)), train, steps=4)
    with pytest.raises(ArgumentError, match="`start`"):
        tp.fit(iris_target(), Subspace(FAST, RandomBasis(2)), train, steps=4, start=torch.zeros(2, 67))
    still = tp.SWAG(tp.MAP(lr=1e-30, optimizer=SGD), rank=4, start=0.0, every=1)
    with pytest.raises(NumericalError, match="fewer than 3 directions"):
        tp.fit(iris_target(), Subspace(FAST, PCA(3, still)), train, steps=20, batch_size=30, progress=False)
    with pytest.raises(NumericalError, match="straight line"):
        tp.fit(iris_target(), Subspace(FAST, CurveBasis(Curve(tp.MAP(lr=1e-30)))), train, steps=8, progress=False)
