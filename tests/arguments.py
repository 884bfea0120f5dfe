"""Everything public that takes arguments, an example of each, and values that are bad for nearly all of them."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import temperance as tp


class Foreign:
    """A class that is none of ours, and takes no arguments."""


BAD: dict[str, Any] = {
    "None": None,
    "banana": "banana",
    "empty": "",
    "-1": -1,
    "0": 0,
    "1.5": 1.5,
    "nan": math.nan,
    "inf": math.inf,
    "True": True,
    "[]": [],
    "{}": {},
    "object": object(),
    "matrix": torch.tensor([[1.0, 2.0]]),
    "whole": torch.tensor([1, 2, 3]),
    "truths": torch.tensor([True]),
    "complex": torch.tensor([1j]),
    "huge": 10**400,
    "giant": 10**5000,  # Python refuses to write it down: a message that does would be an error of its own
    "class": Foreign,
    "lambda": lambda *_, **__: 1,
    "bytes": b"x",
    "tuple": (1,),
    "1j": 1j,
}


def network() -> nn.Module:
    return tp.nn.MLP(3, [4], 2)


def target() -> tp.Target:
    return tp.Target(network(), tp.Categorical(), tp.GaussianPrior())


X, Y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2


def walk() -> Iterator[tuple[str, Any]]:
    """The name, without ``temperance.``, and the object: each class and function of ours that a public room exports."""
    seen: set[int] = set()

    def inside(module: types.ModuleType, prefix: str) -> Iterator[tuple[str, Any]]:
        listed = getattr(module, "__all__", None)
        for name in sorted(set(listed or [name for name in dir(module) if not name.startswith("_")])):
            found = getattr(module, name)
            if listed is None and not str(getattr(found, "__module__", "")).startswith(module.__name__):
                continue  # what a module without a list imports is not its own
            if id(found) in seen or not getattr(found, "__module__", getattr(found, "__name__", "")):
                continue
            if isinstance(found, types.ModuleType):
                if found.__name__.startswith("temperance"):
                    seen.add(id(found))
                    yield from inside(found, f"{prefix}{name}.")
            elif callable(found) and str(getattr(found, "__module__", "")).startswith("temperance"):
                seen.add(id(found))
                yield prefix + name, found

    yield from inside(tp, "")


def arguments(made: Any) -> list[str]:
    """The names of what it takes."""
    return [
        p.name for p in inspect.signature(made).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


def _diagonal() -> Any:
    return tp.linalg.DiagonalBlock(((0, 3),), _ones(3))


def _kronecker() -> dict[str, Any]:
    eye, one = torch.eye, _ones
    bases = {"basis_in": eye(3), "basis_out": eye(2), "values_in": one(3), "values_out": one(2)}
    return {"places": ((0, 6),), **bases, "in_scale": one(3), "out_scale": one(2)}


def _terms() -> dict[str, Any]:
    numbers = dict.fromkeys(("log_likelihood", "log_prior", "slack", "counted", "effective"), 1.0)
    return {**numbers, "gradient": _ones(3)}


def _trace() -> dict[str, Any]:
    names = "step pace temperature kinetic_bias kinetic configurational loss draw_step"
    return {name: _ones(2) for name in names.split()}


def _policy() -> dict[str, Any]:
    return {"make_target": target, "method": tp.MAP(), "num_arms": 2}


def _optimiser() -> dict[str, Any]:
    return {"params": list(network().parameters()), "lr": 0.1, "num_data": 10}


def _point() -> Any:
    return tp.posteriors.Point(_ones(2))


EXAMPLES: dict[str, Callable[[], dict[str, Any]]] = {
    "Collect": lambda: {"base": tp.SGLD()},
    "Cyclical": lambda: {"base": tp.SGLD()},
    "Ensemble": lambda: {"base": tp.MAP()},
    "Gibbs": lambda: {"base": tp.SGLD()},
    "GivenBasis": lambda: {"matrix": torch.eye(4)[:, :2]},
    "InverseGamma": lambda: {"shape": 2.0, "rate": 1.0},
    "LargestMagnitude": lambda: {"size": 3},
    "LargestVariance": lambda: {"size": 3},
    "Layout": lambda: {"entries": target().layout.entries},
    "MixturePrior": lambda: {"components": (tp.GaussianPrior(), tp.LaplacePrior())},
    "NonCentred": lambda: {"network": network()},
    "On": lambda: {"subset": "2", "base": tp.MAP()},
    "CuratedLabels": lambda: {"labellers": 3},
    "PerPosition": lambda: {"each": tp.Categorical()},
    "ZeroInflated": lambda: {"each": tp.Poisson()},
    "outcomes.ByPosition": lambda: {"of": tp.outcomes.Classes()},
    "outcomes.CategoriesByPosition": lambda: {"of": tp.outcomes.Classes()},
    "outcomes.QuantitiesByPosition": lambda: {"of": tp.outcomes.Reals()},
    "decide.conformal.Cross": lambda: {"rule": tp.decide.conformal.Split()},
    "decide.conformal.CrossConformal": lambda: {
        "rule": tp.decide.conformal.Split(),
        "level": 0.9,
        "scores": (_ones(5),),
    },
    "PerLayer": lambda: {"priors": {"0": tp.GaussianPrior()}},
    "RandomBasis": lambda: {"rank": 2},
    "Subspace": lambda: {"base": tp.NUTS()},
    "Target": lambda: {"network": network(), "likelihood": tp.Categorical(), "prior": tp.GaussianPrior()},
    "Tempered": lambda: {"base": tp.HMC()},
    "Warmup": lambda: {"base": tp.HMC()},
    "Refit": lambda: {"base": tp.MAP(), "pilot": tp.MAP(patience=0.1)},
    "TunedDecay": lambda: {"base": tp.MAP(patience=0.1)},
    "WarmStart": lambda: {"base": tp.NUTS()},
    "calibrate.IsotonicCalibrator": lambda: {"knots": (_ones(2),), "values": (_ones(2),)},
    "calibrate.SpreadCalibrator": lambda: {"scale": _ones(1)},
    "calibrate.TemperatureCalibrator": lambda: {"temperature": 1.0},
    "calibrate.VectorCalibrator": lambda: {"scale": _ones(2), "shift": _ones(2)},
    "data.Data": lambda: {"x": X, "y": Y},
    "decide.ArmNetwork": lambda: {"network": network()},
    "decide.BernoulliBandit": lambda: {"probs": [0.1, 0.5]},
    "decide.BetaBernoulli": lambda: {"num_arms": 2},
    "decide.Deferral": lambda: {
        **{"threshold": 0.5, "score": "confidence", "risk": 0.1, "confidence": 0.9},
        **{"coverage": 0.5, "errors": 1, "answered": 5, "rows": 10},
    },
    "decide.EpsilonGreedy": _policy,
    "decide.NeuralLinear": _policy,
    "decide.NormalInverseGamma": lambda: {"features": 3},
    "decide.OODDetector": lambda: {"ordinary": _ones(3), "kind": "entropy", "false_alarms": 0.1},
    "decide.PinballLoss": lambda: {"level": 0.5},
    "decide.ThompsonSampling": _policy,
    "decide.UniformPolicy": lambda: {"num_arms": 2},
    "decide.conformal.AdaptiveConformal": lambda: {"rule": tp.decide.conformal.APS()},
    "decide.conformal.Conformal": lambda: {"rule": tp.decide.conformal.APS(), "level": 0.9, "scores": (_ones(5),)},
    "decide.conformal.Mondrian": lambda: {"rule": tp.decide.conformal.APS()},
    "linalg.BlockCovariance": lambda: {"parts": (tp.linalg.DiagonalCovariance(_ones(3)),)},
    "linalg.CholeskyCovariance": lambda: {"factor": torch.eye(2)},
    "linalg.CholeskyInverse": lambda: {"factor": torch.eye(2)},
    "linalg.DenseBlock": lambda: {"places": ((0, 2),), "matrix": torch.eye(2)},
    "linalg.DenseCovariance": lambda: {"matrix": torch.eye(2)},
    "linalg.DiagonalBlock": lambda: {"places": ((0, 3),), "values": _ones(3)},
    "linalg.DiagonalCovariance": lambda: {"variance": _ones(3)},
    "linalg.DiagonalInverse": lambda: {"precision": _ones(3)},
    "linalg.KroneckerBlock": _kronecker,
    "linalg.KroneckerCovariance": lambda: {"left": torch.eye(2), "right": torch.eye(3)},
    "linalg.KroneckerInverse": lambda: {"block": tp.linalg.KroneckerBlock(**_kronecker()), "precision": _ones(6)},
    "linalg.LowRankBlock": lambda: {"places": ((0, 3),), "vectors": _ones(3, 1), "values": _ones(1)},
    "linalg.LowRankCovariance": lambda: {"variance": _ones(3), "factor": _ones(3, 1)},
    "linalg.LowRankInverse": lambda: {"precision": _ones(3), "factor": _ones(3, 1)},
    "linalg.PosteriorCovariance": lambda: {"blocks": (_diagonal(),), "prior_precision": _ones(3)},
    "nn.CNN": lambda: {"in_channels": 1, "out_features": 2},
    "nn.FilterResponseNorm": lambda: {"channels": 2},
    "nn.MLP": lambda: {"in_features": 3, "hidden": [4], "out_features": 2},
    "nn.SingleBiasLSTM": lambda: {"in_features": 2, "hidden": 2},
    **dict.fromkeys(
        (f"optim.{n}" for n in ("BAOAB", "GGMC", "IVON", "LeimkuhlerMatthews", "PSGLD", "SGHMC", "SGLD", "SGNHT")),
        _optimiser,
    ),
    "optim.VOGN": lambda: {"network": network(), "lr": 0.1, "num_data": 10},
    "posteriors.Affine": lambda: {"inner": _point(), "centre": _ones(4), "basis": torch.eye(4)[:, :2]},
    "posteriors.CurvePosterior": lambda: {"points": _ones(3, 4)},
    "posteriors.Draws": lambda: {"theta": _ones(3, 4)},
    "posteriors.DropoutPosterior": lambda: {"theta": _ones(3), "dropouts": ("1",)},
    "posteriors.EvidenceTerms": _terms,
    "posteriors.Gaussian": lambda: {"mean": _ones(3), "operator": tp.linalg.DiagonalCovariance(_ones(3))},
    "posteriors.LaplacePosterior": lambda: {
        "mean": _ones(3),
        "operator": tp.linalg.PosteriorCovariance((_diagonal(),), _ones(3)),
        "terms": tp.posteriors.EvidenceTerms(**_terms()),
    },
    "posteriors.Mixture": lambda: {"components": (_point(), _point())},
    "posteriors.Point": lambda: {"theta": _ones(3)},
    "posteriors.PosteriorPrior": lambda: {
        "mean": _ones(3),
        "operator": tp.linalg.PosteriorCovariance((_diagonal(),), _ones(3)),
    },
    "posteriors.Process": lambda: {
        **{"theta": _ones(3), "prior_precision": _ones(3)},
        **{"inputs": _ones(2, 3), "roots": _ones(2, 1, 1)},
    },
    "posteriors.Shifted": lambda: {"inner": _point(), "index": torch.tensor([0, 1]), "shift": _ones(2)},
    "posteriors.WithOutliers": lambda: {"inner": _point(), "likelihood": tp.ContaminatedNormal(0.2, 3.0)},
    "posteriors.Pushforward": lambda: {"inner": _point(), "index": torch.tensor([0, 1]), "rest": _ones(4)},
    "posteriors.RadialPosterior": lambda: {"mean": _ones(3), "scale": _ones(3), "sizes": (3,)},
    "posteriors.Trace": _trace,
    "posteriors.WithStatistics": lambda: {"inner": _point(), "statistics": {"a": _ones(2, 1)}},
}
"""What a constructor needs, where its defaults are not enough."""

MADE_BY_US = {
    "Card", "Cost", "Exactness", "Facts", "Fitted", "Info", "MethodFamily", "Recipe",
    "calibrate.CalibratedFitted", "calibrate.Parts",
    "data.Batch", "data.DataSetEntry", "data.HMCReference", "data.Mushrooms", "data.Verification",
    "decide.ActiveLearning", "decide.Decision", "decide.Play", "decide.Selection", "decide.conformal.AdaptiveState",
    "diagnose.Convergence", "diagnose.DeadUnits", "diagnose.Finding", "diagnose.GradientNoise", "diagnose.PathLoss",
    "diagnose.PriorOutputs", "diagnose.PriorPredictive",
    "diagnose.ProductMoments", "diagnose.Temperatures", "diagnose.Verdict",
    "nn.Shortcut", "optim.LangevinOptimizer", "optim.NaturalOptimizer", "posteriors.Nodes", "posteriors.Stratum",
    "recipes.TableModel", "scores.Binning", "scores.BrierDecomposition", "scores.CalibrationError",
    "scores.ErrorDetection", "scores.HMCComparison", "scores.IntervalCoverage", "scores.ReliabilityCurve",
    "scores.RiskCoverage", "sklearn.Uncertainty", "status.Status", "symmetry.HiddenLayer",
    "symmetry.Symmetries", "tables.Comparison", "tables.Evaluation", "tables.TableRun", "testing.Check",
    "testing.ClosedForm", "testing.Composition", "testing.LinearLeaves", "testing.Quadrature", "testing.Report",
    "testing.SmallProblem",
}  # fmt: skip
"""Answers of the library (scores, verdicts, batches), enumerations, and bases: users read these, and make none."""

LAZY = {
    "sklearn.BayesianClassifier",
    "sklearn.BayesianCounts",
    "sklearn.BayesianEstimator",
    "sklearn.BayesianRegressor",
}
"""scikit-learn wants constructors that take anything: what is wrong is said by ``fit``."""

NEEDS_FILES = {"decide.MushroomBandit"}


def constructors() -> dict[str, type]:
    """Public classes that users make."""
    return {
        name: made
        for name, made in walk()
        if inspect.isclass(made)
        and not inspect.isabstract(made)
        and not issubclass(made, Exception)
        and name not in MADE_BY_US | LAZY | NEEDS_FILES
    }


LEGAL: dict[str, str] = {
    "": (
        "each of "
        "accept activation antithetic base basis batch_size batches bends betas block blocks channels components "
        "confidence count curvature curve cycle dense_limit depth draws dtype each embedding ends entries "
        "estimator every factor factor_limit false_alarms family first hidden hyper image_size in_channels in_features "
        "index inner kernel kind kl labellers left length level likelihood limit lstm matrix max_depth method network "
        "num_arms num_data num_outputs operator optimizer out_features params particles pilot places points pool prior "
        "prior_precision priors rank read_every right risk rule samples share sharing shortcut size sizes space "
        "statistics temperatures terms theta until by values_in vectors vocabulary window x y"
    ),
    "0": "answered decay errors explore floor jitter momentum pace ramp seed settle start warmup whole",
    "-1": "beta",
    "None -1 0 1.5": "ignore",
    "None []": "labels",
    "[]": "classes dropouts features knots parts scores values",
    "{}": "buffers optimizer_args scheduler_args",
    "1.5": (
        "alpha c data_factor df epsilon gain gamma initial_hessian initial_scale likelihood_temperature losses lr mass "
        "prior_scale rate reach shape spread stretch temperature tolerance width wins"
    ),
    "-1 0": "rows",
    "0 1.5": "num_targets eps weight_decay",
    "None": (
        "adapt centre compute epochs info last norm num_classes outcome patience preconditioner scheduler steps trace "
        "transitions tune weights"
    ),
    "True": (
        "adjusted all_rows allow_batch_norm bias dense freeze_batch_norm gaussian has_bias noise per_class per_output "
        "randomised schedule_steps sticking_the_landing tails tempered by_position undecided weigh "
        "of_all"
    ),
    "tuple": "factors probs widths",
    "None 0": "burn",
    "lambda": "schedule score",
    "matrix": "gradient in_scale out_scale precision rest roots values_out variance",
    "None 1.5": "bandwidth clip dispersion step_size time",
    "None True": "batched shift target_noise",
    "None 0 1.5": "penalty",
    "None matrix": "basis_in basis_out corrected prior_mean x_mean x_scale y_mean y_scale",
    "banana empty": "name note",
    "class lambda": "make_target",
    "matrix whole": "ordinary",
    "None [] tuple": "groups image_shape seeds",
    "banana lambda": "subset",
    "-1 0 1.5 nan inf": "after before counted coverage effective log_likelihood log_prior slack threshold",
    "1.5 matrix whole": "scale",
    "None banana lambda": "on",
    "-1 0 1.5 matrix whole": "mean",
    "matrix whole truths complex": "configurational draw_step kinetic kinetic_bias loss step",
    "None matrix whole truths complex": "acceptance given",
    "[] {} matrix whole truths complex": "inputs",
}
"""Which of :data:`BAD` are good after all, by the argument's name: labels, and the arguments that take just these."""

LEGAL_OF_ONE: dict[str, str] = {
    "": (
        "Width.rows Thermal.excess Thermal.share posteriors.Shifted.shift "
        "Warmup.steps Warmup.mass Warmup.last decide.NormalInverseGamma.features linalg.DiagonalBlock.values "
        "posteriors.Affine.centre posteriors.Gaussian.mean posteriors.LaplacePosterior.mean "
        "posteriors.RadialPosterior.mean posteriors.RadialPosterior.scale "
        "calibrate.IsotonicCalibrator.knots calibrate.IsotonicCalibrator.values linalg.DenseBlock.matrix "
        "linalg.KroneckerBlock.in_scale linalg.LowRankBlock.values linalg.DiagonalCovariance.variance "
        "linalg.LowRankCovariance.variance linalg.LowRankCovariance.factor"
    ),
    "0": "Thermal.descent calibrate.VarianceScale.trim Tune.burn decide.Deferral.rows decide.EpsilonGreedy.epsilon",
    "1.5": (
        "ContaminatedNormal.factor FanIn.bias HalfCauchy.scale NonCentred.scale RandomBasis.scale "
        "decide.NeuralLinear.precision "
        "decide.NormalInverseGamma.precision"
    ),
    "None": (
        "Collect.every FunctionalLaplace.base FunctionalLaplace.size GGMC.batch_size HMC.length HMC.mass "
        "Laplace.base MCDropout.base MCLMC.mass NUTS.mass NonCentred.hyper RandomBasis.base SWAG.every Tune.every "
        "decide.EpsilonGreedy.batch_size decide.EpsilonGreedy.draws decide.NeuralLinear.batch_size "
        "decide.NeuralLinear.draws decide.ThompsonSampling.batch_size decide.ThompsonSampling.draws "
        "decide.conformal.AdaptiveConformal.window posteriors.LaplacePosterior.prior "
        "posteriors.LaplacePosterior.likelihood PerPosition.shape NoisyLabels.rate "
        "linalg.KroneckerBlock.basis_in linalg.KroneckerBlock.basis_out linalg.KroneckerBlock.corrected "
        "calibrate.SpreadCalibrator.noise"
    ),
    "True": "nn.FilterResponseNorm.threshold",
    "0 1.5": (
        "Width.slack optim.BAOAB.temperature optim.LeimkuhlerMatthews.temperature optim.PSGLD.temperature "
        "optim.SGHMC.temperature optim.SGLD.temperature optim.SGNHT.temperature"
    ),
    "whole": "linalg.DiagonalBlock.places linalg.LowRankBlock.places",
    "-1 1.5": "decide.LinexLoss.shape",
    "None 0": "decide.conformal.RAPS.rank SWAG.rank",
    "lambda": "Cyclical.shape decide.OODDetector.kind",
    "matrix": (
        "calibrate.SpreadCalibrator.scale calibrate.VectorCalibrator.scale calibrate.VectorCalibrator.shift "
        "linalg.LowRankInverse.factor posteriors.Draws.theta posteriors.PosteriorPrior.mean "
        "posteriors.Process.prior_precision"
    ),
    "None {}": "posteriors.LaplacePosterior.buffers",
    "None 1.5": "ContaminatedNormal.scale Normal.scale SGHMC.lr SWAG.lr StudentT.scale",
    "[] tuple": "nn.CNN.channels nn.MLP.hidden",
    "[]": "TunedDecay.dropout",
    "None tuple": "posteriors.DropoutPosterior.rates",
    "None lambda": "Target.subset",
    "-1 0 1.5 nan inf": "linalg.KroneckerBlock.rows",
    "None -1 0 1.5 nan inf": "posteriors.EvidenceTerms.noise",
    "matrix whole truths complex": "posteriors.Trace.pace posteriors.Trace.temperature",
    "None matrix whole truths complex": "decide.conformal.Conformal.weights",
}
"""The same for arguments that mean something else in one class than elsewhere."""

_LEGAL = {name: set(labels.split()) for labels, names in LEGAL.items() for name in names.split()}
_LEGAL_OF_ONE = {name: set(labels.split()) for labels, names in LEGAL_OF_ONE.items() for name in names.split()}


def legal(name: str, argument: str) -> set[str]:
    """The labels of :data:`BAD` that ``name(argument=...)`` may take."""
    own = f"{name}.{argument}"
    return _LEGAL_OF_ONE[own] if own in _LEGAL_OF_ONE else _LEGAL[argument]
