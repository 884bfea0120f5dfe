"""From a posterior and inputs to a predictive distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from temperance.core.checks import check_count, shown
from temperance.core.errors import ArgumentError, DataError
from temperance.core.seeds import check_seed
from temperance.data.data import Data, _as_inputs
from temperance.data.sources import map_tensors, named_tensors
from temperance.engine.engine import Engine
from temperance.posteriors.base import Posterior
from temperance.predict import linearised_reals as _linearised_reals  # noqa: F401  it puts itself into LINEARISED
from temperance.predict.adaptive import check_precision, precise
from temperance.predict.affine import AffinePredictive
from temperance.predict.calibrated import from_outputs
from temperance.predict.classes import CategoryPredictive, ClassPredictive
from temperance.predict.counts import CountPredictive
from temperance.predict.linearised import LINKS, predict_linearised
from temperance.predict.monotone import Log, Monotone, MonotonePredictive
from temperance.predict.positions import CategoryPositionPredictive, PositionPredictive, ValuePositionPredictive
from temperance.predict.predictive import PREDICTIVES, SCORES, Predictive, evaluate
from temperance.predict.quantities import ValuePredictive
from temperance.predict.reals import RealPredictive
from temperance.predict.source import OutputSource


def predict(
    engine: Engine,
    posterior: Posterior,
    x: Any,
    *,
    draws: int | None = None,
    seed: int = 0,
    batch_size: int = 1024,
    by: str | None = None,
    precision: float | None = None,
    limit: int | None = None,
) -> Predictive:
    """The predictive distribution of ``posterior`` at the inputs ``x``, by averaging over its nodes. ``x`` is what the
    network takes, as tensors or arrays with rows first; or a ``Data``, ``Dataset`` or ``DataLoader``, of which the
    inputs are read through once.

    ``draws`` limits how many settings of θ are averaged, or chooses how many where the posterior is continuous;
    ``seed`` chooses other draws where there are more (not of a sampler, nor where batch statistics were estimated for
    some); ``batch_size`` rows go through the network at once. ``by`` says how, where the posterior leaves a choice:

    * ``"network"``: the network at each setting of θ;
    * ``"linearised"`` (what a Laplace posterior does unless told): the network linearised at its mode, whose outputs
      are Gaussian for every row; ``"functions"``: the same by draws of whole functions;
    * ``"probit"``, ``"bridge"``: class probabilities of the linearised network in closed form.

    ``precision`` in place of ``draws`` takes as many as are needed: 32, 64, 128, … up to ``limit`` (4096 unless told),
    until ``monte_carlo_error()`` is at most ``precision`` in *every* row and class; of numbers, in units of the
    predictive standard deviation. It is one standard error: about two thirds of the worst row's probabilities lie
    within it, and nearly all within twice that. Where the limit comes first a warning says so. Draw k is the same
    however many there are, so the result is that of ``draws=n`` for the n found (``num_draws``), and outputs that are
    kept are not computed again. The worst row decides: rows predicted in batches may take different numbers of draws,
    each enough. Posteriors with finitely many settings (a sampler's draws, ensembles, points) use all of them.

    Thirty draws remain the default where neither is given: on the twelve problems of ``benchmarks.jobs.draws`` their
    largest standard error is 0.001 to 0.24 (median 0.03), and a precision of 0.02 takes 1.1 to 250 times as long, 3.6
    in the median; nor would predictives of different inputs have the same draws, as joint decisions need.

    >>> import temperance as tp
    >>> train, test = tp.data.load("iris")
    >>> target = tp.Target(tp.nn.MLP(4, [8], 3), tp.Categorical(), tp.GaussianPrior(1.0))
    >>> fitted = tp.fit(target, tp.Variational(tp.MeanField()), train, epochs=2, seed=0)
    >>> found = predict(fitted.engine, fitted.posterior, test.x, precision=0.05)
    >>> bool(found.monte_carlo_error().max() <= 0.05)
    True
    """
    check_seed(seed)
    most = check_precision(draws, precision, limit)
    if isinstance(x, Dataset | DataLoader):
        x = Data.of(x, "x")
    inputs = _as_inputs(x.x if isinstance(x, Data) else np.asarray(x) if isinstance(x, list) else x, "x")
    for name, tensor in named_tensors(inputs):
        if tensor.dim() == 0 or len(tensor) < 1:
            raise DataError(f"`{name}` must have at least one row; got shape {tuple(tensor.shape)}.")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise DataError(f"`{name}` must be finite; got NaN or infinity. Remove or impute these rows.")
    if posterior.size != engine.layout.size:
        raise ArgumentError(
            f"`posterior` must be over the target's {engine.layout.size} parameters; got {posterior.size}."
        )
    inputs = engine.target.cast(inputs)
    engine = engine.on(engine.target.shaped(lambda: map_tensors(lambda t: t[:1], inputs)))
    likelihood = engine.likelihood.for_new_rows
    kind = PREDICTIVES.of(likelihood.outcome)
    by = posterior.predicts if by is None else by
    if by not in ("network", *LINKS):
        raise ArgumentError(f"`by` must be one of {('network', *LINKS)}; got {shown(by)}.")
    check_count(batch_size, "batch_size")
    if by != "network":
        make = predict_linearised(engine, posterior, inputs, kind, by, seed, batch_size)
        made = make(draws)
        if precision is None:
            return made
        usual = made.num_draws  # so many points have the moments that they should
        return precise(lambda count: made if count <= usual else make(count), precision, most, first=usual)
    if precision is None:
        return kind(OutputSource(engine, posterior.nodes(draws, seed), inputs, batch_size=batch_size), likelihood)
    sources: list[OutputSource] = []

    def grown(count: int) -> Predictive:
        known = sources[0] if sources else None
        sources[:] = [OutputSource(engine, posterior.growing(count, seed), inputs, batch_size=batch_size, known=known)]
        return kind(sources[0], likelihood)

    return precise(grown, precision, most, choice=not posterior.finite)


__all__ = [
    "PREDICTIVES",
    "SCORES",
    "AffinePredictive",
    "CategoryPositionPredictive",
    "CategoryPredictive",
    "ClassPredictive",
    "CountPredictive",
    "Log",
    "Monotone",
    "MonotonePredictive",
    "OutputSource",
    "PositionPredictive",
    "Predictive",
    "RealPredictive",
    "ValuePositionPredictive",
    "ValuePredictive",
    "evaluate",
    "from_outputs",
    "predict",
]
