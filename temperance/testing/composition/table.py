"""The table of every wrapper with every method; ``temperance.testing.composition.page`` makes a page of it.

Each cell is a short run on a small problem. The settings are not good ones: they let a run of a dozen steps go through
every phase of a method (a warm-up, cycles, a basis that is trained first).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import temperance as tp
from temperance.apps.recipes import method_named
from temperance.core.seeds import generator
from temperance.inference import Inference
from temperance.inference.listing import Listed, listing
from temperance.testing.composition.check import Composition, Wrapper, classes_of, examine_composition
from temperance.testing.composition.runs import small_problem

ALLOWED_WARNINGS = r"transitions diverged|never swap|swapped|a longer run would predict better"
"""A dozen steps find no good step size: samplers say so, and they are right."""

_POINT = tp.MAP(lr=0.05)
_STOPS = tp.MAP(lr=0.05, patience=2)
_WALK = tp.MAP(lr=0.03, optimizer=torch.optim.SGD, optimizer_args={"momentum": 0.5})
_SWAG = tp.SWAG(_WALK, rank=2, start=0.25, every=1)
_SGHMC = tp.SGHMC(lr=0.03)
_HMC = tp.HMC(step_size=0.05, length=3)
_NUTS = tp.NUTS(step_size=0.05, max_depth=4)
_WARM = tp.Warmup(tp.NUTS(max_depth=4), 6, mass="none")
_PCA = tp.PCA(2, tp.SWAG(_WALK, rank=3, start=0.0, every=1))

WRAPPERS: dict[str, Wrapper] = {
    "Ensemble": lambda m: tp.Ensemble(m, 2),
    "On": lambda m: tp.On("0", m),
    "On, last layer": lambda m: tp.On(tp.last_layer, m),
    "Collect": lambda m: tp.Collect(m),  # type: ignore[arg-type]
    "Cyclical": lambda m: tp.Cyclical(m, cycle=3),  # type: ignore[arg-type]
    "Warmup": lambda m: tp.Warmup(m, 6, mass="none"),  # type: ignore[arg-type]
    "Tempered": lambda m: tp.Tempered(m, (1.0, 2.0)),  # type: ignore[arg-type]
    "Subspace": lambda m: tp.Subspace(m, tp.RandomBasis(2)),
    "Subspace, PCA": lambda m: tp.Subspace(m, _PCA, share=0.34, batch_size=10),
    "Anchored": lambda m: tp.Anchored(m),
    "SWAG": lambda m: tp.SWAG(m, rank=2, start=0.25, every=1),
    "Laplace, Dense": lambda m: tp.Laplace(m, tp.Dense(), tune=None),
    "Laplace, KFAC": lambda m: tp.Laplace(m, tp.KFAC(), tune=None),
    "FunctionalLaplace": lambda m: tp.FunctionalLaplace(m),
    "MCDropout": lambda m: tp.MCDropout(m),
    "Curve": lambda m: tp.Curve(m),
    "WarmStart": lambda m: tp.WarmStart(m, _POINT, steps=4),
    "Refit": lambda m: tp.Refit(m, _STOPS),
    "Gibbs": lambda m: tp.Gibbs(m),  # type: ignore[arg-type]
    "TunedDecay": tp.TunedDecay,
}

INNERS: dict[str, Inference[Any]] = {
    "MAP": _POINT,
    "MAP, L-BFGS": tp.MAP(lr=0.05, optimizer=torch.optim.LBFGS, optimizer_args={"max_iter": 4}),
    "Anchored": tp.Anchored(_POINT),
    "Laplace, Dense": tp.Laplace(_POINT, tp.Dense(), tune=None),
    "Laplace, KFAC": tp.Laplace(_POINT, tp.KFAC(), tune=None),
    "Laplace, EKFAC": tp.Laplace(_POINT, tp.EKFAC(), tune=None),
    "Laplace, Diagonal": tp.Laplace(_POINT, tp.Diagonal(), tune=None),
    "Laplace, BlockDiagonal": tp.Laplace(_POINT, tp.BlockDiagonal(), tune=None),
    "Laplace, Lanczos": tp.Laplace(_POINT, tp.Lanczos(3), tune=None),
    "Laplace, tuned": tp.Laplace(_POINT, tp.KFAC(), tune="layer"),
    "Laplace, width": tp.Laplace(_POINT, tp.KFAC()),
    "FunctionalLaplace": tp.FunctionalLaplace(_POINT),
    "MCDropout": tp.MCDropout(_POINT),
    "SWAG": _SWAG,
    "Variational, MeanField": tp.Variational(lr=0.03),
    "Variational, FullRank": tp.Variational(tp.FullRank(), lr=0.03),
    "Variational, LowRank": tp.Variational(tp.LowRank(2), lr=0.03),
    "Variational, MatrixNormal": tp.Variational(tp.MatrixNormal(), lr=0.03),
    "Variational, TiedScale": tp.Variational(tp.TiedScale(1), lr=0.03),
    "Variational, Radial": tp.Variational(tp.Radial(), lr=0.03),
    "IVON": tp.IVON(lr=0.1, initial_hessian=0.2),
    "VOGN": tp.VOGN(lr=0.1),
    "SGLD": tp.SGLD(lr=0.03),
    "SGHMC": _SGHMC,
    "PSGLD": tp.PSGLD(),
    "SGNHT": tp.SGNHT(),
    "BAOAB": tp.BAOAB(),
    "LeimkuhlerMatthews": tp.LeimkuhlerMatthews(lr=0.03),
    "GGMC": tp.GGMC(lr=0.01, length=2),
    "HMC": _HMC,
    "NUTS": _NUTS,
    "MCLMC": tp.MCLMC(step_size=0.05, length=3),
    "EllipticalSlice": tp.EllipticalSlice(),
    "Warmup": _WARM,
    "Tempered": tp.Tempered(_HMC, (1.0, 2.0)),
    "Tempered of Warmup": tp.Tempered(_WARM, (1.0, 2.0)),
    "Cyclical": tp.Cyclical(_SGHMC, cycle=3),
    "Collect of SGHMC": tp.Collect(_SGHMC),
    "Collect of HMC": tp.Collect(_HMC),
    "Collect of Warmup": tp.Collect(_WARM),
    "Gibbs": tp.Gibbs(_HMC),
    "Collect of Gibbs": tp.Collect(tp.Gibbs(_SGHMC)),
    "Collect of Cyclical": tp.Collect(tp.Cyclical(_SGHMC, cycle=3)),
    "WarmStart of Collect": tp.WarmStart(tp.Collect(_SGHMC), _POINT, steps=4),
    "Refit of SWAG": tp.Refit(_SWAG, _STOPS),
    "Refit of Ensemble": tp.Refit(tp.Ensemble(_POINT, 2), _STOPS),
    "TunedDecay": tp.TunedDecay(_STOPS),
    "SVGD": tp.SVGD(3, lr=0.05),
    "RepulsiveEnsemble": tp.RepulsiveEnsemble(3, lr=0.05),
    "Curve": tp.Curve(_POINT),
    "Subspace": tp.Subspace(tp.Collect(_SGHMC), tp.RandomBasis(2, _POINT)),
    "Subspace, PCA": tp.Subspace(tp.Collect(_HMC), _PCA, batch_size=10),
    "Ensemble of MAP": tp.Ensemble(_POINT, 2),
    "Ensemble of Laplace": tp.Ensemble(tp.Laplace(_POINT, tp.KFAC(), tune=None), 2),
    "On of MAP": tp.On("0", _POINT),
    "On of SGHMC": tp.On("0", _SGHMC),
    "On of Laplace": tp.On(tp.last_layer, tp.Laplace(_POINT, tp.Dense(), tune=None)),
    "On of Collect": tp.On("0", tp.Collect(_SGHMC)),
}


def add_missing(entries: list[Listed], wrappers: dict[str, Wrapper], inners: dict[str, Inference[Any]]) -> None:
    """A method without a row (a wrapper: without a column) gets one, as its card writes it."""
    rows = {type(method) for method in inners.values()}
    columns = {name.partition(",")[0] for name in wrappers}
    for entry in entries:
        name = entry.kind.__name__
        if entry.is_method and entry.kind not in rows:
            inners[name] = method_named(entry.shown[0])
        if issubclass(entry.kind, tp.Wrapper) and name not in columns:
            wrappers[name] = entry.kind


add_missing(listing(), WRAPPERS, INNERS)

CORE = ("MAP", "Anchored", "Laplace, KFAC", "FunctionalLaplace", "MCDropout", "SWAG", "Variational, MeanField", "SGHMC",
        "HMC", "Collect of SGHMC", "SVGD", "Curve", "Ensemble of Laplace", "On of Laplace")  # fmt: skip
"""Rows that are looked at in every test run; the others by ``make test-slow``."""


@dataclass(frozen=True)
class Cell:
    """One pair, and the problem that it is tried on."""

    name: str
    outer: Wrapper
    inner: Inference[Any]
    problem: dict[str, Any] = field(default_factory=dict)
    row: str = ""
    column: str = ""
    slow: bool = False

    def examine(self) -> Composition:
        """What happens to it."""
        return examine_composition(
            self.outer, self.inner, problem=small_problem(**self.problem), allowed_warnings=ALLOWED_WARNINGS
        )


def _problem(outer: str, inner: Inference[Any]) -> dict[str, Any]:
    inside = [outer, *classes_of(inner)]
    wanted = {"dropout": "MCDropout", "conjugate_scales": "Gibbs"}  # what these two need of a problem
    return {name: True for name, kind in wanted.items() if kind in inside}


def grid() -> Iterator[Cell]:
    """Every wrapper with every method.

    >>> len(list(grid())) == len(WRAPPERS) * len(INNERS)
    True
    """
    for row, inner in INNERS.items():
        for column, outer in WRAPPERS.items():
            yield Cell(f"{column} | {row}", outer, inner, _problem(column, inner), row, column, row not in CORE)


def _given_basis(inside: Inference[Any]) -> Inference[Any]:
    matrix = torch.linalg.qr(torch.randn(33, 3, generator=generator(0, "composition-basis")))[0]
    return tp.Subspace(inside, tp.GivenBasis(matrix))


_CLASSES = {"classes": True}
_LEARNED = {"learned_noise": True}
_SCALES = {"learned_scales": True}
_DROPOUT = {"dropout": True}
_LAPLACE = tp.Laplace(_POINT, tp.KFAC(), tune=None)
_CYCLES = tp.Cyclical(_SGHMC, cycle=3)


def _on(m: Inference[Any]) -> Inference[Any]:
    return tp.On("0", m)


def _last(m: Inference[Any]) -> Inference[Any]:
    return tp.On(tp.last_layer, m)


def _three(m: Inference[Any]) -> Inference[Any]:
    return tp.Ensemble(m, 3)


def _loop(m: Inference[Any]) -> Inference[Any]:
    return tp.Ensemble(m, 2, batched=False)


def _refit(m: Inference[Any]) -> Inference[Any]:
    return tp.Refit(m, _STOPS)


_DECAYS = tp.TunedDecay(_STOPS)
_DROPS = tp.TunedDecay(_STOPS, factors=(1.0,), dropout=(0.0, 0.5))

_LONGER: dict[str, tuple[Wrapper, Inference[Any], dict[str, Any]]] = {
    "Ensemble(On(last_layer, Laplace(MAP)))": (lambda m: _three(_last(m)), _LAPLACE, {}),
    "Ensemble(On(last_layer, Laplace(MAP))), classes": (lambda m: _three(_last(m)), _LAPLACE, _CLASSES),
    "Ensemble(On(last_layer, Laplace(MAP))), learned noise": (lambda m: _three(_last(m)), _LAPLACE, _LEARNED),
    "Ensemble(Collect(Cyclical(SGHMC)))": (lambda m: _three(tp.Collect(tp.Cyclical(m, cycle=3))), _SGHMC, {}),  # type: ignore[arg-type]
    "On(Ensemble(SWAG(MAP)))": (lambda m: _on(_three(m)), _SWAG, {}),
    "On(Ensemble(SWAG(MAP))), learned noise": (lambda m: _on(_three(m)), _SWAG, _LEARNED),
    "On(Ensemble(Laplace(MAP)))": (lambda m: _on(_three(m)), _LAPLACE, {}),
    "On(Ensemble(Laplace(MAP))), classes": (lambda m: _last(_three(m)), _LAPLACE, _CLASSES),
    "On(Ensemble(MAP)), classes": (lambda m: _last(_three(m)), _POINT, _CLASSES),
    "On(Ensemble(Anchored(MAP)))": (lambda m: _on(_three(tp.Anchored(m))), _POINT, {}),
    "On(Ensemble(Collect(SGHMC)))": (lambda m: _on(_three(tp.Collect(m))), _SGHMC, {}),  # type: ignore[arg-type]
    "Ensemble(On(Collect(SGHMC)))": (lambda m: _three(_on(tp.Collect(m))), _SGHMC, {}),  # type: ignore[arg-type]
    "Ensemble(On(SWAG(MAP)))": (lambda m: _three(_on(m)), _SWAG, {}),
    "Ensemble(On(Variational))": (lambda m: _three(_on(m)), tp.Variational(lr=0.03), {}),
    "Ensemble(On(SVGD))": (lambda m: tp.Ensemble(_on(m), 2), tp.SVGD(3, lr=0.05), {}),
    "Ensemble(On(MCDropout(MAP)))": (lambda m: tp.Ensemble(_on(m), 2), tp.MCDropout(_POINT), _DROPOUT),
    "Ensemble(On(FunctionalLaplace(MAP)))": (lambda m: tp.Ensemble(_on(m), 2), tp.FunctionalLaplace(_POINT), {}),
    "Ensemble(Ensemble(Laplace(MAP)))": (lambda m: tp.Ensemble(tp.Ensemble(m, 2), 2), _LAPLACE, {}),
    "Ensemble(Ensemble(MAP)), full": (lambda m: tp.Ensemble(tp.Ensemble(m, 2), 3), _POINT, {}),
    "Ensemble(SVGD)": (lambda m: tp.Ensemble(m, 2), tp.SVGD(3, lr=0.05), _CLASSES),
    "Ensemble(Curve)": (lambda m: tp.Ensemble(m, 2), tp.Curve(_POINT), _CLASSES),
    "Ensemble(Collect(Warmup(NUTS)))": (lambda m: tp.Ensemble(tp.Collect(m), 2), _WARM, {}),  # type: ignore[arg-type]
    "Ensemble(Collect(Tempered(Warmup(NUTS))))": (
        lambda m: tp.Ensemble(tp.Collect(tp.Tempered(m, (1.0, 2.0))), 2),  # type: ignore[arg-type]
        _WARM,
        {},
    ),
    "Collect(Tempered(Warmup(NUTS)))": (lambda m: tp.Collect(tp.Tempered(m, (1.0, 2.0))), _WARM, {}),  # type: ignore[arg-type]
    "Collect(Warmup(HMC))": (lambda m: tp.Collect(tp.Warmup(m, 6, mass="none")), tp.HMC(length=3), {}),  # type: ignore[arg-type]
    "Ensemble(Collect(Warmup(NUTS, masses)))": (
        lambda m: tp.Ensemble(tp.Collect(tp.Warmup(m, 6, first=2, window=2, last=2)), 2),  # type: ignore[arg-type]
        tp.NUTS(max_depth=4),
        {},
    ),
    "Ensemble(Subspace(Collect(SGHMC)))": (
        lambda m: tp.Ensemble(tp.Subspace(m, tp.RandomBasis(2, _POINT)), 2),
        tp.Collect(_SGHMC),
        {},
    ),
    "Ensemble(Subspace(HMC, PCA))": (
        lambda m: tp.Ensemble(tp.Subspace(m, _PCA, share=0.34, batch_size=10), 2),
        tp.Collect(_HMC),
        {},
    ),
    "Ensemble(Subspace(given basis))": (lambda m: tp.Ensemble(_given_basis(m), 2), tp.Collect(_SGHMC), {}),
    "Subspace(given basis) of Ensemble(MAP)": (_given_basis, tp.Ensemble(_POINT, 3), {}),
    "Subspace(given basis) of Collect(SGHMC)": (_given_basis, tp.Collect(_SGHMC), _LEARNED),
    "Subspace(given basis) of Laplace": (_given_basis, tp.Laplace(_POINT, tp.Dense(), tune=None), {}),
    "Subspace(curve) of Collect(SGHMC)": (
        lambda m: tp.Subspace(m, tp.CurveBasis(tp.Curve(_POINT))),
        tp.Collect(_SGHMC),
        {},
    ),
    "On(Subspace(Collect(SGHMC)))": (lambda m: _on(tp.Subspace(m, tp.RandomBasis(2))), tp.Collect(_SGHMC), {}),
    "On(Collect(SGHMC)), learned noise": (_on, tp.Collect(_SGHMC), _LEARNED),
    "On(Collect(Cyclical(SGHMC))), classes": (_last, tp.Collect(_CYCLES), _CLASSES),
    "On(Collect(Warmup(NUTS)))": (_last, tp.Collect(_WARM), {}),
    "On(On(MAP))": (lambda m: tp.On(("0", "2"), _on(m)), _POINT, {}),
    "On(FunctionalLaplace(MAP)), classes": (_last, tp.FunctionalLaplace(_POINT), _CLASSES),
    "On(Laplace()), no base": (_last, tp.Laplace(curvature=tp.Dense(), tune=None), {}),
    "On(FunctionalLaplace()), no base": (_last, tp.FunctionalLaplace(), {}),
    "On(MCDropout(MAP)), classes": (_last, tp.MCDropout(_POINT), {**_CLASSES, **_DROPOUT}),
    "On(SVGD), classes": (_last, tp.SVGD(3, lr=0.05), _CLASSES),
    "On(RepulsiveEnsemble), learned noise": (_on, tp.RepulsiveEnsemble(3, lr=0.05), _LEARNED),
    "Ensemble(MCDropout(MAP)), classes": (_three, tp.MCDropout(_POINT), {**_CLASSES, **_DROPOUT}),
    "Ensemble(MCDropout(MAP)), one by one": (_loop, tp.MCDropout(_POINT), _DROPOUT),
    "Ensemble(Anchored(MAP)), classes": (_three, tp.Anchored(_POINT), _CLASSES),
    "Ensemble(MAP), learned noise": (_three, _POINT, _LEARNED),
    "Ensemble(MAP), one by one": (_loop, _POINT, {}),
    "Ensemble(SWAG(MAP)), one by one": (_loop, _SWAG, {}),
    "Ensemble(Laplace(MAP)), one by one": (_loop, _LAPLACE, _CLASSES),
    "Ensemble(Laplace(MAP)), learned noise": (_three, _LAPLACE, _LEARNED),
    "Ensemble(FunctionalLaplace(MAP)), classes": (_three, tp.FunctionalLaplace(_POINT), _CLASSES),
    "Ensemble(Collect(SGHMC)), learned noise": (_three, tp.Collect(_SGHMC), _LEARNED),
    "Ensemble(Variational), classes": (_three, tp.Variational(lr=0.03), _CLASSES),
    "Ensemble(IVON), learned noise": (_three, tp.IVON(lr=0.1, initial_hessian=0.2), _LEARNED),
    "On(largest magnitudes, Laplace(MAP))": (
        lambda m: tp.On(tp.LargestMagnitude(5), m),
        tp.Laplace(_POINT, tp.Dense(), tune=None),
        {},
    ),
    "Ensemble(On(largest magnitudes, Laplace(MAP)))": (
        lambda m: tp.Ensemble(tp.On(tp.LargestMagnitude(5), m), 2),
        tp.Laplace(_POINT, tp.Dense(), tune=None),
        {},
    ),
    "On(largest magnitudes, Ensemble(Laplace(MAP)))": (
        lambda m: tp.On(tp.LargestMagnitude(5), m),
        tp.Ensemble(tp.Laplace(_POINT, tp.Dense(), tune=None), 2),
        {},
    ),
    "Ensemble(Laplace(MAP, on=last_layer))": (_three, tp.Laplace(_POINT, tp.Dense(), on=tp.last_layer, tune=None), {}),
    "Subspace(given basis) of Ensemble(Collect(SGHMC))": (_given_basis, tp.Ensemble(tp.Collect(_SGHMC), 2), {}),
    "Subspace(given basis) of Ensemble(Laplace)": (
        _given_basis,
        tp.Ensemble(tp.Laplace(_POINT, tp.Dense(), tune=None), 2),
        {},
    ),
    "Ensemble(Subspace(Variational))": (lambda m: tp.Ensemble(_given_basis(m), 2), tp.Variational(lr=0.03), {}),
    "Ensemble(Subspace(Laplace))": (
        lambda m: tp.Ensemble(_given_basis(m), 2),
        tp.Laplace(_POINT, tp.Dense(), tune=None),
        {},
    ),
    "Laplace(Anchored(MAP))": (lambda m: tp.Laplace(tp.Anchored(m), tune=None), _POINT, {}),
    "Ensemble(Laplace(Anchored(MAP)))": (lambda m: tp.Ensemble(tp.Laplace(m, tune=None), 2), tp.Anchored(_POINT), {}),
    "Laplace(On(MAP))": (lambda m: tp.Laplace(m, tune=None), tp.On("0", _POINT), {}),
    "On(Collect(SGHMC)), learned scales": (_on, tp.Collect(_SGHMC), _SCALES),
    "Ensemble(Collect(SGHMC)), learned scales": (_three, tp.Collect(_SGHMC), _SCALES),
    "Ensemble(On(Collect(HMC))), learned scales": (lambda m: _three(_on(m)), tp.Collect(_HMC), _SCALES),
    "Ensemble(Variational), learned scales": (_three, tp.Variational(lr=0.05), _SCALES),
    "Refit(Ensemble(SWAG(MAP))), learned noise": (lambda m: _refit(tp.Ensemble(m, 2)), _SWAG, _LEARNED),
    "Ensemble(Refit(SWAG(MAP))), learned noise": (lambda m: tp.Ensemble(_refit(m), 2), _SWAG, _LEARNED),
    "Ensemble(Refit(SWAG(MAP), TunedDecay(MAP))), learned noise": (
        lambda m: tp.Ensemble(tp.Refit(m, _DECAYS), 2),
        _SWAG,
        _LEARNED,
    ),
    "Refit(Ensemble(Anchored(MAP)), TunedDecay(MAP)), classes": (
        lambda m: tp.Refit(tp.Ensemble(tp.Anchored(m), 2), _DECAYS),
        _POINT,
        _CLASSES,
    ),
    "Refit(Variational), learned noise": (_refit, tp.Variational(lr=0.03), _LEARNED),
    "Refit(FunctionalLaplace(MAP)), learned noise": (_refit, tp.FunctionalLaplace(_POINT), _LEARNED),
    "Laplace(Refit(MAP)), learned noise": (lambda m: tp.Laplace(_refit(m), tune=None), _POINT, _LEARNED),
    "On(Refit(MAP)), learned noise": (lambda m: _on(_refit(m)), _POINT, _LEARNED),
    "On(Refit(Ensemble(MAP))), learned noise": (lambda m: _on(_refit(tp.Ensemble(m, 2))), _POINT, _LEARNED),
    "WarmStart(Collect(SGHMC), Refit(MAP)), learned noise": (
        lambda m: tp.WarmStart(tp.Collect(_SGHMC), _refit(m), steps=4),
        _POINT,
        _LEARNED,
    ),
    "Ensemble(Laplace(MAP, width)), learned noise": (_three, tp.Laplace(_POINT, tp.KFAC()), _LEARNED),
    "Ensemble(On(last_layer, Laplace(MAP, width))), learned noise": (
        lambda m: _three(_last(m)),
        tp.Laplace(_POINT, tp.KFAC()),
        _LEARNED,
    ),
    "Refit(MCDropout(MAP)), learned noise": (_refit, tp.MCDropout(_POINT), {**_LEARNED, **_DROPOUT}),
    "MCDropout(Refit(MAP, TunedDecay(MAP, dropout)))": (
        tp.MCDropout,
        tp.Refit(_POINT, _DROPS),
        _DROPOUT,
    ),
    "Laplace(Refit(MAP, TunedDecay(MAP, dropout)))": (
        lambda m: tp.Laplace(tp.Refit(m, _DROPS), tune=None),
        _POINT,
        _DROPOUT,
    ),
    "Ensemble(Refit(MCDropout(MAP), TunedDecay(MAP, dropout)))": (
        lambda m: tp.Ensemble(tp.Refit(m, _DROPS), 2),
        tp.MCDropout(_POINT),
        _DROPOUT,
    ),
    "Laplace(tuned noise) in an Ensemble": (_three, tp.Laplace(_POINT, tune=tp.Tune("layer", noise=True)), {}),
}


def longer() -> list[Cell]:
    """What people write that has more levels, other data, or other settings than the grid."""
    return [Cell(name, outer, inner, problem) for name, (outer, inner, problem) in _LONGER.items()]


def cells() -> list[Cell]:
    """All of them."""
    return [*grid(), *longer()]
