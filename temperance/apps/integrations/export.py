"""The posterior predictive as one file: all draws of the network and their averages in a ``torch.export`` artefact.

export_predictive(fitted, train.x[:2], "model.pt2")
...
predictive = torch.export.load("model.pt2").module()      # in another process, without Temperance
predictive(x)["probs"]
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from temperance.apps.integrations.exportable import (
    STATISTICS,
    ExportableDraws,
    ExportableLinearised,
    ExportablePredictive,
)
from temperance.core.checks import check_count, check_level, shown
from temperance.core.errors import ArgumentError, NetworkError
from temperance.core.seeds import check_seed
from temperance.data.data import DataInfo, _as_inputs
from temperance.data.sources import Inputs, first_tensor, map_tensors
from temperance.model.likelihoods import QuantityLikelihood, RealLikelihood
from temperance.model.likelihoods.base import Likelihood
from temperance.model.target import Target
from temperance.predict.gaussian_sources import LinearisedSource
from temperance.predict.tracing import rows_of
from temperance.run.fitted import Fitted

LEVELS = (0.05, 0.5, 0.95)
_EXAMPLES = 7
_ROWS = "batch"  # what the dimension of rows is called
_FIXED = "specialized it to be a constant"  # what torch.export says of a dimension that became a number


def export_predictive(
    fitted: Fitted,
    example_x: Any,
    path: str | Path | None = None,
    *,
    draws: int | None = None,
    seed: int = 0,
    by: str | None = None,
    levels: Sequence[float] | None = None,
    normalise: DataInfo | None = None,
    dynamic_batch: bool = True,
) -> torch.export.ExportedProgram:
    """``torch.export`` of the posterior predictive. The artefact, ``torch.export.load(path).module()``, takes what
    ``fitted.predict`` takes and returns a dictionary, equal to rounding to what ``fitted.predict(x, draws=draws,
    seed=seed)`` says:

    * classes: ``probs``, ``std``, ``entropy``, ``aleatoric``, ``mutual_information``;
    * real values and counts: ``mean``, ``std``, ``epistemic_std``, ``aleatoric_std``, and ``quantiles``, levels × rows
      × outputs.

    Args:
        fitted: any run whose predictions are averages over settings of the weights.
        example_x: a few rows of inputs, for their shapes and dtypes. (Raw ones, with ``normalise``.)
        path: a file to write, ``something.pt2``.
        draws: how many settings of θ go into the artefact: its size is that of so many networks. Of a linearised
            network, which takes the place of one network and its covariance: how many points stand for each row's law.
        seed: which draws, of a continuous posterior.
        by: ``"linearised"``, what a Laplace posterior does unless told: the artefact then has the network's backward
            passes in it. ``"network"``: draws through the network itself.
        levels: of the quantiles; 5 %, 50 % and 95 % unless told, none of ``StudentT``.
        normalise: the ``info`` of standardised data: the artefact then takes raw inputs and answers in original units.
        dynamic_batch: let the number of rows vary.

    >>> import temperance as tp
    >>> train, test = tp.data.load("iris")
    >>> target = tp.Target(tp.nn.MLP(4, [8], 3), tp.Categorical(), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, tp.Ensemble(tp.MAP(lr=1e-2), 3), train, epochs=5)
    >>> program = export_predictive(fitted, train.x[:2])
    >>> found = program.module()(test.x)["probs"]
    >>> bool(torch.allclose(found, fitted.predict(test.x).probs, atol=1e-6))
    True
    """
    if path is not None and Path(path).suffix != ".pt2":
        raise ArgumentError(f"`path` must end in .pt2, torch's format of exported programs; got {str(path)!r}.")
    x = _example(fitted.target, example_x, normalise)
    module = predictive_module(
        fitted, draws=draws, seed=seed, by=by, levels=levels, normalise=normalise, example_x=example_x
    )
    if dynamic_batch:  # one row would be taken for a fixed number, and two leave symbols behind that nothing uses
        x = rows_of(x, _EXAMPLES)
    shapes = (map_tensors(_first_free, x),) if dynamic_batch else None
    problems, depth = [], _depth()
    for at_once in module.ways():
        module.at_once = at_once
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own functions
                warnings.filterwarnings("ignore", "The tensor attributes? .*were assigned during export")  # of an LSTM
                program = torch.export.export(module, (x,), dynamic_shapes=shapes)
                if at_once:  # what was batched is written as operations that any reader knows
                    program = program.run_decompositions({})
            break
        except Exception as error:  # what cannot be batched is written out draw by draw; what cannot either is reported
            problems.append(error)
            _leave_batching(depth)
    else:
        raise NetworkError(_why(fitted.target.network, problems[-1])) from problems[-1]
    if path is not None:
        torch.export.save(program, path)
    return program


def _depth() -> int:
    """How many ``vmap`` and ``grad`` are under way."""
    return len(torch._C._functorch.get_interpreter_stack() or ())


def _leave_batching(depth: int) -> None:
    """End what a failed export has begun: the graph it was in opens and closes ``vmap`` by itself, and one that is left
    open breaks all that comes after in this process."""
    while _depth() > depth:
        torch._C._functorch._vmap_decrement_nesting()


def _why(network: nn.Module, error: Exception) -> str:
    """What to say of a network that torch.export refuses. Its own words for a number of rows that Python has fixed are
    about markings that no user of ours has made, so that is said in others."""
    if not (_FIXED in str(error) and _ROWS in str(error)):
        return (
            f"torch.export cannot write this network down: {error}\nWhere it is the number of rows that must not "
            "vary, try dynamic_batch=False."
        )
    line = _line_with_len(network)
    return (
        "torch.export cannot write this network down for any number of rows: its `forward` makes that a plain number, "
        f"as len(x), int(x.shape[0]) and loops over rows do{line}. Write x.shape[0] in the place of len(x), "
        "which stays open, or give dynamic_batch=False for an artefact that takes as many rows as `example_x`."
    )


def _line_with_len(network: nn.Module) -> str:
    """The first line of a ``forward`` of the user's that asks for a length, where its text can be had."""
    for module in network.modules():
        kind = type(module)
        if kind.__module__.partition(".")[0] in ("torch", "temperance"):
            continue
        with contextlib.suppress(OSError, TypeError):
            for line in inspect.getsource(kind.forward).splitlines():
                if re.search(r"\blen\(", line):
                    return f" (here, perhaps: `{line.strip()}` in {kind.__name__})"
    return ""


def _example(target: Target, example_x: Any, normalise: DataInfo | None) -> Inputs:
    """The rows to trace with, as the network takes them but for ``normalise``."""
    x = map_tensors(lambda t: t.to(target.device), target.cast(_as_inputs(example_x, "example_x")))
    if normalise is not None and not isinstance(x, Tensor):
        raise ArgumentError("`normalise` needs inputs that are one tensor; got several.")
    if first_tensor(x).dim() < 1 or len(first_tensor(x)) < 1:
        raise ArgumentError("`example_x` must have at least one row; got none.")
    target.likelihood.check_outputs(target.probe_outputs(x))
    return x


def predictive_module(
    fitted: Fitted,
    *,
    example_x: Any = None,
    draws: int | None = None,
    seed: int = 0,
    by: str | None = None,
    levels: Sequence[float] | None = None,
    normalise: DataInfo | None = None,
) -> ExportablePredictive:
    """The posterior predictive as a plain module, for compilers and exporters other than torch's own; see
    :func:`export_predictive` for the arguments; ``example_x`` is needed where predictions are linearised. The attribute
    ``at_once`` of draws batches them by ``vmap``."""
    target, posterior = fitted.target, fitted.posterior
    by = posterior.predicts if by is None else by
    if by not in ("network", "linearised"):
        raise ArgumentError(f'`by` must be "network" or "linearised" of what is exported; got {shown(by)}.')
    STATISTICS.of(target.likelihood.outcome)  # refused here, rather than as torch's failure to trace
    chosen, units = _levels(target.likelihood, levels), _units(normalise, target.likelihood)
    if by == "linearised":
        if example_x is None:
            raise ArgumentError("`example_x` must be given for linearised predictions; got None.")
        example = _example(target, example_x, normalise)
        return _linearised(fitted, _normalised(example, units), draws, check_seed(seed), chosen, units)
    nodes = posterior.nodes(None if draws is None else check_count(draws, "draws"), check_seed(seed))
    theta, buffers = nodes.fetch(0, len(nodes))
    theta = theta.to(target.device)
    weights = (nodes.weights.double() / nodes.weights.double().sum()).to(theta)
    values = {n: v.clone() for n, v in target.layout.unflatten(theta, "network").items()}
    values |= {n: v.to(target.device).clone() for n, v in buffers.items()}
    learned = {n: v.clone() for n, v in target.layout.unflatten(theta, "likelihood").items()}
    network = copy.deepcopy(target.network).requires_grad_(False)
    places = _places_of(network, list(values))
    network = _without(network, [place for found in places.values() for place in found])
    made = ExportableDraws(network, target.likelihood.for_new_rows, weights, values, learned, chosen, units)
    made.places = places
    return made.eval()


def _normalised(x: Inputs, units: DataInfo) -> Inputs:
    if units.x_mean is None or units.x_scale is None or not isinstance(x, Tensor):
        return x
    return (x - units.x_mean.to(x)) / units.x_scale.to(x)


def _linearised(
    fitted: Fitted, x: Inputs, draws: int | None, seed: int, levels: tuple[float, ...], units: DataInfo
) -> ExportablePredictive:
    """The predictive of the network linearised, with the points and noise levels that ``predict`` itself would use."""
    predictive = fitted.predict(x, by="linearised", draws=draws, seed=seed)
    source = predictive.source
    if not isinstance(source, LinearisedSource) or not source.by_row:
        raise ArgumentError(
            f"predictions with {fitted.target.probe_outputs(x).shape[-1]} outputs are draws of functions, which cannot "
            'be exported; by="network" exports draws through the network itself.'
        )
    _, _, learned = next(iter(source.blocks()))
    kept = {name: value.clone() for name, value in learned.items() if name not in ("epistemic", "covariance")}
    points = None if "epistemic" in learned else torch.stack(source.points_of_rows())
    laws = [law.traced(x) for law in source.laws]
    return ExportableLinearised(
        laws, points, fitted.target.likelihood.for_new_rows, predictive.likelihood, source.weights, kept, levels, units
    ).eval()


def _first_free(tensor: Tensor) -> Any:
    return {0: torch.export.Dim(_ROWS, min=1)}


def _places_of(network: nn.Module, names: Sequence[str]) -> dict[str, list[str]]:
    """All names of each tensor: of weights that are tied there are several."""
    held: dict[int, list[str]] = {}
    tensors = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    for name, value in tensors:
        held.setdefault(id(value), []).append(name)
    named = dict(tensors)
    return {name: held[id(named[name])] if name in named else [name] for name in names}


def _without(network: nn.Module, names: Sequence[str]) -> nn.Module:
    """The network with nothing in the place of what each draw has of its own, so that it is not written twice."""
    for name in names:
        prefix, _, leaf = name.rpartition(".")
        owner = network.get_submodule(prefix)
        if leaf in owner._parameters:
            owner._parameters[leaf] = nn.Parameter(torch.empty(0), requires_grad=False)
    return network


def _levels(likelihood: Likelihood, levels: Sequence[float] | None) -> tuple[float, ...]:
    possible = isinstance(likelihood, QuantityLikelihood) and likelihood.in_torch
    if levels is None:
        return LEVELS if possible else ()
    if levels and not possible:
        raise ArgumentError(f"`levels` must be empty for {type(likelihood).__name__}; got {levels!r}.")
    return tuple(check_level(level, "levels") for level in levels)


def _units(normalise: DataInfo | None, likelihood: Likelihood) -> DataInfo:
    units = DataInfo() if normalise is None else normalise
    if not isinstance(units, DataInfo):
        raise ArgumentError(f"`normalise` must be the `info` of standardised data; got {type(normalise).__name__}.")
    for mean, scale in ((units.x_mean, units.x_scale), (units.y_mean, units.y_scale)):
        if (mean is None) != (scale is None):
            raise ArgumentError("`normalise` must have a mean and a scale, or neither, of inputs and of targets.")
    if normalise is not None and units.x_mean is None and units.y_mean is None:
        raise ArgumentError("`normalise` must be the `info` of standardised data; its means and scales are missing.")
    if units.y_mean is not None and not isinstance(likelihood, RealLikelihood):
        raise ArgumentError(f"`normalise` must not scale the targets of {type(likelihood).__name__}.")
    return units
