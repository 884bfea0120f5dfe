"""The table: every method has a row here and must pass the whole battery."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass, replace

import pytest
import torch

import temperance as tp
from temperance.inference.points.map import MAPState
from temperance.posteriors import Gaussian, Point
from temperance.testing import CheckFailure, check_inference, linear_gaussian


class OwnOptimizer(torch.optim.SGD):
    """An optimiser that the library does not know, so it gets tensors of the network's shapes."""


def matrices(name, parameter):
    """A part of every network of the battery."""
    return parameter.dim() >= 2


MOMENTUM = {"momentum": 0.9}
SGD = torch.optim.SGD
FAST = tp.MAP(lr=0.1, optimizer=SGD, optimizer_args=MOMENTUM)

DECAY = {"scheduler": torch.optim.lr_scheduler.ExponentialLR, "scheduler_args": {"gamma": 0.997}}
PAIRS = {"samples": 16, "antithetic": True}
LEARNED = {"steps": 800, "noise": 5.0, "tolerance": 0.2, "draws": 500}

ROUND = {"steps": 60, "noise": 5.0, "draws": 250, "temperatures": (0.5,)}  # so many chains, the last place of each
BRIEF = {"steps": 4, "noise": 5.0, "temperatures": ()}  # their law is looked at in the row of the kernel
SETTLED = {"steps": 200, "draws": 200, "settled": True}

TABLE = {
    "HMC": (tp.HMC(step_size=0.15, length=8), ROUND),
    "HMC, of a set time": (tp.Ensemble(tp.Collect(tp.HMC(step_size=0.15, time=0.5), burn=1, every=1), 2), BRIEF),
    "NUTS": (tp.NUTS(step_size=0.2), {**ROUND, "steps": 30}),
    "Chains of NUTS, batched": (tp.Ensemble(tp.Collect(tp.NUTS(step_size=0.1), burn=1, every=1), 2), BRIEF),
    "Chains of NUTS, one by one": (
        tp.Ensemble(tp.Collect(tp.NUTS(step_size=0.1), burn=1, every=1), 2, batched=False),
        BRIEF,
    ),
    "Warmup of NUTS": (tp.Ensemble(tp.Collect(tp.Warmup(tp.NUTS(), 1, mass="none"), every=1), 2), BRIEF),
    "MCLMC, adjusted": (tp.MCLMC(step_size=0.15, length=8), ROUND),
    "MCLMC, unadjusted": (tp.Collect(tp.MCLMC(step_size=0.1, adjusted=False), burn=1, every=1), BRIEF),
    "Elliptical slice": (
        tp.EllipticalSlice(),
        {"steps": 120, "draws": 250, "noise": 10.0, "temperatures": (0.5,)},
    ),
    "WarmStart of HMC": (tp.WarmStart(tp.HMC(step_size=0.15, length=8), FAST, steps=10), {**ROUND, "steps": 70}),
    "WarmStart of SGHMC": (tp.WarmStart(tp.Collect(tp.SGHMC(lr=0.1), burn=0, every=1), FAST, steps=2), {"steps": 4}),
    "SVGD": (tp.SVGD(3, lr=0.1), {"steps": 3}),
    "RepulsiveEnsemble": (tp.RepulsiveEnsemble(3, lr=0.1), {"steps": 3}),
    "Curve": (tp.Curve(FAST), {"steps": 4}),
    "Subspace": (tp.Subspace(tp.Collect(tp.SGHMC(lr=0.1), burn=0, every=1), tp.RandomBasis(2, FAST)), {"steps": 4}),
    "Subspace, all data": (
        tp.Subspace(tp.Collect(tp.GGMC(lr=0.01), burn=0, every=1), tp.RandomBasis(2, FAST), batch_size=9),
        {"steps": 4},
    ),
    "Tempered": (
        tp.Tempered(tp.HMC(step_size=0.15, length=8), tp.ladder(3.0, 3)),
        ROUND,
    ),
    "MAP, SGD with momentum": (FAST, {"steps": 400}),
    "MAP, Adam with a schedule": (
        tp.MAP(lr=0.1, scheduler=torch.optim.lr_scheduler.ExponentialLR, scheduler_args={"gamma": 0.9985}),
        {"steps": 5000, "temperatures": (1.0,)},
    ),
    "MAP, L-BFGS": (tp.MAP(lr=1.0, optimizer=torch.optim.LBFGS), {"steps": 40}),
    "MAP, the user's own optimiser": (
        tp.MAP(lr=0.1, optimizer=OwnOptimizer, optimizer_args=MOMENTUM),
        {"steps": 400},
    ),
    "Ensemble, batched": (tp.Ensemble(FAST, 3, batched=True), {"steps": 3}),
    "Ensemble, one after another": (tp.Ensemble(FAST, 3, batched=False), {"steps": 3}),
    "Ensemble of ensembles": (tp.Ensemble(tp.Ensemble(FAST, 2), 2), {"steps": 3}),
    "Anchored": (tp.Anchored(FAST), {"steps": 150, "draws": 600}),
    "Ensemble of Anchored": (tp.Ensemble(tp.Anchored(FAST), 3), {"steps": 3}),
    "Laplace, dense": (tp.Laplace(FAST, tp.Dense(), tune=None), {"steps": 400}),
    "Laplace, full Hessian": (tp.Laplace(FAST, tp.Dense(kind="hessian"), tune=None), {"steps": 400}),
    "Laplace, diagonal": (tp.Laplace(FAST, tp.Diagonal(), tune=None), {"steps": 400}),
    "Laplace, KFAC": (tp.Laplace(FAST, tp.KFAC(kind="monte-carlo", samples=3), tune=None), {"steps": 3}),
    "Laplace, EKFAC": (tp.Laplace(FAST, tp.EKFAC(), tune=None), {"steps": 3}),
    "Laplace, low rank": (tp.Laplace(FAST, tp.Lanczos(2), tune=None), {"steps": 3}),
    "Laplace, tuned while training": (
        tp.Laplace(FAST, tp.Dense(), tune=tp.Tune("layer", noise=True, every=1)),
        {"steps": 3, "temperatures": (1.0,)},
    ),
    "Ensemble of Laplace, batched": (
        tp.Ensemble(tp.Laplace(FAST, tp.KFAC(), tune=None), 3, batched=True),
        {"steps": 3},
    ),
    "Ensemble of Laplace, one by one": (
        tp.Ensemble(tp.Laplace(FAST, tp.Dense(), tune=None), 2, batched=False),
        {"steps": 3},
    ),
    "On, Laplace": (tp.On(tp.last_layer, tp.Laplace(FAST, tp.Dense(), tune=None)), {"steps": 3}),
    "On, a sampler": (tp.On(matrices, tp.Collect(tp.SGHMC(lr=0.1), burn=1, every=1)), {"steps": 4}),
    "Variational, full rank": (
        tp.Variational(
            tp.FullRank(), lr=0.03, samples=2, antithetic=True, sticking_the_landing=True, initial_scale=0.3, **DECAY
        ),
        {"steps": 1500, "noise": 5.0, "temperatures": (0.5,)},
    ),
    "Variational, mean field": (tp.Variational(lr=0.03, initial_scale=0.3, **PAIRS, **DECAY), LEARNED),
    "Variational, sampled KL": (tp.Variational(tp.TiedScale(1), kl="sampled", warmup=0.5), {"steps": 3}),
    "Variational, low rank": (tp.Variational(tp.LowRank(2), optimizer=SGD), {"steps": 3}),
    "Variational, matrix normal": (tp.Variational(tp.MatrixNormal()), {"steps": 3}),
    "Variational, radial": (tp.Variational(tp.Radial()), {"steps": 3}),
    "Ensemble of Variational": (tp.Ensemble(tp.Variational(), 2), {"steps": 3}),
    "IVON": (tp.IVON(lr=0.1, betas=(0.9, 0.99), initial_hessian=0.2, schedule=tp.cosine, **PAIRS), LEARNED),
    "VOGN": (
        tp.VOGN(lr=0.2, betas=(0.9, 0.8), initial_hessian=0.2, curvature="ggn", samples=2, antithetic=True),
        {**LEARNED, "steps": 30},
    ),
    "VOGN, labels drawn": (tp.VOGN(), {"steps": 3, "tolerance": 1e9}),
    "SWAG": (tp.SWAG(FAST, rank=2, start=0.0, every=1), {"steps": 4}),
    "SWAG, diagonal": (tp.SWAG(FAST, rank=0, start=0.0, every=1, lr=0.05), {"steps": 4}),
    "Ensemble of SWAG, batched": (
        tp.Ensemble(tp.SWAG(FAST, rank=2, start=0.0, every=1), 2, batched=True),
        {"steps": 4},
    ),
    "SGLD": (tp.SGLD(lr=0.03), SETTLED),
    "SGHMC": (tp.SGHMC(lr=0.04, momentum=0.95), SETTLED),
    "SGHMC, preconditioned": (
        tp.Collect(tp.SGHMC(lr=0.05, preconditioner=tp.Layerwise(batches=1)), burn=1, every=1),
        {"steps": 10},
    ),
    "BAOAB": (tp.BAOAB(lr=0.04, momentum=0.95), SETTLED),
    "Leimkuhler–Matthews": (tp.LeimkuhlerMatthews(lr=0.03), SETTLED),
    "SGNHT": (tp.SGNHT(lr=0.01), {"steps": 10}),
    "PSGLD": (tp.PSGLD(lr=0.01), {"steps": 10}),
    "GGMC": (tp.GGMC(lr=2.0, momentum=0.8, length=8), {"steps": 700, "noise": 5.0, "temperatures": (0.5,)}),
    "GGMC, on batches": (
        tp.GGMC(lr=0.3, momentum=0.9, length=6, batch_size=30),
        {"steps": 2000, "noise": 5.0, "temperatures": (0.5,)},
    ),
    "Collect": (
        tp.Collect(tp.BAOAB(lr=2.0, momentum=0.7), burn=0.05, every=2),
        {"steps": 4000, "noise": 5.0, "temperatures": (0.5,)},
    ),
    "Collect, all at once": (tp.Ensemble(tp.Collect(tp.SGHMC(lr=0.1), burn=1, every=1), 3, batched=True), {"steps": 4}),
    "TunedDecay": (tp.TunedDecay(tp.MAP(lr=0.05, patience=5)), {"steps": 10}),
    "Cyclical": (tp.Cyclical(tp.SGHMC(lr=0.1), cycle=1, start=1, ramp=1, explore=0.5), {"steps": 10}),
    "Collect at cycle ends": (
        tp.Collect(tp.Cyclical(tp.SGHMC(lr=0.1, preconditioner=tp.Layerwise(batches=1)), cycle=1)),
        {"steps": 10},
    ),
}


@pytest.mark.filterwarnings("ignore:E?KFAC has no Kronecker rule")  # the problem's network has bare parameters
@pytest.mark.filterwarnings("ignore:.*transitions diverged")  # a warm-up of one step finds no good step
@pytest.mark.parametrize("name", TABLE)
def test_conformance(name):
    method, options = TABLE[name]
    check_inference(method, **options)


def test_every_exported_method_has_a_row():
    public = (getattr(tp, name) for name in tp.inference.__all__)  # vars(tp) has only what was used so far
    exported = {v for v in public if isinstance(v, type) and issubclass(v, tp.Inference)}
    exported = {kind for kind in exported if is_dataclass(kind)}  # bases of methods are no methods
    exported -= {tp.FunctionalLaplace}  # a process has no draws of θ; see test_functional.py
    exported -= {tp.Refit}  # the battery's single steps know of no data to go back to; see test_refit.py
    exported -= {tp.Gibbs}  # the battery's priors learn no scales; see test_gibbs.py
    exported -= {tp.MCDropout}  # the battery's networks have no dropout; see test_mc_dropout.py
    shown, inside = set(), [method for method, _ in TABLE.values()]
    while inside:
        method = inside.pop()
        shown.add(type(method))
        if isinstance(method, tp.Ensemble | tp.Collect | tp.Tempered | tp.Warmup):
            inside.append(method.base)
    assert exported <= shown


# Methods made wrong on purpose: the battery has to find each of them out.


@dataclass(frozen=True, eq=False)
class _HalfTheNoise(tp.Anchored):
    def _anchor(self, engine, rng):
        return super()._anchor(engine, rng) * 0.5


@dataclass(frozen=True, eq=False)
class _Transposed(tp.MAP):
    """Right mean, right variances, but the covariance's off-diagonal blocks are those of the transposed matrix."""

    def facts(self):
        return replace(super().facts(), gives=Gaussian, exact=tp.Exactness.POSTERIOR)

    def posteriors(self, engine, state, data):
        problem = linear_gaussian()
        order = torch.arange(len(problem.mean))
        order[4:10] = order[4:10].view(2, 3).T.reshape(-1)
        wrong = problem.covariance[order][:, order] * engine.temperature
        return (Gaussian(problem.mean, tp.linalg.DenseCovariance(wrong)),)


@dataclass(frozen=True, eq=False)
class _GlobalNoise(tp.MAP):
    def step(self, engine, state, batch):
        state, info = super().step(engine, state, batch)
        state.theta += 1e-6 * torch.rand((), generator=torch.default_generator).double() * id(state) % 7
        return state, info


@dataclass(frozen=True, eq=False)
class _Forgetful(tp.MAP):
    """Its state leaves out something that the next step needs."""

    def step(self, engine, state, batch):
        state, info = super().step(engine, state, batch)
        state.__dict__["velocity"] = state.__dict__.get("velocity", 0.0) + 0.01
        state.theta += state.__dict__["velocity"]
        return state, info


@dataclass(frozen=True, eq=False)
class _Silent(tp.MAP):
    def judge(self, state, loss, moving):
        return tp.status.OK

    def posteriors(self, engine, state, data):
        return tuple(Point(row.nan_to_num(0.0).clone()) for row in state.theta)


@dataclass(frozen=True, eq=False)
class _Dear(tp.MAP):
    def step(self, engine, state, batch):
        engine.gradients(state.theta, batch, state.grad, state.buffers)
        state.hoard = getattr(state, "hoard", state.theta.clone())
        return super().step(engine, state, batch)


@dataclass(frozen=True, eq=False)
class _Greedy(tp.MAP):
    def init(self, engine, starts, rngs):
        state = super().init(engine, starts, rngs)
        return MAPState(**{**vars(state), "best_buffers": {"hoard": state.theta.expand(5, -1).clone()}})


WRONG = {
    "half the noise": (_HalfTheNoise(FAST), "covariance", {"steps": 150, "draws": 500}),
    "a missing transpose": (_Transposed(lr=0.1), "covariance", {"steps": 2}),
    "one step too few": (tp.MAP(lr=0.01, optimizer=SGD), "a point at", {"steps": 50}),
    "hidden state": (_Forgetful(lr=0.1), "bit for bit", {"steps": 2}),
    "silent NaN": (_Silent(lr=0.1), "NaN", {"steps": 2}),
    "two gradients a step": (_Dear(lr=0.1), "gradients a step", {"steps": 2}),
    "five more copies": (_Greedy(lr=0.1), "copies", {"steps": 2}),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_battery_finds_what_is_wrong(name):
    method, word, options = WRONG[name]
    with pytest.raises(CheckFailure, match=f"FAIL [^\n]*{word}"):
        check_inference(method, **options)
