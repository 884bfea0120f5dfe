"""``EllipticalSlice``: for Gaussian priors, without gradients and without a step to tune."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import shown
from temperance.core.errors import ArgumentError
from temperance.data.data import Batch
from temperance.engine.engine import Engine
from temperance.inference.base import Info, Starts
from temperance.inference.card import Card, MethodFamily
from temperance.inference.hamiltonian.kernel import HamiltonianState, Transition, TransitionKernel, settle_
from temperance.inference.hamiltonian.motion import Motion, uniforms
from temperance.model.priors.base import BoundPrior

_MOST_SHRINKS = 1000


@dataclass(frozen=True, eq=False)
class EllipticalSlice(TransitionKernel):
    """Elliptical slice sampling (Murray, Adams & MacKay, 2010). With a prior N(m, S) and ℓ(θ) the log-likelihood over
    T, a draw ν ~ N(m, T S) and a level log y = ℓ(θ) + log u, the ellipse

        θ' = m + (θ − m) cos φ + (ν − m) sin φ

    is searched for ℓ(θ') > log y: φ uniform on a circle, which shrinks towards φ = 0 at every failure. It always
    succeeds and exp(−U/T) is exactly stationary. It takes no gradients, only likelihoods, and suits small θ and
    posteriors that are not much narrower than their prior.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, tp.Collect(EllipticalSlice(), every=1), (x, 2 * x + 1), steps=500)
    >>> fitted.predict(torch.tensor([[0.5]])).mean().round(decimals=1)
    tensor([[2.]])
    """

    card: ClassVar[Card] = Card(
        "ellipses through draws of the prior: no gradients, no step",
        MethodFamily.HAMILTONIAN,
        papers=("Murray, Adams & MacKay, Elliptical slice sampling, AISTATS 2010",),
        exact="any likelihood, under a Gaussian prior",
        cost="likelihoods alone, no gradients",
    )

    def init(self, engine: Engine, starts: Starts, rngs: Sequence[torch.Generator]) -> HamiltonianState:
        """See :class:`TransitionKernel`."""
        if any(density.gaussian is None for _, density in engine.bound_prior.pieces):
            raise ArgumentError(
                "`prior` must be Gaussian with independent weights for EllipticalSlice, whose ellipse is that of the "
                f"prior; got {shown(engine.target.prior)}. Use a GaussianPrior, or NUTS()."
            )
        return super().init(engine, starts, rngs)

    def step(self, engine: Engine, state: HamiltonianState, batch: Batch) -> tuple[HamiltonianState, Info]:
        """See :class:`TransitionKernel`."""
        if state.chain.read_next:
            state.ready = False  # the slope is looked at, which moves do not keep
        return super().step(engine, state, batch)

    def transition(self, flow: Motion, state: HamiltonianState) -> Transition:
        """Shrink until every chain is above its level."""
        prior = flow.energies.prior
        mean, scale = gaussian_parts(prior, state.chain.theta)
        beta = flow.inverse_temperature
        away = state.chain.theta - mean
        other = state.chain.noise * scale / beta.sqrt().to(away).unsqueeze(1)
        luck = uniforms(state.rngs, 2)
        level = _log_likelihood(state.energy, prior, state.chain.theta, beta) + torch.from_numpy(np.log(luck[:, 0]))
        angle = 2 * math.pi * luck[:, 1]
        low, high = angle - 2 * math.pi, angle.copy()
        count = len(angle)
        theta, energy = state.chain.theta.clone(), state.energy.clone()
        searching, tries = np.ones(count, dtype=bool), np.zeros(count, dtype=np.int64)
        for _ in range(_MOST_SHRINKS):
            going = torch.from_numpy(searching)
            rows = going.to(away.device)
            turn = torch.from_numpy(angle[searching]).to(away).unsqueeze(1)
            proposed = mean + away[rows] * torch.cos(turn) + other[rows] * torch.sin(turn)
            found = flow.energies(proposed).cpu()
            above = _log_likelihood(found, prior, proposed, beta[going]) > level[going]
            tries += searching
            done = searching.copy()
            done[searching] = above.numpy()
            at = torch.from_numpy(done)
            theta[at.to(theta.device)] = proposed[above.to(theta.device)]
            energy[at] = found[above]
            searching &= ~done
            if not searching.any():
                break
            low = np.where(searching & (angle < 0), angle, low)
            high = np.where(searching & (angle >= 0), angle, high)
            chosen = np.flatnonzero(searching)
            angle[chosen] = low[chosen] + (high - low)[chosen] * uniforms([state.rngs[k] for k in chosen], 1)[:, 0]
        settle_(state, torch.from_numpy(~searching), theta, state.gradient, energy)
        never = np.zeros(count, dtype=bool)
        return Transition(1.0 / tries, never, tries, never)


def _log_likelihood(energy: Tensor, prior: BoundPrior, theta: Tensor, beta: Tensor) -> Tensor:
    """ℓ/T from U = −ℓ − log p(θ)."""
    return beta * -(energy + prior.log_prob(theta, torch.float64).cpu())


def gaussian_parts(prior: BoundPrior, like: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and scale of each number under a prior that is Gaussian throughout."""
    mean, scale = torch.empty_like(like[0]), torch.empty_like(like[0])
    for piece, density in prior.pieces:
        found = density.gaussian
        assert found is not None, "looked at by init"
        mean[piece], scale[piece] = found
    return mean, scale
