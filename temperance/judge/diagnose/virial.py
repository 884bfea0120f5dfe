"""Configurational temperatures computed anew from draws and data: what the sampler believed of N and T plays no part.

For any smooth vector field v, integration by parts under p_T(θ|D) ∝ exp(−U/T) gives E⟨v, ∇U⟩ = T E[div v]. Three fields
are of use.

* v = θ gives the textbook form, ⟨θ, ∇U⟩/d. It can be blind where it hurts. A sampler that believes in a·N data draws as
  if the likelihood counted a times, and its reading is 1/a + (1 − 1/a)·E[θᵀS⁻¹θ]/d under a prior N(0, S): exactly one,
  whatever a is, where the weights are as large as the prior expects.
* v = θ − c, with c the mean of the other half of the chain, is less noisy and is not fooled by large weights; but in a
  large network most directions know only the prior, and these are right whatever N is.
* v = ∇U gives E|∇U|² = T E[tr ∇²U]. Directions count by their curvature: those that know the data, move fast, and are
  the first to feel a wrong N, a step that is too large, or the noise of minibatches. It needs no mixing between modes.

Reference for the last: Butler, Ayton, Jepps and Evans, "Configurational temperature: verification of Monte Carlo
simulations", 1998.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from temperance.core.checks import check_count
from temperance.core.errors import ArgumentError
from temperance.core.seeds import generator
from temperance.data.data import Batch, Data
from temperance.engine import outputs as forward
from temperance.engine.engine import Engine
from temperance.judge.diagnose.chains import Run, evenly, stack_chains, unpack
from temperance.judge.diagnose.temperature import Temperatures
from temperance.model.target import Target
from temperance.posteriors import Chain

_PASSES = 2**16  # draws × rows through the network at once
_RELATIVE_STEP = 1e-3  # of the differences that give the curvature, in units of the weights' root mean square


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Some draws of one chain (S × P); θ less the mean of the other half of the chain; the exact gradient of U at each;
    an unbiased estimate of tr ∇²U (NaN where it was not asked for); and the mean loss of a datum."""

    index: Tensor
    theta: Tensor
    offset: Tensor
    gradient: Tensor
    curvature: Tensor
    loss: Tensor


def evaluate_draws(
    target: Target, run: Run, data: Any, max_draws: int = 50, batch_size: int = 1000, curvature: bool = False
) -> list[Evaluated]:
    """∇U over all of the data, the network in evaluation mode, at up to ``max_draws`` evenly spaced draws, shared among
    the chains. ``curvature`` takes two passes more for each: zᵀ(∇U(θ+εz) − ∇U(θ−εz))/(2ε) with random signs z (which
    sees the kinks of ReLUs, as second derivatives do not)."""
    _, chains = unpack(run, target)
    check_count(max_draws, "max_draws")
    ready = target.prepare(Data.of(data))
    each = max(2, max_draws // len(chains))
    engine = Engine(target)
    return [
        _evaluate(engine, chain, ready, each, batch_size, k if curvature else None) for k, chain in enumerate(chains)
    ]


def _evaluate(engine: Engine, chain: Chain, data: Data, count: int, batch_size: int, seed: int | None) -> Evaluated:
    index = evenly(len(chain.theta), count).to(chain.theta.device)
    theta = chain.theta[index].to(device=engine.device, dtype=engine.layout.dtype)
    buffers = {name: value[index].to(engine.device) for name, value in chain.buffers.items()}
    gradient, loss = _gradient(engine, theta, data, buffers, batch_size)
    curvature = torch.full((len(theta),), torch.nan, dtype=torch.float64)
    if seed is not None:
        rng = generator(0, "curvature", seed)
        signs = (2 * torch.randint(0, 2, theta.shape, generator=rng) - 1).to(theta)
        step = _RELATIVE_STEP * float(theta.square().mean().sqrt().clamp(min=0.01))
        up, down = (_gradient(engine, theta + s * step * signs, data, buffers, batch_size)[0] for s in (1, -1))
        curvature = ((up - down).double() * signs.double()).sum(1).cpu() / (2 * step)
    half = -(-len(chain.theta) // 2)
    late = (index >= half).unsqueeze(1).to(engine.device)
    centre = [chain.theta[part].mean(0).to(theta) for part in (slice(half, None), slice(0, half))]
    offset = theta - torch.where(late, centre[1], centre[0])
    return Evaluated(index.cpu(), theta.cpu(), offset.cpu(), gradient.cpu(), curvature, loss.cpu())


def _gradient(
    engine: Engine, theta: Tensor, data: Data, buffers: dict[str, Tensor], batch_size: int
) -> tuple[Tensor, Tensor]:
    """∇U at each row of θ and the mean loss of a datum there; small networks several rows at once."""
    gradient = torch.zeros_like(theta)
    engine.bound_prior.add_gradient(theta, gradient, -1.0)
    loss = torch.zeros(len(theta), dtype=torch.float64, device=theta.device)
    for batch in data.full_pass(batch_size):
        here = batch.to(engine.device)
        many = forward.prefers_batching(engine.network, engine.layout, here.x)
        rows = max(1, _PASSES // here.size) if many else 1
        for low in range(0, len(theta), rows):
            part = slice(low, low + rows)
            pieces = {name: value[part] for name, value in buffers.items()}
            added, lost = _likelihood_gradient(engine, theta[part], here, pieces)
            gradient[part] += added
            loss[part] += lost.double() / len(data)
    return gradient, loss


def _likelihood_gradient(
    engine: Engine, theta: Tensor, batch: Batch, buffers: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    leaf = theta.detach().requires_grad_()
    outputs = engine.outputs(leaf, batch.x, buffers)
    lost = engine.likelihood.weighed(outputs, batch.y, engine.layout.unflatten(leaf, "likelihood"), batch.weights)
    (gradient,) = torch.autograd.grad(lost.sum() / engine.likelihood_temperature, leaf)
    return gradient, lost.detach()


def configurational_of(
    target: Target, draws: Run, data: Any, *, centred: bool = False, max_draws: int = 50, batch_size: int = 1000
) -> Temperatures:
    """⟨θ, ∇U(θ)⟩ / (d T) at up to ``max_draws`` evenly spaced draws, each with a full pass over the data; ``centred``
    takes θ − c in place of θ, c the mean of the other half of the chain.

    >>> import temperance as tp
    >>> problem = tp.testing.linear_gaussian()
    >>> rng = torch.Generator().manual_seed(0)
    >>> noise = torch.randn(200, 16, generator=rng, dtype=torch.float64)
    >>> exact = problem.mean + noise @ torch.linalg.cholesky(problem.covariance).T
    >>> draws = tp.posteriors.Draws(exact)
    >>> found = configurational_of(problem.target, draws, problem.data, centred=True)
    >>> abs(found.network_mean - 1) < 5 * found.network_error < 0.5
    True
    """
    return temperatures_of(target, evaluate_draws(target, draws, data, max_draws, batch_size), centred)


def curvature_temperature(
    target: Target, draws: Run, data: Any, *, max_draws: int = 50, batch_size: int = 1000
) -> Temperatures:
    """E|∇U|² / (T E[tr ∇²U]) of the whole of θ, at up to ``max_draws`` draws, each with three passes over the data.

    The readings are linearised around the ratio R of the means, R + (|∇U|² − R tr ∇²U) / mean tr ∇²U, so that their
    mean is R and their spread its error.
    """
    return curvature_of(target, evaluate_draws(target, draws, data, max_draws, batch_size, curvature=True))


def temperatures_of(target: Target, evaluated: list[Evaluated], centred: bool) -> Temperatures:
    """Configurational temperatures of draws whose gradients are known."""
    fewest = min(len(part.index) for part in evaluated)
    if centred and fewest < 2:
        raise ArgumentError(f"`draws` must have two or more in each chain, for c is the mean of others; got {fewest}.")
    entries, series = target.layout.entries, []
    for part in evaluated:
        place = part.offset if centred else part.theta
        product = place.double() * part.gradient.double() / target.temperature
        series.append(torch.stack([product[:, e.start : e.stop].sum(1) / e.size for e in entries], 1))
    names, sizes = tuple(e.name for e in entries), tuple(e.size for e in entries)
    readings = stack_chains(series)
    step = evaluated[0].index[-readings.shape[1] :]
    return Temperatures("centred configurational" if centred else "configurational", names, sizes, readings, step)


def curvature_of(target: Target, evaluated: list[Evaluated]) -> Temperatures:
    """The temperature E|∇U|² / E[tr ∇²U] of draws whose gradients and curvatures are known."""
    squares = stack_chains([part.gradient.double().square().sum(1) for part in evaluated]) / target.temperature
    curvature = stack_chains([part.curvature for part in evaluated])
    ratio = squares.mean() / curvature.mean()
    readings = ratio + (squares - ratio * curvature) / curvature.mean()
    step = evaluated[0].index[-readings.shape[1] :]
    return Temperatures("curvature", ("all of θ",), (target.layout.size,), readings.unsqueeze(-1), step)
