"""``HMC``: Hamiltonian Monte Carlo with trajectories of a set length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from temperance.core.checks import check_count, check_positive
from temperance.core.errors import ArgumentError
from temperance.inference.card import Card, MethodFamily
from temperance.inference.hamiltonian.kernel import (
    DIVERGENCE,
    HamiltonianState,
    Numbers,
    SteppingKernel,
    Transition,
    check_jitter,
    jittered,
    judge_gain,
    over_an_edge,
    settle_,
)
from temperance.inference.hamiltonian.motion import Motion, Phase, uniforms

_MOST_LEAPFROGS = 10_000


@dataclass(frozen=True, eq=False)
class HMC(SteppingKernel):
    """Hamiltonian Monte Carlo (Duane et al., 1987; Neal, 2011). A momentum p ~ N(0, M) is drawn; ``length`` leapfrog
    steps of size ε follow the energy H(θ, p) = U(θ)/T + ½ pᵀM⁻¹p,

        p ← p − ½ ε ∇U(θ)/T;    θ ← θ + ε M⁻¹ p;    p ← p − ½ ε ∇U(θ)/T,

    and the end is accepted with probability min(1, exp(H_start − H_end)). The leapfrog keeps volumes and is its own
    reverse, so exp(−U/T) is exactly stationary at any step: too long a step costs acceptance, not correctness.

    Args:
        step_size: ε; ``None`` leaves it to :class:`Warmup`.
        length: leapfrog steps of a trajectory.
        time: how long a trajectory lasts, in place of ``length``: time / ε steps. A weight that only its prior holds
            has turned round after π/2 times the prior's scale.
        jitter: each trajectory's ε is drawn from ε (1 ± jitter), so that no direction comes back to where it began.
        mass: M, a vector of P numbers or a P × P matrix; :class:`Warmup` finds one.

    Each step reads all data and costs ``length`` gradients.

    >>> import temperance as tp
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> target = tp.Target(torch.nn.Linear(1, 1), tp.Normal(scale=0.1), tp.GaussianPrior(scale=1.0))
    >>> fitted = tp.fit(target, tp.Collect(HMC(step_size=0.02, length=5), every=1), (x, 2 * x + 1), steps=400)
    >>> fitted.predict(torch.tensor([[0.5]])).mean().round(decimals=1)
    tensor([[2.]])
    """

    card: ClassVar[Card] = Card(
        "leapfrog trajectories, `length` or `time` long, with jittered steps, accepted or rejected",
        MethodFamily.HAMILTONIAN,
        papers=(
            "Duane et al., Hybrid Monte Carlo, Physics Letters B 1987",
            "Neal, MCMC using Hamiltonian dynamics, Handbook of Markov Chain Monte Carlo 2011",
        ),
        exact="any energy, any step",
        cost="`length` gradients",
    )

    step_size: float | None = None
    length: int | None = None
    time: float | None = None
    jitter: float = 0.2
    mass: Tensor | None = None

    def __post_init__(self) -> None:
        self._check()
        if self.length is not None and self.time is not None:
            raise ArgumentError("give `length` (leapfrog steps) or `time`, not both.")
        if self.length is not None:
            check_count(self.length, "length")
        if self.time is not None:
            check_positive(self.time, "time")
        check_jitter(self.jitter)

    def gradients(self) -> float:
        """A gradient for each leapfrog step (with ``time``, at the step size as given)."""
        count = self.length or 10
        if self.time is not None:
            count = math.ceil(self.time / (self.step_size or self.time / 10) / (1 - self.jitter))
        return count

    def _counts(self, step: Numbers) -> Numbers:
        if self.time is None:
            return np.full(len(step), self.length or 10)
        return np.clip(np.ceil(self.time / step - 1e-9), 1, _MOST_LEAPFROGS).astype(np.int64)

    def transition(self, flow: Motion, state: HamiltonianState) -> Transition:
        """A trajectory and its decision."""
        luck = uniforms(state.rngs, 2)
        momentum = flow.metric.momenta(state.chain.noise)
        before = flow.inverse_temperature * state.energy + flow.kinetic(momentum)
        step = jittered(state.step_size, self.jitter, luck[:, 0])
        counts = self._counts(step.numpy())
        phase = Phase(state.chain.theta.clone(), momentum, state.gradient.clone())
        energy, kinetic = _go(flow, phase, step, counts)
        chance, divergent = judge_gain((flow.inverse_temperature * energy + kinetic - before).numpy())
        edge = over_an_edge(energy, kinetic - (before - flow.inverse_temperature * state.energy))
        lost = ~torch.isfinite(energy + kinetic).numpy() & ~edge
        if lost.any():
            edge[lost] = _retraced(flow, state, step, int(counts.max()), torch.from_numpy(lost))
        settle_(state, torch.from_numpy(luck[:, 1] < chance), phase.theta, phase.gradient, energy)
        return Transition(chance, divergent, counts, edge)


def _retraced(flow: Motion, state: HamiltonianState, step: Tensor, count: int, lost: Tensor) -> Numbers:
    """Which of the ``lost`` chains, whose energies are no numbers any more, came to an impossible place in good order.
    The others gained energy until it overflowed, which is the step's fault. At their ends they look the same, so they
    walk again, a step at a time."""
    rows = lost.to(state.chain.theta.device)
    momentum = flow.metric.momenta(state.chain.noise)
    phase, flow, step = Phase(state.chain.theta, momentum, state.gradient).rows(rows), flow.rows(rows), step[lost]
    before = flow.inverse_temperature * state.energy[lost] + flow.kinetic(phase.momentum)
    sound = torch.ones_like(step, dtype=torch.bool)
    fell = torch.zeros_like(sound)
    for _ in range(count):
        energy, kinetic = flow.leap(phase, step)
        fell |= sound & ~torch.isfinite(energy)
        sound &= flow.inverse_temperature * energy + kinetic - before <= DIVERGENCE
        if not bool(sound.any()):
            break
    found: Numbers = fell.numpy()
    return found


def _go(flow: Motion, phase: Phase, step: Tensor, counts: Numbers) -> tuple[Tensor, Tensor]:
    """As many leapfrog steps for each chain as it wants; chains that have arrived wait."""
    if (counts == counts[0]).all():
        return flow.leap(phase, step, int(counts[0]))
    energy, kinetic = torch.empty_like(step), torch.empty_like(step)
    done = 0
    for stop in np.unique(counts):
        going = torch.from_numpy(counts >= stop)
        rows = going.to(phase.theta.device)
        part = phase.rows(rows)
        energy[going], kinetic[going] = flow.rows(rows).leap(part, step[going], int(stop) - done)
        phase.put_(rows, part)
        done = int(stop)
    return energy, kinetic
