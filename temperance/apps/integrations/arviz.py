"""Draws, predictions and log-likelihoods of a run as an ArviZ ``DataTree``: for its plots, tables and model comparison.

    tree = to_arviz(fitted, data=train)
    arviz_stats.summary(tree); arviz_stats.loo(tree); arviz_plots.plot_trace(tree)

Weights of a network can change places without any change of its function: judge convergence by predictions too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError
from temperance.core.seeds import check_seed, generator
from temperance.core.version import __version__
from temperance.data.data import Data
from temperance.engine.energy import OwnEnergies
from temperance.engine.engine import Engine
from temperance.judge.diagnose.chains import chains_of, stack_chains
from temperance.model.target import Target
from temperance.model.theta import matches
from temperance.posteriors import Draws, Mixture, Posterior, Trace
from temperance.predict import predict
from temperance.run.fitted import Fitted
from temperance.run.sample import Samples

Arrays = dict[str, np.ndarray]


@dataclass
class _Chain:
    """Draws of one chain: those that are kept, with their places among all."""

    theta: Tensor
    buffers: dict[str, Tensor]
    places: Tensor
    trace: Trace | None


def to_arviz(
    run: Fitted | Samples | Draws | Mixture,
    data: Any = None,
    *,
    x: Any = None,
    target: Target | None = None,
    names: str | Sequence[str] | None = None,
    thin: int = 1,
    draws: int | None = None,
    prior: int | None = None,
    seed: int = 0,
    batch_size: int = 1024,
) -> Any:
    """A ``DataTree`` of ArviZ (its ``InferenceData``) with the groups

    * ``posterior``: each tensor of θ under its own name, chain × draw × its shape;
    * ``sample_stats``: ``lp`` = −U/T, ``potential_energy`` U, ``acceptance_rate``, ``diverging``, ``n_steps`` and
      ``step_size``, of samplers that tell of each transition;
    * ``readings``: temperatures and loss along the chain, chain × reading, of samplers with a thermometer;
    * with ``data``: ``observed_data``, ``log_likelihood`` by row (what ``loo`` needs) and ``posterior_predictive``;
    * with ``x``: ``predictions`` there; with ``prior``: ``prior`` and, with ``data``, ``prior_predictive``.

    Args:
        run: a ``Fitted``, what ``temperance.run.sample`` returned, or draws. An ensemble of ``Collect`` has a chain for
            each member. Of a posterior that is no sampler's, independent draws stand as one chain.
        data: pairs (x, y), as for ``fit``.
        x: new inputs.
        target: the problem, where ``run`` is only draws.
        names: names, prefixes or patterns of the tensors that go into ``posterior``; all, unless told.
        thin: keep one draw in so many.
        draws: how many draws of a posterior that is no sampler's (30, unless told).
        prior: how many draws of the prior.
        seed: of drawn targets, of draws from the prior and from continuous posteriors.
        batch_size: rows through the network at once.

    >>> import temperance as tp
    >>> density = lambda theta: -0.5 * theta.square().sum()
    >>> found = tp.sample(density, torch.zeros(2), tp.NUTS(step_size=0.9), draws=20, warmup=5)
    >>> tree = to_arviz(found)
    >>> tree["posterior"]["theta"].shape, "diverging" in tree["sample_stats"]
    ((4, 20, 2), True)
    """
    base, xarray = _arviz()
    check_seed(seed)
    fitted = run.fitted if isinstance(run, Samples) else run if isinstance(run, Fitted) else None
    if fitted is None and not isinstance(run, Posterior):
        raise ArgumentError(f"`run` must be a Fitted, Samples, Draws or Mixture; got {type(run).__name__}.")
    posterior = run if isinstance(run, Posterior) else fitted.posterior  # type: ignore[union-attr]
    target = target if target is not None or fitted is None else fitted.target
    if target is None:
        raise ArgumentError("`target` must be given where `run` is not what `fit` returned; got None.")
    if posterior.size != target.layout.size:
        raise ArgumentError(f"`run` must be over the target's {target.layout.size} parameters; got {posterior.size}.")
    chains = _chains(posterior, thin, draws, seed)
    groups: dict[str, Arrays] = {"posterior": _tensors(target, [c.theta for c in chains], names)}
    stats = _transitions(chains, None if fitted is None else fitted.info.steps, target.temperature)
    if stats:
        groups["sample_stats"] = stats
    at_prior: list[_Chain] = []
    if prior is not None:
        rows = target.sample_prior(check_count(prior, "prior"), generator(seed, "arviz-prior"))
        at_prior = [_Chain(rows, {}, torch.arange(prior), None)]
        groups["prior"] = _tensors(target, [rows], names)
    if data is not None:
        known = Data.of(_networked(target, data, "data"))
        y, log_lik, drawn = _predicted(target, chains, known.x, known.y, seed, batch_size)
        assert y is not None
        groups |= {"observed_data": {"y": y}, "log_likelihood": {"y": log_lik}, "posterior_predictive": {"y": drawn}}
        if at_prior:
            groups["prior_predictive"] = {"y": _predicted(target, at_prior, known.x, None, seed, batch_size)[2]}
    if x is not None:
        inputs = _networked(target, x, "x")
        groups["predictions"] = {"y": _predicted(target, chains, inputs, None, seed + 1, batch_size)[2]}
    width = groups.get("posterior_predictive", groups.get("predictions", {"y": np.empty(0)}))["y"].ndim
    dims = {"y": ["row", "output"][: max(0, width - 2)]}
    about = {"inference_library": "temperance", "inference_library_version": __version__}
    tree = base.from_dict(groups, dims=dims, pred_dims=dims, attrs={"/": about}, check_conventions=False)
    readings = _readings(chains)
    if readings:
        sizes = {"kinetic": ["tensor"], "configurational": ["tensor"]}
        known_names = {"tensor": [entry.name for entry in target.layout.entries]}
        made = base.dict_to_dataset(readings, sample_dims=["chain", "reading"], dims=sizes, coords=known_names)
        tree["readings"] = xarray.DataTree(made)
    return tree


def _arviz() -> tuple[Any, Any]:
    try:
        import arviz_base
        import xarray
    except ImportError as error:
        raise ImportError('to_arviz needs ArviZ: pip install "temperance[arviz]".') from error
    return arviz_base, xarray


def _networked(target: Target, value: Any, argument: str) -> Any:
    if isinstance(target.network, OwnEnergies):
        raise ArgumentError(f"`{argument}` must not be given for draws from a log density, which predicts nothing.")
    return value


def _chains(posterior: Posterior, thin: int, draws: int | None, seed: int) -> list[_Chain]:
    check_count(thin, "thin")
    try:
        found = chains_of(posterior)
    except ArgumentError:  # no sampler's: draws of a law, those of a Gaussian in antithetic pairs
        nodes = posterior.nodes(None if draws is None else check_count(draws, "draws"), seed)
        if float(nodes.weights.max() - nodes.weights.min()) > 1e-9:
            raise ArgumentError("`run` must have draws of equal weight; got a mixture of unequal ones.") from None
        theta, buffers = nodes.fetch(0, len(nodes))
        found = (Draws(theta, buffers),)
    else:
        if draws is not None:
            raise ArgumentError(f"`draws` must not be given for a sampler, whose draws are all there; got {draws}.")
    shortest = min(len(chain.theta) for chain in found)
    made = []
    for chain in found:
        places = torch.arange(len(chain.theta) - shortest, len(chain.theta))[::thin]
        at = places.to(chain.theta.device)
        made.append(_Chain(chain.theta[at], {n: v[at] for n, v in chain.buffers.items()}, places, chain.trace))
    return made


def _tensors(target: Target, chains: Sequence[Tensor], names: str | Sequence[str] | None) -> Arrays:
    """Each tensor of θ: chains × draws × its shape."""
    entries = target.layout.entries
    if names is not None:
        patterns = [names] if isinstance(names, str) else list(names)
        entries = tuple(e for e in entries if any(matches(e.name, pattern) for pattern in patterns))
        if not entries:
            raise ArgumentError(
                f"`names` must match tensors of θ, {[e.name for e in target.layout.entries]}; got {names!r}."
            )
    return {
        e.name: _array(torch.stack([theta[:, e.start : e.stop].reshape(-1, *e.shape) for theta in chains]))
        for e in entries
    }


def _predicted(
    target: Target, chains: Sequence[_Chain], x: Any, y: Any, seed: int, batch_size: int
) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
    """Prepared targets; log p(y_i | x_i, θ), chains × draws × rows; a draw of y for each θ."""
    scores, drawn = [], []
    known: Tensor | None = None
    engine = Engine(target)
    for k, chain in enumerate(chains):
        predictive = predict(engine, Draws(chain.theta, chain.buffers), x, batch_size=batch_size, by="network")
        source, likelihood = predictive.source, predictive.likelihood
        if y is not None and known is None:
            known = likelihood.prepare(torch.as_tensor(y).to(target.device), source.num_outputs, target.layout.dtype)
        rng = generator(seed, "arviz-predictive", k, device=target.device)
        log_probs, samples = [], []
        for rows, outputs, learned in source.blocks():
            if known is not None:
                log_probs.append(likelihood.log_prob(outputs, known[rows], learned))
            samples.append(likelihood.sample(outputs, learned, rng))
        scores.append(torch.cat(log_probs, 1) if log_probs else torch.empty(0))
        drawn.append(torch.cat(samples, 1))
    return None if known is None else _array(known), _array(torch.stack(scores)), _array(torch.stack(drawn))


def _transitions(chains: Sequence[_Chain], steps: int | None, temperature: float) -> Arrays:
    """What each transition told, at the draws that are kept. A run has told of its last R steps; draw s was taken after
    step ``draw_step[s]``."""
    rows: dict[str, list[Tensor]] = {}
    for chain in chains:
        told = None if chain.trace is None else chain.trace.transitions
        if told is None or chain.trace is None:
            return {}
        count = len(told.energy)
        taken = chain.trace.draw_step.cpu()[chain.places]
        first = steps - count if steps is not None else int(chain.trace.draw_step[-1]) - count
        at = taken - 1 - first
        if bool((at < 0).any()) or bool((at >= count).any()):
            return {}
        for name, values in {
            "lp": -told.energy / temperature,
            "potential_energy": told.energy,
            "acceptance_rate": told.acceptance,
            "diverging": told.divergent,
            "n_steps": told.leapfrogs,
            "step_size": told.step_size,
        }.items():
            rows.setdefault(name, []).append(values.cpu()[at])
    return {name: _array(torch.stack(values)) for name, values in rows.items()}


def _readings(chains: Sequence[_Chain]) -> Arrays:
    traces = [chain.trace for chain in chains if chain.trace is not None and len(chain.trace.step)]
    if len(traces) < len(chains):
        return {}
    found: Arrays = {}
    for name in ("step", "loss", "temperature", "pace", "kinetic", "configurational", "acceptance"):
        series = [getattr(trace, name) for trace in traces]
        if all(values is not None and not bool(values.isnan().all()) for values in series):
            found[name] = _array(stack_chains(series))
    return found


def _array(values: Tensor) -> np.ndarray:
    found = values.detach().cpu()
    return (found.float() if found.dtype in (torch.bfloat16, torch.float16) else found).numpy()
