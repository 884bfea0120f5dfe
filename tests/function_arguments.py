"""An example of a call of every public function that takes settings, for ``test_arguments.py``."""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import temperance as tp
from tests.arguments import X, Y, network, target


@functools.cache
def fitted() -> Any:
    return tp.fit(target(), tp.Ensemble(tp.MAP(), 2), (X, Y), steps=2, progress=False)


@functools.cache
def chain() -> Any:
    method = tp.Collect(tp.SGHMC(lr=1e-4), burn=0, every=1, read_every=1)
    return tp.fit(target(), method, (X, Y), steps=20, progress=False)


@functools.cache
def curve() -> Any:
    return tp.fit(target(), tp.Curve(), (X, Y), steps=4, progress=False)


@functools.cache
def values() -> Any:
    wanted = tp.Target(tp.nn.MLP(3, [4], 1), tp.Normal(scale=1.0), tp.GaussianPrior())
    return tp.fit(wanted, tp.Ensemble(tp.MAP(), 2), (X, X[:, :1]), steps=2, progress=False).predict(X)


def classes() -> Any:
    return fitted().predict(X)


def folder(name: str = "new") -> Path:
    return Path(tempfile.mkdtemp(prefix="temperance-arguments-")) / name


@functools.cache
def saved() -> Path:
    made = folder("run")
    fitted().save(made)
    return made


@functools.cache
def table() -> pd.DataFrame:
    made = pd.DataFrame(X.repeat(3, 1).numpy(), columns=["a", "b", "c"])
    made["y"] = ["yes" if value else "no" for value in Y.repeat(3).tolist()]
    return made


def probs() -> torch.Tensor:
    return classes().probs


def _scores(**more: Any) -> dict[str, Any]:
    return {"probs": probs(), "y": Y, **more}


def _two() -> dict[str, Any]:
    return {"score_in": torch.arange(5.0), "score_out": torch.arange(6.0)}


def _learn() -> dict[str, Any]:
    return {
        **{"make_target": target, "method": tp.MAP(), "pool": (X, Y)},
        **{"start": 4, "batch": 2, "rounds": 1, "steps": 1, "progress": False},
    }


CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "calibrate.calibrated": lambda: {
        "fitted": fitted(), "held_out": (X.repeat(3, 1) + 1, Y.repeat(3)), "rule": tp.calibrate.Temperature()
    },
    "calibrate.split_for_calibration": lambda: {"data": (X, Y)},
    "data.corrupt": lambda: {"x": torch.rand(2, 1, 8, 8), "kind": "gaussian_noise", "severity": 1},
    "data.load": lambda: {"name": "iris"},
    "data.load_all": lambda: {"name": "iris"},
    "decide.acquire.batch_bald": lambda: {"predictive": classes(), "k": 2},
    "decide.acquire.choose": lambda: {"predictive": classes(), "k": 2},
    "decide.acquire.joint_information": lambda: {"predictive": classes(), "rows": [0, 1]},
    "decide.acquire.random": lambda: {"predictive": classes()},
    **{
        f"decide.acquire.{name}": lambda: {"predictive": classes()}
        for name in ("bald", "entropy", "mean_std", "variation_ratio")
    },
    "decide.acquire.variance": lambda: {"predictive": values()},
    "decide.acquire.epig": lambda: {"predictive": classes(), "targets": classes()},
    "decide.bayes_action": lambda: {"predictive": classes(), "cost": 1.0 - torch.eye(2)},
    "decide.clopper_pearson": lambda: {"errors": 1, "rows": 10},
    "decide.conformal.conformal_quantile": lambda: {"scores": torch.arange(20.0), "level": 0.9},
    "decide.conformal.conformal_rank": lambda: {"n": 20, "level": 0.9},
    "decide.conformal.coverage_law": lambda: {"n": 20},
    "decide.defer_at": lambda: {"predictive": classes(), "y": Y},
    "decide.doubt": lambda: {"predictive": classes()},
    "decide.learn_actively": _learn,
    "decide.member_probabilities": lambda: {"predictive": classes()},
    "decide.ood_score": lambda: {"predictive": classes()},
    "decide.ood_threshold": lambda: {"in_predictive": classes()},
    "decide.play": lambda: {
        **{"environment": tp.decide.BernoulliBandit([0.5, 0.5]), "policy": tp.decide.UniformPolicy(2)},
        **{"steps": 3, "progress": False},
    },
    "decide.thompson": lambda: {"predictive": values()},
    "decide.with_abstention": lambda: {"cost": 1.0 - torch.eye(2), "price": 0.1},
    "diagnose.autocorrelation": lambda: {"x": torch.randn(2, 20)},
    **{
        f"diagnose.{name}": lambda: {"x": torch.randn(2, 20)}
        for name in ("bulk_ess", "ess", "mcse", "rhat", "tail_ess")
    },
    "diagnose.configurational": lambda: {"run": chain()},
    "diagnose.configurational_of": lambda: {"target": target(), "draws": chain(), "data": (X, Y)},
    "diagnose.curvature_temperature": lambda: {"target": target(), "draws": chain(), "data": (X, Y)},
    "diagnose.gradient_noise": lambda: {
        **{"target": target(), "theta": target().initial_theta(), "data": (X, Y)},
        **{"batch_size": 5, "batches": 4},
    },
    "diagnose.kinetic": lambda: {"run": chain()},
    "diagnose.kinetic_interval": lambda: {"size": 3},
    "diagnose.local_product": lambda: {"network": tp.nn.MLP(3, [4], 2), "x": X[0]},
    "diagnose.loss_along": lambda: {"run": curve(), "data": (X, Y), "points": 5},
    "diagnose.predictions": lambda: {"run": chain(), "x": X},
    "diagnose.prior_outputs": lambda: {"target": target(), "x": X, "draws": 2},
    "diagnose.prior_predictive": lambda: {"target": target(), "x": X, "draws": 2},
    "diagnose.relu_variance_growth": lambda: {"prior": tp.GaussianPrior(), "network": [3, 4, 2]},
    "diagnose.sampling": lambda: {"run": chain()},
    "diagnose.tail_index": lambda: {"samples": torch.randn(400)},
    "diagnose.weights": lambda: {"run": chain()},
    "fit": lambda: {"target": target(), "method": tp.MAP(), "data": (X, Y), "steps": 1},
    "inference.ladder": lambda: {"highest": 4.0, "count": 3},
    "load": lambda: {"path": saved(), "network": network()},
    "nn.ResNet20": dict,
    "nn.group_norm": dict,
    "optim.weight_decay_of": lambda: {"scale": 1.0, "num_data": 10},
    "plot.covariance": lambda: {"posterior": fitted()},
    "plot.coverage": lambda: {"predictive": values(), "y": X[:, :1]},
    "plot.loss_along": lambda: {"found": tp.diagnose.loss_along(curve(), (X, Y), 5)},
    "plot.predicted_observed": lambda: {"predictive": values(), "y": X[:, :1]},
    "plot.regression_band": lambda: {"x": X[:, 0], "predictive": values()},
    "plot.reliability": lambda: {"probs": probs(), "y": Y},
    "plot.risk_coverage": lambda: {"score": torch.arange(20.0), "error": Y.bool()},
    "plot.temperatures": lambda: {"run": chain()},
    "plot.traces": lambda: {"run": chain(), "x": X},
    "plot.uncertainty_histogram": lambda: {"groups": {"in": torch.rand(9)}},
    "recipes.method_named": lambda: {"text": "map"},
    "recipes.table_likelihood": lambda: {"task": "classification"},
    "recipes.table_target": lambda: {"task": "classification", "inputs": 3, "outputs": 2},
    "recipes.training": lambda: {"rows": 100},
    "recipes.default_training": lambda: {"rows": 100, "outcome": tp.outcomes.Reals()},
    "sample": lambda: {
        **{"log_density": lambda x: -0.5 * (x**2).sum(-1), "start": torch.zeros(2), "method": tp.HMC(0.1, 2)},
        **{"draws": 2, "chains": 1, "warmup": 2, "progress": False},
    },
    **{
        f"scores.{name}": _scores
        for name in ("accuracy", "brier", "brier_decomposition", "log_loss", "reliability_curve")
    },
    **{f"scores.{name}": lambda: _scores(resamples=10) for name in ("ece", "mce")},
    **{f"scores.{name}": _two for name in ("auprc", "auroc", "fpr_at_tpr")},
    **{f"scores.{name}": lambda: {"p": probs(), "q": probs()} for name in ("agreement", "total_variation")},
    "scores.error_detection": lambda: {"probs_or_score": torch.arange(20.0), "correct": Y.bool()},
    **{
        f"scores.{name}": lambda: {"mean": X, "std": torch.ones_like(X), "y": X}
        for name in ("gaussian_crps", "gaussian_log_score")
    },
    "scores.interval_coverage": lambda: {"low": X - 1, "high": X + 1, "y": X},
    "scores.risk_coverage": lambda: {"score": torch.arange(20.0), "error": Y.bool()},
    "scores.rmse": lambda: {"mean": X, "y": X},
    "scores.sample_crps": lambda: {"samples": torch.randn(5, 20), "y": X[:, 0]},
    "symmetry.align": lambda: {"network": network(), "theta": torch.randn(26), "reference": torch.randn(26)},
    "symmetry.canonical": lambda: {"network": network(), "theta": torch.randn(26)},
    "symmetry.symmetries": lambda: {"network": network()},
    "testing.critical_value": lambda: {"comparisons": 3},
    "testing.draws_needed": lambda: {"comparisons": 3},
}  # fmt: skip
"""What each is called with."""

NO_SETTINGS = {
    "auto", "biases", "cosine", "diagnose.dead_units", "flat", "glide", "inference.rise_and_fall",
    "recipes.table_hidden", "recipes.table_method",
    "data.data_home", "data.list_data_sets", "data.load_mushrooms", "data.verify",
    "posteriors.centre_of", "recipes.threads_for",
}  # fmt: skip
"""Functions of a fraction or of nothing, checks themselves, and what only hands on what another function gave."""

NEED_FILES = {
    "data.load_hmc_reference", "nn.load_cifar_resnet", "scores.compare_to_hmc", "tables.load_table_run",
}  # fmt: skip
"""Functions of files that a test machine may lack: what is bad is refused before a file is looked for."""

SLOW = {
    "calibrate.load_calibrated", "diagnose.local_products", "diagnose.matrix_normal_as_product",
    "diagnose.product_matrix", "plot.decision_regions", "report.report", "report.write_report", "tables.compare_table",
    "tables.fit_table", "testing.assert_moments", "testing.check_composition", "testing.check_inference",
    "testing.check_likelihood", "testing.check_prior", "testing.conjugate_regression", "testing.examine_composition",
    "testing.linear_gaussian", "testing.moment_errors", "testing.skewed_counts", "testing.small_problem",
}  # fmt: skip
"""Walked by tests of their own rooms, or made for tests."""


SIMPLE = {"int", "float", "bool", "str", "None", "Path", "Score", "Order", "Binning"}


def settings(function: Any) -> list[str]:
    """The arguments that are numbers, flags, words or places: what data are is said by tests of their own."""
    found = inspect.signature(function).parameters.values()
    return [p.name for p in found if all(part.strip() in SIMPLE for part in str(p.annotation).split("|"))]


LEGAL_OF_FUNCTIONS: dict[str, str] = {
    "": (
        "calibrate.split_for_calibration.fraction calibrate.split_for_calibration.test data.corrupt.kind "
        "data.corrupt.severity data.load.name data.load_all.name decide.acquire.batch_bald.k "
        "decide.acquire.batch_bald.configurations decide.acquire.choose.k "
        "decide.acquire.joint_information.configurations decide.clopper_pearson.confidence "
        "decide.conformal.coverage_law.n decide.conformal.coverage_law.level decide.defer_at.risk "
        "decide.defer_at.confidence decide.defer_at.score decide.defer_at.thresholds decide.doubt.kind "
        "decide.learn_actively.batch decide.learn_actively.steps decide.ood_score.kind "
        "decide.ood_threshold.false_alarms decide.ood_threshold.kind decide.play.steps "
        "diagnose.configurational_of.max_draws diagnose.configurational_of.batch_size "
        "diagnose.curvature_temperature.max_draws diagnose.curvature_temperature.batch_size "
        "diagnose.gradient_noise.batch_size diagnose.gradient_noise.batches diagnose.kinetic.level "
        "diagnose.kinetic_interval.size diagnose.kinetic_interval.level diagnose.loss_along.points "
        "diagnose.predictions.max_quantities diagnose.predictions.batch_size diagnose.prior_outputs.draws "
        "diagnose.prior_predictive.draws "
        "diagnose.weights.max_parameters fit.accumulate fit.steps inference.ladder.count load.path "
        "nn.ResNet20.in_channels nn.ResNet20.out_features nn.group_norm.groups optim.weight_decay_of.num_data "
        "decide.bayes_action.samples plot.covariance.max_parameters plot.coverage.level plot.predicted_observed.level "
        "plot.predicted_observed.most plot.regression_band.level plot.reliability.bins plot.reliability.level "
        "plot.temperatures.level plot.traces.what plot.traces.rows plot.uncertainty_histogram.bins "
        "recipes.table_target.inputs recipes.table_target.outputs recipes.training.rows sample.draws "
        "recipes.default_training.rows "
        "testing.draws_needed.comparisons testing.draws_needed.false_alarm "
        "sample.chains sample.every scores.ece.bins scores.ece.binning scores.ece.level scores.ece.resamples "
        "scores.fpr_at_tpr.tpr scores.interval_coverage.level scores.mce.bins scores.mce.binning scores.mce.level "
        "scores.mce.resamples scores.reliability_curve.bins scores.reliability_curve.binning "
        "symmetry.align.sweeps symmetry.canonical.order testing.critical_value.comparisons "
        "testing.critical_value.false_alarm"
    ),
    "0": (
        "calibrate.calibrated.seed calibrate.split_for_calibration.seed data.corrupt.seed data.load.split "
        "data.load.seed data.load_all.split data.load_all.seed decide.acquire.batch_bald.seed "
        "decide.acquire.joint_information.seed decide.acquire.random.seed decide.clopper_pearson.errors "
        "decide.clopper_pearson.rows decide.conformal.conformal_rank.n decide.learn_actively.rounds "
        "decide.learn_actively.seed decide.thompson.seed diagnose.configurational.after "
        "diagnose.gradient_noise.seed diagnose.kinetic.after diagnose.prior_outputs.seed "
        "diagnose.prior_predictive.seed fit.seed "
        "plot.predicted_observed.seed decide.acquire.choose.seed decide.bayes_action.seed "
        "plot.predicted_observed.output plot.regression_band.output recipes.table_target.seed sample.warmup "
        "sample.seed scores.ece.seed scores.mce.seed"
    ),
    "1.5": (
        "diagnose.kinetic_interval.temperature inference.ladder.highest optim.weight_decay_of.scale "
        "recipes.table_target.temperature"
    ),
    "None": (
        "decide.learn_actively.by calibrate.calibrated.draws calibrate.calibrated.by decide.acquire.choose.among "
        "decide.learn_actively.epochs decide.learn_actively.batch_size decide.learn_actively.draws "
        "decide.learn_actively.candidates diagnose.autocorrelation.max_lag diagnose.tail_index.piece_size "
        "fit.epochs fit.batch_size fit.every "
        "scores.brier_decomposition.bins"
    ),
    "True": (
        "fit.compile diagnose.configurational_of.centred diagnose.kinetic.corrected fit.throw scores.sample_crps.fair "
        "symmetry.align.signs symmetry.align.scales symmetry.canonical.signs symmetry.canonical.scales"
    ),
    "None 0": ("plot.covariance.seed"),
    "-1 0 1.5": (
        "decide.conformal.conformal_quantile.level decide.conformal.conformal_rank.level decide.with_abstention.price"
    ),
    "None 1.5": ("diagnose.configurational.max_pace diagnose.kinetic.max_pace"),
    "None True": "decide.learn_actively.progress decide.play.progress fit.progress sample.progress sample.compile",
    "None banana": "decide.learn_actively.folder fit.checkpoint sample.checkpoint",
    "banana empty": ("plot.uncertainty_histogram.xlabel"),
}
"""Labels of ``BAD`` that are good after all, and the arguments that take just these."""

_LEGAL = {name: set(labels.split()) for labels, names in LEGAL_OF_FUNCTIONS.items() for name in names.split()}


def legal_of_function(name: str, argument: str) -> set[str]:
    """As ``legal`` for constructors."""
    return _LEGAL[f"{name}.{argument}"]
